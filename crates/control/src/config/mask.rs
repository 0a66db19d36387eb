//! Keeps keys that were written in the wrong position out of error messages.
//!
//! A message quotes the line that it is about, and an operator may have pasted a key there: as the value of
//! `key`, or instead of a file name. Both are masked wherever they occur, also in text that is not valid
//! TOML, and also as grouped hex, hex over several lines, or base64. Anything that may be a key is masked.

use crate::keys::MAX_KEY_TEXT_BYTES;
use std::net::Ipv6Addr;
use std::ops::Range;

/// The shortest run of hex digits that is taken for a key: 12 bytes, shorter than any suite's.
const MIN_HEX_DIGITS: usize = 24;
/// The fewest characters of base64 that are taken for a key: 12 bytes.
const MIN_BASE64_CHARS: usize = 16;
/// The longest part that is taken for a word.
const MAX_WORD_CHARS: usize = 24;
/// Changes between letters and digits in a word at most.
const MAX_WORD_CHANGES: usize = 3;

/// Names of secret values.
const SECRET_NAMES: [&str; 6] = ["key", "keys", "psk", "secret", "password", "salt"];
/// Names of values that say where a key is, unless the key itself was put there by mistake.
const PLACE_NAMES: [&str; 2] = ["key_file", "key_env"];

/// The byte ranges of `text` that must not be shown, in order and without overlap.
pub(super) fn secret_ranges(text: &str) -> Vec<Range<usize>> {
    let mut ranges = hex_runs(text);
    ranges.extend(base64_runs(text));
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

/// Whether the value of `key_file` or `key_env` may be a key instead of its source.
pub(super) fn may_be_key(value: &str) -> bool {
    !hex_runs(value).is_empty() || chars_in_no_word(value) >= MIN_BASE64_CHARS
}

/// Runs of hex digits, including the separators and line breaks in them.
fn hex_runs(text: &str) -> Vec<Range<usize>> {
    let separates = |before, b| match b {
        b':' | b'-' | b'_' | b' ' | b'.' | b'\\' | b'\t' | b'\r' | b'\n' => true,
        // An escaped line break or tab.
        b't' | b'r' | b'n' => before == b'\\',
        _ => false,
    };
    runs(text, |b| b.is_ascii_hexdigit(), separates, is_hex_key)
}

fn is_hex_key(run: &str) -> bool {
    let digits = run.bytes().filter(u8::is_ascii_hexdigit).count();
    digits >= MIN_HEX_DIGITS && run.trim().parse::<Ipv6Addr>().is_err()
}

/// Runs of base64, of either alphabet (RFC 4648 4, 5). They differ from paths and names in containing few
/// words.
fn base64_runs(text: &str) -> Vec<Range<usize>> {
    let goes_on = |_, b| matches!(b, b'+' | b'/' | b'-' | b'_' | b'=');
    runs(text, |b| b.is_ascii_alphanumeric(), goes_on, |run| chars_in_no_word(run) >= MIN_BASE64_CHARS)
}

/// The runs of bytes that start with one that `begins`, continue with such bytes or others that `goes_on`
/// accepts after their predecessor, and satisfy `is_key`.
fn runs(
    text: &str,
    begins: impl Fn(u8) -> bool,
    goes_on: impl Fn(u8, u8) -> bool,
    is_key: impl Fn(&str) -> bool,
) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let (mut start, mut before) = (None, 0);
    // The final byte belongs to no run.
    for (index, byte) in text.bytes().chain([b'\0']).enumerate() {
        let inside = begins(byte) || (start.is_some() && goes_on(before, byte));
        before = byte;
        match start {
            None if inside => start = Some(index),
            Some(first) if !inside => {
                runs.extend(text.get(first..index).filter(|run| is_key(run)).map(|_| first..index));
                start = None;
            }
            _ => {}
        }
    }
    runs
}

/// The number of letters and digits of `text` in parts that are neither words nor numbers nor names such as
/// `aes128gcm16`.
fn chars_in_no_word(text: &str) -> usize {
    let parts = text.split(|c: char| !c.is_ascii_alphanumeric());
    parts.filter(|part| !is_word(part)).map(str::len).sum()
}

fn is_word(part: &str) -> bool {
    let after_first = part.get(1..).unwrap_or_default();
    let has_one_case =
        !part.bytes().any(|b| b.is_ascii_lowercase()) || !after_first.bytes().any(|b| b.is_ascii_uppercase());
    let digits = part.bytes().map(|b| b.is_ascii_digit());
    let changes = digits.clone().zip(digits.skip(1)).filter(|(a, b)| a != b).count();
    has_one_case && changes <= MAX_WORD_CHANGES && part.len() <= MAX_WORD_CHARS
}

