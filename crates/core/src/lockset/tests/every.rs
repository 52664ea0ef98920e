//! What holds for a lock of every format.

use super::*;
use crate::lockset::weak::Weakness;

/// Says whether a format names, in a clause of a lock, what it cannot show.
fn clauses(name: &str) -> Vec<&'static str> {
    let format = Format::recognise(name.as_bytes()).unwrap();
    format
        .weaknesses()
        .iter()
        .map(|w| match w {
            Weakness::Always(clause) | Weakness::Sometimes(clause) => *clause,
        })
        .collect()
}

#[test]
fn every_format_has_a_fixture_that_is_whole() {
    let samples = every_format();
    for format in Format::ALL {
        assert!(
            samples.iter().any(|(name, _, _)| *name == format.file_name()),
            "{format:?}"
        );
    }
    for (name, text, declared) in samples {
        let lock = parse(&at(name), text.as_bytes()).unwrap();
        assert!(lock.packages.len() > 1, "{name}");
        close_over(&lock, &declared).unwrap();
        for package in lock.packages.iter().filter(|p| p.source == Source::Hashed) {
            let bound = !package.artifacts.is_empty() || lock.unbound.contains(&label(package));
            assert!(bound, "{name}: {package:?}");
        }
        assert_eq!(require_hashes(&lock).is_err(), !lock.unbound.is_empty(), "{name}");
    }
}

/// Cut at every line, made before sealing: refused, or a clause of the table is in the lock's weak list.
#[test]
fn a_lock_cut_at_any_line_is_refused_or_its_format_is_on_the_list() {
    for (name, text, declared) in every_format() {
        let mut accepted = Vec::new();
        let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at + 1).collect();
        let (_, lines) = ends.split_last().unwrap();
        for cut in core::iter::once(&0).chain(lines) {
            match check(name, &text.as_bytes()[..*cut], &declared) {
                Err(refusal) => assert_eq!(refusal.code, Code::LockIncomplete, "{name} at {cut}"),
                Ok(weak) => {
                    let named = weak
                        .iter()
                        .any(|w| clauses(name).iter().any(|c| w.contains(c)) || w.contains("open end"));
                    assert!(named, "{name} is cut at {cut}, and nothing says so: {weak:?}");
                    accepted.push(*cut);
                }
            }
        }
        // These show every cut at a line, so nothing may come through.
        let strong = [
            "poetry.lock",
            "pdm.lock",
            "Pipfile.lock",
            "package-lock.json",
            "npm-shrinkwrap.json",
            "Gemfile.lock",
            "composer.lock",
            "Cargo.lock",
        ];
        if strong.contains(&name) || text.contains("__metadata:") || text.contains("\nsnapshots:") {
            assert_eq!(accepted, Vec::<usize>::new(), "{name}");
        }
    }
}

/// Cut at any byte, too.
#[test]
fn a_lock_cut_at_any_byte_is_refused_or_its_format_is_on_the_list() {
    for (name, text, declared) in every_format() {
        for cut in 0..text.trim_end().len() {
            match check(name, &text.as_bytes()[..cut], &declared) {
                Err(refusal) => assert_eq!(refusal.code, Code::LockIncomplete, "{name} at {cut}"),
                Ok(weak) => {
                    let named = weak.iter().any(|w| clauses(name).iter().any(|c| w.contains(c)));
                    assert!(named, "{name} is cut at {cut}, and nothing says so: {weak:?}");
                }
            }
        }
    }
}

/// What no tool writes is refused in every format, and the line is named.
#[test]
fn bytes_that_no_tool_writes_are_refused_by_their_line() {
    for (name, text, declared) in every_format() {
        let half = text.match_indices('\n').nth(text.lines().count() / 2).unwrap().0 + 1;
        let line = text[..half].lines().count() + 1;
        let with = |bytes: &[u8]| [&text.as_bytes()[..half], bytes, &text.as_bytes()[half..]].concat();
        let bom = [b"\xEF\xBB\xBF", text.as_bytes()].concat();
        let wide: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        for (bytes, named) in [
            (bom, "line 1".to_owned()),
            (wide, "line 1".to_owned()),
            (with(b"\0"), format!("line {line}")),
            (with(b"\xFF"), format!("line {line}")),
            (with(b"\x1b[31m"), format!("line {line}")),
            (with(b"<<<<<<< HEAD\n"), format!("line {line}")),
            (with(b"=======\n"), format!("line {line}")),
            (with(b">>>>>>> theirs\n"), format!("line {line}")),
            (with(b"||||||| base\n"), format!("line {line}")),
        ] {
            let refusal = check(name, &bytes, &declared).unwrap_err();
            assert_eq!(refusal.code, Code::LockIncomplete, "{name}");
            assert!(refusal.names.contains(&named), "{name}: {refusal}");
        }
    }
}

