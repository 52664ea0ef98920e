//! Patterns for names and paths: `*`, `?`, `[…]`, `**`, `{a,b}`.
//!
//! A pattern without a slash is matched against a name, at any depth; one with a slash against the whole path below
//! where the search began. It does *not* walk, and knows no ignore file: [`crate::ignore`] reads those, and
//! matches with the same tokens.

use crate::code::{Code, Refusal};
use crate::path::shown;

/// Is a compiled pattern.
///
/// # Shape
/// `*` stands for any run of bytes without a slash, `?` for one such byte, `[a-c]`, `[!a]` and `[[:digit:]]` for one
/// of a set, `**` as a whole component for any number of directories, `{a,b}` for either, `\` takes the next byte as
/// it is. A leading `./` ties the pattern to where the search begins, a trailing `/` to directories.
///
/// # Limits
/// 1,024 bytes; 64 alternatives; matching takes time proportional to pattern times text, whatever the pattern is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob(Vec<Alternative>);

/// Says whether letters of another case match, for ASCII.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// They do not.
    Sensitive,
    /// They do.
    Insensitive,
}

/// Says what kind of entry is matched; some patterns match directories alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A directory itself, never a link to one.
    Directory,
    /// Anything else.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Alternative {
    directories_only: bool,
    /// Matched against the whole path, not the name alone.
    whole_path: bool,
    tokens: Vec<Token>,
}

const LONGEST: usize = 1024;
const ALTERNATIVES: usize = 64;

impl Glob {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// `bad_input` where it is empty, malformed, past the limits, absolute, or has a `..` component: such a pattern
    /// would match nothing, in silence.
    pub fn parse(text: &[u8], case: Case) -> Result<Self, Refusal> {
        if text.len() > LONGEST {
            return Err(bad(&text[..40], "a pattern has at most 1,024 bytes"));
        }
        let mut all = Vec::new();
        expand(text, &mut all).map_err(|why| bad(text, why))?;
        let compiled = all.iter().map(|one| alternative(one, case));
        let compiled: Result<_, &str> = compiled.collect();
        compiled.map(Self).map_err(|why| bad(text, why))
    }

    /// Says whether an entry matches, by its path below where the search began.
    #[must_use]
    pub fn matches(&self, below: &[u8], entry: Entry) -> bool {
        let name = below.rsplit(|b| *b == b'/').next().unwrap_or(below);
        self.0.iter().any(|one| {
            let fit = if one.whole_path { below } else { name };
            (!one.directories_only || entry == Entry::Directory) && fits(&one.tokens, fit)
        })
    }
}

fn bad(text: &[u8], why: &str) -> Refusal {
    Refusal::new(Code::BadInput, why)
        .reason("bad_pattern")
        .name(shown(text))
}

fn alternative(text: &[u8], case: Case) -> Result<Alternative, &'static str> {
    let tied = text.strip_prefix(b"./");
    let body = tied.unwrap_or(text);
    let directories_only = body.len() > 1 && body.ends_with(b"/") && !body.ends_with(b"\\/");
    let body = if directories_only {
        &body[..body.len() - 1]
    } else {
        body
    };
    if body.is_empty() {
        return Err("a pattern is not empty");
    }
    if body.starts_with(b"/") {
        return Err("a pattern is not absolute; ./ ties it to where the search begins");
    }
    if body
        .split(|b| *b == b'/')
        .any(|part| matches!(part, b".." | b"." | b""))
    {
        return Err("no path has such a component: .., . or an empty one");
    }
    let mut tokens = compile(body, true).ok_or("a [ is not closed, or a \\ stands at the end")?;
    if case == Case::Insensitive {
        tokens.iter_mut().for_each(Token::fold);
    }
    Ok(Alternative {
        directories_only,
        whole_path: tied.is_some() || body.contains(&b'/'),
        tokens,
    })
}

