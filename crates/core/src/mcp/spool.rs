//! The memory of a bridge: which calls went out under a key that it made itself, and whose answers nobody is known to have.
//!
//! A client that sends no keys cannot say that it repeats itself. The bridge remembers, of each call, its key and a salted
//! digest of it, until its answer was delivered; an identical call that comes before is taken for its repeat. This module
//! decides and encodes; it does *not* know files, clocks or connections.

use crate::canonical::to_canonical;
use crate::code::{Code, Refusal};
use crate::digest::{Hasher, Sha256, from_hex, to_hex};
use crate::ids::{Generation, IdempotencyKey, Principal, UnixMs};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::VecDeque;

/// Is a salt: new for each life of a bridge, so that two spools do not tell whether they are of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Salt([u8; 16]);

impl Salt {
    /// Takes what the kernel's generator gave.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl TryFrom<String> for Salt {
    type Error = Refusal;
    fn try_from(text: String) -> Result<Self, Refusal> {
        let bytes = from_hex(&text).and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Self)
            .ok_or_else(|| Refusal::new(Code::BadInput, "a salt is 32 hexadecimal digits"))
    }
}

impl From<Salt> for String {
    fn from(salt: Salt) -> Self {
        to_hex(&salt.0)
    }
}

/// Is a call in the form by which two are held against each other: its tool and its arguments, spelt in one way. What
/// else its message says, such as its id or where progress is told, makes it no other call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spelt(Vec<u8>);

impl Spelt {
    /// Spells the parameters of a `tools/call`.
    #[must_use]
    pub fn of(params: &Map<String, Value>) -> Self {
        let pair =
            [params.get("name"), params.get("arguments")].map(|part| part.cloned().unwrap_or(Value::Null));
        Self(to_canonical(&Value::Array(pair.into())))
    }

    /// Gives its salted digest.
    #[must_use]
    pub fn digest(&self, salt: Salt) -> Sha256 {
        let mut hasher = Hasher::new();
        hasher.update(&salt.0);
        hasher.update(&self.0);
        hasher.finish()
    }
}

/// Says within what a key of a bridge means one effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reach {
    /// Whose token it was sent with.
    pub principal: Principal,
    /// In which generation; in any one of the job where there is none.
    pub generation: Option<Generation>,
}

impl Reach {
    /// Says whether a key of this reach means the same effect to whoever speaks for that principal in that generation.
    #[must_use]
    pub fn covers(&self, principal: &Principal, generation: &Generation) -> bool {
        self.principal == *principal && self.generation.as_ref().is_none_or(|own| own == generation)
    }
}

/// Is what is remembered of a call; never the call itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The key that the bridge made.
    pub key: IdempotencyKey,
    /// What its digest is salted with.
    pub salt: Salt,
    /// Its salted digest.
    pub fingerprint: Sha256,
    /// Within what its key means one effect.
    pub reach: Reach,
    /// The tool, for whoever is told of it.
    pub tool: String,
    /// When it came.
    pub at: UnixMs,
}

impl Entry {
    /// Makes one, under a new key.
    #[must_use]
    pub fn new(spelt: &Spelt, salt: Salt, key: IdempotencyKey, reach: Reach, tool: &str, at: UnixMs) -> Self {
        Self {
            key,
            salt,
            fingerprint: spelt.digest(salt),
            reach,
            tool: tool.to_owned(),
            at,
        }
    }
}

/// Is one line of a spool.
///
/// # Shape
/// Eight hexadecimal digits of the SHA-256 of what follows, a space, a JSON object, a line end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Line {
    /// A call will be forwarded.
    Spooled(Box<Entry>),
    /// The answer to a call was delivered, or the call was never forwarded.
    Settled(IdempotencyKey),
}

const CHECK: usize = 8;

impl Line {
    /// Writes it.
    ///
    /// # Errors
    /// `internal` where it has no JSON form, which no line lacks.
    pub fn encode(&self) -> Result<Vec<u8>, Refusal> {
        let json = serde_json::to_string(self)
            .map_err(|e| Refusal::new(Code::Internal, format!("a line of a spool: {e}")))?;
        Ok(format!("{} {json}\n", check(json.as_bytes())).into_bytes())
    }

