//! Identifiers: parsed once, opaque afterwards.
//!
//! Nothing here makes randomness or reads a clock: whoever needs a new id passes both in.

use crate::code::{Code, Refusal};
use serde::{Deserialize, Serialize};

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $parse:path) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Parses the id.
            ///
            /// # Errors
            /// See the type.
            pub fn parse(text: impl Into<String>) -> Result<Self, Refusal> {
                let text = text.into();
                $parse(&text)?;
                Ok(Self(text))
            }

            /// Gives the id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = Refusal;
            fn try_from(text: String) -> Result<Self, Refusal> {
                Self::parse(text)
            }
        }

        impl core::str::FromStr for $name {
            type Err = Refusal;
            fn from_str(text: &str) -> Result<Self, Refusal> {
                Self::parse(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id! {
    /// Names a job; part of every path under which its files live.
    ///
    /// # Shape
    /// `[a-z0-9][a-z0-9._-]{0,62}`
    ///
    /// # Errors
    /// `bad_input` for any other text.
    JobId, job_shape
}

text_id! {
    /// Names one life of one volume; never used twice.
    ///
    /// # Shape
    /// `g-` and a UUIDv7 in lower case.
    ///
    /// # Errors
    /// `bad_input` for any other text.
    Generation, generation_shape
}

text_id! {
    /// Names one run of one call's effect.
    ///
    /// # Shape
    /// A UUIDv7 in lower case.
    ///
    /// # Errors
    /// `bad_input` for any other text.
    ExecutionId, uuid_shape
}

text_id! {
    /// Names one try at the whole pipeline of a job.
    ///
    /// # Shape
    /// A UUIDv7 in lower case.
    ///
    /// # Errors
    /// `bad_input` for any other text.
    RunId, uuid_shape
}

text_id! {
    /// Names one question to a person.
    ///
    /// # Shape
    /// A UUIDv7 in lower case.
    ///
    /// # Errors
    /// `bad_input` for any other text.
    ApprovalId, uuid_shape
}

text_id! {
    /// Names who a token speaks for; stable when the token is issued again.
    ///
    /// # Shape
    /// 1 to 128 characters of `[A-Za-z0-9._:@/-]`.
    ///
    /// # Errors
    /// `bad_input` for any other text.
    Principal, principal_shape
}

text_id! {
    /// Names one intended effect; chosen by the caller.
    ///
    /// # Shape
    /// 1 to 255 visible ASCII characters (`!` to `~`).
    ///
    /// # Errors
    /// `invalid_idempotency_key` for any other text.
    IdempotencyKey, key_shape
}

text_id! {
    /// Identifies a file beyond its name: the filesystem's own handle, which is not given again.
    ///
    /// # Shape
    /// 1 to 512 characters of `[a-z0-9:._-]`, made and compared by the host only.
    ///
    /// # Errors
    /// `bad_input` for any other text.
    FileId, file_id_shape
}

impl Principal {
    /// How long it may be, in bytes.
    pub const LONGEST: usize = 128;

    /// Names a person who acts in a job of this principal: a part that no token can be given out for, since the name of
    /// a part is never empty.
    ///
    /// # Errors
    /// `bad_input` where that is too long.
    pub fn operator(&self) -> Result<Self, Refusal> {
        Self::parse(format!("{self}//operator"))
    }

    /// Says whether it is another one, or a part of it: `job:x/reader` is a part of `job:x`.
    #[must_use]
    pub fn is_part_of(&self, other: &Principal) -> bool {
        self.0
            .strip_prefix(other.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

fn file_id_shape(text: &str) -> Result<(), Refusal> {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b":._-".contains(&b);
    if (1..=512).contains(&text.len()) && text.bytes().all(inner) {
        Ok(())
    } else {
        Err(bad("a file id is 1 to 512 characters of [a-z0-9:._-]", text))
    }
}

/// Holds what a volume's directory must say when it is opened again.
///
/// Device and inode alone are given again at once; the handle is not, and the nonce is ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeIdentity {
    /// 128 random bits, as hexadecimal digits; also a user xattr where the filesystem has them.
    pub nonce: String,
    /// The directory itself.
    pub handle: FileId,
    /// The filesystem's id.
    pub fsid: String,
    /// The boot in which it was made.
    pub boot_id: String,
}

fn job_shape(text: &str) -> Result<(), Refusal> {
    let bytes = text.as_bytes();
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(b);
    let ok = (1..=63).contains(&bytes.len())
        && (bytes[0].is_ascii_lowercase() || bytes[0].is_ascii_digit())
        && bytes.iter().all(inner);
    if ok {
        Ok(())
    } else {
        Err(bad("a job id is [a-z0-9][a-z0-9._-]{0,62}", text))
    }
}

fn uuid_shape(text: &str) -> Result<(), Refusal> {
    let bytes = text.as_bytes();
    let ok = bytes.len() == 36
        && bytes.iter().enumerate().all(|(at, b)| match at {
            8 | 13 | 18 | 23 => *b == b'-',
            14 => *b == b'7',
            19 => b"89ab".contains(b),
            _ => b.is_ascii_digit() || (b'a'..=b'f').contains(b),
        });
    if ok {
        Ok(())
    } else {
        Err(bad("an id is a UUIDv7 in lower case", text))
    }
}

fn generation_shape(text: &str) -> Result<(), Refusal> {
    match text.strip_prefix("g-") {
        Some(uuid) if uuid_shape(uuid).is_ok() => Ok(()),
        _ => Err(bad("a generation is g- and a UUIDv7 in lower case", text)),
    }
}

fn principal_shape(text: &str) -> Result<(), Refusal> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"._:@/-".contains(&b);
    if (1..=Principal::LONGEST).contains(&text.len()) && text.bytes().all(inner) {
        Ok(())
    } else {
        Err(bad(
            "a principal is 1 to 128 characters of [A-Za-z0-9._:@/-]",
            text,
        ))
    }
}

fn key_shape(text: &str) -> Result<(), Refusal> {
    if (1..=255).contains(&text.len()) && text.bytes().all(|b| (b'!'..=b'~').contains(&b)) {
        Ok(())
    } else {
        Err(Refusal::new(
            Code::InvalidIdempotencyKey,
            "an idempotency key is 1 to 255 visible ASCII characters",
        ))
    }
}

fn bad(rule: &str, text: &str) -> Refusal {
    let shown: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    Refusal::new(Code::BadInput, format!("{rule}, got \"{shown}\""))
}

/// Holds what a new id is made from: a time and randomness, both passed in.
#[derive(Clone, Copy, Debug)]
pub struct Seed {
    /// Milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Straight from the kernel's generator.
    pub random: [u8; 10],
}

impl Seed {
    /// Makes a UUIDv7.
    ///
    /// # Source
    /// RFC 9562, section 5.7.
    #[must_use]
    pub fn uuid_v7(self) -> String {
        let mut bytes = [0_u8; 16];
        bytes[..6].copy_from_slice(&self.unix_ms.to_be_bytes()[2..]);
        bytes[6..].copy_from_slice(&self.random);
        bytes[6] = (bytes[6] & 0x0f) | 0x70;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        let hex = crate::digest::to_hex(&bytes);
        format!(
            "{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }
}

impl Generation {
    /// Makes a new generation id.
    #[must_use]
    pub fn mint(seed: Seed) -> Self {
        Self(format!("g-{}", seed.uuid_v7()))
    }
}

impl ExecutionId {
    /// Makes a new execution id.
    #[must_use]
    pub fn mint(seed: Seed) -> Self {
        Self(seed.uuid_v7())
    }
}

impl ApprovalId {
    /// Makes a new approval id.
    #[must_use]
    pub fn mint(seed: Seed) -> Self {
        Self(seed.uuid_v7())
    }
}

impl RunId {
    /// Makes a new run id.
    #[must_use]
    pub fn mint(seed: Seed) -> Self {
        Self(seed.uuid_v7())
    }
}

/// Numbers a try at a job, from 1; given out by the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptId(pub u32);

/// Fences an older owner of a volume: it only grows, and an older one is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(pub u64);

/// Numbers the lives of the writing daemon; fences the store writes of an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

/// Says when something happened, in milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixMs(pub u64);

impl core::fmt::Display for AttemptId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl core::fmt::Display for UnixMs {
    /// Prints RFC 3339 in UTC with milliseconds, such as `2026-11-29T23:52:31.000Z`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (days, ms) = (self.0 / 86_400_000, self.0 % 86_400_000);
        let (year, month, day) = civil(days);
        let (s, ms) = (ms / 1000, ms % 1000);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{ms:03}Z",
            s / 3600,
            s / 60 % 60,
            s % 60
        )
    }
}

/// Turns days since the epoch into a civil date.
///
/// # Source
/// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z % 146_097;
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_kept() {
        for good in ["a", "0", "job-1", "a.b_c-d"] {
            assert!(JobId::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "-a",
            ".a",
            "A",
            "a/b",
            "a b",
            "ä",
            &"a".repeat(64),
            "..",
            "a\n",
        ] {
            assert_eq!(JobId::parse(bad).unwrap_err().code, Code::BadInput, "{bad:?}");
        }
        for bad in ["", " ", "a b", "ä", "\u{7f}", &"k".repeat(256)] {
            let code = IdempotencyKey::parse(bad).unwrap_err().code;
            assert_eq!(code, Code::InvalidIdempotencyKey, "{bad:?}");
        }
        assert!(IdempotencyKey::parse("k".repeat(255)).is_ok());
    }

    #[test]
    fn minted_ids_parse_and_sort_by_time() {
        let id = |unix_ms, byte| {
            Generation::mint(Seed {
                unix_ms,
                random: [byte; 10],
            })
        };
        let (a, b) = (id(1_700_000_000_000, 0xff), id(1_700_000_000_001, 0));
        assert!(a < b);
        assert_eq!(Generation::parse(a.as_str()).unwrap(), a);
        assert!(Generation::parse(a.as_str().to_uppercase()).is_err());
        assert!(ExecutionId::parse(a.as_str()).is_err());
    }

    #[test]
    fn times_print_as_rfc_3339() {
        assert_eq!(UnixMs(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(UnixMs(951_782_400_000).to_string(), "2000-02-29T00:00:00.000Z");
        assert_eq!(UnixMs(1_795_996_351_007).to_string(), "2026-11-29T23:52:31.007Z");
    }
}
