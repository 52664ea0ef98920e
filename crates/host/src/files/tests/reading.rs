//! Reading in parts, walking, searching, grep.

use super::*;
use crate::files::range::{Bounds as Cost, Cut, Range, Steadiness};
use crate::files::walk::{Bounds, Ended, GitEntries};
use crate::root::tests::skipped;
use semel_core::glob::{Case, Glob};
use std::cell::Cell;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

const COST: Cost = Cost {
    given: 100,
    digest: 1000,
    scan: 2000,
};

/// More than any file of these tests has.
const WIDE: Cost = Cost {
    given: 1 << 20,
    digest: 1 << 20,
    scan: 1 << 20,
};

fn never() -> bool {
    false
}

fn bounds(over: &dyn Fn() -> bool) -> Bounds<'_> {
    Bounds {
        entries: 1000,
        directory: 100,
        depth: usize::MAX,
        git: GitEntries::Skip,
        open: &|_| true,
        over,
    }
}

fn part(world: &World, at: &str, range: Range) -> Part {
    read_part(world.volume.tree(), &path(at), range, COST).unwrap()
}

use crate::files::range::Part;

#[test]
fn a_part_is_of_lines_and_the_digest_of_the_whole() {
    let world = World::new();
    let content = b"one\ntwo\r\nthree\nlast";
    world.put("f", content, Expected::Absent).unwrap();
    let lines = |first, most| Range::Lines { first, most };
    for (range, bytes, given, next) in [
        (Range::Whole, &content[..], Some((1, 4)), None),
        (lines(1, 1), b"one\n", Some((1, 1)), Some(2)),
        (lines(2, 2), b"two\r\nthree\n", Some((2, 3)), Some(4)),
        (lines(3, 9), b"three\nlast", Some((3, 4)), None),
        (lines(4, u64::MAX), b"last", Some((4, 4)), None),
        (lines(5, 1), b"", None, None),
        (Range::Last(2), b"three\nlast", Some((3, 4)), None),
        (Range::Last(99), content, Some((1, 4)), None),
        (Range::Bytes { first: 4, most: 3 }, b"two", None, Some(7)),
        (Range::Bytes { first: 16, most: 99 }, b"ast", None, None),
        (Range::Bytes { first: 99, most: 9 }, b"", None, None),
    ] {
        let part = part(&world, "f", range);
        assert_eq!(part.bytes, bytes, "{range:?}");
        assert_eq!((part.given, part.next), (given, next), "{range:?}");
        assert_eq!((part.size, part.lines), (19, Some(4)), "{range:?}");
        assert_eq!(part.sha256, Some(sha(content)), "{range:?}");
        assert_eq!((part.cut, part.steadiness), (Cut::No, Steadiness::Steady));
    }
    world.put("empty", b"", Expected::Absent).unwrap();
    let empty = part(&world, "empty", Range::Whole);
    assert_eq!(
        (empty.lines, empty.given, empty.sha256),
        (Some(0), None, Some(sha(b"")))
    );
}

#[test]
fn what_is_larger_than_an_answer_is_read_in_parts() {
    let world = World::new();
    // 30 lines of 10 bytes.
    let text = |n: u32| (1..=n).map(|n| format!("line {n:04}\n")).collect::<String>();
    world.put("f", text(30).as_bytes(), Expected::Absent).unwrap();
    let whole = read_part(world.volume.tree(), &path("f"), Range::Whole, COST).unwrap_err();
    assert_eq!(named(whole), (Code::TooLarge, "file_too_large".to_owned()));
    let lines = |first| Range::Lines { first, most: 50 };
    let (mut at, mut all) = (1, Vec::new());
    loop {
        let part = part(&world, "f", lines(at));
        assert_eq!(part.sha256, Some(sha(text(30).as_bytes())));
        assert_eq!(part.lines, Some(30));
        assert!(part.bytes.len() <= 100 && !part.bytes.is_empty());
        all.extend_from_slice(&part.bytes);
        assert_eq!(
            part.cut,
            if part.next.is_some() {
                Cut::AtBound
            } else {
                Cut::No
            }
        );
        match part.next {
            Some(next) => at = next,
            None => break,
        }
    }
    assert_eq!(all, text(30).as_bytes());
    let tail = part(&world, "f", Range::Last(20));
    assert_eq!((tail.given, tail.cut), (Some((21, 30)), Cut::AtBound));
}

