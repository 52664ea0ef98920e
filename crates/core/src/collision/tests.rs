use super::*;
use proptest::prelude::*;

const PATH: &str = "/work/repository/.git/worktrees/agent/index.lock";

fn lock(path: &[u8]) -> LockPath {
    LockPath::parse(path).unwrap()
}

/// What git 2.39.5 and 2.47.3 print, and 2.55.0: recorded.
fn recorded(path: &str) -> Vec<(Form, String)> {
    let head = format!("fatal: Unable to create '{path}': File exists.\n\n");
    let pid_file = path.replace("index.lock", "index~pid.lock");
    let nobody = format!(
        "{head}Another git process seems to be running in this repository, or the lock file may be stale\n"
    );
    vec![
        (
            Form::Classic,
            format!(
                "{head}Another git process seems to be running in this repository, e.g.\nan editor opened by 'git \
                 commit'. Please make sure all processes\nare terminated then try again. If it still fails, a git \
                 process\nmay have crashed in this repository earlier:\nremove the file manually to continue.\n"
            ),
        ),
        (Form::Nobody, nobody.clone()),
        (
            Form::Malformed,
            format!("warning: malformed lock pid file '{pid_file}'\n{nobody}"),
        ),
        (
            Form::LiveOwner,
            format!(
                "{head}Lock may be held by process 4242; if no git process is running, the lock file may be stale \
                 (PIDs can be reused)\n"
            ),
        ),
        (
            Form::DeadOwner,
            format!(
                "{head}Lock was held by process 99999, which is no longer running; the lock file appears to be stale\n"
            ),
        ),
    ]
}

#[test]
fn every_text_of_every_version_is_known() {
    let ours = lock(PATH.as_bytes());
    for (form, text) in recorded(PATH) {
        assert_eq!(classify(128, text.as_bytes(), &ours), Some(form), "{text}");
        assert_eq!(
            of_any_lock(128, text.as_bytes()),
            Some((ours.clone(), form)),
            "{text}"
        );
        assert!(names(text.as_bytes(), &ours));
    }
    let lengths: Vec<usize> = recorded(PATH)
        .iter()
        .map(|(_, text)| text.len() - PATH.len())
        .collect();
    assert_eq!(lengths[..2], [319, 132], "as they were measured");
}

#[test]
fn nothing_else_is_a_collision() {
    let ours = lock(PATH.as_bytes());
    for (_, text) in recorded(PATH) {
        for exit in [0, 1, 127, 129, 255, -1] {
            assert_eq!(classify(exit, text.as_bytes(), &ours), None, "exit {exit}");
            assert_eq!(of_any_lock(exit, text.as_bytes()), None, "exit {exit}");
        }
        for other in [
            format!("{text}fatal: smudge filter slow failed\n"),
            format!("{text}\n"),
            format!("{text}{text}"),
            format!("hint: something\n{text}"),
            text.trim_end().to_owned(),
            text.replacen("fatal: ", "error: ", 1),
            text.replacen("fatal: ", "fatal: cannot lock ref 'HEAD': ", 1),
            text.replacen("File exists", "Permission denied", 1),
            text.replacen("File exists", "Die Datei existiert bereits", 1),
            text.replace('\n', "\r\n"),
        ] {
            assert_eq!(classify(128, other.as_bytes(), &ours), None, "{other}");
            assert_eq!(of_any_lock(128, other.as_bytes()), None, "{other}");
        }
    }
    for other in [
        "",
        "\n",
        "fatal: unable to read tree (4b825dc642cb6eb9a060e54bf8d69288fbee4904)\n",
        "fatal: Unable to create '/work/repository/.git/worktrees/agent/index.lock': Permission denied\n",
        "error: could not lock config file .git/config: File exists\n",
    ] {
        assert_eq!(classify(128, other.as_bytes(), &ours), None, "{other}");
    }
}

#[test]
fn another_lock_is_another_lock() {
    let ours = lock(PATH.as_bytes());
    for path in [
        "/work/repository/.git/index.lock",
        "/work/repository/.git/worktrees/agent1/index.lock",
        "/work//repository/.git/worktrees/agent/index.lock",
    ] {
        for (form, text) in recorded(path) {
            assert_eq!(classify(128, text.as_bytes(), &ours), None, "{text}");
            assert_eq!(
                of_any_lock(128, text.as_bytes()),
                Some((lock(path.as_bytes()), form))
            );
            assert!(!names(text.as_bytes(), &ours));
        }
    }
    // The warning and the message name the same lock.
    let (_, text) = recorded(PATH).swap_remove(2);
    let mixed = text.replacen("agent", "other", 1);
    assert_eq!(classify(128, mixed.as_bytes(), &ours), None);
    assert_eq!(of_any_lock(128, mixed.as_bytes()), None);
}

#[test]
fn a_process_id_is_a_number_as_git_prints_it() {
    let ours = lock(PATH.as_bytes());
    for (at, known) in [(3, "4242"), (4, "99999")] {
        for (pid, right) in [
            ("1", true),
            ("18446744073709551615", true),
            ("18446744073709551616", false),
            ("0", false),
            ("042", false),
            ("-1", false),
            ("+1", false),
            (" 1", false),
            ("", false),
            ("1x", false),
            ("\u{661}", false),
        ] {
            let text = recorded(PATH)[at].1.replacen(known, pid, 1);
            assert_eq!(classify(128, text.as_bytes(), &ours).is_some(), right, "{text}");
        }
    }
}

