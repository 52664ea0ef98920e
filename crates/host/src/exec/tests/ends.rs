//! Whoever started a command may die; the command ends when it ends, or when it is to.

use super::*;
use crate::process::TreeEnded;

/// Runs until it is let go, and says all the while that it lives.
pub(super) const WAITS: &str =
    "echo begun; touch ready; while [ ! -e go ]; do sleep 0.01; done; echo x >> effects; echo done";

/// Leaves daemons, each of a session of its own and twice orphaned, that hear no signal they can refuse.
pub(super) fn daemons(mark: &str) -> String {
    format!(
        "for i in $(seq 20); do (setsid sh -c 'trap : TERM HUP INT; (touch up-$1; while :; do sleep 0.1; done) & ' \
         sh $i {mark} </dev/null >/dev/null 2>&1 &); done; while [ $(ls | grep -c up-) -lt 20 ]; do sleep 0.01; done; "
    )
}

/// Starts a command from a process that is killed once the command runs.
fn orphaned(site: &Site, script: &str) -> ExecutionId {
    let id = mint();
    let mut starter = site.starter(&id, script, "", ("", ""));
    assert!(until(|| site.in_tree("ready")));
    starter.kill();
    id
}

#[test]
fn a_command_outlives_its_killed_starter_and_is_found_again() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let id = orphaned(&site, WAITS);
    assert_eq!(site.observe(&id), Observation::Running);
    assert_eq!(running(&site.volume()).unwrap(), std::slice::from_ref(&id));
    assert!(site.said(&id, b"begun\n"));
    // Neither a second start nor a claim changes anything.
    let again = start(&site.volume(), &id, &site.sh(EFFECT), &NoPoints).unwrap_err();
    assert_eq!(again.code(), Code::PreconditionFailed);
    assert_eq!(again.into_refusal().reason.as_deref(), Some("execution_known"));
    assert_eq!(
        claim_never_begun(&site.volume(), &id).unwrap(),
        Observation::Running
    );
    let status = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ended(site.wait(&id)));
        site.touch("go");
        waiting.join().unwrap()
    });
    assert_eq!(status.outcome, Outcome::Ended(Ended::Exited { code: 0 }));
    assert_eq!(site.output(&id, Stream::Stdout), b"begun\ndone\n");
    assert_eq!(status.stdout.sha256, semel_core::Sha256::of(b"begun\ndone\n"));
    assert_eq!(site.effects(), 1);
    assert_eq!(ended(claim_never_begun(&site.volume(), &id).unwrap()), status);
    assert_eq!(ended(end(&site.volume(), &id, Urgency::Kill).unwrap()), status);
}

#[test]
fn a_deadline_holds_while_nobody_watches() {
    if !stands() {
        return;
    }
    in_due_time(|pace| {
        let site = Site::new();
        let mark = mark();
        let script = daemons(&mark) + "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done";
        let mut spec = site.sh(&script);
        spec.timeout = Duration::from_millis(1500) * pace;
        spec.grace = Duration::from_millis(300) * pace;
        let (id, attached) = site.start(&spec);
        drop(attached);
        let status = ended(site.wait(&id));
        assert_eq!(
            (status.outcome, status.tree_ended),
            (Outcome::Ended(Ended::TimedOut), TreeEnded::Proved)
        );
        assert_eq!(alive(&mark), []);
        let heard = site.output(&id, Stream::Stdout) == b"ready\nasked\n";
        assert!(
            !heard || status.took_ms >= 1800 * u64::from(pace),
            "{}",
            status.took_ms
        );
        heard.then_some(())
    });
}

#[test]
fn the_status_comes_after_the_last_descendant() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let mark = mark();
    let (id, attached) = site.start(&site.sh(&(daemons(&mark) + "exit 4")));
    let status = ended(attached.wait(&never()).unwrap());
    assert_eq!(alive(&mark), []);
    assert_eq!(
        (status.outcome, status.tree_ended),
        (Outcome::Ended(Ended::Exited { code: 4 }), TreeEnded::Proved)
    );
    assert_eq!(
        ended(site.observe(&id)).outcome,
        Outcome::Ended(Ended::Exited { code: 4 })
    );
}

#[test]
fn another_process_has_a_command_ended() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let id = orphaned(
        &site,
        "trap 'echo asked; exit 0' TERM; touch ready; while :; do sleep 0.01; done",
    );
    assert_eq!(
        end(&site.volume(), &id, Urgency::Ask).unwrap(),
        Observation::Running
    );
    // Asked again it changes nothing, whether it has ended by now or not.
    let again = end(&site.volume(), &id, Urgency::Ask).unwrap();
    let status = ended(site.wait(&id));
    assert!(again == Observation::Running || ended(again) == status);
    let by = Asker::Request;
    assert_eq!(
        (status.outcome, status.tree_ended),
        (Outcome::Ended(Ended::Asked { by }), TreeEnded::Proved)
    );
    assert_eq!(site.output(&id, Stream::Stdout), b"asked\n");
    std::fs::remove_file(site.tree().join("ready")).unwrap();
    // Who does not hear is killed, before its grace is over, too.
    let mut spec = site.sh("trap 'touch asked' TERM; touch ready; while :; do sleep 0.01; done");
    spec.grace = Duration::from_secs(3600);
    let (_, attached) = site.start(&spec);
    assert!(until(|| site.in_tree("ready")));
    attached.end(Urgency::Ask).unwrap();
    assert!(until(|| site.in_tree("asked")));
    assert_eq!(attached.observe().unwrap(), Observation::Running);
    attached.end(Urgency::Kill).unwrap();
    assert_eq!(
        ended(attached.wait(&never()).unwrap()).outcome,
        Outcome::Ended(Ended::Asked { by })
    );
}

