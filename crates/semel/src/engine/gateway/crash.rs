//! The points at which a crash test ends the daemon, by name.
//!
//! In ordinary life nobody asks for one, and `reached` compares with `None`.

use semel_core::{Code, Refusal};
use semel_host::exec::{self, Points};
use semel_host::files::{Step, Steps};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Names a point of a mutating use case, right after what it is named for was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CrashPoint {
    /// The call was understood and its key looked up.
    Checked,
    /// A step of the host was done.
    Host(Step),
    /// The intent is recorded.
    Begun,
    /// That a person is asked is recorded; nobody was told.
    ApprovalAsked,
    /// What a person decided is recorded; nobody was told.
    ApprovalDecided,
    /// A step of starting a command was done.
    Exec(exec::Point),
    /// A command ended; it has no receipt yet.
    ExecEnded,
    /// The effect happened; it has no receipt yet.
    Acted,
    /// The receipt is recorded; nobody was told.
    Receipted,
    /// That the call is taken back is recorded.
    Aborting,
    /// One effect is taken back.
    RolledBack,
    /// That pre-images are freed is recorded; they still lie where undoing finds them.
    EvictionRecorded,
    /// They were put aside, and are not freed yet.
    EvictionAside,
    /// Recovery looked at an open intent.
    RecoveryObserved,
    /// Recovery recorded the outcome of an open intent.
    RecoverySettled,
    /// Recovery tidied up after an open intent.
    RecoveryTidied,
}

impl CrashPoint {
    /// Lists every point, in the order in which they come.
    pub(crate) fn all() -> Vec<CrashPoint> {
        let live = [CrashPoint::Checked];
        let host = Step::ALL.iter().copied();
        let (before, after): (Vec<Step>, Vec<Step>) =
            host.partition(|step| matches!(step, Step::Staged | Step::StagedSynced));
        live.into_iter()
            .chain(before.into_iter().map(CrashPoint::Host))
            .chain([CrashPoint::ApprovalAsked, CrashPoint::ApprovalDecided])
            .chain([CrashPoint::Begun])
            .chain(after.into_iter().map(CrashPoint::Host))
            .chain(exec::Point::ALL.iter().copied().map(CrashPoint::Exec))
            .chain([
                CrashPoint::ExecEnded,
                CrashPoint::Acted,
                CrashPoint::Aborting,
                CrashPoint::RolledBack,
                CrashPoint::Receipted,
                CrashPoint::EvictionRecorded,
                CrashPoint::EvictionAside,
                CrashPoint::RecoveryObserved,
                CrashPoint::RecoverySettled,
                CrashPoint::RecoveryTidied,
            ])
            .collect()
    }

    /// Gives the name by which a test asks for the point.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CrashPoint::Checked => "checked",
            CrashPoint::Host(step) => step.name(),
            CrashPoint::Begun => "begun",
            CrashPoint::ApprovalAsked => "approval_asked",
            CrashPoint::ApprovalDecided => "approval_decided",
            CrashPoint::Exec(exec::Point::Made) => "exec_made",
            CrashPoint::Exec(exec::Point::Spawned) => "exec_spawned",
            CrashPoint::Exec(exec::Point::Begun) => "exec_begun",
            CrashPoint::ExecEnded => "exec_ended",
            CrashPoint::Acted => "acted",
            CrashPoint::Receipted => "receipted",
            CrashPoint::Aborting => "aborting",
            CrashPoint::RolledBack => "rolled_back",
            CrashPoint::EvictionRecorded => "eviction_recorded",
            CrashPoint::EvictionAside => "eviction_aside",
            CrashPoint::RecoveryObserved => "recovery_observed",
            CrashPoint::RecoverySettled => "recovery_settled",
            CrashPoint::RecoveryTidied => "recovery_tidied",
        }
    }

    /// Finds the point of a name.
    ///
    /// # Errors
    /// `usage` for any other name.
    pub(crate) fn parse(name: &str) -> Result<Self, Refusal> {
        Self::all()
            .into_iter()
            .find(|point| point.name() == name)
            .ok_or_else(|| Refusal::new(Code::Usage, "there is no such crash point").name(name))
    }
}

