//! Envelopes: the signed bytes, and the three files that carry the same signature to different verifiers.
//!
//! It does *not* say which key is to be trusted, and does *not* parse a payload before its bytes are verified
//! unless the caller asks what an unverified certificate claims.

use super::{KeyId, PublicKey, SigningKey, Statement, keys, ssh};
use crate::canonical;
use crate::code::{Code, Refusal};
use crate::path::shown;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::Digest as _;

/// The type of the bytes in an envelope.
pub const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
/// The namespace of SSH signatures over a payload.
pub const SSHSIG_NAMESPACE: &str = "certification@semel.dev";
const BUNDLE_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";

const LIMITS: canonical::Limits = canonical::Limits {
    bytes: 8 << 20,
    depth: 8,
};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    payload: String,
    #[serde(rename = "payloadType")]
    payload_type: String,
    signatures: Vec<Signature>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signature {
    keyid: String,
    sig: String,
}

/// Gives the bytes that a signature is made over.
///
/// # Source
/// DSSE v1, "pre-authentication encoding".
#[must_use]
pub fn pre_authentication(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

/// Signs a statement.
///
/// # Shape
/// A DSSE envelope with two entries of the same signature: one under the id that securesystemslib demands, one
/// under the SSH fingerprint that go-securesystemslib demands.
///
/// # Errors
/// Those of [`Statement::check`] and [`Statement::to_payload`].
pub fn sign(statement: &Statement, key: &SigningKey) -> Result<Vec<u8>, Refusal> {
    statement.check()?;
    seal(PAYLOAD_TYPE, &statement.to_payload()?, key)
}

/// Signs any bytes of any type, without looking at them.
///
/// # Errors
/// `internal` where the envelope does not serialise, which none does.
pub fn seal(payload_type: &str, payload: &[u8], key: &SigningKey) -> Result<Vec<u8>, Refusal> {
    let sig = BASE64_STANDARD.encode(key.sign(&pre_authentication(payload_type, payload)));
    let public = key.public();
    let entry = |id: KeyId| Signature {
        keyid: id.into(),
        sig: sig.clone(),
    };
    canonical::canonical_of(&Envelope {
        payload: BASE64_STANDARD.encode(payload),
        payload_type: payload_type.to_owned(),
        signatures: vec![entry(public.id()), entry(public.ssh_fingerprint())],
    })
}

/// Signs a statement as a Sigstore bundle, which takes exactly one signature.
///
/// # Shape
/// Bundle v0.3 with `publicKey.hint` (the key's id) and no transparency log entry.
///
/// # Errors
/// Those of [`sign`].
pub fn to_sigstore_bundle(statement: &Statement, key: &SigningKey) -> Result<Vec<u8>, Refusal> {
    statement.check()?;
    let payload = statement.to_payload()?;
    let signature = key.sign(&pre_authentication(PAYLOAD_TYPE, &payload));
    let id = key.public().id();
    Ok(canonical::to_canonical(&json!({
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": { "publicKey": { "hint": id.as_str() }, "tlogEntries": [] },
        "dsseEnvelope": {
            "payload": BASE64_STANDARD.encode(&payload),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{ "keyid": id.as_str(), "sig": BASE64_STANDARD.encode(signature) }],
        },
    })))
}

/// Signs the payload of a statement as an armored SSH signature, for `ssh-keygen -Y verify`.
///
/// # Errors
/// Those of [`sign`].
///
/// # Source
/// OpenSSH `PROTOCOL.sshsig`.
pub fn to_ssh_signature(statement: &Statement, key: &SigningKey) -> Result<String, Refusal> {
    statement.check()?;
    let digest = sha2::Sha512::digest(statement.to_payload()?);
    let namespace = SSHSIG_NAMESPACE.as_bytes();
    let mut signed = b"SSHSIG".to_vec();
    for part in [namespace, b"", b"sha512", &digest] {
        ssh::put(&mut signed, part);
    }
    let mut signature = Vec::new();
    ssh::put(&mut signature, ssh::ED25519);
    ssh::put(&mut signature, &key.sign(&signed));
    let mut blob = b"SSHSIG\0\0\0\x01".to_vec();
    let public = ssh::public_blob(key.public().as_bytes());
    for part in [&public, namespace, b"", b"sha512", &signature] {
        ssh::put(&mut blob, part);
    }
    Ok(keys::armor("SSH SIGNATURE", &blob, 70))
}

