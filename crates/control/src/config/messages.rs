//! The types of messages by name: ICMP, ICMPv6, the Mobility Header (RFC 4301 4.4.1.1).
//!
//! ```text
//!   echo-request                                   one type, every code
//!   destination-unreachable/fragmentation-needed   one type, one code
//!   3/0-5                                          one type, some codes
//!   1-4                                            some types, every code
//!   3/4-5/0                                        from one type and code to another
//! ```
//!
//! The names are nftables'; where RFCs and tcpdump say something else, that is a name, too.

use super::suggest::did_you_mean;
use super::value::Parsed;
use super::walk::Problem;
use testudo_ipsec::PortRange;
use testudo_wire::protocol;

/// A type, by its names, and names of its codes.
struct Kind {
    number: u8,
    names: &'static [&'static str],
    codes: &'static [(&'static str, u8)],
}

const fn kind(number: u8, names: &'static [&'static str]) -> Kind {
    Kind { number, names, codes: &[] }
}

/// RFC 792, RFC 1812 5.2.7.1, RFC 8335.
const ICMP: [Kind; 17] = [
    kind(0, &["echo-reply"]),
    Kind {
        number: 3,
        names: &["destination-unreachable"],
        codes: &[
            ("net-unreachable", 0),
            ("host-unreachable", 1),
            ("protocol-unreachable", 2),
            ("prot-unreachable", 2),
            ("port-unreachable", 3),
            ("fragmentation-needed", 4),
            ("frag-needed", 4),
            ("source-route-failed", 5),
            ("net-prohibited", 9),
            ("host-prohibited", 10),
            ("admin-prohibited", 13),
        ],
    },
    kind(4, &["source-quench"]),
    Kind {
        number: 5,
        names: &["redirect"],
        codes: &[
            ("net-redirect", 0),
            ("host-redirect", 1),
            ("tos-net-redirect", 2),
            ("tos-host-redirect", 3),
        ],
    },
    kind(8, &["echo-request"]),
    kind(9, &["router-advertisement"]),
    kind(10, &["router-solicitation"]),
    Kind { number: 11, names: &["time-exceeded"], codes: &[("ttl-exceeded", 0), ("reassembly-exceeded", 1)] },
    kind(12, &["parameter-problem"]),
    kind(13, &["timestamp-request"]),
    kind(14, &["timestamp-reply"]),
    kind(15, &["info-request"]),
    kind(16, &["info-reply"]),
    kind(17, &["address-mask-request"]),
    kind(18, &["address-mask-reply"]),
    kind(42, &["extended-echo-request"]),
    kind(43, &["extended-echo-reply"]),
];

/// RFC 4443, RFC 4861, RFC 2710, RFC 3810, RFC 2894, RFC 3122, RFC 8335.
const ICMPV6: [Kind; 20] = [
    Kind {
        number: 1,
        names: &["destination-unreachable"],
        codes: &[
            ("no-route", 0),
            ("admin-prohibited", 1),
            ("beyond-scope", 2),
            ("addr-unreachable", 3),
            ("port-unreachable", 4),
            ("policy-fail", 5),
            ("reject-route", 6),
        ],
    },
    kind(2, &["packet-too-big"]),
    Kind {
        number: 3,
        names: &["time-exceeded"],
        codes: &[("hop-limit-exceeded", 0), ("reassembly-exceeded", 1)],
    },
    kind(4, &["parameter-problem"]),
    kind(128, &["echo-request"]),
    kind(129, &["echo-reply"]),
    kind(130, &["mld-listener-query"]),
    kind(131, &["mld-listener-report"]),
    kind(132, &["mld-listener-done", "mld-listener-reduction"]),
    kind(133, &["nd-router-solicit", "router-solicitation"]),
    kind(134, &["nd-router-advert", "router-advertisement"]),
    kind(135, &["nd-neighbor-solicit", "neighbor-solicitation"]),
    kind(136, &["nd-neighbor-advert", "neighbor-advertisement"]),
    kind(137, &["nd-redirect", "redirect"]),
    kind(138, &["router-renumbering"]),
    kind(141, &["ind-neighbor-solicit"]),
    kind(142, &["ind-neighbor-advert"]),
    kind(143, &["mld2-listener-report"]),
    kind(160, &["extended-echo-request"]),
    kind(161, &["extended-echo-reply"]),
];