/// Line ends of another system are taken where the grammar of the format has them, and refused elsewhere.
#[test]
fn carriage_returns_are_never_read_in_two_ways() {
    for (name, text, declared) in every_format() {
        let lines = ["pnpm-lock.yaml", "yarn.lock", "go.sum", "Gemfile.lock"].contains(&name);
        let result = check(name, text.replace('\n', "\r\n").as_bytes(), &declared);
        assert_eq!(result.is_err(), lines, "{name}: {result:?}");
    }
}

/// A hash with one character changed is refused, or is another hash of the same package.
#[test]
fn a_flipped_bit_in_a_hash_never_goes_unseen() {
    for (name, text, declared) in every_format() {
        let whole = parse(&at(name), text.as_bytes()).unwrap();
        let digests = |lock: &Lockfile| {
            lock.packages
                .iter()
                .flat_map(|p| p.artifacts.iter().map(|a| (p.name.clone(), a.digest.clone())))
                .collect::<Vec<_>>()
        };
        let known = digests(&whole);
        let mut flipped = 0;
        let marks = [
            "sha256:",
            "sha512-",
            "checksum",
            "h1:",
            "sha256=",
            "sha256 = \"",
            "shasum\": \"0",
        ];
        for mark in marks {
            for (from, _) in text.match_indices(mark) {
                let spot = from + mark.len() + 9;
                let mut bytes = text.as_bytes().to_vec();
                let Some(byte) = bytes.get_mut(spot).filter(|b| b.is_ascii_alphanumeric()) else {
                    continue;
                };
                *byte = if *byte == b'0' { b'1' } else { b'0' };
                if bytes == text.as_bytes() {
                    continue;
                }
                flipped += 1;
                if check(name, &bytes, &declared).is_ok() {
                    let lock = parse(&at(name), &bytes).unwrap();
                    assert_ne!(digests(&lock), known, "{name} at {spot}");
                }
            }
        }
        assert!(flipped > 0, "{name}");
    }
}

/// A package that something asks for, taken out whole, is refused; what a format cannot show is on the list.
#[test]
fn a_package_that_is_taken_out_is_missed() {
    for (name, text, declared) in every_format() {
        let whole = parse(&at(name), text.as_bytes()).unwrap();
        let blocks: Vec<(usize, usize)> = match name {
            "uv.lock" | "poetry.lock" | "pdm.lock" | "pylock.toml" | "Cargo.lock" => {
                let head = if name == "pylock.toml" {
                    "[[packages]]\n"
                } else {
                    "[[package]]\n"
                };
                let starts: Vec<usize> = text.match_indices(head).map(|(at, _)| at).collect();
                let end = text.find("[extras]").unwrap_or(text.len());
                starts
                    .iter()
                    .zip(starts.iter().skip(1).chain([&end]))
                    .map(|(a, b)| (*a, *b))
                    .collect()
            }
            "yarn.lock" | "pnpm-lock.yaml" => {
                let body = text
                    .find("snapshots:")
                    .unwrap_or_else(|| text.find("\n\n").unwrap());
                let mut at = body;
                let mut all = Vec::new();
                for block in text[body..].split_inclusive("\n\n") {
                    all.push((at, at + block.len()));
                    at += block.len();
                }
                all.into_iter()
                    .filter(|(a, b)| {
                        text[*a..*b].lines().count() > 1 && !text[*a..*b].starts_with("snapshots")
                    })
                    .collect()
            }
            _ => continue,
        };
        assert!(blocks.len() > 1, "{name}");
        for (from, to) in blocks {
            let rest = format!("{}{}", &text[..from], &text[to..]);
            if let Ok(weak) = check(name, rest.as_bytes(), &declared) {
                let lock = parse(&at(name), rest.as_bytes()).unwrap();
                let same = lock.packages.len() == whole.packages.len();
                let named = weak.iter().any(|w| w.contains(weak::PREFIX));
                assert!(same || named, "{name}: {}", &text[from..to]);
            }
        }
    }
}

