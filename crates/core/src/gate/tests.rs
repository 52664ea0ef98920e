use super::*;
use crate::certificate::tests::{generation, key, path, statement};
use crate::certificate::{EarlierVerdict, Open, Outcome, PAYLOAD_TYPE, Statement, Weak, seal, sign};

use crate::confinement::Confinement;
use crate::record::Consumption;
use crate::report::Counts;

const NOW: UnixMs = UnixMs(1_790_000_100_000 + 3_600_000);

fn policy() -> Policy {
    Policy::parse(&format!(
        "[gate]\nkeys = [\"{}\"]\nrecipe = \"{}\"\ntoolchain = {{ python = \"{}\" }}\nconfinement = \"partial\"\n\
         max_attempts = 2\nmax_age_hours = 24\nlocks = [\"uv.lock\"]\nmin_tests = 600\nweak_allowed = []\n",
        key(1).public().to_ssh(),
        Sha256::of(b"recipe"),
        Sha256::of(b"python"),
    ))
    .unwrap()
}

fn candidate() -> Candidate {
    let statement = statement();
    Candidate {
        commit: ObjectId::parse("0eb8d29d2818df9207e51dfbc7259f4b15754a15").unwrap(),
        tree: statement.subjects.tree,
        locks: statement.subjects.locks,
        base: statement.predicate.base,
    }
}

fn judge(envelope: &[u8], candidate: &Candidate) -> Verdict {
    let record = Some(Sha256::of(b"record"));
    verdict(&policy(), envelope, record, candidate, NOW, &[])
}

fn signed() -> Vec<u8> {
    sign(&statement(), &key(1)).unwrap()
}

/// Judges a signed statement that need not be a sound one.
fn edited(edit: impl FnOnce(&mut Statement)) -> Vec<String> {
    let mut statement = statement();
    edit(&mut statement);
    let envelope = seal(PAYLOAD_TYPE, &statement.to_payload().unwrap(), &key(1)).unwrap();
    failed(&judge(&envelope, &candidate()))
}

#[test]
fn fewer_tests_than_the_base_had_are_named_and_refused_where_the_policy_says_so() {
    let judged = |passed: Option<u64>, rule: &str| {
        let mut statement = statement();
        match passed {
            Some(passed) => statement.predicate.base_tests.as_mut().unwrap().counts.passed = passed,
            None => statement.predicate.base_tests = None,
        }
        let envelope = sign(&statement, &key(1)).unwrap();
        let policy = Policy {
            test_drop: toml::Value::from(rule).try_into().unwrap(),
            ..policy()
        };
        let verdict = verdict(&policy, &envelope, None, &candidate(), NOW, &[]);
        let check = verdict.checks.iter().find(|check| check.name == "test_surface");
        let check = check.unwrap().clone();
        assert_eq!(verdict.pass, check.ok);
        check
    };
    let same = judged(Some(600), "shown");
    assert_eq!((same.ok, &same.why), (true, &None));
    assert_eq!(
        same.actual,
        "against aa5c1ee0f0e1a9f1e6a3c8e0a1b2c3d4e5f60718: 1 paths changed: tests/conftest.py; 600 tests passed, 600 for the base"
    );
    let fewer = judged(Some(612), "shown");
    assert!(fewer.ok);
    assert_eq!(
        fewer.why.as_deref(),
        Some("12 fewer tests passed than for the base")
    );
    assert!(judged(Some(600), "refused").ok);
    assert_eq!(judged(Some(612), "refused").why, fewer.why);
    assert!(!judged(Some(612), "refused").ok);
    assert!(judged(None, "shown").ok);
    assert!(!judged(None, "refused").ok, "unknown is a refusal");
}

