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
fn sigstore_verifies_the_bundle() {
    let modules = root().join(".tools/node/node_modules");
    if !modules.join("@sigstore/verify").is_dir() {
        return skipped("@sigstore/verify is not in .tools; scripts/setup.sh makes it");
    }
    let it = signed();
    let verify = |bundle: &Path, key: &Path| {
        Command::new("node")
            .arg(root().join("examples/verify/verify_sigstore.cjs"))
            .arg(bundle)
            .arg(key)
            .env("NODE_PATH", &modules)
            .output()
            .unwrap()
    };
    let place = PathBuf::from(it.done["sigstore_bundle"].as_str().unwrap());
    let key = it.site.at("key.pem");
    let out = verify(&place, &key);
    assert!(out.status.success(), "{}", said(&out));
    assert_eq!(out.stdout.trim_ascii(), it.payload());
    let whole: Value = serde_json::from_slice(&std::fs::read(&place).unwrap()).unwrap();
    // One flipped bit of the payload, of the signature, and of the type.
    for at in ["payload", "sig", "type"] {
        let mut bent = whole.clone();
        let envelope = &mut bent["dsseEnvelope"];
        let field = match at {
            "payload" => &mut envelope["payload"],
            "sig" => &mut envelope["signatures"][0]["sig"],
            _ => &mut envelope["payloadType"],
        };
        let mut bytes = match at {
            "type" => field.as_str().unwrap().as_bytes().to_vec(),
            _ => BASE64_STANDARD.decode(field.as_str().unwrap()).unwrap(),
        };
        bytes[10] ^= 1;
        *field = match at {
            "type" => String::from_utf8(bytes).unwrap().into(),
            _ => BASE64_STANDARD.encode(bytes).into(),
        };
        let other = it.site.at("bent.sigstore.json");
        std::fs::write(&other, bent.to_string()).unwrap();
        let out = verify(&other, &key);
        assert_eq!(out.status.code(), Some(1), "{at}: {}", said(&out));
        assert!(out.stdout.is_empty(), "{at}");
    }
    let stranger = Site::new();
    assert!(stranger.run(&["key", "new"]).status.success());
    let other = stranger.json(&["key", "show"]);
    std::fs::write(stranger.at("key.pem"), other["pem"].as_str().unwrap()).unwrap();
    assert_eq!(verify(&place, &stranger.at("key.pem")).status.code(), Some(1));
}

/// Makes an SSH key pair; gives the place of its private half.
fn keygen(site: &Site, name: &str, args: &[&str]) -> String {
    let out = Command::new("ssh-keygen")
        .args(["-q", "-C", "someone", "-f"])
        .arg(site.at(name))
        .args(args)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", said(&out));
    site.at(name).to_str().unwrap().to_owned()
}

/// A person's own SSH key signs, and what it signs is verified with the public half of it.
#[test]
fn an_ssh_key_signs_certificates_and_is_trusted_by_its_public_line() {
    if Command::new("ssh-keygen").arg("-?").output().is_err() {
        return skipped("there is no ssh-keygen here");
    }
    let site = Site::new();
    let locked = keygen(&site, "locked", &["-t", "ed25519", "-N", "secret"]);
    assert_eq!(
        site.refused(&["key", "new", "--from", &locked], 65)["reason"],
        "key_encrypted"
    );
    let other = keygen(&site, "ecdsa", &["-t", "ecdsa", "-N", ""]);
    assert_eq!(
        site.refused(&["key", "new", "--from", &other], 65)["code"],
        "bad_input"
    );
    let own = keygen(&site, "own", &["-t", "ed25519", "-N", ""]);
    let made = site.json(&["key", "new", "--from", &own]);
    let public = std::fs::read_to_string(site.at("own.pub")).unwrap();
    assert!(public.starts_with(made["ssh"].as_str().unwrap()), "{public}");
    // Never over one that is there.
    assert_eq!(
        site.refused(&["key", "new", "--from", &own], 15)["code"],
        "precondition_failed"
    );

    let done = site.json(&["run", "job.toml"]);
    std::fs::write(site.at("policy.toml"), "[gate]\nrecipe = \"any\"\n").unwrap();
    let commit = site.git(&["rev-parse", "semel/small"]);
    let envelope = done["envelope"].as_str().unwrap();
    let args = [
        "gate",
        "--certificate",
        envelope,
        "--repository",
        "repo",
        "--commit",
        &commit,
    ];
    let args = [&args[..], &["--policy", "policy.toml"]].concat();
    assert_eq!(site.refused(&args, 78)["reason"], "no_trusted_keys");
    let line = format!("{}.pub", own);
    for _ in 0..2 {
        let trusted = site.json(&["key", "trust", &line]);
        assert_eq!(trusted["keys"].as_array().unwrap().len(), 1);
        assert_eq!(trusted["keys"][0]["key_id"], made["key_id"]);
    }
    assert!(site.run(&args).status.success());
    let text = site.run(&["key", "trust"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.starts_with(made["ssh_fingerprint"].as_str().unwrap()),
        "{text}"
    );
    // What was put in place of a trusted key is not taken for it.
    let id = made["key_id"].as_str().unwrap();
    let file = site.home.state().join(format!("keys/trusted/{id}.pub"));
    let stranger = keygen(&site, "stranger", &["-t", "ed25519", "-N", ""]);
    std::fs::copy(format!("{stranger}.pub"), &file).unwrap();
    assert_eq!(site.refused(&args, 78)["code"], "bad_config");
    assert_eq!(
        site.json(&["key", "trust", &line])["keys"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let none = site.json(&["key", "trust", "--remove", made["ssh"].as_str().unwrap()]);
    assert_eq!(none["keys"], serde_json::json!([]));
    assert_eq!(site.refused(&args, 78)["reason"], "no_trusted_keys");
    assert_eq!(
        site.refused(&["key", "trust", "nowhere.pub"], 17)["code"],
        "not_found"
    );
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
