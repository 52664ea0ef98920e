//! The strict subset of YAML that pnpm and Yarn write.
//!
//! Block mappings and lists by indentation, one-line flow collections, the three ways to quote, and literal text.
//! What the two tools never write (anchors, tags, tabs, several documents, folded plain text, a key that stands
//! twice) is refused, so that there is one way to read a file, whoever reads it.

/// Says what is wrong, and in which line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) line: usize,
    pub(super) why: &'static str,
}

/// Holds a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// Nothing stands behind the key.
    Empty,
    /// A scalar, as text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// A mapping; each key with its line.
    Map(Vec<Entry>),
}

/// Holds one entry of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) value: Node,
}

const DEEPEST: usize = 16;

impl Node {
    /// Gives the entries of a mapping; none for anything else.
    pub(super) fn entries(&self) -> &[Entry] {
        match self {
            Node::Map(all) => all,
            Node::Empty | Node::Text(_) | Node::List(_) => &[],
        }
    }

    /// Gives what stands behind a key of a mapping.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|e| e.key == key).map(|e| &e.value)
    }

    /// Gives a scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Node::Text(text) => Some(text),
            Node::Empty | Node::List(_) | Node::Map(_) => None,
        }
    }

    /// Gives the scalars of a list; none for anything else.
    pub(super) fn texts(&self) -> Vec<&str> {
        match self {
            Node::List(all) => all.iter().filter_map(Node::text).collect(),
            Node::Empty | Node::Text(_) | Node::Map(_) => Vec::new(),
        }
    }
}

/// Holds a line that counts.
struct Line<'a> {
    number: usize,
    indent: usize,
    body: &'a str,
}

/// Reads one document, whose outermost value is a mapping.
pub(super) fn parse(text: &str) -> Result<Node, Wrong> {
    let raw: Vec<&str> = text.split('\n').collect();
    let mut reader = Reader { raw: &raw, next: 0 };
    let value = match reader.peek()? {
        Some(line) if line.indent == 0 => reader.map(0, 0)?,
        Some(line) => {
            return Err(Wrong {
                line: line.number,
                why: "is indented for no reason",
            });
        }
        None => {
            return Err(Wrong {
                line: 1,
                why: "holds nothing",
            });
        }
    };
    match reader.peek()? {
        Some(line) => Err(Wrong {
            line: line.number,
            why: "is not understood",
        }),
        None => Ok(value),
    }
}

struct Reader<'a> {
    raw: &'a [&'a str],
    next: usize,
}

impl<'a> Reader<'a> {
    /// Skips what does not count, and looks at the next line that does.
    fn peek(&mut self) -> Result<Option<Line<'a>>, Wrong> {
        while let Some(raw) = self.raw.get(self.next) {
            let body = raw.trim_start_matches(' ');
            let number = self.next + 1;
            let wrong = |why| Err(Wrong { line: number, why });
            if body.trim().is_empty() && raw.contains('\t') || body.starts_with('\t') {
                return wrong("is indented by a tab");
            }
            if body.trim_end() != body {
                return wrong("ends with a space");
            }
            if body.is_empty() || body.starts_with('#') {
                self.next += 1;
                continue;
            }
            if body.starts_with("---") || body.starts_with("...") || body.starts_with('%') {
                return wrong("begins another document");
            }
            return Ok(Some(Line {
                number,
                indent: raw.len() - body.len(),
                body,
            }));
        }
        Ok(None)
    }

    fn block(&mut self, above: usize, depth: usize) -> Result<Node, Wrong> {
        let Some(line) = self.peek()?.filter(|line| line.indent > above) else {
            return Ok(Node::Empty);
        };
        if depth > DEEPEST {
            return Err(Wrong {
                line: line.number,
                why: "is nested too deep",
            });
        }
        if line.body == "-" || line.body.starts_with("- ") {
            self.list(line.indent)
        } else {
            self.map(line.indent, depth)
        }
    }

    fn list(&mut self, indent: usize) -> Result<Node, Wrong> {
        let mut all = Vec::new();
        while let Some(line) = self.peek()?.filter(|line| line.indent >= indent) {
            let item = line.body.strip_prefix("- ").filter(|_| line.indent == indent);
            let item = item.ok_or(Wrong {
                line: line.number,
                why: "is not understood",
            })?;
            self.next += 1;
            all.push(one_line(item, line.number)?);
        }
        Ok(Node::List(all))
    }

    fn map(&mut self, indent: usize, depth: usize) -> Result<Node, Wrong> {
        let mut all: Vec<Entry> = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        while let Some(line) = self.peek()?.filter(|line| line.indent >= indent) {
            let wrong = |why| Wrong {
                line: line.number,
                why,
            };
            if line.indent > indent {
                return Err(wrong("is indented for no reason"));
            }
            self.next += 1;
            let (key, rest) = match line.body.strip_prefix("? ") {
                Some(long) => {
                    let (key, after) = scalar_key(long).ok_or_else(|| wrong("is not understood"))?;
                    let next = self.peek()?.filter(|next| next.indent == indent);
                    let rest = next.and_then(|next| next.body.strip_prefix(':'));
                    let rest = rest.filter(|_| after.is_empty());
                    let rest = rest.ok_or_else(|| wrong("is a key without a value"))?;
                    self.next += 1;
                    (key, rest)
                }
                None => {
                    let (key, after) = scalar_key(line.body).ok_or_else(|| wrong("is not understood"))?;
                    let rest = after
                        .strip_prefix(':')
                        .ok_or_else(|| wrong("is a key without a value"))?;
                    (key, rest)
                }
            };
            if !seen.insert(key.clone()) {
                return Err(wrong("holds a key that stands twice"));
            }
            let rest = match rest.strip_prefix(' ') {
                Some(rest) => rest,
                None if rest.is_empty() => "",
                None => return Err(wrong("is not understood")),
            };
            let value = if rest.is_empty() {
                self.block(indent, depth + 1)?
            } else if rest.starts_with(['|', '>']) {
                self.literal(indent, rest, line.number)?
            } else {
                one_line(rest, line.number)?
            };
            all.push(Entry {
                key,
                line: line.number,
                value,
            });
        }
        Ok(Node::Map(all))
    }

    /// Takes the lines of a literal text as they stand: no key of it matters.
    fn literal(&mut self, above: usize, head: &str, line: usize) -> Result<Node, Wrong> {
        if head.len() > 3 || !head[1..].chars().all(|c| "+-0123456789".contains(c)) {
            return Err(Wrong {
                line,
                why: "is not understood",
            });
        }
        let mut text = Vec::new();
        while let Some(raw) = self.raw.get(self.next) {
            let indent = raw.len() - raw.trim_start_matches(' ').len();
            if !raw.trim().is_empty() && indent <= above {
                break;
            }
            text.push(raw.trim_start_matches(' '));
            self.next += 1;
        }
        Ok(Node::Text(text.join("\n")))
    }
}