/// Counts of another base, or of none, are no comparison with the base that the candidate is merged onto.
#[test]
fn a_certificate_that_was_compared_with_another_base_was_not_compared() {
    let other = BaseCommit {
        commit: ObjectId::from_raw(&[3; 20]).unwrap(),
        tree: ObjectId::from_raw(&[4; 20]).unwrap(),
    };
    let same = statement().predicate.base;
    let own = same.map(|base| BaseCommit {
        tree: candidate().tree,
        ..base
    });
    let squash = same.map(|base| BaseCommit {
        commit: other.commit,
        ..base
    });
    for (made, given, why) in [
        (same, same, None),
        (same, squash, None),
        (same, None, Some("the gate was given no base")),
        (None, same, Some("made without a base")),
        (None, None, Some("made without a base")),
        (Some(other), same, Some("another base")),
        (same, Some(other), Some("another base")),
        (own, own, Some("the candidate itself")),
    ] {
        let mut statement = statement();
        statement.predicate.base = made;
        let envelope = sign(&statement, &key(1)).unwrap();
        let candidate = Candidate {
            base: given,
            ..candidate()
        };
        for (rule, ok) in [(DropRule::Refused, why.is_none()), (DropRule::Shown, true)] {
            let policy = Policy {
                test_drop: rule,
                ..policy()
            };
            let verdict = verdict(&policy, &envelope, None, &candidate, NOW, &[]);
            let check = verdict.checks.iter().find(|c| c.name == "test_surface").unwrap();
            assert_eq!((verdict.pass, check.ok), (ok, ok), "{made:?} {given:?}");
            let told = check.why.clone().unwrap_or_default();
            match why {
                None => assert_eq!(told, ""),
                Some(why) => assert!(told.starts_with("not compared: ") && told.contains(why), "{told}"),
            }
            assert_eq!(
                check.actual.contains("no base"),
                made.is_none(),
                "{}",
                check.actual
            );
        }
    }
}

fn failed(verdict: &Verdict) -> Vec<String> {
    let names = verdict.refusal().map(|refusal| refusal.names).unwrap_or_default();
    assert_eq!(verdict.pass, names.is_empty());
    names
}

#[test]
fn the_certified_tree_passes_as_often_as_it_is_asked() {
    let first = judge(&signed(), &candidate());
    assert_eq!(failed(&first), [""; 0]);
    assert_eq!(judge(&signed(), &candidate()), first);
    // A squash: another commit, an equal tree.
    let mut squash = candidate();
    squash.commit = ObjectId::parse("fcb22a7ba9e89ff29e9b6ea78bc2be7dbe0b730d").unwrap();
    assert!(judge(&signed(), &squash).pass);
    let names: Vec<String> = first.checks.iter().map(Check::label).collect();
    assert_eq!(
        names,
        [
            "signature",
            "key_trusted",
            "key_revoked",
            "predicate",
            "verdict_pass",
            "tree",
            "locks",
            "lock:ui/package-lock.json",
            "lock:uv.lock",
            "record_verdict",
            "tests",
            "test_surface",
            "recipe",
            "toolchain:python",
            "confinement",
            "weak",
            "unbound_install",
            "attempts",
            "age"
        ]
    );
    let json = serde_json::to_string(&first).unwrap();
    assert_eq!(serde_json::from_str::<Verdict>(&json).unwrap(), first);
}

#[test]
fn one_flipped_bit_anywhere_is_refused() {
    let envelope = signed();
    for at in 0..envelope.len() {
        let mut flipped = envelope.clone();
        flipped[at] ^= 1 << (at % 8);
        let verdict = judge(&flipped, &candidate());
        assert!(!verdict.pass, "byte {at}");
        assert!(failed(&verdict).contains(&"signature".to_owned()), "byte {at}");
    }
}

#[test]
fn every_mismatch_of_content_has_its_name() {
    assert_eq!(
        edited(|s| s.subjects.tree = ObjectId::from_raw(&[1; 20]).unwrap()),
        ["tree"]
    );
    assert_eq!(
        edited(|s| {
            s.subjects.locks.insert(path("uv.lock"), Sha256::of(b"x"));
        }),
        ["lock:uv.lock"]
    );
    assert_eq!(
        edited(|s| {
            s.subjects.locks.remove(&path("uv.lock"));
        }),
        ["lock:uv.lock"]
    );
    assert_eq!(
        edited(|s| {
            s.subjects.locks.insert(path("Cargo.lock"), Sha256::of(b"x"));
        }),
        ["lock:Cargo.lock"]
    );
    assert_eq!(
        edited(|s| s.subjects.record = Some(Sha256::of(b"x"))),
        ["record_verdict"]
    );
    assert_eq!(edited(|s| s.subjects.record = None), ["record_verdict"]);
    assert_eq!(
        edited(
            |s| s.predicate.verdict = Outcome::Refused(Refusal::new(Code::TestsFailed, "two tests failed"))
        ),
        ["verdict_pass"]
    );
    // Several at once are all named, in the order of the checks.
    assert_eq!(
        edited(|s| {
            s.subjects.tree = ObjectId::from_raw(&[1; 20]).unwrap();
            s.predicate.recipe = Sha256::of(b"true");
            s.predicate.report = None;
        }),
        ["tree", "tests", "recipe"]
    );
}

