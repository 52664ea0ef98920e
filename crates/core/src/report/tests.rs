use super::*;
use proptest::prelude::*;

const PYTEST: &str = r#"<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="1" failures="1" skipped="1" tests="4"><testcase classname="tests.test_a" name="test_or" time="0.001" /><testcase classname="tests.test_a" name="test_and[&lt;x&gt;]"><failure message="assert 1 == 2">def test(): &amp; more</failure></testcase><testcase classname="tests.test_a" name="test_skip"><skipped type="pytest.skip" message="no">why</skipped></testcase><testcase classname="" name="tests.test_b"><error message="collection failure">x</error></testcase></testsuite></testsuites>"#;

const NODE: &str = r#"<?xml version="1.0" encoding="utf-8"?>
<testsuites>
	<testcase name="top" time="0.0006" classname="test"/>
	<testcase name="todo" classname="test" failure="x">
		<skipped type="todo" message="true"/>
		<failure type="testCodeFailure" message="x">y</failure>
	</testcase>
	<testsuite name="suite" tests="2" failures="1">
		<testcase name="in" classname="test"/>
		<testcase name="bad" classname="test" failure="y"><failure message="y">z</failure></testcase>
	</testsuite>
	<!-- tests 4 -->
</testsuites>
"#;

const CARGO: &str = "
running 3 tests
test a ... ok
test b ... ignored
test c ... ok

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.00s


running 1 test
test src/lib.rs - f (line 3) ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.31s

";

fn counts(passed: u64, failed: u64, skipped: u64, deselected: Option<u64>) -> Counts {
    Counts {
        passed,
        failed,
        skipped,
        deselected,
    }
}

#[test]
fn junit_of_pytest_and_of_node() {
    let report = junit(PYTEST.as_bytes()).unwrap();
    assert_eq!(report.counts, counts(1, 2, 1, None));
    assert_eq!(report.failures, ["tests.test_a::test_and[<x>]", "tests.test_b"]);
    let report = junit(NODE.as_bytes()).unwrap();
    assert_eq!(report.counts, counts(2, 1, 1, None));
    assert_eq!(report.failures, ["test::bad"]);
}

/// `node --test` says that a file without a test passed.
#[test]
fn a_file_without_a_test_is_no_test() {
    let case = |name: &str, inner: &str| {
        let text =
            format!("<testsuites><testcase name='{name}' classname='test'>{inner}</testcase></testsuites>");
        junit(text.as_bytes()).unwrap()
    };
    let empty = case("/v/tree/test/empty.test.js", "");
    assert_eq!(empty.counts, counts(0, 0, 0, None));
    let refusal = verdict(&empty, Ending::Exit(0)).unwrap_err();
    assert_eq!(refusal.reason.as_deref(), Some("no_test_ran"));
    assert_eq!(case("/v/tree/a.mjs", "<failure/>").counts, counts(0, 1, 0, None));
    assert_eq!(case("/v/tree answers", "").counts, counts(1, 0, 0, None));
    assert_eq!(case("a.js", "").counts, counts(1, 0, 0, None));
    let newer = "<testsuite><testcase name='t/runall' file='/v/tree/t/runall'/><testcase name='a' file='/v/tree/data'/></testsuite>";
    assert_eq!(junit(newer.as_bytes()).unwrap().counts, counts(1, 0, 0, None));
}

/// Whatever the file is called; only who can look knows that a name is that of a file.
#[test]
fn a_test_that_is_named_as_a_file_is_none() {
    let junit =
        "<testsuite><testcase name='/v/tree/runall'/><testcase name='/users' classname='x'/></testsuite>";
    for text in [junit, "1..2\nok 1 - /v/tree/runall\nok 2 - /users\n"] {
        let mut report = file(text.as_bytes()).unwrap();
        assert_eq!(report.counts, counts(2, 0, 0, None), "{text}");
        report.leave_out_files(|name| name == "/v/tree/runall");
        assert_eq!(report.counts, counts(1, 0, 0, None), "{text}");
        report.leave_out_files(|name| name == "/v/tree/runall");
        assert_eq!(report.counts, counts(1, 0, 0, None), "{text}");
    }
}

