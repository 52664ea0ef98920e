//! When two patches are the same call, and when two operations are about one file.

use super::{Anchor, End, Hunk, Line, Mode, Operation, Patch, Side, bad};
use crate::code::Refusal;
use crate::path::RelPath;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Refuses two operations about one file, or about a file and a directory above another file.
pub(super) fn no_file_twice(operations: &[Operation]) -> Result<(), Refusal> {
    let mut touched: HashSet<&[u8]> = HashSet::new();
    let twice = |path: &RelPath, why: &str| Err(bad("file_twice", why).name(path.to_wire()));
    let paths = || {
        operations
            .iter()
            .flat_map(|o| std::iter::once(o.path()).chain(o.move_to()))
    };
    for path in paths() {
        if !touched.insert(path.as_bytes()) {
            return twice(path, "the patch touches one file twice");
        }
    }
    for path in paths() {
        let bytes = path.as_bytes();
        let mut parents = (0..bytes.len())
            .filter(|at| bytes[*at] == b'/')
            .map(|at| &bytes[..at]);
        if parents.any(|parent| touched.contains(parent)) {
            return twice(
                path,
                "the patch touches a file, and another one as the directory above it",
            );
        }
    }
    Ok(())
}

impl Patch {
    /// Gives the one form of all patches that say the same.
    ///
    /// The order of the files is no part of it, since no file is there twice; neither are comments, digests and
    /// times that a unified diff carries, nor where the removed lines stand among the added ones. The line numbers
    /// of a unified diff are, since they can decide the place of a hunk.
    ///
    /// # Shape
    /// `[{"op":"update","path":"a.py","hunks":[{"headers":["def f():"],"lines":["- x","+ y"]}]}, …]`, members that
    /// say nothing left out. A line is its sign, then a space where it ends as usual or `\` where the file ends with
    /// it, then its text; contents and lines that are not UTF-8 are `b64:` and their base64, as in paths.
    #[must_use]
    pub fn canonical(&self) -> Value {
        let mut sorted: Vec<&Operation> = self.operations.iter().collect();
        sorted.sort_by_key(|operation| operation.path());
        Value::Array(sorted.into_iter().map(operation).collect())
    }
}

fn operation(operation: &Operation) -> Value {
    let mut said = Map::new();
    said.insert("path".to_owned(), json!(operation.path()));
    let op = match operation {
        Operation::Add { content, mode, .. } => {
            said.insert("content".to_owned(), json!(lossless(content)));
            if *mode != Mode::Regular {
                said.insert("mode".to_owned(), json!(mode));
            }
            "add"
        }
        Operation::Delete { content, .. } => {
            said.extend(
                content
                    .as_deref()
                    .map(|c| ("content".to_owned(), json!(lossless(c)))),
            );
            "delete"
        }
        Operation::Update {
            move_to, hunks, mode, ..
        } => {
            said.extend(move_to.as_ref().map(|path| ("move_to".to_owned(), json!(path))));
            said.extend(mode.map(|mode| ("mode".to_owned(), json!(mode))));
            if !hunks.is_empty() {
                said.insert("hunks".to_owned(), hunks.iter().map(hunk).collect());
            }
            "update"
        }
    };
    said.insert("op".to_owned(), json!(op));
    Value::Object(said)
}

fn hunk(hunk: &Hunk) -> Value {
    let mut said = Map::new();
    said.insert("lines".to_owned(), hunk.lines.iter().map(line).collect());
    said.extend(hunk.stated.map(|stated| ("stated".to_owned(), json!(stated))));
    if !hunk.headers.is_empty() {
        said.insert(
            "headers".to_owned(),
            hunk.headers.iter().map(|h| lossless(h)).collect(),
        );
    }
    if hunk.anchor == Anchor::EndOfFile {
        said.insert("anchor".to_owned(), json!("end_of_file"));
    }
    Value::Object(said)
}

fn line(line: &Line) -> String {
    let sign = match line.side {
        Side::Keep => ' ',
        Side::Remove => '-',
        Side::Add => '+',
    };
    let end = match line.end {
        End::Newline | End::Unsaid => ' ',
        End::File => '\\',
    };
    format!("{sign}{end}{}", lossless(&line.content))
}

/// Gives a text that no other bytes have.
fn lossless(bytes: &[u8]) -> String {
    match core::str::from_utf8(bytes) {
        Ok(text) if !text.starts_with("b64:") => text.to_owned(),
        _ => format!("b64:{}", BASE64_STANDARD.encode(bytes)),
    }
}