/// Writes a pattern with `{a,b}` out as all that it stands for.
fn expand(text: &[u8], all: &mut Vec<Vec<u8>>) -> Result<(), &'static str> {
    let mut todo = vec![text.to_vec()];
    while let Some(text) = todo.pop() {
        if all.len() + todo.len() >= ALTERNATIVES {
            return Err("a pattern stands for at most 64 alternatives");
        }
        let Some(Braces { open, close, commas }) = braces(&text)? else {
            all.push(text);
            continue;
        };
        let ends = commas.iter().copied().chain([close]);
        let starts = std::iter::once(open).chain(commas.iter().copied());
        let parts: Vec<Vec<u8>> = starts
            .zip(ends)
            .map(|(start, end)| [&text[..open], &text[start + 1..end], &text[close + 1..]].concat())
            .collect();
        todo.extend(parts.into_iter().rev());
    }
    Ok(())
}

/// Is a group of alternatives: where its braces and the commas between them stand.
struct Braces {
    open: usize,
    close: usize,
    commas: Vec<usize>,
}

/// Finds the first group of alternatives.
fn braces(text: &[u8]) -> Result<Option<Braces>, &'static str> {
    let (mut open, mut depth, mut commas) = (None, 0_usize, Vec::new());
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 1,
            b'[' => {
                // What a bracket expression holds is no brace; an open one is told where it is compiled.
                if let Some((_, next)) = class(text, at + 1) {
                    at = next - 1;
                }
            }
            b'{' => {
                open.get_or_insert(at);
                depth += 1;
            }
            b',' if depth == 1 => commas.push(at),
            b'}' if depth > 0 => {
                depth -= 1;
                if let (0, Some(open)) = (depth, open) {
                    return Ok(Some(Braces {
                        open,
                        close: at,
                        commas,
                    }));
                }
            }
            _ => {}
        }
        at += 1;
    }
    match open {
        Some(_) => Err("a { is not closed; \\{ is the brace itself"),
        None => Ok(None),
    }
}

impl Token {
    /// Takes letters of the other case, too.
    fn fold(&mut self) {
        match self {
            Token::Byte(byte) if byte.is_ascii_alphabetic() => {
                let mut set = [false; 256];
                set[usize::from(byte.to_ascii_lowercase())] = true;
                set[usize::from(byte.to_ascii_uppercase())] = true;
                *self = Token::Set(Box::new(Set(set)));
            }
            Token::Set(set) => {
                for letter in b'a'..=b'z' {
                    let (low, high) = (usize::from(letter), usize::from(letter.to_ascii_uppercase()));
                    let either = set.0[low] || set.0[high];
                    (set.0[low], set.0[high]) = (either, either);
                }
            }
            Token::Byte(_) | Token::Name | Token::Any | Token::Directories => {}
        }
    }
}

/// Is one part of a compiled pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    /// This byte.
    Byte(u8),
    /// One byte of a set.
    Set(Box<Set>),
    /// Any run of bytes without a slash.
    Name,
    /// Any run of bytes.
    Any,
    /// Nothing, or any run of bytes that ends in a slash.
    Directories,
}

/// Is a set of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set([bool; 256]);

/// Compiles a pattern; `None` where it is malformed, which in git means that it never matches.
///
/// `**` crosses slashes only as a whole component; a `**` behind other text is a plain `*` here, as it is in
/// gitignore(5) and in git from 2.52 on (older ones crossed slashes for `text**/`).
pub(crate) fn compile(pattern: &[u8], anchored: bool) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < pattern.len() {
        match pattern[at] {
            b'\\' => {
                tokens.push(Token::Byte(*pattern.get(at + 1)?));
                at += 2;
            }
            b'?' => {
                let mut set = Set([true; 256]);
                set.0[usize::from(b'/')] = !anchored;
                tokens.push(Token::Set(Box::new(set)));
                at += 1;
            }
            b'*' => {
                let stars = pattern[at..].iter().take_while(|b| **b == b'*').count();
                let rest = &pattern[at + stars..];
                let whole = stars > 1
                    && (at == 0 || pattern[at - 1] == b'/')
                    && (rest.is_empty() || rest.starts_with(b"/") || rest.starts_with(b"\\/"));
                at += stars;
                tokens.push(match (anchored, whole) {
                    (false, _) => Token::Any,
                    (true, false) => Token::Name,
                    (true, true) if rest.starts_with(b"/") => {
                        at += 1;
                        Token::Directories
                    }
                    (true, true) => Token::Any,
                });
            }
            b'[' => {
                let (mut set, next) = class(pattern, at + 1)?;
                if anchored {
                    set.0[usize::from(b'/')] = false;
                }
                tokens.push(Token::Set(Box::new(set)));
                at = next;
            }
            byte => {
                tokens.push(Token::Byte(byte));
                at += 1;
            }
        }
    }
    Some(tokens)
}

