//! One attempt: what it did, stage by stage, and the evidence that each stage left.
//!
//! Every stage verifies what the one before left, before it runs. The evidence is kept also where a stage refuses,
//! since refusals are signed too.

mod beside;
mod installed;
mod installing;
mod moved;

use super::super::proposal::{Base, BaseTree, Proposal};
use super::super::{Engine, host};
use super::input::{self, Untouched};
use super::shut::shut_off;
use super::{Ask, caches, pipe, surface, told};
use crate::engine::job::say::{Point, Say};
use crate::limits;
use installed::Installed;
use semel_core::bounds::Asked;
use semel_core::certificate::{BaseCommit, BaseTests, Report, Weak};
use semel_core::confinement::Level;
use semel_core::installer::Toolchain;
use semel_core::job::{Certify, Confine, InGit};
use semel_core::manifest::Manifest;
use semel_core::report::Counts;
use semel_core::{Code, Refusal, RelPath, Sha256};
use semel_host::git::{Git, leads_to, one_commit};
use semel_host::installer::{Isolation, ReportFrom, TestPlan, TestRun, run_tests};
use semel_host::process::{Cancel, TreeEnded};
use semel_host::sandbox::Require;
use semel_host::volume::Quiet;
use semel_host::{plain, volume as disk};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Is what an attempt has to show for itself.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    /// Every lockfile, with its digest.
    pub(super) locks: BTreeMap<RelPath, Sha256>,
    /// The install records of all installers, in their one form.
    pub(super) record: Option<Vec<u8>>,
    /// Every tool that took part.
    pub(super) toolchain: Vec<Toolchain>,
    /// The weakest confinement of any command.
    pub(super) level: Option<Level>,
    /// The test report.
    pub(super) report: Option<Report>,
    /// What is bound less than fully.
    pub(super) weak: BTreeSet<(String, String)>,
    /// What it was compared with.
    pub(super) base: Option<BaseCommit>,
    /// What changed against the base that can change what the tests say.
    pub(super) surface: Vec<RelPath>,
    /// What the last certificate of the base's tree counted.
    pub(super) base_tests: Option<BaseTests>,
}

impl Evidence {
    /// Begins with what the manifest of the proposal already shows.
    pub(super) fn of(_proposal: &Proposal) -> Self {
        Self {
            locks: BTreeMap::new(),
            record: None,
            toolchain: Vec::new(),
            level: None,
            report: None,
            weak: BTreeSet::new(),
            surface: Vec::new(),
            base: None,
            base_tests: None,
        }
    }

    /// Gives what was counted.
    pub(super) fn counts(&self) -> Option<Counts> {
        self.report.as_ref().map(|report| report.counts)
    }

    /// Gives the weak bindings as a certificate names them.
    pub(super) fn weak(&self) -> Vec<Weak> {
        self.weak
            .iter()
            .map(|(name, about)| Weak {
                name: name.clone(),
                about: about.clone(),
            })
            .collect()
    }

    fn confined(&mut self, level: Option<Level>) {
        self.level = match (self.level.take(), level) {
            (Some(one), Some(two)) => Some(one.and(two)),
            (one, two) => one.or(two),
        };
    }

    fn weaken(&mut self, name: &str, clauses: impl IntoIterator<Item = String>) {
        self.weak
            .extend(clauses.into_iter().map(|about| (name.to_owned(), about)));
    }
}

/// Is what every stage of one attempt works with.
struct Attempt<'a> {
    engine: &'a Engine,
    ask: &'a Ask,
    disk: &'a disk::Volume,
    work: PathBuf,
    reports: PathBuf,
    isolation: Isolation,
    say: Say<'a>,
    cancel: &'a Cancel,
}

