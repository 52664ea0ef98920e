//! A hostile agent, as root's and as anybody's: what it edits has no effect, or is refused by name; and hostile tests, which
//! would use up the machine or change what they are tests of.

use crate::harness::{RUN, Site, is_root, said, skipped, statement, text};
use serde_json::{Value, json};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
const NOBODY: u32 = 65534;

/// Who runs Semel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum As {
    /// Whoever runs the tests.
    Tester,
    /// A user without any privilege.
    Nobody,
}

/// A site with a home of a person's own, in which toolchains keep what an agent would like to change.
struct Lair {
    site: Site,
    who: As,
}

impl Lair {
    fn all() -> Vec<Self> {
        let mut all = vec![Self::of(As::Tester)];
        if is_root() {
            all.push(Self::of(As::Nobody));
        } else {
            skipped("only root can become another user");
        }
        all
    }

    fn of(who: As) -> Self {
        let site = Site::new();
        let lair = Self { site, who };
        for (name, content) in [
            ("home/.cargo/bin/cargo", "#!/bin/sh\n"),
            ("home/.cargo/config.toml", "# theirs\n"),
            ("home/.cache/uv/archive-v0/x/module.py", "VALUE = 1\n"),
            ("home/.ssh/id_ed25519", "a key\n"),
        ] {
            let place = lair.site.at(name);
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(place, content).unwrap();
        }
        lair
    }