/// As GoogleTest 1.15 writes it for `--gtest_list_tests`: nothing of it ran.
#[test]
fn a_listing_is_no_run() {
    let list = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="2" name="AllTests">
  <testsuite name="Sum" tests="2">
    <testcase name="Adds" file="sum_test.cc" line="3" />
    <testcase name="Each/0" value_param="1" file="sum_test.cc" line="7" />
  </testsuite>
</testsuites>
"#;
    let report = file(list.as_bytes()).unwrap();
    assert_eq!(report.counts, counts(0, 0, 2, None));
    let refusal = verdict(&report, Ending::Exit(0)).unwrap_err();
    assert_eq!(refusal.reason.as_deref(), Some("no_test_ran"));
    // A run says how it went, whoever writes it.
    for of_a_run in [
        "status='run' result='completed'",
        "time='0.1'",
        "classname='tests.test_a'",
    ] {
        let text = format!("<testsuite><testcase name='a' file='a.py' line='1' {of_a_run}/></testsuite>");
        assert_eq!(
            junit(text.as_bytes()).unwrap().counts,
            counts(1, 0, 0, None),
            "{text}"
        );
    }
}

/// Puts cases in the place of their names.
fn spelled(text: &str) -> String {
    let flaky =
        "<testcase name='f'><flakyFailure message='no'><stackTrace>x</stackTrace></flakyFailure></testcase>";
    text.replace("{one}", "<testcase name='a'/>")
        .replace("{flaky}", flaky)
}

/// A sum that a suite states of itself may be missing; it may not say that something failed, or that nothing ran.
#[test]
fn a_report_that_contradicts_itself_is_no_evidence() {
    let cases = [
        // pytest --setup-only
        "<testsuites name='pytest tests'><testsuite name='pytest' errors='0' failures='0' skipped='0' tests='0'>{one}{one}</testsuite></testsuites>",
        "<testsuite tests='1'>{one}{one}</testsuite>",
        "<testsuites tests='1'><testsuite>{one}</testsuite><testsuite>{one}</testsuite></testsuites>",
        "<testsuite tests='0'><testsuite>{one}</testsuite></testsuite>",
        "<testsuites tests='3' failures='2' errors='1'><testsuite tests='3' failures='2' errors='1'>{one}<testcase name='off' status='notrun' result='suppressed'/></testsuite></testsuites>",
        "<testsuite errors='1'>{one}</testsuite>",
        "<testsuites failures='1'><testsuite>{one}</testsuite></testsuites>",
        "<testsuite failures='2'>{one}<testcase name='b'><flakyFailure/></testcase></testsuite>",
        // Of its tests it says itself that they were not run.
        "<testsuite tests='2' skipped='2' failures='0'>{one}{one}</testsuite>",
        "<testsuite tests='2' disabled='2'>{one}{one}</testsuite>",
        "<testsuite tests='2' skipped='1' disabled='1'>{one}{one}</testsuite>",
        "<testsuite tests='2' skipped='1'>{one}{one}</testsuite>",
        "<testsuite tests='2' skipped='2'>{one}<testcase name='s'><skipped/></testcase></testsuite>",
        "<testsuites tests='2' skipped='2'><testsuite>{one}{one}</testsuite></testsuites>",
        "<testsuite tests='2' skipped='2'><testcase name='a' status='run'/>{one}</testsuite>",
        // A sum is a number.
        "<testsuite tests='1' errors='one' failures='-1'>{one}</testsuite>",
        "<testsuite tests='1' failures='NaN'>{one}</testsuite>",
        "<testsuite tests='1' errors='-1'>{one}</testsuite>",
        "<testsuite tests='some'>{one}</testsuite>",
        "<testsuites skipped='1.5'><testsuite>{one}</testsuite></testsuites>",
        "<testsuite disabled='all'>{one}</testsuite>",
    ];
    for text in cases {
        let text = spelled(text);
        let refusal = verdict(&junit(text.as_bytes()).unwrap(), Ending::Exit(0)).unwrap_err();
        assert_eq!(refusal.code, Code::EvidenceForeign, "{text}");
        assert_eq!(refusal.reason.as_deref(), Some("report_malformed"), "{text}");
    }
    // What the command says of itself goes before a doubt.
    let report = junit(b"<testsuite errors='1'><testcase name='a'/></testsuite>").unwrap();
    assert_eq!(
        verdict(&report, Ending::Exit(1)).unwrap_err().code,
        Code::TestsFailed
    );
}

