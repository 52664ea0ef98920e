//! The arguments of the tools that read.

use super::{Field, Form};
use crate::limits;

const LINE: Form = Form::Count {
    least: 1,
    most: 1 << 40,
};
pub(super) const OFFSET: Field = Field {
    name: "offset",
    aliases: &["start_line", "startLine"],
    form: LINE,
    meaning: "The first line to give; lines are counted from 1",
};
pub(super) const LIMIT: Field = Field {
    name: "limit",
    aliases: &["max_lines", "maxLines"],
    form: LINE,
    meaning: "How many lines to give, from offset on",
};
pub(super) const END_LINE: Field = Field {
    name: "end_line",
    aliases: &["endLine"],
    form: LINE,
    meaning: "The last line to give; in place of limit",
};
pub(super) const VIEW_RANGE: Field = Field {
    name: "view_range",
    aliases: &["viewRange"],
    form: Form::Lines,
    meaning: "The first and the last line to give; -1 is the last line of the file",
};
pub(super) const HEAD: Field = Field {
    name: "head",
    aliases: &[],
    form: LINE,
    meaning: "How many lines to give from the beginning",
};
pub(super) const TAIL: Field = Field {
    name: "tail",
    aliases: &[],
    form: Form::Count {
        least: 1,
        most: limits::TAIL,
    },
    meaning: "How many lines to give from the end",
};
pub(super) const BYTE_OFFSET: Field = Field {
    name: "byte_offset",
    aliases: &["byteOffset"],
    form: Form::Count {
        least: 0,
        most: 1 << 62,
    },
    meaning: "The first byte to give, counted from 0, where lines do not help",
};
pub(super) const BYTE_LIMIT: Field = Field {
    name: "byte_limit",
    aliases: &["byteLimit"],
    form: Form::Count {
        least: 1,
        most: limits::READ,
    },
    meaning: "How many bytes to give, from byte_offset on",
};
/// What a content may be given as.
pub(in crate::engine::gateway) const ENCODINGS: &[&str] = &["utf-8", "utf8", "base64"];
pub(super) const ENCODING: Field = Field {
    name: "encoding",
    aliases: &[],
    form: Form::Choice(ENCODINGS),
    meaning: "How to give the content; without, utf-8 where it is that, else base64",
};
pub(super) const DIGEST: Field = Field {
    name: "digest",
    aliases: &[],
    form: Form::Flag,
    meaning: "Whether to digest a file above 64 MiB, too",
};
pub(super) const DEEP: Field = Field {
    name: "recursive",
    aliases: &[],
    form: Form::Flag,
    meaning: "Whether to list what lies in the directories below, too",
};
pub(super) const DEPTH: Field = Field {
    name: "depth",
    aliases: &["max_depth", "maxDepth"],
    form: Form::Count { least: 1, most: 64 },
    meaning: "How many levels to list; 1 is the directory alone. In place of recursive",
};
pub(super) const MOST_ENTRIES: Field = Field {
    name: "max_results",
    aliases: &["maxResults", "limit", "max_entries"],
    form: Form::Count {
        least: 1,
        most: limits::LISTED as u64,
    },
    meaning: "How many entries to give; then the answer is truncated",
};
pub(super) const AFTER: Field = Field {
    name: "after",
    aliases: &["next_after"],
    form: Form::Text,
    meaning: "Behind which entry to go on: next_after of a truncated answer",
};
pub(super) const GIT: Field = Field {
    name: "include_git",
    aliases: &["includeGit"],
    form: Form::Flag,
    meaning: "Whether to look into .git, which is passed by otherwise",
};
pub(super) const WHERE: Field = Field {
    name: "path",
    aliases: &["dir_path", "directory", "directory_path", "dirPath", "root"],
    form: Form::Text,
    meaning: "The directory to begin in; without, the root of the volume",
};
pub(super) const WHERE_OR_FILE: Field = Field {
    name: "path",
    aliases: &[
        "dir_path",
        "directory",
        "directory_path",
        "dirPath",
        "file_path",
        "filePath",
    ],
    form: Form::Text,
    meaning: "The file, or the directory to begin in; without, the root of the volume",
};
pub(super) const NAME_PATTERN: Field = Field {
    name: "pattern",
    aliases: &["glob", "glob_pattern"],
    form: Form::Patterns,
    meaning: "What to find: * ? [a-c] {a,b} **. Without a slash it is matched against names at any depth, with one against the path below the directory",
};
pub(super) const EXCLUDE: Field = Field {
    name: "exclude",
    aliases: &["excludePatterns", "exclude_patterns", "ignore"],
    form: Form::Patterns,
    meaning: "What to pass by, of the same form; a directory with all that is in it",
};
pub(super) const IGNORE_CASE: Field = Field {
    name: "ignore_case",
    aliases: &["ignoreCase", "case_insensitive", "caseInsensitive", "-i"],
    form: Form::Flag,
    meaning: "Whether letters of another case match",
};
pub(super) const LINE_PATTERN: Field = Field {
    name: "pattern",
    aliases: &["regex", "regexp", "query"],
    form: Form::Text,
    meaning: "The regular expression that a line has to match",
};
pub(super) const FILES: Field = Field {
    name: "glob",
    aliases: &["include", "file_pattern", "filePattern"],
    form: Form::Patterns,
    meaning: "Which files to look into: * ? [a-c] {a,b} **. Without a slash it is matched against names, with one against the path below the directory",
};
pub(super) const CASE: Field = Field {
    name: "case",
    aliases: &[],
    form: Form::Choice(&["sensitive", "insensitive"]),
    meaning: "Whether the case of letters matters; it does, where it is left out",
};
pub(super) const FIXED: Field = Field {
    name: "fixed",
    aliases: &["fixed_strings", "fixedStrings", "literal"],
    form: Form::Flag,
    meaning: "Whether pattern is plain text",
};
pub(super) const CONTEXT: Field = Field {
    name: "context",
    aliases: &["context_lines", "contextLines", "-C"],
    form: Form::Count {
        least: 0,
        most: limits::CONTEXT,
    },
    meaning: "How many lines to give before and behind each",
};
pub(super) const FILES_ONLY: Field = Field {
    name: "files_only",
    aliases: &["files_with_matches", "filesOnly", "-l"],
    form: Form::Flag,
    meaning: "Whether to tell only which files hold such a line",
};
pub(super) const MOST_LINES: Field = Field {
    name: "max_results",
    aliases: &["maxResults", "limit", "head_limit", "max_matches"],
    form: Form::Count {
        least: 1,
        most: limits::MATCHES as u64,
    },
    meaning: "How many lines, or files, to give; then the answer is truncated",
};
