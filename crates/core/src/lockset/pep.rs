//! The small part of PEP 503, 440 and 508 that comparing a lock with a manifest needs.
//!
//! Names, extras and specifiers are normalised as text; nothing is evaluated.

use std::collections::BTreeSet;

/// Normalises the name of a Python project or extra.
///
/// # Source
/// PEP 503, "Normalized Names".
#[must_use]
pub fn normal_name(name: &str) -> String {
    let mut normal = String::with_capacity(name.len());
    for part in name.trim().split(['-', '_', '.']).filter(|p| !p.is_empty()) {
        if !normal.is_empty() {
            normal.push('-');
        }
        normal.push_str(&part.to_ascii_lowercase());
    }
    normal
}

/// Holds one requirement, split but not evaluated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Requirement {
    /// The normalised name.
    pub(super) name: String,
    /// The normalised extras.
    pub(super) extras: BTreeSet<String>,
    /// The specifiers, without spaces, sorted.
    pub(super) specifier: BTreeSet<String>,
    /// What stands behind `@`.
    pub(super) url: Option<String>,
    /// What stands behind `;`.
    pub(super) marker: Option<String>,
}

impl Requirement {
    /// Splits a requirement such as `coverage[toml] >= 7.6 ; python_version < "3.12"`.
    pub(super) fn parse(text: &str) -> Option<Requirement> {
        let (head, marker) = split_marker(text);
        let (head, url) = match head.split_once('@') {
            Some((head, url)) => (head, Some(url.trim().to_owned())),
            None => (head, None),
        };
        let head = head.trim();
        let end = head
            .find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)))
            .unwrap_or(head.len());
        let name = &head[..end];
        let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        if !edge(name.as_bytes().first()) || !edge(name.as_bytes().last()) {
            return None;
        }
        let mut rest = head[end..].trim();
        let mut extras = BTreeSet::new();
        if let Some(inner) = rest.strip_prefix('[') {
            let (inside, after) = inner.split_once(']')?;
            extras.extend(inside.split(',').map(normal_name).filter(|e| !e.is_empty()));
            rest = after.trim();
        }
        if let Some(inner) = rest.strip_prefix('(') {
            rest = inner.strip_suffix(')')?.trim();
        }
        if url.is_some() && !rest.is_empty() {
            return None;
        }
        Some(Requirement {
            name: normal_name(name),
            extras,
            specifier: specifier(rest)?,
            url,
            marker: marker.map(|m| m.trim().to_owned()),
        })
    }

    /// Gives the version where it is pinned to exactly one.
    pub(super) fn pinned(&self) -> Option<&str> {
        let mut all = self.specifier.iter();
        let (Some(only), None) = (all.next(), all.next()) else {
            return None;
        };
        let version = only.strip_prefix("===").or_else(|| only.strip_prefix("=="))?;
        (!version.contains('*')).then_some(version)
    }

    /// Gives the form in which two requirements are compared: markers left out.
    pub(super) fn plain(&self) -> String {
        plain(&self.name, &self.extras, &self.specifier)
    }
}

/// Writes name, extras and specifier in one normal form.
pub(super) fn plain(name: &str, extras: &BTreeSet<String>, specifier: &BTreeSet<String>) -> String {
    let mut text = name.to_owned();
    if !extras.is_empty() {
        let all: Vec<&str> = extras.iter().map(String::as_str).collect();
        text.push_str(&format!("[{}]", all.join(",")));
    }
    let all: Vec<&str> = specifier.iter().map(String::as_str).collect();
    text.push_str(&all.join(","));
    text
}

/// Splits specifiers; `None` where one has no operator or no version.
pub(super) fn specifier(text: &str) -> Option<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let at = part.find(|c: char| !"<>=!~".contains(c))?;
        let (operator, version) = (&part[..at], part[at..].trim());
        let known = ["===", "==", "~=", "!=", "<=", ">=", "<", ">"].contains(&operator);
        let odd = |c: char| !(c.is_ascii_alphanumeric() || "._-+!*".contains(c));
        if !known || version.is_empty() || version.contains(odd) {
            return None;
        }
        all.insert(format!("{operator}{}", normal_version(version)));
    }
    Some(all)
}

