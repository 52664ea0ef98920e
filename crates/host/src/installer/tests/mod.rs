//! Real installers on artifacts that are made here; what needs a package registry says so in its name.

mod cargo;
mod linked;
mod npm;
mod observing;
mod pip;
mod poetry;
mod real;
mod recording;
mod running;
mod uv;

use super::*;
use crate::sandbox::Require;
use semel_core::RelPath;
use semel_core::ids::Generation;
use semel_core::install::{Fact, InstallRecord};
use semel_core::lockset::Lockfile;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Write};
use std::time::Duration;
use tempfile::TempDir;

/// Prints why a test cannot run here, and counts as skipped.
pub(super) fn skipped(why: &str) {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    writeln!(std::io::stderr(), "SKIPPED: {name}: {why}").unwrap();
}

/// One generation: a tree, a home beside it, and nothing else.
pub(super) struct Site {
    dir: TempDir,
    pub(super) tree: PathBuf,
    pub(super) home: PathBuf,
    pub(super) stock: PathBuf,
}

pub(super) fn site() -> Site {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let [tree, home, stock] = ["tree", "home", "stock"].map(|name| root.join(name));
    for place in [&tree, &home, &stock] {
        std::fs::create_dir(place).unwrap();
    }
    Site {
        dir,
        tree,
        home,
        stock,
    }
}

impl Site {
    /// As in production: neither the state root nor any home is seen, but for what is shown again.
    fn isolation(&self) -> Isolation {
        Isolation {
            hide: vec!["/root".into(), "/home".into(), self.dir.path().to_path_buf()],
            read_only: Vec::new(),
            require: Require::BestEffort,
            bounds: crate::sandbox::default_bounds(),
        }
    }

    pub(super) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.tree.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub(super) fn plan(&self, tools: Tools) -> Plan {
        Plan {
            tree: self.tree.clone(),
            directory: RelPath::root(),
            home: self.home.clone(),
            tools,
            artifacts: crate::artifact::Store::open(&self.dir.path().join("artifacts")).unwrap(),
            project: ProjectInstall::Skip,
            args: Vec::new(),
            network_env: BTreeMap::new(),
            deadline: Duration::from_secs(300),
            grace: Duration::from_secs(2),
            isolation: self.isolation(),
        }
    }

    pub(super) fn tests<'a>(&self, run: &str, installed: &'a [Plan], command: &[&str]) -> TestPlan<'a> {
        TestPlan {
            tree: self.tree.clone(),
            home: self.home.join(run),
            installed,
            commanded: None,
            command: command.iter().map(OsString::from).collect(),
            report: ReportFrom::Command,
            env: BTreeMap::new(),
            writable: Vec::new(),
            deadline: Duration::from_secs(300),
            grace: Duration::from_secs(2),
            isolation: self.isolation(),
        }
    }
}

pub(super) fn never() -> Cancel {
    Cancel::new().unwrap()
}

/// The variables of this very process that lead to toolchains.
fn hints() -> Hints {
    let names = [
        "PATH",
        "HOME",
        "RUSTUP_HOME",
        "CARGO_HOME",
        "PYENV_ROOT",
        "PYENV_VERSION",
    ];
    let set = names
        .iter()
        .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)));
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools");
    let of = |name: &str| Some(tools.join(name)).filter(|place| place.is_file());
    Hints {
        env: set.collect(),
        uv: of("bin/uv"),
        poetry: of("poetry/bin/poetry"),
        pnpm: of("node/node_modules/pnpm/bin/pnpm.cjs"),
        yarn: of("node/node_modules/yarn/bin/yarn.js"),
        ..Hints::default()
    }
}

/// Resolves a toolchain, or says that it is not on this machine.
pub(super) fn tools(installer: Installer, tree: &Path) -> Option<Tools> {
    match resolve(installer, &hints(), tree, &never()) {
        Ok(tools) => Some(tools),
        Err(error) if error.code() == Code::NotFound => {
            skipped(&format!("{installer}: {error}"));
            None
        }
        Err(error) => panic!("{installer}: {error}"),
    }
}

