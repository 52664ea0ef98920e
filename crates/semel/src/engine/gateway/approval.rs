//! A call that a person decides: it is asked about once, and sent again with its key it runs, once, or is refused.
//!
//! Nobody waits here: the question is recorded, and the caller is told to come back. The decision itself is taken by
//! the operator, in `engine/daemon/approvals.rs`.

use super::Gateway;
use super::answer::put_path;
use super::call::Asked;
use super::crash::CrashPoint;
use super::tool::Tool;
use crate::config::Unconfined;
use crate::engine::{host, store};
use crate::limits;
use semel_core::approval::{Approval, Plan, Question, Standing, Subject};
use semel_core::call::{FingerprintVersion, Request, Scope, Source};
use semel_core::confinement::Confinement;
use semel_core::ids::{ApprovalId, IdempotencyKey, UnixMs};
use semel_core::job::Span;
use semel_core::policy::Ground;
use semel_core::volume::Volume;
use semel_core::{Code, Fingerprint, Refusal, Sha256};
use semel_host::clock;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Is what a person would be asked.
pub(super) struct Asking<'a> {
    /// The rule that asks.
    pub(super) ground: Ground<'a>,
    /// The policy that it stands in.
    pub(super) policy_sha256: Sha256,
    /// What the call would do.
    pub(super) plan: Plan,
}

impl Gateway {
    /// Gives the time that approvals are held against.
    pub(in crate::engine) fn approvals_now(&self) -> UnixMs {
        UnixMs(clock::now().0.saturating_add(ms(self.hooks.ahead)))
    }

    /// Counts the calls that wait for a person.
    pub(in crate::engine) fn approvals_pending(&self) -> u64 {
        let asks = self
            .policy
            .as_ref()
            .is_some_and(|in_force| in_force.policy.asks());
        if !asks {
            return 0;
        }
        let waiting = self.engine.journal.approvals(self.approvals_now());
        waiting.map_or(0, |waiting| waiting.len() as u64)
    }

    /// Refuses to let a person approve where whoever calls could have approved it himself.
    ///
    /// # Errors
    /// `sandbox_unavailable`, reason `not_confined`.
    pub(in crate::engine) fn approvable(&self, volume: &Volume) -> Result<(), Refusal> {
        match (self.engine.config.unconfined, volume.confinement) {
            (Unconfined::Approved, _) | (_, Some(Confinement::Full)) => Ok(()),
            (Unconfined::Refused, Some(Confinement::Partial | Confinement::None) | None) => {
                let why = "a person may approve calls of a confined agent alone: another could read the operator's \
                           token and approve itself; give the job confinement = \"require\", or say in the \
                           configuration that this one cannot: approvals_without_confinement";
                Err(Refusal::new(Code::SandboxUnavailable, why)
                    .reason("not_confined")
                    .name(volume.generation.as_str()))
            }
        }
    }

    /// Refuses a call whose key a person was asked about for another call, or which a person denied.
    ///
    /// # Errors
    /// `replay_conflict`; `denied`, reason `by_person`; `store_unavailable`.
    pub(super) fn asked_before(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        request: &Request,
    ) -> Result<(), Refusal> {
        let Some(approval) = self.approval_of_key(scope, key)? else {
            return Ok(());
        };
        let now = self.approvals_now();
        match approval.standing(now) {
            Standing::Denied => approval.admit(request, &approval.question.plan, now),
            Standing::Pending | Standing::Approved | Standing::Expired => approval.is_of(request),
        }
    }

    /// Gives the refusal of a call that leads nowhere, whose key a person was asked about for another one.
    pub(super) fn asked_otherwise(&self, scope: &Scope, key: &IdempotencyKey, tool: Tool) -> Option<Refusal> {
        let question = match self.approval_of_key(scope, key) {
            Ok(found) => found?.question,
            Err(refusal) => return Some(refusal),
        };
        let reason = if question.tool == tool.name() {
            "path_mismatch"
        } else {
            "tool_mismatch"
        };
        let why = "the key belongs to another call, which a person was asked about";
        Some(
            Refusal::new(Code::ReplayConflict, why)
                .reason(reason)
                .name(question.approval_id.as_str()),
        )
    }

