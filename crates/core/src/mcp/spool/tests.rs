use super::*;
use proptest::prelude::*;
use serde_json::json;

const SALT: Salt = Salt::from_bytes([7; 16]);

fn spelt(n: u64) -> Spelt {
    match json!({"name": "write_file", "arguments": {"path": "a", "content": n}}) {
        Value::Object(params) => Spelt::of(&params),
        _ => unreachable!(),
    }
}

fn entry(n: u64, key: &str) -> Entry {
    let reach = Reach {
        principal: Principal::parse("job:a").unwrap(),
        generation: None,
    };
    let key = IdempotencyKey::parse(key).unwrap();
    Entry::new(&spelt(n), SALT, key, reach, "write_file", UnixMs(1))
}

fn key(text: &str) -> IdempotencyKey {
    IdempotencyKey::parse(text).unwrap()
}

fn lines(all: &[Line]) -> Vec<u8> {
    all.iter().flat_map(|line| line.encode().unwrap()).collect()
}

#[test]
fn the_same_call_is_spelt_in_one_way_and_its_message_is_not_the_call() {
    let of = |text: &str| match serde_json::from_str(text).unwrap() {
        Value::Object(params) => Spelt::of(&params),
        _ => unreachable!(),
    };
    let one = of(r#"{"name":"t","arguments":{"a":1,"b":2.0},"_meta":{"progressToken":1}}"#);
    assert_eq!(
        one,
        of(r#"{"arguments":{"b":2,"a":1},"name":"t","_meta":{"progressToken":2}}"#)
    );
    assert_ne!(one, of(r#"{"name":"t","arguments":{"a":1}}"#));
    assert_ne!(one, of(r#"{"name":"u","arguments":{"a":1,"b":2}}"#));
    assert_ne!(one.digest(SALT), one.digest(Salt::from_bytes([8; 16])));
}

#[test]
fn a_spool_is_read_as_it_was_written_and_never_holds_the_call() {
    let all = lines(&[
        Line::Spooled(Box::new(entry(1, "k1"))),
        Line::Spooled(Box::new(entry(2, "k2"))),
        Line::Settled(key("k1")),
    ]);
    assert_eq!(read(&all).unwrap(), [entry(2, "k2")]);
    assert!(!String::from_utf8(all).unwrap().contains("content"));
    assert_eq!(read(b"").unwrap(), []);
}

/// Cut anywhere, a spool says what its whole lines say; changed anywhere but at its end, it is refused, or the change is
/// in what was never whole.
#[test]
fn cut_anywhere_it_is_read_and_changed_it_is_refused() {
    let one = lines(&[Line::Spooled(Box::new(entry(1, "k1")))]);
    let two = lines(&[Line::Spooled(Box::new(entry(2, "k2")))]);
    let whole = [one.as_slice(), &two].concat();
    for cut in 0..=whole.len() {
        let wanted = if cut < one.len() {
            vec![]
        } else if cut < whole.len() {
            vec![entry(1, "k1")]
        } else {
            vec![entry(1, "k1"), entry(2, "k2")]
        };
        assert_eq!(read(&whole[..cut]).unwrap(), wanted, "cut at {cut}");
    }
    for at in 0..one.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        let refused = read(&changed).unwrap_err();
        assert_eq!(
            refused.reason.as_deref(),
            Some("spool_damaged"),
            "changed at {at}"
        );
    }
    for at in one.len()..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        assert_eq!(read(&changed).unwrap(), [entry(1, "k1")], "changed at {at}");
    }
}

#[test]
fn a_b_a_with_answers_delivered_is_three_calls() {
    let mut memory = Memory::default();
    for (request, n) in [(1, 1), (2, 2), (3, 1)] {
        let settled = memory.heard();
        assert_eq!(settled.len(), usize::from(request > 1));
        assert_eq!(
            memory.admit(&spelt(n), request, Reissue::Attach, InDoubt::Wait),
            Step::New
        );
        memory.add(entry(n, &format!("k{request}")), request);
        memory.sends(request);
        memory.written(request);
    }
    memory.heard();
    assert_eq!(memory.open().count(), 0);
}

#[test]
fn what_was_not_delivered_is_attached_to_asked_about_or_run_again_as_is_wished() {
    let left = || Memory::new(vec![entry(1, "k1")]);
    assert_eq!(
        left().admit(&spelt(1), 1, Reissue::Attach, InDoubt::Wait),
        Step::Claim(key("k1"))
    );
    let asked = Step::Ask(Box::new(entry(1, "k1")));
    assert_eq!(left().admit(&spelt(1), 1, Reissue::Ask, InDoubt::Wait), asked);
    assert_eq!(
        left().admit(&spelt(1), 1, Reissue::Execute, InDoubt::Wait),
        Step::New
    );
    assert_eq!(
        left().admit(&spelt(2), 1, Reissue::Attach, InDoubt::Wait),
        Step::New
    );
    // Attached, and answered: then it is over, and the next one is new.
    let mut memory = left();
    memory.admit(&spelt(1), 1, Reissue::Attach, InDoubt::Wait);
    memory.claimed(&key("k1"));
    memory.written(1);
    assert_eq!(memory.heard(), [key("k1")]);
    assert_eq!(
        memory.admit(&spelt(1), 2, Reissue::Attach, InDoubt::Wait),
        Step::New
    );
}

/// Several bridges know of one entry, and one of them has it.
#[test]
fn what_another_bridge_took_is_no_call_of_this_one() {
    let mut memory = Memory::new(vec![entry(1, "k1"), entry(2, "k2")]);
    assert_eq!(memory.open().count(), 0, "it lies in no spool of this life");
    assert_eq!(memory.left_before().count(), 2);
    let step = memory.admit(&spelt(1), 1, Reissue::Attach, InDoubt::Wait);
    assert_eq!(step, Step::Claim(key("k1")));
    memory.gone(&key("k1"));
    let step = memory.admit(&spelt(1), 1, Reissue::Attach, InDoubt::Wait);
    assert_eq!(step, Step::New);
    let step = memory.admit(&spelt(2), 2, Reissue::Attach, InDoubt::Wait);
    assert_eq!(step, Step::Claim(key("k2")));
    memory.claimed(&key("k2"));
    memory.gone(&key("k2"));
    assert_eq!(
        memory.open().collect::<Vec<_>>(),
        [&entry(2, "k2")],
        "nobody takes it from here"
    );
    let step = memory.admit(&spelt(2), 3, Reissue::Attach, InDoubt::Wait);
    assert_eq!(step, Step::Attach(key("k2")));
}

#[test]
fn a_call_that_waits_for_a_person_goes_on_under_its_key_whatever_is_wished() {
    for reissue in [Reissue::Attach, Reissue::Ask, Reissue::Execute] {
        let mut memory = Memory::default();
        memory.add(entry(1, "k1"), 1);
        memory.sends(1);
        assert_eq!(memory.left(1, Some(Unsettled::Asked)), None);
        assert_eq!(memory.heard(), []);
        assert_eq!(
            memory.admit(&spelt(1), 2, reissue, InDoubt::Wait),
            Step::Attach(key("k1"))
        );
    }
    // One whose outcome nobody knows does only where nothing else is wished.
    let mut memory = Memory::default();
    memory.add(entry(1, "k1"), 1);
    memory.sends(1);
    memory.left(1, Some(Unsettled::Unknown));
    assert_eq!(
        memory.admit(&spelt(1), 2, Reissue::Execute, InDoubt::Wait),
        Step::New
    );
    assert_eq!(
        memory.admit(&spelt(1), 2, Reissue::Attach, InDoubt::Wait),
        Step::Attach(key("k1"))
    );
}

#[test]
fn a_cancelled_call_is_attached_to_however_late_the_cancellation_comes() {
    // While it flies.
    let mut memory = Memory::default();
    memory.add(entry(1, "k1"), 1);
    memory.sends(1);
    assert_eq!(memory.left(1, None), None);
    assert_eq!(
        memory.admit(&spelt(1), 2, Reissue::Attach, InDoubt::Wait),
        Step::Attach(key("k1"))
    );
    // When its answer was written.
    let mut memory = Memory::default();
    memory.add(entry(1, "k1"), 1);
    memory.sends(1);
    memory.written(1);
    assert_eq!(memory.untaken(1), None);
    assert_eq!(memory.heard(), []);
    assert_eq!(
        memory.admit(&spelt(1), 2, Reissue::Attach, InDoubt::Wait),
        Step::Attach(key("k1"))
    );
    // When it counted as delivered: then it is remembered anew.
    let mut memory = Memory::default();
    memory.add(entry(1, "k1"), 1);
    memory.sends(1);
    memory.written(1);
    assert_eq!(memory.heard(), [key("k1")]);
    assert_eq!(memory.untaken(1), Some(entry(1, "k1")));
    assert_eq!(
        memory.admit(&spelt(1), 2, Reissue::Attach, InDoubt::Wait),
        Step::Attach(key("k1"))
    );
    // While it is written.
    let mut memory = Memory::default();
    memory.add(entry(1, "k1"), 1);
    memory.sends(1);
    memory.writes(1);
    assert_eq!(memory.untaken(1), None);
    memory.written(1);
    assert_eq!(memory.heard(), []);
    assert_eq!(
        memory.admit(&spelt(1), 2, Reissue::Attach, InDoubt::Wait),
        Step::Attach(key("k1"))
    );
}

#[test]
fn what_was_never_forwarded_is_forgotten_with_its_last_request() {
    let mut memory = Memory::default();
    memory.add(entry(1, "k1"), 1);
    assert_eq!(memory.left(1, None), Some(key("k1")));
    assert_eq!(memory.open().count(), 0);
    // One that was attached to what an earlier life sent takes nothing with it.
    let mut memory = Memory::new(vec![entry(1, "k1")]);
    memory.admit(&spelt(1), 1, Reissue::Attach, InDoubt::Wait);
    memory.claimed(&key("k1"));
    assert_eq!(memory.left(1, None), None);
    assert_eq!(
        memory.admit(&spelt(1), 2, Reissue::Attach, InDoubt::Wait),
        Step::Attach(key("k1"))
    );
    // Nor does the first one where a second one flies.
    let mut memory = Memory::default();
    memory.add(entry(1, "k1"), 1);
    memory.admit(&spelt(1), 2, Reissue::Attach, InDoubt::Wait);
    assert_eq!(memory.left(1, None), None);
    memory.sends(2);
    assert_eq!(memory.left(2, None), None);
    assert_eq!(memory.open().count(), 1);
}

/// Whoever read an answer can come again before it is noted that the answer was written.
#[test]
fn an_answer_that_is_being_written_is_waited_for() {
    let mut memory = Memory::default();
    memory.add(entry(1, "k1"), 1);
    memory.sends(1);
    memory.writes(1);
    memory.heard();
    // Whatever is wished: it may turn out to wait for a person.
    for reissue in [Reissue::Attach, Reissue::Ask, Reissue::Execute] {
        assert_eq!(memory.admit(&spelt(1), 2, reissue, InDoubt::Wait), Step::Wait);
    }
    memory.written(1);
    memory.heard();
    assert_eq!(
        memory.admit(&spelt(1), 2, Reissue::Attach, InDoubt::Wait),
        Step::New
    );
    // One that gets stuck was not read.
    let mut memory = Memory::default();
    memory.add(entry(1, "k1"), 1);
    memory.sends(1);
    memory.writes(1);
    assert_eq!(
        memory.admit(&spelt(1), 2, Reissue::Attach, InDoubt::Undelivered),
        Step::Attach(key("k1"))
    );
}

/// What was read is delivered, though nothing more comes; what was written since is not.
#[test]
fn what_was_read_is_delivered() {
    let mut memory = Memory::default();
    for (request, n) in [(1, 1), (2, 2)] {
        memory.add(entry(n, &format!("k{n}")), request);
        memory.sends(request);
    }
    memory.written(1);
    memory.written(2);
    assert_eq!(memory.read(&[1]), [key("k1")]);
    let open: Vec<_> = memory.open().map(|entry| entry.key.as_str()).collect();
    assert_eq!(open, ["k2"]);
    assert_eq!(memory.read(&[2]), [key("k2")]);
}

#[test]
fn the_oldest_that_nobody_awaits_go_first() {
    let mut memory = Memory::new((1..=4).map(|n| entry(n, &format!("k{n}"))).collect());
    memory.admit(&spelt(1), 1, Reissue::Attach, InDoubt::Wait);
    assert_eq!(memory.trim(2), [key("k2"), key("k3")]);
    assert_eq!(memory.trim(2), []);
    assert_eq!(
        memory
            .left_before()
            .map(|entry| entry.key.as_str())
            .collect::<Vec<_>>(),
        ["k1", "k4"]
    );
}

#[test]
fn of_two_requests_of_one_call_the_last_one_settles_it() {
    for last_is_cancelled in [true, false] {
        let mut memory = Memory::default();
        memory.add(entry(1, "k1"), 1);
        assert_eq!(
            memory.admit(&spelt(1), 2, Reissue::Attach, InDoubt::Wait),
            Step::Attach(key("k1"))
        );
        memory.written(1);
        assert_eq!(memory.heard(), [], "the second one still flies");
        assert_eq!(
            memory.admit(&spelt(1), 3, Reissue::Attach, InDoubt::Wait),
            Step::New,
            "one was delivered"
        );
        if last_is_cancelled {
            assert_eq!(memory.left(2, None), Some(key("k1")));
        } else {
            memory.written(2);
            assert_eq!(memory.heard(), [key("k1")]);
        }
    }
}

#[test]
fn no_more_is_remembered_of_what_was_delivered_than_its_bound() {
    let mut memory = Memory::default();
    for request in 0..1000 {
        memory.heard();
        memory.add(entry(request, &format!("k{request}")), request);
        memory.sends(request);
        memory.written(request);
    }
    memory.heard();
    assert_eq!(memory.recent.len(), Memory::RECENT);
}

/// Is what a client and a kill may do.
#[derive(Clone, Copy, Debug)]
enum Do {
    Call(u64),
    Answer(usize),
    Cancel(usize),
    Kill,
}

fn does() -> impl Strategy<Value = Do> {
    prop_oneof![
        4 => (0..3_u64).prop_map(Do::Call),
        4 => (0..4_usize).prop_map(Do::Answer),
        1 => (0..4_usize).prop_map(Do::Cancel),
        1 => Just(Do::Kill),
    ]
}

proptest! {
    /// Whatever happens in which order: a call has a new key exactly where no undelivered call is identical to it; a kill
    /// loses nothing that is open.
    #[test]
    fn a_new_key_is_made_exactly_where_nothing_identical_is_undelivered(all in prop::collection::vec(does(), 1..60)) {
        let mut memory = Memory::default();
        let mut spool: Vec<u8> = Vec::new();
        // The model: of each key its call, whether it was delivered, and which requests await it.
        let mut model: Vec<(String, u64, bool, Vec<u64>)> = Vec::new();
        let mut written: Vec<(u64, String)> = Vec::new();
        let mut flying: Vec<(u64, String)> = Vec::new();
        for (request, what) in (1_u64..).zip(all) {
            let mut settled = memory.heard();
            for (_, of) in written.drain(..) {
                model.iter_mut().filter(|(key, ..)| *key == of).for_each(|(_, _, delivered, _)| *delivered = true);
            }
            match what {
                Do::Call(n) => {
                    let identical = model.iter().rev().find(|(_, of, delivered, _)| *of == n && !delivered);
                    let of = match memory.admit(&spelt(n), request, Reissue::Attach, InDoubt::Wait) {
                        Step::New => {
                            prop_assert!(identical.is_none());
                            let name = format!("k{request}");
                            let new = entry(n, &name);
                            spool.extend(Line::Spooled(Box::new(new.clone())).encode().unwrap());
                            memory.add(new, request);
                            memory.sends(request);
                            model.push((name.clone(), n, false, Vec::new()));
                            name
                        }
                        Step::Attach(key) | Step::Claim(key) => {
                            memory.claimed(&key);
                            prop_assert_eq!(Some(key.as_str()), identical.map(|(key, ..)| key.as_str()));
                            key.to_string()
                        }
                        Step::Ask(_) | Step::Wait => unreachable!(),
                    };
                    flying.push((request, of));
                }
                Do::Answer(at) if at < flying.len() => {
                    let (request, of) = flying.remove(at);
                    memory.written(request);
                    written.push((request, of));
                }
                Do::Cancel(at) if at < flying.len() => {
                    let (request, _) = flying.remove(at);
                    settled.extend(memory.left(request, None));
                }
                Do::Answer(_) | Do::Cancel(_) => {}
                Do::Kill => {
                    for key in std::mem::take(&mut settled) {
                        spool.extend(Line::Settled(key).encode().unwrap());
                    }
                    let left = read(&spool).unwrap();
                    for (name, _, delivered, _) in &model {
                        let there = left.iter().any(|entry| entry.key.as_str() == name);
                        // What was delivered, and is awaited by nobody, is forgotten; all else is there.
                        prop_assert!(there || *delivered);
                    }
                    // The next life takes what is open for undelivered.
                    model.retain(|(name, ..)| left.iter().any(|entry| entry.key.as_str() == name));
                    model.iter_mut().for_each(|(_, _, delivered, _)| *delivered = false);
                    memory = Memory::new(left);
                    (written, flying) = (Vec::new(), Vec::new());
                }
            }
            for key in settled {
                spool.extend(Line::Settled(key).encode().unwrap());
            }
        }
    }
}
