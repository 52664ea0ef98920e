//! Agents that misbehave: each is refused by name, and reaches nothing that is not its own.

use crate::harness::{RUN, Site, is_root, last_draft, processes_with, said, text};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

#[test]
fn an_agent_that_fails_or_overstays_leaves_a_quarantined_draft() {
    let site = Site::new();
    site.agent("import sys\nsys.exit(3)\n");
    let refusal = site.refused(RUN, 3);
    assert_eq!(
        (text(&refusal["code"]), text(&refusal["reason"])),
        ("dirty_volume", "agent_failed")
    );
    let draft = last_draft(&site);
    assert_eq!(
        (text(&draft["state"]), text(&draft["dirty"])),
        ("quarantined", "agent_failed")
    );
    let refusal = site.refused(&["seal", text(&draft["generation"])], 3);
    assert_eq!(refusal["code"], "dirty_volume");

    // Half a lockfile, a child in a session of its own, and no end.
    site.job("timeout = \"60s\" => timeout = \"2s\"");
    site.agent(
        "import subprocess, time\nfrom semel_client import read, write\nlock, digest = read('Cargo.lock')\n\
         write('Cargo.lock', lock[: len(lock) * 2 // 5], digest, key='half')\n\
         subprocess.Popen(['sleep', '300'], start_new_session=True)\ntime.sleep(300)\n",
    );
    let since = Instant::now();
    let refusal = site.refused(RUN, 24);
    assert_eq!(refusal["code"], "timed_out");
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    assert!(
        processes_with(&site.marker).is_empty(),
        "nothing is left when it returns"
    );
    let draft = last_draft(&site);
    assert_eq!(
        (text(&draft["state"]), text(&draft["dirty"])),
        ("quarantined", "timed_out")
    );
    site.refused(&["seal", text(&draft["generation"])], 3);
    assert!(site.certificates().is_empty());
    site.at_rest();
}

#[test]
fn a_leftover_environment_is_refused_by_name() {
    let site = Site::new();
    site.agent("import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'venv', '--without-pip', 'leftover'], check=True)\n");
    let refusal = site.refused(RUN, 21);
    assert_eq!(refusal["code"], "tree_not_empty");
    assert!(refusal["names"].to_string().contains("leftover"), "{refusal}");
    site.at_rest();
}

/// An ignore rule that the agent brings along hides nothing: no merge would hold what it names.
#[test]
fn an_entry_that_its_own_rules_ignore_is_refused() {
    let site = Site::new();
    site.agent(
        "open('.gitignore', 'a').write('hidden.txt\\n')\nopen('hidden.txt', 'w').write('x')\n\
         open('ignored.txt', 'w').write('x')\n",
    );
    let refusal = site.refused(RUN, 28);
    assert_eq!(
        (text(&refusal["code"]), text(&refusal["reason"])),
        ("tree_mismatch", "ignored_entry")
    );
    assert_eq!(
        refusal["names"],
        json!(["hidden.txt"]),
        "what the base ignores was never sealed"
    );
    site.at_rest();
}

#[test]
fn a_half_written_lockfile_is_refused_though_the_agent_ended_clean() {
    let site = Site::new();
    site.agent(
        "from semel_client import read, write\nlock, digest = read('Cargo.lock')\n\
         write('Cargo.lock', lock[: len(lock) * 3 // 5], digest, key='half')\n",
    );
    let refusal = site.refused(RUN, 20);
    assert_eq!(refusal["code"], "lock_incomplete");
    site.at_rest();
}

#[test]
fn an_agent_reaches_neither_journal_nor_keys_and_cannot_approve_itself() {
    let site = Site::new();
    let burglar = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/real/agents/burglar.py");
    let state = site.home.state();
    // A key to steal.
    assert!(site.run(&["key", "new"]).status.success());
    site.job(&format!(
        "\"~/agent.py\"] => \"~/agent.py\", \"{}\"]\n\"agent.py\" = \"agent.py\" => \"agent.py\" = \"{}\"",
        state.display(),
        burglar.display()
    ));
    let refusal = site.refused(RUN, 3);
    assert_eq!(refusal["reason"], "agent_failed");
    let draft = last_draft(&site);
    let output = state
        .join("volumes/small")
        .join(text(&draft["generation"]))
        .join("work/stdout");
    let output = std::fs::read_to_string(output).unwrap();
    assert_eq!(output.lines().count(), 7, "{output}");
    for line in output.lines() {
        let held =
            line.ends_with(": ENOENT") || line.ends_with(": EACCES") || line.ends_with("401 unauthorized");
        assert!(held, "{line}");
    }
    assert_eq!(output.matches("401 unauthorized").count(), 2, "{output}");
    site.at_rest();
}

