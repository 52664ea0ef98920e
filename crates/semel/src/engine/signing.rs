//! The signing keys: made once, kept where no sandbox can read them.
//!
//! Certificates and checkpoints of the log have a key each: the daemon holds the log's for all its life, and must not
//! be able to sign a certificate with it.

use super::host;
use crate::config::Config;
use semel_core::certificate::{PublicKey, SigningKey};
use semel_core::{Code, Refusal};
use semel_host::{clock, key, plain};
use std::path::{Path, PathBuf};

/// Gives the place of the log's key.
fn log_place(config: &Config) -> PathBuf {
    config.state.join("keys").join("log.pem")
}

/// Loads the key that signs checkpoints of the log; `None` where there is none yet.
///
/// # Errors
/// `bad_config` where others than its owner could read it.
pub(crate) fn log_key(config: &Config) -> Result<Option<SigningKey>, Refusal> {
    match key::read_secret(&log_place(config)) {
        Ok(bytes) => parse(&bytes, &log_place(config)).map(Some),
        Err(error) if error.code() == Code::NotFound => Ok(None),
        Err(error) => Err(host(error)),
    }
}

/// Loads the key that signs checkpoints of the log, and makes one where there is none yet.
///
/// # Errors
/// As [`log_key`]; `io_failed`.
pub(crate) fn log_key_or_new(config: &Config) -> Result<SigningKey, Refusal> {
    if let Some(key) = log_key(config)? {
        return Ok(key);
    }
    let place = log_place(config);
    plain::private_directory(place.parent().unwrap_or(&config.state)).map_err(host)?;
    let made = SigningKey::from_seed(&clock::random::<32>().map_err(host)?);
    match key::create_secret(&place, made.to_pem().as_bytes()) {
        Ok(()) => Ok(made),
        // Two processes may begin at once; the one that came second takes the first one's key.
        Err(error) if error.code() == Code::PreconditionFailed => {
            log_key(config)?.ok_or_else(|| Refusal::new(Code::IoFailed, "the log's key went away"))
        }
        Err(error) => Err(host(error)),
    }
}

/// Gives the place of the signing key.
pub(crate) fn place(config: &Config) -> PathBuf {
    config.state.join("keys").join("signing.pem")
}

/// Makes a new signing key.
///
/// # Errors
/// `precondition_failed` where there is one: a key is never overwritten; `io_failed`.
pub(crate) fn new(config: &Config) -> Result<PublicKey, Refusal> {
    keep(
        config,
        &SigningKey::from_seed(&clock::random::<32>().map_err(host)?),
    )
}

fn keep(config: &Config, signing: &SigningKey) -> Result<PublicKey, Refusal> {
    let place = place(config);
    plain::private_directory(place.parent().unwrap_or(&config.state)).map_err(host)?;
    key::create_secret(&place, signing.to_pem().as_bytes()).map_err(|error| match error.code() {
        Code::PreconditionFailed => {
            let why = "there is a signing key already, and it is never overwritten; semel key show prints it";
            Refusal::new(Code::PreconditionFailed, why)
                .reason("key_exists")
                .name(place.display().to_string())
        }
        _ => error.into_refusal(),
    })?;
    Ok(signing.public())
}

/// Takes a private key that a person has already, such as an SSH key, as the signing key.
///
/// # Errors
/// As [`new`]; `bad_config` where others than its owner could read it; `bad_input` for another kind of key, with reason
/// `key_encrypted` for one with a passphrase.
pub(crate) fn import(config: &Config, from: &Path) -> Result<PublicKey, Refusal> {
    let bytes = key::read_secret(from).map_err(host)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| {
        Refusal::new(Code::BadInput, "a signing key is text").name(from.display().to_string())
    })?;
    keep(config, &SigningKey::from_pem(text)?)
}

/// Loads the signing key.
///
/// # Errors
/// `bad_config` where there is none, or where others than its owner could read it.
pub(crate) fn load(config: &Config) -> Result<SigningKey, Refusal> {
    read(&place(config))
}

