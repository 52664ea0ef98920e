//! The face of a refusal in this protocol: a result that the model reads, or an error that the client's program reads.
//!
//! A model can mend what it asked for. A key that a program made, a token, a full or ending daemon are that program's: a
//! model that is told of them would try something else, and do it twice.

use super::serve::Done;
use crate::engine::gateway::answer::{Failure, Replayed};
use crate::http::retry_after;
use semel_core::mcp::Error;
use semel_core::mcp::rpc::Malformed;
use semel_core::{Code, Refusal};
use serde_json::{Value, json};

/// Says who made the key of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keyed {
    /// The program that speaks for a model.
    ByTheClient,
    /// The model, among its arguments; or nobody.
    ByTheModel,
}

/// Says who can do something about a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concerns {
    /// The model: by another call, or by waiting.
    Model,
    /// The client's program.
    Client,
    /// Whoever made the key.
    KeyMaker,
}

const fn concerns(code: Code) -> Concerns {
    match code {
        Code::InvalidIdempotencyKey
        | Code::IdempotencyKeyMismatch
        | Code::ReplayConflict
        | Code::CallInFlight
        | Code::OutcomeUnknown
        | Code::KeyExpired => Concerns::KeyMaker,
        Code::Unauthorized
        | Code::MethodNotAllowed
        | Code::MissingIdentity
        | Code::DirtyVolume
        | Code::GenerationReused
        | Code::UnknownState
        | Code::VolumeBusy
        | Code::Usage
        | Code::BadConfig
        | Code::DaemonUnreachable
        | Code::StoreUnavailable
        | Code::Draining
        | Code::IoFailed
        | Code::TooMany
        | Code::DurabilityUnavailable
        | Code::DrillFailed
        | Code::Internal => Concerns::Client,
        Code::MissingIdempotencyKey
        | Code::EmptyBodyNotReplayable
        | Code::PathEscapesRoot
        | Code::PreconditionFailed
        | Code::NotFound
        | Code::Denied
        | Code::ApprovalRequired
        | Code::ApprovalExpired
        | Code::UndoExpired
        | Code::NoLockfile
        | Code::LockfileDrift
        | Code::LockIncomplete
        | Code::TreeNotEmpty
        | Code::InstallFailed
        | Code::TestsFailed
        | Code::TimedOut
        | Code::RecordMismatch
        | Code::RecordOutsideRoot
        | Code::EvidenceForeign
        | Code::TreeMismatch
        | Code::ProposalRefused
        | Code::GateRefused
        | Code::SandboxUnavailable
        | Code::LockTimeout
        | Code::LockUnsafe
        | Code::LockLost
        | Code::OtherLock
        | Code::ObjectMissing
        | Code::WorktreeRedirected
        | Code::GitFailed
        | Code::OwnershipTaken
        | Code::StreamUnsafe
        | Code::RestoreIncomplete
        | Code::BadInput
        | Code::TooLarge
        | Code::QuotaExceeded => Concerns::Model,
    }
}

/// Gives a refused call its face.
///
/// # Errors
/// Where the client's program is the one to know.
pub(super) fn refused(failure: &Failure, keyed: Keyed) -> Result<Done, Error> {
    match (concerns(failure.refusal.code), keyed) {
        (Concerns::Model, _) | (Concerns::KeyMaker, Keyed::ByTheModel) => Ok(Done {
            result: result(failure),
            replayed: failure.replayed,
        }),
        (Concerns::Client, _) | (Concerns::KeyMaker, Keyed::ByTheClient) => Err(error(failure)),
    }
}

/// Gives a refusal as an error.
pub(crate) fn of_refusal(refusal: Refusal) -> Error {
    error(&refusal.into())
}

/// Gives a body that is no message as an error of the protocol; one that is a refusal of ours with its own number.
pub(crate) fn malformed(malformed: &Malformed) -> Error {
    let failure = Failure::from(malformed.refusal.clone());
    if failure.refusal.code == Code::BadInput {
        Error::new(malformed.code, failure.refusal.to_string()).data(data(&failure))
    } else {
        error(&failure)
    }
}

