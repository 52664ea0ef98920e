//! The committed JSON Schemas say what the parsers of core take.
//!
//! Names, defaults and enumerations are compared with the Rust source; the examples go through the parsers.

use semel_core::gate::Policy;
use semel_core::job::Job;
use semel_core::policy::Policy as ToolPolicy;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn schema(name: &str) -> Value {
    serde_json::from_str(&read(&format!("docs/schemas/{name}.schema.json"))).unwrap()
}

/// Gives the body of `struct Name` or `enum Name`.
fn body<'a>(source: &'a str, kind: &str, name: &str) -> &'a str {
    let head = format!("pub {kind} {name} {{\n");
    let rest = source
        .split_once(&head)
        .unwrap_or_else(|| panic!("no {kind} {name}"))
        .1;
    rest.split_once("\n}\n").unwrap().0
}

/// Lists the fields of a struct, each with whether it must be given.
fn fields(source: &str, name: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    let mut required = true;
    for line in body(source, "struct", name).lines().map(str::trim) {
        if line.starts_with("#[serde(default") {
            required = false;
        } else if let Some(rest) = line.strip_prefix("pub ") {
            found.push((rest.split_once(':').unwrap().0.to_owned(), required));
            required = true;
        }
    }
    found
}

/// Lists the variants of an enumeration as serde writes them.
fn variants(source: &str, name: &str, between: char) -> BTreeSet<String> {
    let lines = body(source, "enum", name).lines().map(str::trim);
    let names = lines.filter(|line| line.ends_with(',') && line.starts_with(char::is_uppercase));
    names
        .map(|line| {
            let mut spelt = String::new();
            for c in line.trim_end_matches(',').chars() {
                if c.is_uppercase() && !spelt.is_empty() {
                    spelt.push(between);
                }
                spelt.extend(c.to_lowercase());
            }
            spelt
        })
        .collect()
}

fn strings(value: &Value) -> BTreeSet<String> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_str().unwrap().to_owned())
        .collect()
}

