//! The JSON Schema of each tool and the parser of its arguments say the same: what one takes, the other takes.
//!
//! The validator here knows the keywords that the schemas have, and no others: a new one has to be taught to it first.

use crate::engine::gateway::arguments::understand;
use crate::engine::gateway::tool::Tool;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree as _;
use regex::Regex;
use semel_core::glob::{Case, Glob};
use semel_core::{Code, Refusal, RelPath, patch};
use semel_host::files::{Pattern, Syntax};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

/// Says why a value is none of a schema.
fn fault(schema: &Value, value: &Value) -> Option<String> {
    let keywords = schema.as_object().expect("a schema is an object");
    keywords
        .iter()
        .find_map(|(keyword, wanted)| (!holds(keyword, wanted, schema, value)).then(|| keyword.clone()))
}

fn fits(schema: &Value, value: &Value) -> bool {
    fault(schema, value).is_none()
}

fn holds(keyword: &str, wanted: &Value, schema: &Value, value: &Value) -> bool {
    let all = |key: &str| schema[key].as_array().unwrap().iter();
    let bound = || wanted.as_f64().unwrap();
    let size = || usize::try_from(wanted.as_u64().unwrap()).unwrap();
    match keyword {
        "description" | "default" | "contentEncoding" => true,
        "type" => match wanted.as_str().unwrap() {
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
            other => panic!("a type that this does not know: {other}"),
        },
        "enum" => all("enum").any(|one| one == value),
        "const" => wanted
            .as_f64()
            .map_or(wanted == value, |n| value.as_f64() == Some(n)),
        "minimum" => value.as_f64().is_none_or(|n| n >= bound()),
        "maximum" => value.as_f64().is_none_or(|n| n <= bound()),
        "minLength" => value.as_str().is_none_or(|text| text.chars().count() >= size()),
        "maxLength" => value.as_str().is_none_or(|text| text.chars().count() <= size()),
        "pattern" => value
            .as_str()
            .is_none_or(|text| matches(wanted.as_str().unwrap(), text)),
        "format" => value
            .as_str()
            .is_none_or(|text| of_format(wanted.as_str().unwrap(), text)),
        "minItems" => value.as_array().is_none_or(|list| list.len() >= size()),
        "maxItems" => value.as_array().is_none_or(|list| list.len() <= size()),
        "items" => value
            .as_array()
            .is_none_or(|list| list.iter().all(|one| fits(wanted, one))),
        "prefixItems" => value.as_array().is_none_or(|list| {
            all("prefixItems")
                .zip(list)
                .all(|(wanted, one)| fits(wanted, one))
        }),
        "required" => value
            .as_object()
            .is_none_or(|map| all("required").all(|name| map.contains_key(name.as_str().unwrap()))),
        "dependentRequired" => value.as_object().is_none_or(|map| {
            wanted.as_object().unwrap().iter().all(|(name, others)| {
                let mut others = others.as_array().unwrap().iter();
                !map.contains_key(name) || others.all(|other| map.contains_key(other.as_str().unwrap()))
            })
        }),
        "properties" => value.as_object().is_none_or(|map| {
            let known = wanted.as_object().unwrap();
            map.iter()
                .all(|(name, one)| known.get(name).is_none_or(|wanted| fits(wanted, one)))
        }),
        "additionalProperties" => value.as_object().is_none_or(|map| {
            let known = schema["properties"].as_object();
            let mut more = map
                .iter()
                .filter(|(name, _)| known.is_none_or(|known| !known.contains_key(*name)));
            match wanted {
                Value::Bool(false) => more.next().is_none(),
                wanted => more.all(|(_, one)| fits(wanted, one)),
            }
        }),
        "propertyNames" => value
            .as_object()
            .is_none_or(|map| map.keys().all(|name| fits(wanted, &json!(name)))),
        "allOf" => all("allOf").all(|one| fits(one, value)),
        "oneOf" => all("oneOf").filter(|one| fits(one, value)).count() == 1,
        "not" => !fits(wanted, value),
        other => panic!("a keyword that this does not know: {other}"),
    }
}

/// Says whether a text matches; patterns are few, and compiled once.
fn matches(pattern: &str, text: &str) -> bool {
    thread_local! {
        static KNOWN: RefCell<HashMap<String, Regex>> = RefCell::default();
    }
    KNOWN.with_borrow_mut(|known| {
        let made = || Regex::new(pattern).unwrap();
        known
            .entry(pattern.to_owned())
            .or_insert_with(made)
            .is_match(text)
    })
}

