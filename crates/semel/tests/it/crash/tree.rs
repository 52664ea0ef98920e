//! What stands in a tree: every path with its kind, permissions, links and bytes.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// One entry; times are left out, since they are nobody's promise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Entry {
    Directory {
        mode: u32,
    },
    /// A file with another name somewhere is not the file that it should be: so many names are part of it.
    File {
        mode: u32,
        names: u64,
        content: String,
    },
    Link {
        to: Vec<u8>,
    },
}

/// Everything below a place, itself included.
pub(crate) type Picture = BTreeMap<PathBuf, Entry>;

/// Takes a picture; empty where nothing is in the place.
pub(crate) fn picture(place: &Path) -> Picture {
    let mut all = Picture::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(path) = todo.pop() {
        // Joined with nothing, a place would end in a slash, and a file is none such.
        let at = match path.as_os_str().is_empty() {
            true => place.to_owned(),
            false => place.join(&path),
        };
        let Ok(facts) = at.symlink_metadata() else {
            assert_eq!(path, PathBuf::new(), "{} went away", at.display());
            return all;
        };
        let mode = facts.permissions().mode() & 0o7777;
        let entry = if facts.is_dir() {
            let below = std::fs::read_dir(&at).unwrap();
            todo.extend(below.map(|entry| path.join(entry.unwrap().file_name())));
            Entry::Directory { mode }
        } else if facts.is_symlink() {
            let to = std::fs::read_link(&at).unwrap().into_os_string().into_vec();
            Entry::Link { to }
        } else {
            let content = std::fs::read(&at).unwrap();
            Entry::File {
                mode,
                names: facts.nlink(),
                content: String::from_utf8_lossy(&content).into_owned(),
            }
        };
        all.insert(path, entry);
    }
    all
}

/// Gives a picture without the counts of names: a file that is halfway from one name to another is where it is.
pub(crate) fn plain(all: &Picture) -> Picture {
    let mut all = all.clone();
    for entry in all.values_mut() {
        if let Entry::File { names, .. } = entry {
            *names = 1;
        }
    }
    all
}

/// Gives the part of a picture below a path, as if taken there.
pub(crate) fn below(all: &Picture, top: &str) -> Picture {
    all.iter()
        .filter_map(|(path, entry)| Some((path.strip_prefix(top).ok()?.to_owned(), entry.clone())))
        .collect()
}

/// Takes the pictures of what an execution keeps in `trash/`, beside a tree.
pub(crate) fn kept(tree: &Path, execution: &str) -> Vec<Picture> {
    let trash = tree.parent().unwrap().join("trash");
    let mine = |n: usize| match n {
        0 => trash.join(execution),
        n => trash.join(format!("{execution}.{n}")),
    };
    let kept = (0..12).map(|n| picture(&mine(n)));
    sorted(kept.filter(|there| !there.is_empty()).collect())
}

pub(crate) fn sorted(mut pictures: Vec<Picture>) -> Vec<Picture> {
    pictures.sort();
    pictures
}

/// Puts a file down with permissions that no umask cuts.
pub(crate) fn put(place: &Path, content: &str, mode: u32) {
    std::fs::write(place, content).unwrap();
    chmod(place, mode);
}

/// Makes a directory with permissions that no umask cuts.
pub(crate) fn make(place: &Path, mode: u32) {
    std::fs::create_dir(place).unwrap();
    chmod(place, mode);
}

pub(crate) fn chmod(place: &Path, mode: u32) {
    std::fs::set_permissions(place, std::fs::Permissions::from_mode(mode)).unwrap();
}
