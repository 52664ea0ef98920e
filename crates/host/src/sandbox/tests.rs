//! Everything here runs real programs in the real sandbox.

/// A test binary is started to enter the sandbox as the product is: this runs before its `main`, and so before
/// any thread of the test harness.
#[used]
#[expect(unsafe_code, reason = "the linker's table of what runs before main")]
// SAFETY: the C library calls each entry once, with one thread, after the entry of std that keeps the arguments
// (which sorts before it by its number); the function has the form that it calls.
#[unsafe(link_section = ".init_array")]
static ENTER: extern "C" fn() = enter;

extern "C" fn enter() {
    if let Some(status) = super::entered().or_else(helper) {
        leave(status);
    }
}

/// What this binary does where a test starts it as another program: by its first argument.
fn helper() -> Option<i32> {
    let args: Vec<_> = std::env::args().collect();
    let rest = args.get(2).map(String::as_str).unwrap_or_default();
    match args.get(1).map(String::as_str)? {
        "__dial" => Some(i32::from(TcpStream::connect(rest).is_err())),
        "__loopback" => {
            let listener = TcpListener::bind("127.0.0.1:0").ok()?;
            let address = listener.local_addr().ok()?;
            Some(i32::from(TcpStream::connect(address).is_err()))
        }
        "__abstract" => {
            let address = SocketAddr::from_abstract_name(rest).ok()?;
            Some(i32::from(UnixStream::connect_addr(&address).is_err()))
        }
        "__run" => {
            // A parent to be killed: it runs what it is told, in the house that it is told.
            let house = House::of(PathBuf::from(rest));
            let mut command = house.sh(args.get(3)?);
            if args.get(4).is_some_and(|how| how == "supervised") {
                command.confinement = Confinement::Supervised;
            }
            command.output = Output::Inherit;
            Some(i32::from(run(&command, &Cancel::new().ok()?).is_err()))
        }
        "__level" => Some(say_level(&House::of(PathBuf::from(rest)))),
        _ => None,
    }
}

/// Runs a script with the best that can be had here, tries the same with all required, and says what came of both.
fn say_level(house: &House) -> i32 {
    let script = "cat file; cat $H/state/journal.db; touch $H/state/new $H/new; touch new && echo wrote; \
        (setsid sleep 1000 </dev/null >/dev/null 2>&1 &); exit 3";
    let mut command = house.sh(script);
    let required = run(&command, &Cancel::new().unwrap()).map_err(|e| e.code().wire());
    if let Confinement::Sandbox(sandbox) = &mut command.confinement {
        sandbox.require = Require::BestEffort;
        sandbox.network = Network::Host;
    }
    let ended = run(&command, &Cancel::new().unwrap()).unwrap();
    say(&format!(
        "{}\n{:?}\n{:?}\n{:?}\n{:?}\n",
        text(&ended.stdout).trim_end(),
        required.err(),
        ended.level,
        ended.end,
        ended.tree_ended
    ));
    0
}

#[expect(
    clippy::print_stdout,
    reason = "a helper's answer to its test, and a measure for who reads"
)]
fn say(text: &str) {
    print!("{text}");
    std::io::Write::flush(&mut std::io::stdout()).unwrap();
}

#[expect(unsafe_code, reason = "before main there is nothing to unwind or to flush")]
fn leave(status: i32) -> ! {
    // SAFETY: it takes a number, and does not return.
    unsafe { libc::_exit(status) }
}

use super::{Network, Require, Sandbox, TreeAccess, resolve_program, toolchain_roots};
use crate::process::{Cancel, Command, Confinement, End, Ended, Output, TreeEnded, run};
use semel_core::confinement::Confinement as Reached;
use semel_core::{Code, Level};
use std::ffi::OsStr;
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A state root with a volume in it, and secrets around.
struct House {
    root: PathBuf,
    _kept: Option<tempfile::TempDir>,
}

impl House {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for dir in ["state/v/tree", "state/v/home", "state/v/tmp", "state/keys"] {
            std::fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        std::fs::write(root.path().join("state/journal.db"), "secret").unwrap();
        std::fs::write(root.path().join("state/keys/signing.pem"), "secret").unwrap();
        std::fs::write(root.path().join("outside"), "secret").unwrap();
        std::fs::write(root.path().join("state/v/tree/file"), "in the tree").unwrap();
        Self {
            root: root.path().to_owned(),
            _kept: Some(root),
        }
    }

    fn of(root: PathBuf) -> Self {
        Self { root, _kept: None }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn sandbox(&self) -> Sandbox {
        Sandbox {
            tree: self.at("state/v/tree"),
            tree_access: TreeAccess::Writable,
            home: self.at("state/v/home"),
            tmp: self.at("state/v/tmp"),
            hide: vec![self.at("state"), PathBuf::from("/root"), PathBuf::from("/home")],
            read_only: Vec::new(),
            writable: Vec::new(),
            network: Network::Loopback,
            require: Require::Full,
        }
    }

    /// A shell script in the sandbox, with the house as `$H`.
    fn sh(&self, script: &str) -> Command {
        let mut command = Command::new("/bin/sh", self.at("state/v/tree"))
            .args(["-c", script])
            .var("PATH", "/usr/bin:/bin")
            .var("H", &self.root);
        command.confinement = Confinement::Sandbox(self.sandbox());
        command.grace = Duration::from_secs(5);
        command
    }
}

fn go(command: &Command) -> Ended {
    run(command, &Cancel::new().unwrap()).unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Says whether the sandbox stands in full on this machine; the tests of a full one need it.
fn stands() -> bool {
    let level = super::probe().unwrap();
    if level.confinement == Reached::Full {
        return true;
    }
    skip(&level.missing.join(", "));
    false
}

#[expect(clippy::print_stderr, reason = "a test that cannot run here says so")]
fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
}

/// Lists the processes of this machine whose command line holds a word.
fn alive(word: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(word)).collect()
}

