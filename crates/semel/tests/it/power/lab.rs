//! The laboratory of the power cuts: a daemon in durability `power` on filesystems that lose their power under load, and
//! what has to be found when it comes back.

use super::disk::{Disk, Kind};
use super::hush::Hush;
use super::work::{self, Chain, Dice, Progress};
use crate::harness::{Daemon, Home, Volume};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Where journal and volumes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// On one filesystem, whose log carries both.
    Together,
    /// On two, where neither's syncs help the other.
    Apart,
}

/// What is counted over the points.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) points: u64,
    /// Calls that were acknowledged.
    pub(super) acknowledged: u64,
    /// Calls that were open at the cut: that had their whole effect, none, and those of which it cannot be told.
    pub(super) whole: u64,
    pub(super) none: u64,
    pub(super) unknown: u64,
    /// Points after which the generation went on.
    pub(super) went_on: u64,
    /// Cuts while a daemon recovered.
    pub(super) while_recovering: u64,
    /// Cuts while another daemon started for the first time, or soon after.
    pub(super) first_starts: u64,
    /// What was lost, invented or halved, in words.
    pub(super) faults: Vec<String>,
}

impl Tally {
    pub(super) fn add(&mut self, more: &Self) {
        self.points += more.points;
        self.acknowledged += more.acknowledged;
        self.whole += more.whole;
        self.none += more.none;
        self.unknown += more.unknown;
        self.went_on += more.went_on;
        self.while_recovering += more.while_recovering;
        self.first_starts += more.first_starts;
        self.faults.extend_from_slice(&more.faults);
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} points, {} calls acknowledged, {} faults; {} calls open: {} whole, {} none, {} unknown; {} generations \
             went on, {} cuts while recovering, {} at a first start",
            self.points,
            self.acknowledged,
            self.faults.len(),
            self.whole + self.none + self.unknown,
            self.whole,
            self.none,
            self.unknown,
            self.went_on,
            self.while_recovering,
            self.first_starts
        )
    }
}

pub(super) struct Lab {
    daemon: Option<Daemon>,
    disks: Vec<Disk>,
    pub(super) home: Arc<Home>,
    /// Holds the images; outside of the filesystems that are cut.
    outside: tempfile::TempDir,
    boots: u32,
    pub(super) dice: Dice,
    pub(super) tally: Tally,
    hush: Option<Hush>,
}

/// What was done in one point, until the cut.
pub(super) struct Point {
    pub(super) label: String,
    pub(super) volume: Volume,
    pub(super) chains: Vec<Chain>,
    /// Volumes that were opened meanwhile.
    pub(super) opened: Vec<Volume>,
    pub(super) boot: Boot,
}

/// A daemon that started for the first time in a point.
struct First {
    state: PathBuf,
    /// Its operator's token, where it listened before the cut.
    token: Option<String>,
}

/// Whether the machine starts anew after the cut, or only the filesystem comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boot {
    Same,
    Other,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.daemon = None;
        // The inner one first.
        while self.disks.pop().is_some() {}
    }
}

impl Lab {
    /// Makes the filesystems, and starts a daemon on them.
    ///
    /// # Errors
    /// Why this machine cannot.
    pub(super) fn new(kind: Kind, layout: Layout, seed: u64, hush: Option<Hush>) -> Result<Self, String> {
        if !crate::harness::is_root() {
            return Err("only root can mount".to_owned());
        }
        let outside = tempfile::tempdir().unwrap();
        let at = |name: &str| outside.path().join(name);
        std::fs::create_dir(at("mnt")).unwrap();
        let mut disks = vec![Disk::new(kind, &at("image"), &at("mnt"))?];
        let home = Arc::new(Home::within(&at("mnt")));
        std::fs::create_dir(home.state()).unwrap();
        crate::harness::mode(&home.state(), 0o700);
        if layout == Layout::Apart {
            let volumes = home.state().join("volumes");
            std::fs::create_dir(&volumes).unwrap();
            disks.push(Disk::new(kind, &at("volumes"), &volumes)?);
            crate::harness::mode(&volumes, 0o700);
        }
        let mut lab = Self {
            daemon: None,
            disks,
            home,
            outside,
            boots: 1,
            dice: Dice::new(seed),
            tally: Tally::default(),
            hush,
        };
        // Tried at once: what this kernel cannot is told before anything is held against us.
        lab.sync();
        for disk in &lab.disks {
            disk.cut()?;
        }
        lab.back();
        lab.start()?;
        lab.sync();
        Ok(lab)
    }

