//! Finds programs, and what has to be shown so that they work inside the sandbox as they do outside.
//!
//! Many programs on a path only pick the real one by the home of whoever calls, and a sandboxed program has
//! another home: pyenv's and rustup's are asked, outside, once. It does not know versions or lockfiles.

use super::plan::SYSTEM;
use crate::error::{Error, Result};
use crate::process::{Cancel, Command, run};
use semel_core::{Code, Refusal};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a toolchain may take to say where it is.
const ASKING: Duration = Duration::from_secs(30);

/// How much of a script is looked at.
const HEAD: u64 = 4096;

/// Finds the program that a name means in the given directories, behind pyenv's and rustup's stand-ins.
///
/// # Errors
/// `not_found` with the name; `bad_input` where it is a relative path; `sandbox_unavailable` where a stand-in
/// does not say what it stands for.
pub fn resolve_program(name: &OsStr, path_dirs: &[PathBuf]) -> Result<PathBuf> {
    let shown = semel_core::path::shown(name.as_bytes());
    let found = if name.as_bytes().contains(&b'/') {
        if !Path::new(name).is_absolute() {
            let why = "a program is named alone or by its absolute path";
            return Err(Refusal::new(Code::BadInput, why).name(shown).into());
        }
        Some(PathBuf::from(name)).filter(|path| is_executable(path))
    } else {
        let places = path_dirs.iter().filter(|dir| dir.is_absolute());
        places.map(|dir| dir.join(name)).find(|path| is_executable(path))
    };
    match found {
        Some(path) => behind(path, path_dirs),
        None => Err(Refusal::new(Code::NotFound, "the program is not there")
            .name(shown)
            .into()),
    }
}

/// Lists what has to be shown read-only so that a program works: itself, and the prefix of its interpreter,
/// compiler or packages. Program is as [`resolve_program`] gives it.
///
/// # Errors
/// `io_failed` where it cannot be looked at; `sandbox_unavailable` where an interpreter does not say where it
/// is, or where its prefix is so wide that it must not be shown.
pub fn toolchain_roots(program: &Path) -> Result<Vec<PathBuf>> {
    let mut roots = Vec::new();
    collect(program, &mut roots, 2)?;
    roots.sort();
    roots.dedup();
    for root in &roots {
        let system = SYSTEM.iter().any(|place| Path::new(place) == root);
        if !system && root.components().count() < 3 {
            return Err(unavailable(
                "the prefix of a toolchain is too wide to be shown",
                root,
            ));
        }
    }
    Ok(roots)
}

fn collect(program: &Path, roots: &mut Vec<PathBuf>, depth: u8) -> Result<()> {
    let real = program
        .canonicalize()
        .map_err(|e| Error::io("look at", program, e))?;
    roots.push(program.to_owned());
    let name = program.file_name().unwrap_or_default().as_bytes();
    if is_python(name) && head(&real).starts_with(b"\x7fELF") {
        roots.extend(python_prefixes(program)?);
    }
    if name == b"git" {
        let answer = ask(Command::new(program, "/").arg("--exec-path"))?;
        roots.push(PathBuf::from(OsString::from_vec(
            answer.trim_ascii_end().to_vec(),
        )));
    }
    if let Some(prefix) = marked_prefix(&real) {
        roots.push(prefix);
    }
    // A package's script needs the packages around it: those of the outermost directory of packages.
    let packages = real.ancestors().filter(|place| place.ends_with("node_modules"));
    roots.extend(packages.last().map(Path::to_owned));
    if let Some(interpreter) = interpreter(&real).filter(|_| depth > 0) {
        collect(&interpreter, roots, depth - 1)?;
    }
    Ok(())
}

/// Says whether a path is a file that somebody may run.
pub(crate) fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

fn is_python(name: &[u8]) -> bool {
    name.starts_with(b"python") || name.starts_with(b"pypy")
}

