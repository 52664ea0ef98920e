//! Commits and other objects that would be lost with a worktree, since nothing else names or reaches them. Git sees the
//! objects alone; what references name is handed to it.

use super::look::NAMED;
use super::refs::Refs;
use super::work::{Tips, refused};
use crate::error::Result;
use crate::git::repository::Repository;
use semel_core::git_tree::ObjectId;
use semel_core::{Code, Refusal};
use std::collections::BTreeSet;

/// Refuses commits and other objects that only this worktree names; gives the commit that HEAD names.
///
/// # Errors
/// `precondition_failed`, reason `unreachable_commits`; `git_failed`, `object_missing`.
pub(super) fn refuse_unreachable(
    repo: &Repository,
    made: &ObjectId,
    refs: &Refs,
    mut tips: Tips,
) -> Result<Option<ObjectId>> {
    tips.extend(refs.own.iter().map(|(id, by)| (id.clone(), by.clone())));
    tips.extend(refs.head.map(|id| (id.to_string(), "HEAD".to_owned())));
    let (mut commits, mut others) = (Tips::new(), Tips::new());
    let asked: Vec<&String> = tips.keys().collect();
    for (id, kind) in asked.iter().zip(kinds(repo, &asked)?) {
        let by = tips.get(*id).cloned().unwrap_or_default();
        match kind.as_deref() {
            // What is not there cannot be lost.
            None => None,
            Some("commit") => commits.insert((*id).clone(), by),
            Some(_) => others.insert((*id).clone(), by),
        };
    }
    let beyond = beyond(repo, made, refs, &commits)?;
    if !beyond.is_empty() {
        let by: BTreeSet<&String> = commits
            .iter()
            .filter(|(id, _)| beyond.contains(id))
            .map(|(_, by)| by)
            .collect();
        let by = by.into_iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        let why = format!("the worktree holds commits that no branch or tag reaches: of {by}");
        return Err(refused(&why, "unreachable_commits", beyond));
    }
    others.retain(|id, _| ObjectId::parse(id).map_or(true, |id| !refs.shared.contains(&id)));
    if !others.is_empty() {
        let names = others.iter().map(|(id, by)| format!("{id} ({by})")).collect();
        let why = "the worktree names objects that no branch or tag names";
        return Err(refused(why, "unreachable_commits", names));
    }
    Ok(refs.head.filter(|id| commits.contains_key(&id.to_string())))
}

/// Lists commits, up to some, that these reach and nothing else does.
fn beyond(repo: &Repository, made: &ObjectId, refs: &Refs, commits: &Tips) -> Result<Vec<String>> {
    if commits.is_empty() {
        return Ok(Vec::new());
    }
    let mut asked: Vec<u8> = Vec::new();
    for id in commits.keys() {
        asked.extend([id.as_bytes(), b"\n"].concat());
    }
    for id in refs.shared.iter().chain([made]) {
        asked.extend(format!("^{id}\n").into_bytes());
    }
    let most = format!("--max-count={NAMED}");
    // A reference whose object is gone keeps nothing, as everywhere in git.
    let call = repo.call(["rev-list", &most, "--ignore-missing", "--stdin"]);
    let said = repo.run(call.stdin(asked))?;
    Ok(lines(&said).collect())
}

/// Asks of what type each object is; `None` where it is not there.
fn kinds(repo: &Repository, ids: &[&String]) -> Result<Vec<Option<String>>> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let asked = ids
        .iter()
        .flat_map(|id| [id.as_bytes(), b"\n"].concat())
        .collect();
    let said = repo.batch(repo.call(["cat-file", "--batch-check"]).stdin(asked))?;
    let answers: Vec<_> = lines(&said)
        .map(|line| {
            let mut words = line.split(' ');
            let (_, kind, size) = (words.next()?, words.next()?, words.next()?);
            size.parse::<u64>().is_ok().then(|| kind.to_owned())
        })
        .collect();
    if answers.len() == ids.len() {
        return Ok(answers);
    }
    let why = "git answered another number of lines than were asked";
    Err(Refusal::new(Code::GitFailed, why).into())
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = String> {
    let whole = bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    whole.map(|line| String::from_utf8_lossy(line).into_owned())
}
