//! The policy of tool calls: for which paths, tools and roles a call runs, is refused, or waits for a person.
//!
//! It judges places that were resolved already, and knows no filesystem; what an approval is stands in `approval`.
//! The text comes from the operator's configuration; reading it is the caller's.

use crate::code::{Code, Refusal};
use crate::glob::{Matcher, Slash};
use crate::job::Span;
use crate::path::{RelPath, folded};
use crate::volume::Role;
use serde::{Deserialize, Serialize};

mod judge;

pub use judge::{Beneath, Entry, Holds, Judged, Touched, Tree, touched, tree};

/// Holds what the operator says of calls.
///
/// # Shape
/// ```toml
/// hard_links = "refuse"             # or "break"; what becomes of a write to a file with other names
///
/// [[rule]]                          # the first rule that matches a path decides; none: it is allowed
/// paths = ["secrets/**", "**/.env"] # globs on the resolved path; required
/// tools = ["mutate"]                # names of tools, or the groups read and mutate; unset: all
/// roles = ["draft"]                 # unset: all
/// answer = "ask"                    # or "allow", "deny"; required
/// reason = "production keys"        # told to whoever asks, and to whoever decides
/// expires = "10m"                   # of an ask: how long the question stands, and then the approval
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// What becomes of a write to a file that has other names.
    #[serde(default)]
    pub hard_links: HardLinks,
    /// The rules, in order.
    #[serde(default)]
    pub rule: Vec<Rule>,
}

/// Is one rule: which calls it is about, and what it answers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The paths: it is enough that one of these globs matches.
    pub paths: Vec<PathGlob>,
    /// The tools, by name or group; unset where it is about all.
    #[serde(default)]
    pub tools: Option<Vec<ToolSet>>,
    /// The roles; unset where it is about all.
    #[serde(default)]
    pub roles: Option<Vec<Role>>,
    /// What it answers.
    pub answer: Answer,
    /// Why, for whoever asks and whoever decides.
    #[serde(default)]
    pub reason: Option<String>,
    /// How long a question of this rule stands, and then the approval.
    #[serde(default)]
    pub expires: Option<Span>,
}

/// Names what a rule answers; the later one is stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The call runs.
    Allow,
    /// A person decides.
    Ask,
    /// The call is refused.
    Deny,
}

/// Says what becomes of a write to a file that has other names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HardLinks {
    /// The other names keep the old content; the answer says so.
    #[default]
    Break,
    /// It is refused.
    Refuse,
}

/// Names a kind of tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Tools that read.
    Read,
    /// Tools that have an effect.
    Mutate,
}

/// Names tools: one, or a group.
///
/// # Shape
/// The name of a tool, `read` or `mutate`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ToolSet {
    /// All of a group.
    Group(Group),
    /// One tool.
    Named(String),
}

impl TryFrom<String> for ToolSet {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        Ok(match text.as_str() {
            "read" => Self::Group(Group::Read),
            "mutate" => Self::Group(Group::Mutate),
            _ => Self::Named(text),
        })
    }
}

/// Is a glob on a whole path beneath the root.
///
/// # Shape
/// `*`, `?` and `[…]` stay within one name; `**` as a whole name is any number of names; `\` takes the next character
/// as it is. `/x` is `x` in the root itself. A pattern without a slash is refused: it could be meant for the root
/// alone (`/x`) or for any directory (`**/x`). So is one that ends in a slash.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct PathGlob {
    exact: Matcher,
    /// Matches folded paths: on a filesystem that folds names, one file has many spellings.
    folded: Matcher,
    /// One of its names is `.git`: it is meant for what belongs to git.
    names_git: bool,
    /// It is `**`: it matches whatever there is, and no later rule is ever asked.
    everything: bool,
}

impl TryFrom<String> for PathGlob {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        let wrong = |why: &str| {
            let shown = crate::path::shown(text.as_bytes());
            Refusal::new(Code::BadInput, format!("{why}: {shown}"))
        };
        let everything = text == "**";
        if !text.contains('/') && !everything {
            return Err(wrong(
                "a path without a slash is /NAME for the root alone, or **/NAME for any directory",
            ));
        }
        let pattern = text.strip_prefix('/').unwrap_or(&text);
        let mut names = pattern.split('/');
        if pattern.is_empty() || names.any(|name| matches!(name, "" | "." | "..")) {
            return Err(wrong(
                "a path has no empty name, no . and no .., and does not end in a slash",
            ));
        }
        let exact = Matcher::compile(pattern.as_bytes(), Slash::Divides)
            .ok_or_else(|| wrong("the pattern is not whole: a [ without its ], or a \\ at the end"))?;
        Ok(Self {
            folded: exact.folded(),
            names_git: pattern.split('/').any(|name| name.eq_ignore_ascii_case(".git")),
            exact,
            everything,
        })
    }
}

