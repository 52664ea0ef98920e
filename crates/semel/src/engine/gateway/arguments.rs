//! The arguments of a call: understood, or refused by name; and what makes two calls the same call.
//!
//! It does *not* look at tokens, journals or files.

use super::tool::Tool;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use semel_core::call::Request;
use semel_core::canonical::to_canonical;
use semel_core::ids::IdempotencyKey;
use semel_core::{Code, Fingerprint, Refusal, RelPath, Sha256};
use serde_json::{Map, Value, json};

/// Names under which a call may carry its key among its arguments.
const KEY_CARRIERS: &[&str] = &["idempotency_key", "idempotencyKey"];

/// Is what `expected_sha256` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Nothing.
    Anything,
    /// That the name is free.
    Absent,
    /// That the file has this content.
    Sha256(Sha256),
}

/// Is what a caller sent beside its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Args {
    /// Of the tools that take a path alone.
    Path,
    /// Of `write_file`.
    Write {
        /// The whole new content.
        content: Vec<u8>,
        /// Its digest.
        sha256: Sha256,
        /// What must hold.
        expected: Expected,
    },
    /// Of `delete_file`.
    Delete {
        /// What must hold.
        expected: Expected,
    },
    /// Of `get_receipt`.
    Receipt {
        /// Which key.
        key: IdempotencyKey,
    },
}

/// Is a path that a caller sent: what it means, or why it means nothing inside of a root.
pub(crate) type AskedPath = Result<RelPath, Refusal>;

/// Is a call whose arguments are understood.
#[derive(Clone, Debug)]
pub(crate) struct Understood {
    /// The path; refused only after the key was looked up, as the order of checks has it.
    pub(crate) path: AskedPath,
    /// The rest.
    pub(crate) args: Args,
    /// What the call says.
    pub(crate) fingerprint: Fingerprint,
}

impl Understood {
    /// Gives the request, where the path means something.
    pub(crate) fn request(&self, tool: Tool) -> Result<Request, Refusal> {
        Ok(Request {
            fingerprint: self.fingerprint,
            tool: tool.name().to_owned(),
            path: self.path.clone()?,
        })
    }
}

/// Takes the carriers of a key out of the arguments.
///
/// # Errors
/// `invalid_idempotency_key` where one is not text of the right shape.
pub(crate) fn take_keys(
    tool: Tool,
    arguments: &mut Map<String, Value>,
) -> Result<Vec<IdempotencyKey>, Refusal> {
    if tool == Tool::GetReceipt {
        return Ok(Vec::new());
    }
    let mut keys = Vec::new();
    for name in KEY_CARRIERS {
        match arguments.remove(*name) {
            None => {}
            Some(Value::String(text)) => keys.push(IdempotencyKey::parse(text)?),
            Some(_) => {
                return Err(Refusal::new(
                    Code::InvalidIdempotencyKey,
                    "the key among the arguments is not text",
                )
                .name(*name));
            }
        }
    }
    Ok(keys)
}

/// Says whether arguments ask for nothing once the carriers of the key are set aside.
pub(crate) fn only_a_key(tool: Tool, arguments: &Map<String, Value>) -> bool {
    tool != Tool::GetReceipt && arguments.keys().all(|name| KEY_CARRIERS.contains(&name.as_str()))
}

