//! The tools: their names, their arguments, and what makes two calls the same call.
//!
//! One table says for each tool which arguments it takes and under which other names models send them; schema,
//! parser and fingerprint are made from it. It does *not* look at tokens, journals or files.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use semel_core::call::Request;
use semel_core::canonical::to_canonical;
use semel_core::ids::IdempotencyKey;
use semel_core::{Code, Fingerprint, Refusal, RelPath, Sha256};
use serde_json::{Map, Value, json};

/// Is a tool of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Tool {
    /// Reads a file.
    ReadFile,
    /// Lists a directory.
    ListDirectory,
    /// Describes a file or directory.
    GetFileInfo,
    /// Writes a whole file.
    WriteFile,
    /// Deletes a file.
    DeleteFile,
    /// Asks what came of a key.
    GetReceipt,
}

/// Says what a tool does to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It has an effect, and needs a key.
    Mutation,
    /// It reads the volume; a key is accepted and has no meaning.
    Read,
    /// It reads the journal; it answers for an ended token, too.
    Journal,
}

/// Is one argument of a tool.
pub(crate) struct Field {
    /// Its name.
    pub(crate) name: &'static str,
    /// Other names that are folded into it.
    aliases: &'static [&'static str],
    /// What it means, for whoever reads the schema.
    meaning: &'static str,
}

const PATH: Field = Field {
    name: "path",
    aliases: &["file_path", "filePath", "filepath", "file"],
    meaning: "The path beneath the root of the volume; UTF-8",
};
const DIRECTORY: Field = Field {
    name: "path",
    aliases: &["dir_path", "directory", "directory_path", "dirPath"],
    meaning: "The directory beneath the root of the volume; \".\" is the root",
};
const PATH_B64: Field = Field {
    name: "path_b64",
    aliases: &["pathB64"],
    meaning: "The path as base64 of its bytes, where it is not UTF-8; in place of path",
};
const CONTENT: Field = Field {
    name: "content",
    aliases: &["contents", "file_text", "fileText"],
    meaning: "The whole new content; UTF-8",
};
const CONTENT_B64: Field = Field {
    name: "content_b64",
    aliases: &["contentB64"],
    meaning: "The whole new content as base64; in place of content",
};
const EXPECTED: Field = Field {
    name: "expected_sha256",
    aliases: &["expectedSha256"],
    meaning: "The SHA-256 that the file must have now, or \"absent\"; else precondition_failed",
};
const KEY: Field = Field {
    name: "key",
    aliases: &["idempotency_key", "idempotencyKey"],
    meaning: "The idempotency key that is asked about",
};

/// Names under which a call may carry its key among its arguments.
const KEY_CARRIERS: &[&str] = &["idempotency_key", "idempotencyKey"];

impl Tool {
    /// Lists every tool.
    pub(crate) const ALL: &'static [Tool] = &[
        Tool::ReadFile,
        Tool::ListDirectory,
        Tool::GetFileInfo,
        Tool::WriteFile,
        Tool::DeleteFile,
        Tool::GetReceipt,
    ];

    /// Gives the name that travels on every wire.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Tool::ReadFile => "read_file",
            Tool::ListDirectory => "list_directory",
            Tool::GetFileInfo => "get_file_info",
            Tool::WriteFile => "write_file",
            Tool::DeleteFile => "delete_file",
            Tool::GetReceipt => "get_receipt",
        }
    }

    /// Finds the tool of a name.
    ///
    /// # Errors
    /// `not_found` for any other name.
    pub(crate) fn parse(name: &str) -> Result<Self, Refusal> {
        Self::ALL
            .iter()
            .copied()
            .find(|tool| tool.name() == name)
            .ok_or_else(|| {
                let shown: String = name.chars().take(80).flat_map(char::escape_debug).collect();
                Refusal::new(Code::NotFound, "there is no such tool").name(shown)
            })
    }

    /// Says what the tool does to the world.
    pub(crate) const fn kind(self) -> Kind {
        match self {
            Tool::WriteFile | Tool::DeleteFile => Kind::Mutation,
            Tool::ReadFile | Tool::ListDirectory | Tool::GetFileInfo => Kind::Read,
            Tool::GetReceipt => Kind::Journal,
        }
    }

    /// Says in one sentence what the tool does.
    pub(crate) const fn summary(self) -> &'static str {
        match self {
            Tool::ReadFile => "Reads a whole file.",
            Tool::ListDirectory => "Lists the entries of a directory.",
            Tool::GetFileInfo => "Describes a file, directory or link, with the SHA-256 of a file.",
            Tool::WriteFile => "Writes a whole file, new or in place of the old one, in one step.",
            Tool::DeleteFile => "Deletes a file or a symbolic link.",
            Tool::GetReceipt => "Says what came of a key; it never runs anything.",
        }
    }

    fn fields(self) -> &'static [Field] {
        match self {
            Tool::ReadFile | Tool::GetFileInfo => &[PATH, PATH_B64],
            Tool::ListDirectory => &[DIRECTORY, PATH_B64],
            Tool::WriteFile => &[PATH, PATH_B64, CONTENT, CONTENT_B64, EXPECTED],
            Tool::DeleteFile => &[PATH, PATH_B64, EXPECTED],
            Tool::GetReceipt => &[KEY],
        }
    }

    /// Gives the JSON Schema of the arguments.
    pub(crate) fn schema(self) -> Value {
        let properties: Map<String, Value> = self
            .fields()
            .iter()
            .map(|field| {
                let mut schema = json!({"type": "string", "description": field.meaning});
                if field.name == EXPECTED.name {
                    schema["pattern"] = json!("^([0-9a-f]{64}|absent)$");
                } else if field.name.ends_with("_b64") {
                    schema["contentEncoding"] = json!("base64");
                }
                (field.name.to_owned(), schema)
            })
            .collect();
        let either = |a: &str, b: &str| json!({"oneOf": [{"required": [a]}, {"required": [b]}]});
        let mut all = Vec::new();
        match self {
            Tool::GetReceipt => all.push(json!({"required": ["key"]})),
            Tool::WriteFile => {
                all.push(either("path", "path_b64"));
                all.push(either("content", "content_b64"));
            }
            Tool::ReadFile | Tool::ListDirectory | Tool::GetFileInfo | Tool::DeleteFile => {
                all.push(either("path", "path_b64"));
            }
        }
        json!({
            "type": "object",
            "additionalProperties": false,
            "properties": properties,
            "allOf": all,
        })
    }
}

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