/// The interpreter of this machine, or why there is none.
pub(crate) fn python() -> Option<PathBuf> {
    let tools = tools(Installer::Uv, Path::new("/nowhere"))?;
    tools.python().map(|tool| tool.path.clone())
}

/// What the registries of this machine are reached with: the operator's part in production.
pub(super) fn network() -> BTreeMap<OsString, OsString> {
    let prefixes = [
        "SSL_CERT_",
        "PIP_",
        "UV_",
        "NODE_EXTRA_CA",
        "CARGO_HTTP_",
        "npm_config_",
    ];
    let exact = [
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "NO_PROXY",
        "https_proxy",
        "http_proxy",
        "no_proxy",
    ];
    let ours = |name: &OsStr| {
        let name = name.to_str().unwrap_or_default();
        exact.contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    let mut env: BTreeMap<OsString, OsString> = std::env::vars_os().filter(|(name, _)| ours(name)).collect();
    trust_machine(&mut env);
    if let Some(bundle) = env.get(OsStr::new("SSL_CERT_FILE")).cloned() {
        env.entry("CARGO_HTTP_CAINFO".into()).or_insert(bundle);
    }
    env
}

/// Says that a registry cannot be reached, where an installer's own words say so; panics for any other failure.
pub(super) fn unreachable(error: &Error) {
    const WORDS: [&str; 9] = [
        "EAI_AGAIN",
        "dns error",
        "resolve host",
        "ENOTFOUND",
        "ECONNREFUSED",
        "error sending request",
        "ETIMEDOUT",
        "Could not find a version",
        "spurious network error",
    ];
    let Error::Refused(refusal) = error else {
        panic!("{error}");
    };
    let said = refusal.names.join("\n");
    let network = refusal.reason.as_deref() == Some("fetch") && WORDS.iter().any(|word| said.contains(word));
    assert!(network, "{refusal:#?}");
    skipped(&format!(
        "the registry is not reachable: {}",
        refusal.names.last().unwrap()
    ));
}

/// Runs a program of the test's own preparation, outside of any sandbox.
pub(crate) fn prepare(program: &Path, args: &[&str], cwd: &Path, env: &[(&str, &OsStr)]) -> Vec<u8> {
    let mut command = crate::process::Command::new(program, cwd).args(args.iter().copied());
    command
        .env
        .insert("PATH".into(), std::env::var_os("PATH").unwrap_or_default());
    // Apart from `cwd`: a tool that packs its directory would pack its own log while it grows.
    let home = tempfile::tempdir().unwrap();
    command
        .env
        .insert("HOME".into(), home.path().as_os_str().to_owned());
    for (name, value) in env {
        command.env.insert((*name).into(), (*value).to_owned());
    }
    let ended = crate::process::run(&command, &never()).unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.end.success(), "{args:?}: {:?} {said}", ended.end);
    ended.stdout
}

/// Makes a wheel of text files, RECORD included; returns its SHA-256. The file `METADATA` is what its metadata says more.
pub(super) fn wheel(python: &Path, dir: &Path, name: &str, version: &str, files: &[(&str, &str)]) -> String {
    const MAKE: &str = r#"
import base64, hashlib, json, sys, zipfile
out, name, version, files = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
info = f"{name}-{version}.dist-info"
about = files.pop("METADATA", "")
files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{about}"
files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
rows = []
path = f"{out}/{name}-{version}-py3-none-any.whl"
with zipfile.ZipFile(path, "w") as z:
    for at, text in files.items():
        z.writestr(at, text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{at},sha256={digest},{len(text.encode())}")
    rows.append(f"{info}/RECORD,,")
    z.writestr(f"{info}/RECORD", "\n".join(rows) + "\n")
print(hashlib.sha256(open(path, "rb").read()).hexdigest())
"#;
    let files: BTreeMap<&str, &str> = files.iter().copied().collect();
    let files = serde_json::to_string(&files).unwrap();
    let out = dir.to_str().unwrap();
    let said = prepare(python, &["-I", "-c", MAKE, out, name, version, &files], dir, &[]);
    String::from_utf8(said).unwrap().trim().to_owned()
}

/// Serves the wheels of a directory as a simple index, on this machine alone; returns its address.
///
/// The thread lives as long as the test process.
pub(super) fn index(dir: &Path) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let dir = dir.to_path_buf();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answer(stream, &dir).ok();
        }
    });
    address
}

