//! The way in: namespaces, the view, the second wall, no privileges, the program.
//!
//! It runs in a fresh process with one thread. Three processes take part: the outer one, which waits for the
//! whole; the keeper, which is the first of the process namespace; and the program.

use super::bounds::{self, Watch, Whose};
use super::keeper::{Leads, end_all, keep, tell};
use super::land::{Around, restrict};
use super::own::{self, Own};
use super::plan::{Plan, SCRATCH};
use super::spec::{Act, Order, Report, Session, Text, Walls};
use super::sys::{self, Fork};
use super::{mounts, privilege, view};
use rustix::fs::Mode;
use rustix::process::{
    DumpableBehavior, Gid, PidfdFlags, Signal, Uid, WaitOptions, getegid, geteuid, getpid, pidfd_open,
    set_child_subreaper, set_dumpable_behavior, set_parent_process_death_signal, setsid, umask, waitpid,
};
use rustix::thread::UnshareFlags;
use semel_core::confinement::{Confinement, Level, User};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

/// The status with which a process of ours ends that did what it was to do.
const DONE: i32 = 0;
/// The status with which one ends that could not.
const FAILED: i32 = 127;

/// What stands, and what does not.
struct Standing {
    around: Around,
    missing: Vec<String>,
    /// Mounts in what the program may write: with one, nothing is run, whatever else can be had.
    strange: Vec<PathBuf>,
    /// The user that is still to be become.
    own: Option<Own>,
    /// As whom the program runs.
    user: User,
}

/// Carries out an order; gives this process's exit status.
pub(super) fn outer(order: &Order, control: OwnedFd) -> i32 {
    umask(Mode::from_raw_mode(0o022));
    let result = match &order.walls {
        None => {
            // Its caller's death must not kill it before it has ended what it supervises.
            set_parent_process_death_signal(None)
                .map_err(io::Error::from)
                .and_then(|()| supervise(order, &control, standing()))
        }
        Some(walls) => walled(order, walls, &control),
    };
    match result {
        Ok(status) => status,
        Err(error) => {
            not_begun(&control, "set up", &Text::of(error.to_string()), &error);
            FAILED
        }
    }
}

fn standing() -> Standing {
    let around = Around {
        view: false,
        processes: false,
        network: false,
    };
    Standing {
        around,
        missing: Vec::new(),
        strange: Vec::new(),
        own: None,
        user: User::Caller,
    }
}

/// Leaves the namespaces, and goes on in the new ones.
fn walled(order: &Order, walls: &Walls, control: &OwnedFd) -> io::Result<i32> {
    // Inside a user namespace they are not known until they are mapped.
    let (uid, gid) = (geteuid(), getegid());
    let mut now = standing();
    let mut missing = Vec::new();
    let mut leave = |flags: UnshareFlags, what: &str| match sys::unshare(flags) {
        Ok(()) => true,
        Err(e) => {
            missing.push(format!("{what} namespace: {e}"));
            false
        }
    };
    if own::is_root() {
        now.user = User::Root;
        // Its places have to be mapped to it, which only who may mount can do.
        let made = match privilege::is_administrator() {
            true => Own::make(walls.user),
            false => Err(io::Error::other("this root may not mount")),
        };
        match made {
            Ok(own) => now.own = Some(own),
            Err(e) => now.missing.push(format!("own user: {e}")),
        }
    }
    if !privilege::is_administrator() {
        // In a namespace whose user is not mapped nothing could be done: where no map can be written, none is made.
        match std::fs::File::options().write(true).open("/proc/self/uid_map") {
            Ok(_) if leave(UnshareFlags::NEWUSER, "user") => map_own_user(uid, gid)?,
            Ok(_) => {}
            Err(e) => now.missing.push(format!("user namespace: its map: {e}")),
        }
    }
    let mounts = leave(UnshareFlags::NEWNS, "mount");
    let processes = leave(UnshareFlags::NEWPID, "process");
    leave(UnshareFlags::NEWIPC, "ipc");
    leave(UnshareFlags::NEWUTS, "uts");
    let network = walls.loopback && leave(UnshareFlags::NEWNET, "network");
    now.around.processes = processes;
    now.around.network = network;
    now.around.view = mounts;
    now.missing.extend(missing);
    if network && let Err(e) = sys::loopback_up() {
        now.missing.push(format!("loopback device: {e}"));
    }
    // Entering a user namespace clears it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if !processes {
        set_parent_process_death_signal(None)?;
        return supervise(order, control, now);
    }
    let above = pidfd_open(getpid(), PidfdFlags::empty())?;
    match sys::fork()? {
        Fork::Child => {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            first(order, control, now, &above)
        }
        Fork::Parent(keeper) => {
            // What is dropped later would be closed a second time.
            drop((above, now));
            close_all_but(&[control.as_raw_fd()], order);
            // Its end is the end of every process in its namespace: the kernel reaps them all before it.
            while matches!(
                waitpid(Some(keeper), WaitOptions::empty()),
                Err(rustix::io::Errno::INTR)
            ) {}
            tell(control, &Report::Gone);
            Ok(DONE)
        }
    }
}