/// Says whether a text is of one of our formats; a path that leads out is well-formed, and refused in its turn.
fn of_format(format: &str, text: &str) -> bool {
    let leads = |path: Result<RelPath, Refusal>| {
        path.map_or_else(|refusal| refusal.code == Code::PathEscapesRoot, |_| true)
    };
    match format {
        "semel-path" => leads(RelPath::parse(text.as_bytes())),
        "semel-after" => leads(RelPath::try_from(text.to_owned())),
        "semel-path-b64" => BASE64_STANDARD
            .decode(text)
            .is_ok_and(|bytes| leads(RelPath::parse(&bytes))),
        "semel-glob" => Glob::parse(text.as_bytes(), Case::Sensitive).is_ok(),
        "semel-expression" => Pattern::parse(text, Syntax::Regex, Case::Sensitive).is_ok(),
        "semel-patch" => leads(patch::parse(text.as_bytes()).map(|_| RelPath::root())),
        "semel-command" => !text.contains('\0'),
        other => panic!("a format that this does not know: {other}"),
    }
}

/// Says whether a call is refused for its form; one that is refused for what it asks for may be well-formed.
fn for_its_form(refusal: &Refusal) -> bool {
    matches!(refusal.code, Code::BadInput | Code::InvalidIdempotencyKey)
}

/// Says whether a well-formed call asks for what cannot be meant. No schema says that, and these are all there are.
fn senseless(tool: Tool, refusal: &Refusal, arguments: &Map<String, Value>) -> bool {
    let why = refusal.why.as_str();
    match tool {
        Tool::ApplyPatch => why == "the patch does not touch the path",
        Tool::ReadFile => {
            why == "the last line comes before the first"
                || refusal.names == ["view_range"]
                    && arguments["view_range"][0].as_f64() > arguments["view_range"][1].as_f64()
        }
        _ => false,
    }
}

/// Gives what arguments of any form are, and what is nearly that.
fn pool() -> Vec<Value> {
    serde_json::from_str(include_str!("pool.json")).unwrap()
}

