//! Input that was made to cost: each case ends at a limit or in time that grows with its length alone.

use super::{patched, reason};
use crate::Code;
use crate::patch::place::place;
use crate::patch::{
    LONGEST_FILE, LONGEST_PATCH, MOST_HUNKS, MOST_LINES, MOST_OPERATIONS, Operation, apply, parse,
};

#[test]
fn limits_are_kept_and_named() {
    let files = |count: usize| {
        let names = (0..count).map(|n| format!("*** Delete File: f{n}\n"));
        format!("*** Begin Patch\n{}*** End Patch\n", names.collect::<String>())
    };
    assert!(parse(files(MOST_OPERATIONS).as_bytes()).is_ok());
    assert_eq!(
        parse(files(MOST_OPERATIONS + 1).as_bytes()).unwrap_err().code,
        Code::TooLarge
    );

    let hunks = |count: usize| {
        format!(
            "*** Begin Patch\n*** Update File: f\n{}*** End Patch\n",
            "@@\n-a\n".repeat(count)
        )
    };
    assert!(parse(hunks(MOST_HUNKS).as_bytes()).is_ok());
    assert_eq!(
        parse(hunks(MOST_HUNKS + 1).as_bytes()).unwrap_err().code,
        Code::TooLarge
    );

    assert_eq!(
        parse(&vec![b'\n'; MOST_LINES + 1]).unwrap_err().code,
        Code::TooLarge
    );
    assert_eq!(
        parse(&vec![b' '; LONGEST_PATCH + 1]).unwrap_err().code,
        Code::TooLarge
    );
    assert_eq!(
        apply(&[], &vec![b' '; LONGEST_FILE + 1]).unwrap_err().code,
        Code::TooLarge
    );
    assert_eq!(
        apply(&[], &vec![b'\n'; MOST_LINES + 1]).unwrap_err().code,
        Code::TooLarge
    );
}

#[test]
fn a_search_that_nearly_fits_everywhere_ends() {
    // Each beginning fits for 50,000 lines: compared anew at each, that is 10^10 lines.
    let before = "a\n".repeat(200_000);
    let patch = format!(
        "*** Begin Patch\n*** Update File: f\n{}+x\n b\n*** End Patch\n",
        " a\n".repeat(50_000)
    );
    assert_eq!(
        reason(&patched(&patch, &format!("b\n{before}")).unwrap_err()).1,
        "no_match"
    );
}

#[test]
fn many_headers_and_deep_names_end() {
    let text = format!(
        "*** Begin Patch\n*** Update File: f\n{}-a\n*** End Patch\n",
        "@@ a\n".repeat(999)
    );
    let patch = parse(text.as_bytes()).unwrap();
    let Operation::Update { hunks, .. } = &patch.operations()[0] else {
        panic!("an update")
    };
    let lines = vec!["a\n".as_bytes(); 1000];
    let found = |most| place(hunks, &lines, most).unwrap_err();
    // Each header looks at each line.
    assert_eq!(reason(&found(999_000)).1, "no_header");
    assert_eq!(found(998_999).code, Code::TooLarge);

    let deep = (0..MOST_OPERATIONS).map(|n| format!("*** Delete File: {}f{n}\n", "d/".repeat(63)));
    let patch = format!("*** Begin Patch\n{}*** End Patch\n", deep.collect::<String>());
    assert!(parse(patch.as_bytes()).is_ok());
}
