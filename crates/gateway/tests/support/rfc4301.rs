//! RFC 4301 processing as a slow oracle for the data path, with which it shares no line. It parses the bytes
//! itself, header by header, and tries the rules in order.
//!
//! A field of a packet is shown, absent or hidden. Whether a rule matches a hidden field cannot be known, and
//! the packet is dropped (RFC 4301 7), unless it is a later fragment whose first one was decided on
//! ([`Memory`]).

use std::collections::HashMap;

/// What happens to a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Through the tunnel with this number.
    Tunnel(u8),
    Clear,
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field<T> {
    Shown(T),
    Hidden,
    Absent,
}

/// Which part of which datagram a packet carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub identification: u128,
    /// The protocol that it claims.
    pub protocol: u8,
    pub offset: usize,
    pub end: usize,
    pub more: bool,
}

/// The fields that policy can see of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub ipv6: bool,
    pub source: u128,
    pub destination: u128,
    pub protocol: Field<u8>,
    /// Source and destination port.
    pub ports: Field<(u16, u16)>,
    /// Type and code of ICMP, type of the Mobility Header and a zero.
    pub message: Field<u16>,
    /// LSRR, SSRR or routing header 0: the packet does not go to its destination field.
    pub source_routed: bool,
    /// Of a fragment.
    pub part: Option<Part>,
}

impl Seen {
    /// What a later fragment of the same datagram shows: over IPv4 the protocol, over IPv6 nothing.
    fn later(&self) -> Self {
        match self.part {
            Some(Part { protocol, .. }) if !self.ipv6 => {
                let (ports, message) = (ports_of(protocol, 8, &[]), message_of(protocol, 8, &[]));
                Self { ports, message, ..*self }
            }
            _ => Self { protocol: Field::Hidden, ports: Field::Hidden, message: Field::Hidden, ..*self },
        }
    }
}

/// Addresses of one version with a common prefix.
#[derive(Debug, Clone, Copy)]
pub struct Net {
    pub ipv6: bool,
    pub address: u128,
    pub length: u32,
}

/// The addresses that a rule asks for; any without.
#[derive(Debug, Clone, Copy)]
pub enum Addresses {
    Net(Net),
    /// The lowest and the highest, and whether they are of IPv6.
    Range(bool, u128, u128),
}

/// The value that a rule asks a field for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked<T> {
    Any,
    /// From the lowest to the highest.
    From(T, T),
    /// A field that is not there to be seen.
    Opaque,
}

/// The packets that a policy is about, by their direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ways {
    Both,
    Out,
    In,
}

impl Ways {
    fn include(self, leaves: bool) -> bool {
        self == Ways::Both || self == if leaves { Ways::Out } else { Ways::In }
    }
}

/// A selector of a policy: the fields that it matches on, and the policy's action. Adjacent rules with the
/// same number are one policy.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    pub policy: u8,
    pub ways: Ways,
    pub local: Option<Addresses>,
    pub remote: Option<Addresses>,
    pub protocol: Asked<u8>,
    /// Ports, or messages that are sent from this end.
    pub local_ports: Asked<u16>,
    pub remote_ports: Asked<u16>,
    /// The fields that an SA takes from the packet that asks for it; its policy leads nowhere itself.
    pub populate: Populate,
    pub then: Fate,
}

/// Flags of a policy that populates SAs from packets (RFC 4301 4.4.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Populate {
    pub local: bool,
    pub remote: bool,
    pub protocol: bool,
    pub local_ports: bool,
    pub remote_ports: bool,
}

impl Populate {
    pub fn is_any(self) -> bool {
        self != Self::default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    Perhaps,
}

/// What policy can see of a packet; `None` if it is no valid packet.
pub fn read(packet: &[u8]) -> Option<Seen> {
    match packet.first()? >> 4 {
        4 => read_ipv4(packet),
        6 => read_ipv6(packet),
        _ => None,
    }
}

fn number(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |sum, byte| sum * 256 + u128::from(*byte))
}

