//! The driver of `bench/certify`: installs a project in a fresh generation and binds what was installed to its lock, as a
//! certification does; prints how long each took, in milliseconds, one JSON object a line.
//!
//! `certify INSTALLER TREE PLACE ROUNDS [SELECTION…]` copies `TREE` below `PLACE`, which also keeps the store of artifacts.
//! `bind` and `look again` take turns with `floor`: every file read once and digested by one thread, and by two.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a bench is no product"
)]

use semel_core::digest::Hasher;
use semel_core::ids::{Generation, JobId};
use semel_core::install::{Entry, InstallRecord};
use semel_core::installer::{Installer, ProjectInstall};
use semel_core::lockset;
use semel_core::{RelPath, Sha256};
use semel_host::artifact::Store;
use semel_host::clock;
use semel_host::copy::copy_tree;
use semel_host::installer::{
    Hints, Isolation, Plan, Tools, environment, fetch, install, record, resolve, verify_again,
};
use semel_host::process::Cancel;
use semel_host::sandbox::{Require, default_bounds};
use semel_host::volume::{On, Volumes};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn took<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let since = Instant::now();
    let done = work();
    println!(
        "{{\"what\":\"{what}\",\"ms\":{:.2}}}",
        since.elapsed().as_secs_f64() * 1e3
    );
    done
}

fn lock_name(installer: Installer) -> &'static str {
    match installer {
        Installer::Uv => "uv.lock",
        Installer::Pip => "requirements.txt",
        Installer::Poetry => "poetry.lock",
        Installer::Npm => "package-lock.json",
        Installer::Pnpm => "pnpm-lock.yaml",
        Installer::Yarn => "yarn.lock",
        Installer::Cargo => "Cargo.lock",
    }
}

/// Reads and digests these files, as often as there are threads to share them.
fn floor(files: &[PathBuf], threads: usize) {
    let digest = |files: &[PathBuf]| {
        let mut buffer = vec![0_u8; 256 << 10];
        for path in files {
            let mut file = std::fs::File::open(path).unwrap();
            let mut sum = Hasher::new();
            loop {
                let n = file.read(&mut buffer).unwrap();
                if n == 0 {
                    break;
                }
                sum.update(&buffer[..n]);
            }
            std::hint::black_box(sum.finish());
        }
    };
    std::thread::scope(|scope| {
        for part in files.chunks(files.len().div_ceil(threads).max(1)) {
            scope.spawn(move || digest(part));
        }
    });
}

struct Bench {
    installer: Installer,
    source: PathBuf,
    place: PathBuf,
    volumes: Volumes,
    store: Store,
    tools: Tools,
    selection: Vec<String>,
}

fn main() {
    // What runs in the sandbox begins its life here.
    if let Some(status) = semel_host::sandbox::entered() {
        std::process::exit(status);
    }
    let mut args = std::env::args().skip(1);
    let mut next = || args.next().expect("INSTALLER TREE PLACE ROUNDS [SELECTION…]");
    let name = next();
    let installer = *Installer::ALL
        .iter()
        .find(|one| one.name() == name)
        .expect("an installer");
    let [source, place] = [next(), next()].map(|at| PathBuf::from(at).canonicalize().unwrap());
    let rounds: usize = next().parse().expect("ROUNDS");
    let hints = Hints {
        env: std::env::vars_os().collect(),
        ..Hints::default()
    };
    let bench = Bench {
        installer,
        volumes: Volumes::open(&place.join("state")).unwrap(),
        store: Store::open(&place.join("state/artifacts")).unwrap(),
        tools: resolve(installer, &hints, &source, &Cancel::new().unwrap()).unwrap(),
        source,
        place,
        selection: args.collect(),
    };
    // The first generation fills the store; the second one finds everything there.
    bench.turn("fill", 0);
    bench.turn("warm", rounds);
}

