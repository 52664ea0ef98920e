//! One attempt: what it did, stage by stage, and the evidence that each stage left.
//!
//! Every stage verifies what the one before left, before it runs. The evidence is kept also where a stage refuses,
//! since refusals are signed too.

use super::super::proposal::{Base, BaseTree, Proposal};
use super::super::{Engine, host};
use super::input::{self, Locks, Untouched};
use super::shut::{shut_off, within_reach};
use super::{Ask, caches, pipe, surface, told};
use crate::config;
use crate::engine::job::say::{Point, Say};
use crate::limits;
use semel_core::artifact::Supply;
use semel_core::bounds::Asked;
use semel_core::certificate::{BaseCommit, BaseTests, Report, Weak};
use semel_core::confinement::Level;
use semel_core::install::InstallRecord;
use semel_core::installer::{Installer, ProjectInstall, Toolchain};
use semel_core::job::{Certify, Confine, InGit};
use semel_core::lockset::Lockfile;
use semel_core::manifest::Manifest;
use semel_core::report::Counts;
use semel_core::{Code, Confinement, Refusal, RelPath, Sha256};
use semel_host::artifact::Store;
use semel_host::files::Stamp;
use semel_host::git::{Git, leads_to, one_commit};
use semel_host::installer::{
    self, Hints, Isolation, Plan, ReportFrom, StageOutcome, TestPlan, TestRun, Tools, record, run_tests,
    stamps_of, verify_again,
};
use semel_host::process::{Cancel, TreeEnded};
use semel_host::sandbox::Require;
use semel_host::volume::Quiet;
use semel_host::{plain, volume as disk};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How many files beside the tree are named at most.
const NAMED: usize = 100;

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
    let (plans, records) = attempt.install(&locks, evidence)?;
    say.reached(Point::Installed);
    attempt.keep_records(&records, evidence)?;
    against.tell_modules(&records, evidence)?;
    say.reached(Point::Recorded);
    // Before anything is looked at again: whatever is changed from here on, and be it put back, bears another stamp.
    let untouched = Untouched::now(&manifest, disk.tree())?;
    let installed = attempt.stamps(&plans, &records)?;
    attempt.verify(&plans, &records, &manifest)?;
    let apart = attempt.set_apart(&plans, &manifest, evidence)?;
    disk.loosen().map_err(host)?;
    attempt.test(&plans, evidence)?;
    say.reached(Point::Tested);
    attempt.verify(&plans, &records, &manifest)?;
    untouched.still(&manifest, disk.tree())?;
    attempt.untouched(&plans, &records, &installed)?;
    attempt.nothing_appeared(&plans, &manifest, &apart, evidence)?;
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
    fn tools(&self, installer: Installer) -> Result<Tools, Refusal> {
        let mut env = config::environment();
        let path = std::env::join_paths(&self.engine.config.path)
            .map_err(|e| Refusal::new(Code::BadConfig, e.to_string()).name("path"))?;
        env.insert("PATH".into(), path);
        let hints = Hints {
            env,
            reach: within_reach(self.engine, self.ask)?,
            ..Hints::default()
        };
        installer::resolve(installer, &hints, &self.disk.tree_path(), self.cancel).map_err(host)
    }

    fn plan(&self, installer: Installer) -> Result<Plan, Refusal> {
        Ok(Plan {
            tree: self.disk.tree_path(),
            directory: RelPath::root(),
            home: self.work.join("install"),
            tools: self.tools(installer)?,
            artifacts: Store::open(&self.engine.config.state.join("artifacts")).map_err(host)?,
            project: if installer == Installer::Uv {
                self.ask.certify.project
            } else {
                ProjectInstall::Skip
            },
            args: self
                .ask
                .certify
                .install_args
                .get(&installer)
                .cloned()
                .unwrap_or_default(),
            requirements: Vec::new(),
            network_env: self.engine.config.fetch_env.clone(),
            deadline: self.deadline(),
            grace: limits::GRACE,
            isolation: self.isolation.clone(),
        })
    }

    fn deadline(&self) -> std::time::Duration {
        self.ask
            .certify
            .timeout
            .map_or(limits::CERTIFY_TIMEOUT, semel_core::job::Span::get)
    }

    /// Fetches with the network, then installs without it, into a tree that holds no environment; records each
    /// installation before the next one runs, so that a build of the project cannot change what came before it.
    fn install(
        &self,
        locks: &Locks,
        evidence: &mut Evidence,
    ) -> Result<(Vec<Plan>, Vec<InstallRecord>), Refusal> {
        plain::private_directory(&self.work.join("install")).map_err(host)?;
        let mut plans = Vec::new();
        let mut records = Vec::new();
        for (installer, own) in &locks.parsed {
            let plan = self.plan(*installer)?;
            let own: Vec<&Lockfile> = own.iter().collect();
            evidence.toolchain.extend(plan.tools.identities());
            if plan.project == ProjectInstall::UnboundBackend {
                let about = "the project's own build used a backend that no lock binds, where credentials for fetching are seen";
                evidence.weaken("build_backend_unbound", [about.to_owned()]);
            }
            let fetched = installer::fetch(&plan, &own, self.cancel).map_err(host)?;
            self.stage("fetch", *installer, fetched, evidence)?;
            self.say.reached(Point::Fetched);
            let (installed, supply) = installer::install(&plan, &own, self.cancel).map_err(host)?;
            self.stage("install", *installer, installed, evidence)?;
            records.push(self.record(&plan, &own, &supply, evidence)?);
            plans.push(plan);
        }
        Ok((plans, records))
    }

    /// Says how a stage went, and refuses where a process of it may still be there.
    fn stage(
        &self,
        name: &str,
        installer: Installer,
        outcome: StageOutcome,
        evidence: &mut Evidence,
    ) -> Result<(), Refusal> {
        self.say.line(&format!(
            "{name:<8} {installer}, {:.1} s",
            outcome.took.as_secs_f64()
        ));
        ended(outcome.tree_ended, name)?;
        evidence.confined(outcome.level);
        Ok(())
    }

    /// Records every installed byte, bound to the locks and to this generation.
    fn record(
        &self,
        plan: &Plan,
        locks: &[&Lockfile],
        supply: &Supply,
        evidence: &mut Evidence,
    ) -> Result<InstallRecord, Refusal> {
        let made = record(plan, self.disk.generation(), locks, supply).map_err(host)?;
        evidence.weaken("install", made.weak.iter().cloned());
        self.say.line(&format!(
            "record   {} packages, {} entries",
            made.packages.len(),
            made.entries.len()
        ));
        Ok(made)
    }

    fn keep_records(&self, records: &Vec<InstallRecord>, evidence: &mut Evidence) -> Result<(), Refusal> {
        let bytes = semel_core::canonical::canonical_of(records)?;
        plain::write_file(&self.reports.join("install-record.json"), &bytes).map_err(host)?;
        evidence.record = Some(bytes);
        Ok(())
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

    /// Looks again, where nobody writes: locks, installed bytes, source tree.
    fn verify(&self, plans: &[Plan], records: &[InstallRecord], manifest: &Manifest) -> Result<(), Refusal> {
        self.quiet()?;
        for (plan, record) in plans.iter().zip(records) {
            verify_again(plan, record, self.disk.generation()).map_err(host)?;
        }
        self.leads_to_git()?;
        input::still_there(manifest, self.disk.tree())
    }

    /// Looks at every installed entry for what shows that it was touched.
    fn stamps(&self, plans: &[Plan], records: &[InstallRecord]) -> Result<Vec<Vec<Stamp>>, Refusal> {
        let all = plans.iter().zip(records);
        all.map(|(plan, record)| stamps_of(plan, record).map_err(host))
            .collect()
    }

    /// Checks that no installed entry was touched since, not even to be put back.
    fn untouched(
        &self,
        plans: &[Plan],
        records: &[InstallRecord],
        before: &[Vec<Stamp>],
    ) -> Result<(), Refusal> {
        let now = self.stamps(plans, records)?;
        let looks = records.iter().zip(before.iter().zip(&now));
        let touched = looks.flat_map(|(record, (before, now))| {
            let entries = record.entries.keys().zip(before.iter().zip(now));
            entries.filter(|(_, (before, now))| before != now)
        });
        let touched: Vec<String> = touched.map(|(path, _)| path.to_string()).take(20).collect();
        if touched.is_empty() {
            return Ok(());
        }
        let why = "an installed entry was changed after it was recorded, though it may be what it was";
        Err(Refusal::new(Code::RecordMismatch, why)
            .reason("touched")
            .names(touched))
    }

    /// Lists what is in the tree and was neither sealed, nor installed, nor lies in a declared cache.
    fn beside(&self, plans: &[Plan], manifest: &Manifest) -> Result<Vec<RelPath>, Refusal> {
        let tree = self.disk.tree_path();
        let installed = plans.iter().filter_map(|plan| {
            let place = installer::environment(plan);
            RelPath::parse(place.strip_prefix(&tree).ok()?.as_os_str().as_bytes()).ok()
        });
        let git = match self.ask.certify.git {
            InGit::None => None,
            InGit::OneCommit => Some(RelPath::parse(b".git")?),
        };
        let caches = self.ask.certify.caches.iter().cloned();
        let apart: Vec<RelPath> = installed.chain(caches).chain(git).collect();
        input::new_files(manifest, &apart, self.disk.tree())
    }

    /// Refuses, by what it says of them, files that no merge will hold and that can change what the tests say.
    fn none_guilty<'p>(
        &self,
        plans: &[Plan],
        files: impl IntoIterator<Item = &'p RelPath>,
        why: &str,
    ) -> Result<(), Refusal> {
        let built = plans.iter().any(|plan| plan.project != ProjectInstall::Skip);
        let guilty = files.into_iter().filter(|path| {
            // A build of the project may write modules; nothing else has a reason to.
            let shadows = !built && surface::shadows(path);
            surface::concerns_tests(path) || shadows || path.as_bytes().ends_with(b".pyc")
        });
        let guilty: Vec<String> = guilty.take(NAMED).map(ToString::to_string).collect();
        match guilty.is_empty() {
            true => Ok(()),
            false => Err(Refusal::new(Code::TreeMismatch, why)
                .reason("new_file")
                .names(guilty)),
        }
    }

    /// Sets apart what an installation left in the tree besides what it installed: no merge will hold it.
    ///
    /// The project's own build may write such files. Each is named as weak; one that can change what the tests say
    /// is refused, since the merged tree would be tested without it.
    fn set_apart(
        &self,
        plans: &[Plan],
        manifest: &Manifest,
        evidence: &mut Evidence,
    ) -> Result<Vec<RelPath>, Refusal> {
        let new = self.beside(plans, manifest)?;
        let why = "the installation left files in the tree that can change what the tests say";
        self.none_guilty(plans, &new, why)?;
        if new.len() > NAMED {
            let more = format!("{} more files", new.len() - NAMED);
            evidence.weaken("new_file", [more]);
        }
        evidence.weaken("new_file", new.iter().take(NAMED).map(ToString::to_string));
        Ok(new)
    }

    /// Checks that nothing came into the tree while the tests ran. Where the sandbox stood whole they could not write
    /// there, so whoever did is none of this attempt; elsewhere what they left is named as weak.
    fn nothing_appeared(
        &self,
        plans: &[Plan],
        manifest: &Manifest,
        before: &[RelPath],
        evidence: &mut Evidence,
    ) -> Result<(), Refusal> {
        let now = self.beside(plans, manifest)?;
        let before: BTreeSet<&RelPath> = before.iter().collect();
        let new: Vec<&RelPath> = now.iter().filter(|path| !before.contains(path)).collect();
        let why = "files came into the tree while the tests ran";
        let whole = evidence.level.as_ref();
        if !new.is_empty() && whole.is_some_and(|level| level.confinement == Confinement::Full) {
            return Err(Refusal::new(Code::TreeMismatch, why)
                .reason("new_file")
                .names(new.iter().take(NAMED).map(ToString::to_string)));
        }
        self.none_guilty(plans, new.iter().copied(), why)?;
        evidence.weaken("new_file", new.iter().take(NAMED).map(ToString::to_string));
        Ok(())
    }

    /// Runs the tests where nothing but declared caches can be written, and reads what they left.
    fn test(&self, plans: &[Plan], evidence: &mut Evidence) -> Result<(), Refusal> {
        let certify = &self.ask.certify;
        let plan = TestPlan {
            tree: self.disk.tree_path(),
            home: self.work.join("test"),
            installed: plans,
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
