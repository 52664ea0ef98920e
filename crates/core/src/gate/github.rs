//! The verdict as GitHub Actions shows it: annotations, and outputs of the step.
//!
//! What a certificate or a path says can begin no command of its own, and end none. It writes no file: where the summary
//! and the outputs go is the caller's.

use super::{Check, ConsumptionState, Verdict};
use crate::path::shown;

/// The longest text of an annotation, in characters.
const LONGEST: usize = 1000;

impl Verdict {
    /// Writes one annotation a line: an error for each check that failed, or one notice for a pass, and a warning for a
    /// check that held with a limit.
    ///
    /// # Source
    /// GitHub Actions, "Workflow commands": `%`, line ends, and in properties `:` and `,` are escaped.
    #[must_use]
    pub fn to_annotations(&self) -> String {
        let mut text = String::new();
        if self.pass {
            let message = format!(
                "the certificate covers tree {} of commit {}",
                self.tree, self.commit
            );
            text.push_str(&annotation("notice", "semel gate: pass", &message));
        }
        for check in &self.checks {
            let title = format!("semel gate: {}", check.label());
            match (check.ok, &check.why) {
                (false, _) => text.push_str(&annotation("error", &title, &said(check))),
                (true, Some(_)) if self.pass => text.push_str(&annotation("warning", &title, &said(check))),
                (true, _) => {}
            }
        }
        text
    }

    /// Writes the outputs of the step, one `name=value` a line.
    #[must_use]
    pub fn to_outputs(&self) -> String {
        let consumption = match self.consumption {
            ConsumptionState::NotChecked => "not_checked",
            ConsumptionState::First => "first",
            ConsumptionState::Same => "same",
            ConsumptionState::Refused => "refused",
        };
        let generation = self.generation.as_ref().map_or("", |g| g.as_str());
        format!(
            "pass={}\ntree={}\ncommit={}\ncertificate={}\ngeneration={}\nconsumption={consumption}\n",
            self.pass,
            self.tree,
            self.commit,
            self.certificate,
            shown(generation.as_bytes()),
        )
    }
}

fn said(check: &Check) -> String {
    let why = check.why.as_deref().map(|why| format!(" ({why})"));
    format!(
        "expected {}, got {}{}",
        check.expected,
        check.actual,
        why.unwrap_or_default()
    )
}

fn annotation(kind: &str, title: &str, message: &str) -> String {
    let short = |text: &str| shown(text.as_bytes()).chars().take(LONGEST).collect::<String>();
    let data = |text: &str| {
        // The runner also reads the old form of a command, wherever in a line it stands.
        let text = text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
        text.replace("##[", "# #[")
    };
    let title = data(&short(title)).replace(':', "%3A").replace(',', "%2C");
    format!("::{kind} title={title}::{}\n", data(&short(message)))
}
