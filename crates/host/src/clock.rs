//! The one place that reads clocks and asks the kernel for randomness.

use crate::error::{Error, Result};
use semel_core::ids::{Seed, UnixMs};

/// Reads the wall clock.
#[must_use]
pub fn now() -> UnixMs {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Reads the wall clock to the nanosecond.
pub(crate) fn wall_ns() -> i64 {
    nanos(rustix::time::ClockId::Realtime)
}

/// Reads the clock by which files are stamped: the wall clock, as it was at the last tick.
pub(crate) fn stamp_ns() -> i64 {
    nanos(rustix::time::ClockId::RealtimeCoarse)
}

fn nanos(clock: rustix::time::ClockId) -> i64 {
    let time = rustix::time::clock_gettime(clock);
    stamp(time.tv_sec, time.tv_nsec)
}

/// Gives a stamp of a file in nanoseconds.
pub(crate) fn stamp(seconds: i64, nanos: i64) -> i64 {
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Reads the clock that nobody sets, and that runs while the machine sleeps.
#[must_use]
pub fn since_boot_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    let seconds = seconds.unwrap_or_default().saturating_mul(1_000_000_000);
    seconds.saturating_add(nanos.unwrap_or_default())
}

/// Fills a buffer from the kernel's generator.
///
/// # Errors
/// `io_failed` where the kernel gives none.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0_u8; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::io("read randomness", "getrandom", std::io::Error::other(e)))?;
    Ok(bytes)
}

/// Gives what a new id is made from.
///
/// # Errors
/// `io_failed` where the kernel gives no randomness.
pub fn seed() -> Result<Seed> {
    Ok(Seed {
        unix_ms: now().0,
        random: random()?,
    })
}

/// Reads the id of this boot of the machine.
///
/// # Errors
/// `io_failed` where `/proc` is not mounted.
pub fn boot_id() -> Result<String> {
    const PLACE: &str = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(PLACE).map_err(|e| Error::io("read", PLACE, e))?;
    Ok(text.trim().to_owned())
}
