//! SIGINT, SIGTERM and SIGHUP during a command: the stage under way is ended, and the exit status says which it was.

use crate::engine::host;
use semel_core::Refusal;
use semel_host::process::Cancel;
use semel_host::signals::{self, Watch};

/// Is a command's ear for signals.
#[derive(Debug)]
pub(crate) struct Interrupt {
    cancel: Cancel,
    watch: Watch,
}

/// Watches from now on; before any other thread is made.
///
/// # Errors
/// `io_failed`.
pub(crate) fn watch() -> Result<Interrupt, Refusal> {
    let cancel = Cancel::new().map_err(host)?;
    let watch = signals::watch(cancel.clone()).map_err(host)?;
    Ok(Interrupt { cancel, watch })
}

impl Interrupt {
    /// Gives what a stage is cancelled by.
    pub(crate) fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Gives the signal that interrupted it, where one did.
    pub(crate) fn signal(&self) -> Option<i32> {
        self.watch.received()
    }

    /// Gives the exit status of an interrupted command: 128 and the signal.
    pub(crate) fn status(&self) -> Option<u8> {
        self.watch
            .received()
            .and_then(|signal| u8::try_from(128 + signal).ok())
    }
}
