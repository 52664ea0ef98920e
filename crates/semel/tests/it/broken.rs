//! What a hostile pair of eyes found: one test a kind of trouble, each on the real binary.

use crate::harness::{Home, Site, Volume, said};
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

const RUN: &[&str] = &["run", "job.toml"];

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn only_file(dir: &Path, extension: &str) -> std::path::PathBuf {
    let mut found: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().unwrap().ends_with(extension))
        .collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.pop().unwrap()
}

/// A run that was killed after its seal takes no certificate that somebody made by hand meanwhile: that one may have
/// had any recipe.
#[test]
fn a_run_takes_only_its_own_certificate() {
    let site = Site::new();
    let out = site.run(&["run", "job.toml", "--crash-at", "sealed"]);
    assert_eq!(out.status.signal(), Some(libc::SIGKILL), "{}", said(&out));
    let archive = only_file(&site.home.state().join("proposals/sha256"), ".tar");
    let proposal = archive.file_stem().unwrap().to_str().unwrap().to_owned();
    let forged =
        "python3 -c open('{report}','w').write('<testsuite><testcase\\u0020name=\"x\"/></testsuite>')";
    let by_hand = site.json(&[
        "certify",
        "--job",
        "small",
        "--proposal",
        &proposal,
        "--install",
        "cargo",
        "--test",
        forged,
        "--repository",
        "repo",
        "--base",
        &site.base,
    ]);
    let done = site.json(RUN);
    assert_ne!(done["generation"], by_hand["generation"]);
    let statement = crate::harness::statement(text(&done["envelope"]).as_ref());
    assert_eq!(
        statement["predicate"]["recipe"], done["recipe"],
        "the job's own recipe was run"
    );
    assert_eq!(statement["predicate"]["report"]["counts"]["passed"], 2);
    site.at_rest();
}

/// `semel run` shows the certificate that was recorded, whatever became of its file.
#[test]
fn a_certificate_that_was_altered_is_made_again() {
    let site = Site::new();
    let first = site.json(RUN);
    let envelope = Path::new(text(&first["envelope"]));
    let good = std::fs::read(envelope).unwrap();
    for bad in [&good[..good.len() / 2], b"", b"{}"] {
        std::fs::write(envelope, bad).unwrap();
        assert_eq!(site.json(RUN), first);
        assert!(std::fs::read(envelope).unwrap() == good);
    }
    for other in ["sigstore_bundle", "ssh_signature"] {
        std::fs::remove_file(text(&first[other])).unwrap();
        assert_eq!(site.json(RUN), first);
        assert!(Path::new(text(&first[other])).is_file(), "{other}");
    }
}

/// The operator's file may hold the credentials of an index; no agent and no test sees it, wherever it lies.
#[test]
fn no_sandbox_shows_the_operators_file() {
    let site = Site::new();
    // `/opt` is shown to every sandbox; where it cannot be written, another place is as good as hidden.
    let Ok(place) = tempfile::tempdir_in("/opt") else {
        crate::harness::skipped("/opt cannot be written");
        return;
    };
    let file = place.path().join("config.toml");
    std::fs::write(&file, "[fetch.env]\nINDEX_PASSWORD = \"hunter22\"\n").unwrap();
    std::fs::write(place.path().join("beside"), "seen").unwrap();
    site.agent(&format!(
        "import os\nassert open('{0}/beside').read() == 'seen'\nassert 'hunter22' not in open('{0}/config.toml').read()\n\
         assert not os.path.exists('/etc/semel') or not os.listdir('/etc/semel')\n",
        place.path().display()
    ));
    let out = site.run(&["run", "job.toml", "--config", file.to_str().unwrap()]);
    assert!(out.status.success(), "{}", said(&out));
    site.at_rest();
}

/// A policy that a worktree of the candidate holds, and how the repository is named.
const ELSEWHERE: &[(&str, &str)] = &[
    ("repo/.semel/gate.toml", "repo/.git"),
    ("repo/.semel/gate.toml", "bare.git"),
    ("repo/.semel/gate.toml", "linked"),
    ("linked/p.toml", "repo"),
    ("linked/p.toml", "repo/.git"),
    ("of-bare/p.toml", "bare.git"),
    ("of-bare/p.toml", "repo"),
    ("clone/p.toml", "repo"),
    ("two.toml", "repo"),
];

