//! Recovery: what became of the calls that were running when the gateway died?
//!
//! The filesystem itself is the evidence. This module decides from what was seen; it does *not* look, and what
//! it plans has no new effect on any file that an agent can name: a call that was half done is taken back.

use crate::call::{Aborting, Intent};
use crate::digest::Sha256;
use crate::effect::{Before, Effect};
use crate::ids::FileId;
use serde::{Deserialize, Serialize};

/// Is what was seen of one effect of an open intent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    /// What lies at its slot in `staging/`.
    pub staged: Option<FileId>,
    /// What lies at its slot in `trash/`; of a restoration, at the slot where it was kept.
    pub trashed: Option<FileId>,
    /// What the path names now; of a move, the name that is given up.
    pub target: Option<FileId>,
    /// Of a move: what the name that is taken names now.
    pub destination: Option<FileId>,
    /// The permissions of what the path names now.
    pub mode: Option<u32>,
    /// The digest of the pre-image, in `staging/` or `trash/`, where its content was stated.
    pub kept: Option<Sha256>,
    /// Of a command: what its directory says, after a claim that it never begins.
    pub run: Option<RunSeen>,
}

/// Says what was seen of a command, once it was claimed that it never begins: it began before, or never does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunSeen {
    /// The claim holds: it never began, and never will.
    NeverBegan,
    /// It runs; a lock says so.
    Running,
    /// It ended, with a status on the disk.
    Ended,
    /// It began; nobody runs it any more, and there is no status.
    Lost,
}

/// Says in which boot the intent was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// In this one: the kernel has forgotten nothing.
    Same,
    /// In an earlier one: a power cut may have kept one side of a rename and lost the other.
    Other,
}

/// Says what is to be tidied of one effect; none of it can be named by an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tidy {
    /// Nothing.
    Nothing,
    /// What is staged is dropped.
    DropStaged,
    /// What is staged is dropped, and the second name in `trash/` of what it was to replace.
    DropBoth,
    /// The second names in `staging/` and `trash/` of what has a name in the tree are dropped.
    DropNames,
    /// The pre-image, exchanged out into `staging/`, goes to `trash/`.
    KeepPreImage,
}

/// Is what became of one open intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// All of it happened: it gets its receipt.
    Happened {
        /// The evidence, in words.
        evidence: String,
        /// What is tidied, effect by effect.
        tidy: Vec<Tidy>,
    },
    /// None of it did, or all was taken back: the key is freed, or the refusal recorded.
    NeverHappened {
        /// The evidence, in words.
        evidence: String,
        /// What is tidied, effect by effect.
        tidy: Vec<Tidy>,
    },
    /// The first effects happened, the last of them maybe by half, and are taken back, the last first; then it is looked
    /// at again.
    RollBack {
        /// The evidence, in words.
        evidence: String,
        /// How many.
        begun: usize,
    },
    /// Its command still runs: the call stays open, and gets its receipt when the command has ended.
    StillRuns,
    /// It cannot be told; nothing is touched.
    Unknown {
        /// The evidence, in words.
        evidence: String,
    },
}

