//! In which order a call syncs what it does: the rule itself, held against what the daemon asks the kernel for.
//!
//! A filesystem with one log makes more durable than it is asked to, and so hides a sync that is missing. Here nothing
//! hides: each change of a name or of permissions has to be followed by a sync of that very directory or file, and the
//! log of the journal comes before the first effect and after the last.

use super::hush::{Event, Hears, Hush, Thing, What};
use crate::crash::tools::{self, Case};
use crate::crash::tree::make;
use crate::harness::{Conn, Daemon, Home, Reply, Volume};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Stdio;

struct Lab {
    // Ended before the state root goes.
    daemon: Daemon,
    volume: Volume,
    home: Home,
    hush: Hush,
}

impl Lab {
    /// # Errors
    /// Why this machine cannot.
    fn new(leaves_out: &'static [What]) -> Result<Self, String> {
        if !crate::harness::is_root() {
            return Err("only root can be asked about syncs".to_owned());
        }
        let (home, hush) = (Home::new(), Hush::new(leaves_out, Hears::Everything));
        let mut command = home.command(&["serve", "--json", "--quiet", "--listen", "127.0.0.1:0"]);
        hush.hear(&mut command);
        let daemon = Daemon::begun(command.stderr(Stdio::null()));
        Ok(Self {
            daemon: daemon.map_err(|status| format!("seccomp: the daemon does not start: {status}"))?,
            volume: home.open("job", "power-best-effort"),
            home,
            hush,
        })
    }

    /// Makes a call, and gives what is wrong with the order of its syncs.
    fn judged(&self, label: &str, call: impl FnOnce() -> Reply) -> (Reply, Vec<String>) {
        drop(self.hush.heard());
        let reply = call();
        assert_eq!(reply.status, 200, "{label}: {}", reply.body);
        let faults = faults(&self.hush.heard());
        (
            reply,
            faults
                .into_iter()
                .map(|fault| format!("{label}: {fault}"))
                .collect(),
        )
    }

    fn case(&self, n: usize, case: &'static Case) -> Vec<String> {
        let dir = format!("t{n}");
        let place = self.volume.tree.join(&dir);
        make(&place, 0o755);
        (case.before)(&place);
        let arguments = (case.arguments)(&dir);
        let (reply, mut all) = self.judged(case.name, || {
            Conn::tcp(&self.daemon.url).call(&self.volume, case.tool, &dir, &arguments)
        });
        let execution = reply.body["execution_id"].as_str().expect("it has an execution");
        let path = format!("/v1/admin/executions/{execution}/undo");
        let undone = format!("undo of {}", case.name);
        let (_, more) = self.judged(&undone, || self.home.admin("POST", &path, &Value::Null));
        all.extend(more);
        all
    }
}

/// Is of a volume's files, whose changes belong to calls.
fn of_files(what: What) -> bool {
    match what {
        What::Staged | What::Staging | What::Trash | What::Parent | What::File => true,
        What::Log | What::Journal | What::Volume | What::Root => false,
    }
}

/// Says what is wrong with the order of what one call did.
fn faults(events: &[Event]) -> Vec<String> {
    let mut faults = Vec::new();
    let changes: Vec<(usize, What, Thing)> = events
        .iter()
        .enumerate()
        .flat_map(|(n, event)| match event {
            Event::Changes(things) => things.iter().map(|(what, thing)| (n, *what, *thing)).collect(),
            Event::Syncs(..) => Vec::new(),
        })
        .filter(|(_, what, _)| of_files(*what))
        .collect();
    // What is made in `staging/` shows nowhere: an effect begins with a name or a file of the tree.
    let shows = |what: What| matches!(what, What::Parent | What::File | What::Trash);
    let effects: Vec<usize> = changes
        .iter()
        .filter(|(_, what, _)| shows(*what))
        .map(|(n, _, _)| *n)
        .collect();
    let (Some(first), Some(last)) = (effects.first(), effects.last()) else {
        return vec!["no effect was heard of".to_owned()];
    };
    for (n, what, thing) in &changes {
        // Whether a directory in `staging/` is empty matters to nobody once it is dropped.
        let after = &events[*n..];
        if !after.contains(&Event::Syncs(*what, *thing)) {
            faults.push(format!("{what:?} is changed and not synced"));
        }
    }
    // A sync costs a turn of the disk: none is made of what the call did not change.
    for (n, event) in events.iter().enumerate() {
        if let Event::Syncs(what @ (What::Trash | What::Parent | What::File), thing) = event
            && !changes.iter().any(|(at, _, changed)| *at < n && changed == thing)
        {
            faults.push(format!("{what:?} is synced for nothing"));
        }
    }
    let syncs = |events: &[Event], wanted: What| {
        let things = events.iter().filter_map(|event| match event {
            Event::Syncs(what, thing) if *what == wanted => Some(*thing),
            Event::Syncs(..) | Event::Changes(_) => None,
        });
        things.collect::<BTreeSet<Thing>>().len()
    };
    // Each file or directory that leaves `staging/` for the tree was synced there, and its name.
    let installed = events.iter().filter(|event| match event {
        Event::Changes(things) => matches!(things[..], [(What::Staging, _), (What::Parent, _)]),
        Event::Syncs(..) => false,
    });
    let (installed, early) = (installed.count(), &events[..*first]);
    if syncs(early, What::Staged) < installed {
        faults.push("Staged is not synced before it takes its name".to_owned());
    }
    if installed > 0 && syncs(early, What::Staging) == 0 {
        faults.push("Staging is not synced before what is in it takes its name".to_owned());
    }
    if syncs(early, What::Log) == 0 {
        faults.push("Log is not synced before the effects".to_owned());
    }
    let is_sync = |what: What| move |event: &Event| matches!(event, Event::Syncs(that, _) if *that == what);
    let files_synced = events
        .iter()
        .rposition(|event| matches!(event, Event::Syncs(what, _) if of_files(*what)));
    let receipt = events.iter().rposition(is_sync(What::Log));
    if receipt < files_synced || receipt < Some(*last) {
        faults.push("Log is not synced after the effects".to_owned());
    }
    faults.sort();
    faults.dedup();
    faults
}

/// Gives what is wrong with the order of syncs when some of a kind are left out.
fn all(leaves_out: &'static [What]) -> Result<Vec<String>, String> {
    let lab = Lab::new(leaves_out)?;
    Ok(tools::all()
        .enumerate()
        .flat_map(|(n, case)| lab.case(n, case))
        .collect())
}

#[test]
fn every_change_is_synced_before_the_answer() {
    match all(&[]) {
        Ok(faults) => assert!(faults.is_empty(), "{}", faults.join("\n")),
        Err(why) => crate::harness::skipped(&why),
    }
}

#[test]
fn each_kind_of_sync_that_is_left_out_is_missed() {
    const KINDS: [(&[What], &str); 6] = [
        (&[What::Log], "Log is not"),
        (&[What::Staged], "Staged is"),
        (&[What::Staging], "Staging is"),
        (&[What::Trash], "Trash is"),
        (&[What::Parent], "Parent is"),
        (&[What::File], "File is"),
    ];
    for (kind, told) in KINDS {
        let faults = match all(kind) {
            Ok(faults) => faults,
            Err(why) => return crate::harness::skipped(&why),
        };
        assert!(!faults.is_empty(), "{kind:?} may be left out");
        let other: Vec<&String> = faults.iter().filter(|fault| !fault.contains(told)).collect();
        assert!(other.is_empty(), "{kind:?}: {other:?}");
        let calls = 2 * tools::all().count();
        eprintln!("without {kind:?}: {} faults in {calls} calls", faults.len());
    }
}