fn answer(mut stream: std::net::TcpStream, dir: &Path) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let (kind, body) = match path.strip_prefix("/files/") {
        Some(file) => ("application/octet-stream", std::fs::read(dir.join(file))?),
        None => ("text/html", listing(dir, path.trim_matches('/'))?.into_bytes()),
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if !request.starts_with("HEAD") {
        stream.write_all(&body)?;
    }
    stream.flush()
}

fn listing(dir: &Path, path: &str) -> std::io::Result<String> {
    let wanted = path.rsplit('/').next().unwrap_or_default().replace('-', "_");
    let mut page = String::from("<!DOCTYPE html><html><body>");
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().into_string().unwrap_or_default();
        if name.starts_with(&format!("{wanted}-")) {
            let digest = crate::plain::digest_file(&entry.path()).map_err(std::io::Error::other)?;
            page.push_str(&format!("<a href=\"/files/{name}#sha256={digest}\">{name}</a>"));
        }
    }
    page.push_str("</body></html>");
    Ok(page)
}

/// Takes the refusal out of an error.
#[track_caller]
pub(super) fn refused<T>(result: Result<T>) -> Refusal {
    match result {
        Err(Error::Refused(refusal)) => refusal,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

/// A generation that was never used.
pub(super) fn generation() -> Generation {
    Generation::mint(crate::clock::seed().unwrap())
}

/// Parses a lockfile of the tree, as a certification does before it installs.
pub(super) fn lockfile(site: &Site, name: &str) -> Lockfile {
    let bytes = std::fs::read(site.tree.join(name)).unwrap();
    semel_core::lockset::parse(&RelPath::parse(name.as_bytes()).unwrap(), &bytes).unwrap()
}

thread_local! {
    /// What the installations of this test were given, by their tree.
    static GIVEN: RefCell<BTreeMap<PathBuf, Supply>> = const { RefCell::new(BTreeMap::new()) };
}

/// Parses the locks that an installer reads, as a certification does before it fetches.
fn locks_of(plan: &Plan) -> Vec<Lockfile> {
    let names: Vec<String> = match plan.tools.installer() {
        Installer::Uv => vec!["uv.lock".to_owned()],
        Installer::Pip => vec!["requirements.txt".to_owned()],
        Installer::Poetry => vec!["poetry.lock".to_owned()],
        Installer::Pnpm => vec!["pnpm-lock.yaml".to_owned()],
        Installer::Yarn => vec!["yarn.lock".to_owned()],
        Installer::Npm => vec!["npm-shrinkwrap.json".to_owned(), "package-lock.json".to_owned()],
        Installer::Cargo => vec!["Cargo.lock".to_owned()],
    };
    let read = names.iter().filter_map(|name| {
        let path = plan.directory.join(name.as_bytes()).ok()?;
        let bytes = std::fs::read(plan.project_dir().join(name)).ok()?;
        semel_core::lockset::parse(&path, &bytes).ok()
    });
    match plan.tools.installer() {
        Installer::Npm => read.take(1).collect(),
        _ => read.collect(),
    }
}

fn fetch(plan: &Plan, cancel: &Cancel) -> Result<StageOutcome> {
    super::fetch(plan, &locks_of(plan).iter().collect::<Vec<_>>(), cancel)
}

fn install(plan: &Plan, cancel: &Cancel) -> Result<StageOutcome> {
    let (outcome, supply) = super::install(plan, &locks_of(plan).iter().collect::<Vec<_>>(), cancel)?;
    GIVEN.with_borrow_mut(|given| given.insert(plan.tree.clone(), supply));
    Ok(outcome)
}

pub(super) fn bind(plan: &Plan, generation: &Generation, locks: &[Lockfile]) -> Result<InstallRecord> {
    let locks: Vec<&Lockfile> = locks.iter().collect();
    let supply = GIVEN.with_borrow(|given| given.get(&plan.tree).cloned().unwrap_or_default());
    record(plan, generation, &locks, &supply)
}
