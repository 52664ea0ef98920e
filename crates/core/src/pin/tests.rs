//! Every part of an identity counts.

use super::*;

type Part = fn(&mut Found) -> &mut Option<Spot>;

fn spot(path: &str, inode: u64) -> Spot {
    Spot {
        path: PathBytes::new(path).unwrap(),
        device: 7,
        inode,
        file: FileId::parse(format!("h:1:{inode:x}")).unwrap(),
    }
}

fn linked(back: &str) -> Layout {
    let bytes = |text: &str| PathBytes::new(text).unwrap();
    Layout::Linked {
        dot_git: bytes("gitdir: /r/.git/worktrees/w"),
        gitdir: bytes(back),
        commondir: bytes("../.."),
    }
}

fn pin() -> Pin {
    Pin {
        semel_pin: Pin::VERSION,
        id: PinId::parse("0123456789abcdef0123").unwrap(),
        worktree: spot("/w", 1),
        gitdir: spot("/r/.git/worktrees/w", 2),
        common: spot("/r/.git", 3),
        layout: linked("/w/.git"),
        format: ObjectFormat::Sha1,
        origin: Origin::Found,
        at: UnixMs(5),
    }
}

fn found(pin: &Pin) -> Found {
    Found {
        worktree: Some(pin.worktree.clone()),
        gitdir: Some(pin.gitdir.clone()),
        common: Some(pin.common.clone()),
        layout: Some(pin.layout.clone()),
    }
}

#[test]
fn every_part_of_an_identity_counts() {
    let pin = pin();
    pin.hold_against(&found(&pin)).unwrap();
    let changes: [fn(&mut Spot); 4] = [
        |spot| spot.path = PathBytes::new("/other").unwrap(),
        |spot| spot.device += 1,
        |spot| spot.inode += 1,
        |spot| spot.file = FileId::parse("h:1:ff").unwrap(),
    ];
    let parts: [(&str, Part); 3] = [
        ("worktree_changed", |found| &mut found.worktree),
        ("gitdir_changed", |found| &mut found.gitdir),
        ("common_changed", |found| &mut found.common),
    ];
    let refused = |found: &Found, reason: &str| {
        let refusal = pin.hold_against(found).unwrap_err();
        assert_eq!(refusal.code, Code::WorktreeRedirected);
        assert_eq!(refusal.reason.as_deref(), Some(reason));
        assert_eq!(refusal.names, ["/w"]);
    };
    for (reason, part) in parts {
        for change in changes {
            let mut other = found(&pin);
            change(part(&mut other).as_mut().unwrap());
            refused(&other, reason);
        }
        let mut other = found(&pin);
        *part(&mut other) = None;
        refused(&other, reason);
    }
    for layout in [None, Some(Layout::Main), Some(linked("/x/.git"))] {
        let mut other = found(&pin);
        other.layout = layout;
        refused(&other, "pointers_changed");
    }
}

#[test]
fn a_pin_is_read_as_it_was_written_and_nothing_else_is_one() {
    let mut pin = pin();
    pin.worktree.path = PathBytes::new(&b"/w\xff\n"[..]).unwrap();
    pin.common.path = PathBytes::new("b64:x").unwrap();
    let bytes = pin.to_json().unwrap();
    assert_eq!(Pin::parse(&bytes).unwrap(), pin);
    let text = String::from_utf8(bytes).unwrap();
    for other in [
        text.replace("\"semel_pin\":1", "\"semel_pin\":2"),
        text.replace("\"inode\":2", "\"inode\":2,\"more\":1"),
        text.replace("0123456789abcdef0123", "../../../../../../x"),
        text[..text.len() - 3].to_owned(),
        String::new(),
    ] {
        let refusal = Pin::parse(other.as_bytes()).unwrap_err();
        assert_eq!(refusal.code, Code::UnknownState, "{other}");
    }
}

#[test]
fn a_worktree_that_has_to_be_pinned_is_refused_unless_it_is() {
    let pin = pin();
    require(Some(&pin), b"/w").unwrap();
    let refusal = require(None, b"/w").unwrap_err();
    assert_eq!(refusal.code, Code::WorktreeRedirected);
    assert_eq!(refusal.reason.as_deref(), Some("not_pinned"));
}

#[test]
fn only_what_is_wholly_gone_is_gone() {
    let pin = pin();
    let mut seen = found(&pin);
    assert!(!pin.is_gone(&seen));
    seen.worktree = None;
    assert!(!pin.is_gone(&seen));
    seen.gitdir = None;
    assert!(pin.is_gone(&seen));
}
