//! Digests: SHA-256 as a type, and the fingerprint that decides whether two calls are the same call.

use crate::code::{Code, Refusal};
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// Holds a SHA-256 digest.
///
/// # Shape
/// 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256([u8; 32]);

impl Sha256 {
    /// Digests bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// Takes the raw digest.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Gives the raw digest.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Parses 64 lower-case hexadecimal digits.
    ///
    /// # Errors
    /// `bad_input` for any other text.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let wrong = || Refusal::new(Code::BadInput, "a SHA-256 is 64 lower-case hexadecimal digits");
        let bytes = from_hex(text).ok_or_else(wrong)?;
        Ok(Self(bytes.try_into().map_err(|_| wrong())?))
    }
}

impl TryFrom<String> for Sha256 {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        Self::parse(&text)
    }
}

impl core::str::FromStr for Sha256 {
    type Err = Refusal;
    fn from_str(text: &str) -> Result<Self, Refusal> {
        Self::parse(text)
    }
}

impl From<Sha256> for String {
    fn from(digest: Sha256) -> String {
        to_hex(&digest.0)
    }
}

impl core::fmt::Display for Sha256 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl core::fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

/// Digests a stream piece by piece.
#[derive(Clone, Default)]
pub struct Hasher(sha2::Sha256);

impl Hasher {
    /// Starts with nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Gives the digest of all pieces.
    #[must_use]
    pub fn finish(self) -> Sha256 {
        Sha256(self.0.finalize().into())
    }
}

/// Decides whether two calls are the same call.
///
/// # Shape
/// SHA-256 over the domain `semel.fingerprint.v1`, a zero byte, and the RFC 8785 form of
/// `{"arguments":…,"path":…,"tool":…}` with aliases folded and defaults left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    /// The rules by which it was made; a retry is compared by the rules of the first call.
    pub version: u16,
    /// The digest under these rules.
    pub digest: Sha256,
}

impl Fingerprint {
    /// The rules that new calls are recorded with.
    pub const VERSION: u16 = 1;

    /// Makes the fingerprint of a canonical call.
    #[must_use]
    pub fn of_canonical(canonical: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(b"semel.fingerprint.v1\0");
        hasher.update(canonical);
        Self {
            version: Self::VERSION,
            digest: hasher.finish(),
        }
    }
}

/// Writes bytes as lower-case hexadecimal digits.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// Reads lower-case hexadecimal digits; anything else is `None`.
#[must_use]
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes()
        .chunks_exact(2)
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_as_the_standard_says() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Sha256::of(b"").to_string(), empty);
        assert_eq!(Sha256::parse(empty).unwrap(), Sha256::of(b""));
        assert!(Sha256::parse(&empty.to_uppercase()).is_err());
        assert!(Sha256::parse(&empty[1..]).is_err());
        let mut pieces = Hasher::new();
        pieces.update(b"a");
        pieces.update(b"bc");
        assert_eq!(pieces.finish(), Sha256::of(b"abc"));
    }
}