/// A failure is one wherever it stands, and what was not run did not pass.
#[test]
fn a_failure_outside_of_a_case_and_a_case_not_run_are_told() {
    for text in [
        "<testsuite tests='2' errors='1' failures='1'><error message='no'/><failure/>{one}</testsuite>",
        "<testsuites><failure/><testsuite>{one}</testsuite></testsuites>",
        "<testsuite>{one}<properties><error/></properties></testsuite>",
        "<testsuite>{one}<testcase name='b'><x><failure/></x></testcase></testsuite>",
        "<testsuite>{one}<testcase name='b' status='fail'/></testsuite>",
    ] {
        let text = spelled(text);
        let report = junit(text.as_bytes()).unwrap();
        assert_eq!(
            verdict(&report, Ending::Exit(0)).unwrap_err().code,
            Code::TestsFailed,
            "{text}"
        );
    }
    for status in [
        "status='notrun'",
        "status='Not Run'",
        "result='not_run'",
        "status='disabled'",
        "result='Skipped'",
        "status='untested'",
        "status='untested_undefined'",
        "status='undefined'",
        "status='ignored'",
        "result='Inconclusive'",
        "result='NotExecuted'",
    ] {
        let text = format!("<testsuite><testcase name='off' {status}/></testsuite>");
        assert_eq!(
            junit(text.as_bytes()).unwrap().counts,
            counts(0, 0, 1, None),
            "{text}"
        );
    }
}

/// Writers count differently, and all of these reports are honest.
#[test]
fn sums_of_honest_writers_are_taken() {
    let cases = [
        // pytest: each subtest that passed is counted, and written into the case of its test.
        (
            "<testsuites><testsuite tests='4' errors='0' failures='0' skipped='0'>{one}</testsuite></testsuites>",
            counts(1, 0, 0, None),
        ),
        // pytest: a fixture that skips in its teardown.
        (
            "<testsuite tests='2' skipped='1'><testcase name='a'><skipped/></testcase><testcase name='b'/></testsuite>",
            counts(1, 0, 1, None),
        ),
        // node: direct children alone are counted, and a failed test that is to do is a failure.
        (
            "<testsuites><testsuite name='s' tests='2' failures='1' errors='0' disabled='0' skipped='0'><testsuite name='t' tests='3' failures='1'>{one}{one}<testcase name='c' failure='x'><skipped type='todo'/><failure/></testcase></testsuite>{one}</testsuite></testsuites>",
            counts(3, 0, 1, None),
        ),
        // GoogleTest: disabled tests are among the tests; skipped ones have a result, and an element since 1.11.
        (
            "<testsuites tests='3' failures='0' disabled='1' errors='0'><testsuite name='A' tests='3' disabled='1'><testcase name='a' status='run' result='completed'/><testcase name='off' status='notrun' result='suppressed'/><testcase name='s' status='run' result='skipped'/></testsuite></testsuites>",
            counts(1, 0, 2, None),
        ),
        // mocha-junit-reporter: a root suite without a test; the sum over all in the root element.
        (
            "<testsuites name='Mocha Tests' tests='2' failures='0'><testsuite name='Root Suite' tests='0' failures='0'></testsuite><testsuite name='x' tests='2' failures='0'>{one}{one}</testsuite></testsuites>",
            counts(2, 0, 0, None),
        ),
        // vitest, jest-junit, cargo-nextest.
        (
            "<testsuites name='vitest tests' tests='2' failures='0' errors='0'><testsuite name='a.test.js' tests='2' failures='0' errors='0' skipped='1'>{one}<testcase name='b'><skipped/></testcase></testsuite></testsuites>",
            counts(1, 0, 1, None),
        ),
        (
            "<testsuites name='nextest-run' tests='2' failures='0' errors='0'><testsuite name='x' tests='2' disabled='0' errors='0' failures='0'>{one}{flaky}</testsuite></testsuites>",
            counts(2, 0, 0, None),
        ),
        // Surefire with reruns: the sums may be those of the first run, of the last, or of all.
        (
            "<testsuite tests='2' failures='0' errors='0'>{one}{flaky}</testsuite>",
            counts(2, 0, 0, None),
        ),
        (
            "<testsuite tests='1' failures='0' errors='0'>{one}{flaky}</testsuite>",
            counts(2, 0, 0, None),
        ),
        (
            "<testsuite tests='3' failures='1' errors='0'>{one}{flaky}</testsuite>",
            counts(2, 0, 0, None),
        ),
        // The same, where it ran what is disabled.
        (
            "<testsuites tests='2' failures='0' disabled='1' errors='0'><testsuite name='A' tests='2' disabled='1' skipped='0'><testcase name='a' status='run' result='completed'/><testcase name='DISABLED_b' status='run' result='completed'/></testsuite></testsuites>",
            counts(2, 0, 0, None),
        ),
        // Writers that count skipped tests and do not write them down.
        (
            "<testsuite tests='3' skipped='2'>{one}</testsuite>",
            counts(1, 0, 0, None),
        ),
        // Writers that leave skipped tests out of the sum, and sums that are empty.
        (
            "<testsuite tests='1' skipped='1'>{one}<testcase name='s'><skipped/></testcase></testsuite>",
            counts(1, 0, 1, None),
        ),
        (
            "<testsuite tests='1'>{one}<testcase name='s'><skipped/></testcase></testsuite>",
            counts(1, 0, 1, None),
        ),
        (
            "<testsuite tests='' failures='' errors=' '>{one}</testsuite>",
            counts(1, 0, 0, None),
        ),
    ];
    for (text, wanted) in cases {
        let text = spelled(text);
        let report = junit(text.as_bytes()).unwrap();
        assert_eq!(verdict(&report, Ending::Exit(0)), Ok(wanted), "{text}");
    }
}

