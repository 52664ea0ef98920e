//! Laws that hold for any bytes: what the fuzzer tries, and what a test of core replays from `corpus/`.
//!
//! Each function takes raw bytes and panics where a law is broken.

use semel_core::canonical::{Limits, is_empty_request, parse_strict, to_canonical};
use semel_core::collision::{LockPath, classify, names, of_any_lock};
use semel_core::lockset::{self, Declared, Source};
use semel_core::patch::{Edit, How, LONGEST_FILE, Occurrences, Operation, apply, edit, parse};
use semel_core::record::Record;
use semel_core::{Code, RelPath, key_header};
use serde_json::Value;

/// Is one target: its name, and its laws.
pub type Target = (&'static str, fn(&[u8]));

/// Lists every target.
pub const TARGETS: [Target; 11] = [
    ("patch", patch),
    ("edit", edit_file),
    ("path", path),
    ("canonical", canonical),
    ("record", record),
    ("key", key),
    ("collision", collision),
    ("lock_toml", lock_toml),
    ("lock_json", lock_json),
    ("lock_yaml", lock_yaml),
    ("lock_lines", lock_lines),
];

/// Tries a patch, and after a NUL byte the file on which its hunks are tried.
pub fn patch(data: &[u8]) {
    let (text, before) = cut(data);
    let Ok(understood) = parse(text) else { return };
    let form = to_canonical(&understood.canonical());
    let limits = Limits {
        bytes: usize::MAX,
        depth: 8,
    };
    let read = parse_strict(&form, limits).expect("the form is strict JSON");
    assert_eq!(read, understood.canonical(), "the form is read as it was written");
    for operation in understood.operations() {
        assert!(!operation.path().is_root(), "the root is no file");
        if let Operation::Update { hunks, .. } = operation {
            tried(hunks, before);
            tried(hunks, &with_crlf(before));
        }
    }
}

fn tried(hunks: &[semel_core::patch::Hunk], before: &[u8]) {
    match apply(hunks, before) {
        Ok(applied) => {
            assert_eq!(applied.places.len(), hunks.len());
            let lines = before.split_inclusive(|b| *b == b'\n').count();
            let in_file = applied.places.iter().all(|p| (1..=lines + 1).contains(&p.line));
            assert!(in_file, "a hunk lies in the file");
            let ordered = applied.places.windows(2).all(|two| two[0].line <= two[1].line);
            assert!(ordered, "hunks lie in order");
            assert!(applied.places.iter().all(|p| p.how == How::Exact) || applied.inexact().count() > 0);
            assert_eq!(apply(hunks, before).as_ref(), Ok(&applied), "the same again");
        }
        Err(refusal) => {
            assert!(
                matches!(refusal.code, Code::PreconditionFailed | Code::TooLarge),
                "{refusal:?}"
            );
        }
    }
}

/// Tries an edit: the old text, the new one and the file, with a NUL byte between them.
pub fn edit_file(data: &[u8]) {
    let (old, rest) = cut(data);
    let (new, before) = cut(rest);
    for occurrences in [Occurrences::One, Occurrences::All] {
        let one = Edit {
            old: old.to_vec(),
            new: new.to_vec(),
            occurrences,
        };
        match edit(Some(before), std::slice::from_ref(&one)) {
            Ok(edited) => {
                let count = edited.replaced[0];
                assert!(count == 1 || occurrences == Occurrences::All);
                let length = before.len() + count * new.len() - count * old.len();
                assert_eq!(edited.content.len(), length, "as long as it must be");
                assert_ne!(edited.content, before, "it changed something");
            }
            Err(refusal) => assert!(
                !before.is_empty() || !old.is_empty() || new.is_empty(),
                "{refusal:?}"
            ),
        }
        let both = [one.clone(), one];
        if let Ok(edited) = edit(Some(before), &both) {
            assert_eq!(edited.replaced.len(), 2);
            assert!(edited.content.len() <= LONGEST_FILE);
        }
    }
}

/// Tries a path.
pub fn path(data: &[u8]) {
    let shown = semel_core::path::shown(data);
    assert!(
        !shown.chars().any(char::is_control),
        "what is shown does nothing to a terminal"
    );
    let Ok(path) = RelPath::parse(data) else { return };
    let plain = |part: &[u8]| !part.is_empty() && part != b"." && part != b".." && !part.contains(&0);
    assert!(path.components().all(plain), "only names are left");
    assert!(!path.as_bytes().starts_with(b"/"));
    assert_eq!(
        RelPath::try_from(path.to_wire()),
        Ok(path.clone()),
        "the wire loses nothing"
    );
    assert_eq!(
        RelPath::parse(path.as_bytes()),
        Ok(path.clone()),
        "normal is normal"
    );
    if let Some((parent, name)) = path.split_last() {
        assert_eq!(
            parent.join(name),
            Ok(path.clone()),
            "parent and name are the path"
        );
    }
}

/// Tries the path of a lock, and after a NUL byte what a git printed.
pub fn collision(data: &[u8]) {
    let (path, text) = cut(data);
    if let Some((lock, form)) = of_any_lock(128, text) {
        assert_eq!(
            classify(128, text, &lock),
            Some(form),
            "it is the text of its own lock"
        );
        assert!(names(text, &lock), "which it names");
        only_this(text, &lock);
    }
    let Ok(lock) = LockPath::parse(path) else { return };
    assert!(lock.printed().len() == path.len() && lock.printed().ends_with(b"/index.lock"));
    if classify(128, text, &lock).is_some() {
        assert!(names(text, &lock));
        only_this(text, &lock);
    }
}

/// A text that is known is known whole, for one exit status and one lock.
fn only_this(text: &[u8], lock: &LockPath) {
    assert!(text.ends_with(b"\n") && text.len() <= 2 * 4096);
    for exit in [0, 1, 127, 129, 255] {
        assert_eq!(classify(exit, text, lock), None, "another status");
    }
    for around in [b"\n".as_slice(), b" ", b"fatal: ", text] {
        assert_eq!(
            classify(128, &[text, around].concat(), lock),
            None,
            "more behind it"
        );
        assert_eq!(
            classify(128, &[around, text].concat(), lock),
            None,
            "more before it"
        );
    }
    for less in [1, text.len() / 2, text.len()] {
        assert_eq!(
            classify(128, &text[..text.len() - less], lock),
            None,
            "a part of it"
        );
        assert_eq!(classify(128, &text[less..], lock), None, "a part of it");
    }
    let other = LockPath::parse(&[b"/other", lock.printed()].concat()).expect("a path like it");
    assert_eq!(classify(128, text, &other), None, "another lock");
}

/// Tries a JSON text.
pub fn canonical(data: &[u8]) {
    let Ok(value) = parse_strict(data, Limits::DEFAULT) else {
        return;
    };
    let form = to_canonical(&value);
    assert_eq!(
        parse_strict(&form, Limits::DEFAULT),
        Ok(value.clone()),
        "read as it was written"
    );
    let other: Value = serde_json::from_slice(&form).expect("another reader takes the form");
    assert_eq!(
        without_fractions(other),
        without_fractions(value.clone()),
        "another reader agrees"
    );
    assert!(
        serde_json::from_slice::<Value>(data).is_ok(),
        "another reader takes it, too"
    );
    let empty = match &value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    let blank = matches!(&value, Value::String(text) if text.bytes().all(|b| b == b' '));
    match is_empty_request(data) {
        true => assert!(empty || blank, "what asks for nothing says nothing"),
        false => assert!(!empty, "what says nothing asks for nothing"),
    }
}

/// Takes out the numbers that are not whole: that reader rounds some of them to a neighbour of the nearest double.
fn without_fractions(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => Value::Null,
        Value::Array(items) => items.into_iter().map(without_fractions).collect(),
        Value::Object(members) => {
            let members = members.into_iter();
            members
                .map(|(name, value)| (name, without_fractions(value)))
                .collect()
        }
        other => other,
    }
}

