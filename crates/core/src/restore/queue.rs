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

/// Remembers whose turn it is and for how long it was, and who let its turn pass.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    patience: Duration,
    turn: Option<Running>,
    passed: BTreeSet<Ticket>,
}

/// A turn. It runs while the lock is free, and goes on where it stopped: whoever stands still costs us one patience in all,
/// not one at every release.
#[derive(Clone, Debug)]
struct Running {
    whose: Ticket,
    spent: Duration,
    since: Option<Duration>,
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
            let turn = match self.turn.take() {
                Some(turn) if turn.whose == *first => turn,
                _ => Running {
                    whose: first.clone(),
                    spent: Duration::ZERO,
                    since: None,
                },
            };
            let since = turn.since.unwrap_or(now);
            let until = since + self.patience.saturating_sub(turn.spent);
            self.turn = Some(Running {
                since: Some(since),
                ..turn
            });
            if now < until {
                return Turn::Theirs(until);
            }
            self.passed.insert(first.clone());
        }
    }

    /// Says whether nobody is before us. Whoever is first stays first: who comes later is younger.
    pub(super) fn first(&self, line: &Line) -> bool {
        let mut older = line.others.iter().filter(|ticket| **ticket < line.own);
        older.all(|ticket| self.passed.contains(ticket))
    }

    /// Hears that the lock is held: whoever has it, nobody's turn runs meanwhile.
    pub(super) fn held(&mut self, now: Duration) {
        if let Some(turn) = &mut self.turn
            && let Some(since) = turn.since.take()
        {
            turn.spent += now.saturating_sub(since);
        }
    }
}
