//! When calls arrive: at once, after a failure, late, and from a client that went away.

use super::key::seen;
use super::shape::all_of;
use super::{Bench, Case, always, delete, needs_write, write};
use crate::engine::conformance::effect::{OURS, Watched};
use crate::engine::conformance::speak::{Call, Heard, Kind, Verb};
use crate::engine::conformance::table::{Tale, Want};
use crate::engine::conformance::target::Workspace;
use crate::engine::trial::{Told, hands};
use std::collections::BTreeSet;
use std::sync::Barrier;
use std::time::Duration;

const AT_ONCE: usize = 16;

pub(super) const SIMULTANEOUS: Case = Case {
    name: "simultaneous",
    expected: "16 duplicates of one delete at once, the file made again each time it goes: one effect; the others are \
               replays or told to wait",
    unfit: always,
    play: |bench, tale| {
        let workspace = bench.open()?;
        tale.due = bench.rounds;
        let mut told = BTreeSet::new();
        for _ in 0..bench.rounds {
            bench.target.go_on()?;
            told.extend(at_once(bench, tale, &workspace)?);
        }
        tale.tell(format!("{} rounds of {AT_ONCE}: {}", bench.rounds, all_of(told)));
        Ok(())
    },
};

fn at_once(bench: &Bench<'_>, tale: &mut Tale, workspace: &Workspace) -> Told<Vec<String>> {
    let key = bench.fresh("k");
    let mut file = Watched::deleted(&workspace.files, bench.fresh("at-once"))?;
    let (name, barrier, speak) = (file.name.clone(), Barrier::new(AT_ONCE), bench.speak());
    let heard = file.during(|| {
        std::thread::scope(|scope| {
            let one = || {
                barrier.wait();
                speak.call(&delete(&name, Some(&key)), workspace)
            };
            let all: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(one)).collect();
            let joined = all
                .into_iter()
                .map(|t| t.join().map_err(|_| "a client broke".to_owned())?);
            joined.collect::<Told<Vec<_>>>()
        })
    })??;
    let firsts = heard.iter().filter(|heard| heard.kind == Kind::Done).count();
    if firsts > 1 {
        tale.wrong(format!("{firsts} of them were told that they were the first"));
    }
    if !heard.iter().any(|heard| heard.success()) {
        tale.wrong("none of them was told a success");
    }
    for heard in heard.iter().filter(|heard| heard.kind == Kind::Unclear) {
        tale.wrong(format!("one of them: {}", heard.told));
    }
    seen(tale, [&mut file])?;
    Ok(heard.into_iter().map(|heard| heard.told).collect())
}

/// How long a target is watched that may repeat something by itself.
const SETTLE: Duration = Duration::from_millis(300);

pub(super) const FAILED_THEN_RETRIED: Case = Case {
    name: "failed_then_retried",
    expected: "a delete that fails (no such file; another content), then the file is as it had to be: nothing happens \
               by itself, and a retry either is refused or is told that it was carried out now",
    unfit: always,
    play: |bench, tale| {
        let workspace = bench.open()?;
        let (key, name) = (bench.fresh("k"), bench.fresh("failed"));
        let mut file = Watched::missing(&workspace.files, name.clone());
        let call = delete(&name, Some(&key));
        retried(
            bench,
            tale,
            &workspace,
            (&call, &mut file),
            "no such file",
            |file| file.put(),
        )?;
        if bench.target.adapter.calls.conditional_delete.is_some() {
            let (key, name) = (bench.fresh("k"), bench.fresh("failed"));
            workspace
                .files
                .create_new(&name, b"another content")
                .map_err(hands)?;
            let mut file = Watched::missing(&workspace.files, name.clone());
            let call = Call {
                verb: Verb::DeleteIf(OURS),
                path: &name,
                key: Some(&key),
            };
            retried(
                bench,
                tale,
                &workspace,
                (&call, &mut file),
                "another content",
                |_| workspace.files.write(&name, OURS).map(drop).map_err(hands),
            )?;
        }
        Ok(())
    },
};

