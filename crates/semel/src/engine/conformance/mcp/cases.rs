//! The cases: what a client of a server of files does where something breaks on the way, and what has to come of it.

use super::server::{Heard, Started};
use super::tools::Tools;
use super::{Tale, Told};
use crate::engine::trial::hands;
use semel_host::scratch::Scratch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Is what the cases work with.
pub(super) struct Bench<'a, 's> {
    pub(super) started: &'a mut Started<'s>,
    pub(super) tools: &'a Tools,
    /// Where the server's files lie.
    pub(super) files: &'a Scratch,
    /// A place that is none of the server's.
    pub(super) outside: Scratch,
    pub(super) rounds: u32,
    pub(super) numbers: u32,
}

/// Is one case.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) expected: &'static str,
    pub(super) unfit: fn(&Bench<'_, '_>) -> Option<String>,
    pub(super) play: fn(&mut Bench<'_, '_>, &mut Tale) -> Told<()>,
}

/// Lists them, in order.
pub(super) const CASES: &[Case] = &[
    Case {
        name: "lost_answer",
        expected: "an edit whose answer nobody read, sent again by the next life of the client: one effect, and a success",
        unfit: edits,
        play: lost_answer,
    },
    Case {
        name: "same_id",
        expected: "an edit sent twice at once under one id: one effect",
        unfit: edits,
        play: same_id,
    },
    Case {
        name: "lost_edit",
        expected: "16 edits of 16 lines at once: every one is done, and none is lost",
        unfit: edits,
        play: lost_edit,
    },
    Case {
        name: "kill_then_retry",
        expected: "kill -9 between the effect and its answer, then the same edit again: one effect, and a success",
        unfit: kills,
        play: kill_then_retry,
    },
    Case {
        name: "kill_in_write",
        expected: "kill -9 in a write of 6 MB: the old content or the new one, whole",
        unfit: kills_alone,
        play: kill_in_write,
    },
    Case {
        name: "swap_race",
        expected: "a directory that somebody exchanges with a link out of the root: nothing is written or read outside",
        unfit: |_| None,
        play: swap_race,
    },
];

const NO_EDIT: &str = "it has no tool that replaces text in a file";
const NOT_OURS: &str = "the server runs already and is not ours to kill; give a command";

fn edits(bench: &Bench<'_, '_>) -> Option<String> {
    (!bench.tools.edits()).then(|| NO_EDIT.to_owned())
}

fn kills_alone(bench: &Bench<'_, '_>) -> Option<String> {
    (!bench.started.is_ours()).then(|| NOT_OURS.to_owned())
}

fn kills(bench: &Bench<'_, '_>) -> Option<String> {
    edits(bench).or_else(|| kills_alone(bench))
}

/// What an edit that is done once more adds once more.
const MARK: u8 = b'+';

impl Bench<'_, '_> {
    fn fresh(&mut self, what: &str) -> String {
        self.numbers += 1;
        format!("{what}-{}.txt", self.numbers)
    }

    /// Makes a file whose edits can be counted.
    fn countable(&mut self) -> Told<String> {
        let name = self.fresh("edited");
        self.files.write(&name, "one x two\n").map_err(hands)?;
        Ok(name)
    }

    fn count(&self, name: &str) -> Told<u32> {
        let bytes = self.files.read(name).map_err(hands)?.unwrap_or_default();
        let marks = bytes.iter().filter(|b| **b == MARK).count();
        u32::try_from(marks).map_err(|e| e.to_string())
    }

