//! What a person decides about calls: the questions that wait, and the answers. Over the admin API alone.

use super::admin::read;
use crate::engine::gateway::Gateway;
use crate::engine::gateway::crash::CrashPoint;
use crate::engine::{store, volume};
use semel_core::approval::{Approval, Decision, Ruling};
use semel_core::ids::{ApprovalId, ExecutionId, UnixMs};
use semel_core::{Code, Refusal};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Is a person's answer as it comes through the admin API.
///
/// # Shape
/// `{"decision":"approve","by":"ada","note":"…"}`: `decision` is `approve` or `deny`, the rest may be left out.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Decide {
    decision: Decision,
    #[serde(default = "operator")]
    by: String,
    #[serde(default)]
    note: String,
}

fn operator() -> String {
    "operator".to_owned()
}

/// The longest name and the longest note, in characters.
const LONGEST: (usize, usize) = (200, 2000);

impl Decide {
    fn ruling(self, at: UnixMs) -> Result<Ruling, Refusal> {
        let line = |name: &str, text: &str, most: usize, least: usize| {
            let fits = (least..=most).contains(&text.chars().count()) && !text.chars().any(char::is_control);
            let why = format!("{name} is one line of {least} to {most} characters");
            fits.then_some(())
                .ok_or_else(|| Refusal::new(Code::BadInput, why).name(name))
        };
        line("by", &self.by, LONGEST.0, 1)?;
        line("note", &self.note, LONGEST.1, 0)?;
        Ok(Ruling {
            decision: self.decision,
            by: self.by,
            note: self.note,
            at,
        })
    }
}

/// Gives the face of an approval.
///
/// # Shape
/// Digests, sizes and paths of what the call would do; never contents.
pub(crate) fn approval_json(approval: &Approval, now: UnixMs) -> Value {
    let question = &approval.question;
    json!({
        "approval_id": question.approval_id,
        "standing": approval.standing(now).wire(),
        "job": question.scope.job,
        "attempt": question.attempt,
        "generation": question.generation,
        "role": question.role,
        "principal": question.scope.principal,
        "idempotency_key": question.key,
        "tool": question.tool,
        "path": question.path,
        "would": question.plan,
        "rule": question.rule,
        "reason": question.reason,
        "policy_sha256": question.policy_sha256,
        "source": question.source,
        "asked_at": question.at.to_string(),
        "age_ms": now.0.saturating_sub(question.at.0),
        "ends_at": approval.ends_at().to_string(),
        "decision": approval.ruling,
    })
}

/// Gives the face of the questions that wait.
pub(crate) fn approvals_json(waiting: &[Approval], now: UnixMs) -> Value {
    let all: Vec<Value> = waiting.iter().map(|one| approval_json(one, now)).collect();
    json!({"schema": "semel.approvals/v1", "approvals": all})
}

impl Gateway {
    /// Lists the questions that wait for a person.
    ///
    /// # Errors
    /// `store_unavailable`.
    pub(crate) async fn approvals(self: &Arc<Self>) -> Result<Value, Refusal> {
        self.blocking(|gateway| {
            let now = gateway.approvals_now();
            let waiting = gateway.engine.journal.approvals(now).map_err(store)?;
            Ok(approvals_json(&waiting, now))
        })
        .await?
    }

    /// Gives the call that has begun under the key of a question; `None` where there is none, or no key.
    fn begun_under(&self, approval: &Approval) -> Result<Option<ExecutionId>, Refusal> {
        let question = &approval.question;
        let Some(key) = question.key.clone() else {
            return Ok(None);
        };
        let prior = self
            .engine
            .journal
            .prior(question.scope.clone(), key)
            .map_err(store)?;
        Ok(prior.map(|state| state.intent().execution_id.clone()))
    }

    /// Records what a person decided; the first decision stands.
    ///
    /// # Errors
    /// `not_found`; `bad_input`; `sandbox_unavailable` for an approval where the agent is not confined;
    /// `precondition_failed`, reason `already_decided`; `approval_expired`; `replay_conflict` for an ended generation.
    pub(crate) async fn decide(self: &Arc<Self>, id: &str, body: &[u8]) -> Result<Value, Refusal> {
        let unknown = || {
            let shown: String = id.chars().take(80).flat_map(char::escape_debug).collect();
            Refusal::new(Code::NotFound, "no call waits for this approval").name(shown)
        };
        let id = ApprovalId::parse(id).map_err(|_| unknown())?;
        let asked: Decide = read(body)?;
        self.blocking(move |gateway| {
            let journal = &gateway.engine.journal;
            let ruling = asked.ruling(gateway.approvals_now())?;
            let known = journal.approval(id.clone()).map_err(store)?;
            let question = known
                .ok_or_else(|| {
                    Refusal::new(Code::NotFound, "no call waits for this approval").name(id.as_str())
                })?
                .question;
            if ruling.decision == Decision::Approve {
                gateway.approvable(&volume::find(&gateway.engine, &question.generation)?)?;
            }
            let decided = journal.decide_approval(id, ruling).map_err(store)?;
            gateway.hooks.reached(CrashPoint::ApprovalDecided);
            let mut body = approval_json(&decided, gateway.approvals_now());
            body["execution_id"] = json!(gateway.begun_under(&decided)?);
            body["schema"] = json!("semel.approval/v1");
            Ok(body)
        })
        .await?
    }
}