/// The policy is never a file of the tree under test, by whatever name it is reached.
#[test]
fn the_gate_takes_no_policy_from_the_worktree_of_the_candidate() {
    let site = Site::new();
    let done = site.json(RUN);
    let commit = site.git(&["rev-parse", "semel/small"]);
    let policy = site.run(&["key", "show", "--policy"]).stdout;
    let gate = |policy: &str, repository: &str| {
        let args = [
            "gate",
            "--certificate",
            text(&done["envelope"]),
            "--repository",
            repository,
            "--commit",
            &commit,
            "--policy",
            policy,
            "--json",
        ];
        let out = site.run(&args);
        (out.status.code(), said(&out))
    };
    site.git(&["checkout", "-q", "semel/small"]);
    std::fs::create_dir(site.repository().join(".semel")).unwrap();
    std::fs::write(site.repository().join(".semel/gate.toml"), &policy).unwrap();
    std::os::unix::fs::symlink("repo/.semel/gate.toml", site.at("link.toml")).unwrap();
    for inside in [
        "repo/.semel/gate.toml",
        "link.toml",
        "repo/../repo/src/../.semel/gate.toml",
    ] {
        let (code, said) = gate(inside, "repo");
        assert_eq!(code, Some(65), "{inside}: {said}");
        assert!(said.contains("policy_in_worktree"), "{said}");
    }
    // However the repository is named, and wherever else the candidate may be checked out.
    site.git(&["worktree", "add", "-q", "--detach", "../linked", "HEAD"]);
    site.git(&["clone", "-q", "--bare", ".", "../bare.git"]);
    let bare = site.at("bare.git");
    site.git_in(
        &bare,
        &["worktree", "add", "-q", "--detach", "../of-bare", "HEAD"],
    );
    site.git(&["clone", "-q", ".", "../clone"]);
    for place in ["linked", "of-bare", "clone"] {
        std::fs::write(site.at(place).join("p.toml"), &policy).unwrap();
    }
    std::fs::write(site.at("one.toml"), &policy).unwrap();
    std::fs::hard_link(site.at("one.toml"), site.at("two.toml")).unwrap();
    for (inside, repository) in ELSEWHERE {
        let (code, said) = gate(inside, repository);
        assert_eq!(code, Some(65), "{inside}, {repository}: {said}");
        assert!(said.contains("policy_in_worktree"), "{said}");
    }
    // A worktree stays one without its `.git`, which whoever works in it can take away.
    std::fs::remove_file(site.at("linked/.git")).unwrap();
    std::fs::remove_file(site.at("two.toml")).unwrap();
    let (code, said) = gate("linked/p.toml", "repo");
    assert_eq!(code, Some(65), "{said}");
    // One of a repository that does not have the candidate holds no tree under test.
    std::fs::create_dir(site.at("other")).unwrap();
    site.git_in(&site.at("other"), &["init", "-q"]);
    std::fs::write(site.at("other/p.toml"), &policy).unwrap();
    for outside in ["one.toml", "other/p.toml"] {
        let (code, said) = gate(outside, "repo");
        assert_eq!(code, Some(0), "{outside}: {said}");
    }
    // Of a host file, and of one in the git directory, which no checkout writes, nothing is wrong.
    std::fs::write(site.at("host.toml"), &policy).unwrap();
    std::fs::write(site.repository().join(".git/gate.toml"), &policy).unwrap();
    for outside in ["host.toml", "repo/.git/gate.toml"] {
        let (code, said) = gate(outside, "repo");
        assert_eq!(code, Some(0), "{outside}: {said}");
    }
}

