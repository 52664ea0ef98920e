//! The event stream: what ends all tries, and what is refused before the first one.

use super::{EVENTS, Scene, count, lives, outcome};
use crate::harness::{executable, is_root, said};
use std::os::unix::fs::symlink;
use std::path::Path;

/// The script of a try that meets the lock, changes something, and lets the lock go: only the change can end it.
fn meets_and(scene: &Scene, change: &str) -> String {
    format!(
        "'{}' -C '{}' read-tree --reset -u {}; s=$?; echo try >> '{}'; {change}; rm -f '{}'; exit $s",
        scene.git.display(),
        scene.worktree.display(),
        scene.tree,
        scene.tries.display(),
        scene.lock.display()
    )
}

#[test]
fn an_exact_collision_after_an_event_was_added_has_one_try() {
    let scene = Scene::new();
    std::fs::write(&scene.lock, "").unwrap();
    let change = format!(
        "echo '{{\"event\":\"RunStarted\"}}' >> '{}'",
        scene.stream.display()
    );
    let out = scene.retry(&[], &meets_and(&scene, &change)).output().unwrap();
    let told = outcome(&out);
    assert_eq!(
        (out.status.code(), scene.tried()),
        (Some(128), 1),
        "{}",
        said(&out)
    );
    assert_eq!(
        (&told["end"], &told["reason"]),
        (&"ownership_taken".into(), &"appended".into())
    );
    for (name, n) in [
        ("exact_command", 1),
        ("exact_lock", 1),
        ("stream_identical", 0),
        ("aggregate", 0),
    ] {
        assert_eq!(count(&told, name), n, "{name}");
    }
    assert_eq!(scene.content(), "changed\n");
}

#[test]
fn whatever_becomes_of_the_stream_ends_it() {
    for (change, end, reason) in [
        (
            "printf 'x' | dd of=$S conv=notrunc bs=1 status=none",
            "ownership_taken",
            "rewritten",
        ),
        (": > $S", "ownership_taken", "rewritten"),
        ("cp $S $S.new; mv $S.new $S", "stream_unsafe", "replaced"),
        ("rm $S", "stream_unsafe", "missing"),
        ("mv $S $S.old; ln -s $S.old $S", "stream_unsafe", "symlink"),
        ("ln $S $S.other", "stream_unsafe", "hard_link"),
        ("rm $S; mkdir $S", "stream_unsafe", "directory"),
        ("rm $S; mkfifo $S", "stream_unsafe", "special"),
        ("mv $P $P.old; cp -r $P.old $P", "stream_unsafe", "replaced"),
        ("mv $P $P.old; ln -s $P.old $P", "stream_unsafe", "replaced"),
    ] {
        let scene = Scene::new();
        std::fs::write(&scene.lock, "").unwrap();
        let stream = scene.stream.to_str().unwrap();
        let parent = scene.stream.parent().unwrap().to_str().unwrap();
        let script = format!("S='{stream}'; P='{parent}'; {change}");
        let out = scene.retry(&[], &meets_and(&scene, &script)).output().unwrap();
        let told = outcome(&out);
        assert_eq!(
            (out.status.code(), scene.tried()),
            (Some(128), 1),
            "{change}: {}",
            said(&out)
        );
        assert_eq!(
            (&told["end"], &told["reason"]),
            (&end.into(), &reason.into()),
            "{change}"
        );
        assert_eq!(
            (count(&told, "stream_identical"), count(&told, "exact_lock")),
            (0, 1),
            "{change}"
        );
    }
    // Its times alone are nothing.
    let scene = Scene::new();
    std::fs::write(&scene.lock, "").unwrap();
    let script = format!("touch -d '1 hour ago' '{}'", scene.stream.display());
    let out = scene.retry(&[], &meets_and(&scene, &script)).output().unwrap();
    assert_eq!((out.status.code(), scene.tried()), (Some(0), 2), "{}", said(&out));
}

/// Whoever takes ownership while the lock is waited for ends it just as well.
#[test]
fn an_event_that_comes_while_the_lock_is_waited_for_ends_it() {
    let scene = Scene::new();
    std::fs::write(&scene.lock, "").unwrap();
    let (stream, lock, tries) = (scene.stream.clone(), scene.lock.clone(), scene.tries.clone());
    let other = std::thread::spawn(move || {
        // The second look of this try has been made before the lock is waited for; its wait is what is met here.
        assert!(crate::harness::wait_until(super::SOON, || tries.exists()));
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::fs::write(&stream, format!("{EVENTS}{{\"event\":\"RunStarted\"}}\n")).unwrap();
        std::fs::remove_file(lock).unwrap();
    });
    let out = scene.retry(&[], &scene.read_tree()).output().unwrap();
    other.join().unwrap();
    let told = outcome(&out);
    assert_eq!(
        (out.status.code(), scene.tried()),
        (Some(128), 1),
        "{}",
        said(&out)
    );
    assert_eq!(
        (&told["end"], &told["reason"]),
        (&"ownership_taken".into(), &"appended".into())
    );
}

/// A process that the command left behind is ended before the stream is looked at: it cannot add to it later.
#[test]
fn what_the_command_leaves_running_is_ended_before_the_stream_is_looked_at() {
    let scene = Scene::new();
    std::fs::write(&scene.lock, "").unwrap();
    let late = scene.home.path().join("late");
    let script = format!(
        "#!/bin/sh\nsleep 600\necho late >> '{}'\n",
        scene.stream.display()
    );
    executable(&late, &script);
    let left = format!("(setsid '{}' &)", late.display());
    let out = scene.retry(&[], &meets_and(&scene, &left)).output().unwrap();
    assert_eq!((out.status.code(), scene.tried()), (Some(0), 2), "{}", said(&out));
    assert_eq!(outcome(&out)["tree_ended"], "proved");
    assert!(!lives(&late));
    assert_eq!(std::fs::read_to_string(&scene.stream).unwrap(), EVENTS);
}

