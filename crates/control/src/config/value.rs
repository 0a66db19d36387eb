//! Reads single values: numbers, names, addresses, ports, sizes, times.

use super::model::InterfaceAddress;
use super::suggest::did_you_mean;
use super::walk::{Problem, described};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use testudo_crypto::{ProposalError, Suite};
use testudo_ipsec::{MAX_WINDOW, MIN_WINDOW, WINDOW_STEP};
use toml::de::DeValue;

pub(super) type Parsed<T> = Result<T, Problem>;

/// Characters per name at most.
pub(super) const MAX_NAME_CHARS: usize = 64;
/// Characters per interface name at most: IFNAMSIZ less the final zero.
const MAX_INTERFACE_CHARS: usize = 15;

/// A string of at most 4,096 bytes.
pub(super) fn string<'v>(value: &'v DeValue<'_>, what: &str) -> Parsed<&'v str> {
    match value {
        DeValue::String(text) if text.len() <= 4096 && !text.contains('\0') => Ok(text),
        DeValue::String(_) => {
            Err(Problem::expected(format!("{what}, of at most 4096 bytes and without NUL")))
        }
        DeValue::Table(_) | DeValue::Array(_) => Err(Problem::expected(what).found(described(value))),
        _ => Err(Problem::expected(what).help("write it in quotes")),
    }
}

pub(super) fn boolean(value: &DeValue<'_>) -> Parsed<bool> {
    let help = match value.as_str() {
        Some("true" | "false") => "write it without quotes",
        _ => "write `true` or `false`",
    };
    value.as_bool().ok_or_else(|| Problem::expected("true or false").help(help))
}

/// An integer from `min` to `max`.
pub(super) fn number(min: u64, max: u64) -> impl Fn(&DeValue<'_>) -> Parsed<u64> {
    move |value| {
        let problem = || match max {
            u64::MAX => Problem::expected(format!("a number, {min} or more")),
            _ => Problem::expected(format!("a number from {min} to {max}")),
        };
        let Some(number) = integer(value) else {
            let quoted = value.as_str().is_some_and(|text| text.trim().parse::<u64>().is_ok());
            let help = if quoted { "write it without quotes" } else { "write an integer" };
            return Err(problem().help(help));
        };
        u64::try_from(number).ok().filter(|n| (min..=max).contains(n)).ok_or_else(problem)
    }
}

pub(super) fn integer(value: &DeValue<'_>) -> Option<i128> {
    // Numbers beyond 128 bits saturate: they are outside every range.
    let integer = value.as_integer()?;
    Some(i128::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(i128::MAX))
}

/// A number of at most 16 bits.
pub(super) fn number_u16(min: u16, max: u16) -> impl Fn(&DeValue<'_>) -> Parsed<u16> {
    let inner = number(min.into(), max.into());
    move |value| inner(value).map(|n| u16::try_from(n).unwrap_or(max))
}

pub(super) fn number_u32(min: u32, max: u32) -> impl Fn(&DeValue<'_>) -> Parsed<u32> {
    let inner = number(min.into(), max.into());
    move |value| inner(value).map(|n| u32::try_from(n).unwrap_or(max))
}

/// An SPI that may be used: 1 to 255 are reserved, and 0 is for local use (RFC 4303 2.1).
pub(super) fn spi(value: &DeValue<'_>) -> Parsed<u32> {
    let problem = || Problem::expected("an SPI from 256 to 4294967295");
    let number = number(0, u32::MAX.into())(value).map_err(|p| Problem { help: p.help, ..problem() })?;
    let number = u32::try_from(number).map_err(|_| problem())?;
    match number {
        0 => Err(problem().help("0 never appears in a packet (RFC 4303 2.1)")),
        1..256 => Err(problem().help("1 to 255 are reserved (RFC 4303 2.1)")),
        _ => Ok(number),
    }
}

/// An SPI that a packet may have: also one of those that are reserved.
pub(super) fn any_spi(value: &DeValue<'_>) -> Parsed<u32> {
    let problem = || Problem::expected("an SPI from 1 to 4294967295");
    let number = number(1, u32::MAX.into())(value).map_err(|p| Problem { help: p.help, ..problem() })?;
    u32::try_from(number).map_err(|_| problem())
}

