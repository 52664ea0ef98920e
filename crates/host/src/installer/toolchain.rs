//! Finds the toolchain of an installer before the sandbox is entered, and identifies it by content.
//!
//! It resolves shims (pyenv, rustup) to the real executables, so that nothing is looked up inside. It installs
//! nothing, and refuses an executable that the tested tree could have brought along.

mod command;

pub use command::{CommandTools, Program, check_program, resolve_command};

use crate::error::{Error, Result};
use crate::plain::digest_file;
use crate::process::{Cancel, Command, End, Output, run};
use crate::sandbox::is_executable;
use semel_core::artifact::{Libc, Tags};
use semel_core::installer::{Installer, Toolchain};
use semel_core::{Code, Refusal};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Says what a job could write from its sandbox.
#[derive(Clone, Debug)]
pub enum Reach {
    /// What lies beneath these directories.
    Beneath(Vec<PathBuf>),
    /// The same, and whatever this very user may write.
    Everything(Vec<PathBuf>),
}

impl Default for Reach {
    fn default() -> Self {
        Self::Beneath(Vec::new())
    }
}

impl Reach {
    fn holds(&self, paths: [&Path; 2]) -> bool {
        let (Self::Beneath(beneath) | Self::Everything(beneath)) = self;
        let within = beneath
            .iter()
            .any(|above| paths.iter().any(|path| path.starts_with(above)));
        within || (matches!(self, Self::Everything(_)) && paths.into_iter().any(crate::above::may_write))
    }
}

/// Says where toolchains are looked for; what is not named is found in the `PATH` of `env`.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// The operator's variables that resolution needs, such as `PATH`, `HOME`, `RUSTUP_HOME`, `PYENV_ROOT`.
    pub env: BTreeMap<OsString, OsString>,
    /// What no toolchain is taken from: a job could have written it.
    pub reach: Reach,
    /// The Python interpreter.
    pub python: Option<PathBuf>,
    /// The uv executable.
    pub uv: Option<PathBuf>,
    /// The Node.js executable.
    pub node: Option<PathBuf>,
    /// The npm script.
    pub npm: Option<PathBuf>,
    /// The pnpm script.
    pub pnpm: Option<PathBuf>,
    /// The Yarn script.
    pub yarn: Option<PathBuf>,
    /// The Poetry script.
    pub poetry: Option<PathBuf>,
    /// The cargo executable, or the rustup proxy of that name.
    pub cargo: Option<PathBuf>,
}

/// Holds one resolved executable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// What it is known by.
    pub identity: Toolchain,
    /// Its real path.
    pub path: PathBuf,
    /// The directories beneath which it keeps what it needs; shown read-only inside.
    pub roots: Vec<PathBuf>,
    /// What it can run.
    pub runs: Runs,
}

/// Says which artifacts are made for an interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Runs {
    /// None, or nobody knows.
    Nothing,
    /// Wheels, by CPython on Linux.
    Python(Tags),
    /// Packages of Node.
    Node {
        /// The architecture, as in `x64`.
        cpu: String,
        /// The C library: `glibc` or `musl`.
        libc: String,
    },
}

/// Holds the resolved toolchain of one installer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tools {
    /// uv and the interpreter of its environment.
    Uv {
        /// uv itself.
        uv: Tool,
        /// The interpreter.
        python: Tool,
    },
    /// An interpreter and its own pip.
    Pip {
        /// The interpreter.
        python: Tool,
        /// The pip that it imports.
        pip: Tool,
    },
    /// Poetry, with an interpreter of its own, and the interpreter of its environment.
    Poetry {
        /// The interpreter of the environment.
        python: Tool,
        /// Poetry itself.
        poetry: Tool,
    },
    /// Node.js, the pnpm script that it runs, and npm, which downloads.
    Pnpm {
        /// Node.js.
        node: Tool,
        /// The script.
        pnpm: Tool,
        /// The one that downloads.
        npm: Tool,
    },
    /// Node.js, the Yarn script that it runs, and npm, which downloads.
    Yarn {
        /// Node.js.
        node: Tool,
        /// The script.
        yarn: Tool,
        /// The one that downloads.
        npm: Tool,
    },
    /// Node.js and the npm script that it runs.
    Npm {
        /// Node.js.
        node: Tool,
        /// The script.
        npm: Tool,
    },
    /// cargo and rustc of one toolchain.
    Cargo {
        /// cargo, not the rustup proxy.
        cargo: Tool,
        /// The compiler.
        rustc: Tool,
    },
}

