use super::*;

/// Runs a shell line as the test command; `{report}` in it is the place of the report.
fn shell(site: &Site, run: &str, line: &str) -> TestRun {
    let line = format!("{line} # {{report}}");
    run_tests(&site.tests(run, &[], &["sh", "-c", &line]), &never()).unwrap()
}

fn code(run: TestRun) -> Code {
    run.verdict.unwrap_err().code
}

const GREEN: &str = "<testsuite><testcase name=\"a\"/></testsuite>";

#[test]
fn the_report_decides_and_the_exit_must_agree() {
    let site = site();
    let write = |text: &str| format!("printf '%s' '{text}' > {{report}}");
    let run = |name: &str, line: &str| {
        let plan = site.tests(name, &[], &["sh", "-c", line]);
        run_tests(&plan, &never()).unwrap()
    };
    let green = run("green", &write(GREEN));
    assert_eq!(green.report.as_deref(), Some(GREEN.as_bytes()));
    assert_eq!(green.verdict.unwrap().passed, 1);
    let red = "<testsuite><testcase name=\"b\"><failure/></testcase></testsuite>";
    let refusal = run("red", &write(red)).verdict.unwrap_err();
    assert_eq!(
        (refusal.code, refusal.names),
        (Code::TestsFailed, vec!["b".to_owned()])
    );
    let hidden = format!("{}; exit 3", write(GREEN));
    let refusal = run("exit", &hidden).verdict.unwrap_err();
    assert!(refusal.why.contains("status 3"), "{refusal}");
    assert_eq!(refusal.code, Code::TestsFailed);
    assert_eq!(code(run("empty", &write("<testsuite/>"))), Code::EvidenceForeign);
    assert_eq!(code(run("cut", &write(&GREEN[..20]))), Code::EvidenceForeign);
}

#[test]
fn an_exit_alone_is_never_a_pass() {
    let site = site();
    assert_eq!(code(shell(&site, "silent", "true")), Code::EvidenceForeign);
    assert_eq!(code(shell(&site, "failing", "exit 1")), Code::TestsFailed);
    assert_eq!(code(shell(&site, "killed", "kill -9 $$")), Code::TestsFailed);
    let plan = site.tests("unknown", &[], &["true"]);
    assert_eq!(refused(run_tests(&plan, &never())).code, Code::BadConfig);
    let plan = site.tests("empty", &[], &[]);
    assert_eq!(refused(run_tests(&plan, &never())).code, Code::BadConfig);
}

#[test]
fn the_deadline_is_a_verdict() {
    let site = site();
    let mut plan = site.tests("slow", &[], &["sh", "-c", "sleep 60 # {report}"]);
    plan.deadline = Duration::from_millis(200);
    assert_eq!(code(run_tests(&plan, &never()).unwrap()), Code::TimedOut);
}

#[test]
fn a_report_must_be_fresh_and_of_this_run() {
    let site = site();
    site.write("out/r.xml", GREEN);
    let file = |run: &str, line: &str| {
        let mut plan = site.tests(run, &[], &["sh", "-c", line]);
        plan.report = ReportFrom::File(RelPath::parse(b"out/r.xml").unwrap());
        plan.writable = vec![RelPath::parse(b"out").unwrap()];
        run_tests(&plan, &never())
    };
    assert_eq!(refused(file("stale", "true")).code, Code::EvidenceForeign);
    std::fs::remove_file(site.tree.join("out/r.xml")).unwrap();
    let run = file("fresh", &format!("printf '%s' '{GREEN}' > out/r.xml")).unwrap();
    assert_eq!(run.verdict.unwrap().passed, 1);
    std::fs::remove_file(site.tree.join("out/r.xml")).unwrap();
    site.write("old.xml", GREEN);
    let linked = file("linked", "ln -s ../old.xml out/r.xml").unwrap();
    assert_eq!(code(linked), Code::EvidenceForeign);
    std::fs::remove_file(site.tree.join("out/r.xml")).unwrap();
    // The directory of a run is never used twice.
    assert_eq!(refused(file("fresh", "true")).code, Code::EvidenceForeign);
}

