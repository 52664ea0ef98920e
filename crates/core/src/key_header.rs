//! The header `Idempotency-Key`: its two forms, and nothing between them.
//!
//! It does *not* know the other carriers of a key, or what a key is good for.

use crate::code::{Code, Refusal};
use crate::ids::IdempotencyKey;

/// Reads one value of the header `Idempotency-Key`.
///
/// # Shape
/// `"8e03…"` (a quoted string, with `\"` and `\\`), or a bare token without `"`, `\`, `,` and `;`.
///
/// # Errors
/// `invalid_idempotency_key` for any other text: parameters, lists, byte sequences.
///
/// # Source
/// draft-ietf-httpapi-idempotency-key-header-07, RFC 9651 section 3.3.3; most deployed APIs take the bare form.
pub fn parse(value: &[u8]) -> Result<IdempotencyKey, Refusal> {
    let wrong = || {
        Refusal::new(
            Code::InvalidIdempotencyKey,
            "the header is neither one quoted string nor one bare token",
        )
    };
    let text = core::str::from_utf8(value)
        .map_err(|_| wrong())?
        .trim_matches([' ', '\t']);
    let Some(inner) = text.strip_prefix('"') else {
        let structured =
            text.contains(['"', '\\', ',', ';']) || (text.starts_with(':') && text.ends_with(':'));
        return if structured {
            Err(wrong())
        } else {
            IdempotencyKey::parse(text)
        };
    };
    let mut key = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' if chars.as_str().is_empty() => return IdempotencyKey::parse(key),
            '"' => return Err(wrong()),
            '\\' => match chars.next() {
                Some(escaped @ ('"' | '\\')) => key.push(escaped),
                _ => return Err(wrong()),
            },
            _ => key.push(c),
        }
    }
    Err(wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_give_one_key() {
        for value in ["k-1", "\"k-1\"", " k-1 "] {
            assert_eq!(parse(value.as_bytes()).unwrap().as_str(), "k-1", "{value}");
        }
        assert_eq!(parse(br#""a\"b\\""#).unwrap().as_str(), "a\"b\\");
        for value in [
            "",
            "\"\"",
            "\"a",
            "\"a\";p=1",
            "a,b",
            "a;b",
            "\"a\\n\"",
            "a b",
            ":YQ==:",
            "\u{e4}",
        ] {
            let code = parse(value.as_bytes()).unwrap_err().code;
            assert_eq!(code, Code::InvalidIdempotencyKey, "{value}");
        }
    }
}