    /// Gives every file to whoever runs Semel.
    fn hand_over(&self) {
        if self.who == As::Nobody {
            owned_by(self.site.home.path(), NOBODY);
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = match self.who {
            As::Tester => self.site.command(args),
            As::Nobody => {
                let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
                let mut command = self.site.home.command_under("setpriv", &user, args);
                command.current_dir(self.site.home.path());
                command
            }
        };
        command.env("PATH", PATH).env("HOME", self.site.at("home"));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.hand_over();
        let out = self.command(&[args, &["--json"]].concat()).output().unwrap();
        if self.who == As::Nobody {
            // For the next commit of the test's own.
            owned_by(&self.site.repository(), 0);
        }
        out
    }

    fn certified(&self) -> Value {
        let out = self.run(RUN);
        assert!(out.status.success(), "{:?}: {}", self.who, said(&out));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    fn refused(&self, code: i32) -> Value {
        let out = self.run(RUN);
        assert_eq!(out.status.code(), Some(code), "{:?}: {}", self.who, said(&out));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    /// What the agent of the last draft printed.
    fn agent_said(&self) -> String {
        let jobs = self.site.home.state().join("volumes/small");
        let all = std::fs::read_dir(jobs)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let said = all.filter_map(|volume| std::fs::read_to_string(volume.join("work/stdout")).ok());
        said.collect()
    }

    /// A job that installs nothing, so that the system's own programs are enough.
    fn job(&self, changes: &str) {
        let small = "install = [\"cargo\"] => install = []\n";
        self.site.job(&format!("{small}{changes}"));
    }

    /// Runs an agent that tries to change things, and does its work; gives what came of each.
    fn attacked(&self, targets: &[PathBuf]) -> Vec<String> {
        self.job("");
        let before: Vec<Vec<u8>> = targets.iter().map(|place| picture(place)).collect();
        let list: Vec<String> = targets.iter().map(|place| place.display().to_string()).collect();
        self.site.agent(&format!(
            "import os, sys\nfrom semel_client import read, write\n{ATTACK}\nfor place in {list:?}: attack(place)\n\
             data, digest = read('src/lib.rs')\nwrite('src/lib.rs', data + b'//test more holds\\n', digest, 'more')\n"
        ));
        let certified = self.certified();
        assert_eq!(certified["status"], "certified");
        let after: Vec<Vec<u8>> = targets.iter().map(|place| picture(place)).collect();
        assert_eq!(before, after, "{:?}: {list:?}", self.who);
        let said = self.agent_said();
        said.lines().map(str::to_owned).collect()
    }
}

fn owned_by(place: &Path, uid: u32) {
    let mut open = vec![place.to_owned()];
    while let Some(place) = open.pop() {
        std::os::unix::fs::lchown(&place, Some(uid), Some(uid)).unwrap();
        if place.symlink_metadata().unwrap().is_dir() {
            open.extend(
                std::fs::read_dir(&place)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
}

/// Content, and everything that a change would change.
fn picture(place: &Path) -> Vec<u8> {
    let Ok(facts) = place.symlink_metadata() else {
        return b"absent".to_vec();
    };
    let content = std::fs::read(place).unwrap_or_default();
    let told = format!(
        "{:o} {} {} {}",
        facts.mode(),
        facts.mtime(),
        facts.len(),
        facts.ino()
    );
    [told.into_bytes(), content].concat()
}

/// Every way in which a file is changed; says of each whether it was.
const ATTACK: &str = include_str!("hostile/attack.py");

fn none_changed(lair: &Lair, said: &[String]) {
    assert!(said.iter().any(|line| line.starts_with("refused")), "{said:?}");
    // In a /tmp of its own it may make what it likes; that nothing is changed outside was looked at.
    let private = std::env::temp_dir();
    let outside = |line: &&String| !line.contains(private.to_str().unwrap());
    let changed = said
        .iter()
        .filter(|line| line.starts_with("CHANGED"))
        .filter(outside);
    let changed: Vec<&String> = changed.collect();
    assert!(changed.is_empty(), "{:?}: {changed:?}", lair.who);
}

#[test]
fn an_interpreters_own_library_is_not_changed() {
    let asked = Command::new("/usr/bin/python3")
        .args([
            "-I",
            "-c",
            "import os, json; print(os.__file__); print(json.__file__)",
        ])
        .output();
    let Ok(asked) = asked else {
        return skipped("no python3 of the system");
    };
    let places = String::from_utf8(asked.stdout).unwrap();
    let mut targets: Vec<PathBuf> = places.lines().map(PathBuf::from).collect();
    targets.push(targets[0].with_file_name("sitecustomize_of_the_agent.py"));
    targets.push("/usr/bin/python3".into());
    for lair in Lair::all() {
        none_changed(&lair, &lair.attacked(&targets));
    }
}

#[test]
fn a_persons_cargo_home_is_not_changed() {
    for lair in Lair::all() {
        let targets = [
            ".cargo/bin/cargo",
            ".cargo/config.toml",
            ".cargo/env",
            ".ssh/id_ed25519",
        ];
        let targets = targets.map(|name| lair.site.at("home").join(name));
        let said = lair.attacked(&targets);
        none_changed(&lair, &said);
    }
}

#[test]
fn uvs_cache_is_not_changed() {
    for lair in Lair::all() {
        let targets = [
            lair.site.at("home/.cache/uv/archive-v0/x/module.py"),
            lair.site.at("home/.cache/uv/new"),
        ];
        let said = lair.attacked(&targets);
        none_changed(&lair, &said);
    }
}

#[test]
fn the_job_file_is_not_changed() {
    for lair in Lair::all() {
        // Written again by `attacked`, to the same bytes, before its picture is taken.
        lair.job("");
        let job = std::fs::read(lair.site.at("job.toml")).unwrap();
        let places = ["config.toml", "semel_client.py", "job.toml.new"].map(|name| lair.site.at(name));
        let job_itself = [lair.site.at("job.toml")];
        let said = lair.attacked(&[&places[..], &job_itself[..]].concat());
        none_changed(&lair, &said);
        assert_eq!(std::fs::read(lair.site.at("job.toml")).unwrap(), job);
    }
}

/// A job file where an agent could write it is refused before anything runs.
#[test]
fn a_job_file_within_reach_is_refused_by_name() {
    for lair in Lair::all() {
        lair.job("");
        let inside = lair.site.home.state().join("volumes/job.toml");
        std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
        std::fs::set_permissions(lair.site.home.state(), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::copy(lair.site.at("job.toml"), &inside).unwrap();
        let out = lair.run(&["run", inside.to_str().unwrap()]);
        let refusal: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(refusal["code"], "bad_config", "{refusal}");
        assert!(refusal["names"].to_string().contains("job.toml"), "{refusal}");
        assert_eq!(lair.site.passes(), 0);
    }
}

/// It may move what it likes in its own draft: a base is an object's id, and the repository is another one.
#[test]
fn a_base_branch_is_not_moved() {
    for lair in Lair::all() {
        let repository = lair.site.repository();
        let places = [
            ".git/refs/heads/main",
            ".git/HEAD",
            ".git/config",
            ".git/hooks/post-checkout",
            ".git/packed-refs",
        ];
        let said = lair.attacked(&places.map(|name| repository.join(name)));
        none_changed(&lair, &said);
        lair.site.agent(
            "import subprocess\nfrom semel_client import read, write\n\
             g = lambda *a: subprocess.run(['git', '-c', 'user.name=x', '-c', 'user.email=x@x', *a], check=True, stdout=2)\n\
             open('src/lib.rs', 'a').write('//test stealth holds\\n')\n\
             g('commit', '-qam', 'moved')\ng('branch', '-f', 'main')\ng('update-ref', 'refs/heads/main', 'HEAD')\ng('checkout', '-q', '-B', 'main')\n",
        );
        lair.job("timeout = \"60s\" => tools = [\"git\"]");
        let certified = lair.certified();
        assert_eq!(lair.site.git(&["rev-parse", "main"]), lair.site.base);
        let statement = statement(text(&certified["envelope"]).as_ref());
        // What it did is in the proposal, against the base that the job names.
        assert_eq!(lair.site.git(&["rev-parse", "semel/small^"]), lair.site.base);
        assert_eq!(
            statement["predicate"]["report"]["counts"]["passed"], 2,
            "{statement}"
        );
    }
}

/// A toolchain that lies where jobs write is refused by its path.
#[test]
fn a_toolchain_within_reach_of_the_job_is_refused_by_name() {
    for lair in Lair::all() {
        lair.site.job("");
        let state = lair.site.home.state();
        let within = state.join("volumes/other/tools");
        std::fs::create_dir_all(&within).unwrap();
        std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o700)).unwrap();
        for name in ["cargo", "rustc"] {
            let script = format!(
                "#!/bin/sh\ncase $1 in --print) echo {}; ;; *) echo {name} 1.0.0 ;; esac\n",
                within.display()
            );
            std::fs::write(within.join(name), script).unwrap();
            std::fs::set_permissions(within.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        lair.site
            .agent("from semel_client import read\nread('src/lib.rs')\n");
        lair.hand_over();
        let path = format!("{}:{PATH}", within.display());
        let out = lair
            .command(&["run", "job.toml", "--json"])
            .env("PATH", path)
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(27), "{:?}: {}", lair.who, said(&out));
        let refusal: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(
            (text(&refusal["code"]), text(&refusal["reason"])),
            ("evidence_foreign", "toolchain_writable")
        );
        assert!(
            refusal["names"].to_string().contains(within.to_str().unwrap()),
            "{refusal}"
        );
        assert_eq!(lair.site.passes(), 0);
    }
}

/// Writes the body of the tests: it runs before the report is made, and prints what it likes.
fn tests(lair: &Lair, body: &str) {
    let runner = "import pathlib, sys\nBODY\n\
        pathlib.Path(sys.argv[1]).write_text(\"<testsuite><testcase name='a'/></testsuite>\")\n";
    std::fs::write(
        lair.site.repository().join("check.py"),
        runner.replace("BODY", body),
    )
    .unwrap();
    let base = lair.site.commit_all("tests");
    lair.site
        .agent("from semel_client import read\nread('src/lib.rs')\n");
    lair.job("");
    let job = std::fs::read_to_string(lair.site.at("job.toml")).unwrap();
    std::fs::write(lair.site.at("job.toml"), job.replace(&lair.site.base, &base)).unwrap();
}

fn limited(lair: &Lair, limits: &str) {
    let job = std::fs::read_to_string(lair.site.at("job.toml")).unwrap();
    std::fs::write(
        lair.site.at("job.toml"),
        job.replace("[agent]", &format!("[limits]\n{limits}\n[agent]")),
    )
    .unwrap();
}

#[test]
fn tests_that_use_up_the_machine_end_by_name_and_leave_a_dirty_volume() {
    let bomb = "import os, time\nwhile True:\n    try:\n        if os.fork() == 0: time.sleep(1000)\n    except OSError: pass";
    let hog =
        "import time\nheld = []\nwhile True: held.append(bytearray(b'x') * (1 << 20)); time.sleep(0.002)";
    let file = "import os\nwith open(os.environ['TMPDIR'] + '/f', 'wb') as f:\n    while True: f.write(b'x' * (1 << 16))";
    for lair in Lair::all() {
        for (body, limits, reason) in [
            (bomb, "processes = 200", "processes"),
            (hog, "memory_bytes = 150000000", "memory"),
            (file, "file_bytes = 3000000", "file_size"),
        ] {
            tests(&lair, body);
            limited(&lair, limits);
            let refusal = lair.refused(79);
            assert_eq!(
                (text(&refusal["code"]), text(&refusal["reason"])),
                ("quota_exceeded", reason),
                "{refusal}"
            );
            let volumes = lair.run(&["volume", "list", "--all"]);
            let volumes: Value = serde_json::from_slice(&volumes.stdout).unwrap();
            let last = volumes["volumes"]
                .as_array()
                .unwrap()
                .iter()
                .rfind(|volume| volume["role"] == "cert");
            assert_eq!(last.unwrap()["dirty"], "certification_refused", "{volumes}");
        }
        assert_eq!(lair.site.passes(), 0);
        // The machine goes on, and so does the job.
        tests(&lair, "pass");
        limited(&lair, "processes = 200\nmemory_bytes = 500000000");
        let certified = lair.certified();
        let statement = statement(text(&certified["envelope"]).as_ref());
        let confinement = &statement["predicate"]["confinement"];
        assert_eq!(confinement["bounds"]["processes"], 200, "{confinement}");
        let user = match lair.who {
            As::Tester if is_root() => "own",
            As::Tester | As::Nobody => "caller",
        };
        if confinement["confinement"] == "full" {
            assert_eq!(confinement["user"], user, "{confinement}");
        }
    }
}

/// The agent's own greed ends its draft by the same names.
#[test]
fn an_agent_that_uses_up_the_machine_ends_by_name() {
    for lair in Lair::all() {
        lair.site.agent("import time\nheld = []\nwhile True: held.append(bytearray(b'x') * (1 << 20)); time.sleep(0.002)\n");
        lair.job("");
        limited(&lair, "memory_bytes = 150000000");
        let refusal = lair.refused(79);
        assert_eq!(refusal["reason"], "memory", "{refusal}");
        assert_eq!(lair.site.passes(), 0);
    }
}

/// What tests may not change, they do not, whichever way they try.
#[test]
fn tests_change_neither_source_nor_what_is_outside() {
    let body = include_str!("hostile/walls.py");
    for lair in Lair::all() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = lair.site.home.state();
        let secrets = ["keys/signing.pem", "keys/log.pem", "journal.db", "operator.token"]
            .map(|name| state.join(name).display().to_string());
        let body = body
            .replace("PORT", &port.to_string())
            .replace("SECRETS", &format!("{secrets:?}"));
        tests(&lair, &body);
        let job = std::fs::read_to_string(lair.site.at("job.toml")).unwrap();
        std::fs::write(
            lair.site.at("job.toml"),
            job.replace("[certify]", "[certify]\ncaches = [\"cache\"]"),
        )
        .unwrap();
        let probe: Value = serde_json::from_slice(&lair.run(&["doctor"]).stdout).unwrap();
        let found = probe["findings"]
            .as_array()
            .unwrap()
            .iter()
            .find(|f| f["name"] == "confinement")
            .unwrap();
        if found["grade"] != json!("ok") {
            skipped(&format!("{:?}: no whole sandbox here: {found}", lair.who));
            continue;
        }
        let out = lair.run(RUN);
        let reports = state.join("reports");
        let said_by_tests: String = std::fs::read_dir(&reports)
            .into_iter()
            .flatten()
            .filter_map(|entry| std::fs::read_to_string(entry.unwrap().path().join("stderr")).ok())
            .collect();
        assert!(
            out.status.success(),
            "{:?}: {}\n{said_by_tests}",
            lair.who,
            said(&out)
        );
    }
}

/// A tool that asks git about the tree is answered, by a repository that it cannot write.
#[test]
fn a_tree_leads_to_a_repository_of_one_commit_where_the_job_wants_it() {
    let body = r#"
import os, subprocess
def git(*args): return subprocess.run(["git", *args], check=True, stdout=subprocess.PIPE, text=True).stdout
assert git("status", "--porcelain", "--ignored") == "", git("status", "--porcelain", "--ignored")
assert git("rev-list", "--count", "HEAD") == "1\n"
assert git("rev-parse", "--show-toplevel").strip() == os.getcwd()
assert "check.py" in git("ls-files").split()
for line in [["commit", "--allow-empty", "-m", "x"], ["tag", "v1"], ["config", "user.name", "x"], ["update-ref", "refs/heads/main", "HEAD~0^{tree}"]]:
    assert subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@x", *line], stderr=subprocess.DEVNULL).returncode != 0, line
try:
    open(".git", "w"); raise SystemExit("written")
except OSError as e:
    assert e.errno == 30, e
"#;
    for lair in Lair::all() {
        tests(&lair, body);
        let job = std::fs::read_to_string(lair.site.at("job.toml")).unwrap();
        assert_eq!(
            lair.refused(23)["code"],
            "tests_failed",
            "without it there is none"
        );
        let with = job.replace("[certify]", "[certify]\ngit = \"one_commit\"");
        std::fs::write(lair.site.at("job.toml"), with).unwrap();
        let certified = lair.certified();
        let statement = statement(text(&certified["envelope"]).as_ref());
        assert_eq!(statement["predicate"]["weak"], json!([]), "{statement}");
    }
}
