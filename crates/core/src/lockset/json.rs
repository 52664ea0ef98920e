//! JSON in which the order of keys counts and no key stands twice, and the two ways in which tools write it for a
//! digest: Python's `json.dumps(sort_keys=True)` and PHP's `json_encode`.

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// Holds a map whose keys stand once: JSON lets them repeat, and the last would win.
#[derive(Clone, Debug)]
pub(super) struct Once<V>(pub(super) BTreeMap<String, V>);

impl<V> Default for Once<V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Once<V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Keys<V>(core::marker::PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Keys<V> {
            type Value = Once<V>;
            fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Once<V>, A::Error> {
                let mut all = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, V>()? {
                    if all.contains_key(&key) {
                        return Err(serde::de::Error::custom(format!("the key {key} stands twice")));
                    }
                    all.insert(key, value);
                }
                Ok(Once(all))
            }
        }
        from.deserialize_map(Keys(core::marker::PhantomData))
    }
}

/// Holds a JSON value with its keys in their order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Truth(bool),
    /// A whole number.
    Whole(i128),
    /// Another number.
    Broken(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Value>),
    /// An object.
    Map(Vec<(String, Value)>),
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Value;
            fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("a value")
            }
            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }
            fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
                Ok(Value::Truth(truth))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
                Ok(Value::Whole(number.into()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
                Ok(Value::Whole(number.into()))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
                Ok(Value::Broken(number))
            }
            fn visit_str<E>(self, text: &str) -> Result<Value, E> {
                Ok(Value::Text(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
                let mut all = Vec::new();
                while let Some(item) = list.next_element()? {
                    all.push(item);
                }
                Ok(Value::List(all))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut all: Vec<(String, Value)> = Vec::new();
                let mut seen = std::collections::BTreeSet::new();
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    if !seen.insert(key.clone()) {
                        return Err(serde::de::Error::custom(format!("the key {key} stands twice")));
                    }
                    all.push((key, value));
                }
                Ok(Value::Map(all))
            }
        }
        from.deserialize_any(Any)
    }
}

impl Value {
    /// Finds a key of an object.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.entries().iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    /// Gives the entries of an object; none for anything else, and so for the `[]` that PHP writes for an empty one.
    pub(super) fn entries(&self) -> &[(String, Value)] {
        match self {
            Value::Map(all) => all,
            _ => &[],
        }
    }

    /// Gives the items of an array; none for anything else.
    pub(super) fn items(&self) -> &[Value] {
        match self {
            Value::List(all) => all,
            _ => &[],
        }
    }

    /// Gives a string.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Takes over a TOML value; `None` for dates, which JSON does not know.
    pub(super) fn of_toml(value: &toml::Value) -> Option<Value> {
        Some(match value {
            toml::Value::String(text) => Value::Text(text.clone()),
            toml::Value::Integer(number) => Value::Whole((*number).into()),
            toml::Value::Float(number) => Value::Broken(*number),
            toml::Value::Boolean(truth) => Value::Truth(*truth),
            toml::Value::Datetime(_) => return None,
            toml::Value::Array(list) => Value::List(list.iter().map(Value::of_toml).collect::<Option<_>>()?),
            toml::Value::Table(table) => {
                let entry =
                    |(key, value): (&String, &toml::Value)| Some((key.clone(), Value::of_toml(value)?));
                Value::Map(table.iter().map(entry).collect::<Option<_>>()?)
            }
        })
    }
}

/// Names who writes the JSON.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// Python's `json.dumps` with sorted keys.
    Python,
    /// The same with no spaces between.
    PythonTight,
    /// PHP's `json_encode` of what `json_decode` gave as arrays.
    Php,
}

/// Writes a value as a tool does before it takes the digest; `None` for a number that the tools spell by rules of
/// their own.
pub(super) fn write(value: &Value, writer: Writer) -> Option<String> {
    let mut out = String::new();
    put(value, writer, &mut out)?;
    Some(out)
}

