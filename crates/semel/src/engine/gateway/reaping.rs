//! The reaper: frees, behind everybody's back, what was put aside, also by an earlier life.
//!
//! A volume that is recycled or destroyed is put aside in one rename; nobody waits for what follows. What cannot be freed
//! stays where it is, and is shown until it can.

use super::{Gateway, lock};
use crate::limits;
use crate::telemetry::Phase;
use semel_core::ids::Generation;
use semel_core::volume::VolumeState;
use semel_host::clock;
use semel_host::volume::Aside;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Knows what could not be freed.
#[derive(Default)]
pub(crate) struct Reaping(Mutex<BTreeMap<Generation, Vec<String>>>);

impl Reaping {
    /// Lists what could not be freed, by generation.
    ///
    /// # Shape
    /// `[{"generation":"g-…","kept":["d/mnt (mount)"]}]`
    pub(crate) fn list(&self) -> Value {
        let kept = lock(&self.0);
        let one =
            |(generation, kept): (&Generation, &Vec<String>)| json!({"generation": generation, "kept": kept});
        Value::Array(kept.iter().map(one).collect())
    }
}

impl Gateway {
    /// Frees what lies aside. It blocks, for as long as that takes.
    pub(crate) fn reap_aside(&self) {
        let Ok(aside) = self.engine.volumes.aside() else {
            return;
        };
        lock(&self.reaping.0).retain(|generation, _| aside.iter().any(|one| one.generation == *generation));
        for one in aside {
            match self.reap_one(&one) {
                kept if kept.is_empty() => lock(&self.reaping.0).remove(&one.generation),
                kept => lock(&self.reaping.0).insert(one.generation, kept),
            };
        }
    }

    /// Takes away the mounts of overlays that ended: they are mounted again when somebody looks. It blocks.
    fn rest_mounts(&self) {
        for generation in self.engine.volumes.mounted().unwrap_or_default() {
            let Ok(Some(known)) = self.engine.journal.volume(generation.clone()) else {
                continue;
            };
            if matches!(known.state, VolumeState::Clean | VolumeState::Quarantined) {
                // One that somebody uses stays; so does one that was put aside, which is freed.
                drop(self.engine.volumes.rest(&known.job, &generation));
            }
        }
    }

    /// Frees one; gives what stays of it.
    fn reap_one(&self, one: &Aside) -> Vec<String> {
        let journal = &self.engine.journal;
        match journal.volume(one.generation.clone()) {
            Ok(Some(known)) if matches!(known.state, VolumeState::Open | VolumeState::Opening) => {
                return vec!["the journal says that it is open".to_owned()];
            }
            Ok(Some(_)) => {}
            Ok(None) => return vec!["the journal does not know it".to_owned()],
            Err(error) => return vec![error.to_string()],
        }
        match self.engine.volumes.reap(one) {
            Ok(reaped) if reaped.kept.is_empty() => {
                // What is not recorded here is the next time: nothing lies aside then, and the record says so.
                match journal.volume_destroyed(one.generation.clone(), clock::now()) {
                    Ok(_) => Vec::new(),
                    Err(error) => vec![error.to_string()],
                }
            }
            Ok(reaped) => reaped
                .kept
                .iter()
                .map(|kept| format!("{} ({})", kept.path, kept.why))
                .collect(),
            Err(error) => vec![error.to_string()],
        }
    }
}

/// Takes away the mounts of what ended since it was looked last: who removes the state root now finds nothing mounted in it
/// but what is still open.
pub(crate) async fn end(gateway: &Arc<Gateway>) {
    drop(gateway.blocking(|gateway| gateway.rest_mounts()).await);
}

/// Frees what lies aside until the daemon drains.
pub(crate) async fn keep(gateway: Arc<Gateway>) {
    let mut phase = gateway.phase();
    let ends = |phase: &Phase| matches!(phase, Phase::Draining | Phase::Poisoned);
    loop {
        let once = |gateway: &Arc<Gateway>| {
            // What a killed command left of trying what is to be had.
            drop(gateway.engine.volumes.clear_trials());
            gateway.reap_aside();
            gateway.rest_mounts();
        };
        drop(gateway.blocking(once).await);
        if tokio::time::timeout(limits::REAP_LOOK, phase.wait_for(ends))
            .await
            .is_ok()
        {
            return;
        }
    }
}
