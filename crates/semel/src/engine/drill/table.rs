//! The steps of a drill as data: what is done, what the naive side did, what the guarded side had to answer and did.
//!
//! Text and JSON are made from here alone. It plays nothing itself, and prints nothing.

use crate::engine::trial::Told;
use crate::engine::trial::text::{field, line};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

/// Says what the naive side did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Naive {
    /// The damage, as it was seen.
    Damage(String),
    /// What was seen instead of the damage.
    Unharmed(String),
    /// The step has no naive side, and why.
    NoSide(&'static str),
}

/// Says what the guarded side did: what is compared, and what is only told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Guarded {
    /// In the form of what was expected.
    pub(super) got: String,
    /// Facts beside it.
    pub(super) detail: String,
}

impl Guarded {
    /// Makes it from what is compared and what is told.
    pub(super) fn new(got: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            got: got.into(),
            detail: detail.into(),
        }
    }
}

/// Is one step, played on both sides.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Its name.
    pub(super) name: &'static str,
    /// What is done.
    pub(super) done: String,
    /// What the naive side did.
    pub(super) naive: Told<Naive>,
    /// What the guarded side has to answer.
    pub(super) expected: String,
    /// What it answered.
    pub(super) guarded: Told<Guarded>,
}

/// Says what a step showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// The damage is real, and the guard held.
    Held,
    /// The guard did not answer as it has to.
    Failed,
    /// One side could not be shown, and why.
    Wanting(String),
}

impl Row {
    /// Judges the step; a guard that failed is the worst that can be said.
    pub(super) fn shown(&self) -> Shown {
        match (&self.guarded, &self.naive) {
            (Ok(guarded), _) if guarded.got != self.expected => Shown::Failed,
            (Err(why), _) => Shown::Wanting(format!("the guarded side could not be played: {why}")),
            (_, Err(why)) => Shown::Wanting(format!("the naive side could not be played: {why}")),
            (_, Ok(Naive::Unharmed(_))) => Shown::Wanting("the naive side did no damage here".to_owned()),
            (Ok(_), Ok(Naive::Damage(_) | Naive::NoSide(_))) => Shown::Held,
        }
    }

    fn json(&self) -> Value {
        let (naive, told) = match &self.naive {
            Ok(Naive::Damage(told)) => ("damage", told.as_str()),
            Ok(Naive::Unharmed(told)) => ("not_reproduced", told.as_str()),
            Ok(Naive::NoSide(why)) => ("none", *why),
            Err(why) => ("not_played", why.as_str()),
        };
        let (status, why) = match self.shown() {
            Shown::Held => ("held", None),
            Shown::Failed => ("failed", None),
            Shown::Wanting(why) => ("not_shown", Some(why)),
        };
        json!({
            "name": self.name, "done": self.done, "status": status, "reason": why,
            "naive": {"outcome": naive, "account": told},
            "guarded": {
                "expected": self.expected,
                "got": self.guarded.as_ref().ok().map(|g| &g.got),
                "detail": self.guarded.as_ref().map_or_else(String::as_str, |g| &g.detail),
            },
        })
    }

    fn text(&self, number: usize, out: &mut String) {
        let status = match self.shown() {
            Shown::Held => "held",
            Shown::Failed => "FAILED",
            Shown::Wanting(_) => "NOT SHOWN",
        };
        line(out, &format!("  {number:>2}. {} [{status}]", self.name));
        field(out, "done", &self.done);
        match &self.naive {
            Ok(Naive::Damage(told)) => field(out, "naive", told),
            Ok(Naive::Unharmed(told)) => field(out, "naive", &format!("not reproduced here: {told}")),
            Ok(Naive::NoSide(why)) => field(out, "naive", &format!("- ({why})")),
            Err(why) => field(out, "naive", &format!("not played: {why}")),
        }
        match &self.guarded {
            Ok(guarded) if guarded.got == self.expected => field(out, "guarded", &guarded.got),
            Ok(guarded) => {
                field(out, "expected", &self.expected);
                field(out, "got", &guarded.got);
            }
            Err(why) => field(out, "guarded", &format!("not played: {why}")),
        }
        match &self.guarded {
            Ok(guarded) if !guarded.detail.is_empty() => field(out, "", &guarded.detail),
            _ => {}
        }
    }
}

/// Says whether an incident was played.
#[derive(Clone, Debug)]
pub(super) enum Played {
    /// These steps were.
    Rows(Vec<Row>),
    /// It was not, and why.
    Skipped(String),
}

/// Is the account of one incident.
#[derive(Clone, Debug)]
pub(super) struct Account {
    /// Its name on the command line.
    pub(super) name: &'static str,
    /// What happened then.
    pub(super) title: &'static str,
    /// With which tools it was played.
    pub(super) tools: Vec<String>,
    /// Its steps.
    pub(super) played: Played,
}

/// Counts what the steps of a drill showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Steps whose guard held against a real damage.
    pub(crate) held: usize,
    /// Steps whose guard did not hold.
    pub(crate) failed: usize,
    /// Steps of which one side could not be shown.
    pub(crate) not_shown: usize,
    /// Incidents that were not played.
    pub(crate) skipped: usize,
}

/// Is the account of a drill.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// One account an incident.
    pub(super) accounts: Vec<Account>,
    /// Where its directory stays, if it was to be kept.
    pub(crate) kept: Option<PathBuf>,
    /// The exit status of a drill that a signal ended.
    pub(crate) interrupted: Option<u8>,
}

