//! What stands above the hunks of a unified diff: names, modes, renames.

use super::Mode;
use super::reader::{Reader, path_at, refuse_at, trim_end};
use crate::code::Refusal;
use crate::path::RelPath;

/// Is what a unified diff does to a file beside its hunks.
pub(super) enum Change {
    New(Mode),
    Deleted,
    Changed {
        move_to: Option<RelPath>,
        mode: Option<Mode>,
    },
}

/// Is what stands from `diff --git` to the first hunk.
pub(super) struct Section {
    number: usize,
    /// The name of the file, the old one if it has two.
    pub(super) name: Vec<u8>,
    /// The new name, which is the same one but for renames.
    new_name: Vec<u8>,
    /// What is done to it.
    pub(super) change: Change,
}

#[derive(Default)]
struct Words {
    old_mode: Option<Mode>,
    new_mode: Option<Mode>,
    new_file: Option<Mode>,
    deleted: Option<Mode>,
    from: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
}

impl Section {
    /// Reads the lines that follow `diff --git`; `number` is the number of that line, `names` the rest of it.
    pub(super) fn read(reader: &mut Reader<'_>, number: usize, names: &[u8]) -> Result<Self, Refusal> {
        let words = Words::read(reader)?;
        let refuse = |reason: &str, why: &str| Err(refuse_at(number, reason, why));
        let (name, new_name) = match (words.from, words.to) {
            (Some(from), Some(to)) => (from, to),
            (None, None) => match one_name(names) {
                Some(name) => (name.clone(), name),
                None => {
                    let why = "the file has two names, and no lines rename from and rename to";
                    return refuse("two_names", why);
                }
            },
            _ => return refuse("contradiction", "rename from and rename to come together"),
        };
        let move_to = match name == new_name {
            true => None,
            false => Some(path_at(&new_name, number)?),
        };
        let change = match (words.new_file, words.deleted, words.old_mode, words.new_mode) {
            (Some(mode), None, None, None) if move_to.is_none() => Change::New(mode),
            (None, Some(_), None, None) if move_to.is_none() => Change::Deleted,
            (None, None, Some(_), mode @ Some(_)) | (None, None, None, mode @ None) => {
                Change::Changed { move_to, mode }
            }
            _ => return refuse("contradiction", "the lines below say two things of one file"),
        };
        Ok(Self {
            number,
            name,
            new_name,
            change,
        })
    }

    /// Checks that the lines `---` and `+++` say the same, or adds what they alone say.
    pub(super) fn agree(&mut self, reader: &Reader<'_>, files: &FileLines) -> Result<(), Refusal> {
        let fits = |given: &Option<Vec<u8>>, name: &[u8]| match given {
            Some(given) => given == name || prefixed(given) == Some(name),
            None => true,
        };
        if !fits(&files.old, &self.name) || !fits(&files.new, &self.new_name) {
            let why = "the lines --- and +++ name another file than the lines above them";
            return Err(reader.refuse_last("two_names", why));
        }
        let unsaid = matches!(
            self.change,
            Change::Changed {
                move_to: None,
                mode: None
            }
        );
        match (&files.old, &files.new, &self.change) {
            (None, Some(_), Change::New(_)) | (Some(_), None, Change::Deleted) => {}
            (Some(_), Some(_), Change::Changed { .. }) => {}
            (None, Some(_), _) if unsaid => self.change = Change::New(Mode::Regular),
            (Some(_), None, _) if unsaid => self.change = Change::Deleted,
            _ => {
                let why = "the lines --- and +++ do not fit to what the lines below say";
                return Err(refuse_at(self.number, "contradiction", why));
            }
        }
        Ok(())
    }
}