/// Maps a user and a group of outside to themselves.
fn map_own_user(uid: Uid, gid: Gid) -> io::Result<()> {
    let (uid, gid) = (uid.as_raw(), gid.as_raw());
    std::fs::write("/proc/self/setgroups", "deny").or_else(|e| match e.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(e),
    })?;
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}

/// Is the first process of its namespace.
fn first(order: &Order, control: &OwnedFd, mut now: Standing, above: &OwnedFd) -> io::Result<i32> {
    let children = sys::deaf_but_for_children()?;
    put_up_view(order, &mut now, view::Proc::Own)?;
    let nice = privilege::goes();
    privilege::go_first();
    become_own_user(&mut now, Some(Signal::KILL))?;
    privilege::drop_all()?;
    // Its memory and descriptors are not for the program, which has the same owner.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    match sys::fork()? {
        Fork::Child => {
            privilege::go_with_others(nice)?;
            Ok(program(order, control, now))
        }
        Fork::Parent(main) => {
            let watch = watch(order, &now, Whose::All);
            let kept = [children.as_raw_fd(), control.as_raw_fd(), above.as_raw_fd()];
            close_all_but(&kept, order);
            keep(main, leads(order), &children, control, Some(above), watch);
            Ok(DONE)
        }
    }
}

/// Supervises the program without a process namespace.
fn supervise(order: &Order, control: &OwnedFd, mut now: Standing) -> io::Result<i32> {
    set_child_subreaper(Some(getpid()))?;
    let children = sys::deaf_but_for_children()?;
    put_up_view(order, &mut now, view::Proc::Host)?;
    if order.walls.is_some() {
        become_own_user(&mut now, None)?;
        privilege::drop_all()?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    }
    match sys::fork()? {
        Fork::Child => {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(program(order, control, now))
        }
        Fork::Parent(main) => {
            let watch = watch(order, &now, Whose::Descendants);
            close_all_but(&[children.as_raw_fd(), control.as_raw_fd()], order);
            keep(main, leads(order), &children, control, None, watch);
            if end_all(Some(main), control) {
                tell(control, &Report::Gone);
            }
            Ok(DONE)
        }
    }
}

/// Makes the look at what the tree holds; a program without walls has no bounds.
fn watch(order: &Order, now: &Standing, whose: Whose) -> Option<Watch> {
    let scratch: &[&str] = if now.around.view { &SCRATCH } else { &[] };
    order.walls.as_ref().map(|walls| Watch::of(walls, whose, scratch))
}

/// Becomes the user of its own, where there is one to become; asks again for what is sent when the parent dies.
fn become_own_user(now: &mut Standing, death: Option<Signal>) -> io::Result<()> {
    let Some(own) = now.own.take() else {
        return Ok(());
    };
    own.become_it()?;
    now.user = User::Own;
    Ok(set_parent_process_death_signal(death)?)
}

/// Closes every descriptor but those listed, and those to be held to the end.
fn close_all_but(kept: &[RawFd], order: &Order) {
    let kept: Vec<RawFd> = kept.iter().chain(&order.hold).copied().collect();
    sys::close_all_but(&kept);
}

fn leads(order: &Order) -> Leads {
    match order.session {
        Session::Own => Leads::Group,
        Session::Caller => Leads::Nothing,
    }
}

/// Puts up the view where there is a mount namespace for it.
///
/// # Errors
/// Nobody knows what is mounted in what the program may write.
fn put_up_view(order: &Order, now: &mut Standing, proc: view::Proc) -> io::Result<()> {
    let Some(walls) = order.walls.as_ref() else {
        return Ok(());
    };
    let alone = now.around.view.then(view::cut_off);
    // In a namespace that is cut off the answer holds; where there is none, what is mounted later is not seen.
    now.strange = mounts::strange(walls)?;
    let Some(alone) = alone else {
        if now.own.take().is_some() {
            now.missing.push("own user: there is no view".to_owned());
        }
        return Ok(());
    };
    let entered = alone
        .and_then(|()| Plan::of(walls))
        .and_then(|plan| view::enter(&plan, proc, &mut now.own));
    match entered {
        Ok(missing) => now.missing.extend(missing),
        Err(error) => {
            now.around.view = false;
            if now.own.take().is_some() {
                now.missing.push("own user: there is no view".to_owned());
            }
            now.missing.push(format!("view: {error}"));
        }
    }
    Ok(())
}