#[test]
fn another_recipe_or_tool_has_its_name() {
    let python = || Sha256::of(b"another python");
    assert_eq!(edited(|s| s.predicate.recipe = Sha256::of(b"true")), ["recipe"]);
    assert_eq!(
        edited(|s| s.predicate.toolchain[0].sha256 = python()),
        ["toolchain:python"]
    );
    assert_eq!(edited(|s| s.predicate.toolchain.clear()), ["toolchain:python"]);
    assert_eq!(
        edited(|s| {
            let mut second = s.predicate.toolchain[0].clone();
            second.sha256 = python();
            s.predicate.toolchain.push(second);
        }),
        ["toolchain:python"]
    );
}

#[test]
fn whatever_a_policy_demands_has_its_name() {
    assert_eq!(
        edited(|s| s.predicate.confinement.confinement = Confinement::None),
        ["confinement"]
    );
    assert_eq!(edited(|s| s.predicate.report = None), ["tests"]);
    assert_eq!(
        edited(|s| {
            s.predicate.weak.push(Weak {
                name: "cut_not_visible".to_owned(),
                about: "requirements.txt".to_owned(),
            });
        }),
        ["weak"]
    );
    assert_eq!(
        edited(|s| {
            s.predicate.attempt = crate::ids::AttemptId(3);
            let mut third = s.predicate.earlier[0].clone();
            third.attempt = crate::ids::AttemptId(2);
            third.generation = generation(7);
            s.predicate.earlier.push(third);
        }),
        ["attempts"]
    );
    // An earlier pass is held against nothing; an attempt that is told twice is.
    let none: [&str; 0] = [];
    assert_eq!(
        edited(|s| {
            let mut third = s.predicate.earlier[0].clone();
            third.generation = generation(7);
            third.verdict = EarlierVerdict::Pass;
            s.predicate.earlier.push(third);
        }),
        none
    );
    assert_eq!(
        edited(|s| s.predicate.earlier[0].generation = s.predicate.generation.clone()),
        ["attempts"]
    );
    assert_eq!(
        edited(|s| s.predicate.issued_at = UnixMs(NOW.0 - 25 * 3_600_000)),
        ["age"]
    );
    assert_eq!(
        edited(|s| s.predicate.issued_at = UnixMs(NOW.0 + CLOCK_SKEW_MS + 1)),
        ["age"]
    );
    assert_eq!(
        edited(|s| s.predicate.issued_at = UnixMs(NOW.0 + CLOCK_SKEW_MS)),
        [""; 0]
    );
}

/// What had not ended counts, whatever came of it; told twice, or beside its own end, it is not to be believed.
#[test]
fn attempts_that_are_open_count() {
    let none: [&str; 0] = [];
    let open = |n| Open {
        attempt: crate::ids::AttemptId(3),
        generation: generation(n),
    };
    assert_eq!(
        edited(|s| {
            s.predicate.earlier.clear();
            s.predicate.open = vec![open(7)];
        }),
        none
    );
    assert_eq!(edited(|s| s.predicate.open = vec![open(7)]), ["attempts"]);
    assert_eq!(
        edited(|s| {
            s.predicate.open = vec![Open {
                generation: s.predicate.earlier.remove(0).generation,
                ..open(7)
            }];
        }),
        none
    );
    assert_eq!(
        edited(|s| {
            s.predicate.earlier[0].verdict = EarlierVerdict::Pass;
            s.predicate.open = vec![Open {
                generation: s.predicate.earlier[0].generation.clone(),
                ..open(7)
            }];
        }),
        ["attempts"]
    );
}

#[test]
fn tests_must_have_run_and_held() {
    let counts = |passed, failed, skipped| {
        edited(|s| {
            s.predicate.report.as_mut().unwrap().counts = Counts {
                passed,
                failed,
                skipped,
                deselected: None,
            };
        })
    };
    assert_eq!(counts(0, 0, 0), ["tests"]);
    assert_eq!(counts(0, 0, 700), ["tests"]);
    assert_eq!(counts(699, 1, 0), ["tests"]);
    assert_eq!(counts(599, 0, 101), ["tests"]);
    assert_eq!(counts(600, 0, 100), [""; 0]);
}

