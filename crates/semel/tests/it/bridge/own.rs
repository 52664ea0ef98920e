//! A person's own volume, by one line of configuration; calls that wait for a person; ends of volumes.

use super::{Agent, lay, mark, marks, replayed};
use crate::harness::{Home, RUN, Site, Volume, last_draft, said};
use serde_json::{Value, json};

fn own(home: &Home, args: &[&str]) -> Agent {
    Agent::of(home.command(&["mcp", "--quiet", "--job", "demo"]).args(args))
}

fn generation(agent: &mut Agent) -> String {
    let answer = agent.call(1, "list_directory", &json!({"path": "."}));
    let generation = answer["result"]["structuredContent"]["generation"].as_str();
    generation.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[test]
fn one_line_of_configuration_opens_a_volume_and_finds_it_again() {
    let home = Home::new();
    std::fs::create_dir(home.path().join("project")).unwrap();
    std::fs::write(home.path().join("project/a"), "1").unwrap();
    let from = home.path().join("project");
    // Nothing runs: what is needed is started.
    let mut agent = own(&home, &["--from", from.to_str().unwrap()]);
    let first = generation(&mut agent);
    let read = agent.call(2, "read_file", &json!({"path": "a"}));
    assert_eq!(read["result"]["structuredContent"]["content"], "1", "{read}");
    let written = agent.call(3, "write_file", &json!({"path": "a", "content": "2"}));
    assert!(!replayed(&written));
    agent.ends();
    let mut agent = own(&home, &["--from", from.to_str().unwrap()]);
    assert_eq!(
        generation(&mut agent),
        first,
        "the same volume, though another bridge"
    );
    let read = agent.call(2, "read_file", &json!({"path": "a"}));
    assert_eq!(read["result"]["structuredContent"]["content"], "2");
    // Ended, it takes no call; the next bridge opens a new one.
    home.json(&["volume", "end", &first]);
    let refused = agent.call(3, "write_file", &json!({"path": "a", "content": "3"}));
    assert_eq!(
        refused["error"]["data"]["reason"], "stale_generation",
        "{refused}"
    );
    drop(agent);
    let mut agent = own(&home, &[]);
    assert_ne!(generation(&mut agent), first);
    agent.ends();
    home.admin("POST", "/v1/admin/shutdown", &json!({}));
}

#[test]
fn two_bridges_of_one_job_that_begin_at_once_have_one_volume() {
    let home = Home::new();
    let _daemon = home.serve_unix(&[]);
    let mut agents: Vec<Agent> = (0..3).map(|_| own(&home, &[])).collect();
    let generations: std::collections::BTreeSet<String> = agents.iter_mut().map(generation).collect();
    assert_eq!(generations.len(), 1);
}

#[test]
fn without_a_token_it_says_what_is_missing() {
    let home = Home::new();
    let out = home.run(&["mcp"]);
    assert_eq!(out.status.code(), Some(77), "{}", said(&out));
    assert!(
        String::from_utf8_lossy(&out.stderr).contains("--job"),
        "{}",
        said(&out)
    );
    let out = home.run(&["mcp", "--json"]);
    let refused: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(refused["code"], "unauthorized", "{refused}");
}

#[test]
fn another_program_at_the_socket_is_told_apart() {
    let home = Home::new();
    let daemon = home.serve(&[]);
    let volume = home.open("job", "process");
    let mut command = home.command(&["mcp", "--quiet", "--url", &daemon.probe_url]);
    let mut agent = Agent::of(command.env("SEMEL_TOKEN", &volume.token));
    let answer = agent.ask(1, "tools/list", &json!({}));
    assert_eq!(answer["error"]["data"]["type"], "bad_config", "{answer}");
    let mut command = home.command(&["mcp", "--quiet", "--url", &daemon.url]);
    let mut agent = Agent::of(command.env("SEMEL_TOKEN", "wrong"));
    let answer = agent.ask(1, "tools/list", &json!({}));
    assert_eq!(answer["error"]["data"]["type"], "unauthorized", "{answer}");
    let answer = agent.call(2, "edit_file", &mark());
    assert_eq!(answer["error"]["data"]["type"], "unauthorized", "{answer}");
}

/// The model is asked to send the same call again, and cannot send the same key: the bridge does.
#[test]
fn a_call_that_waits_for_a_person_goes_on_under_its_key() {
    let home = Home::new();
    let policy = crate::policy::write(
        &home,
        "[[rule]]\npaths = [\"/log\"]\nanswer = \"ask\"\nreason = \"a log\"\n",
    );
    let config = home.path().join("config.toml");
    let text = format!(
        "policy = \"{}\"\napprovals_without_confinement = true\n",
        policy.display()
    );
    std::fs::write(&config, text).unwrap();
    let _daemon = home.serve(&["--config", config.to_str().unwrap()]);
    let volume: Volume = home.open("job", "process");
    lay(&volume);
    for reissue in ["attach", "execute"] {
        let mut agent = Agent::start(&home, &volume, &["--reissue", reissue]);
        let before = marks(&volume);
        let asked = agent.call(1, "edit_file", &mark());
        let error = &asked["result"]["structuredContent"]["error"];
        assert_eq!(error["type"], "approval_required", "{asked}");
        let id = error["approval_id"].as_str().unwrap().to_owned();
        let again = agent.call(2, "edit_file", &mark());
        assert_eq!(
            again["result"]["structuredContent"]["error"]["approval_id"],
            json!(id),
            "{again}"
        );
        let decided = home.admin(
            "POST",
            &format!("/v1/admin/approvals/{id}"),
            &json!({"decision": "approve", "by": "ada"}),
        );
        assert_eq!(decided.status, 200, "{}", decided.body);
        let done = agent.call(3, "edit_file", &mark());
        assert_eq!(done["result"]["isError"], false, "{done}");
        assert_eq!(marks(&volume), before + 1);
        // That was the end of it: another one is asked about anew.
        let anew = agent.call(4, "edit_file", &mark());
        assert_ne!(
            anew["result"]["structuredContent"]["error"]["approval_id"],
            json!(id),
            "{anew}"
        );
        drop(agent);
        home.json(&["approvals"]);
        let open = anew["result"]["structuredContent"]["error"]["approval_id"]
            .as_str()
            .unwrap()
            .to_owned();
        let denied = home.admin(
            "POST",
            &format!("/v1/admin/approvals/{open}"),
            &json!({"decision": "deny", "by": "ada"}),
        );
        assert_eq!(denied.status, 200, "{}", denied.body);
        for spool in super::spools(&home) {
            std::fs::remove_file(spool).unwrap();
        }
    }
}

/// An agent that `semel run` starts: its bridge finds gateway and token by the environment, and keeps its spool in the
/// agent's own home, for there is no state root to be seen.
#[test]
fn inside_of_a_job_it_takes_what_the_environment_says() {
    let site = Site::new();
    let semel = env!("CARGO_BIN_EXE_semel");
    let place = site.home.path().join("job.toml");
    let job = std::fs::read_to_string(&place).unwrap();
    std::fs::write(
        &place,
        job.replacen("[agent]\n", &format!("[agent]\ntools = [\"{semel}\"]\n"), 1),
    )
    .unwrap();
    site.agent(
        "import glob, json, os, subprocess, sys\n\
         def bridge():\n    return subprocess.Popen(['semel', 'mcp'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n\
         def call(bridge):\n\
         \x20   params = {'name': 'write_file', 'arguments': {'path': 'made.txt', 'content': '1'}}\n\
         \x20   message = {'jsonrpc': '2.0', 'id': 1, 'method': 'tools/call', 'params': params}\n\
         \x20   bridge.stdin.write((json.dumps(message) + '\\n').encode())\n    bridge.stdin.flush()\n\
         \x20   answer = json.loads(bridge.stdout.readline())\n    return answer['result']['structuredContent']['replayed']\n\
         first = bridge()\nassert call(first) is False\n\
         spools = glob.glob(os.path.expanduser('~/.local/state/semel/bridge/*.spool'))\nassert len(spools) == 1, spools\n\
         first.stdin.close()\nassert first.wait() == 0\nassert not glob.glob(spools[0])\n",
    );
    let out = site.run(RUN);
    let draft = last_draft(&site);
    assert_eq!(draft["dirty"], Value::Null, "{}", said(&out));
}
