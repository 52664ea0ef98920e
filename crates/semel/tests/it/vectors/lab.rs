//! A repository whose installers lie, and processes that write where they should not.

use super::Seen;
use crate::cases::lab::{Lab, answer, on_path};
use crate::harness::{Spoken, executable, said, wait_until};
use serde_json::Value;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

/// What every damage to an environment of Python may use.
pub(crate) const PRELUDE: &str = r#"
import base64, hashlib, os, pathlib, shutil, sys
from importlib import _bootstrap_external as boot
V = pathlib.Path(".venv").resolve()
S = next(V.glob("lib/python3*/site-packages"))
L = S / "leaf/__init__.py"
I = S / "leaf-1.0.dist-info"
def row(path):
    data = path.read_bytes()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{os.path.relpath(path, S)},sha256={digest},{len(data)}"
def fix(info, *more):
    """Writes a RECORD that is right again, with more files in it."""
    names = [r.split(",")[0] for r in (info / "RECORD").read_text().splitlines()]
    files = [S / n for n in names if not n.endswith("/RECORD") and (S / n).is_file()]
    (info / "RECORD").write_text("\n".join([row(f) for f in [*files, *more]] + [f"{info.name}/RECORD,,"]) + "\n")
def dist(name, version, files):
    info = S / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for at, text in files.items():
        (S / at).parent.mkdir(exist_ok=True)
        (S / at).write_text(text)
    (info / "RECORD").write_text("")
    fix(info, info / "METADATA", *[S / at for at in files])
"#;

/// A repository, and a directory of programs that come before the real ones.
pub(crate) struct Liar {
    pub(crate) lab: Lab,
    bin: PathBuf,
}

impl Liar {
    pub(crate) fn new(lab: Lab) -> Self {
        let bin = lab.site.at("bin");
        std::fs::create_dir(&bin).unwrap();
        Self { lab, bin }
    }

    /// Puts a uv in front that does what the real one does, and then runs Python code in the tree.
    ///
    /// It holds the real one: a sandbox shows nothing beside it.
    pub(crate) fn uv(&self, code: &str) {
        let quoted = format!("{PRELUDE}{code}").replace('\'', r"'\''");
        self.uv_at(
            " pip sync ",
            &format!(".venv/bin/python -I -B -c '{quoted}' || exit 98"),
        );
    }

    /// As [`Liar::uv`], with lines of shell, where the arguments hold a text.
    pub(crate) fn uv_at(&self, when: &str, shell: &str) {
        let script = |offset: usize| {
            format!(
                "#!/bin/sh\nreal=\"${{TMPDIR:-/tmp}}/real-uv-$$\"\ntail -c +{offset:08} \"$0\" > \"$real\" && chmod +x \"$real\" || exit 99\n\
                 \"$real\" \"$@\"\nrc=$?\nrm -f \"$real\"\n[ $rc = 0 ] || exit $rc\n\
                 case \"$*\" in\n*'{when}'*) {shell};;\nesac\nexit 0\n"
            )
        };
        let mut all = script(script(0).len() + 1).into_bytes();
        all.extend(std::fs::read(self.lab.uv.as_ref().unwrap()).unwrap());
        self.put("uv", &all);
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        let place = self.bin.join(name);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        drop(std::fs::remove_file(&place));
        // By another process: what a child of another test holds open for writing cannot be run.
        let mut writer = Command::new("/bin/sh")
            .args(["-c", "cat >\"$1\" && chmod 755 \"$1\"", "sh"])
            .arg(&place)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        writer.stdin.take().unwrap().write_all(bytes).unwrap();
        assert!(writer.wait().unwrap().success());
    }

    /// Puts an npm in front that does what the real one does, and then runs JavaScript in the tree.
    pub(super) fn npm(&self, code: &str) {
        let real = on_path("npm").unwrap().canonicalize().unwrap();
        let script = format!(
            "const {{ spawnSync }} = require('child_process'), fs = require('fs');\n\
             const r = spawnSync(process.execPath, [{:?}, ...process.argv.slice(2)], {{ stdio: 'inherit' }});\n\
             if (r.status === 0 && process.argv[2] === 'ci') {{\n{code}\n}}\nprocess.exit(r.status ?? 1);\n",
            real.to_str().unwrap()
        );
        self.put("npm/bin/npm-cli.js", script.as_bytes());
        let front = self.bin.join("front");
        std::fs::create_dir_all(&front).unwrap();
        drop(std::fs::remove_file(front.join("npm")));
        std::os::unix::fs::symlink(self.bin.join("npm/bin/npm-cli.js"), front.join("npm")).unwrap();
    }

