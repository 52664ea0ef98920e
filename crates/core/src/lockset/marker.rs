//! Environment markers, evaluated as far as what is known goes.
//!
//! Three answers: a marker that cannot be answered with what is known is `Maybe`, and nothing is concluded from it.
//!
//! # Source
//! PEP 508, "Environment Markers".

use super::pep;

/// Says whether a marker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// In every environment that is meant.
    Yes,
    /// In none.
    No,
    /// In some, or nobody knows.
    Maybe,
}

impl Holds {
    fn not(self) -> Self {
        match self {
            Holds::Yes => Holds::No,
            Holds::No => Holds::Yes,
            Holds::Maybe => Holds::Maybe,
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Holds::No, _) | (_, Holds::No) => Holds::No,
            (Holds::Yes, Holds::Yes) => Holds::Yes,
            _ => Holds::Maybe,
        }
    }

    fn or(self, other: Self) -> Self {
        self.not().and(other.not()).not()
    }
}

impl From<bool> for Holds {
    fn from(truth: bool) -> Self {
        if truth { Holds::Yes } else { Holds::No }
    }
}

/// Holds what is known of the environments that are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// The oldest Python, such as `[3, 11, 0]`.
    pub least: Option<[u64; 3]>,
    /// The first Python that is too new.
    pub below: Option<[u64; 3]>,
    /// The value of each variable that is known, such as `sys_platform` = `linux`.
    pub known: std::collections::BTreeMap<String, String>,
}

impl Setting {
    /// Reads the bounds of `requires-python`, as PEP 440 or Poetry writes them.
    ///
    /// # Limits
    /// What is not a plain bound is left out, which makes the setting wider, never narrower.
    #[must_use]
    pub fn of_python(requires: &str) -> Self {
        let mut setting = Setting::default();
        if requires.contains("||") {
            return setting;
        }
        for part in requires.split(',').map(str::trim) {
            let at = part.find(|c: char| !"<>=!~^".contains(c)).unwrap_or(part.len());
            let (operator, text) = (&part[..at], part[at..].trim());
            let Some((version, given)) = release(text) else {
                continue;
            };
            let next = |level: usize| {
                let mut up = version;
                up[level] = up[level].saturating_add(1);
                up.iter_mut().skip(level + 1).for_each(|n| *n = 0);
                up
            };
            match operator {
                ">=" | ">" => setting.least = setting.least.max(Some(version)),
                "<" => setting.below = Some(setting.below.map_or(version, |b| b.min(version))),
                "^" => {
                    setting.least = setting.least.max(Some(version));
                    setting.below = Some(setting.below.map_or(next(0), |b| b.min(next(0))));
                }
                "~=" | "~" => {
                    let level = if operator == "~=" {
                        given.saturating_sub(2)
                    } else {
                        given.min(2) - 1
                    };
                    setting.least = setting.least.max(Some(version));
                    setting.below = Some(setting.below.map_or(next(level), |b| b.min(next(level))));
                }
                "==" if text.ends_with(".*") && given < 3 => {
                    setting.least = setting.least.max(Some(version));
                    setting.below = Some(next(given - 1));
                }
                _ => {}
            }
        }
        setting
    }

    /// Describes one Linux machine with one CPython.
    #[must_use]
    pub fn linux(machine: &str, python: [u64; 3]) -> Self {
        let known = [
            ("sys_platform", "linux"),
            ("platform_system", "Linux"),
            ("os_name", "posix"),
            ("platform_machine", machine),
            ("platform_python_implementation", "CPython"),
            ("implementation_name", "cpython"),
        ];
        let [major, minor, patch] = python;
        Self {
            least: Some(python),
            below: Some([major, minor, patch.saturating_add(1)]),
            known: known.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        }
    }

    /// Describes one Linux machine as Node does: its architecture, such as `x64`, and `glibc` or `musl`.
    #[must_use]
    pub fn node(cpu: &str, libc: &str) -> Self {
        let known = [("os", "linux"), ("cpu", cpu), ("libc", libc)];
        Self {
            known: known.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            ..Self::default()
        }
    }

