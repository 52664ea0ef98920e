//! The time that a report states for itself.
//!
//! Only to find a report that is older than the run that it is shown for: how fresh a file is, its file says.

use crate::ids::UnixMs;

const MINUTE_MS: i64 = 60_000;
/// How far a clock may be off.
const SKEW_MS: i64 = 5 * MINUTE_MS;
/// How far a time without an offset may be off: the zones reach from 12 hours behind to 14 hours ahead.
const UNZONED_MS: i64 = 26 * 60 * MINUTE_MS;

/// Is a time, with how far it may be off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    ms: i64,
    slack_ms: i64,
}

impl Stamp {
    /// Reads a time of ISO 8601, such as `2026-11-30T12:25:48.822+00:00`, with or without fraction and offset.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (date, time) = text.trim().split_once(['T', ' '])?;
        let mut parts = date.split('-').map(|part| part.parse::<u64>().ok());
        let days = days(parts.next()??, parts.next()??, parts.next()??)?;
        if parts.next().is_some() {
            return None;
        }
        let (clock, offset) = match time.find(['Z', 'z', '+', '-']) {
            Some(at) => (&time[..at], Some(offset(&time[at..])?)),
            None => (time, None),
        };
        let whole = clock.split(['.', ',']).next()?;
        let mut parts = whole.split(':').map(|part| part.parse::<i64>().ok());
        let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
        let fits = (0..24).contains(&hour) && (0..60).contains(&minute) && (0..=60).contains(&second);
        if parts.next().is_some() || !fits {
            return None;
        }
        let local = i64::try_from(days).ok()?.checked_mul(86_400_000)?
            + hour * 60 * MINUTE_MS
            + minute * MINUTE_MS
            + second * 1000;
        Some(Self {
            ms: local - offset.unwrap_or(0),
            slack_ms: if offset.is_some() { SKEW_MS } else { UNZONED_MS },
        })
    }

    fn latest(self) -> i64 {
        self.ms.saturating_add(self.slack_ms)
    }

    /// Gives the one that is surely older.
    #[must_use]
    pub fn earlier(self, other: Self) -> Self {
        if other.latest() < self.latest() {
            other
        } else {
            self
        }
    }

    /// Says whether it is surely before another time.
    #[must_use]
    pub fn is_before(self, began: UnixMs) -> bool {
        i64::try_from(began.0).is_ok_and(|began| self.latest() < began)
    }

    /// Gives the time as it was stated.
    #[must_use]
    pub fn at(self) -> UnixMs {
        UnixMs(u64::try_from(self.ms).unwrap_or(0))
    }
}

fn offset(text: &str) -> Option<i64> {
    if matches!(text, "Z" | "z") {
        return Some(0);
    }
    let (sign, rest) = match text.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let digits: String = rest.chars().filter(|c| *c != ':').collect();
    let (hours, minutes) = digits.split_at_checked(2)?;
    let minutes = if minutes.is_empty() { "0" } else { minutes };
    let (hours, minutes) = (hours.parse::<i64>().ok()?, minutes.parse::<i64>().ok()?);
    ((0..=18).contains(&hours) && (0..60).contains(&minutes))
        .then_some(sign * (hours * 60 + minutes) * MINUTE_MS)
}

fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    const LENGTHS: [u64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) {
        return None;
    }
    let before = LENGTHS.iter().take(usize::try_from(month - 1).ok()?).sum::<u64>();
    let length = LENGTHS[usize::try_from(month - 1).ok()?] + u64::from(month == 2 && leap(year));
    if !(1..=length).contains(&day) {
        return None;
    }
    let leaps = (1970..year).filter(|year| leap(*year)).count() as u64;
    Some((year - 1970) * 365 + leaps + before + u64::from(month > 2 && leap(year)) + day - 1)
}
