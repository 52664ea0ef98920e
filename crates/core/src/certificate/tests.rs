use super::*;
use crate::ids::Seed;

pub(crate) fn key(n: u8) -> SigningKey {
    SigningKey::from_seed(&[n; 32])
}

pub(crate) fn generation(n: u8) -> Generation {
    Generation::mint(Seed {
        unix_ms: 1_790_000_000_000,
        random: [n; 10],
    })
}

pub(crate) fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

/// A certificate of a second attempt that passed.
pub(crate) fn statement() -> Statement {
    Statement {
        subjects: Subjects {
            tree: ObjectId::parse("3955a6232549513fa78812a280024eea87f58935").unwrap(),
            proposal: Sha256::of(b"proposal"),
            locks: [
                (path("uv.lock"), Sha256::of(b"uv")),
                (path("ui/package-lock.json"), Sha256::of(b"npm")),
            ]
            .into(),
            record: Some(Sha256::of(b"record")),
        },
        predicate: Predicate {
            version: PREDICATE_VERSION,
            job: JobId::parse("job-1").unwrap(),
            attempt: AttemptId(2),
            generation: generation(2),
            earlier: vec![Earlier {
                attempt: AttemptId(1),
                generation: generation(1),
                verdict: EarlierVerdict::Refused(Code::TestsFailed),
            }],
            open: Vec::new(),
            recipe: Sha256::of(b"recipe"),
            toolchain: vec![Toolchain {
                name: "python".to_owned(),
                version: "3.11.7".to_owned(),
                path: "/usr/bin/python3.11".to_owned(),
                sha256: Sha256::of(b"python"),
            }],
            confinement: Level::lacking(vec!["mount namespace".to_owned()]),
            report: Some(Report {
                format: "junit".to_owned(),
                sha256: Sha256::of(b"report"),
                counts: Counts {
                    passed: 600,
                    skipped: 13,
                    ..Counts::default()
                },
            }),
            test_command: ["pytest", "--deselect", "tests/test_net.py"]
                .map(str::to_owned)
                .to_vec(),
            base: Some(BaseCommit {
                commit: ObjectId::parse("aa5c1ee0f0e1a9f1e6a3c8e0a1b2c3d4e5f60718").unwrap(),
                tree: ObjectId::parse("bb5c1ee0f0e1a9f1e6a3c8e0a1b2c3d4e5f60718").unwrap(),
            }),
            test_surface: vec![path("tests/conftest.py")],
            base_tests: Some(BaseTests {
                certificate: Sha256::of(b"base"),
                counts: Counts {
                    passed: 590,
                    ..Counts::default()
                },
                generation: generation(7),
            }),
            weak: Vec::new(),
            versions: [("semel".to_owned(), "0.1.0".to_owned())].into(),
            verdict: Outcome::Pass,
            issued_at: UnixMs(1_790_000_100_000),
        },
    }
}

fn reason(envelope: &[u8], keys: &[PublicKey]) -> String {
    let refusal = verify(envelope, keys).unwrap_err();
    assert_eq!(refusal.code, Code::GateRefused);
    refusal.reason.unwrap()
}

#[test]
fn what_is_signed_is_read_back() {
    let (key, other) = (key(1), key(2));
    let envelope = sign(&statement(), &key).unwrap();
    let (back, id) = verify(&envelope, &[other.public(), key.public()]).unwrap();
    assert_eq!(back, statement());
    assert_eq!(id, key.public().id());
    // Signing is a function: the same statement and key give the same bytes.
    assert_eq!(sign(&statement(), &key).unwrap(), envelope);
    // The spelling of the envelope is free; what is signed is not.
    let value: Value = serde_json::from_slice(&envelope).unwrap();
    assert!(verify(&serde_json::to_vec_pretty(&value).unwrap(), &[key.public()]).is_ok());
}

#[test]
fn the_statement_has_the_shape_of_in_toto() {
    let payload: Value = serde_json::from_slice(&statement().to_payload().unwrap()).unwrap();
    assert_eq!(payload["_type"], STATEMENT_TYPE);
    assert_eq!(payload["predicateType"], PREDICATE_TYPE);
    let names: Vec<&str> = payload["subject"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "proposal",
            "lock:ui/package-lock.json",
            "lock:uv.lock",
            "install-record"
        ]
    );
    assert_eq!(
        payload["subject"][0]["digest"]["gitTree"],
        "3955a6232549513fa78812a280024eea87f58935"
    );
    assert_eq!(payload["predicate"]["earlier"][0]["verdict"], "tests_failed");
    assert_eq!(payload["predicate"]["issued_at"], "2026-09-21T14:15:00.000Z");
    assert_eq!(payload["predicate"]["verdict"], "pass");
}