#[test]
fn a_service_manager_that_ends_the_shim_is_told_apart() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let (id, attached) =
        site.start(&site.sh("trap 'echo asked; exit 0' TERM; touch ready; while :; do sleep 0.01; done"));
    assert!(until(|| site.in_tree("ready")));
    kill(site.shim(&id).unwrap(), Signal::TERM);
    let status = ended(attached.wait(&never()).unwrap());
    let by = Asker::Signal;
    assert_eq!(
        (status.outcome, status.tree_ended),
        (Outcome::Ended(Ended::Asked { by }), TreeEnded::Proved)
    );
    assert_eq!(site.output(&id, Stream::Stdout), b"asked\n");
}

#[test]
fn a_killed_shim_takes_everything_along_and_its_execution_is_lost() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let mark = mark();
    let id = orphaned(&site, &(daemons(&mark) + WAITS));
    let waiting = attach(&site.volume(), &id).unwrap().unwrap();
    assert!(alive(&mark).len() >= 20);
    // What is still in the pipe when the shim is killed is lost with it.
    assert!(site.said(&id, b"begun\n"));
    kill(site.shim(&id).unwrap(), Signal::KILL);
    assert_eq!(waiting.wait(&never()).unwrap(), Observation::Lost);
    assert!(until(|| alive(&mark).is_empty()), "{:?}", alive(&mark));
    site.touch("go");
    assert_eq!(site.observe(&id), Observation::Lost);
    assert_eq!(claim_never_begun(&site.volume(), &id).unwrap(), Observation::Lost);
    assert_eq!(end(&site.volume(), &id, Urgency::Ask).unwrap(), Observation::Lost);
    assert_eq!(running(&site.volume()).unwrap(), []);
    assert!(start(&site.volume(), &id, &site.sh(EFFECT), &NoPoints).is_err());
    assert_eq!(site.output(&id, Stream::Stdout), b"begun\n");
    assert_eq!(site.effects(), 0);
}

#[test]
fn what_stands_between_shim_and_command_is_no_proof_when_killed() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let mark = mark();
    let (id, attached) = site.start(&site.sh(&format!(
        "sh -c 'touch ready; while :; do sleep 0.1; done' {mark}"
    )));
    assert!(until(|| site.in_tree("ready")));
    let shim = site.shim(&id).unwrap();
    let mut pid = i32::try_from(alive(&mark).first().unwrap().0).unwrap();
    while parent_of(pid).unwrap() != shim {
        pid = parent_of(pid).unwrap();
    }
    kill(pid, Signal::KILL);
    let status = ended(attached.wait(&never()).unwrap());
    assert_eq!(status.outcome, Outcome::Ended(Ended::Signalled { signal: 9 }));
    assert_eq!(status.tree_ended, TreeEnded::Unproved);
    assert!(until(|| alive(&mark).is_empty()));
}

#[test]
fn a_volume_ends_with_all_its_commands() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let (willing, _) = site.start(&site.sh("trap 'exit 0' TERM; touch a; while :; do sleep 0.01; done"));
    let (deaf, _) = site.start(&site.sh("trap '' TERM; touch b; while :; do sleep 0.01; done"));
    let (done, _) = site.run(&site.sh(EFFECT));
    // One whose shim is on its way.
    let late = mint();
    let _starter = site.starter(&late, EFFECT, "spawned", ("test.wait", "Locked"));
    assert!(until(|| site.in_tree("a")
        && site.in_tree("b")
        && site.waits(&late)));
    let volumes = Volumes::open(&site.state).unwrap();
    let busy = volumes
        .put_aside(&site.job, &site.generation)
        .unwrap_err()
        .into_refusal();
    assert_eq!(
        (busy.code, busy.reason.as_deref()),
        (Code::VolumeBusy, Some("execution_running"))
    );
    let ended_now = end_all(&site.volume(), Duration::from_millis(300)).unwrap();
    site.go(&late);
    let named = |id: &ExecutionId| {
        ended_now
            .iter()
            .find(|(other, _)| other == id)
            .map(|(_, seen)| seen.clone())
    };
    let asked = Outcome::Ended(Ended::Asked { by: Asker::Request });
    assert_eq!(ended(named(&willing).unwrap()).outcome, asked);
    assert_eq!(ended(named(&deaf).unwrap()).outcome, asked);
    assert_eq!(named(&late).unwrap(), Observation::NeverBegan);
    assert_eq!(named(&done), None);
    assert_eq!(ended_now.len(), 3);
    assert_eq!(end_all(&site.volume(), Duration::ZERO).unwrap(), []);
    // The late one finds the claim, and is gone.
    assert!(until(|| volumes.put_aside(&site.job, &site.generation).is_ok()));
}

#[test]
fn a_shim_that_does_not_answer_is_killed_with_the_volume() {
    if !stands() {
        return;
    }
    let site = Site::new();
    let (id, attached) = site.start(&site.sh("touch ready; while :; do sleep 0.01; done"));
    assert!(until(|| site.in_tree("ready")));
    kill(site.shim(&id).unwrap(), Signal::STOP);
    attached.end(Urgency::Kill).unwrap();
    attached.kill_shim().unwrap();
    assert_eq!(attached.wait(&never()).unwrap(), Observation::Lost);
}
