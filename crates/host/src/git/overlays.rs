//! Overlays that show a worktree, or its git directory, a second time: what works in them works on our files, and neither
//! inode nor device tells.
//!
//! A layer is known by the options of its mount alone, as whoever mounted it spelled it. Where a spelling leads nowhere
//! from here, nobody can say whose it is. It only looks.

use super::place::{LOOK, Lies, Places};
use rustix::fs::{Mode, OFlags, ResolveFlags, makedev, openat2, stat};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The overlays that were looked at.
pub(super) struct Overlays {
    namespaces: BTreeSet<(u64, u64)>,
    /// Those whose every layer lies elsewhere, by device.
    apart: BTreeSet<u64>,
}

/// One overlay of a mount table.
#[derive(Debug, PartialEq, Eq)]
struct Overlay {
    device: u64,
    point: PathBuf,
    layers: Vec<PathBuf>,
}

impl Overlays {
    pub(super) fn new() -> Self {
        Self {
            namespaces: BTreeSet::new(),
            apart: BTreeSet::new(),
        }
    }

    /// Looks at the overlays that a process sees, once for all that share its mounts; names one that may show what is
    /// ours. A process that may not be looked at is none of this module's: it is tied for that alone.
    pub(super) fn look(&mut self, places: &mut Places, process: &str) -> rustix::io::Result<Option<PathBuf>> {
        let space = match stat(format!("/proc/{process}/ns/mnt")) {
            Ok(space) => (space.st_dev, space.st_ino),
            Err(Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM) => return Ok(None),
            Err(e) => return Err(e),
        };
        if self.namespaces.contains(&space) {
            return Ok(None);
        }
        let table = match std::fs::read(format!("/proc/{process}/mountinfo")) {
            Ok(table) => table,
            Err(e) => match Errno::from_io_error(&e) {
                // The next process with these mounts is asked instead.
                Some(Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM | Errno::INVAL) => {
                    return Ok(None);
                }
                other => return Err(other.unwrap_or(Errno::IO)),
            },
        };
        self.namespaces.insert(space);
        for overlay in table.split(|b| *b == b'\n').filter_map(overlay) {
            // No layer of an overlay lies in the overlay itself.
            if self.apart.contains(&overlay.device) || places.all_on(overlay.device) {
                continue;
            }
            let apart = |layer: &PathBuf| is_apart(places, process, layer);
            if !overlay.layers.iter().all(apart) {
                return Ok(Some(overlay.point));
            }
            self.apart.insert(overlay.device);
        }
        Ok(None)
    }
}

/// Says whether a layer surely is no part of ours: by our own view, and by that of a process that sees the overlay.
fn is_apart(places: &mut Places, process: &str, layer: &Path) -> bool {
    let roots: &[&str] = if process == "self" {
        &["self"]
    } else {
        &["self", process]
    };
    let mut found = 0;
    for process in roots {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(root) = rustix::fs::open(format!("/proc/{process}/root"), flags, Mode::empty()) else {
            continue;
        };
        match openat2(&root, layer, LOOK, Mode::empty(), ResolveFlags::IN_ROOT) {
            Ok(dir) if places.overlaps(&dir, process) == Lies::Outside => found += 1,
            Ok(_) => return false,
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(_) => return false,
        }
    }
    layer.is_absolute() && found > 0
}

/// Reads a line of a mount table; `None` for what is no overlay.
fn overlay(line: &[u8]) -> Option<Overlay> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let dash = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    let [kind, _, options] = fields.get(dash + 1..)? else {
        return None;
    };
    if *kind != b"overlay" {
        return None;
    }
    let (major, minor) = core::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
    let options = super::place::unescaped(options);
    Some(Overlay {
        device: makedev(major.parse().ok()?, minor.parse().ok()?),
        point: path(&super::place::unescaped(fields.get(4)?)),
        layers: layers(&options),
    })
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// Gives the directories that options name.
fn layers(options: &[u8]) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for option in split(options, b',') {
        let mut parts = option.splitn(2, |b| *b == b'=');
        let (Some(key), Some(value)) = (parts.next(), parts.next()) else {
            continue;
        };
        match key {
            b"lowerdir" => all.extend(split(value, b':').iter().map(|part| plain(part))),
            b"upperdir" | b"workdir" | b"lowerdir+" | b"datadir+" => all.push(plain(value)),
            _ => {}
        }
    }
    all.retain(|layer| !layer.as_os_str().is_empty());
    all
}

/// Splits where a separator has no backslash before it.
fn split(text: &[u8], separator: u8) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let (mut from, mut at) = (0, 0);
    while at < text.len() {
        if text[at] == b'\\' {
            at += 1;
        } else if text[at] == separator {
            parts.push(&text[from..at]);
            from = at + 1;
        }
        at += 1;
    }
    parts.push(text.get(from..).unwrap_or_default());
    parts
}

fn plain(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        let escaped = if *byte == b'\\' { rest.next() } else { None };
        bytes.push(*escaped.unwrap_or(byte));
    }
    path(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_read_as_the_kernel_writes_them() {
        let line = br"60 29 0:52 / /m\040m rw,relatime shared:1 master:2 - overlay over rw,lowerdir=/a\040b:/c\134:d::/e\134,f,upperdir=/u,workdir=/w,xino=off";
        let read = overlay(line).unwrap();
        assert_eq!((read.device, read.point), (makedev(0, 52), PathBuf::from("/m m")));
        let expected = ["/a b", "/c:d", "/e,f", "/u", "/w"].map(PathBuf::from);
        assert_eq!(read.layers, expected);
        let line = br"60 29 0:52 / /m rw - overlay none ro,lowerdir+=/a,datadir+=/b";
        assert_eq!(overlay(line).unwrap().layers, ["/a", "/b"].map(PathBuf::from));
        assert_eq!(
            overlay(br"61 29 0:53 / /t rw - tmpfs overlay rw,upperdir=/u"),
            None
        );
        assert_eq!(overlay(b""), None);
    }
}
