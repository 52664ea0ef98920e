use super::*;
use crate::sample;
use proptest::prelude::*;
use std::collections::BTreeSet;

proptest! {
    #[test]
    fn a_record_is_read_as_it_was_written(record in sample::any_record()) {
        let text = serde_json::to_string(&record).unwrap();
        prop_assert!(text.starts_with("{\"kind\":\""), "{}", text);
        let back: Record = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&back, &record);
        prop_assert_eq!(serde_json::to_string(&back).unwrap(), text);
    }

    /// A field that this build does not know is refused: it may carry a promise.
    #[test]
    fn an_unknown_field_is_refused(record in sample::any_record()) {
        let mut value = serde_json::to_value(&record).unwrap();
        value.as_object_mut().unwrap().insert("later".to_owned(), 1.into());
        prop_assert!(serde_json::from_value::<Record>(value.clone()).is_err(), "{}", value);
    }

    #[test]
    fn every_part_of_an_entry_is_chained(prev: [u8; 32], seq: u64, version: u16, body: Vec<u8>, at in 0..42_usize) {
        let prev = Sha256::from_bytes(prev);
        let hash = chain(&prev, seq, version, &body);
        let mut other = *prev.as_bytes();
        other[at % 32] ^= 1;
        prop_assert_ne!(chain(&Sha256::from_bytes(other), seq, version, &body), hash);
        prop_assert_ne!(chain(&prev, seq ^ (1 << at), version, &body), hash);
        prop_assert_ne!(chain(&prev, seq, version ^ 1, &body), hash);
        let mut longer = body.clone();
        longer.push(0);
        prop_assert_ne!(chain(&prev, seq, version, &longer), hash);
    }
}

#[test]
fn every_kind_has_a_sample() {
    let kinds: BTreeSet<String> = (0..sample::KINDS)
        .map(|kind| {
            let value = serde_json::to_value(sample::record(kind, 1)).unwrap();
            value["kind"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(kinds.len(), usize::from(sample::KINDS));
}

/// A restoration of an older build names no git; one of this build does, in a form that is a promise as well.
#[test]
fn a_restoration_may_name_its_git() {
    let text = "{\"kind\":\"worktree_restored\",\"job\":null,\"tree\":\"7\",\"code\":null,\"collisions\":1,\
                \"adoptions\":0,\"waited_ms\":2,GIT\"at\":5}";
    let digest = Sha256::of(b"git").to_string();
    let git = format!("\"git\":{{\"path\":\"/usr/bin/git\",\"sha256\":\"{digest}\"}},");
    for git in ["", git.as_str()] {
        let text = text.replace("GIT", git);
        let record: Record = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&record).unwrap(), text);
    }
}

/// The form on the disk is a promise to later builds: it changes only together with its version.
#[test]
fn the_form_of_version_1() {
    let record = Record::CallFreed {
        execution_id: sample::execution(7),
        why: "w".to_owned(),
        resolved: None,
        at: UnixMs(5),
    };
    let id = sample::execution(7);
    let text = format!(
        "{{\"kind\":\"call_freed\",\"execution_id\":\"{id}\",\"why\":\"w\",\"resolved\":null,\"at\":5}}"
    );
    assert_eq!(serde_json::to_string(&record).unwrap(), text);
    assert_eq!(RECORD_VERSION, 1);
    // Kinds that came later are not in older journals; their form is a promise of its own.
    let form = |kinds: std::ops::Range<u8>| {
        let all: Vec<String> = kinds
            .flat_map(|kind| (0..6).map(move |n| sample::record(kind, n)))
            .map(|record| serde_json::to_string(&record).unwrap())
            .collect();
        Sha256::of(all.join("\n").as_bytes()).to_string()
    };
    assert_eq!(
        form(0..20),
        FORM_1,
        "records are written otherwise than version 1 is"
    );
    assert_eq!(
        form(20..22),
        FORM_1_APPROVALS,
        "approvals are written otherwise than version 1 is"
    );
    assert_eq!(
        form(22..24),
        FORM_1_RETENTION,
        "what is past retention is written otherwise than version 1 is"
    );
    assert_eq!(
        form(24..25),
        FORM_1_RETRIES,
        "the tries of a command are written otherwise than version 1 is"
    );
    assert_eq!(
        form(25..26),
        FORM_1_PREPARED,
        "prepared trees are written otherwise than version 1 is"
    );
    assert_eq!(sample::KINDS, 26);
}

const FORM_1_RETRIES: &str = "10faa6076f1f3a98976dfddd60007af92322318f541ca8f5ad9dd360050eb3c0";
const FORM_1_PREPARED: &str = "9cba3f27826063194e338e7bc3d73828fb4d916c9a78fe4b934bc37deb2edaff";
const FORM_1_RETENTION: &str = "92404bb9b41cb9148cb4d276c4fdfc2747ff17545be6080b471812b9a191ca48";
const FORM_1_APPROVALS: &str = "d70d6839c7eef6343105208bdef0edffb701a8b08a7766546185bcde93bec98a";
const FORM_1: &str = "d35e04d70a139548f7c991bd3c13b715cb876d8eff0dd646423468492b4ef4d4";

#[test]
fn only_calls_of_a_process_volume_and_notes_wait() {
    for kind in 0..sample::KINDS {
        let record = sample::record(kind, 1);
        let (weak, strong) = (record.sync(Durability::Process), record.sync(Durability::Power));
        let expected = match kind {
            5..=9 => (Sync::Later, Sync::Now),
            10 => (Sync::Whenever, Sync::Whenever),
            19 | 22 | 24 => (Sync::Later, Sync::Later),
            _ => (Sync::Now, Sync::Now),
        };
        assert_eq!((weak, strong), expected, "{record:?}");
        assert_eq!(record.sync(Durability::PowerBestEffort), strong);
    }
    // An even key of the sample is of a generation, an odd one of the job.
    assert_eq!(sample::intent(2, 1, 1).survives(), Durability::Process);
    assert_eq!(sample::intent(1, 1, 1).survives(), Durability::Power);
}
