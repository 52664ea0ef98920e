//! The carriers of an idempotency key: header and argument, which must agree.

use semel_core::ids::IdempotencyKey;
use semel_core::{Code, Refusal};

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
pub(crate) fn from_header(value: &[u8]) -> Result<IdempotencyKey, Refusal> {
    let wrong = || {
        Refusal::new(
            Code::InvalidIdempotencyKey,
            "the header is neither one quoted string nor one bare token",
        )
    };
    let text = std::str::from_utf8(value)
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

/// Gives the one key that all carriers name, if any.
///
/// # Errors
/// `idempotency_key_mismatch` where they disagree.
pub(crate) fn agree(
    keys: impl IntoIterator<Item = IdempotencyKey>,
) -> Result<Option<IdempotencyKey>, Refusal> {
    let mut agreed: Option<IdempotencyKey> = None;
    for key in keys {
        match &agreed {
            Some(first) if *first != key => {
                return Err(Refusal::new(
                    Code::IdempotencyKeyMismatch,
                    "the carriers of the key name different keys",
                ));
            }
            _ => agreed = Some(key),
        }
    }
    Ok(agreed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_give_one_key() {
        for value in ["k-1", "\"k-1\"", " k-1 "] {
            assert_eq!(from_header(value.as_bytes()).unwrap().as_str(), "k-1", "{value}");
        }
        assert_eq!(from_header(br#""a\"b\\""#).unwrap().as_str(), "a\"b\\");
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
            let code = from_header(value.as_bytes()).unwrap_err().code;
            assert_eq!(code, Code::InvalidIdempotencyKey, "{value}");
        }
    }
}
