//! JSON-RPC 2.0 as this protocol uses it: one message a body or line, read strictly.
//!
//! What two readers could read differently is refused: a member that comes twice, a number that a double cannot hold, an
//! id that is null. It does *not* know methods.

use crate::canonical::{Limits, is_empty_request, parse_strict};
use crate::code::{Code, Refusal};
use serde_json::{Map, Value, json};

/// The message is not JSON.
pub const PARSE_ERROR: i32 = -32700;
/// The JSON is no message of the protocol.
pub const INVALID_REQUEST: i32 = -32600;
/// The method is not known.
pub const METHOD_NOT_FOUND: i32 = -32601;
/// The parameters are not those of the method.
pub const INVALID_PARAMS: i32 = -32602;
/// A header does not say what the body says.
pub const HEADER_MISMATCH: i32 = -32020;
/// The client did not declare a capability that the request needs.
pub const MISSING_CAPABILITY: i32 = -32021;
/// The revision is not spoken here.
pub const UNSUPPORTED_VERSION: i32 = -32022;

/// Is the id of a request: text or a whole number, given back as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id(Value);

impl Id {
    fn read(value: &Value) -> Option<Self> {
        let fits = value.is_string() || value.is_i64() || value.is_u64();
        fits.then(|| Self(value.clone()))
    }

    /// Gives it as it is written.
    #[must_use]
    pub fn as_value(&self) -> &Value {
        &self.0
    }
}

/// Is a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Its id.
    pub id: Id,
    /// The method.
    pub method: String,
    /// Its parameters; empty where there are none.
    pub params: Map<String, Value>,
}

/// Is one message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// Wants an answer.
    Request(Request),
    /// Wants none.
    Notification {
        /// The method.
        method: String,
        /// Its parameters; empty where there are none.
        params: Map<String, Value>,
    },
    /// Is an answer to a request.
    Response,
}

/// Is why a request is answered with an error.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    /// The number of the protocol.
    pub code: i32,
    /// One sentence.
    pub message: String,
    /// More, for programs.
    pub data: Option<Value>,
}

impl Error {
    /// Makes an error of the protocol itself.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: None,
        }
    }

    /// Adds what programs read.
    #[must_use]
    pub fn data(mut self, data: Value) -> Self {
        self.data = Some(data);
        self
    }
}

/// Is a body that is no message, with as much as could be read of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Malformed {
    /// The id, where there is one to answer to.
    pub id: Option<Id>,
    /// The number of the protocol.
    pub code: i32,
    /// What is wrong.
    pub refusal: Refusal,
}

/// Reads one message.
///
/// # Errors
/// The number of the protocol and a refusal: `empty_body_not_replayable` for a body that asks for nothing, `too_large`
/// past the bound, else `bad_input`, whose reason is one of [`parse_strict`]'s or `not_a_message`.
pub fn parse(bytes: &[u8], limits: Limits) -> Result<Message, Malformed> {
    let bare = |code, refusal| Malformed {
        id: None,
        code,
        refusal,
    };
    if is_empty_request(bytes) {
        let why = "the body holds no message";
        let refusal = Refusal::new(Code::EmptyBodyNotReplayable, why);
        return Err(bare(INVALID_REQUEST, refusal));
    }
    let value = parse_strict(bytes, limits).map_err(|refusal| {
        let code = match refusal.reason.as_deref() {
            Some("not_json" | "invalid_utf8" | "trailing_bytes") => PARSE_ERROR,
            _ => INVALID_REQUEST,
        };
        bare(code, refusal)
    })?;
    read(value)
}

fn read(value: Value) -> Result<Message, Malformed> {
    let Value::Object(mut envelope) = value else {
        let why = "a message is one JSON object; several in one body are not taken";
        return Err(malformed(None, INVALID_REQUEST, why));
    };
    let (id, named) = (envelope.get("id").and_then(Id::read), envelope.contains_key("id"));
    if envelope.get("jsonrpc") != Some(&json!("2.0")) {
        return Err(malformed(id, INVALID_REQUEST, "jsonrpc is not \"2.0\""));
    }
    let method = match envelope.remove("method") {
        Some(Value::String(method)) => method,
        None if id.is_some() && (envelope.contains_key("result") || envelope.contains_key("error")) => {
            return Ok(Message::Response);
        }
        _ => return Err(malformed(id, INVALID_REQUEST, "the message has no method")),
    };
    let params = match envelope.remove("params") {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        Some(_) => return Err(malformed(id, INVALID_PARAMS, "params is not a JSON object")),
    };
    match (id, named) {
        (Some(id), _) => Ok(Message::Request(Request { id, method, params })),
        (None, false) => Ok(Message::Notification { method, params }),
        (None, true) => {
            let why = "the id of a request is text or a whole number";
            Err(malformed(None, INVALID_REQUEST, why))
        }
    }
}

