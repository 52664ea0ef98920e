//! A git that knows nothing of the machine's configuration.

use std::path::Path;
use std::process::Command;

/// Prepares a command of this git.
pub(crate) fn git_by(program: &Path, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args([
            "-c",
            "user.name=A",
            "-c",
            "user.email=a@example.org",
            "-c",
            "gc.auto=0",
        ])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_OPTIONAL_LOCKS", "0");
    command
}

/// Prepares a command of the first git.
pub(crate) fn git_command(dir: &Path, args: &[&str]) -> Command {
    git_by(Path::new("git"), dir, args)
}

/// Runs a command of the first git, and gives its bytes.
pub(crate) fn git_bytes(dir: &Path, args: &[&str]) -> Vec<u8> {
    let out = git_command(dir, args).output().unwrap();
    assert!(out.status.success(), "git {args:?}: {}", super::said(&out));
    out.stdout
}

/// Runs a command of the first git, and gives its text without blanks around.
pub(crate) fn git(dir: &Path, args: &[&str]) -> String {
    String::from_utf8(git_bytes(dir, args)).unwrap().trim().to_owned()
}