/// Gives arguments: of each name none, or something that mostly fits, so that whole calls do.
fn any_arguments(tool: Tool) -> impl Strategy<Value = Map<String, Value>> {
    let schema = tool.schema();
    let properties = schema["properties"].as_object().unwrap().clone();
    let groups: BTreeSet<String> = schema["allOf"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(required)
        .collect();
    let pool = pool();
    let fields: Vec<_> = properties
        .into_iter()
        .map(|(name, wanted)| {
            let often = if groups.contains(&name) { 5 } else { 2 };
            let good: Vec<Value> = pool
                .iter()
                .filter(|value| fits(&wanted, value))
                .cloned()
                .collect();
            let bad = prop_oneof![select(pool.clone()), any::<String>().prop_map(Value::from)];
            let value = prop_oneof![9 => select(good).prop_map(Some), 1 => bad.prop_map(Some)];
            prop_oneof![5 => Just(None), often => value].prop_map(move |value| Some((name.clone(), value?)))
        })
        .collect();
    let surprise = prop_oneof![20 => Just(None), 1 => Just(Some(("surprise".to_owned(), json!(1))))];
    (fields, surprise).prop_map(|(fields, surprise)| fields.into_iter().flatten().chain(surprise).collect())
}

fn required(part: &Value) -> Vec<String> {
    let mut names: Vec<String> = part["required"].as_array().map_or(Vec::new(), |names| {
        names
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    });
    names.extend(part["oneOf"].as_array().into_iter().flatten().flat_map(required));
    names
}

fn agree(tool: Tool, schema: &Value, arguments: &Map<String, Value>) -> Result<bool, TestCaseError> {
    let refusal = understand(tool, arguments.clone(), &|_| None).err();
    let says = fault(schema, &Value::Object(arguments.clone()));
    let shown = json!(arguments);
    match (&says, &refusal) {
        (None, Some(refusal)) => prop_assert!(
            !for_its_form(refusal) || senseless(tool, refusal, arguments),
            "{}: the schema takes {shown}, the parser says {refusal}",
            tool.name()
        ),
        // Plain text is no expression, and need not be.
        (Some(_), None) if tool == Tool::Grep && arguments.get("fixed") == Some(&json!(true)) => {}
        (Some(says), None) => prop_assert!(
            false,
            "{}: the parser takes {shown}, the schema says {says}",
            tool.name()
        ),
        (None, None) | (Some(_), Some(_)) => {}
    }
    Ok(says.is_none())
}

#[test]
fn schema_and_parser_take_the_same() {
    for tool in Tool::callable() {
        let mut taken = 0_u32;
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let (schema, strategy) = (tool.schema(), any_arguments(tool));
        for _ in 0..3_000 {
            let arguments = strategy.new_tree(&mut runner).unwrap().current();
            let agreed = agree(tool, &schema, &arguments);
            taken += u32::from(agreed.unwrap_or_else(|e| panic!("{e}")));
        }
        assert!(
            (60..2_900).contains(&taken),
            "{}: {taken} of 3000 were taken",
            tool.name()
        );
    }
}

/// Each argument in turn is everything that there is, in a call that is well-formed without it.
#[test]
fn schema_and_parser_take_the_same_of_each_argument() {
    let pool = pool();
    for tool in Tool::callable() {
        let schema = tool.schema();
        for name in schema["properties"].as_object().unwrap().keys() {
            let with = |base: &Map<String, Value>, value: &Value| {
                let mut arguments = base.clone();
                arguments.insert(name.clone(), value.clone());
                arguments
            };
            let fits_somehow = |base: &Map<String, Value>| {
                let mut all = pool.iter().map(|value| Value::Object(with(base, value)));
                all.any(|arguments| fits(&schema, &arguments))
            };
            let base = bases(tool).into_iter().find(fits_somehow);
            let base = base.unwrap_or_else(|| panic!("{}: no call has {name}", tool.name()));
            for value in &pool {
                agree(tool, &schema, &with(&base, value)).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}

/// Gives the example of a tool, and what it is without each one and each two of its arguments.
fn bases(tool: Tool) -> Vec<Map<String, Value>> {
    let Value::Object(example) = tool.example() else {
        panic!("{}", tool.name())
    };
    let mut all = vec![example.clone()];
    for first in example.keys() {
        for second in example.keys() {
            let mut less = example.clone();
            less.remove(first);
            less.remove(second);
            all.push(less);
        }
    }
    all
}

#[test]
fn the_example_of_each_tool_is_taken_by_both() {
    for tool in Tool::callable() {
        let Value::Object(arguments) = tool.example() else {
            panic!("{}", tool.name())
        };
        assert_eq!(fault(&tool.schema(), &tool.example()), None, "{}", tool.name());
        understand(tool, arguments, &|_| None).unwrap();
    }
}

/// The validator finds what is wrong: of each keyword one value that it takes, and one that it does not.
#[test]
fn the_validator_can_say_no() {
    for (schema, good, bad) in [
        (json!({"type": "integer"}), json!(2.0), json!(2.5)),
        (json!({"enum": ["a"]}), json!("a"), json!("b")),
        (json!({"const": -1}), json!(-1.0), json!(1)),
        (json!({"minimum": 1, "maximum": 2}), json!(2), json!(3)),
        (json!({"minLength": 1, "maxLength": 1}), json!("é"), json!("")),
        (json!({"pattern": "^a$"}), json!("a"), json!("ab")),
        (json!({"format": "semel-path"}), json!("../a"), json!("a\0")),
        (json!({"minItems": 1, "maxItems": 1}), json!([1]), json!([])),
        (json!({"items": {"type": "string"}}), json!(["a"]), json!([1])),
        (json!({"prefixItems": [{"const": 1}]}), json!([1, 2]), json!([2])),
        (json!({"required": ["a"]}), json!({"a": 1}), json!({})),
        (
            json!({"dependentRequired": {"a": ["b"]}}),
            json!({}),
            json!({"a": 1}),
        ),
        (
            json!({"additionalProperties": false, "properties": {"a": {}}}),
            json!({"a": 1}),
            json!({"b": 1}),
        ),
        (
            json!({"additionalProperties": {"type": "string"}}),
            json!({"a": ""}),
            json!({"a": 1}),
        ),
        (
            json!({"propertyNames": {"pattern": "^a$"}}),
            json!({"a": 1}),
            json!({"b": 1}),
        ),
        (
            json!({"oneOf": [{"type": "string"}, {"const": "a"}]}),
            json!("b"),
            json!("a"),
        ),
        (json!({"not": {"required": ["a"]}}), json!({}), json!({"a": 1})),
    ] {
        assert_eq!(fault(&schema, &good), None, "{schema} {good}");
        assert!(fault(&schema, &bad).is_some(), "{schema} {bad}");
    }
}
