//! Other servers of tools behind the gateway, as the operator names them.

use super::{File, bad, variable};
use semel_core::job::Span;
use semel_core::upstream::UpstreamName;
use semel_core::{Code, Refusal, words};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Is a server, as the operator's file says it.
///
/// # Shape
/// Either `command` or `url`; `cwd`, `env` and `pass` belong to a command, `headers` to a URL.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Written {
    /// The program and its arguments; no shell reads them.
    command: Option<Vec<String>>,
    /// Where it is reached: `http://HOST[:PORT]/PATH`.
    url: Option<String>,
    /// Where the program runs; else a directory of its own in the state root.
    cwd: Option<PathBuf>,
    /// Variables with their values.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Names of variables that are handed on from the operator's own environment.
    #[serde(default)]
    pass: Vec<String>,
    /// Headers that every request has.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// How long a call may take.
    timeout: Option<Span>,
    /// Which key it is told.
    #[serde(default)]
    keys: Keys,
}

/// Says which key a server is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Keys {
    /// One that is made of the caller's key and its scope: equal keys of two jobs, or of two generations, stay two.
    #[default]
    Scoped,
    /// The caller's.
    AsIs,
    /// None.
    None,
}

/// Is a server, checked.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    /// How it is reached.
    pub(crate) way: Way,
    /// How long a call may take.
    pub(crate) timeout: Duration,
    /// Which key it is told.
    pub(crate) keys: Keys,
}

/// Says how a server is reached.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// It is a program, started here.
    Command {
        /// The program and its arguments.
        command: Vec<String>,
        /// Where it runs, where the operator says so.
        cwd: Option<PathBuf>,
        /// What it finds in its environment beyond PATH, HOME and LANG.
        env: BTreeMap<OsString, OsString>,
    },
    /// It listens.
    Url(Url),
}

/// Is where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    /// The host, and the port where one is named.
    pub(crate) authority: String,
    /// The path.
    pub(crate) path: String,
    /// Headers that every request has.
    pub(crate) headers: BTreeMap<String, String>,
}

impl Url {
    /// Gives the host and the port.
    pub(crate) fn place(&self) -> String {
        let has_port = self
            .authority
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if has_port {
            self.authority.clone()
        } else {
            format!("{}:80", self.authority)
        }
    }

    fn read(url: &str, headers: BTreeMap<String, String>) -> Result<Self, Refusal> {
        let wrong = |why: &str| bad(why).name(url);
        let rest = url.strip_prefix("http://").ok_or_else(|| {
            wrong("the URL of a server is http://HOST[:PORT]/PATH; for https, let a proxy of this machine speak it")
        })?;
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, format!("/{path}")),
            None => (rest, "/".to_owned()),
        };
        let plain = |c: char| c.is_ascii_graphic();
        if authority.is_empty() || authority.contains('@') || path.contains('#') || !rest.chars().all(plain) {
            return Err(wrong("the URL of a server is http://HOST[:PORT]/PATH"));
        }
        Ok(Self {
            authority: authority.to_owned(),
            path,
            headers,
        })
    }
}

/// How long a call of another server may take where the operator does not say.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The longest.
const TIMEOUT_MOST: Duration = Duration::from_secs(3600);

/// Checks the servers of a file.
///
/// # Errors
/// `bad_config`, naming the server.
pub(super) fn of_file(read: &File) -> Result<BTreeMap<UpstreamName, Upstream>, Refusal> {
    let all = read.upstream.iter().map(|(name, written)| {
        let name = UpstreamName::parse(name.as_str()).map_err(as_config)?;
        let checked = check(written).map_err(|refusal| refusal.name(name.as_str()))?;
        Ok((name, checked))
    });
    all.collect()
}

/// Reads `NAME=COMMAND` or `NAME=URL`.
///
/// # Errors
/// `usage`.
pub(crate) fn of_flag(text: &str) -> Result<(UpstreamName, Upstream), Refusal> {
    let usage = |refusal: Refusal| Refusal {
        code: Code::Usage,
        ..refusal
    };
    let (name, what) = text
        .split_once('=')
        .ok_or_else(|| Refusal::new(Code::Usage, "a server is NAME=COMMAND or NAME=URL").name(text))?;
    let name = UpstreamName::parse(name).map_err(usage)?;
    Ok((name, of_line(what).map_err(usage)?))
}

/// Reads a command in one line, or a URL.
///
/// # Errors
/// `bad_config`, `bad_input`.
pub(crate) fn of_line(what: &str) -> Result<Upstream, Refusal> {
    let mut written = Written::default();
    if what.starts_with("http://") || what.starts_with("https://") {
        written.url = Some(what.to_owned());
    } else {
        written.command = Some(words::split(what)?);
    }
    check(&written)
}