fn read_ipv4(packet: &[u8]) -> Option<Seen> {
    if packet.len() < 20 {
        return None;
    }
    let header = usize::from(packet[0] % 16) * 4;
    let total = number(&packet[2..4]) as usize;
    if header < 20 || total < header || total > packet.len() {
        return None;
    }
    // RFC 791: the 16-bit words of the header add up to all ones.
    let sum = packet[..header].chunks(2).map(|word| number(word) as u64).sum::<u64>();
    if sum == 0 || sum % 0xFFFF != 0 {
        return None;
    }
    let (mut source_routed, mut at) = (false, 20);
    while at < header && packet[at] != 0 {
        if packet[at] == 1 {
            at += 1;
            continue;
        }
        if packet[at] == 131 || packet[at] == 137 {
            source_routed = true;
            break;
        }
        let length = if at + 1 < header { usize::from(packet[at + 1]) } else { 0 };
        if length < 2 || at + length > header {
            return None;
        }
        at += length;
    }
    let offset = (number(&packet[6..8]) as usize % 0x2000) * 8;
    let more = packet[6] & 0x20 > 0;
    let identification = number(&packet[4..6]);
    let part = Part { identification, protocol: packet[9], offset, end: offset + total - header, more };
    if offset > 0 && offset + total - header > 65_535 {
        return None;
    }
    Some(Seen {
        ipv6: false,
        source: number(&packet[12..16]),
        destination: number(&packet[16..20]),
        protocol: Field::Shown(packet[9]),
        ports: ports_of(packet[9], offset, &packet[header..total]),
        message: message_of(packet[9], offset, &packet[header..total]),
        source_routed,
        part: Some(part).filter(|part| part.more || part.offset > 0),
    })
}

fn ports_of(protocol: u8, offset: usize, payload: &[u8]) -> Field<(u16, u16)> {
    // TCP, UDP, SCTP.
    if ![6, 17, 132].contains(&protocol) {
        return Field::Absent;
    }
    if offset > 0 || payload.len() < 4 {
        return Field::Hidden;
    }
    Field::Shown((number(&payload[..2]) as u16, number(&payload[2..4]) as u16))
}

/// RFC 4301 4.4.1.1: the type of a message is in the upper half of a 16-bit value, the code in the lower.
fn message_of(protocol: u8, offset: usize, payload: &[u8]) -> Field<u16> {
    // ICMP, ICMPv6, Mobility Header.
    if ![1, 58, 135].contains(&protocol) {
        return Field::Absent;
    }
    if offset > 0 || payload.len() < 4 {
        return Field::Hidden;
    }
    Field::Shown(match protocol {
        135 => u16::from(payload[2]) * 256,
        _ => number(&payload[..2]) as u16,
    })
}

fn read_ipv6(packet: &[u8]) -> Option<Seen> {
    if packet.len() < 40 {
        return None;
    }
    let end = 40 + number(&packet[4..6]) as usize;
    if end > packet.len() {
        return None;
    }
    let mut seen = Seen {
        ipv6: true,
        source: number(&packet[8..24]),
        destination: number(&packet[24..40]),
        protocol: Field::Hidden,
        ports: Field::Hidden,
        message: Field::Hidden,
        source_routed: false,
        part: None,
    };
    let (mut next, mut at, mut headers) = (packet[6], 40, 0);
    // RFC 4301 4.4.1.1: hop-by-hop options, routing, fragment and destination options are skipped.
    while [0, 43, 44, 60].contains(&next) {
        headers += 1;
        if headers > 8 || at + 8 > end {
            return None;
        }
        let this = next;
        next = packet[at];
        if this == 44 {
            let offset = number(&packet[at + 2..at + 4]) as usize / 8 * 8;
            let more = packet[at + 3] % 2 == 1;
            let identification = number(&packet[at + 4..at + 8]);
            at += 8;
            let part = Part { identification, protocol: next, offset, end: offset + end - at, more };
            // RFC 6946: an atomic fragment is a whole packet.
            seen.part = seen.part.or(Some(part).filter(|part| part.more || part.offset > 0));
            if offset > 0 {
                // RFC 8200 4.5: only the first fragment says what follows.
                return (offset + end - at <= 65_535).then_some(seen);
            }
        } else {
            let length = 8 + 8 * usize::from(packet[at + 1]);
            if at + length > end {
                return None;
            }
            seen.source_routed |= this == 43 && packet[at + 2] == 0;
            at += length;
        }
    }
    // HIP, Shim6, experiments (RFC 7045), and numbers that IANA has not assigned: what follows is unknown.
    let is_known = next < 148 && next != 139 && next != 140 || next == 255;
    if is_known {
        seen.protocol = Field::Shown(next);
        seen.ports = ports_of(next, 0, &packet[at..end]);
        seen.message = message_of(next, 0, &packet[at..end]);
    }
    Some(seen)
}