impl Words {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Refusal> {
        let mut words = Self::default();
        while let Some(line) = reader.peek() {
            if is_binary(line) {
                return Err(binary(reader));
            }
            reader.next();
            let after = |word: &str| line.strip_prefix(word.as_bytes());
            if let Some(mode) = after("old mode ") {
                set(reader, &mut words.old_mode, mode_of(reader, mode)?)?;
            } else if let Some(mode) = after("new mode ") {
                set(reader, &mut words.new_mode, mode_of(reader, mode)?)?;
            } else if let Some(mode) = after("new file mode ") {
                set(reader, &mut words.new_file, mode_of(reader, mode)?)?;
            } else if let Some(mode) = after("deleted file mode ") {
                set(reader, &mut words.deleted, mode_of(reader, mode)?)?;
            } else if let Some(name) = after("rename from ") {
                set(reader, &mut words.from, name_of(reader, name)?)?;
            } else if let Some(name) = after("rename to ") {
                set(reader, &mut words.to, name_of(reader, name)?)?;
            } else if after("copy from ").or(after("copy to ")).is_some() {
                let why = "a copy is not made by a patch; add the file";
                return Err(reader.refuse_last("copy_unsupported", why));
            } else if let Some(rest) = after("index ") {
                // The mode at its end tells links and submodules, whose content is no content of a file.
                if let Some(at) = rest.iter().position(|b| *b == b' ') {
                    mode_of(reader, &rest[at + 1..])?;
                }
            } else if after("similarity index ")
                .or(after("dissimilarity index "))
                .is_none()
            {
                reader.back();
                break;
            }
        }
        Ok(words)
    }
}

fn set<T>(reader: &Reader<'_>, slot: &mut Option<T>, value: T) -> Result<(), Refusal> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(reader.refuse_last("contradiction", "the line is there twice")),
    }
}

fn mode_of(reader: &Reader<'_>, text: &[u8]) -> Result<Mode, Refusal> {
    match trim_end(text) {
        b"100644" => Ok(Mode::Regular),
        b"100755" => Ok(Mode::Executable),
        _ => Err(reader.refuse_last(
            "mode_unsupported",
            "a mode is 100644 or 100755; no links, no submodules",
        )),
    }
}

/// Is the pair of lines `---` and `+++`; `None` is `/dev/null`.
pub(super) struct FileLines {
    old: Option<Vec<u8>>,
    new: Option<Vec<u8>>,
}

impl FileLines {
    /// Reads the two lines, where the next line is the first of them.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, Refusal> {
        let Some(old) = reader.peek().and_then(|line| line.strip_prefix(b"--- ")) else {
            return Ok(None);
        };
        reader.next();
        let old = file_name(reader, old)?;
        let Some(new) = reader.peek().and_then(|line| line.strip_prefix(b"+++ ")) else {
            return Err(reader.refuse("unexpected_line", "a line +++ follows the line ---"));
        };
        reader.next();
        let new = file_name(reader, new)?;
        Ok(Some(Self { old, new }))
    }

    /// Gives the name and the change where nothing else says them.
    ///
    /// `a/x` and `b/x` are `x`, and so are any two names that differ in a first letter before `/` alone; beside
    /// `/dev/null` only `a/` and `b/` are taken off.
    pub(super) fn plain(&self, reader: &Reader<'_>) -> Result<(&[u8], Change), Refusal> {
        let unchanged = Change::Changed {
            move_to: None,
            mode: None,
        };
        match (&self.old, &self.new) {
            (Some(old), Some(new)) => match common_name(old, new) {
                Some(name) => Ok((name, unchanged)),
                None => {
                    let why = "the lines --- and +++ name two files; a rename takes the lines of git";
                    Err(reader.refuse_last("two_names", why))
                }
            },
            (None, Some(new)) => Ok((new.strip_prefix(b"b/").unwrap_or(new), Change::New(Mode::Regular))),
            (Some(old), None) => Ok((old.strip_prefix(b"a/").unwrap_or(old), Change::Deleted)),
            (None, None) => Err(reader.refuse_last("bad_name", "the lines --- and +++ name no file")),
        }
    }
}