fn error(failure: &Failure) -> Error {
    let code = failure.refusal.code;
    Error::new(code.rpc(), format!("{code}: {}", failure.refusal)).data(data(failure))
}

/// Gives what programs read of a refusal.
///
/// # Shape
/// `type` is its wire name; `status`, `exit`, `retry`, `why`, `names`, `next`, `replayed`; where there are such,
/// `reason`, `execution_id`, `approval_id`, `retry_after_ms`.
pub(super) fn data(failure: &Failure) -> Value {
    let refusal = &failure.refusal;
    let code = refusal.code;
    let mut data = json!({
        "type": code,
        "status": code.http(),
        "exit": code.exit(),
        "retry": code.retry(),
        "message": refusal.to_string(),
        "why": refusal.why,
        "names": refusal.names,
        "next": next(refusal),
        "replayed": failure.replayed == Replayed::Yes,
    });
    if let Some(reason) = &refusal.reason {
        data["reason"] = json!(reason);
    }
    if let Some(execution_id) = &failure.execution_id {
        data["execution_id"] = json!(execution_id);
    }
    if code == Code::ApprovalRequired {
        data["executed"] = json!(false);
        data["approval_id"] = json!(refusal.names.first());
    }
    if let Some(seconds) = retry_after(code) {
        data["retry_after_ms"] = json!(u64::from(seconds) * 1000);
    }
    data
}

/// Says what to do next, where a message has no header of its own to say it by.
fn next(refusal: &Refusal) -> &'static str {
    if matches!(refusal.code, Code::MissingIdempotencyKey) {
        "send the call again with the argument idempotency_key: one new value for this operation, the same for its retries"
    } else {
        refusal.next()
    }
}

/// Gives a refusal as a result that the model reads.
fn result(failure: &Failure) -> Value {
    let refusal = &failure.refusal;
    let code = refusal.code;
    let reason = refusal
        .reason
        .as_deref()
        .map_or_else(String::new, |reason| format!(" ({reason})"));
    let text = format!(
        "{code}{reason}: {}. {}. Next: {}.",
        code.meaning(),
        refusal,
        next(refusal)
    );
    json!({
        "content": [{"type": "text", "text": text}],
        "structuredContent": {"error": data(failure)},
        "isError": true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every refusal has its face: a number outside of what others reserve, and its wire name, either way.
    #[test]
    fn every_code_has_its_face() {
        for code in Code::ALL {
            let failure = Failure::from(Refusal::new(*code, "why").reason("finer").name("a"));
            let error = error(&failure);
            assert_eq!(error.code, i32::from(code.http()) * 100 + i32::from(code.exit()));
            assert!((20_000..60_000).contains(&error.code), "{code}");
            let data = error.data.unwrap();
            assert_eq!(data["type"], json!(code.wire()));
            assert_eq!(data["retry"], json!(code.retry()), "{code}");
            assert_eq!(data["reason"], "finer");
            for keyed in [Keyed::ByTheClient, Keyed::ByTheModel] {
                match refused(&failure, keyed) {
                    Ok(done) => {
                        assert_eq!(done.result["isError"], true, "{code}");
                        assert_eq!(
                            done.result["structuredContent"]["error"]["type"],
                            json!(code.wire())
                        );
                        let text = done.result["content"][0]["text"].as_str().unwrap();
                        assert!(
                            text.contains(code.wire()) && text.contains(next(&failure.refusal)),
                            "{text}"
                        );
                    }
                    Err(error) => assert_eq!(error.code, code.rpc()),
                }
            }
        }
    }

    #[test]
    fn who_made_the_key_is_told_of_it() {
        for code in [Code::ReplayConflict, Code::CallInFlight, Code::OutcomeUnknown] {
            let failure = Failure::from(Refusal::new(code, "why"));
            assert!(refused(&failure, Keyed::ByTheClient).is_err(), "{code}");
            assert!(refused(&failure, Keyed::ByTheModel).is_ok(), "{code}");
        }
        let waits = data(&Refusal::new(Code::CallInFlight, "why").into());
        assert_eq!(waits["retry_after_ms"], 1000);
    }
}
