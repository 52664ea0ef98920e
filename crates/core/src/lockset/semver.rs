//! Whether a locked version satisfies a requirement of a Cargo manifest.
//!
//! Only Cargo's own grammar; npm's ranges are compared as text.

/// Holds a version as far as requirements look at it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    core: [u64; 3],
    /// Absent sorts last: a release is newer than its pre-releases.
    pre: Pre,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pre {
    Some(Vec<Part>),
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(u64),
    Text(String),
}

/// Says whether a locked version satisfies a requirement; `None` where one of them is not understood.
///
/// # Source
/// The Cargo Book, "Specifying Dependencies".
pub(super) fn satisfies(requirement: &str, version: &str) -> Option<bool> {
    let (version, _) = parse(version)?;
    let mut all = true;
    for part in requirement.split(',').map(str::trim) {
        all &= comparator(part, &version)?;
    }
    Some(all)
}

fn comparator(text: &str, version: &Version) -> Option<bool> {
    if text == "*" {
        return Some(matches!(version.pre, Pre::None));
    }
    let at = text.find(|c: char| !"^~=<>".contains(c))?;
    let (operator, wanted) = (&text[..at], text[at..].trim());
    let star = wanted.contains('*') || wanted.contains(['x', 'X']) && !wanted.contains('-');
    let (wanted, given) = parse(&wanted.replace(".*", "").replace(".x", "").replace(".X", ""))?;
    let below = |limit: [u64; 3]| version.core < limit;
    let [major, minor, patch] = wanted.core;
    let tilde = if given == 1 {
        [major + 1, 0, 0]
    } else {
        [major, minor + 1, 0]
    };
    // A pre-release is only taken by a requirement that itself names one of the same version.
    let pre_allowed = matches!(version.pre, Pre::None)
        || (matches!(wanted.pre, Pre::Some(_)) && wanted.core == version.core);
    let inside = match operator {
        "" if star => *version >= wanted && below(tilde),
        "" | "^" => {
            let limit = match (major, minor, given) {
                (0, 0, 3) => [0, 0, patch + 1],
                (0, _, 2 | 3) => [0, minor + 1, 0],
                _ => [major + 1, 0, 0],
            };
            *version >= wanted && below(limit)
        }
        "~" => *version >= wanted && below(tilde),
        "=" if given == 3 => *version == wanted,
        "=" => *version >= wanted && below(tilde),
        ">=" => *version >= wanted,
        ">" if given == 3 => *version > wanted,
        ">" => version.core >= tilde,
        "<" => *version < wanted,
        "<=" if given == 3 => *version <= wanted,
        "<=" => below(tilde),
        _ => return None,
    };
    Some(inside && pre_allowed)
}

/// Parses a version and counts how many of its numbers were given.
fn parse(text: &str) -> Option<(Version, usize)> {
    let text = text.split('+').next()?;
    let (core, pre) = match text.split_once('-') {
        Some((core, pre)) => (core, Some(pre)),
        None => (text, None),
    };
    let mut numbers = [0_u64; 3];
    let mut given = 0;
    for part in core.split('.') {
        *numbers.get_mut(given)? = part.parse().ok()?;
        given += 1;
    }
    let pre = match pre {
        None => Pre::None,
        Some(pre) => Pre::Some(
            pre.split('.')
                .map(|p| p.parse().map_or_else(|_| Part::Text(p.to_owned()), Part::Number))
                .collect(),
        ),
    };
    Some((Version { core: numbers, pre }, given))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_read_as_cargo_reads_them() {
        for (requirement, version, holds) in [
            ("1", "1.9.3", true),
            ("1.2.3", "1.2.2", false),
            ("1.2.3", "2.0.0", false),
            ("0.2.3", "0.2.9", true),
            ("0.2.3", "0.3.0", false),
            ("0.0.3", "0.0.4", false),
            ("0.0", "0.0.9", true),
            ("0", "0.9.0", true),
            ("~1.2", "1.2.9", true),
            ("~1.2", "1.3.0", false),
            ("~1", "1.9.0", true),
            ("=1.2.3", "1.2.3", true),
            ("=1.2.3", "1.2.4", false),
            ("=1.2", "1.2.4", true),
            ("1.2.*", "1.2.4", true),
            ("1.*", "2.0.0", false),
            ("*", "3.0.0", true),
            (">=1, <2", "1.5.0", true),
            (">=1, <2", "2.0.0", false),
            (">1.2", "1.2.9", false),
            ("<=1.2", "1.2.9", true),
            ("1.0.0-rc.1", "1.0.0-rc.2", true),
            ("1.0.0", "1.0.0-rc.2", false),
            ("1", "1.0.0+build5", true),
        ] {
            assert_eq!(
                satisfies(requirement, version),
                Some(holds),
                "{requirement} {version}"
            );
        }
        assert_eq!(satisfies("banana", "1.0.0"), None);
    }
}
