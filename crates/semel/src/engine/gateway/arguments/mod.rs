//! The arguments of a call: understood, or refused by name; and what makes two calls the same call.
//!
//! It does *not* look at tokens, journals or files.

mod looks;
mod run;
mod values;

use super::tool::Tool;
use base64::{Engine as _, prelude::BASE64_STANDARD};
pub(crate) use looks::{Encoding, Look, Page};
use run::run_said;
pub(crate) use run::{Domain, Run};
use semel_core::call::{FingerprintVersion, Intent, Request};
use semel_core::canonical::to_canonical;
use semel_core::ids::IdempotencyKey;
use semel_core::patch::{Edit, Occurrences, Patch};
use semel_core::{Code, Fingerprint, Refusal, RelPath, Sha256, patch};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
pub(crate) use values::Flag;
pub(crate) use values::InTree;
use values::Values;

/// Names under which a call may carry its key among its arguments.
const KEY_CARRIERS: &[&str] = &["idempotency_key", "idempotencyKey"];

/// The rules by which fingerprints are made now. What a version says never changes: a retry is compared by the version
/// that the first call was recorded with.
pub(super) const NEWEST: FingerprintVersion = FingerprintVersion(2);
/// The first rules, without the version among what is digested; of `write_file` and `delete_file` alone.
const FIRST: FingerprintVersion = FingerprintVersion(1);

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
#[derive(Clone, Debug)]
pub(crate) enum Args {
    /// Of the tools that read.
    Look(Box<Look>),
    /// Of `write_file`.
    Write {
        /// The whole new content.
        content: Vec<u8>,
        /// What must hold.
        expected: Expected,
    },
    /// Of `edit_file`.
    Edit {
        /// The replacements, in order.
        edits: Vec<Edit>,
        /// What must hold.
        expected: Expected,
    },
    /// Of `apply_patch`.
    Patch {
        /// What is to be done to which files.
        patch: Box<Patch>,
        /// What must hold of some of them.
        expected: BTreeMap<RelPath, Expected>,
    },
    /// Of `delete_file`.
    Delete {
        /// What must hold.
        expected: Expected,
    },
    /// Of `delete_directory`.
    DeleteDirectory {
        /// Whether it goes with all that is in it.
        recursive: Flag,
    },
    /// Of `move_file`.
    Move {
        /// Where to.
        destination: AskedPath,
        /// Whether a file there may be replaced.
        overwrite: Flag,
        /// What must hold of the source.
        expected: Expected,
    },
    /// Of `create_directory`.
    CreateDirectory,
    /// Of `set_mode`.
    SetMode {
        /// The permissions.
        mode: u32,
        /// What must hold.
        expected: Expected,
    },
    /// Of `run_command`.
    Run(Run),
    /// Of an undoing.
    Undo {
        /// What was done.
        undone: Box<Intent>,
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
    /// The path; refused only after the key was looked up, as the order of checks has it. The root for a patch.
    pub(crate) path: AskedPath,
    /// The rest.
    pub(crate) args: Args,
    /// What the call says, by the rules of now.
    pub(crate) fingerprint: Fingerprint,
    /// What it says by older rules, as far as they know the tool.
    older: Vec<(FingerprintVersion, Fingerprint)>,
}

impl Understood {
    /// Makes the call that undoes another one.
    pub(super) fn of_undo(undone: Box<Intent>) -> Self {
        Said::new("execution_id", json!(undone.execution_id))
            .of(Args::Undo { undone }, Place::none())
            .understood(Tool::Undo)
    }

    /// Gives the request, where its paths mean something.
    pub(crate) fn request(&self, tool: Tool) -> Result<Request, Refusal> {
        let path = self.path.clone()?;
        if let Args::Move { destination, .. } = &self.args {
            destination.clone()?;
        }
        Ok(Request {
            fingerprints: std::iter::once(self.newest())
                .chain(self.older.iter().copied())
                .collect(),
            tool: tool.name().to_owned(),
            path,
        })
    }

