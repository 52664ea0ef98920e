use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn id(text: &str) -> ObjectId {
    ObjectId::parse(text).unwrap()
}

fn path(bytes: &[u8]) -> RelPath {
    RelPath::parse(bytes).unwrap()
}

/// Made with git 2.47.3: `hello\n`, a link to `../a0`, a commit, and the trees of [`leaves`] without and with
/// the submodule.
struct Known {
    format: ObjectFormat,
    empty_tree: &'static str,
    empty_blob: &'static str,
    hello: &'static str,
    link: &'static str,
    commit: &'static str,
    without: &'static str,
    with: &'static str,
    child: &'static str,
}

const SHA1: Known = Known {
    format: ObjectFormat::Sha1,
    empty_tree: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    empty_blob: "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
    hello: "ce013625030ba8dba906f756967f9e9ca394464a",
    link: "a1d3fc3919e10cbb443206a5afeddacfa2ced8f9",
    commit: "0eb8d29d2818df9207e51dfbc7259f4b15754a15",
    without: "3955a6232549513fa78812a280024eea87f58935",
    with: "b19c0e42ab44fddded4d8fcbc966eae3db251ccf",
    child: "fcb22a7ba9e89ff29e9b6ea78bc2be7dbe0b730d",
};

const SHA256: Known = Known {
    format: ObjectFormat::Sha256,
    empty_tree: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
    empty_blob: "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813",
    hello: "2cf8d83d9ee29543b34a87727421fdecb7e3f3a183d337639025de576db9ebb4",
    link: "2ebc88d896f03ef3693333e59f60cd30b6a312277103f2243d81576b30c428c3",
    commit: "80db4f6232b05e5e08482e2585c2641bfc14aff31190ca4c7a2999255ee404cd",
    without: "7491d0c2c45f9e339b1a1d17c2a7e7546a18a287a095237067659cbc3099916d",
    with: "2b8964bb1bd4baf03e54de9255d01a3b7769c98d99525f0518077beb4db1fc94",
    child: "6cefeb2b55670b26098f6ea4f0a2b4ca8481c0ae25aa0af2a588aa5f4cb267bb",
};

fn leaves(known: &Known) -> Vec<(RelPath, Mode, ObjectId)> {
    let hello = id(known.hello);
    let mut all: Vec<_> = [&b"a-"[..], b"a.b", b"a/b", b"a0", b"ab", b"n\xff\xfe"]
        .map(|name| (path(name), Mode::File, hello))
        .into();
    all.push((path(b"sub/deep/x"), Mode::Executable, hello));
    all.push((path(b"sub/link"), Mode::Symlink, id(known.link)));
    all
}

#[test]
fn ids_are_those_of_git() {
    for known in [&SHA1, &SHA256] {
        let format = known.format;
        let blob = |bytes: &[u8]| object_id(format, Kind::Blob, bytes).unwrap().to_string();
        assert_eq!(blob(b""), known.empty_blob);
        assert_eq!(blob(b"hello\n"), known.hello);
        assert_eq!(blob(b"../a0"), known.link);
        assert_eq!(tree_id(format, []).unwrap().to_string(), known.empty_tree);
        let mut all = leaves(known);
        all.reverse();
        assert_eq!(tree_id(format, all.clone()).unwrap().to_string(), known.without);
        all.push((path(b"mod"), Mode::Gitlink, id(known.commit)));
        assert_eq!(tree_id(format, all).unwrap().to_string(), known.with);
    }
}

#[test]
fn a_commit_and_its_tree_are_read_back() {
    for known in [&SHA1, &SHA256] {
        let body = format!(
            "tree {}\nparent {}\nauthor n <a@b> 1700000000 +0100\ncommitter n <a@b> 1700000000 +0100\n\nsubject\n \ntree lies\n",
            known.with, known.commit
        );
        let child = object_id(known.format, Kind::Commit, body.as_bytes()).unwrap();
        assert_eq!(child.to_string(), known.child);
        let commit = parse_commit(body.as_bytes()).unwrap();
        assert_eq!(commit.tree.to_string(), known.with);
        assert_eq!(commit.parents, [id(known.commit)]);

        let mut all = leaves(known);
        all.push((path(b"mod"), Mode::Gitlink, id(known.commit)));
        let mut objects = Vec::new();
        let root = tree_objects(known.format, all, |id, body| objects.push((id, body.to_vec()))).unwrap();
        assert_eq!(objects.len(), 4);
        let (last, body) = objects.pop().unwrap();
        assert_eq!(last, root);
        let entries = parse_tree(known.format, &body).unwrap();
        let names: Vec<_> = entries.iter().map(|e| shown(&e.name)).collect();
        assert_eq!(names, ["a-", "a.b", "a", "a0", "ab", "mod", "n\\xff\\xfe", "sub"]);
        assert_eq!(entries[2].mode, TreeMode::Directory);
        assert_eq!(entries[5].mode, TreeMode::Leaf(Mode::Gitlink));
        for cut in 1..body.len() {
            if let Ok(fewer) = parse_tree(known.format, &body[..cut]) {
                assert!(fewer.len() < entries.len());
            }
        }
    }
}

