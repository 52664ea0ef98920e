//! The tools: their names, and the arguments that they take.
//!
//! One table says for each tool which arguments it takes and under which other names models send them; schema,
//! parser and fingerprint are made from it.

use semel_core::{Code, Refusal};
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
    pub(super) aliases: &'static [&'static str],
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

    /// Lists the arguments that the tool takes.
    pub(super) fn fields(self) -> &'static [Field] {
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
