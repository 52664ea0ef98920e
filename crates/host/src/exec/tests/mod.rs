//! Everything here runs real shims and real commands, and kills them.

mod ends;
mod inner;
mod once;
mod runs;

use super::place::Place;
use super::shim::Moment;
use super::*;
use crate::process::Cancel;
use crate::sandbox::tests::{alive, in_due_time, say, skip, stands, text, until};
use crate::sandbox::{Network, Require};
use crate::volume::{Volume, Volumes};
use crate::{clock, daemon};
use rustix::process::{Pid, Signal, kill_process};
use semel_core::command::Ended;
use semel_core::ids::{ExecutionId, Generation, JobId};
use semel_core::{Code, RelPath};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MOMENTS: [Moment; 6] = [
    Moment::Ordered,
    Moment::Locked,
    Moment::Claimed,
    Moment::Synced,
    Moment::Ended,
    Moment::Concluded,
];

/// What a shim does at a moment of its life, by what a test left in its directory: it dies, or waits to be let go.
pub(super) fn at(moment: Moment, place: &Place) {
    let there = |name: &str| place.readable(name).ok().flatten();
    let word = format!("{moment:?}");
    let says = |name: &str| {
        let mut text = String::new();
        there(name).is_some_and(|mut file| file.read_to_string(&mut text).is_ok() && text == word)
    };
    if moment == Moment::Ordered {
        // For a test that has to know that the shim came, and went.
        let own = std::process::id().to_string();
        place
            .create_new("test.shim")
            .unwrap()
            .write_all(own.as_bytes())
            .unwrap();
    }
    if says("test.die") {
        daemon::crash();
    }
    if says("test.wait") {
        place.create_new("test.waits").unwrap();
        while there("test.go").is_none() {
            if rustix::fs::fstat(place).unwrap().st_nlink == 0 {
                // The test is over, and did not come so far.
                daemon::crash();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What this binary does where a test starts it as somebody who starts executions: `__starter STATE JOB GENERATION
/// EXECUTION SCRIPT POINT FILE MOMENT`.
pub(crate) fn helper() -> Option<i32> {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1).map(String::as_str)? {
        "__starter" => starter(&args),
        "__inner" => Some(inner::say_what_is_lost(args.get(2)?.into())),
        _ => None,
    }
}

fn starter(args: &[String]) -> Option<i32> {
    let site = Site {
        dir: None,
        state: args.get(2)?.into(),
        job: JobId::parse(args.get(3)?).ok()?,
        generation: Generation::parse(args.get(4)?).ok()?,
    };
    let (id, spec) = (ExecutionId::parse(args.get(5)?).ok()?, site.sh(args.get(6)?));
    let (die_at, file, moment) = (args.get(7)?.clone(), args.get(8)?, args.get(9)?);
    let place = site.place(&id);
    let points = |point: Point| {
        if point == Point::Made && !file.is_empty() {
            std::fs::write(place.join(file), moment).unwrap();
        }
        if point.name() == die_at {
            daemon::crash();
        }
    };
    let started = start(&site.volume(), &id, &spec, &points);
    if die_at == "returned" {
        return Some(i32::from(started.is_err()));
    }
    loop {
        std::thread::park();
    }
}

/// A state root with one volume, and whoever starts something in it.
struct Site {
    dir: Option<tempfile::TempDir>,
    state: PathBuf,
    job: JobId,
    generation: Generation,
}

impl Site {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut site = Self::at(dir.path().to_owned());
        site.dir = Some(dir);
        site
    }

    fn at(state: PathBuf) -> Self {
        let site = Self {
            state,
            dir: None,
            job: JobId::parse("job").unwrap(),
            generation: Generation::mint(clock::seed().unwrap()),
        };
        let nonce = clock::random().unwrap();
        let volumes = Volumes::open(&site.state).unwrap();
        volumes.create(&site.job, &site.generation, nonce).unwrap();
        std::fs::write(site.state.join("secret"), "secret").unwrap();
        site
    }

    fn volume(&self) -> Volume {
        let volumes = Volumes::open(&self.state).unwrap();
        volumes.look(&self.job, &self.generation).unwrap()
    }

    fn tree(&self) -> PathBuf {
        self.volume().tree_path()
    }

    fn in_tree(&self, name: &str) -> bool {
        self.tree().join(name).exists()
    }

    fn touch(&self, name: &str) {
        std::fs::write(self.tree().join(name), "").unwrap();
    }

    /// How often the side effect of [`EFFECT`] happened.
    fn effects(&self) -> usize {
        std::fs::read_to_string(self.tree().join("effects")).map_or(0, |text| text.lines().count())
    }

    fn place(&self, id: &ExecutionId) -> PathBuf {
        self.volume().path().join("meta/exec").join(id.as_str())
    }

    fn around(&self) -> Around {
        Around {
            path: vec!["/usr/local/bin".into(), "/usr/bin".into(), "/bin".into()],
            env: BTreeMap::new(),
            hide: vec![self.state.clone(), "/root".into(), "/home".into()],
            read_only: Vec::new(),
            network: Network::Host,
            require: Require::Full,
            bounds: crate::sandbox::default_bounds(),
        }
    }

    fn of(&self, what: What) -> Spec {
        Spec {
            what,
            cwd: RelPath::root(),
            env: BTreeMap::new(),
            timeout: Duration::from_secs(600),
            grace: Duration::from_secs(5),
            cap_bytes: 1 << 20,
            around: self.around(),
        }
    }

    fn sh(&self, script: &str) -> Spec {
        self.of(What::Shell(script.into()))
    }

    fn start(&self, spec: &Spec) -> (ExecutionId, Attached) {
        let id = mint();
        let attached = start(&self.volume(), &id, spec, &NoPoints).unwrap();
        (id, attached)
    }

    fn run(&self, spec: &Spec) -> (ExecutionId, Status) {
        let (id, attached) = self.start(spec);
        (id, ended(attached.wait(&never()).unwrap()))
    }

    fn observe(&self, id: &ExecutionId) -> Observation {
        observe(&self.volume(), id).unwrap()
    }

    fn wait(&self, id: &ExecutionId) -> Observation {
        let attached = attach(&self.volume(), id).unwrap().unwrap();
        attached.wait(&never()).unwrap()
    }

    fn output(&self, id: &ExecutionId, stream: Stream) -> Vec<u8> {
        read_output(&self.volume(), id, stream, 0, 1 << 24).unwrap()
    }

    /// Waits until what a command wrote has come through its shim.
    fn said(&self, id: &ExecutionId, what: &[u8]) -> bool {
        until(|| self.output(id, Stream::Stdout) == what)
    }

    fn shim(&self, id: &ExecutionId) -> Option<i32> {
        Place::open(&self.volume(), id).unwrap()?.shim().unwrap()
    }

    /// Starts an execution from a process that can be killed, which dies at a point by itself.
    fn starter(&self, id: &ExecutionId, script: &str, die_at: &str, (file, moment): (&str, &str)) -> Starter {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .arg("__starter")
            .arg(&self.state)
            .args([self.job.as_str(), self.generation.as_str(), id.as_str()])
            .args([script, die_at, file, moment])
            .spawn()
            .unwrap();
        Starter(child)
    }

    /// Lets a shim go that waits at a moment.
    fn go(&self, id: &ExecutionId) {
        std::fs::write(self.place(id).join("test.go"), "").unwrap();
    }

    /// Waits until the shim of an execution has come, and gone.
    fn came_and_went(&self, id: &ExecutionId) -> bool {
        let pid = || {
            std::fs::read_to_string(self.place(id).join("test.shim"))
                .ok()?
                .parse()
                .ok()
        };
        until(|| pid().is_some_and(is_dead))
    }

    fn waits(&self, id: &ExecutionId) -> bool {
        self.place(id).join("test.waits").exists()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.dir.is_some() {
            // Nothing of a failed test is left behind.
            if let Ok(volume) =
                Volumes::open(&self.state).and_then(|all| all.look(&self.job, &self.generation))
            {
                end_all(&volume, Duration::ZERO).ok();
            }
        }
    }
}

/// A process that starts an execution; it is killed at the end, if it still lives.
struct Starter(std::process::Child);

impl Starter {
    fn kill(&mut self) {
        self.0.kill().ok();
        self.0.wait().unwrap();
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A script whose effect can be counted.
const EFFECT: &str = "echo x >> effects";

fn mint() -> ExecutionId {
    ExecutionId::mint(clock::seed().unwrap())
}

fn never() -> Cancel {
    Cancel::new().unwrap()
}

fn ended(seen: Observation) -> Status {
    match seen {
        Observation::Ended(status) => *status,
        other => panic!("{other:?}"),
    }
}

fn kill(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// A time of waiting that closes in on the moment at which two things happen at once, whatever the machine's pace.
struct Closing(Duration);

impl Closing {
    /// Gives a time around the one that was found so far.
    fn around(&self) -> Duration {
        let percent = 50 + u64::from_ne_bytes(clock::random().unwrap()) % 100;
        self.0 * u32::try_from(percent).unwrap() / 100
    }

    /// Learns which of the two came first.
    fn learn(&mut self, ours_came_first: bool) {
        self.0 = if ours_came_first {
            self.0 * 3 / 2
        } else {
            self.0 * 2 / 3
        };
        self.0 = self.0.max(Duration::from_micros(1));
    }
}

/// A word that no other test's command line holds.
fn mark() -> String {
    format!("mark{}", mint())
}

fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Says whether a process has ended; whoever adopted it may take its time to reap it.
fn is_dead(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

fn is_gone(pid: i32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}
