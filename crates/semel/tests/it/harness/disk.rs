//! A workspace that somebody else manages, for `semel contract`.

use super::{bare, is_root, said, skipped};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(crate) const STATE: &str = ".workspace_contract.json";

/// A workspace with one lockfile, beside a home of its own.
pub(crate) struct Disk {
    pub(crate) dir: tempfile::TempDir,
}

impl Disk {
    pub(crate) fn new() -> Self {
        let disk = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        for place in ["disk", "home"] {
            std::fs::create_dir(disk.dir.path().join(place)).unwrap();
        }
        disk.write("requirements.txt", "idna==3.10\n");
        disk
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let place = self.at(name);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::fs::write(place, text).unwrap();
    }

    /// The command with the contract's variables; an empty one is set to nothing, `-` is not set.
    pub(crate) fn command(&self, args: &[&str], generation: &str, attempt: &str) -> Command {
        let mut command = bare(&[&["contract"], args].concat());
        command.env("HOME", self.dir.path().join("home"));
        command.env("WORKSPACE", self.path());
        for (name, value) in [("VOLUME_GENERATION", generation), ("JOB_ATTEMPT", attempt)] {
            if value != "-" {
                command.env(name, value);
            }
        }
        command
    }

    pub(crate) fn run(&self, args: &[&str], generation: &str, attempt: &str) -> Output {
        self.command(args, generation, attempt).output().unwrap()
    }

    pub(crate) fn check(&self, generation: &str, attempt: &str) -> i32 {
        let out = self.run(&["check"], generation, attempt);
        let code = out.status.code().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!(code == 0, text.contains("\"status\":\"clean\""), "{}", said(&out));
        assert_eq!(
            code == 0,
            out.stderr.is_empty() || text.contains("warnings"),
            "{}",
            said(&out)
        );
        code
    }

    pub(crate) fn dirty(&self) -> bool {
        self.at(".volume_dirty").symlink_metadata().is_ok()
    }

    /// Everything that a refusal must leave: each entry with its content and times.
    pub(crate) fn picture(&self) -> Vec<(PathBuf, Vec<u8>, i64, i64, u32)> {
        let mut all = Vec::new();
        let mut open = vec![self.path()];
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let place = entry.unwrap().path();
                let facts = place.symlink_metadata().unwrap();
                if facts.is_dir() {
                    open.push(place.clone());
                }
                let content = std::fs::read(&place).unwrap_or_default();
                all.push((place, content, facts.mtime(), facts.mtime_nsec(), facts.mode()));
            }
        }
        all.sort();
        all
    }

    pub(crate) fn refused(&self, args: &[&str], generation: &str, attempt: &str, code: i32) -> Output {
        let before = self.picture();
        let out = self.run(args, generation, attempt);
        assert_eq!(out.status.code(), Some(code), "{args:?} {}", said(&out));
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(text.starts_with("error: ") && text.lines().count() == 3, "{text}");
        assert_eq!(self.picture(), before, "a refusal leaves everything as it was");
        out
    }
}

/// As another user, since root reads everything.
pub(crate) struct Nobody {
    binary: PathBuf,
}

impl Nobody {
    pub(crate) fn new(disk: &Disk) -> Option<Self> {
        if !is_root() {
            skipped("only root can become another user");
            return None;
        }
        let binary = disk.dir.path().join("semel");
        // Copied by another process: a child that another test forks meanwhile would keep it open for writing.
        let mut copy = Command::new("/bin/cp");
        copy.arg(env!("CARGO_BIN_EXE_semel")).arg(&binary);
        assert!(copy.status().unwrap().success());
        for place in [
            disk.dir.path().to_owned(),
            disk.path(),
            disk.dir.path().join("home"),
        ] {
            mode(&place, 0o755);
            std::os::unix::fs::chown(&place, Some(65534), Some(65534)).unwrap();
        }
        let nobody = Self { binary };
        let tried = nobody.command(disk, &["--help"]).output();
        if tried.is_ok_and(|out| out.status.success()) {
            return Some(nobody);
        }
        skipped("setpriv cannot become another user here");
        None
    }

    pub(crate) fn command(&self, disk: &Disk, args: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&self.binary)
            .arg("contract")
            .args(args)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", disk.dir.path().join("home"))
            .env("WORKSPACE", disk.path())
            .env("VOLUME_GENERATION", "g-1")
            .env("JOB_ATTEMPT", "1");
        command
    }

    pub(crate) fn code(&self, disk: &Disk, args: &[&str]) -> i32 {
        let out = self.command(disk, args).output().unwrap();
        if !out.status.success() {
            eprintln!("{}", said(&out));
        }
        out.status.code().unwrap()
    }
}

pub(crate) fn mode(place: &Path, mode: u32) {
    std::fs::set_permissions(place, std::fs::Permissions::from_mode(mode)).unwrap();
}

pub(crate) fn listed(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