/// Is who calls which tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller<'a> {
    /// The tool's name.
    pub tool: &'a str,
    /// Its kind.
    pub group: Group,
    /// The role of the volume.
    pub role: Role,
}

/// Is what the policy says of one path or of a whole call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'p> {
    /// It runs.
    Allow,
    /// A person decides.
    Ask(Ground<'p>),
    /// It is refused.
    Deny(Ground<'p>),
    /// It would change what belongs to git, and no rule says by name that it may.
    Git,
}

/// Is the rule that a verdict rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ground<'p> {
    /// Its place in the file, from 1.
    pub number: usize,
    /// The rule.
    pub rule: &'p Rule,
}

impl Verdict<'_> {
    const fn rank(&self) -> u8 {
        match self {
            Self::Allow => 0,
            Self::Ask(_) => 1,
            Self::Deny(_) => 2,
            Self::Git => 3,
        }
    }

    /// Gives the stricter of two; the first where they are the same.
    #[must_use]
    pub const fn stricter(self, other: Self) -> Self {
        if other.rank() > self.rank() { other } else { self }
    }
}

/// The longest reason, in bytes.
const LONGEST_REASON: usize = 500;
/// The most rules.
const MOST_RULES: usize = 1000;

impl Policy {
    /// Reads a policy; every name of a tool must be known.
    ///
    /// # Errors
    /// `bad_config`, naming the line or the rule.
    pub fn parse(text: &str, tools: &[&str]) -> Result<Self, Refusal> {
        Self::parse_where(text, &|name| tools.contains(&name))
    }

    /// Reads a policy; whether a name is one of a tool is asked for each.
    ///
    /// # Errors
    /// `bad_config`, naming the line or the rule.
    pub fn parse_where(text: &str, is_tool: &dyn Fn(&str) -> bool) -> Result<Self, Refusal> {
        let policy: Self = toml::from_str(text)
            .map_err(|error| crate::code::toml_refusal(Code::BadConfig, "the tool policy", text, &error))?;
        if policy.rule.len() > MOST_RULES {
            let why = format!("the tool policy has more than {MOST_RULES} rules");
            return Err(Refusal::new(Code::BadConfig, why));
        }
        for (at, rule) in policy.rule.iter().enumerate() {
            let wrong = |why: &str| {
                Refusal::new(Code::BadConfig, format!("the tool policy: {why}"))
                    .name(format!("rule {}", at + 1))
            };
            rule.check(is_tool).map_err(|why| wrong(&why))?;
        }
        Ok(policy)
    }

