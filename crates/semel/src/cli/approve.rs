//! `semel approve`: decide a call that waits for a person.

use super::Context;
use super::answer::Answer;
use crate::wire::{Absent, Link};
use semel_core::Refusal;
use semel_core::ids::ApprovalId;
use serde_json::{Value, json};
use std::sync::Arc;

/// Decide a call that waits for a person (see semel approvals).
///
/// The call is not run by this: whoever sent it sends it again with its key, and it runs once. The first decision
/// stands.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The approval
    #[arg(value_name = "ID")]
    approval: ApprovalId,
    /// Deny it
    #[arg(long)]
    deny: bool,
    /// Why; recorded, and told to whoever sent the call if it is denied
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,
    /// Who decides; recorded
    #[arg(long, value_name = "NAME", default_value = "operator")]
    by: String,
}

/// Runs the command.
pub(crate) fn run(args: Args, context: &Context) -> Result<Answer, Refusal> {
    let link = Link::new(Arc::new(context.config()?), Absent::Start);
    let decision = if args.deny { "deny" } else { "approve" };
    let body = json!({"decision": decision, "by": args.by, "note": args.note});
    let path = format!("/v1/admin/approvals/{}", args.approval);
    let decided = link.admin("POST", &path, body.to_string().into_bytes())?;
    let word = |pointer: &str| {
        decided
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let path = Some(word("/path")).filter(|path| !path.is_empty()).unwrap_or(".");
    let mut text = format!(
        "{} {} {path}: {} by {}",
        args.approval,
        word("/tool"),
        word("/standing"),
        word("/decision/by"),
    );
    if !args.deny {
        text.push_str(&then(
            word("/execution_id"),
            word("/idempotency_key"),
            word("/standing"),
            word("/ends_at"),
        ));
    }
    Ok(Answer::new(text, decided))
}

/// Says what comes of the call that was approved.
fn then(execution: &str, key: &str, standing: &str, until: &str) -> String {
    match (execution, key, standing) {
        ("", _, "expired") => format!("; that ended {until}"),
        ("", "", _) => format!("; sent again until {until}, it is answered"),
        ("", ..) => format!("; sent again with its key until {until}, it runs once"),
        (execution, ..) => format!("; it has run already, as {execution}, and does not run again"),
    }
}
