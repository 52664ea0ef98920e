//! The arguments of a tool as models are shown them: one flat schema, with the key among the arguments.
//!
//! Some services refuse a schema whose root is composed of others, so what only a composition can say is said in words;
//! the parser is as strict as before.

use super::{Field, Kind, Row, Tool, forms};
use serde_json::{Map, Value, json};

/// The argument that carries a key.
pub(crate) const KEY_ARGUMENT: &str = "idempotency_key";
/// The header that says it again, behind `Mcp-Param-`.
pub(crate) const KEY_MIRROR: &str = "Idempotency-Key";

/// Whoever reads this makes a new key for each retry, unless told otherwise.
const KEY_MEANING: &str = "Names this one operation, so that a retry has no second effect. Repeat the same value when \
     retrying the same operation; use a new value for a new operation. Needed where the client sends no key itself";

impl Tool {
    /// Gives the schema of the arguments for models.
    pub(crate) fn plain_schema(self) -> Value {
        let row = self.row();
        let mut properties: Map<String, Value> = row
            .fields
            .iter()
            .map(|field| (field.name.to_owned(), plain(field)))
            .collect();
        if row.kind == Kind::Mutation {
            let key = json!({
                "type": "string",
                "pattern": forms::KEY,
                "description": KEY_MEANING,
                "x-mcp-header": KEY_MIRROR,
            });
            properties.insert(KEY_ARGUMENT.to_owned(), key);
        }
        let alone = row.one_of.iter().filter(|group| group.len() == 1);
        let required: Vec<&str> = alone.copied().flatten().copied().collect();
        let mut schema = json!({"type": "object", "additionalProperties": false, "properties": properties});
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        schema
    }

    /// Says what the tool does, and of which arguments exactly one is given.
    pub(crate) fn description(self) -> String {
        let row: &Row = self.row();
        let groups = row.one_of.iter().filter(|group| group.len() > 1);
        let choices: Vec<String> = groups
            .map(|group| format!(" Give exactly one of {}.", group.join(" and ")))
            .collect();
        format!("{}{}", row.summary, choices.concat())
    }
}

/// Gives the schema of an argument without the formats that are ours alone.
fn plain(field: &Field) -> Value {
    let mut schema = field.schema();
    strip(&mut schema);
    schema
}

fn strip(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if members
                .get("format")
                .and_then(Value::as_str)
                .is_some_and(|format| format.starts_with("semel-"))
            {
                members.remove("format");
            }
            members.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_for_models_is_flat_and_every_change_takes_a_key() {
        for tool in Tool::callable() {
            let schema = tool.plain_schema();
            for composed in ["allOf", "anyOf", "oneOf", "not"] {
                assert!(schema.get(composed).is_none(), "{}: {composed}", tool.name());
            }
            assert!(!schema.to_string().contains("semel-"), "{schema}");
            let keyed = schema["properties"].get(KEY_ARGUMENT).is_some();
            assert_eq!(keyed, tool.kind() == Kind::Mutation, "{}", tool.name());
        }
        let write = Tool::WriteFile.description();
        assert!(write.ends_with(
            "Give exactly one of path and path_b64. Give exactly one of content and content_b64."
        ));
        assert_eq!(Tool::ApplyPatch.plain_schema()["required"], json!(["patch"]));
    }
}
