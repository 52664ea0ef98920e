//! JSON objects spelt in other ways: the same call to a reader of JSON, other bytes to everybody else.

use serde_json::{Map, Value};

fn object(body: &str) -> Option<Map<String, Value>> {
    match serde_json::from_str(body) {
        Ok(Value::Object(members)) => Some(members),
        _ => None,
    }
}

fn text(members: &[(&String, &Value)]) -> String {
    let members: Vec<String> = members
        .iter()
        .map(|(name, value)| format!("{}:{value}", Value::String((*name).clone())))
        .collect();
    format!("{{{}}}", members.join(","))
}

/// Gives a body without the members of the outermost object that name a place; any other body as it is.
pub(super) fn without(body: &str, place: &str) -> String {
    let Some(mut members) = object(body) else {
        return body.to_owned();
    };
    let before = members.len();
    members.retain(|_, value| !value.to_string().contains(place));
    if members.len() == before {
        return body.to_owned();
    }
    Value::Object(members).to_string()
}

/// Gives other spellings of the same object, each with its name; none where the body is no object.
pub(super) fn others(body: &str) -> Vec<(&'static str, String)> {
    let Some(members) = object(body) else {
        return Vec::new();
    };
    let forward: Vec<(&String, &Value)> = members.iter().collect();
    let backward: Vec<(&String, &Value)> = members.iter().rev().collect();
    let mut all = vec![
        ("white space", spaced(&forward)),
        ("unicode escapes", escaped(&forward)),
    ];
    if members.len() > 1 {
        all.insert(0, ("members in order", text(&forward)));
        all.insert(1, ("members reversed", text(&backward)));
    }
    all.retain(|(_, spelt)| spelt != body);
    all
}

fn spaced(members: &[(&String, &Value)]) -> String {
    let members: Vec<String> = members
        .iter()
        .map(|(name, value)| format!("\r\n\t{} :  {value} ", Value::String((*name).clone())))
        .collect();
    format!(" {{{}\n}}\n ", members.join(","))
}

fn escaped(members: &[(&String, &Value)]) -> String {
    let escape = |text: &str| {
        let units: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        format!("\"{units}\"")
    };
    let members: Vec<String> = members
        .iter()
        .map(|(name, value)| {
            let value = value.as_str().map_or_else(|| value.to_string(), escape);
            format!("{}:{value}", escape(name))
        })
        .collect();
    format!("{{{}}}", members.join(","))
}

/// How many ways there are to say a member twice.
pub(super) const DOUBLINGS: usize = 3;

/// Gives the object with the member that holds one value said twice: once more with itself, and with another value.
/// None where the body is no object with such a member.
pub(super) fn doubled(body: &str, value: &str, other: &str) -> Vec<(&'static str, String)> {
    let Some(members) = object(body) else {
        return Vec::new();
    };
    let Some(name) = members
        .iter()
        .find_map(|(name, found)| (found.as_str() == Some(value)).then(|| name.clone()))
    else {
        return Vec::new();
    };
    let other = Value::String(other.to_owned());
    let with = |last: &Value| {
        let mut all: Vec<(&String, &Value)> = members.iter().collect();
        all.push((&name, last));
        text(&all)
    };
    let same = Value::String(value.to_owned());
    let before = {
        let mut all = vec![(&name, &other)];
        all.extend(members.iter());
        text(&all)
    };
    vec![
        ("the same path twice", with(&same)),
        ("another path last", with(&other)),
        ("another path first", before),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = r#"{"path":"f-1","content":"né"}"#;

    #[test]
    fn other_spellings_say_the_same() {
        let value: Value = serde_json::from_str(BODY).unwrap();
        let others = others(BODY);
        assert_eq!(others.len(), 3, "{others:?}");
        for (name, spelt) in &others {
            assert_eq!(serde_json::from_str::<Value>(spelt).unwrap(), value, "{name}");
            assert_ne!(spelt, BODY);
        }
        assert!(others[2].1.contains("\\u0066\\u002d\\u0031"), "{others:?}");
        assert!(super::others("[1]").is_empty() && super::others("a=b").is_empty());
    }

    #[test]
    fn members_are_doubled_and_left_out() {
        let doubled = doubled(BODY, "f-1", "f-2");
        assert_eq!(doubled.len(), DOUBLINGS);
        for (name, spelt) in &doubled {
            assert_eq!(spelt.matches("\"path\"").count(), 2, "{name}: {spelt}");
        }
        assert!(super::doubled(BODY, "f-3", "x").is_empty());
        assert_eq!(
            without(r#"{"key":"{key}","path":"{path}"}"#, "{key}"),
            r#"{"path":"{path}"}"#
        );
        assert_eq!(without("key={key}", "{key}"), "key={key}");
    }
}