/// What a runner takes from a cache, or copies from the tree, is of another run, whatever it says.
#[test]
fn a_result_from_a_cache_is_no_evidence() {
    let site = site();
    let stamped = |at: &str| format!("<testsuite timestamp=\"{at}\"><testcase name=\"a\"/></testsuite>");
    site.write("old.xml", stamped("2020-01-01T00:00:00+00:00"));
    site.write("plain.xml", GREEN);
    let run = |name: &str, line: &str| {
        let plan = site.tests(name, &[], &["sh", "-c", line]);
        run_tests(&plan, &never()).unwrap()
    };
    for (name, line, reason) in [
        ("copied", "cat old.xml > {report}", "cached_result"),
        (
            "kept",
            "cp plain.xml {report} && touch -d 2020-01-01 {report}",
            "not_fresh",
        ),
    ] {
        let refusal = run(name, line).verdict.unwrap_err();
        assert_eq!(refusal.code, Code::EvidenceForeign, "{refusal}");
        assert_eq!(refusal.reason.as_deref(), Some(reason), "{refusal}");
    }
    let tap = run(
        "tap",
        "printf 'TAP version 14\\n1..2\\nok 1\\nok 2 # SKIP\\n' > {report}",
    );
    assert_eq!(tap.format, Some(semel_core::report::Format::Tap));
    let counts = tap.verdict.unwrap();
    assert_eq!((counts.passed, counts.skipped), (1, 1));
    let none = run("none", "printf '1..0 # SKIP all\\n' > {report}")
        .verdict
        .unwrap_err();
    assert_eq!(none.reason.as_deref(), Some("no_test_ran"));
}

/// `node --test` reports a file without a test as one that passed, named by its path, whatever the file is called.
#[test]
fn a_file_that_is_reported_as_a_test_is_none() {
    let site = site();
    site.write("runall", "process.exit(0)");
    let run = |name: &str, case: &str| {
        let line = format!("printf '<testsuite><testcase name=\"%s\"/></testsuite>' {case} > {{report}}");
        let plan = site.tests(name, &[], &["sh", "-c", &line]);
        run_tests(&plan, &never()).unwrap().verdict
    };
    for (name, case) in [
        ("tree", "\"$PWD/runall\""),
        ("home", "\"$HOME/gone\""),
        ("else", "/bin/sh"),
    ] {
        let refusal = run(name, case).unwrap_err();
        assert_eq!(
            refusal.reason.as_deref(),
            Some("no_test_ran"),
            "{name}: {refusal}"
        );
    }
    assert_eq!(run("route", "/users").unwrap().passed, 1);
}