/// A worktree that the configuration alone names, be it in a file that is included, is one of the candidate.
#[test]
fn the_gate_takes_no_policy_from_a_worktree_that_is_configured() {
    let site = Site::new();
    let done = site.json(RUN);
    let commit = site.git(&["rev-parse", "semel/small"]);
    let policy = site.run(&["key", "show", "--policy"]).stdout;
    let gate = |policy: &str, repository: &str| {
        let args = [
            "gate",
            "--certificate",
            text(&done["envelope"]),
            "--commit",
            &commit,
        ];
        let more = ["--repository", repository, "--policy", policy, "--json"];
        let out = site.run(&[&args[..], &more].concat());
        (out.status.code(), said(&out))
    };
    site.git(&["clone", "-q", "--bare", ".", "../named.git"]);
    let named = site.at("named.git");
    std::fs::create_dir(site.at("far")).unwrap();
    std::fs::write(site.at("far/p.toml"), &policy).unwrap();
    let (code, said) = gate("far/p.toml", "named.git");
    assert_eq!(code, Some(0), "{said}");
    std::fs::write(named.join("more"), "[core]\n\tworktree = ../far\n").unwrap();
    for (key, value) in [("core.worktree", "../far"), ("include.path", "more")] {
        site.git_in(&named, &["config", "core.bare", "false"]);
        site.git_in(&named, &["config", key, value]);
        let (code, said) = gate("far/p.toml", "named.git");
        assert_eq!(code, Some(65), "{key}: {said}");
        assert!(said.contains("policy_in_worktree"), "{said}");
        site.git_in(&named, &["config", "--unset", key]);
    }
    // One of a linked worktree, by a configuration of its own.
    site.git(&["worktree", "add", "-q", "--detach", "../linked", &commit]);
    site.git(&["config", "extensions.worktreeConfig", "true"]);
    let far = site.at("far").display().to_string();
    site.git_in(
        &site.at("linked"),
        &["config", "--worktree", "core.worktree", &far],
    );
    let (code, said) = gate("far/p.toml", "repo");
    assert_eq!(code, Some(65), "{said}");
    assert!(said.contains("policy_in_worktree"), "{said}");
}

fn delete(volume: &Volume, url: &str, key: &str) -> crate::harness::Reply {
    crate::harness::Conn::tcp(url).call(volume, "delete_file", key, &json!({"path": "f"}))
}

/// A journal that went back in time knows neither keys nor receipts of what came after: no volume that lived through
/// that goes on, or a call sent again would have its effect twice.
#[test]
fn a_journal_that_went_back_in_time_ends_what_is_open() {
    for way in ["another file", "the same file", "no mark"] {
        let home = Home::new();
        let daemon = home.serve(&[]);
        let volume = home.open("small", "process");
        let write = |key: &str, content: &str| {
            let reply = daemon.conn().call(
                &volume,
                "write_file",
                key,
                &json!({"path": "f", "content": content}),
            );
            assert_eq!(reply.status, 200, "{}", reply.body);
        };
        write("k1", "one");
        let old = home.path().join("old.db");
        home.json(&["backup", old.to_str().unwrap()]);
        assert_eq!(delete(&volume, &daemon.url, "k2").status, 200);
        write("k3", "three");
        daemon.kill();
        // A killed daemon alone changes nothing.
        let daemon = home.serve(&[]);
        assert_eq!(delete(&volume, &daemon.url, "k2").body["replayed"], true, "{way}");
        daemon.kill();
        let database = home.state().join("journal.db");
        for other in ["journal.db-wal", "journal.db-shm"] {
            drop(std::fs::remove_file(home.state().join(other)));
        }
        match way {
            "another file" => std::fs::rename(&old, &database).unwrap(),
            "the same file" => std::fs::write(&database, std::fs::read(&old).unwrap()).unwrap(),
            _ => {
                std::fs::write(&database, std::fs::read(&old).unwrap()).unwrap();
                std::fs::remove_file(home.state().join("journal.mark")).unwrap();
            }
        }
        let daemon = home.serve(&[]);
        let reply = delete(&volume, &daemon.url, "k2");
        assert_eq!(
            (reply.status, reply.reason()),
            (409, "stale_generation"),
            "{way}: {}",
            reply.body
        );
        assert_eq!(
            std::fs::read_to_string(volume.tree.join("f")).unwrap(),
            "three",
            "{way}"
        );
        let listed = home.json(&["volume", "list"]);
        assert_eq!(
            listed["volumes"][0]["dirty"], "journal_rolled_back",
            "{way}: {listed}"
        );
    }
}