fn malformed(id: Option<Id>, code: i32, why: &str) -> Malformed {
    Malformed {
        id,
        code,
        refusal: Refusal::new(Code::BadInput, why).reason("not_a_message"),
    }
}

/// Writes the answer to a request.
#[must_use]
pub fn answered(id: &Id, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id.0, "result": result})
}

/// Writes the refusal of a request; without an id where none could be read.
#[must_use]
pub fn refused(id: Option<&Id>, error: &Error) -> Value {
    let mut told = json!({"code": error.code, "message": error.message});
    if let Some(data) = &error.data {
        told["data"] = data.clone();
    }
    let mut whole = json!({"jsonrpc": "2.0", "error": told});
    if let Some(id) = id {
        whole["id"] = id.0.clone();
    }
    whole
}

/// Writes a notification.
#[must_use]
pub fn notification(method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Message, Malformed> {
        parse(text.as_bytes(), Limits::DEFAULT)
    }

    #[test]
    fn each_kind_of_message_is_read() {
        let request = parsed(r#"{"jsonrpc":"2.0","id":1.0,"method":"m","params":{"a":1},"more":true}"#);
        let Ok(Message::Request(request)) = request else {
            panic!("{request:?}")
        };
        assert_eq!((request.id.as_value(), request.method.as_str()), (&json!(1), "m"));
        assert_eq!(request.params.get("a"), Some(&json!(1)));
        let text = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        assert!(matches!(parsed(text), Ok(Message::Notification { .. })));
        let text = r#"{"jsonrpc":"2.0","id":"x","result":{}}"#;
        assert_eq!(parsed(text), Ok(Message::Response));
    }

    #[test]
    fn what_is_no_message_is_refused_with_its_number_and_id() {
        let id = |id: Value| Id::read(&id);
        let cases = [
            ("", None, INVALID_REQUEST, Code::EmptyBodyNotReplayable),
            (" {} ", None, INVALID_REQUEST, Code::EmptyBodyNotReplayable),
            ("[]", None, INVALID_REQUEST, Code::EmptyBodyNotReplayable),
            ("{", None, PARSE_ERROR, Code::BadInput),
            ("{} {}", None, PARSE_ERROR, Code::BadInput),
            ("7", None, INVALID_REQUEST, Code::BadInput),
            (
                r#"[{"jsonrpc":"2.0","id":1,"method":"m"}]"#,
                None,
                INVALID_REQUEST,
                Code::BadInput,
            ),
            (
                r#"{"id":1,"method":"m"}"#,
                id(json!(1)),
                INVALID_REQUEST,
                Code::BadInput,
            ),
            (
                r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#,
                None,
                INVALID_REQUEST,
                Code::BadInput,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1.5,"method":"m"}"#,
                None,
                INVALID_REQUEST,
                Code::BadInput,
            ),
            (
                r#"{"jsonrpc":"2.0","id":"a","params":{}}"#,
                id(json!("a")),
                INVALID_REQUEST,
                Code::BadInput,
            ),
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}"#,
                id(json!(1)),
                INVALID_PARAMS,
                Code::BadInput,
            ),
            // Which of the two would be meant?
            (
                r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1,"a":2}}"#,
                None,
                INVALID_REQUEST,
                Code::BadInput,
            ),
        ];
        for (text, id, code, refused) in cases {
            let wrong = parsed(text).unwrap_err();
            assert_eq!(
                (wrong.id, wrong.code, wrong.refusal.code),
                (id, code, refused),
                "{text}"
            );
        }
    }

    #[test]
    fn an_answer_bears_the_id_and_an_error_without_one_bears_none() {
        let id = Id::read(&json!("7")).unwrap();
        assert_eq!(answered(&id, json!({}))["id"], "7");
        let error = Error::new(PARSE_ERROR, "no").data(json!({"type": "bad_input"}));
        let told = refused(None, &error);
        assert_eq!(
            (told.get("id"), &told["error"]["data"]["type"]),
            (None, &json!("bad_input"))
        );
        assert_eq!(refused(Some(&id), &error)["id"], "7");
    }
}