fn in_addresses(addresses: Option<Addresses>, ipv6: bool, address: u128) -> Answer {
    let net = match addresses {
        None => return Answer::Yes,
        Some(Addresses::Range(is_ipv6, low, high)) => {
            let is_in = is_ipv6 == ipv6 && low <= address && address <= high;
            return if is_in { Answer::Yes } else { Answer::No };
        }
        Some(Addresses::Net(net)) => net,
    };
    let host_bits = if ipv6 { 128 } else { 32 } - if net.ipv6 == ipv6 { net.length } else { 0 };
    let shift = |bits: u128| if host_bits == 128 { 0 } else { bits >> host_bits };
    if net.ipv6 == ipv6 && shift(net.address) == shift(address) { Answer::Yes } else { Answer::No }
}

fn in_range<T: PartialOrd>(asked: Asked<T>, shown: Field<T>) -> Answer {
    match (asked, shown) {
        (Asked::Any, _) => Answer::Yes,
        (Asked::From(low, high), Field::Shown(value)) if low <= value && value <= high => Answer::Yes,
        (Asked::From(..), Field::Hidden) => Answer::Perhaps,
        (Asked::Opaque, Field::Hidden | Field::Absent) => Answer::Yes,
        _ => Answer::No,
    }
}

fn map<T, U>(field: Field<T>, to: impl Fn(T) -> U) -> Field<U> {
    match field {
        Field::Shown(value) => Field::Shown(to(value)),
        Field::Hidden => Field::Hidden,
        Field::Absent => Field::Absent,
    }
}

/// Whether the ports, or the type of the message, are those that a rule asks for.
fn ask_next_layer(rule: &Rule, seen: &Seen, leaves: bool) -> Vec<Answer> {
    if [1, 58, 135].map(|number| Asked::From(number, number)).contains(&rule.protocol) {
        // RFC 4301 4.4.1.1: a message is its sender's.
        let sender = if leaves { rule.local_ports } else { rule.remote_ports };
        // Where the protocol is another one, or hidden, the message is as absent or hidden as it is.
        return vec![in_range(sender, seen.message)];
    }
    let (source, destination) = (map(seen.ports, |ports| ports.0), map(seen.ports, |ports| ports.1));
    let (local, remote) = if leaves { (source, destination) } else { (destination, source) };
    vec![in_range(rule.local_ports, local), in_range(rule.remote_ports, remote)]
}

/// Whether a rule's selector matches a packet.
fn ask(rule: &Rule, seen: &Seen, leaves: bool) -> Answer {
    let (local, remote) =
        if leaves { (seen.source, seen.destination) } else { (seen.destination, seen.source) };
    let mut answers = vec![
        in_addresses(rule.local, seen.ipv6, local),
        in_addresses(rule.remote, seen.ipv6, remote),
        in_range(rule.protocol, seen.protocol),
    ];
    answers.extend(ask_next_layer(rule, seen, leaves));
    if answers.contains(&Answer::No) {
        Answer::No
    } else if answers.contains(&Answer::Perhaps) {
        Answer::Perhaps
    } else {
        Answer::Yes
    }
}

/// Whether a rule asks for OPAQUE of a packet that hides what it asks for.
fn is_for_hidden(rule: &Rule, seen: &Seen, leaves: bool) -> bool {
    let hides = [seen.protocol == Field::Hidden, seen.ports == Field::Hidden, seen.message == Field::Hidden];
    let is_of_messages = [1, 58, 135].map(|number| Asked::From(number, number)).contains(&rule.protocol);
    let ports = match (is_of_messages, leaves) {
        (false, _) => vec![rule.local_ports, rule.remote_ports],
        (true, true) => vec![rule.local_ports],
        (true, false) => vec![rule.remote_ports],
    };
    hides.contains(&true) && (rule.protocol == Asked::Opaque || ports.contains(&Asked::Opaque))
}

/// Whether any selector of a policy matches a packet, and whether it does only because it asks for OPAQUE of
/// what the packet hides.
fn ask_policy(policy: &[Rule], seen: &Seen, leaves: bool) -> (Answer, bool) {
    let concerned = policy.iter().filter(|rule| rule.ways.include(leaves));
    let answers: Vec<_> =
        concerned.map(|rule| (ask(rule, seen, leaves), is_for_hidden(rule, seen, leaves))).collect();
    let sure = [(Answer::Yes, false), (Answer::Yes, true)].into_iter().find(|sure| answers.contains(sure));
    let is_perhaps = answers.iter().any(|(answer, _)| *answer == Answer::Perhaps);
    sure.unwrap_or((if is_perhaps { Answer::Perhaps } else { Answer::No }, false))
}