/// The right to write a state root does not hang on a file that can be removed.
#[test]
fn a_second_daemon_does_not_start_where_the_lock_file_was_removed() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    std::fs::remove_file(home.state().join("owner.lock")).unwrap();
    let out = home.run(&["serve", "--json"]);
    assert_eq!(out.status.code(), Some(75), "{}", said(&out));
    assert!(said(&out).contains("owned_elsewhere"), "{}", said(&out));
    let volume = home.open("small", "process");
    let reply = daemon
        .conn()
        .call(&volume, "write_file", "k", &json!({"path": "f", "content": "x"}));
    assert_eq!(reply.status, 200, "{}", reply.body);
}

/// A build backend inside of the tree: it makes the project's wheel, and leaves files behind.
const BACKEND: &str = r#"
import base64, hashlib, os, zipfile
for place in PLANTED:
    os.makedirs(os.path.dirname(place) or ".", exist_ok=True)
    open(place, "w").write("planted = 1\n")
def get_requires_for_build_editable(config=None): return []
def build_editable(into, config=None, metadata=None):
    info = "app-0.dist-info/"
    files = {"app.pth": os.path.abspath("src") + "\n",
             info + "METADATA": "Metadata-Version: 2.1\nName: app\nVersion: 0\nRequires-Python: >=3.9\n",
             info + "WHEEL": "Wheel-Version: 1.0\nGenerator: b\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}
    digest = lambda text: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    record = [f"{name},sha256={digest(text)},{len(text)}\n" for name, text in files.items()]
    files[info + "RECORD"] = "".join(record) + info + "RECORD,,\n"
    with zipfile.ZipFile(os.path.join(into, "app-0-py3-none-any.whl"), "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "app-0-py3-none-any.whl"
"#;

/// What a build leaves in the tree is not in the tree that will be merged: it is set apart by name, and refused where
/// it can change what the tests say.
#[test]
fn what_a_build_leaves_in_the_tree_is_set_apart() {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/bin");
    if !tools.join("uv").exists() {
        crate::harness::skipped("there is no uv in .tools");
        return;
    }
    let site = Site::new();
    let write = |name: &str, text: &str| std::fs::write(site.repository().join(name), text).unwrap();
    write(
        "pyproject.toml",
        "[project]\nname = \"app\"\nversion = \"0\"\nrequires-python = \">=3.9\"\n[build-system]\nrequires = []\n\
         build-backend = \"backend\"\nbackend-path = [\".\"]\n",
    );
    write(
        "uv.lock",
        "version = 1\nrevision = 3\nrequires-python = \">=3.9\"\n\n[[package]]\nname = \"app\"\nversion = \"0\"\n\
         source = { editable = \".\" }\n",
    );
    let certify = |planted: &str| {
        write("backend.py", &BACKEND.replace("PLANTED", planted));
        let commit = site.commit_all("backend");
        let mut command = site.command(&[
            "certify",
            "--job",
            "build",
            "--git",
            &commit,
            "--repository",
            "repo",
            "--install",
            "uv",
            "--unbound-backend",
            "--test",
            "python3 check.py {report}",
            "--json",
        ]);
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", tools.display());
        let out = command.env("PATH", path).output().unwrap();
        let value: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|_| panic!("{}", said(&out)));
        (out.status.code(), value)
    };
    for guilty in [
        "conftest.py",
        "tests/test_more.py",
        "src/__pycache__/lib.cpython-311.pyc",
    ] {
        let (code, refusal) = certify(&format!("[{guilty:?}]"));
        assert_eq!(
            (code, refusal["reason"].as_str()),
            (Some(28), Some("new_file")),
            "{refusal}"
        );
        assert_eq!(refusal["names"], json!([guilty]));
    }
    let (code, done) = certify("['src/_version.py', 'src/app.egg-info/PKG-INFO']");
    assert_eq!(code, Some(0), "{done}");
    let statement = crate::harness::statement(text(&done["envelope"]).as_ref());
    let weak = statement["predicate"]["weak"].as_array().unwrap().iter();
    let new: Vec<&Value> = weak
        .filter(|weak| weak["name"] == "new_file")
        .map(|weak| &weak["about"])
        .collect();
    assert_eq!(new, ["src/_version.py", "src/app.egg-info/PKG-INFO"]);
}
