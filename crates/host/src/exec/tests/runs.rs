//! What a command finds, and what it leaves.

use super::*;
use semel_core::{Level, Sha256};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, symlink};

#[test]
fn a_command_runs_and_leaves_its_status_and_output() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let (id, status) = site.run(&site.sh("echo out; echo err >&2; echo x >> effects; exit 7"));
    assert_eq!(status.outcome, Outcome::Ended(Ended::Exited { code: 7 }));
    assert_eq!(status.tree_ended, crate::process::TreeEnded::Proved);
    assert_eq!(
        Level::lacking(status.level.missing.clone()),
        Level::lacking(Vec::new())
    );
    let kept = |bytes: &[u8]| Kept {
        total_bytes: bytes.len() as u64,
        kept_bytes: bytes.len() as u64,
        sha256: Sha256::of(bytes),
    };
    assert_eq!(status.stdout, kept(b"out\n"));
    assert_eq!(status.stderr, kept(b"err\n"));
    assert_eq!(site.output(&id, Stream::Stdout), b"out\n");
    assert_eq!(site.output(&id, Stream::Stderr), b"err\n");
    assert_eq!(ended(site.observe(&id)), status);
    assert_eq!(site.effects(), 1);
    let (_, status) = site.run(&site.sh("kill -SEGV $$"));
    assert_eq!(status.outcome, Outcome::Ended(Ended::Signalled { signal: 11 }));
    let argv = ["printf", "%s|", "a b", "", "$HOME", "-c", "--"].map(Into::into);
    let (id, status) = site.run(&site.of(What::Argv(argv.into())));
    assert_eq!(status.outcome, Outcome::Ended(Ended::Exited { code: 0 }));
    assert_eq!(text(&site.output(&id, Stream::Stdout)), "a b||$HOME|-c|--|");
    let (id, status) = site.run(&site.of(What::Argv(vec!["no-such".into()])));
    assert_eq!(status.outcome, Outcome::Ended(Ended::Exited { code: 127 }));
    assert!(text(&site.output(&id, Stream::Stderr)).contains("no-such"));
    assert_eq!(running(&site.volume()).unwrap(), []);
    assert_eq!(executions(&site.volume()).unwrap().len(), 4);
}

#[test]
fn it_finds_a_clean_place_and_no_way_to_another() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let volume = site.volume();
    let places = private_places(&volume).unwrap();
    std::fs::create_dir_all(site.tree().join("a/b")).unwrap();
    let mut spec = site.sh(
        "env | grep -v -e ^PWD= -e ^SHLVL= -e ^_= | sort; pwd; ls -A $HOME $TMPDIR; ls /proc/self/fd | wc -l; cat; \
         cat ../../../../secret ../../../../../../../secret; touch ../../../no ../../../../no; ls /proc | grep -c '^[0-9]*$'",
    );
    spec.cwd = RelPath::parse(b"a/b").unwrap();
    spec.around.env.insert("BOTH".into(), "around".into());
    spec.around.env.insert("AROUND".into(), "1".into());
    spec.env.insert("BOTH".into(), "own".into());
    spec.env.insert("PATH".into(), "/bin:/usr/bin".into());
    let (id, status) = site.run(&spec);
    assert_eq!(status.outcome, Outcome::Ended(Ended::Exited { code: 0 }));
    let out = site.output(&id, Stream::Stdout);
    let expected = format!(
        "AROUND=1\nBOTH=own\nGIT_OPTIONAL_LOCKS=0\nHOME={}\nLANG=C.UTF-8\nPATH=/bin:/usr/bin\nTMPDIR={}\n{}\n{}:\n\n{}:\n4\n",
        places.home.display(),
        places.tmp.display(),
        site.tree().join("a/b").display(),
        places.home.display(),
        places.tmp.display(),
    );
    let (said, processes) = text(&out).trim_end().rsplit_once('\n').unwrap();
    assert_eq!(
        format!("{said}\n"),
        expected,
        "{}",
        text(&site.output(&id, Stream::Stderr))
    );
    // The keeper, the shell, ls and grep.
    assert_eq!(processes, "4");
    assert!(!site.state.join("no").exists());
    // The home is the volume's, not the command's.
    site.run(&site.sh("echo kept > $HOME/file"));
    let (id, _) = site.run(&site.sh("cat $HOME/file"));
    assert_eq!(site.output(&id, Stream::Stdout), b"kept\n");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_on_disk() {
    let site = Site::new();
    symlink("/etc", site.tree().join("out")).unwrap();
    symlink("../../../..", site.tree().join("up")).unwrap();
    site.touch("file");
    let refused = |change: &dyn Fn(&mut Spec)| {
        let mut spec = site.sh(EFFECT);
        change(&mut spec);
        let refused = start(&site.volume(), &mint(), &spec, &NoPoints).unwrap_err();
        refused.code()
    };
    let in_dir = |dir: &'static [u8]| refused(&|spec: &mut Spec| spec.cwd = RelPath::parse(dir).unwrap());
    assert_eq!(in_dir(b"out"), Code::PathEscapesRoot);
    assert_eq!(in_dir(b"up/job"), Code::PathEscapesRoot);
    assert_eq!(in_dir(b"missing"), Code::NotFound);
    assert_eq!(in_dir(b"file"), Code::NotFound);
    for outside in [&b".."[..], b"a/../..", b"/etc"] {
        assert!(RelPath::parse(outside).is_err());
    }
    let named = |name: &str, value: &str| {
        refused(&|spec: &mut Spec| drop(spec.env.insert(name.into(), value.into())))
    };
    for (name, value) in [
        ("HOME", "/"),
        ("TMPDIR", "/"),
        ("", "x"),
        ("A=B", "x"),
        ("A", "x\0"),
    ] {
        assert_eq!(named(name, value), Code::BadInput, "{name}");
    }
    for what in [
        What::Shell("".into()),
        What::Shell("a\0b".into()),
        What::Argv(vec![]),
        What::Argv(vec!["".into()]),
        What::Argv(vec!["-c".into(), "true".into()]),
        What::Argv(vec!["a".into(), "b\0".into()]),
    ] {
        assert_eq!(
            refused(&|spec: &mut Spec| spec.what = what.clone()),
            Code::BadInput,
            "{what:?}"
        );
    }
    assert_eq!(executions(&site.volume()).unwrap(), []);
    assert_eq!(site.effects(), 0);
}