/// The values of `key = …` and similar names, and those values of `key_file = …` that may be a key.
fn assignments(text: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut from = 0;
    while let Some(found) = text.get(from..).and_then(|rest| rest.find('=')) {
        let equals = from + found;
        from = equals + 1;
        let name = name_before(text, equals);
        let (is_secret, is_place) = (SECRET_NAMES.contains(&name), PLACE_NAMES.contains(&name));
        if is_secret || is_place {
            let start = skip_blank(text, from);
            let end = broken_value_end(text, start).unwrap_or_else(|| value_end(text, start));
            if is_secret || may_be_key(&text[start..end]) {
                ranges.push(start..end);
                from = end;
            }
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

/// The end of the value that starts at `start`; where it is malformed, rather too far than too near.
fn value_end(text: &str, start: usize) -> usize {
    let rest = &text[start..];
    let line = rest.find('\n').unwrap_or(rest.len());
    let length = match rest.as_bytes() {
        [b'"', b'"', b'"', ..] => closing(rest, 3, "\"\"\"", rest.len()),
        [b'\'', b'\'', b'\'', ..] => closing(rest, 3, "'''", rest.len()),
        [b'[', ..] => closing(rest, 1, "]", rest.len()),
        [b'\'', ..] => closing(rest, 1, "'", line),
        // Quotes may be escaped. A string that is never closed extends to the end of the line, which errs
        // towards hiding.
        [b'"', ..] => quoted(rest, line),
        _ => rest.find([',', '}', '\n']).unwrap_or(rest.len()),
    };
    start + length
}

/// The end of a key that was pasted with its line breaks into a single-line string.
fn broken_value_end(text: &str, start: usize) -> Option<usize> {
    let value = text.get(start..start + text[start..].floor_char_boundary(MAX_KEY_TEXT_BYTES))?;
    let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let length = value[1..].find(quote)? + 2;
    let value = &value[..length];
    (length > 2 && value.contains('\n') && may_be_key(value)).then_some(start + length)
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
    fn a_hex_key_is_masked_anywhere_in_a_line() {
        let line = r#"key_file = "4c80cdefbb5d10da906ac73c3613a6342e443b68" # oops"#;
        assert!(!masked(line).contains("4c80"));
        assert!(masked(line).contains("# oops"));
        assert!(!masked("x = 4c:80:cd:ef:bb:5d:10:da:90:6a:c7:3c:36:13:a6:34").contains("cd:ef"));
    }

    /// Asserts that no eight consecutive characters of `secret` are shown.
    #[track_caller]
    fn hides(text: &str, secret: &str) {
        let shown = masked(text);
        let part = (0..=secret.len() - 8).map(|at| &secret[at..at + 8]).find(|part| shown.contains(part));
        assert_eq!(part, None, "{shown}");
    }

    #[test]
    fn a_key_broken_by_lines_dots_or_in_base64_is_masked_in_place_of_a_path() {
        for value in [
            "\"\"\"\n4c80cdefbb5d\n10da906ac73c\n3613a6342e44\n3b68\n\"\"\"",
            "\"\"\"\r\n4c80cdefbb5d10da906ac73c\\\r\n  3613a6342e443b68\"\"\"",
            "\"4c80cdef.bb5d10da.906ac73c.3613a634.2e443b68\"",
            "\"4c80cdefbb5d10da\\n906ac73c3613a634\\n2e443b68\"",
            "'TIDN77tdENqQasc8NhOmNC5EO2g='",
            "\"TIDN77tdENqQasc8\nNhOmNC5EO2g=\"",
            "\"keys/TIDN77td-NqQasc8_hOmNC5EO2g\"",
            "TIDN77tdENqQasc8NhOmNC5EO2g=",
        ] {
            for name in ["key_file", "key_env", "name"] {
                if name == "name" && value.contains("8\nNh") {
                    // Two halves of base64, each too short to be distinguished from a name.
                    continue;
                }
                let line = format!("outbound = {{ spi = 7, {name} = {value} }} # end");
                hides(&line, "4c80cdefbb5d");
                hides(&line, "10da906ac73c3613a6342e443b68");
                hides(&line, "TIDN77tdENqQasc8NhOmNC5EO2g");
                assert!(masked(&line).starts_with("outbound = { spi = 7, "), "{}", masked(&line));
            }
        }
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
            r#"key_file = "/etc/testudo/keys/berlin-frankfurt-2.outbound.key""#,
            r#"key_file = "/run/credentials/testudo@site-a.service/site-a.out""#,
            r#"key_env = "TESTUDO_KEY_SITE_B_OUT2""#,
            r#"suite = "chacha20poly1305" # or aes128gcm16, aes256gcm16, aes128-sha1, aes256-sha256"#,
            "[port.protected]\nkind = \"tun\"\nmtu = 1400\naddresses = [\"10.1.0.1/32\", \"fd00:1::1/128\"]\n",
            "key_file = \"out.key }\ninbound = { spi = 0x1002, key_file = \"in.key\" }",
        ] {
            assert_eq!(masked(line), line);
        }
    }
}
