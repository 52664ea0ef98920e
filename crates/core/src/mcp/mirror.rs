//! Headers that say again what a body says, so that a router need not read it.
//!
//! They are believed in nothing: a request whose headers say something else is refused.

use super::rpc::{self, Error};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;

const BEFORE: &str = "=?base64?";
const BEHIND: &str = "?=";

/// Writes text as the value of a header.
///
/// # Shape
/// As it is where that is safe, else `=?base64?…?=` around the base64 of its UTF-8.
///
/// # Source
/// Revision 2026-07-28, "Streamable HTTP", section "Value Encoding".
#[must_use]
pub fn encode(text: &str) -> String {
    let plain = |b: u8| b == b'\t' || (b' '..=b'~').contains(&b);
    let safe = text.bytes().all(plain)
        && text.trim_matches([' ', '\t']) == text
        && !(text.starts_with(BEFORE) && text.ends_with(BEHIND));
    if safe {
        text.to_owned()
    } else {
        format!("{BEFORE}{}{BEHIND}", BASE64_STANDARD.encode(text))
    }
}

/// Reads the value of a header; `None` where it is not one that [`encode`] writes of anything.
#[must_use]
pub fn decode(value: &[u8]) -> Option<String> {
    let text = core::str::from_utf8(value).ok()?.trim_matches([' ', '\t']);
    if !text.bytes().all(|b| b == b'\t' || (b' '..=b'~').contains(&b)) {
        return None;
    }
    let inner = text
        .strip_prefix(BEFORE)
        .and_then(|rest| rest.strip_suffix(BEHIND));
    match inner {
        None => Some(text.to_owned()),
        Some(coded) => String::from_utf8(BASE64_STANDARD.decode(coded).ok()?).ok(),
    }
}

/// Writes a value of a body as its header has it; `None` for one that is not mirrored.
#[must_use]
pub fn spelt(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
        Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Holds the values of a header against the value of the body.
///
/// # Errors
/// `-32020` where one is there without the other, the header comes twice, cannot be read, or says something else.
pub fn check(name: &str, headers: &[Vec<u8>], body: Option<&Value>) -> Result<(), Error> {
    let fail = |why: &str| Err(Error::new(rpc::HEADER_MISMATCH, format!("{name}: {why}")));
    let number = body.is_some_and(Value::is_number);
    let (header, body) = match (headers, body.and_then(spelt)) {
        ([], None) => return Ok(()),
        ([], Some(_)) => return fail("the header is missing"),
        ([_], None) => return fail("the body does not say what the header says"),
        ([one], Some(body)) => (one, body),
        _ => return fail("the header comes more than once"),
    };
    match decode(header) {
        None => fail("the header cannot be read"),
        Some(said) if said == body || number && same_number(&said, &body) => Ok(()),
        Some(_) => fail("the header and the body say different things"),
    }
}

/// Says whether two texts are one whole number, such as `42` and `42.0`.
fn same_number(one: &str, other: &str) -> bool {
    let whole = |text: &str| {
        let digits = text.split_once('.').map_or(text, |(digits, rest)| {
            if !rest.is_empty() && rest.bytes().all(|b| b == b'0') {
                digits
            } else {
                text
            }
        });
        digits.parse::<i64>().ok()
    };
    matches!((whole(one), whole(other)), (Some(a), Some(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_coded_as_the_examples_of_the_revision() {
        for (text, coded) in [
            ("us-west1", "us-west1"),
            ("Hello, \u{4e16}\u{754c}", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ] {
            assert_eq!(encode(text), coded);
            assert_eq!(decode(coded.as_bytes()).as_deref(), Some(text));
        }
        assert_eq!(decode(b"  us-west1\t").as_deref(), Some("us-west1"));
        for wrong in [
            &b"=?base64?SGVsbG8?="[..],
            b"=?base64?SGVs!!!bG8=?=",
            b"\xff",
            b"a\x01b",
        ] {
            assert_eq!(decode(wrong), None);
        }
        // Half of a frame is no frame.
        assert_eq!(decode(b"=?base64?SGVsbG8=").as_deref(), Some("=?base64?SGVsbG8="));
    }

    #[test]
    fn header_and_body_say_the_same_or_nothing() {
        let headers =
            |values: &[&str]| -> Vec<Vec<u8>> { values.iter().map(|v| v.as_bytes().to_vec()).collect() };
        let cases = [
            (&["a"][..], Some(json!("a")), true),
            (&["=?base64?YQ==?="], Some(json!("a")), true),
            (&["42.0"], Some(json!(42)), true),
            (&["true"], Some(json!(true)), true),
            (&[], None, true),
            (&[], Some(Value::Null), true),
            (&[], Some(json!("a")), false),
            (&["a"], None, false),
            (&["a"], Some(Value::Null), false),
            (&["A"], Some(json!("a")), false),
            (&["a", "a"], Some(json!("a")), false),
            (&["a", "b"], None, false),
            (&["42.5"], Some(json!(42)), false),
            (&["42.0"], Some(json!("42")), false),
        ];
        for (values, body, agrees) in cases {
            let checked = check("Mcp-Name", &headers(values), body.as_ref());
            assert_eq!(checked.is_ok(), agrees, "{values:?} {body:?}");
        }
    }
}