impl Tools {
    /// Names the installer.
    #[must_use]
    pub fn installer(&self) -> Installer {
        match self {
            Self::Uv { .. } => Installer::Uv,
            Self::Pip { .. } => Installer::Pip,
            Self::Poetry { .. } => Installer::Poetry,
            Self::Npm { .. } => Installer::Npm,
            Self::Pnpm { .. } => Installer::Pnpm,
            Self::Yarn { .. } => Installer::Yarn,
            Self::Cargo { .. } => Installer::Cargo,
        }
    }

    /// Gives the installer itself, and what it needs.
    fn all(&self) -> (&Tool, Vec<&Tool>) {
        match self {
            Self::Uv { uv, python } => (uv, vec![python]),
            Self::Pip { python, pip } => (pip, vec![python]),
            Self::Poetry { python, poetry } => (poetry, vec![python]),
            Self::Npm { node, npm } => (npm, vec![node]),
            Self::Pnpm { node, pnpm, npm } => (pnpm, vec![node, npm]),
            Self::Yarn { node, yarn, npm } => (yarn, vec![node, npm]),
            Self::Cargo { cargo, rustc } => (cargo, vec![rustc]),
        }
    }

    fn every(&self) -> impl Iterator<Item = &Tool> {
        let (program, rest) = self.all();
        std::iter::once(program).chain(rest)
    }

    /// Gives the installer itself.
    #[must_use]
    pub fn program(&self) -> &Tool {
        self.all().0
    }

    /// Gives the identities that a certificate states.
    #[must_use]
    pub fn identities(&self) -> Vec<Toolchain> {
        self.every().map(|tool| tool.identity.clone()).collect()
    }

    /// Gives the directories to show read-only inside.
    #[must_use]
    pub fn roots(&self) -> Vec<PathBuf> {
        let mut roots: Vec<PathBuf> = self.every().flat_map(|t| t.roots.clone()).collect();
        roots.sort();
        roots.dedup();
        roots
    }

    /// Gives the interpreter, where there is one.
    #[must_use]
    pub fn python(&self) -> Option<&Tool> {
        match self {
            Self::Uv { python, .. } | Self::Pip { python, .. } | Self::Poetry { python, .. } => Some(python),
            Self::Npm { .. } | Self::Pnpm { .. } | Self::Yarn { .. } | Self::Cargo { .. } => None,
        }
    }

    /// Gives Node, where the installer runs in it.
    #[must_use]
    pub fn node(&self) -> Option<&Tool> {
        match self {
            Self::Npm { node, .. } | Self::Pnpm { node, .. } | Self::Yarn { node, .. } => Some(node),
            Self::Uv { .. } | Self::Pip { .. } | Self::Poetry { .. } | Self::Cargo { .. } => None,
        }
    }

    /// Gives npm, where it downloads.
    #[must_use]
    pub fn npm(&self) -> Option<&Tool> {
        match self {
            Self::Npm { npm, .. } | Self::Pnpm { npm, .. } | Self::Yarn { npm, .. } => Some(npm),
            Self::Uv { .. } | Self::Pip { .. } | Self::Poetry { .. } | Self::Cargo { .. } => None,
        }
    }

