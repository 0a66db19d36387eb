//! A gateway with random policies, compared with the model of RFC 4301 packet by packet, and with each
//! datagram as a whole.

use super::datagrams::{Choose, Datagram, address, datagram, one_of};
use super::gateway::{PoolSize, portable};
use super::rfc4301::{
    Addresses, Asked, Fate, Field, Memory, Net, Populate, Rule, Seen, Way, Ways, asks, is_treated_apart,
    judge, judge_fully, judge_through, may_come_through, populated, read,
};
use super::{Gateway, Handmade, LeaseTwin, Sealer, Side, TunnelSpec};
use std::net::IpAddr;
use testudo_crypto::Suite;
use testudo_gateway::Update;
use testudo_ipsec::{
    Acquire, Action, AddressRange, Directions, EventKind, Policy, PolicyChange, PolicyId, PopulateFlags,
    PortRange, Position, Prefix, Protocol, SaSelectors, Selector,
};

/// Tunnels of a gateway, all between the same networks: only policies tell them apart.
const TUNNELS: u8 = 3;
/// Those whose other end takes fragments that hide fields (RFC 4301 7.3).
const AGREES: [u8; 2] = [0, 1];
/// Policies: more than the eight that are scanned, so that the index is used as well.
const MAX_RULES: u8 = 14;
/// Policies at most after changes.
const MAX_POLICIES: usize = 100;
/// Offset of the SPI's number in an outgoing datagram: after an IPv4 header without options.
const SPI_AT: usize = 20;

/// A gateway and the model's state for it.
pub struct Site {
    gateway: Gateway,
    rules: Vec<Rule>,
    selectors: Vec<Vec<Rule>>,
    peers: Vec<Sealer>,
    sealed: u64,
    memory: Memory,
    /// The last flow that has asked for an SA of its own, and its packet.
    asking: Option<(Acquire, Seen)>,
}

/// Counts of outcomes, so that a test can check that it covered them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Met {
    pub tunnel: u64,
    pub clear: u64,
    pub nothing: u64,
    /// Flows that asked for SAs of their own, and got them.
    pub populated: u64,
}

impl Met {
    fn note(&mut self, fate: Fate) {
        match fate {
            Fate::Tunnel(_) => self.tunnel += 1,
            Fate::Clear => self.clear += 1,
            Fate::Nothing => self.nothing += 1,
        }
    }
}

fn addresses(choose: Choose<'_>, ipv6: bool, is_local: bool) -> Option<Addresses> {
    let lengths: &[u32] = if ipv6 { &[0, 16, 32, 120, 126, 128] } else { &[0, 8, 16, 24, 30, 32] };
    match choose() % 8 {
        0 => None,
        1 | 2 => {
            let (a, b) = (address(choose, ipv6, is_local), address(choose, ipv6, is_local));
            Some(Addresses::Range(ipv6, a.min(b), a.max(b)))
        }
        _ => {
            let (length, address) = (one_of(choose, lengths), address(choose, ipv6, is_local));
            Some(Addresses::Net(Net { ipv6, length, address }))
        }
    }
}

fn ports(choose: Choose<'_>, protocol: Asked<u8>) -> Asked<u16> {
    let (a, b) = match protocol {
        // Types of the Mobility Header are in the upper half.
        Asked::From(135, _) => (u16::from(choose() % 4) << 8, u16::from(choose() % 4) << 8),
        _ => (u16::from(choose() % 4), u16::from(choose() % 4)),
    };
    match choose() % 8 {
        0..=2 => Asked::From(a.min(b), a.max(b)),
        3 => Asked::Opaque,
        _ => Asked::Any,
    }
}

/// The selectors of random policies.
fn rules(choose: Choose<'_>) -> Vec<Rule> {
    let count = 1 + choose() % MAX_RULES;
    let mut rules = Vec::new();
    for policy in 0..count {
        let drawn = one_policy(choose, &rules);
        rules.extend(drawn.into_iter().map(|rule| Rule { policy, ..rule }));
    }
    rules
}