/// Is what became of one effect.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    Happened(&'static str, Tidy),
    /// It began, and is not whole, or took out what it must not: it is taken back.
    Halfway(&'static str),
    Never(&'static str, Tidy),
    Runs,
    Unknown(&'static str),
}

/// Decides what became of one open intent from what was seen of each of its effects.
#[must_use]
pub fn resolve(intent: &Intent, aborting: Option<&Aborting>, seen: &[Observation], boot: Boot) -> Resolution {
    if seen.len() != intent.effects.len() {
        return unknown("not every effect was looked at");
    }
    let alone = |effect: &Effect| matches!(effect, Effect::Run { .. } | Effect::Forward { .. });
    if intent.effects.iter().any(alone) && (seen.len() > 1 || aborting.is_some()) {
        return unknown("a command, or a call of another server, is alone, and is never taken back");
    }
    // What is not known to be untouched; beyond it, names are other processes' matter.
    let open = aborting.map_or(seen.len(), |aborting| aborting.begun);
    let mut fates = Vec::with_capacity(seen.len());
    for (n, (effect, seen)) in intent.effects.iter().zip(seen).enumerate() {
        let later = intent.effects.get(n + 1..).unwrap_or_default();
        match fate(effect, seen, (boot, successor(effect, later))) {
            _ if n >= open => fates.push(Fate::Never(
                "it was known not to have happened",
                untouched(effect, seen),
            )),
            Fate::Unknown(evidence) => return unknown(evidence),
            Fate::Runs => return Resolution::StillRuns,
            known => fates.push(known),
        }
    }
    let whole = |fate: &&Fate| matches!(fate, Fate::Happened(..));
    let happened = fates.iter().take_while(whole).count();
    let halfway = matches!(fates.get(happened), Some(Fate::Halfway(_)));
    let begun = happened + usize::from(halfway);
    if !fates
        .iter()
        .skip(begun)
        .all(|fate| matches!(fate, Fate::Never(..)))
    {
        return unknown("a later effect happened, but an earlier one did not");
    }
    let tidy = fates
        .iter()
        .map(|fate| match fate {
            Fate::Happened(_, tidy) | Fate::Never(_, tidy) => *tidy,
            Fate::Halfway(_) | Fate::Runs | Fate::Unknown(_) => Tidy::Nothing,
        })
        .collect();
    let evidence = match &fates[..] {
        [] => "there was nothing to do".to_owned(),
        [Fate::Happened(why, _) | Fate::Never(why, _) | Fate::Halfway(why) | Fate::Unknown(why)] => {
            (*why).to_owned()
        }
        many => format!("{happened} of {} effects happened", many.len()),
    };
    if happened == fates.len() && aborting.is_none() {
        Resolution::Happened { evidence, tidy }
    } else if begun == 0 {
        Resolution::NeverHappened { evidence, tidy }
    } else {
        Resolution::RollBack { evidence, begun }
    }
}

/// Gives what a later effect of the same call puts under the name of this one: a move overwrites so.
fn successor<'a>(effect: &Effect, later: &'a [Effect]) -> Option<&'a FileId> {
    let at = effect.at();
    later.iter().find_map(|later| match later {
        Effect::Move { to, what, .. } if to == at => Some(&what.id),
        Effect::Install { at: to, staged, .. } if to == at => Some(staged),
        Effect::Restore { at: to, what, .. } if to == at => Some(&what.id),
        Effect::Move { .. }
        | Effect::Install { .. }
        | Effect::Restore { .. }
        | Effect::Remove { .. }
        | Effect::RemoveEmpty { .. }
        | Effect::SetMode { .. }
        | Effect::Run { .. }
        | Effect::Forward { .. } => None,
    })
}

/// Says what is tidied of an effect that is known not to have happened.
fn untouched(effect: &Effect, seen: &Observation) -> Tidy {
    match effect {
        Effect::Install { staged, before, .. } if seen.staged.as_ref() == Some(staged) => {
            // Where the filesystem renames by second names, the first of them is no beginning yet.
            match (before, &seen.trashed) {
                (Some(_), Some(_)) => Tidy::DropBoth,
                _ => Tidy::DropStaged,
            }
        }
        Effect::Move { what, .. } if seen.trashed.as_ref() == Some(&what.id) => Tidy::DropNames,
        Effect::Install { .. }
        | Effect::Remove { .. }
        | Effect::RemoveEmpty { .. }
        | Effect::Move { .. }
        | Effect::Restore { .. }
        | Effect::SetMode { .. }
        | Effect::Run { .. }
        | Effect::Forward { .. } => Tidy::Nothing,
    }
}

fn unknown(evidence: &str) -> Resolution {
    Resolution::Unknown {
        evidence: evidence.to_owned(),
    }
}