#[test]
fn a_weak_binding_is_shown_and_refused_where_the_policy_says_so() {
    let mut statement = statement();
    statement.predicate.weak.push(Weak {
        name: "cut_not_visible".to_owned(),
        about: "requirements.txt".to_owned(),
    });
    let envelope = sign(&statement, &key(1)).unwrap();
    for (allowed, want) in [
        (Some(vec![]), 1),
        (Some(vec!["build_backend_unbound"]), 1),
        (Some(vec!["cut_not_visible"]), 0),
        (None, 0),
    ] {
        let mut policy = policy();
        policy.weak_allowed = allowed.map(|names| names.into_iter().map(str::to_owned).collect());
        let verdict = verdict(&policy, &envelope, None, &candidate(), NOW, &[]);
        assert_eq!(failed(&verdict).len(), want);
        let check = verdict.checks.iter().find(|check| check.name == "weak").unwrap();
        assert_eq!(check.actual, "cut_not_visible (requirements.txt)");
    }
}

#[test]
fn what_a_command_installed_passes_only_where_it_was_asked_for() {
    let mut statement = statement();
    for about in ["by the command `pdm sync`", "tree/.venv: more"] {
        statement.predicate.weak.push(Weak {
            name: certificate::UNBOUND_INSTALL.to_owned(),
            about: about.to_owned(),
        });
    }
    let envelope = sign(&statement, &key(1)).unwrap();
    let failed_by = |rule, allowed: Option<&[&str]>| {
        let mut policy = policy();
        policy.unbound_install = rule;
        policy.weak_allowed = allowed.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        let verdict = verdict(&policy, &envelope, None, &candidate(), NOW, &[]);
        let check = verdict
            .checks
            .iter()
            .find(|c| c.name == "unbound_install")
            .unwrap();
        assert!(
            check.actual.starts_with("by the command `pdm sync`; and 1 more"),
            "{check:?}"
        );
        failed(&verdict)
    };
    assert_eq!(failed_by(UnboundRule::Refused, None), ["unbound_install"]);
    // A name on the list of weak bindings is not enough, and the rule alone is not either.
    let name = &["unbound_install"][..];
    assert_eq!(failed_by(UnboundRule::Refused, Some(name)), ["unbound_install"]);
    assert_eq!(failed_by(UnboundRule::Accepted, Some(&[])), ["weak"]);
    assert!(failed_by(UnboundRule::Accepted, Some(name)).is_empty());
    assert!(failed_by(UnboundRule::Accepted, None).is_empty());
    // Unset, it is refused.
    assert_eq!(policy().unbound_install, UnboundRule::Refused);
    assert!(failed(&judge(&signed(), &candidate())).is_empty());
    let text = "[gate]\nrecipe = \"any\"\nkeys = []\nunbound_install = \"maybe\"\n";
    assert_eq!(Policy::parse(text).unwrap_err().code, Code::BadConfig);
}

#[test]
fn the_candidate_must_be_what_was_certified() {
    let with = |edit: &dyn Fn(&mut Candidate)| {
        let mut candidate = candidate();
        edit(&mut candidate);
        failed(&judge(&signed(), &candidate))
    };
    assert_eq!(
        with(&|c| c.tree = ObjectId::from_raw(&[2; 20]).unwrap()),
        ["tree"]
    );
    assert_eq!(
        with(&|c| c.tree = ObjectId::from_raw(&[2; 32]).unwrap()),
        ["tree"]
    );
    assert_eq!(
        with(&|c| c.locks.clear()),
        ["lock:ui/package-lock.json", "lock:uv.lock"]
    );
    assert_eq!(
        with(&|c| {
            c.locks.insert(path("uv.lock"), Sha256::of(b"x"));
        }),
        ["lock:uv.lock"]
    );
    assert_eq!(
        with(&|c| {
            c.locks.insert(path("sub/poetry.lock"), Sha256::of(b"x"));
        }),
        ["lock:sub/poetry.lock"]
    );
    let mut bare = statement();
    bare.subjects.locks.clear();
    let envelope = seal(PAYLOAD_TYPE, &bare.to_payload().unwrap(), &key(1)).unwrap();
    let mut candidate = candidate();
    candidate.locks.clear();
    assert_eq!(failed(&judge(&envelope, &candidate)), ["lock:uv.lock"]);
    let mut policy = policy();
    policy.locks.clear();
    let verdict = verdict(&policy, &envelope, None, &candidate, NOW, &[]);
    assert_eq!(failed(&verdict), ["locks"]);
}

