//! The cases: what is done, what has to come of it, and against which targets it can be played.
//!
//! Each uses a workspace and files of its own. What it sees goes into its tale; it judges nothing by the clock.

mod arrival;
mod key;
mod kills;
mod shape;
mod workspace;

use super::effect::Watched;
use super::speak::{Call, Speaker, Verb};
use super::table::{Tale, Want};
use super::target::{Target, Workspace};
use crate::engine::trial::Told;

/// Is the bench at which cases are played.
pub(super) struct Bench<'a> {
    /// The target.
    pub(super) target: Target<'a>,
    /// How often a case is played that chance has a hand in.
    pub(super) rounds: u32,
    /// A name of this run, since a target may remember the keys of earlier ones.
    pub(super) run: String,
}

/// Is one case.
pub(super) struct Case {
    /// Its name.
    pub(super) name: &'static str,
    /// What has to happen.
    pub(super) expected: &'static str,
    /// Why it cannot be played against a target, where it cannot.
    pub(super) unfit: fn(&Bench<'_>) -> Option<String>,
    /// Plays it.
    pub(super) play: fn(&Bench<'_>, &mut Tale) -> Told<()>,
}

/// Is one case that kills the target.
pub(super) struct Fatal {
    /// Its name.
    pub(super) name: &'static str,
    /// What has to happen.
    pub(super) expected: &'static str,
    /// Plays it.
    pub(super) play: fn(&mut Bench<'_>, &mut Tale) -> Told<()>,
}

/// Lists the cases that leave the target alive, in order.
pub(super) const CASES: &[&Case] = &[
    &key::REPLAY,
    &key::OTHER_BODY,
    &key::OTHER_PATH,
    &key::TWO_KEYS,
    &shape::EMPTY_BODY,
    &shape::PROBES,
    &shape::MISSING_KEY,
    &shape::RESPELT,
    &shape::DUPLICATE_MEMBERS,
    &arrival::SIMULTANEOUS,
    &arrival::FAILED_THEN_RETRIED,
    &arrival::LATE_RETRY,
    &arrival::DISCONNECT,
    &workspace::OTHER_WORKSPACE,
];

/// Lists the cases that kill it.
pub(super) const FATAL: &[&Fatal] = &[&kills::AFTER_THE_ANSWER, &kills::IN_THE_WINDOW];

/// Is the last case: it takes the workspace away.
pub(super) const LAST: &Case = &workspace::RECYCLED;

fn always(_: &Bench<'_>) -> Option<String> {
    None
}

fn needs_write(bench: &Bench<'_>) -> Option<String> {
    let missing = bench.target.adapter.calls.write.is_none();
    missing.then(|| "the adapter has no calls.write".to_owned())
}

impl Bench<'_> {
    /// Gives what speaks to the target.
    pub(super) fn speak(&self) -> Speaker<'_> {
        Speaker {
            adapter: self.target.adapter,
            host: &self.target.host,
        }
    }

    /// Gives a name that no other case uses.
    pub(super) fn fresh(&self, kind: &str) -> String {
        format!("{kind}-{}-{}", self.run, self.target.stage.unique())
    }

    /// Opens a workspace.
    pub(super) fn open(&self) -> Told<Workspace> {
        self.target.open(&self.fresh("conformance"))
    }

    /// Deletes a file for the first time, and looks: a success that left the file is a lie.
    fn delete(&self, tale: &mut Tale, workspace: &Workspace, file: &mut Watched<'_>, key: &str) -> Told<()> {
        let heard = self.speak().call(&delete(&file.name, Some(key)), workspace)?;
        tale.hear("first", &heard, Want::Done);
        if file.look()? == 0 && heard.success() {
            tale.harm("a success was told, and the file is still there");
        }
        Ok(())
    }
}

/// Makes the call that deletes a file.
fn delete<'a>(path: &'a str, key: Option<&'a str>) -> Call<'a> {
    Call {
        verb: Verb::Delete,
        path,
        key,
    }
}

/// Makes the call that writes a file.
fn write<'a>(path: &'a str, key: &'a str, content: &'a str) -> Call<'a> {
    Call {
        verb: Verb::Write(content),
        path,
        key: Some(key),
    }
}