/// The selectors of a policy. Most have one, some several; some are those of an earlier policy, or contain
/// these.
fn one_policy(choose: Choose<'_>, earlier: &[Rule]) -> Vec<Rule> {
    let (then, populates) = match choose() % 8 {
        0 => (Fate::Nothing, false),
        1 | 2 => (Fate::Clear, false),
        // Without an SA of the flow's own, a packet is dropped.
        3 | 4 => (Fate::Nothing, true),
        _ => (Fate::Tunnel(choose() % TUNNELS), false),
    };
    let ways = one_of(choose, &[Ways::Both, Ways::Both, Ways::Both, Ways::Out, Ways::In]);
    let selectors = if choose().is_multiple_of(4) { 1 + choose() % 3 } else { 1 };
    let mut drawn = Vec::new();
    for _ in 0..selectors {
        let known = [earlier, &drawn].concat();
        let rule = match choose() % 5 {
            0 if !known.is_empty() => around(choose, &known),
            _ => rule(choose),
        };
        drawn.push(Rule { ways, then, populate: Populate::default(), ..rule });
    }
    if populates {
        let populate = populate(choose, &drawn);
        // A packet that arrives asks for nothing.
        let ways = if ways == Ways::In { Ways::Both } else { ways };
        drawn.iter_mut().for_each(|rule| *rule = Rule { populate, ways, ..*rule });
    }
    drawn
}

/// Flags that a policy with these selectors may have: none beside OPAQUE (RFC 4301 4.4.2.2), and ports only
/// of a protocol that has them. At least one.
fn populate(choose: Choose<'_>, selectors: &[Rule]) -> Populate {
    let drawn = choose();
    let bit = |bit: u8| drawn >> bit & 1 == 1;
    let have_ports = selectors.iter().all(|rule| matches!(rule.protocol, Asked::From(6 | 17 | 132, _)));
    let all = |is: fn(&Rule) -> bool| selectors.iter().all(is);
    let flags = Populate {
        local: bit(0),
        remote: bit(1),
        protocol: bit(2) && all(|rule| rule.protocol != Asked::Opaque),
        local_ports: bit(3) && have_ports && all(|rule| rule.local_ports != Asked::Opaque),
        remote_ports: bit(4) && have_ports && all(|rule| rule.remote_ports != Asked::Opaque),
    };
    if flags.is_any() { flags } else { Populate { remote: true, ..flags } }
}

/// The selector of an earlier policy, or one around it.
fn around(choose: Choose<'_>, rules: &[Rule]) -> Rule {
    let known = one_of(choose, rules);
    match choose() % 4 {
        0 => Rule { local: None, ..known },
        1 => Rule { remote: None, ..known },
        2 => Rule { local_ports: Asked::Any, remote_ports: Asked::Any, ..known },
        _ => known,
    }
}

/// A selector; what it is of is filled in.
fn rule(choose: Choose<'_>) -> Rule {
    let ipv6 = !choose().is_multiple_of(3);
    let (local, remote) = (addresses(choose, ipv6, true), addresses(choose, ipv6, false));
    let protocol = match choose() % 8 {
        0..=2 => Asked::Any,
        3 => Asked::Opaque,
        _ => {
            let number = one_of(choose, &[6, 17, 132, 1, 58, 135, 47, 59]);
            Asked::From(number, number)
        }
    };
    let (local_ports, remote_ports) = (ports(choose, protocol), ports(choose, protocol));
    let (policy, ways, populate, then) = (0, Ways::Both, Populate::default(), Fate::Nothing);
    Rule { policy, ways, local, remote, protocol, local_ports, remote_ports, populate, then }
}