#[test]
fn cargo_sums_over_binaries() {
    let report = cargo_test(CARGO.as_bytes(), Ending::Exit(0)).unwrap();
    assert_eq!(report.counts, counts(3, 0, 1, Some(4)));
    let failing = CARGO
        .replace("test c ... ok", "test c ... FAILED")
        .replace("ok. 2 passed; 0", "FAILED. 1 passed; 1");
    let report = cargo_test(failing.as_bytes(), Ending::Exit(101)).unwrap();
    assert_eq!(report.counts, counts(2, 1, 1, Some(4)));
    let refusal = verdict(&report, Ending::Exit(101)).unwrap_err();
    assert_eq!(
        (refusal.code, refusal.names),
        (Code::TestsFailed, vec!["c".to_owned()])
    );
}

#[test]
fn a_block_that_does_not_add_up_is_no_evidence() {
    let cases = [
        String::new(),
        "running 3 tests\n".to_owned(),
        CARGO.replace("running 3", "running 4"),
        CARGO.replace("running 3 tests\n", ""),
        CARGO.replace("test result: ok. 2 passed;", "test result: ok. many passed;"),
        "test result: ok. 9 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out".to_owned(),
        // What `cargo test --no-run` and `cargo test -- --list` print.
        "  Executable unittests src/lib.rs (target/debug/deps/a-0)\n".to_owned(),
        "a: test\nb: test\n\n2 tests, 0 benchmarks\n".to_owned(),
    ];
    for case in cases {
        let refusal = cargo_test(case.as_bytes(), Ending::Exit(0)).unwrap_err();
        assert_eq!(refusal.code, Code::EvidenceForeign, "{case}");
        match cargo_test(case.as_bytes(), Ending::Exit(101)) {
            Ok(_) => assert!(!case.is_empty()),
            Err(refusal) => assert_eq!(refusal.code, Code::TestsFailed, "{case}"),
        }
    }
}

#[test]
fn a_report_that_was_written_before_the_tests_is_of_a_cache() {
    let began = UnixMs(951_782_400_000); // 2000-02-29T00:00:00Z
    let with = |stamp: &str| {
        let text = format!(
            "<testsuites><testsuite timestamp='2000-02-29T00:00:01Z'/><testsuite timestamp='{stamp}'><testcase name='a'/></testsuite></testsuites>"
        );
        of_this_run(&file(text.as_bytes()).unwrap(), began)
    };
    for fresh in [
        "2000-02-29T00:00:00+00:00",
        "2000-02-28T23:56:00.123456Z",
        "2000-02-29T05:30:00.5+05:30",
        "2000-02-28T20:00:00-04:00",
        "2000-02-28T23:00:00",
        "2000-02-27T22:30:00.999",
        "yesterday",
        "",
        "1999-02-29T00:00:00Z",
    ] {
        assert!(with(fresh).is_ok(), "{fresh}");
    }
    for old in [
        "2000-02-28T23:54:00Z",
        "2000-02-29T05:20:00+05:30",
        "1999-02-28T00:00:00",
        "2000-02-27T21:00:00.000",
    ] {
        let refusal = with(old).unwrap_err();
        assert_eq!(refusal.reason.as_deref(), Some("cached_result"), "{old}");
        assert_eq!(refusal.code, Code::EvidenceForeign);
    }
}

