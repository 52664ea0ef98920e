//! Whose a call is: a key of another workspace, and a workspace that is somebody else's by now.

use super::key::seen;
use super::{Bench, Case, always, delete};
use crate::engine::conformance::effect::Watched;
use crate::engine::conformance::table::{Tale, Want};
use crate::engine::trial::{Told, hands};
use semel_host::scratch::Scratch;

pub(super) const OTHER_WORKSPACE: Case = Case {
    name: "other_workspace",
    expected: "the same delete under the same key in two workspaces: two calls, two effects; a key is of its workspace",
    unfit: |bench| {
        let one = bench.target.adapter.workspace.open.is_none();
        one.then(|| "the adapter opens no workspaces; there is one".to_owned())
    },
    play: |bench, tale| {
        let (key, name) = (bench.fresh("k"), bench.fresh("shared"));
        tale.due = 2;
        for _ in 0..2 {
            let workspace = bench.open()?;
            let mut file = Watched::deleted(&workspace.files, name.clone())?;
            bench.delete(tale, &workspace, &mut file, &key)?;
            seen(tale, [&mut file])?;
        }
        Ok(())
    },
};

pub(super) const RECYCLED: Case = Case {
    name: "recycled_workspace",
    expected: "a call of a workspace that has ended, sent again when the next one has a file of that name: refused, \
               under the old key, under a new one, and with an empty body",
    unfit: |bench| match (&bench.target.adapter.workspace.end, bench.target.own()) {
        (Some(_), _) => None,
        (None, None) => {
            Some("the adapter ends no workspace, and the target's directory is not ours".to_owned())
        }
        (None, Some(_)) => always(bench),
    },
    play: |bench, tale| match bench.target.adapter.workspace.end {
        Some(_) => ended(bench, tale),
        None => moved_away(bench, tale),
    },
};

/// Ends the workspace by its command, and opens the next one of the same job.
fn ended(bench: &Bench<'_>, tale: &mut Tale) -> Told<()> {
    let (job, name, key) = (bench.fresh("recycled"), bench.fresh("next"), bench.fresh("k"));
    let old = bench.target.open(&job)?;
    let mut file = Watched::deleted(&old.files, name.clone())?;
    tale.due = 1;
    bench.delete(tale, &old, &mut file, &key)?;
    bench.target.end(&old)?;
    let new = bench.target.open(&job)?;
    // Where both have one directory, the old file is still there.
    let mut next = match new.files.exists(&name).map_err(hands)? {
        true => Watched::missing(&new.files, name.clone()),
        false => Watched::deleted(&new.files, name.clone())?,
    };
    let fresh = bench.fresh("k");
    for (what, key) in [("the old call", &key), ("a new key", &fresh)] {
        let heard = bench.speak().call(&delete(&name, Some(key)), &old)?;
        tale.hear(what, &heard, Want::Refused);
        next.look()?;
    }
    let heard = bench.speak().with_body(&delete(&name, Some(&key)), &old, "{}")?;
    tale.hear("an empty body", &heard, Want::NothingAsked);
    seen(tale, [&mut file])?;
    seen(tale, [&mut next])
}

/// Puts another directory where the old one was, as a pool of workspaces does. A target that knows no workspaces can
/// tell nothing of a new key, so only the old call is sent again.
fn moved_away(bench: &Bench<'_>, tale: &mut Tale) -> Told<()> {
    let (name, key) = (bench.fresh("next"), bench.fresh("k"));
    let workspace = bench.open()?;
    let mut file = Watched::deleted(&workspace.files, name.clone())?;
    tale.due = 1;
    bench.delete(tale, &workspace, &mut file, &key)?;
    let place = workspace.files.path().to_owned();
    let scratch = &bench.target.stage.scratch;
    scratch.rename(&place, bench.fresh("recycled")).map_err(hands)?;
    scratch.directory(&place).map_err(hands)?;
    let files = Scratch::lent(&place).map_err(hands)?;
    let mut next = Watched::deleted(&files, name.clone())?;
    let heard = bench.speak().call(&delete(&name, Some(&key)), &workspace)?;
    tale.hear("the old call", &heard, Want::Refused);
    next.look()?;
    let heard = bench
        .speak()
        .with_body(&delete(&name, Some(&key)), &workspace, "{}")?;
    tale.hear("an empty body", &heard, Want::NothingAsked);
    tale.effects = file.seen();
    seen(tale, [&mut next])
}
