//! How commands are ended: by a person, and with their volume.

use super::*;
use crate::harness::processes_with;

#[test]
fn a_person_ends_a_command() {
    let lab = Lab::new();
    for (n, args) in [&[][..], &["--kill"]].into_iter().enumerate() {
        let key = format!("k{n}");
        let line = format!("trap 'echo asked; exit 0' TERM; touch up{n}; while :; do sleep 0.02; done");
        let execution = lab.begin(&key, &json!({"command": line})).body["execution_id"].clone();
        assert!(wait_until(LONG, || lab.in_tree(&format!("up{n}")).exists()));
        let id = execution.as_str().unwrap();
        let said = lab
            .home
            .json(&[&["cancel", "--execution", id][..], args].concat());
        assert_eq!(said["state"], "asked");
        let receipt = lab.settles(&key);
        let result = &receipt["result"];
        assert_eq!(
            (&result["end"], &result["asked_by"]),
            (&json!("asked"), &json!("request")),
            "{receipt}"
        );
        let done = lab.call(&key, &json!({"command": line}));
        let wanted = if args.is_empty() { "asked\n" } else { "" };
        assert_eq!(
            (&done.body["stdout"], &done.body["replayed"]),
            (&json!(wanted), &json!(true))
        );
        let again = lab.home.run(&["cancel", "--execution", id, "--json"]);
        let refusal: Value = serde_json::from_slice(&again.stdout).unwrap();
        assert_eq!(
            (again.status.code(), &refusal["reason"]),
            (Some(15), &json!("not_running"))
        );
    }
    let none = lab
        .home
        .run(&["cancel", "--execution", &lab.volume.generation[2..], "--json"]);
    assert_eq!(none.status.code(), Some(17));
    assert_eq!(lab.home.run(&["cancel"]).status.code(), Some(64));
    assert_eq!(lab.home.run(&["cancel", "job", "--kill"]).status.code(), Some(64));
}

/// The end of a volume ends its commands first, with all that they left behind, and their calls have receipts.
#[test]
fn a_volume_ends_after_its_commands() {
    for (how, state) in [(&[][..], "clean"), (&["--dirty"], "quarantined")] {
        let lab = Lab::new();
        let mark = format!("mark-{}", lab.volume.generation);
        let line = format!("(setsid sh -c 'while :; do sleep 0.1; done' {mark} &) ; {WAITS}");
        let execution = lab.begin("k", &json!({"command": line})).body["execution_id"].clone();
        lab.begun();
        assert!(wait_until(LONG, || !processes_with(&mark).is_empty()));
        let waiter = lab.volume.clone();
        let (told, ended) = std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                lab.conn()
                    .call(&waiter, "run_command", "k", &json!({"command": line}))
            });
            let args = [&["volume", "end", &lab.volume.generation][..], how].concat();
            let ended = lab.home.json(&args);
            (waits.join().unwrap(), ended)
        });
        assert_eq!(ended["volume"]["state"], state, "{ended}");
        assert_eq!(processes_with(&mark), [] as [u32; 0]);
        // The one that waited has the receipt, or came so late that the generation was over.
        let fits = told.body["end"] == "asked" || told.reason() == "stale_generation";
        assert!(fits, "{}", told.body);
        let receipt = lab.receipt("k");
        assert_eq!(
            (
                &receipt["state"],
                &receipt["result"]["end"],
                &receipt["execution_id"]
            ),
            (&json!("done"), &json!("asked"), &execution)
        );
        assert_eq!(lab.sh("late", EFFECT).reason(), "stale_generation");
        assert_eq!(lab.effects(), 1);
    }
}

/// A daemon that finds, as it starts, that a volume is over ends its commands.
#[test]
fn recovery_ends_the_commands_of_volumes_that_end() {
    let mut lab = Lab::new();
    lab.begin("k", &json!({"command": WAITS}));
    lab.begun();
    lab.kill();
    // A journal that went back in time ends every open volume.
    std::fs::remove_file(lab.home.state().join("journal.mark")).unwrap();
    lab.restart(&[]);
    let receipt = lab.receipt("k");
    assert_eq!(
        (&receipt["state"], &receipt["result"]["end"]),
        (&json!("done"), &json!("asked")),
        "{receipt}"
    );
    assert_eq!(lab.sh("late", EFFECT).reason(), "stale_generation");
}

/// The status counts what runs; by the same number a transient daemon knows that it must not end.
#[test]
fn commands_are_counted_in_the_status() {
    let lab = Lab::new();
    lab.begin("k", &json!({"command": WAITS}));
    lab.begun();
    let status = || lab.home.admin("GET", "/v1/admin/status", &Value::Null).body;
    assert_eq!(status()["commands"], 1);
    lab.go();
    assert_eq!(lab.settles("k")["state"], "done");
    assert!(wait_until(LONG, || status()["commands"] == 0));
}
