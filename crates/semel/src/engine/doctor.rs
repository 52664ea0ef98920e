//! `semel doctor`: what this machine can keep of our promises, each found out by trying it.

use super::host;
use crate::config::Config;
use semel_core::Refusal;
use semel_core::backend::Backend;
use semel_core::bounds::{Asked, Bounds};
use semel_core::confinement::{Confinement, Level, User};
use semel_host::git::Git;
use semel_host::volume::Volumes;
use semel_host::{files, plain, sandbox};
use serde::Serialize;
use std::ffi::OsStr;

/// Says how a finding is to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Grade {
    /// As it should be.
    Ok,
    /// Something is promised less.
    Less,
    /// Something cannot be done at all.
    Missing,
}

/// Is one finding.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    /// What was looked at.
    pub(crate) name: &'static str,
    /// How it is to be taken.
    pub(crate) grade: Grade,
    /// What was found, and what follows.
    pub(crate) found: String,
}

/// Looks at everything that the promises rest on.
///
/// # Errors
/// `io_failed` where the state root cannot be made.
pub(crate) fn look(config: &Config) -> Result<Vec<Finding>, Refusal> {
    plain::private_directory(&config.state).map_err(host)?;
    let level = sandbox::probe_in(&config.state).unwrap_or_else(|error| Level::none(error.to_string()));
    let mut findings = vec![
        confinement(&level),
        landlock(),
        user(&level),
        limits(config),
        quota(config),
    ];
    findings.extend(backends(config)?);
    let power =
        files::power_supported(&config.state).and_then(|()| Volumes::open(&config.state)?.power_supported());
    findings.push(match power {
        Ok(()) => finding("durability", Grade::Ok, "power and process"),
        Err(error) => finding(
            "durability",
            Grade::Less,
            format!("process; power is refused here ({error}), power-best-effort is not"),
        ),
    });
    findings.push(match Git::find(&config.path) {
        Ok(git) => finding(
            "git",
            Grade::Ok,
            format!("{} at {}", git.version(), git.program().display()),
        ),
        Err(error) => finding(
            "git",
            Grade::Missing,
            format!("{error}; run, certify --git, gate and restore need it"),
        ),
    });
    let tools = [
        "python3", "pip3", "uv", "poetry", "node", "npm", "pnpm", "yarn", "cargo",
    ];
    findings.extend(tools.map(|name| tool(name, config)));
    Ok(findings)
}

fn finding(name: &'static str, grade: Grade, found: impl Into<String>) -> Finding {
    Finding {
        name,
        grade,
        found: found.into(),
    }
}

/// Says which backends volumes can have here, each of them tried.
fn backends(config: &Config) -> Result<Vec<Finding>, Refusal> {
    let offers = Volumes::open(&config.state)
        .and_then(|volumes| volumes.offers())
        .map_err(host)?;
    Ok(offers
        .into_iter()
        .map(|offer| {
            let name = match offer.backend {
                Backend::Dir => "dir",
                Backend::Overlay => "overlay",
                Backend::Tmpfs => "tmpfs",
            };
            match (offer.missing, offer.weaker.is_empty()) {
                (None, true) => finding(name, Grade::Ok, "volumes can lie on it"),
                (None, false) => finding(
                    name,
                    Grade::Less,
                    format!("volumes can lie on it, but {}", offer.weaker.join("; ")),
                ),
                (Some(why), _) => finding(
                    name,
                    Grade::Less,
                    format!("not to be had: {why}; volumes lie on a plain directory"),
                ),
            }
        })
        .collect())
}

/// Says as whom programs of jobs run.
fn user(level: &Level) -> Finding {
    match level.user {
        Some(User::Own) => finding(
            "user",
            Grade::Ok,
            "a user of its own, who owns nothing but its volume",
        ),
        Some(User::Caller) => finding("user", Grade::Ok, "you, who are not root"),
        Some(User::Root) => finding(
            "user",
            Grade::Less,
            "root, without any capability; run Semel as another user, or on a filesystem that can map owners",
        ),
        None => finding("user", Grade::Missing, "nothing runs in a sandbox here"),
    }
}

/// Says what bounds each process tree, unless its job has narrower limits.
fn limits(config: &Config) -> Finding {
    finding("limits", Grade::Ok, in_words(config.bounds(Asked::default())))
}

/// Says bounds in words.
pub(crate) fn in_words(bounds: Bounds) -> String {
    format!(
        "{} processes and threads, {} open files each, {} of memory, files of {}",
        bounds.processes,
        bounds.open_files,
        size(bounds.memory_bytes),
        size(bounds.file_bytes)
    )
}

/// Says how large drafts may become.
fn quota(config: &Config) -> Finding {
    let quota = config.quota;
    let parts = [
        quota.volume_bytes.map(size),
        quota.volume_files.map(|files| format!("{files} files")),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        return finding(
            "quota",
            Grade::Ok,
            "none; [quota] bounds how large a draft may become",
        );
    }
    finding("quota", Grade::Ok, format!("{} a volume", parts.join(", ")))
}

/// Says a size as it was set: rounded, to a tenth, only from a GiB on.
fn size(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    if bytes >= GIB {
        let tenths = bytes / (GIB / 10);
        return match tenths % 10 {
            0 => format!("{} GiB", tenths / 10),
            part => format!("{}.{part} GiB", tenths / 10),
        };
    }
    match bytes % MIB {
        0 => format!("{} MiB", bytes / MIB),
        _ => format!("{bytes} bytes"),
    }
}

fn confinement(level: &Level) -> Finding {
    let grade = match level.confinement {
        Confinement::Full => Grade::Ok,
        Confinement::Partial => Grade::Less,
        Confinement::None => Grade::Missing,
    };
    let mut found = level.confinement.to_string();
    if !level.missing.is_empty() {
        found.push_str(&format!(", without {}", level.missing.join("; ")));
    }
    finding("confinement", grade, found)
}

fn landlock() -> Finding {
    match sandbox::landlock_abi() {
        0 => finding(
            "landlock",
            Grade::Less,
            "not in this kernel; the mount namespace stands alone",
        ),
        abi => finding("landlock", Grade::Ok, format!("ABI {abi}")),
    }
}

fn tool(name: &'static str, config: &Config) -> Finding {
    match sandbox::resolve_program(OsStr::new(name), &config.path) {
        Ok(place) => finding(name, Grade::Ok, place.display().to_string()),
        Err(_) => finding(name, Grade::Less, "not on the path; jobs that use it are refused"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_told_as_it_was_set() {
        for (bytes, told) in [
            (65_536, "65536 bytes"),
            (1_000_000, "1000000 bytes"),
            (3_000_000, "3000000 bytes"),
            (1 << 20, "1 MiB"),
            (512 << 20, "512 MiB"),
            (1 << 30, "1 GiB"),
            (16 << 30, "16 GiB"),
            (8_000_000_000, "7.4 GiB"),
        ] {
            assert_eq!(size(bytes), told);
        }
    }
}