#[test]
fn what_is_too_long_to_be_looked_through_is_refused_or_reached_by_bytes() {
    let world = World::new();
    // 120 lines of 10 bytes, and one of 300: more than is digested unasked, more than is given.
    let text = |n: u32| (1..=n).map(|n| format!("line {n:04}\n")).collect::<String>();
    world
        .put("large", text(120).as_bytes(), Expected::Absent)
        .unwrap();
    world
        .put("wide", "x".repeat(300).as_bytes(), Expected::Absent)
        .unwrap();
    let refused = |at: &str, range, cost| {
        let error = read_part(world.volume.tree(), &path(at), range, cost).unwrap_err();
        named(error)
    };
    let too_large = |reason: &str| (Code::TooLarge, reason.to_owned());
    let large = part(&world, "large", Range::Lines { first: 3, most: 2 });
    assert_eq!(
        (large.bytes.as_slice(), large.sha256),
        (&b"line 0003\nline 0004\n"[..], None)
    );
    assert_eq!(
        refused("wide", Range::Lines { first: 1, most: 1 }, COST),
        too_large("line_too_long")
    );
    assert_eq!(refused("wide", Range::Last(1), COST), too_large("line_too_long"));
    let bytes = part(
        &world,
        "wide",
        Range::Bytes {
            first: 250,
            most: 100,
        },
    );
    assert_eq!((bytes.bytes.len(), bytes.next, bytes.cut), (50, None, Cut::No));
    let near = Cost {
        scan: 500,
        digest: 0,
        ..COST
    };
    world
        .put("far", text(60_000).as_bytes(), Expected::Absent)
        .unwrap();
    assert_eq!(
        refused(
            "far",
            Range::Lines {
                first: 59_000,
                most: 1
            },
            near
        ),
        too_large("scan_too_long")
    );
}

/// A line without an end is told where an answer ends, not where the file does.
#[test]
fn a_line_past_the_bound_is_looked_at_no_further() {
    let world = World::new();
    world.put("f", b"a\nb\n", Expected::Absent).unwrap();
    // Whoever looks through a hole of 1 TiB comes to what is looked through, and says that.
    writable(&world, "f").set_len(1 << 40).unwrap();
    let cost = Cost {
        scan: 64 << 20,
        ..COST
    };
    let read = |first, most| {
        let range = Range::Lines { first, most };
        read_part(world.volume.tree(), &path("f"), range, cost)
    };
    let part = read(1, 9).unwrap();
    assert_eq!(
        (part.bytes.as_slice(), part.given),
        (&b"a\nb\n"[..], Some((1, 2)))
    );
    assert_eq!((part.next, part.cut, part.lines), (Some(3), Cut::AtBound, None));
    assert_eq!(read(2, 1).unwrap().bytes, b"b\n");
    assert_eq!(named(read(3, 1).unwrap_err()).1, "line_too_long");
    assert_eq!(named(read(4, 1).unwrap_err()).1, "scan_too_long");
}

proptest! {
    /// Whatever the lines are, the parts make the whole, by either way of reading.
    #[test]
    fn parts_make_the_whole(content in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..80), step in 1..5_u64) {
        let world = World::new();
        world.put("f", &content, Expected::Absent).unwrap();
        for given in [100, 40] {
            let cost = Cost { given, ..COST };
            let (mut at, mut all) = (1, Vec::new());
            let whole = loop {
                let range = Range::Lines { first: at, most: step };
                match read_part(world.volume.tree(), &path("f"), range, cost) {
                    Ok(part) => {
                        all.extend_from_slice(&part.bytes);
                        prop_assert_eq!(part.sha256, Some(sha(&content)));
                        match part.next { Some(next) => at = next, None => break true }
                    }
                    Err(error) => { prop_assert_eq!(named(error).1, "line_too_long"); break false }
                }
            };
            prop_assert!(!whole || all == content);
        }
    }
}

