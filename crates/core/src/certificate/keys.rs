//! Ed25519 keys in the spellings that people have them in.
//!
//! It does *not* make randomness, read files or decide which key is trusted.

use super::ssh;
use crate::canonical;
use crate::code::{Code, Refusal};
use crate::digest::{Sha256, from_hex, to_hex};
use crate::path::shown;
use base64::{Engine as _, prelude::BASE64_STANDARD, prelude::BASE64_STANDARD_NO_PAD};
use ed25519_dalek::pkcs8::DecodePrivateKey as _;
use ed25519_dalek::{Signer as _, VerifyingKey};
use serde::{Deserialize, Serialize};

/// Names a key.
///
/// # Shape
/// 64 lower-case hexadecimal digits (securesystemslib) or `SHA256:` and 43 characters (SSH fingerprint).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyId(String);

impl KeyId {
    /// Parses a key id of either shape.
    ///
    /// # Errors
    /// `bad_input` for any other text.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let ssh = text.strip_prefix("SHA256:").is_some_and(|rest| {
            BASE64_STANDARD_NO_PAD
                .decode(rest)
                .is_ok_and(|raw| raw.len() == 32)
        });
        if ssh || Sha256::parse(text).is_ok() {
            return Ok(Self(text.to_owned()));
        }
        let short: String = shown(text.as_bytes()).chars().take(80).collect();
        Err(Refusal::new(
            Code::BadInput,
            "a key id is 64 hexadecimal digits or an SSH fingerprint",
        )
        .name(short))
    }

    /// Gives the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for KeyId {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        Self::parse(&text)
    }
}

impl From<KeyId> for String {
    fn from(id: KeyId) -> String {
        id.0
    }
}

impl core::fmt::Display for KeyId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Holds a key that certificates are verified with.
///
/// # Shape
/// Read from any text that [`PublicKey::parse`] takes.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct PublicKey(VerifyingKey);

const SPKI: [u8; 12] = [
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];
const PKCS8_V1: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

impl PublicKey {
    /// Takes a raw key.
    ///
    /// # Errors
    /// `bad_input` where the bytes are no point of the curve, or one of small order, for which anybody can sign.
    pub fn from_bytes(bytes: &[u8; 32]) -> Result<Self, Refusal> {
        VerifyingKey::from_bytes(bytes)
            .ok()
            .filter(|key| !key.is_weak())
            .map(Self)
            .ok_or_else(|| Refusal::new(Code::BadInput, "not a usable Ed25519 public key"))
    }

    /// Parses a key from PEM (`BEGIN PUBLIC KEY`), an `ssh-ed25519` line, or 64 hexadecimal digits.
    ///
    /// # Errors
    /// `bad_input` for any other text; with reason `key_kind`, naming the kind, for a key that is none of Ed25519, or no public one.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let text = text.trim();
        if let Some(kind) = other_kind(text) {
            let why = "an Ed25519 public key is wanted, and this is a key of another kind";
            return Err(Refusal::new(Code::BadInput, why).reason("key_kind").name(kind));
        }
        let raw: Option<[u8; 32]> = if text.starts_with("-----BEGIN") {
            unarmor(text, "PUBLIC KEY").and_then(|der| der.strip_prefix(&SPKI)?.try_into().ok())
        } else if let Some(rest) = text.strip_prefix("ssh-ed25519 ") {
            let coded = rest.split_ascii_whitespace().next().unwrap_or_default();
            BASE64_STANDARD
                .decode(coded)
                .ok()
                .and_then(|blob| ssh::public_of(&blob))
        } else {
            from_hex(text).and_then(|raw| raw.try_into().ok())
        };
        let shape = "a public key is PEM of an Ed25519 key, an ssh-ed25519 line, or 64 hexadecimal digits";
        let short = || shown(text.as_bytes()).chars().take(40).collect::<String>();
        Self::from_bytes(&raw.ok_or_else(|| Refusal::new(Code::BadInput, shape).name(short()))?)
    }

    /// Gives the raw key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    /// Gives the key as PEM.
    #[must_use]
    pub fn to_pem(&self) -> String {
        armor("PUBLIC KEY", &[&SPKI[..], self.as_bytes()].concat(), 64)
    }

    /// Gives the key as an `ssh-ed25519` line without comment and line end.
    #[must_use]
    pub fn to_ssh(&self) -> String {
        format!(
            "ssh-ed25519 {}",
            BASE64_STANDARD.encode(ssh::public_blob(self.as_bytes()))
        )
    }

    /// Gives the id by which securesystemslib, and we, name the key.
    ///
    /// # Source
    /// securesystemslib 1.6, `signer/_utils.py` `compute_default_keyid`.
    #[must_use]
    pub fn id(&self) -> KeyId {
        let key = serde_json::json!({
            "keytype": "ed25519",
            "keyval": { "public": to_hex(self.as_bytes()) },
            "scheme": "ed25519",
        });
        KeyId(Sha256::of(&canonical::to_canonical(&key)).to_string())
    }

    /// Gives the id by which SSH and go-securesystemslib name the key.
    #[must_use]
    pub fn ssh_fingerprint(&self) -> KeyId {
        let digest = Sha256::of(&ssh::public_blob(self.as_bytes()));
        KeyId(format!(
            "SHA256:{}",
            BASE64_STANDARD_NO_PAD.encode(digest.as_bytes())
        ))
    }

    /// Says whether an id, of either shape, names this key.
    #[must_use]
    pub fn is(&self, id: &str) -> bool {
        self.id().as_str() == id || self.ssh_fingerprint().as_str() == id
    }

    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        let signature = ed25519_dalek::Signature::from_bytes(signature);
        self.0.verify_strict(message, &signature).is_ok()
    }
}