/// Tries a record of the journal.
pub fn record(data: &[u8]) {
    let Ok(record) = serde_json::from_slice::<Record>(data) else {
        return;
    };
    let text = serde_json::to_vec(&record).expect("a record is written");
    let back: Record = serde_json::from_slice(&text).expect("what was written is read");
    assert_eq!(back, record, "read as it was written");
    assert_eq!(serde_json::to_vec(&back).expect("a record is written"), text);
}

/// Tries the header of a key.
pub fn key(data: &[u8]) {
    match key_header::parse(data) {
        Ok(key) => {
            assert!((1..=255).contains(&key.as_str().len()));
            assert!(key.as_str().bytes().all(|b| b.is_ascii_graphic()));
            let escaped = key.as_str().replace('\\', "\\\\").replace('"', "\\\"");
            let quoted = format!("\"{escaped}\"");
            assert_eq!(
                key_header::parse(quoted.as_bytes()),
                Ok(key),
                "quoted, it is the same"
            );
        }
        Err(refusal) => assert_eq!(refusal.code, Code::InvalidIdempotencyKey),
    }
}

/// Tries a lock in TOML: uv, Poetry, PDM, PEP 751, Cargo; the first byte chooses, from `0` on.
pub fn lock_toml(data: &[u8]) {
    let names = ["uv.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Cargo.lock"];
    lock(&names, data);
}

