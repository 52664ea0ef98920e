//! `edit_file`.

use crate::patch::{Edit, Edited, LONGEST_FILE, MOST_EDITS, Occurrences, edit};
use crate::{Code, Refusal};
use proptest::prelude::*;

fn one(old: &str, new: &str) -> Edit {
    Edit {
        old: old.into(),
        new: new.into(),
        occurrences: Occurrences::One,
    }
}

fn all(old: &str, new: &str) -> Edit {
    Edit {
        occurrences: Occurrences::All,
        ..one(old, new)
    }
}

fn run(before: &str, edits: &[Edit]) -> Result<Edited, Refusal> {
    edit(Some(before.as_bytes()), edits)
}

fn reason(refusal: &Refusal) -> (Code, &str) {
    (refusal.code, refusal.reason.as_deref().unwrap_or(""))
}

#[test]
fn replaces_the_one_place_or_all_places() {
    for (before, edits, after, replaced) in [
        ("a b c", vec![one("b", "x")], "a x c", vec![1]),
        ("a b c", vec![one("a b c", "")], "", vec![1]),
        ("a\n", vec![one("a", "a\nb")], "a\nb\n", vec![1]),
        ("a.a.a", vec![all("a", "bb")], "bb.bb.bb", vec![3]),
        ("a.b", vec![all("b", "a")], "a.a", vec![1]),
        ("aaa", vec![all("aa", "b")], "ba", vec![1]),
        ("a\r\nb\r\n", vec![one("a\r\n", "c\r\n")], "c\r\nb\r\n", vec![1]),
        // The second sees what the first left.
        ("a", vec![one("a", "b"), one("b", "c")], "c", vec![1, 1]),
        ("", vec![one("", "new\n")], "new\n", vec![1]),
        ("x", vec![one("x", ""), one("", "y")], "y", vec![1, 1]),
    ] {
        let edited = run(before, &edits).unwrap();
        assert_eq!(edited.content, after.as_bytes(), "{before:?} {edits:?}");
        assert_eq!(edited.replaced, replaced, "{before:?} {edits:?}");
    }
}

#[test]
fn refuses_by_name() {
    use Code::{BadInput, NotFound, PreconditionFailed};
    for (before, edits, code, named) in [
        (Some("a"), vec![], BadInput, "no_edits"),
        (Some("a"), vec![one("a", "a")], BadInput, "no_change"),
        (Some("a"), vec![one("b", "b")], BadInput, "no_change"),
        (Some(""), vec![one("", "")], BadInput, "no_change"),
        (Some("a"), vec![one("b", "c")], PreconditionFailed, "no_match"),
        (Some("a"), vec![all("b", "c")], PreconditionFailed, "no_match"),
        (Some(""), vec![one("b", "c")], PreconditionFailed, "no_match"),
        (Some("a "), vec![one("a\t", "c")], PreconditionFailed, "no_match"),
        (
            Some("aba"),
            vec![one("a", "c")],
            PreconditionFailed,
            "many_matches",
        ),
        // Two places, though a search that jumps over what it found sees one.
        (
            Some("aaa"),
            vec![one("aa", "c")],
            PreconditionFailed,
            "many_matches",
        ),
        (Some("a"), vec![one("", "c")], PreconditionFailed, "not_empty"),
        (Some("a"), vec![all("", "c")], PreconditionFailed, "not_empty"),
        (None, vec![one("a", "c")], NotFound, ""),
    ] {
        let refusal = edit(before.map(str::as_bytes), &edits).unwrap_err();
        assert_eq!(reason(&refusal), (code, named), "{before:?} {edits:?}");
        assert!(refusal.names.iter().all(|n| !n.contains("edits[")), "{refusal:?}");
    }
}

#[test]
fn an_absent_file_is_made_by_an_empty_text_alone() {
    assert_eq!(edit(None, &[one("", "x\n")]).unwrap().content, b"x\n");
    let edits = [one("", "x\n"), one("x", "y")];
    assert_eq!(edit(None, &edits).unwrap().content, b"y\n");
}

