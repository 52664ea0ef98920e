//! The cases as data: what was expected, what happened, how many effects there were, and the verdict.
//!
//! Text and JSON are made from here alone. It sends nothing, and prints nothing.

use super::speak::{Heard, Kind};
use crate::engine::trial::text::{field, line};
use semel_core::{Code, Refusal};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

/// Says what a case showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The effects and the answers are what they have to be.
    Right,
    /// No effect too many, and nobody was told of one that did not happen; but an answer is not what it has to be.
    Wrong,
    /// An effect happened that must not, or a success was told that was none.
    Unsafe,
    /// The case cannot be played against this target, and why.
    NotApplicable(String),
}

impl Verdict {
    const fn name(&self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::Wrong => "wrong",
            Self::Unsafe => "unsafe",
            Self::NotApplicable(_) => "not_applicable",
        }
    }
}

/// Says what an answer has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// A success that is no replay.
    Done,
    /// A success from the record.
    Replayed,
    /// Either: the caller cannot know which.
    Success,
    /// A refusal; a success would be a lie.
    Refused,
    /// A refusal; a success would mean nothing, for nothing was asked for.
    NothingAsked,
}

/// Is what is told of a case while it is played.
#[derive(Clone, Debug, Default)]
pub(super) struct Tale {
    told: Vec<String>,
    /// How many effects were seen.
    pub(super) effects: u32,
    /// How many there ought to be.
    pub(super) due: u32,
    wrong: Vec<String>,
    harm: Vec<String>,
}

impl Tale {
    /// Tells something.
    pub(super) fn tell(&mut self, what: impl Into<String>) {
        self.told.push(what.into());
    }

    /// Tells that an answer is not what it has to be.
    pub(super) fn wrong(&mut self, what: impl Into<String>) {
        add(&mut self.wrong, what.into());
    }

    /// Tells that something happened that must not.
    pub(super) fn harm(&mut self, what: impl Into<String>) {
        add(&mut self.harm, what.into());
    }

    /// Tells of an answer, and holds it against what it has to be.
    pub(super) fn hear(&mut self, what: &str, heard: &Heard, want: Want) {
        self.tell(format!("{what}: {}", heard.told));
        self.judge(what, heard, want);
    }

    /// Holds an answer against what it has to be, and tells of it only where it is not.
    pub(super) fn judge(&mut self, what: &str, heard: &Heard, want: Want) {
        let fits = match want {
            Want::Done => matches!(heard.kind, Kind::Done | Kind::Unmarked),
            Want::Replayed => matches!(heard.kind, Kind::Replayed | Kind::Unmarked),
            Want::Success => heard.success(),
            Want::Refused | Want::NothingAsked => heard.kind == Kind::Refused,
        };
        if fits {
            return;
        }
        let wanted = match want {
            Want::Done => "a first success",
            Want::Replayed => "a replay",
            Want::Success => "a success",
            Want::Refused | Want::NothingAsked => "a refusal",
        };
        let fault = format!("{what}: {} instead of {wanted}", heard.told);
        match want {
            Want::Refused if heard.success() => self.harm(fault),
            _ => self.wrong(fault),
        }
    }

    fn verdict(&self) -> Verdict {
        if self.effects > self.due || !self.harm.is_empty() {
            Verdict::Unsafe
        } else if self.effects < self.due || !self.wrong.is_empty() {
            Verdict::Wrong
        } else {
            Verdict::Right
        }
    }
}

/// Adds what was not told before.
fn add(faults: &mut Vec<String>, what: String) {
    if !faults.contains(&what) {
        faults.push(what);
    }
}

/// Is one case, played.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Its name.
    pub(super) name: &'static str,
    /// What has to happen.
    pub(super) expected: &'static str,
    /// What happened.
    pub(super) tale: Tale,
    /// What it showed.
    pub(super) verdict: Verdict,
}

impl Row {
    /// Makes the row of a case that was played, or broke off.
    pub(super) fn of(
        name: &'static str,
        expected: &'static str,
        tale: Tale,
        end: Result<(), String>,
    ) -> Self {
        let mut tale = tale;
        if let Err(why) = end {
            tale.wrong(format!("it could not be played to its end: {why}"));
        }
        let verdict = tale.verdict();
        Self {
            name,
            expected,
            tale,
            verdict,
        }
    }

    /// Makes the row of a case that cannot be played.
    pub(super) fn not_applicable(name: &'static str, expected: &'static str, why: String) -> Self {
        Self {
            name,
            expected,
            tale: Tale::default(),
            verdict: Verdict::NotApplicable(why),
        }
    }

