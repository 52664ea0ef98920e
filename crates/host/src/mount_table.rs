//! The kernel's tables of mounts, as far as every room reads them alike.

use crate::root::mount_id;
use std::ffi::OsStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Gives back what the kernel writes as a backslash and three octal digits.
pub(crate) fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let byte = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() {
            after.get(3..).unwrap_or_default()
        } else {
            after
        };
    }
    bytes
}

/// Lists where something is mounted below a directory, which is given by its real path, as this process sees it.
///
/// # Errors
/// The table cannot be read.
pub(crate) fn mounted_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    let points = text.split(|b| *b == b'\n').filter_map(|line| {
        let point = unescaped(line.split(|b| *b == b' ').nth(4)?);
        Some(PathBuf::from(OsStr::from_bytes(&point)))
    });
    Ok(points
        .filter(|point| point.starts_with(dir) && point != dir)
        .collect())
}

/// Gives the source of the mount that an open handle lies on, as its mounter named it; `None` where the table lists no
/// such mount.
///
/// # Errors
/// The system does not say which mount it is, or the table cannot be read.
pub(crate) fn source_of(at: BorrowedFd<'_>) -> io::Result<Option<Vec<u8>>> {
    let id = mount_id(at)?.to_string();
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(source_in(&table, id.as_bytes()))
}

fn source_in(table: &[u8], id: &[u8]) -> Option<Vec<u8>> {
    let mut lines = table
        .split(|byte| *byte == b'\n')
        .map(|line| line.split(|byte| *byte == b' '));
    let fields = lines.find_map(|mut fields| (fields.next() == Some(id)).then_some(fields))?;
    let mut behind = fields.skip_while(|field| *field != b"-").skip(2);
    behind.next().map(unescaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_a_mount_is_the_second_field_behind_the_dash() {
        let table = b"36 35 98:0 /a /b rw master:1 - ext3 /dev/root rw\n37 35 0:4 / /- rw - tmpfs semel\\040x rw\n38 1\n";
        assert_eq!(source_in(table, b"36").unwrap(), b"/dev/root");
        assert_eq!(source_in(table, b"37").unwrap(), b"semel x");
        assert_eq!(source_in(table, b"38"), None);
        assert_eq!(source_in(table, b"35"), None);
    }

    #[test]
    fn escapes_of_the_mount_table_are_read() {
        assert_eq!(unescaped(br"/a\040b\134c"), br"/a b\c");
        assert_eq!(unescaped(br"/a\04"), br"/a\04");
    }
}