/// A window of 32 to 2,097,152 packets, in steps of 32; 0 for none.
pub(super) fn replay_window(value: &DeValue<'_>) -> Parsed<u32> {
    let step = u64::from(WINDOW_STEP);
    if integer(value) == Some(0) {
        return Ok(0);
    }
    let packets = number(MIN_WINDOW.into(), MAX_WINDOW.into())(value)?;
    if !packets.is_multiple_of(step) {
        let (below, above) = (packets / step * step, packets.next_multiple_of(step));
        return Err(Problem::expected("a multiple of 32").help(format!("write {below} or {above}")));
    }
    u32::try_from(packets).map_err(|_| Problem::expected("a multiple of 32"))
}

/// One of some words.
pub(super) fn choice<T: Clone>(words: &[(&'static str, T)]) -> impl Fn(&DeValue<'_>) -> Parsed<T> {
    move |value| {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let expected = format!("one of {}", quoted(&names));
        let text = string(value, &expected)?;
        let known = words.iter().find(|(name, _)| *name == text).map(|(_, meaning)| meaning.clone());
        known.ok_or_else(|| Problem {
            help: did_you_mean(text, names.iter().copied()),
            ..Problem::expected(expected)
        })
    }
}

/// A suite, as a proposal.
pub(super) fn suite(value: &DeValue<'_>) -> Parsed<Suite> {
    let expected = "a suite, such as \"aes128gcm16\" or \"aes256-sha256\"";
    let text = string(value, expected)?;
    text.parse().map_err(|error: ProposalError| {
        let names: Vec<String> = Suite::ALL.iter().map(Suite::to_string).collect();
        Problem::expected(expected).help(proposal_help(text, &error, names.iter().map(String::as_str)))
    })
}

/// The suite of AH, by the name of its integrity algorithm.
pub(super) fn ah_suite(value: &DeValue<'_>) -> Parsed<Suite> {
    let expected = "an integrity algorithm, such as \"sha256\"";
    let text = string(value, expected)?;
    Suite::for_ah(text).map_err(|error| {
        let names = Suite::all_for_ah().filter_map(Suite::ah_name);
        Problem::expected(expected).help(proposal_help(text, &error, names))
    })
}

/// What to write: the nearest name for a slip of the hand; for what is known and does not go, the reason.
fn proposal_help<'a>(text: &str, error: &ProposalError, names: impl Iterator<Item = &'a str>) -> String {
    let slip = matches!(
        error,
        ProposalError::UnknownCipher(_) | ProposalError::UnknownIntegrity(_) | ProposalError::UnknownOfAh(_)
    );
    let meant = if slip { did_you_mean(text, names) } else { None };
    meant.unwrap_or_else(|| error.to_string())
}

/// `"a", "b", "c"`
pub(super) fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ")
}

/// A name: 1 to 64 characters of `a-z0-9-_.`.
pub(super) fn name(value: &DeValue<'_>) -> Parsed<String> {
    let expected = "a name of 1 to 64 characters from a-z, 0-9, -, _ and .";
    let text = string(value, expected)?;
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
    if (1..=MAX_NAME_CHARS).contains(&text.len()) && text.chars().all(allowed) {
        return Ok(text.to_owned());
    }
    let replace = |c: char| if allowed(c) { c } else { '-' };
    let better: String = text.to_ascii_lowercase().chars().take(MAX_NAME_CHARS).map(replace).collect();
    let problem = Problem::expected(expected);
    Err(if better.is_empty() { problem } else { problem.help(format!("write \"{better}\"")) })
}

/// A network interface's name, as the kernel accepts it.
pub(super) fn interface(value: &DeValue<'_>) -> Parsed<String> {
    let expected = "an interface name of 1 to 15 characters";
    let text = string(value, expected)?;
    // '%' would make the kernel number the interface.
    let allowed = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | ':' | '%');
    let fits = (1..=MAX_INTERFACE_CHARS).contains(&text.len()) && text.chars().all(allowed);
    if fits && !matches!(text, "." | "..") {
        return Ok(text.to_owned());
    }
    Err(Problem::expected(expected).help("it may not have spaces, '/', ':' or '%'"))
}