/// RFC 6275 6.1, RFC 5568 6.2, RFC 5142, RFC 5846.
const MOBILITY: [Kind; 15] = [
    kind(0, &["binding-refresh-request"]),
    kind(1, &["home-test-init"]),
    kind(2, &["careof-test-init", "care-of-test-init"]),
    kind(3, &["home-test"]),
    kind(4, &["careof-test", "care-of-test"]),
    kind(5, &["binding-update"]),
    kind(6, &["binding-acknowledgement"]),
    kind(7, &["binding-error"]),
    kind(8, &["fast-binding-update"]),
    kind(9, &["fast-binding-acknowledgement"]),
    kind(10, &["fast-binding-advertisement", "fast-neighbor-advertisement"]),
    kind(11, &["experimental-mobility-header"]),
    kind(12, &["home-agent-switch-message"]),
    kind(16, &["binding-revocation"]),
    kind(17, &["localized-routing-initiation"]),
];

/// The types of a protocol that has messages; `None` for another.
fn kinds(number: u8) -> Option<&'static [Kind]> {
    match number {
        protocol::ICMP => Some(&ICMP),
        protocol::ICMPV6 => Some(&ICMPV6),
        protocol::MOBILITY => Some(&MOBILITY),
        _ => None,
    }
}

/// Messages of a protocol: types and codes, `any` or `opaque`.
pub(super) fn messages(number: u8, word: &str) -> Parsed<PortRange> {
    match word {
        "any" => return Ok(PortRange::ANY),
        "opaque" => return Ok(PortRange::OPAQUE),
        _ => {}
    }
    let reader = Reader { number, kinds: kinds(number).unwrap_or_default() };
    let (types, code) = word.split_once('/').map_or((word, None), |(types, code)| (types, Some(code)));
    match code {
        Some(_) if number == protocol::MOBILITY => {
            Err(reader.problem().help("messages of the Mobility Header have no codes: leave \"/…\" out"))
        }
        Some(code) => reader.with_codes(types, code),
        None => reader.types(types).map(|(first, last)| PortRange::mobility(first, last)),
    }
}

/// The type and code of one message, for a question about a packet; a type alone has code 0.
///
/// # Errors
/// What was expected, in words.
pub fn message(number: u8, word: &str) -> Result<(u8, u8), String> {
    let told = |problem: Problem| {
        let help = problem.help.map(|help| format!("; {help}")).unwrap_or_default();
        format!("expected {}{help}", problem.expected)
    };
    let range = messages(number, word).map_err(told)?;
    let ([kind, code], [last, end]) = (range.first.to_be_bytes(), range.last.to_be_bytes());
    match (kind == last, code == end, end) {
        (true, true, _) => Ok((kind, code)),
        // A type alone: of what has codes, the first.
        (true, false, u8::MAX) => Ok((kind, 0)),
        _ => Err("expected one type, or one type and one code".to_owned()),
    }
}

struct Reader {
    number: u8,
    kinds: &'static [Kind],
}

impl Reader {
    fn problem(&self) -> Problem {
        let example = self.kinds.iter().find_map(|kind| kind.names.iter().find(|name| name.contains('-')));
        let codes = if self.number == protocol::MOBILITY { "" } else { ", with a code such as \"3/4\"" };
        let example = example.copied().unwrap_or("any");
        Problem::expected(format!(
            "a type of message such as \"{example}\", a number or a range from 0 to 255{codes}, \"any\" or \"opaque\""
        ))
    }

    fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.kinds.iter().flat_map(|kind| kind.names).copied()
    }

    fn one(&self, word: &str) -> Parsed<u8> {
        let named = self.kinds.iter().find(|kind| kind.names.contains(&word)).map(|kind| kind.number);
        let help = || did_you_mean(word, self.names().chain(["any", "opaque"]));
        named.or_else(|| number(word)).ok_or_else(|| Problem { help: help(), ..self.problem() })
    }

    /// One type, or the first and the last.
    fn types(&self, word: &str) -> Parsed<(u8, u8)> {
        // Names have hyphens, too.
        let Some((first, last)) = word.split_once('-').and_then(|(a, b)| number(a).zip(number(b))) else {
            return self.one(word).map(|only| (only, only));
        };
        if first > last {
            return Err(self.problem().help(format!("write \"{last}-{first}\"")));
        }
        Ok((first, last))
    }

    fn with_codes(&self, kind: &str, code: &str) -> Parsed<PortRange> {
        let kind = self.one(kind.trim())?;
        if let Some((low, rest)) = code.split_once('-')
            && let Some((last, high)) = rest.split_once('/')
        {
            let ends = [number(low), number(last), number(high)];
            let [Some(low), Some(last), Some(high)] = ends else { return Err(self.problem()) };
            let range = PortRange::icmp((kind, low), (last, high));
            let help = || format!("write \"{last}/{high}-{kind}/{low}\"");
            return if range.first <= range.last { Ok(range) } else { Err(self.problem().help(help())) };
        }
        if let Some((low, high)) = code.split_once('-').and_then(|(a, b)| number(a).zip(number(b))) {
            let help = || format!("write \"{kind}/{high}-{low}\"");
            let range = PortRange::icmp((kind, low), (kind, high));
            return if low <= high { Ok(range) } else { Err(self.problem().help(help())) };
        }
        let codes = self.kinds.iter().filter(|known| known.number == kind).flat_map(|known| known.codes);
        let named = codes.clone().find(|(name, _)| *name == code.trim()).map(|(_, code)| *code);
        let help = || did_you_mean(code, codes.clone().map(|(name, _)| *name));
        let code = named.or_else(|| number(code));
        let code = code.ok_or_else(|| Problem { help: help(), ..self.problem() })?;
        Ok(PortRange::icmp((kind, code), (kind, code)))
    }
}

/// A number of eight bits, of digits alone.
fn number(word: &str) -> Option<u8> {
    let word = word.trim();
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(number: u8, word: &str) -> Result<String, String> {
        let said = |problem: Problem| format!("{}; {}", problem.expected, problem.help.unwrap_or_default());
        messages(number, word).map(|range| format!("{}-{}", range.first, range.last)).map_err(said)
    }

    /// RFC 4301 4.4.1.1: type times 256 plus code.
    #[test]
    fn types_and_codes_are_ranges_of_sixteen_bits() {
        for (number, word, first, last) in [
            (protocol::ICMP, "echo-request", 0x0800, 0x08FF),
            (protocol::ICMPV6, "echo-request", 0x8000, 0x80FF),
            (protocol::ICMP, "destination-unreachable/fragmentation-needed", 0x0304, 0x0304),
            (protocol::ICMP, "3/4", 0x0304, 0x0304),
            (protocol::ICMP, "3/0-5", 0x0300, 0x0305),
            (protocol::ICMPV6, "1-4", 0x0100, 0x04FF),
            (protocol::ICMP, "3/4-5/0", 0x0304, 0x0500),
            (protocol::MOBILITY, "binding-update", 0x0500, 0x05FF),
            (protocol::MOBILITY, "1-4", 0x0100, 0x04FF),
            (protocol::ICMP, "255", 0xFF00, 0xFFFF),
            (protocol::ICMP, "0-255", 0, 0xFFFF),
        ] {
            assert_eq!(read(number, word), Ok(format!("{first}-{last}")), "{word}");
        }
        assert_eq!(messages(protocol::ICMP, "any").unwrap(), PortRange::ANY);
        assert_eq!(messages(protocol::ICMP, "opaque").unwrap(), PortRange::OPAQUE);
    }

    #[test]
    fn what_is_no_message_is_told_what_to_write() {
        for (number, word, help) in [
            (protocol::ICMP, "echo-requst", "did you mean `echo-request`?"),
            (protocol::ICMP, "3/frag-neded", "did you mean `frag-needed`?"),
            (protocol::ICMP, "5-3", "write \"3-5\""),
            (protocol::ICMP, "3/5-0", "write \"3/0-5\""),
            (protocol::ICMP, "5/0-3/4", "write \"3/4-5/0\""),
            (protocol::MOBILITY, "5/0", "no codes"),
            (protocol::MOBILITY, "echo-request", "binding-refresh-request"),
            (protocol::ICMP, "256", "0 to 255"),
            (protocol::ICMP, "+8", "0 to 255"),
            (protocol::ICMP, "", "0 to 255"),
        ] {
            let said = read(number, word).unwrap_err();
            assert!(said.contains(help), "{word}: {said}");
        }
    }

    #[test]
    fn no_two_types_of_a_protocol_share_a_name() {
        for number in [protocol::ICMP, protocol::ICMPV6, protocol::MOBILITY] {
            let mut names: Vec<_> = kinds(number).unwrap().iter().flat_map(|kind| kind.names).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count);
        }
    }
}
