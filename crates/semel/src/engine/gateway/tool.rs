//! The tools: their names, and the arguments that they take.
//!
//! One table says for each tool which arguments it takes, of which form, and under which other names models send them;
//! schema, parser and fingerprint are made from it.

mod examples;
mod forms;
mod plain;
mod reads;
mod spelt;
mod types;

pub(crate) use forms::KEY as KEY_PATTERN;
pub(crate) use plain::{KEY_ARGUMENT, KEY_MIRROR};
pub(super) use types::Type;

use crate::limits;
use reads as ask;
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
    /// Finds entries by their names.
    SearchFiles,
    /// Finds lines in files.
    Grep,
    /// Writes a whole file.
    WriteFile,
    /// Replaces text in a file.
    EditFile,
    /// Changes many files, all or none.
    ApplyPatch,
    /// Deletes a file.
    DeleteFile,
    /// Deletes a directory.
    DeleteDirectory,
    /// Gives a file or directory another name.
    MoveFile,
    /// Makes a directory.
    CreateDirectory,
    /// Sets permissions.
    SetMode,
    /// Runs a command.
    RunCommand,
    /// Asks what came of a key.
    GetReceipt,
    /// Puts back what an execution removed or replaced; asked for by a person, over the admin API.
    Undo,
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
    /// It has an effect, and only a person asks for it: it has no route.
    Person,
}

/// Says of which form an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Text.
    Text,
    /// Text that a program is handed: it holds no NUL.
    Word,
    /// A path beneath the root, or beneath another directory.
    Path,
    /// Such a path as an answer spells it, to go on behind it.
    After,
    /// The bytes of such a path as base64.
    PathBase64,
    /// Bytes as base64.
    Base64,
    /// A regular expression, or plain text.
    Expression,
    /// A patch in one of the two grammars.
    Patch,
    /// An idempotency key.
    Key,
    /// A SHA-256.
    Present,
    /// A SHA-256, or `absent`.
    Digest,
    /// For each path a SHA-256, or `absent`.
    Digests,
    /// True or false; false where it is left out.
    Flag,
    /// Permissions in octal digits.
    Mode,
    /// A list of replacements.
    Edits,
    /// A whole number between two others.
    Count {
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// One of some words.
    Choice(&'static [&'static str]),
    /// A pattern for paths, or a list of them, which may be empty.
    Patterns,
    /// The same, but at least one.
    SomePatterns,
    /// The first and the last line; -1 is the last one of the file.
    Lines,
    /// A list of texts.
    Texts,
    /// Texts by name.
    Variables,
}

/// Is one argument of a tool.
pub(crate) struct Field {
    /// Its name.
    pub(crate) name: &'static str,
    /// Other names that are folded into it.
    pub(super) aliases: &'static [&'static str],
    /// Its form.
    pub(super) form: Form,
    /// What it means, for whoever reads the schema.
    meaning: &'static str,
}