#[test]
fn keys_are_known_and_not_revoked() {
    let foreign = judge(&sign(&statement(), &key(2)).unwrap(), &candidate());
    assert_eq!(failed(&foreign), ["signature", "key_trusted"]);
    // The rest is told, as a claim.
    let tree = foreign.checks.iter().find(|check| check.name == "tree").unwrap();
    assert!(tree.ok && tree.why.as_deref().unwrap().contains("claimed"));
    assert_eq!(foreign.key, None);

    for id in [key(1).public().id(), key(1).public().ssh_fingerprint()] {
        let verdict = verdict(&policy(), &signed(), None, &candidate(), NOW, &[id]);
        assert_eq!(failed(&verdict), ["key_revoked"]);
    }
    let other = [key(3).public().id()];
    assert!(verdict(&policy(), &signed(), None, &candidate(), NOW, &other).pass);

    // A revoked key stays revoked where nothing verifies: each name of it counts.
    let mut envelope: serde_json::Value = serde_json::from_slice(&signed()).unwrap();
    envelope["signatures"].as_array_mut().unwrap().remove(0);
    envelope["payload"] = "e30=".into();
    let envelope = serde_json::to_vec(&envelope).unwrap();
    let verdict = verdict(
        &policy(),
        &envelope,
        None,
        &candidate(),
        NOW,
        &[key(1).public().id()],
    );
    let names = failed(&verdict);
    assert!(names.contains(&"key_revoked".to_owned()) && names.contains(&"signature".to_owned()));
    assert!(!names.contains(&"key_trusted".to_owned()));
}

#[test]
fn what_cannot_be_read_fails_every_check_by_name() {
    for envelope in [
        &b""[..],
        b"{}",
        b"null",
        b"\xff",
        &seal(PAYLOAD_TYPE, b"{}", &key(1)).unwrap(),
    ] {
        let verdict = judge(envelope, &candidate());
        let names = failed(&verdict);
        for name in [
            "predicate",
            "verdict_pass",
            "tree",
            "lock:uv.lock",
            "record_verdict",
            "tests",
            "age",
            "attempts",
            "weak",
            "unbound_install",
        ] {
            assert!(names.contains(&name.to_owned()), "{name}: {names:?}");
        }
        assert!(verdict.to_markdown().contains("refused"));
    }
    let text = String::from_utf8(statement().to_payload().unwrap()).unwrap();
    let other = text.replace(certificate::PREDICATE_TYPE, "https://slsa.dev/provenance/v1");
    let verdict = judge(
        &seal(PAYLOAD_TYPE, other.as_bytes(), &key(1)).unwrap(),
        &candidate(),
    );
    let predicate = verdict.checks.iter().find(|c| c.name == "predicate").unwrap();
    assert!(!predicate.ok && predicate.why.as_deref().unwrap().contains("slsa"));
    assert!(verdict.checks.iter().find(|c| c.name == "signature").unwrap().ok);
}

#[test]
fn a_policy_is_read_or_refused_with_its_line() {
    let key = key(1).public().to_ssh();
    let least = Policy::parse(&format!("[gate]\nkeys = [\"{key}\"]\nrecipe = \"any\"\n")).unwrap();
    assert_eq!(
        (least.max_attempts, least.min_tests, least.confinement),
        (3, 1, Confinement::Full)
    );
    assert_eq!(least.consumption, ConsumptionRule::Optional);
    for (text, names, word) in [
        ("[gate]\nrecipe = \"any\"\n".to_owned(), "gate.keys", "no key"),
        (
            "[gate]\nkeys = []\nrecipe = \"any\"\n".to_owned(),
            "gate.keys",
            "no key",
        ),
        (format!("[gate]\nkeys = [\"{key}\"]\n"), "line 1", "recipe"),
        (
            format!("[gate]\nkeys = [\"{key}\"]\nrecipe = \"any\"\nmax_age = 3\n"),
            "line 4",
            "max_age",
        ),
        (
            format!("[gate]\nkeys = [\"{key}\",\n \"nonsense\"]\nrecipe = \"any\"\n"),
            "line 2",
            "public key",
        ),
        (
            format!("[gate]\nkeys = [\"{key}\"]\nrecipe = \"some\"\n"),
            "line 3",
            "SHA-256",
        ),
        (
            format!("[gate]\nkeys = [\"{key}\"]\nrecipe = \"any\"\nlocks = [\"/uv.lock\"]\n"),
            "line 4",
            "absolute",
        ),
        (
            format!("[gate]\nkeys = [\"{key}\"]\nrecipe = \"any\"\nconfinement = \"most\"\n"),
            "line 4",
            "most",
        ),
        ("[gate]\nkeys = [\n".to_owned(), "line 2", "array"),
        ("[other]\n".to_owned(), "line 1", "other"),
    ] {
        let refusal = Policy::parse(&text).unwrap_err();
        assert_eq!(refusal.code, Code::BadConfig, "{text}");
        assert!(refusal.why.contains(word), "{text}: {refusal}");
        assert_eq!(refusal.names, [names], "{text}: {refusal}");
    }
}