/// Compares one object of a schema with the struct that it stands for.
fn same(object: &Value, source: &str, name: &str, also_required: &[&str]) {
    assert_eq!(object["additionalProperties"], false, "{name} is closed");
    let fields = fields(source, name);
    let given: BTreeSet<String> = object["properties"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    let wanted: BTreeSet<String> = fields.iter().map(|(field, _)| field.clone()).collect();
    assert_eq!(given, wanted, "the keys of {name}");
    let must = fields
        .iter()
        .filter(|(field, required)| *required || also_required.contains(&field.as_str()));
    let must: BTreeSet<String> = must.map(|(field, _)| field.clone()).collect();
    assert_eq!(strings(&object["required"]), must, "what {name} requires");
}

/// Puts an unknown key into each object of the example in turn.
fn surprises(example: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    let mut top = example.clone();
    top["surprise"] = 1.into();
    all.push(top);
    for key in ["agent", "certify", "output", "gate"] {
        if example.get(key).is_some() {
            let mut one = example.clone();
            one[key]["surprise"] = 1.into();
            all.push(one);
        }
    }
    all
}

#[test]
fn the_schema_of_a_job_is_what_core_parses() {
    let schema = schema("job");
    let source = read("crates/core/src/job.rs");
    same(&schema, &source, "Job", &[]);
    for (name, part) in [("Agent", "agent"), ("Certify", "certify"), ("Output", "output")] {
        same(&schema["$defs"][part], &source, name, &[]);
    }
    let bounds = read("crates/core/src/bounds.rs");
    same(&schema["$defs"]["limits"], &bounds, "Asked", &[]);
    let volume = read("crates/core/src/volume.rs");
    let installer = read("crates/core/src/installer.rs");
    for (given, wanted) in [
        (
            &schema["properties"]["durability"]["enum"],
            variants(&volume, "Durability", '-'),
        ),
        (
            &schema["properties"]["confinement"]["enum"],
            variants(&source, "Confine", '_'),
        ),
        (
            &schema["$defs"]["installer"]["enum"],
            variants(&installer, "Installer", '_'),
        ),
        (
            &schema["$defs"]["certify"]["properties"]["project"]["enum"],
            variants(&installer, "ProjectInstall", '_'),
        ),
        (
            &schema["$defs"]["certify"]["properties"]["git"]["enum"],
            variants(&source, "InGit", '_'),
        ),
        (
            &schema["$defs"]["certify"]["properties"]["retry"]["items"]["enum"],
            variants(&source, "RetryOn", '_'),
        ),
    ] {
        assert_eq!(strings(given), wanted);
    }
    let example = &schema["examples"][0];
    Job::parse(&toml::to_string(example).unwrap()).unwrap();
    for wrong in surprises(example) {
        assert!(Job::parse(&toml::to_string(&wrong).unwrap()).is_err(), "{wrong}");
    }
}

#[test]
fn the_schema_of_a_policy_is_what_core_parses() {
    let schema = schema("gate-policy");
    let source = read("crates/core/src/gate/policy.rs");
    same(&schema["$defs"]["gate"], &source, "Policy", &[]);
    let confinement = read("crates/core/src/confinement.rs");
    let properties = &schema["$defs"]["gate"]["properties"];
    assert_eq!(
        strings(&properties["confinement"]["enum"]),
        variants(&confinement, "Confinement", '_')
    );
    assert_eq!(
        strings(&properties["consumption"]["enum"]),
        variants(&source, "ConsumptionRule", '_')
    );
    assert_eq!(
        strings(&properties["test_drop"]["enum"]),
        variants(&source, "DropRule", '_')
    );
    assert_eq!(
        strings(&properties["unbound_install"]["enum"]),
        variants(&source, "UnboundRule", '_')
    );
    let example = &schema["examples"][0];
    Policy::parse(&toml::to_string(example).unwrap()).unwrap();
    for wrong in surprises(example) {
        assert!(
            Policy::parse(&toml::to_string(&wrong).unwrap()).is_err(),
            "{wrong}"
        );
    }
}

#[test]
fn the_schema_of_an_install_record_is_what_core_writes() {
    let schema = schema("install-record");
    let source = read("crates/core/src/install/kept.rs");
    same(&schema, &source, "Kept", &[]);
    assert_eq!(
        strings(&schema["properties"]["roots"]["additionalProperties"]["enum"]),
        variants(&source, "Tree", '_')
    );
}

#[test]
fn the_schema_of_a_tool_policy_is_what_core_parses() {
    let tools = ["read_file"];
    let schema = schema("tool-policy");
    let source = read("crates/core/src/policy.rs");
    same(&schema, &source, "Policy", &[]);
    let rule = &schema["$defs"]["rule"];
    same(rule, &source, "Rule", &[]);
    let properties = &rule["properties"];
    let volume = read("crates/core/src/volume.rs");
    for (given, wanted) in [
        (&properties["answer"]["enum"], variants(&source, "Answer", '_')),
        (
            &properties["roles"]["items"]["enum"],
            variants(&volume, "Role", '_'),
        ),
        (
            &schema["properties"]["hard_links"]["enum"],
            variants(&source, "HardLinks", '_'),
        ),
    ] {
        assert_eq!(strings(given), wanted);
    }
    let example = &schema["examples"][0];
    ToolPolicy::parse(&toml::to_string(example).unwrap(), &tools).unwrap();
    let mut wrong = surprises(example);
    let mut deep = example.clone();
    deep["rule"][0]["surprise"] = 1.into();
    wrong.push(deep);
    for wrong in wrong {
        let text = toml::to_string(&wrong).unwrap();
        assert!(ToolPolicy::parse(&text, &tools).is_err(), "{wrong}");
    }
}

/// The example shows every key, so that the parser has seen each of them.
#[test]
fn the_examples_show_every_key() {
    let shown = |object: &Value, example: &Value, but: &[&str]| {
        for key in object["properties"].as_object().unwrap().keys() {
            assert!(
                but.contains(&key.as_str()) || example.get(key).is_some(),
                "{key} is in no example"
            );
        }
    };
    let job = schema("job");
    let example = &job["examples"][0];
    shown(&job, example, &[]);
    shown(&job["$defs"]["agent"], &example["agent"], &[]);
    shown(&job["$defs"]["certify"], &example["certify"], &[]);
    shown(&job["$defs"]["limits"], &example["limits"], &[]);
    // A branch or a patch, not both.
    shown(&job["$defs"]["output"], &example["output"], &["patch"]);
    let policy = schema("gate-policy");
    shown(&policy["$defs"]["gate"], &policy["examples"][0]["gate"], &[]);
    let policy = schema("tool-policy");
    let example = &policy["examples"][0];
    shown(&policy, example, &[]);
    shown(&policy["$defs"]["rule"], &example["rule"][0], &[]);
}
