//! The carriers of an idempotency key: header and argument, which must agree.

use semel_core::ids::IdempotencyKey;
use semel_core::{Code, Refusal};

pub(crate) use semel_core::key_header::parse as from_header;

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