/// Decides what became of one effect.
///
/// Within one boot `staging/` and `trash/` decide wherever the effect goes through them: no agent can write there, and
/// each holds at most what the execution put there. What a name names now, an outside process may have put there. What
/// is in neither has to be seen under its name: the filesystem may have come back, in one boot, without it. Across boots,
/// the name has to agree always.
fn fate(effect: &Effect, seen: &Observation, since: (Boot, Option<&FileId>)) -> Fate {
    match effect {
        Effect::Install { staged, before, .. } => {
            let sides = (before.as_ref().map(|b| &b.id), Some(staged));
            agreed(install(staged, before.as_ref(), seen), seen, sides, since)
        }
        Effect::Remove { before, .. } => agreed(remove(before, seen), seen, (Some(&before.id), None), since),
        Effect::RemoveEmpty { id, .. } => match &seen.target {
            None => Fate::Happened("the empty directory is gone", Tidy::Nothing),
            Some(there) if there == id => Fate::Never("the empty directory is still there", Tidy::Nothing),
            Some(_) => Fate::Unknown("something else stands where the empty directory stood"),
        },
        Effect::Move { what, .. } => moved(&what.id, seen),
        Effect::Restore { what, .. } => {
            let named = seen.target.as_ref() == Some(&what.id);
            let fate = match &seen.trashed {
                None if named => Fate::Happened("it left trash for a name that was free", Tidy::Nothing),
                None => Fate::Unknown("it lies neither in trash nor in its place"),
                // Only where the filesystem renames by a second name.
                Some(there) if *there == what.id && named => {
                    Fate::Happened("it has its name again", Tidy::DropNames)
                }
                Some(there) if *there == what.id => Fate::Never("it still lies in trash", Tidy::Nothing),
                Some(_) => Fate::Unknown("trash holds another file than the one that was kept"),
            };
            agreed(fate, seen, (None, Some(&what.id)), since)
        }
        Effect::SetMode {
            id, before, after, ..
        } => match (&seen.target, seen.mode) {
            (Some(there), Some(mode)) if there == id && mode == *after => {
                Fate::Happened("it has the new permissions", Tidy::Nothing)
            }
            (Some(there), Some(mode)) if there == id && mode == *before => {
                Fate::Never("it has the old permissions", Tidy::Nothing)
            }
            _ => Fate::Unknown("another process changed the permissions, or the file"),
        },
        Effect::Run { .. } => match (seen.run, since.0) {
            (Some(RunSeen::Ended), _) => Fate::Happened("the command left its status", Tidy::Nothing),
            // The claim is on the disk before a command begins: none is proof across a power cut, too.
            (Some(RunSeen::NeverBegan), _) => {
                Fate::Never("the command never began, and never will", Tidy::Nothing)
            }
            (Some(RunSeen::Running), Boot::Same) => Fate::Runs,
            (Some(RunSeen::Running), Boot::Other) => {
                Fate::Unknown("a command of an earlier boot cannot run any more")
            }
            (Some(RunSeen::Lost), _) => {
                Fate::Unknown("the command began, and whoever ran it is gone without a status")
            }
            (None, _) => Fate::Unknown("the directory of the execution cannot be understood"),
        },
        // Whatever that server may say of itself later, it is not asked again: that could do it twice.
        Effect::Forward { .. } => Fate::Unknown(
            "the daemon ended after the call may have reached the other server, and before its answer was recorded",
        ),
    }
}

/// Says whether what came out is what was to come out.
fn as_stated(before: &Before, seen: &Observation) -> bool {
    before.stated.is_none() || before.stated == seen.kept
}

const OTHER_CAME_OUT: &str = "what came out is not what was read: another process was faster";

