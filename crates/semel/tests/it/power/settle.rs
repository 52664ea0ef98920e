//! What has to be found after a cut: everything that was acknowledged, and nothing by half.

use super::lab::{Boot, Lab, Point};
use super::work::{Ask, Chain, Heard};
use crate::crash::tree::{self, Picture, picture};
use crate::harness::{Reply, Volume};
use serde_json::{Value, json};
use std::path::Path;

/// Whether the generation takes calls after the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Generation {
    GoesOn,
    Ended,
}

impl Lab {
    /// Looks at everything that was done in a point, and sends every call again.
    pub(super) fn settle(&mut self, point: &Point) {
        let generation = self.generation(point);
        self.tally.went_on += u64::from(generation == Generation::GoesOn);
        for chain in &point.chains {
            let place = point.volume.tree.join(&chain.dir);
            let label = format!("{} {}: {:?}", point.label, chain.dir, asked(chain));
            if let Err(fault) = self.chain(point, chain, &place, generation) {
                self.tally.faults.push(format!("{label}: {fault}"));
            }
        }
        self.opened(point);
        let verified = self.home.json(&["log", "verify"]);
        if verified["report"]["faults"] != json!([]) {
            self.fault(point, &format!("the log: {verified}"));
        }
    }

    fn fault(&mut self, point: &Point, what: &str) {
        self.tally.faults.push(format!("{}: {what}", point.label));
    }

    /// Asks whether the generation goes on; across boots it must not.
    fn generation(&mut self, point: &Point) -> Generation {
        let stat = self.call(&point.volume, "get_file_info", "", &json!({"path": "."}));
        match (stat.status, stat.code(), stat.reason()) {
            (200, _, _) => {
                if point.boot == Boot::Other {
                    self.fault(point, "the generation outlived its boot");
                }
                if point.volume.staged() > self.unknown(&point.volume).len() {
                    self.fault(point, "something is left in staging");
                }
                Generation::GoesOn
            }
            (_, "replay_conflict", "stale_generation") => Generation::Ended,
            _ => {
                self.fault(point, &format!("the volume: {}", stat.body));
                Generation::Ended
            }
        }
    }

    fn call(&self, volume: &Volume, tool: &str, key: &str, arguments: &Value) -> Reply {
        crate::harness::Conn::tcp(self.url()).call(volume, tool, key, arguments)
    }

    fn unknown(&self, volume: &Volume) -> Vec<Value> {
        let status = self.home.json(&["status"]);
        let all = status["unknown"].as_array().unwrap().iter();
        all.filter(|call| call["generation"] == json!(volume.generation))
            .cloned()
            .collect()
    }

    /// Says what came of a step; undoings are the operator's, and a job's token does not see them.
    fn receipt(&self, point: &Point, chain: &Chain, step: usize) -> Value {
        let key = chain.key(&point.volume, step);
        match chain.steps[step].ask {
            Ask::Tool(..) => {
                self.call(&point.volume, "get_receipt", "", &json!({ "key": key }))
                    .body
            }
            Ask::Undo => {
                let out = self.home.run(&["receipt", "--key", &key, "--json"]);
                let said: Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
                said["receipts"].get(0).unwrap_or(&said).clone()
            }
        }
    }

    fn chain(
        &mut self,
        point: &Point,
        chain: &Chain,
        place: &Path,
        generation: Generation,
    ) -> Result<(), String> {
        let done: Vec<&Value> = chain.heard.iter().filter_map(acknowledged).collect();
        let there = picture(place);
        let last = match done.len() {
            0 => &chain.before,
            n => &chain.steps[n - 1].after,
        };
        let open = chain.heard.get(done.len()).map(|heard| match heard {
            Heard::Open(said) => (&chain.steps[done.len()].after, said),
            Heard::Done(_) => unreachable!("an acknowledged call comes first"),
        });
        match open {
            None if there != *last => return Err(differs("lost", &there, last)),
            Some((next, _)) if there != *last && there != *next => {
                return Err(differs("lost, or half there", &there, last));
            }
            _ => {}
        }
        for (step, body) in done.iter().enumerate() {
            self.acknowledged(point, chain, step, body, generation)?;
        }
        if let (None, [.., body]) = (open, &done[..]) {
            let execution = body["execution_id"].as_str().expect("it has an execution");
            let kept = tree::kept(&point.volume.tree, execution);
            let wanted = chain.steps[done.len() - 1].kept.clone();
            if wanted.is_some_and(|wanted| kept != tree::sorted(wanted)) {
                return Err(format!("the pre-images are {kept:?}"));
            }
        }
        match open {
            None => Ok(()),
            Some((next, said)) => {
                if said.as_ref().is_some_and(|(_, code)| code == "io_failed") && there != *last {
                    return Err("it was said not to have begun, and happened".to_owned());
                }
                let stands = Stands {
                    place,
                    next,
                    happened: there == *next,
                    same: last == next,
                };
                self.open_call(point, chain, done.len(), &stands, generation)
            }
        }
    }

