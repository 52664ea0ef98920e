//! The laboratory of the crash tests: calls whose daemon dies, and what has to be found afterwards.
//!
//! Each trial has a directory, a key and files of its own. The daemon that is started for the next trial recovers the
//! one before; all are sent again, with their keys, to a last daemon that nobody kills.

use super::tools::Case;
use super::tree::{Picture, below, picture, plain};
use crate::harness::{Daemon, Home, Reply, SERVE, Volume};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

/// Starts a daemon with these arguments; gives how it ended where it did not come to listen.
pub(crate) type Start = Box<dyn Fn(&Home, &[&str]) -> Result<Daemon, ExitStatus>>;

pub(crate) struct Lab {
    pub(crate) home: Home,
    pub(crate) volume: Volume,
    pub(crate) daemon: Option<Daemon>,
    /// How many trials there were.
    pub(crate) trials: usize,
    start: Start,
    named: usize,
    pending: Vec<Trial>,
    models: BTreeMap<&'static str, Model>,
    kept: usize,
}

/// What a case is about, once for all its trials.
#[derive(Clone)]
struct Model {
    before: Picture,
    after: Picture,
    kept: Vec<Picture>,
    answer: Value,
    /// The points that the call comes to, in their order.
    points: Vec<String>,
}

/// One call, of which the caller may have heard nothing.
pub(crate) struct Trial {
    case: &'static Case,
    label: String,
    dir: String,
    key: String,
    pub(crate) found: Found,
}

/// What became of the first call.
pub(crate) enum Found {
    /// It was answered.
    Answered(Box<Reply>),
    /// The daemon died; this stood in the directory right after.
    Died(Picture),
}

/// Where the tree stands between before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stands {
    Before,
    Between,
    After,
}

pub(crate) fn plainly() -> Start {
    Box::new(|home, args| {
        let args = [SERVE, args].concat();
        Daemon::begun(home.command(&args).stderr(std::process::Stdio::null()))
    })
}

impl Lab {
    pub(crate) fn new(durability: &str) -> Self {
        Self::at(Home::new(), durability, plainly())
    }

    pub(crate) fn at(home: Home, durability: &str, start: Start) -> Self {
        let daemon = start(&home, &[]).expect("the daemon starts");
        let volume = home.open("job", durability);
        Self {
            home,
            volume,
            daemon: Some(daemon),
            trials: 0,
            start,
            named: 0,
            pending: Vec::new(),
            models: BTreeMap::new(),
            kept: 0,
        }
    }

    /// Starts another daemon in the place of this one, if there is one; it recovers what the last trial left open.
    /// Gives the points that recovery came to.
    pub(crate) fn restart(&mut self, args: &[&str]) -> Vec<String> {
        self.daemon = None;
        let told = self.home.path().join("points");
        drop(std::fs::remove_file(&told));
        let args = [args, &["--tell-points", told.to_str().unwrap()]].concat();
        self.daemon = Some((self.start)(&self.home, &args).expect("the daemon starts"));
        self.told()
    }

