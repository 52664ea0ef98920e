//! `JOB.toml`: what a run is asked to do.
//!
//! It is read from the base commit, or from a place outside of the agent's reach. This module parses and checks
//! it; it does *not* read files or resolve programs.

use crate::bounds::Asked;
use crate::code::{Code, Refusal, toml_refusal};
use crate::ids::JobId;
use crate::installer::{Installer, Installs, ProjectInstall};
use crate::path::RelPath;
use crate::volume::Durability;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Is one job.
///
/// # Shape
/// TOML; every unknown key is an error.
/// ```toml
/// job = "bump-idna"
/// repository = "/srv/repos/app"
/// base = "5f2c…40 or 64 hexadecimal digits…"
///
/// [agent]
/// command = ["python3", "agent.py"]
/// files = { "agent.py" = "/srv/agents/agent.py" }
/// timeout = "30m"
///
/// [certify]
/// install = ["uv"]
/// test = ["python", "-m", "pytest"]
/// timeout = "15m"
///
/// [output]
/// branch = "semel/bump-idna"
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Its id.
    pub job: JobId,
    /// The repository, absolute or relative to the job file.
    pub repository: String,
    /// The base commit: a full object id, never a ref.
    pub base: String,
    /// What calls in the draft survive.
    #[serde(default = "process")]
    pub durability: Durability,
    /// Whether a run may go on with less than full confinement.
    #[serde(default)]
    pub confinement: Confine,
    /// What bounds everything that is launched for it; no wider than the operator allows.
    #[serde(default)]
    pub limits: Asked,
    /// The agent.
    pub agent: Agent,
    /// The certification.
    pub certify: Certify,
    /// What is delivered.
    #[serde(default)]
    pub output: Output,
}

/// Says what a run does where confinement is incomplete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confine {
    /// It refuses with `sandbox_unavailable` before anything runs.
    Require,
    /// It goes on; certificate and status say what is missing.
    #[default]
    BestEffort,
}

/// Is the agent command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Variables that it gets beside those of Semel.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Names of variables that it gets from the environment of the run.
    #[serde(default)]
    pub pass: Vec<String>,
    /// Programs beside its own that it finds on its PATH; they are resolved before it starts, and read-only.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Files copied into its private HOME: name there → place here, absolute or relative to the job file.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// How long it may take.
    #[serde(default)]
    pub timeout: Option<Span>,
}

/// Is the certification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certify {
    /// What the job installs with: installers, only the lockfiles of which need hashes, and at most one command.
    #[serde(default)]
    pub install: Installs,
    /// Further arguments of an installer, such as `{ uv = ["--group", "test"] }`.
    #[serde(default)]
    pub install_args: BTreeMap<Installer, Vec<String>>,
    /// What becomes of the project's own package.
    #[serde(default)]
    pub project: ProjectInstall,
    /// The test command.
    pub test: Vec<String>,
    /// Where the test command writes its JUnit report, if it is neither pytest nor cargo.
    #[serde(default)]
    pub report: Option<RelPath>,
    /// Variables that the tests get beside the fixed list.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// How many tests must have run, at least.
    #[serde(default)]
    pub min_tests: Option<u64>,
    /// How long each of fetch, install and test may take.
    #[serde(default)]
    pub timeout: Option<Span>,
    /// How many attempts there are at most.
    #[serde(default = "one")]
    pub attempts: u32,
    /// Which refusals are worth another attempt beside a failed install and a passed deadline.
    #[serde(default)]
    pub retry: Vec<RetryOn>,
    /// Places below the tree where tools may keep caches while the tests run.
    #[serde(default)]
    pub caches: Vec<RelPath>,
    /// What a tool finds that asks git about the tree.
    #[serde(default)]
    pub git: InGit,
}

/// Says what a tool finds that asks git about the tree that is certified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InGit {
    /// Nothing: it is in no repository.
    #[default]
    None,
    /// A repository with one commit, which holds the tree, without tags and history.
    OneCommit,
}

/// Names a refusal that another attempt may cure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryOn {
    /// Failed tests.
    TestsFailed,
}

/// Is what a run delivers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// A new branch in the repository.
    #[serde(default)]
    pub branch: Option<String>,
    /// A patch file, absolute or relative to the job file.
    #[serde(default)]
    pub patch: Option<String>,
}

/// Is a length of time with its unit.
///
/// # Shape
/// `"90s"`, `"10m"`, `"2h"`.
///
/// # Errors
/// `bad_input` for any other text, for zero, and beyond 7 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Span(Duration);

impl Span {
    /// Gives the length.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }

    /// Parses a length of time.
    ///
    /// # Errors
    /// See the type.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let wrong = || Refusal::new(Code::BadInput, "a length of time is like 90s, 10m or 2h").name(text);
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
        let unit = match &text[digits..] {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return Err(wrong()),
        };
        let seconds = number
            .checked_mul(unit)
            .filter(|s| (1..=7 * 86_400).contains(s))
            .ok_or_else(wrong)?;
        Ok(Self(Duration::from_secs(seconds)))
    }
}

impl TryFrom<String> for Span {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        Self::parse(&text)
    }
}

impl core::str::FromStr for Span {
    type Err = Refusal;
    fn from_str(text: &str) -> Result<Self, Refusal> {
        Self::parse(text)
    }
}

impl From<Span> for String {
    fn from(span: Span) -> String {
        format!("{}s", span.0.as_secs())
    }
}

const fn one() -> u32 {
    1
}

const fn process() -> Durability {
    Durability::Process
}

/// The most attempts at one proposal.
const MOST_ATTEMPTS: u32 = 100;

