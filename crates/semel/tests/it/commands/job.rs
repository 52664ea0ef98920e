//! Commands of an agent that `semel run` started.

use super::LONG;
use crate::harness::{RUN, Site, last_draft, processes_with, signal, text, wait_until};
use serde_json::Value;

/// Has its tests promised by a command, with the toolchain of its job; leaves another one running when it ends.
const AGENT: &str = r#"
import os, threading, time
from semel_client import call
line = "printf '//test more holds\\n' >> src/lib.rs; echo x >> ignored.txt; cargo --version; git status --short; PAUSE"
done = call("run_command", {"command": line}, "more")
assert done["exit_code"] == 0 and done["stdout"].startswith("cargo "), done
assert "src/lib.rs" in done["stdout"], done
assert "SEMEL_TOKEN" not in call("run_command", {"command": "env"}, "env")["stdout"]
left = {"command": ": MARK; touch target; while :; do sleep 0.1; done"}
threading.Thread(target=call, args=("run_command", left, "left"), daemon=True).start()
while not os.path.exists("target"): time.sleep(0.02)
os._exit(0)
"#;

fn site(pause: &str) -> Site {
    let site = Site::new();
    let job = std::fs::read_to_string(site.at("job.toml")).unwrap();
    let job = job.replace("[agent]\n", "[agent]\ntools = [\"cargo\", \"git\"]\n");
    std::fs::write(site.at("job.toml"), job).unwrap();
    site.agent(&AGENT.replace("PAUSE", pause).replace("MARK", &site.marker));
    site
}

#[test]
fn an_agent_runs_commands_with_the_tools_of_its_job_and_leaves_none() {
    let site = site("true");
    let done = site.json(RUN);
    assert_eq!(done["status"], "certified", "{done}");
    assert!(processes_with(&site.marker).is_empty());
    let lib = site.git(&["show", "semel/small:src/lib.rs"]);
    assert_eq!(lib.matches("more holds").count(), 1);
    let log = site.home.lines(&["log", "--job", "small"]);
    let ran = log
        .iter()
        .filter(|line| line["tool"] == "run_command" && line["event"] == "executed");
    assert_eq!(ran.count(), 3, "the one that was left has its receipt, too");
    site.at_rest();
}

/// The daemon dies under a command of an agent: the command goes on, and the agent has its answer from the next life.
#[test]
fn a_daemon_that_is_killed_under_a_command_loses_nothing() {
    let site = site("sleep 3");
    let mut run = site.spawn(RUN);
    assert!(run.hears("agent    python3"));
    let tree = || {
        let draft = last_draft(&site);
        let generation = text(&draft["generation"]).to_owned();
        site.home
            .state()
            .join("volumes/small")
            .join(generation)
            .join("vol/tree/ignored.txt")
    };
    assert!(wait_until(LONG, || tree().exists()));
    let about = std::fs::read(site.home.state().join("daemon.json")).unwrap();
    let about: Value = serde_json::from_slice(&about).unwrap();
    signal(
        u32::try_from(about["pid"].as_u64().unwrap()).unwrap(),
        libc::SIGKILL,
    );
    assert!(run.ends(LONG).expect("it ends").success());
    let done = site.json(RUN);
    assert_eq!(done["status"], "certified");
    let lib = site.git(&["show", "semel/small:src/lib.rs"]);
    assert_eq!(lib.matches("more holds").count(), 1, "once");
    assert_eq!(std::fs::read_to_string(tree()).unwrap(), "x\n");
    assert!(processes_with(&site.marker).is_empty());
    site.at_rest();
}
