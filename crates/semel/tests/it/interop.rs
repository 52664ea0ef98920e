//! A certificate of a real run, verified by tools that know nothing of Semel; and what they say to a bent one.

use crate::harness::{Site, said, skipped};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

struct Signed {
    site: Site,
    done: Value,
}

fn signed() -> Signed {
    let site = Site::new();
    let done = site.json(&["run", "job.toml"]);
    let key = site.json(&["key", "show"]);
    std::fs::write(site.at("key.pem"), key["pem"].as_str().unwrap()).unwrap();
    let line = format!("semel {}\n", key["ssh"].as_str().unwrap().trim());
    std::fs::write(site.at("allowed_signers"), line).unwrap();
    Signed { site, done }
}

impl Signed {
    fn envelope(&self) -> PathBuf {
        self.done["envelope"].as_str().unwrap().into()
    }

    fn payload(&self) -> Vec<u8> {
        let envelope: Value = serde_json::from_slice(&std::fs::read(self.envelope()).unwrap()).unwrap();
        BASE64_STANDARD
            .decode(envelope["payload"].as_str().unwrap())
            .unwrap()
    }

    /// Copies of the envelope, each bent in another way.
    fn bent(&self) -> Vec<(&'static str, PathBuf)> {
        let whole: Value = serde_json::from_slice(&std::fs::read(self.envelope()).unwrap()).unwrap();
        let mut payload = self.payload();
        let at = payload
            .windows(6)
            .position(|window| window == b"\"pass\"")
            .unwrap();
        payload[at + 1] = b'P';
        let mut other_payload = whole.clone();
        other_payload["payload"] = BASE64_STANDARD.encode(&payload).into();
        let mut other_type = whole.clone();
        other_type["payloadType"] = "application/vnd.in-toto+xml".into();
        let mut other_signature = whole.clone();
        for entry in other_signature["signatures"].as_array_mut().unwrap() {
            let mut bytes = BASE64_STANDARD.decode(entry["sig"].as_str().unwrap()).unwrap();
            bytes[10] ^= 1;
            entry["sig"] = BASE64_STANDARD.encode(bytes).into();
        }
        let mut unsigned = whole;
        unsigned["signatures"] = Value::Array(Vec::new());
        let all = [
            ("payload", other_payload),
            ("type", other_type),
            ("signature", other_signature),
            ("unsigned", unsigned),
        ];
        all.into_iter()
            .map(|(name, value)| {
                let place = self.site.at(&format!("{name}.dsse.json"));
                std::fs::write(&place, value.to_string()).unwrap();
                (name, place)
            })
            .collect()
    }

    /// Lets a verifier judge the envelope, each bent copy of it, and the envelope under another key.
    fn judged_by(&self, verify: &dyn Fn(&Path, &Path) -> Output) {
        let key = self.site.at("key.pem");
        let out = verify(&self.envelope(), &key);
        assert!(out.status.success(), "{}", said(&out));
        assert_eq!(
            out.stdout.trim_ascii(),
            self.payload(),
            "it prints the statement that it verified"
        );
        for (name, place) in self.bent() {
            let out = verify(&place, &key);
            assert_eq!(out.status.code(), Some(1), "{name}: {}", said(&out));
            assert!(out.stdout.is_empty(), "{name}");
        }
        let stranger = Site::new();
        assert!(stranger.run(&["key", "new"]).status.success());
        let other = stranger.json(&["key", "show"]);
        std::fs::write(stranger.at("key.pem"), other["pem"].as_str().unwrap()).unwrap();
        assert_eq!(
            verify(&self.envelope(), &stranger.at("key.pem")).status.code(),
            Some(1)
        );
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn securesystemslib_verifies_the_envelope() {
    let own = root().join(".tools/bin/python");
    let candidates = [own.as_path(), Path::new("python3")];
    let imports = |python: &&Path| {
        let script = "import securesystemslib.dsse, securesystemslib.signer, cryptography";
        let tried = Command::new(python).args(["-c", script]).output();
        tried.is_ok_and(|out| out.status.success())
    };
    let Some(python) = candidates.into_iter().find(imports) else {
        return skipped("no Python here has securesystemslib and cryptography");
    };
    let script = root().join("examples/verify/verify_dsse.py");
    signed().judged_by(&|envelope, key| {
        Command::new(python)
            .arg(&script)
            .arg(envelope)
            .arg(key)
            .output()
            .unwrap()
    });
}

#[test]
fn openssl_verifies_the_envelope() {
    let version = Command::new("openssl").arg("version").output();
    let new = |out: Output| String::from_utf8_lossy(&out.stdout).starts_with("OpenSSL 3");
    if !version.is_ok_and(new) {
        return skipped("there is no OpenSSL 3 here");
    }
    let script = root().join("examples/verify/verify_openssl.sh");
    signed().judged_by(&|envelope, key| {
        Command::new("sh")
            .arg(&script)
            .arg(envelope)
            .arg(key)
            .output()
            .unwrap()
    });
}

#[test]
fn ssh_keygen_verifies_the_signature() {
    if Command::new("ssh-keygen").arg("-?").output().is_err() {
        return skipped("there is no ssh-keygen here");
    }
    let it = signed();
    let verify = |payload: &[u8], namespace: &str| {
        let mut child = Command::new("ssh-keygen")
            .args(["-Y", "verify", "-I", "semel", "-n", namespace, "-f"])
            .arg(it.site.at("allowed_signers"))
            .arg("-s")
            .arg(it.done["ssh_signature"].as_str().unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), payload).unwrap();
        child.wait_with_output().unwrap()
    };
    let payload = it.payload();
    let out = verify(&payload, "certification@semel.dev");
    assert!(out.status.success(), "{}", said(&out));
    let mut bent = payload.clone();
    bent[payload.len() / 2] ^= 1;
    assert!(!verify(&bent, "certification@semel.dev").status.success());
    assert!(
        !verify(&payload, "git").status.success(),
        "a signature is for one purpose"
    );
}