fn selector(rule: &Rule) -> Selector {
    let ip = |ipv6, address: u128| {
        if ipv6 { IpAddr::V6(address.into()) } else { IpAddr::V4((address as u32).into()) }
    };
    let range = |addresses: Option<Addresses>| match addresses {
        None => AddressRange::ANY,
        Some(Addresses::Net(Net { ipv6, address, length })) => {
            Prefix::new(ip(ipv6, address), length as u8).expect("a prefix").into()
        }
        Some(Addresses::Range(ipv6, low, high)) => {
            AddressRange::new(ip(ipv6, low), ip(ipv6, high)).expect("a range")
        }
    };
    let ports = |asked| match asked {
        Asked::Any => PortRange::ANY,
        Asked::Opaque => PortRange::OPAQUE,
        Asked::From(first, last) => PortRange { first, last },
    };
    Selector {
        local: range(rule.local),
        remote: range(rule.remote),
        protocol: match rule.protocol {
            Asked::Any => Protocol::Any,
            Asked::Opaque => Protocol::Opaque,
            Asked::From(number, _) => Protocol::Is(number),
        },
        local_ports: ports(rule.local_ports),
        remote_ports: ports(rule.remote_ports),
    }
}

fn policy(rules: &[Rule]) -> Policy {
    let action = match rules[0].then {
        Fate::Tunnel(tunnel) => Action::Protect(spec(tunnel).index()),
        Fate::Clear => Action::Bypass,
        Fate::Nothing => Action::Discard,
    };
    let directions = match rules[0].ways {
        Ways::Both => Directions::Both,
        Ways::Out => Directions::Outbound,
        Ways::In => Directions::Inbound,
    };
    let selectors = rules.iter().map(selector).collect();
    if rules[0].populate.is_any() {
        let populating = Policy::populating(Selector::ANY, spec(0).index(), flags(rules[0].populate));
        return Policy { selectors, directions, ..populating };
    }
    Policy { selectors, directions, ..Policy::new(Selector::ANY, action) }
}

fn selecting(tunnel: u8, own: &[Rule]) -> SaSelectors {
    spec(tunnel).parameters(Side::A).selecting(own.iter().map(selector)).selectors
}

fn flags(populate: Populate) -> PopulateFlags {
    let all = [
        (populate.local, PopulateFlags::LOCAL),
        (populate.remote, PopulateFlags::REMOTE),
        (populate.protocol, PopulateFlags::PROTOCOL),
        (populate.local_ports, PopulateFlags::LOCAL_PORTS),
        (populate.remote_ports, PopulateFlags::REMOTE_PORTS),
    ];
    let set = all.into_iter().filter(|(is_set, _)| *is_set);
    set.fold(PopulateFlags::default(), |flags, (_, flag)| flags.with(flag))
}

fn spec(tunnel: u8) -> TunnelSpec {
    TunnelSpec::new(tunnel, Suite::AES128GCM16)
}

impl Site {
    pub fn new(choose: Choose<'_>) -> Self {
        let rules = rules(choose);
        let policies = rules.chunk_by(|a, b| a.policy == b.policy).map(policy).collect();
        let mut gateway = Gateway::new(policies, PoolSize(64, 2048), portable());
        let mut store = LeaseTwin::new(1 << 40);
        let mut selectors = Vec::new();
        for tunnel in 0..TUNNELS {
            // As the configuration does: the SA's selectors are those of the policies on packets that arrive
            // which name the tunnel.
            let is_own = |rule: &&Rule| rule.then == Fate::Tunnel(tunnel) && rule.ways != Ways::Out;
            let own: Vec<Rule> = rules.iter().filter(is_own).copied().collect();
            let mut install = spec(tunnel).install(Side::A, &mut store, None);
            install.parameters = install.parameters.selecting(own.iter().map(selector));
            install.parameters.non_first_fragments = AGREES.contains(&tunnel);
            gateway.install(install);
            selectors.push(own);
        }
        let peers = (0..TUNNELS).map(|tunnel| Sealer::new(&spec(tunnel), Side::B)).collect();
        Self { gateway, rules, selectors, peers, sealed: 0, memory: Memory::default(), asking: None }
    }