    /// Says whether a condition such as `os=darwin|linux & cpu=!ia32` holds in this setting.
    fn holds_on_node(&self, condition: &str) -> Holds {
        let mut answer = Holds::Yes;
        for part in condition.split('&') {
            let part = part.trim().trim_start_matches('(').trim_end_matches(')');
            let Some((key, list)) = part.split_once('=') else {
                return Holds::Maybe;
            };
            let Some(known) = self.known.get(key) else {
                answer = answer.and(Holds::Maybe);
                continue;
            };
            let again = format!("{key}=");
            let names: Vec<&str> = list
                .split('|')
                .map(|n| n.trim().trim_start_matches(&again))
                .collect();
            let (not, any): (Vec<&str>, Vec<&str>) = names.into_iter().partition(|n| n.starts_with('!'));
            let banned = not.iter().any(|n| n[1..] == *known);
            let wanted = any.is_empty() || any.contains(&known.as_str()) || any.contains(&"any");
            answer = answer.and(Holds::from(wanted && !banned));
        }
        answer
    }

    /// Says whether a package is for this setting, as far as its condition in the lock says so.
    #[must_use]
    pub fn takes(&self, package: &super::Package) -> Holds {
        match package.condition.as_deref() {
            None => Holds::Yes,
            Some(condition)
                if ["os=", "cpu=", "libc=", "(os=", "(cpu=", "(libc="]
                    .iter()
                    .any(|k| condition.starts_with(k)) =>
            {
                self.holds_on_node(condition)
            }
            Some(condition) if condition.starts_with("platform=") => Holds::Maybe,
            Some(marker) => self.holds(marker),
        }
    }

    /// Says whether a marker holds in this setting; one that is not understood may.
    #[must_use]
    pub fn holds(&self, marker: &str) -> Holds {
        let Some(tokens) = tokens(marker) else {
            return Holds::Maybe;
        };
        let mut reader = Reader {
            tokens: &tokens,
            at: 0,
            depth: 0,
        };
        match reader.either(self) {
            Some(answer) if reader.at == tokens.len() => answer,
            _ => Holds::Maybe,
        }
    }

    fn compare(&self, left: &Token, operator: &str, right: &Token) -> Holds {
        match (left, right) {
            (Token::Name(name), Token::Text(value)) => self.atom(name, operator, value),
            (Token::Text(value), Token::Name(name)) => self.atom(name, turned(operator), value),
            _ => Holds::Maybe,
        }
    }

    fn atom(&self, name: &str, operator: &str, value: &str) -> Holds {
        match name {
            "python_version" => self.python(operator, value, 2),
            "python_full_version" => self.python(operator, value, 3),
            _ => match (self.known.get(name), operator) {
                (Some(known), "==" | "===") => Holds::from(known == value),
                (Some(known), "!=") => Holds::from(known != value),
                _ => Holds::Maybe,
            },
        }
    }

    fn python(&self, operator: &str, value: &str, parts: usize) -> Holds {
        let cut = |version: [u64; 3]| -> [u64; 3] {
            if parts == 2 {
                [version[0], version[1], 0]
            } else {
                version
            }
        };
        let Some((wanted, given)) = release(value) else {
            return Holds::Maybe;
        };
        let star = value.ends_with(".*");
        if given > parts || (star && !matches!(operator, "==" | "!=")) {
            return Holds::Maybe;
        }
        let least = self.least.map(cut);
        // The newest Python that is meant, cut to what the variable shows.
        let newest = self.below.map(|below| match below {
            [major, 0, 0] => [major.saturating_sub(1), u64::MAX, u64::MAX],
            [major, minor, 0] => [major, minor.saturating_sub(1), u64::MAX],
            [major, minor, patch] => [major, minor, patch.saturating_sub(1)],
        });
        let newest = newest.map(cut);
        let all_at_least = |v: [u64; 3]| least.is_some_and(|l| l >= v);
        let all_above = |v: [u64; 3]| least.is_some_and(|l| l > v);
        let all_below = |v: [u64; 3]| newest.is_some_and(|n| n < v);
        let all_at_most = |v: [u64; 3]| newest.is_some_and(|n| n <= v);
        let pick = |yes: bool, no: bool| match (yes, no) {
            (true, _) => Holds::Yes,
            (_, true) => Holds::No,
            _ => Holds::Maybe,
        };
        match operator {
            ">=" => pick(all_at_least(wanted), all_below(wanted)),
            ">" => pick(all_above(wanted), all_at_most(wanted)),
            "<" => pick(all_below(wanted), all_at_least(wanted)),
            "<=" => pick(all_at_most(wanted), all_above(wanted)),
            "==" | "===" if star || given < parts && parts == 3 => {
                let end = if given == 1 {
                    [wanted[0] + 1, 0, 0]
                } else {
                    [wanted[0], wanted[1] + 1, 0]
                };
                if star {
                    pick(false, all_below(wanted) || all_at_least(end))
                } else {
                    Holds::Maybe
                }
            }
            "==" | "===" => {
                let exact = all_at_least(wanted) && all_at_most(wanted);
                pick(exact, all_above(wanted) || all_below(wanted))
            }
            "!=" => self.python("==", value, parts).not(),
            _ => Holds::Maybe,
        }
    }
}