#[test]
fn a_stream_that_is_none_is_refused_before_the_first_try() {
    let refused = |scene: &Scene, args: &[&str], reason: &str| {
        let out = scene.retry_with(args, &scene.read_tree()).output().unwrap();
        assert_eq!(out.status.code(), Some(48), "{args:?} {reason}: {}", said(&out));
        let told = outcome(&out);
        let got = (&told["status"], &told["code"], &told["reason"]);
        assert_eq!(got, (&"refused".into(), &"stream_unsafe".into(), &reason.into()));
        assert_eq!((scene.tried(), count(&told, "tries")), (0, 0), "{args:?}");
        let said = String::from_utf8(out.stderr).unwrap();
        assert!(
            said.starts_with(&format!("error: stream_unsafe ({reason}): ")),
            "{said}"
        );
    };
    let template = ".smithers/executions/{run}/logs/stream.ndjson";
    let inner = ["--stream-template", template, "--run", "inner"];
    let scene = Scene::new();
    // The id of the outer run: there is no stream of its own.
    refused(
        &scene,
        &["--stream-template", template, "--run", "outer"],
        "missing",
    );
    refused(&scene, &["--stream", "nothing.ndjson"], "missing");
    refused(&scene, &["--stream", "tries/below"], "missing");
    refused(&scene, &["--stream", "worktree"], "directory");
    refused(&scene, &["--stream", "/dev/null"], "special");
    symlink(&scene.stream, scene.home.path().join("link")).unwrap();
    refused(&scene, &["--stream", "link"], "symlink");
    symlink("/nonexistent", scene.home.path().join("dangling")).unwrap();
    refused(&scene, &["--stream", "dangling"], "symlink");
    std::fs::hard_link(&scene.stream, scene.home.path().join("second")).unwrap();
    refused(&scene, &["--stream", "second"], "hard_link");
    refused(&scene, &inner, "hard_link");

    // By a template, no link may lie on the way; neither out of the worktree nor within it.
    let scene = Scene::new();
    let executions = scene.worktree.join(".smithers/executions");
    symlink("inner", executions.join("outer")).unwrap();
    refused(
        &scene,
        &["--stream-template", template, "--run", "outer"],
        "symlink",
    );
    let away = scene.home.path().join("away");
    std::fs::rename(&executions, &away).unwrap();
    symlink(&away, &executions).unwrap();
    refused(&scene, &inner, "symlink");

    let scene = Scene::new();
    if is_root() {
        std::os::unix::fs::chown(&scene.stream, Some(4242), None).unwrap();
        refused(&scene, &inner, "foreign");
    } else {
        eprintln!("SKIPPED: only root gives a file to somebody else");
    }
}

#[test]
fn a_template_that_leads_away_and_options_that_do_not_fit_are_refused() {
    let template = ".smithers/executions/{run}/logs/stream.ndjson";
    let inner = ["--stream-template", template, "--run", "inner"];
    let scene = Scene::new();
    for (template, run) in [
        ("{run}/../../x", "inner"),
        ("/{run}", "tmp"),
        ("x", "inner"),
        ("{run}", "../x"),
    ] {
        let args = ["--stream-template", template, "--run", run];
        let out = scene.retry_with(&args, &scene.read_tree()).output().unwrap();
        assert_eq!(
            (out.status.code(), &outcome(&out)["code"]),
            (Some(65), &"bad_input".into()),
            "{template} {run}"
        );
    }
    assert_eq!(scene.tried(), 0);
    let both = [&inner[..], &["--stream", "link"]].concat();
    for args in [&[][..], &both, &["--stream", "x", "--run", "inner"], &inner[..2]] {
        let out = scene.retry_with(args, "true").output().unwrap();
        assert_eq!(out.status.code(), Some(64), "{args:?}: {}", said(&out));
    }
}

/// By a path of one's own the parents may be links: what counts is where they lead, before and after.
#[test]
fn a_path_over_a_link_is_one_place_as_long_as_it_leads_there() {
    let scene = Scene::new();
    let logs = scene.stream.parent().unwrap();
    let link = scene.home.path().join("logs");
    symlink(logs, &link).unwrap();
    let stream = ["--stream", "logs/stream.ndjson"];
    std::fs::write(&scene.lock, "").unwrap();
    let out = scene
        .retry_with(&stream, &meets_and(&scene, "true"))
        .output()
        .unwrap();
    assert_eq!((out.status.code(), scene.tried()), (Some(0), 2), "{}", said(&out));

    std::fs::remove_file(&scene.tries).unwrap();
    std::fs::write(&scene.lock, "").unwrap();
    let other = copied(logs);
    let change = format!("ln -sfn '{}' '{}'", other.display(), link.display());
    let out = scene
        .retry_with(&stream, &meets_and(&scene, &change))
        .output()
        .unwrap();
    let told = outcome(&out);
    assert_eq!(
        (scene.tried(), &told["end"], &told["reason"]),
        (1, &"stream_unsafe".into(), &"replaced".into())
    );
}

fn copied(logs: &Path) -> std::path::PathBuf {
    let other = logs.with_file_name("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::copy(logs.join("stream.ndjson"), other.join("stream.ndjson")).unwrap();
    other
}
