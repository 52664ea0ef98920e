//! The binary strings of SSH: lengths before bytes, big-endian. It knows keys only as bytes.

/// Reads fields one after another; every read past the end is `None`.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    pub(super) fn number(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        self.take(len)
    }
}

/// Adds one string; the strings of this crate are far below 4 GiB.
pub(super) fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(bytes);
}

pub(super) const ED25519: &[u8] = b"ssh-ed25519";

/// Writes a public key the way `ssh-ed25519` lines and fingerprints hold it.
pub(super) fn public_blob(key: &[u8; 32]) -> Vec<u8> {
    let mut blob = Vec::with_capacity(51);
    put(&mut blob, ED25519);
    put(&mut blob, key);
    blob
}

/// Reads a public key blob; trailing bytes and other algorithms are `None`.
pub(super) fn public_of(blob: &[u8]) -> Option<[u8; 32]> {
    let mut fields = Fields(blob);
    let algorithm = fields.string()?;
    let key = fields.string()?.try_into().ok()?;
    (algorithm == ED25519 && fields.0.is_empty()).then_some(key)
}

/// Says why a private key file cannot be used.
pub(super) enum Unusable {
    Encrypted,
    Malformed,
}

/// Reads the seed of an unencrypted `openssh-key-v1` file of one Ed25519 key.
///
/// # Source
/// OpenSSH `PROTOCOL.key`.
pub(super) fn seed_of(bytes: &[u8]) -> Result<[u8; 32], Unusable> {
    let mut fields = Fields(bytes);
    if fields.take(15) != Some(b"openssh-key-v1\0") {
        return Err(Unusable::Malformed);
    }
    match (fields.string(), fields.string(), fields.string()) {
        (Some(b"none"), Some(b"none"), Some(b"")) => {}
        (Some(_), Some(_), Some(_)) => return Err(Unusable::Encrypted),
        _ => return Err(Unusable::Malformed),
    }
    plain_seed(fields).ok_or(Unusable::Malformed)
}

fn plain_seed(mut fields: Fields<'_>) -> Option<[u8; 32]> {
    let one = fields.number()?;
    let public = public_of(fields.string()?)?;
    let mut secret = Fields(fields.string()?);
    let whole = one == 1 && fields.0.is_empty();
    let twice = secret.number()? == secret.number()?;
    let algorithm = secret.string()?;
    let again = secret.string()?;
    let pair = secret.string()?;
    let _comment = secret.string()?;
    let padded = secret.0.iter().zip(1_u8..).all(|(byte, at)| *byte == at);
    let (seed, half) = pair.split_at_checked(32)?;
    let agrees = algorithm == ED25519 && again == public && half == public;
    (whole && twice && padded && agrees).then(|| seed.try_into().ok())?
}