fn read(place: &Path) -> Result<SigningKey, Refusal> {
    let bytes = key::read_secret(place).map_err(|error| match error.code() {
        Code::NotFound => Refusal::new(
            Code::BadConfig,
            "there is no signing key; make one with semel key new",
        )
        .reason("no_signing_key")
        .name(place.display().to_string()),
        _ => error.into_refusal(),
    })?;
    parse(&bytes, place)
}

fn parse(bytes: &[u8], place: &Path) -> Result<SigningKey, Refusal> {
    let text = std::str::from_utf8(bytes).map_err(|_| {
        Refusal::new(Code::BadConfig, "the signing key is not PEM").name(place.display().to_string())
    })?;
    SigningKey::from_pem(text)
}

/// Loads the signing key, and makes one where there is none yet.
///
/// # Errors
/// As [`load`] and [`new`].
pub(crate) fn load_or_new(config: &Config) -> Result<SigningKey, Refusal> {
    if place(config).symlink_metadata().is_err() {
        match new(config) {
            // Two commands may begin at once; the one that came second takes the first one's key.
            Ok(_) => {}
            Err(refusal) if refusal.code == Code::PreconditionFailed => {}
            Err(refusal) => return Err(refusal),
        }
    }
    load(config)
}

/// Gives the directory of the keys that this host trusts, one file each.
fn trusted_place(config: &Config) -> PathBuf {
    config.state.join("keys").join("trusted")
}

/// Takes a public key as text, or the file that holds it.
///
/// # Errors
/// `bad_input` for neither, with reason `key_kind` for a key of another kind; `not_found`.
pub(crate) fn public_key(given: &str) -> Result<PublicKey, Refusal> {
    const LARGEST: u64 = 64 << 10;
    let text = given.trim_start();
    let is_key = text.starts_with("ssh-ed25519 ") || text.starts_with("-----BEGIN ");
    match PublicKey::parse(given) {
        Ok(key) => return Ok(key),
        Err(other) if is_key || other.reason.as_deref() == Some("key_kind") => return Err(other),
        // It may be the name of a file.
        Err(_) => {}
    }
    let bytes = plain::read_file(Path::new(given), LARGEST).map_err(host)?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Refusal::new(Code::BadInput, "a public key is text").name(given))?;
    PublicKey::parse(&text)
}

/// Trusts a key on this host, for gate policies that name none.
///
/// # Durability
/// Atomic, and on the disk when this returns.
///
/// # Errors
/// `io_failed`.
pub(crate) fn trust(config: &Config, key: &PublicKey) -> Result<(), Refusal> {
    let place = trusted_place(config);
    plain::private_directory(&place).map_err(host)?;
    let line = format!("{}\n", key.to_ssh());
    plain::write_file(&place.join(format!("{}.pub", key.id())), line.as_bytes()).map_err(host)
}

/// Trusts a key on this host no longer; one that was not trusted is as good.
///
/// # Errors
/// `io_failed`.
pub(crate) fn distrust(config: &Config, key: &PublicKey) -> Result<(), Refusal> {
    plain::remove_file(&trusted_place(config).join(format!("{}.pub", key.id()))).map_err(host)
}

/// Lists the keys that this host trusts.
///
/// # Errors
/// `bad_config` for a file that holds another key than its name says, or none; `io_failed`.
pub(crate) fn trusted(config: &Config) -> Result<Vec<PublicKey>, Refusal> {
    const LARGEST: u64 = 4096;
    let directory = trusted_place(config);
    let mut keys = Vec::new();
    for file in plain::list_files(&directory).map_err(host)? {
        let Some(id) = file.name.strip_suffix(".pub") else {
            continue;
        };
        let wrong = || {
            let why = "a file of a trusted key does not hold that key";
            Refusal::new(Code::BadConfig, why).name(directory.join(&file.name).display().to_string())
        };
        let bytes = plain::read_trusted(&directory.join(&file.name), LARGEST).map_err(host)?;
        let text = String::from_utf8(bytes).map_err(|_| wrong())?;
        let key = PublicKey::parse(&text).map_err(|_| wrong())?;
        if key.id().as_str() != id {
            return Err(wrong());
        }
        keys.push(key);
    }
    Ok(keys)
}