/// What is given of a file that another process writes into has the digest that it is given with.
#[test]
fn what_is_given_of_a_file_that_changes_has_the_digest_it_is_given_with() {
    let world = World::new();
    world.put("f", &[b'a'; 64 << 10], Expected::Absent).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = writable(&world, "f");
            let began = std::time::Instant::now();
            // Bounded, so that a failed assertion below ends the test.
            while !stop.load(Ordering::Relaxed) && began.elapsed().as_secs() < 60 {
                for fill in *b"abc" {
                    file.write_all_at(&[fill; 100], 50).unwrap();
                }
            }
        });
        for _ in 0..200 {
            let part = read_part(world.volume.tree(), &path("f"), Range::Whole, WIDE).unwrap();
            assert_eq!(part.sha256, Some(sha(&part.bytes)));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A file that changes is read anew, a few times; that it changed each time is told.
#[test]
fn a_file_that_changes_while_it_is_read_is_said_to_change() {
    let world = World::new();
    world.put("f", &[b'a'; 64 << 10], Expected::Absent).unwrap();
    // A change beneath each reading, for so many; no scheduler has a say in it.
    let read = |changes: u8| {
        let file = writable(&world, "f");
        let readings = Rc::new(Cell::new(0));
        let count = Rc::clone(&readings);
        let _changed = Meanwhile::does(move || {
            count.set(count.get() + 1);
            if count.get() <= changes {
                file.write_all_at(&[b'a' + count.get(); 100], 50).unwrap();
                // Two changes may lie within one tick of the clock that gives the times.
                let time = SystemTime::UNIX_EPOCH
                    + Duration::from_secs(u64::from(changes) * 100 + u64::from(count.get()));
                file.set_modified(time).unwrap();
            }
        });
        let part = read_part(world.volume.tree(), &path("f"), Range::Whole, WIDE).unwrap();
        assert_eq!(part.sha256, Some(sha(&part.bytes)));
        (part.steadiness, part.bytes[100], readings.get())
    };
    assert_eq!(read(0), (Steadiness::Steady, b'a', 1));
    assert_eq!(read(1), (Steadiness::Steady, b'b', 2));
    assert_eq!(read(3), (Steadiness::Steady, b'd', 4));
    // The last of four readings gives what the third change made; the fourth came after it.
    assert_eq!(read(4), (Steadiness::Changing, b'd', 4));
    assert_eq!(read(9), (Steadiness::Changing, b'd', 4));
}

fn writable(world: &World, at: &str) -> std::fs::File {
    std::fs::OpenOptions::new()
        .write(true)
        .open(world.tree(at))
        .unwrap()
}

fn tree(world: &World) {
    for dir in ["src/deep", ".git/objects", "sub/.GIT", "target/debug"] {
        std::fs::create_dir_all(world.tree(dir)).unwrap();
    }
    for (name, content) in [
        ("Cargo.toml", "[package]\nname = \"x\"\n"),
        ("src/lib.rs", "fn one() {}\n// TODO first\nfn two() {}\n"),
        ("src/deep/a.rs", "// todo second\r\nend"),
        ("src.txt", "TODO in src.txt"),
        (".git/config", "TODO in git"),
        ("sub/.GIT/config", "TODO in git"),
        ("target/debug/x.rs", "TODO built"),
        (".hidden", "TODO hidden"),
    ] {
        std::fs::write(world.tree(name), content).unwrap();
    }
    symlink("src", world.tree("link")).unwrap();
    symlink("/etc", world.tree("out")).unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    let mode = Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, world.tree("fifo.rs"), fifo, mode, 0).unwrap();
}

fn globs(texts: &[&str]) -> Vec<Glob> {
    texts
        .iter()
        .map(|text| Glob::parse(text.as_bytes(), Case::Sensitive).unwrap())
        .collect()
}

fn found(world: &World, at: &str, pattern: &[&str], exclude: &[&str]) -> Vec<String> {
    let (pattern, exclude) = (globs(pattern), globs(exclude));
    let wanted = Wanted {
        pattern: Some(&pattern),
        exclude: &exclude,
        after: None,
        most: 100,
        bytes: 10_000,
    };
    let found = search(world.volume.tree(), &path(at), &wanted, &bounds(&never)).unwrap();
    assert_eq!(found.walked.ended, None);
    found.entries.iter().map(|entry| entry.path.to_string()).collect()
}