const PATH: Field = Field {
    name: "path",
    aliases: &["file_path", "filePath", "filepath", "file"],
    form: Form::Path,
    meaning: "The path beneath the root of the volume; UTF-8",
};
const DIRECTORY: Field = Field {
    name: "path",
    aliases: &["dir_path", "directory", "directory_path", "dirPath"],
    form: Form::Path,
    meaning: "The directory beneath the root of the volume; \".\" is the root",
};
const PATH_B64: Field = Field {
    name: "path_b64",
    aliases: &["pathB64"],
    form: Form::PathBase64,
    meaning: "The path as base64 of its bytes, where it is not UTF-8; in place of path",
};
const SOURCE: Field = Field {
    name: "source",
    aliases: &["src", "from", "source_path", "sourcePath", "old_path", "oldPath"],
    form: Form::Path,
    meaning: "The path that is given up; UTF-8",
};
const SOURCE_B64: Field = Field {
    name: "source_b64",
    aliases: &["sourceB64"],
    form: Form::PathBase64,
    meaning: "The same as base64 of its bytes; in place of source",
};
const DESTINATION: Field = Field {
    name: "destination",
    aliases: &[
        "dest",
        "dst",
        "to",
        "target",
        "destination_path",
        "destinationPath",
        "new_path",
        "newPath",
    ],
    form: Form::Path,
    meaning: "The path that is taken, whole: a file is not moved into a directory by the directory's name; UTF-8",
};
const DESTINATION_B64: Field = Field {
    name: "destination_b64",
    aliases: &["destinationB64"],
    form: Form::PathBase64,
    meaning: "The same as base64 of its bytes; in place of destination",
};
const OVERWRITE: Field = Field {
    name: "overwrite",
    aliases: &["force"],
    form: Form::Flag,
    meaning: "Whether a file at the destination may be replaced; it is kept and can be put back",
};
const CONTENT: Field = Field {
    name: "content",
    aliases: &["contents", "file_text", "fileText"],
    form: Form::Text,
    meaning: "The whole new content; UTF-8",
};
const CONTENT_B64: Field = Field {
    name: "content_b64",
    aliases: &["contentB64"],
    form: Form::Base64,
    meaning: "The whole new content as base64; in place of content",
};
const EXPECTED: Field = Field {
    name: "expected_sha256",
    aliases: &["expectedSha256"],
    form: Form::Digest,
    meaning: "The SHA-256 that the file must have now, or \"absent\"; else precondition_failed",
};
const EXPECTED_THERE: Field = Field {
    name: "expected_sha256",
    aliases: &["expectedSha256"],
    form: Form::Present,
    meaning: "The SHA-256 that the file must have now; else precondition_failed",
};
const EXPECTED_EACH: Field = Field {
    name: "expected_sha256",
    aliases: &["expectedSha256"],
    form: Form::Digests,
    meaning: "For paths of the patch, the SHA-256 that each must have now, or \"absent\"; else precondition_failed",
};
pub(super) const OLD: Field = Field {
    name: "old_string",
    aliases: &["old_str", "old_text", "oldText", "oldString", "oldStr"],
    form: Form::Text,
    meaning: "The exact text to replace; it must be there once, unless replace_all is set",
};
pub(super) const NEW: Field = Field {
    name: "new_string",
    aliases: &["new_str", "new_text", "newText", "newString", "newStr"],
    form: Form::Text,
    meaning: "The text that takes its place",
};
pub(super) const REPLACE_ALL: Field = Field {
    name: "replace_all",
    aliases: &["replaceAll"],
    form: Form::Flag,
    meaning: "Whether every place is replaced",
};
const EDITS: Field = Field {
    name: "edits",
    aliases: &[],
    form: Form::Edits,
    meaning: "Replacements, one after the other, all or none; in place of old_string and new_string",
};
const PATCH: Field = Field {
    name: "patch",
    aliases: &["input", "diff", "patch_text", "patchText"],
    form: Form::Patch,
    meaning: "\"*** Begin Patch\" … \"*** End Patch\", or a unified diff; all of it is applied, or nothing",
};
const RECURSIVE: Field = Field {
    name: "recursive",
    aliases: &[],
    form: Form::Flag,
    meaning: "Whether the directory goes with all that is in it; without, it must be empty",
};
const MODE: Field = Field {
    name: "mode",
    aliases: &["permissions", "perms"],
    form: Form::Mode,
    meaning: "The permissions in octal digits, such as \"755\"; absolute",
};
const COMMAND: Field = Field {
    name: "command",
    aliases: &["cmd", "script"],
    form: Form::Word,
    meaning: "A line for /bin/sh; in place of argv",
};
const ARGV: Field = Field {
    name: "argv",
    aliases: &[],
    form: Form::Texts,
    meaning: "A program, looked up in PATH or from the working directory, and its arguments; no shell reads them",
};
const CWD: Field = Field {
    name: "cwd",
    aliases: &[
        "workdir",
        "working_directory",
        "workingDirectory",
        "working_dir",
        "workingDir",
    ],
    form: Form::Path,
    meaning: "The directory beneath the root of the volume where it runs; the root where it is left out",
};
const CWD_B64: Field = Field {
    name: "cwd_b64",
    aliases: &["cwdB64"],
    form: Form::PathBase64,
    meaning: "The same as base64 of its bytes, where it is not UTF-8; in place of cwd",
};
const ENV: Field = Field {
    name: "env",
    aliases: &["environment"],
    form: Form::Variables,
    meaning: "Further variables of its environment; HOME and TMPDIR are those of the volume",
};
// No bare `timeout`: some who send it mean seconds.
const TIMEOUT_MS: Field = Field {
    name: "timeout_ms",
    aliases: &["timeoutMs"],
    form: Form::Count {
        least: 1,
        most: limits::COMMAND_TIMEOUT_MOST.as_millis() as u64,
    },
    meaning: "After how many milliseconds it is ended; 10 minutes where it is left out",
};
const SCOPE: Field = Field {
    name: "scope",
    aliases: &[],
    form: Form::Choice(&["generation", "job"]),
    meaning: "Where the effect lies: in this generation, or, such as a deployment, outside: then no later generation of the job runs it again under the same key",
};
const KEY: Field = Field {
    name: "key",
    aliases: &["idempotency_key", "idempotencyKey"],
    form: Form::Key,
    meaning: "The idempotency key that is asked about",
};

