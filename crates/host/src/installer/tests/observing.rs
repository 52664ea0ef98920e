use super::*;
use proptest::prelude::*;
use semel_core::Sha256;
use semel_core::install::{Kind, Observed};
use std::os::unix::fs::PermissionsExt;

fn look(root: &Path) -> Result<Observed> {
    observe(root, Kind::Node, &path("tree/node_modules"))
}

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

#[test]
fn sees_modes_content_and_links_without_following() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    std::fs::write(root.join("a/b/f"), "text").unwrap();
    std::fs::set_permissions(root.join("a/b/f"), PermissionsExt::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("/etc", root.join("out")).unwrap();
    let fifo = root.join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let observed = look(&root).unwrap();
    assert_eq!(observed.entries.len(), 5);
    assert_eq!(
        observed.entries[&path("a/b/f")],
        Fact::File {
            mode: 0o640,
            size: 4,
            sha256: Sha256::of(b"text"),
        }
    );
    assert_eq!(
        observed.entries[&path("out")],
        Fact::Symlink {
            target: b"/etc".to_vec(),
        }
    );
    assert_eq!(observed.entries[&path("fifo")], Fact::Other);
}

#[test]
fn a_root_that_is_missing_or_a_link_is_no_installation() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(refused(look(&dir.path().join("none"))).code, Code::UnknownState);
    std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
    assert_eq!(refused(look(&dir.path().join("link"))).code, Code::UnknownState);
}

/// An installed file that shares its inode with a cache can be changed from there.
#[test]
fn a_hard_link_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(dir.path().join("cached"), "x").unwrap();
    std::fs::hard_link(dir.path().join("cached"), root.join("f")).unwrap();
    let refusal = refused(look(&root));
    assert_eq!(refusal.code, Code::RecordOutsideRoot);
    assert_eq!(
        (refusal.reason.as_deref(), refusal.names),
        (Some("hard_link"), vec!["f".to_owned()])
    );
}

/// `/dev` has mounts of its own on most machines; none of its devices is ever opened.
#[test]
fn a_mount_beneath_the_root_is_refused() {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    if places.filter(|place| place.starts_with("/dev/")).count() == 0 {
        return skipped("no mount lies beneath /dev");
    }
    let refusal = refused(look(Path::new("/dev")));
    assert_eq!(refusal.code, Code::RecordOutsideRoot);
    assert_eq!(refusal.reason.as_deref(), Some("mount"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_change_of_content_or_mode_is_seen(content in "[a-z]{1,20}", other in "[a-z]{1,20}", mode in 0o400_u32..0o777) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, &content).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        let before = look(dir.path()).unwrap();
        std::fs::write(&file, &other).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        let after = look(dir.path()).unwrap();
        prop_assert_eq!(before.entries == after.entries, content == other && mode == 0o644);
    }
}