fn retried(
    bench: &Bench<'_>,
    tale: &mut Tale,
    workspace: &Workspace,
    (call, file): (&Call<'_>, &mut Watched<'_>),
    failure: &str,
    mend: impl FnOnce(&Watched<'_>) -> Told<()>,
) -> Told<()> {
    let first = bench.speak().call(call, workspace)?;
    tale.tell(format!("{failure}: {}", first.told));
    if first.kind == Kind::Unclear {
        tale.wrong(format!("{failure}: {} instead of an answer", first.told));
    }
    mend(file)?;
    // Nobody asks again yet: a target that repeats by itself shows it here.
    file.during(|| std::thread::sleep(SETTLE))?;
    if file.seen() > 0 {
        tale.harm(format!("{failure}: the call was carried out later, by itself"));
    }
    let retry = bench.speak().call_until_settled(call, workspace)?;
    let now = file.look()?;
    tale.tell(format!("then {}", retry.told));
    // A first answer that was a success is the only one that a retry may get; after a refusal it may run.
    match (first.success(), retry.kind) {
        (true, Kind::Done | Kind::Replayed | Kind::Unmarked) => {}
        (true, Kind::Refused | Kind::Unclear) => tale.wrong("the retry is told otherwise than the first"),
        (false, Kind::Done | Kind::Unmarked) => {
            tale.due += 1;
            if now == 0 {
                tale.harm("the retry is told a success, and the file is still there");
            }
        }
        (false, Kind::Refused) if now > 0 => tale.harm("the retry is refused, and the file is gone"),
        (false, Kind::Refused) => {}
        (false, Kind::Replayed) => tale.harm("the retry is told that it was carried out before"),
        (false, Kind::Unclear) => tale.wrong(format!("the retry: {}", retry.told)),
    }
    tale.effects += file.seen();
    Ok(())
}

pub(super) const LATE_RETRY: Case = Case {
    name: "late_retry",
    expected: "a write, a newer write by somebody else, and the first one again: a replay, and the newer text stays",
    unfit: needs_write,
    play: |bench, tale| {
        let (workspace, name) = (bench.open()?, bench.fresh("late"));
        let (old, new) = (bench.fresh("k"), bench.fresh("k"));
        let mut file = Watched::written(&workspace.files, name.clone(), "the old text")?;
        tale.due = 2;
        let heard = bench
            .speak()
            .call(&write(&name, &old, "the old text"), &workspace)?;
        tale.hear("first", &heard, Want::Done);
        file.look()?;
        let heard = bench
            .speak()
            .call(&write(&name, &new, "the new text"), &workspace)?;
        tale.hear("somebody else", &heard, Want::Done);
        let is_new = || {
            let now = workspace.files.read(&name).map_err(hands)?;
            Ok::<_, String>(now.is_some_and(|now| now == b"the new text"))
        };
        let newer = u32::from(is_new()?);
        let heard = bench
            .speak()
            .call(&write(&name, &old, "the old text"), &workspace)?;
        tale.hear("the first again", &heard, Want::Replayed);
        if newer == 1 && !is_new()? {
            tale.harm("the newer text is lost");
        }
        tale.effects = newer;
        seen(tale, [&mut file])
    },
};

pub(super) const DISCONNECT: Case = Case {
    name: "disconnect",
    expected: "clients that go away in the middle of a delete and right after it, and then send it again, at once and \
               later: one effect each, and a success",
    unfit: always,
    play: |bench, tale| {
        let workspace = bench.open()?;
        let mut told = BTreeSet::new();
        for _ in 0..bench.rounds {
            bench.target.go_on()?;
            for (what, away) in [
                ("half", Away::Half),
                ("whole", Away::Whole),
                ("later", Away::Later),
            ] {
                let mut file = Watched::deleted(&workspace.files, bench.fresh("away"))?;
                tale.due += 1;
                let heard = again(bench, &workspace, &mut file, away)?;
                tale.judge(what, &heard, Want::Success);
                told.insert(heard.told);
                seen(tale, [&mut file])?;
            }
        }
        tale.tell(format!("{} rounds of three: {}", bench.rounds, all_of(told)));
        Ok(())
    },
};

/// Says when a client goes away, and when it comes back.
#[derive(Clone, Copy)]
enum Away {
    /// In the middle of its body.
    Half,
    /// After its body.
    Whole,
    /// After its body; and it comes back when somebody has made the file again.
    Later,
}

fn again(bench: &Bench<'_>, workspace: &Workspace, file: &mut Watched<'_>, away: Away) -> Told<Heard> {
    let (key, name) = (bench.fresh("k"), file.name.clone());
    let (speak, call) = (bench.speak(), delete(&name, Some(&key)));
    let body = speak.body(&call, workspace)?;
    let raw = speak.raw(&call, workspace, &body)?;
    let sent = match away {
        Away::Half => raw.len() - body.len() / 2,
        Away::Whole | Away::Later => raw.len(),
    };
    speak.break_off(&raw, sent)?;
    if let Away::Later = away {
        file.look_soon()?;
    }
    file.during(|| speak.call_until_settled(&call, workspace))?
}