    fn decode(line: &[u8]) -> Option<Self> {
        let (sum, json) = line.split_at_checked(CHECK + 1)?;
        if sum.strip_suffix(b" ")? != check(json).as_bytes() {
            return None;
        }
        serde_json::from_slice(json).ok()
    }
}

impl Line {
    /// Says whether something bad has a whole line behind it.
    fn is_behind(bad: &[u8]) -> bool {
        let begins = bad.windows(2).enumerate().skip(CHECK + 1);
        begins
            .filter(|(_, pair)| pair == b" {")
            .any(|(at, _)| Self::decode(&bad[at - CHECK..]).is_some())
    }
}

fn check(bytes: &[u8]) -> String {
    to_hex(&Sha256::of(bytes).as_bytes()[..CHECK / 2])
}

/// Reads a spool: what is still open, in the order in which it came.
///
/// What is bad at its end was never whole on the disk, so that nothing was forwarded for it.
///
/// # Errors
/// `unknown_state`, reason `spool_damaged`, where something bad has something good behind it: a call may be missing.
pub fn read(bytes: &[u8]) -> Result<Vec<Entry>, Refusal> {
    let mut open: Vec<Entry> = Vec::new();
    let mut bad = None;
    // What has no line end is not whole.
    let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
    let lines = bytes[..whole].split_inclusive(|b| *b == b'\n');
    for (number, line) in lines.enumerate() {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        match (Line::decode(line), bad) {
            (Some(_), Some(number)) => return Err(damaged(number)),
            // The line end before it was changed.
            (None, _) if Line::is_behind(line) => return Err(damaged(number + 1)),
            (Some(Line::Spooled(entry)), None) => {
                open.retain(|known| known.key != entry.key);
                open.push(*entry);
            }
            (Some(Line::Settled(key)), None) => open.retain(|known| known.key != key),
            (None, _) => bad = bad.or(Some(number + 1)),
        }
    }
    Ok(open)
}

fn damaged(number: usize) -> Refusal {
    let why = "a line of the spool was changed, and a call may be missing";
    Refusal::new(Code::UnknownState, why)
        .reason("spool_damaged")
        .name(format!("line {number}"))
}

/// Says what is done with a call that is identical to one whose answer was never delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reissue {
    /// It is the same call, and has the same key.
    #[default]
    Attach,
    /// It is refused, and told of the earlier one.
    Ask,
    /// It is another call.
    Execute,
}

/// Says why an answer is none for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsettled {
    /// A person has to decide first; afterwards the same call is sent again.
    Asked,
    /// Nobody knows whether it had its effect.
    Unknown,
}

/// Says what a call is sent as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// As a new one.
    New,
    /// As one that was sent before, under its key.
    Attach(IdempotencyKey),
    /// As one that an earlier life sent, once its entry is taken from where that life left it: [`Memory::claimed`]. Another
    /// bridge may have been faster: [`Memory::gone`].
    Claim(IdempotencyKey),
    /// Not at all: it may repeat this one.
    Ask(Box<Entry>),
    /// That is not known yet: the answer to an identical one is being written, and may have been read.
    Wait,
}

/// Says what is done where the answer to an identical call is being written at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InDoubt {
    /// It is waited for a moment: whoever read the whole of it comes before it is noted that it was written.
    Wait,
    /// It was not read: nobody takes so long to note it.
    Undelivered,
}

/// Says where the entry of a call lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lies {
    /// In the spool of this life.
    Here,
    /// Where an earlier life left it, for all bridges whom it concerns.
    Elsewhere,
}

/// Is a call that is remembered, with how it stands.
#[derive(Debug)]
struct Call {
    entry: Entry,
    lies: Lies,
    /// Whether the gateway may know of it.
    sent: bool,
    /// The requests that await its answer.
    flying: Vec<u64>,
    /// Those of them whose answer is being written to the client.
    writing: Vec<u64>,
    /// Those whose answer was written to the client whole, behind which nothing more came from there.
    written: Vec<u64>,
    /// The one whose answer was delivered.
    delivered: Option<u64>,
    /// Why its last answer was none for good.
    unsettled: Option<Unsettled>,
}