#[test]
fn many_places_are_counted_and_shown() {
    let refusal = run("x\n\nx x\nx\nx\nx\n", &[one("x", "y")]).unwrap_err();
    assert_eq!(refusal.why, "the text is there 6 times");
    assert_eq!(refusal.names, ["line 1", "line 3", "line 3", "line 4", "line 5"]);
}

#[test]
fn a_list_names_the_edit_that_failed_and_changes_nothing() {
    let edits = [one("a", "b"), one("zz", "y"), one("b", "c")];
    let refusal = run("a", &edits).unwrap_err();
    assert_eq!(reason(&refusal), (Code::PreconditionFailed, "no_match"));
    assert_eq!(refusal.names, ["edits[1]"]);
}

#[test]
fn line_ends_are_named_and_never_guessed() {
    let refusal = run("a\r\nb\r\n", &[one("a\nb", "c")]).unwrap_err();
    assert_eq!(reason(&refusal), (Code::PreconditionFailed, "no_match"));
    assert!(refusal.why.contains("\\r\\n"), "{refusal:?}");
    let refusal = run("a\r\nb\r\n", &[one("a\nz", "c")]).unwrap_err();
    assert!(!refusal.why.contains("\\r\\n"), "{refusal:?}");
}

#[test]
fn bytes_that_are_no_text_are_edited() {
    let edit_of = |old: &[u8], new: &[u8]| Edit {
        old: old.to_vec(),
        new: new.to_vec(),
        occurrences: Occurrences::One,
    };
    let edited = edit(Some(b"\xff\x00\xfe"), &[edit_of(b"\x00", b"\xc3\x28")]).unwrap();
    assert_eq!(edited.content, b"\xff\xc3\x28\xfe");
}

#[test]
fn hostile_edits_end_at_a_limit() {
    let many = vec![one("a", "b"); MOST_EDITS + 1];
    assert_eq!(run("a", &many).unwrap_err().code, Code::TooLarge);
    // Growth by replacing everything, which would ask for 1 TiB.
    let before = "a".repeat(1 << 20);
    let grow = all("a", &"b".repeat(1 << 20));
    assert_eq!(run(&before, &[grow]).unwrap_err().code, Code::TooLarge);
    let huge = one("", &"b".repeat(LONGEST_FILE + 1));
    assert_eq!(edit(None, &[huge]).unwrap_err().code, Code::TooLarge);
    // A search that compares each beginning anew would compare 2^38 bytes here.
    let slow = one(&format!("{}b", "a".repeat(1 << 19)), "c");
    assert_eq!(reason(&run(&before, &[slow]).unwrap_err()).1, "no_match");
}

proptest! {
    #[test]
    fn edits_are_what_replacing_text_is(
        before in "[ab]{0,12}", old in "[ab]{1,3}", new in "[abc]{0,3}",
    ) {
        prop_assume!(old != new);
        let places = (0..before.len()).filter(|at| before[*at..].starts_with(&old)).count();
        match run(&before, &[one(&old, &new)]) {
            Ok(edited) => {
                prop_assert_eq!(places, 1);
                prop_assert_eq!(edited.content, before.replacen(&old, &new, 1).into_bytes());
            }
            Err(refusal) => {
                let named = if places == 0 { "no_match" } else { "many_matches" };
                prop_assert_eq!(reason(&refusal).1, named);
                prop_assert!(places != 1);
            }
        }
        match run(&before, &[all(&old, &new)]) {
            Ok(edited) => {
                prop_assert_eq!(edited.replaced, vec![before.matches(&old).count()]);
                prop_assert_eq!(edited.content, before.replace(&old, &new).into_bytes());
            }
            Err(_) => prop_assert_eq!(places, 0),
        }
    }
}