/// Says what is done at which point.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    /// Where the process kills itself.
    pub(crate) crash: Option<Moment>,
    /// Where a call pauses, and for how long.
    pub(crate) pause: Option<(CrashPoint, Duration)>,
    /// How much later than now approvals are held against.
    pub(crate) ahead: Duration,
    /// Where a call is held until a test lets it go.
    pub(crate) hold: Option<Hold>,
    /// Where the name of each point is written that is reached.
    pub(crate) tell: Option<PathBuf>,
}

/// Says where a call is held, once.
///
/// # Shape
/// `POINT=PATH`, or `POINT:N=PATH` for the n-th time that the point is reached: the file is there while the call is held,
/// and whoever takes it away lets the call go.
#[derive(Debug)]
pub(crate) struct Hold {
    at: Moment,
    file: PathBuf,
    passed: AtomicBool,
}

impl Hold {
    /// Reads where a call is held.
    ///
    /// # Errors
    /// `usage`.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let (at, file) = text
            .split_once('=')
            .ok_or_else(|| Refusal::new(Code::Usage, "a call is held at POINT=PATH").name(text))?;
        Ok(Self {
            at: Moment::parse(at)?,
            file: PathBuf::from(file),
            passed: AtomicBool::new(false),
        })
    }

    fn reached(&self, point: CrashPoint) {
        if self.at.is_now(point) && !self.passed.swap(true, Ordering::Relaxed) {
            // Where it cannot be put down, the test that waits for it fails.
            drop(semel_host::daemon::hold(&self.file));
        }
    }
}

/// Names a point, and the how-manieth time that it is reached.
///
/// # Shape
/// `POINT`, or `POINT:N` for the n-th time that the point is reached.
#[derive(Debug)]
pub(crate) struct Moment {
    point: CrashPoint,
    /// How often it is still passed.
    left: AtomicU32,
}

impl Moment {
    /// Reads a moment.
    ///
    /// # Errors
    /// `usage`.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let (point, times) = match text.split_once(':') {
            None => (text, Some(1)),
            Some((point, times)) => (point, times.parse().ok()),
        };
        let wrong = || Refusal::new(Code::Usage, "a moment is POINT or POINT:N").name(text);
        let times: u32 = times.filter(|times| *times > 0).ok_or_else(wrong)?;
        Ok(Self {
            point: CrashPoint::parse(point)?,
            left: AtomicU32::new(times - 1),
        })
    }

    fn is_now(&self, point: CrashPoint) -> bool {
        let passed = |left: u32| left.checked_sub(1);
        self.point == point
            && self
                .left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, passed)
                .is_err()
    }
}

impl Hooks {
    /// Hears that a point was reached.
    pub(crate) fn reached(&self, point: CrashPoint) {
        if let Some(file) = &self.tell {
            // Where it cannot be written, the test that reads it fails.
            drop(semel_host::daemon::tell(file, point.name()));
        }
        // The threads that calls share are not held up with the call.
        if let Some((_, long)) = self.pause.filter(|(at, _)| *at == point) {
            tokio::task::block_in_place(|| std::thread::sleep(long));
        }
        if let Some(hold) = &self.hold {
            tokio::task::block_in_place(|| hold.reached(point));
        }
        if self.crash.as_ref().is_some_and(|crash| crash.is_now(point)) {
            semel_host::daemon::crash();
        }
    }
}

impl Points for Hooks {
    fn reached(&self, point: exec::Point) {
        Hooks::reached(self, CrashPoint::Exec(point));
    }
}

impl Steps for Hooks {
    fn reached(&self, step: Step) {
        Hooks::reached(self, CrashPoint::Host(step));
    }
}
