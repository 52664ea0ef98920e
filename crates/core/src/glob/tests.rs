//! What patterns for names and paths mean.

use super::*;
use proptest::prelude::*;

fn matches(pattern: &str, below: &str) -> bool {
    let glob = Glob::parse(pattern.as_bytes(), Case::Sensitive).unwrap();
    glob.matches(below.as_bytes(), Entry::Other)
}

#[test]
fn patterns_mean_what_people_expect() {
    for (pattern, below, wanted) in [
        ("*.rs", "a.rs", true),
        ("*.rs", "src/deep/a.rs", true),
        ("./*.rs", "a.rs", true),
        ("./*.rs", "src/a.rs", false),
        ("src/*.rs", "src/a.rs", true),
        ("src/*.rs", "src/b/a.rs", false),
        ("src/*.rs", "x/src/a.rs", false),
        ("**/*.rs", "a.rs", true),
        ("**/*.rs", "x/y/a.rs", true),
        ("src/**", "src/a/b", true),
        ("src/**", "src", false),
        ("src/**/b", "src/b", true),
        ("**", "anything/at/all", true),
        ("*.{rs,toml}", "Cargo.toml", true),
        ("*.{rs,toml}", "Cargo.lock", false),
        ("{src,tests/{a,b}}/x", "tests/b/x", true),
        ("{src,tests/{a,b}}/x", "tests/x", false),
        ("a{,b}c", "ac", true),
        ("a\\{b", "a{b", true),
        ("a}b", "a}b", true),
        ("[{,]x", "{x", true),
        ("[!a]x", "bx", true),
        ("[!a]x", "ax", false),
        ("*.[ch]", "dir/x.h", true),
        ("?.c", "\u{e9}.c", false),
        ("??.c", "\u{e9}.c", true),
        ("*", ".hidden", true),
        ("A*", "abc", false),
    ] {
        assert_eq!(matches(pattern, below), wanted, "{pattern} {below}");
    }
    let folded = Glob::parse(b"re[a-d]dme*.MD", Case::Insensitive).unwrap();
    assert!(folded.matches(b"docs/README-x.md", Entry::Other));
    let directories = Glob::parse(b"build/", Case::Sensitive).unwrap();
    assert!(directories.matches(b"x/build", Entry::Directory));
    assert!(!directories.matches(b"x/build", Entry::Other));
    let bytes = Glob::parse(b"bad\xff*", Case::Sensitive).unwrap();
    assert!(bytes.matches(b"bad\xff\xfe", Entry::Other));
}

#[test]
fn what_can_match_nothing_is_refused() {
    let long = "x".repeat(LONGEST + 1);
    let many = "{a,b}".repeat(7);
    for pattern in [
        "", "/", "/etc/*", "../x", "a/../b", "a//b", "a/./b", "a{b", "{a,{b}", "[a", "a\\", "./", &long,
        &many,
    ] {
        let refusal = Glob::parse(pattern.as_bytes(), Case::Sensitive).unwrap_err();
        assert_eq!(refusal.code, Code::BadInput, "{pattern}");
        assert_eq!(refusal.reason.as_deref(), Some("bad_pattern"), "{pattern}");
    }
    assert!(Glob::parse("{a,b}".repeat(5).as_bytes(), Case::Sensitive).is_ok());
}

proptest! {
    #[test]
    fn no_pattern_breaks_the_parser(
        text in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'{'), Just(b'}'), Just(b','), Just(b'['), Just(b'*'), Just(b'/')], 0..40),
        below in "[a-c/]{1,12}",
    ) {
        if let Ok(glob) = Glob::parse(&text, Case::Insensitive) {
            let once = glob.matches(below.as_bytes(), Entry::Other);
            prop_assert_eq!(once, glob.matches(below.as_bytes(), Entry::Other));
        }
    }

    #[test]
    fn a_plain_name_matches_itself_alone(name in "[a-z]{1,8}", other in "[a-z]{1,8}") {
        prop_assert_eq!(matches(&name, &other), name == other);
    }
}
