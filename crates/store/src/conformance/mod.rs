//! What every journal must do, as laws that any implementation can be held against.
//!
//! Each law gets a fresh journal, and after each the journal must verify. It does *not* know SQL or files; what only
//! one implementation can be asked stands in that one's tests.

mod approvals;
mod calls;
mod log;
mod retention;
pub mod sample;
mod volumes;
mod work;

use crate::error::{Error, Result};
use crate::journal::{Journal, Transport, Verb};
use semel_core::Code;
use std::sync::Arc;

/// Is what came of a law: kept, or how it was broken.
pub type Kept = std::result::Result<(), String>;

/// Is one law.
#[derive(Clone, Copy, Debug)]
pub struct Law {
    /// What it says.
    pub name: &'static str,
    /// Holds a fresh journal against it.
    pub hold: fn(&dyn Journal) -> Kept,
}

macro_rules! laws {
    ($($module:ident::$law:ident),* $(,)?) => {
        /// Lists every law.
        pub const LAWS: &[Law] = &[$(Law { name: stringify!($law), hold: $module::$law }),*];
    };
}

laws! {
    calls::a_key_begins_once,
    calls::sixty_four_threads_begin_one_key_once,
    calls::a_known_key_shows_its_first_call,
    calls::a_receipt_is_given_once,
    calls::what_is_taken_back_is_said_first,
    calls::an_unknown_outcome_stays,
    calls::a_person_settles_what_is_unknown,
    calls::the_last_unknown_outcome_lifts_its_mark,
    calls::a_freed_key_begins_again,
    calls::an_execution_id_is_used_once,
    calls::an_intent_belongs_to_its_volume,
    calls::a_bad_verb_rolls_back_no_stranger,
    calls::a_caller_sees_its_own_writes,
    calls::open_calls_come_in_order,
    calls::commits_outside_of_a_generation_are_counted,
    calls::the_log_finds_a_call_and_what_it_met,
    calls::the_log_gives_the_newest_in_order,
    log::each_call_is_shown_once,
    log::the_log_is_read_in_windows,
    log::a_head_is_what_is_verified,
    volumes::attempts_count_from_one_and_fences_grow,
    volumes::a_job_has_one_open_volume_of_a_role,
    volumes::a_generation_is_never_used_twice,
    volumes::a_token_is_given_out_once,
    volumes::a_token_stays_as_a_tombstone,
    volumes::a_token_gives_out_only_narrower_ones,
    volumes::keys_of_two_tokens_are_apart_and_end_together,
    volumes::an_older_fence_is_refused,
    volumes::an_ended_generation_begins_nothing,
    volumes::a_clean_end_needs_every_outcome,
    volumes::an_end_is_answered_again,
    volumes::an_open_volume_is_not_destroyed,
    volumes::two_jobs_do_not_mix,
    retention::only_what_nothing_needs_is_evicted,
    retention::an_ended_generation_evicts_nothing,
    retention::receipts_expire_with_their_volume,
    approvals::a_call_is_asked_about_once,
    approvals::the_first_decision_stands,
    approvals::sixteen_people_decide_once,
    approvals::a_decision_comes_in_time,
    approvals::a_call_that_reads_is_asked_about_again,
    approvals::an_approval_ends_with_its_generation,
    approvals::only_so_many_questions_wait,
    work::a_generation_has_one_verdict,
    work::a_certificate_is_used_for_one_merge,
    work::stages_come_in_order,
    work::a_job_has_one_run_at_a_time,
    work::a_job_has_one_prepared_tree,
    work::every_record_can_be_read_again,
}

/// Holds an implementation against every law; gives the broken ones.
pub fn suite(make: &dyn Fn() -> Result<Box<dyn Journal>>) -> Vec<(&'static str, String)> {
    let mut broken = Vec::new();
    for law in LAWS {
        let kept = make()
            .map_err(|e| format!("no journal: {e}"))
            .and_then(|journal| {
                (law.hold)(journal.as_ref())?;
                verified(journal.as_ref())
            });
        if let Err(how) = kept {
            broken.push((law.name, how));
        }
    }
    broken
}

/// Holds the journal's state against its own entries.
///
/// # Errors
/// The faults, in words.
pub fn verified(journal: &dyn Journal) -> Kept {
    let report = done("verify", journal.verify())?;
    let status = done("status", journal.status())?;
    if report.faults.is_empty() && report.entries == status.entries {
        Ok(())
    } else {
        Err(format!(
            "{} entries of {} verified, with the faults {:?}",
            report.entries, status.entries, report.faults
        ))
    }
}

/// Sends every verb through JSON to a journal in the same process.
pub struct Loop(pub Arc<dyn Journal>);

impl Transport for Loop {
    fn ask(&self, verb: &Verb) -> Result<serde_json::Value> {
        let lost = |e: serde_json::Error| {
            Error::Refused(semel_core::Refusal::new(
                Code::Internal,
                format!("lost on the wire: {e}"),
            ))
        };
        let sent = serde_json::to_vec(verb).map_err(lost)?;
        let answer = serde_json::from_slice::<Verb>(&sent)
            .map_err(lost)?
            .serve(self.0.as_ref())?;
        serde_json::from_slice(&serde_json::to_vec(&answer).map_err(lost)?).map_err(lost)
    }
}

/// Takes an answer that must have come.
fn done<T>(what: &str, answer: Result<T>) -> std::result::Result<T, String> {
    answer.map_err(|e| format!("{what}: {e}"))
}

/// Takes a refusal that must have come.
fn refused<T: std::fmt::Debug>(what: &str, answer: Result<T>, code: Code, reason: Option<&str>) -> Kept {
    match answer {
        Ok(answer) => Err(format!("{what}: answered {answer:?}, not {code}")),
        Err(e) => {
            let refusal = e.into_refusal();
            if refusal.code == code && refusal.reason.as_deref() == reason {
                Ok(())
            } else {
                Err(format!("{what}: refused with {refusal:?}, not {code} {reason:?}"))
            }
        }
    }
}

/// Holds a value against the one that it must be.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, is: &T, must: &T) -> Kept {
    if is == must {
        Ok(())
    } else {
        Err(format!("{what}: is {is:?}, must be {must:?}"))
    }
}