    /// Only a packet on which a policy decides that populates SAs asks for one.
    fn note_asking(&mut self, packet: &[u8]) {
        for event in self.gateway.worker.take_events() {
            let EventKind::Acquire(acquire) = event.kind else { continue };
            let seen = read(packet).expect("a packet");
            let ids = self.gateway.worker.policies().policies().map(|(id, _)| id);
            let at = ids.into_iter().position(|id| id == acquire.policy).map(|at| at as u8);
            assert!(at.is_some() && at == asks(&self.rules, &seen), "{packet:02x?} under {:x?}", self.rules);
            self.asking = Some((acquire, seen));
        }
    }

    /// Gives the flow that asked last what it asked for: a policy of its own ahead of the one that populates
    /// it, which leads into one of the tunnels.
    pub fn answer(&mut self, choose: Choose<'_>, met: &mut Met) {
        let Some((acquire, seen)) = self.asking.take() else { return };
        let worker = &self.gateway.worker;
        let ids: Vec<PolicyId> = worker.policies().policies().map(|(id, _)| id).collect();
        let Some(at) = ids.iter().position(|id| *id == acquire.policy) else { return };
        let Some(policy) =
            worker.policies().get(acquire.policy).filter(|p| p.populate != PopulateFlags::default())
        else {
            return;
        };
        let mut policies: Vec<Vec<Rule>> =
            self.rules.chunk_by(|a, b| a.policy == b.policy).map(<[Rule]>::to_vec).collect();
        let tunnel = choose() % TUNNELS;
        let own = populated(&policies[at], &seen)
            .into_iter()
            .map(|rule| Rule { then: Fate::Tunnel(tunnel), ..rule });
        let own: Vec<Rule> = own.collect();
        let selectors = policy.populated(&acquire.values);
        assert_eq!(own.is_empty(), selectors.is_empty(), "{acquire:?} under {:x?}", policies[at]);
        if own.is_empty() || policies.len() >= MAX_POLICIES {
            return;
        }
        let change = policy.of_populated(spec(tunnel).index(), selectors.into());
        let change = PolicyChange::Insert(Position::Before(acquire.policy), change);
        policies.insert(at, own);
        met.populated += u64::from(self.make(change, policies));
    }

    /// What the model says about a packet on its way.
    fn expected(&mut self, way: Way, packet: &[u8]) -> Fate {
        let Some(seen) = read(packet) else { return Fate::Nothing };
        let judge = |seen: &Seen| match way {
            Way::Out => judge_fully(&self.rules, seen, true),
            Way::Clear => judge_fully(&self.rules, seen, false),
            Way::Through(tunnel) => {
                judge_through(tunnel, &self.selectors[usize::from(tunnel)], &self.rules, seen)
            }
        };
        self.memory.decide(way, &seen, judge, &AGREES)
    }

    /// Adds a policy, puts another in the place of one, or removes one, in the gateway and in the model.
    /// Where the gateway refuses, because of too many ranges, nothing changes.
    pub fn change(&mut self, choose: Choose<'_>) {
        let mut policies: Vec<Vec<Rule>> =
            self.rules.chunk_by(|a, b| a.policy == b.policy).map(<[Rule]>::to_vec).collect();
        let ids: Vec<PolicyId> = self.gateway.worker.policies().policies().map(|(id, _)| id).collect();
        assert_eq!(ids.len(), policies.len(), "each has as many policies");
        let at = usize::from(choose()) % ids.len().max(1);
        let new = one_policy(choose, &self.rules);
        let change = match (choose() % 4, ids.get(at)) {
            (0, Some(id)) => {
                policies.remove(at);
                PolicyChange::Remove(*id)
            }
            (1, Some(id)) => {
                policies[at].clone_from(&new);
                PolicyChange::Replace(*id, policy(&new))
            }
            (2, Some(id)) => {
                policies.insert(at, new.clone());
                PolicyChange::Insert(Position::Before(*id), policy(&new))
            }
            (_, Some(id)) if choose().is_multiple_of(2) => {
                policies.insert(at + 1, new.clone());
                PolicyChange::Insert(Position::After(*id), policy(&new))
            }
            (_, _) if choose().is_multiple_of(2) => {
                policies.insert(0, new.clone());
                PolicyChange::Insert(Position::First, policy(&new))
            }
            (_, _) => {
                policies.push(new.clone());
                PolicyChange::Insert(Position::Last, policy(&new))
            }
        };
        // The model counts policies in a byte.
        if policies.len() > MAX_POLICIES {
            return;
        }
        self.make(change, policies);
    }