#[test]
fn a_search_follows_no_link_and_passes_git_by() {
    let world = World::new();
    tree(&world);
    assert_eq!(
        found(&world, "", &["*.rs"], &[]),
        ["fifo.rs", "src/deep/a.rs", "src/lib.rs", "target/debug/x.rs"]
    );
    assert_eq!(
        found(&world, "", &["*.rs"], &["target", "fifo*"]),
        ["src/deep/a.rs", "src/lib.rs"]
    );
    assert_eq!(found(&world, "src", &["./*.rs"], &[]), ["src/lib.rs"]);
    assert_eq!(
        found(&world, "link", &["*.rs"], &[]),
        ["src/deep/a.rs", "src/lib.rs"],
        "a link asked for is followed"
    );
    assert_eq!(found(&world, "", &["config"], &[]), Vec::<String>::new());
    assert_eq!(
        found(&world, "", &["*/"], &[]),
        ["src", "src/deep", "sub", "target", "target/debug"]
    );
    // Each directory before what is in it, then the next name.
    let all = found(&world, "", &["src*", "src/**"], &[]);
    assert_eq!(all, ["src", "src/deep", "src/deep/a.rs", "src/lib.rs", "src.txt"]);
    let git = Bounds {
        git: GitEntries::Enter,
        open: &|_| true,
        ..bounds(&never)
    };
    let pattern = globs(&["config"]);
    let wanted = Wanted {
        pattern: Some(&pattern),
        exclude: &[],
        after: None,
        most: 100,
        bytes: 10_000,
    };
    let within = search(world.volume.tree(), &path(""), &wanted, &git).unwrap();
    assert_eq!(within.entries.len(), 2);
    let without = search(world.volume.tree(), &path(""), &wanted, &bounds(&never)).unwrap();
    assert_eq!((without.entries.len(), without.walked.skipped.git), (0, 2));
    for (at, code) in [
        ("out", Code::PathEscapesRoot),
        ("none", Code::NotFound),
        ("src.txt", Code::NotFound),
    ] {
        let error = search(world.volume.tree(), &path(at), &wanted, &bounds(&never)).unwrap_err();
        assert_eq!(error.code(), code, "{at}");
    }
}

#[test]
fn pages_of_any_size_make_the_whole_list() {
    let world = World::new();
    tree(&world);
    let list = |after: Option<&RelPath>, most, entries, depth| {
        let wanted = Wanted {
            pattern: None,
            exclude: &[],
            after,
            most,
            bytes: 10_000,
        };
        let bounds = Bounds {
            entries,
            depth,
            git: GitEntries::Tell,
            open: &|_| true,
            ..bounds(&never)
        };
        search(world.volume.tree(), &path(""), &wanted, &bounds).unwrap()
    };
    for depth in [1, 2, 9] {
        let whole = list(None, 100, 1000, depth);
        let told: Vec<&Vec<u8>> = whole.entries.iter().map(|entry| &entry.below).collect();
        assert!(told.iter().any(|name| *name == b".git"), "a .git is told");
        assert!(
            !told.iter().any(|name| name.starts_with(b".git/")),
            "and not entered"
        );
        assert_eq!(
            told.len(),
            match depth {
                1 => 10,
                2 => 14,
                _ => 16,
            }
        );
        for most in 1..5 {
            let (mut after, mut all) = (None::<RelPath>, Vec::new());
            loop {
                let page = list(after.as_ref(), most, 1000, depth);
                all.extend(page.entries);
                match page.walked.ended {
                    Some(Ended::Results) => after = page.walked.last,
                    ended => {
                        assert_eq!(ended, None);
                        break;
                    }
                }
            }
            assert_eq!(all, whole.entries, "pages of {most}");
        }
    }
    let few = list(None, 100, 3, 9);
    assert_eq!((few.entries.len(), few.walked.ended), (3, Some(Ended::Entries)));
}

