//! Checkpoints: what the log was at one moment, signed, so that whoever holds one can tell that it was rewritten.
//!
//! A checkpoint is a C2SP `signed-note` in the form of a `tlog-checkpoint`, so that any verifier of signed notes can
//! check its signature. **Its third line is the head of a linear hash chain, not the root of a Merkle tree**: there
//! are no inclusion or consistency proofs, and no witness of Merkle logs can follow it; the origin says so. To hold a
//! log against a checkpoint, read the log. This module does *not* read files, logs or clocks, and does *not* say
//! which key is to be trusted.

use crate::audit::{Fault, FaultKind};
use crate::certificate::{PublicKey, SigningKey};
use crate::code::{Code, Refusal};
use crate::digest::{Hasher, Sha256, from_hex, to_hex};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};

/// What the origin of every log begins with; the digest of its first entry follows.
const ORIGIN: &str = "semel.dev/chain-v1/";
/// The type of an Ed25519 signature in a signed note.
const ED25519: u8 = 1;
/// How long a note may be.
const MOST: usize = 64 << 10;
/// Begins a line with a signature.
const DASH: &str = "\u{2014} ";

/// Is what the log was at one moment.
///
/// # Shape
/// As the text of a note, three lines: `semel.dev/chain-v1/<first, 64 hexadecimal digits>`, the size in decimal
/// digits, the head in base64. No line follows: extension lines are refused.
///
/// # Source
/// C2SP `tlog-checkpoint`, but for the meaning of the third line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// The digest of the first entry: which log it is.
    pub first: Sha256,
    /// How many entries there were; at least 1.
    pub size: u64,
    /// The digest of the last one of them.
    pub head: Sha256,
}

impl Checkpoint {
    /// Gives the name of the log, and of the key that signs for it.
    #[must_use]
    pub fn origin(&self) -> String {
        format!("{ORIGIN}{}", self.first)
    }

    /// Gives the text that is signed.
    #[must_use]
    pub fn text(&self) -> String {
        let head = BASE64_STANDARD.encode(self.head.as_bytes());
        format!("{}\n{}\n{head}\n", self.origin(), self.size)
    }

    /// Signs the checkpoint; gives the whole note.
    #[must_use]
    pub fn sign(&self, key: &SigningKey) -> String {
        let text = self.text();
        let mut signature = key_id(&self.origin(), &key.public()).to_vec();
        signature.extend_from_slice(&key.sign(text.as_bytes()));
        let signature = BASE64_STANDARD.encode(signature);
        format!("{text}\n{DASH}{} {signature}\n", self.origin())
    }

    /// Reads a note, and verifies it; signatures of others, such as witnesses, are passed over.
    ///
    /// # Errors
    /// `bad_input`, reason `checkpoint_malformed`; `checkpoint_unsigned` where the key did not sign it;
    /// `checkpoint_signature` where its signature does not hold.
    ///
    /// # Limits
    /// 64 KiB.
    pub fn open(note: &[u8], key: &LogKey) -> Result<Self, Refusal> {
        let note = plain(note)?;
        let (text, signatures) = note
            .rfind("\n\n")
            .map(|at| (&note[..=at], &note[at + 2..]))
            .ok_or_else(|| malformed("no empty line stands before the signatures"))?;
        let checkpoint = Self::parse(text)?;
        let origin = checkpoint.origin();
        if key.name.as_ref().is_some_and(|name| *name != origin) {
            return Err(refused(
                "checkpoint_unsigned",
                "the checkpoint is of another log than the key",
            )
            .name(origin));
        }
        let known = key_id(&origin, &key.key);
        let mut verified = 0;
        for signature in signed(signatures)? {
            if signature.name != origin || signature.key_id != known {
                continue;
            }
            let holds = <&[u8; 64]>::try_from(signature.bytes.as_slice())
                .is_ok_and(|bytes| key.key.verifies(text.as_bytes(), bytes));
            if !holds {
                return Err(refused(
                    "checkpoint_signature",
                    "the signature of the checkpoint does not hold",
                ));
            }
            verified += 1;
        }
        match verified {
            0 => Err(refused(
                "checkpoint_unsigned",
                "the checkpoint is not signed by the key of the log",
            )),
            1 => Ok(checkpoint),
            _ => Err(malformed("the key signed it twice")),
        }
    }

    fn parse(text: &str) -> Result<Self, Refusal> {
        let lines: Vec<&str> = text.strip_suffix('\n').unwrap_or(text).split('\n').collect();
        let [origin, size, head] = lines[..] else {
            return Err(malformed("its text has three lines: origin, size, head"));
        };
        let first = origin
            .strip_prefix(ORIGIN)
            .and_then(|hex| Sha256::parse(hex).ok())
            .ok_or_else(|| malformed("its origin is not that of a log of ours"))?;
        let size = size
            .parse::<u64>()
            .ok()
            .filter(|number| *number > 0 && number.to_string() == size)
            .ok_or_else(|| malformed("its size is not a number of entries"))?;
        let head = BASE64_STANDARD
            .decode(head)
            .ok()
            .and_then(|raw| <[u8; 32]>::try_from(raw).ok())
            .ok_or_else(|| malformed("its head is not a digest in base64"))?;
        Ok(Self {
            first,
            size,
            head: Sha256::from_bytes(head),
        })
    }