#[test]
fn malformed_objects_are_refused() {
    let (tree, other) = (SHA1.with, SHA256.with);
    let author = "author n <a@b> 1 +0000\n";
    for body in [
        String::new(),
        format!("{author}tree {tree}\n"),
        format!("tree {tree}\n"),
        format!("tree {tree}\n\ntree {tree}\n{author}"),
        format!("tree {}\n{author}", &tree[..39]),
        format!("tree {}\n{author}", tree.to_uppercase()),
        format!("tree {tree}\nparent {other}\n{author}"),
        format!("tree {tree}\nparent HEAD\n{author}"),
        format!(" tree {tree}\n{author}"),
    ] {
        assert_eq!(
            parse_commit(body.as_bytes()).unwrap_err().code,
            Code::BadInput,
            "{body}"
        );
    }
    let entry = |mode: &str, name: &[u8]| {
        let mut body = mode.as_bytes().to_vec();
        body.push(b' ');
        body.extend_from_slice(name);
        body.push(0);
        body.extend_from_slice(id(tree).as_raw());
        body
    };
    let good = [
        entry("100644", b"a.b"),
        entry("40000", b"a"),
        entry("100644", b"a0"),
    ]
    .concat();
    assert!(parse_tree(ObjectFormat::Sha1, &good).is_ok());
    for body in [
        entry("100644", b".git"),
        entry("100644", b"a/b"),
        entry("100644", b".."),
        entry("100644", b""),
        entry("100664", b"a"),
        entry("040000", b"a"),
        [entry("40000", b"a"), entry("100644", b"a.b")].concat(),
        [entry("100644", b"a"), entry("100644", b"a")].concat(),
        [
            entry("100644", b"a"),
            entry("100644", b"a.b"),
            entry("40000", b"a"),
        ]
        .concat(),
        b"100644 a".to_vec(),
        b"100644".to_vec(),
    ] {
        assert_eq!(
            parse_tree(ObjectFormat::Sha1, &body).unwrap_err().code,
            Code::BadInput
        );
    }
}

/// What git 2.47.3 `update-index --cacheinfo` takes and refuses; the last of the refused is refused by its fsck.
#[test]
fn names_that_git_refuses_are_refused() {
    let put = |name: &[u8], mode| {
        tree_id(
            ObjectFormat::Sha1,
            [(RelPath::parse(name).unwrap(), mode, id(SHA1.hello))],
        )
    };
    for name in [
        &b".git"[..],
        b".GIT",
        b"a/.git/x",
        b"git~1",
        b"GIT~1",
        b".git ",
        b".git.",
        b".git. .",
        b".git::$INDEX",
        b".git:x",
        b".git\\x",
        b".g\xe2\x80\x8cit",
        b"",
    ] {
        let refusal = put(name, Mode::File).expect_err(&shown(name));
        assert_eq!(refusal.code, Code::TreeMismatch);
        assert_eq!(refusal.reason.as_deref(), Some("unholdable_entry"));
    }
    for name in [
        &b".gitmodules"[..],
        b".gitx",
        b"git~2",
        b".git .x",
        b"a\\b",
        b"...",
    ] {
        assert!(put(name, Mode::File).is_ok(), "{}", shown(name));
    }
    for name in [&b".gitmodules"[..], b".GITMODULES", b".gitmodules ", b"gitmod~1"] {
        assert!(put(name, Mode::Symlink).is_err(), "{}", shown(name));
    }
    assert!(put(b".gitignore", Mode::Symlink).is_ok());
}

