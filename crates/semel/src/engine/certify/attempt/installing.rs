//! The install stages of an attempt: first the installers that the job names, then its command.
//!
//! Each is recorded and stamped before the next one runs, so that nothing that runs later changes what came before it
//! unseen, not even to put it back.

use super::super::super::host;
use super::super::input::{self, Locks, Untouched};
use super::super::shut::within_reach;
use super::installed::Installed;
use super::moved::Standing;
use super::{Attempt, Evidence, ended};
use crate::config;
use crate::engine::job::say::Point;
use crate::limits;
use semel_core::artifact::Supply;
use semel_core::certificate::UNBOUND_INSTALL;
use semel_core::install::InstallRecord;
use semel_core::installer::{InstallCommand, Installer, ProjectInstall};
use semel_core::lockset::Lockfile;
use semel_core::manifest::Manifest;
use semel_core::{Code, Refusal, RelPath};
use semel_host::artifact::Store;
use semel_host::installer::{
    self, CommandPlan, CommandRun, Hints, Plan, Sealed, StageOutcome, Tools, filled_by, record,
    record_command, resolve_command, run_command,
};
use semel_host::plain;

/// Where, in its generation, the command has its HOME and TMPDIR.
const COMMAND: &str = "command";
/// Where the report directory keeps what it printed.
const STDOUT: &str = "install-stdout";
const STDERR: &str = "install-stderr";

