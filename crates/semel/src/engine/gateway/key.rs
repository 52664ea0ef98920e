//! The carriers of an idempotency key: header, member of a message and argument, which must agree.

use semel_core::ids::IdempotencyKey;
use semel_core::key_header;
use semel_core::{Code, Refusal};
use serde_json::Value;

/// Is a key as it came with a call, beside its arguments.
#[derive(Clone, Debug)]
pub(crate) enum Carried {
    /// The value of the header `Idempotency-Key`: quoted or bare.
    Header(Vec<u8>),
    /// A member of a message, by its name: text as it is.
    Member(&'static str, Value),
}

impl Carried {
    /// Gives the key.
    ///
    /// # Errors
    /// `invalid_idempotency_key`.
    pub(crate) fn key(&self) -> Result<IdempotencyKey, Refusal> {
        match self {
            Self::Header(value) => key_header::parse(value),
            Self::Member(_, Value::String(text)) => IdempotencyKey::parse(text.as_str()),
            Self::Member(name, _) => {
                let why = "the key beside the arguments is not text";
                Err(Refusal::new(Code::InvalidIdempotencyKey, why).name(*name))
            }
        }
    }
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