/// Runs the stages of one attempt.
///
/// # Errors
/// The refusal of the first stage that does not hold.
pub(super) fn run(
    engine: &Engine,
    ask: &Ask,
    proposal: &Proposal,
    disk: &disk::Volume,
    evidence: &mut Evidence,
    say: Say<'_>,
    cancel: &Cancel,
) -> Result<(), Refusal> {
    let mut attempt = Attempt {
        engine,
        ask,
        disk,
        work: disk.path().join("work"),
        reports: engine
            .config
            .state
            .join("reports")
            .join(disk.generation().as_str()),
        isolation: isolation(engine, ask.confine, ask.limits),
        say,
        cancel,
    };
    shut_off(engine, ask, disk)?;
    plain::private_directory(&attempt.work).map_err(host)?;
    plain::private_directory(&attempt.reports).map_err(host)?;
    let git = Git::find(&engine.config.path).map_err(host)?;
    let base = |of: &Option<Base>| of.as_ref().map(|of| BaseTree::read(&git, of, cancel)).transpose();
    let rules = base(&ask.base)?.map(|base| base.rules()).transpose()?;
    let rules = rules.unwrap_or_default();
    let manifest = input::take(proposal, &rules, disk)?;
    say.line(&format!(
        "take     {} entries, tree {}",
        manifest.entries.len(),
        proposal.tree
    ));
    say.reached(Point::Taken);
    evidence.weaken("exit_status", pipe::weakness(&ask.certify.test));
    caches::hold_nothing_sealed(&ask.certify, &manifest)?;
    attempt.lead_to_git(&git)?;
    let against = surface::Against {
        base: base(&ask.against)?,
        manifest: &manifest,
        root: disk.tree(),
    };
    against.tell(engine, evidence, say)?;
    let locks = input::bind(&manifest, &ask.certify.install, disk.tree());
    if let Ok(locks) = &locks {
        evidence.locks.clone_from(&locks.digests);
        evidence.weaken("lock", locks.weak.iter().cloned());
    }
    let locks = locks?;
    say.line(&format!(
        "bind     {}",
        names(locks.digests.keys().map(ToString::to_string))
    ));
    say.reached(Point::Bound);
    let installed = attempt.install(&locks, &manifest, evidence)?;
    say.reached(Point::Installed);
    attempt.keep_records(&installed.records, evidence)?;
    against.tell_modules(&installed.records, evidence)?;
    say.reached(Point::Recorded);
    // Before anything is looked at again: whatever is changed from here on, and be it put back, bears another stamp. So does
    // what was installed, since each part of it was recorded.
    let untouched = Untouched::now(&manifest, disk.tree())?;
    attempt.verify(&installed, &manifest)?;
    let apart = attempt.set_apart(&installed, &manifest, evidence)?;
    disk.loosen().map_err(host)?;
    attempt.test(&installed, evidence)?;
    say.reached(Point::Tested);
    attempt.verify(&installed, &manifest)?;
    untouched.still(&manifest, disk.tree())?;
    installed.untouched()?;
    attempt.nothing_appeared(&installed, &manifest, &apart, evidence)?;
    say.reached(Point::Verified);
    say.line("verify   locks, installed bytes and source tree are what they were");
    Ok(())
}

/// Gives the test command of a job.
pub(super) fn test_command(certify: &Certify) -> Vec<OsString> {
    certify.test.iter().map(Into::into).collect()
}

/// Says where the report of the test command comes from.
pub(super) fn report_from(certify: &Certify) -> ReportFrom {
    certify
        .report
        .clone()
        .map_or(ReportFrom::Command, ReportFrom::File)
}

/// Gives what surrounds every command of a job.
pub(in crate::engine) fn isolation(engine: &Engine, confine: Confine, limits: Asked) -> Isolation {
    Isolation {
        hide: engine.config.hidden(),
        read_only: Vec::new(),
        require: match confine {
            Confine::Require => Require::Full,
            Confine::BestEffort => Require::BestEffort,
        },
        bounds: engine.config.bounds(limits),
    }
}