impl Attempt<'_> {
    fn hints(&self) -> Result<Hints, Refusal> {
        let mut env = config::environment();
        let path = std::env::join_paths(&self.engine.config.path)
            .map_err(|e| Refusal::new(Code::BadConfig, e.to_string()).name("path"))?;
        env.insert("PATH".into(), path);
        Ok(Hints {
            env,
            reach: within_reach(self.engine, self.ask)?,
            ..Hints::default()
        })
    }

    fn tools(&self, installer: Installer) -> Result<Tools, Refusal> {
        installer::resolve(installer, &self.hints()?, &self.disk.tree_path(), self.cancel).map_err(host)
    }

    fn plan(&self, installer: Installer) -> Result<Plan, Refusal> {
        let certify = &self.ask.certify;
        Ok(Plan {
            tree: self.disk.tree_path(),
            directory: RelPath::root(),
            home: self.work.join("install"),
            tools: self.tools(installer)?,
            artifacts: Store::open(&self.engine.config.state.join("artifacts")).map_err(host)?,
            project: match installer {
                Installer::Uv => certify.project,
                _ => ProjectInstall::Skip,
            },
            args: certify.install_args.get(&installer).cloned().unwrap_or_default(),
            network_env: self.engine.config.fetch_env.clone(),
            deadline: self.deadline(),
            grace: limits::GRACE,
            isolation: self.isolation.clone(),
        })
    }

    /// Fetches with the network, then installs without it, into a tree that holds no environment; then runs the command
    /// of the job.
    pub(super) fn install(
        &self,
        locks: &Locks,
        manifest: &Manifest,
        evidence: &mut Evidence,
    ) -> Result<Installed, Refusal> {
        plain::private_directory(&self.work.join("install")).map_err(host)?;
        let mut installed = Installed::default();
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
            let (outcome, supply) = installer::install(&plan, &own, self.cancel).map_err(host)?;
            self.stage("install", *installer, outcome, evidence)?;
            let record = self.record(&plan, &own, &supply, evidence)?;
            installed.add(plan, record)?;
        }
        if let Some(command) = &self.ask.certify.install.command {
            self.by_command(command, locks, manifest, &mut installed, evidence)?;
        }
        Ok(installed)
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
        let runtimes = made.entries.keys().filter(|path| is_runtime(path));
        let about =
            "stands before the toolchain's own when the tests look for it: a locked package brings it";
        evidence.weaken("test_runtime", runtimes.map(|path| format!("{path} {about}")));
        self.tell_record(&made);
        Ok(made)
    }

    fn tell_record(&self, made: &InstallRecord) {
        self.say.line(&format!(
            "record   {} packages, {} entries",
            made.packages.len(),
            made.entries.len()
        ));
    }

    /// Runs the command of the job, and records what it left.
    fn by_command(
        &self,
        command: &InstallCommand,
        locks: &Locks,
        manifest: &Manifest,
        installed: &mut Installed,
        evidence: &mut Evidence,
    ) -> Result<(), Refusal> {
        let tree = self.disk.tree_path();
        let path = &self.engine.config.path;
        let plan = CommandPlan {
            tools: resolve_command(command, &self.hints()?, path, &tree, self.cancel).map_err(host)?,
            tree,
            home: self.work.join(COMMAND),
            command: command.clone(),
            deadline: self.deadline(),
            grace: limits::GRACE,
            isolation: self.isolation.clone(),
        };
        evidence.toolchain.extend(plan.tools.identities());
        let before = Untouched::now(manifest, self.disk.tree())?;
        let standing = Standing::now(manifest, self.disk.tree())?;
        let run = run_command(&plan, self.cancel).map_err(host)?;
        self.ran(&run, evidence)?;
        // What it keeps in its HOME is no part of the installation; links from the tree to there lead to nothing now.
        let freed = self.disk.free_work(COMMAND);
        if !freed.is_ok_and(|freed| freed.kept.is_empty()) {
            self.say
                .line("install  its HOME and TMPDIR are kept: they could not be freed");
        }
        input::locks_stand(&locks.digests, self.disk.tree())?;
        input::still_there(manifest, self.disk.tree())?;
        before.still(manifest, self.disk.tree())?;
        installed.there()?;
        installed.verify(self.disk.generation(), manifest, &[])?;
        installed.untouched()?;

        let apart: Vec<_> = installed
            .environments()
            .into_iter()
            .chain(self.gitlink()?)
            .collect();
        let sealed = Sealed::of(manifest, &apart);
        let filled = filled_by(&plan, &sealed).map_err(host)?;
        self.none_astray(&filled, &sealed)?;
        standing.still(self.disk.tree(), &filled)?;
        let made = record_command(&plan, self.disk.generation(), &filled, &locks.commanded).map_err(host)?;
        evidence.weaken(UNBOUND_INSTALL, made.weak.iter().cloned());
        self.tell_record(&made);
        installed.add_command(plan, made)
    }

    /// Keeps what the command printed, and refuses where it did not succeed.
    fn ran(&self, run: &CommandRun, evidence: &mut Evidence) -> Result<(), Refusal> {
        for (name, bytes) in [(STDOUT, &run.stdout), (STDERR, &run.stderr)] {
            plain::write_file(&self.reports.join(name), bytes).map_err(host)?;
        }
        evidence.confined(Some(run.level.clone()));
        ended(run.tree_ended, "install")?;
        let stderr = self.reports.join(STDERR).display().to_string();
        run.verdict.clone().map_err(|refusal| Refusal {
            names: std::iter::once(stderr)
                .chain(refusal.names.iter().cloned())
                .collect(),
            ..refusal
        })?;
        self.say.line(&format!(
            "install  by the command of the job, {:.1} s",
            run.took.as_secs_f64()
        ));
        Ok(())
    }

    /// Keeps the records of all installations, as one file.
    pub(super) fn keep_records(
        &self,
        records: &Vec<InstallRecord>,
        evidence: &mut Evidence,
    ) -> Result<(), Refusal> {
        let bytes = semel_core::canonical::canonical_of(records)?;
        plain::write_file(&self.reports.join("install-record.json"), &bytes).map_err(host)?;
        evidence.record = Some(bytes);
        Ok(())
    }
}

/// Says whether a command of modules is what the tests would be run by, in place of what the certificate names.
fn is_runtime(path: &RelPath) -> bool {
    let parts: Vec<&[u8]> = path.components().collect();
    matches!(parts.as_slice(), [.., b".bin", b"node" | b"bun" | b"deno"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_of_a_package_is_known_by_its_command() {
        let is = |path: &str| is_runtime(&RelPath::parse(path.as_bytes()).unwrap());
        for yes in ["tree/node_modules/.bin/node", "tree/a/node_modules/.bin/bun"] {
            assert!(is(yes), "{yes}");
        }
        for no in [
            "tree/node_modules/.bin/mocha",
            "tree/node_modules/node/bin/node",
            "tree/node",
        ] {
            assert!(!is(no), "{no}");
        }
    }
}