/// Understands the arguments of a tool.
///
/// # Errors
/// `bad_input` naming every unknown, missing, doubled or malformed argument.
pub(crate) fn understand(tool: Tool, mut arguments: Map<String, Value>) -> Result<Understood, Refusal> {
    let mut texts = Texts::fold(tool, &mut arguments)?;
    if let Tool::GetReceipt = tool {
        let key = texts.take("key").ok_or_else(|| missing("key"))?;
        let key = IdempotencyKey::parse(key)
            .map_err(|refusal| Refusal::new(Code::BadInput, refusal.why).name("key"))?;
        let canonical = json!({"arguments": {"key": key}, "path": "", "tool": tool.name()});
        return Ok(Understood {
            path: Ok(RelPath::root()),
            args: Args::Receipt { key },
            fingerprint: Fingerprint::of_canonical(&to_canonical(&canonical)),
        });
    }
    let bytes = one_of(texts.take("path"), texts.take("path_b64"), "path", "path_b64")?;
    let (path, spelt) = match RelPath::parse(&bytes) {
        Ok(path) => {
            let spelt = path.to_wire();
            (Ok(path), spelt)
        }
        Err(refusal) if refusal.code == Code::PathEscapesRoot => {
            (Err(refusal), format!("b64:{}", BASE64_STANDARD.encode(&bytes)))
        }
        Err(refusal) => return Err(refusal),
    };
    let (args, said) = match tool {
        Tool::WriteFile => write_args(&mut texts)?,
        Tool::DeleteFile => delete_args(&mut texts)?,
        Tool::ReadFile | Tool::ListDirectory | Tool::GetFileInfo | Tool::GetReceipt => {
            (Args::Path, Map::new())
        }
    };
    let canonical = json!({"arguments": said, "path": spelt, "tool": tool.name()});
    Ok(Understood {
        path,
        args,
        fingerprint: Fingerprint::of_canonical(&to_canonical(&canonical)),
    })
}

fn write_args(texts: &mut Texts) -> Result<(Args, Map<String, Value>), Refusal> {
    let (plain, coded) = (texts.take("content"), texts.take("content_b64"));
    let content = one_of(plain, coded, "content", "content_b64")?;
    let sha256 = Sha256::of(&content);
    let (expected, mut said) = expected(texts)?;
    said.insert("content_sha256".to_owned(), json!(sha256));
    let args = Args::Write {
        content,
        sha256,
        expected,
    };
    Ok((args, said))
}

fn delete_args(texts: &mut Texts) -> Result<(Args, Map<String, Value>), Refusal> {
    let (expected, said) = expected(texts)?;
    if expected == Expected::Absent {
        return Err(Refusal::new(Code::BadInput, "what is absent cannot be deleted").name("expected_sha256"));
    }
    Ok((Args::Delete { expected }, said))
}

/// Gives what is expected, and how the fingerprint says it; the default is left out.
fn expected(texts: &mut Texts) -> Result<(Expected, Map<String, Value>), Refusal> {
    let mut said = Map::new();
    let expected = match texts.take("expected_sha256") {
        None => return Ok((Expected::Anything, said)),
        Some(text) if text == "absent" => Expected::Absent,
        Some(text) => Expected::Sha256(Sha256::parse(&text).map_err(|_| {
            Refusal::new(Code::BadInput, "64 lower-case hexadecimal digits, or absent")
                .name("expected_sha256")
        })?),
    };
    let spelt = match &expected {
        Expected::Sha256(digest) => json!(digest),
        Expected::Absent | Expected::Anything => json!("absent"),
    };
    said.insert("expected_sha256".to_owned(), spelt);
    Ok((expected, said))
}

fn missing(name: &str) -> Refusal {
    Refusal::new(Code::BadInput, "an argument is missing")
        .reason("missing_argument")
        .name(name)
}

/// Gives the bytes of an argument that may come plain or as base64, but not as both.
fn one_of(
    plain: Option<String>,
    coded: Option<String>,
    name: &str,
    name_b64: &str,
) -> Result<Vec<u8>, Refusal> {
    match (plain, coded) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(text)) => BASE64_STANDARD
            .decode(text)
            .map_err(|_| Refusal::new(Code::BadInput, "not base64").name(name_b64)),
        (None, None) => Err(missing(name)),
        (Some(_), Some(_)) => Err(Refusal::new(Code::BadInput, "one argument comes in two forms")
            .reason("given_twice")
            .names([name, name_b64])),
    }
}

