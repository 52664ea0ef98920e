//! The verdict as a table for a pull request. What a certificate or a path says can neither format nor link.

use super::{ConsumptionState, Verdict};
use crate::path::shown;

/// The longest text of a cell, in characters.
const CELL: usize = 160;

impl Verdict {
    /// Writes the verdict as a small Markdown table.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let held = self.checks.iter().filter(|check| check.ok).count();
        let mut text = format!(
            "**semel gate: {}** ({held} of {} checks held)\n\n",
            if self.pass { "pass" } else { "refused" },
            self.checks.len(),
        );
        text.push_str(&format!(
            "commit {}, tree {}\n\n",
            code(&self.commit.to_string()),
            code(&self.tree.to_string())
        ));
        text.push_str("| | check | expected | actual | why |\n|---|---|---|---|---|\n");
        for check in &self.checks {
            text.push_str(&format!(
                "| {} | {} | {} | {} | {} |\n",
                if check.ok { "✓" } else { "✗" },
                code(&check.label()),
                code(&check.expected),
                code(&check.actual),
                check.why.as_deref().map(code).unwrap_or_default(),
            ));
        }
        if self.consumption == ConsumptionState::NotChecked {
            text.push_str("\nconsumption: not_checked\n");
        }
        text.push_str("\nA pass says that this tree was tested. It is not an approval: a tree can lie about its own tests.\n");
        text
    }
}

/// Makes a code span that its content cannot leave.
fn code(content: &str) -> String {
    let mut content: String = shown(content.as_bytes());
    if content.chars().count() > CELL {
        content = content.chars().take(CELL).chain(['…']).collect();
    }
    if content.is_empty() {
        return String::new();
    }
    let longest = content.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    // A cell ends at a bare | even inside of a code span.
    let content = content.replace('|', "\\|");
    if longest > 0 {
        format!("{fence} {content} {fence}")
    } else {
        format!("{fence}{content}{fence}")
    }
}