/// Normalises the spelling of a version as far as text goes: case, a leading `v`, and separators of pre-releases.
///
/// # Source
/// PEP 440, "Normalization".
pub(crate) fn normal_version(text: &str) -> String {
    let lower = text.trim().trim_start_matches(['v', 'V']).to_ascii_lowercase();
    let (public, local) = match lower.split_once('+') {
        Some((public, local)) => (public, Some(local.replace(['-', '_'], "."))),
        None => (lower.as_str(), None),
    };
    let mut normal = String::new();
    let mut rest = public;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        if digits > 0 {
            let number = rest[..digits].trim_start_matches('0');
            normal.push_str(if number.is_empty() { "0" } else { number });
            rest = &rest[digits..];
            continue;
        }
        let letters = rest
            .find(|c: char| c.is_ascii_digit() || "!*".contains(c))
            .unwrap_or(rest.len());
        let (between, after) = rest.split_at(letters.max(1));
        let word: String = between.chars().filter(char::is_ascii_alphabetic).collect();
        normal.push_str(match word.as_str() {
            "" if between == "." || between == "*" || between == "!" => between,
            "" if between == "-" => ".post",
            "" => ".",
            "alpha" => "a",
            "beta" => "b",
            "c" | "pre" | "preview" => "rc",
            "post" | "rev" | "r" => ".post",
            "dev" => ".dev",
            other => other,
        });
        rest = after;
    }
    if let Some(local) = local {
        normal.push('+');
        normal.push_str(&local);
    }
    normal
}

fn split_marker(text: &str) -> (&str, Option<&str>) {
    // In a URL requirement only ` ;` ends the URL.
    let cut = if text.contains('@') {
        text.find(" ;")
    } else {
        text.find(';')
    };
    match cut {
        Some(at) => {
            let (head, marker) = text.split_at(at);
            (head, Some(marker.trim_start().trim_start_matches(';')))
        }
        None => (text, None),
    }
}

/// Finds the extra that a marker of a lock asks for, such as `black` in `extra == 'black'`.
pub(super) fn extra_of(marker: &str) -> Option<String> {
    let (_, rest) = marker.split_once("extra ==")?;
    let rest = rest.trim_start();
    let quote = rest.chars().next().filter(|c| *c == '\'' || *c == '"')?;
    let (name, _) = rest[1..].split_once(quote)?;
    Some(normal_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_versions_are_normalised() {
        assert_eq!(normal_name("Typing__Extensions.X"), "typing-extensions-x");
        for (given, normal) in [
            ("1.0", "1.0"),
            ("v1.0-RC.1", "1.0rc1"),
            ("1.0-1", "1.0.post1"),
            ("2024.2.0.20241221", "2024.2.0.20241221"),
            ("1!2.0", "1!2.0"),
            ("3.*", "3.*"),
            ("1.0.dev3", "1.0.dev3"),
            ("1.0b2.post345.dev456", "1.0b2.post345.dev456"),
            ("0.3.0a0", "0.3.0a0"),
            ("1.0+ubuntu-1", "1.0+ubuntu.1"),
            ("2025.02.1", "2025.2.1"),
        ] {
            assert_eq!(normal_version(given), normal, "{given}");
        }
    }

    #[test]
    fn requirements_are_split() {
        let r = Requirement::parse("Coverage[toml, X_y] >=7.6 , <8 ; python_version < '3.12'").unwrap();
        assert_eq!(r.plain(), "coverage[toml,x-y]<8,>=7.6");
        assert_eq!(r.marker.as_deref(), Some("python_version < '3.12'"));
        assert_eq!(
            Requirement::parse("six==1.17.0").unwrap().pinned(),
            Some("1.17.0")
        );
        assert_eq!(Requirement::parse("six==1.*").unwrap().pinned(), None);
        assert_eq!(Requirement::parse("six (>=1)").unwrap().plain(), "six>=1");
        let url = Requirement::parse("a @ https://x.test/a.whl ; os_name == 'nt'").unwrap();
        assert_eq!(url.url.as_deref(), Some("https://x.test/a.whl"));
        for bad in ["", "-x", "a b", "a==", "a>>1", "a[x", "a ~ 1"] {
            assert_eq!(Requirement::parse(bad), None, "{bad}");
        }
        assert_eq!(
            extra_of("python_version < '3' and extra == 'Black'"),
            Some("black".to_owned())
        );
    }
}
