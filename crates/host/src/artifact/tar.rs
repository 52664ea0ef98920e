//! Reads a gzip-packed tar of a registry: what package managers take from one.
//!
//! Unlike the reader of proposals it takes what tools out there write: ustar, GNU long names, pax records. Whatever
//! it sees in an archive has to stand, byte for byte, where the package is installed; so a tool that sees another
//! archive in the same bytes is found out, and nothing depends on who is right.

use super::Fault;
use super::contents::Contents;
use super::inflate::Gunzip;
use semel_core::artifact::{Packing, place_member};
use std::io::{BufReader, Read};

const BLOCK: usize = 512;
/// The longest name or pax record that is read.
const LONGEST_NAME: u64 = 1 << 20;
const LARGEST_NUMBER: u64 = 1 << 48;

/// Reads every member.
pub(super) fn read(file: &std::fs::File, contents: &mut Contents) -> Result<(), Fault> {
    let mut archive = BufReader::with_capacity(256 << 10, Gunzip::new(file));
    let mut next = Next::default();
    loop {
        let mut header = [0; BLOCK];
        match read_block(&mut archive, &mut header)? {
            Block::End => return Ok(()),
            Block::Whole if header.iter().all(|b| *b == 0) => return Ok(()),
            Block::Whole => {}
        }
        check_sum(&header)?;
        let size = match next.size {
            Some(size) => size,
            None => number(&header[124..136])?,
        };
        match header[156] {
            b'L' => next.path = Some(name_of(&mut archive, number(&header[124..136])?)?),
            b'K' => next.link = Some(name_of(&mut archive, number(&header[124..136])?)?),
            b'x' => next.pax(&name_of(&mut archive, number(&header[124..136])?)?)?,
            b'g' => drop(name_of(&mut archive, number(&header[124..136])?)?),
            kind => {
                member(&mut archive, contents, &header, kind, size, &next)?;
                next = Next::default();
            }
        }
    }
}

fn member(
    archive: &mut impl Read,
    contents: &mut Contents,
    header: &[u8; BLOCK],
    kind: u8,
    size: u64,
    next: &Next,
) -> Result<(), Fault> {
    let name = next.path.clone().unwrap_or_else(|| plain_name(header));
    let link = next.link.clone().unwrap_or_else(|| until_nul(&header[157..257]));
    let directory = kind == b'5' || (matches!(kind, 0 | b'0') && name.ends_with(b"/"));
    let place = match directory {
        true => None,
        false => contents.place(&name)?,
    };
    let mode = u32::try_from(number(&header[100..108])? & 0o7777).unwrap_or(0);
    match (kind, place) {
        (0 | b'0' | b'7', Some(place)) => {
            let got = contents.file(place, mode, archive.by_ref().take(size))?;
            if got != size {
                return Err(Fault::Odd("it ends too early"));
            }
            skip(archive, padding(size))?;
        }
        (b'1', Some(place)) => {
            let of = place_member(Packing::Npm, &link)?;
            let of = of.ok_or(Fault::Odd(
                "it has a hard link among its members that leads to none of them",
            ))?;
            contents.hard_link(place, &of)?;
        }
        (b'2', Some(place)) => contents.link(place, link)?,
        (b'5', _) => {}
        (0 | b'0' | b'7', None) => skip(archive, size + padding(size))?,
        (b'1' | b'2', None) => {}
        _ => return Err(Fault::Odd("it has a member that is no file, link or directory")),
    }
    Ok(())
}

