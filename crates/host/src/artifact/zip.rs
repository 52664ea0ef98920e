//! Reads a zip of a registry by its directory, as installers of wheels and Yarn do.
//!
//! # Source
//! PKWARE, APPNOTE.TXT 6.3: 4.3.7, 4.3.12, 4.3.14 to 4.3.16, 4.5.3.

use super::Fault;
use super::contents::Contents;
use super::inflate::Inflate;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;

const DIRECTORY_END: usize = 22;
const LONGEST_COMMENT: u64 = 65_535;
const LARGEST_DIRECTORY: u64 = 256 << 20;

/// Reads every member.
pub(super) fn read(file: &File, contents: &mut Contents) -> Result<(), Fault> {
    let length = file.metadata()?.len();
    let (offset, size) = directory(file, length)?;
    if size > LARGEST_DIRECTORY {
        return Err(Fault::Large(
            "the directory of an artifact is larger than any package needs",
        ));
    }
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, offset)?;
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        let (entry, after) = Entry::parse(rest)?;
        rest = after;
        entry.take(file, contents)?;
    }
    Ok(())
}

/// Finds where the directory lies, and how long it is.
fn directory(file: &File, length: u64) -> Result<(u64, u64), Fault> {
    let odd = || Fault::Odd("it has no directory at its end");
    let tail = length.min(LONGEST_COMMENT + DIRECTORY_END as u64);
    let mut bytes = vec![0; usize::try_from(tail).unwrap_or(0)];
    file.read_exact_at(&mut bytes, length - tail)?;
    let starts = bytes.len().checked_sub(DIRECTORY_END).ok_or_else(odd)?;
    let at = (0..=starts).rev().find(|at| {
        let comment = usize::from(u16_at(&bytes, at + 20));
        bytes[*at..].starts_with(b"PK\x05\x06") && at + DIRECTORY_END + comment == bytes.len()
    });
    let at = at.ok_or_else(odd)?;
    let (size, offset) = (u32_at(&bytes, at + 12), u32_at(&bytes, at + 16));
    if size != u32::MAX && offset != u32::MAX && u16_at(&bytes, at + 10) != u16::MAX {
        return Ok((u64::from(offset), u64::from(size)));
    }
    let locator = length - tail + at as u64;
    let mut bytes = [0; 20];
    file.read_exact_at(&mut bytes, locator.checked_sub(20).ok_or_else(odd)?)?;
    if !bytes.starts_with(b"PK\x06\x07") {
        return Err(odd());
    }
    let mut end = [0; 56];
    file.read_exact_at(&mut end, u64_at(&bytes, 8))?;
    if !end.starts_with(b"PK\x06\x06") {
        return Err(odd());
    }
    Ok((u64_at(&end, 48), u64_at(&end, 40)))
}

struct Entry<'a> {
    flags: u16,
    method: u16,
    packed: u64,
    size: u64,
    mode: u32,
    offset: u64,
    name: &'a [u8],
}

impl<'a> Entry<'a> {
    fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Fault> {
        let odd = || Fault::Odd("its directory is cut");
        if bytes.len() < 46 || !bytes.starts_with(b"PK\x01\x02") {
            return Err(odd());
        }
        let lengths = [28, 30, 32].map(|at| usize::from(u16_at(bytes, at)));
        let end = 46 + lengths.iter().sum::<usize>();
        let whole = bytes.get(46..end).ok_or_else(odd)?;
        let (name, rest) = whole.split_at(lengths[0]);
        // Made on Unix: the upper half is what stat would say.
        let unix = bytes[5] == 3;
        let mut entry = Self {
            flags: u16_at(bytes, 8),
            method: u16_at(bytes, 10),
            packed: u64::from(u32_at(bytes, 20)),
            size: u64::from(u32_at(bytes, 24)),
            mode: if unix { u32_at(bytes, 38) >> 16 } else { 0 },
            offset: u64::from(u32_at(bytes, 42)),
            name,
        };
        entry.large(&rest[..lengths[1]])?;
        Ok((entry, &bytes[end..]))
    }

    /// Takes what does not fit into 32 bits from the extra field.
    fn large(&mut self, mut extra: &[u8]) -> Result<(), Fault> {
        let odd = || Fault::Odd("an entry of its directory is cut");
        while extra.len() >= 4 {
            let (id, length) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
            let field = extra.get(4..4 + length).ok_or_else(odd)?;
            if id == 1 {
                let mut numbers = field.chunks_exact(8).map(|n| u64_at(n, 0));
                for value in [&mut self.size, &mut self.packed, &mut self.offset] {
                    if *value == u64::from(u32::MAX) {
                        *value = numbers.next().ok_or_else(odd)?;
                    }
                }
            }
            extra = &extra[4 + length..];
        }
        Ok(())
    }

    fn take(&self, file: &File, contents: &mut Contents) -> Result<(), Fault> {
        if self.name.ends_with(b"/") {
            return Ok(());
        }
        let Some(place) = contents.place(self.name)? else {
            return Ok(());
        };
        if self.flags & 1 != 0 {
            return Err(Fault::Odd("a member of it is encrypted"));
        }
        if contents.members.contains_key(&place) {
            return Err(Fault::Odd("it has a member twice"));
        }
        let mut local = [0; 30];
        file.read_exact_at(&mut local, self.offset)?;
        if !local.starts_with(b"PK\x03\x04") {
            return Err(Fault::Odd("its directory leads to no member"));
        }
        let head = 30 + u64::from(u16_at(&local, 26)) + u64::from(u16_at(&local, 28));
        let at = self
            .offset
            .checked_add(head)
            .ok_or(Fault::Odd("its directory leads to no member"))?;
        let mut packed = Section {
            file,
            at,
            left: self.packed,
        };
        if self.mode & 0o170_000 == 0o120_000 {
            let mut target = Vec::new();
            self.open(&mut packed)?.take(4096).read_to_end(&mut target)?;
            return contents.link(place, target);
        }
        let got = contents.file(place, self.mode & 0o7777, self.open(&mut packed)?)?;
        match got == self.size {
            true => Ok(()),
            false => Err(Fault::Odd(
                "a member of it is of another size than its directory says",
            )),
        }
    }

    fn open<'b>(&self, packed: &'b mut Section<'_>) -> Result<Box<dyn Read + 'b>, Fault> {
        match self.method {
            0 => Ok(Box::new(packed)),
            8 => Ok(Box::new(Inflate::new(packed))),
            _ => Err(Fault::Odd("a member of it is packed in a way that is not known")),
        }
    }
}

/// Reads a part of a file.
struct Section<'a> {
    file: &'a File,
    at: u64,
    left: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(out.len());
        let count = self.file.read_at(&mut out[..most], self.at)?;
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..at + 2)
        .map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
