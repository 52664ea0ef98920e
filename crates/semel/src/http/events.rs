//! An answer that comes in pieces: what is told of a call, and the answer as the last of them (server-sent events).
//!
//! Whoever closes the connection is told no more; what that means for the call is for the call to say.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use hyper::body::Frame;
use serde_json::Value;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc::UnboundedReceiver;

type Answer = Pin<Box<dyn Future<Output = Value> + Send>>;

/// Is the body of such an answer.
struct Events {
    told: UnboundedReceiver<Value>,
    answer: Option<Answer>,
    last: Option<Value>,
}

impl hyper::body::Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // What is told, is told while the answer is worked at: it comes out before the answer does.
        if let Some(answer) = &mut self.answer
            && let Poll::Ready(last) = answer.as_mut().poll(cx)
        {
            (self.answer, self.last) = (None, Some(last));
        }
        let next = match self.told.poll_recv(cx) {
            Poll::Ready(Some(told)) => Some(told),
            Poll::Ready(None) | Poll::Pending => self.last.take(),
        };
        match (next, &self.answer) {
            (Some(message), _) => Poll::Ready(Some(Ok(Frame::data(event(&message))))),
            (None, Some(_)) => Poll::Pending,
            (None, None) => Poll::Ready(None),
        }
    }
}

/// Writes one message as an event; JSON has no line ends.
fn event(message: &Value) -> Bytes {
    Bytes::from(format!("event: message\ndata: {message}\n\n"))
}

/// Makes the response.
pub(super) fn response(answer: Answer, told: UnboundedReceiver<Value>) -> Response<Body> {
    let events = Events {
        told,
        answer: Some(answer),
        last: None,
    };
    let mut response = Response::new(Body::new(events));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