fn policies(rules: &[Rule]) -> impl Iterator<Item = &[Rule]> {
    rules.chunk_by(|a, b| a.policy == b.policy)
}

/// What happens to a packet that leaves, or that arrives in clear (then `Tunnel` means that it should have
/// been protected). The first policy that may match decides (RFC 4301 4.4.1).
///
/// One for OPAQUE decides on a packet that hides fields, even after one that may match: fragments may have an
/// SA of their own (7.2). But none passes in clear for that (7.4).
pub fn judge(rules: &[Rule], seen: &Seen, leaves: bool) -> Fate {
    judge_fully(rules, seen, leaves).0
}

/// The same, and whether the packet is dropped only because of what it hides.
pub fn judge_fully(rules: &[Rule], seen: &Seen, leaves: bool) -> (Fate, bool) {
    if seen.source_routed {
        return (Fate::Nothing, false);
    }
    let mut may_be_another = false;
    for policy in policies(rules) {
        let then = policy[0].then;
        match ask_policy(policy, seen, leaves) {
            (Answer::Yes, true) if then == Fate::Clear => return (Fate::Nothing, true),
            (Answer::Yes, false) if may_be_another => return (Fate::Nothing, true),
            (Answer::Yes, _) => return (then, false),
            (Answer::Perhaps, _) => may_be_another = true,
            (Answer::No, _) => {}
        }
    }
    (Fate::Nothing, may_be_another)
}

/// Whether the policy that decides asks for OPAQUE of what the packet hides, so that another may decide on
/// the datagram as a whole.
pub fn is_treated_apart(rules: &[Rule], seen: &Seen, leaves: bool) -> bool {
    let answers = policies(rules).map(|policy| ask_policy(policy, seen, leaves));
    answers.into_iter().find(|(answer, _)| *answer == Answer::Yes).is_some_and(|(_, is_apart)| is_apart)
}

/// The policy whose SA a packet that leaves asks for; `None` if another decides on it, or none is sure to.
pub fn asks(rules: &[Rule], seen: &Seen) -> Option<u8> {
    for policy in policies(rules) {
        match ask_policy(policy, seen, true).0 {
            Answer::Yes => return policy[0].populate.is_any().then_some(policy[0].policy),
            Answer::Perhaps | Answer::No => {}
        }
    }
    None
}

/// The selectors of the SA that a packet asks for by leaving (RFC 4301 4.4.2.2): those of the policy that
/// have the packet's values where there is a flag, with these values there.
pub fn populated(policy: &[Rule], seen: &Seen) -> Vec<Rule> {
    policy.iter().filter_map(|rule| populated_one(rule, seen)).collect()
}

fn populated_one(rule: &Rule, seen: &Seen) -> Option<Rule> {
    let flags = rule.populate;
    let host = |address| {
        let length = if seen.ipv6 { 128 } else { 32 };
        Some(Addresses::Net(Net { ipv6: seen.ipv6, address, length }))
    };
    let one = |number: u16| Asked::From(number, number);
    let mut own = Rule { populate: Populate::default(), ..*rule };
    let mut answers = Vec::new();
    if flags.local {
        answers.push(in_addresses(rule.local, seen.ipv6, seen.source));
        own.local = host(seen.source);
    }
    if flags.remote {
        answers.push(in_addresses(rule.remote, seen.ipv6, seen.destination));
        own.remote = host(seen.destination);
    }
    if flags.protocol {
        let Field::Shown(number) = seen.protocol else { return None };
        answers.push(in_range(rule.protocol, seen.protocol));
        // RFC 4301 4.4.1.1: messages have no ports. Ranges of ports select none.
        let is_of_messages = [1, 58, 135].contains(&number) && rule.protocol == Asked::Any;
        let names = |asked| matches!(asked, Asked::From(..));
        if is_of_messages && (names(rule.local_ports) || names(rule.remote_ports)) {
            return None;
        }
        if is_of_messages {
            (own.local_ports, own.remote_ports) = (Asked::Any, Asked::Any);
        }
        own.protocol = Asked::From(number, number);
    }
    if flags.local_ports || flags.remote_ports {
        let Field::Shown((local, remote)) = seen.ports else { return None };
        if flags.local_ports {
            answers.push(in_range(rule.local_ports, Field::Shown(local)));
            own.local_ports = one(local);
        }
        if flags.remote_ports {
            answers.push(in_range(rule.remote_ports, Field::Shown(remote)));
            own.remote_ports = one(remote);
        }
    }
    answers.iter().all(|answer| *answer == Answer::Yes).then_some(own)
}

