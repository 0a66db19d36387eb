//! Reads `known_answer`: where the SAs of a tunnel start in `testudo replay`.

use super::checks::Facts;
use super::model::{KnownAnswer, Received};
use super::value::{self, Parsed};
use super::walk::{Located, Problem, Section, Walker};
use testudo_ipsec::MAX_WINDOW;
use toml::de::DeValue;

/// The key of the table.
pub(super) const KNOWN_ANSWER: &str = "known_answer";
const INBOUND_NUMBER: &str = "inbound_sequence_number";
const INBOUND_WINDOW: &str = "inbound_window";
/// Hexadecimal digits of the largest window.
const MAX_DIGITS: usize = MAX_WINDOW as usize / 4;

pub(super) fn read_known_answer(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    esn: bool,
    replay_window: u32,
    facts: &mut Facts,
) -> Option<KnownAnswer> {
    let mut table = section.table(walker, KNOWN_ANSWER)?;
    facts.known_answers.push(Located {
        value: (),
        span: table.span().clone(),
        key: section.path_of(KNOWN_ANSWER),
    });
    // The last extended number is not used: an SA stops before it.
    let last = if esn { u64::MAX - 1 } else { u32::MAX.into() };
    let next_sequence_number = table.or_default(walker, "next_sequence_number", 1, value::number(1, last));
    let iv_seed = table.or_default(walker, "iv_seed", 0, value::number(0, u64::MAX));
    let highest = table.optional(walker, INBOUND_NUMBER, value::number(1, last));
    let window = table.located(walker, INBOUND_WINDOW, bits);
    if let Some(window) = &window
        && let Some(problem) = unfit(&window.value, highest, replay_window)
    {
        walker.report(&window.span, window.key.clone(), problem);
    }
    table.finish(walker);
    let window = window.map(|window| window.value.into());
    let received = highest.map(|highest| Received { highest, window });
    Some(KnownAnswer { next_sequence_number, iv_seed, received })
}

/// The bits of a number in hexadecimal digits, as bytes, the lowest first.
fn bits(value: &DeValue<'_>) -> Parsed<Vec<u8>> {
    let problem = || {
        Problem::expected("hexadecimal digits in quotes, such as \"0x1f\"")
            .help("its lowest bit is `inbound_sequence_number`, the next one the number before it")
    };
    let DeValue::String(text) = value else { return Err(problem()) };
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.is_empty() || digits.len() > MAX_DIGITS || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(problem());
    }
    let byte = |pair: &[u8]| {
        let digits = pair.iter().filter_map(|digit| char::from(*digit).to_digit(16));
        digits.fold(0, |byte, digit| byte << 4 | u8::try_from(digit).unwrap_or(0))
    };
    Ok(digits.as_bytes().rchunks(2).map(byte).collect())
}

/// Why these bits are no window of an SA that has received numbers up to `highest`.
fn unfit(bits: &[u8], highest: Option<u64>, replay_window: u32) -> Option<Problem> {
    let marked = |bit: u64| {
        let byte = usize::try_from(bit / 8).ok().and_then(|byte| bits.get(byte)).copied();
        byte.unwrap_or(0) >> (bit % 8) & 1 == 1
    };
    let Some(highest) = highest else {
        let problem = Problem::expected(format!("`{INBOUND_NUMBER}` beside it")).found("nothing");
        return Some(problem.help("it is the number that the window's lowest bit is for"));
    };
    let oldest = (0..8 * bits.len() as u64).rev().find(|bit| marked(*bit));
    let size = u64::from(replay_window);
    match oldest {
        _ if !marked(0) => {
            Some(Problem::expected(format!("a window whose lowest bit is set: {highest} was received")))
        }
        Some(oldest) if oldest >= size => {
            Some(Problem::expected(format!("at most {size} bits, as `replay_window` has")))
        }
        Some(oldest) if oldest >= highest => Some(
            Problem::expected("no bit for a number below 1").help("ESP and AH count from 1 (RFC 4303 2.2)"),
        ),
        _ => None,
    }
}