#[test]
fn a_working_directory_that_was_exchanged_meanwhile_is_not_entered() {
    if !stands() {
        return;
    }
    let site = Site::new();
    std::fs::create_dir(site.tree().join("dir")).unwrap();
    let (id, mut spec) = (mint(), site.sh(EFFECT));
    spec.cwd = RelPath::parse(b"dir").unwrap();
    let points = |point: Point| {
        if point == Point::Made {
            std::fs::rename(site.tree().join("dir"), site.tree().join("old")).unwrap();
            symlink(".", site.tree().join("dir")).unwrap();
        }
    };
    let attached = start(&site.volume(), &id, &spec, &points).unwrap();
    let status = ended(attached.wait(&never()).unwrap());
    match status.outcome {
        Outcome::NotBegun { refusal } => assert_eq!(refusal.code, Code::SandboxUnavailable, "{refusal}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(site.effects(), 0);
}

#[test]
fn output_beyond_the_cap_is_counted_and_blocks_nobody() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let mut spec =
        site.sh("head -c 40000000 /dev/zero; head -c 30000000 /dev/zero >&2; echo end; echo x >> effects");
    spec.cap_bytes = 100_000;
    let (id, status) = site.run(&spec);
    assert_eq!(status.outcome, Outcome::Ended(Ended::Exited { code: 0 }));
    let zeroes = vec![0; 100_000];
    for (stream, kept, total) in [
        (Stream::Stdout, &status.stdout, 40_000_004),
        (Stream::Stderr, &status.stderr, 30_000_000),
    ] {
        assert_eq!((kept.kept_bytes, kept.total_bytes), (100_000, total));
        assert_eq!(kept.sha256, Sha256::of(&zeroes));
        assert!(site.output(&id, stream) == zeroes);
    }
    assert_eq!(site.effects(), 1);
    // By pieces, and past the end.
    let piece = |at, most| {
        read_output(&site.volume(), &id, Stream::Stdout, at, most)
            .unwrap()
            .len()
    };
    assert_eq!(
        [
            piece(0, 7),
            piece(99_990, 100),
            piece(100_000, 9),
            piece(u64::MAX, 9)
        ],
        [7, 10, 0, 0]
    );
}

#[test]
fn streams_that_are_closed_or_never_read_hold_up_nothing() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let (_, status) = site.run(&site.sh("exec >&- 2>&-; echo x >> effects; exit 3"));
    assert_eq!(status.outcome, Outcome::Ended(Ended::Exited { code: 3 }));
    let (id, status) = site.run(&site.sh("yes | head -n 2; cat; echo x >> effects"));
    assert_eq!(status.outcome, Outcome::Ended(Ended::Exited { code: 0 }));
    assert_eq!(site.output(&id, Stream::Stdout), b"y\ny\n");
    in_due_time(|pace| {
        let mut spec = site.sh("rm -f fifo; mkfifo fifo; echo x >> effects; cat fifo");
        spec.timeout = Duration::from_millis(500) * pace;
        let (_, status) = site.run(&spec);
        assert_eq!(status.outcome, Outcome::Ended(Ended::TimedOut));
        (site.effects() == 3).then_some(())
    });
}