    fn happened(&self) -> String {
        self.tale.told.join("; ")
    }

    fn faults(&self) -> Vec<&String> {
        self.tale.harm.iter().chain(&self.tale.wrong).collect()
    }

    fn counted(&self) -> String {
        match self.verdict {
            Verdict::NotApplicable(_) => "-".to_owned(),
            _ => format!("{} of {}", self.tale.effects, self.tale.due),
        }
    }

    fn json(&self) -> Value {
        let (why, effects, due) = match &self.verdict {
            Verdict::NotApplicable(why) => (Some(why), None, None),
            _ => (None, Some(self.tale.effects), Some(self.tale.due)),
        };
        json!({
            "case": self.name, "verdict": self.verdict.name(), "why": why, "expected": self.expected,
            "happened": self.happened(), "effects": effects, "effects_due": due, "faults": self.faults(),
        })
    }

    fn text(&self, number: usize, out: &mut String) {
        let verdict = match self.verdict {
            Verdict::Right => "right",
            Verdict::Wrong => "WRONG",
            Verdict::Unsafe => "UNSAFE",
            Verdict::NotApplicable(_) => "not applicable",
        };
        line(
            out,
            &format!("{number:>3}. {:<22} {:>8}   {verdict}", self.name, self.counted()),
        );
        if let Verdict::NotApplicable(why) = &self.verdict {
            field(out, "why", why);
            return;
        }
        field(out, "expected", self.expected);
        field(out, "happened", &self.happened());
        for fault in self.faults() {
            field(out, "fault", fault);
        }
    }
}

/// Counts the verdicts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Score {
    /// Cases that are right.
    pub(crate) right: usize,
    /// Cases whose answers are not what they have to be.
    pub(crate) wrong: usize,
    /// Cases with an effect or a success that must not be.
    pub(crate) harmful: usize,
    /// Cases that cannot be played against this target.
    pub(crate) not_applicable: usize,
}

/// Says whether cases that cannot be played count against the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skips {
    /// They do not.
    Allowed,
    /// They do: what was not shown is not known.
    Fail,
}

/// Is the account of a run.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// Which target, by its adapter.
    pub(super) name: String,
    /// Where it was.
    pub(super) host: String,
    /// Its cases.
    pub(super) rows: Vec<Row>,
    /// Where the directory of the run stays, if it was to be kept.
    pub(super) kept: Option<PathBuf>,
    /// The exit status of a run that a signal ended.
    pub(crate) interrupted: Option<u8>,
}

impl Report {
    /// Counts the verdicts.
    pub(crate) fn score(&self) -> Score {
        let mut score = Score::default();
        for row in &self.rows {
            match row.verdict {
                Verdict::Right => score.right += 1,
                Verdict::Wrong => score.wrong += 1,
                Verdict::Unsafe => score.harmful += 1,
                Verdict::NotApplicable(_) => score.not_applicable += 1,
            }
        }
        score
    }

    /// Refuses a score that is not full, naming every case that is not right.
    pub(crate) fn refusal(&self, skips: Skips) -> Option<Refusal> {
        let Score {
            right,
            wrong,
            harmful,
            not_applicable,
        } = self.score();
        let counted = |row: &&Row| match row.verdict {
            Verdict::Right => false,
            Verdict::Wrong | Verdict::Unsafe => true,
            Verdict::NotApplicable(_) => skips == Skips::Fail,
        };
        let wanting: Vec<String> = self
            .rows
            .iter()
            .filter(counted)
            .map(|row| format!("{} {}", row.name, row.verdict.name()))
            .collect();
        if wanting.is_empty() && right > 0 {
            return None;
        }
        let why = format!(
            "{} scores {right} right, {wrong} wrong, {harmful} unsafe, {not_applicable} not applicable",
            self.name
        );
        Some(
            Refusal::new(Code::DrillFailed, why)
                .reason("conformance")
                .names(wanting),
        )
    }

