//! Ways to make a runner say of tests that they passed where none of them ran.
//!
//! Most listings are seen by the report: it holds no test, or there is none. What is here writes a report like that of a
//! run. A file of settings is overridden where the runner is known and takes an argument for that; a test command that asks for it
//! is refused. It does *not* look into scripts.

use super::runner::base_name;
use semel_core::path::shown;
use semel_core::{Code, Refusal};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// What mocha is told, so that no file of settings says otherwise: since mocha 12 each spelling is an option of its own.
const NO_DRY_RUN: [&str; 2] = ["--no-dry-run", "--no-dryRun"];
/// From where mocha takes options that stand before those of its files, since version 10, whatever starts it.
const MOCHA_OPTIONS: &str = "MOCHA_OPTIONS";
/// By what mocha is run, if not by itself.
const LAUNCHERS: [&[u8]; 16] = [
    b"bun",
    b"bunx",
    b"c8",
    b"cross-env",
    b"env",
    b"nice",
    b"node",
    b"npm",
    b"npx",
    b"nyc",
    b"pnpm",
    b"pnpx",
    b"stdbuf",
    b"timeout",
    b"xvfb-run",
    b"yarn",
];
/// Runners that are looked for in the text of a shell.
const RUNNERS: [&[u8]; 16] = [
    b"_mocha",
    b"behave",
    b"cucumber",
    b"cucumber-js",
    b"ginkgo",
    b"jest",
    b"mocha",
    b"mocha.js",
    b"node",
    b"py.test",
    b"pytest",
    b"robot",
    b"rspec",
    b"tap",
    b"vitest",
    b"vitest.mjs",
];

/// Refuses a test command that asks for a run without tests.
///
/// # Errors
/// `bad_config`, reason `dry_run`, naming the argument.
pub(super) fn refuse(command: &[OsString]) -> Result<(), Refusal> {
    let found = command.iter().find_map(|argument| {
        let argument = argument.as_bytes();
        match argument.contains(&b' ') {
            true => in_text(argument),
            false => asks(argument).then_some(argument),
        }
    });
    match found {
        None => Ok(()),
        Some(word) => {
            let why =
                "the test command asks its runner for tests that are not run, and says that they passed";
            Err(Refusal::new(Code::BadConfig, why)
                .reason("dry_run")
                .name(shown(word)))
        }
    }
}

/// Finds such an argument behind a runner in a text, as of `sh -c`.
fn in_text(text: &[u8]) -> Option<&[u8]> {
    let mut words = text.split(|byte| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b';'));
    words.find(|word| RUNNERS.contains(&base_name(OsStr::from_bytes(word))))?;
    words.find(|word| asks(word))
}

/// Recognises `--dry-run` of mocha, rspec, robot, ginkgo and others; what reports earlier results as those of this run: `--merge-reports` of
/// vitest, `--test-rerun-failures` of Node.
fn asks(argument: &[u8]) -> bool {
    let Some(option) = argument.strip_prefix(b"-") else {
        return false;
    };
    let mut parts = option.splitn(2, |byte| *byte == b'=');
    let name = parts.next().unwrap_or_default();
    let letters = name.iter().filter(|byte| byte.is_ascii_alphanumeric());
    let name: Vec<u8> = letters.map(u8::to_ascii_lowercase).collect();
    let off = matches!(parts.next(), Some(b"false" | b"no" | b"0"));
    let dry = name.ends_with(b"dryrun") && !name.starts_with(b"no");
    !off && (dry || matches!(&name[..], b"mergereports" | b"testrerunfailures"))
}

/// Tells mocha to run its tests, whatever `.mocharc.*` or `package.json` says, where it stands in the command.
pub(super) fn override_settings(name: &OsStr, args: &mut Vec<OsString>) {
    let is_mocha =
        |word: &OsStr| matches!(base_name(word), b"mocha" | b"_mocha" | b"mocha.js" | b"mocha.mjs");
    let at = if is_mocha(name) {
        Some(0)
    } else if LAUNCHERS.contains(&base_name(name)) {
        let mocha = args.iter().position(|arg| is_mocha(arg));
        // A script may have its name, and a file of tests.
        let other = |arg: &OsString| matches!(arg.as_bytes(), b"run" | b"run-script" | b"--test");
        mocha.filter(|at| !args[..*at].iter().any(other)).map(|at| at + 1)
    } else {
        None
    };
    if let Some(at) = at {
        args.splice(at..at, NO_DRY_RUN.map(Into::into));
    }
}

