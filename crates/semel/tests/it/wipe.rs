//! `semel contract wipe`: what it must not touch, what it takes, and what a kill leaves.

use crate::harness::{Disk, Nobody, is_root, listed, mode, said, signal, skipped, wait_until};
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn a_wipe_refuses_what_it_must_not_touch() {
    let disk = Disk::new();
    let wipe = |workspace: &str, generation: &str, more: &[&str]| -> i32 {
        let mut command = disk.command(&[&["wipe"], more].concat(), generation, "-");
        let out = command
            .env("WORKSPACE", workspace)
            .current_dir(disk.dir.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            out.status.success() || text.lines().count() == 3,
            "{}",
            said(&out)
        );
        out.status.code().unwrap()
    };
    let top = disk.dir.path().to_str().unwrap().to_owned();
    let place = disk.path().to_str().unwrap().to_owned();
    std::fs::create_dir_all(disk.dir.path().join("home/.local/state/semel/volumes")).unwrap();
    std::fs::create_dir_all(disk.dir.path().join("repository/.git")).unwrap();
    std::fs::create_dir_all(disk.dir.path().join("linked")).unwrap();
    symlink("../repository/.git", disk.dir.path().join("linked/.git")).unwrap();
    symlink(disk.path(), disk.dir.path().join("a-link-to-it")).unwrap();
    disk.write(".generation", "g-0\n");
    let before = disk.picture();
    for (workspace, code) in [
        ("", 2),
        ("disk", 2),
        ("./disk", 2),
        ("/", 2),
        ("/tmp", 2),
        ("/tmp////////", 2),
        ("///////////", 2),
        (&format!("{top}/home"), 14),
        (&top, 14),
        ("/usr/../root", 14),
        (&format!("{top}/home/.local/state/semel"), 14),
        (&format!("{top}/home/.local/state/semel/volumes"), 14),
        (&format!("{top}/home/.local/state"), 14),
        (&format!("{top}/repository"), 14),
        (&format!("{top}/linked"), 14),
        (&format!("{top}/a-link-to-it"), 14),
        (&format!("{top}/a-link-to-it/"), 14),
        (&format!("{top}/a-link-to-it/."), 14),
        (&format!("{top}/a-link-to-it//./"), 14),
        (&format!("{top}/a-link-to-it/../disk"), 14),
        (&format!("{top}/nothing-there"), 65),
        (&format!("{place}/requirements.txt"), 65),
        (&format!("{place}/requirements.txt/below"), 65),
    ] {
        assert_eq!(wipe(workspace, "g-1", &["--adopt"]), code, "{workspace}");
    }
    assert_eq!(disk.picture(), before, "nothing was touched");
}

#[test]
fn a_wipe_takes_what_is_ours_or_adopted() {
    let disk = Disk::new();
    disk.write(".generation", "g-0\n");
    let before = disk.picture();
    let place = disk.path().to_str().unwrap().to_owned();
    let wipe = |workspace: &str, generation: &str, more: &[&str]| {
        let mut command = disk.command(&[&["wipe"], more].concat(), generation, "-");
        command
            .env("WORKSPACE", workspace)
            .output()
            .unwrap()
            .status
            .code()
            .unwrap()
    };
    let unset = disk.run(&["wipe"], "-", "-");
    assert_eq!(unset.status.code(), Some(2));
    assert_eq!(wipe(&place, "", &[]), 2);
    assert_eq!(disk.picture(), before, "nothing was touched");
    let mut nowhere = disk.command(&["wipe", "--adopt"], "g-1", "-");
    nowhere.env_remove("WORKSPACE").current_dir(disk.path());
    assert_eq!(nowhere.output().unwrap().status.code(), Some(2));
    std::fs::remove_file(disk.at(".generation")).unwrap();
    let out = disk.refused(&["wipe"], "g-1", "-", 14);
    assert!(
        String::from_utf8_lossy(&out.stderr).contains("not_ours"),
        "{}",
        said(&out)
    );
    let state = disk.dir.path().join("disk");
    let mut as_state = disk.command(&["wipe", "--adopt", "--state"], "g-1", "-");
    assert_eq!(as_state.arg(state).output().unwrap().status.code(), Some(14));
    assert_eq!(wipe(&place, "g-1", &["--adopt"]), 0);
    assert_eq!(listed(&disk.path()), [".generation", ".volume_clean"]);
    assert_eq!(std::fs::read_to_string(disk.at(".generation")).unwrap(), "g-1\n");
    // A wiped disk may carry an old generation string again, and is ours now.
    disk.write("requirements.txt", "");
    assert_eq!(disk.check("g-1", "1"), 0);
    assert_eq!(wipe(&place, "g-1", &[]), 0);
    disk.write("requirements.txt", "");
    assert_eq!(disk.check("g-1", "2"), 0);
}

