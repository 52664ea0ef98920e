//! What is seen, written, reached and inherited.

use super::super::{Network, TreeAccess};
use super::{House, go, skip, stands, text};
use crate::process::{Cancel, Command, Confinement, End, run};
use crate::sandbox::Require;
use semel_core::Code;
use std::ffi::OsStr;
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

#[test]
fn nothing_of_the_state_is_read() {
    if !stands() {
        return;
    }
    let house = House::new();
    for file in [
        "$H/state/journal.db",
        "$H/state/keys/signing.pem",
        "$H/outside",
        "/proc/1/environ",
    ] {
        let ended = go(&house.sh(&format!("exec cat {file}")));
        assert_eq!(ended.end, End::Exited(1), "{file}: {ended:?}");
        assert_eq!(text(&ended.stdout), "", "{file}");
    }
    let ended = go(&house.sh("ls $H $H/state $H/state/v; ls -d /root /home /proc/1/root/tmp"));
    let (seen, state) = (text(&ended.stdout), house.at("state"));
    let (house, state) = (house.root.display(), state.display());
    assert_eq!(
        seen,
        format!("{house}:\nstate\n\n{state}:\nv\n\n{state}/v:\nhome\ntmp\ntree\n")
    );
    // The secrets of the system that this user may read.
    let house = House::new();
    assert_eq!(text(&go(&house.sh("cat /etc/shadow /etc/gshadow")).stdout), "");
}

#[test]
fn nothing_is_written_but_what_is_its_own() {
    if !stands() {
        return;
    }
    let house = House::new();
    for (place, own) in [
        ("$H/state/v/tree", true),
        ("$H/state/v/home", true),
        ("$H/state/v/tmp", true),
        ("/tmp", true),
        ("/dev/shm", true),
        ("$H/state/v", false),
        ("$H/state", false),
        // Beside the state root, in a /tmp of its own; what leads there is nobody's whom root made.
        ("$H", !crate::sandbox::has_own_user()),
        ("/", false),
        ("/usr", false),
        ("/etc", false),
        ("/opt", false),
        ("/run", false),
        ("/var", false),
        ("/dev", false),
        ("/proc/sys/kernel", false),
        ("/sys/kernel", false),
    ] {
        let ended = go(&house.sh(&format!("mkdir {place}/made && echo x > {place}/new")));
        assert_eq!(ended.end.success(), own, "{place}: {ended:?}");
    }
    for file in [
        "/etc/hosts",
        "/proc/sys/kernel/core_pattern",
        "/sys/kernel/mm/ksm/run",
        "$H/outside",
    ] {
        let ended = go(&house.sh(&format!("test -e {file} && echo x >> {file}")));
        assert!(!ended.end.success(), "{file}: {ended:?}");
    }
    assert!(house.at("state/v/tree/new").exists());
    for place in [
        house.at("state/v/new"),
        house.at("new"),
        "/tmp/new".into(),
        "/dev/shm/new".into(),
    ] {
        assert!(!place.exists(), "{place:?}");
    }
    assert_eq!(std::fs::read(house.at("outside")).unwrap(), b"secret");
}

#[test]
fn a_read_only_tree_has_writable_places_and_the_other_way_round() {
    if !stands() {
        return;
    }
    let house = House::new();
    for dir in ["state/v/tree/cache", "state/v/tree/installed", "other"] {
        std::fs::create_dir(house.at(dir)).unwrap();
    }
    let mut sandbox = house.sandbox();
    sandbox.tree_access = TreeAccess::ReadOnly;
    sandbox.writable = vec![house.at("state/v/tree/cache")];
    let mut command = house.sh("touch cache/a && ! touch b && ! touch installed/c && ! rm file && cat file");
    command.confinement = Confinement::Sandbox(sandbox);
    let ended = go(&command);
    assert!(ended.end.success(), "{ended:?}");

    let mut sandbox = house.sandbox();
    sandbox.read_only = vec![house.at("state/v/tree/installed"), house.at("other")];
    let mut command = house.sh("touch b && ! touch installed/c && ! touch $H/other/d && ! mv installed away");
    command.confinement = Confinement::Sandbox(sandbox);
    let ended = go(&command);
    assert!(ended.end.success(), "{ended:?}");
    assert!(house.at("state/v/tree/cache/a").exists() && house.at("state/v/tree/b").exists());
}

/// A mount that the host puts into a volume is nothing that its commands were given.
#[test]
fn nothing_is_run_where_a_mount_lies_in_what_may_be_written() {
    if !rustix::process::geteuid().is_root() {
        return skip("a mount in a tree needs root");
    }
    let house = House::new();
    let odd = "state/v/tree/a b\\";
    for dir in ["state/v/tree/mnt/deep", odd, "state/v/home/mnt", "other"] {
        std::fs::create_dir_all(house.at(dir)).unwrap();
    }
    let script = "echo ran; echo y > mnt/x";
    let named = |require, read_only: &[&str]| {
        let mut sandbox = house.sandbox();
        sandbox.require = require;
        sandbox.read_only = read_only.iter().map(|at| house.at(at)).collect();
        let mut command = house.sh(script);
        command.confinement = Confinement::Sandbox(sandbox);
        run(&command, &Cancel::new().unwrap()).map_err(|error| {
            let refusal = error.into_refusal();
            assert_eq!(refusal.code, Code::SandboxUnavailable, "{refusal}");
            refusal.names
        })
    };
    let requires = [Require::Full, Require::BestEffort];
    for at in [
        "state/v/tree/mnt",
        "state/v/tree/mnt/deep",
        odd,
        "state/v/home/mnt",
    ] {
        let mount = Mounted::on(house.at(at));
        for require in requires {
            let names = named(require, &[]).unwrap_err();
            let shown = semel_core::path::shown(mount.0.as_os_str().as_encoded_bytes());
            let told = names.iter().any(|name| name.ends_with(&shown));
            assert!(told, "{at}: {names:?}");
        }
        // It cannot be that what was tried was written.
        assert_eq!(std::fs::read_dir(&mount.0).unwrap().count(), 0, "{at}");
    }
    if !stands() {
        return;
    }
    // What the program is shown by its name it may read, and a place may be a mount itself.
    let mount = Mounted::on(house.at("state/v/tree/mnt"));
    let ended = named(Require::Full, &["state/v/tree/mnt"]).unwrap();
    assert!(
        text(&ended.stdout) == "ran\n" && !ended.end.success(),
        "{ended:?}"
    );
    drop(mount);
    let _elsewhere = Mounted::on(house.at("other"));
    let _home = Mounted::on(house.at("state/v/home"));
    let ended = named(Require::Full, &[]).unwrap();
    assert!(ended.end.success(), "{ended:?}");
    assert!(house.at("state/v/tree/mnt/x").exists());
}