fn as_config(refusal: Refusal) -> Refusal {
    Refusal {
        code: Code::BadConfig,
        ..refusal
    }
}

fn check(written: &Written) -> Result<Upstream, Refusal> {
    let timeout = written.timeout.map_or(TIMEOUT, Span::get);
    if timeout.is_zero() || timeout > TIMEOUT_MOST {
        return Err(bad("the timeout of a server is more than 0 and at most 1 h"));
    }
    Ok(Upstream {
        way: way(written)?,
        timeout,
        keys: written.keys,
    })
}

fn way(written: &Written) -> Result<Way, Refusal> {
    match (&written.command, &written.url) {
        (Some(command), None) if written.headers.is_empty() => {
            if command.first().is_none_or(String::is_empty) {
                return Err(bad("the command of a server names no program"));
            }
            if written.cwd.as_ref().is_some_and(|cwd| !cwd.is_absolute()) {
                return Err(bad("the working directory of a server is an absolute path"));
            }
            let passed = written.pass.iter();
            let mut env: BTreeMap<OsString, OsString> = passed
                .filter_map(|name| Some((name.into(), variable(name)?)))
                .collect();
            env.extend(
                written
                    .env
                    .iter()
                    .map(|(name, value)| (name.into(), value.into())),
            );
            Ok(Way::Command {
                command: command.clone(),
                cwd: written.cwd.clone(),
                env,
            })
        }
        (None, Some(url)) if written.cwd.is_none() && written.env.is_empty() && written.pass.is_empty() => {
            Ok(Way::Url(Url::read(url, written.headers.clone())?))
        }
        (Some(_), None) => Err(bad("headers belong to a server that has a URL")),
        (None, Some(_)) => Err(bad("cwd, env and pass belong to a server that is a command")),
        (Some(_), Some(_)) | (None, None) => Err(bad("a server has either a command or a url")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_command_or_a_url() {
        let (name, fs) = of_flag("fs=npx -y 'a b'").unwrap();
        assert_eq!(name.as_str(), "fs");
        let Way::Command { command, .. } = fs.way else {
            panic!("no command")
        };
        assert_eq!(command, ["npx", "-y", "a b"]);
        let (_, web) = of_flag("web=http://localhost:3000/mcp?x=1").unwrap();
        let Way::Url(url) = web.way else { panic!("no URL") };
        assert_eq!(
            (url.place().as_str(), url.path.as_str()),
            ("localhost:3000", "/mcp?x=1")
        );
        let Way::Url(url) = of_line("http://[::1]/").unwrap().way else {
            panic!("no URL")
        };
        assert_eq!(url.place(), "[::1]:80");
        for wrong in [
            "fs",
            "FS=x",
            "fs=",
            "fs=a | b",
            "fs=https://x/",
            "fs=http:///x",
            "fs=http://a b/",
        ] {
            assert_eq!(of_flag(wrong).map(drop).unwrap_err().code, Code::Usage, "{wrong}");
        }
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let read = |text: &str| {
            let file: File = toml::from_str(text).unwrap();
            of_file(&file)
        };
        let good = "[upstream.fs]\ncommand = [\"a\"]\ncwd = \"/x\"\nenv = {A = \"b\"}\ntimeout = \"5s\"\nkeys = \"as_is\"";
        let all = read(good).unwrap();
        let fs = &all[&UpstreamName::parse("fs").unwrap()];
        assert_eq!((fs.timeout, fs.keys), (Duration::from_secs(5), Keys::AsIs));
        for wrong in [
            "[upstream.fs]",
            "[upstream.fs]\ncommand = []",
            "[upstream.fs]\ncommand = [\"a\"]\nurl = \"http://x/\"",
            "[upstream.fs]\ncommand = [\"a\"]\ncwd = \"x\"",
            "[upstream.fs]\ncommand = [\"a\"]\nheaders = {A = \"b\"}",
            "[upstream.fs]\nurl = \"http://x/\"\nenv = {A = \"b\"}",
            "[upstream.fs]\ncommand = [\"a\"]\ntimeout = \"2h\"",
            "[upstream.FS]\ncommand = [\"a\"]",
        ] {
            assert_eq!(
                read(wrong).map(drop).unwrap_err().code,
                Code::BadConfig,
                "{wrong}"
            );
        }
        assert!(toml::from_str::<File>("[upstream.fs]\nkey = \"x\"").is_err());
    }
}