/// What the records before a header say of it.
#[derive(Default)]
struct Next {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

impl Next {
    /// # Source
    /// POSIX.1-2001, pax: `length key=value\n`.
    fn pax(&mut self, mut records: &[u8]) -> Result<(), Fault> {
        let odd = || Fault::Odd("it has a pax record that is not understood");
        while !records.is_empty() {
            let space = records.iter().position(|b| *b == b' ').ok_or_else(odd)?;
            let length: usize = core::str::from_utf8(&records[..space])
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(odd)?;
            let (record, rest) = records.split_at_checked(length).ok_or_else(odd)?;
            let record = record
                .get(space + 1..)
                .and_then(|r| r.strip_suffix(b"\n"))
                .ok_or_else(odd)?;
            let equals = record.iter().position(|b| *b == b'=').ok_or_else(odd)?;
            let value = &record[equals + 1..];
            match &record[..equals] {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => {
                    let size = core::str::from_utf8(value)
                        .ok()
                        .and_then(|text| text.parse().ok());
                    self.size = Some(size.filter(|size| *size <= LARGEST_NUMBER).ok_or_else(odd)?);
                }
                _ => {}
            }
            records = rest;
        }
        Ok(())
    }
}

enum Block {
    Whole,
    End,
}

fn read_block(archive: &mut impl Read, block: &mut [u8; BLOCK]) -> Result<Block, Fault> {
    let mut at = 0;
    while at < BLOCK {
        match archive.read(&mut block[at..]) {
            // Some archives lack the zero blocks at their end.
            Ok(0) if at == 0 => return Ok(Block::End),
            Ok(0) => return Err(Fault::Odd("it ends too early")),
            Ok(count) => at += count,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(Block::Whole)
}

fn check_sum(header: &[u8; BLOCK]) -> Result<(), Fault> {
    let sum: u64 = header
        .iter()
        .enumerate()
        .map(|(at, byte)| {
            if (148..156).contains(&at) {
                32
            } else {
                u64::from(*byte)
            }
        })
        .sum();
    match number(&header[148..156])? == sum {
        true => Ok(()),
        false => Err(Fault::Odd("a header of it has the wrong check sum")),
    }
}

/// Reads an octal field, or a binary one as GNU writes it for large numbers.
fn number(field: &[u8]) -> Result<u64, Fault> {
    let odd = || Fault::Odd("a header of it has a number that is not understood");
    let mut value = 0_u64;
    if field[0] & 0x80 != 0 {
        for (at, byte) in field.iter().enumerate() {
            let digit = if at == 0 { byte & 0x7f } else { *byte };
            value = value.saturating_mul(256).saturating_add(u64::from(digit));
        }
    } else {
        for byte in until_nul(field).trim_ascii() {
            let digit = byte.checked_sub(b'0').filter(|d| *d < 8).ok_or_else(odd)?;
            value = value.saturating_mul(8).saturating_add(u64::from(digit));
        }
    }
    match value {
        ..=LARGEST_NUMBER => Ok(value),
        _ => Err(odd()),
    }
}

fn plain_name(header: &[u8; BLOCK]) -> Vec<u8> {
    let name = until_nul(&header[..100]);
    let prefix = until_nul(&header[345..500]);
    let ustar = &header[257..263] == b"ustar\0";
    match ustar && !prefix.is_empty() {
        true => [prefix.as_slice(), b"/", &name].concat(),
        false => name,
    }
}

fn until_nul(field: &[u8]) -> Vec<u8> {
    field.split(|b| *b == 0).next().unwrap_or_default().to_vec()
}

fn name_of(archive: &mut impl Read, size: u64) -> Result<Vec<u8>, Fault> {
    if size > LONGEST_NAME {
        return Err(Fault::Large("a name in an artifact is longer than any name"));
    }
    let mut bytes = Vec::new();
    archive.by_ref().take(size).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != size {
        return Err(Fault::Odd("it ends too early"));
    }
    skip(archive, padding(size))?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

fn padding(size: u64) -> u64 {
    size.next_multiple_of(BLOCK as u64) - size
}

fn skip(archive: &mut impl Read, count: u64) -> Result<(), Fault> {
    let skipped = std::io::copy(&mut archive.by_ref().take(count), &mut std::io::sink())?;
    match skipped == count {
        true => Ok(()),
        false => Err(Fault::Odd("it ends too early")),
    }
}