#[test]
fn one_flipped_bit_anywhere_is_refused() {
    let key = key(1);
    let envelope = sign(&statement(), &key).unwrap();
    for at in 0..envelope.len() {
        let mut flipped = envelope.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(verify(&flipped, &[key.public()]).is_err(), "byte {at}");
    }
    // Every bit of what stands around the payload, too.
    let around = envelope.len() - 520;
    for at in (0..40).chain(around..envelope.len()) {
        for bit in 0..8 {
            let mut flipped = envelope.clone();
            flipped[at] ^= 1 << bit;
            assert!(verify(&flipped, &[key.public()]).is_err(), "byte {at} bit {bit}");
        }
    }
    for cut in (0..envelope.len()).step_by(7) {
        assert!(verify(&envelope[..cut], &[key.public()]).is_err());
    }
}

#[test]
fn every_way_to_be_wrong_has_its_reason() {
    let (key, other) = (key(1), key(2));
    let trusted = [key.public()];
    let payload = statement().to_payload().unwrap();
    let edited = |from: &str, to: &str| {
        let text = String::from_utf8(payload.clone()).unwrap();
        assert!(text.contains(from), "{from}");
        seal(PAYLOAD_TYPE, text.replacen(from, to, 1).as_bytes(), &key).unwrap()
    };
    assert_eq!(
        reason(&sign(&statement(), &other).unwrap(), &trusted),
        "unknown_key"
    );
    assert_eq!(reason(&sign(&statement(), &key).unwrap(), &[]), "unknown_key");
    assert_eq!(
        reason(&seal("application/json", &payload, &key).unwrap(), &trusted),
        "payload_type"
    );
    for (from, to, want) in [
        (
            STATEMENT_TYPE,
            "https://in-toto.io/Statement/v0.1",
            "statement_type",
        ),
        (PREDICATE_TYPE, "https://slsa.dev/provenance/v1", "predicate_type"),
        ("\"version\":1", "\"version\":2", "predicate_version"),
        ("\"job\":", "\"jab\":", "predicate_malformed"),
        ("\"job\":", "\"more\":1,\"job\":", "predicate_malformed"),
        ("\"job\":", "\"attempt\":3,\"job\":", "predicate_malformed"),
        ("lock:uv.lock", "lock:ui/package-lock.json", "predicate_malformed"),
        (
            "lock:uv.lock",
            "lock:ui/x/../package-lock.json",
            "predicate_malformed",
        ),
        ("lock:uv.lock", "something", "predicate_malformed"),
        (
            "\"name\":\"proposal\"",
            "\"name\":\"lock:p\"",
            "predicate_malformed",
        ),
        ("14:15:00.000Z", "14:15:00Z", "predicate_malformed"),
        ("\"tests_failed\"", "\"failed\"", "predicate_malformed"),
    ] {
        assert_eq!(reason(&edited(from, to), &trusted), want, "{to}");
    }
    assert_eq!(
        reason(&seal(PAYLOAD_TYPE, b"", &key).unwrap(), &trusted),
        "predicate_malformed"
    );
}

#[test]
fn no_entry_of_an_envelope_is_idle() {
    let (key, other) = (key(1), key(2));
    let (a, b) = (
        sign(&statement(), &key).unwrap(),
        sign(&statement(), &other).unwrap(),
    );
    let value = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    let both = [key.public(), other.public()];
    let with = |edit: &dyn Fn(&mut Vec<Value>)| {
        let mut envelope = value(&a);
        edit(envelope["signatures"].as_array_mut().unwrap());
        reason(&serde_json::to_vec(&envelope).unwrap(), &both)
    };
    let foreign = value(&b)["signatures"][0].clone();
    assert_eq!(with(&|s| s.clear()), "envelope_malformed");
    assert_eq!(with(&|s| s.push(foreign.clone())), "envelope_malformed");
    assert_eq!(with(&|s| s[1] = s[0].clone()), "envelope_malformed");
    assert_eq!(with(&|s| s[1] = foreign.clone()), "signature_invalid");
    assert_eq!(
        with(&|s| s[1]["sig"] = foreign["sig"].clone()),
        "signature_invalid"
    );
    assert_eq!(with(&|s| s[1]["keyid"] = Value::from("")), "unknown_key");
    assert_eq!(with(&|s| s[1]["cert"] = Value::from("x")), "envelope_malformed");
    let mut one = value(&a);
    one["signatures"].as_array_mut().unwrap().pop();
    assert!(verify(&serde_json::to_vec(&one).unwrap(), &both).is_ok());
}

