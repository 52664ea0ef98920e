//! As root, a program runs as a user of its own: nothing of root's is its to change, and what it made is root's afterwards.

use super::{House, go, skip, stands, text};
use crate::process::{Cancel, Command, Confinement, End, Ended, run};
use crate::sandbox::{OWN_USER, Require};
use semel_core::Code;
use semel_core::confinement::User;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

fn root() -> bool {
    if !crate::sandbox::has_own_user() {
        skip("a user of its own needs root");
        return false;
    }
    stands()
}

fn said(house: &House, script: &str) -> String {
    let ended = go(&house.sh(script));
    assert!(ended.end.success(), "{script}: {ended:?}");
    text(&ended.stdout).to_owned()
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn it_is_nobody_else_and_has_no_capability_anywhere() {
    if !root() {
        return;
    }
    let house = House::new();
    let ended = go(&house.sh("id -u; id -g; id -G; id -un; grep -E '^(Cap|Groups|NoNewPrivs)' /proc/self/status; cat /proc/self/uid_map"));
    assert_eq!(ended.level.user, Some(User::Own), "{ended:?}");
    let said: Vec<Vec<&str>> = text(&ended.stdout)
        .lines()
        .map(|l| l.split_whitespace().collect())
        .collect();
    let uid = OWN_USER.to_string();
    let none = "0000000000000000";
    let expected: Vec<Vec<&str>> = vec![
        vec![&uid],
        vec![&uid],
        vec![&uid],
        vec!["semel"],
        vec!["Groups:"],
        vec!["CapInh:", none],
        vec!["CapPrm:", none],
        vec!["CapEff:", none],
        vec!["CapBnd:", none],
        vec!["CapAmb:", none],
        vec!["NoNewPrivs:", "1"],
        vec![&uid, &uid, "1"],
    ];
    // The kernel lists no group of a process that has none.
    assert_eq!(said, expected);
}

#[test]
fn what_it_made_is_roots_and_what_root_made_is_its_own() {
    if !root() {
        return;
    }
    let house = House::new();
    let tree = house.at("state/v/tree");
    std::fs::write(tree.join("private"), "root's").unwrap();
    for (path, to) in [
        (&tree, 0o700),
        (&house.at("state/v/home"), 0o700),
        (&tree.join("private"), 0o600),
    ] {
        mode(path, to);
    }
    let script = "cat private; echo changed > private; mkdir -p d/e; echo new > d/e/f; ln -s x link; chmod 640 d/e/f; \
        touch -d @1000000000 file; mv file moved; echo h > $HOMED/h; stat -c %u:%g . private d/e/f moved /usr /etc/passwd";
    let script = script.replace("$HOMED", house.at("state/v/home").to_str().unwrap());
    let said = said(&house, &script);
    let own = format!("{OWN_USER}:{OWN_USER}\n").repeat(4);
    // Whoever is not mapped is shown as nobody.
    assert!(said.starts_with(&format!("root's{own}65534:")), "{said}");
    for made in ["private", "d", "d/e/f", "moved", "../home/h"] {
        let facts = tree.join(made).symlink_metadata().unwrap();
        assert_eq!((facts.uid(), facts.gid()), (0, 0), "{made}");
    }
    assert_eq!(tree.join("link").symlink_metadata().unwrap().uid(), 0);
    assert_eq!(tree.join("d/e/f").metadata().unwrap().mode() & 0o7777, 0o640);
    assert_eq!(
        std::fs::read_to_string(tree.join("private")).unwrap(),
        "changed\n"
    );
}

/// Files of root that the system shows to everybody's eyes by path, and to root's alone by mode.
#[test]
fn what_is_for_root_alone_is_not_for_it() {
    if !root() {
        return;
    }
    let Ok(place) = tempfile::tempdir_in("/etc") else {
        return skip("/etc is not ours to write");
    };
    mode(place.path(), 0o755);
    for (name, how) in [("secret", 0o600), ("group", 0o660), ("open", 0o644)] {
        std::fs::write(place.path().join(name), name).unwrap();
        mode(&place.path().join(name), how);
    }
    let house = House::new();
    let at = place.path().display();
    assert_eq!(
        said(
            &house,
            &format!("cat {at}/*  2>/dev/null; ! cat {at}/secret 2>&1 >/dev/null | grep -v denied")
        ),
        "open"
    );
    // What the caller shows elsewhere, it sees as its owner does.
    let shown = house.at("shown");
    std::fs::create_dir(&shown).unwrap();
    std::fs::write(shown.join("secret"), "secret").unwrap();
    mode(&shown.join("secret"), 0o600);
    mode(&shown, 0o700);
    let mut command = house.sh("cat $H/shown/secret && ! echo x >> $H/shown/secret && ! touch $H/shown/new");
    if let Confinement::Sandbox(sandbox) = &mut command.confinement {
        sandbox.read_only = vec![shown];
    }
    let ended = go(&command);
    assert!(
        ended.end.success() && text(&ended.stdout) == "secret",
        "{ended:?}"
    );
}

/// Whatever it finds a number of: it has no power over it.
#[test]
fn it_has_no_power_over_processes_of_others() {
    if !root() {
        return;
    }
    if !Path::new("/usr/bin/python3").exists() {
        return skip("no python3 of the system");
    }
    let house = House::new();
    let mut other = std::process::Command::new("/bin/sleep")
        .arg("1000")
        .spawn()
        .unwrap();
    let pid = other.id();
    let python = "import ctypes, os, signal, sys\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        pid = int(sys.argv[1])\n\
        def no(what, done):\n    print(what, 'REFUSED' if done in (-1, None) else 'DONE')\n\
        def call(f):\n    try:\n        f()\n        return 0\n    except (OSError, ValueError):\n        return -1\n\
        no('kill', call(lambda: os.kill(pid, 0)))\n\
        no('ptrace', libc.ptrace(16, pid, 0, 0))\n\
        no('ptrace of the keeper', libc.ptrace(16, 1, 0, 0))\n\
        no('renice', call(lambda: os.setpriority(os.PRIO_PROCESS, pid, 19)))\n\
        no('nicer', call(lambda: os.setpriority(os.PRIO_PROCESS, 0, -1)))\n\
        no('affinity', call(lambda: os.sched_setaffinity(pid, {0})))\n\
        no('limits', call(lambda: __import__('resource').prlimit(pid, 7, (10, 10))))\n\
        no('raise', call(lambda: __import__('resource').setrlimit(7, (10**6, 10**6))) )\n\
        no('fd', libc.syscall(438, libc.syscall(434, pid, 0), 0, 0))\n\
        no('root', call(lambda: os.setuid(0)))\n\
        no('group', call(lambda: os.setgroups([0])))\n\
        no('device', call(lambda: os.mknod('dev', 0o60600, os.makedev(254, 0))))\n\
        no('chown', call(lambda: os.chown('file', 0, 0)))\n\
        no('hostname', call(lambda: __import__('socket').sethostname('x')))\n\
        no('reboot', libc.reboot(0))\n";
    std::fs::write(house.at("state/v/tree/p.py"), python).unwrap();
    let ended = go(&house.sh(&format!("exec /usr/bin/python3 -I p.py {pid}")));
    let lives = other.try_wait().unwrap().is_none();
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(ended.end.success(), "{ended:?}");
    assert!(!text(&ended.stdout).contains("DONE"), "{}", text(&ended.stdout));
    assert!(lives);
}

fn in_full(house: &House, tree: &Path) -> Result<Ended, (Code, Vec<String>)> {
    let mut command = Command::new("/bin/sh", tree).args(["-c", "id -u"]);
    let mut sandbox = house.sandbox();
    sandbox.tree = tree.to_owned();
    sandbox.require = Require::Full;
    command.confinement = Confinement::Sandbox(sandbox);
    run(&command, &Cancel::new().unwrap()).map_err(|e| {
        let refusal = e.into_refusal();
        (refusal.code, refusal.names)
    })
}

/// Where owners cannot be mapped, that is said, and a sandbox that is required in full is refused.
#[test]
fn where_owners_cannot_be_mapped_it_is_said() {
    if !root() {
        return;
    }
    let house = House::new();
    let at = house.at("merged");
    for dir in ["lower", "memory", "merged"] {
        std::fs::create_dir(house.at(dir)).unwrap();
    }
    let none = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", house.at("memory"), "tmpfs", none, None).unwrap();
    for dir in ["memory/upper", "memory/work"] {
        std::fs::create_dir(house.at(dir)).unwrap();
    }
    let data = format!(
        "lowerdir={0}/lower,upperdir={0}/memory/upper,workdir={0}/memory/work",
        house.root.display()
    );
    let data = std::ffi::CString::new(data).unwrap();
    let mounted = rustix::mount::mount("none", &at, "overlay", none, &*data);
    if mounted.is_ok() {
        let refused = in_full(&house, &at);
        let mut command = house.sh("id -u; touch new");
        if let Confinement::Sandbox(sandbox) = &mut command.confinement {
            sandbox.tree = at.clone();
            sandbox.require = Require::BestEffort;
        }
        command.cwd = at.clone();
        let ended = go(&command);
        super::unmounted(&at);
        super::unmounted(&house.at("memory"));
        let (code, names) = refused.unwrap_err();
        assert_eq!(code, Code::SandboxUnavailable);
        assert!(
            names
                .iter()
                .any(|name| name.starts_with("own user: map the owners of")),
            "{names:?}"
        );
        assert_eq!(
            (ended.end, text(&ended.stdout)),
            (End::Exited(0), "0\n"),
            "{ended:?}"
        );
        assert_eq!(ended.level.user, Some(User::Root));
    } else {
        super::unmounted(&house.at("memory"));
        skip("no overlay here");
    }
}