    /// Gives the points that were reached since the daemon began, numbered where one is reached again.
    pub(crate) fn told(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.home.path().join("points")).unwrap_or_default();
        let mut seen = BTreeMap::new();
        let numbered = text.lines().map(|point| {
            let n = seen.entry(point).and_modify(|n| *n += 1).or_insert(1);
            format!("{point}:{n}")
        });
        numbered.collect()
    }

    /// Gives the points that a call comes to when nothing goes wrong.
    pub(crate) fn points_of(&mut self, case: &'static Case) -> Vec<String> {
        self.model(case).points
    }

    /// Makes a directory with what stands in it before a call; gives its name.
    pub(crate) fn fresh(&mut self, before: fn(&Path)) -> String {
        self.named += 1;
        let dir = format!("t{}", self.named);
        let place = self.volume.tree.join(&dir);
        super::tree::make(&place, 0o755);
        before(&place);
        dir
    }

    fn model(&mut self, case: &'static Case) -> Model {
        if let Some(model) = self.models.get(case.name) {
            return model.clone();
        }
        let scratch = tempfile::tempdir().unwrap();
        super::tree::chmod(scratch.path(), 0o755);
        (case.before)(scratch.path());
        let before = picture(scratch.path());
        (case.effect)(scratch.path());
        self.restart(&[]);
        let dir = self.fresh(case.before);
        let daemon = self.daemon.as_ref().expect("a daemon runs");
        let reply = daemon.conn().call(
            &self.volume,
            case.tool,
            &format!("model-{dir}"),
            &(case.arguments)(&dir),
        );
        assert_eq!(reply.status, 200, "{}: {}", case.name, reply.body);
        let model = Model {
            kept: case.kept.iter().map(|path| below(&before, path)).collect(),
            before,
            after: picture(scratch.path()),
            answer: essence(&reply.body, &dir),
            points: self.told(),
        };
        assert_eq!(
            picture(&self.volume.tree.join(&dir)),
            model.after,
            "{}",
            case.name
        );
        self.kept += model.kept.len();
        self.models.insert(case.name, model.clone());
        model
    }

    /// Makes one call on the daemon that runs, and says what stands there if it dies.
    pub(crate) fn call(&mut self, case: &'static Case, label: &str) -> &Trial {
        self.model(case);
        self.trials += 1;
        let dir = self.fresh(case.before);
        let (label, key) = (format!("{} {label}", case.name), format!("k-{dir}"));
        let mut daemon = self.daemon.take().expect("a daemon runs");
        let first = daemon
            .conn()
            .try_call(&self.volume, case.tool, &key, &(case.arguments)(&dir));
        let found = match first {
            Some(reply) if reply.code() != "store_unavailable" => {
                self.daemon = Some(daemon);
                Found::Answered(Box::new(reply))
            }
            // It died, or ended itself to have its successor look at what is on the disk.
            answer => {
                let Some(status) = daemon.ended(Duration::from_secs(60)) else {
                    panic!("{label}: the daemon goes on after {answer:?}");
                };
                let right = match answer {
                    Some(_) => status.code() == Some(75),
                    None => status.signal() == Some(9) || status.code() == Some(75),
                };
                assert!(right, "{label}: {status:?}");
                Found::Died(picture(&self.volume.tree.join(&dir)))
            }
        };
        self.pending.push(Trial {
            case,
            label,
            dir,
            key,
            found,
        });
        self.pending.last().expect("it was pushed")
    }

    /// Kills the daemon at a point of one call, and maybe again while it recovers.
    pub(crate) fn trial(&mut self, case: &'static Case, at: &str, again: Option<&str>) {
        self.model(case);
        self.restart(&["--crash-at", at]);
        let trial = self.call(case, &format!("{at}, then {}", again.unwrap_or("nothing")));
        if let Found::Answered(reply) = &trial.found {
            panic!("{} is not met: {}", trial.label, reply.body);
        }
        if let Some(again) = again {
            let status = self.dies(&["--crash-at", again]);
            assert_eq!(status.signal(), Some(9), "{at}, then {again}: {status:?}");
        }
    }

    /// Starts a daemon that dies before it listens; gives how.
    pub(crate) fn dies(&mut self, args: &[&str]) -> ExitStatus {
        match (self.start)(&self.home, args) {
            Err(status) => status,
            Ok(_) => panic!("a daemon with {args:?} did not die"),
        }
    }

    /// Starts daemons that die at a point of recovery, until one does not; gives how many died.
    pub(crate) fn die_while_recovering(&mut self, at: &str) -> usize {
        for died in 0..50 {
            if let Ok(daemon) = (self.start)(&self.home, &["--crash-at", at]) {
                self.daemon = Some(daemon);
                return died;
            }
        }
        panic!("recovery never ends at {at}");
    }

    /// Says where the tree of the last trial stood right after the daemon died.
    pub(crate) fn stood(&self) -> Stands {
        let trial = self.pending.last().expect("there was a trial");
        let model = &self.models[trial.case.name];
        match &trial.found {
            Found::Answered(_) => Stands::After,
            Found::Died(there) if *there == model.before => Stands::Before,
            Found::Died(there) if *there == model.after => Stands::After,
            Found::Died(_) => Stands::Between,
        }
    }

    /// Sends every call again, and holds what it finds against the one effect that each has to have.
    pub(crate) fn settle(&mut self) {
        self.restart(&[]);
        for trial in std::mem::take(&mut self.pending) {
            self.once(&trial);
        }
        assert_eq!(self.volume.staged(), 0, "nothing is left in staging");
        assert_eq!(
            self.volume.trashed(),
            self.kept,
            "the pre-images are kept, no more"
        );
    }

    /// Settles, and verifies the journal's chain.
    pub(crate) fn end(mut self) {
        self.settle();
        let report = self.home.json(&["check"]);
        assert_eq!(report["report"]["faults"], json!([]));
        let status = self.home.json(&["status"]);
        assert_eq!(status["unknown"], json!([]), "{status}");
    }

    /// Gives the executions whose outcome cannot be told.
    pub(crate) fn unknown(&self) -> Vec<String> {
        let status = self.home.json(&["status"]);
        let unknown = status["unknown"].as_array().unwrap().iter();
        unknown
            .map(|call| call["execution_id"].as_str().unwrap().to_owned())
            .collect()
    }

    fn once(&mut self, trial: &Trial) {
        let label = &trial.label;
        let model = self.models[trial.case.name].clone();
        let place = self.volume.tree.join(&trial.dir);
        let recovered = picture(&place);
        let replayed = recovered == model.after;
        assert!(
            replayed || recovered == model.before,
            "{label}: half of it is there: {recovered:?} {}",
            self.home.json(&["status"])["unknown"]
        );
        match &trial.found {
            Found::Died(there) => {
                assert_eq!(
                    replayed,
                    plain(there) == plain(&model.after),
                    "{label}: {there:#?}"
                )
            }
            Found::Answered(reply) => {
                assert_eq!(replayed, reply.status == 200, "{label}: {}", reply.body);
                if replayed {
                    assert_eq!(reply.body["replayed"], json!(false), "{label}");
                    assert_eq!(essence(&reply.body, &trial.dir), model.answer, "{label}");
                }
            }
        }
        let daemon = self.daemon.as_ref().expect("a daemon runs");
        let arguments = (trial.case.arguments)(&trial.dir);
        let again = daemon
            .conn()
            .call(&self.volume, trial.case.tool, &trial.key, &arguments);
        assert_eq!(
            (again.status, &again.body["replayed"], &again.body["generation"]),
            (200, &json!(replayed), &json!(self.volume.generation)),
            "{label}: {}",
            again.body
        );
        assert_eq!(essence(&again.body, &trial.dir), model.answer, "{label}");
        assert_eq!(picture(&place), model.after, "{label}");
        let execution = again.body["execution_id"].as_str().expect("it has an execution");
        assert_eq!(
            self.kept_of(execution),
            super::tree::sorted(model.kept.clone()),
            "{label}: pre-images"
        );
        self.kept += model.kept.len();
        self.one_receipt(label, &trial.key);
    }

    fn kept_of(&self, execution: &str) -> Vec<Picture> {
        super::tree::kept(&self.volume.tree, execution)
    }

    fn one_receipt(&self, label: &str, key: &str) {
        let verb = json!({"verb": "log", "filter": {"after_seq": null, "job": null, "execution": null, "key": key, "conflicts": null, "limit": null}});
        let log = self.home.admin("POST", "/v1/admin/journal", &verb);
        let kinds = |kind: &str| {
            let lines = log.body.as_array().unwrap().iter();
            lines
                .filter(|line| line["entry"]["record"]["kind"] == kind)
                .count()
        };
        let (intents, receipts, freed) = (
            kinds("call_intended"),
            kinds("call_receipted"),
            kinds("call_freed"),
        );
        assert_eq!((receipts, intents - freed), (1, 1), "{label}: {}", log.body);
        assert_eq!(kinds("call_unknown"), 0, "{label}");
        let daemon = self.daemon.as_ref().expect("a daemon runs");
        let receipt = daemon
            .conn()
            .call(&self.volume, "get_receipt", "", &json!({"key": key}));
        assert_eq!(receipt.body["state"], "done", "{label}");
    }
}

/// A sequence of numbers that a test can repeat: `SEMEL_SEED=N`.
pub(crate) struct Chance {
    pub(crate) seed: u64,
    state: u64,
}

impl Chance {
    pub(crate) fn new() -> Self {
        let given = std::env::var("SEMEL_SEED")
            .ok()
            .and_then(|text| text.parse().ok());
        let seed = given.map(|seed: u64| seed.max(1)).unwrap_or_else(|| {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.unwrap().as_nanos() as u64 | 1
        });
        Self { seed, state: seed }
    }

    /// Gives a number below a bound.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // xorshift64*
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}

/// What an answer says of the effect, wherever and under whatever key it was.
fn essence(body: &Value, dir: &str) -> Value {
    let mut body = body.clone();
    for name in ["execution_id", "idempotency_key", "replayed"] {
        body.as_object_mut().expect("an object").remove(name);
    }
    let text = body.to_string();
    let text = text
        .replace(&format!("\"{dir}/"), "\"DIR/")
        .replace(&format!("\"{dir}\""), "\"DIR\"");
    serde_json::from_str(&text).unwrap()
}
