//! What a command writes: bounded in its answer, whole in its spool, told while it runs.

use super::*;

fn read(lab: &Lab, token: &str, execution: &str, rest: &str) -> Reply {
    let auth = format!("Bearer {token}");
    let path = format!("/v1/executions/{execution}/output/{rest}");
    lab.conn().send("GET", &path, &[("authorization", &auth)], b"")
}

fn whole(lab: &Lab, execution: &str, stream: &str) -> String {
    let (mut all, mut offset) = (String::new(), 0);
    loop {
        let piece = read(
            lab,
            &lab.volume.token,
            execution,
            &format!("{stream}?offset={offset}"),
        );
        assert_eq!(
            (piece.status, &piece.body["offset"]),
            (200, &json!(offset)),
            "{}",
            piece.body
        );
        let data = piece.body["data"].as_str().unwrap();
        all.push_str(data);
        offset = piece.body["next_offset"].as_u64().unwrap();
        if data.is_empty() && piece.body["running"] == false {
            return all;
        }
    }
}

#[test]
fn huge_output_is_cut_in_the_answer_and_kept_up_to_its_bound() {
    let lab = Lab::new();
    let lines = 200_000;
    let done = lab.sh(
        "k",
        &format!("i=0; yes 'a line é' | head -n {lines}; yes | head -c 20000000 >&2"),
    );
    let body = &done.body;
    assert_eq!(body["exit_code"], 0, "{}", body["stderr"]);
    let written = "a line é\n".repeat(lines);
    assert_eq!(body["stdout_total_bytes"], written.len());
    assert_eq!(body["stdout_kept_bytes"], written.len());
    let (head, tail) = (
        body["stdout"].as_str().unwrap(),
        body["stdout_tail"].as_str().unwrap(),
    );
    assert!(written.starts_with(head) && written.ends_with(tail));
    let omitted = body["stdout_omitted_bytes"].as_u64().unwrap();
    assert_eq!(
        head.len() as u64 + omitted + tail.len() as u64,
        written.len() as u64
    );
    assert_eq!(
        (&body["stderr_total_bytes"], &body["stderr_kept_bytes"]),
        (&json!(20_000_000), &json!(16 << 20))
    );
    assert!(head.len() <= 64 << 10 && tail.len() <= 64 << 10);
    let execution = body["execution_id"].as_str().unwrap();
    assert!(whole(&lab, execution, "stdout") == written);
    let mut again = lab
        .sh(
            "k",
            &format!("i=0; yes 'a line é' | head -n {lines}; yes | head -c 20000000 >&2"),
        )
        .body;
    again["replayed"] = json!(false);
    assert!(again == *body);
    let binary = lab.sh("b", "printf '\\377\\376'").body;
    assert_eq!(
        (&binary["stdout_b64"], &binary["stdout"]),
        (&json!("//4="), &Value::Null)
    );
}

#[test]
fn output_is_read_while_it_runs_by_whom_it_belongs_to() {
    let lab = Lab::new();
    let execution = lab.begin("k", &json!({"command": WAITS})).body["execution_id"].clone();
    let execution = execution.as_str().unwrap();
    lab.begun();
    let mine = || read(&lab, &lab.volume.token, execution, "stdout");
    assert!(wait_until(LONG, || mine().body["data"] == "begun\n"));
    assert_eq!(
        (&mine().body["running"], &mine().body["next_offset"]),
        (&json!(true), &json!(6))
    );
    let before = lab.home.entries();
    let other = lab.home.open("other", "process");
    let foreign = read(&lab, &other.token, execution, "stdout");
    assert_eq!((foreign.status, foreign.code()), (404, "not_found"));
    assert_eq!(read(&lab, "sml1_x", execution, "stdout").status, 401);
    for (rest, status) in [
        ("stdin", 404),
        ("stdout?offset=x", 400),
        ("stdout?after=1", 400),
        ("stdout?offset=99", 200),
    ] {
        assert_eq!(
            read(&lab, &lab.volume.token, execution, rest).status,
            status,
            "{rest}"
        );
    }
    let written = lab.conn().call(
        &lab.volume,
        "write_file",
        "w",
        &json!({"path": "f", "content": ""}),
    );
    let written = written.body["execution_id"].as_str().unwrap().to_owned();
    assert_eq!(
        read(&lab, &lab.volume.token, &written, "stdout").status,
        404,
        "no command"
    );
    lab.go();
    assert_eq!(lab.settles("k")["state"], "done");
    assert_eq!(whole(&lab, execution, "stdout"), "begun\ndone\n");
    assert!(lab.home.entries() > before);
    // What is waited for stands behind what nobody waits for, such as notes of reads.
    let last = json!({"path": "g", "content": ""});
    assert_eq!(
        lab.conn().call(&lab.volume, "write_file", "last", &last).status,
        200
    );
    let silent = lab.home.entries();
    mine();
    assert_eq!(lab.home.entries(), silent, "reading leaves no entry");
    lab.home.json(&["volume", "end", &lab.volume.generation]);
    assert_eq!(mine().reason(), "stale_generation");
}