    /// Makes a change after which these are the policies; `false` if the gateway refuses it.
    fn make(&mut self, change: PolicyChange, policies: Vec<Vec<Rule>>) -> bool {
        // What a packet asked for is not what the policy asks for that takes its policy's place.
        if let PolicyChange::Replace(id, _) = &change {
            self.asking.take_if(|(acquire, _)| acquire.policy == *id);
        }
        let outcome = self.gateway.worker.change_policies(vec![change]);
        let is_made = outcome.iter().all(Result::is_ok);
        if is_made {
            let numbered = (0..).zip(policies);
            self.rules = numbered
                .flat_map(|(policy, rules)| rules.into_iter().map(move |r| Rule { policy, ..r }))
                .collect();
            self.follow_selectors();
        }
        is_made
    }

    /// SAs deliver what the policies on packets that arrive name.
    fn follow_selectors(&mut self) {
        for tunnel in 0..TUNNELS {
            let is_own = |rule: &&Rule| rule.then == Fate::Tunnel(tunnel) && rule.ways != Ways::Out;
            self.selectors[usize::from(tunnel)] = self.rules.iter().filter(is_own).copied().collect();
        }
        let selectors = self
            .selectors
            .iter()
            .zip(0..)
            .map(|(own, tunnel)| (spec(tunnel).index(), selecting(tunnel, own)));
        let update = Update { selectors: selectors.collect(), ..Update::default() };
        let now = self.gateway.now();
        assert!(self.gateway.worker.update(update, now).is_empty(), "no tunnel is installed");
    }

    /// What the gateway does with a packet from the protected side.
    fn fate_out(&mut self, packet: &[u8]) -> Fate {
        let left = self.gateway.seal(packet);
        self.note_asking(packet);
        let replies = self.gateway.protected.take();
        assert!(replies.is_empty(), "nothing is answered");
        match left.as_slice() {
            [] => Fate::Nothing,
            [same] if packet.starts_with(same) => Fate::Clear,
            all => {
                let spi =
                    |datagram: &Vec<u8>| (datagram[9] == 50).then(|| datagram[SPI_AT..SPI_AT + 4].to_vec());
                let tunnel_of = |d| {
                    (0..TUNNELS).find(|&t| spi(d) == Some(spec(t).spi_from(Side::A).to_be_bytes().to_vec()))
                };
                let tunnel = tunnel_of(&all[0]).unwrap_or_else(|| panic!("what is this: {all:02x?}"));
                assert!(
                    all.iter().all(|d| tunnel_of(d) == Some(tunnel)),
                    "one packet goes through one tunnel"
                );
                Fate::Tunnel(tunnel)
            }
        }
    }

    /// Whether a received packet reaches the protected side.
    fn comes_in(&mut self, datagram: Vec<u8>, packet: &[u8]) -> bool {
        let delivered = self.gateway.open(datagram);
        assert!(delivered.iter().all(|d| packet.starts_with(d)), "{packet:02x?} became {delivered:02x?}");
        !delivered.is_empty()
    }