    /// Waits until the effect shows on the disk.
    fn shows(&self, name: &str) -> Told<()> {
        let since = Instant::now();
        while self.count(name)? == 0 {
            if since.elapsed() > Duration::from_secs(30) {
                return Err("the effect does not show".to_owned());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Counts the effects of a call once nothing more comes of it.
    fn settled(&self, name: &str) -> Told<u32> {
        let mut count = self.count(name)?;
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(20));
            count = count.max(self.count(name)?);
        }
        Ok(count)
    }
}

fn lost_answer(bench: &mut Bench<'_, '_>, tale: &mut Tale) -> Told<()> {
    let mut done = 0;
    for _ in 0..bench.rounds {
        let name = bench.countable()?;
        let call = bench.tools.edit(&name, "x", "x+")?;
        let mut server = bench.started.start()?;
        server.begin_unheard(&call)?;
        bench.shows(&name)?;
        server.leave()?;
        let mut server = bench.started.start()?;
        let heard = server.call(&call)?;
        heard.ought_to_be_done("sent again", tale);
        done += u32::from(heard.done);
        tale.effects += bench.settled(&name)?;
        tale.due += 1;
    }
    tale.tell(format!("{} rounds, {done} told that it is done", bench.rounds));
    Ok(())
}

fn same_id(bench: &mut Bench<'_, '_>, tale: &mut Tale) -> Told<()> {
    let mut answers = 0;
    let mut server = bench.started.start()?;
    for _ in 0..bench.rounds {
        let name = bench.countable()?;
        let call = bench.tools.edit(&name, "x", "x+")?;
        let (files, over) = (bench.files, AtomicBool::new(false));
        let (heard, replaced) = std::thread::scope(|scope| {
            let watching = scope.spawn(|| replacements(files, &name, &over));
            let mut twice = || -> Told<Heard> {
                let id = server.begin(&call)?;
                server.begin_again(id, &call)?;
                let heard = server.heard(id)?;
                answers += 1 + u32::from(server.wait(id, Duration::from_secs(2)).is_ok());
                Ok(heard)
            };
            let heard = twice();
            over.store(true, Ordering::Relaxed);
            (heard, watching.join().unwrap_or_default())
        });
        heard?.ought_to_be_done("the first answer", tale);
        tale.effects += bench.settled(&name)?.max(replaced);
        tale.due += 1;
    }
    tale.tell(format!("{} rounds, {answers} answers", bench.rounds));
    Ok(())
}

/// Counts how often another file takes a name: two effects that overwrite each other show so, where each makes a new file.
fn replacements(files: &Scratch, name: &str, over: &AtomicBool) -> u32 {
    let (mut last, mut seen) = (files.identity(name).ok().flatten(), 0);
    while !over.load(Ordering::Relaxed) {
        let now = files.identity(name).ok().flatten();
        if now.is_some() && now != last {
            seen += 1;
            last = now;
        }
    }
    seen
}

fn lost_edit(bench: &mut Bench<'_, '_>, tale: &mut Tale) -> Told<()> {
    const LINES: usize = 16;
    let (mut told, mut lost) = (0, 0);
    let (mut refused, mut first) = (0, None);
    let mut server = bench.started.start()?;
    for _ in 0..bench.rounds {
        let name = bench.fresh("lines");
        let text: String = (0..LINES).map(|n| format!("line {n:02} is old\n")).collect();
        bench.files.write(&name, &text).map_err(hands)?;
        let mut ids = Vec::new();
        for n in 0..LINES {
            let (old, new) = (format!("line {n:02} is old"), format!("line {n:02} is new"));
            ids.push(server.begin(&bench.tools.edit(&name, &old, &new)?)?);
        }
        let mut done = Vec::new();
        for (n, id) in ids.into_iter().enumerate() {
            let heard = server.heard(id)?;
            done.extend(heard.done.then_some(n));
            if !heard.done {
                refused += 1;
                first = first.or(Some(heard.told));
            }
        }
        let after = bench.files.read(&name).map_err(hands)?.unwrap_or_default();
        let after = String::from_utf8_lossy(&after).into_owned();
        let there = done
            .iter()
            .filter(|n| after.contains(&format!("line {n:02} is new")))
            .count();
        told += done.len();
        lost += done.len() - there;
        tale.effects += u32::try_from(there).unwrap_or(u32::MAX);
        tale.due += u32::try_from(LINES).unwrap_or(u32::MAX);
    }
    tale.tell(format!(
        "{told} edits were told to be done, {lost} of them are lost"
    ));
    if let Some(first) = first {
        tale.wrong(format!(
            "{refused} edits that nothing stands in the way of: {first}"
        ));
    }
    if lost > 0 {
        tale.harm(format!(
            "{lost} of {told} edits that were told to be done are lost"
        ));
    }
    Ok(())
}

fn kill_then_retry(bench: &mut Bench<'_, '_>, tale: &mut Tale) -> Told<()> {
    let mut done = 0;
    for _ in 0..bench.rounds {
        let name = bench.countable()?;
        let call = bench.tools.edit(&name, "x", "x+")?;
        let mut server = bench.started.start()?;
        server.begin_unheard(&call)?;
        bench.shows(&name)?;
        bench.started.kill(server);
        let mut server = bench.started.start()?;
        let heard = server.call(&call)?;
        heard.ought_to_be_done("sent again", tale);
        done += u32::from(heard.done);
        tale.effects += bench.settled(&name)?;
        tale.due += 1;
    }
    tale.tell(format!("{} kills, {done} told that it is done", bench.rounds));
    Ok(())
}

fn kill_in_write(bench: &mut Bench<'_, '_>, tale: &mut Tale) -> Told<()> {
    const LONG: usize = 6 << 20;
    let (old, new) = ("o".repeat(LONG), "n".repeat(LONG));
    // How long it takes where nothing kills it, so that the kills are spread over it.
    let name = bench.fresh("long");
    bench.files.write(&name, &old).map_err(hands)?;
    let mut server = bench.started.start()?;
    let id = server.begin(&bench.tools.write(&name, &new))?;
    // It has read nearly all of it by now: what follows is its work.
    let since = Instant::now();
    let heard = server.heard(id)?;
    if !heard.done {
        return Err(format!("a write of 6 MB: {}", heard.told));
    }
    let took = since.elapsed();
    drop(server);
    let trials = bench.rounds.saturating_mul(2);
    let (mut torn, mut whole) = (0, 0);
    for n in 0..trials {
        let name = bench.fresh("long");
        let is_new = n % 2 == 1;
        if !is_new {
            bench.files.write(&name, &old).map_err(hands)?;
        }
        let mut server = bench.started.start()?;
        server.begin_unheard(&bench.tools.write(&name, &new))?;
        std::thread::sleep(took * (n + 1) / (trials + 1));
        bench.started.kill(server);
        let fits = match bench.files.read(&name).map_err(hands)? {
            None => is_new,
            Some(bytes) => bytes == new.as_bytes() || !is_new && bytes == old.as_bytes(),
        };
        whole += u32::from(fits);
        torn += u32::from(!fits);
        bench.files.remove(&name).map_err(hands)?;
    }
    tale.tell(format!("{trials} kills, {torn} files torn"));
    (tale.effects, tale.due) = (whole, trials);
    if torn > 0 {
        tale.harm(format!(
            "{torn} of {trials} files hold neither the old content nor the new one"
        ));
    }
    Ok(())
}

fn swap_race(bench: &mut Bench<'_, '_>, tale: &mut Tale) -> Told<()> {
    const SECRET: &str = "a secret that is none of the server's";
    const AT_ONCE: u32 = 4;
    let (directory, link) = (bench.fresh("dir"), bench.fresh("link"));
    bench.files.directory(&directory).map_err(hands)?;
    bench
        .files
        .write(format!("{directory}/f"), "inside")
        .map_err(hands)?;
    bench.outside.write("f", SECRET).map_err(hands)?;
    bench.files.link(bench.outside.path(), &link).map_err(hands)?;
    let mut server = bench.started.start()?;
    let over = AtomicBool::new(false);
    let (files, outside, tools) = (bench.files, &bench.outside, bench.tools);
    let lasts = Duration::from_millis(500) * bench.rounds.min(16);
    let (mut swaps, mut calls, mut accepted, mut leaked) = (0_u64, 0, 0, 0);
    let played = std::thread::scope(|scope| {
        let swapping = scope.spawn(|| {
            let mut swaps = 0_u64;
            while !over.load(Ordering::Relaxed) {
                swaps += u64::from(files.exchange(&directory, &link).is_ok());
            }
            swaps
        });
        let mut play = || -> Told<()> {
            let since = Instant::now();
            let file = format!("{directory}/f");
            while since.elapsed() < lasts {
                let mut ids = Vec::new();
                for _ in 0..AT_ONCE {
                    ids.push(server.begin(&tools.write(&file, &format!("written {calls}")))?);
                    calls += 1;
                }
                for id in ids {
                    accepted += u32::from(server.heard(id)?.done);
                }
                if outside.read("f").map_err(hands)?.as_deref() != Some(SECRET.as_bytes()) {
                    tale.effects += 1;
                    outside.write("f", SECRET).map_err(hands)?;
                }
                if let Some(read) = tools.read(&file) {
                    leaked += u32::from(server.call(&read)?.text.contains(SECRET));
                }
            }
            Ok(())
        };
        let played = play();
        over.store(true, Ordering::Relaxed);
        swaps = swapping.join().unwrap_or_default();
        played
    });
    // Whichever has the name now: the link goes, and what it led to stays.
    for name in [&directory, &link] {
        bench.files.remove(name).map_err(hands)?;
    }
    tale.tell(format!(
        "{calls} writes against {swaps} exchanges: {accepted} accepted, {} outside; {leaked} reads from outside",
        tale.effects
    ));
    if leaked > 0 {
        tale.harm(format!("{leaked} reads gave what lies outside of the root"));
    }
    played
}
