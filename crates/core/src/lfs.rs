//! Pointers of Git LFS: the small file that git holds in place of a large one.
//!
//! # Source
//! `docs/spec.md` of git-lfs, version 1.

use crate::digest::Sha256;

/// Fewer bytes than this has every pointer.
///
/// # Source
/// git-lfs reads no pointer from a file of this size or larger.
pub const LONGEST: usize = 1024;

const VERSION: &str = "https://git-lfs.github.com/spec/v1";

/// Names the content that a pointer stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The digest of the content.
    pub content: Sha256,
    /// How many bytes it has.
    pub size: u64,
    /// The pointer itself, byte for byte.
    pub text: Vec<u8>,
}

impl Pointer {
    /// Reads a pointer; `None` for anything else.
    ///
    /// # Shape
    /// Lines `KEY VALUE`, each ended by a newline: `version` first, then the others sorted by their keys, among them
    /// one `oid sha256:…` and one `size …`.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() >= LONGEST {
            return None;
        }
        let text = core::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
        let mut lines = text.split('\n').map(|line| line.split_once(' '));
        if lines.next()?? != ("version", VERSION) {
            return None;
        }
        let (mut content, mut size, mut before) = (None, None, "");
        for line in lines {
            let (key, value) = line?;
            if key <= before {
                return None;
            }
            before = key;
            match key {
                "oid" => content = Some(Sha256::parse(value.strip_prefix("sha256:")?).ok()?),
                "size" if value.bytes().all(|b| b.is_ascii_digit()) => size = Some(value.parse().ok()?),
                "size" => return None,
                _ => {}
            }
        }
        Some(Self {
            content: content?,
            size: size?,
            text: bytes.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OID: &str = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393";

    fn parse(text: &str) -> Option<Pointer> {
        Pointer::parse(text.as_bytes())
    }

    #[test]
    fn a_pointer_is_what_the_specification_says() {
        let whole = format!("version {VERSION}\noid sha256:{OID}\nsize 12345\n");
        let pointer = parse(&whole).unwrap();
        assert_eq!((pointer.content.to_string().as_str(), pointer.size), (OID, 12345));
        let extended = format!("version {VERSION}\next-0-x sha256:{OID}\noid sha256:{OID}\nsize 0\n");
        assert_eq!(parse(&extended).unwrap().size, 0);
        for end in 0..whole.len() {
            assert_eq!(parse(&whole[..end]), None, "{end}");
        }
        for other in [
            whole.replace("v1", "v2"),
            whole.replace("sha256:", "sha1:"),
            whole.replace("12345", "+1"),
            whole.replace("12345", "99999999999999999999"),
            whole.replace('\n', "\r\n"),
            format!("{whole}\n"),
            format!("{whole}size 12345\n"),
            format!("version {VERSION}\nsize 1\noid sha256:{OID}\n"),
            format!("{}{}\n", whole, "z x".repeat(400)),
        ] {
            assert_eq!(parse(&other), None, "{other}");
        }
    }
}