/// Gives the program that a stand-in stands for; any other program stands for itself.
fn behind(path: PathBuf, path_dirs: &[PathBuf]) -> Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_owned();
    let real = path.canonicalize().map_err(|e| Error::io("look at", &path, e))?;
    let question = if real.file_name() == Some(OsStr::new("rustup")) && name != "rustup" {
        // The link is what stands in <cargo home>/bin; rustup's own home is a neighbour of cargo's.
        let neighbours = path
            .ancestors()
            .nth(3)
            .map(|above| [".rustup", "rustup"].map(|n| above.join(n)));
        let home = neighbours.into_iter().flatten().find(|place| place.is_dir());
        let question = Command::new(&real, "/").arg("which").arg(&name);
        home.into_iter()
            .fold(question, |q, home| q.var("RUSTUP_HOME", home))
    } else if let Some((root, pyenv)) = pyenv_behind(&real) {
        let path = std::env::join_paths(path_dirs.iter().filter(|dir| !dir.starts_with(&root)))
            .map_err(|e| Error::io("join", &root, std::io::Error::other(e)))?;
        Command::new(pyenv, "/")
            .arg("which")
            .arg(&name)
            .var("PYENV_ROOT", &root)
            .var("PATH", path)
    } else {
        return Ok(path);
    };
    let answer = ask(question)?;
    let found = PathBuf::from(OsString::from_vec(answer.trim_ascii_end().to_vec()));
    if found.is_absolute() && is_executable(&found) {
        return Ok(found);
    }
    Err(unavailable("it stands for a program that is not there", &path))
}

/// Finds pyenv's root and program, if a script is one of its stand-ins.
fn pyenv_behind(script: &Path) -> Option<(PathBuf, PathBuf)> {
    let text = head(script);
    if !text.starts_with(b"#!") {
        return None;
    }
    let line = text
        .split(|b| *b == b'\n')
        .find(|line| line.starts_with(b"exec \"") && line.ends_with(b"/pyenv\" exec \"$program\" \"$@\""))?;
    let quoted = line.get(6..)?.split(|b| *b == b'"').next()?;
    let pyenv = PathBuf::from(OsStr::from_bytes(quoted));
    let root = pyenv.parent()?.parent()?.to_owned();
    is_executable(&pyenv).then_some((root, pyenv))
}

/// Asks a Python where it is.
fn python_prefixes(python: &Path) -> Result<Vec<PathBuf>> {
    const QUESTION: &str = "import sys,os\n\
        w=[sys.executable,sys.prefix,sys.exec_prefix]\n\
        w+=[getattr(sys,'base_prefix',sys.prefix),getattr(sys,'base_exec_prefix',sys.exec_prefix)]\n\
        w+=[os.path.realpath(sys.executable)]\n\
        os.write(1,b'\\0'.join(os.fsencode(x) for x in w))";
    let answer = ask(Command::new(python, "/").args(["-I", "-S", "-c", QUESTION]))?;
    let places = answer
        .split(|b| *b == 0)
        .map(|p| PathBuf::from(OsStr::from_bytes(p)));
    Ok(places.filter(|place| place.is_absolute()).collect())
}

/// Gives the prefix of a program in `bin`, where a file in it shows that it is one toolchain's own.
fn marked_prefix(real: &Path) -> Option<PathBuf> {
    const MARKS: [&str; 6] = [
        "lib/rustlib",
        "lib/node_modules",
        "include/node",
        "pkg/tool",
        "conda-meta",
        "pyvenv.cfg",
    ];
    let bin = real.parent().filter(|bin| bin.ends_with("bin"))?;
    let prefix = bin.parent()?;
    MARKS
        .iter()
        .any(|mark| prefix.join(mark).exists())
        .then(|| prefix.to_owned())
}

/// Gives the interpreter that a script names by its path; `env` finds its own.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let text = head(script);
    let line = text.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let word = line.trim_ascii().split(|b| b.is_ascii_whitespace()).next()?;
    let path = Path::new(OsStr::from_bytes(word));
    (path.is_absolute() && !path.ends_with("env") && is_executable(path)).then(|| path.to_owned())
}

fn head(path: &Path) -> Vec<u8> {
    use std::io::Read;
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        // A program that cannot be read is none of the scripts that are looked for.
        file.take(HEAD).read_to_end(&mut bytes).ok();
    }
    bytes
}

fn ask(mut question: Command) -> Result<Vec<u8>> {
    question.deadline = Some(ASKING);
    let ended = run(&question, &Cancel::new()?)?;
    if ended.end.success() && !ended.truncated.any() {
        return Ok(ended.stdout);
    }
    Err(unavailable("it does not say where it is", &question.program))
}

fn unavailable(why: &str, about: &Path) -> Error {
    let shown = semel_core::path::shown(about.as_os_str().as_bytes());
    Refusal::new(Code::SandboxUnavailable, why).name(shown).into()
}