/// Gives the name of a line `---` or `+++`, which a tab and a time may follow.
fn file_name(reader: &Reader<'_>, rest: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
    let end = rest.iter().position(|b| *b == b'\t');
    let name = &rest[..end.unwrap_or(rest.len())];
    if name == b"/dev/null" {
        return Ok(None);
    }
    if end.is_none() && name.ends_with(b" ") {
        return Err(reader.refuse_last("bad_name", "the name ends with a space, and no tab follows it"));
    }
    name_of(reader, name).map(Some)
}

/// Gives a name that stands alone, in quotes or not.
fn name_of(reader: &Reader<'_>, text: &[u8]) -> Result<Vec<u8>, Refusal> {
    let name = match text.first() {
        Some(b'"') => unquote(text)
            .filter(|(_, rest)| rest.is_empty())
            .map(|(name, _)| name),
        _ => Some(text.to_vec()),
    };
    name.filter(|name| !name.is_empty())
        .ok_or_else(|| reader.refuse_last("bad_name", "the name is empty or badly quoted"))
}

/// Gives the one name that both names of `diff --git` mean.
fn one_name(text: &[u8]) -> Option<Vec<u8>> {
    let (old, new) = match text.first()? {
        b'"' => {
            let (old, rest) = unquote(text)?;
            let new = rest.strip_prefix(b" ")?;
            let new = match new.first()? {
                b'"' => unquote(new).filter(|(_, rest)| rest.is_empty())?.0,
                _ => new.to_vec(),
            };
            (old, new)
        }
        _ if text.ends_with(b"\"") => {
            let at = text.windows(2).position(|two| two == b" \"")?;
            let new = unquote(&text[at + 1..]).filter(|(_, rest)| rest.is_empty())?.0;
            (text[..at].to_vec(), new)
        }
        // Names may hold spaces: but for a letter they are one name, so the text is cut in its middle.
        _ => {
            let middle = text.len() / 2;
            if text[middle] != b' ' {
                return None;
            }
            (text[..middle].to_vec(), text[middle + 1..].to_vec())
        }
    };
    common_name(&old, &new).map(<[u8]>::to_vec)
}

/// Gives what two names have in common: all, or all but different letters before the first `/`.
fn common_name<'a>(old: &'a [u8], new: &[u8]) -> Option<&'a [u8]> {
    if old == new {
        return Some(old);
    }
    let (old, new) = (prefixed(old)?, prefixed(new)?);
    (old == new).then_some(old)
}

fn prefixed(name: &[u8]) -> Option<&[u8]> {
    match name {
        [b'a'..=b'z', b'/', rest @ ..] => Some(rest),
        _ => None,
    }
}

/// Undoes the quotes of git at the beginning of a text; gives the rest, too.
fn unquote(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut rest = text.strip_prefix(b"\"")?;
    let mut name = Vec::new();
    loop {
        let (byte, after) = rest.split_first()?;
        rest = after;
        match byte {
            b'"' => return Some((name, rest)),
            b'\\' => {
                let (escaped, after) = rest.split_first()?;
                rest = after;
                name.push(match escaped {
                    b'a' => 0x07,
                    b'b' => 0x08,
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'v' => 0x0b,
                    b'f' => 0x0c,
                    b'r' => b'\r',
                    b'"' | b'\\' => *escaped,
                    b'0'..=b'3' => {
                        let (low, after) = rest.split_at_checked(2)?;
                        rest = after;
                        let octal = |b: &u8| (b'0'..=b'7').contains(b).then(|| b - b'0');
                        (escaped - b'0') << 6 | octal(&low[0])? << 3 | octal(&low[1])?
                    }
                    _ => return None,
                });
            }
            _ => name.push(*byte),
        }
    }
}

/// Says whether a line announces bytes that no text shows.
pub(super) fn is_binary(line: &[u8]) -> bool {
    line.starts_with(b"GIT binary patch")
        || (line.starts_with(b"Binary files ") && line.ends_with(b" differ"))
}

/// Refuses a binary patch.
pub(super) fn binary(reader: &Reader<'_>) -> Refusal {
    reader.refuse("binary", "a binary patch is not applied")
}
