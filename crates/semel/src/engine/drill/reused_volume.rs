//! Incident 1: a retry certified the previous volume's lockfile.
//!
//! The naive side is a volume that attempts share, with a script that takes a `.venv` for a cache. The guarded side is
//! `semel contract`; each guard has a workspace of its own in which nothing else is wrong.

use super::python::Python;
use super::step;
use super::table::{Guarded, Naive, Row};
use super::workspace::{GENERATION, PASS, STATE, Workspaces, lock_text};
use crate::engine::trial::stage::Stage;
use crate::engine::trial::{Told, hands};
use std::path::{Path, PathBuf};

/// Plays the incident.
///
/// # Errors
/// Why it cannot be played here.
pub(super) fn play(stage: &Stage, tools: &mut Vec<String>) -> Told<Vec<Row>> {
    let sh = stage.tool("sh")?;
    let python = Python::find(stage)?;
    if python.pip.is_none() {
        return Err(format!("{} has no venv with a pip", python.describe()));
    }
    tools.extend([python.describe(), python.describe_tools()]);
    let world = Workspaces::build(stage, sh, python)?;
    Ok(vec![
        world.whole_incident(),
        world.no_identity(),
        world.dirt_alone(),
        world.no_lockfile_alone(),
        world.reuse_alone(),
        world.drift_alone(),
        world.unknown_state(),
        world.new_generation(),
        world.two_at_once(),
        world.ten_steps(),
    ])
}