#[test]
fn a_file_is_read_by_what_it_is() {
    for (text, format) in [
        ("<testsuite/>", Format::Junit),
        ("\n <?xml version='1.0'?>\n1..2", Format::Junit),
        ("TAP version 13\n1..0\n", Format::Tap),
        ("noise\nok 1\n1..1\n", Format::Tap),
        ("ok, all tests passed\n", Format::Junit),
        ("", Format::Junit),
    ] {
        assert_eq!(Format::of_file(text.as_bytes()), format, "{text}");
    }
    assert!(file(b"ok, all tests passed\n").is_err());
}

#[test]
fn the_verdict_needs_tests_and_an_agreeing_exit() {
    let green = Report {
        counts: counts(1, 0, 0, None),
        ..Report::default()
    };
    assert_eq!(verdict(&green, Ending::Exit(0)).unwrap(), green.counts);
    let code = |report: &Report, ending| verdict(report, ending).unwrap_err().code;
    assert_eq!(code(&green, Ending::Exit(3)), Code::TestsFailed);
    assert_eq!(code(&green, Ending::Signal(9)), Code::TestsFailed);
    for none in [
        counts(0, 0, 0, None),
        counts(0, 0, 3, None),
        counts(0, 0, 0, Some(3)),
    ] {
        let report = Report {
            counts: none,
            ..Report::default()
        };
        assert_eq!(code(&report, Ending::Exit(0)), Code::EvidenceForeign);
        assert_eq!(code(&report, Ending::Exit(5)), Code::EvidenceForeign);
    }
    assert_eq!(without_report(Ending::Exit(0)).code, Code::EvidenceForeign);
    assert_eq!(without_report(Ending::Exit(1)).code, Code::TestsFailed);
    assert_eq!(without_report(Ending::Signal(9)).code, Code::TestsFailed);
}

/// JUnit and TAP do not say how many tests were filtered out: what is not known is not 0.
#[test]
fn what_a_format_does_not_tell_is_not_zero() {
    let written = |counts: Counts| serde_json::to_string(&counts).unwrap();
    let why = |report: &Report| verdict(report, Ending::Exit(5)).unwrap_err().why;
    for none in [
        junit(b"<testsuites><testsuite/></testsuites>").unwrap(),
        tap(b"1..0 # SKIP nothing here\n").unwrap(),
    ] {
        assert_eq!(
            written(none.counts),
            r#"{"passed":0,"failed":0,"skipped":0,"deselected":null}"#
        );
        assert_eq!(
            why(&none),
            "no test ran: 0 skipped, deselected not told; the test command exited with status 5"
        );
    }
    let cargo = cargo_test(CARGO.as_bytes(), Ending::Exit(0)).unwrap();
    assert_eq!(cargo.counts.told_deselected(), "4 deselected");
    // As earlier builds wrote it.
    let before = r#"{"passed":1,"failed":0,"skipped":0,"deselected":0}"#;
    let before: Counts = serde_json::from_str(before).unwrap();
    assert_eq!(before.deselected, Some(0));
}

#[test]
fn a_refusal_names_at_most_twenty_tests() {
    let cases: String = (0..50)
        .map(|n| format!("<testcase name='t{n}'><failure/></testcase>"))
        .collect();
    let report = junit(format!("<testsuite>{cases}</testsuite>").as_bytes()).unwrap();
    assert_eq!(report.counts.failed, 50);
    let refusal = verdict(&report, Ending::Exit(1)).unwrap_err();
    assert_eq!(refusal.names.len(), NAMED_FAILURES);
    assert_eq!(refusal.why, "50 of 50 tests failed");
}

