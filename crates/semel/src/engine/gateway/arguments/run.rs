//! The arguments of `run_command`.

use super::values::Values;
use super::{Args, Place, Said, missing};
use crate::limits;
use semel_core::approval::Commanded;
use semel_core::{Code, Refusal};
use semel_host::exec::What;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

/// Is what a call of `run_command` asks for, beside where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// What is run.
    pub(crate) what: What,
    /// Further variables.
    pub(crate) env: BTreeMap<OsString, OsString>,
    /// After how long it is ended.
    pub(crate) timeout: Duration,
    /// Within what its key means one effect.
    pub(crate) domain: Domain,
}

impl Run {
    /// Shows it to a person who decides about it.
    pub(crate) fn shown(&self) -> Commanded {
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let says = match &self.what {
            What::Shell(line) => text(line),
            What::Argv(argv) => json!(argv.iter().map(text).collect::<Vec<_>>()).to_string(),
        };
        Commanded::new(&says, self.env.keys().map(text).collect())
    }
}

/// Says within what the key of a call means one effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Domain {
    /// The generation: a later one may run it again.
    #[default]
    Generation,
    /// The job: no later generation runs it again.
    Job,
}

impl Domain {
    /// Gives the word that travels on every wire.
    const fn wire(self) -> &'static str {
        match self {
            Self::Generation => "generation",
            Self::Job => "job",
        }
    }

    fn read(text: &str) -> Result<Self, Refusal> {
        [Self::Generation, Self::Job]
            .into_iter()
            .find(|domain| domain.wire() == text)
            .ok_or_else(|| Refusal::new(Code::BadInput, "the scope is generation or job").name("scope"))
    }
}

/// Reads the arguments. What is left out is left out of the fingerprint, too, as is what says the default.
pub(super) fn run_said(values: &mut Values<'_>) -> Result<Said, Refusal> {
    let mut said = Said::nothing();
    let what = match (values.text("command"), values.words("argv")) {
        (Some(line), None) => {
            said = said.and("command", json!(line));
            What::Shell(line.into())
        }
        (None, Some(argv)) => {
            said = said.and("argv", json!(argv));
            What::Argv(argv.into_iter().map(OsString::from).collect())
        }
        (None, None) => return Err(missing("command")),
        (Some(_), Some(_)) => {
            return Err(Refusal::new(Code::BadInput, "one argument comes in two forms")
                .reason("given_twice")
                .names(["command", "argv"]));
        }
    };
    let place = Place::read(values.path_or_root("cwd", "cwd_b64")?)?;
    let env = values.variables("env");
    if !env.is_empty() {
        let spelt: Map<String, Value> = env.iter().map(|(n, v)| (n.clone(), json!(v))).collect();
        said = said.and("env", Value::Object(spelt));
    }
    let timeout = match values.count("timeout_ms") {
        None => limits::COMMAND_TIMEOUT,
        Some(ms) => timeout(ms)?,
    };
    if timeout != limits::COMMAND_TIMEOUT {
        said = said.and("timeout_ms", json!(timeout.as_millis() as u64));
    }
    let domain = match values.text("scope") {
        None => Domain::default(),
        Some(text) => Domain::read(&text)?,
    };
    if domain != Domain::default() {
        said = said.and("scope", json!(domain.wire()));
    }
    let run = Run {
        what,
        env: env.into_iter().map(|(n, v)| (n.into(), v.into())).collect(),
        timeout,
        domain,
    };
    short(&run)?;
    Ok(said.with(Args::Run(run)).at(place))
}

fn timeout(ms: u64) -> Result<Duration, Refusal> {
    let timeout = Duration::from_millis(ms);
    if timeout.is_zero() || timeout > limits::COMMAND_TIMEOUT_MOST {
        let most = limits::COMMAND_TIMEOUT_MOST.as_millis();
        let why = format!("a command gets 1 to {most} milliseconds");
        return Err(Refusal::new(Code::BadInput, why).name("timeout_ms"));
    }
    Ok(timeout)
}

/// Refuses what the system could not hand to a program.
fn short(run: &Run) -> Result<(), Refusal> {
    let words: usize = match &run.what {
        What::Shell(line) => line.len(),
        What::Argv(argv) => argv.iter().map(|word| word.len() + 1).sum(),
    };
    let env: usize = run.env.iter().map(|(n, v)| n.len() + v.len() + 2).sum();
    if words + env <= limits::COMMAND_LINE {
        return Ok(());
    }
    let why = format!(
        "a command with its variables has at most {} bytes; put more into a file",
        limits::COMMAND_LINE
    );
    Err(Refusal::new(Code::TooLarge, why))
}

#[cfg(test)]
mod tests {
    use super::super::{Understood, understand};
    use super::*;
    use crate::engine::gateway::tool::Tool;

    fn read(arguments: Value) -> Result<Understood, Refusal> {
        let Value::Object(map) = arguments else {
            panic!("an object")
        };
        understand(Tool::RunCommand, map, &|_| None)
    }

    #[test]
    fn what_says_the_same_is_the_same_call() {
        let print = |arguments: Value| read(arguments).unwrap().fingerprint;
        let first = print(json!({"command": "make test"}));
        for same in [
            json!({"cmd": "make test", "workdir": "."}),
            json!({"command": "make test", "cwd_b64": "Lg==", "env": {}, "scope": "generation"}),
            json!({"command": "make test", "timeoutMs": 600_000}),
        ] {
            assert_eq!(print(same.clone()), first, "{same}");
        }
        for other in [
            json!({"argv": ["make", "test"]}),
            json!({"command": "make test", "cwd": "a"}),
            json!({"command": "make test", "env": {"A": "b"}}),
            json!({"command": "make test", "timeout_ms": 1}),
            json!({"command": "make test", "scope": "job"}),
            json!({"command": "make  test"}),
        ] {
            assert_ne!(print(other.clone()), first, "{other}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (arguments, name) in [
            (json!({"cwd": "."}), "command"),
            (json!({"command": "a", "argv": ["a"]}), "argv"),
            (json!({"command": ["a"]}), "command"),
            (json!({"argv": "a"}), "argv"),
            (json!({"argv": [1]}), "argv"),
            (json!({"argv": []}), "argv"),
            (json!({"command": "a", "timeout": 5}), "timeout"),
            (json!({"command": "a", "timeout_ms": 0}), "timeout_ms"),
            (json!({"command": "a", "timeout_ms": 14_400_001}), "timeout_ms"),
            (json!({"command": "a", "timeout_ms": 1.5}), "timeout_ms"),
            (json!({"command": "a", "timeout_ms": -1}), "timeout_ms"),
            (json!({"command": "a", "scope": "world"}), "scope"),
            (json!({"command": "a", "env": {"A": 1}}), "env"),
            (json!({"command": "a", "env": ["A=1"]}), "env"),
            (json!({"command": "a", "cwd": ".", "cwd_b64": "Lg=="}), "cwd"),
        ] {
            let refusal = read(arguments.clone()).unwrap_err();
            assert_eq!(refusal.code, Code::BadInput, "{arguments}");
            assert!(
                refusal.names.iter().any(|n| n == name),
                "{arguments}: {refusal:?}"
            );
        }
        let long = "x".repeat(limits::COMMAND_LINE + 1);
        assert_eq!(read(json!({"command": long})).unwrap_err().code, Code::TooLarge);
        let escapes = read(json!({"command": "a", "cwd": "../x"})).unwrap();
        assert_eq!(escapes.path.unwrap_err().code, Code::PathEscapesRoot);
    }
}