/// Holds an envelope taken apart: what is proven of it, and what it says.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The key that every signature entry verifies with, or why there is none.
    ///
    /// Reasons: `unknown_key` (nothing can be said of the signature), `signature_invalid`, `payload_type`.
    pub signer: Result<PublicKey, Refusal>,
    /// The ids that the entries name.
    pub key_ids: Vec<String>,
    /// What the payload says; proven only where `signer` is.
    pub statement: Result<Statement, Refusal>,
}

/// Takes an envelope apart and verifies it against the trusted keys.
///
/// Every signature entry must name one and the same trusted key and verify with it, so that no byte of an
/// envelope is without meaning.
///
/// # Errors
/// `gate_refused` with reason `envelope_malformed` where it is not an envelope of one or two entries.
pub fn open(envelope: &[u8], trusted: &[PublicKey]) -> Result<Opened, Refusal> {
    let malformed = |why: String| Refusal::new(Code::GateRefused, why).reason("envelope_malformed");
    let value = canonical::parse_strict(envelope, LIMITS)
        .map_err(|refusal| malformed(format!("the envelope is not strict JSON: {refusal}")))?;
    let envelope: Envelope =
        serde_json::from_value(value).map_err(|error| malformed(format!("not a DSSE envelope: {error}")))?;
    let payload = BASE64_STANDARD
        .decode(&envelope.payload)
        .map_err(|error| malformed(format!("the payload is not base64: {error}")))?;
    let mut entries: Vec<(String, [u8; 64])> = Vec::new();
    for entry in envelope.signatures {
        let raw = BASE64_STANDARD
            .decode(&entry.sig)
            .ok()
            .and_then(|raw| raw.try_into().ok())
            .ok_or_else(|| malformed("a signature is not base64 of 64 bytes".to_owned()))?;
        if entries.iter().any(|(known, _)| *known == entry.keyid) {
            return Err(malformed("a key id stands twice".to_owned()));
        }
        entries.push((entry.keyid, raw));
    }
    if !(1..=2).contains(&entries.len()) {
        return Err(malformed(
            "an envelope has one or two signature entries".to_owned(),
        ));
    }
    let signer = signer(&envelope.payload_type, &payload, &entries, trusted);
    Ok(Opened {
        signer,
        key_ids: entries.into_iter().map(|(id, _)| shown(id.as_bytes())).collect(),
        statement: Statement::from_payload(&payload),
    })
}

fn signer(
    payload_type: &str,
    payload: &[u8],
    entries: &[(String, [u8; 64])],
    trusted: &[PublicKey],
) -> Result<PublicKey, Refusal> {
    let refuse = |why: &str, reason: &str| Refusal::new(Code::GateRefused, why).reason(reason);
    if payload_type != PAYLOAD_TYPE {
        let why = format!("the payload type is not {PAYLOAD_TYPE}");
        return Err(refuse(&why, "payload_type").name(shown(payload_type.as_bytes())));
    }
    let message = pre_authentication(payload_type, payload);
    let mut found: Option<PublicKey> = None;
    for (id, signature) in entries {
        let key = trusted.iter().find(|key| key.is(id)).ok_or_else(|| {
            refuse("an entry names a key that is not trusted", "unknown_key").name(shown(id.as_bytes()))
        })?;
        if found.is_some_and(|other| other != *key) {
            return Err(refuse("the entries are of different keys", "signature_invalid"));
        }
        if !key.verifies(&message, signature) {
            let why = "the signature does not fit the bytes";
            return Err(refuse(why, "signature_invalid").name(id));
        }
        found = Some(*key);
    }
    found.ok_or_else(|| refuse("no signature", "signature_invalid"))
}

/// Verifies an envelope and reads what it says, in this order.
///
/// # Errors
/// `gate_refused` with reason `envelope_malformed`, `unknown_key`, `signature_invalid`, `payload_type`,
/// `statement_type`, `predicate_type`, `predicate_version` or `predicate_malformed`.
pub fn verify(envelope: &[u8], trusted: &[PublicKey]) -> Result<(Statement, KeyId), Refusal> {
    let opened = open(envelope, trusted)?;
    let key = opened.signer?;
    Ok((opened.statement?, key.id()))
}