fn put(value: &Value, writer: Writer, out: &mut String) -> Option<()> {
    let (comma, colon) = match writer {
        Writer::Python => (", ", ": "),
        Writer::PythonTight | Writer::Php => (",", ":"),
    };
    match value {
        Value::Null => out.push_str("null"),
        Value::Truth(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Value::Whole(number) => out.push_str(&number.to_string()),
        Value::Broken(number) => out.push_str(&broken(*number, writer)?),
        Value::Text(text) => quote(text, writer, out),
        Value::List(list) => {
            out.push('[');
            for (at, item) in list.iter().enumerate() {
                out.push_str(if at > 0 { comma } else { "" });
                put(item, writer, out)?;
            }
            out.push(']');
        }
        Value::Map(map) if writer == Writer::Php && is_php_list(map) => {
            out.push('[');
            for (at, (_, item)) in map.iter().enumerate() {
                out.push_str(if at > 0 { comma } else { "" });
                put(item, writer, out)?;
            }
            out.push(']');
        }
        Value::Map(map) => {
            let mut order: Vec<&(String, Value)> = map.iter().collect();
            if writer != Writer::Php {
                order.sort_by(|a, b| a.0.chars().cmp(b.0.chars()));
            }
            out.push('{');
            for (at, (key, item)) in order.into_iter().enumerate() {
                out.push_str(if at > 0 { comma } else { "" });
                quote(key, writer, out);
                out.push_str(colon);
                put(item, writer, out)?;
            }
            out.push('}');
        }
    }
    Some(())
}

/// Says whether PHP takes an object for a list: its keys are 0, 1, 2 … or it is empty.
fn is_php_list(map: &[(String, Value)]) -> bool {
    map.iter()
        .enumerate()
        .all(|(at, (key, _))| *key == at.to_string())
}

fn broken(number: f64, writer: Writer) -> Option<String> {
    let size = number.abs();
    // Outside of these bounds each tool has its own rule for exponents.
    if number != 0.0 && !(1e-4..1e15).contains(&size) {
        return None;
    }
    let text = number.to_string();
    Some(match writer {
        Writer::Python | Writer::PythonTight if !text.contains('.') => format!("{text}.0"),
        Writer::Python | Writer::PythonTight | Writer::Php => text,
    })
}

fn quote(text: &str, writer: Writer, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '/' if writer == Writer::Php => out.push_str("\\/"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            // PHP leaves DEL as it is, and so does Python.
            '\u{7f}' => out.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_once_and_keep_their_order() {
        let value: Value = serde_json::from_str(r#"{"b":[1,{"z":null}],"a":1.5}"#).unwrap();
        assert_eq!(value.entries()[0].0, "b");
        assert!(serde_json::from_str::<Value>(r#"{"a":1,"a":2}"#).is_err());
        assert!(serde_json::from_str::<Once<u8>>(r#"{"a":1,"a":2}"#).is_err());
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(serde_json::from_str::<Value>(&deep).is_err());
        assert!(serde_json::from_str::<Value>("1e999").is_err());
    }

    /// What `json.dumps` and `json_encode` gave for the same value.
    #[test]
    fn values_are_written_as_python_and_php_write_them() {
        let text = r#"{"é/":"ü€😀\"\\\n\u0001","b":[true,null,1.0,1.5,-3],"a":{},"l":{"0":"x","1":"y"}}"#;
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(
            write(&value, Writer::Python).unwrap(),
            r#"{"a": {}, "b": [true, null, 1.0, 1.5, -3], "l": {"0": "x", "1": "y"}, "\u00e9/": "\u00fc\u20ac\ud83d\ude00\"\\\n\u0001"}"#
        );
        assert_eq!(
            write(&value, Writer::Php).unwrap(),
            r#"{"\u00e9\/":"\u00fc\u20ac\ud83d\ude00\"\\\n\u0001","b":[true,null,1,1.5,-3],"a":[],"l":["x","y"]}"#
        );
        assert_eq!(write(&Value::Broken(1e300), Writer::Php), None);
    }
}