    /// Holds a log against the checkpoint.
    ///
    /// `first` is the digest of the log's first entry, `at` that of the entry at the checkpoint's size, `last` the
    /// place of its last entry.
    #[must_use]
    pub fn against(&self, first: Option<&Sha256>, at: Option<&Sha256>, last: u64) -> Option<Fault> {
        let size = self.size;
        if first.is_some_and(|first| *first != self.first) {
            let why = format!("the checkpoint of {size} entries is of a log with another first entry");
            return Some(Fault::at(1, FaultKind::OtherLog, why));
        }
        if last < size {
            let why = format!("the log ends with entry {last}; the checkpoint is of {size} entries");
            return Some(Fault::at(last + 1, FaultKind::Truncated, why));
        }
        match at {
            Some(at) if *at == self.head => None,
            Some(_) => {
                let why = format!(
                    "the checkpoint of {size} entries says another digest: it, or an entry before it, was rewritten"
                );
                Some(Fault::at(size, FaultKind::Rewritten, why))
            }
            None => {
                let why = format!("the checkpoint of {size} entries is of an entry that is missing");
                Some(Fault::at(size, FaultKind::Rewritten, why))
            }
        }
    }
}

/// Is the key that a log's checkpoints are verified with.
///
/// # Shape
/// A verifier key of signed notes, `<name>+<key id, 8 hexadecimal digits>+<base64 of 0x01 and the key>`, which is for
/// one log; or any text that [`PublicKey::parse`] takes, which is for any log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogKey {
    name: Option<String>,
    key: PublicKey,
}

impl LogKey {
    /// Takes a key for any log.
    #[must_use]
    pub fn any(key: PublicKey) -> Self {
        Self { name: None, key }
    }

    /// Takes the key of one log.
    #[must_use]
    pub fn of(origin: String, key: PublicKey) -> Self {
        Self {
            name: Some(origin),
            key,
        }
    }

    /// Parses a key of either shape.
    ///
    /// # Errors
    /// `bad_input` for any other text.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let text = text.trim();
        if !text.starts_with(ORIGIN) {
            return PublicKey::parse(text).map(Self::any);
        }
        let wrong = || Refusal::new(Code::BadInput, "not a verifier key of signed notes");
        let mut parts = text.splitn(3, '+');
        let (Some(name), Some(id), Some(coded)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(wrong());
        };
        let raw = BASE64_STANDARD.decode(coded).map_err(|_| wrong())?;
        let Some((&ED25519, raw)) = raw.split_first() else {
            return Err(wrong());
        };
        let key = PublicKey::from_bytes(raw.try_into().map_err(|_| wrong())?)?;
        if from_hex(id).as_deref() != Some(&key_id(name, &key)[..]) {
            return Err(wrong());
        }
        Ok(Self::of(name.to_owned(), key))
    }
}

impl core::str::FromStr for LogKey {
    type Err = Refusal;
    fn from_str(text: &str) -> Result<Self, Refusal> {
        Self::parse(text)
    }
}

/// Writes the verifier key of a log, as other verifiers of signed notes take it.
#[must_use]
pub fn verifier_key(origin: &str, key: &PublicKey) -> String {
    let coded = BASE64_STANDARD.encode([&[ED25519], &key.as_bytes()[..]].concat());
    format!("{origin}+{}+{coded}", to_hex(&key_id(origin, key)))
}

/// Gives the id of a key under a name.
///
/// # Source
/// C2SP `signed-note`, "Ed25519 signatures".
fn key_id(name: &str, key: &PublicKey) -> [u8; 4] {
    let mut hasher = Hasher::new();
    hasher.update(name.as_bytes());
    hasher.update(&[b'\n', ED25519]);
    hasher.update(key.as_bytes());
    let [a, b, c, d, ..] = *hasher.finish().as_bytes();
    [a, b, c, d]
}

/// Is one line with a signature.
struct Signature<'a> {
    name: &'a str,
    key_id: [u8; 4],
    bytes: Vec<u8>,
}

fn signed(lines: &str) -> Result<Vec<Signature<'_>>, Refusal> {
    let lines = lines
        .strip_suffix('\n')
        .ok_or_else(|| malformed("its last line does not end"))?;
    lines
        .split('\n')
        .map(|line| {
            let parsed = line.strip_prefix(DASH).and_then(|rest| {
                let (name, coded) = rest.split_once(' ')?;
                let raw = BASE64_STANDARD.decode(coded).ok()?;
                let (key_id, bytes) = raw.split_first_chunk::<4>()?;
                let named = !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c == '+');
                (named && !bytes.is_empty()).then(|| Signature {
                    name,
                    key_id: *key_id,
                    bytes: bytes.to_vec(),
                })
            });
            parsed.ok_or_else(|| malformed("a line after the empty one is no signature"))
        })
        .collect()
}

fn plain(note: &[u8]) -> Result<&str, Refusal> {
    if note.len() > MOST {
        return Err(malformed("it is longer than a checkpoint can be"));
    }
    let text = core::str::from_utf8(note).map_err(|_| malformed("it is not UTF-8"))?;
    if text.bytes().any(|byte| byte < 0x20 && byte != b'\n') {
        return Err(malformed("it holds control characters"));
    }
    Ok(text)
}

fn refused(reason: &str, why: &str) -> Refusal {
    Refusal::new(Code::BadInput, why).reason(reason)
}

fn malformed(why: &str) -> Refusal {
    refused("checkpoint_malformed", &format!("not a checkpoint: {why}"))
}

#[cfg(test)]
mod tests;