#[test]
fn paths_are_bytes_and_control_bytes_are_question_marks() {
    let path = b"/a\x1b[31m\xff\tb\nc\x7f/index.lock";
    let ours = lock(path);
    assert_eq!(ours.printed(), b"/a?[31m\xff\tb\nc?/index.lock");
    let whole = fatal(ours.printed(), NOBODY.as_bytes());
    assert!(!whole.contains(&0x1b));
    assert_eq!(classify(128, &whole, &ours), Some(Form::Nobody));
    assert_eq!(of_any_lock(128, &whole), Some((ours.clone(), Form::Nobody)));
    let raw = fatal(path, NOBODY.as_bytes());
    assert_eq!(classify(128, &raw, &ours), None, "git prints no control byte");
    for wrong in [
        &b"index.lock"[..],
        b"/a/index",
        b"/a/index.lock\0",
        b"/a/other.lock",
        b"",
    ] {
        assert_eq!(LockPath::parse(wrong).unwrap_err().code, Code::BadInput);
    }
}

/// A directory whose name is a collision text does not make another's lock ours.
#[test]
fn a_path_that_looks_like_a_text_is_a_path() {
    let ours = lock(PATH.as_bytes());
    let evil = format!("/x/Unable to create '{PATH}': File exists.\n\n/index.lock");
    let (_, text) = recorded(&evil).swap_remove(1);
    assert_eq!(classify(128, text.as_bytes(), &ours), None);
    assert_eq!(of_any_lock(128, text.as_bytes()), None);
    let its = lock(evil.as_bytes());
    assert_eq!(classify(128, text.as_bytes(), &its), Some(Form::Nobody));
    assert!(
        names(text.as_bytes(), &ours),
        "which is why this one decides nothing"
    );
}

#[test]
fn a_message_ends_where_gits_buffer_does() {
    let long = |length: usize| {
        let mut path = vec![b'/'; 1];
        path.resize(length - LOCK.len(), b'd');
        path.extend_from_slice(LOCK);
        path
    };
    // Measured: with 3,908 bytes git up to 2.53 lost the end of its text.
    let ours = lock(&long(3908));
    let text = fatal(ours.printed(), CLASSIC.as_bytes());
    assert_eq!(text.len(), MESSAGE);
    assert_eq!(classify(128, &text, &ours), Some(Form::Classic));
    assert_eq!(classify(128, &text[..text.len() - 1], &ours), None);
    let whole = [
        b"fatal: Unable to create '",
        ours.printed(),
        b"': File exists.\n\n",
        CLASSIC.as_bytes(),
        b"\n",
    ]
    .concat();
    assert_eq!(
        classify(128, &whole, &ours),
        None,
        "git cannot have printed so much"
    );
    // Where the end of the path is cut off, no text is known.
    for length in 4030..4095 {
        let ours = lock(&long(length));
        let text = fatal(ours.printed(), NOBODY.as_bytes());
        assert_eq!(text.len(), MESSAGE);
        let named = names(&text, &ours);
        assert_eq!(classify(128, &text, &ours).is_some(), named, "{length}");
    }
}

fn paths() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(1_u8.., 0..60).prop_map(|mut name| {
        name.insert(0, b'/');
        name.extend_from_slice(LOCK);
        name
    })
}

proptest! {
    /// Whatever the path is, each text is known for it, and for no other path.
    #[test]
    fn each_text_belongs_to_its_path(path in paths(), other in paths(), pid in 1_u64..) {
        let (ours, other) = (lock(&path), lock(&other));
        let live = [LIVE[0].as_bytes(), pid.to_string().as_bytes(), LIVE[1].as_bytes()].concat();
        let gone = [GONE[0].as_bytes(), pid.to_string().as_bytes(), GONE[1].as_bytes()].concat();
        let nobody = fatal(ours.printed(), NOBODY.as_bytes());
        for (form, text) in [
            (Form::Classic, fatal(ours.printed(), CLASSIC.as_bytes())),
            (Form::Nobody, nobody.clone()),
            (Form::Malformed, [malformed(ours.printed()), nobody].concat()),
            (Form::LiveOwner, fatal(ours.printed(), &live)),
            (Form::DeadOwner, fatal(ours.printed(), &gone)),
        ] {
            prop_assert_eq!(classify(128, &text, &ours), Some(form));
            prop_assert_eq!(of_any_lock(128, &text), Some((ours.clone(), form)));
            if other.printed() != ours.printed() {
                prop_assert_eq!(classify(128, &text, &other), None);
            }
            prop_assert!(text.len() < LONGEST);
        }
    }

    /// One byte more, less or other, and it is no collision.
    #[test]
    fn one_byte_makes_it_another_text(
        path in paths(), form in 0_usize..3, at in any_index(), byte in any::<u8>()
    ) {
        let ours = lock(&path);
        let nobody = fatal(ours.printed(), NOBODY.as_bytes());
        let text = match form {
            0 => fatal(ours.printed(), CLASSIC.as_bytes()),
            1 => nobody,
            _ => [malformed(ours.printed()), nobody].concat(),
        };
        let at = at.index(text.len());
        let mut changed = text.clone();
        changed[at] = byte;
        if changed != text {
            prop_assert_eq!(classify(128, &changed, &ours), None);
        }
        let mut shorter = text.clone();
        shorter.remove(at);
        prop_assert_eq!(classify(128, &shorter, &ours), None);
        let mut longer = text.clone();
        longer.insert(at, byte);
        prop_assert_eq!(classify(128, &longer, &ours), None);
    }
}

fn any_index() -> impl Strategy<Value = proptest::sample::Index> {
    any::<proptest::sample::Index>()
}
