//! Text to operations on files, and operations on bytes: what `edit_file` and `apply_patch` mean.
//!
//! It does *not* open files, resolve links or decide whether a file may be touched.

mod edit;
mod find;
#[cfg(test)]
mod tests;

pub use edit::{Edit, Edited, LONGEST_FILE, MOST_EDITS, MOST_SEARCHED, Occurrences, edit};
