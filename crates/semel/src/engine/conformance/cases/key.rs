//! What a key means: the same call again, and other calls under it.

use super::{Case, always, delete, needs_write, write};
use crate::engine::conformance::effect::Watched;
use crate::engine::conformance::table::{Tale, Want};
use crate::engine::trial::{Told, hands};

pub(super) const REPLAY: Case = Case {
    name: "replay",
    expected: "a delete, sent three times: one effect, then replays; the file that somebody made again meanwhile stays",
    unfit: always,
    play: |bench, tale| {
        let (workspace, key) = (bench.open()?, bench.fresh("k"));
        let mut file = Watched::deleted(&workspace.files, bench.fresh("replay"))?;
        tale.due = 1;
        bench.delete(tale, &workspace, &mut file, &key)?;
        for _ in 0..2 {
            let heard = bench.speak().call(&delete(&file.name, Some(&key)), &workspace)?;
            tale.hear("again", &heard, Want::Replayed);
            file.look()?;
        }
        tale.effects = file.seen();
        Ok(())
    },
};

pub(super) const OTHER_BODY: Case = Case {
    name: "same_key_other_body",
    expected: "a write under a key that belongs to another text: refused, and the first text stays",
    unfit: needs_write,
    play: |bench, tale| {
        let (workspace, key, name) = (bench.open()?, bench.fresh("k"), bench.fresh("other-body"));
        let mut first = Watched::written(&workspace.files, name.clone(), "the first")?;
        tale.due = 1;
        let heard = bench.speak().call(&write(&name, &key, "the first"), &workspace)?;
        tale.hear("first", &heard, Want::Done);
        first.look()?;
        let heard = bench.speak().call(&write(&name, &key, "another"), &workspace)?;
        tale.hear("other text", &heard, Want::Refused);
        first.look()?;
        let now = workspace.files.read(&name).map_err(hands)?;
        let second = u32::from(now.is_some_and(|now| now == b"another"));
        tale.effects = first.seen() + second;
        Ok(())
    },
};

pub(super) const OTHER_PATH: Case = Case {
    name: "same_key_other_path",
    expected: "a delete under a key that belongs to another file: refused, and the other file stays",
    unfit: always,
    play: |bench, tale| {
        let (workspace, key) = (bench.open()?, bench.fresh("k"));
        let mut file = Watched::deleted(&workspace.files, bench.fresh("path"))?;
        let mut other = Watched::deleted(&workspace.files, bench.fresh("path"))?;
        tale.due = 1;
        bench.delete(tale, &workspace, &mut file, &key)?;
        let heard = bench.speak().call(&delete(&other.name, Some(&key)), &workspace)?;
        tale.hear("other path", &heard, Want::Refused);
        seen(tale, [&mut file, &mut other])
    },
};

pub(super) const TWO_KEYS: Case = Case {
    name: "two_keys_same_body",
    expected: "the same delete under two keys, the file made again between them: two calls, two effects",
    unfit: always,
    play: |bench, tale| {
        let workspace = bench.open()?;
        let mut file = Watched::deleted(&workspace.files, bench.fresh("two-keys"))?;
        tale.due = 2;
        for _ in 0..2 {
            bench.delete(tale, &workspace, &mut file, &bench.fresh("k"))?;
        }
        seen(tale, [&mut file])
    },
};

/// Looks a last time, and counts what was seen in all.
pub(super) fn seen<const N: usize>(tale: &mut Tale, files: [&mut Watched<'_>; N]) -> Told<()> {
    for file in files {
        file.look()?;
        tale.effects += file.seen();
    }
    Ok(())
}
