//! The tools of a command of the job: its program, and the interpreters that it may find by name.

use super::{Finder, Hints, Tool, parent, strange};
use crate::error::{Error, Result};
use crate::plain::digest_file;
use crate::process::Cancel;
use crate::sandbox::{is_executable, resolve_program, toolchain_roots};
use semel_core::install::InstalledBy;
use semel_core::installer::{InstallCommand, Toolchain};
use semel_core::manifest::{Entry, FileMode, Manifest};
use semel_core::path::shown;
use semel_core::{Code, Refusal, RelPath, Sha256};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What stands for the version of a program that is not asked for one.
const NOT_ASKED: &str = "not asked";

/// Is the program of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A file of the tree, which the tree's own id binds; where it lies on the host, and its digest.
    OfTree(PathBuf, Sha256),
    /// One of the operator's.
    Operator(Tool),
}

/// Holds the tools of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandTools {
    /// Its program.
    pub program: Program,
    /// The operator's interpreter of Python, where there is one.
    pub python: Option<Tool>,
    /// The operator's Node, where there is one.
    pub node: Option<Tool>,
}

impl CommandTools {
    fn every(&self) -> impl Iterator<Item = &Tool> {
        let program = match &self.program {
            Program::OfTree(..) => None,
            Program::Operator(tool) => Some(tool),
        };
        program.into_iter().chain(&self.python).chain(&self.node)
    }

    /// Gives the path of the program.
    #[must_use]
    pub fn path(&self) -> &Path {
        match &self.program {
            Program::OfTree(path, _) => path,
            Program::Operator(tool) => &tool.path,
        }
    }

    /// Gives the identities that a certificate states.
    #[must_use]
    pub fn identities(&self) -> Vec<Toolchain> {
        self.every().map(|tool| tool.identity.clone()).collect()
    }

    /// Gives the directories to show read-only inside.
    #[must_use]
    pub fn roots(&self) -> Vec<PathBuf> {
        let mut roots: Vec<PathBuf> = self.every().flat_map(|tool| tool.roots.clone()).collect();
        roots.sort();
        roots.dedup();
        roots
    }

    /// Gives the directory of Node, where tests find it by name.
    #[must_use]
    pub fn node_dir(&self) -> Vec<PathBuf> {
        self.node.iter().flat_map(|tool| parent(&tool.path)).collect()
    }

    /// Gives the directories in which the command finds programs by name, before those of the system.
    #[must_use]
    pub fn dirs(&self) -> Vec<PathBuf> {
        let interpreters = self.python.iter().chain(&self.node);
        interpreters.flat_map(|tool| parent(&tool.path)).collect()
    }

    /// Names who installed.
    #[must_use]
    pub fn installed_by(&self, command: &InstallCommand) -> InstalledBy {
        let sha256 = match &self.program {
            Program::OfTree(_, sha256) => *sha256,
            Program::Operator(tool) => tool.identity.sha256,
        };
        InstalledBy {
            command: command.words().to_vec(),
            name: semel_core::install::By::Command,
            sha256,
            version: NOT_ASKED.to_owned(),
        }
    }
}

/// Checks, before anything is installed, that the program of a command is there and may be run; a path in the tree is one
/// of what was sealed.
///
/// # Errors
/// `not_found` where it is missing or cannot be run; those of [`resolve_program`]; `path_escapes_root` for a relative path
/// that leaves the tree.
pub fn check_program(command: &InstallCommand, path: &[PathBuf], manifest: &Manifest) -> Result<()> {
    let name = command.program();
    if !name.contains('/') || name.starts_with('/') {
        return resolve_program(OsStr::new(name), path).map(drop);
    }
    let inside = RelPath::parse(name.as_bytes())?;
    let mut sealed = manifest.entries.iter().filter(|entry| *entry.path() == inside);
    let may_run = match sealed.next() {
        Some(Entry::File { mode, .. }) => *mode == FileMode::Executable,
        // What it leads to is looked at in the tree itself.
        Some(Entry::Symlink { .. }) => true,
        // A directory on the way may be a link.
        None => manifest
            .entries
            .iter()
            .any(|entry| matches!(entry, Entry::Symlink { .. }) && inside.is_below(entry.path())),
    };
    if may_run {
        return Ok(());
    }
    Err(Refusal::new(Code::NotFound, NOT_RUN).name(name).into())
}

const NOT_RUN: &str = "the install command is no file of the tree that may be run";

/// Resolves the tools of a command for a tree; `path` is where the operator's programs lie.
///
/// # Errors
/// `not_found` where the program is missing or cannot be run; `evidence_foreign`, reason `toolchain_writable`, where a
/// job could write it; `sandbox_unavailable` where it lies beneath the tree by an absolute path, or does not say what it
/// stands for; `path_escapes_root` for a relative path that leaves the tree.
pub fn resolve_command(
    command: &InstallCommand,
    hints: &Hints,
    path: &[PathBuf],
    tree: &Path,
    cancel: &Cancel,
) -> Result<CommandTools> {
    let finder = Finder { hints, tree, cancel };
    Ok(CommandTools {
        program: program(command, &finder, path)?,
        python: optional(finder.python())?,
        node: optional(finder.node())?,
    })
}

fn program(command: &InstallCommand, finder: &Finder<'_>, path: &[PathBuf]) -> Result<Program> {
    let name = command.program();
    if name.contains('/') && !name.starts_with('/') {
        let inside = RelPath::parse(name.as_bytes())?;
        let place = finder.tree.join(OsStr::from_bytes(inside.as_bytes()));
        if !is_executable(&place) {
            return Err(Refusal::new(Code::NotFound, NOT_RUN).name(name).into());
        }
        let digest = digest_file(&place)?;
        return Ok(Program::OfTree(place, digest));
    }
    let program = plain(resolve_program(OsStr::new(name), path)?)?;
    let real = finder.real(&program)?;
    if real.components().any(|part| part.as_os_str() == "corepack") {
        return Err(strange(
            &real,
            "it is a stand-in of Corepack, which downloads the real one",
        ));
    }
    let roots = toolchain_roots(&program)?;
    for root in &roots {
        finder.outside(root)?;
    }
    let identity = Toolchain {
        name: command.program_name().to_owned(),
        version: NOT_ASKED.to_owned(),
        path: shown(real.as_os_str().as_bytes()),
        sha256: digest_file(&real)?,
    };
    Ok(Program::Operator(Tool {
        identity,
        path: program,
        roots,
        runs: super::Runs::Nothing,
    }))
}

/// Gives a program by the real path of its directory: what stands in no other way to it is not there inside.
fn plain(program: PathBuf) -> Result<PathBuf> {
    match (program.parent(), program.file_name()) {
        (Some(parent), Some(name)) => {
            let real = std::fs::canonicalize(parent).map_err(|e| Error::io("resolve", parent, e))?;
            Ok(real.join(name))
        }
        _ => Ok(program),
    }
}

/// An interpreter that is not there, or does not answer as one, is none.
fn optional(found: Result<Tool>) -> Result<Option<Tool>> {
    match found {
        Ok(tool) => Ok(Some(tool)),
        Err(Error::Refused(refusal)) if matches!(refusal.code, Code::NotFound | Code::SandboxUnavailable) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