#[test]
fn output_is_read_while_it_is_written() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let script = "for i in 1 2 3; do echo $i; while [ ! -e go$i ]; do sleep 0.01; done; done";
    let (id, attached) = site.start(&site.sh(script));
    let mut seen = Vec::new();
    for i in 1..=3 {
        assert!(until(|| { site.output(&id, Stream::Stdout).len() > seen.len() }));
        assert_eq!(site.observe(&id), Observation::Running);
        assert_eq!(running(&site.volume()).unwrap(), std::slice::from_ref(&id));
        let more = read_output(&site.volume(), &id, Stream::Stdout, seen.len() as u64, 100).unwrap();
        seen.extend(more);
        site.touch(&format!("go{i}"));
    }
    assert_eq!(seen, b"1\n2\n3\n");
    // A wait that is cancelled leaves the command alone.
    let cancelled = never();
    cancelled.cancel();
    attached.wait(&cancelled).unwrap();
    assert_eq!(
        ended(attached.wait(&never()).unwrap()).outcome,
        Outcome::Ended(Ended::Exited { code: 0 })
    );
}

#[test]
fn a_shim_has_nothing_of_whoever_started_it() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let file = std::fs::File::create(site.state.join("journal")).unwrap();
    // Even what somebody forgot to close where a program is begun.
    let _forgotten = [
        rustix::io::dup(&listener).unwrap(),
        rustix::io::dup(&file).unwrap(),
    ];
    let link = |path: PathBuf| std::fs::read_link(path).unwrap().display().to_string();
    let foreign = link(format!("/proc/self/fd/{}", listener.as_raw_fd()).into());
    let (id, attached) = site.start(&site.sh("touch ready; while [ ! -e go ]; do sleep 0.01; done"));
    assert!(until(|| site.in_tree("ready")));
    let shim = site.shim(&id).unwrap();
    let fds = std::fs::read_dir(format!("/proc/{shim}/fd"));
    if let Err(error) = &fds {
        skip(&format!(
            "whoever is not root sees no descriptors of a shim: {error}"
        ));
    }
    for fd in fds.into_iter().flatten() {
        let target = link(fd.unwrap().path());
        let own = target == "/dev/null"
            || target.starts_with(&site.place(&id).display().to_string())
            || ["pipe:", "anon_inode:", "socket:"]
                .iter()
                .any(|kind| target.starts_with(kind));
        assert!(own && target != foreign, "{target}");
    }
    let stat = std::fs::read_to_string(format!("/proc/{shim}/stat")).unwrap();
    let session: i32 = stat
        .rsplit_once(") ")
        .unwrap()
        .1
        .split(' ')
        .nth(3)
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(session, shim);
    site.touch("go");
    assert!(matches!(attached.wait(&never()).unwrap(), Observation::Ended(_)));
    // No zombie is left, though nobody asked for its status.
    assert!(until(|| is_gone(shim)));
}

#[test]
fn a_shim_runs_what_was_ordered_and_no_other() {
    let site = Site::new();
    let mut spec = site.of(What::Argv(vec!["make".into(), "-j".into()]));
    std::fs::create_dir(site.tree().join("dir")).unwrap();
    symlink("dir", site.tree().join("link")).unwrap();
    spec.cwd = RelPath::parse(b"link").unwrap();
    spec.env.insert("A".into(), "1".into());
    spec.timeout = Duration::from_millis(1234);
    spec.grace = Duration::from_millis(56);
    spec.cap_bytes = 789;
    spec.around.read_only = vec!["/opt/tools".into()];
    spec.around.require = Require::BestEffort;
    spec.around.network = Network::Loopback;
    let order = shim::read(spec.order(&site.volume()).unwrap()).unwrap();
    let place = Place::create(&site.volume(), &mint()).unwrap();
    let alive = std::sync::Arc::new(place.lock_alive().unwrap().unwrap());
    let command = shim::command(&order, &place, alive);
    let facts = site.tree().join("dir").metadata().unwrap();
    assert_eq!(command.program, Path::new("/bin/sh"));
    assert_eq!(command.args, ["-c", "exec \"$@\"", "sh", "make", "-j"]);
    assert_eq!(command.env.get(std::ffi::OsStr::new("A")), Some(&"1".into()));
    assert_eq!(command.cwd, site.tree().join("dir"));
    assert_eq!(command.cwd_is, Some((facts.dev(), facts.ino())));
    assert_eq!(
        (command.deadline, command.grace),
        (Some(spec.timeout), spec.grace)
    );
    assert_eq!((command.keep.len(), command.hold.len()), (0, 1));
    let crate::process::Confinement::Sandbox(sandbox) = command.confinement else {
        panic!("it is not confined");
    };
    let places = private_places(&site.volume()).unwrap();
    assert_eq!(
        (&sandbox.tree, &sandbox.home, &sandbox.tmp),
        (&site.tree(), &places.home, &places.tmp)
    );
    assert!(sandbox.hide.contains(&site.state) && sandbox.hide.contains(&site.volume().path().to_owned()));
    assert_eq!(
        (sandbox.read_only, sandbox.writable),
        (spec.around.read_only, Vec::<PathBuf>::new())
    );
    assert_eq!(
        (sandbox.require, sandbox.network),
        (Require::BestEffort, Network::Loopback)
    );
}
