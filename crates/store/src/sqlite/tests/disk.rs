//! The disk below: how often it is waited for, and what happens when it fails or is full.

use super::child::{command, skipped, works};
use std::path::Path;

fn said(before: &[&str], part: &str, dir: &Path) -> String {
    let output = command(before, part, dir).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{part}: {text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

fn line<'a>(text: &'a str, start: &str) -> &'a str {
    text.lines()
        .find_map(|line| line.strip_prefix(start))
        .unwrap_or_else(|| panic!("no line \"{start}\" in {text}"))
}

#[test]
fn a_process_that_may_open_no_more_files_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let said = said(&[], "no-descriptors", dir.path());
    assert_eq!(line(&said, "too_many "), "Some(\"descriptors\")");
    assert_eq!(line(&said, "803 entries, "), "faults []");
}

fn tracer() -> bool {
    let there = works(&["strace", "-e", "trace=none", "true"]);
    if !there {
        skipped("strace cannot trace here: fsyncs are neither counted nor made to fail");
    }
    there
}

#[test]
fn a_commit_waits_for_the_disk_once_or_not_at_all() {
    if !tracer() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let trace_arg = trace.to_str().unwrap().to_owned();
    let calls = "trace=fsync,fdatasync,stat,statx,newfstatat";
    let said = said(
        &["strace", "-f", "-qq", "-e", calls, "-o", &trace_arg],
        "count",
        dir.path(),
    );
    let trace = std::fs::read_to_string(trace).unwrap();
    for (name, must) in [("power", 100), ("process", 0)] {
        assert_eq!(line(&said, &format!("{name} commits ")), "100");
        let begins = trace.find(&format!("/{name}-begins")).unwrap();
        let ends = trace.find(&format!("/{name}-ends")).unwrap();
        let syncs = trace[begins..ends]
            .lines()
            .filter(|l| l.contains("fsync(") || l.contains("fdatasync("))
            .count();
        // The background syncs once each half second that this takes, at most.
        let took: usize = line(&said, &format!("{name} took_ms ")).parse().unwrap();
        let slack = if must == 0 { 1 + took / 500 } else { 0 };
        assert!(
            (must..=must + slack).contains(&syncs),
            "{name}: {syncs} syncs in 100 commits"
        );
    }
}

#[test]
fn a_failed_sync_poisons_the_process() {
    if !tracer() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Counted for each thread alone: the writer syncs at its start, for each verb of a volume, and for each intent.
    let fails = "inject=fsync,fdatasync:error=EIO:when=8+";
    let said = said(
        &["strace", "-f", "-qq", "-o", "/dev/null", "-e", fails],
        "until-poisoned",
        dir.path(),
    );
    assert!(line(&said, "failed ").starts_with("store_unavailable"), "{said}");
    let acked: usize = line(&said, "acked ").parse().unwrap();
    assert!((1..8).contains(&acked), "{said}");
    assert!(line(&said, "poisoned ").contains("COMMIT"), "{said}");
    let journal = super::open(dir.path()).unwrap();
    let kept = crate::Journal::open_calls(&journal).unwrap().len();
    assert!(kept >= acked, "{acked} answered, {kept} kept");
    assert_eq!(crate::Journal::check(&journal).unwrap().faults, vec![]);
}

#[test]
fn a_failed_write_poisons_the_process() {
    if !tracer() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let fails = "inject=pwrite64:error=EIO:when=200+";
    let said = said(
        &["strace", "-f", "-qq", "-o", "/dev/null", "-e", fails],
        "until-poisoned",
        dir.path(),
    );
    let acked: usize = line(&said, "acked ").parse().unwrap();
    assert!(acked > 0, "{said}");
    line(&said, "poisoned ");
    let journal = super::open(dir.path()).unwrap();
    assert_eq!(crate::Journal::open_calls(&journal).unwrap().len(), acked);
}

/// Plays a part with a small disk of its own; `None` where that cannot be had here.
fn on_a_small_disk(part: &str) -> Option<String> {
    if !works(&["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]) {
        skipped("no mount namespace here: a full disk is not tried");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=40m none \"$SEMEL_STORE_CHILD_DIR\" && exec \"$@\"";
    Some(said(
        &["unshare", "-rm", "sh", "-c", mount, "sh"],
        part,
        dir.path(),
    ))
}

#[test]
fn a_full_disk_refuses_what_is_new_and_keeps_receipts() {
    let Some(said) = on_a_small_disk("full") else {
        return;
    };
    assert_eq!(line(&said, "refused "), "io_failed Some(\"disk_full\")");
    assert_eq!(line(&said, "finished "), "40 reserve 0");
    assert_eq!(line(&said, "begun again, reserve "), "1048576");
}

#[test]
fn a_sync_that_finds_the_disk_full_gives_the_reserve_back_and_goes_on() {
    let Some(said) = on_a_small_disk("full-behind") else {
        return;
    };
    assert_eq!(line(&said, "reserve "), "0 poisoned None");
    assert_eq!(line(&said, "finished, open "), "0");
}

#[test]
fn a_journal_opens_on_a_full_disk() {
    let Some(said) = on_a_small_disk("full-start") else {
        return;
    };
    assert_eq!(line(&said, "opened, open "), "0");
}