/// Gives the variables by which runners that a script starts are told the same: mocha, since version 10, and cargo, which
/// would run no test where a file of settings names another program to run them (`env` runs what it is given).
pub(super) fn variables(node: bool, rust: bool) -> Vec<(String, String)> {
    let mut all = Vec::new();
    if node {
        all.push((MOCHA_OPTIONS.to_owned(), NO_DRY_RUN.join(" ")));
    }
    if rust {
        let arch = match std::env::consts::ARCH {
            "riscv64" => "riscv64gc",
            arch => arch,
        };
        for libc in ["GNU", "MUSL"] {
            let target = format!("{}_UNKNOWN_LINUX_{libc}", arch.to_uppercase());
            all.push((format!("CARGO_TARGET_{target}_RUNNER"), "env".to_owned()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[&str]) -> Vec<OsString> {
        line.iter().map(Into::into).collect()
    }

    #[test]
    fn what_asks_for_no_run_is_refused() {
        for line in [
            &["mocha", "--dry-run"][..],
            &["mocha", "--dryRun", "test"],
            &["mocha", "--dry-run=true"],
            &[
                "npx",
                "mocha",
                "--reporter-option",
                "output={report}",
                "--dry-run",
            ],
            &["rspec", "--dry-run", "--out", "{report}"],
            &["ginkgo", "--ginkgo.dry-run", "--junit-report={report}"],
            &["sh", "-c", "mocha --dry-run --reporter-option output={report}"],
            &["sh", "-c", "cd x; node_modules/.bin/mocha '--dry-run' > {report}"],
            &["vitest", "run", "--merge-reports", "old"],
            &["vitest", "run", "--mergeReports=old"],
            &["node", "--test", "--test-rerun-failures=state.json"],
        ] {
            let refusal = refuse(&words(line)).unwrap_err();
            let got = (refusal.code, refusal.reason.as_deref());
            assert_eq!(got, (Code::BadConfig, Some("dry_run")), "{line:?}");
        }
        for line in [
            &["mocha", "--no-dry-run"][..],
            &["mocha", "--dry-run=false", "dry-run"],
            &["pytest", "tests/test_dry-run.py"],
            &["sh", "-c", "tool deploy --dry-run && run {report}"],
            &["sh", "-c", "make --dry-run; pytest --junitxml={report}"],
            &["vitest", "run"],
        ] {
            assert_eq!(refuse(&words(line)), Ok(()), "{line:?}");
        }
    }

    #[test]
    fn mocha_is_told_to_run_wherever_it_stands() {
        let told = |line: &[&str]| {
            let mut args = words(&line[1..]);
            override_settings(OsStr::new(line[0]), &mut args);
            args
        };
        for (line, wanted) in [
            (&["mocha", "test"][..], &["+", "test"][..]),
            (&["./node_modules/.bin/mocha"], &["+"]),
            (&["npx", "--", "mocha", "a"], &["--", "mocha", "+", "a"]),
            (&["npm", "exec", "--", "mocha"], &["exec", "--", "mocha", "+"]),
            (&["env", "A=1", "mocha", "a"], &["A=1", "mocha", "+", "a"]),
            (
                &["c8", "--reporter", "text", "mocha"],
                &["--reporter", "text", "mocha", "+"],
            ),
            (
                &["node", "-r", "./x.js", "node_modules/mocha/bin/mocha.js"],
                &["-r", "./x.js", "node_modules/mocha/bin/mocha.js", "+"],
            ),
            (&["pnpm", "exec", "mocha"], &["exec", "mocha", "+"]),
            (&["node", "--test", "mocha.js"], &["--test", "mocha.js"]),
            (&["sh", "run.sh", "mocha"], &["run.sh", "mocha"]),
            (&["make", "mocha"], &["mocha"]),
            (&["npm", "run", "mocha"], &["run", "mocha"]),
        ] {
            let wanted = wanted.iter().flat_map(|word| match *word {
                "+" => NO_DRY_RUN.to_vec(),
                word => vec![word],
            });
            assert_eq!(told(line), words(&wanted.collect::<Vec<_>>()), "{line:?}");
        }
    }
    #[test]
    fn what_a_script_starts_is_told_by_variables() {
        assert!(variables(false, false).is_empty());
        let mocha = ("MOCHA_OPTIONS".to_owned(), "--no-dry-run --no-dryRun".to_owned());
        assert_eq!(variables(true, false), [mocha]);
        let arch = std::env::consts::ARCH.to_uppercase();
        let names: Vec<String> = variables(false, true).into_iter().map(|(name, _)| name).collect();
        for name in &names {
            assert!(
                name.starts_with(&format!("CARGO_TARGET_{arch}")) && name.ends_with("_RUNNER"),
                "{name}"
            );
        }
        assert_eq!(names.len(), 2);
    }
}