/// Parses a bracket expression from behind its `[`; gives the set and the place behind its `]`.
fn class(pattern: &[u8], mut at: usize) -> Option<(Set, usize)> {
    let mut set = [false; 256];
    let negated = matches!(pattern.get(at), Some(b'!' | b'^'));
    at += usize::from(negated);
    let mut before: Option<u8> = None;
    let mut first = true;
    loop {
        let byte = *pattern.get(at)?;
        if byte == b']' && !first {
            break;
        }
        first = false;
        let next = pattern.get(at + 1).copied();
        match (byte, before, next) {
            (b'\\', _, _) => {
                let escaped = next?;
                set[usize::from(escaped)] = true;
                before = Some(escaped);
                at += 2;
            }
            (b'-', Some(low), Some(high)) if high != b']' => {
                at += 1;
                let mut high = high;
                if high == b'\\' {
                    at += 1;
                    high = *pattern.get(at)?;
                }
                for b in low..=high {
                    set[usize::from(b)] = true;
                }
                before = None;
                at += 1;
            }
            (b'[', _, Some(b':')) => {
                let name = at + 2;
                let close = name + pattern[name..].iter().position(|b| *b == b']')?;
                if close > name && pattern[close - 1] == b':' {
                    let member = named(&pattern[name..close - 1])?;
                    for b in 0..=127_u8 {
                        set[usize::from(b)] |= member(b);
                    }
                    before = None;
                    at = close + 1;
                } else {
                    set[usize::from(b'[')] = true;
                    before = Some(b'[');
                    at += 1;
                }
            }
            _ => {
                set[usize::from(byte)] = true;
                before = Some(byte);
                at += 1;
            }
        }
    }
    if negated {
        for member in &mut set {
            *member = !*member;
        }
    }
    Some((Set(set), at + 1))
}

/// Finds a named class, with the members that git's own character table gives it.
fn named(name: &[u8]) -> Option<fn(u8) -> bool> {
    Some(match name {
        b"alnum" => |b| b.is_ascii_alphanumeric(),
        b"alpha" => |b| b.is_ascii_alphabetic(),
        b"blank" => |b| b == b' ' || b == b'\t',
        b"cntrl" => |b| b.is_ascii_control(),
        b"digit" => |b| b.is_ascii_digit(),
        b"graph" => |b| b.is_ascii_graphic(),
        b"lower" => |b| b.is_ascii_lowercase(),
        b"print" => |b| b.is_ascii_graphic() || b == b' ',
        b"punct" => |b| b.is_ascii_punctuation(),
        b"space" => |b| matches!(b, b' ' | b'\t' | b'\n' | b'\r'),
        b"upper" => |b| b.is_ascii_uppercase(),
        b"xdigit" => |b| b.is_ascii_hexdigit(),
        _ => return None,
    })
}

