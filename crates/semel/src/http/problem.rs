//! The HTTP face of a refusal: RFC 9457 problem details.

use crate::engine::gateway::answer::{Failure, Replayed};
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use semel_core::{Code, Refusal};
use serde_json::{Value, json};

/// Is a refusal on its way out.
#[derive(Debug)]
pub(crate) struct Problem(Failure);

/// How long a caller is told to wait before it sends the same again, in seconds.
const RETRY_AFTER: u32 = 1;

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self(refusal.into())
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        Self(failure)
    }
}

/// Gives the JSON of a problem.
///
/// # Shape
/// `type`, `title`, `status`, `detail`, `instance` of RFC 9457, and `code`, `reason`, `names`, `retry`, `next`,
/// `exit`, `execution_id`, `replayed`. A call that waits for a person is no problem, and says `status`
/// `approval_required`, `executed` false and its `approval_id`.
pub(crate) fn json_of(failure: &Failure) -> Value {
    let Failure {
        refusal,
        execution_id,
        replayed,
    } = failure;
    let code = refusal.code;
    let mut body = json!({
        "type": format!("https://semel.dev/errors/{code}"),
        "title": code.meaning(),
        "status": code.http(),
        "detail": refusal.to_string(),
        "code": code,
        "why": refusal.why,
        "names": refusal.names,
        "retry": code.retry(),
        "next": refusal.next(),
        "exit": code.exit(),
        "replayed": *replayed == Replayed::Yes,
    });
    if code == Code::ApprovalRequired {
        // To a client that knows HTTP alone 202 is no error: the body says that nothing was done.
        body["status"] = json!(code);
        body["executed"] = json!(false);
        body["approval_id"] = json!(refusal.names.first());
    }
    if let Some(reason) = &refusal.reason {
        body["reason"] = json!(reason);
    }
    if let Some(execution_id) = execution_id {
        body["execution_id"] = json!(execution_id);
        body["instance"] = json!(format!("urn:uuid:{execution_id}"));
    }
    body
}

impl Problem {
    /// Makes the response.
    pub(super) fn response(self) -> Response<Body> {
        let code = self.0.refusal.code;
        let status = StatusCode::from_u16(code.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = Response::new(Body::from(json_of(&self.0).to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        let kind = match code {
            Code::ApprovalRequired => "application/json",
            _ => "application/problem+json",
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = retry_after(code) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.0.replayed == Replayed::Yes {
            headers.insert("idempotency-replayed", HeaderValue::from_static("true"));
        }
        response
    }
}

/// Says after how many seconds the same may be sent again, where that is a matter of waiting.
pub(crate) const fn retry_after(code: Code) -> Option<u32> {
    let waits = matches!(
        code,
        Code::CallInFlight | Code::TooMany | Code::Draining | Code::StoreUnavailable | Code::VolumeBusy
    );
    if waits { Some(RETRY_AFTER) } else { None }
}
