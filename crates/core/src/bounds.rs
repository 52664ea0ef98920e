//! What bounds everything that Semel launches for a job: how many processes, how much memory, how large a file.
//!
//! It enforces nothing; a sandbox does.

use crate::code::{Code, Refusal};
use serde::{Deserialize, Serialize};

/// Is what bounds one process tree.
///
/// # Shape
/// `{"processes":4096,"open_files":65536,"memory_bytes":8589934592,"file_bytes":17179869184}`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// How many processes and threads it has at once.
    pub processes: u64,
    /// How many files each process has open.
    pub open_files: u64,
    /// How much memory its processes hold together, with what lies in their private filesystems in memory.
    pub memory_bytes: u64,
    /// How large a file may become.
    pub file_bytes: u64,
}

impl Bounds {
    /// Gives the wider of two bounds, each part by itself.
    #[must_use]
    pub fn wider(self, other: Self) -> Self {
        Self {
            processes: self.processes.max(other.processes),
            open_files: self.open_files.max(other.open_files),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            file_bytes: self.file_bytes.max(other.file_bytes),
        }
    }
}

/// Is what somebody asks of the bounds; what is not said is as it was.
///
/// # Shape
/// The table `[limits]` of the operator's file and of a job file: `processes = 4096`, `open_files = 65536`,
/// `memory_bytes = 8000000000`, `file_bytes = 10000000000`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// See [`Bounds::processes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// See [`Bounds::open_files`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// See [`Bounds::memory_bytes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// See [`Bounds::file_bytes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_bytes: Option<u64>,
}

/// The least of each bound with which anything runs at all.
const LEAST: Bounds = Bounds {
    processes: 16,
    open_files: 32,
    memory_bytes: 32 << 20,
    file_bytes: 64 << 10,
};

impl Asked {
    /// Refuses a bound with which nothing would run.
    ///
    /// # Errors
    /// The given code with the name of the bound.
    pub fn check(&self, code: Code) -> Result<(), Refusal> {
        let parts = [
            ("limits.processes", self.processes, LEAST.processes),
            ("limits.open_files", self.open_files, LEAST.open_files),
            ("limits.memory_bytes", self.memory_bytes, LEAST.memory_bytes),
            ("limits.file_bytes", self.file_bytes, LEAST.file_bytes),
        ];
        for (name, asked, least) in parts {
            if asked.is_some_and(|asked| asked < least) {
                return Err(Refusal::new(code, format!("nothing runs with less than {least}")).name(name));
            }
        }
        Ok(())
    }

    /// Gives the narrower of what two ask for, each part by itself: a job cannot widen what the operator said.
    #[must_use]
    pub fn narrower(self, other: Self) -> Self {
        let least = |one: Option<u64>, two: Option<u64>| match (one, two) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        Self {
            processes: least(self.processes, other.processes),
            open_files: least(self.open_files, other.open_files),
            memory_bytes: least(self.memory_bytes, other.memory_bytes),
            file_bytes: least(self.file_bytes, other.file_bytes),
        }
    }

    /// Gives the bounds, with what was not asked for taken from the defaults.
    #[must_use]
    pub fn or(self, defaults: Bounds) -> Bounds {
        Bounds {
            processes: self.processes.unwrap_or(defaults.processes),
            open_files: self.open_files.unwrap_or(defaults.open_files),
            memory_bytes: self.memory_bytes.unwrap_or(defaults.memory_bytes),
            file_bytes: self.file_bytes.unwrap_or(defaults.file_bytes),
        }
    }
}

/// Names the bound that a process tree met, and for which all of it was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Met {
    /// It had too many processes or threads.
    Processes,
    /// It held too much memory.
    Memory,
    /// The memory of the machine was nearly used up, by whomever.
    MachineMemory,
    /// A file became too large.
    FileSize,
    /// The disk that it writes to was nearly full, by whomever.
    DiskFull,
}

