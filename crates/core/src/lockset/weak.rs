//! What each format cannot show: the one table, for the certificate and for the docs.

use super::{Format, Lockfile};

/// Says which cut or change, made before a tree was sealed, a format cannot show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weakness {
    /// It never shows this.
    Always(&'static str),
    /// It does not show this, in locks of a certain shape.
    Sometimes(&'static str),
}

pub(super) const PREFIX: &str = "a cut made before sealing cannot be seen in this format";
pub(super) const NO_GRAPH: &str =
    "a package that was taken out whole can be seen only where the manifest names it";
pub(super) const PDM: &str = "a group that is declared, and not locked, may be one that was cut out";
pub(super) const PNPM: &str = "a cut inside the last entry cannot be seen";
pub(super) const YARN: &str = "a cut inside or behind the dependencies of the last entry cannot be seen";
pub(super) const BERRY: &str = "a package with conditions has no checksum, and no bytes of it are bound";
pub(super) const GEMFILE: &str = "there are no CHECKSUMS, and no bytes are bound";
pub(super) const COMPOSER: &str =
    "a package without a shasum is named by a commit, and no bytes of it are bound";
pub(super) const UV: &str = "a cut behind the last package, where it has no wheels, cannot be seen";
pub(super) const CARGO: &str = "a cut behind the last package, where it has no dependencies, cannot be seen";

impl Format {
    /// Says what the format cannot show; nothing for one that shows every cut.
    #[must_use]
    pub const fn weaknesses(self) -> &'static [Weakness] {
        match self {
            Format::Requirements | Format::Pylock | Format::GoSum => &[Weakness::Always(PREFIX)],
            Format::Pipfile => &[Weakness::Always(NO_GRAPH)],
            Format::Uv => &[Weakness::Sometimes(UV)],
            Format::Cargo => &[Weakness::Sometimes(CARGO)],
            Format::Pnpm => &[Weakness::Sometimes(PNPM)],
            Format::Yarn => &[Weakness::Sometimes(YARN), Weakness::Sometimes(BERRY)],
            Format::Gemfile => &[Weakness::Sometimes(GEMFILE)],
            Format::Composer => &[Weakness::Sometimes(COMPOSER)],
            Format::Pdm => &[Weakness::Sometimes(PDM)],
            Format::Poetry | Format::PackageLock | Format::Shrinkwrap => &[],
        }
    }
}

impl Lockfile {
    /// Notes what the format never shows.
    pub(super) fn say_weak(&mut self) {
        for weakness in self.format.weaknesses() {
            if let Weakness::Always(clause) = weakness {
                self.weak.push(format!("{}: {clause}", self.path));
            }
        }
    }

    /// Notes that some packages are bound by no hash: the first of them, and how many.
    pub(super) fn say_unbound(&mut self, clause: &str) {
        if let Some(first) = self.unbound.first() {
            let count = self.unbound.len();
            self.weak
                .push(format!("{}: {clause}: {first}, {count} in all", self.path));
        }
    }
}