    /// Makes the command of a daemon in a machine that was started so often.
    fn command(&self, state: &Path) -> Command {
        let fake = self.outside.path().join("boot_id");
        std::fs::write(&fake, format!("00000000-0000-4000-8000-{:012}\n", self.boots)).unwrap();
        let script = "mount --bind \"$1\" /proc/sys/kernel/random/boot_id && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.outside.path())
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(&fake)
            .arg(env!("CARGO_BIN_EXE_semel"))
            .args(["serve", "--json", "--quiet", "--listen", "127.0.0.1:0", "--state"])
            .arg(state)
            .stderr(std::fs::File::create(self.told()).unwrap());
        if let Some(hush) = &self.hush {
            hush.hear(&mut command);
        }
        command
    }

    /// Where a daemon tells why it does not start.
    fn told(&self) -> PathBuf {
        self.outside.path().join("told")
    }

    pub(super) fn start(&mut self) -> Result<(), String> {
        let daemon = Daemon::begun(&mut self.command(&self.home.state()));
        self.daemon = Some(daemon.map_err(|status| {
            let told = std::fs::read_to_string(self.told()).unwrap_or_default();
            format!("the daemon does not start: {status}: {told}")
        })?);
        Ok(())
    }

    pub(super) fn url(&self) -> &str {
        &self.daemon.as_ref().expect("a daemon runs").url
    }

    /// Makes everything durable that the test put there.
    fn sync(&self) {
        for disk in &self.disks {
            disk.sync();
        }
    }

    /// Cuts the power of all filesystems, in an order of chance. What runs until then stands still first, or there would
    /// be a moment in which it goes on with one of two filesystems; with a single one it may go on, and meets its end.
    fn cut(&mut self, runs: u32) -> Result<(), String> {
        if self.disks.len() > 1 || self.dice.below(2) == 0 {
            crate::harness::signal(runs, libc::SIGSTOP);
        }
        let first = self.dice.below(2) as usize;
        for n in 0..self.disks.len() {
            self.disks[(n + first) % self.disks.len()].cut()?;
        }
        Ok(())
    }

    /// Brings the filesystems back as a machine does that starts.
    fn back(&mut self) {
        self.daemon = None;
        let checked = self.dice.below(2) == 0;
        for disk in self.disks.iter_mut().rev() {
            disk.unmount();
        }
        for disk in &mut self.disks {
            if checked {
                disk.check();
            }
            disk.mount().expect("it can be mounted again");
        }
    }

    /// Lets clients work, cuts the power at a moment of chance, and brings everything back.
    ///
    /// # Errors
    /// Why this machine cannot, or why the daemon does not start.
    pub(super) fn point(&mut self) -> Result<Point, String> {
        self.tally.points += 1;
        let label = format!("point {}", self.tally.points);
        let volume = self.home.open(&format!("p{}", self.tally.points), "power");
        let mut clients: Vec<Vec<Chain>> = (0..4)
            .map(|client| work::chains(&mut self.dice, &volume.tree, client))
            .collect();
        self.sync();
        if self.dice.below(4) == 0 {
            self.restart_calmly()?;
        }
        let (opened, first) = self.worked(&volume, &mut clients)?;
        let boot = match self.dice.below(2) {
            0 => Boot::Same,
            _ => Boot::Other,
        };
        self.boots += u32::from(boot == Boot::Other);
        self.back();
        if self.dice.below(4) == 0 {
            self.cut_while_recovering()?;
        }
        self.start()?;
        if let Some(first) = first {
            self.starts_again(&label, &first);
        }
        Ok(Point {
            label,
            volume,
            chains: clients.into_iter().flatten().collect(),
            opened,
            boot,
        })
    }

