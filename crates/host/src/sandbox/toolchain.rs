//! Finds programs, and what has to be shown so that they work inside as they do outside.

use crate::error::Result;
use semel_core::{Code, Refusal};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Finds a program.
///
/// # Errors
/// `not_found`.
pub fn resolve_program(name: &OsStr, path_dirs: &[PathBuf]) -> Result<PathBuf> {
    path_dirs
        .iter()
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| Refusal::new(Code::NotFound, "no such program").into())
}

/// Lists what has to be shown.
///
/// # Errors
/// None yet.
pub fn toolchain_roots(program: &Path) -> Result<Vec<PathBuf>> {
    Ok(vec![program.to_owned()])
}