/// Is what is said of a tool, in one place.
struct Row {
    tool: Tool,
    name: &'static str,
    kind: Kind,
    summary: &'static str,
    fields: &'static [Field],
    /// Of each group, exactly one has to be there.
    one_of: &'static [&'static [&'static str]],
}

const ONE_PATH: &[&[&str]] = &[&["path", "path_b64"]];

/// Says all of every tool, in the order of [`Tool`].
const ROWS: &[Row] = &[
    Row {
        tool: Tool::ReadFile,
        name: "read_file",
        kind: Kind::Read,
        summary: "Reads a file, whole or in part, with the SHA-256 of the whole.",
        fields: &[
            PATH,
            PATH_B64,
            ask::OFFSET,
            ask::LIMIT,
            ask::END_LINE,
            ask::VIEW_RANGE,
            ask::HEAD,
            ask::TAIL,
            ask::BYTE_OFFSET,
            ask::BYTE_LIMIT,
            ask::ENCODING,
            ask::DIGEST,
        ],
        one_of: ONE_PATH,
    },
    Row {
        tool: Tool::ListDirectory,
        name: "list_directory",
        kind: Kind::Read,
        summary: "Lists the entries of a directory, or of those below it, too.",
        fields: &[
            DIRECTORY,
            PATH_B64,
            ask::DEEP,
            ask::DEPTH,
            ask::MOST_ENTRIES,
            ask::AFTER,
            ask::GIT,
        ],
        one_of: ONE_PATH,
    },
    Row {
        tool: Tool::GetFileInfo,
        name: "get_file_info",
        kind: Kind::Read,
        summary: "Describes a file, directory or link, with the SHA-256 of a file.",
        fields: &[PATH, PATH_B64, ask::DIGEST],
        one_of: ONE_PATH,
    },
    Row {
        tool: Tool::SearchFiles,
        name: "search_files",
        kind: Kind::Read,
        summary: "Finds files and directories by their names and paths.",
        fields: &[
            ask::WHERE,
            PATH_B64,
            ask::NAME_PATTERN,
            ask::EXCLUDE,
            ask::IGNORE_CASE,
            ask::MOST_ENTRIES,
            ask::AFTER,
            ask::GIT,
        ],
        one_of: &[&["pattern"]],
    },
    Row {
        tool: Tool::Grep,
        name: "grep",
        kind: Kind::Read,
        summary: "Finds lines in files by a regular expression.",
        fields: &[
            ask::LINE_PATTERN,
            ask::WHERE_OR_FILE,
            PATH_B64,
            ask::FILES,
            ask::EXCLUDE,
            ask::CASE,
            ask::IGNORE_CASE,
            ask::FIXED,
            ask::CONTEXT,
            ask::FILES_ONLY,
            ask::MOST_LINES,
            ask::GIT,
        ],
        one_of: &[&["pattern"]],
    },
    Row {
        tool: Tool::WriteFile,
        name: "write_file",
        kind: Kind::Mutation,
        summary: "Writes a whole file, new or in place of the old one, in one step.",
        fields: &[PATH, PATH_B64, CONTENT, CONTENT_B64, EXPECTED],
        one_of: &[&["path", "path_b64"], &["content", "content_b64"]],
    },
    Row {
        tool: Tool::EditFile,
        name: "edit_file",
        kind: Kind::Mutation,
        summary: "Replaces exact text in a file, in one step; edits of one file at the same time lose nothing.",
        fields: &[PATH, PATH_B64, OLD, NEW, REPLACE_ALL, EDITS, EXPECTED],
        one_of: &[&["path", "path_b64"], &["old_string", "edits"]],
    },
    Row {
        tool: Tool::ApplyPatch,
        name: "apply_patch",
        kind: Kind::Mutation,
        summary: "Changes many files by a patch: all of it, or nothing, also across a crash.",
        fields: &[PATCH, EXPECTED_EACH],
        one_of: &[&["patch"]],
    },
    Row {
        tool: Tool::DeleteFile,
        name: "delete_file",
        kind: Kind::Mutation,
        summary: "Deletes a file or a symbolic link.",
        fields: &[PATH, PATH_B64, EXPECTED_THERE],
        one_of: ONE_PATH,
    },
    Row {
        tool: Tool::DeleteDirectory,
        name: "delete_directory",
        kind: Kind::Mutation,
        summary: "Deletes an empty directory, or one with all that is in it.",
        fields: &[DIRECTORY, PATH_B64, RECURSIVE],
        one_of: ONE_PATH,
    },
    Row {
        tool: Tool::MoveFile,
        name: "move_file",
        kind: Kind::Mutation,
        summary: "Gives a file, link or directory another name.",
        fields: &[
            SOURCE,
            SOURCE_B64,
            DESTINATION,
            DESTINATION_B64,
            OVERWRITE,
            EXPECTED_THERE,
        ],
        one_of: &[&["source", "source_b64"], &["destination", "destination_b64"]],
    },
    Row {
        tool: Tool::CreateDirectory,
        name: "create_directory",
        kind: Kind::Mutation,
        summary: "Makes a directory, and those above it that are missing; one that exists is left as it is.",
        fields: &[DIRECTORY, PATH_B64],
        one_of: ONE_PATH,
    },
    Row {
        tool: Tool::SetMode,
        name: "set_mode",
        kind: Kind::Mutation,
        summary: "Sets the permissions of a file or directory.",
        fields: &[PATH, PATH_B64, MODE, EXPECTED_THERE],
        one_of: &[&["path", "path_b64"], &["mode"]],
    },
    Row {
        tool: Tool::RunCommand,
        name: "run_command",
        kind: Kind::Mutation,
        summary: "Runs a command in the sandbox of the volume, at most once; an exit status other than 0 is an answer, not a refusal.",
        fields: &[COMMAND, ARGV, CWD, CWD_B64, ENV, TIMEOUT_MS, SCOPE],
        one_of: &[&["command", "argv"]],
    },
    Row {
        tool: Tool::GetReceipt,
        name: "get_receipt",
        kind: Kind::Journal,
        summary: "Says what came of a key; it never runs anything.",
        fields: &[KEY],
        one_of: &[&["key"]],
    },
    Row {
        tool: Tool::Undo,
        name: "undo",
        kind: Kind::Person,
        summary: "Puts back what an execution removed or replaced.",
        fields: &[],
        one_of: &[],
    },
];

impl Tool {
    /// Lists every tool.
    pub(crate) const ALL: &'static [Tool] = &{
        let mut all = [Tool::ReadFile; ROWS.len()];
        let mut at = 0;
        while at < ROWS.len() {
            all[at] = ROWS[at].tool;
            at += 1;
        }
        all
    };