    /// Lets clients work until the power goes; gives the volumes that were opened meanwhile, and who else started.
    fn worked(
        &mut self,
        volume: &Volume,
        clients: &mut Vec<Vec<Chain>>,
    ) -> Result<(Vec<Volume>, Option<First>), String> {
        let another = (self.dice.below(3) == 0).then(|| self.another());
        let after = self.dice.below(48) as usize;
        let jitter = Duration::from_micros(self.dice.below(3000));
        let lives_on = Duration::from_millis(self.dice.below(8));
        let (progress, working) = (&Progress::default(), clients.len());
        let (home, url) = (self.home.clone(), self.url().to_owned());
        let job = format!("q{}", self.tally.points);
        let met = std::thread::scope(|scope| {
            let (home, url) = (&home, &url);
            for chains in clients {
                scope.spawn(move || {
                    work::run(home, url, volume, chains, progress);
                    progress.ended.fetch_add(1, Ordering::SeqCst);
                });
            }
            let opening = scope.spawn(|| opens(home, &job, progress));
            let starting = another.map(|another| scope.spawn(|| starts(another, progress)));
            let number = |of: &AtomicUsize| of.load(Ordering::SeqCst);
            while number(&progress.acknowledged) < after && number(&progress.ended) < working {
                std::thread::sleep(Duration::from_micros(50));
            }
            // A sleep would be too coarse for what happens between two calls.
            let since = Instant::now();
            while since.elapsed() < jitter {
                std::hint::spin_loop();
            }
            progress.dark.store(true, Ordering::SeqCst);
            let runs = self.daemon.as_ref().expect("a daemon runs").child.id();
            let cut = self.cut(runs);
            std::thread::sleep(lives_on);
            // Whoever waits for an answer waits no longer.
            self.daemon = None;
            let first = starting.map(|starting| starting.join().unwrap().0);
            cut.map(|()| (opening.join().unwrap(), first))
        });
        self.tally.acknowledged += progress.acknowledged.load(Ordering::SeqCst) as u64;
        met
    }

    /// Makes the command of a daemon that never ran before.
    fn another(&self) -> (PathBuf, Command) {
        let state = self.home.path().join(format!("another-{}", self.tally.points));
        let command = self.command(&state);
        (state, command)
    }

    /// Starts a daemon again whose first start met the cut: wherever that was, it starts, and as the one it was.
    fn starts_again(&mut self, label: &str, first: &First) {
        self.tally.first_starts += 1;
        let again = Daemon::begun(&mut self.command(&first.state));
        let token = std::fs::read_to_string(first.state.join("operator.token")).ok();
        let fault = match (again, &first.token) {
            (Err(status), _) => format!("after a cut at its first start it does not start: {status}"),
            (Ok(_), Some(was)) if token.as_ref() != Some(was) => "it forgot its operator".to_owned(),
            (Ok(_), _) => return,
        };
        self.tally.faults.push(format!("{label}: {fault}"));
    }

    /// Ends the daemon as an operator does, which leaves the journal in its one file; another begins a new log.
    fn restart_calmly(&mut self) -> Result<(), String> {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.terminate();
            daemon
                .ended(Duration::from_secs(30))
                .ok_or("the daemon does not end")?;
        }
        self.start()
    }

    fn cut_while_recovering(&mut self) -> Result<(), String> {
        self.tally.while_recovering += 1;
        let mut child = self
            .command(&self.home.state())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| e.to_string())?;
        std::thread::sleep(Duration::from_millis(self.dice.below(120)));
        self.cut(child.id())?;
        drop(child.kill());
        drop(child.wait());
        self.back();
        Ok(())
    }
}

/// Starts a daemon for the first time.
fn starts((state, mut command): (PathBuf, Command), progress: &Progress) -> (First, Option<Daemon>) {
    let daemon = Daemon::begun(&mut command).ok();
    let token = std::fs::read_to_string(state.join("operator.token")).ok();
    let heard = daemon.is_some() && !progress.dark.load(Ordering::SeqCst);
    let token = token.filter(|_| heard);
    (First { state, token }, daemon)
}

/// Opens volumes until that fails.
fn opens(home: &Home, job: &str, progress: &Progress) -> Vec<Volume> {
    let mut opened = Vec::new();
    for n in 0..3 {
        let wanted = json!({"job": format!("{job}-{n}"), "durability": "power"});
        match home.try_admin("POST", "/v1/admin/volumes", &wanted) {
            Some(reply) if reply.status == 200 && !progress.dark.load(Ordering::SeqCst) => {
                opened.push(Volume::of(&reply.body));
            }
            _ => break,
        }
    }
    opened
}