/// Becomes the program, or says why not.
fn program(order: &Order, control: &OwnedFd, now: Standing) -> i32 {
    if order.session == Session::Own {
        setsid().ok();
    }
    if !now.strange.is_empty() {
        let shown = now.strange.iter().map(|mount| {
            let mount = semel_core::path::shown(mount.as_os_str().as_encoded_bytes());
            format!("a mount in what may be written: {mount}")
        });
        let missing = shown.collect();
        tell(control, &Report::Unavailable { missing });
        return FAILED;
    }
    let level = match &order.walls {
        None => Level::none("no sandbox was asked for"),
        Some(walls) => match wall_off(walls, now) {
            Ok(level) => level,
            Err(error) => return not_begun(control, "give up privileges for", &Text::of("program"), &error),
        },
    };
    let required = order.walls.as_ref().is_some_and(|walls| walls.required);
    if required && level.confinement != Confinement::Full {
        let missing = level.missing;
        tell(control, &Report::Unavailable { missing });
        return FAILED;
    }
    let begin = match &order.act {
        Act::Probe => {
            tell(control, &Report::Level { level });
            return DONE;
        }
        begin @ Act::Exec { .. } => begin,
    };
    execute(begin, order, control, level)
}

fn wall_off(walls: &Walls, now: Standing) -> io::Result<Level> {
    let Standing {
        around,
        mut missing,
        user,
        ..
    } = now;
    privilege::no_core()?;
    bounds::restrict(walls.bounds)?;
    sys::leave_keyring();
    let landlocked = match restrict(walls, around) {
        Ok(()) => true,
        Err(lacking) => {
            let none = lacking.iter().any(|what| what.ends_with("does not enforce it"));
            missing.extend(lacking);
            !none
        }
    };
    let mut level = Level::lacking(missing);
    if !around.view && !landlocked {
        level.confinement = Confinement::None;
    }
    Ok(level.of(user, walls.bounds))
}

fn execute(act: &Act, order: &Order, control: &OwnedFd, level: Level) -> i32 {
    let Act::Exec {
        program,
        dev,
        ino,
        args,
        env,
        cwd,
        cwd_is,
    } = act
    else {
        return FAILED;
    };
    let entered = enter(cwd, *cwd_is);
    if order.walls.is_some() {
        // What a path names inside may be another file, or nothing.
        let same = program
            .path()
            .metadata()
            .is_ok_and(|facts| (facts.dev(), facts.ino()) == (*dev, *ino));
        if !same || entered.is_err() {
            let what = if same { cwd } else { program };
            let what = semel_core::path::shown(what.os().as_encoded_bytes());
            let missing = vec![format!("{what} is not the same inside")];
            tell(control, &Report::Unavailable { missing });
            return FAILED;
        }
    }
    if let Err(error) = entered {
        return not_begun(control, "enter", cwd, &error);
    }
    let mut process = std::process::Command::new(program.path());
    process.args(args.iter().map(Text::os)).env_clear();
    process.envs(env.iter().map(|(name, value)| (name.os(), value.os())));
    let kept: Vec<RawFd> = [0, 1, 2].into_iter().chain(order.keep.iter().copied()).collect();
    sys::close_on_exec_all_but(&kept);
    if let Err(error) = sys::hear_all_signals() {
        return not_begun(control, "unblock signals of", program, &error);
    }
    if order.walls.is_some() {
        bounds::past(order.since);
    }
    // Whoever hears nothing takes it for not begun, and may run it again.
    if !tell(control, &Report::Level { level }) {
        return FAILED;
    }
    let error = process.exec();
    not_begun(control, "start", program, &error)
}

/// Enters the working directory, and only then looks whether it is the one that was meant.
fn enter(cwd: &Text, cwd_is: Option<(u64, u64)>) -> io::Result<()> {
    std::env::set_current_dir(cwd.path())?;
    let facts = Path::new(".").metadata()?;
    match cwd_is {
        Some(meant) if meant != (facts.dev(), facts.ino()) => {
            Err(io::Error::other("it is another directory"))
        }
        _ => Ok(()),
    }
}

fn not_begun(control: &OwnedFd, operation: &str, path: &Text, error: &io::Error) -> i32 {
    let report = Report::NotBegun {
        operation: operation.to_owned(),
        path: path.clone(),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    };
    tell(control, &report);
    FAILED
}
