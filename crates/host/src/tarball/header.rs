//! One header block of an archive: ustar, and the PAX records `path`, `linkpath` and `size`.
//!
//! # Source
//! POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header".

use crate::tarball::{BLOCK, refused};
use semel_core::Refusal;
use semel_core::path::shown;

/// The largest size that eleven octal digits hold.
pub(super) const LARGEST_OCTAL: u64 = 0o77_777_777_777;
const NAME_ROOM: usize = 100;
const PAX_NAME: &[u8] = b"PaxHeaders/entry";
const LARGEST_PAX: u64 = 16 << 10;

/// Names the types that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    File,
    Symlink,
    Directory,
    Pax,
}

/// Holds the fields of a header that mean something here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Type,
    pub(super) name: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) size: u64,
}

/// Holds what an extended header says of the entry after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extended {
    pub(super) path: Option<Vec<u8>>,
    pub(super) linkpath: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
}

/// Writes the headers of an entry: an extended one first, where the plain one has no room.
pub(super) fn encode(header: &Header) -> Vec<u8> {
    let mut extended = Vec::new();
    let mut plain = header.clone();
    if header.name.len() > NAME_ROOM {
        record(&mut extended, "path", &header.name);
        plain.name.truncate(NAME_ROOM);
    }
    if header.link.len() > NAME_ROOM {
        record(&mut extended, "linkpath", &header.link);
        plain.link.truncate(NAME_ROOM);
    }
    if header.size > LARGEST_OCTAL {
        record(&mut extended, "size", header.size.to_string().as_bytes());
        plain.size = 0;
    }
    let mut bytes = Vec::new();
    if !extended.is_empty() {
        let pax = Header {
            kind: Type::Pax,
            name: PAX_NAME.to_vec(),
            link: Vec::new(),
            mode: 0o644,
            size: extended.len() as u64,
        };
        bytes.extend_from_slice(&block(&pax));
        bytes.extend_from_slice(&extended);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    }
    bytes.extend_from_slice(&block(&plain));
    bytes
}

/// Adds one record `<length> <key>=<value>\n`, where the length counts itself.
fn record(into: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length.to_string().len() + rest != length {
        length += 1;
    }
    into.extend_from_slice(format!("{length} {key}=").as_bytes());
    into.extend_from_slice(value);
    into.push(b'\n');
}