#[test]
fn a_pass_needs_something_behind_it() {
    let refused = |edit: &dyn Fn(&mut Statement)| {
        let mut statement = statement();
        edit(&mut statement);
        sign(&statement, &key(1)).unwrap_err().code
    };
    let counts = |passed, failed, skipped| {
        move |s: &mut Statement| {
            s.predicate.report.as_mut().unwrap().counts = Counts {
                passed,
                failed,
                skipped,
                deselected: Some(9),
            };
        }
    };
    for edit in [
        counts(0, 0, 0),
        counts(0, 0, 3),
        counts(2, 1, 0),
        counts(u64::MAX, 1, 0),
    ] {
        assert_eq!(refused(&edit), Code::EvidenceForeign);
    }
    assert_eq!(refused(&|s| s.predicate.report = None), Code::EvidenceForeign);
    assert_eq!(refused(&|s| s.subjects.locks.clear()), Code::UnknownState);
    assert_eq!(refused(&|s| s.subjects.record = None), Code::UnknownState);
    assert_eq!(
        refused(&|s| s.predicate.earlier.push(s.predicate.earlier[0].clone())),
        Code::UnknownState
    );
    assert_eq!(
        refused(&|s| s.predicate.earlier[0].generation = generation(2)),
        Code::UnknownState
    );
    assert_eq!(
        refused(&|s| s.predicate.open.push(Open {
            attempt: AttemptId(2),
            generation: generation(2),
        })),
        Code::UnknownState
    );
    assert_eq!(refused(&|s| s.predicate.version = 2), Code::Internal);
    assert_eq!(
        refused(&|s| s.predicate.issued_at = UnixMs(u64::MAX / 2)),
        Code::Internal
    );

    let mut statement = statement();
    statement.subjects.record = None;
    statement.subjects.locks.clear();
    statement.predicate.report = None;
    statement.predicate.verdict = Outcome::Refused(Refusal::new(Code::InstallFailed, "uv said no").name("x"));
    let envelope = sign(&statement, &key(1)).unwrap();
    assert_eq!(verify(&envelope, &[key(1).public()]).unwrap().0, statement);
}

#[test]
fn paths_that_are_not_text_survive() {
    let mut statement = statement();
    let odd = RelPath::parse(b"n\xff/uv.lock").unwrap();
    statement.subjects.locks.insert(odd.clone(), Sha256::of(b"odd"));
    statement.predicate.test_surface.push(odd);
    let envelope = sign(&statement, &key(1)).unwrap();
    assert_eq!(verify(&envelope, &[key(1).public()]).unwrap().0, statement);
}

#[test]
fn the_recipe_is_its_digest() {
    let recipe = Recipe {
        installers: [crate::installer::Installer::Uv].into(),
        install: vec![vec!["uv".to_owned(), "sync".to_owned(), "--locked".to_owned()]],
        test: vec!["pytest".to_owned()],
        timeout_s: 600,
        ..Recipe::default()
    };
    let mut other = recipe.clone();
    other.test = vec!["true".to_owned()];
    assert_eq!(recipe.digest().unwrap(), recipe.clone().digest().unwrap());
    assert_ne!(recipe.digest().unwrap(), other.digest().unwrap());
}

#[test]
fn a_bundle_has_one_signature_over_the_same_bytes() {
    let bundle: Value = serde_json::from_slice(&to_sigstore_bundle(&statement(), &key(1)).unwrap()).unwrap();
    let envelope = &bundle["dsseEnvelope"];
    assert_eq!(envelope["signatures"].as_array().unwrap().len(), 1);
    let bytes = serde_json::to_vec(envelope).unwrap();
    assert_eq!(verify(&bytes, &[key(1).public()]).unwrap().0, statement());
}

mod key_spellings {
    use super::*;

