use super::*;
use proptest::prelude::*;

fn key() -> SigningKey {
    SigningKey::from_seed(&[7; 32])
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        first: Sha256::of(b"first"),
        size: 1042,
        head: Sha256::of(b"head"),
    }
}

fn any() -> LogKey {
    LogKey::any(key().public())
}

fn reason(note: &str, key: &LogKey) -> String {
    let refusal = Checkpoint::open(note.as_bytes(), key).unwrap_err();
    assert_eq!(refusal.code, Code::BadInput, "{refusal}");
    refusal.reason.unwrap()
}

/// Signs any text under any name, as a careless or hostile signer would.
fn sign_as(name: &str, text: &str, key: &SigningKey) -> String {
    let mut raw = key_id(name, &key.public()).to_vec();
    raw.extend_from_slice(&key.sign(text.as_bytes()));
    format!("{DASH}{name} {}\n", BASE64_STANDARD.encode(raw))
}

#[test]
fn a_note_is_opened_by_its_key_alone() {
    let note = checkpoint().sign(&key());
    assert_eq!(note.lines().count(), 5);
    let vkey = verifier_key(&checkpoint().origin(), &key().public());
    for opener in [
        any(),
        LogKey::parse(&vkey).unwrap(),
        LogKey::parse(&key().public().to_ssh()).unwrap(),
    ] {
        assert_eq!(Checkpoint::open(note.as_bytes(), &opener).unwrap(), checkpoint());
    }
    let stranger = SigningKey::from_seed(&[8; 32]).public();
    assert_eq!(reason(&note, &LogKey::any(stranger)), "checkpoint_unsigned");
    let other = verifier_key(&format!("{ORIGIN}{}", Sha256::of(b"other")), &key().public());
    assert_eq!(
        reason(&note, &LogKey::parse(&other).unwrap()),
        "checkpoint_unsigned"
    );
}

/// The form is what other programs read: it changes only with the `v1` of its origin.
#[test]
fn the_form_of_a_checkpoint() {
    let text = "semel.dev/chain-v1/a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e\n1042\n";
    let note = checkpoint().sign(&key());
    assert!(note.starts_with(text), "{note}");
    assert_eq!(note.len(), 316, "{note}");
    assert_eq!(Sha256::of(note.as_bytes()).to_string(), NOTE, "{note}");
}

const NOTE: &str = "710a0050e999a392cdce1dc9fb2ba0b4fa04442149f9a353ec7375643015be80";

#[test]
fn witnesses_are_passed_over_and_a_false_signature_is_not() {
    let (origin, text) = (checkpoint().origin(), checkpoint().text());
    let stranger = SigningKey::from_seed(&[8; 32]);
    let ours = sign_as(&origin, &text, &key());
    let witness = sign_as("witness.example/w1", &text, &stranger);
    let same_name = sign_as(&origin, &text, &stranger);
    for note in [
        format!("{text}\n{ours}{witness}"),
        format!("{text}\n{witness}{same_name}{ours}"),
    ] {
        assert_eq!(Checkpoint::open(note.as_bytes(), &any()).unwrap(), checkpoint());
    }
    assert_eq!(
        reason(&format!("{text}\n{witness}{same_name}"), &any()),
        "checkpoint_unsigned"
    );
    assert_eq!(
        reason(&format!("{text}\n{ours}{ours}"), &any()),
        "checkpoint_malformed"
    );
    // A signature over another text: that of another size.
    let other = Checkpoint {
        size: 1041,
        ..checkpoint()
    };
    let moved = format!("{}\n{}", other.text(), ours);
    assert_eq!(reason(&moved, &any()), "checkpoint_signature");
    let beside = format!(
        "{}\n{ours}{}",
        other.text(),
        sign_as(&origin, &other.text(), &key())
    );
    assert_eq!(reason(&beside, &any()), "checkpoint_signature");
}