fn block(header: &Header) -> [u8; BLOCK] {
    let mut block = [0_u8; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &header.name);
    put(100, format!("{:07o}\0", header.mode).as_bytes());
    put(108, b"0000000\x000000000\0");
    put(124, format!("{:011o}\0", header.size).as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    let kind = match header.kind {
        Type::File => b'0',
        Type::Symlink => b'2',
        Type::Directory => b'5',
        Type::Pax => b'x',
    };
    put(156, &[kind]);
    put(157, &header.link);
    put(257, b"ustar\x0000");
    put(329, b"0000000\x000000000\0");
    let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Reads one header block, refusing whatever another reader could take for something else.
pub(super) fn decode(block: &[u8; BLOCK]) -> Result<Header, Refusal> {
    let sum: u32 = block
        .iter()
        .enumerate()
        .map(|(at, b)| {
            if (148..156).contains(&at) {
                32
            } else {
                u32::from(*b)
            }
        })
        .sum();
    if checksum(&block[148..156]) != Some(u64::from(sum)) {
        return Err(refused("checksum", "a header's checksum is wrong"));
    }
    if &block[257..265] != b"ustar\x0000" {
        return Err(refused("format", "a header is not of the ustar format"));
    }
    let kind = type_of(block[156])?;
    let size = number(block, 124..136, "size")?;
    let mode = u32::try_from(number(block, 100..108, "mode")?).unwrap_or(u32::MAX);
    check_rest(block)?;
    check_mode(kind, mode)?;
    if size != 0 && matches!(kind, Type::Symlink | Type::Directory) {
        return Err(refused("size", "something that is no file has a size"));
    }
    let (mut name, prefix, link) = (
        text(&block[..100])?,
        text(&block[345..500])?,
        text(&block[157..257])?,
    );
    if !prefix.is_empty() {
        name = [prefix, b"/".to_vec(), name].concat();
    }
    if (kind == Type::Symlink) == link.is_empty() {
        return Err(refused(
            "link_target",
            "a target is missing, or given for something that is no link",
        ));
    }
    Ok(Header {
        kind,
        name,
        link,
        mode,
        size,
    })
}

fn number(block: &[u8; BLOCK], range: std::ops::Range<usize>, what: &str) -> Result<u64, Refusal> {
    let read = octal(&block[range]);
    read.ok_or_else(|| refused("number", format!("the {what} of a header is not plain octal")))
}

/// Checks the fields that mean nothing here, but something to others.
fn check_rest(block: &[u8; BLOCK]) -> Result<(), Refusal> {
    for (range, what) in [(108..116, "owner"), (116..124, "group"), (136..148, "time")] {
        number(block, range, what)?;
    }
    for range in [329..337, 337..345] {
        let unset = block[range.clone()].iter().all(|b| *b == 0);
        if !unset && number(block, range, "device")? != 0 {
            return Err(refused("special_file", "a header names a device"));
        }
    }
    for range in [265..297, 297..329] {
        // Whatever another reader would make of other bytes: nothing here needs them.
        if !text(&block[range])?.iter().all(|b| (b' '..=b'~').contains(b)) {
            return Err(refused("field", "the name of an owner is not plain ASCII"));
        }
    }
    if block[500..].iter().any(|b| *b != 0) {
        return Err(refused("format", "a header has bytes behind its last field"));
    }
    Ok(())
}

fn check_mode(kind: Type, mode: u32) -> Result<(), Refusal> {
    if mode & !0o777 != 0 {
        return Err(refused(
            "mode",
            "a mode has setuid, setgid, sticky or unknown bits",
        ));
    }
    let needed = match kind {
        Type::File => 0o400,
        Type::Directory => 0o700,
        Type::Symlink | Type::Pax => 0,
    };
    if mode & needed != needed {
        let why = "a mode keeps its owner from reading, or from what is in a directory";
        return Err(refused("mode", why));
    }
    Ok(())
}

fn type_of(byte: u8) -> Result<Type, Refusal> {
    match byte {
        b'0' => Ok(Type::File),
        b'2' => Ok(Type::Symlink),
        b'5' => Ok(Type::Directory),
        b'x' => Ok(Type::Pax),
        b'1' => Err(refused("hard_link", "a hard link cannot be held")),
        b'3' | b'4' | b'6' => Err(refused("special_file", "a device or FIFO cannot be held")),
        b'g' => Err(refused("global_header", "a global extended header is not read")),
        other => {
            let why = format!("entry type \"{}\" is not read", shown(&[other]));
            Err(refused("entry_type", why))
        }
    }
}

/// Reads the records of an extended header.
pub(super) fn extended(mut bytes: &[u8]) -> Result<Extended, Refusal> {
    let wrong = || refused("extended_header", "an extended header is malformed");
    let mut found = Extended::default();
    while !bytes.is_empty() {
        let digits = bytes.iter().take(8).position(|b| *b == b' ').ok_or_else(wrong)?;
        let length = decimal(&bytes[..digits])
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(wrong)?;
        if length > bytes.len() || length < digits + 2 || bytes[length - 1] != b'\n' {
            return Err(wrong());
        }
        let record = &bytes[digits + 1..length - 1];
        let equals = record.iter().position(|b| *b == b'=').ok_or_else(wrong)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        let twice = match key {
            b"path" => found.path.replace(value.to_vec()).is_some(),
            b"linkpath" => found.linkpath.replace(value.to_vec()).is_some(),
            b"size" => found.size.replace(decimal(value).ok_or_else(wrong)?).is_some(),
            _ => {
                let why = format!("extended key \"{}\" is not read", shown(key));
                return Err(refused("extended_key", why));
            }
        };
        if twice {
            return Err(refused("extended_twice", "an extended header has a key twice"));
        }
        if value.is_empty() || value.contains(&0) {
            return Err(wrong());
        }
        bytes = &bytes[length..];
    }
    Ok(found)
}

/// Bounds the size of an extended header.
pub(super) fn extended_size(header: &Header) -> Result<usize, Refusal> {
    match usize::try_from(header.size) {
        Ok(size) if size > 0 && header.size <= LARGEST_PAX => Ok(size),
        _ => Err(refused(
            "extended_header",
            format!("an extended header has 1 to {LARGEST_PAX} bytes"),
        )),
    }
}

/// Puts an extended header's words in the place of a header's.
pub(super) fn extend(header: &mut Header, extended: Extended) -> Result<(), Refusal> {
    if let Some(path) = extended.path {
        header.name = path;
    }
    if let Some(link) = extended.linkpath {
        if header.kind != Type::Symlink {
            return Err(refused(
                "extended_key",
                "a link target is given for something that is no link",
            ));
        }
        header.link = link;
    }
    if let Some(size) = extended.size {
        // A size that the header itself can hold would be read from either place.
        if size <= LARGEST_OCTAL || header.size != 0 || header.kind != Type::File {
            return Err(refused("extended_size", "a size is given twice"));
        }
        header.size = size;
    }
    Ok(())
}

/// Reads a text field: up to the first NUL, with nothing but NULs behind it.
fn text(field: &[u8]) -> Result<Vec<u8>, Refusal> {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    if field[end..].iter().any(|b| *b != 0) {
        return Err(refused("field", "a field has bytes behind its end"));
    }
    Ok(field[..end].to_vec())
}

/// Reads octal digits that fill the field but for its last byte, a NUL or a space.
fn octal(field: &[u8]) -> Option<u64> {
    let (last, digits) = field.split_last()?;
    if !matches!(last, 0 | b' ') {
        return None;
    }
    all_octal(digits)
}

/// Reads the checksum field: six digits, a NUL, a space.
fn checksum(field: &[u8]) -> Option<u64> {
    field.strip_suffix(b"\0 ").and_then(all_octal)
}

fn all_octal(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0_u64, |sum, b| {
        (b'0'..=b'7')
            .contains(b)
            .then(|| (sum << 3) | u64::from(b - b'0'))
    })
}

/// Reads decimal digits without a leading zero.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.first() == Some(&b'0') || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    core::str::from_utf8(digits).ok()?.parse().ok()
}