    /// Gives the directories in which tests find the toolchain's programs by name.
    #[must_use]
    pub fn program_dirs(&self) -> Vec<PathBuf> {
        match self {
            Self::Uv { .. } | Self::Pip { .. } | Self::Poetry { .. } => Vec::new(),
            Self::Npm { node, .. } | Self::Pnpm { node, .. } | Self::Yarn { node, .. } => parent(&node.path),
            Self::Cargo { cargo, .. } => parent(&cargo.path),
        }
    }
}

fn parent(path: &Path) -> Vec<PathBuf> {
    path.parent().map(Path::to_path_buf).into_iter().collect()
}

/// Checks that the programs of an installer are there, before anything begins.
///
/// # Errors
/// `not_found`, reason `no_executable`.
pub fn check_installer(installer: Installer, path: &[PathBuf]) -> Result<()> {
    let programs: &[&str] = match installer {
        Installer::Uv => &["uv", "python3"],
        Installer::Pip => &["python3"],
        Installer::Poetry => &["python3", "poetry"],
        Installer::Npm => &["node", "npm"],
        Installer::Pnpm => &["node", "npm", "pnpm"],
        Installer::Yarn => &["node", "npm", "yarn"],
        Installer::Cargo => &["cargo"],
    };
    for name in programs {
        in_path(name, path.iter().cloned()).ok_or_else(|| missing(name))?;
    }
    Ok(())
}

fn in_path(name: &str, path: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    path.filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(|candidate| is_executable(candidate))
}

fn missing(name: &str) -> Error {
    Refusal::new(Code::NotFound, "no such executable in PATH")
        .reason("no_executable")
        .name(name)
        .into()
}

/// Resolves the toolchain of an installer for a tree.
///
/// # Errors
/// `not_found` where an executable is missing; `evidence_foreign`, reason `toolchain_writable`, where a job could write it,
/// `sandbox_unavailable` where it does not answer as itself or lies
/// beneath the tree, `io_failed` where it cannot be read.
pub fn resolve(installer: Installer, hints: &Hints, tree: &Path, cancel: &Cancel) -> Result<Tools> {
    let finder = Finder { hints, tree, cancel };
    Ok(match installer {
        Installer::Uv => Tools::Uv {
            uv: finder.uv()?,
            python: finder.python()?,
        },
        Installer::Pip => {
            let python = finder.python()?;
            let pip = finder.pip(&python)?;
            Tools::Pip { python, pip }
        }
        Installer::Poetry => Tools::Poetry {
            python: finder.python()?,
            poetry: finder.poetry()?,
        },
        Installer::Npm => {
            let node = finder.node()?;
            let npm = finder.script(&node, "npm", hints.npm.as_deref())?;
            Tools::Npm { node, npm }
        }
        Installer::Pnpm => {
            let node = finder.node()?;
            let npm = finder.script(&node, "npm", hints.npm.as_deref())?;
            let pnpm = finder.script(&node, "pnpm", hints.pnpm.as_deref())?;
            Tools::Pnpm { node, pnpm, npm }
        }
        Installer::Yarn => {
            let node = finder.node()?;
            let npm = finder.script(&node, "npm", hints.npm.as_deref())?;
            let yarn = finder.script(&node, "yarn", hints.yarn.as_deref())?;
            Tools::Yarn { node, yarn, npm }
        }
        Installer::Cargo => {
            let (cargo, rustc) = finder.cargo()?;
            Tools::Cargo { cargo, rustc }
        }
    })
}

struct Finder<'a> {
    hints: &'a Hints,
    tree: &'a Path,
    cancel: &'a Cancel,
}

