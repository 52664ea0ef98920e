use super::*;
use proptest::prelude::*;

const LOCK: &str = "/r/.git/worktrees/w/index.lock";
const TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

fn sight(content: &[u8]) -> Sight {
    Sight {
        handle: (1, 2),
        links: 1,
        length: content.len() as u64,
        sha256: Sha256::of(content),
        begins: Sha256::of(content),
        path: b"/w/stream".to_vec(),
    }
}

/// What is seen of a stream that held `before` and now holds more.
fn later(before: &[u8], now: &[u8]) -> Sight {
    Sight {
        begins: Sha256::of(now.get(..before.len()).unwrap_or(now)),
        ..sight(now)
    }
}

fn work() -> Work {
    Work {
        tree: ObjectId::parse(TREE).unwrap(),
        locks: vec![LockPath::parse(LOCK.as_bytes()).unwrap()],
        stream: sight(b"one\n"),
        tries: 3,
    }
}

fn text(lock: &str) -> String {
    format!(
        "fatal: Unable to create '{lock}': File exists.\n\nAnother git process seems to be running in this \
         repository, or the lock file may be stale\n"
    )
}

fn tried(exit: Option<i32>, stderr: &str) -> Tried {
    Tried {
        exit,
        stderr: stderr.as_bytes().to_vec(),
        beyond: 0,
        stream: StreamSeen::There(sight(b"one\n")),
        tree_ended: TreeEnded::Proved,
    }
}

fn ended(next: &Next) -> &'static str {
    match next {
        Next::Again => "again",
        Next::End(end) => end.name(),
    }
}

#[test]
fn only_the_exact_collision_with_the_same_stream_is_tried_again() {
    let work = work();
    let exact = tried(Some(128), &text(LOCK));
    assert_eq!(work.judge(1, &exact), Next::Again);
    assert_eq!(work.judge(2, &exact), Next::Again);
    assert_eq!(work.judge(3, &exact), Next::End(End::Exhausted));
    let named = format!("Command failed: git read-tree --reset -u {TREE}\n{}", text(LOCK));
    assert_eq!(work.judge(1, &tried(Some(128), &named)), Next::Again);
    for (exit, stderr) in [
        (Some(1), text(LOCK)),
        (None, text(LOCK)),
        (Some(128), text("/r/.git/index.lock")),
        (Some(128), format!("{}at Error (file.js:1)\n", text(LOCK))),
        (Some(128), "fatal: not a git repository\n".to_owned()),
        (Some(128), String::new()),
        (
            Some(128),
            format!(
                "Command failed: git read-tree --reset -u {}\n{}",
                TREE.replace('4', "5"),
                text(LOCK)
            ),
        ),
    ] {
        assert_eq!(
            ended(&work.judge(1, &tried(exit, &stderr))),
            "unrelated_failure",
            "{stderr}"
        );
    }
    let more = Tried {
        beyond: 1,
        ..exact.clone()
    };
    assert_eq!(ended(&work.judge(1, &more)), "unrelated_failure");
    let living = Tried {
        tree_ended: TreeEnded::Unproved,
        ..exact
    };
    assert_eq!(ended(&work.judge(1, &living)), "process_left");
    assert_eq!(ended(&work.judge(3, &tried(Some(0), &text(LOCK)))), "succeeded");
}

/// Every change of a stream that held `one`, with the code and the reason by which it ends the tries.
fn changes() -> Vec<(StreamSeen, &'static str, &'static str)> {
    let there = StreamSeen::There;
    let before = sight(b"one\n");
    vec![
        (
            there(later(b"one\n", b"one\ntwo\n")),
            "ownership_taken",
            "appended",
        ),
        (
            there(later(b"one\n", b"One\ntwo\n")),
            "ownership_taken",
            "rewritten",
        ),
        (there(later(b"one\n", b"One\n")), "ownership_taken", "rewritten"),
        (there(later(b"one\n", b"")), "ownership_taken", "rewritten"),
        (
            there(Sight {
                handle: (1, 3),
                ..before.clone()
            }),
            "stream_unsafe",
            "replaced",
        ),
        (
            there(Sight {
                handle: (2, 2),
                ..before.clone()
            }),
            "stream_unsafe",
            "replaced",
        ),
        (
            there(Sight {
                path: b"/v/stream".to_vec(),
                ..before.clone()
            }),
            "stream_unsafe",
            "replaced",
        ),
        (
            there(Sight {
                links: 2,
                ..before.clone()
            }),
            "stream_unsafe",
            "hard_link",
        ),
        (StreamSeen::Missing, "stream_unsafe", "missing"),
        (StreamSeen::Unsafe(Hazard::Symlink), "stream_unsafe", "symlink"),
        (StreamSeen::Unsafe(Hazard::Special), "stream_unsafe", "special"),
    ]
}

#[test]
fn each_change_of_the_stream_ends_it_by_its_name() {
    for (stream, code, reason) in changes() {
        let after = Tried {
            stream,
            ..tried(Some(128), &text(LOCK))
        };
        let Next::End(End::Refused(refusal)) = work().judge(1, &after) else {
            panic!("{after:?}")
        };
        assert_eq!(
            (refusal.code.wire(), refusal.reason.as_deref()),
            (code, Some(reason))
        );
        assert!(!work().predicates(&after).aggregate);
        // It decides nothing where the failure is another one, or there is none.
        let other = Tried {
            stderr: b"fatal: no\n".to_vec(),
            ..after.clone()
        };
        assert_eq!(ended(&work().judge(1, &other)), "unrelated_failure");
        assert_eq!(
            ended(&work().judge(
                1,
                &Tried {
                    exit: Some(0),
                    ..after
                }
            )),
            "succeeded"
        );
    }
    let before = sight(b"one\n");
    assert_eq!(compare(&before, &StreamSeen::There(before.clone())), None);
}