/// An empty filesystem in memory on a directory, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn on(dir: PathBuf) -> Self {
        rustix::mount::mount("none", &dir, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
        Self(dir)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn no_wall_is_taken_down_from_inside() {
    if !stands() {
        return;
    }
    let house = House::new();
    let own = std::process::id();
    for attempt in [
        "mount -t tmpfs none /tmp".to_owned(),
        "mount --bind / /tmp".into(),
        "umount $H/state/v/tree".into(),
        "umount -l /etc/shadow || umount -l /dev/shm".into(),
        "mount -o remount,rw /usr".into(),
        "unshare -Urm mount -t tmpfs none /tmp".into(),
        "unshare -Urm umount -l /tmp".into(),
        "chroot / true".into(),
        "nsenter -t 1 -m true".into(),
        "ls -l /proc/1/fd/ | grep socket".into(),
        "cat /proc/1/mem /proc/1/environ".into(),
        format!("kill -0 {own}"),
        format!("ls /proc/{own}/fd"),
        "kill -KILL 1; kill -TERM 1; kill -STOP 1; false".into(),
        "mknod /tmp/disk b 254 0 && cat /tmp/disk".into(),
        "chown 1:1 file".into(),
        "cp /bin/sh sh && chmod u+s sh && ./sh -c 'grep -q \"CapEff.*[1-9a-f]\" /proc/self/status'".into(),
        "test -r /proc/kcore && head -c 1 /proc/kcore".into(),
        "dmesg".into(),
    ] {
        let ended = go(&house.sh(&attempt));
        assert!(
            matches!(ended.end, End::Exited(n) if n != 0),
            "{attempt}: {ended:?}"
        );
    }
    let ended =
        go(&house.sh("grep -E '^(Cap|NoNewPrivs|Umask)' /proc/self/status | tr -d '\t\n'; ulimit -c"));
    let none = "0000000000000000";
    let expected =
        format!("Umask:0022CapInh:{none}CapPrm:{none}CapEff:{none}CapBnd:{none}CapAmb:{none}NoNewPrivs:1");
    assert_eq!(text(&ended.stdout), format!("{expected}0\n"));
}

#[test]
fn the_network_is_what_was_asked_for() {
    if !stands() {
        return;
    }
    let house = House::new();
    let exe = std::env::current_exe().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let name = format!("semel-test-{}", house.root.display());
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let socket = house.at("agent.sock");
    let _path = UnixListener::bind(&socket).unwrap();
    let dial = |network, args: [&str; 2]| {
        let mut sandbox = house.sandbox();
        sandbox.network = network;
        sandbox.read_only = vec![exe.clone()];
        let mut command = Command::new(&exe, house.at("state/v/tree")).args(args);
        command.confinement = Confinement::Sandbox(sandbox);
        go(&command).end.success()
    };
    assert!(TcpStream::connect(&address).is_ok());
    assert!(!dial(Network::Loopback, ["__dial", &address]));
    assert!(dial(Network::Loopback, ["__loopback", ""]));
    assert!(dial(Network::Host, ["__dial", &address]));
    for network in [Network::Loopback, Network::Host] {
        assert!(!dial(network, ["__abstract", &name]), "{network:?}");
    }
}

#[test]
fn environment_arguments_and_descriptors_are_exact() {
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    if !stands() {
        return;
    }
    let house = House::new();
    // One that is not closed on exec by its own flag.
    let leaked = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 40).unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let mut command = house.sh("");
    command.program = "/usr/bin/env".into();
    command.args.clear();
    command.env = [
        ("A".into(), OsStr::from_bytes(b"\xff\n").to_owned()),
        ("B".into(), "".into()),
    ]
    .into();
    assert_eq!(go(&command).stdout, b"A=\xff\n\nB=\nGIT_OPTIONAL_LOCKS=0\n");
    let mut command = house
        .sh("printf '%s' \"$1\"")
        .arg("sh")
        .arg(OsStr::from_bytes(b"\xfe\x80"));
    assert_eq!(go(&command).stdout, b"\xfe\x80");
    command.args = vec!["-c".into(), "ls /proc/self/fd | tr '\\n' ' '".into()];
    assert_eq!(text(&go(&command).stdout), "0 1 2 3 ");
    let kept = std::sync::Arc::new(std::os::fd::OwnedFd::from(
        std::fs::File::open("/dev/zero").unwrap(),
    ));
    let number = kept.as_raw_fd();
    command.keep.push(kept);
    command.args = vec![
        "-c".into(),
        format!("head -c 3 /proc/self/fd/{number} | wc -c").into(),
    ];
    assert_eq!(text(&go(&command).stdout), "3\n");
}