#[test]
fn conflicts_and_foreign_ids_are_refused() {
    let file = |name: &[u8]| (path(name), Mode::File, id(SHA1.hello));
    for entries in [
        vec![file(b"a"), file(b"a")],
        vec![file(b"a"), file(b"a/b")],
        vec![file(b"a/b"), file(b"a")],
        vec![file(b"a/b/c"), file(b"a/b")],
    ] {
        let refusal = tree_id(ObjectFormat::Sha1, entries).unwrap_err();
        assert_eq!(refusal.reason.as_deref(), Some("entry_conflict"));
    }
    let refusal = tree_id(ObjectFormat::Sha256, [file(b"a")]).unwrap_err();
    assert_eq!(refusal.code, Code::BadInput);
}

#[test]
fn a_blob_is_what_was_announced() {
    let mut pieces = BlobHasher::new(ObjectFormat::Sha1, 6);
    pieces.update(b"hel");
    pieces.update(b"lo\n");
    assert_eq!(pieces.finish().unwrap(), id(SHA1.hello));
    for len in [5, 7] {
        let mut pieces = BlobHasher::new(ObjectFormat::Sha1, len);
        pieces.update(b"hello\n");
        let refusal = pieces.finish().unwrap_err();
        assert_eq!(refusal.reason.as_deref(), Some("length_changed"));
    }
}

/// The first 320 bytes of the two files of <https://shattered.io>: one SHA-1, two contents.
#[test]
fn a_collision_attack_is_seen() {
    let shattered = concat!(
        "255044462d312e330a25e2e3cfd30a0a0a312030206f626a0a3c3c2f57696474682032203020522f4865696768742033203020522f",
        "547970652034203020522f537562747970652035203020522f46696c7465722036203020522f436f6c6f7253706163652037203020",
        "522f4c656e6774682038203020522f42697473506572436f6d706f6e656e7420383e3e0a73747265616d0affd8fffe00245348412d",
        "3120697320646561642121212121852fec092339759c39b1a1c63c4c97e1fffe017346dc9166b67e118f029ab621b2560ff9ca67cc",
        "a8c7f85ba84c79030c2b3de218f86db3a90901d5df45c14f26fedfb3dc38e96ac22fe7bd728f0e45bce046d23c570feb141398bb55",
        "2ef5a0a82be331fea48037b8b5d71f0e332edf93ac3500eb4ddc0decc1a864790c782c76215660dd309791d06bd0af3f98cda4bc46",
        "29b1",
    );
    let mut digester = Digester::new(ObjectFormat::Sha1);
    digester.update(&from_hex(shattered).unwrap());
    let refusal = digester.finish().unwrap_err();
    assert_eq!(refusal.code, Code::TreeMismatch);
    assert_eq!(refusal.reason.as_deref(), Some("sha1_collision"));
}

#[test]
fn only_full_ids_parse() {
    for text in [
        "",
        "main",
        "HEAD",
        "0eb8d29",
        &SHA1.hello.to_uppercase(),
        &SHA1.hello[1..],
        &SHA256.hello[..63],
    ] {
        assert_eq!(ObjectId::parse(text).unwrap_err().code, Code::BadInput, "{text}");
    }
    assert_eq!(
        serde_json::to_string(&id(SHA1.hello)).unwrap(),
        format!("\"{}\"", SHA1.hello)
    );
    assert!(serde_json::from_str::<ObjectId>("\"main\"").is_err());
}

proptest! {
    #[test]
    fn order_of_entries_changes_nothing(names in proptest::collection::btree_set("[a-c.\\-0/]{1,8}", 1..12), turn in 0_usize..12) {
        let paths: BTreeSet<RelPath> = names.iter().filter_map(|n| RelPath::parse(n.as_bytes()).ok()).collect();
        let mut entries: Vec<_> = paths.into_iter().map(|p| (p, Mode::File, id(SHA1.hello))).collect();
        let first = tree_id(ObjectFormat::Sha1, entries.clone());
        if !entries.is_empty() {
            let by = turn % entries.len();
            entries.rotate_left(by);
            entries.reverse();
        }
        let mut objects = Vec::new();
        let second = tree_objects(ObjectFormat::Sha1, entries, |_, body| objects.push(body.to_vec()));
        prop_assert_eq!(first.is_ok(), second.is_ok());
        if let (Ok(a), Ok(b)) = (first, second) {
            prop_assert_eq!(a, b);
            for body in objects {
                prop_assert!(parse_tree(ObjectFormat::Sha1, &body).is_ok());
            }
        }
    }
}