/// Holds the arguments by their own names.
struct Texts(Vec<(&'static str, String)>);

impl Texts {
    fn fold(tool: Tool, arguments: &mut Map<String, Value>) -> Result<Self, Refusal> {
        let mut texts = Vec::new();
        for field in tool.fields() {
            let names = std::iter::once(&field.name).chain(field.aliases);
            let given: Vec<(&str, Value)> = names
                .filter_map(|name| Some((*name, arguments.remove(*name)?)))
                .collect();
            if given.len() > 1 {
                return Err(Refusal::new(Code::BadInput, "one argument comes under two names")
                    .reason("given_twice")
                    .names(given.iter().map(|(name, _)| *name)));
            }
            match given.into_iter().next() {
                None => {}
                Some((_, Value::String(text))) => texts.push((field.name, text)),
                Some((name, _)) => {
                    return Err(Refusal::new(Code::BadInput, "an argument is not text")
                        .reason("wrong_type")
                        .name(name));
                }
            }
        }
        if arguments.is_empty() {
            Ok(Self(texts))
        } else {
            let why = format!("{} takes no such argument", tool.name());
            Err(Refusal::new(Code::BadInput, why)
                .reason("unknown_argument")
                .names(
                    arguments
                        .keys()
                        .take(20)
                        .map(|name| name.chars().take(80).collect::<String>()),
                ))
        }
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(known, _)| *known == name)?;
        Some(self.0.swap_remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(tool: Tool, arguments: Value) -> Result<Fingerprint, Refusal> {
        let Value::Object(map) = arguments else {
            panic!("an object")
        };
        Ok(understand(tool, map)?.fingerprint)
    }

    #[test]
    fn equal_calls_have_one_fingerprint() {
        let first = print(Tool::WriteFile, json!({"path": "a/b", "content": "hé"})).unwrap();
        for same in [
            json!({"content": "hé", "file_path": "./a//x/../b"}),
            json!({"path_b64": "YS9i", "content_b64": "aMOp"}),
            json!({"filePath": "a/b/", "contents": "hé"}),
        ] {
            assert_eq!(print(Tool::WriteFile, same.clone()).unwrap(), first, "{same}");
        }
        for other in [
            json!({"path": "a/c", "content": "hé"}),
            json!({"path": "a/b", "content": "he"}),
            json!({"path": "a/b", "content": "hé", "expected_sha256": "absent"}),
        ] {
            assert_ne!(print(Tool::WriteFile, other.clone()).unwrap(), first, "{other}");
        }
    }

    #[test]
    fn malformed_arguments_are_named() {
        for (tool, arguments, name) in [
            (
                Tool::WriteFile,
                json!({"path": "a", "content": "x", "mode": "7"}),
                "mode",
            ),
            (Tool::WriteFile, json!({"path": "a"}), "content"),
            (Tool::WriteFile, json!({"content": "a"}), "path"),
            (Tool::WriteFile, json!({"path": 1, "content": "a"}), "path"),
            (
                Tool::WriteFile,
                json!({"path": "a", "file_path": "a", "content": "a"}),
                "file_path",
            ),
            (
                Tool::WriteFile,
                json!({"path": "a", "content": "a", "content_b64": "YQ=="}),
                "content_b64",
            ),
            (
                Tool::WriteFile,
                json!({"path": "a", "content_b64": "%"}),
                "content_b64",
            ),
            (
                Tool::DeleteFile,
                json!({"path": "a", "expected_sha256": "absent"}),
                "expected_sha256",
            ),
            (
                Tool::DeleteFile,
                json!({"path": "a", "expected_sha256": "AB"}),
                "expected_sha256",
            ),
            (Tool::GetReceipt, json!({"key": ""}), "key"),
        ] {
            let refusal = print(tool, arguments.clone()).unwrap_err();
            assert_eq!(refusal.code, Code::BadInput, "{arguments}");
            assert!(
                refusal.names.iter().any(|n| n == name),
                "{arguments}: {refusal:?}"
            );
        }
    }

    #[test]
    fn an_escaping_path_is_kept_for_its_turn() {
        let Value::Object(map) = json!({"path": "../x", "content": ""}) else {
            panic!("an object")
        };
        let understood = understand(Tool::WriteFile, map).unwrap();
        assert_eq!(understood.path.unwrap_err().code, Code::PathEscapesRoot);
    }
}
