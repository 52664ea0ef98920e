//! JSON that two readers cannot read differently: a strict I-JSON reader and the RFC 8785 writer.
//!
//! What is ambiguous is refused, never guessed: duplicate keys, lone surrogates, numbers that a double cannot
//! hold. It does *not* know tools, arguments or certificates; it knows bytes and values.

use crate::code::{Code, Refusal};
use serde::Serialize;
use serde_json::{Map, Number, Value};

mod reader;

/// Bounds what the strict reader takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest text, in bytes.
    pub bytes: usize,
    /// The deepest nesting of arrays and objects.
    pub depth: usize,
}

impl Limits {
    /// Allows 16 MiB and 64 levels.
    pub const DEFAULT: Limits = Limits {
        bytes: 16 << 20,
        depth: 64,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The largest integer that every reader of JSON reads alike: 2^53 - 1.
pub const LARGEST_INTEGER: u64 = 9_007_199_254_740_991;

/// Reads one JSON text strictly.
///
/// A number with a whole value becomes an integer however it was spelt, so `1`, `1.0` and `10e-1` are one value.
///
/// # Errors
/// `too_large` past the byte bound; else `bad_input` whose first name is the JSON pointer of the place (the root
/// is shown as `/`) and whose reason is one of `not_json`, `invalid_utf8`, `duplicate_key`, `lone_surrogate`,
/// `number_range`, `too_deep`, `trailing_bytes`.
///
/// # Source
/// RFC 8259, RFC 7493 (I-JSON). An integer beyond ±(2^53 - 1) is refused, and so is any number that RFC 8785
/// would spell as such an integer.
pub fn parse_strict(bytes: &[u8], limits: Limits) -> Result<Value, Refusal> {
    reader::read(bytes, limits)
}

/// Says whether a body asks for nothing: absent, white space, `{}`, `[]`, `null`, `""`.
///
/// White space around and inside of these, and a byte order mark before them, change nothing.
#[must_use]
pub fn is_empty_request(bytes: &[u8]) -> bool {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let bare: Vec<u8> = bytes
        .iter()
        .copied()
        .filter(|b| !b.is_ascii_whitespace() && *b != 0x0b)
        .take(5)
        .collect();
    matches!(bare.as_slice(), b"" | b"{}" | b"[]" | b"\"\"") || (bare == b"null" && trimmed(bytes) == b"null")
}

fn trimmed(bytes: &[u8]) -> &[u8] {
    let blank = |b: &u8| b.is_ascii_whitespace() || *b == 0x0b;
    let from = bytes.iter().position(|b| !blank(b)).unwrap_or(bytes.len());
    let to = bytes.iter().rposition(|b| !blank(b)).map_or(from, |at| at + 1);
    &bytes[from..to]
}

/// Writes a value in the canonical form.
///
/// # Limits
/// An integer beyond ±(2^53 - 1), which [`parse_strict`] never gives, keeps its digits instead of being rounded,
/// so that two values never share a form.
///
/// # Source
/// RFC 8785: keys by UTF-16 code units, numbers as ECMAScript prints them, the fewest escapes.
#[must_use]
pub fn to_canonical(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write(value, &mut out);
    out
}

/// Writes anything that serialises in the canonical form.
///
/// # Errors
/// `internal` where it does not serialise as JSON.
pub fn canonical_of<T: Serialize>(value: &T) -> Result<Vec<u8>, Refusal> {
    serde_json::to_value(value)
        .map(|value| to_canonical(&value))
        .map_err(|error| Refusal::new(Code::Internal, format!("the value has no JSON form: {error}")))
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            out.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write(item, out);
            }
            out.push(b']');
        }
        Value::Object(members) => write_object(members, out),
    }
}

fn write_object(members: &Map<String, Value>, out: &mut Vec<u8>) {
    let mut sorted: Vec<(&String, &Value)> = members.iter().collect();
    sorted.sort_by(|a, b| a.0.encode_utf16().cmp(b.0.encode_utf16()));
    out.push(b'{');
    for (at, (key, value)) in sorted.into_iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_text(key, out);
        out.push(b':');
        write(value, out);
    }
    out.push(b'}');
}

fn write_number(number: &Number, out: &mut Vec<u8>) {
    let whole = number.is_i64() || number.is_u64();
    match number.as_f64() {
        Some(double) if !whole => out.extend_from_slice(ryu_js::Buffer::new().format(double).as_bytes()),
        // Inside the safe range ECMAScript prints an integer's digits; outside of it they are kept on purpose.
        _ => out.extend_from_slice(number.to_string().as_bytes()),
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for byte in text.bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x09 => out.extend_from_slice(b"\\t"),
            0x0a => out.extend_from_slice(b"\\n"),
            0x0c => out.extend_from_slice(b"\\f"),
            0x0d => out.extend_from_slice(b"\\r"),
            0..=0x1f => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests;