impl Call {
    const fn of(entry: Entry, lies: Lies) -> Self {
        Self {
            entry,
            lies,
            sent: true,
            flying: Vec::new(),
            writing: Vec::new(),
            written: Vec::new(),
            delivered: None,
            unsettled: None,
        }
    }

    fn is_over(&self) -> bool {
        let settled = self.delivered.is_some() && self.unsettled.is_none();
        self.flying.is_empty() && (settled || !self.sent)
    }

    fn lands(&mut self, request: u64) {
        self.flying.retain(|other| *other != request);
        self.writing.retain(|other| *other != request);
    }
}

/// Is all that a bridge remembers. A request is known by a number that no other one of this life has.
#[derive(Debug, Default)]
pub struct Memory {
    calls: Vec<Call>,
    /// Those that were delivered last: a client may say yet that it did not take an answer.
    recent: VecDeque<(u64, Entry)>,
}

impl Memory {
    /// How many delivered calls a late cancellation can still be about.
    pub const RECENT: usize = 256;

    /// Begins with what earlier lives left.
    #[must_use]
    pub fn new(left: Vec<Entry>) -> Self {
        Self {
            calls: left
                .into_iter()
                .map(|entry| Call::of(entry, Lies::Elsewhere))
                .collect(),
            recent: VecDeque::new(),
        }
    }

    /// Gives what is open, and lies in the spool of this life.
    pub fn open(&self) -> impl Iterator<Item = &Entry> {
        self.lying(Lies::Here)
    }

    /// Gives what earlier lives left, and no call has claimed.
    pub fn left_before(&self) -> impl Iterator<Item = &Entry> {
        self.lying(Lies::Elsewhere)
    }

    fn lying(&self, where_it_does: Lies) -> impl Iterator<Item = &Entry> {
        let calls = self.calls.iter().filter(move |call| call.lies == where_it_does);
        calls.map(|call| &call.entry)
    }

    /// Notes that the entry of a key was taken into the spool of this life.
    pub fn claimed(&mut self, key: &IdempotencyKey) {
        if let Some(call) = self.calls.iter_mut().find(|call| call.entry.key == *key) {
            call.lies = Lies::Here;
        }
    }

    /// Notes that another bridge took the entry of a key: it is none of this life's any more.
    pub fn gone(&mut self, key: &IdempotencyKey) {
        self.calls
            .retain(|call| call.lies == Lies::Here || call.entry.key != *key);
    }

    /// Decides what a call is sent as; an attached one flies from now on as this request, too.
    pub fn admit(&mut self, spelt: &Spelt, request: u64, reissue: Reissue, doubt: InDoubt) -> Step {
        // One digest for each salt: a life has one, and those that it took over theirs.
        let mut digests: Vec<(Salt, Sha256)> = Vec::new();
        let found = self.calls.iter_mut().rev().find(|call| {
            let asked = call.unsettled == Some(Unsettled::Asked);
            // Of one that is being written, it is not noted yet whether it was for good.
            let doubted = !call.writing.is_empty() && doubt == InDoubt::Wait;
            if call.delivered.is_some() || reissue == Reissue::Execute && !asked && !doubted {
                return false;
            }
            let salt = call.entry.salt;
            let known = digests
                .iter()
                .find(|(of, _)| *of == salt)
                .map(|(_, digest)| *digest);
            let digest = known.unwrap_or_else(|| {
                let digest = spelt.digest(salt);
                digests.push((salt, digest));
                digest
            });
            call.entry.fingerprint == digest
        });
        let Some(call) = found else {
            return Step::New;
        };
        if !call.writing.is_empty() && doubt == InDoubt::Wait {
            return Step::Wait;
        }
        if reissue == Reissue::Ask && call.unsettled != Some(Unsettled::Asked) {
            return Step::Ask(Box::new(call.entry.clone()));
        }
        call.unsettled = None;
        call.flying.push(request);
        let key = call.entry.key.clone();
        match call.lies {
            Lies::Here => Step::Attach(key),
            Lies::Elsewhere => Step::Claim(key),
        }
    }