#[test]
fn bounds_end_a_walk_and_are_told() {
    let world = World::new();
    std::fs::create_dir(world.tree("many")).unwrap();
    for n in 0..120 {
        std::fs::write(world.tree(&format!("many/{n}")), "x").unwrap();
    }
    let deep = vec!["d"; 70].join("/");
    std::fs::create_dir_all(world.tree(&deep)).unwrap();
    let wanted = Wanted {
        pattern: None,
        exclude: &[],
        after: None,
        most: 500,
        bytes: 100_000,
    };
    let all = search(world.volume.tree(), &path(""), &wanted, &bounds(&never)).unwrap();
    assert_eq!((all.walked.skipped.too_many, all.walked.skipped.too_deep), (1, 1));
    assert_eq!(all.entries.len(), 65);
    let error = search(world.volume.tree(), &path("many"), &wanted, &bounds(&never)).unwrap_err();
    assert_eq!(
        error.code(),
        Code::TooLarge,
        "a list of a directory is whole, or refused"
    );
    let asked = Cell::new(0);
    let soon = || {
        asked.set(asked.get() + 1);
        asked.get() > 5
    };
    let cut = search(world.volume.tree(), &path(""), &wanted, &bounds(&soon)).unwrap();
    assert_eq!((cut.entries.len(), cut.walked.ended), (5, Some(Ended::Time)));
    let narrow = Wanted { bytes: 10, ..wanted };
    let cut = search(world.volume.tree(), &path(""), &narrow, &bounds(&never)).unwrap();
    assert_eq!(cut.walked.ended, Some(Ended::Results));
}

fn wanted_lines<'a>(pattern: &'a Pattern) -> WantedLines<'a> {
    WantedLines {
        pattern,
        files: &[],
        exclude: &[],
        tell: Tell::Lines,
        context: 0,
        most: 100,
        bytes: 10_000,
        shown: 40,
        line: 1000,
    }
}

fn pattern(text: &str) -> Pattern {
    Pattern::parse(text, Syntax::Regex, Case::Sensitive).unwrap()
}

fn hits(found: &Grepped) -> Vec<(String, u64, usize)> {
    let hits = found.hits.iter();
    hits.map(|hit| (hit.path.to_string(), hit.shown.line, hit.column))
        .collect()
}

#[test]
fn grep_finds_lines_and_opens_nothing_but_files() {
    let world = World::new();
    tree(&world);
    std::fs::write(world.tree("binary"), b"TODO\0").unwrap();
    std::fs::write(world.tree("latin"), b"caf\xe9 TODO\n").unwrap();
    let todo = pattern("TODO");
    let run = |at: &str, wanted: &WantedLines<'_>| {
        grep(world.volume.tree(), &path(at), wanted, &bounds(&never)).unwrap()
    };
    let all = run("", &wanted_lines(&todo));
    let wanted = [
        (".hidden", 1, 1),
        ("latin", 1, 6),
        ("src/lib.rs", 2, 4),
        ("src.txt", 1, 1),
        ("target/debug/x.rs", 1, 1),
    ];
    assert_eq!(
        hits(&all),
        wanted.map(|(path, line, column)| (path.to_owned(), line, column))
    );
    assert_eq!(
        (all.binary, all.special, all.searched, all.walked.skipped.git),
        (1, 3, 7, 2)
    );
    assert_eq!(all.hits[1].shown.text, b"caf\xe9 TODO");
    let files = globs(&["*.rs"]);
    let narrow = WantedLines {
        files: &files,
        exclude: &globs(&["target/"]),
        ..wanted_lines(&todo)
    };
    assert_eq!(hits(&run("", &narrow)), [("src/lib.rs".to_owned(), 2, 4)]);
    let told = run(
        "",
        &WantedLines {
            tell: Tell::Files,
            ..wanted_lines(&todo)
        },
    );
    assert_eq!((told.hits.len(), told.files.len()), (0, 5));
    for at in ["src/lib.rs", "link/lib.rs"] {
        assert_eq!(
            hits(&run(at, &wanted_lines(&todo))),
            [("src/lib.rs".to_owned(), 2, 4)],
            "{at}"
        );
    }
    let any = pattern("(?i)todo|end$|second$");
    let ends = run("src", &wanted_lines(&any));
    assert_eq!(
        hits(&ends).len(),
        3,
        "$ stands before a carriage return, too: {ends:?}"
    );
    assert_eq!(ends.hits[0].shown.text, b"// todo second\r");
    for (at, code) in [
        ("out/passwd", Code::PathEscapesRoot),
        ("fifo.rs", Code::PathEscapesRoot),
        ("none", Code::NotFound),
    ] {
        let error = grep(
            world.volume.tree(),
            &path(at),
            &wanted_lines(&todo),
            &bounds(&never),
        )
        .unwrap_err();
        assert_eq!(error.code(), code, "{at}");
    }
}