#[test]
fn each_condition_is_counted_by_itself() {
    let mut counts = Counts::default();
    let appended = StreamSeen::There(later(b"one\n", b"one\n{\"event\":\"RunStarted\"}\n"));
    for (exit, stderr, stream, want) in [
        (128, text(LOCK), None, [true, true, true, true, true]),
        (128, text(LOCK), Some(&appended), [true, true, false, true, false]),
        (128, text("/x/index.lock"), None, [true, false, true, true, false]),
        (
            128,
            format!("{}RunStarted\n", text(LOCK)),
            None,
            [false, true, true, false, false],
        ),
        (1, text(LOCK), None, [false, true, true, true, false]),
        (
            1,
            "NodeStarted".to_owned(),
            Some(&appended),
            [false, false, false, false, false],
        ),
    ] {
        let mut one = tried(Some(exit), &stderr);
        if let Some(stream) = stream {
            one.stream = stream.clone();
        }
        let met = work().predicates(&one);
        let got = [
            met.exact_command,
            met.exact_lock,
            met.stream_identical,
            met.no_owner_text,
            met.aggregate,
        ];
        assert_eq!(got, want, "{stderr}");
        counts.add(met);
    }
    let got = (
        counts.failed,
        counts.exact_command,
        counts.exact_lock,
        counts.stream_identical,
    );
    assert_eq!(got, (6, 3, 4, 4));
    assert_eq!((counts.no_owner_text, counts.aggregate), (4, 1));
}

/// A word of an owner in the very path of the lock is reported, and changes nothing.
#[test]
fn the_word_of_an_owner_decides_nothing() {
    let lock = "/r/RunStarted/.git/index.lock";
    let mut work = work();
    work.locks = vec![LockPath::parse(lock.as_bytes()).unwrap()];
    let exact = tried(Some(128), &text(lock));
    assert!(!work.predicates(&exact).no_owner_text);
    assert_eq!(work.judge(1, &exact), Next::Again);
}

#[test]
fn a_lock_is_waited_for_and_never_longer_than_the_bound() {
    let held = LockSeen::There(LockKind::Regular, Names::One, LockOwner::Ours);
    let (bound, poll) = (Duration::from_secs(60), Duration::from_millis(250));
    let mut now = Duration::ZERO;
    let end = loop {
        match wait(now, bound, poll, held) {
            Step::Wait(until) => {
                assert!(until > now && until <= bound);
                now = until;
            }
            end => break end,
        }
    };
    let Step::Refuse(refusal) = end else {
        panic!("{end:?}")
    };
    assert_eq!((refusal.code, now), (Code::LockTimeout, bound));
    assert_eq!(wait(bound, bound, poll, LockSeen::Gone), Step::Gone);
    let link = LockSeen::There(LockKind::Symlink, Names::One, LockOwner::Ours);
    let Step::Refuse(refusal) = wait(Duration::ZERO, bound, poll, link) else {
        panic!("a link is waited for")
    };
    assert_eq!(refusal.code, Code::LockUnsafe);
}

#[test]
fn a_template_names_one_plain_place() {
    let place = |template: &str, run: &str| place_of_template(template.as_bytes(), run.as_bytes());
    let good = [
        (
            ".smithers/executions/{run}/logs/stream.ndjson",
            "r-1",
            ".smithers/executions/r-1/logs/stream.ndjson",
        ),
        ("logs/{run}.ndjson", "a b", "logs/a b.ndjson"),
        ("{run}", "...", "..."),
    ];
    for (template, run, want) in good {
        assert_eq!(place(template, run).unwrap().as_bytes(), want.as_bytes());
    }
    for (template, run) in [
        ("logs/stream.ndjson", "r"),
        ("{run}/{run}", "r"),
        ("{run}/{other}", "r"),
        ("{{run}}", "r"),
        ("/abs/{run}", "r"),
        ("../{run}", "r"),
        ("a/../{run}", "r"),
        ("./{run}", "r"),
        ("a//{run}", "r"),
        ("{run}/", "r"),
        ("~/{run}", "r"),
        ("{run}", ""),
        ("{run}", "."),
        ("{run}", ".."),
        ("x{run}", "/etc"),
        ("{run}", "a/b"),
        ("{run}", "{run}"),
        ("{run}", "a\nb"),
        ("{run}", "a\0b"),
        ("", "r"),
    ] {
        let refusal = place(template, run).unwrap_err();
        assert_eq!(refusal.code, Code::BadInput, "{template} {run:?}");
    }
}

proptest! {
    /// Whatever a template and an id are, what they make lies below the worktree and is what it seems.
    #[test]
    fn a_place_never_leaves_the_worktree(template in "[a-z./{}~]{0,12}(\\{run\\})?[a-z./{}~]{0,12}", run in "[a-z./{}]{0,6}") {
        if let Ok(place) = place_of_template(template.as_bytes(), run.as_bytes()) {
            let text = core::str::from_utf8(place.as_bytes()).unwrap();
            prop_assert_eq!(text, template.replace("{run}", &run));
            prop_assert!(text.split('/').all(|part| !part.is_empty() && part != "." && part != ".."));
        }
    }

    /// Only one text in a sea of others is tried again.
    #[test]
    fn whatever_else_is_written_is_unrelated(noise in proptest::collection::vec(any::<u8>(), 1..40), front in any::<bool>()) {
        let whole = if front {
            [noise.as_slice(), text(LOCK).as_bytes()].concat()
        } else {
            [text(LOCK).as_bytes(), noise.as_slice()].concat()
        };
        let mut one = tried(Some(128), "");
        one.stderr = whole;
        prop_assert_eq!(work().judge(1, &one), Next::End(End::Unrelated));
    }
}