    /// Remembers a new call, which flies as this request.
    pub fn add(&mut self, entry: Entry, request: u64) {
        let mut call = Call::of(entry, Lies::Here);
        (call.sent, call.flying) = (false, vec![request]);
        self.calls.push(call);
    }

    /// Notes that a request is forwarded: from here on the gateway may know of its call.
    pub fn sends(&mut self, request: u64) {
        if let Some(call) = self.flying(request) {
            call.sent = true;
        }
    }

    /// Notes that the answer to a request is being written to the client.
    pub fn writes(&mut self, request: u64) {
        if let Some(call) = self.flying(request) {
            call.writing.push(request);
        }
    }

    /// Notes that an answer for good was written to the client whole.
    pub fn written(&mut self, request: u64) {
        if let Some(call) = self.flying(request) {
            call.lands(request);
            call.written.push(request);
        }
    }

    /// Notes that nobody awaits the answer to a request any more, or that it was none for good. What was never forwarded is
    /// forgotten then. Gives the key where the call is open no more.
    pub fn left(&mut self, request: u64, unsettled: Option<Unsettled>) -> Option<IdempotencyKey> {
        let call = self.flying(request)?;
        call.lands(request);
        call.unsettled = unsettled.or(call.unsettled);
        self.over().pop()
    }

    /// Forgets the oldest that nobody awaits, where more are open than may be. Gives their keys.
    pub fn trim(&mut self, most: usize) -> Vec<IdempotencyKey> {
        let mut beyond = self.calls.len().saturating_sub(most);
        let oldest = self.calls.extract_if(.., |call| {
            let goes = beyond > 0 && call.flying.is_empty();
            beyond -= usize::from(goes);
            goes
        });
        oldest.map(|call| call.entry.key).collect()
    }

    /// Notes that the client goes on: what was written to it is delivered. Gives the keys of what is open no more.
    pub fn heard(&mut self) -> Vec<IdempotencyKey> {
        for call in &mut self.calls {
            if let Some(last) = std::mem::take(&mut call.written).pop() {
                call.delivered = Some(last);
            }
        }
        self.over()
    }

    /// Notes that the answers to these requests were read. Gives the keys of what is open no more.
    pub fn read(&mut self, requests: &[u64]) -> Vec<IdempotencyKey> {
        for call in &mut self.calls {
            call.written.retain(|request| {
                let read = requests.contains(request);
                if read {
                    call.delivered = Some(*request);
                }
                !read
            });
        }
        self.over()
    }

    /// Notes that a client did not take the answer to a request, and will not, whether or not it was written. Gives the entry
    /// where it was forgotten already, and is remembered anew.
    pub fn untaken(&mut self, request: u64) -> Option<Entry> {
        for call in &mut self.calls {
            call.lands(request);
            call.written.retain(|other| *other != request);
            call.delivered = call.delivered.filter(|other| *other != request);
        }
        let at = self.recent.iter().position(|(other, _)| *other == request)?;
        let (_, entry) = self.recent.remove(at)?;
        self.calls.push(Call::of(entry.clone(), Lies::Here));
        Some(entry)
    }

    fn flying(&mut self, request: u64) -> Option<&mut Call> {
        self.calls.iter_mut().find(|call| call.flying.contains(&request))
    }

    /// Takes out what is open no more.
    fn over(&mut self) -> Vec<IdempotencyKey> {
        let mut keys = Vec::new();
        for call in self.calls.extract_if(.., |call| call.is_over()) {
            keys.push(call.entry.key.clone());
            self.recent
                .push_back((call.delivered.unwrap_or_default(), call.entry));
        }
        let beyond = self.recent.len().saturating_sub(Self::RECENT);
        self.recent.drain(..beyond);
        keys
    }
}

#[cfg(test)]
mod tests;