const ASK_PYTHON: &str = "import os, platform, sys
print(os.path.realpath(getattr(sys, '_base_executable', None) or sys.executable))
print(sys.base_prefix)
print(platform.python_version())
import sysconfig
libc = (os.confstr('CS_GNU_LIBC_VERSION') or '') if 'CS_GNU_LIBC_VERSION' in os.confstr_names else ''
musl = 'musl' in (sysconfig.get_config_var('HOST_GNU_TYPE') or '')
wide = sys.maxsize > 2**32
known = sys.implementation.name == 'cpython' and wide and (musl or libc.startswith('glibc '))
v = sys.version_info
print(f'cp{v.major}{v.minor}{sys.abiflags}' if known else '')
print(platform.machine())
print('musl 1.2' if musl else libc)";

const ASK_NODE: &str = "process.report.excludeNetwork = true;
console.log(process.versions.node);
console.log(process.arch);
console.log(process.report.getReport().header.glibcVersionRuntime ? 'glibc' : 'musl');";

const ASK_POETRY: &str = "import importlib.metadata as m, os, sys
print(os.path.join(str(m.distribution('poetry')._path), 'RECORD'))
print(sys.base_prefix)
print(m.version('poetry'))";

const ASK_PIP: &str = "import importlib.metadata as m, os, pip
record = os.path.join(str(m.distribution('pip')._path), 'RECORD')
print(record if os.path.isfile(record) else os.path.realpath(pip.__file__))
print(os.path.dirname(os.path.dirname(os.path.realpath(pip.__file__))))
print(pip.__version__)";

