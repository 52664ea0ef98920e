//! Tables of cases, and laws against a plain model.

mod begin;
mod edits;
mod hostile;
mod model;
mod places;
mod same;
mod unified;

use crate::patch::{Applied, Operation, apply, parse};
use crate::{Code, Refusal};

/// Gives what a patch makes of the one file that it updates.
fn patched(patch: &str, before: &str) -> Result<Applied, Refusal> {
    let operations = parse(patch.as_bytes())?.into_operations();
    match &operations[..] {
        [Operation::Update { hunks, .. }] => apply(hunks, before.as_bytes()),
        other => panic!("not one update: {other:?}"),
    }
}

fn reason(refusal: &Refusal) -> (Code, &str) {
    (refusal.code, refusal.reason.as_deref().unwrap_or(""))
}

/// Puts the frame of the one grammar around what is in it.
fn begin(inner: &str) -> String {
    format!("*** Begin Patch\n{inner}*** End Patch\n")
}

/// Says what a patch does, one short text for each operation.
fn told(patch: &str) -> Vec<String> {
    let operations = parse(patch.as_bytes())
        .unwrap_or_else(|refusal| panic!("{refusal:?} of {patch}"))
        .into_operations();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let tell = |operation: &Operation| match operation {
        Operation::Add { path, content, mode } => format!("add {path} {mode:?} {:?}", text(content)),
        Operation::Delete { path, content } => {
            format!("delete {path} {:?}", content.as_deref().map(text))
        }
        Operation::Update {
            path,
            move_to,
            hunks,
            mode,
        } => format!("update {path} {move_to:?} {} {mode:?}", hunks.len()),
    };
    operations.iter().map(tell).collect()
}
