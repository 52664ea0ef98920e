//! The names that git refuses to hold, on whatever filesystem they would be harmless.
//!
//! # Source
//! git 2.47, `read-cache.c` `verify_path`, `path.c` `is_ntfs_dotgit`, `utf8.c` `is_hfs_dotgit`; git applies the
//! NTFS rule everywhere and the HFS rule in `fsck`, which the large hosts run on every push.

/// Says whether a component may stand in a tree.
pub(super) fn holdable(name: &[u8]) -> bool {
    let plain = !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0);
    plain && !ntfs_alias(name, &[b".git", b"git~1"]) && !hfs_dot_git(name)
}

/// Says whether a component is `.gitmodules` in some disguise; such an entry may not be a link.
pub(super) fn is_gitmodules(name: &[u8]) -> bool {
    let short = |n: u8| [b"gitmod~".as_slice(), &[n]].concat();
    let (one, two, three, four) = (short(b'1'), short(b'2'), short(b'3'), short(b'4'));
    ntfs_alias(name, &[b".gitmodules", &one, &two, &three, &four])
}

/// NTFS ignores case, trailing dots and spaces, and what follows a colon; a backslash ends the component.
fn ntfs_alias(name: &[u8], reserved: &[&[u8]]) -> bool {
    let end = name
        .iter()
        .position(|b| matches!(b, b':' | b'\\'))
        .unwrap_or(name.len());
    let keep = name[..end]
        .iter()
        .rposition(|b| !matches!(b, b'.' | b' '))
        .map_or(0, |at| at + 1);
    reserved.iter().any(|r| r.eq_ignore_ascii_case(&name[..keep]))
}

/// HFS+ ignores case and a set of invisible characters.
fn hfs_dot_git(name: &[u8]) -> bool {
    let Ok(text) = core::str::from_utf8(name) else {
        return false;
    };
    let ignored = |c: &char| matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}');
    text.chars()
        .filter(|c| !ignored(c))
        .collect::<String>()
        .eq_ignore_ascii_case(".git")
}