fn names(names: impl IntoIterator<Item = String>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

impl Attempt<'_> {
    fn deadline(&self) -> std::time::Duration {
        self.ask
            .certify
            .timeout
            .map_or(limits::CERTIFY_TIMEOUT, semel_core::job::Span::get)
    }

    /// Looks again, where nobody writes: locks, installed bytes, source tree.
    fn verify(&self, installed: &Installed, manifest: &Manifest) -> Result<(), Refusal> {
        self.quiet()?;
        installed.verify(self.disk.generation(), manifest, &self.aside()?)?;
        self.leads_to_git()?;
        input::still_there(manifest, self.disk.tree())
    }

    /// Makes the repository that the job asks for, beside the tree: nobody writes it.
    fn lead_to_git(&mut self, git: &Git) -> Result<(), Refusal> {
        if self.ask.certify.git == InGit::OneCommit {
            let gitdir = self.work.join("repository");
            one_commit(git, &self.disk.tree_path(), &gitdir, self.cancel).map_err(host)?;
            self.isolation.read_only.push(gitdir);
        }
        Ok(())
    }

    /// Looks whether the tree leads to that repository, and nowhere else.
    fn leads_to_git(&self) -> Result<(), Refusal> {
        if self.ask.certify.git == InGit::None {
            return Ok(());
        }
        let expected = leads_to(&self.work.join("repository"));
        let cap = expected.len() as u64 + 1;
        match plain::read_file(&self.disk.tree_path().join(".git"), cap) {
            Ok(found) if found == expected => Ok(()),
            Ok(_) | Err(_) => {
                let why = "the file that leads to the repository of this attempt was changed";
                Err(Refusal::new(Code::TreeMismatch, why).name(".git"))
            }
        }
    }

    /// Keeps everybody from writing to the volume, where that can be: what is read next stays what it is. Elsewhere the
    /// end of every process of each stage was proved.
    fn quiet(&self) -> Result<(), Refusal> {
        match self.disk.quiet() {
            Ok(Quiet::Proved | Quiet::Unproved) => Ok(()),
            Err(error) if error.code() == Code::VolumeBusy => {
                let why = host(error).why;
                Err(Refusal::new(Code::DirtyVolume, why).reason("process_tree_unproved"))
            }
            Err(error) => Err(host(error)),
        }
    }

    /// Runs the tests where nothing but declared caches can be written, and reads what they left.
    fn test(&self, installed: &Installed, evidence: &mut Evidence) -> Result<(), Refusal> {
        let certify = &self.ask.certify;
        let plan = TestPlan {
            tree: self.disk.tree_path(),
            home: self.work.join("test"),
            installed: &installed.plans,
            commanded: installed.commanded(),
            command: test_command(certify),
            report: report_from(certify),
            env: certify
                .env
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            writable: certify.caches.clone(),
            deadline: self.deadline(),
            grace: limits::GRACE,
            isolation: self.isolation.clone(),
        };
        let run = run_tests(&plan, self.cancel).map_err(host)?;
        // Before anything is written: it may have used up the room.
        if run.tree_ended == TreeEnded::Proved {
            self.free_tests();
        }
        self.keep(&run)?;
        evidence.confined(Some(run.level.clone()));
        if let (Some(sha256), Some(format), Ok(counts)) = (run.report_sha256, run.format, &run.verdict) {
            evidence.report = Some(Report {
                format: format.name().to_owned(),
                sha256,
                counts: *counts,
            });
        }
        ended(run.tree_ended, "test")?;
        let counts = match &run.verdict {
            Ok(counts) => *counts,
            Err(refusal) => return Err(told::with_words(refusal, self.disk.generation(), &run)),
        };
        self.say.line(&format!(
            "test     {} passed, {} skipped, {:.1} s",
            counts.passed,
            counts.skipped,
            run.took.as_secs_f64()
        ));
        if let Some(base) = &evidence.base_tests
            && base.counts.passed > counts.passed
        {
            self.say.line(&format!(
                "surface  {} fewer tests passed than for the base",
                base.counts.passed - counts.passed
            ));
        }
        let least = certify.min_tests.unwrap_or(1);
        if counts.passed < least {
            let why = format!("{} tests passed, the job expects at least {least}", counts.passed);
            return Err(Refusal::new(Code::EvidenceForeign, why).reason("too_few_tests"));
        }
        Ok(())
    }

    /// Frees what the tests left in their HOME and TMPDIR: it is nobody's evidence, and would take the room of the next attempt.
    fn free_tests(&self) {
        let freed = self.disk.free_work("test");
        if !freed.is_ok_and(|freed| freed.kept.is_empty()) {
            self.say
                .line("test     its HOME and TMPDIR are kept: they could not be freed");
        }
    }

    fn keep(&self, run: &TestRun) -> Result<(), Refusal> {
        let write =
            |name: &str, bytes: &[u8]| plain::write_file(&self.reports.join(name), bytes).map_err(host);
        if let Some(report) = &run.report {
            write("report", report)?;
        }
        write("stdout", &run.stdout)?;
        write("stderr", &run.stderr)
    }
}

/// Refuses where a process of a stage may still be there to write.
fn ended(tree: TreeEnded, stage: &str) -> Result<(), Refusal> {
    match tree {
        TreeEnded::Proved => Ok(()),
        TreeEnded::Unproved => {
            let why = format!("it cannot be proved that every process of the {stage} stage has ended");
            Err(Refusal::new(Code::DirtyVolume, why).reason("process_tree_unproved"))
        }
    }
}

/// Gives the place of the install record of a generation.
pub(super) fn record_place(state: &Path, generation: &str) -> PathBuf {
    state.join("reports").join(generation).join("install-record.json")
}
