//! One pattern without alternatives: the matcher below ignore rules, reads and policies.
//!
//! It knows `*`, `?`, `[…]`, `**` and `\`; what a pattern is matched against, and what follows from a match, is the
//! business of whoever asks.

use crate::path::folded;

/// Says whether a slash is a byte like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slash {
    /// It divides names: `*`, `?` and sets stop at it, and only a `**` that is a whole name crosses it.
    Divides,
    /// It is a byte like any other.
    Plain,
}

/// Is a pattern, compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matcher {
    tokens: Vec<Token>,
}

impl Matcher {
    /// Compiles a pattern; `None` where it is malformed, which in git means that it never matches.
    ///
    /// `**` crosses slashes only as a whole component; a `**` behind other text is a plain `*` here, as it is in
    /// gitignore(5) and in git from 2.52 on (older ones crossed slashes for `text**/`).
    #[must_use]
    pub fn compile(pattern: &[u8], slash: Slash) -> Option<Self> {
        compile(pattern, slash).map(|tokens| Self { tokens })
    }

    /// Says whether the pattern is the empty text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Matches the whole text, in time proportional to pattern times text whatever the pattern is.
    #[must_use]
    pub fn matches(&self, text: &[u8]) -> bool {
        self.run(text).last().copied().unwrap_or(false)
    }

    /// Says whether any longer text that begins with this one could match; it may say so too often, never too seldom.
    #[must_use]
    pub fn could_match_beyond(&self, text: &[u8]) -> bool {
        let mut reached = self.run(text);
        let whole = reached.pop().unwrap_or(false);
        let open = matches!(
            self.tokens.last(),
            Some(Token::Name | Token::Any | Token::Directories)
        );
        reached.contains(&true) || (whole && open)
    }

    /// Gives the pattern that matches texts once their names are folded: by case and by composition.
    #[must_use]
    pub fn folded(&self) -> Self {
        let mut tokens = Vec::with_capacity(self.tokens.len());
        let mut literal = Vec::new();
        let flush = |literal: &mut Vec<u8>, tokens: &mut Vec<Token>| {
            tokens.extend(folded(literal).into_iter().map(Token::Byte));
            literal.clear();
        };
        for token in &self.tokens {
            match token {
                Token::Byte(byte) => literal.push(*byte),
                Token::Set(set) => {
                    flush(&mut literal, &mut tokens);
                    tokens.push(Token::Set(Box::new(set.folded())));
                }
                other @ (Token::Name | Token::Any | Token::Directories) => {
                    flush(&mut literal, &mut tokens);
                    tokens.push(other.clone());
                }
            }
        }
        flush(&mut literal, &mut tokens);
        Self { tokens }
    }

    /// Gives the pattern that takes letters of the other case, too, for ASCII.
    pub(super) fn either_case(mut self) -> Self {
        self.tokens.iter_mut().for_each(Token::fold);
        self
    }

    /// Tells of each number of leading tokens whether they match the whole text.
    fn run(&self, text: &[u8]) -> Vec<bool> {
        let mut reached = vec![false; text.len() + 1];
        reached[0] = true;
        let mut ends = vec![reached[text.len()]];
        for token in &self.tokens {
            let mut next = vec![false; text.len() + 1];
            let mut open = false;
            for at in 0..=text.len() {
                let before = at.checked_sub(1).map(|i| text[i]);
                match token {
                    Token::Byte(byte) => next[at] = before == Some(*byte) && reached[at - 1],
                    Token::Set(set) => {
                        next[at] = before.is_some_and(|b| set.holds[usize::from(b)]) && reached[at - 1];
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
            ends.push(reached[text.len()]);
        }
        ends
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
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

impl Token {
    /// Takes letters of the other case, too.
    fn fold(&mut self) {
        match self {
            Token::Byte(byte) if byte.is_ascii_alphabetic() => {
                let mut set = [false; 256];
                set[usize::from(byte.to_ascii_lowercase())] = true;
                set[usize::from(byte.to_ascii_uppercase())] = true;
                *self = Token::Set(Box::new(Set {
                    holds: set,
                    written: Written::Plain,
                }));
            }
            Token::Set(set) => {
                for letter in b'a'..=b'z' {
                    let (low, high) = (usize::from(letter), usize::from(letter.to_ascii_uppercase()));
                    let either = set.holds[low] || set.holds[high];
                    (set.holds[low], set.holds[high]) = (either, either);
                }
            }
            Token::Byte(_) | Token::Name | Token::Any | Token::Directories => {}
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Set {
    holds: [bool; 256],
    written: Written,
}

/// Says how a set was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// By what it holds.
    Plain,
    /// By what it does not hold.
    Negated,
}

impl Set {
    /// Gives the set for folded texts, which have no upper case: a letter is in where either case of it was written
    /// in, and out where either was written out.
    fn folded(&self) -> Self {
        let mut folded = self.clone();
        for upper in b'A'..=b'Z' {
            let lower = usize::from(upper.to_ascii_lowercase());
            let (one, other) = (self.holds[usize::from(upper)], self.holds[lower]);
            folded.holds[lower] = match self.written {
                Written::Plain => one || other,
                Written::Negated => one && other,
            };
        }
        folded
    }
}

fn compile(pattern: &[u8], slash: Slash) -> Option<Vec<Token>> {
    let anchored = slash == Slash::Divides;
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < pattern.len() {
        match pattern[at] {
            b'\\' => {
                tokens.push(Token::Byte(*pattern.get(at + 1)?));
                at += 2;
            }
            b'?' => {
                let mut set = Set {
                    holds: [true; 256],
                    written: Written::Negated,
                };
                set.holds[usize::from(b'/')] = !anchored;
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
                    set.holds[usize::from(b'/')] = false;
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

/// Finds the place behind the `]` of a bracket expression, from behind its `[`.
pub(super) fn class_end(pattern: &[u8], at: usize) -> Option<usize> {
    class(pattern, at).map(|(_, next)| next)
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
    let written = if negated { Written::Negated } else { Written::Plain };
    Some((Set { holds: set, written }, at + 1))
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