fn fill(disk: &Disk, dirs: usize, files: usize) {
    for d in 0..dirs {
        let dir = disk.at(&format!("tree/{}/{d}", d % 10));
        std::fs::create_dir_all(&dir).unwrap();
        for f in 0..files {
            std::fs::write(dir.join(f.to_string()), "").unwrap();
        }
    }
    disk.write(".hidden/file", "");
    symlink("/etc", disk.at("link")).unwrap();
}

#[test]
fn a_wipe_takes_everything_even_without_permissions() {
    let disk = Disk::new();
    let Some(nobody) = Nobody::new(&disk) else { return };
    fill(&disk, 20, 3);
    std::fs::create_dir_all(disk.at("closed/inner/innermost")).unwrap();
    disk.write("closed/inner/innermost/file", "");
    let owned = Command::new("chown")
        .args(["-R", "-h", "65534:65534"])
        .arg(disk.path())
        .status();
    assert!(owned.unwrap().success());
    for place in ["closed/inner/innermost", "closed/inner", "closed", "tree/3"] {
        mode(&disk.at(place), 0);
    }
    symlink("..", disk.at("up")).unwrap();
    assert_eq!(nobody.code(&disk, &["wipe", "--adopt"]), 0);
    assert_eq!(listed(&disk.path()), [".generation", ".volume_clean"]);
}

/// A wipe that began would carry the mount along, and could not end: it does not begin.
#[test]
fn a_wipe_enters_no_mount() {
    if !is_root() {
        return skipped("only root can mount");
    }
    let disk = Disk::new();
    for deep in ["mounted", "below/this/mounted"] {
        let outside = disk.dir.path().join("outside");
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("precious"), "kept").unwrap();
        std::fs::create_dir_all(disk.at(deep)).unwrap();
        disk.write("other/file", "");
        let mount = |program: &str, args: &[&Path]| {
            let mut command = Command::new(program);
            if program == "mount" {
                command.arg("--bind");
            }
            command.args(args).output().is_ok_and(|out| out.status.success())
        };
        if !mount("mount", &[&outside, &disk.at(deep)]) {
            return skipped("nothing can be mounted here");
        }
        let before = disk.picture();
        let out = disk.run(&["wipe", "--adopt", "--json"], "g-1", "-");
        let kept = std::fs::read_to_string(outside.join("precious"));
        assert_eq!(disk.picture(), before, "nothing was touched");
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let now: Vec<&str> = mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(1))
            .filter(|place| place.starts_with(disk.path().to_str().unwrap()))
            .collect();
        assert_eq!(now, [disk.at(deep).to_str().unwrap()]);
        assert!(mount("umount", &[Path::new(now[0])]));
        assert_eq!(kept.unwrap(), "kept");
        let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(told["code"], "precondition_failed", "{}", said(&out));
        assert_eq!(told["reason"], "mount");
        assert_eq!(told["names"][0], disk.at(deep).to_str().unwrap());
        assert!(!disk.dirty(), "{deep}");
        let out = disk.run(&["wipe", "--adopt"], "g-1", "-");
        assert!(out.status.success(), "{}", said(&out));
        assert_eq!(std::fs::read_to_string(outside.join("precious")).unwrap(), "kept");
        assert_eq!(listed(&disk.path()), [".generation", ".volume_clean"]);
    }
}

/// A wipe that is killed anywhere leaves a dirty disk that the next wipe takes up, without being told to adopt it.
#[test]
fn a_killed_wipe_leaves_a_dirty_disk_that_is_still_ours() {
    let mut cut_short = 0;
    for round in 0_u64..9 {
        let disk = Disk::new();
        disk.write(".generation", "g-0\n");
        fill(&disk, 30, 25);
        let mut child = disk
            .command(&["wipe"], "g-1", "-")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Sooner and later: from before the mark to among the last files.
        let kill_now = match round {
            0..3 => wait_until(Duration::from_secs(10), || {
                disk.dirty() || child.try_wait().unwrap().is_some()
            }),
            3..6 => wait_until(Duration::from_secs(10), || {
                !disk.at("tree").exists() || child.try_wait().unwrap().is_some()
            }),
            _ => {
                std::thread::sleep(Duration::from_millis(round * 3));
                true
            }
        };
        assert!(kill_now);
        signal(child.id(), libc::SIGKILL);
        let status = child.wait().unwrap();
        if status.signal() == Some(libc::SIGKILL) && disk.at(".volume_dirty").exists() {
            cut_short += 1;
            disk.write("requirements.txt", "");
            assert_eq!(disk.check("g-0", "1"), 3);
            assert_eq!(disk.check("g-1", "1"), 3);
        }
        let out = disk.run(&["wipe"], "g-1", "-");
        assert!(out.status.success(), "round {round}: {}", said(&out));
        assert_eq!(listed(&disk.path()), [".generation", ".volume_clean"]);
    }
    assert!(cut_short >= 3, "only {cut_short} wipes were cut short");
}