/// An agent that is silent for longer than a transient daemon idles still finds its gateway.
#[test]
fn a_long_silent_agent_still_finds_its_gateway() {
    let site = Site::new();
    site.agent("import time\ntime.sleep(13)\nfrom semel_client import read, write\nd, s = read('src/lib.rs')\nwrite('src/lib.rs', d + b'//test more holds\\n', s, 'k')\n");
    assert_eq!(site.json(RUN)["status"], "certified");
}

/// What an agent does; the exit status and code of the run.
const LEFT: &[(&str, &str, i32, &str)] = &[
    ("a fifo", "os.mkfifo('pipe')", 29, "proposal_refused"),
    (
        "a socket",
        "import socket; socket.socket(socket.AF_UNIX).bind('sock')",
        29,
        "proposal_refused",
    ),
    (
        "a link that leaves",
        "os.symlink('/etc/passwd', 'out')",
        29,
        "proposal_refused",
    ),
    (
        "a link that climbs",
        "os.symlink('../../../x', 'src/out')",
        29,
        "proposal_refused",
    ),
    ("a link inside", "os.symlink('lib.rs', 'src/other.rs')", 0, ""),
    (
        "a setuid file",
        "open('s', 'w').close(); os.chmod('s', 0o4755)",
        0,
        "",
    ),
    ("a hard link", "os.link('src/lib.rs', 'src/twin.rs')", 0, ""),
    (
        "bytes that are no text",
        "open(b'\\xff\\xfe', 'w').close()",
        29,
        "proposal_refused",
    ),
    (
        "a nested repository",
        "subprocess.run(['git', 'init', '-q', 'sub'], check=True); open('sub/f', 'w').close()",
        29,
        "proposal_refused",
    ),
    ("its repository gone", "shutil.rmtree('.git')", 0, ""),
    (
        "its repository a link",
        "shutil.rmtree('.git'); os.symlink('/etc', '.git')",
        0,
        "",
    ),
    ("no lockfile", "os.remove('Cargo.lock')", 4, "no_lockfile"),
    (
        "a lockfile that is a link",
        "os.rename('Cargo.lock', 'real'); os.symlink('real', 'Cargo.lock')",
        7,
        "unknown_state",
    ),
    (
        "a directory that became a link",
        "os.rename('src', 'moved'); os.symlink('moved', 'src')",
        0,
        "",
    ),
    (
        "everything gone",
        "[shutil.rmtree(n) if os.path.isdir(n) else os.remove(n) for n in os.listdir('.')]",
        4,
        "no_lockfile",
    ),
    (
        "a process that stays",
        "subprocess.Popen(['sh', '-c', 'while :; do date >> late; sleep 0.01; done'], start_new_session=True); time.sleep(0.2)",
        0,
        "",
    ),
    (
        "endless words",
        "[print('x' * 65536) for _ in range(1000)]",
        0,
        "",
    ),
    ("its own end", "os.kill(os.getpid(), 9)", 3, "dirty_volume"),
    (
        "a build residue",
        "os.makedirs('other/target/debug'); open('other/target/CACHEDIR.TAG', 'w').write('Signature: 8a477f597d28d172789f06886806bc55')",
        0,
        "",
    ),
];

/// Whatever an agent leaves in its tree is taken whole or refused by name; never a bug, never half.
#[test]
fn what_an_agent_leaves_is_taken_whole_or_refused_by_name() {
    let site = Site::new();
    for (name, code, exit, wire) in LEFT {
        site.agent(&format!("import os, shutil, subprocess, time\n{code}\n"));
        let out = site.run(&["run", "job.toml", "--new-attempt", "--json"]);
        let answer: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(out.status.code(), Some(*exit), "{name}: {}", said(&out));
        if *exit == 0 {
            let branch = text(&answer["output"]).split(' ').nth(1).unwrap().to_owned();
            let tree = site.git(&["rev-parse", &format!("{branch}^{{tree}}")]);
            assert_eq!(answer["tree"], json!(tree), "{name}");
        } else {
            assert_eq!(answer["code"], *wire, "{name}");
        }
        assert!(processes_with(&site.marker).is_empty(), "{name}");
    }
    site.at_rest();
}

/// Root reads everything; whoever cannot is told, and the job is not stuck for it.
#[test]
fn an_entry_that_nobody_can_read_is_refused_by_name() {
    let site = Site::new();
    for (name, code) in [
        ("closed", "open('closed', 'w').close(); os.chmod('closed', 0)"),
        (
            "dir",
            "os.mkdir('dir'); open('dir/f', 'w').close(); os.chmod('dir', 0)",
        ),
    ] {
        site.agent(&format!("import os\n{code}\n"));
        if is_root() {
            assert_eq!(
                site.json(&["run", "job.toml", "--new-attempt"])["status"],
                "certified"
            );
            continue;
        }
        for _ in 0..2 {
            let refusal = site.refused(RUN, 29);
            assert_eq!(
                (text(&refusal["code"]), text(&refusal["reason"])),
                ("proposal_refused", "unreadable")
            );
            assert!(refusal["names"].to_string().contains(name), "{refusal}");
        }
    }
    site.at_rest();
}