    /// All packets of a datagram go their way as the model says, and only as the datagram as a whole may.
    pub fn carry(&mut self, way: Way, datagram: &Datagram, met: &mut Met) {
        datagram.packets.iter().for_each(|packet| self.carry_packet(way, datagram, packet, met));
    }

    /// The same for one of its packets.
    fn carry_packet(&mut self, way: Way, datagram: &Datagram, packet: &[u8], met: &mut Met) {
        match way {
            Way::Out => self.send(datagram, packet, met),
            Way::Clear => self.receive_clear(datagram, packet, met),
            Way::Through(tunnel) => self.receive_through(tunnel, datagram, packet, met),
        }
    }

    fn send(&mut self, datagram: &Datagram, packet: &[u8], met: &mut Met) {
        let whole = judge(&self.rules, &datagram.whole, true);
        let seen = read(packet);
        let expected = self.expected(Way::Out, packet);
        let fate = self.fate_out(packet);
        assert_eq!(fate, expected, "{packet:02x?} of {datagram:x?} under {:x?}", self.rules);
        let is_apart = seen.is_some_and(|seen| is_treated_apart(&self.rules, &seen, true));
        assert!(
            fate == Fate::Nothing || fate == whole || is_apart && fate != Fate::Clear,
            "{packet:02x?} of {datagram:x?} under {:x?}",
            self.rules
        );
        met.note(fate);
    }

    fn receive_clear(&mut self, datagram: &Datagram, packet: &[u8], met: &mut Met) {
        let whole = judge(&self.rules, &datagram.whole, false);
        let expected = self.expected(Way::Clear, packet);
        let came = self.comes_in(packet.to_vec(), packet);
        assert_eq!(came, expected == Fate::Clear, "{packet:02x?} of {datagram:x?} under {:x?}", self.rules);
        assert!(!came || whole == Fate::Clear, "{packet:02x?} of {datagram:x?} under {:x?}", self.rules);
        met.note(if came { Fate::Clear } else { Fate::Nothing });
    }

    fn receive_through(&mut self, tunnel: u8, datagram: &Datagram, packet: &[u8], met: &mut Met) {
        let selectors = &self.selectors[usize::from(tunnel)];
        let whole = may_come_through(tunnel, selectors, &self.rules, &datagram.whole);
        let seen = read(packet);
        let expected = self.expected(Way::Through(tunnel), packet) == Fate::Tunnel(tunnel);
        let is_apart = seen.is_some_and(|seen| is_treated_apart(&self.rules, &seen, false));
        let came = self.comes_through(tunnel, packet);
        assert_eq!(came, expected, "{packet:02x?} of {datagram:x?} through {tunnel} under {:x?}", self.rules);
        assert!(
            !came || whole || is_apart,
            "{packet:02x?} of {datagram:x?} through {tunnel} under {:x?}",
            self.rules
        );
        met.note(if came { Fate::Tunnel(tunnel) } else { Fate::Nothing });
    }

    fn comes_through(&mut self, tunnel: u8, packet: &[u8]) -> bool {
        self.sealed += 1;
        let sealed = self.peers[usize::from(tunnel)].seal(self.sealed, &Handmade::carrying(packet));
        self.comes_in(sealed, packet)
    }

    /// Any bytes leave as the model says, or are dropped: they may be too long, for one.
    pub fn send_bytes(&mut self, packet: &[u8]) {
        let expected = self.expected(Way::Out, packet);
        self.gateway.protected.push(packet);
        self.gateway.settle();
        self.note_asking(packet);
        // Replies that the packet is too long come back.
        self.gateway.protected.take();
        let left = self.gateway.unprotected.take();
        let in_clear = left.iter().any(|datagram| packet.starts_with(datagram));
        assert!(!in_clear || expected == Fate::Clear, "{packet:02x?} under {:x?}", self.rules);
        assert!(left.is_empty() || expected != Fate::Nothing, "{packet:02x?} under {:x?}", self.rules);
    }

