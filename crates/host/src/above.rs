//! Looks at the directories above a tree for what tools read there unasked.

use semel_core::surround::ABOVE;
use std::path::{Path, PathBuf};

/// Lists what lies above a tree and would be read by a tool in it, the nearest first; what cannot be looked at is listed,
/// too.
#[must_use]
pub fn found(tree: &Path) -> Vec<PathBuf> {
    let above = tree.ancestors().skip(1);
    above
        .flat_map(|directory| ABOVE.iter().map(move |name| directory.join(name)))
        .filter(|place| match place.symlink_metadata() {
            Ok(_) => true,
            Err(error) => !matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ),
        })
        .collect()
}

/// Says whether this user may write a file, or make something in a directory.
#[must_use]
pub fn may_write(place: &Path) -> bool {
    rustix::fs::access(place, rustix::fs::Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_above_is_found_and_what_lies_within_is_not() {
        let top = tempfile::tempdir().unwrap();
        let tree = top.path().join("state/volumes/j/g/vol/tree");
        std::fs::create_dir_all(tree.join(".cargo")).unwrap();
        std::fs::write(tree.join(".cargo/config.toml"), "").unwrap();
        std::fs::write(tree.join("conftest.py"), "").unwrap();
        let mine = |tree: &Path| {
            let mut found = found(tree);
            found.retain(|place| place.starts_with(top.path()));
            found
        };
        assert_eq!(mine(&tree), Vec::<PathBuf>::new());
        let cargo = top.path().join(".cargo/config.toml");
        std::fs::create_dir_all(top.path().join(".cargo")).unwrap();
        std::fs::write(&cargo, "").unwrap();
        let link = top.path().join("state/volumes/conftest.py");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert_eq!(mine(&tree), [link, cargo]);
    }
}