    const fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Gives the name that travels on every wire.
    pub(crate) const fn name(self) -> &'static str {
        self.row().name
    }

    /// Lists every tool that a job may call.
    pub(crate) fn callable() -> impl Iterator<Item = Tool> {
        Self::ALL
            .iter()
            .copied()
            .filter(|tool| tool.kind() != Kind::Person)
    }

    /// Finds the tool of a name that a job may call.
    ///
    /// # Errors
    /// `not_found` for any other name.
    pub(crate) fn parse(name: &str) -> Result<Self, Refusal> {
        Self::callable().find(|tool| tool.name() == name).ok_or_else(|| {
            let shown: String = name.chars().take(80).flat_map(char::escape_debug).collect();
            Refusal::new(Code::NotFound, "there is no such tool").name(shown)
        })
    }

    /// Says what the tool does to the world.
    pub(crate) const fn kind(self) -> Kind {
        self.row().kind
    }

    /// Says in one sentence what the tool does.
    pub(crate) const fn summary(self) -> &'static str {
        self.row().summary
    }

    /// Lists the arguments that the tool takes.
    pub(super) const fn fields(self) -> &'static [Field] {
        self.row().fields
    }

    /// Lists the arguments of which at most one may come.
    pub(super) const fn rivals(self) -> &'static [&'static [&'static str]] {
        match self {
            Tool::ReadFile => &[
                &["offset", "view_range", "head", "tail", "byte_offset"],
                &["offset", "view_range", "head", "tail", "byte_limit"],
                &["limit", "end_line", "view_range", "head", "tail", "byte_offset"],
                &["limit", "end_line", "view_range", "head", "tail", "byte_limit"],
            ],
            Tool::ListDirectory => &[&["recursive", "depth"]],
            Tool::SearchFiles => &[&["path", "path_b64"]],
            Tool::RunCommand => &[&["cwd", "cwd_b64"]],
            Tool::Grep => &[&["path", "path_b64"], &["case", "ignore_case"]],
            _ => &[],
        }
    }

    /// Gives the JSON Schema of the arguments.
    pub(crate) fn schema(self) -> Value {
        let row = self.row();
        let properties: Map<String, Value> = row
            .fields
            .iter()
            .map(|field| (field.name.to_owned(), field.schema()))
            .collect();
        let mut all: Vec<Value> = row
            .one_of
            .iter()
            .map(|group| match group {
                [one] => json!({"required": [one]}),
                many => {
                    let each: Vec<Value> = many.iter().map(|name| json!({"required": [name]})).collect();
                    json!({"oneOf": each})
                }
            })
            .collect();
        if self == Tool::EditFile {
            all.push(
                json!({"dependentRequired": {"old_string": ["new_string"], "new_string": ["old_string"]}}),
            );
            all.push(json!({"not": {"required": ["edits", "replace_all"], "properties": {"replace_all": {"const": true}}}}));
        }
        for group in self.rivals() {
            for (n, one) in group.iter().enumerate() {
                let pairs = group[n + 1..]
                    .iter()
                    .map(|other| json!({"not": {"required": [one, other]}}));
                for pair in pairs {
                    if !all.contains(&pair) {
                        all.push(pair);
                    }
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_its_row() {
        for (at, tool) in Tool::ALL.iter().enumerate() {
            assert_eq!(*tool as usize, at);
            let found = Tool::parse(tool.name()).ok();
            assert_eq!(found, (tool.kind() != Kind::Person).then_some(*tool));
        }
        assert_eq!(
            Tool::Undo as usize + 1,
            ROWS.len(),
            "the last tool is the last row"
        );
    }
}