    /// RFC 8410, section 10.1 and 10.3, and RFC 8032, section 7.1.
    #[test]
    fn the_standard_vectors_are_read() {
        let public = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n";
        let private = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n";
        let signing = SigningKey::from_pem(private).unwrap();
        assert_eq!(signing.public(), PublicKey::parse(public).unwrap());
        assert_eq!(signing.to_pem(), private);
        assert_eq!(signing.public().to_pem(), public);

        let seed = Sha256::parse("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60").unwrap();
        let signing = SigningKey::from_seed(seed.as_bytes());
        assert_eq!(
            crate::digest::to_hex(signing.public().as_bytes()),
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        );
        assert_eq!(crate::digest::to_hex(&signing.sign(b"")[..8]), "e5564300c360ac72");
    }

    #[test]
    fn one_key_in_every_spelling() {
        let public = key(7).public();
        let hex = crate::digest::to_hex(public.as_bytes());
        for text in [
            hex.clone(),
            public.to_pem(),
            public.to_ssh(),
            format!("{} me@host\n", public.to_ssh()),
        ] {
            assert_eq!(PublicKey::parse(&text).unwrap(), public, "{text}");
        }
        for text in [
            "",
            "x",
            &hex[1..],
            "ssh-ed25519",
            "ssh-ed25519 AAAA",
            "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQ==",
            "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----",
            // Points of small order, for which anybody can sign: the neutral element, and y = 0.
            "0100000000000000000000000000000000000000000000000000000000000000",
            "0000000000000000000000000000000000000000000000000000000000000000",
        ] {
            assert_eq!(PublicKey::parse(text).unwrap_err().code, Code::BadInput, "{text}");
        }
        assert!(public.is(public.id().as_str()) && public.is(public.ssh_fingerprint().as_str()));
        for id in [public.id(), public.ssh_fingerprint()] {
            assert_eq!(KeyId::parse(id.as_str()).unwrap(), id);
        }
        assert!(KeyId::parse("SHA256:short").is_err() && KeyId::parse("").is_err());
        assert!(!format!("{:?}", key(7)).contains("0707"));
    }

    /// Who gives a key of another kind hears which it is, and never of its bytes.
    #[test]
    fn a_key_of_another_kind_is_named() {
        let pem =
            |label: &str, body: &str| format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n");
        let ec = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEGAe+XaYQrokuAnOB+kdxJ8g5zL8A\n\
                  Lxrl9w7L8vMSgQovIWtIpxpOy4PqbqoAtlVV04b5VYo84qjqEt8R+JH7tA==";
        let rsa = "MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDIPG+Do3bVOyj1dyYiJZAPjVlU\n\
                   x02zOHYSYqbfbxSPbIsewI1aWDsM4BjjXemGlLTJcu3MUzWZXWL97PYNLhvlDMZJ\n\
                   tL7GdWgdqVkLlMOW1ibvUDt9abzi8jleV46zluSLdxSRNThaKDz01OP73GqIy2D4\n\
                   RIqv3Z9Zzt5eELxSGwIDAQAB";
        let x25519 = "MCowBQYDK2VuAyEAhXxsVNlGU/Et7BNacT3KkdEwK0w0JzS8yRb9rxZCzi4=";
        let private = key(7).to_pem();
        for (text, kind) in [
            (
                "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQ== me@host".to_owned(),
                "ssh-rsa",
            ),
            ("ecdsa-sha2-nistp256 AAAA".to_owned(), "ecdsa-sha2-nistp256"),
            (
                "sk-ssh-ed25519@openssh.com AAAA".to_owned(),
                "sk-ssh-ed25519@openssh.com",
            ),
            (pem("PUBLIC KEY", rsa), "RSA"),
            (pem("PUBLIC KEY", ec), "ECDSA"),
            (pem("PUBLIC KEY", x25519), "X25519"),
            (pem("RSA PUBLIC KEY", rsa), "RSA PUBLIC KEY"),
            (private.clone(), "PRIVATE KEY"),
        ] {
            let refusal = PublicKey::parse(&text).unwrap_err();
            assert_eq!(
                (refusal.code, refusal.reason.as_deref(), refusal.names.as_slice()),
                (Code::BadInput, Some("key_kind"), &[kind.to_owned()][..]),
                "{text}"
            );
            assert!(refusal.to_string().contains("Ed25519"), "{refusal}");
        }
        let refusal = PublicKey::parse(&private).unwrap_err().to_string();
        let secret = private.lines().nth(1).unwrap();
        assert!(!refusal.contains(secret), "{refusal}");
    }

