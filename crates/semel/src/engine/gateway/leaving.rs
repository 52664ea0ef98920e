//! Whoever goes away while its call waits: the call leaves a record all the same, as every call does.

use super::Gateway;
use super::answer::{Answer, Failure, Replayed};
use super::call::{Asked, refused};
use super::lock;
use super::mutate::{Step, in_flight};
use semel_core::ids::ExecutionId;
use semel_core::{Code, Refusal};
use std::mem::replace;
use std::sync::{Arc, Mutex};

/// Says where a call is, for whoever has to record that its caller went away.
#[derive(Debug)]
pub(super) enum Whereabouts {
    /// It waits, and nothing is recorded of it yet; perhaps for the end of an execution.
    Waits(Option<ExecutionId>),
    /// A step of it is under way, which its caller does not end.
    Works,
    /// It has its record, or will have it whatever the caller does.
    Recorded,
    /// The caller went away.
    Left,
}

/// Holds where a call is.
#[derive(Debug)]
pub(super) struct Trail(Mutex<Whereabouts>);

/// Says whether anybody still waits for what a step would find out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// Somebody does.
    Yes,
    /// The caller went away, and that is recorded.
    No,
}

impl Trail {
    /// Begins at the door.
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Whereabouts::Waits(None)))
    }

    /// Begins a step, unless the caller went away before.
    pub(super) fn works(&self) -> Awaited {
        let mut at = lock(&self.0);
        match *at {
            Whereabouts::Left => Awaited::No,
            Whereabouts::Waits(_) | Whereabouts::Works | Whereabouts::Recorded => {
                *at = Whereabouts::Works;
                Awaited::Yes
            }
        }
    }

    /// Hears that the call has its record.
    pub(super) fn recorded(&self) {
        *lock(&self.0) = Whereabouts::Recorded;
    }

    /// Hears that the call waits; says whether for anybody.
    fn waits(&self, execution: Option<ExecutionId>) -> Awaited {
        let mut at = lock(&self.0);
        match *at {
            Whereabouts::Left => Awaited::No,
            Whereabouts::Waits(_) | Whereabouts::Works | Whereabouts::Recorded => {
                *at = Whereabouts::Waits(execution);
                Awaited::Yes
            }
        }
    }

    /// Hears that the caller went away; gives what the call waited for, where that has to be recorded now.
    fn left(&self) -> Option<Option<ExecutionId>> {
        let mut at = lock(&self.0);
        match replace(&mut *at, Whereabouts::Left) {
            Whereabouts::Waits(execution) => Some(execution),
            Whereabouts::Recorded => {
                *at = Whereabouts::Recorded;
                None
            }
            // The step records it when it ends.
            Whereabouts::Works | Whereabouts::Left => None,
        }
    }
}

/// Is held while a caller is there.
struct Present {
    gateway: Arc<Gateway>,
    asked: Arc<Asked>,
}

impl Drop for Present {
    fn drop(&mut self) {
        let (Some(execution), Ok(runtime)) = (self.asked.trail.left(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let (gateway, asked) = (self.gateway.clone(), self.asked.clone());
        drop(runtime.spawn_blocking(move || gateway.note_left(&asked, execution)));
    }
}

impl Gateway {
    /// Answers a call; where its caller goes away while it waits, that is recorded.
    pub(super) async fn while_present(
        self: &Arc<Self>,
        asked: &Arc<Asked>,
        answer: impl Future<Output = Answer>,
    ) -> Answer {
        let _present = Present {
            gateway: self.clone(),
            asked: asked.clone(),
        };
        let answer = answer.await;
        asked.trail.recorded();
        answer
    }

    /// Hears where a step ended. It blocks.
    pub(super) fn stepped(&self, asked: &Asked, step: &Step) {
        let execution = match step {
            Step::Answer(_) | Step::Attend(_) => return asked.trail.recorded(),
            Step::Wait(execution) => Some(execution.clone()),
            Step::Locked(_) => None,
        };
        if asked.trail.waits(execution.clone()) == Awaited::No {
            self.note_left(asked, execution);
        }
    }

    fn note_left(&self, asked: &Asked, execution: Option<ExecutionId>) {
        let refusal = in_flight("the caller went away while it waited").reason("caller_left");
        self.note_asked(asked, refused(&refusal), execution);
    }

    /// Refuses a call that waited as long as it may, and records that.
    pub(super) async fn given_up(
        self: &Arc<Self>,
        asked: &Arc<Asked>,
        refusal: Refusal,
        execution: Option<ExecutionId>,
    ) -> Failure {
        asked.trail.recorded();
        let noted = (asked.clone(), refused(&refusal), execution.clone());
        drop(
            self.blocking(move |gateway| gateway.note_asked(&noted.0, noted.1, noted.2))
                .await,
        );
        Failure {
            refusal,
            execution_id: execution,
            replayed: Replayed::No,
        }
    }
}

/// Refuses a call whose caller went away before it began.
pub(super) fn left() -> Refusal {
    Refusal::new(Code::Draining, "the caller went away").reason("caller_left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_recorded_once_whenever_its_caller_goes() {
        let waits = Trail::new();
        assert_eq!(waits.left(), Some(None));
        assert_eq!((waits.left(), waits.works()), (None, Awaited::No));
        // Gone while it works: whoever works records it, where the step left that open.
        let works = Trail::new();
        assert_eq!((works.works(), works.left()), (Awaited::Yes, None));
        assert_eq!(works.waits(None), Awaited::No);
        // Gone after the step, before anybody heard of its end.
        let step = Trail::new();
        assert_eq!((step.works(), step.waits(None)), (Awaited::Yes, Awaited::Yes));
        assert_eq!((step.left(), step.left()), (Some(None), None));
        let recorded = Trail::new();
        assert_eq!(recorded.works(), Awaited::Yes);
        recorded.recorded();
        assert_eq!(recorded.left(), None);
    }
}
