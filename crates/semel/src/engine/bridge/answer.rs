//! What an answer of the gateway means for whoever sent the call: it is one for good, or it is not yet.

use super::way::Incomings;
use semel_core::Code;
use semel_core::code::Retry;
use semel_core::mcp::spool::Unsettled;
use serde_json::Value;
use std::time::Duration;

/// Is what an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// It is told, and the call is over.
    ForGood,
    /// It is told, and the same call goes on under its key.
    Unsettled(Unsettled),
    /// The call runs: it is sent again after a while, to hear how it ended.
    Runs(Duration),
    /// The gateway ends, or begins anew: the same call is sent again after a while.
    Again(Duration),
    /// Nothing began, for want of room: the same call is sent again for a while, then it is told.
    Crowded(Duration),
    /// It is none of a gateway: another program listens there.
    Foreign,
}

/// Says what an answer means; `body` is its message, where it is one.
pub(super) fn judge(answer: &Incomings, body: Option<&Value>) -> Means {
    let is_answer = |body: &&Value| body.get("result").is_some() || body.get("error").is_some();
    let Some(body) = body.filter(is_answer) else {
        // A proxy in between answers so while what is behind it begins anew.
        return match answer.status {
            429 | 500..=599 => Means::Again(Duration::ZERO),
            _ => Means::Foreign,
        };
    };
    let Some((code, after)) = refused(body) else {
        return Means::ForGood;
    };
    match (code, code.retry()) {
        (Code::CallInFlight, _) => Means::Runs(after),
        (_, Retry::LaterSameKey) => Means::Again(after),
        (Code::TooMany, _) => Means::Crowded(after),
        (Code::ApprovalRequired, _) => Means::Unsettled(Unsettled::Asked),
        // A bug may have come before or behind the effect.
        (Code::OutcomeUnknown | Code::Internal, _) => Means::Unsettled(Unsettled::Unknown),
        (
            _,
            Retry::Never
            | Retry::NewGeneration
            | Retry::Operator
            | Retry::SameKey
            | Retry::Later
            | Retry::NewCall,
        ) => Means::ForGood,
    }
}

/// Says whether an answer tells of what came of a call: it names the execution, or says that nothing will be known of it any
/// more. Any other one was given before the gateway looked at what it knows of the key, and says nothing of an earlier sending.
pub(super) fn tells_of_the_call(body: Option<&Value>) -> bool {
    let Some(body) = body else { return false };
    let named = [
        "/error/data/execution_id",
        "/result/_meta/dev.semel~1executionId",
        "/result/structuredContent/execution_id",
        "/result/structuredContent/error/execution_id",
    ];
    // What another server says to a call that reads names none.
    is_of_another(body)
        || named
            .iter()
            .any(|place| body.pointer(place).is_some_and(Value::is_string))
        || matches!(refused(body), Some((Code::KeyExpired, _)))
}

/// Says whether an answer is that of another server behind the gateway, which is recorded: it is no word of the gateway's.
fn is_of_another(body: &Value) -> bool {
    let marks = ["/result/_meta/dev.semel~1upstream", "/error/data/upstream"];
    marks.iter().any(|mark| body.pointer(mark).is_some())
}

/// Gives what the gateway refused with, where an answer is a refusal of its own.
pub(super) fn refused_with(body: &Value) -> Option<Code> {
    refused(body).map(|(code, _)| code)
}

/// Gives the refusal that an answer carries in either face, and after which while it wants to be asked again.
fn refused(body: &Value) -> Option<(Code, Duration)> {
    if is_of_another(body) {
        return None;
    }
    let faces = [
        body.pointer("/error/data"),
        body.pointer("/result/structuredContent/error"),
    ];
    let data = faces
        .into_iter()
        .flatten()
        .find(|data| data.get("type").is_some())?;
    let code = data
        .get("type")
        .and_then(Value::as_str)
        .and_then(Code::from_wire)?;
    let after = data
        .get("retry_after_ms")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    Some((code, Duration::from_millis(after)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn means(status: u16, body: &Value) -> Means {
        let answer = Incomings {
            status,
            body: Vec::new().into(),
        };
        judge(&answer, Some(body).filter(|body| !body.is_null()))
    }

    #[test]
    fn what_is_for_good_is_told_apart_from_what_is_not() {
        let error = |code: Code| json!({"error": {"code": 1, "data": {"type": code, "retry_after_ms": 7}}});
        let result = |code: Code| json!({"result": {"isError": true, "structuredContent": {"error": {"type": code, "retry_after_ms": 7}}}});
        let soon = Duration::from_millis(7);
        let cases = [
            (Code::CallInFlight, Means::Runs(soon)),
            (Code::Draining, Means::Again(soon)),
            (Code::StoreUnavailable, Means::Again(soon)),
            (Code::DaemonUnreachable, Means::Again(soon)),
            (Code::TooMany, Means::Crowded(soon)),
            (Code::ApprovalRequired, Means::Unsettled(Unsettled::Asked)),
            (Code::OutcomeUnknown, Means::Unsettled(Unsettled::Unknown)),
            (Code::Internal, Means::Unsettled(Unsettled::Unknown)),
            (Code::IoFailed, Means::ForGood),
            (Code::ReplayConflict, Means::ForGood),
            (Code::PreconditionFailed, Means::ForGood),
            (Code::Unauthorized, Means::ForGood),
            (Code::KeyExpired, Means::ForGood),
        ];
        for (code, wanted) in cases {
            assert_eq!(means(200, &error(code)), wanted, "{code}");
            assert_eq!(means(200, &result(code)), wanted, "{code}");
        }
        assert_eq!(
            means(200, &json!({"result": {"structuredContent": {"a": 1}}})),
            Means::ForGood
        );
        // Another server may say what only the gateway may mean.
        let mut theirs = result(Code::CallInFlight);
        theirs["result"]["_meta"]["dev.semel/upstream"] = json!("fs");
        assert_eq!(means(200, &theirs), Means::ForGood);
        let told = |body: Value| tells_of_the_call(Some(&body));
        assert!(told(
            json!({"result": {"structuredContent": {"execution_id": "x"}}})
        ));
        assert!(told(
            json!({"error": {"data": {"type": "outcome_unknown", "execution_id": "x"}}})
        ));
        assert!(told(error(Code::KeyExpired)));
        for early in [
            json!({"error": {"code": -32602, "data": {"type": "not_found"}}}),
            error(Code::Unauthorized),
            error(Code::TooMany),
            result(Code::Denied),
        ] {
            assert!(!told(early.clone()), "{early}");
        }
        // A file may hold the words of a refusal.
        let said = json!({"result": {"structuredContent": {"content": "call_in_flight"}}});
        assert_eq!(means(200, &said), Means::ForGood);
        assert_eq!(means(404, &json!({"error": {"code": -32601}})), Means::ForGood);
        // An error of another server is recorded, whatever its number.
        let theirs = json!({"error": {"code": -32602, "data": {"type": "upstream_error", "upstream": "fs"}}});
        assert_eq!(means(200, &theirs), Means::ForGood);
        assert_eq!(means(503, &Value::Null), Means::Again(Duration::ZERO));
        assert_eq!(
            means(502, &json!({"title": "bad gateway"})),
            Means::Again(Duration::ZERO)
        );
        assert_eq!(means(404, &Value::Null), Means::Foreign);
        assert_eq!(means(200, &json!({"hello": 1})), Means::Foreign);
    }
}