/// A package that stands twice is refused in every format.
#[test]
fn a_package_that_stands_twice_is_refused() {
    for (name, from, to) in [
        ("poetry.lock", "[[package]]\nname = \"six\"", "[extras]"),
        (
            "pdm.lock",
            "[[package]]\nname = \"iniconfig\"",
            "[[package]]\nname = \"six\"",
        ),
        (
            "pylock.toml",
            "[[packages]]\nname = \"h11\"",
            "[[packages]]\nname = \"h2\"",
        ),
        ("Pipfile.lock", "        \"six\": {", "    },\n    \"develop\""),
        ("pnpm-lock.yaml", "  is-odd@3.0.1:\n    resolution", "  js-tokens"),
        (
            "pnpm-lock.yaml",
            "  is-odd@3.0.1:\n    dependencies",
            "  js-tokens@4.0.0: {}",
        ),
        ("yarn.lock", "ms@^2.1.3:", "picocolors"),
        ("yarn.lock", "\"ms@npm:^2.1.3\":", "\"old-ms"),
        ("go.sum", "github.com/spf13/pflag v1.0.5 h1", "gopkg.in"),
        ("Gemfile.lock", "    tilt (2.3.0)\n", "    webrick"),
        ("Gemfile.lock", "  tilt (2.3.0) sha256", "  webrick"),
        (
            "composer.lock",
            "        {\n            \"name\": \"psr/log\"",
            "\n    ],\n    \"packages-dev\"",
        ),
    ] {
        let mut tried = 0;
        for (_, text, declared) in every_format()
            .into_iter()
            .filter(|(n, text, _)| *n == name && text.contains(from))
        {
            let start = text.find(from).unwrap();
            let Some(end) = text[start..].find(to).map(|end| start + end) else {
                continue;
            };
            let block = &text[start..end];
            let comma = if name == "composer.lock" { ",\n" } else { "" };
            let block = if name == "Pipfile.lock" {
                format!("{}, ", block.trim_end())
            } else {
                format!("{block}{comma}")
            };
            let twice = format!("{}{block}{}", &text[..start], &text[start..]);
            let refusal = check(name, twice.as_bytes(), &declared).unwrap_err();
            assert_eq!(refusal.code, Code::LockIncomplete, "{name}: {refusal}");
            let said = format!("{} {:?}", refusal.why, refusal.names);
            assert!(said.contains("twice"), "{name}: {said}");
            tried += 1;
        }
        assert!(tried > 0, "{name}: {from}");
    }
}

#[test]
fn what_is_nested_too_deep_or_too_large_is_refused() {
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(200_000), close.repeat(200_000));
    for (name, _, declared) in every_format() {
        for text in [
            deep("[", "]\n"),
            deep("{\"a\":", "}\n"),
            format!("a = {}\n", deep("[", "]")),
            format!("a: {}\n", deep("[", "]")),
            format!("{{\"lockfileVersion\": {}}}\n", "9".repeat(100_000)),
            format!("version = {}\n", "9".repeat(100_000)),
            format!("lockfileVersion: {}\n", "9".repeat(100_000)),
            "\n".repeat(100_000),
            " ".repeat(100_000),
        ] {
            let result = check(name, text.as_bytes(), &declared);
            assert_eq!(result.unwrap_err().code, Code::LockIncomplete, "{name}");
        }
    }
}

#[test]
fn the_docs_hold_the_table_of_what_is_weak() {
    let page = include_str!("../../../../../docs/locks.md");
    for format in Format::ALL {
        let row = format!("| `{}` |", format.file_name());
        let row = page
            .lines()
            .find(|line| line.starts_with(&row))
            .unwrap_or_else(|| panic!("{row}"));
        for clause in clauses(format.file_name()) {
            assert!(row.contains(clause), "{row}: {clause}");
        }
        assert_eq!(
            row.ends_with("| nothing |"),
            format.weaknesses().is_empty(),
            "{row}"
        );
    }
}

proptest! {
    /// No text whatever makes a parser panic.
    #[test]
    fn any_text_is_answered_by_every_format(which in 0_usize..14, text in "(?s).{0,200}") {
        let name = Format::ALL[which].file_name();
        let declared = Declared::default();
        if let Err(refusal) = check(name, text.as_bytes(), &declared) {
            prop_assert_eq!(refusal.code, Code::LockIncomplete);
        }
    }

    /// A lock with one line lost, or two lines swapped, never loses a package or a hash unseen.
    #[test]
    fn a_lost_line_never_loses_a_hash_unseen(which in 0_usize..18, pick in any::<prop::sample::Index>()) {
        let (name, text, declared) = &every_format()[which];
        let weak_by_nature = ["requirements.txt", "pylock.toml", "go.sum", "Pipfile.lock"].contains(name);
        let lines: Vec<&str> = text.lines().collect();
        let lost = pick.index(lines.len());
        let rest: Vec<&str> = lines.iter().enumerate().filter(|(n, _)| *n != lost).map(|(_, l)| *l).collect();
        let rest = format!("{}\n", rest.join("\n"));
        if !weak_by_nature && check(name, rest.as_bytes(), declared).is_ok() {
            let (whole, lock) = (parse(&at(name), text.as_bytes()).unwrap(), parse(&at(name), rest.as_bytes()).unwrap());
            let names = |lock: &Lockfile| lock.packages.iter().map(label).collect::<Vec<_>>();
            prop_assert_eq!(names(&lock), names(&whole), "{} lost: {}", name, lines[lost]);
            for package in lock.packages.iter().filter(|p| p.source == Source::Hashed) {
                prop_assert!(!package.artifacts.is_empty() || lock.unbound.contains(&label(package)));
            }
        }
    }

    /// Any byte changed is answered, and never by a panic.
    #[test]
    fn any_byte_changed_is_answered(which in 0_usize..18, pick in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let (name, text, declared) = &every_format()[which];
        let mut bytes = text.as_bytes().to_vec();
        let spot = pick.index(bytes.len());
        bytes[spot] = byte;
        if let Err(refusal) = check(name, &bytes, declared) {
            prop_assert_eq!(refusal.code, Code::LockIncomplete);
        }
    }
}
