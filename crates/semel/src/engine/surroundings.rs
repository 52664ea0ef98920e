//! What the commands of a volume find around them: where programs lie, and what of them is shown.
//!
//! Whoever prepares a volume tells it in a record beside the tree, where no sandbox sees it; of a volume that was told
//! nothing, the operator's configuration says it.

use super::host;
use crate::config::Config;
use semel_core::bounds::Asked;
use semel_core::job::Confine;
use semel_core::{Code, Refusal};
use semel_host::sandbox::{Require, resolve_program, toolchain_roots};
use semel_host::volume::{Volume as Disk, read_record, write_record};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Where the programs of the system lie.
pub(super) const SYSTEM: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

const RECORD: &str = "surroundings.json";
const RECORD_CAP: u64 = 1 << 20;

/// Is what the commands of a volume find around them.
///
/// # Shape
/// `{"path":["/usr/bin"],"read_only":["/opt/toolchain"],"confinement":"best_effort"}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Surroundings {
    /// Where programs are looked up.
    pub(crate) path: Vec<PathBuf>,
    /// What is shown read-only beside the system's own directories.
    pub(crate) read_only: Vec<PathBuf>,
    /// What is done where a part of the sandbox cannot be had.
    pub(crate) confinement: Confine,
    /// What bounds each command, beside what the operator says.
    #[serde(default)]
    pub(crate) limits: Asked,
}

impl Surroundings {
    /// Gives what the operator's configuration says: its tools first, then its places of programs, then the system's.
    ///
    /// # Errors
    /// `not_found` for a tool that is not there; `sandbox_unavailable`.
    pub(crate) fn configured(config: &Config) -> Result<Self, Refusal> {
        let mut path: Vec<PathBuf> = Vec::new();
        let mut read_only = BTreeSet::new();
        for tool in &config.tools {
            let program = resolve_program(OsStr::new(tool), &config.path).map_err(host)?;
            read_only.extend(toolchain_roots(&program).map_err(host)?);
            path.extend(program.parent().map(Path::to_owned));
        }
        let places = config.path.iter().cloned().chain(SYSTEM.map(PathBuf::from));
        path.extend(places);
        let mut known = BTreeSet::new();
        path.retain(|place| known.insert(place.clone()));
        Ok(Self {
            path,
            read_only: read_only.into_iter().collect(),
            confinement: config.confinement,
            limits: Asked::default(),
        })
    }

    /// Adds what is shown read-only.
    pub(crate) fn showing(mut self, more: &[PathBuf]) -> Self {
        self.read_only.extend_from_slice(more);
        self
    }

    /// Tells it to a volume.
    ///
    /// # Errors
    /// `io_failed`; `bad_config` for a place that has no text.
    pub(crate) fn tell(&self, disk: &Disk) -> Result<(), Refusal> {
        let text = serde_json::to_vec(self).map_err(|e| Refusal::new(Code::BadConfig, e.to_string()))?;
        write_record(disk, RECORD, &text).map_err(host)
    }

    /// Gives what a volume was told; `None` where it was told nothing.
    ///
    /// # Errors
    /// `unknown_state`; `io_failed`.
    pub(crate) fn told(disk: &Disk) -> Result<Option<Self>, Refusal> {
        let bytes = read_record(disk, RECORD, RECORD_CAP).map_err(host)?;
        let odd = |e: serde_json::Error| Refusal::new(Code::UnknownState, e.to_string()).name(RECORD);
        bytes
            .map(|bytes| serde_json::from_slice(&bytes).map_err(odd))
            .transpose()
    }

    /// Says what is done where a part of the sandbox cannot be had: the stricter of two words counts.
    pub(crate) fn require(&self, config: &Config) -> Require {
        match (self.confinement, config.confinement) {
            (Confine::BestEffort, Confine::BestEffort) => Require::BestEffort,
            (Confine::Require, _) | (_, Confine::Require) => Require::Full,
        }
    }
}
