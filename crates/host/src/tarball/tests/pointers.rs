//! Files that Git LFS keeps.

use super::*;
use semel_core::lfs::Pointer;

#[test]
fn the_pointer_of_git_lfs_is_sealed_and_no_content_that_it_does_not_name() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, proposals) = (dir.path().join("tree"), dir.path().join("proposals"));
    std::fs::create_dir(&tree).unwrap();
    let content = vec![7_u8; 300_000];
    let pointer = |content: &[u8]| {
        let (digest, size) = (Sha256::of(content), content.len());
        let text = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {size}\n");
        Pointer::parse(text.as_bytes()).unwrap()
    };
    let (first, second) = (pointer(&content), pointer(b"small"));
    let root = Root::open(&tree).unwrap();
    let seal = || {
        let mut choose = |path: &RelPath, _: FileKind| {
            Ok(match path.as_bytes() {
                b"big.bin" => Choice::TakePointer(first.clone()),
                b"small.bin" => Choice::TakePointer(second.clone()),
                _ => Choice::Take,
            })
        };
        pack(&root, &mut choose, LIMITS, SHA1, &proposals)
    };
    let put = |big: &[u8], small: &[u8]| {
        std::fs::write(tree.join("a"), b"a").unwrap();
        std::fs::write(tree.join("big.bin"), big).unwrap();
        std::fs::write(tree.join("small.bin"), small).unwrap();
    };
    put(&first.text, &second.text);
    let pointers = seal().unwrap();
    put(&content, b"small");
    assert_eq!(seal().unwrap(), pointers, "git holds the pointers either way");
    let (mut longer, mut other) = (content.clone(), content.clone());
    longer.push(7);
    other[299_999] = 6;
    for wrong in [&longer[..], &other, &content[1..], b"", b"small"] {
        put(wrong, b"small");
        let refusal = seal().unwrap_err().into_refusal();
        assert_eq!(
            (refusal.code, refusal.reason.as_deref(), &refusal.names[..]),
            (
                Code::TreeMismatch,
                Some("lfs_content"),
                &["big.bin".to_owned()][..]
            )
        );
    }
    // Another pointer is a change like any other.
    put(&second.text, b"small");
    let changed = seal().unwrap();
    assert_ne!(changed.tree, pointers.tree);
    let [.., big, _] = &changed.manifest.entries[..] else {
        panic!("{:?}", changed.manifest.entries);
    };
    assert!(matches!(big, Entry::File { sha256, .. } if *sha256 == Sha256::of(&second.text)));
}
