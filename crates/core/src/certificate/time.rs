//! RFC 3339 in the one spelling that `UnixMs` prints; any other spelling is refused.

use crate::ids::UnixMs;
use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

pub(super) fn serialize<S: Serializer>(at: &UnixMs, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(at)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<UnixMs, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).ok_or_else(|| D::Error::custom("a time is RFC 3339 in UTC with milliseconds"))
}

fn parse(text: &str) -> Option<UnixMs> {
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = text.get(from..to)?;
        digits
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| digits.parse().ok())?
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let seconds = days(year, month, day)? * 86_400 + hour * 3600 + minute * 60 + second;
    let at = UnixMs(seconds * 1000 + number(20, 23)?);
    // Printing again refuses every other spelling, and days and hours that do not exist.
    (at.to_string() == text).then_some(at)
}

/// Turns a civil date into days since the epoch; `None` before it.
///
/// # Source
/// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if year < 1970 || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let y = if month <= 2 { year - 1 } else { year };
    let (era, yoe) = (y / 400, y % 400);
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let doy = (153 * shifted + 2) / 5 + day - 1;
    let doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    (era * 146_097 + doe).checked_sub(719_468)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_what_exists_is_read() {
        assert_eq!(parse("1970-01-01T00:00:00.000Z"), Some(UnixMs(0)));
        assert_eq!(parse("2000-02-29T00:00:00.000Z"), Some(UnixMs(951_782_400_000)));
        for text in [
            "",
            "1969-12-31T23:59:59.999Z",
            "2001-02-29T00:00:00.000Z",
            "2000-13-01T00:00:00.000Z",
            "2000-00-01T00:00:00.000Z",
            "2000-01-00T00:00:00.000Z",
            "2000-01-01T24:00:00.000Z",
            "2000-01-01T00:60:00.000Z",
            "2000-01-01T00:00:60.000Z",
            "2000-01-01t00:00:00.000z",
            "2000-01-01T00:00:00Z",
            "2000-01-01T00:00:00.000+00:00",
            "2000-01-01T00:00:00.000Z ",
            "+200-01-01T00:00:00.000Z",
            "2000-01-01T00:00:00.00äZ",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read(ms in 0_u64..253_402_300_800_000) {
            prop_assert_eq!(parse(&UnixMs(ms).to_string()), Some(UnixMs(ms)));
        }
    }
}