impl core::fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.ssh_fingerprint().as_str())
    }
}

impl TryFrom<String> for PublicKey {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        Self::parse(&text)
    }
}

impl core::str::FromStr for PublicKey {
    type Err = Refusal;
    fn from_str(text: &str) -> Result<Self, Refusal> {
        Self::parse(text)
    }
}

/// Names the kind of a key that is not an Ed25519 public key; `None` for one that may be, and for what is no key at all.
fn other_kind(text: &str) -> Option<String> {
    const KINDS: [&str; 4] = ["ssh-", "ecdsa-", "sk-ssh-", "sk-ecdsa-"];
    // Algorithms of a SubjectPublicKeyInfo, as the encodings of their object ids.
    const ALGORITHMS: [(&[u8], &str); 5] = [
        (
            &[0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01],
            "RSA",
        ),
        (&[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01], "ECDSA"),
        (&[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x38, 0x04, 0x01], "DSA"),
        (&[0x06, 0x03, 0x2b, 0x65, 0x6e], "X25519"),
        (&[0x06, 0x03, 0x2b, 0x65, 0x71], "Ed448"),
    ];
    let word = text.split_ascii_whitespace().next()?;
    if KINDS.iter().any(|kind| word.starts_with(kind)) {
        let short: String = shown(word.as_bytes()).chars().take(40).collect();
        // A word alone may be the name of a file.
        return (word != "ssh-ed25519" && word.len() < text.len()).then_some(short);
    }
    let label = text.strip_prefix("-----BEGIN ")?.split_once("-----")?.0;
    if label != "PUBLIC KEY" {
        return Some(shown(label.as_bytes()).chars().take(40).collect());
    }
    let der = unarmor(text, "PUBLIC KEY")?;
    let head = &der[..der.len().min(32)];
    let found = ALGORITHMS
        .iter()
        .find(|(id, _)| head.windows(id.len()).any(|window| window == *id));
    found.map(|(_, name)| (*name).to_owned())
}

/// Holds a key that certificates are signed with; its memory is cleared when dropped.
pub struct SigningKey(ed25519_dalek::SigningKey);

impl SigningKey {
    /// Makes the key of a seed, which comes straight from the kernel's generator.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(seed))
    }

    /// Reads a key from PEM: PKCS#8, or an unencrypted `OPENSSH PRIVATE KEY`.
    ///
    /// # Errors
    /// `bad_input` for any other text; with reason `key_encrypted` for an SSH key with a passphrase.
    pub fn from_pem(text: &str) -> Result<Self, Refusal> {
        let wrong = || {
            Refusal::new(
                Code::BadInput,
                "a signing key is PEM of an Ed25519 key: PKCS#8 or OpenSSH",
            )
        };
        let text = text.trim();
        if text.starts_with("-----BEGIN OPENSSH PRIVATE KEY-----") {
            let bytes = unarmor(text, "OPENSSH PRIVATE KEY").ok_or_else(wrong)?;
            return match ssh::seed_of(&bytes) {
                Ok(seed) => Ok(Self::from_seed(&seed)),
                Err(ssh::Unusable::Malformed) => Err(wrong()),
                Err(ssh::Unusable::Encrypted) => Err(Refusal::new(
                    Code::BadInput,
                    "the SSH key has a passphrase; a signing key has none",
                )
                .reason("key_encrypted")),
            };
        }
        ed25519_dalek::SigningKey::from_pkcs8_pem(text)
            .map(Self)
            .map_err(|_| wrong())
    }

    /// Writes the key as PKCS#8 PEM.
    ///
    /// # Shape
    /// Version 1, without the public key: OpenSSL 3.0 and Python's cryptography cannot read version 2.
    #[must_use]
    pub fn to_pem(&self) -> String {
        armor("PRIVATE KEY", &[&PKCS8_V1[..], self.0.as_bytes()].concat(), 64)
    }

    /// Gives the key that verifies what this one signs.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    pub(crate) fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.0.sign(message).to_bytes()
    }
}

impl core::fmt::Debug for SigningKey {
    /// Prints the public half alone.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "SigningKey({:?})", self.public())
    }
}

/// Writes PEM and its relatives.
pub(super) fn armor(label: &str, bytes: &[u8], width: usize) -> String {
    let coded = BASE64_STANDARD.encode(bytes);
    let mut text = format!("-----BEGIN {label}-----\n");
    let mut rest = coded.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(width.min(rest.len()));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text.push_str(&format!("-----END {label}-----\n"));
    text
}

fn unarmor(text: &str, label: &str) -> Option<Vec<u8>> {
    let inner = text
        .strip_prefix(&format!("-----BEGIN {label}-----"))?
        .strip_suffix(&format!("-----END {label}-----"))?;
    let coded: String = inner.split_ascii_whitespace().collect();
    BASE64_STANDARD.decode(coded).ok()
}