/// Splits a key from what follows it, which begins with `:`.
fn scalar_key(text: &str) -> Option<(String, &str)> {
    if text.starts_with(['"', '\'']) {
        return quoted(text);
    }
    let first = text.chars().next()?;
    if "&*!|>@`{}[],#%".contains(first) {
        return None;
    }
    let end = match text.find(": ") {
        Some(end) => end,
        None => text.strip_suffix(':').map_or(text.len(), str::len),
    };
    let key = &text[..end];
    (!key.is_empty() && key.trim_end() == key && !key.contains(" #")).then(|| (key.to_owned(), &text[end..]))
}

fn one_line(text: &str, line: usize) -> Result<Node, Wrong> {
    let wrong = |why| Wrong { line, why };
    let (node, rest) = match text.chars().next() {
        Some('{' | '[') => flow(text, line, 0)?,
        Some('"' | '\'') => {
            let (inside, rest) = quoted(text).ok_or_else(|| wrong("has a quote without an end"))?;
            (Node::Text(inside), rest)
        }
        Some(first) if "&*!|>%@`,]}#?".contains(first) => return Err(wrong("is not understood")),
        _ if text.contains(" #") || text.contains(": ") || text.ends_with(':') => {
            return Err(wrong("is not understood"));
        }
        _ if text.starts_with("- ") => return Err(wrong("is not understood")),
        _ => (Node::Text(text.to_owned()), ""),
    };
    if rest.is_empty() {
        Ok(node)
    } else {
        Err(wrong("goes on behind its value"))
    }
}

/// Reads `{key: value, …}` or `[value, …]`.
fn flow(text: &str, line: usize, depth: usize) -> Result<(Node, &str), Wrong> {
    let wrong = |why| Wrong { line, why };
    if depth > DEEPEST {
        return Err(wrong("is nested too deep"));
    }
    let map = text.starts_with('{');
    let close = if map { '}' } else { ']' };
    let (mut entries, mut items): (Vec<Entry>, Vec<Node>) = (Vec::new(), Vec::new());
    let mut seen = std::collections::BTreeSet::new();
    let mut rest = text[1..].trim_start_matches(' ');
    if let Some(after) = rest.strip_prefix(close) {
        return Ok((
            if map {
                Node::Map(entries)
            } else {
                Node::List(items)
            },
            after,
        ));
    }
    loop {
        let mut key = None;
        if map {
            let (name, after) = flow_scalar(rest, Part::Key).ok_or_else(|| wrong("is not understood"))?;
            if !seen.insert(name.clone()) {
                return Err(wrong("holds a key that stands twice"));
            }
            rest = after
                .strip_prefix(": ")
                .ok_or_else(|| wrong("is a key without a value"))?;
            key = Some(name);
        }
        let (value, after) = if rest.starts_with(['{', '[']) {
            flow(rest, line, depth + 1)?
        } else {
            let (inside, after) = flow_scalar(rest, Part::Value).ok_or_else(|| wrong("is not understood"))?;
            (Node::Text(inside), after)
        };
        match key {
            Some(key) => entries.push(Entry { key, line, value }),
            None => items.push(value),
        }
        if let Some(after) = after.strip_prefix(close) {
            return Ok((
                if map {
                    Node::Map(entries)
                } else {
                    Node::List(items)
                },
                after,
            ));
        }
        rest = after.strip_prefix(", ").ok_or_else(|| wrong("is not closed"))?;
    }
}