    /// Gives what the call says by the rules of now.
    pub(crate) fn newest(&self) -> (FingerprintVersion, Fingerprint) {
        (NEWEST, self.fingerprint)
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
pub(crate) fn understand(
    tool: Tool,
    arguments: Map<String, Value>,
    in_tree: InTree<'_>,
) -> Result<Understood, Refusal> {
    let mut values = Values::fold(tool, arguments, in_tree)?;
    let said = match tool {
        Tool::GetReceipt => {
            let key = values.text("key").ok_or_else(|| missing("key"))?;
            let key = IdempotencyKey::parse(key)
                .map_err(|refusal| Refusal::new(Code::BadInput, refusal.why).name("key"))?;
            Said::new("key", json!(key)).of(Args::Receipt { key }, Place::none())
        }
        Tool::Undo => return Err(Refusal::new(Code::NotFound, "there is no such tool").name(tool.name())),
        Tool::ApplyPatch => patch_said(&mut values)?,
        Tool::RunCommand => run_said(&mut values)?,
        Tool::MoveFile => {
            let source = Place::read(values.path("source", "source_b64")?)?;
            move_said(&mut values)?.at(source)
        }
        Tool::SearchFiles | Tool::Grep => {
            let path = Place::read(values.path_or_root("path", "path_b64")?)?;
            path_said(tool, &mut values)?.at(path)
        }
        Tool::ReadFile
        | Tool::ListDirectory
        | Tool::GetFileInfo
        | Tool::WriteFile
        | Tool::EditFile
        | Tool::DeleteFile
        | Tool::DeleteDirectory
        | Tool::CreateDirectory
        | Tool::SetMode => {
            let path = Place::read(values.path("path", "path_b64")?)?;
            path_said(tool, &mut values)?.at(path)
        }
    };
    Ok(said.understood(tool))
}

/// Is a path with the way in which a fingerprint spells it.
struct Place {
    path: AskedPath,
    spelt: String,
}

impl Place {
    fn none() -> Self {
        Self {
            path: Ok(RelPath::root()),
            spelt: String::new(),
        }
    }

    fn read(bytes: Vec<u8>) -> Result<Self, Refusal> {
        match RelPath::parse(&bytes) {
            Ok(path) => {
                let spelt = path.to_wire();
                Ok(Self {
                    path: Ok(path),
                    spelt,
                })
            }
            Err(refusal) if refusal.code == Code::PathEscapesRoot => Ok(Self {
                path: Err(refusal),
                spelt: format!("b64:{}", BASE64_STANDARD.encode(&bytes)),
            }),
            Err(refusal) => Err(refusal),
        }
    }
}

/// Is what a call says: the understood arguments, and the canonical ones, defaults left out.
struct Said {
    args: Args,
    place: Place,
    canonical: Map<String, Value>,
}

impl Said {
    fn new(name: &str, value: Value) -> Self {
        Self::nothing().and(name, value)
    }

    fn nothing() -> Self {
        Self {
            args: Args::Look(Box::new(Look::Info { digest: Flag::Unset })),
            place: Place::none(),
            canonical: Map::new(),
        }
    }

    fn and(mut self, name: &str, value: Value) -> Self {
        self.canonical.insert(name.to_owned(), value);
        self
    }

    fn expecting(self, expected: Expected) -> Self {
        match expected {
            Expected::Anything => self,
            Expected::Absent => self.and("expected_sha256", json!("absent")),
            Expected::Sha256(digest) => self.and("expected_sha256", json!(digest)),
        }
    }

    fn flag(self, name: &str, flag: Flag) -> Self {
        match flag {
            Flag::Set => self.and(name, json!(true)),
            Flag::Unset => self,
        }
    }

    fn of(mut self, args: Args, place: Place) -> Self {
        (self.args, self.place) = (args, place);
        self
    }

    fn with(mut self, args: Args) -> Self {
        self.args = args;
        self
    }

    fn at(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    fn understood(self, tool: Tool) -> Understood {
        let mut call = json!({"arguments": self.canonical, "path": self.place.spelt, "tool": tool.name()});
        let first = Fingerprint::of_canonical(&to_canonical(&call));
        call["version"] = json!(NEWEST.0);
        let known_then = matches!(tool, Tool::WriteFile | Tool::DeleteFile);
        Understood {
            path: self.place.path,
            args: self.args,
            fingerprint: Fingerprint::of_canonical(&to_canonical(&call)),
            older: known_then.then_some((FIRST, first)).into_iter().collect(),
        }
    }
}

fn path_said(tool: Tool, values: &mut Values<'_>) -> Result<Said, Refusal> {
    Ok(match tool {
        Tool::WriteFile => {
            let content = values.bytes("content", "content_b64")?;
            let expected = values.expected()?;
            Said::new("content_sha256", json!(Sha256::of(&content)))
                .expecting(expected)
                .with(Args::Write { content, expected })
        }
        Tool::EditFile => {
            let edits = values.edits()?;
            let expected = values.expected()?;
            Said::new("edits", edits.iter().map(spell_edit).collect())
                .expecting(expected)
                .with(Args::Edit { edits, expected })
        }
        Tool::DeleteFile => {
            let expected = present(values.expected()?, "what is absent cannot be deleted")?;
            Said::nothing()
                .expecting(expected)
                .with(Args::Delete { expected })
        }
        Tool::DeleteDirectory => {
            let recursive = values.flag("recursive");
            Said::nothing()
                .flag("recursive", recursive)
                .with(Args::DeleteDirectory { recursive })
        }
        Tool::CreateDirectory => Said::nothing().with(Args::CreateDirectory),
        Tool::SetMode => {
            let mode = values.mode()?;
            let expected = present(values.expected()?, "what is absent has no mode")?;
            Said::new("mode", json!(format!("{mode:03o}")))
                .expecting(expected)
                .with(Args::SetMode { mode, expected })
        }
        Tool::ReadFile => looks::file(values)?,
        Tool::ListDirectory => looks::directory(values)?,
        Tool::GetFileInfo => looks::info(values),
        Tool::SearchFiles => looks::search(values)?,
        Tool::Grep => looks::grep(values)?,
        Tool::ApplyPatch | Tool::MoveFile | Tool::RunCommand | Tool::GetReceipt | Tool::Undo => {
            Said::nothing()
        }
    })
}

fn spell_edit(edit: &Edit) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut spelt = json!({"new": text(&edit.new), "old": text(&edit.old)});
    if edit.occurrences == Occurrences::All {
        spelt["all"] = json!(true);
    }
    spelt
}

fn move_said(values: &mut Values<'_>) -> Result<Said, Refusal> {
    let destination = Place::read(values.path("destination", "destination_b64")?)?;
    let overwrite = values.flag("overwrite");
    let expected = present(values.expected()?, "what is absent cannot be moved")?;
    Ok(Said::new("destination", json!(destination.spelt))
        .flag("overwrite", overwrite)
        .expecting(expected)
        .with(Args::Move {
            destination: destination.path,
            overwrite,
            expected,
        }))
}

/// Reads a patch. Two texts that mean the same operations are the same call.
fn patch_said(values: &mut Values<'_>) -> Result<Said, Refusal> {
    let text = values.text("patch").ok_or_else(|| missing("patch"))?;
    let patch = patch::parse(text.as_bytes())?;
    let expected = values.expected_each()?;
    let paths: Vec<&RelPath> = patch
        .operations()
        .iter()
        .flat_map(|operation| std::iter::once(operation.path()).chain(operation.move_to()))
        .collect();
    if let Some(other) = expected.keys().find(|path| !paths.contains(path)) {
        return Err(Refusal::new(Code::BadInput, "the patch does not touch the path")
            .reason("unknown_argument")
            .name(other.to_string()));
    }
    let mut said = Said::new("operations", patch.canonical());
    if !expected.is_empty() {
        let each: Map<String, Value> = expected
            .iter()
            .map(|(path, wanted)| {
                let wanted = match wanted {
                    Expected::Sha256(digest) => json!(digest),
                    Expected::Absent | Expected::Anything => json!("absent"),
                };
                (path.to_wire(), wanted)
            })
            .collect();
        said = said.and("expected_sha256", Value::Object(each));
    }
    Ok(said.with(Args::Patch {
        patch: Box::new(patch),
        expected,
    }))
}

fn present(expected: Expected, why: &str) -> Result<Expected, Refusal> {
    match expected {
        Expected::Absent => Err(Refusal::new(Code::BadInput, why).name("expected_sha256")),
        Expected::Anything | Expected::Sha256(_) => Ok(expected),
    }
}

fn missing(name: &str) -> Refusal {
    Refusal::new(Code::BadInput, "an argument is missing")
        .reason("missing_argument")
        .name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes `/v/tree` for the tree of the volume.
    fn in_tree(path: &[u8]) -> Option<Vec<u8>> {
        path.strip_prefix(b"/v/tree").map(|rest| [b".", rest].concat())
    }

    fn print(tool: Tool, arguments: Value) -> Result<Fingerprint, Refusal> {
        let Value::Object(map) = arguments else {
            panic!("an object")
        };
        Ok(understand(tool, map, &in_tree)?.fingerprint)
    }

    #[test]
    fn equal_calls_have_one_fingerprint() {
        let first = print(Tool::WriteFile, json!({"path": "a/b", "content": "hé"})).unwrap();
        for same in [
            json!({"content": "hé", "file_path": "./a//x/../b"}),
            json!({"path_b64": "YS9i", "content_b64": "aMOp"}),
            json!({"filePath": "a/b/", "contents": "hé"}),
            json!({"path": "/v/tree/a/b", "content": "hé"}),
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
        let understood = understand(Tool::WriteFile, map, &in_tree).unwrap();
        assert_eq!(understood.path.unwrap_err().code, Code::PathEscapesRoot);
    }
}
