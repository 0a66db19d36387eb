//! Keeps keys that were written in the wrong place out of error messages.
//!
//! A message quotes the line that it is about, and an operator may have pasted a key there: as the value of `key`, or in
//! place of a file's name. Both are masked wherever they stand, also in text that is not valid TOML.

use std::net::Ipv6Addr;
use std::ops::Range;

/// Hex digits in a row that are taken for a key: 12 bytes, shorter than any suite's.
const MIN_HEX_DIGITS: usize = 24;

/// Names whose values are secret.
const SECRET_NAMES: [&str; 6] = ["key", "keys", "psk", "secret", "password", "salt"];

/// The byte ranges of `text` that nobody may see, in order, not overlapping.
pub(super) fn secret_ranges(text: &str) -> Vec<Range<usize>> {
    let mut ranges = hex_runs(text);
    ranges.extend(assignments(text));
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// `text` with its secrets masked.
pub(super) fn masked(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut at = 0;
    for range in secret_ranges(text) {
        shown.push_str(text.get(at..range.start).unwrap_or_default());
        shown.extend(text.get(range.clone()).unwrap_or_default().chars().map(|_| '*'));
        at = range.end;
    }
    shown.push_str(text.get(at..).unwrap_or_default());
    shown
}

/// Runs of hex digits, with the separators that people put between them.
fn hex_runs(text: &str) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut start = None;
    for (index, byte) in text.bytes().chain([b'\n']).enumerate() {
        let inside =
            byte.is_ascii_hexdigit() || (start.is_some() && matches!(byte, b':' | b'-' | b'_' | b' '));
        match start {
            None if inside => start = Some(index),
            Some(first) if !inside => {
                runs.extend(text.get(first..index).filter(|run| looks_like_key(run)).map(|_| first..index));
                start = None;
            }
            _ => {}
        }
    }
    runs
}

fn looks_like_key(run: &str) -> bool {
    let digits = run.bytes().filter(u8::is_ascii_hexdigit).count();
    digits >= MIN_HEX_DIGITS && run.trim().parse::<Ipv6Addr>().is_err()
}

/// The values of `key = …` and its like.
fn assignments(text: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut from = 0;
    while let Some(found) = text.get(from..).and_then(|rest| rest.find('=')) {
        let equals = from + found;
        from = equals + 1;
        if SECRET_NAMES.contains(&name_before(text, equals)) {
            let start = skip_blank(text, from);
            from = value_end(text, start);
            ranges.push(start..from);
        }
    }
    ranges
}

/// The bare or quoted word in front of `offset`.
fn name_before(text: &str, offset: usize) -> &str {
    let before = text[..offset].trim_end_matches([' ', '\t', '"', '\'']);
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-');
    before.rsplit(word).next().unwrap_or_default()
}

fn skip_blank(text: &str, from: usize) -> usize {
    let rest = &text[from..];
    from + (rest.len() - rest.trim_start_matches([' ', '\t']).len())
}

/// Where the value that starts at `start` ends, generously where it is not well formed.
fn value_end(text: &str, start: usize) -> usize {
    let rest = &text[start..];
    let line = rest.find('\n').unwrap_or(rest.len());
    let length = match rest.as_bytes() {
        [b'"', b'"', b'"', ..] => closing(rest, 3, "\"\"\"", rest.len()),
        [b'\'', b'\'', b'\'', ..] => closing(rest, 3, "'''", rest.len()),
        [b'[', ..] => closing(rest, 1, "]", rest.len()),
        [b'\'', ..] => closing(rest, 1, "'", line),
        // A quote may be escaped: up to the last one before the value can end, which errs towards hiding.
        [b'"', ..] => quoted(rest, line),
        _ => rest.find([',', '}', '\n']).unwrap_or(rest.len()),
    };
    start + length
}

fn closing(rest: &str, skip: usize, mark: &str, otherwise: usize) -> usize {
    rest.get(skip..).and_then(|inner| inner.find(mark)).map_or(otherwise, |at| skip + at + mark.len())
}

fn quoted(rest: &str, line: usize) -> usize {
    let mut escaped = false;
    for (index, byte) in rest.bytes().enumerate().take(line).skip(1) {
        match byte {
            b'"' if !escaped => return index + 1,
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hex_key_is_masked_wherever_it_stands() {
        let line = r#"key_file = "4c80cdefbb5d10da906ac73c3613a6342e443b68" # oops"#;
        assert!(!masked(line).contains("4c80"));
        assert!(masked(line).contains("# oops"));
        assert!(!masked("x = 4c:80:cd:ef:bb:5d:10:da:90:6a:c7:3c:36:13:a6:34").contains("cd:ef"));
    }

    #[test]
    fn the_value_of_key_is_masked_in_every_way_of_writing_it() {
        for line in [
            r#"key = "hunter2""#,
            r#"{ spi = 1, key="hunter2", x = 2 }"#,
            r#""key" = 'hunter2'"#,
            "key = \"\"\"\nhunter2\n\"\"\"",
            "key = [\"a\",\n \"hunter2\"]",
            "key = hunter2",
            r#"key = "a\"hunter2""#,
            r#"key = "hunter2"#,
        ] {
            assert!(!masked(line).contains("hunter2"), "{line}");
        }
    }

    #[test]
    fn addresses_and_ordinary_names_stay_readable() {
        for line in [
            r#"local = "2001:0db8:0000:0000:0000:0000:0000:0001""#,
            r#"key_file = "site-b.out.key""#,
            r#"remote_ports = "1000-2000""#,
            r#"monkey = "banana""#,
        ] {
            assert_eq!(masked(line), line);
        }
    }
}