#[test]
fn lines_around_and_long_ones() {
    let world = World::new();
    let long = format!("{}needle{}", "\u{e9}".repeat(50), "z".repeat(50));
    let text = format!(
        "1\n2 x\n3\n4\n5 x\n6 x\n7\n8\n9\n{long}\n{}\nlast x",
        "x".repeat(200_000)
    );
    world.put("f", text.as_bytes(), Expected::Absent).unwrap();
    let (x, needle) = (pattern("x$"), pattern("needle"));
    let run =
        |wanted: &WantedLines<'_>| grep(world.volume.tree(), &path("f"), wanted, &bounds(&never)).unwrap();
    let found = run(&WantedLines {
        context: 1,
        ..wanted_lines(&x)
    });
    let around: Vec<(u64, Vec<u64>, Vec<u64>)> = found
        .hits
        .iter()
        .map(|hit| {
            let lines = |lines: &[Shown]| lines.iter().map(|line| line.line).collect::<Vec<u64>>();
            (hit.shown.line, lines(&hit.before), lines(&hit.after))
        })
        .collect();
    assert_eq!(
        around,
        [
            (2, vec![1], vec![3]),
            (5, vec![4], vec![6]),
            (6, vec![5], vec![7]),
            (12, vec![11], vec![])
        ]
    );
    assert_eq!(
        found.long_lines, 1,
        "a line past the bound is not searched, and counted"
    );
    assert_eq!(found.hits[3].before[0].cut, Some(0));
    let found = run(&wanted_lines(&needle));
    let hit = &found.hits[0];
    assert_eq!(hit.column, 101);
    let shown = String::from_utf8(hit.shown.text.clone()).unwrap();
    assert!(shown.contains("needle") && shown.len() <= 40, "{shown}");
    assert_eq!(hit.shown.cut, Some(90));
    let cut = run(&WantedLines {
        most: 2,
        ..wanted_lines(&x)
    });
    assert_eq!((cut.hits.len(), cut.walked.ended), (2, Some(Ended::Results)));
    let exact = run(&WantedLines {
        most: 4,
        ..wanted_lines(&x)
    });
    assert_eq!((exact.hits.len(), exact.walked.ended), (4, None));
    let narrow = run(&WantedLines {
        bytes: 8,
        ..wanted_lines(&x)
    });
    assert_eq!(narrow.walked.ended, Some(Ended::Results));
    let over = grep(
        world.volume.tree(),
        &path("f"),
        &wanted_lines(&x),
        &bounds(&|| true),
    )
    .unwrap();
    assert_eq!(over.walked.ended, Some(Ended::Time));
}

proptest! {
    /// What grep tells is what a plain look at each line tells.
    #[test]
    fn grep_is_a_look_at_each_line(lines in proptest::collection::vec("[ab]{0,5}(\r)?", 0..12), text in proptest::sample::select(vec!["a", "b", "ab", "^b", "a$", "^$", "b.", "[ab]{2}"])) {
        let world = World::new();
        world.put("f", lines.join("\n").as_bytes(), Expected::Absent).unwrap();
        let plain = regex::Regex::new(&text.replace('$', "\r?$")).unwrap();
        let count = if lines.last().is_some_and(String::is_empty) { lines.len() - 1 } else { lines.len() };
        let wanted: Vec<u64> = (1..).zip(&lines[..count]).filter(|(_, line)| plain.is_match(line)).map(|(n, _)| n).collect();
        let found = grep(world.volume.tree(), &path("f"), &wanted_lines(&pattern(text)), &bounds(&never)).unwrap();
        prop_assert_eq!(found.hits.iter().map(|hit| hit.shown.line).collect::<Vec<_>>(), wanted);
    }
}

