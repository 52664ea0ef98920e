//! What may lie in the git directory of a linked worktree, and whether it is work that is nowhere else.
//!
//! Git knows a closed list of names there. What is not on it is taken for work, since nobody here can say that it is not.

/// Says what an entry of a git directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Nothing is lost with it, or others look at it: pointers, the index, references, messages.
    Plain,
    /// It belongs to an operation that is under way, such as a rebase.
    Operation,
    /// It holds the repositories of submodules.
    Submodules,
    /// A git works there, or left its lock.
    Lock,
    /// It names objects at the beginning of its lines, such as `ORIG_HEAD`.
    Tips,
    /// It names objects as a log of references does.
    Log,
    /// Git does not put it there.
    Unknown,
}

const OPERATIONS: &[&[u8]] = &[
    b"rebase-merge",
    b"rebase-apply",
    b"rebased-patches",
    b"sequencer",
    b"MERGE_HEAD",
    b"MERGE_AUTOSTASH",
    b"CHERRY_PICK_HEAD",
    b"REVERT_HEAD",
    b"REBASE_HEAD",
];

const PLAIN: &[&[u8]] = &[
    b"HEAD",
    b"commondir",
    b"gitdir",
    b"index",
    b"locked",
    b"config.worktree",
    b"info",
    b"info/sparse-checkout",
    b"logs",
    b"refs",
    b"COMMIT_EDITMSG",
    b"MERGE_MSG",
    b"MERGE_MODE",
    b"MERGE_RR",
    b"SQUASH_MSG",
    b"TAG_EDITMSG",
    b"NOTES_EDITMSG",
    b"EDIT_DESCRIPTION",
    b"ADD_EDIT.patch",
    b"AUTO_MERGE",
    b"fsmonitor--daemon",
    b"fsmonitor--daemon.ipc",
];

/// Says what an entry is by its path in the git directory.
///
/// # Source
/// Git, `Documentation/gitrepository-layout.adoc`, `Documentation/gitglossary-content.adoc` (pseudorefs), `path.c`
/// (what is of one worktree), `branch.c` (`remove_branch_state`).
#[must_use]
pub fn judge(path: &[u8]) -> Entry {
    let top = path.split(|b| *b == b'/').next().unwrap_or_default();
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    let below = |dir: &[u8]| top == dir && path != dir;
    let begins = |with: &[u8]| top.starts_with(with);
    if OPERATIONS.contains(&top) || begins(b"BISECT_") || begins(b"NOTES_MERGE_") {
        return Entry::Operation;
    }
    // What a killed restoration of ours leaves.
    let ours = begins(b"index.semel-") || begins(b"index.lock.semel-") || path == b"gitdir.semel";
    if ours && path == top {
        return Entry::Plain;
    }
    if top == b"modules" {
        return Entry::Submodules;
    }
    if below(b"logs") {
        return Entry::Log;
    }
    if name.ends_with(b".lock") {
        return Entry::Lock;
    }
    let own_refs: [&[u8]; 3] = [b"refs/worktree", b"refs/bisect", b"refs/rewritten"];
    let is_own_ref = own_refs.iter().any(|dir| {
        path.strip_prefix(*dir)
            .is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    });
    let backend = below(b"reftable") || top == b"reftable" || path == b"refs/heads";
    let shared_index = begins(b"sharedindex.") && path == top;
    if PLAIN.contains(&path) || is_own_ref || backend || shared_index || below(b"fsmonitor--daemon") {
        return Entry::Plain;
    }
    let upper = |b: &u8| b.is_ascii_uppercase() || matches!(b, b'_' | b'-');
    match path == top && path.iter().all(upper) {
        true => Entry::Tips,
        false => Entry::Unknown,
    }
}

/// Lists the ids that a file names, as they are written: of a log the first two fields of each line, else the first.
///
/// `None` where a line that is not empty names none, and so says something else.
#[must_use]
pub fn ids(entry: Entry, text: &[u8]) -> Option<Vec<&str>> {
    let fields = if entry == Entry::Log { 2 } else { 1 };
    let mut found = Vec::new();
    for line in text.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
        let mut words = line.split(|b| b.is_ascii_whitespace());
        for _ in 0..fields {
            let word = core::str::from_utf8(words.next()?).ok()?;
            let whole = matches!(word.len(), 40 | 64) && word.bytes().all(|b| b.is_ascii_hexdigit());
            if !whole {
                return None;
            }
            if word.bytes().any(|b| b != b'0') {
                found.push(word);
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_git_puts_there_is_known_and_everything_else_is_not() {
        let table = [
            (
                Entry::Plain,
                "HEAD index gitdir commondir locked info info/sparse-checkout config.worktree sharedindex.0a",
            ),
            (
                Entry::Plain,
                "refs refs/heads refs/worktree refs/worktree/a/b refs/bisect/bad",
            ),
            (
                Entry::Plain,
                "logs reftable reftable/tables.list COMMIT_EDITMSG AUTO_MERGE",
            ),
            (
                Entry::Plain,
                "index.semel-0a index.semel-0a.lock index.lock.semel-0a gitdir.semel",
            ),
            (Entry::Plain, "fsmonitor--daemon/cookies fsmonitor--daemon.ipc"),
            (
                Entry::Operation,
                "rebase-merge rebase-merge/done rebase-apply sequencer/todo MERGE_HEAD",
            ),
            (
                Entry::Operation,
                "BISECT_LOG REVERT_HEAD CHERRY_PICK_HEAD MERGE_AUTOSTASH REBASE_HEAD",
            ),
            (Entry::Operation, "NOTES_MERGE_REF NOTES_MERGE_WORKTREE/x"),
            (Entry::Submodules, "modules modules/x/HEAD"),
            (
                Entry::Lock,
                "HEAD.lock index.lock refs/worktree/a.lock config.worktree.lock",
            ),
            (Entry::Tips, "ORIG_HEAD FETCH_HEAD MINE"),
            (Entry::Log, "logs/HEAD logs/refs/worktree/a"),
            (
                Entry::Unknown,
                "notes.txt refs/heads/x refs/worktrees refs/x info/mine ORIG_HEAD/x",
            ),
            (Entry::Unknown, "index.bak sharedindex.0/x index.semel-0a/x"),
        ];
        for (entry, paths) in table {
            for path in paths.split(' ') {
                assert_eq!(judge(path.as_bytes()), entry, "{path}");
            }
        }
    }

    #[test]
    fn ids_are_read_or_the_file_says_something_else() {
        let (one, two, none) = ("1".repeat(40), "2".repeat(40), "0".repeat(40));
        let fetched = format!("{one}\tnot-for-merge\tbranch 'x' of y\n{two}\t\ttag\n");
        assert_eq!(ids(Entry::Tips, fetched.as_bytes()), Some(vec![&*one, &*two]));
        let log = format!("{none} {one} t <t@e> 1 +0000\tmessage\n{one} {two} t <t@e> 1 +0000\n");
        assert_eq!(ids(Entry::Log, log.as_bytes()), Some(vec![&*one, &*one, &*two]));
        assert_eq!(ids(Entry::Tips, b""), Some(vec![]));
        for other in ["ref: refs/heads/x\n", "1111\n", "words of mine"] {
            assert_eq!(ids(Entry::Tips, other.as_bytes()), None, "{other}");
        }
        assert_eq!(ids(Entry::Log, format!("{one}\n").as_bytes()), None);
    }
}