#[test]
fn a_policy_without_keys_trusts_those_of_the_host_and_no_others() {
    let host = [key(3).public()];
    let none = "[gate]\nrecipe = \"any\"\n";
    assert_eq!(Policy::parse_trusting(none, &host).unwrap().keys, host);
    let refusal = Policy::parse_trusting(none, &[]).unwrap_err();
    assert_eq!(refusal.reason.as_deref(), Some("no_trusted_keys"));
    let named = format!(
        "[gate]\nkeys = [\"{}\"]\nrecipe = \"any\"\n",
        key(1).public().to_ssh()
    );
    assert_eq!(
        Policy::parse_trusting(&named, &host).unwrap().keys,
        [key(1).public()]
    );
}

#[test]
fn nothing_that_a_certificate_says_is_a_command_of_the_runner() {
    let pass = judge(&signed(), &candidate());
    let text = pass.to_annotations();
    assert!(text.starts_with("::notice title=semel gate%3A pass::"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(pass.to_outputs().starts_with("pass=true\ntree="));

    let mut statement = statement();
    statement.predicate.weak.push(Weak {
        name: "lock".to_owned(),
        about: "x\n::add-mask::y\r\n%0A ##[command]z".to_owned(),
    });
    let envelope = sign(&statement, &key(1)).unwrap();
    let verdict = judge(&envelope, &candidate());
    let text = verdict.to_annotations();
    assert!(
        text.lines().all(|line| line.starts_with("::error title=")),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(!text.contains("##[") && !text.contains('\r'), "{text}");
    assert_eq!(verdict.to_outputs().lines().count(), 6);
    assert!(verdict.to_outputs().starts_with("pass=false\n"));
}

#[test]
fn a_policy_comes_from_a_full_object_id_alone() {
    let id = "0eb8d29d2818df9207e51dfbc7259f4b15754a15";
    assert_eq!(policy_base(id).unwrap().to_string(), id);
    assert!(policy_base(&"0".repeat(64)).is_ok());
    for text in [
        "",
        "main",
        "HEAD",
        "refs/heads/main",
        "0eb8d29",
        "v1.0",
        "main@{1}",
        "HEAD~1",
        &id.to_uppercase(),
        &format!("{id}^"),
        &format!(" {id}"),
    ] {
        let refusal = policy_base(text).unwrap_err();
        assert_eq!(refusal.code, Code::BadInput, "{text}");
        assert_eq!(refusal.reason.as_deref(), Some("policy_base_not_an_object_id"));
    }
}

#[test]
fn a_target_is_a_ref_by_its_full_name() {
    for text in [
        "refs/heads/main",
        "refs/heads/a/b-1",
        "refs/heads/gh-readonly-queue/main/pr-1",
        "refs/tags/v1",
    ] {
        assert_eq!(Target::parse(text).unwrap().as_str(), text);
    }
    for text in [
        "",
        " ",
        "main",
        "HEAD",
        "refs",
        "refs/",
        "refs/heads",
        "refs/heads/",
        "/refs/heads/a",
        "refs//a",
        "refs/heads/a ",
        " refs/heads/a",
        "refs/heads/a\n",
        "refs/heads/a\nrefs/heads/b",
        "refs/heads/a b",
        "refs/heads/a\u{a0}b",
        "refs/heads/a..b",
        "refs/heads/a.lock",
        "refs/heads/.a",
        "refs/heads/a.",
        "refs/heads/a@{1}",
        "refs/heads/a~1",
        "refs/heads/a:b",
        "refs/heads/*",
    ] {
        let refusal = Target::parse(text).unwrap_err();
        assert_eq!(
            (refusal.code, refusal.reason.as_deref()),
            (Code::BadInput, Some("target_not_a_ref")),
            "{text:?}"
        );
        assert!(!refusal.names[0].is_empty());
    }
}

/// A lockfile that the policy wants and nobody has is told as what is wanted, not as absent twice.
#[test]
fn a_lockfile_that_is_nowhere_is_expected_all_the_same() {
    let mut wanting = policy();
    let path = RelPath::parse(b"other.lock").unwrap();
    wanting.locks.insert(path);
    let verdict = verdict(&wanting, &signed(), None, &candidate(), NOW, &[]);
    let check = verdict
        .checks
        .iter()
        .find(|check| check.label() == "lock:other.lock");
    let check = check.unwrap();
    assert_eq!(
        (check.expected.as_str(), check.actual.as_str()),
        ("present, and certified", "absent")
    );
}

/// What to do next is that of the check that failed.
#[test]
fn what_helps_depends_on_the_check() {
    let mut strict = policy();
    strict.consumption = ConsumptionRule::Required;
    let unasked = judge(&signed(), &candidate()).with_consumption(&strict, None);
    let next = unasked.refusal().unwrap().next();
    assert!(next.contains("--consume"), "{next}");
    let mut once = policy();
    once.max_attempts = 0;
    let verdict = verdict(&once, &signed(), None, &candidate(), NOW, &[]);
    let refusal = verdict.refusal().unwrap();
    assert_eq!(refusal.reason.as_deref(), Some("attempts"));
    assert!(
        !refusal.next().contains("certify the candidate again"),
        "{}",
        refusal.next()
    );
}

#[test]
fn a_certificate_is_consumed_for_one_target() {
    let first = Consumption {
        generation: generation(2),
        certificate: Sha256::of(&signed()),
        repository: "git@example.org:a/b".to_owned(),
        target: "refs/heads/main".to_owned(),
        tree: candidate().tree.to_string(),
        at: NOW,
    };
    assert_eq!(consume(None, &first), Ok(Consumed::First));
    assert_eq!(consume(Some(&first), &first), Ok(Consumed::AlreadySame));
    let other = Consumption {
        target: "refs/heads/release".to_owned(),
        repository: "git@example.org:a/c".to_owned(),
        ..first.clone()
    };
    let refused = consume(Some(&first), &other);
    let refusal = refused.clone().unwrap_err();
    assert_eq!(refusal.code, Code::GateRefused);
    assert_eq!(refusal.reason.as_deref(), Some("already_consumed"));
    assert_eq!(refusal.names, ["repository", "target"]);

    let pass = || judge(&signed(), &candidate());
    let mut strict = policy();
    strict.consumption = ConsumptionRule::Required;
    let same = pass().with_consumption(&strict, Some(&Ok(Consumed::AlreadySame)));
    assert!(same.pass && same.consumption == ConsumptionState::Same);
    assert_eq!(
        failed(&pass().with_consumption(&strict, Some(&refused))),
        ["consumption"]
    );
    assert_eq!(failed(&pass().with_consumption(&strict, None)), ["consumption"]);
    let unasked = pass().with_consumption(&policy(), None);
    assert!(unasked.pass && unasked.to_markdown().contains("consumption: not_checked"));
}

#[test]
fn the_table_cannot_be_written_by_what_is_judged() {
    let mut candidate = candidate();
    candidate.locks.insert(
        RelPath::parse(b"a|b`c``\n<img src=x> @all [x](http:x)").unwrap(),
        Sha256::of(b"x"),
    );
    let table = judge(&signed(), &candidate).to_markdown();
    let row = table.lines().find(|line| line.contains("@all")).unwrap();
    // One row, five cells, and the whole path inside of one code span with a longer fence.
    assert!(
        row.contains("``` lock:a\\|b`c``\\n<img src=x> @all [x](http:x) ```"),
        "{row}"
    );
    assert_eq!(row.replace("\\|", "").matches('|').count(), 6, "{row}");
    assert!(
        judge(&signed(), &tests::candidate())
            .to_markdown()
            .starts_with("**semel gate: pass**")
    );
}