impl Finder<'_> {
    fn uv(&self) -> Result<Tool> {
        let path = self.real(&self.find("uv", self.hints.uv.as_deref())?)?;
        let version = second_word(&self.lines(&path, &["--version"], Path::new("/"))?);
        self.tool("uv", version, path, Vec::new())
    }

    fn python(&self) -> Result<Tool> {
        let given = self.find("python3", self.hints.python.as_deref())?;
        self.outside(&given)?;
        let lines = self.lines(&given, &["-I", "-c", ASK_PYTHON], Path::new("/"))?;
        let [path, prefix, version] = three(&given, lines.clone())?;
        let path = self.real(Path::new(&path))?;
        let prefix = PathBuf::from(prefix);
        let version = text(version);
        let tags = tags(&version, lines.into_iter().skip(3).map(text));
        let runs = tags.map_or(Runs::Nothing, Runs::Python);
        let tool = self.tool("python", version, path, vec![prefix])?;
        Ok(Tool { runs, ..tool })
    }

    fn pip(&self, python: &Tool) -> Result<Tool> {
        let lines = self.lines(&python.path, &["-I", "-c", ASK_PIP], Path::new("/"))?;
        let [file, root, version] = three(&python.path, lines)?;
        let path = self.real(Path::new(&file))?;
        self.tool("pip", text(version), path, vec![PathBuf::from(root)])
    }

    fn node(&self) -> Result<Tool> {
        let path = self.real(&self.find("node", self.hints.node.as_deref())?)?;
        let [version, cpu, libc] = three(&path, self.lines(&path, &["-e", ASK_NODE], Path::new("/"))?)?;
        let runs = Runs::Node {
            cpu: text(cpu),
            libc: text(libc),
        };
        let roots = installation(&path);
        let tool = self.tool("node", text(version), path, roots)?;
        Ok(Tool { runs, ..tool })
    }

    /// Poetry lives in an environment of its own, which tells what it is.
    fn poetry(&self) -> Result<Tool> {
        let script = self.real(&self.find("poetry", self.hints.poetry.as_deref())?)?;
        let root = script.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
        let own = root.join("bin/python");
        let lines = self.lines(&own, &["-I", "-c", ASK_POETRY], Path::new("/"))?;
        let [record, prefix, version] = three(&own, lines)?;
        let record = self.real(Path::new(&record))?;
        let roots = vec![root.to_path_buf(), PathBuf::from(prefix)];
        let tool = self.tool("poetry", text(version), record, roots)?;
        Ok(Tool { path: script, ..tool })
    }

    /// A package manager that Node runs, such as `.../npm/bin/npm-cli.js`, which keeps its modules beneath `.../npm`.
    fn script(&self, node: &Tool, name: &str, given: Option<&Path>) -> Result<Tool> {
        let path = self.real(&self.find(name, given)?)?;
        if path.components().any(|part| part.as_os_str() == "corepack") {
            return Err(strange(
                &path,
                "it is a stand-in of Corepack, which downloads the real one",
            ));
        }
        let script = path.as_os_str().to_owned();
        let version = first(self.lines(&node.path, &[&script, OsStr::new("--version")], Path::new("/"))?);
        let root = path.parent().and_then(Path::parent).map(Path::to_path_buf);
        self.tool(name, version, path, root.into_iter().collect())
    }

    fn cargo(&self) -> Result<(Tool, Tool)> {
        let given = self.find("cargo", self.hints.cargo.as_deref())?;
        self.outside(&given)?;
        let mut cargo = self.real(&given)?;
        if cargo.file_name() == Some(OsStr::new("rustup")) {
            let lines = self.lines(&cargo, &["which", "cargo"], self.tree)?;
            cargo = self.real(Path::new(&lines.first().cloned().unwrap_or_default()))?;
        }
        let beside = cargo.with_file_name("rustc");
        let rustc = if beside.is_file() {
            self.real(&beside)?
        } else {
            self.real(&self.find("rustc", None)?)?
        };
        let root = Path::new("/");
        let sysroot = self.lines(&rustc, &["--print", "sysroot"], root)?;
        let roots: Vec<PathBuf> = sysroot.into_iter().take(1).map(PathBuf::from).collect();
        let version = second_word(&self.lines(&rustc, &["--version"], root)?);
        let rustc = self.tool("rustc", version, rustc, roots.clone())?;
        let version = second_word(&self.lines(&cargo, &["--version"], root)?);
        Ok((self.tool("cargo", version, cargo, roots)?, rustc))
    }

    fn tool(&self, name: &str, version: String, path: PathBuf, mut roots: Vec<PathBuf>) -> Result<Tool> {
        if version.is_empty() {
            return Err(strange(&path, "it states no version"));
        }
        let system = [Path::new("/"), Path::new("/usr"), Path::new("/usr/local")];
        roots.retain(|root| !system.contains(&root.as_path()));
        for root in &roots {
            self.outside(root)?;
        }
        if !roots.iter().any(|root| path.starts_with(root)) {
            roots.push(path.clone());
        }
        let identity = Toolchain {
            name: name.to_owned(),
            version,
            path: semel_core::path::shown(path.as_os_str().as_bytes()),
            sha256: digest_file(&path)?,
        };
        Ok(Tool {
            identity,
            path,
            roots,
            runs: Runs::Nothing,
        })
    }

    fn find(&self, name: &str, given: Option<&Path>) -> Result<PathBuf> {
        if let Some(path) = given {
            return Ok(path.to_path_buf());
        }
        let path = self.hints.env.get(OsStr::new("PATH"));
        let found = in_path(name, path.into_iter().flat_map(std::env::split_paths));
        found.ok_or_else(|| missing(name))
    }

    fn real(&self, path: &Path) -> Result<PathBuf> {
        let real = std::fs::canonicalize(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Refusal::new(Code::NotFound, "no such executable")
                .name(semel_core::path::shown(path.as_os_str().as_bytes()))
                .into(),
            _ => Error::io("resolve", path, e),
        })?;
        self.outside(&real)?;
        Ok(real)
    }

    /// The tree must never be what the host executes.
    fn outside(&self, path: &Path) -> Result<()> {
        let tree = std::fs::canonicalize(self.tree).unwrap_or_else(|_| self.tree.to_path_buf());
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let within = path.starts_with(&tree) || path.starts_with(self.tree) || real.starts_with(&tree);
        if within {
            return Err(strange(path, "it lies beneath the tree that is to be tested"));
        }
        // It would be run here, by this user, before anything else is known of it.
        if self.hints.reach.holds([path, &real]) {
            let why = "a job could write this toolchain from its sandbox";
            return Err(Refusal::new(Code::EvidenceForeign, why)
                .reason("toolchain_writable")
                .name(semel_core::path::shown(path.as_os_str().as_bytes()))
                .into());
        }
        Ok(())
    }

    fn lines<S: AsRef<OsStr>>(&self, program: &Path, args: &[S], cwd: &Path) -> Result<Vec<OsString>> {
        let mut command = Command::new(program, cwd).args(args.iter().map(AsRef::as_ref));
        command.env.clone_from(&self.hints.env);
        command.env.insert("RUSTUP_AUTO_INSTALL".into(), "0".into());
        command.env.insert("PYTHONDONTWRITEBYTECODE".into(), "1".into());
        // Else Yarn hands over to a script that the directory names.
        command.env.insert("YARN_IGNORE_PATH".into(), "1".into());
        command.deadline = Some(PATIENCE);
        command.output = Output::Capture { cap_bytes: 64 << 10 };
        let ended = run(&command, self.cancel)?;
        if ended.end != End::Exited(0) {
            let said = ended.stderr.trim_ascii().split(|b| *b == b'\n').next();
            let said = semel_core::path::shown(said.unwrap_or_default());
            let why = format!("it does not answer when asked what it is: {said}");
            return Err(strange(program, &why.chars().take(600).collect::<String>()));
        }
        let lines = ended.stdout.split(|b| *b == b'\n');
        Ok(lines.map(|line| OsString::from_vec(line.to_vec())).collect())
    }
}