/// Waits, within reason, until something holds; a machine may be slow.
fn until(holds: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > Duration::from_secs(30) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// A script that leaves five daemons, each of a session of its own and twice orphaned, and says when they stand.
const DAEMONS: &str = "for i in 1 2 3 4 5; do \
    (setsid sh -c 'trap : TERM HUP INT; (touch up-$1; while :; do sleep 0.1; done) & ' sh $i $MARK \
      </dev/null >/dev/null 2>&1 &); done; \
    while [ $(ls | grep -c up-) -lt 5 ]; do sleep 0.01; done; ";

#[test]
fn a_program_runs_and_its_end_is_told() {
    if !stands() {
        return;
    }
    let house = House::new();
    let ended = go(&house.sh("echo out; echo err >&2; cat file; exit 7"));
    assert_eq!(text(&ended.stdout), "out\nin the tree", "{ended:?}");
    assert_eq!(text(&ended.stderr), "err\n");
    assert_eq!(ended.end, End::Exited(7));
    assert_eq!(ended.level, Level::lacking(Vec::new()));
    assert_eq!(ended.tree_ended, TreeEnded::Proved);
    let ended = go(&house.sh("kill -KILL $$"));
    assert_eq!(ended.end, End::Signalled(9));
    assert_eq!(ended.tree_ended, TreeEnded::Proved);
}

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
        // Beside the state root, in a /tmp of its own.
        ("$H", true),
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
fn daemons_end_with_the_program() {
    if !stands() {
        return;
    }
    let house = House::new();
    let mark = format!("mark{}", house.root.file_name().unwrap().display());
    let ended = go(&house.sh(&DAEMONS.replace("$MARK", &mark)));
    assert!(ended.end.success(), "{ended:?}");
    assert_eq!(ended.tree_ended, TreeEnded::Proved);
    assert_eq!(alive(&mark), Vec::<String>::new());
}

#[test]
fn everything_dies_with_a_killed_parent() {
    for how in ["walled", "supervised"] {
        if how == "walled" && !stands() {
            continue;
        }
        let house = House::new();
        let mark = format!("mark{}", house.root.file_name().unwrap().display());
        let script = DAEMONS.replace("$MARK", &mark) + "touch ready; while :; do sleep 1; done";
        let mut parent = std::process::Command::new(std::env::current_exe().unwrap())
            .arg("__run")
            .args([house.root.as_os_str(), OsStr::new(&script), OsStr::new(how)])
            .spawn()
            .unwrap();
        assert!(until(|| house.at("state/v/tree/ready").exists()), "{how}");
        assert!(alive(&mark).len() > 5, "{how}: {:?}", alive(&mark));
        parent.kill().unwrap();
        parent.wait().unwrap();
        assert!(until(|| alive(&mark).is_empty()), "{how}: {:?}", alive(&mark));
    }
}

#[test]
fn a_deadline_ends_who_will_not_end() {
    if !stands() {
        return;
    }
    let house = House::new();
    let mut command = house.sh("trap 'echo asked' TERM; while :; do sleep 0.05; done");
    command.deadline = Some(Duration::from_millis(300));
    command.grace = Duration::from_millis(300);
    let ended = go(&command);
    assert_eq!((ended.end, ended.tree_ended), (End::TimedOut, TreeEnded::Proved));
    assert_eq!(text(&ended.stdout), "asked\n");
    assert!(ended.took >= Duration::from_millis(600), "{:?}", ended.took);
    // Who ends when asked is not made to wait for the grace.
    let mut command = house.sh("trap 'echo cleaned; exit 0' TERM; while :; do sleep 0.05; done");
    command.deadline = Some(Duration::from_millis(300));
    command.grace = Duration::from_secs(3600);
    let ended = go(&command);
    assert_eq!((ended.end, ended.tree_ended), (End::TimedOut, TreeEnded::Proved));
    assert_eq!(text(&ended.stdout), "cleaned\n");
}

#[test]
fn a_second_cancellation_kills_at_once() {
    if !stands() {
        return;
    }
    let house = House::new();
    let mut command = house.sh("trap 'touch asked' TERM; touch ready; while :; do sleep 0.05; done");
    command.grace = Duration::from_secs(3600);
    let cancel = Cancel::new().unwrap();
    let ended = std::thread::scope(|scope| {
        let running = scope.spawn(|| run(&command, &cancel).unwrap());
        assert!(until(|| house.at("state/v/tree/ready").exists()));
        cancel.cancel();
        assert!(until(|| house.at("state/v/tree/asked").exists()));
        cancel.cancel();
        running.join().unwrap()
    });
    assert_eq!((ended.end, ended.tree_ended), (End::Cancelled, TreeEnded::Proved));
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
    assert_eq!(go(&command).stdout, b"A=\xff\n\nB=\n");
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

#[test]
fn a_program_that_is_not_the_same_inside_is_refused() {
    let house = House::new();
    std::fs::copy("/bin/true", house.at("true")).unwrap();
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
