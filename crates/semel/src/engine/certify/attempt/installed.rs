//! What was installed in an attempt, by installers and by a command of the job, and whether it is what it was.

use super::super::super::host;
use semel_core::ids::Generation;
use semel_core::install::InstallRecord;
use semel_core::installer::ProjectInstall;
use semel_core::manifest::Manifest;
use semel_core::{Code, Refusal, RelPath};
use semel_host::files::Stamp;
use semel_host::installer::{
    CommandPlan, Commanded, Plan, Sealed, places_of, programs_of, stamps_of, stamps_of_command, verify_again,
    verify_command,
};

/// How many entries are named at most.
const NAMED: usize = 20;

/// Is everything that was installed.
#[derive(Debug, Default)]
pub(super) struct Installed {
    /// What each installer was told.
    pub(super) plans: Vec<Plan>,
    /// What the command was told.
    pub(super) command: Option<CommandPlan>,
    /// The record of each installer, in the order of the plans, and then that of the command.
    pub(super) records: Vec<InstallRecord>,
    /// What the entries of each record looked like when it was made.
    stamps: Vec<Vec<Stamp>>,
}

impl Installed {
    fn of_installers(&self) -> impl Iterator<Item = (&Plan, &InstallRecord)> {
        self.plans.iter().zip(&self.records)
    }

    fn of_command(&self) -> Option<(&CommandPlan, &InstallRecord)> {
        self.command.as_ref().zip(self.records.get(self.plans.len()))
    }

    /// Says whether the project itself was built.
    pub(super) fn built(&self) -> bool {
        self.plans.iter().any(|plan| plan.project != ProjectInstall::Skip)
    }

    /// Gives the places in the tree that installers filled.
    pub(super) fn environments(&self) -> Vec<RelPath> {
        let roots = self.of_installers().flat_map(|(_, record)| &record.roots);
        let below = |place: &RelPath| RelPath::parse(place.as_bytes().strip_prefix(b"tree/")?).ok();
        roots.filter_map(|root| below(&root.place)).collect()
    }

    /// Gives the places in the tree that the command filled.
    pub(super) fn filled(&self) -> Result<Vec<RelPath>, Refusal> {
        match self.of_command() {
            Some((_, record)) => places_of(record).map_err(host),
            None => Ok(Vec::new()),
        }
    }

    /// Says where the tests find what the command installed.
    pub(super) fn commanded(&self) -> Option<Commanded<'_>> {
        self.of_command().map(|(plan, record)| Commanded {
            bins: programs_of(plan, record),
            tools: &plan.tools,
        })
    }

    /// Looks again at every lock and every installed entry; `aside` is what else is none of the command's.
    pub(super) fn verify(
        &self,
        generation: &Generation,
        manifest: &Manifest,
        aside: &[RelPath],
    ) -> Result<(), Refusal> {
        for (plan, record) in self.of_installers() {
            verify_again(plan, record, generation).map_err(host)?;
        }
        if let Some((plan, record)) = self.of_command() {
            let apart: Vec<RelPath> = self
                .environments()
                .into_iter()
                .chain(aside.iter().cloned())
                .collect();
            verify_command(plan, &Sealed::of(manifest, &apart), record, generation).map_err(host)?;
        }
        Ok(())
    }

    /// Adds what an installer installed, as it is now.
    pub(super) fn add(&mut self, plan: Plan, record: InstallRecord) -> Result<(), Refusal> {
        self.stamps.push(stamps_of(&plan, &record).map_err(host)?);
        self.plans.push(plan);
        self.records.push(record);
        Ok(())
    }

    /// Adds what the command installed, as it is now; no installer follows it.
    pub(super) fn add_command(&mut self, plan: CommandPlan, record: InstallRecord) -> Result<(), Refusal> {
        self.stamps.push(stamps_of_command(&plan, &record).map_err(host)?);
        self.command = Some(plan);
        self.records.push(record);
        Ok(())
    }

    /// Looks at every installed entry for what shows that it was touched.
    fn stamps(&self) -> Result<Vec<Vec<Stamp>>, Refusal> {
        let mut all = Vec::new();
        for (plan, record) in self.of_installers() {
            all.push(stamps_of(plan, record).map_err(host)?);
        }
        if let Some((plan, record)) = self.of_command() {
            all.push(stamps_of_command(plan, record).map_err(host)?);
        }
        Ok(all)
    }

    /// Checks that every installed entry is there still.
    pub(super) fn there(&self) -> Result<(), Refusal> {
        self.stamps().map(drop)
    }

    /// Checks that no installed entry was touched since it was recorded, not even to be put back.
    pub(super) fn untouched(&self) -> Result<(), Refusal> {
        let now = self.stamps()?;
        let looks = self.records.iter().zip(self.stamps.iter().zip(&now));
        let touched = looks.flat_map(|(record, (before, now))| {
            let entries = record.entries.keys().zip(before.iter().zip(now));
            entries.filter(|(_, (before, now))| before != now)
        });
        let touched: Vec<String> = touched.map(|(path, _)| path.to_string()).take(NAMED).collect();
        if touched.is_empty() {
            return Ok(());
        }
        let why = "an installed entry was changed after it was recorded, though it may be what it was";
        Err(Refusal::new(Code::RecordMismatch, why)
            .reason("touched")
            .names(touched))
    }
}