impl Workspaces<'_> {
    fn whole_incident(&self) -> Row {
        let naive = || {
            let before = self.attempt(&self.naive, (Some(GENERATION), Some("1")))?;
            if before.exit != 0 || before.installed != "1.0" {
                return Ok(Naive::Unharmed(format!(
                    "the volume could not be warmed: {}",
                    before.seen()
                )));
            }
            let mut words = self.draft()?.into_iter();
            let program = PathBuf::from(words.next().unwrap_or_default());
            let draft = self
                .stage
                .start(self.stage.command(program, &self.naive)?.args(words))?;
            self.half_written(&self.naive, &draft)?;
            let cut = self.cut(&self.naive, draft)?;
            let second = self.attempt(&self.naive, (Some(GENERATION), Some("2")))?;
            let asked = self.requirement(&self.naive)?;
            Ok(second.naive(&format!(
                "while requirements.txt says {asked} and uv.lock ends after {cut} of {} bytes",
                self.next_bytes
            )))
        };
        let guarded = || {
            let workspace = self.workspace("whole")?;
            let run = self.contract(&workspace, "run", (Some(GENERATION), Some("1")))?;
            let draft = self.stage.start(run.arg("--").args(self.draft()?))?;
            self.half_written(&workspace, &draft)?;
            let marked = match self
                .stage
                .scratch
                .exists(workspace.join(".volume_dirty"))
                .map_err(hands)?
            {
                true => "the mark was there while the draft ran",
                false => "there was no mark while the draft ran",
            };
            let cut = self.cut(&workspace, draft)?;
            let got = self.check(&workspace, Some(GENERATION), Some("2"))?;
            Ok(Guarded::new(
                got,
                format!("{marked}; uv.lock ends after {cut} bytes"),
            ))
        };
        step(
            "the incident itself",
            "attempt 1 updates requirements.txt and is killed while it rewrites uv.lock; attempt 2 comes to the same \
             volume (guarded: attempt 1 under semel contract run, attempt 2 asks semel contract check)",
            naive,
            DIRTY,
            guarded,
        )
    }

    fn no_identity(&self) -> Row {
        let naive = || {
            let attempt = self.attempt(&self.naive, (None, None))?;
            Ok(attempt.naive("and nobody asked which volume or attempt this is"))
        };
        let guarded = || {
            let workspace = self.workspace("identity")?;
            let mut got = Vec::new();
            for (generation, attempt) in [(None, Some("1")), (Some(GENERATION), None), (Some(""), Some("1"))]
            {
                got.push(self.check(&workspace, generation, attempt)?);
            }
            got.push(self.check(&workspace, Some(GENERATION), Some("1"))?);
            Ok(Guarded::new(got.join(", "), ""))
        };
        step(
            "identity missing",
            "no generation; no attempt; an empty generation; then both given",
            naive,
            format!("{MISSING}, {MISSING}, {MISSING}, {PASS}"),
            guarded,
        )
    }

    fn dirt_alone(&self) -> Row {
        let mark = ".volume_dirty";
        let touch = |workspace: &Path| self.stage.scratch.write(workspace.join(mark), "").map_err(hands);
        let remove = |workspace: &Path| self.stage.scratch.remove(workspace.join(mark)).map_err(hands);
        let naive = || {
            touch(&self.naive)?;
            let attempt = self.attempt(&self.naive, (Some(GENERATION), Some("1")))?;
            remove(&self.naive)?;
            Ok(attempt.naive("with .volume_dirty beside it"))
        };
        let guarded = || {
            let workspace = self.workspace("dirt")?;
            touch(&workspace)?;
            let with = self.check(&workspace, Some(GENERATION), Some("1"))?;
            remove(&workspace)?;
            let without = self.check(&workspace, Some(GENERATION), Some("1"))?;
            Ok(Guarded::new(format!("{with}, {without}"), ""))
        };
        step(
            "dirty mark alone",
            "same generation, same attempt, same lockfiles: a .volume_dirty appears; it goes again",
            naive,
            format!("{DIRTY}, {PASS}"),
            guarded,
        )
    }

    fn no_lockfile_alone(&self) -> Row {
        let locks = ["requirements.txt", "uv.lock"];
        let aside = |workspace: &Path, back: &str, away: &str| {
            locks.iter().try_for_each(|lock| {
                let (from, to) = (format!("{lock}{back}"), format!("{lock}{away}"));
                self.stage
                    .scratch
                    .rename(workspace.join(from), workspace.join(to))
                    .map_err(hands)
            })
        };
        let naive = || {
            aside(&self.naive, "", ".away")?;
            let attempt = self.attempt(&self.naive, (Some(GENERATION), Some("1")))?;
            aside(&self.naive, ".away", "")?;
            Ok(attempt.naive("with no lockfile at all"))
        };
        let guarded = || {
            let workspace = self.workspace("lockless")?;
            aside(&workspace, "", ".away")?;
            let with = self.check(&workspace, Some(GENERATION), Some("1"))?;
            aside(&workspace, ".away", "")?;
            let without = self.check(&workspace, Some(GENERATION), Some("1"))?;
            Ok(Guarded::new(format!("{with}, {without}"), ""))
        };
        step(
            "lockfile absent alone",
            "same generation, same attempt, no dirt: both lockfiles are moved away; they come back",
            naive,
            format!("{LOCKLESS}, {PASS}"),
            guarded,
        )
    }

    fn reuse_alone(&self) -> Row {
        let naive = || {
            let attempt = self.attempt(&self.naive, (Some(GENERATION), Some("2")))?;
            let asked = self.requirement(&self.naive)?;
            Ok(attempt.naive(&format!("while requirements.txt says {asked}")))
        };
        let guarded = || {
            let workspace = self.workspace("reuse")?;
            let clean = match self
                .stage
                .scratch
                .exists(workspace.join(".volume_dirty"))
                .map_err(hands)?
            {
                true => "a dirty mark was there",
                false => "no dirty mark was there",
            };
            let before = self.state(&workspace)?;
            let other = self.check(&workspace, Some(GENERATION), Some("2"))?;
            let kept = if before == self.state(&workspace)? {
                "kept"
            } else {
                "changed"
            };
            let same = self.check(&workspace, Some(GENERATION), Some("1"))?;
            self.stage
                .scratch
                .write(workspace.join(".generation"), "g-1900\n")
                .map_err(hands)?;
            let disk = self.check(&workspace, Some(GENERATION), Some("1"))?;
            let got = format!("{other}, state {kept}, {same}, {disk}");
            Ok(Guarded::new(got, clean))
        };
        step(
            "reuse alone, no dirt",
            "attempt 2 on the generation of attempt 1, nothing else wrong; attempt 1 again; then .generation on the \
             disk names another generation",
            naive,
            format!("{REUSED}, state kept, {PASS}, {REUSED}"),
            guarded,
        )
    }

    fn drift_alone(&self) -> Row {
        let naive = || {
            let whole = lock_text("2.0");
            self.stage
                .scratch
                .write(self.naive.join("uv.lock"), whole)
                .map_err(hands)?;
            let attempt = self.attempt(&self.naive, (Some(GENERATION), Some("1")))?;
            let asked = self.requirement(&self.naive)?;
            Ok(attempt.naive(&format!("while the whole new lock says {asked}")))
        };
        let guarded = || {
            let workspace = self.workspace("drift")?;
            let lock = workspace.join("requirements.txt");
            self.stage.scratch.write(&lock, "leaf==2.0\n").map_err(hands)?;
            let moved = self.check(&workspace, Some(GENERATION), Some("1"))?;
            self.stage.scratch.write(&lock, "leaf==1.0\n").map_err(hands)?;
            let back = self.check(&workspace, Some(GENERATION), Some("1"))?;
            self.stage
                .scratch
                .remove(workspace.join("uv.lock"))
                .map_err(hands)?;
            let gone = self.check(&workspace, Some(GENERATION), Some("1"))?;
            Ok(Guarded::new(format!("{moved}, {back}, {gone}"), ""))
        };
        step(
            "lock drift alone",
            "same generation, same attempt, no dirt: a lockfile changes; its bytes come back; the other one vanishes",
            naive,
            format!("{DRIFT}, {PASS}, {DRIFT}"),
            guarded,
        )
    }

    fn unknown_state(&self) -> Row {
        let naive = || {
            self.stage
                .scratch
                .write(self.naive.join(STATE), "{\"generation\": \"g-18")
                .map_err(hands)?;
            let attempt = self.attempt(&self.naive, (Some(GENERATION), Some("1")))?;
            self.stage.scratch.remove(self.naive.join(STATE)).map_err(hands)?;
            Ok(attempt.naive("with a cut state file beside it"))
        };
        let guarded = || {
            let mut got = Vec::new();
            for shape in [
                "truncated",
                "not JSON",
                "a directory",
                "a link",
                "of another shape",
            ] {
                let workspace = self.workspace(&format!("unknown-{}", shape.replace(' ', "-")))?;
                self.spoil(&workspace, shape)?;
                got.push(self.check(&workspace, Some(GENERATION), Some("1"))?);
            }
            Ok(Guarded::new(got.join(", "), ""))
        };
        let five = [UNKNOWN; 5].join(", ");
        step(
            "unknown state",
            "the contract's state file is truncated; not JSON; a directory; a link; of another shape",
            naive,
            five,
            guarded,
        )
    }

    fn spoil(&self, workspace: &Path, shape: &str) -> Told<()> {
        let (scratch, state) = (&self.stage.scratch, workspace.join(STATE));
        let whole = self.state(workspace)?.ok_or("the check left no state")?;
        scratch.remove(&state).map_err(hands)?;
        let made = match shape {
            "truncated" => scratch.write(&state, whole.get(..whole.len() / 2).unwrap_or_default()),
            "not JSON" => scratch.write(&state, "clean\n"),
            "a directory" => scratch.directory(&state),
            "a link" => {
                let aside = workspace.join("state.json");
                scratch
                    .write(&aside, &whole)
                    .and_then(|aside| scratch.link(aside, &state))
            }
            _ => scratch.write(&state, "[\"g-1844\", 1]"),
        };
        made.map(drop).map_err(hands)
    }

    fn new_generation(&self) -> Row {
        let naive = || {
            let attempt = self.attempt(&self.naive, (Some("g-1845"), Some("2")))?;
            let asked = self.requirement(&self.naive)?;
            Ok(attempt.naive(&format!(
                "in an attempt that was told to be of a new generation, while requirements.txt says {asked}"
            )))
        };
        let guarded = || {
            let workspace = self.workspace("fresh")?;
            self.attempt(&workspace, (Some(GENERATION), Some("1")))?;
            let wipe = self.contract(&workspace, "wipe", (Some("g-1845"), None))?;
            let wiped = self.stage.run(&wipe)?.named();
            self.fill(&workspace)?;
            self.stage
                .scratch
                .write(workspace.join("requirements.txt"), "leaf==2.0\n")
                .map_err(hands)?;
            let checked = self.check(&workspace, Some("g-1845"), Some("2"))?;
            let attempt = self.attempt(&workspace, (Some("g-1845"), Some("2")))?;
            let verdict = if attempt.exit == 0 { "green" } else { "red" };
            let got = format!(
                "{wiped}, {checked}, sync {}, leaf {} installed, {verdict}",
                attempt.sync, attempt.installed
            );
            Ok(Guarded::new(
                got,
                format!("what the green had hidden: {}", attempt.tests),
            ))
        };
        step(
            "a new generation passes and tells the truth",
            "attempt 2 in generation g-1845 with the new lock (guarded: the disk is wiped first); then the same script",
            naive,
            format!("0 wiped, {PASS}, sync done, leaf 2.0 installed, red"),
            guarded,
        )
    }

    fn two_at_once(&self) -> Row {
        let guarded = || {
            let workspace = self.stage.scratch.directory("reused-volume/two").map_err(hands)?;
            self.fill(&workspace)?;
            let start = |attempt| {
                let command = self.contract(&workspace, "check", (Some(GENERATION), Some(attempt)))?;
                self.stage.start(command)
            };
            let (one, two) = (start("1")?, start("2")?);
            let mut got = [one.wait()?.named(), two.wait()?.named()];
            got.sort();
            Ok(Guarded::new(got.join(" and "), ""))
        };
        step(
            "two attempts at once",
            "two first checks of one fresh disk at the same time, attempts 1 and 2",
            || Ok(Naive::NoSide("the incident had one runner")),
            format!("{PASS} and {REUSED}"),
            guarded,
        )
    }

    fn ten_steps(&self) -> Row {
        let guarded = || {
            let scratch = &self.stage.scratch;
            let workspace = scratch.directory("reused-volume/ten-steps").map_err(hands)?;
            let generation = Some("g-test-1");
            let lock = workspace.join("requirements.txt");
            let requirement = || scratch.write(&lock, "leaf==1.0\n").map_err(hands);
            let mut got = Vec::new();
            requirement()?;
            got.push(self.check(&workspace, generation, Some("1"))?);
            got.push(self.check(&workspace, generation, Some("2"))?);
            scratch
                .write(workspace.join(".volume_dirty"), "")
                .map_err(hands)?;
            got.push(self.check(&workspace, generation, Some("2"))?);
            scratch.remove(workspace.join(".volume_dirty")).map_err(hands)?;
            scratch.remove(&lock).map_err(hands)?;
            got.push(self.check(&workspace, generation, Some("2"))?);
            got.push(self.check(&workspace, None, Some("2"))?);
            let wiped = self
                .stage
                .run(&self.contract(&workspace, "wipe", (generation, None))?)?;
            requirement()?;
            got.push(self.check(&workspace, generation, Some("1"))?);
            let left = scratch.names(&workspace).map_err(hands)?;
            let left: Vec<String> = left.iter().map(|name| name.display().to_string()).collect();
            Ok(Guarded::new(
                got.join(", "),
                format!("the wipe: {}; now there: {}", wiped.named(), left.join(" ")),
            ))
        };
        step(
            "ten steps that every build passes",
            "an empty directory; g-test-1, attempt 1; one line in requirements.txt; check; attempt 2, check; touch \
             .volume_dirty, check; remove it and the lockfile, check; no generation, check; wipe, the first case again",
            || Ok(Naive::NoSide("these are the contract's own steps")),
            [PASS, REUSED, DIRTY, LOCKLESS, MISSING, PASS].join(", "),
            guarded,
        )
    }
}

const MISSING: &str = "2 missing_identity";
const DIRTY: &str = "3 dirty_volume";
const LOCKLESS: &str = "4 no_lockfile";
const REUSED: &str = "5 generation_reused";
const DRIFT: &str = "6 lockfile_drift";
const UNKNOWN: &str = "7 unknown_state";
