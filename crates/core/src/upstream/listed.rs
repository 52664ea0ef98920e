//! What another server lists: its tools by their names here, as they are described to callers.

use super::{BTreeMap, Map, UpstreamName, Value, json};

/// The argument that carries a key, where nothing else does.
const KEY: &str = "idempotency_key";
/// The member of a description's `_meta` that says that an argument `idempotency_key` is the tool's own.
pub const OWN_KEY: &str = "dev.semel/ownKeyArgument";
/// The member of a schema that names the header which says an argument again.
const MIRROR: &str = "x-mcp-header";

/// Is a tool of another server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// That server's name for it.
    pub name: String,
    /// What it does to the world, by that server's own word.
    pub effect: Effects,
    /// Whether an argument `idempotency_key` is its own.
    pub key: KeyArgument,
    /// The arguments that a header says again, in the newest revision over HTTP: each with the header's name.
    pub mirrored: Vec<(String, String)>,
    /// How it is described here.
    pub described: Value,
}

/// Says whether calls of a tool have effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effects {
    /// It says that it only reads.
    Reads,
    /// It does not.
    Changes,
}

/// Says whose the argument `idempotency_key` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyArgument {
    /// It carries the key of the call, and goes no further.
    Carrier,
    /// The tool takes one of that name itself.
    Own,
}

/// Are the tools of a server by their names here.
pub type Listed = BTreeMap<String, Tool>;

/// Reads what a server lists. What is no tool is left out, and so is the later of two that have one name.
#[must_use]
pub fn list<'a>(server: &UpstreamName, tools: impl IntoIterator<Item = &'a Value>) -> Listed {
    let mut listed = Listed::new();
    for tool in tools {
        if let Some((exposed, tool)) = read(server, tool) {
            listed.entry(exposed).or_insert(tool);
        }
    }
    listed
}

fn read(server: &UpstreamName, told: &Value) -> Option<(String, Tool)> {
    let name = told.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let input = told.get("inputSchema")?.as_object()?;
    let reads = told.pointer("/annotations/readOnlyHint") == Some(&json!(true));
    let own = input
        .get("properties")
        .is_some_and(|properties| properties.get(KEY).is_some());
    let effect = if reads { Effects::Reads } else { Effects::Changes };
    let key = if own {
        KeyArgument::Own
    } else {
        KeyArgument::Carrier
    };
    let exposed = server.exposed(name);
    let mut described = Map::new();
    described.insert("name".to_owned(), json!(exposed));
    for member in ["title", "description", "icons"] {
        if let Some(value) = told.get(member) {
            described.insert(member.to_owned(), value.clone());
        }
    }
    described.insert("inputSchema".to_owned(), input_schema(input, effect, key));
    if let Some(Value::Object(output)) = told.get("outputSchema") {
        described.insert("outputSchema".to_owned(), output_schema(output));
    }
    described.insert("annotations".to_owned(), annotations(told, effect));
    if key == KeyArgument::Own {
        described.insert("_meta".to_owned(), json!({OWN_KEY: true}));
    }
    let tool = Tool {
        name: name.to_owned(),
        effect,
        key,
        mirrored: mirrored(input),
        described: Value::Object(described),
    };
    Some((exposed, tool))
}

/// All four hints are said, at their defaults where the server does not say them: where one is missing, clients ask.
fn annotations(told: &Value, effect: Effects) -> Value {
    let hint = |name: &str, default: bool| {
        let said = told.get("annotations").and_then(|all| all.get(name));
        json!(said.and_then(Value::as_bool).unwrap_or(default))
    };
    let mut all = match told.get("annotations") {
        Some(Value::Object(all)) => all.clone(),
        _ => Map::new(),
    };
    all.insert("readOnlyHint".to_owned(), json!(effect == Effects::Reads));
    all.insert("destructiveHint".to_owned(), hint("destructiveHint", true));
    all.insert("idempotentHint".to_owned(), hint("idempotentHint", false));
    all.insert("openWorldHint".to_owned(), hint("openWorldHint", true));
    Value::Object(all)
}

/// Finds which arguments are said again by headers: between a client and here they are not.
fn mirrored(input: &Map<String, Value>) -> Vec<(String, String)> {
    let properties = input.get("properties").and_then(Value::as_object);
    let named = properties.into_iter().flatten().filter_map(|(name, property)| {
        let header = property.get(MIRROR)?.as_str()?;
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        let fits = !header.is_empty() && header.bytes().all(plain);
        fits.then(|| (name.clone(), format!("mcp-param-{}", header.to_ascii_lowercase())))
    });
    named.collect()
}

fn input_schema(input: &Map<String, Value>, effect: Effects, key: KeyArgument) -> Value {
    let mut schema = input.clone();
    schema.entry("type").or_insert(json!("object"));
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for property in properties.values_mut().filter_map(Value::as_object_mut) {
            property.remove(MIRROR);
        }
    }
    if effect == Effects::Changes && key == KeyArgument::Carrier {
        let properties = schema.entry("properties").or_insert(json!({}));
        if let Value::Object(properties) = properties {
            properties.insert(
                KEY.to_owned(),
                json!({
                    "type": "string",
                    "description": "One new value for each intended operation; repeat the same value when retrying the same operation",
                }),
            );
        }
    }
    Value::Object(schema)
}

/// What is refused here has a structure of ours: clients hold it against the schema, too. Definitions stay at the top,
/// where references look for them.
fn output_schema(output: &Map<String, Value>) -> Value {
    let mut theirs = output.clone();
    let mut schema = Map::new();
    for at_the_top in ["$schema", "$defs", "definitions", "$id"] {
        if let Some(value) = theirs.remove(at_the_top) {
            schema.insert(at_the_top.to_owned(), value);
        }
    }
    schema.insert("type".to_owned(), json!("object"));
    let refused =
        json!({"type": "object", "required": ["error"], "properties": {"error": {"type": "object"}}});
    schema.insert("anyOf".to_owned(), json!([theirs, refused]));
    Value::Object(schema)
}