#[test]
fn runners_of_javascript_are_told_where_their_report_goes() {
    use std::ffi::OsString;
    let known = |command: &[&str]| {
        let command: Vec<OsString> = command.iter().map(Into::into).collect();
        check_report(&command, &ReportFrom::Command).is_ok()
    };
    for command in [
        &["node", "--test"][..],
        &["node", "--no-warnings", "--test", "test/"],
        &["mocha", "test"],
        &["vitest", "run", "--dir", "test"],
        &["cargo", "nextest", "run"],
    ] {
        assert!(known(command), "{command:?}");
    }
    for command in [
        &["node", "test.js", "--test"][..],
        &["node", "--test", "--test-reporter=spec"],
        &["mocha", "--reporter", "dot"],
        &["vitest"],
        &["npm", "test"],
        &["cargo", "nextest", "list"],
    ] {
        assert!(!known(command), "{command:?}");
    }
    // Stands for mocha, and shows what it was told.
    let site = site();
    let mocha = site.tree.join("mocha");
    std::fs::write(
        &mocha,
        "#!/bin/sh\nset -e\n[ \"$1 $2 $3 $4 $5 $7\" = \"--no-dry-run --no-dryRun --reporter xunit --reporter-option spec\" ]\n\
         printf '<testsuite><testcase name=\"a\"/></testsuite>' > \"${6#output=}\"\n",
    )
    .unwrap();
    std::fs::set_permissions(&mocha, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let run = run_tests(&site.tests("mocha", &[], &["./mocha", "spec"]), &never()).unwrap();
    assert_eq!(run.verdict.unwrap().passed, 1);
}

/// The real runner, where it is one of the system: a file without a test is none.
#[test]
fn node_counts_its_tests() {
    if !Path::new("/usr/bin/node").is_file() {
        return skipped("node is not one of the system");
    }
    let site = site();
    site.write("empty.test.js", "");
    let run = |name: &str| run_tests(&site.tests(name, &[], &["node", "--test"]), &never()).unwrap();
    let refusal = run("empty").verdict.unwrap_err();
    assert_eq!(refusal.reason.as_deref(), Some("no_test_ran"), "{refusal}");
    site.write(
        "a.test.js",
        "const test = require('node:test'); test('a', () => {}); test('b', { skip: true }, () => {});\n",
    );
    let counts = run("tests").verdict.unwrap();
    assert_eq!((counts.passed, counts.skipped), (1, 1));
    site.write(
        "b.test.js",
        "require('node:test')('c', () => { throw new Error('x'); });\n",
    );
    let refusal = run("failing").verdict.unwrap_err();
    assert_eq!(
        (refusal.code, refusal.names),
        (Code::TestsFailed, vec!["c".to_owned()])
    );
}

#[test]
fn nextest_is_told_where_its_report_goes() {
    let site = site();
    // Stands for cargo: what nextest is told is what is proved here.
    let cargo = site.tree.join("cargo");
    std::fs::write(
        &cargo,
        "#!/bin/sh\nset -e\n[ \"$1 $2\" = \"nextest run\" ]\n\
         while [ \"$1\" != --tool-config-file ]; do shift; done\nconfig=${2#semel:}\n\
         path=$(sed -n 's/^path = \"\\(.*\\)\"/\\1/p' \"$config\")\n\
         printf '<testsuites><testsuite><testcase name=\"a\"/></testsuite></testsuites>' > \"$path\"\n",
    )
    .unwrap();
    std::fs::set_permissions(&cargo, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let plan = site.tests("nextest", &[], &["./cargo", "nextest", "run", "--workspace"]);
    let run = run_tests(&plan, &never()).unwrap();
    assert_eq!(run.verdict.unwrap().passed, 1);
}

#[test]
fn the_environment_is_a_list() {
    let site = site();
    let line = "env | cut -d= -f1 | sort | tr '\\n' ' ' > {report}";
    let mut plan = site.tests("env", &[], &["sh", "-c", line]);
    plan.env.insert("NAMED".into(), "by the job".into());
    let run = run_tests(&plan, &never()).unwrap();
    let names = String::from_utf8(run.report.unwrap()).unwrap();
    let allowed =
        "GIT_OPTIONAL_LOCKS HOME LANG NAMED PATH PWD PYTHONDONTWRITEBYTECODE PYTHONNOUSERSITE TMPDIR";
    for name in names.split_whitespace() {
        assert!(
            allowed.contains(name) || matches!(name, "OLDPWD" | "SHLVL" | "_"),
            "{name}"
        );
    }
    assert!(names.contains("NAMED") && names.contains("GIT_OPTIONAL_LOCKS"));
    let mut plan = site.tests("path", &[], &["sh", "-c", line]);
    plan.env.insert("PATH".into(), "/elsewhere".into());
    assert_eq!(refused(run_tests(&plan, &never())).code, Code::BadConfig);
}

#[test]
fn a_declared_directory_behind_a_link_is_refused() {
    let site = site();
    std::os::unix::fs::symlink("/tmp", site.tree.join("cache")).unwrap();
    let mut plan = site.tests("link", &[], &["sh", "-c", "true {report}"]);
    plan.writable = vec![RelPath::parse(b"cache/x").unwrap()];
    assert_eq!(refused(run_tests(&plan, &never())).code, Code::PathEscapesRoot);
}

/// The parts of the sandbox that evidence rests on, seen from inside of a test command.
#[test]
fn the_tree_is_read_only_and_nothing_answers_outside() {
    let site = site();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    site.write("file", "text");
    let line = format!(
        "if echo x > file; then echo WROTE; fi; if touch new; then echo MADE; fi; \
         if (exec 3<>/dev/tcp/127.0.0.1/{port}); then echo REACHED; fi; echo x > cache/ok && echo CACHED; \
         printf '%s' '{GREEN}' > {{report}}"
    );
    let mut plan = site.tests("inside", &[], &["bash", "-c", &line]);
    plan.writable = vec![RelPath::parse(b"cache").unwrap()];
    let run = run_tests(&plan, &never()).unwrap();
    if run.level.confinement != semel_core::Confinement::Full {
        return skipped(&format!("no full confinement: {:?}", run.level));
    }
    assert_eq!(
        String::from_utf8_lossy(&run.stdout),
        "CACHED\n",
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    assert_eq!(run.verdict.unwrap().passed, 1);
    assert_eq!(run.tree_ended, crate::process::TreeEnded::Proved);
    assert_eq!(std::fs::read_to_string(site.tree.join("file")).unwrap(), "text");
}