    /// Puts a cargo in front that does what the real one does, and then runs shell lines when it is asked for metadata.
    pub(super) fn cargo(&self, code: &str) {
        let real = real_cargo();
        let script = format!(
            "#!/bin/sh\n'{}' \"$@\" || exit $?\ncase \"$1\" in\nmetadata) {code} ;;\nesac\nexit 0\n",
            real.display()
        );
        executable(&self.bin.join("cargo"), &script);
        let rustc = self.bin.join("rustc");
        if !rustc.exists() {
            std::os::unix::fs::symlink(real.with_file_name("rustc"), rustc).unwrap();
        }
    }

    /// Takes the lies away.
    pub(crate) fn honest(&self) {
        std::fs::remove_dir_all(&self.bin).unwrap();
        std::fs::create_dir(&self.bin).unwrap();
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.lab.command(args);
        let path = command
            .get_envs()
            .find(|(name, _)| *name == "PATH")
            .unwrap()
            .1
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        let bin = self.bin.display();
        command.env("PATH", format!("{bin}:{bin}/front:{path}"));
        command
    }

    fn args<'a>(&self, commit: &'a str, installer: &'a str, test: &'a str) -> Vec<&'a str> {
        [
            "certify",
            "--job",
            "case",
            "--repository",
            "repo",
            "--git",
            commit,
            "--install",
            installer,
            "--test",
            test,
        ]
        .to_vec()
    }

    /// Certifies a commit of what is there.
    pub(crate) fn certify(&self, installer: &str, test: &str) -> Output {
        let commit = self.lab.site.commit_all("proposal");
        self.command(&self.args(&commit, installer, test))
            .output()
            .unwrap()
    }

    /// Certifies a commit of what is there against the first commit, whose own files none of it are.
    pub(super) fn against_base(&self, installer: &str, test: &str) -> Output {
        let commit = self.lab.site.commit_all("proposal");
        let mut args = self.args(&commit, installer, test);
        args.extend(["--base", &self.lab.site.base]);
        self.command(&args).output().unwrap()
    }

    pub(super) fn seen(&self, installer: &str, test: &str) -> Seen {
        Seen::of(&self.certify(installer, test))
    }

    /// Certifies with a test command that waits, and does something else meanwhile, from outside of every sandbox, to the
    /// tree of the generation.
    pub(crate) fn meanwhile(&self, installer: &str, test: &str, act: impl FnOnce(&Path)) -> Output {
        let commit = self.lab.site.commit_all("proposal");
        let mut command = self.command(&self.args(&commit, installer, test));
        let child = command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let spoken = Spoken::of(child);
        if !spoken.hears("record   ") {
            return spoken.output();
        }
        let newest = self.newest();
        let begun = || find(&newest, "begun").is_some();
        assert!(
            wait_until(Duration::from_secs(60), begun),
            "the tests do not begin"
        );
        act(&newest.join("vol/tree"));
        let begun = find(&newest, "begun").unwrap();
        std::fs::write(begun.with_file_name("go"), "").unwrap();
        spoken.output()
    }

    /// The generation that was opened last.
    pub(crate) fn newest(&self) -> PathBuf {
        let jobs = self.lab.site.home.state().join("volumes/case");
        let all = std::fs::read_dir(jobs)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        all.filter(|place| place.join("vol").is_dir())
            .max_by_key(|place| place.file_name().unwrap().to_owned())
            .unwrap()
    }
}

/// Finds a file of a name in what belongs to a generation, but for its tree.
fn find(generation: &Path, name: &str) -> Option<PathBuf> {
    let mut open = vec![generation.to_path_buf()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.file_name().is_some_and(|n| n == name) {
                return Some(path);
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && !path.ends_with("tree") {
                open.push(path);
            }
        }
    }
    None
}

/// A test that begins, waits until it is told to go on, and then runs the lines.
pub(crate) fn waiting(lines: &str) -> String {
    format!(
        "import os, pathlib, sys, time\nhome = pathlib.Path(os.environ['HOME'])\n(home / 'begun').write_text('')\n\
         while not (home / 'go').exists():\n    time.sleep(0.02)\n{lines}\n\
         pathlib.Path(sys.argv[1]).write_text(\"<testsuite><testcase name='a'/></testsuite>\")\n"
    )
}

pub(super) fn real_cargo() -> PathBuf {
    let out = Command::new("rustup").args(["which", "cargo"]).output();
    match out {
        Ok(out) if out.status.success() => PathBuf::from(String::from_utf8(out.stdout).unwrap().trim()),
        _ => PathBuf::from(env!("CARGO")).canonicalize().unwrap(),
    }
}

/// Gives the statement of what was certified.
#[track_caller]
pub(crate) fn certified(out: &Output) -> Value {
    assert!(out.status.success(), "{}", said(out));
    answer(out)
}
