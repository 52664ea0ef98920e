//! Deaths of the target: after its answer, and between effect and record.

use super::key::seen;
use super::shape::all_of;
use super::{Bench, Fatal, delete};
use crate::engine::conformance::effect::Watched;
use crate::engine::conformance::speak::{Kind, Speaker};
use crate::engine::conformance::table::{Tale, Want};
use crate::engine::conformance::target::Workspace;
use crate::engine::trial::Told;
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

pub(super) const AFTER_THE_ANSWER: Fatal = Fatal {
    name: "kill_after_answer",
    expected: "kill -9 as soon as the success is told, a new start, and the same delete again: replays, one effect each",
    play: |bench, tale| {
        let workspace = bench.open()?;
        let mut told = BTreeSet::new();
        for _ in 0..bench.rounds {
            bench.target.up()?;
            let key = bench.fresh("k");
            let mut file = Watched::deleted(&workspace.files, bench.fresh("killed"))?;
            let name = file.name.clone();
            tale.due += 1;
            let first = bench.speak().call(&delete(&name, Some(&key)), &workspace)?;
            bench.target.kill()?;
            tale.judge("first", &first, Want::Done);
            file.look()?;
            bench.target.up()?;
            let again = bench
                .speak()
                .call_until_settled(&delete(&name, Some(&key)), &workspace)?;
            tale.judge("after the new start", &again, Want::Replayed);
            told.insert(format!("{}, then {}", first.told, again.told));
            seen(tale, [&mut file])?;
        }
        tale.tell(format!("{} rounds: {}", bench.rounds, all_of(told)));
        Ok(())
    },
};

pub(super) const IN_THE_WINDOW: Fatal = Fatal {
    name: "kill_in_window",
    expected: "kill -9 while the delete runs, before, in and after the window between effect and record, a new start, \
               and the same delete again: one effect each, and a success that says truly whether it is a replay",
    play: |bench, tale| {
        let workspace = bench.open()?;
        at_points(bench, tale, &workspace)?;
        at_moments(bench, tale, &workspace)
    },
};

/// Kills it at every point that it knows by name.
fn at_points(bench: &mut Bench<'_>, tale: &mut Tale, workspace: &Workspace) -> Told<()> {
    let trials = bench.target.own().map_or(&[][..], |start| &start.crash_points);
    if trials.is_empty() {
        tale.tell("no point is known by name");
        return Ok(());
    }
    let mut ends = Ends::default();
    for trial in trials {
        let name = trial.join("+");
        let Some((first, later)) = trial.split_first() else {
            continue;
        };
        bench.target.up_to_crash(first)?;
        let (key, file) = (bench.fresh("k"), bench.fresh("window"));
        let mut file = Watched::deleted(&workspace.files, file)?;
        let path = file.name.clone();
        let answer = bench.speak().call(&delete(&path, Some(&key)), workspace)?;
        if answer.kind != Kind::Unclear {
            tale.wrong(format!(
                "at {name} the target did not kill itself: {}",
                answer.told
            ));
        }
        bench.target.fell()?;
        for point in later {
            bench.target.up_and_down(point)?;
        }
        ends.add(retry(bench, tale, workspace, (&mut file, &key), &name)?);
    }
    tale.tell(format!("at {} points by name: {}", trials.len(), ends.told()));
    Ok(())
}

/// Kills it at moments spread over twice the time that a call takes.
fn at_moments(bench: &mut Bench<'_>, tale: &mut Tale, workspace: &Workspace) -> Told<()> {
    bench.target.kill()?;
    bench.target.up()?;
    let whole = usual(bench, tale, workspace)?;
    let rounds = bench.rounds * 2;
    let mut ends = Ends::default();
    for round in 0..rounds {
        bench.target.up()?;
        let (key, file) = (bench.fresh("k"), bench.fresh("window"));
        let mut file = Watched::deleted(&workspace.files, file)?;
        let path = file.name.clone();
        let (adapter, host) = (bench.target.adapter, bench.target.host.clone());
        let speak = Speaker { adapter, host: &host };
        // The caller stays: one that goes away cancels what has not begun.
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| speak.call(&delete(&path, Some(&key)), workspace));
            std::thread::sleep(whole * 2 * round / rounds);
            let killed = bench.target.kill();
            drop(caller.join());
            killed
        })?;
        let what = format!("moment {} of {rounds}", round + 1);
        ends.add(retry(bench, tale, workspace, (&mut file, &key), &what)?);
    }
    tale.tell(format!(
        "at {rounds} moments over twice a call's {whole:.1?}: {}",
        ends.told()
    ));
    Ok(())
}

/// Gives the time that a call takes: the longest of three.
fn usual(bench: &Bench<'_>, tale: &mut Tale, workspace: &Workspace) -> Told<Duration> {
    let mut longest = Duration::ZERO;
    for _ in 0..3 {
        let key = bench.fresh("k");
        let mut file = Watched::deleted(&workspace.files, bench.fresh("usual"))?;
        let name = file.name.clone();
        tale.due += 1;
        let began = Instant::now();
        let heard = bench.speak().call(&delete(&name, Some(&key)), workspace)?;
        longest = longest.max(began.elapsed());
        tale.judge("an unharmed call", &heard, Want::Done);
        seen(tale, [&mut file])?;
    }
    Ok(longest)
}

/// Starts the target again, sends the call again, and says how it ended.
fn retry(
    bench: &mut Bench<'_>,
    tale: &mut Tale,
    workspace: &Workspace,
    (file, key): (&mut Watched<'_>, &str),
    what: &str,
) -> Told<String> {
    tale.due += 1;
    bench.target.up()?;
    // Somebody made the file again, after the target had its chance to see what it had done.
    let before = file.look()?;
    let path = file.name.clone();
    let heard = bench
        .speak()
        .call_until_settled(&delete(&path, Some(key)), workspace)?;
    let want = if before > 0 { Want::Replayed } else { Want::Done };
    tale.judge(&format!("{what}, then again"), &heard, want);
    if file.look()? == 0 && before == 0 && heard.success() {
        tale.harm(format!("{what}: a success was told, and the file is still there"));
    }
    seen(tale, [file])?;
    Ok(match (before, file.seen()) {
        (0, 1) => format!("not yet, then {}", heard.told),
        (0, 0) => format!("never ({})", heard.told),
        (_, 1) => format!("happened, then {}", heard.told),
        (_, many) => format!("{many} effects ({})", heard.told),
    })
}

/// Counts how trials ended.
#[derive(Default)]
struct Ends(BTreeMap<String, u32>);

impl Ends {
    fn add(&mut self, end: String) {
        *self.0.entry(end).or_default() += 1;
    }

    fn told(&self) -> String {
        let ends = self.0.iter().map(|(end, times)| format!("{times} x {end}"));
        ends.collect::<Vec<_>>().join(", ")
    }
}