    /// The ids that securesystemslib 1.6.0 and `ssh-keygen -l` of OpenSSH 9.2 give for this key.
    #[test]
    fn the_ids_are_those_of_the_other_tools() {
        let public = key(9).public();
        assert_eq!(
            public.id().as_str(),
            "f2e2bdd2a76c65abf2de0c2eded95abe3c23d3935f8b25a4135283e2dae99a75"
        );
        assert_eq!(
            public.ssh_fingerprint().as_str(),
            "SHA256:doxiASlJnKSD9j+JpVoWpfEFHjUrsF9ZYr+cir4FYjo"
        );
    }

    /// Writes an OpenSSH private key file the way `ssh-keygen` does.
    fn openssh(seed: &[u8; 32], cipher: &[u8], padding: &[u8]) -> String {
        let public = SigningKey::from_seed(seed).public();
        let mut secret = [7, 7, 7, 7, 7, 7, 7, 7].to_vec();
        ssh::put(&mut secret, ssh::ED25519);
        ssh::put(&mut secret, public.as_bytes());
        ssh::put(&mut secret, &[&seed[..], public.as_bytes()].concat());
        ssh::put(&mut secret, b"a comment");
        secret.extend_from_slice(padding);
        let mut file = b"openssh-key-v1\0".to_vec();
        for part in [cipher, b"none", b""] {
            ssh::put(&mut file, part);
        }
        file.extend_from_slice(&[0, 0, 0, 1]);
        ssh::put(&mut file, &ssh::public_blob(public.as_bytes()));
        ssh::put(&mut file, &secret);
        keys::armor("OPENSSH PRIVATE KEY", &file, 70)
    }

    #[test]
    fn an_ssh_key_is_read_or_refused() {
        let seed = [5; 32];
        let read = SigningKey::from_pem(&openssh(&seed, b"none", &[1, 2, 3])).unwrap();
        assert_eq!(read.public(), key(5).public());
        let locked = SigningKey::from_pem(&openssh(&seed, b"aes256-ctr", &[])).unwrap_err();
        assert_eq!(locked.reason.as_deref(), Some("key_encrypted"));
        let whole = openssh(&seed, b"none", &[]);
        let lines: Vec<&str> = whole.lines().collect();
        let cut = [&lines[..2], &lines[3..]].concat().join("\n");
        for text in [
            "",
            "x",
            &openssh(&seed, b"none", &[1, 3]),
            &cut,
            &key(5).public().to_pem(),
        ] {
            assert_eq!(SigningKey::from_pem(text).unwrap_err().code, Code::BadInput);
        }
    }

    #[test]
    fn an_ssh_signature_is_over_the_payload() {
        use base64::{Engine as _, prelude::BASE64_STANDARD};
        use sha2::Digest as _;
        let armored = to_ssh_signature(&statement(), &key(1)).unwrap();
        let coded: String = armored.lines().filter(|line| !line.starts_with('-')).collect();
        let blob = BASE64_STANDARD.decode(coded).unwrap();
        let mut fields = ssh::Fields(&blob);
        assert_eq!(fields.take(6), Some(&b"SSHSIG"[..]));
        assert_eq!(fields.number(), Some(1));
        assert_eq!(
            fields.string().and_then(ssh::public_of),
            Some(*key(1).public().as_bytes())
        );
        assert_eq!(fields.string(), Some(SSHSIG_NAMESPACE.as_bytes()));
        assert_eq!(
            (fields.string(), fields.string()),
            (Some(&b""[..]), Some(&b"sha512"[..]))
        );
        let mut signature = ssh::Fields(fields.string().unwrap());
        assert_eq!(signature.string(), Some(ssh::ED25519));
        let raw: [u8; 64] = signature.string().unwrap().try_into().unwrap();
        let mut signed = b"SSHSIG".to_vec();
        let digest = sha2::Sha512::digest(statement().to_payload().unwrap());
        for part in [SSHSIG_NAMESPACE.as_bytes(), b"", b"sha512", &digest] {
            ssh::put(&mut signed, part);
        }
        assert!(key(1).public().verifies(&signed, &raw));
    }
}
