//! It stands wherever things lie, and says where it does not.

use super::super::{resolve_program, toolchain_roots};
use super::{House, go, say, skip, stands, text};
use crate::process::{Cancel, Command, Confinement, run};
use semel_core::Code;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

#[test]
fn a_program_that_is_not_the_same_inside_is_refused() {
    let house = House::new();
    // Copied by another process: a child that another test forks meanwhile would keep it open for writing.
    let mut copy = std::process::Command::new("/bin/cp");
    assert!(
        copy.arg("/bin/true")
            .arg(house.at("true"))
            .status()
            .unwrap()
            .success()
    );
    let mut command = house.sh("");
    command.program = house.at("true");
    let refused = run(&command, &Cancel::new().unwrap()).unwrap_err().into_refusal();
    assert_eq!(refused.code, Code::SandboxUnavailable);
    assert!(
        refused
            .names
            .iter()
            .any(|name| name.contains("true is not the same inside")),
        "{refused}"
    );
    let mut sandbox = house.sandbox();
    sandbox.read_only = vec![house.at("true")];
    command.confinement = Confinement::Sandbox(sandbox);
    assert!(go(&command).end.success());
    command.cwd = house.root.clone();
    std::fs::create_dir(house.at("elsewhere")).unwrap();
    command.cwd = house.at("elsewhere");
    let refused = run(&command, &Cancel::new().unwrap()).unwrap_err().into_refusal();
    assert_eq!(refused.code, Code::SandboxUnavailable);
}

#[test]
fn toolchains_below_hidden_homes_work_inside() {
    let path = std::env::var_os("PATH").unwrap();
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let house = House::new();
    for (name, args) in [
        (
            "python3",
            ["-c", "import ssl, sys; print(sys.executable, sys.base_prefix)"],
        ),
        ("cargo", ["--version", "--verbose"]),
        ("rustc", ["--print", "sysroot"]),
        ("node", ["-p", "process.execPath"]),
        ("npm", ["config", "get"]),
        ("git", ["version", "--build-options"]),
    ] {
        let Ok(program) = resolve_program(OsStr::new(name), &dirs) else {
            skip(&format!("no {name} here"));
            continue;
        };
        let roots = toolchain_roots(&program).unwrap();
        let outside = Command::new(&program, house.at("state/v/tree"))
            .args(args)
            .var("PATH", &path);
        let mut inside = outside.clone();
        let mut sandbox = house.sandbox();
        sandbox.read_only = roots.clone();
        inside.confinement = Confinement::Sandbox(sandbox);
        let (outside, inside) = (go(&outside), go(&inside));
        assert!(inside.end.success(), "{name} {program:?} {roots:?}: {inside:?}");
        if name != "npm" {
            assert_eq!(text(&outside.stdout), text(&inside.stdout), "{name} {roots:?}");
        }
    }
    assert_eq!(
        resolve_program(OsStr::new("no-such-program"), &dirs)
            .unwrap_err()
            .code(),
        Code::NotFound
    );
    assert_eq!(
        resolve_program(OsStr::new("./sh"), &dirs).unwrap_err().code(),
        Code::BadInput
    );
}

#[test]
fn what_cannot_be_had_is_said_and_a_full_one_refused() {
    let exe = std::env::current_exe().unwrap();
    for (limits, expected) in [
        ("", &[][..]),
        ("mnt", &["mount namespace"]),
        ("net", &["network namespace"]),
        ("pid", &["process namespace", "own /proc"]),
        ("mnt pid", &["mount namespace", "process namespace"]),
    ] {
        let house = House::new();
        let zero = format!(
            "for n in {limits}; do echo 0 > /proc/sys/user/max_${{n}}_namespaces || exit 9; done; \
             exec \"$0\" __level \"$1\""
        );
        // Inside a user namespace of its own, the limits are one's own to lower.
        let outcome = std::process::Command::new("unshare")
            .args(["-U", "-r", "sh", "-c", &zero])
            .args([exe.as_os_str(), house.root.as_os_str()])
            .output();
        let Ok(outcome) = outcome.as_ref().map(|o| text(&o.stdout).to_owned()) else {
            return skip("no unshare here");
        };
        let lines: Vec<&str> = outcome.lines().collect();
        let [seen, required, level, end, tree] = lines[..] else {
            panic!("{limits}: {outcome}");
        };
        assert_eq!(seen, "in the treewrote", "{limits}");
        let full = expected.is_empty();
        assert_eq!(
            required,
            if full {
                "None"
            } else {
                "Some(\"sandbox_unavailable\")"
            },
            "{limits}"
        );
        // With the host's network nothing of a network namespace is missing.
        let partial = !full && limits != "net";
        assert_eq!(level.contains("Partial"), partial, "{limits}: {level}");
        for what in expected.iter().filter(|_| partial) {
            assert!(level.contains(what), "{limits}: {level}");
        }
        assert_eq!((end, tree), ("Exited(3)", "Proved"), "{limits}");
        assert!(
            !house.at("state/new").exists() && !house.at("new").exists(),
            "{limits}"
        );
    }
}

