//! What can go wrong when hands touch the world.

use semel_core::{Code, Refusal};
use std::path::Path;

/// A failed operation of the host.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A named refusal: a rule did not hold.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The system refused an operation that is proven not to have begun, or to have had no effect.
    #[error("{operation} {path}: {source}")]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On what, fit to be shown.
        path: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The system failed after an effect may have begun, or could not make it durable. What the disk holds must
    /// be looked at anew: the process stops taking calls, ends, and recovers.
    #[error("{operation} {path}: {source}; what is on disk must be looked at anew")]
    Unproven {
        /// What was tried, as a verb.
        operation: &'static str,
        /// On what, fit to be shown.
        path: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Git failed for a reason of its own.
    #[error(transparent)]
    Git(Box<crate::git::Failure>),
}

/// The result of a host operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Makes the error of a failed system operation on a path.
    pub fn io(operation: &'static str, path: impl AsRef<Path>, source: impl Into<std::io::Error>) -> Self {
        use std::os::unix::ffi::OsStrExt;
        let path = semel_core::path::shown(path.as_ref().as_os_str().as_bytes());
        Self::Io {
            operation,
            path,
            source: source.into(),
        }
    }

    /// Makes the error of a system operation that leaves its effect, or its durability, unproven.
    pub fn unproven(
        operation: &'static str,
        path: impl AsRef<Path>,
        source: impl Into<std::io::Error>,
    ) -> Self {
        use std::os::unix::ffi::OsStrExt;
        let path = semel_core::path::shown(path.as_ref().as_os_str().as_bytes());
        Self::Unproven {
            operation,
            path,
            source: source.into(),
        }
    }

    /// Says whether the process has to stop taking calls, end, and recover from what is on disk.
    #[must_use]
    pub const fn poisons(&self) -> bool {
        matches!(self, Self::Unproven { .. })
    }

    /// Names the refusal.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Refused(refusal) => refusal.code,
            Self::Io { .. } => Code::IoFailed,
            Self::Unproven { .. } => Code::OutcomeUnknown,
            Self::Git(_) => Code::GitFailed,
        }
    }

    /// Turns the error into what a caller is told.
    #[must_use]
    pub fn into_refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            Self::Io {
                operation,
                path,
                source,
            } => {
                let refusal = Refusal::new(Code::IoFailed, format!("{operation}: {source}")).name(path);
                match is_full(&source) {
                    true => refusal.reason("disk_full"),
                    false => refusal,
                }
            }
            Self::Unproven {
                operation,
                path,
                source,
            } => Refusal::new(Code::OutcomeUnknown, format!("{operation}: {source}")).name(path),
            Self::Git(failure) => failure.refusal(),
        }
    }
}

/// Says whether the system refused for want of room, of files, or of a quota.
fn is_full(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn want_of_room_is_told_by_its_reason() {
        let refusal =
            |errno| Error::io("write", "a", std::io::Error::from_raw_os_error(errno)).into_refusal();
        for errno in [libc::ENOSPC, libc::EDQUOT] {
            assert_eq!(refusal(errno).reason.as_deref(), Some("disk_full"), "{errno}");
        }
        assert_eq!(refusal(libc::EIO).reason, None);
    }
}
