//! Which installer fills an environment, and what a toolchain is known by.
//!
//! It names; it runs nothing. How each installer is called is the business of the host.

mod command;

pub use command::{InstallCommand, Installs, Stated};

use crate::digest::Sha256;
use serde::{Deserialize, Serialize};

/// Names an installer that a job may use.
///
/// # Shape
/// `"uv"`, `"pip"`, `"poetry"`, `"npm"`, `"pnpm"`, `"yarn"`, `"cargo"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Installer {
    /// uv, from `uv.lock`.
    Uv,
    /// pip, from requirements files with hashes.
    Pip,
    /// Poetry, from `poetry.lock`.
    Poetry,
    /// npm, from `package-lock.json` or `npm-shrinkwrap.json`.
    Npm,
    /// pnpm, from `pnpm-lock.yaml`.
    Pnpm,
    /// Yarn, from the `yarn.lock` of its own kind.
    Yarn,
    /// cargo, from `Cargo.lock`.
    Cargo,
}

impl Installer {
    /// Lists every installer.
    pub const ALL: &'static [Installer] = &[
        Self::Uv,
        Self::Pip,
        Self::Poetry,
        Self::Npm,
        Self::Pnpm,
        Self::Yarn,
        Self::Cargo,
    ];

    /// Gives the name that jobs and records use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uv => "uv",
            Self::Pip => "pip",
            Self::Poetry => "poetry",
            Self::Npm => "npm",
            Self::Pnpm => "pnpm",
            Self::Yarn => "yarn",
            Self::Cargo => "cargo",
        }
    }
}

impl core::fmt::Display for Installer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

/// Says what becomes of the project's own package.
///
/// # Shape
/// `"skip"`, `"unbound_backend"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProjectInstall {
    /// It is not built; tests import it from the source tree.
    #[default]
    Skip,
    /// It is built by a backend that no lock binds; the certificate names that as weak. The backend runs in the
    /// fetch stage too, where it can read what the operator gave that stage.
    UnboundBackend,
}

/// Identifies one executable that took part in an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Toolchain {
    /// What it is: an installer by its name, or `python`, `node`, `rustc`.
    pub name: String,
    /// The version it states of itself.
    pub version: String,
    /// Its real path, fit to be shown.
    pub path: String,
    /// The digest of the file at that path.
    pub sha256: Sha256,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installer_travels_by_its_name() {
        for installer in Installer::ALL {
            let wire = serde_json::to_string(installer).unwrap();
            assert_eq!(wire, format!("\"{installer}\""));
            assert_eq!(serde_json::from_str::<Installer>(&wire).unwrap(), *installer);
        }
        assert!(serde_json::from_str::<Installer>("\"pdm\"").is_err());
    }
}