impl Met {
    /// Gives the word that travels on every wire, also as the reason of a refusal.
    #[must_use]
    pub const fn wire(self) -> &'static str {
        match self {
            Self::Processes => "processes",
            Self::Memory => "memory",
            Self::MachineMemory => "machine_memory",
            Self::FileSize => "file_size",
            Self::DiskFull => "disk_full",
        }
    }

    /// Says in words what was met.
    #[must_use]
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::Processes => "it had more processes and threads than its limit allows",
            Self::Memory => "it held more memory than its limit allows",
            Self::MachineMemory => "the memory of the machine was nearly used up while it ran",
            Self::FileSize => "a file of it met the largest size that its limit allows",
            Self::DiskFull => "the disk that it writes to was nearly full while it ran",
        }
    }

    /// Makes the refusal of what was ended for it.
    #[must_use]
    pub fn refusal(self, what: &str) -> Refusal {
        Refusal::new(
            Code::QuotaExceeded,
            format!("{what} was ended: {}", self.in_words()),
        )
        .reason(self.wire())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: Bounds = Bounds {
        processes: 100,
        open_files: 200,
        memory_bytes: 300 << 20,
        file_bytes: 400 << 20,
    };

    #[test]
    fn a_job_narrows_and_never_widens() {
        let operator = Asked {
            processes: Some(50),
            memory_bytes: Some(1 << 30),
            ..Asked::default()
        };
        let job = Asked {
            processes: Some(60),
            memory_bytes: Some(64 << 20),
            file_bytes: Some(1 << 20),
            ..Asked::default()
        };
        let found = operator.narrower(job).or(DEFAULTS);
        let expected = Bounds {
            processes: 50,
            open_files: 200,
            memory_bytes: 64 << 20,
            file_bytes: 1 << 20,
        };
        assert_eq!(found, expected);
        assert_eq!(job.narrower(operator).or(DEFAULTS), expected);
        assert_eq!(Asked::default().or(DEFAULTS), DEFAULTS);
        assert_eq!(found.wider(DEFAULTS).processes, 100);
        assert_eq!(found.wider(DEFAULTS).file_bytes, 400 << 20);
    }

    #[test]
    fn what_nothing_runs_with_is_refused_by_name() {
        let text = |text: &str| toml::from_str::<Asked>(text).unwrap();
        for (asked, name) in [
            ("processes = 15", "limits.processes"),
            ("open_files = 0", "limits.open_files"),
            ("memory_bytes = 1", "limits.memory_bytes"),
            ("file_bytes = 65535", "limits.file_bytes"),
        ] {
            let refusal = text(asked).check(Code::BadConfig).unwrap_err();
            assert_eq!(
                (refusal.code, refusal.names),
                (Code::BadConfig, vec![name.to_owned()])
            );
        }
        assert!(text("processes = 16").check(Code::BadInput).is_ok());
        assert!(toml::from_str::<Asked>("process = 16").is_err());
    }

    #[test]
    fn each_word_is_that_of_its_wire() {
        for met in [
            Met::Processes,
            Met::Memory,
            Met::MachineMemory,
            Met::FileSize,
            Met::DiskFull,
        ] {
            let text = serde_json::to_string(&met).unwrap();
            assert_eq!(text, format!("\"{}\"", met.wire()));
            let refusal = met.refusal("the agent");
            assert_eq!(
                (refusal.code, refusal.reason.as_deref()),
                (Code::QuotaExceeded, Some(met.wire()))
            );
            // None of these is a quota of a volume, and no table of quotas helps.
            assert_ne!(refusal.meaning(), Code::QuotaExceeded.meaning());
            assert!(!refusal.next().contains("quota"), "{}", refusal.next());
            let of_limits = !matches!(met, Met::DiskFull);
            assert_eq!(refusal.next().contains("[limits]"), of_limits, "{text}");
        }
    }
}