#[test]
fn what_is_no_checkpoint_is_refused_though_it_is_signed() {
    let origin = checkpoint().origin();
    let head = BASE64_STANDARD.encode(Sha256::of(b"head").as_bytes());
    let unpadded = head.trim_end_matches('=').to_owned();
    let texts = [
        format!("{origin}\n1042\n{head}\nextension\n"),
        format!("{origin}\n1042\n"),
        format!("{origin}\n01042\n{head}\n"),
        format!("{origin}\n+1042\n{head}\n"),
        format!("{origin}\n0\n{head}\n"),
        format!("{origin}\n18446744073709551616\n{head}\n"),
        format!("{origin}\n 1042\n{head}\n"),
        format!("{origin}\n1042\n{unpadded}\n"),
        format!("{origin}\n1042\n{}\n", BASE64_STANDARD.encode([1; 31])),
        format!("{}\n1042\n{head}\n", origin.to_uppercase()),
        format!("example.com/log\n1042\n{head}\n"),
        format!("{origin}0\n1042\n{head}\n"),
        format!("\n1042\n{head}\n"),
    ];
    for text in texts {
        let note = format!("{text}\n{}", sign_as(&origin, &text, &key()));
        assert_eq!(reason(&note, &any()), "checkpoint_malformed", "{text:?}");
    }
    let good = checkpoint().sign(&key());
    for note in [
        good.trim_end().to_owned(),
        good.replace('\n', "\r\n"),
        format!("{good}\n"),
        good.replace("\n\n", "\n"),
        format!("{good}{DASH}x AAAAAA==\n"),
        format!("{good}{DASH}a+b AAAAAAA=\n"),
        format!("{good}- x AAAAAAA=\n"),
        format!("{good}{}", "\u{2014} w AAAAAAA=\n".repeat(5000)),
        String::new(),
        "\n\n".to_owned(),
    ] {
        assert_eq!(reason(&note, &any()), "checkpoint_malformed", "{note:?}");
    }
    assert!(Checkpoint::open(b"\xff\n\n\xff", &any()).is_err());
}

#[test]
fn a_verifier_key_is_whole() {
    let origin = checkpoint().origin();
    let good = verifier_key(&origin, &key().public());
    assert_eq!(
        LogKey::parse(&good).unwrap(),
        LogKey::of(origin.clone(), key().public())
    );
    let parts: Vec<&str> = good.splitn(3, '+').collect();
    let ecdsa = BASE64_STANDARD.encode([&[2], &key().public().as_bytes()[..]].concat());
    for wrong in [
        format!("{}+00000000+{}", parts[0], parts[2]),
        format!("{}0+{}+{}", parts[0], parts[1], parts[2]),
        format!("{}+{}", parts[0], parts[2]),
        format!("{}+{}+{ecdsa}", parts[0], parts[1]),
        good[..good.len() - 4].to_owned(),
        origin,
    ] {
        assert_eq!(LogKey::parse(&wrong).unwrap_err().code, Code::BadInput, "{wrong}");
    }
}

#[test]
fn a_log_is_held_against_a_checkpoint() {
    let held = checkpoint();
    let (first, head, other) = (held.first, held.head, Sha256::of(b"other"));
    let kind = |first: Option<&Sha256>, at: Option<&Sha256>, last| {
        held.against(first, at, last).map(|fault| (fault.kind, fault.seq))
    };
    assert_eq!(kind(Some(&first), Some(&head), 1042), None);
    assert_eq!(kind(Some(&first), Some(&head), 9000), None);
    assert_eq!(
        kind(Some(&first), Some(&other), 9000),
        Some((FaultKind::Rewritten, Some(1042)))
    );
    assert_eq!(
        kind(Some(&first), None, 9000),
        Some((FaultKind::Rewritten, Some(1042)))
    );
    assert_eq!(
        kind(Some(&first), None, 1041),
        Some((FaultKind::Truncated, Some(1042)))
    );
    assert_eq!(kind(None, None, 0), Some((FaultKind::Truncated, Some(1))));
    assert_eq!(
        kind(Some(&other), Some(&head), 1042),
        Some((FaultKind::OtherLog, Some(1)))
    );
}

#[test]
fn no_bit_can_be_changed() {
    let note = checkpoint().sign(&key()).into_bytes();
    for at in 0..note.len() {
        for bit in 0..8 {
            let mut bent = note.clone();
            bent[at] ^= 1 << bit;
            let opened = Checkpoint::open(&bent, &any());
            assert!(opened.is_err(), "{}", String::from_utf8_lossy(&bent));
        }
    }
}

proptest! {
    #[test]
    fn any_checkpoint_is_read_as_it_was_signed(first: [u8; 32], size in 1..=u64::MAX, head: [u8; 32], seed: [u8; 32]) {
        let (first, head) = (Sha256::from_bytes(first), Sha256::from_bytes(head));
        let (made, key) = (Checkpoint { first, size, head }, SigningKey::from_seed(&seed));
        let opener = LogKey::parse(&verifier_key(&made.origin(), &key.public())).unwrap();
        prop_assert_eq!(Checkpoint::open(made.sign(&key).as_bytes(), &opener).unwrap(), made);
    }

    #[test]
    fn nothing_makes_it_panic(bytes: Vec<u8>, lines in "[a-z/.0-9+=\u{2014} \n]{0,200}") {
        prop_assert!(Checkpoint::open(&bytes, &any()).is_err());
        prop_assert!(Checkpoint::open(lines.as_bytes(), &any()).is_err());
        let _any = LogKey::parse(&lines);
    }
}