/// Tries a lock in JSON: npm, Pipenv, Composer.
pub fn lock_json(data: &[u8]) {
    lock(&["package-lock.json", "Pipfile.lock", "composer.lock"], data);
}

/// Tries a lock in the YAML of pnpm and of Yarn 2 and later.
pub fn lock_yaml(data: &[u8]) {
    lock(&["pnpm-lock.yaml", "yarn.lock"], data);
}

/// Tries a lock that is read by lines: Yarn 1, Go, Bundler, requirements.
pub fn lock_lines(data: &[u8]) {
    lock(&["yarn.lock", "go.sum", "Gemfile.lock", "requirements.txt"], data);
}

/// Tries a lock, and after a NUL byte the manifest beside it.
fn lock(names: &[&str], data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else {
        return;
    };
    let name = names[usize::from(choice.wrapping_sub(b'0')) % names.len()];
    let (text, manifest) = cut(rest);
    let at = |name: &str| RelPath::parse(name.as_bytes()).expect("a name is a path");
    let manifests = [
        "pyproject.toml",
        "package.json",
        "Cargo.toml",
        "Pipfile",
        "go.mod",
        "Gemfile",
        "composer.json",
        "requirements.in",
    ];
    let declared = Declared {
        texts: manifests.iter().map(|m| (at(m), manifest.to_vec())).collect(),
    };
    match lockset::parse(&at(name), text) {
        Err(refusal) => {
            assert_eq!(refusal.code, Code::LockIncomplete);
            assert_eq!(
                refusal.names.first().map(String::as_str),
                Some(name),
                "the file is named"
            );
        }
        Ok(lock) => {
            let again = lockset::parse(&at(name), text).expect("the same again");
            assert_eq!(lock.packages, again.packages);
            let hashed = lock.packages.iter().filter(|p| p.source == Source::Hashed);
            let loose = hashed.filter(|p| p.artifacts.is_empty()).count();
            assert_eq!(loose, lock.unbound.len(), "what no hash binds is named");
            for artifact in lock.packages.iter().flat_map(|p| &p.artifacts) {
                assert_eq!(artifact.digest.len(), artifact.algorithm.bytes());
            }
            if let Err(refusal) = lockset::close_over(&lock, &declared) {
                assert_eq!(refusal.code, Code::LockIncomplete);
            }
        }
    }
}

fn cut(data: &[u8]) -> (&[u8], &[u8]) {
    match data.iter().position(|b| *b == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, b""),
    }
}

fn with_crlf(text: &[u8]) -> Vec<u8> {
    let mut crlf = Vec::new();
    for byte in text {
        crlf.extend((*byte == b'\n').then_some(b'\r'));
        crlf.push(*byte);
    }
    crlf
}