/// Reads what an interpreter says of its ABI, its machine and its C library.
fn tags(version: &str, said: impl Iterator<Item = String>) -> Option<Tags> {
    let numbers = |text: &str| -> Option<(u32, u32)> {
        let mut parts = text.split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    let said: Vec<String> = said.collect();
    let [abi, machine, libc, ..] = said.as_slice() else {
        return None;
    };
    let (family, number) = libc.split_once(' ')?;
    let (major, minor) = numbers(number)?;
    (!abi.is_empty()).then_some(())?;
    Some(Tags {
        python: numbers(version)?,
        abi: abi.clone(),
        machine: machine.clone(),
        libc: match family {
            "glibc" => Libc::Glibc(major, minor),
            _ => Libc::Musl(major, minor),
        },
    })
}

fn strange(path: &Path, why: &str) -> Error {
    Refusal::new(
        Code::SandboxUnavailable,
        format!("a toolchain cannot be used: {why}"),
    )
    .reason("toolchain")
    .name(semel_core::path::shown(path.as_os_str().as_bytes()))
    .into()
}

fn text(word: OsString) -> String {
    semel_core::path::shown(word.as_bytes())
}

fn first(lines: Vec<OsString>) -> String {
    lines.into_iter().next().map(text).unwrap_or_default()
}

/// `uv 0.9.1 (…)` and `rustc 1.95.0 (…)` state the version as the second word.
fn second_word(lines: &[OsString]) -> String {
    let line = lines.first().cloned().map(text).unwrap_or_default();
    line.split(' ').nth(1).unwrap_or_default().to_owned()
}

fn three(program: &Path, lines: Vec<OsString>) -> Result<[OsString; 3]> {
    let mut lines = lines.into_iter();
    match (lines.next(), lines.next(), lines.next()) {
        (Some(a), Some(b), Some(c)) => Ok([a, b, c]),
        _ => Err(strange(program, "its answer is cut")),
    }
}

/// `<root>/bin/node` brings its libraries beneath `<root>`.
fn installation(path: &Path) -> Vec<PathBuf> {
    let bin = path
        .parent()
        .filter(|dir| dir.file_name() == Some(OsStr::new("bin")));
    bin.and_then(Path::parent)
        .map(Path::to_path_buf)
        .into_iter()
        .collect()
}