fn turned(operator: &str) -> &str {
    match operator {
        "<" => ">",
        "<=" => ">=",
        ">" => "<",
        ">=" => "<=",
        "==" | "===" | "!=" => operator,
        _ => "?",
    }
}

/// Reads up to three numbers of a release; more, or letters, are not understood.
fn release(text: &str) -> Option<([u64; 3], usize)> {
    let text = pep::normal_version(text.strip_suffix(".*").unwrap_or(text));
    let mut numbers = [0; 3];
    let mut given = 0;
    for part in text.split('.') {
        let number: u64 = part.parse().ok()?;
        *numbers.get_mut(given)? = number.min(u64::from(u32::MAX));
        given += 1;
    }
    Some((numbers, given))
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    Text(String),
    Operator(String),
    Open,
    Close,
}

fn tokens(text: &str) -> Option<Vec<Token>> {
    let mut all = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            '\'' | '"' => {
                let (inside, _) = rest[1..].split_once(first)?;
                (Token::Text(inside.to_owned()), inside.len() + 2)
            }
            '<' | '>' | '=' | '!' | '~' => {
                let end = rest.find(|c: char| !"<>=!~".contains(c)).unwrap_or(rest.len());
                (Token::Operator(rest[..end].to_owned()), end)
            }
            c if c.is_ascii_alphabetic() || c == '_' => {
                let word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
                let end = rest.find(|c: char| !word(c)).unwrap_or(rest.len());
                (Token::Name(rest[..end].to_owned()), end)
            }
            _ => return None,
        };
        all.push(token);
        rest = rest[length..].trim_start();
    }
    Some(all)
}

/// Reads tokens by descent, no deeper than anybody writes.
struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: usize,
}

