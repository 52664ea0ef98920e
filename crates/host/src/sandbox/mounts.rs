//! Looks for mounts in what a program may write: nobody gave them to it.
//!
//! A place is shown with all that is mounted beneath it. What may be written is a volume's own; a mount in it is of
//! somebody else, who did not put it there to be written by commands, and the file tools do not enter it either.

use super::plan::trail;
use super::spec::Walls;
use crate::mount_table::unescaped;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Lists the mounts beneath the places that a program may write, but for those that it is shown by their own names.
///
/// # Errors
/// The list of mounts cannot be read: then nobody knows.
pub(super) fn strange(walls: &Walls) -> io::Result<Vec<PathBuf>> {
    let real = |place: &Path| trail(place).ok().map(|(real, _)| real);
    let writable: Vec<PathBuf> = walls.writable().filter_map(real).collect();
    let read: Vec<PathBuf> = walls.read_only().filter_map(real).collect();
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    let depth = |places: &[PathBuf], mount: &Path| {
        let above = places.iter().filter(|place| mount.starts_with(place));
        above.map(|place| place.as_os_str().len()).max()
    };
    let mut found: Vec<PathBuf> = points(&mounts)
        .filter(|mount| !writable.contains(mount) && !read.contains(mount))
        .filter(|mount| depth(&writable, mount) > depth(&read, mount))
        .collect();
    found.dedup();
    Ok(found)
}

/// Gives where each mount of a list stands, the fifth field of its line.
fn points(mounts: &[u8]) -> impl Iterator<Item = PathBuf> {
    let lines = mounts.split(|byte| *byte == b'\n');
    let fields = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    fields.map(|field| PathBuf::from(OsStr::from_bytes(&unescaped(field))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_mounts_is_read_as_the_kernel_writes_it() {
        let list = b"36 35 98:0 /mnt1 /a rw,noatime master:1 - ext3 /dev/root rw\n\
            37 35 0:4 / /a/b\\040c\\134\\012d rw - tmpfs none rw\n\
            38 35 0:4 / /\xff\\0 rw - tmpfs none rw\nshort line\n";
        let expected = [&b"/a"[..], b"/a/b c\\\nd", b"/\xff\\0"].map(OsStr::from_bytes);
        assert_eq!(
            points(list).collect::<Vec<PathBuf>>(),
            expected.map(PathBuf::from)
        );
    }
}