    /// Holds an acknowledged call against its receipt, and its replay where there is one.
    fn acknowledged(
        &self,
        point: &Point,
        chain: &Chain,
        step: usize,
        body: &Value,
        generation: Generation,
    ) -> Result<(), String> {
        let receipt = self.receipt(point, chain, step);
        let result = receipt["result"].as_object();
        let says_the_same = receipt["execution_id"] == body["execution_id"]
            && result.is_some_and(|result| result.iter().all(|(name, value)| body[name] == *value));
        if receipt["state"] != "done" || !says_the_same {
            return Err(format!("acknowledged as {body}, its receipt is {receipt}"));
        }
        if generation == Generation::Ended {
            return Ok(());
        }
        let again = self.again(point, chain, step);
        let mut replay = body.clone();
        replay["replayed"] = json!(true);
        match again.status == 200 && again.body == replay {
            true => Ok(()),
            false => Err(format!("acknowledged as {body}, it replays as {}", again.body)),
        }
    }

    fn again(&self, point: &Point, chain: &Chain, step: usize) -> Reply {
        chain
            .send(&self.home, self.url(), &point.volume, step)
            .expect("an answer")
    }

    /// Holds a call of which nothing was heard: whole or not at all, and said to be; sent again it has one effect.
    fn open_call(
        &mut self,
        point: &Point,
        chain: &Chain,
        step: usize,
        stands: &Stands<'_>,
        generation: Generation,
    ) -> Result<(), String> {
        let receipt = self.receipt(point, chain, step);
        let (state, code) = (receipt["state"].as_str(), receipt["code"].as_str());
        let right = match (state, code) {
            (Some("done"), _) => {
                self.tally.whole += 1;
                stands.happened
            }
            (Some("unknown"), _) => {
                self.tally.unknown += 1;
                let listed = self.unknown(&point.volume);
                listed
                    .iter()
                    .any(|call| call["execution_id"] == receipt["execution_id"])
            }
            (_, Some("not_found")) => {
                self.tally.none += 1;
                !stands.happened || stands.same
            }
            _ => false,
        };
        if !right {
            return Err(format!(
                "happened: {}, but its receipt is {receipt}",
                stands.happened
            ));
        }
        if generation == Generation::Ended {
            return Ok(());
        }
        let again = self.again(point, chain, step);
        if state == Some("unknown") {
            return match again.code() {
                "outcome_unknown" => Ok(()),
                _ => Err(format!("its outcome is unknown, but again it is {}", again.body)),
            };
        }
        let there = picture(stands.place);
        if again.status != 200 || again.body["replayed"] != json!(state == Some("done")) {
            return Err(format!("sent again, it is {}", again.body));
        }
        match there == *stands.next {
            true => Ok(()),
            false => Err(differs("sent again", &there, stands.next)),
        }
    }

    /// Holds the volumes that were opened meanwhile: each is known, and there.
    fn opened(&mut self, point: &Point) {
        for volume in &point.opened {
            let stat = self.call(volume, "get_file_info", "", &json!({"path": "."}));
            let ended = (stat.code(), stat.reason()) == ("replay_conflict", "stale_generation");
            if !(stat.status == 200 || ended) {
                self.fault(point, &format!("a volume that was opened: {}", stat.body));
            }
            let status = self.home.json(&["volume", "list"]);
            let listed = status["volumes"].as_array().unwrap().iter();
            let mut mine = listed.filter(|one| one["generation"] == json!(volume.generation));
            let dirty = mine.next().map(|one| one["dirty"].clone());
            let wanted = match (&dirty, stat.status) {
                (Some(Value::Null), 200) => true,
                (Some(reason), _) => {
                    *reason == json!("boot_changed") || *reason == json!("journal_rolled_back")
                }
                (None, _) => false,
            };
            if !wanted || picture(&volume.tree).is_empty() {
                self.fault(point, &format!("a volume that was opened is {dirty:?}"));
            }
        }
    }
}

/// Where the tree stands to an open call.
struct Stands<'a> {
    place: &'a Path,
    next: &'a Picture,
    happened: bool,
    /// The call changes nothing that shows.
    same: bool,
}

fn acknowledged(heard: &Heard) -> Option<&Value> {
    match heard {
        Heard::Done(body) => Some(body),
        Heard::Open(_) => None,
    }
}

fn asked(chain: &Chain) -> Vec<&str> {
    use super::work::Ask;
    let steps = chain.steps.iter().take(chain.heard.len());
    steps
        .map(|step| match &step.ask {
            Ask::Tool(tool, _) => *tool,
            Ask::Undo => "undo",
        })
        .collect()
}

fn differs(how: &str, there: &Picture, wanted: &Picture) -> String {
    let mut all: Vec<_> = there.keys().chain(wanted.keys()).collect();
    all.sort();
    all.dedup();
    let of = |all: &Picture, path| all.get(path).map(|entry| cut(&format!("{entry:?}")));
    let other = all
        .into_iter()
        .filter(|path| there.get(*path) != wanted.get(*path));
    let said: Vec<String> = other
        .map(|path| {
            format!(
                "{}: {:?} for {:?}",
                path.display(),
                of(there, path),
                of(wanted, path)
            )
        })
        .collect();
    format!("{how}: {said:?}")
}

fn cut(text: &str) -> String {
    text.chars().take(80).collect()
}
