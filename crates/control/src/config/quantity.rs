//! Amounts with units: `"10 GiB"`, `"1h30m"`.
//!
//! Not humantime and bytesize: they accept more than a limit should (`10g`, `1.5 GB` through floating point,
//! months), and what they refuse would have to be examined again for a message that lists the units.

use super::value::{Parsed, number, string};
use super::walk::Problem;
use toml::de::DeValue;

/// Units of size, in bytes.
const SIZES: [(&str, u64); 13] = [
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("PB", 1_000_000_000_000_000),
    ("KiB", 1 << 10),
    ("kiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
];

/// Units of time, in seconds.
const TIMES: [(&str, u64); 5] = [("s", 1), ("m", 60), ("h", 3_600), ("d", 86_400), ("w", 604_800)];

/// Bytes: an integer, or a number with a unit. At least 1.
pub(super) fn bytes(value: &DeValue<'_>) -> Parsed<u64> {
    amount(value, &SIZES, "a number of bytes, or a size such as \"10 GiB\"")
}

/// Seconds: an integer, or numbers with units. At least 1.
pub(super) fn seconds(value: &DeValue<'_>) -> Parsed<u64> {
    amount(value, &TIMES, "a number of seconds, or a time such as \"8h\"")
}

/// Packets: an integer of at least 1.
pub(super) fn packets(value: &DeValue<'_>) -> Parsed<u64> {
    number(1, u64::MAX)(value)
}

fn amount(value: &DeValue<'_>, units: &[(&str, u64)], expected: &str) -> Parsed<u64> {
    let problem = || Problem::expected(expected);
    if value.is_integer() {
        return number(1, u64::MAX)(value).map_err(|_| problem().help("at least 1"));
    }
    let mut rest = string(value, expected)?.trim();
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (part, after) = leading(rest, units).ok_or_else(|| {
            let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
            problem().help(format!("units are {}", names.join(", ")))
        })?;
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(|| problem().help("too large"))?;
        rest = after;
    }
    if total == 0 { Err(problem().help("at least 1")) } else { Ok(total) }
}

/// The number and unit at the start of `text` (the inner `None` is an overflow), and the rest.
fn leading<'t>(text: &'t str, units: &[(&str, u64)]) -> Option<(Option<u64>, &'t str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, rest) = text.split_at(digits);
    if number.is_empty() {
        return None;
    }
    let rest = rest.trim_start();
    let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(end);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    let amount = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*factor));
    Some((amount, rest.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> DeValue<'static> {
        DeValue::String(text.to_owned().into())
    }

    #[test]
    fn sizes_and_times_have_the_usual_units() {
        assert_eq!(bytes(&text("10 GiB")).unwrap(), 10 << 30);
        assert_eq!(bytes(&text("1kB")).unwrap(), 1000);
        assert_eq!(seconds(&text("8h")).unwrap(), 28_800);
        assert_eq!(seconds(&text("1h30m")).unwrap(), 5_400);
    }

    #[test]
    fn amounts_that_overflow_or_have_no_unit_are_refused() {
        for wrong in
            ["", "10", "GiB", "10 parsecs", "99999999999 PiB", "-1h", "0s", "1h 18446744073709551615s"]
        {
            assert!(bytes(&text(wrong)).is_err(), "{wrong}");
            assert!(seconds(&text(wrong)).is_err(), "{wrong}");
        }
    }
}
