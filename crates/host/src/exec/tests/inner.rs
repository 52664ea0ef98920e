//! Where no namespaces are to be had: a supervisor stands between shim and command, and the same is true.

use super::ends::{WAITS, daemons};
use super::*;
use crate::process::{Command, Confinement, TreeEnded, run};
use crate::sandbox::{Sandbox, TreeAccess};
use semel_core::confinement::Confinement as Reached;

/// Runs in a sandbox, where another one can only be had in part; says what became of three commands.
pub(super) fn say_what_is_lost(state: PathBuf) -> i32 {
    let site = Site::at(state);
    let best = |script: &str| {
        let mut spec = site.sh(script);
        spec.around.require = Require::BestEffort;
        spec
    };
    let (mark, other) = (mark(), mark());
    let (_, status) = site.run(&best(&(daemons(&mark) + "exit 5")));
    let proved = status.tree_ended == TreeEnded::Proved && alive(&mark).is_empty();
    let partial = status.level.confinement == Reached::Partial;
    say(&format!("{:?} {proved} {partial}\n", status.outcome));
    for i in 1..=20 {
        std::fs::remove_file(site.tree().join(format!("up-{i}"))).unwrap();
    }
    let (id, attached) = site.start(&best(&(daemons(&other) + WAITS)));
    if !until(|| site.in_tree("ready")) {
        return 1;
    }
    let there = alive(&other).len() >= 20;
    kill(site.shim(&id).unwrap(), Signal::KILL);
    // Here the supervisor outlives the shim, and holds its lock until it has ended everything.
    let seen = attached.wait(&never()).unwrap();
    let left = alive(&other).len();
    say(&format!("{there} {seen:?} {left}\n"));
    let (_, refused) = site.run(&site.sh(EFFECT));
    let refused =
        matches!(refused.outcome, Outcome::NotBegun { refusal } if refusal.code == Code::SandboxUnavailable);
    say(&format!("{refused} {}\n", site.effects()));
    0
}

#[test]
fn without_namespaces_nothing_is_lost_before_all_has_ended() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let places = private_places(&site.volume()).unwrap();
    let state = site.tree().join("inner");
    std::fs::create_dir(&state).unwrap();
    let exe = std::env::current_exe().unwrap();
    let mut command = Command::new(&exe, site.tree()).arg("__inner").arg(&state);
    command.confinement = Confinement::Sandbox(Sandbox {
        tree: site.tree(),
        tree_access: TreeAccess::Writable,
        home: places.home,
        tmp: places.tmp,
        hide: Vec::new(),
        read_only: vec![exe],
        writable: Vec::new(),
        network: Network::Loopback,
        require: Require::Full,
        bounds: crate::sandbox::default_bounds(),
    });
    let ended = run(&command, &never()).unwrap();
    let said = "Ended(Exited { code: 5 }) true true\ntrue Lost 0\ntrue 0\n";
    assert_eq!(text(&ended.stdout), said, "{ended:?}");
}