impl Bench {
    fn plan(&self, tree: PathBuf, home: PathBuf) -> Plan {
        Plan {
            tree,
            directory: RelPath::root(),
            home,
            tools: self.tools.clone(),
            artifacts: self.store.clone(),
            project: ProjectInstall::Skip,
            args: self.selection.clone(),
            network_env: std::env::vars_os()
                .filter(|(name, _)| is_network(name.as_bytes()))
                .collect(),
            deadline: Duration::from_secs(900),
            grace: Duration::from_secs(5),
            isolation: Isolation {
                hide: vec![self.place.clone()],
                read_only: Vec::new(),
                require: Require::BestEffort,
                bounds: default_bounds(),
            },
        }
    }

    fn turn(&self, name: &str, rounds: usize) {
        let (job, cancel) = (JobId::parse("bench").unwrap(), Cancel::new().unwrap());
        let generation = Generation::mint(clock::seed().unwrap());
        let since = Instant::now();
        let nonce = clock::random().unwrap();
        let (volume, _) = self
            .volumes
            .create_on(&job, &generation, nonce, &On::Dir)
            .unwrap();
        copy_tree(&self.source, volume.tree().handle()).unwrap();
        let home = volume.path().join("work");
        std::fs::create_dir_all(&home).unwrap();
        let plan = self.plan(volume.tree_path(), home);
        let opened = since.elapsed();
        let lock = took("parse", || {
            let lock = lock_name(self.installer);
            let bytes = std::fs::read(self.source.join(lock)).unwrap();
            lockset::parse(&RelPath::parse(lock.as_bytes()).unwrap(), &bytes).unwrap()
        });
        let since = Instant::now();
        fetch(&plan, &[&lock], &cancel).unwrap();
        let fetched = since.elapsed();
        let (outcome, supply) = install(&plan, &[&lock], &cancel).unwrap();
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        println!(
            "{{\"what\":\"{name}: generation, fetch, install\",\"ms\":{:.2},\"generation_ms\":{:.2},\"fetch_ms\":{:.2},\"installer_ms\":{:.2}}}",
            ms(opened + since.elapsed()),
            ms(opened),
            ms(fetched),
            ms(outcome.took)
        );
        if rounds > 0 {
            let bind = || record(&plan, &generation, &[&lock], &supply).unwrap();
            rounds_of(rounds, &plan, &generation, &bind);
        }
        self.volumes.destroy(&job, &generation).unwrap();
    }
}

fn rounds_of(rounds: usize, plan: &Plan, generation: &Generation, bind: &dyn Fn() -> InstallRecord) {
    let made = bind();
    let below = environment(plan);
    let inner = made.roots[0].place.as_bytes().len() + 1;
    let mut bytes = 0;
    let mut files = Vec::new();
    for (path, entry) in &made.entries {
        if let Entry::File { size, .. } = entry {
            bytes += size;
            files.push(below.join(std::ffi::OsStr::from_bytes(&path.as_bytes()[inner..])));
        }
    }
    println!(
        "{{\"packages\":{},\"files\":{},\"bytes\":{bytes},\"place\":\"{}\"}}",
        made.packages.len(),
        files.len(),
        Path::display(&below)
    );
    for _ in 0..rounds {
        took("floor", || floor(&files, 1));
        took("bind", bind);
        took("floor, two threads", || floor(&files, 2));
        took("look again", || verify_again(plan, &made, generation).unwrap());
        took("encode the record", || Sha256::of(&made.encode().unwrap()));
    }
}

fn is_network(name: &[u8]) -> bool {
    let name = name.to_ascii_uppercase();
    [
        &b"HTTPS_PROXY"[..],
        b"SSL_CERT_FILE",
        b"SSL_CERT_DIR",
        b"NODE_EXTRA_CA_CERTS",
        b"PIP_INDEX_URL",
        b"UV_DEFAULT_INDEX",
        b"PIP_CERT",
    ]
    .contains(&name.as_slice())
}