impl Reader<'_> {
    fn word(&mut self, word: &str) -> bool {
        let hit = matches!(self.tokens.get(self.at), Some(Token::Name(name)) if name == word);
        self.at += usize::from(hit);
        hit
    }

    fn either(&mut self, setting: &Setting) -> Option<Holds> {
        let mut answer = self.both(setting)?;
        while self.word("or") {
            answer = answer.or(self.both(setting)?);
        }
        Some(answer)
    }

    fn both(&mut self, setting: &Setting) -> Option<Holds> {
        let mut answer = self.one(setting)?;
        while self.word("and") {
            answer = answer.and(self.one(setting)?);
        }
        Some(answer)
    }

    fn one(&mut self, setting: &Setting) -> Option<Holds> {
        const DEEPEST: usize = 64;
        if self.tokens.get(self.at) == Some(&Token::Open) {
            self.at += 1;
            self.depth += 1;
            if self.depth > DEEPEST {
                return None;
            }
            let answer = self.either(setting)?;
            self.depth -= 1;
            let closed = self.tokens.get(self.at) == Some(&Token::Close);
            self.at += 1;
            return closed.then_some(answer);
        }
        let left = self.tokens.get(self.at)?;
        self.at += 1;
        let operator = if self.word("in") {
            "in"
        } else if self.word("not") {
            self.word("in").then_some("not in")?
        } else {
            let Some(Token::Operator(operator)) = self.tokens.get(self.at) else {
                return None;
            };
            self.at += 1;
            operator
        };
        let right = self.tokens.get(self.at)?;
        self.at += 1;
        Some(setting.compare(left, operator, right))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_decides_and_nothing_else_does() {
        let wide = Setting::of_python(">=3.11");
        let here = Setting::linux("x86_64", [3, 11, 7]);
        for (marker, on_all, on_this) in [
            ("python_version < '3.8'", Holds::No, Holds::No),
            ("python_version < '3.11'", Holds::No, Holds::No),
            ("python_version < '3.12'", Holds::Maybe, Holds::Yes),
            ("python_version >= \"3.11\"", Holds::Yes, Holds::Yes),
            ("'3.8' <= python_version", Holds::Yes, Holds::Yes),
            ("python_full_version < '3.11.4'", Holds::Maybe, Holds::No),
            ("python_full_version <= '3.11.0a6'", Holds::Maybe, Holds::Maybe),
            ("python_version == '3.8.*'", Holds::No, Holds::No),
            ("python_version == '3.11'", Holds::Maybe, Holds::Yes),
            ("python_version != '3.10'", Holds::Yes, Holds::Yes),
            ("sys_platform == 'win32'", Holds::Maybe, Holds::No),
            ("sys_platform != 'win32'", Holds::Maybe, Holds::Yes),
            (
                "sys_platform == 'linux' and python_version < '3.8'",
                Holds::No,
                Holds::No,
            ),
            (
                "(sys_platform == 'win32' or os_name == 'posix')",
                Holds::Maybe,
                Holds::Yes,
            ),
            ("extra == 'net'", Holds::Maybe, Holds::Maybe),
            ("platform_machine in 'x86_64'", Holds::Maybe, Holds::Maybe),
            ("python_version not in '3.8'", Holds::Maybe, Holds::Maybe),
            ("nonsense", Holds::Maybe, Holds::Maybe),
            ("python_version < ", Holds::Maybe, Holds::Maybe),
            ("(python_version < '3.8'", Holds::Maybe, Holds::Maybe),
            ("python_version < '3.8' x", Holds::Maybe, Holds::Maybe),
        ] {
            assert_eq!(wide.holds(marker), on_all, "{marker}");
            assert_eq!(here.holds(marker), on_this, "{marker}");
        }
        let deep = format!("{}os_name == 'a'{}", "(".repeat(100_000), ")".repeat(100_000));
        assert_eq!(wide.holds(&deep), Holds::Maybe);
    }

    #[test]
    fn conditions_of_node_are_read_as_pnpm_and_yarn_write_them() {
        let here = Setting::node("x64", "glibc");
        for (condition, answer) in [
            ("os=darwin & cpu=arm64", Holds::No),
            ("os=linux & cpu=x64", Holds::Yes),
            ("os=linux & cpu=x64 & libc=musl", Holds::No),
            ("(os=darwin | os=linux) & (cpu=x64 | cpu=arm64)", Holds::Yes),
            ("os=darwin|linux & cpu=!ia32", Holds::Yes),
            ("os=!linux", Holds::No),
            ("os=any", Holds::Yes),
            ("os=linux & node=20", Holds::Maybe),
            ("os", Holds::Maybe),
        ] {
            assert_eq!(here.holds_on_node(condition), answer, "{condition}");
        }
        assert_eq!(Setting::default().holds_on_node("os=linux"), Holds::Maybe);
    }

    #[test]
    fn bounds_are_read_as_pip_and_poetry_write_them() {
        let bounds = |text: &str| {
            let setting = Setting::of_python(text);
            (setting.least, setting.below)
        };
        assert_eq!(bounds(">=3.9,<4.0"), (Some([3, 9, 0]), Some([4, 0, 0])));
        assert_eq!(bounds("^3.8"), (Some([3, 8, 0]), Some([4, 0, 0])));
        assert_eq!(bounds("~3.8"), (Some([3, 8, 0]), Some([3, 9, 0])));
        assert_eq!(bounds("~=3.8"), (Some([3, 8, 0]), Some([4, 0, 0])));
        assert_eq!(bounds("==3.11.*"), (Some([3, 11, 0]), Some([3, 12, 0])));
        assert_eq!(bounds("^2.7 || ^3.6"), (None, None));
        assert_eq!(bounds("!=3.0.*,>=2.7"), (Some([2, 7, 0]), None));
        assert_eq!(bounds("*"), (None, None));
        assert_eq!(bounds("~"), (None, None));
        assert_eq!(Setting::of_python("<4").holds("python_version < '4'"), Holds::Yes);
    }
}
