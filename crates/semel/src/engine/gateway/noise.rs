//! Requests of nobody: counted, a few noted, so that whoever has no token cannot fill the disk.

use super::Gateway;
use semel_core::call::{Event, Note, Source};
use semel_core::noise::{Noted, Sampler};
use semel_core::{Code, Refusal};
use semel_host::clock;
use std::sync::{Arc, PoisonError};

impl Gateway {
    /// Hears of a request without a valid token.
    pub(crate) async fn unauthorized(
        self: &Arc<Self>,
        tool: &'static str,
        source: Source,
        refusal: &Refusal,
    ) {
        self.counters.unauthorized.add();
        let noted = self.hear(|sampler| sampler.hear(clock::now()));
        if noted == Noted::default() {
            return;
        }
        let (gateway, reason) = (self.clone(), refusal.reason.clone());
        let noted = tokio::task::spawn_blocking(move || {
            gateway.suppressed(noted.suppressed);
            if noted.own > 0 {
                let event = Event::Refused {
                    code: Code::Unauthorized,
                    reason,
                };
                gateway.note(of_nobody(event, tool, source));
            }
        });
        drop(noted.await);
    }

    /// Tells of what was suppressed, where the sampler says that it is time to.
    pub(crate) fn tell_of_noise(&self, ask: impl FnOnce(&mut Sampler) -> Noted) {
        let noted = self.hear(ask);
        self.suppressed(noted.suppressed);
    }

    fn hear(&self, ask: impl FnOnce(&mut Sampler) -> Noted) -> Noted {
        ask(&mut self.noise.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn suppressed(&self, count: u64) {
        if count > 0 {
            let code = Code::Unauthorized;
            let event = Event::Suppressed { code, count };
            self.note(of_nobody(event, "", Source::default()));
        }
    }
}

fn of_nobody(event: Event, tool: &str, source: Source) -> Note {
    Note {
        event,
        tool: tool.to_owned(),
        path: None,
        job: None,
        attempt: None,
        generation: None,
        key: None,
        fingerprint: None,
        execution_id: None,
        source,
        took_us: 0,
        waited_us: None,
        at: clock::now(),
    }
}
