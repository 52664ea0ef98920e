//! The authorities that the fetch stage trusts where the operator names none: those of the machine.
//!
//! uv and Node bring lists of their own, which know nothing of what the machine's operator added to the machine's: the
//! authority of a proxy, or of an index of the house. Where a variable names another list, that one stands.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Where the distributions keep the list, as one file.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Names the machine's list in an environment of the fetch stage, for the tools that would not look there.
pub fn trust_machine(env: &mut BTreeMap<OsString, OsString>) {
    let bundle = BUNDLES
        .into_iter()
        .find(|path| std::fs::File::open(Path::new(path)).is_ok());
    if let Some(bundle) = bundle {
        name(env, bundle);
    }
}

fn name(env: &mut BTreeMap<OsString, OsString>, bundle: &str) {
    let named = |names: &[&str], env: &BTreeMap<OsString, OsString>| {
        names.iter().any(|name| env.contains_key(OsStr::new(name)))
    };
    if !named(&["SSL_CERT_FILE", "SSL_CERT_DIR"], env) {
        env.insert("SSL_CERT_FILE".into(), bundle.into());
    }
    if !named(&["NODE_EXTRA_CA_CERTS", "npm_config_cafile"], env) {
        env.insert("NODE_EXTRA_CA_CERTS".into(), bundle.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_stands() {
        for (before, after) in [
            (
                vec![],
                vec![("NODE_EXTRA_CA_CERTS", "/m"), ("SSL_CERT_FILE", "/m")],
            ),
            (
                vec![("SSL_CERT_DIR", "/d"), ("HTTPS_PROXY", "p")],
                vec![
                    ("HTTPS_PROXY", "p"),
                    ("NODE_EXTRA_CA_CERTS", "/m"),
                    ("SSL_CERT_DIR", "/d"),
                ],
            ),
            (
                vec![("SSL_CERT_FILE", "/f"), ("npm_config_cafile", "/n")],
                vec![("SSL_CERT_FILE", "/f"), ("npm_config_cafile", "/n")],
            ),
        ] {
            let map = |all: Vec<(&str, &str)>| -> BTreeMap<OsString, OsString> {
                all.into_iter()
                    .map(|(name, value)| (name.into(), value.into()))
                    .collect()
            };
            let mut env = map(before);
            name(&mut env, "/m");
            assert_eq!(env, map(after));
        }
    }
}