#[test]
fn what_is_not_whole_junit_is_no_evidence() {
    let deep = format!("<testsuites>{}", "<testsuite>".repeat(100));
    let nested = "<testsuite><testcase name='a'><testcase name='b'/></testcase></testsuite>";
    let entity = "<!DOCTYPE x [<!ENTITY a 'b'>]><testsuite><testcase name='&a;'/></testsuite>";
    let cases = [
        "",
        "{}",
        "<html/>",
        "<testsuite><testcase name='a'>",
        "<testsuite/><testsuite/>",
        "<testsuite></testsuites>",
        "<testsuite><testcase name='&evil;'/></testsuite>",
        deep.as_str(),
        nested,
        entity,
    ];
    for case in cases {
        let refusal = junit(case.as_bytes()).unwrap_err();
        assert_eq!(refusal.code, Code::EvidenceForeign, "{case}");
    }
    assert_eq!(junit(b"\xff\xfe").unwrap_err().code, Code::EvidenceForeign);
}

/// No prefix of a report is a whole report, wherever it is cut.
#[test]
fn a_cut_report_is_never_whole() {
    for text in [PYTEST, NODE.trim_end()] {
        for end in 0..text.len() {
            assert!(junit(&text.as_bytes()[..end]).is_err(), "{end}");
        }
        assert!(junit(text.as_bytes()).is_ok());
    }
}

proptest! {
    #[test]
    fn parsers_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        drop(junit(&bytes));
        drop(cargo_test(&bytes, Ending::Exit(0)));
    }

    #[test]
    fn marked_up_noise_never_panics(text in "[<>/a-z='\" &;!\\-\\[\\]]{0,120}") {
        drop(junit(format!("<testsuite>{text}</testsuite>").as_bytes()));
    }

    #[test]
    fn junit_counts_what_was_written(kinds in proptest::collection::vec(0_u8..4, 0..40)) {
        let body: String = kinds.iter().map(|kind| match kind {
            0 => "<testcase name='p'/>",
            1 => "<testcase name='f'><failure/></testcase>",
            2 => "<testcase name='e'><system-out>x</system-out><error>y</error></testcase>",
            _ => "<testcase name='s'><skipped/></testcase>",
        }).collect();
        let report = junit(format!("<testsuites><testsuite>{body}</testsuite></testsuites>").as_bytes()).unwrap();
        let of = |kind: u8| kinds.iter().filter(|k| **k == kind).count() as u64;
        prop_assert_eq!(report.counts, counts(of(0), of(1) + of(2), of(3), None));
    }
}

/// As Node 20 and 22 write suites and files without a test: like tests that passed.
#[test]
fn what_node_says_of_itself_bounds_what_passed() {
    let of = |cases: &str, sums: &str| {
        let text = format!("<testsuites>{cases}{sums}</testsuites>");
        junit(text.as_bytes()).unwrap()
    };
    let sums = "<!-- tests 1 --><!-- suites 2 --><!-- pass 1 --><!-- duration_ms 3 -->";
    let empty = "<testcase name='empty' classname='test'/><testcase name='inner' classname='test'/>";
    assert_eq!(of(&format!("{empty}<testcase name='a'/>"), sums).counts.passed, 1);
    assert_eq!(of(empty, "<!-- tests 0 --><!-- pass 0 -->").counts.passed, 0);
    let mut file = of("<testcase name='test/a.test.js' classname='test'/>", sums);
    assert_eq!(
        (file.counts.passed, file.rooted.as_slice()),
        (1, &["test/a.test.js".to_owned()][..])
    );
    file.leave_out_files(is_module);
    assert_eq!(file.counts.passed, 0);
    // What a test says is no sum of the runner, nor is what another writer leaves there.
    let said = "<testsuite name='s'><testcase name='a'/><!-- pass 0 --></testsuite>";
    assert_eq!(of(said, "").counts.passed, 1);
    assert!(of("<testcase name='a/b.js'/>", "").rooted.is_empty());
}

/// A doc-test that is `no_run` proves nothing of what it does.
#[test]
fn what_was_only_compiled_did_not_run() {
    let text = "running 3 tests\ntest src/lib.rs - f (line 1) - compile ... ok\ntest src/lib.rs - g (line 5) - compile fail ... ok\ntest src/lib.rs - h (line 9) ... ok\n\n\
                test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n";
    let report = cargo_test(text.as_bytes(), Ending::Exit(0)).unwrap();
    assert_eq!((report.counts.passed, report.counts.skipped), (2, 1));
}