    /// Says of a key whose call never began that a person was asked about it; `None` where nobody was.
    pub(super) fn asked_body(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
    ) -> Result<Option<Map<String, Value>>, Refusal> {
        let Some(approval) = self.approval_of_key(scope, key)? else {
            return Ok(None);
        };
        let question = &approval.question;
        let mut body = Map::new();
        put_path(&mut body, &question.path);
        body.insert("state".to_owned(), json!("asked"));
        body.insert("executed".to_owned(), json!(false));
        body.insert("approval_id".to_owned(), json!(question.approval_id));
        let standing = approval.standing(self.approvals_now()).wire();
        body.insert("approval".to_owned(), json!(standing));
        body.insert("ends_at".to_owned(), json!(approval.ends_at().to_string()));
        body.insert("idempotency_key".to_owned(), json!(key));
        body.insert("generation".to_owned(), json!(question.generation));
        body.insert("tool".to_owned(), json!(question.tool));
        Ok(Some(body))
    }

    fn approval_of_key(&self, scope: &Scope, key: &IdempotencyKey) -> Result<Option<Approval>, Refusal> {
        // Without a policy nobody was asked: it does not go away while volumes are open.
        if self.policy.is_none() {
            return Ok(None);
        }
        let subject = Subject::Key(key.clone());
        self.engine
            .journal
            .approval_of(scope.clone(), subject)
            .map_err(store)
    }

    /// Lets a call through that a person approved; asks, where nobody was asked.
    ///
    /// # Errors
    /// `approval_required` while nobody decided; `denied`, `approval_expired`, `precondition_failed`,
    /// `replay_conflict` as the approval says; `sandbox_unavailable` where nobody may approve; `too_many`.
    pub(super) fn approved(
        &self,
        asked: &Asked,
        key: Option<&IdempotencyKey>,
        request: &Request,
        asking: &Asking<'_>,
    ) -> Result<(), Refusal> {
        let about = About {
            lease: &asked.lease,
            scope: asked.scope(),
            key,
            made: asked.understood.newest(),
            source: &asked.source,
        };
        self.approved_about(about, request, asking)
    }

    /// Lets any call through that a person approved; asks, where nobody was asked.
    ///
    /// # Errors
    /// As [`Gateway::approved`].
    pub(super) fn approved_about(
        &self,
        about: About<'_>,
        request: &Request,
        asking: &Asking<'_>,
    ) -> Result<(), Refusal> {
        self.approvable(about.lease)?;
        let now = self.approvals_now();
        let scope = about.scope.clone();
        let subject = match about.key {
            Some(key) => Subject::Key(key.clone()),
            None => Subject::Read(about.made.1),
        };
        let journal = &self.engine.journal;
        let known = journal.approval_of(scope.clone(), subject).map_err(store)?;
        let approval = match known.filter(|known| !known.lapsed(now)) {
            Some(known) => known,
            None => {
                let question = question(about, request, asking, now)?;
                let recorded = journal
                    .ask_approval(question, limits::APPROVALS_PENDING)
                    .map_err(store)?;
                self.hooks.reached(CrashPoint::ApprovalAsked);
                recorded
            }
        };
        approval.admit(request, &asking.plan, now)
    }
}

/// Is the call that a person is asked about.
pub(super) struct About<'a> {
    /// Whose it is.
    pub(super) lease: &'a Volume,
    /// Within what its key means one effect.
    pub(super) scope: Scope,
    /// Its key; `None` of one that reads.
    pub(super) key: Option<&'a IdempotencyKey>,
    /// What it says, by the rules of now.
    pub(super) made: (FingerprintVersion, Fingerprint),
    /// Where it came from.
    pub(super) source: &'a Source,
}

fn question(
    about: About<'_>,
    request: &Request,
    asking: &Asking<'_>,
    now: UnixMs,
) -> Result<Question, Refusal> {
    let lease = about.lease;
    let (fingerprint_version, fingerprint) = about.made;
    let stated = asking.ground.rule.expires.map(Span::get);
    let wait = stated.unwrap_or(limits::APPROVAL_WAIT);
    Ok(Question {
        approval_id: ApprovalId::mint(clock::seed().map_err(host)?),
        scope: about.scope,
        key: about.key.cloned(),
        fingerprint,
        fingerprint_version,
        tool: request.tool.clone(),
        path: request.path.clone(),
        attempt: lease.attempt,
        generation: lease.generation.clone(),
        fencing_token: lease.fencing_token,
        role: lease.role,
        plan: asking.plan.clone(),
        rule: u32::try_from(asking.ground.number).unwrap_or(u32::MAX),
        reason: asking.ground.rule.reason.clone(),
        policy_sha256: asking.policy_sha256,
        source: about.source.clone(),
        at: now,
        expires_at: UnixMs(now.0.saturating_add(ms(wait))),
        lasts_ms: ms(stated.unwrap_or(limits::APPROVAL_LASTS)),
    })
}

fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