/// Says which half of an entry is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Key,
    Value,
}

fn flow_scalar(text: &str, part: Part) -> Option<(String, &str)> {
    if text.starts_with(['"', '\'']) {
        return quoted(text);
    }
    let end = text.find([',', '{', '}', '[', ']']).unwrap_or(text.len());
    let end = if part == Part::Key {
        text[..end].find(": ")?
    } else {
        end
    };
    let plain = &text[..end];
    let first = plain.chars().next()?;
    let odd = "&*!|>%@`#?".contains(first) || plain.contains(" #") || plain.trim() != plain;
    (!odd && (part == Part::Key || !plain.contains(": "))).then(|| (plain.to_owned(), &text[end..]))
}

/// Reads a quoted text, and gives what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next()?;
    let mut out = String::new();
    let mut chars = text[1..].char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' if quote == '\'' => match chars.peek() {
                Some((_, '\'')) => {
                    chars.next();
                    out.push('\'');
                }
                _ => return Some((out, &text[at + 2..])),
            },
            '"' if quote == '"' => return Some((out, &text[at + 2..])),
            '\\' if quote == '"' => match chars.next()?.1 {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                '0' => out.push('\0'),
                mark @ ('x' | 'u' | 'U') => {
                    let digits = match mark {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let mut code = 0_u32;
                    for _ in 0..digits {
                        code = code.checked_mul(16)? + chars.next()?.1.to_digit(16)?;
                    }
                    out.push(char::from_u32(code)?);
                }
                same @ ('"' | '\\' | '/') => out.push(same),
                _ => return None,
            },
            other => out.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tools_write_is_read() {
        let text = "# head\na: '9.0'\n\n'@b/c@1(d@2)':\n  r: {i: sha512-x==, \"t\": 'a, b', n: [x, {y: z}], e: {}}\n  os: [darwin, '!win32']\n  l:\n    - one\n    - 'it''s'\n  d: |-\n    some: text\n\n    # more\n  e: \"q\\\"\\u00e9\"\nz/@y@1.0(x@npm:2): {}\n? long\n:\n  k: v\nf:\n";
        let node = parse(text).unwrap();
        assert_eq!(node.get("a").unwrap().text(), Some("9.0"));
        let inner = node.get("@b/c@1(d@2)").unwrap();
        assert_eq!(
            inner.get("r").unwrap().get("i").unwrap().text(),
            Some("sha512-x==")
        );
        assert_eq!(inner.get("r").unwrap().get("t").unwrap().text(), Some("a, b"));
        assert_eq!(inner.get("os").unwrap().texts(), ["darwin", "!win32"]);
        assert_eq!(inner.get("l").unwrap().texts(), ["one", "it's"]);
        assert_eq!(inner.get("d").unwrap().text(), Some("some: text\n\n# more"));
        assert_eq!(inner.get("e").unwrap().text(), Some("q\"é"));
        assert_eq!(node.get("z/@y@1.0(x@npm:2)"), Some(&Node::Map(Vec::new())));
        assert_eq!(node.get("long").unwrap().get("k").unwrap().text(), Some("v"));
        assert_eq!(node.get("f"), Some(&Node::Empty));
        assert_eq!(node.entries()[1].line, 4);
    }

    #[test]
    fn what_they_never_write_is_refused_by_its_line() {
        for (text, line) in [
            ("", 1),
            ("# only\n", 1),
            ("a: 1\na: 2\n", 2),
            ("a: {b: 1, b: 2}\n", 1),
            ("a: &x 1\n", 1),
            ("a: *x\n", 1),
            ("a: !!str 1\n", 1),
            ("a:\n\tb: 1\n", 2),
            ("a: 1\n---\nb: 2\n", 2),
            ("a: 1\n  b: 2\n", 2),
            (" a: 1\n", 1),
            ("a:\n  - x\n  y: 1\n", 3),
            ("a: x: y\n", 1),
            ("a: 'x\n", 1),
            ("a: \"x\\q\"\n", 1),
            ("a: \"\\uD800\"\n", 1),
            ("a: 'x' y\n", 1),
            ("a: {b: 1\n", 1),
            ("a: [b, ,]\n", 1),
            ("a: x # why\n", 1),
            ("a\n", 1),
            ("a:b\n", 1),
            ("? a\nb: 1\n", 1),
            ("a:  1 \n", 1),
            ("<<: *base\n", 1),
            ("a:\n  b: 1\n c: 2\n", 3),
        ] {
            assert_eq!(parse(text).map_err(|w| w.line), Err(line), "{text:?}");
        }
        let blocks: String = (0..1000).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
        assert!(parse(&blocks).is_err());
        assert!(parse(&format!("a: {}\n", "[".repeat(100_000))).is_err());
    }
}