    /// Any bytes come in in clear only where the model says so, ESP and AH never.
    pub fn receive_bytes(&mut self, packet: &[u8]) {
        let seen = read(packet);
        let expected = self.expected(Way::Clear, packet);
        let is_ipsec = seen.is_some_and(|seen| matches!(seen.protocol, Field::Shown(50 | 51)));
        let came = self.comes_in(packet.to_vec(), packet);
        assert!(!came || expected == Fate::Clear && !is_ipsec, "{packet:02x?} under {:x?}", self.rules);
    }

    /// Any bytes come out of a tunnel only where the model says so.
    pub fn receive_bytes_through(&mut self, tunnel: u8, packet: &[u8]) {
        let tunnel = tunnel % TUNNELS;
        let may = self.expected(Way::Through(tunnel), packet) == Fate::Tunnel(tunnel);
        let came = self.comes_through(tunnel, packet);
        assert!(!came || may, "{packet:02x?} through {tunnel} under {:x?}", self.rules);
    }

    pub fn assert_settled(&self) {
        self.gateway.assert_settled();
    }
}

/// Sends some datagrams out through a gateway with random policies.
pub fn outbound(choose: Choose<'_>, datagrams: usize, met: &mut Met) -> Site {
    let mut site = Site::new(choose);
    for number in 0..datagrams {
        let datagram = datagram(choose, true, number as u8);
        site.carry(Way::Out, &datagram, met);
        site.answer(choose, met);
        // Its flow goes on, under what it was given.
        site.carry(Way::Out, &datagram, met);
    }
    site.assert_settled();
    site
}

/// Sends and receives some datagrams, with a change of policies before each.
pub fn changing(choose: Choose<'_>, datagrams: usize, met: &mut Met) -> Site {
    let mut site = Site::new(choose);
    for number in 0..datagrams {
        site.change(choose);
        if choose().is_multiple_of(2) {
            site.answer(choose, met);
        }
        let way = any_way(choose);
        site.carry(way, &datagram(choose, way == Way::Out, number as u8), met);
    }
    site.assert_settled();
    site
}

fn any_way(choose: Choose<'_>) -> Way {
    match choose() % (TUNNELS + 2) {
        0 => Way::Out,
        1 => Way::Clear,
        other => Way::Through(other - 2),
    }
}

/// The same while packets of several datagrams are on their way, with changes of policies between them.
pub fn changing_between(choose: Choose<'_>, datagrams: usize, met: &mut Met) -> Site {
    let mut site = Site::new(choose);
    let mut on_their_way: Vec<(Way, Datagram, usize)> = Vec::new();
    let mut number = 0;
    while number < datagrams || !on_their_way.is_empty() {
        if choose().is_multiple_of(4) {
            site.change(choose);
            site.answer(choose, met);
        }
        if number < datagrams && (on_their_way.len() < 4 || choose().is_multiple_of(4)) {
            let way = any_way(choose);
            on_their_way.push((way, datagram(choose, way == Way::Out, number as u8), 0));
            number += 1;
        }
        let at = usize::from(choose()) % on_their_way.len().max(1);
        let Some((way, datagram, sent)) = on_their_way.get_mut(at) else { continue };
        if let Some(packet) = datagram.packets.get(*sent) {
            site.carry_packet(*way, datagram, packet, met);
            *sent += 1;
        } else {
            on_their_way.swap_remove(at);
        }
    }
    site.assert_settled();
    site
}

/// Receives some datagrams, in clear and through tunnels.
pub fn inbound(choose: Choose<'_>, datagrams: usize, met: &mut Met) -> Site {
    let mut site = Site::new(choose);
    for number in 0..datagrams {
        let tunnel = choose() % (TUNNELS + 1);
        let datagram = datagram(choose, false, number as u8);
        let way = if tunnel == TUNNELS { Way::Clear } else { Way::Through(tunnel) };
        site.carry(way, &datagram, met);
    }
    site.assert_settled();
    site
}
