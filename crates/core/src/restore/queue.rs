//! The line of our own waiters: who takes a free lock next. It knows no file and no clock.
//!
//! Each waiter decides by itself, from the waiters that it sees and that live. The oldest is first; whoever leaves a free
//! lock for longer than the patience of another is passed over by that one, for as long as it waits.

use core::time::Duration;
use std::collections::BTreeSet;

/// Says since when one of ours waits. Two are never equal: the nonce decides what the clock does not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// When it came, in nanoseconds since the boot of the machine.
    pub arrived_ns: u64,
    /// What names it.
    pub nonce: String,
}

/// Says who was seen waiting for a lock that is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The one that looks.
    pub own: Ticket,
    /// The others, all alive, in any order.
    pub others: Vec<Ticket>,
}

/// Says whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is ours.
    Ours,
    /// Another's, until this moment.
    Theirs(Duration),
}

/// Remembers whose turn it is since when, and who let its turn pass.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    patience: Duration,
    turn: Option<(Ticket, Duration)>,
    passed: BTreeSet<Ticket>,
}

impl Queue {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience,
            turn: None,
            passed: BTreeSet::new(),
        }
    }

    /// Decides whose turn a free lock is.
    pub(super) fn free(&mut self, now: Duration, line: &Line) -> Turn {
        self.passed.retain(|ticket| line.others.contains(ticket));
        loop {
            let older = line.others.iter().filter(|ticket| **ticket < line.own);
            let Some(first) = older.filter(|ticket| !self.passed.contains(*ticket)).min() else {
                self.turn = None;
                return Turn::Ours;
            };
            let since = match &self.turn {
                Some((whose, since)) if whose == first => *since,
                _ => now,
            };
            self.turn = Some((first.clone(), since));
            let until = since + self.patience;
            if now < until {
                return Turn::Theirs(until);
            }
            self.passed.insert(first.clone());
        }
    }

    /// Hears that the lock is held: whoever has it, nobody's turn runs meanwhile.
    pub(super) fn held(&mut self) {
        self.turn = None;
    }
}