/// An outer address: that of one host.
pub(super) fn host_address(value: &DeValue<'_>) -> Parsed<IpAddr> {
    let expected = "an IPv4 or IPv6 address of one host";
    let text = string(value, expected)?;
    let problem = || Problem::expected(expected);
    let address: IpAddr = text.parse().map_err(|_| match text.split_once('/') {
        Some((address, _)) if address.parse::<IpAddr>().is_ok() => {
            problem().help(format!("an outer address has no prefix length: write \"{address}\""))
        }
        _ => problem().help("names are not looked up; write the number"),
    })?;
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_unspecified() || address.is_multicast() || broadcast {
        return Err(problem());
    }
    mapped(address).map_or(Ok(address), |v4| Err(problem().help(format!("write \"{v4}\""))))
}

fn mapped(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map(IpAddr::V4),
        IpAddr::V4(_) => None,
    }
}

/// An address with a prefix length; host bits may be set.
pub(super) fn interface_address(value: &DeValue<'_>) -> Parsed<InterfaceAddress> {
    let expected = "an address with its prefix length, such as \"10.1.0.1/24\"";
    let text = string(value, expected)?;
    if !text.contains('/') {
        return Err(Problem::expected(expected).help("add the prefix length of the network"));
    }
    let (address, prefix_length) = split_prefix(text, expected)?;
    if address.is_unspecified() || address.is_multicast() {
        return Err(Problem::expected(expected));
    }
    Ok(InterfaceAddress { address, prefix_length })
}

/// `address/length`, or an address, whose length is all of its bits.
pub(super) fn split_prefix(text: &str, expected: &str) -> Parsed<(IpAddr, u8)> {
    let problem = || Problem::expected(expected);
    let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
    let address: IpAddr = address.parse().map_err(|_| Problem {
        help: did_you_mean(text, ["any"]).or_else(|| missing_octets(text)),
        ..problem()
    })?;
    if let Some(v4) = mapped(address) {
        return Err(problem().help(format!("write it as IPv4: \"{v4}\"")));
    }
    let bits = if address.is_ipv6() { 128 } else { 32 };
    let Some(length) = length else { return Ok((address, bits)) };
    // `parse` would accept a plus sign.
    let digits = length.bytes().all(|byte| byte.is_ascii_digit());
    match length.parse() {
        Ok(length) if digits && length <= bits => Ok((address, length)),
        _ => Err(problem().help(format!("the prefix length is a number from 0 to {bits}"))),
    }
}

/// `10.1/16` means `10.1.0.0/16` to people.
fn missing_octets(text: &str) -> Option<String> {
    let (address, length) = text.split_once('/')?;
    let octets = address.split('.').count();
    let filled = format!("{address}{}", ".0".repeat(4_usize.checked_sub(octets)?));
    filled.parse::<std::net::Ipv4Addr>().ok().map(|_| format!("write \"{filled}/{length}\""))
}

/// `address:port` on the loopback interface, with a port for examples and why another address is refused.
pub(super) fn loopback_socket(port: u16, why: &'static str) -> impl Fn(&DeValue<'_>) -> Parsed<SocketAddr> {
    move |value| {
        let expected = format!("a loopback address and a port, such as \"127.0.0.1:{port}\"");
        let text = string(value, &expected)?;
        let problem = || Problem::expected(expected.clone());
        let socket: SocketAddr = text.parse().map_err(|_| match text.parse::<Ipv6Addr>() {
            Ok(v6) => problem().help(format!("write \"[{v6}]:{port}\"")),
            Err(_) => problem(),
        })?;
        if !socket.ip().is_loopback() {
            return Err(problem().help(why));
        }
        if socket.port() == 0 { Err(problem()) } else { Ok(socket) }
    }
}