#[test]
fn patterns_that_cannot_be_used_are_refused() {
    let large = format!("({})", r"\pL{200}".repeat(20));
    let long = "x".repeat(5000);
    for text in [
        "(",
        "a\\nb",
        "a\nb",
        "[a\\n]\\n",
        &large,
        &long,
        "(?=a)",
        "a{1,99999}{1,99999}",
    ] {
        let error = Pattern::parse(text, Syntax::Regex, Case::Sensitive).unwrap_err();
        assert_eq!(named(error), (Code::BadInput, "bad_pattern".to_owned()), "{text}");
    }
    for text in ["[^\\n]", "[\\n ]x", "\\\\n", "\\[n", "x|y"] {
        assert!(
            Pattern::parse(text, Syntax::Regex, Case::Sensitive).is_ok(),
            "{text}"
        );
    }
    assert!(Pattern::parse("a\nb", Syntax::Fixed, Case::Sensitive).is_err());
    let world = World::new();
    world.put("f", b"a.b\naxb\nA.B", Expected::Absent).unwrap();
    let fixed = Pattern::parse("a.b", Syntax::Fixed, Case::Insensitive).unwrap();
    let found = grep(
        world.volume.tree(),
        &path("f"),
        &wanted_lines(&fixed),
        &bounds(&never),
    )
    .unwrap();
    assert_eq!(hits(&found), [("f".to_owned(), 1, 1), ("f".to_owned(), 3, 1)]);
}

#[test]
fn a_mount_is_passed_by_and_counted() {
    let world = World::new();
    tree(&world);
    let bound = world.dir.path().join("bound");
    std::fs::create_dir(&bound).unwrap();
    std::fs::write(bound.join("f"), "TODO mounted").unwrap();
    let file = world.dir.path().join("file");
    std::fs::write(&file, "TODO mounted").unwrap();
    if rustix::mount::mount_bind(&bound, world.tree("sub")).is_err() {
        skipped("this user may not mount");
        return;
    }
    rustix::mount::mount_bind(&file, world.tree("src.txt")).unwrap();
    let todo = pattern("mounted");
    let found = grep(
        world.volume.tree(),
        &path(""),
        &wanted_lines(&todo),
        &bounds(&never),
    );
    let listed = self::found(&world, "", &["f"], &[]);
    for at in ["sub", "src.txt"] {
        crate::sandbox::tests::unmounted(&world.tree(at));
    }
    let found = found.unwrap();
    assert_eq!(
        (found.hits.len(), found.walked.skipped.mounts, found.unreadable),
        (0, 1, 1)
    );
    assert_eq!(listed, Vec::<String>::new());
}

/// Another process swaps a directory for a link that leaves, all the time: no walk gets out.
#[test]
fn a_swap_attack_never_leads_a_walk_out() {
    for resolver in [Resolver::Openat2, Resolver::Walk] {
        let world = World::new();
        let outside = world.dir.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        for n in 0..20 {
            std::fs::write(outside.join(format!("f{n}")), "outside").unwrap();
        }
        std::fs::create_dir(world.tree("d")).unwrap();
        std::fs::write(world.tree("d/f0"), "inside").unwrap();
        symlink(&outside, world.tree("evil")).unwrap();
        let root = Root::open(&world.volume.tree_path())
            .unwrap()
            .with_resolver(resolver);
        let stop = AtomicBool::new(false);
        let any = pattern("side");
        let (mut inside, mut missed) = (0_u32, 0_u32);
        let began = std::time::Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let tree = std::fs::File::open(world.volume.tree_path()).unwrap();
                let swap = rustix::fs::RenameFlags::EXCHANGE;
                while !stop.load(Ordering::Relaxed) && !raced(began, false) {
                    rustix::fs::renameat_with(&tree, "d", &tree, "evil", swap).unwrap();
                }
            });
            let mut rounds = 0_u32;
            for at in ["", "d"].iter().cycle() {
                rounds += 1;
                if raced(began, rounds >= 1000 && inside > 0 && missed > 0) {
                    break;
                }
                let Ok(found) = grep(&root, &path(at), &wanted_lines(&any), &bounds(&never)) else {
                    missed += 1;
                    continue;
                };
                assert!(
                    found.hits.iter().all(|hit| hit.shown.text == b"inside"),
                    "{found:?}"
                );
                inside += u32::from(!found.hits.is_empty());
                let wanted = Wanted {
                    pattern: None,
                    exclude: &[],
                    after: None,
                    most: 100,
                    bytes: 10_000,
                };
                if let Ok(listed) = search(&root, &path(at), &wanted, &bounds(&never)) {
                    let names = listed.entries.iter().map(|entry| entry.path.to_string());
                    assert!(
                        names.into_iter().all(|name| !name.ends_with("f1")),
                        "listed outside"
                    );
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        crate::root::tests::told(&format!(
            "{resolver:?}: {inside} walks found what is inside, {missed} were refused, 0 escapes"
        ));
        assert!(inside > 0 && missed > 0, "the race was on");
    }
}