impl Report {
    /// Counts what was shown.
    pub(crate) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for account in &self.accounts {
            match &account.played {
                Played::Skipped(_) => tally.skipped += 1,
                Played::Rows(rows) => {
                    for row in rows {
                        match row.shown() {
                            Shown::Held => tally.held += 1,
                            Shown::Failed => tally.failed += 1,
                            Shown::Wanting(_) => tally.not_shown += 1,
                        }
                    }
                }
            }
        }
        tally
    }

    /// Names every step that did not hold, as `incident: step`; why is in the account.
    pub(crate) fn wanting(&self) -> Vec<String> {
        let mut names = Vec::new();
        for account in &self.accounts {
            match &account.played {
                Played::Skipped(_) => names.push(format!("{}: skipped", account.name)),
                Played::Rows(rows) => {
                    let wanting = rows.iter().filter(|row| row.shown() != Shown::Held);
                    names.extend(wanting.map(|row| format!("{}: {}", account.name, row.name)));
                }
            }
        }
        names
    }

    /// Gives the account for machines.
    ///
    /// # Shape
    /// `semel.drill/v1`, see `docs/drill.md`.
    pub(crate) fn json(&self, verdict: &str) -> Value {
        let tally = self.tally();
        let incidents: Vec<Value> = self.accounts.iter().map(Account::json).collect();
        json!({
            "schema": "semel.drill/v1", "verdict": verdict,
            "held": tally.held, "failed": tally.failed, "not_shown": tally.not_shown, "skipped": tally.skipped,
            "kept": self.kept.as_ref().map(|place| place.display().to_string()),
            "incidents": incidents,
        })
    }

    /// Gives the account for people; ends without a newline.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        for account in &self.accounts {
            account.text(&mut out);
            out.push('\n');
        }
        let tally = self.tally();
        let _told = write!(
            out,
            "{} guards held, {} failed, {} not shown; {} incidents skipped",
            tally.held, tally.failed, tally.not_shown, tally.skipped
        );
        if let Some(kept) = &self.kept {
            let _told = write!(out, "\nkept: {}", kept.display());
        }
        out
    }
}

impl Account {
    fn json(&self) -> Value {
        let (steps, why) = match &self.played {
            Played::Rows(rows) => (rows.iter().map(Row::json).collect(), None),
            Played::Skipped(why) => (Vec::new(), Some(why)),
        };
        let status = match why {
            Some(_) => "skipped",
            None if steps.iter().all(|s: &Value| s["status"] == "held") => "held",
            None => "failed",
        };
        json!({
            "incident": self.name, "title": self.title, "status": status, "reason": why, "tools": self.tools,
            "steps": steps,
        })
    }

    fn text(&self, out: &mut String) {
        line(out, &format!("{}: {}", self.name, self.title));
        for tool in &self.tools {
            line(out, &format!("  with {tool}"));
        }
        match &self.played {
            Played::Skipped(why) => line(out, &format!("  SKIPPED: {why}")),
            Played::Rows(rows) => {
                for (number, row) in rows.iter().enumerate() {
                    row.text(number + 1, out);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(naive: Told<Naive>, guarded: Told<&str>) -> Row {
        Row {
            name: "a step",
            done: "something".to_owned(),
            naive,
            expected: "3 dirty_volume".to_owned(),
            guarded: guarded.map(|got| Guarded::new(got, "")),
        }
    }

    fn damage() -> Told<Naive> {
        Ok(Naive::Damage("a file is gone".to_owned()))
    }

    #[test]
    fn a_step_holds_only_where_both_sides_were_shown() {
        assert_eq!(row(damage(), Ok("3 dirty_volume")).shown(), Shown::Held);
        assert_eq!(row(damage(), Ok("0 clean")).shown(), Shown::Failed);
        let unharmed = || Ok(Naive::Unharmed("the file is there".to_owned()));
        assert!(matches!(
            row(unharmed(), Ok("3 dirty_volume")).shown(),
            Shown::Wanting(_)
        ));
        assert_eq!(row(unharmed(), Ok("0 clean")).shown(), Shown::Failed);
        let no_tool = || Err("no tool".to_owned());
        assert!(matches!(
            row(no_tool(), Ok("3 dirty_volume")).shown(),
            Shown::Wanting(_)
        ));
        assert!(matches!(
            row(damage(), Err("no answer".to_owned())).shown(),
            Shown::Wanting(_)
        ));
    }

    #[test]
    fn text_and_json_say_the_same() {
        let report = Report {
            accounts: vec![
                Account {
                    name: "reused-volume",
                    title: "a title",
                    tools: vec!["a tool".to_owned()],
                    played: Played::Rows(vec![
                        row(damage(), Ok("3 dirty_volume")),
                        row(damage(), Ok("0 clean")),
                        row(
                            Ok(Naive::Unharmed("it is there".to_owned())),
                            Ok("3 dirty_volume"),
                        ),
                    ]),
                },
                Account {
                    name: "probe-replay",
                    title: "another",
                    tools: Vec::new(),
                    played: Played::Skipped("no python3".to_owned()),
                },
            ],
            kept: None,
            interrupted: None,
        };
        let tally = Tally {
            held: 1,
            failed: 1,
            not_shown: 1,
            skipped: 1,
        };
        assert_eq!(report.tally(), tally);
        assert_eq!(report.wanting().len(), 3);
        let text = report.text();
        for words in [
            "a step [held]",
            "[FAILED]",
            "not reproduced here: it is there",
            "SKIPPED: no python3",
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }
        let json = report.json("failed");
        assert_eq!(json["failed"], 1);
        let steps = json["incidents"][0]["steps"].as_array().unwrap();
        let status: Vec<_> = steps.iter().map(|s| s["status"].as_str().unwrap()).collect();
        assert_eq!(status, ["held", "failed", "not_shown"]);
        assert_eq!(json["incidents"][1]["status"], "skipped");
    }
}