/// Whether a packet may come out of a tunnel whose SA has these selectors (RFC 4301 5.2, step 4).
pub fn may_come_through(tunnel: u8, selectors: &[Rule], rules: &[Rule], seen: &Seen) -> bool {
    judge_through(tunnel, selectors, rules, seen).0 == Fate::Tunnel(tunnel)
}

/// The same, and whether the packet is dropped only because of what it hides.
pub fn judge_through(tunnel: u8, selectors: &[Rule], rules: &[Rule], seen: &Seen) -> (Fate, bool) {
    if seen.source_routed {
        return (Fate::Nothing, false);
    }
    let arriving = selectors.iter().filter(|rule| rule.ways.include(false));
    let answers: Vec<_> = arriving.map(|rule| ask(rule, seen, false)).collect();
    if !answers.contains(&Answer::Yes) {
        return (Fate::Nothing, answers.contains(&Answer::Perhaps));
    }
    match judge_fully(rules, seen, false) {
        (Fate::Tunnel(other), _) if other != tunnel => (Fate::Nothing, false),
        (Fate::Clear, _) => (Fate::Nothing, false),
        judged => judged,
    }
}

/// Where a packet comes from: a fragment follows only a first one that came the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    Out,
    Clear,
    Through(u8),
}

/// What was decided on first fragments (RFC 4301 7.3, 7.4). Nothing is forgotten but complete datagrams.
#[derive(Debug, Default)]
pub struct Memory {
    known: HashMap<(Way, bool, [u128; 2], u8, u128), Known>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    /// What the first fragment showed.
    first: Seen,
    fate: Fate,
    first_end: usize,
    come: usize,
    total: usize,
}

impl Memory {
    /// What happens to a packet. `judge` is what policy says of one as it shows itself, and whether that is
    /// because it hides something; `agrees` are the tunnels whose other end takes fragments that hide fields.
    pub fn decide(
        &mut self,
        way: Way,
        seen: &Seen,
        judge: impl Fn(&Seen) -> (Fate, bool),
        agrees: &[u8],
    ) -> Fate {
        let (own, hides) = judge(seen);
        let Some(part) = seen.part.filter(|_| !seen.source_routed) else { return own };
        let protocol = if seen.ipv6 { 0 } else { part.protocol };
        let key = (way, seen.ipv6, [seen.source, seen.destination], protocol, part.identification);
        if part.offset == 0 {
            // Nothing is kept of a datagram whose later parts policy decides on by themselves.
            if !judge(&seen.later()).1 {
                return own;
            }
            let is_agreed = !matches!(own, Fate::Tunnel(tunnel) if !agrees.contains(&tunnel));
            let hidden = [seen.protocol == Field::Hidden, seen.ports == Field::Hidden];
            let shows_all = !hidden.contains(&true) && seen.message != Field::Hidden;
            let may_follow = is_agreed && shows_all;
            let fate = if may_follow { own } else { Fate::Nothing };
            let first = Seen { part: None, ..*seen };
            let new = Known { first, fate, first_end: part.end, come: part.end, total: usize::MAX };
            let before =
                self.known.insert(key, new).map(|before| (before.first, before.fate, before.first_end));
            if before.is_some_and(|before| before != (first, fate, part.end)) {
                self.known.insert(key, Known { fate: Fate::Nothing, ..new });
            }
            return own;
        }
        let Some(known) = self.known.get_mut(&key).filter(|_| hides) else { return own };
        // Of a datagram on which policy says something else by now nothing more passes.
        if part.offset < known.first_end || judge(&known.first).0 != known.fate {
            known.fate = Fate::Nothing;
        }
        known.come += part.end - part.offset;
        if !part.more {
            known.total = part.end;
        }
        let fate = known.fate;
        if known.come >= known.total && fate != Fate::Nothing {
            self.known.remove(&key);
        }
        fate
    }
}