impl Certify {
    /// Makes a recipe with nothing but a test command.
    #[must_use]
    pub fn of(test: Vec<String>) -> Self {
        Self {
            install: Installs::default(),
            install_args: BTreeMap::new(),
            project: ProjectInstall::default(),
            test,
            report: None,
            env: BTreeMap::new(),
            min_tests: None,
            timeout: None,
            attempts: one(),
            retry: Vec::new(),
            caches: Vec::new(),
            git: InGit::None,
        }
    }
}

/// Says why a directory can be no cache: the whole tree, and what is or may be installed, are never written by tests.
fn no_cache(path: &RelPath) -> Option<&'static str> {
    const INSTALLED: [&[u8]; 2] = [b"node_modules", b".venv"];
    if path.is_root() {
        Some("the whole tree can be no cache of the tests")
    } else if path.in_git_dir() || path.components().any(|part| INSTALLED.contains(&part)) {
        Some("a repository, or what is installed, can be no cache of the tests")
    } else {
        None
    }
}

impl Job {
    /// Parses and checks a job file.
    ///
    /// # Errors
    /// `bad_input` with the line for what does not parse; with the key for what breaks a rule: an empty command, a
    /// base that is not a full object id, a cache that is the tree or an installation, a variable that Semel sets, no attempt or more than 100, both or an
    /// impossible output.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let job: Job =
            toml::from_str(text).map_err(|e| toml_refusal(Code::BadInput, "the job file", text, &e))?;
        job.check()?;
        Ok(job)
    }

    fn check(&self) -> Result<(), Refusal> {
        let wrong = |key: &str, why: &str| Err(Refusal::new(Code::BadInput, why).name(key));
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if !matches!(self.base.len(), 40 | 64) || !self.base.bytes().all(hex) {
            return wrong(
                "base",
                "the base is a full object id in lower case, not a ref or an abbreviation",
            );
        }
        self.limits.check(Code::BadInput)?;
        if self.agent.command.first().is_none_or(String::is_empty) {
            return wrong("agent.command", "the agent command is empty");
        }
        if self.certify.test.first().is_none_or(String::is_empty) {
            return wrong("certify.test", "the test command is empty");
        }
        if !(1..=MOST_ATTEMPTS).contains(&self.certify.attempts) {
            return wrong("certify.attempts", "there are 1 to 100 attempts");
        }
        if let Some(why) = self.certify.caches.iter().find_map(no_cache) {
            return wrong("certify.caches", why);
        }
        let ours =
            |name: &&String| name.starts_with("SEMEL_") || name.is_empty() || name.contains(['=', '\0']);
        let mut names = self
            .agent
            .env
            .keys()
            .chain(&self.agent.pass)
            .chain(self.certify.env.keys());
        if let Some(name) = names.find(ours) {
            return wrong(name, "this variable is not a job's to set");
        }
        for name in self.agent.files.keys() {
            let place = RelPath::parse(name.as_bytes())?;
            if place.is_root() {
                return wrong("agent.files", "a file needs a name in the private HOME");
            }
        }
        if self.output.branch.is_some() && self.output.patch.is_some() {
            return wrong("output", "the output is a branch or a patch, not both");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(change: &str) -> String {
        let base = "0123456789012345678901234567890123456789";
        format!(
            "job = \"j\"\nrepository = \"r\"\nbase = \"{base}\"\n[agent]\ncommand = [\"a\"]\n[certify]\ntest = [\"t\"]\n{change}"
        )
    }

    #[test]
    fn directories_below_the_tree_are_caches() {
        let job = Job::parse(&text("caches = [\".pytest_cache\", \"out\", \"a/.git_cache\"]")).unwrap();
        assert_eq!(job.certify.caches.len(), 3);
    }

    #[test]
    fn a_small_job_has_its_defaults() {
        let job = Job::parse(&text("")).unwrap();
        assert_eq!(job.certify.attempts, 1);
        assert_eq!(job.durability, Durability::Process);
        assert_eq!(job.output, Output::default());
    }

    #[test]
    fn what_breaks_a_rule_is_refused_by_name() {
        let cases = [
            (text("").replace("0123456789\"", "HEAD\""), "base"),
            (text("").replace("[\"a\"]", "[]"), "agent.command"),
            (text("").replace("[\"t\"]", "[\"\"]"), "certify.test"),
            (text("attempts = 0"), "certify.attempts"),
            (text("attempts = 101"), "certify.attempts"),
            (text("env = { SEMEL_TOKEN = \"x\" }"), "SEMEL_TOKEN"),
            (text("caches = [\"out\", \".\"]"), "certify.caches"),
            (text("caches = [\"\"]"), "certify.caches"),
            (text("caches = [\".git\"]"), "certify.caches"),
            (text("caches = [\"node_modules\"]"), "certify.caches"),
            (text("caches = [\"a/.venv/lib\"]"), "certify.caches"),
            (text("[limits]\nprocesses = 1"), "limits.processes"),
            (text("[output]\nbranch = \"b\"\npatch = \"p\""), "output"),
        ];
        for (text, key) in cases {
            let refusal = Job::parse(&text).unwrap_err();
            assert_eq!(
                (refusal.code, refusal.names),
                (Code::BadInput, vec![key.to_owned()]),
                "{text}"
            );
        }
        for bad in [
            "surprise = 1",
            "timeout = \"10\"",
            "timeout = \"0s\"",
            "timeout = \"8d\"",
            "timeout = 5",
            "[limits]\nprocess = 100",
        ] {
            assert_eq!(Job::parse(&text(bad)).unwrap_err().code, Code::BadInput, "{bad}");
        }
    }
}