    /// Gives the account for machines.
    ///
    /// # Shape
    /// `semel.conformance/v1`, see `docs/conformance.md`.
    pub(crate) fn json(&self, skips: Skips) -> Value {
        let score = self.score();
        let verdict = match self.refusal(skips) {
            None => "full",
            Some(_) => "not_full",
        };
        json!({
            "schema": "semel.conformance/v1", "verdict": verdict, "target": self.name, "address": self.host,
            "right": score.right, "wrong": score.wrong, "unsafe": score.harmful,
            "not_applicable": score.not_applicable,
            "kept": self.kept.as_ref().map(|place| place.display().to_string()),
            "cases": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }

    /// Gives the account for people; ends without a newline.
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        line(&mut out, &format!("{} at {}", self.name, self.host));
        line(
            &mut out,
            &format!("     {:<22} {:>8}   verdict", "case", "effects"),
        );
        for (number, row) in self.rows.iter().enumerate() {
            row.text(number + 1, &mut out);
        }
        let score = self.score();
        let _told = write!(
            out,
            "\n{} cases: {} right, {} wrong, {} unsafe, {} not applicable",
            self.rows.len(),
            score.right,
            score.wrong,
            score.harmful,
            score.not_applicable
        );
        if let Some(kept) = &self.kept {
            let _told = write!(out, "\nkept: {}", kept.display());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(kind: Kind) -> Heard {
        Heard::new(kind, "an answer")
    }

    fn row(name: &'static str, build: impl FnOnce(&mut Tale)) -> Row {
        let mut tale = Tale::default();
        build(&mut tale);
        Row::of(name, "expected", tale, Ok(()))
    }

    #[test]
    fn verdicts_follow_from_effects_and_answers() {
        let good = row("good", |tale| {
            (tale.effects, tale.due) = (1, 1);
            tale.hear("first", &heard(Kind::Done), Want::Done);
            tale.hear("again", &heard(Kind::Replayed), Want::Replayed);
            tale.hear("other", &heard(Kind::Refused), Want::Refused);
        });
        assert_eq!(good.verdict, Verdict::Right, "{good:?}");
        let twice = row("twice", |tale| (tale.effects, tale.due) = (2, 1));
        assert_eq!(twice.verdict, Verdict::Unsafe);
        let none = row("none", |tale| (tale.effects, tale.due) = (0, 1));
        assert_eq!(none.verdict, Verdict::Wrong);
        for (kind, want, verdict) in [
            (Kind::Replayed, Want::Done, Verdict::Wrong),
            (Kind::Done, Want::Replayed, Verdict::Wrong),
            (Kind::Refused, Want::Success, Verdict::Wrong),
            (Kind::Unclear, Want::Success, Verdict::Wrong),
            (Kind::Unclear, Want::Refused, Verdict::Wrong),
            (Kind::Replayed, Want::Refused, Verdict::Unsafe),
            (Kind::Unmarked, Want::Refused, Verdict::Unsafe),
            (Kind::Unmarked, Want::NothingAsked, Verdict::Wrong),
            (Kind::Unmarked, Want::Replayed, Verdict::Right),
        ] {
            let row = row("one", |tale| tale.judge("it", &heard(kind), want));
            assert_eq!(row.verdict, verdict, "{kind:?} for {want:?}");
        }
        let broken = Row::of("broken", "expected", Tale::default(), Err("no answer".to_owned()));
        assert_eq!(broken.verdict, Verdict::Wrong);
    }

    #[test]
    fn only_a_full_score_is_none() {
        let report = |rows| Report {
            name: "t".to_owned(),
            host: "h:1".to_owned(),
            rows,
            kept: None,
            interrupted: None,
        };
        let good = || row("good", |_| ());
        let bad = || row("bad", |tale| tale.harm("it deleted twice"));
        let skipped = || Row::not_applicable("skipped", "expected", "no start".to_owned());
        assert_eq!(report(vec![good()]).refusal(Skips::Fail), None);
        assert_eq!(report(vec![good(), skipped()]).refusal(Skips::Allowed), None);
        // Nothing at all is no full score.
        assert!(report(vec![skipped()]).refusal(Skips::Allowed).is_some());
        assert!(report(Vec::new()).refusal(Skips::Allowed).is_some());
        let refusal = report(vec![good(), bad(), skipped()])
            .refusal(Skips::Fail)
            .unwrap();
        assert_eq!(refusal.code, Code::DrillFailed);
        assert_eq!(refusal.names, ["bad unsafe", "skipped not_applicable"]);
        let report = report(vec![good(), bad(), skipped()]);
        let json = report.json(Skips::Fail);
        assert_eq!(
            (&json["verdict"], &json["unsafe"]),
            (&json!("not_full"), &json!(1))
        );
        assert_eq!(json["cases"][1]["faults"][0], "it deleted twice");
        assert!(report.text().contains("UNSAFE") && report.text().contains("it deleted twice"));
    }
}