/// Matches the whole text, in time proportional to pattern times text whatever the pattern is.
pub(crate) fn fits(tokens: &[Token], text: &[u8]) -> bool {
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for token in tokens {
        let mut next = vec![false; text.len() + 1];
        let mut open = false;
        for at in 0..=text.len() {
            let before = at.checked_sub(1).map(|i| text[i]);
            match token {
                Token::Byte(byte) => next[at] = before == Some(*byte) && reached[at - 1],
                Token::Set(set) => {
                    next[at] = before.is_some_and(|b| set.0[usize::from(b)]) && reached[at - 1];
                }
                Token::Name => {
                    open = (open && before != Some(b'/')) || reached[at];
                    next[at] = open;
                }
                Token::Any => {
                    open |= reached[at];
                    next[at] = open;
                }
                Token::Directories => {
                    next[at] = reached[at] || (open && before == Some(b'/'));
                    open |= reached[at];
                }
            }
        }
        reached = next;
    }
    reached[text.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, below: &str) -> bool {
        let glob = Glob::parse(pattern.as_bytes(), Case::Sensitive).unwrap();
        glob.matches(below.as_bytes(), Entry::Other)
    }

    #[test]
    fn patterns_mean_what_people_expect() {
        for (pattern, below, wanted) in [
            ("*.rs", "a.rs", true),
            ("*.rs", "src/deep/a.rs", true),
            ("./*.rs", "a.rs", true),
            ("./*.rs", "src/a.rs", false),
            ("src/*.rs", "src/a.rs", true),
            ("src/*.rs", "src/b/a.rs", false),
            ("src/*.rs", "x/src/a.rs", false),
            ("**/*.rs", "a.rs", true),
            ("**/*.rs", "x/y/a.rs", true),
            ("src/**", "src/a/b", true),
            ("src/**", "src", false),
            ("src/**/b", "src/b", true),
            ("**", "anything/at/all", true),
            ("*.{rs,toml}", "Cargo.toml", true),
            ("*.{rs,toml}", "Cargo.lock", false),
            ("{src,tests/{a,b}}/x", "tests/b/x", true),
            ("{src,tests/{a,b}}/x", "tests/x", false),
            ("a{,b}c", "ac", true),
            ("a\\{b", "a{b", true),
            ("a}b", "a}b", true),
            ("[{,]x", "{x", true),
            ("[!a]x", "bx", true),
            ("[!a]x", "ax", false),
            ("*.[ch]", "dir/x.h", true),
            ("?.c", "\u{e9}.c", false),
            ("??.c", "\u{e9}.c", true),
            ("*", ".hidden", true),
            ("A*", "abc", false),
        ] {
            assert_eq!(matches(pattern, below), wanted, "{pattern} {below}");
        }
        let folded = Glob::parse(b"re[a-d]dme*.MD", Case::Insensitive).unwrap();
        assert!(folded.matches(b"docs/README-x.md", Entry::Other));
        let directories = Glob::parse(b"build/", Case::Sensitive).unwrap();
        assert!(directories.matches(b"x/build", Entry::Directory));
        assert!(!directories.matches(b"x/build", Entry::Other));
        let bytes = Glob::parse(b"bad\xff*", Case::Sensitive).unwrap();
        assert!(bytes.matches(b"bad\xff\xfe", Entry::Other));
    }

    #[test]
    fn what_can_match_nothing_is_refused() {
        let long = "x".repeat(LONGEST + 1);
        let many = "{a,b}".repeat(7);
        for pattern in [
            "", "/", "/etc/*", "../x", "a/../b", "a//b", "a/./b", "a{b", "{a,{b}", "[a", "a\\", "./", &long,
            &many,
        ] {
            let refusal = Glob::parse(pattern.as_bytes(), Case::Sensitive).unwrap_err();
            assert_eq!(refusal.code, Code::BadInput, "{pattern}");
            assert_eq!(refusal.reason.as_deref(), Some("bad_pattern"), "{pattern}");
        }
        assert!(Glob::parse("{a,b}".repeat(5).as_bytes(), Case::Sensitive).is_ok());
    }

    proptest! {
        #[test]
        fn no_pattern_breaks_the_parser(
            text in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'{'), Just(b'}'), Just(b','), Just(b'['), Just(b'*'), Just(b'/')], 0..40),
            below in "[a-c/]{1,12}",
        ) {
            if let Ok(glob) = Glob::parse(&text, Case::Insensitive) {
                let once = glob.matches(below.as_bytes(), Entry::Other);
                prop_assert_eq!(once, glob.matches(below.as_bytes(), Entry::Other));
            }
        }

        #[test]
        fn a_plain_name_matches_itself_alone(name in "[a-z]{1,8}", other in "[a-z]{1,8}") {
            prop_assert_eq!(matches(&name, &other), name == other);
        }
    }
}