    /// Says whether any rule asks a person.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.rule.iter().any(|rule| rule.answer == Answer::Ask)
    }

    /// Says whether any path that belongs to git is open to a caller, maybe after a person was asked.
    #[must_use]
    pub fn opens_git(&self, caller: Caller<'_>) -> bool {
        self.rule.iter().any(|rule| {
            rule.answer != Answer::Deny && rule.is_about(caller) && rule.paths.iter().any(|p| p.names_git)
        })
    }

    /// Judges one path by itself: the first rule that matches decides, and none allows.
    ///
    /// Git's own files are another matter where a call has effects: only a rule that names `.git` opens them.
    #[must_use]
    pub fn at(&self, caller: Caller<'_>, path: &RelPath) -> Verdict<'_> {
        let guarded = caller.group == Group::Mutate && path.in_git_dir();
        let text = Text::of(path.as_bytes());
        match self.first(caller, &text) {
            Some((ground, _)) if ground.rule.answer == Answer::Deny => Verdict::Deny(ground),
            Some((ground, NamesGit::Yes)) => ground.verdict(),
            Some((ground, NamesGit::No)) if !guarded => ground.verdict(),
            None if !guarded => Verdict::Allow,
            Some(_) | None => Verdict::Git,
        }
    }

    /// Judges a directory that goes with all that is in it, by its name alone: what a rule says of everything in it.
    fn as_directory(&self, caller: Caller<'_>, path: &[u8]) -> Verdict<'_> {
        self.first(caller, &Text::of(&beneath(path)))
            .map_or(Verdict::Allow, |(ground, _)| ground.verdict())
    }

    /// Judges something in a directory that goes as a whole.
    fn inside(&self, caller: Caller<'_>, path: &[u8]) -> Verdict<'_> {
        self.first(caller, &Text::of(path))
            .map_or(Verdict::Allow, |(ground, _)| ground.verdict())
    }

    /// Gives the strictest verdict that any path in a directory could get; it may be too strict, never too lax.
    #[must_use]
    pub fn could_be_inside(&self, caller: Caller<'_>, path: &RelPath) -> Verdict<'_> {
        let text = Text::of(&beneath(path.as_bytes()));
        self.strictest(caller, |glob| {
            glob.exact.could_match_beyond(&text.exact) || glob.folded.could_match_beyond(&text.folded)
        })
    }

    /// Gives the strictest verdict that any path could get, read or changed: a command may touch whatever there is.
    #[must_use]
    pub fn anywhere(&self, caller: Caller<'_>) -> Verdict<'_> {
        let as_group = |group| self.strictest(Caller { group, ..caller }, |_| true);
        as_group(Group::Mutate).stricter(as_group(Group::Read))
    }

    fn strictest(&self, caller: Caller<'_>, could: impl Fn(&PathGlob) -> bool) -> Verdict<'_> {
        let mut verdict = Verdict::Allow;
        let rules = self.rule.iter().enumerate();
        for (at, rule) in rules.filter(|(_, rule)| rule.is_about(caller)) {
            if rule.paths.iter().any(&could) {
                verdict = verdict.stricter(Ground { number: at + 1, rule }.verdict());
            }
            if rule.paths.iter().any(|glob| glob.everything) {
                break;
            }
        }
        verdict
    }

    fn first(&self, caller: Caller<'_>, text: &Text) -> Option<(Ground<'_>, NamesGit)> {
        let rules = self.rule.iter().enumerate();
        rules
            .filter(|(_, rule)| rule.is_about(caller))
            .find_map(|(at, rule)| Some((Ground { number: at + 1, rule }, rule.matches(text)?)))
    }
}

impl<'p> Ground<'p> {
    const fn verdict(self) -> Verdict<'p> {
        match self.rule.answer {
            Answer::Allow => Verdict::Allow,
            Answer::Ask => Verdict::Ask(self),
            Answer::Deny => Verdict::Deny(self),
        }
    }
}

/// Says whether a glob that matched names what belongs to git.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamesGit {
    Yes,
    No,
}

/// Gives what every path in a directory begins with.
fn beneath(directory: &[u8]) -> Vec<u8> {
    if directory.is_empty() {
        Vec::new()
    } else {
        [directory, b"/"].concat()
    }
}

/// Is a path as globs are matched against it.
struct Text {
    exact: Vec<u8>,
    folded: Vec<u8>,
}

impl Text {
    fn of(path: &[u8]) -> Self {
        Self {
            exact: path.to_vec(),
            folded: folded(path),
        }
    }
}

impl Rule {
    fn check(&self, is_tool: &dyn Fn(&str) -> bool) -> Result<(), String> {
        if self.paths.is_empty() {
            return Err("paths is empty, so the rule could match nothing".to_owned());
        }
        if self.roles.as_ref().is_some_and(Vec::is_empty) {
            return Err("roles is empty; leave it out for all roles".to_owned());
        }
        let named = self.tools.as_deref();
        if named.is_some_and(<[_]>::is_empty) {
            return Err("tools is empty; leave it out for all tools".to_owned());
        }
        let unknown = named.unwrap_or_default().iter().find_map(|set| match set {
            ToolSet::Named(name) if !is_tool(name) => Some(name),
            ToolSet::Named(_) | ToolSet::Group(_) => None,
        });
        if let Some(name) = unknown {
            let shown = crate::path::shown(name.as_bytes());
            return Err(format!("no tool and no group has the name {shown}"));
        }
        if self.expires.is_some() && self.answer != Answer::Ask {
            return Err("expires is of rules that ask".to_owned());
        }
        match &self.reason {
            Some(reason) if reason.len() > LONGEST_REASON || reason.chars().any(char::is_control) => {
                Err(format!("a reason is one line of at most {LONGEST_REASON} bytes"))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn is_about(&self, caller: Caller<'_>) -> bool {
        let tool = self.tools.as_ref().is_none_or(|tools| {
            tools.iter().any(|set| match set {
                ToolSet::Group(group) => *group == caller.group,
                ToolSet::Named(name) => name == caller.tool,
            })
        });
        tool && self
            .roles
            .as_ref()
            .is_none_or(|roles| roles.contains(&caller.role))
    }

    /// A rule that allows is taken by the letter. One that asks or denies holds for every spelling of the path that
    /// some filesystem takes for the same.
    fn matches(&self, text: &Text) -> Option<NamesGit> {
        let strict = self.answer != Answer::Allow;
        let hits = |glob: &&PathGlob| {
            glob.exact.matches(&text.exact) || (strict && glob.folded.matches(&text.folded))
        };
        let mut hit = self.paths.iter().filter(hits).peekable();
        hit.peek()?;
        if hit.any(|glob| glob.names_git) {
            Some(NamesGit::Yes)
        } else {
            Some(NamesGit::No)
        }
    }
}

#[cfg(test)]
mod tests;