fn install(staged: &FileId, before: Option<&Before>, seen: &Observation) -> Fate {
    let is_old = |id: &FileId| before.is_some_and(|before| before.id == *id);
    let took_place = seen.target.as_ref() == Some(staged);
    match (&seen.staged, &seen.trashed) {
        // Where the filesystem renames by a second name, the staged file keeps its first one for a moment.
        (Some(there), None) if there == staged && before.is_none() && took_place => {
            Fate::Happened("the staged file has its name, too", Tidy::DropStaged)
        }
        (Some(there), Some(_)) if there == staged && before.is_some() && took_place => {
            Fate::Halfway("the staged file has two names, and the pre-image lies in trash")
        }
        (Some(there), Some(_)) if there == staged && before.is_some() => {
            Fate::Never("the staged file still lies in staging", Tidy::DropBoth)
        }
        (Some(there), None) if there == staged => {
            Fate::Never("the staged file still lies in staging", Tidy::DropStaged)
        }
        (Some(there), None) => match before {
            Some(before) if before.id == *there && as_stated(before, seen) => {
                Fate::Happened("the pre-image lies in staging", Tidy::KeepPreImage)
            }
            Some(_) => Fate::Halfway(OTHER_CAME_OUT),
            None => Fate::Unknown("staging holds another file than the one that was staged"),
        },
        (None, Some(there)) if is_old(there) => match before {
            Some(before) if as_stated(before, seen) => {
                Fate::Happened("the pre-image lies in trash", Tidy::Nothing)
            }
            Some(_) | None => Fate::Halfway(OTHER_CAME_OUT),
        },
        // A disk that came back without what was not yet synced, in one boot, holds neither: it has to be seen.
        (None, None) if before.is_none() && took_place => Fate::Happened(
            "the staged file left staging for a name that was free",
            Tidy::Nothing,
        ),
        _ => Fate::Unknown("staging and trash hold neither the staged file nor the pre-image"),
    }
}

fn remove(before: &Before, seen: &Observation) -> Fate {
    match &seen.trashed {
        Some(there) if *there == before.id && as_stated(before, seen) => {
            Fate::Happened("the removed file lies in trash", Tidy::Nothing)
        }
        None => Fate::Never("trash holds nothing of this execution", Tidy::Nothing),
        Some(_) => Fate::Halfway(OTHER_CAME_OUT),
    }
}

/// Decides what became of a move, by the two names alone; `staging/` and `trash/` hold second names only where the
/// filesystem renames by them.
fn moved(what: &FileId, seen: &Observation) -> Fate {
    let (here, there) = (
        seen.target.as_ref() == Some(what),
        seen.destination.as_ref() == Some(what),
    );
    let second = seen.trashed.as_ref() == Some(what);
    match &seen.staged {
        Some(taken) if taken != what => return Fate::Halfway(OTHER_CAME_OUT),
        Some(_) | None => {}
    }
    let tidy = if second || seen.staged.is_some() {
        Tidy::DropNames
    } else {
        Tidy::Nothing
    };
    match (here, there) {
        (false, true) => Fate::Happened("it lies at its destination", tidy),
        (true, false) => Fate::Never("it lies at its source", tidy),
        (true, true) if second => Fate::Halfway("it has both names, and a third in trash"),
        (true, true) => Fate::Unknown("it has both names"),
        (false, false) => Fate::Unknown("it has neither name"),
    }
}

/// Holds what staging and trash say against what the name says, where that matters.
fn agreed(
    fate: Fate,
    seen: &Observation,
    (before, after): (Option<&FileId>, Option<&FileId>),
    (boot, successor): (Boot, Option<&FileId>),
) -> Fate {
    let named = match (&fate, boot) {
        (_, Boot::Same) | (Fate::Unknown(_) | Fate::Runs, Boot::Other) => return fate,
        (Fate::Happened(..) | Fate::Halfway(_), Boot::Other) => after,
        (Fate::Never(..), Boot::Other) => before,
    };
    let succeeded =
        matches!(fate, Fate::Happened(..)) && successor.is_some() && seen.target.as_ref() == successor;
    if seen.target.as_ref() == named || succeeded {
        fate
    } else {
        Fate::Unknown("after another boot, the target disagrees with staging and trash")
    }
}

#[cfg(test)]
mod tests;