#[test]
fn the_cost_of_one_sandbox() {
    let house = House::new();
    let mut command = house.sh("");
    command.program = "/bin/true".into();
    let mut times: Vec<Duration> = (0..30).map(|_| go(&command).took).collect();
    times.sort();
    let direct = Command::new("/bin/true", "/");
    let mut bare: Vec<Duration> = (0..30).map(|_| go(&direct).took).collect();
    bare.sort();
    say(&format!(
        "one sandboxed `true`: {:?} (least {:?}); unconfined: {:?}\n",
        times[15], times[0], bare[15]
    ));
}

#[test]
fn the_state_root_may_lie_anywhere() {
    if !stands() {
        return;
    }
    for place in [
        "/dev/shm",
        "/opt",
        "/usr/local",
        "/etc",
        "/var/tmp",
        "/run",
        "/home",
        "/root",
        "/srv",
    ] {
        let Ok(root) = tempfile::tempdir_in(place) else {
            continue;
        };
        let house = House::within(root);
        let script = "cat file && echo x > new && echo x > $H/state/v/home/new && ! cat $H/state/journal.db && \
            ! touch $H/state/new && ! touch $H/state/v/new && ls $H/state";
        let ended = go(&house.sh(script));
        assert!(ended.end.success(), "{place}: {ended:?}");
        assert_eq!(text(&ended.stdout), "in the treev\n", "{place}");
        assert!(house.at("state/v/home/new").exists(), "{place}");
    }
}

#[test]
fn a_path_through_symlinks_leads_to_the_same_place_inside() {
    if !stands() {
        return;
    }
    let house = House::new();
    std::os::unix::fs::symlink("state", house.at("link")).unwrap();
    std::os::unix::fs::symlink(house.at("link/v"), house.at("volume")).unwrap();
    let mut sandbox = house.sandbox();
    sandbox.tree = house.at("volume/tree");
    let mut command =
        house.sh("cat $H/volume/tree/file; touch $H/volume/tree/new; cat $H/link/journal.db; pwd -P");
    command.cwd = house.at("volume/tree");
    command.confinement = Confinement::Sandbox(sandbox);
    let ended = go(&command);
    let real = house.at("state/v/tree");
    assert_eq!(
        text(&ended.stdout),
        format!("in the tree{}\n", real.display()),
        "{ended:?}"
    );
    assert!(house.at("state/v/tree/new").exists());
}

#[test]
fn a_sandbox_in_a_sandbox_says_what_it_lacks() {
    if !stands() {
        return;
    }
    let outer = House::new();
    let exe = std::env::current_exe().unwrap();
    let root = outer.at("state/v/tree/inner");
    for dir in ["state/v/tree", "state/v/home", "state/v/tmp"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    std::fs::write(root.join("state/v/tree/file"), "in the tree").unwrap();
    std::fs::write(root.join("state/journal.db"), "secret").unwrap();
    let mut sandbox = outer.sandbox();
    sandbox.read_only = vec![exe.clone()];
    let mut command = Command::new(exe, outer.at("state/v/tree"))
        .arg("__level")
        .arg(&root);
    command.confinement = Confinement::Sandbox(sandbox);
    let ended = go(&command);
    let lines: Vec<&str> = text(&ended.stdout).lines().collect();
    let [seen, required, level, end, tree] = lines[..] else {
        panic!("{ended:?}");
    };
    // Who is confined makes no mounts and maps no users: the inner one has Landlock once more, and a supervisor.
    assert_eq!(seen, "in the treewrote");
    assert_eq!(required, "Some(\"sandbox_unavailable\")");
    assert!(
        level.contains("Partial") && level.contains("user namespace: "),
        "{level}"
    );
    assert_eq!((end, tree), ("Exited(3)", "Proved"));
    assert!(!root.join("state/new").exists() && !root.join("new").exists());
}

#[test]
fn what_programs_expect_of_a_system_is_there() {
    if !stands() {
        return;
    }
    let house = House::new();
    for script in [
        "echo x > /dev/null && echo x > /dev/stderr && echo x > /dev/stdout",
        "head -c 4 /dev/urandom | wc -c | grep -q 4",
        "test -d /proc/self/fd && test -e /sys/devices/system/cpu && test -e /etc/passwd",
        "! command -v script || script -qec 'test -t 1' /dev/null",
        "test $$ = 2 && test $(cat /proc/2/comm) = sh",
        "ln file link && mv link moved && mkdir d && mv moved d/ && rm -r d",
        "touch /var/tmp/x && test -d /var/run",
        "! hostname other 2>/dev/null",
    ] {
        let ended = go(&house.sh(script));
        assert!(ended.end.success(), "{script}: {ended:?}");
    }
}
