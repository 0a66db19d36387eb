//! Reads `[[tunnel]]`.

use super::checks::{Facts, KeyRequest, Traffic};
use super::gateway::path;
use super::known_answer::{KNOWN_ANSWER, read_known_answer};
use super::limits::limits_of;
use super::model::{Remote, SaSettings, Selectors, Tunnel, legacy_parts};
use super::quantity;
use super::selector::{SelectorDraft, read_selector};
use super::value::{self, Parsed};
use super::vpe::{self, Carried};
use super::walk::{Located, Problem, Section, Walker};
use super::worker_sas::WorkerSasDraft;
use super::{group, interface, mtu_probe, packet_rules, worker_sas};
use crate::keys::KeySource;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;
use testudo_crypto::{NonceRule, Suite};
use testudo_ipsec::{
    DEFAULT_PEER_WINDOW, Dscp, Encapsulation, Fragmentation, IpsecProtocol, Lifetime, Limits, MAX_WINDOW,
    MIN_WINDOW, Mode, PacketRules, Selector,
};
use testudo_packet::Interface;
use toml::de::DeValue;

/// Selectors per tunnel at most.
pub const MAX_SELECTORS: usize = 256;
/// The key that confirms that a suite whose nonces are its sequence numbers is intended.
const ALLOW_COUNTER_NONCE: &str = "allow_manual_counter_nonce";
/// The key that confirms that a suite is intended which RFC 8221 speaks against.
const ALLOW_LEGACY: &str = "allow_legacy";
/// The key that confirms that replayed packets are to be accepted.
const ALLOW_REPLAY: &str = "allow_replay";
/// Longest silence before a keepalive, in seconds; NATs forget sooner.
const MAX_KEEPALIVE_SECONDS: u64 = 3600;

pub(super) fn read_tunnel(
    mut section: Section<'_>,
    walker: &mut Walker<'_>,
    base: &Path,
    facts: &mut Facts,
) -> Option<Pair> {
    let name = read_name(&mut section, walker, facts);
    let interface = interface::read_name(&mut section, walker, facts);
    let (protocols, mode) = read_protocols(&mut section, walker);
    let Carrying { carried, suite, port, encapsulation, keepalive } =
        read_carrying(&mut section, walker, protocols, mode);
    let (local, remote) = read_addresses(&mut section, walker, (carried, encapsulation), facts);
    refuse_in_transport(&mut section, walker, mode, remote);
    let Windows { esn, replay_window, peer_window } = read_windows(&mut section, walker);
    let dscp = section.or_default(walker, "dscp", Dscp::Copy, dscp);
    let fragmentation = read_fragmentation(&mut section, walker, mode);
    let non_first_fragments = section.or_default(walker, "non_first_fragments", false, value::boolean);
    let protocol = protocol_of(protocols, carried);
    let rules = packet_rules::read(&mut section, walker, (mode, fragmentation), protocol, local);
    let sender = group::read_sender(&mut section, walker, remote, facts);
    let vpe = carried.map(|carried| vpe::read_rules(&mut section, walker, carried, (local, port), facts));
    let rules = PacketRules { vpe: vpe.map(|vpe| Box::new(vpe.with_sender(sender))), ..rules };
    facts.ends.note(protocol, local, encapsulation);
    let is_group = group::is_group(remote);
    let selectors = read_selectors(&mut section, walker, interface, is_group.then_some(sender != 0), facts);
    let rules = mtu_probe::read(&mut section, walker, rules, &selectors);
    let is_pair = protocols == Protocols::AhAndEsp;
    let of_one = worker_sas::cannot_split(&mut section, is_pair, carried.is_some(), is_group);
    let worker_sas = worker_sas::read(&mut section, walker, base, of_one);
    let sas = read_sas(&mut section, walker, base, is_pair, is_group);
    let ah_suite = read_ah_suite(&mut section, walker, is_pair);
    read_counter_nonce(&mut section, walker, suite.map(Suite::nonce_rule));
    read_legacy(&mut section, walker, &[suite, ah_suite].into_iter().flatten().collect::<Vec<_>>());
    let limits = limits_of(read_lifetime(&mut section, walker));
    let known_answer = read_known_answer(&mut section, walker, esn, replay_window, facts);
    section.finish(walker);
    facts.note_all(&sas, &worker_sas, is_pair.then_some(ah_suite), (remote, protocol, suite));
    let keepalive = keepalive.filter(|_| !is_group);
    let tunnel = Tunnel {
        name: name?.value,
        local: local?,
        remote: remote?,
        interface: interface?,
        protocol,
        mode,
        covered_by: None,
        covers: None,
        suite: suite?,
        encapsulation: encapsulation?,
        keepalive,
        esn,
        replay_window,
        peer_window,
        dscp,
        rules,
        fragmentation,
        non_first_fragments,
        selectors,
        outbound: sas.outbound.complete()?,
        inbound: sas.inbound.complete()?,
        worker_sas: worker_sas::complete(worker_sas)?,
        limits,
        known_answer: known_answer.map(Box::new),
    };
    if !is_pair {
        return Some((tunnel, None));
    }
    let ah = covering(&tunnel, ah_suite?, sas.outbound_ah.complete()?, sas.inbound_ah.complete()?);
    Some((tunnel, Some(ah)))
}

/// Its name, by which messages call the section from here on.
fn read_name(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    facts: &mut Facts,
) -> Option<Located<String>> {
    let name = section.required(walker, "name", "\"site-b\"", value::name);
    if let Some(name) = &name {
        section.rename(format!("tunnel[{}]", name.value));
    }
    facts.names.push(name.clone());
    name
}

/// How packets are protected and carried, as far as it could be read.
struct Carrying {
    /// How VPE is, if the tunnel is one of VPE.
    carried: Option<Carried>,
    suite: Option<Suite>,
    /// VPE's UDP port, where it is given.
    port: Option<Located<u16>>,
    encapsulation: Option<Encapsulation>,
    keepalive: Option<Duration>,
}

fn read_carrying(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    protocols: Protocols,
    mode: Mode,
) -> Carrying {
    let suite = read_suite(section, walker, protocols);
    let carried = read_carried(section, walker, protocols, mode);
    let suite = match carried {
        Some(_) => vpe::read_suite(section, walker, suite),
        None => suite,
    };
    let (port, encapsulation, keepalive) = read_encapsulation(section, walker, carried);
    refuse_udp(section, walker, protocols, encapsulation.filter(|_| carried.is_none()));
    Carrying { carried, suite, port, encapsulation, keepalive }
}

fn protocol_of(protocols: Protocols, carried: Option<Carried>) -> IpsecProtocol {
    match (carried, protocols) {
        (Some(_), _) => IpsecProtocol::Vpe,
        (None, Protocols::Ah) => IpsecProtocol::Ah,
        (None, Protocols::Esp | Protocols::AhAndEsp) => IpsecProtocol::Esp,
    }
}

/// The SAs of AH that cover the datagrams of a tunnel.
fn covering(tunnel: &Tunnel, suite: Suite, outbound: SaSettings, inbound: SaSettings) -> Tunnel {
    Tunnel {
        // No other tunnel's name has a slash.
        name: format!("{}/ah", tunnel.name),
        protocol: IpsecProtocol::Ah,
        mode: Mode::Transport,
        suite,
        rules: PacketRules::default(),
        selectors: Vec::new(),
        outbound,
        inbound,
        ..tunnel.clone()
    }
}

/// A tunnel; with `ah+esp`, that of ESP, and the SAs of AH that cover its datagrams.
pub(super) type Pair = (Tunnel, Option<Tunnel>);

/// `protocol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocols {
    Esp,
    Ah,
    AhAndEsp,
}

fn read_protocols(section: &mut Section<'_>, walker: &mut Walker<'_>) -> (Protocols, Mode) {
    let words = [("esp", Protocols::Esp), ("ah", Protocols::Ah), ("ah+esp", Protocols::AhAndEsp)];
    let protocols = section.or_default(walker, "protocol", Protocols::Esp, value::choice(&words));
    let words = [("tunnel", Mode::Tunnel), ("transport", Mode::Transport)];
    (protocols, section.or_default(walker, "mode", Mode::Tunnel, value::choice(&words)))
}

/// The suite; of AH an integrity algorithm alone.
fn read_suite(section: &mut Section<'_>, walker: &mut Walker<'_>, protocols: Protocols) -> Option<Suite> {
    let suite = match protocols {
        Protocols::Ah => section.required(walker, "suite", "\"sha256\"", value::ah_suite),
        _ => section.required(walker, "suite", "\"aes128gcm16\"", value::suite),
    };
    suite.map(|suite| suite.value)
}

/// The integrity algorithm of AH beside ESP.
fn read_ah_suite(section: &mut Section<'_>, walker: &mut Walker<'_>, is_pair: bool) -> Option<Suite> {
    if !is_pair {
        let problem = Problem::expected("`ah_suite` only where AH covers ESP");
        section.refuse(walker, "ah_suite", problem.help("add `protocol = \"ah+esp\"`"));
        return None;
    }
    section.required(walker, "ah_suite", "\"sha256\"", value::ah_suite).map(|suite| suite.value)
}

/// A NAT changes addresses, which AH covers (RFC 3715 2.1).
fn refuse_udp(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    protocols: Protocols,
    encapsulation: Option<Encapsulation>,
) {
    if protocols != Protocols::Esp && encapsulation.is_some_and(|e| e != Encapsulation::Esp) {
        let problem = Problem::expected("no UDP around AH");
        let help = "AH covers the addresses that a NAT changes (RFC 3715 2.1): use ESP";
        section.refuse(walker, "encapsulation", problem.help(help));
    }
}

/// Transport mode is between two hosts that know each other's address, and has no outer header.
fn refuse_in_transport(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    mode: Mode,
    remote: Option<Remote>,
) {
    if mode != Mode::Transport {
        return;
    }
    if remote == Some(Remote::Any) {
        let problem = Problem::expected("an address, in transport mode");
        let help = "transport mode protects packets to one host (RFC 4301 4.1); tunnel mode learns addresses";
        section.refuse(walker, "remote", problem.help(help));
    }
    let problem = Problem::expected("`dscp` only in tunnel mode");
    section.refuse(walker, "dscp", problem.help("in transport mode a packet keeps its own header"));
    let problem = Problem::expected("`interface` only in tunnel mode");
    section.refuse(walker, "interface", problem.help("routes choose among tunnels, not among ends"));
}

/// Where packets are cut. Transport mode carries no fragments, so that there it is no choice.
fn read_fragmentation(section: &mut Section<'_>, walker: &mut Walker<'_>, mode: Mode) -> Fragmentation {
    let words = [("before", Fragmentation::Before), ("after", Fragmentation::After)];
    let given = section.located(walker, "fragment", value::choice(&words));
    let default = if mode == Mode::Transport { Fragmentation::After } else { Fragmentation::Before };
    if mode == Mode::Transport && given.as_ref().is_some_and(|given| given.value != default) {
        let problem = Problem::expected("\"after\", in transport mode");
        section.refuse(
            walker,
            "fragment",
            problem.help("transport mode carries no fragments (RFC 4303 3.3.4): leave `fragment` out"),
        );
    }
    given.map_or(default, |given| given.value)
}

fn dscp(value: &DeValue<'_>) -> Parsed<Dscp> {
    let expected = "\"copy\" or a number from 0 to 63";
    if value.as_str() == Some("copy") {
        return Ok(Dscp::Copy);
    }
    let number =
        value::number(0, 63)(value).map_err(|p| Problem { help: p.help, ..Problem::expected(expected) })?;
    u8::try_from(number).map(Dscp::Fixed).map_err(|_| Problem::expected(expected))
}

/// VPE's UDP port where it is given, how ESP or VPE is encapsulated, and the silence after which a keepalive
/// is sent. An encapsulation that is wrong is `None`, and no errors are reported about the keys that depend
/// on it.
fn read_encapsulation(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    carried: Option<Carried>,
) -> (Option<Located<u16>>, Option<Encapsulation>, Option<Duration>) {
    let given = section.value("encapsulation").is_some();
    let udp = match carried {
        // A word that is wrong was reported.
        None => section.value("encapsulation").and_then(|value| match value.get_ref().as_str() {
            Some("esp") => Some(false),
            Some("esp-in-udp") => Some(true),
            _ => None,
        }),
        Some(carried) => Some(carried == Carried::InUdp),
    };
    if let Some(carried) = carried {
        let (port, encapsulation) = vpe::read_ends(section, walker, carried);
        let has_keepalive = carried == Carried::InUdp && !vpe::has_port_per_window(section);
        let keepalive = if has_keepalive { read_keepalive(section, walker) } else { None };
        return (port, Some(encapsulation), keepalive);
    }
    if udp == Some(false) || !given {
        for key in ["local_port", "remote_port", "keepalive_seconds"] {
            let problem = Problem::expected(format!("`{key}` only where ESP is in UDP"));
            section.refuse(walker, key, problem.help("add `encapsulation = \"esp-in-udp\"`"));
        }
        return (None, Some(Encapsulation::Esp), None);
    }
    let port = || value::number_u16(1, u16::MAX);
    let local_port = section.or_default(walker, "local_port", 4500, port());
    let remote_port = section.or_default(walker, "remote_port", 4500, port());
    let keepalive = read_keepalive(section, walker);
    (None, udp.map(|_| Encapsulation::EspInUdp { local_port, remote_port }), keepalive)
}

pub(super) fn read_keepalive(section: &mut Section<'_>, walker: &mut Walker<'_>) -> Option<Duration> {
    let seconds = value::number(0, MAX_KEEPALIVE_SECONDS);
    let seconds = section.or_default(walker, "keepalive_seconds", 20, seconds);
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

/// How VPE is carried, if the tunnel is one of VPE.
fn read_carried(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    protocols: Protocols,
    mode: Mode,
) -> Option<Carried> {
    let words = [
        ("esp", None),
        ("esp-in-udp", None),
        ("vpe", Some(Carried::ByNumber)),
        ("vpe-in-udp", Some(Carried::InUdp)),
    ];
    let carried = section.optional(walker, "encapsulation", value::choice(&words)).flatten();
    match carried {
        Some(_) => vpe::refuse_others(section, walker, protocols == Protocols::Esp, mode),
        None => vpe::refuse_keys(section, walker),
    }
    carried
}

fn read_addresses(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    (carried, encapsulation): (Option<Carried>, Option<Encapsulation>),
    facts: &mut Facts,
) -> (Option<IpAddr>, Option<Remote>) {
    let local = section.required(walker, "local", "\"192.0.2.1\"", value::host_address);
    let remote = section.required(walker, "remote", "\"192.0.2.2\"", |value| match value.as_str() {
        Some("any") => Ok(Remote::Any),
        _ => group::host_or_group(value, carried).map(Remote::Address),
    });
    if let Some(remote) = &remote {
        let local = local.as_ref().map(|local| local.value);
        let (span, key) = (&remote.span, remote.key.clone());
        match (remote.value, local) {
            (Remote::Any, _) if encapsulation == Some(Encapsulation::Esp) => {
                let (what, help) = match carried {
                    Some(_) => ("VPE", "use `encapsulation = \"vpe-in-udp\"`"),
                    None => ("ESP", "add `encapsulation = \"esp-in-udp\"`"),
                };
                let problem = Problem::expected(format!("an address, where {what} is not in UDP"));
                walker.report(span, key, problem.help(help));
            }
            (Remote::Address(remote), Some(local)) if remote.is_ipv6() != local.is_ipv6() => {
                let version = if local.is_ipv6() { "IPv6" } else { "IPv4" };
                let problem = Problem::expected(format!("an {version} address, as `local` is"));
                walker.report(span, key, problem);
            }
            (Remote::Address(remote), Some(local)) if remote == local => {
                walker.report(span, key, Problem::expected("another address than `local`"));
            }
            _ => {}
        }
    }
    if let Some(Located { value: Remote::Address(value), span, key }) = remote.clone() {
        facts.peers.push(Located { value, span, key });
    }
    (local.map(|local| local.value), remote.map(|remote| remote.value))
}

/// The selectors; at an interface of its own, where routes choose, all packets if there are none. `of_group`
/// says of a tunnel to a group whether we send to it.
fn read_selectors(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    at: Option<Interface>,
    of_group: Option<bool>,
    facts: &mut Facts,
) -> Vec<Selectors> {
    // One that is wrong was reported, and is not the main one.
    let at = at.unwrap_or(Interface(u8::MAX));
    let given = section.value("selectors").is_some();
    let mut selectors = Vec::new();
    for mut item in section.tables(walker, "selectors", MAX_SELECTORS) {
        let SelectorDraft { selectors: entry, remotes } = read_selector(&mut item, walker);
        item.finish(walker);
        if at == Interface::MAIN {
            facts.routed.extend(remotes);
        }
        match of_group {
            None => facts.tunnel_rules.push(entry.clone().map(|value| Traffic::both_ways(at, value))),
            Some(sends) => {
                group::check_selectors(walker, &entry);
                facts.tunnel_rules.extend(group::entries(&entry.value, sends).map(
                    |(selectors, directions)| {
                        entry.clone().map(|_| Traffic { interface: at, selectors, directions })
                    },
                ));
            }
        }
        selectors.push(entry.value);
    }
    // A list that is wrong was reported already; an empty one counts as none.
    let none = !given
        || section.value("selectors").is_some_and(|v| v.get_ref().as_array().is_some_and(|a| a.is_empty()));
    let place = Located { value: (), span: section.span().clone(), key: section.path_of("selectors") };
    if !given && at != Interface::MAIN && of_group.is_none() {
        let all: Selectors = [Selector::ANY].into();
        facts.tunnel_rules.push(place.clone().map(|()| Traffic::both_ways(at, all.clone())));
        facts.without_selectors.push(None);
        return vec![all];
    }
    facts.without_selectors.push(none.then_some(place));
    selectors
}

/// What the numbers of a tunnel's packets are checked against, at both ends.
struct Windows {
    esn: bool,
    replay_window: u32,
    peer_window: u32,
}

fn read_windows(section: &mut Section<'_>, walker: &mut Walker<'_>) -> Windows {
    let esn = section.or_default(walker, "esn", true, value::boolean);
    let replay_window = read_replay_window(section, walker, esn);
    let packets = value::number(MIN_WINDOW.into(), MAX_WINDOW.into());
    let peer_window = section.or_default(walker, "peer_window", DEFAULT_PEER_WINDOW.into(), packets);
    Windows { esn, replay_window, peer_window: u32::try_from(peer_window).unwrap_or(DEFAULT_PEER_WINDOW) }
}

/// The replay window. To have none is a decision (RFC 4303 3.4.3), and without one a receiver does not know
/// where it is among extended numbers.
fn read_replay_window(section: &mut Section<'_>, walker: &mut Walker<'_>, esn: bool) -> u32 {
    let packets = section.or_default(walker, "replay_window", 4096, value::replay_window);
    let is_allowed = section.or_default(walker, ALLOW_REPLAY, false, value::boolean);
    let help = "anybody who recorded packets may send them again, and they are accepted";
    if packets == 0 && !is_allowed {
        let problem = Problem::expected(format!("`{ALLOW_REPLAY} = true` beside a window of 0"));
        section.refuse(walker, "replay_window", problem.help(help));
    } else if packets == 0 && esn {
        let problem = Problem::expected("`esn = false` beside a window of 0");
        section.refuse(
            walker,
            "replay_window",
            problem.help("extended numbers need a window (RFC 4303 3.4.3)"),
        );
    } else if packets > 0 && is_allowed {
        let problem = Problem::expected("it only beside `replay_window = 0`");
        section.refuse(walker, ALLOW_REPLAY, problem.help("replays are refused here: leave it out"));
    }
    packets
}

/// What could be read of an SA's section.
#[derive(Clone)]
pub(super) struct SaDraft {
    pub(super) spi: Option<Located<u32>>,
    pub(super) key: Option<Located<KeySource>>,
}

impl SaDraft {
    pub(super) fn complete(self) -> Option<SaSettings> {
        Some(SaSettings { spi: self.spi?.value, key: self.key?.value })
    }
}

/// The SAs of a tunnel.
struct Sas {
    outbound: SaDraft,
    outbound_ah: SaDraft,
    inbound: SaDraft,
    inbound_ah: SaDraft,
}

fn read_sas(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    base: &Path,
    is_pair: bool,
    is_group: bool,
) -> Sas {
    if is_group {
        let (own, of_ah) = read_sa(section, walker, "sa", base, false);
        let (outbound, inbound) = group::both_ways(own);
        let (outbound_ah, inbound_ah) = group::both_ways(of_ah);
        return Sas { outbound, outbound_ah, inbound, inbound_ah };
    }
    let (outbound, outbound_ah) = read_sa(section, walker, "outbound", base, is_pair);
    let (inbound, inbound_ah) = read_sa(section, walker, "inbound", base, is_pair);
    Sas { outbound, outbound_ah, inbound, inbound_ah }
}

/// The SA of a direction and, if `is_pair`, that of AH beside it.
pub(super) fn read_sa(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    key: &'static str,
    base: &Path,
    is_pair: bool,
) -> (SaDraft, SaDraft) {
    let nothing = || SaDraft { spi: None, key: None };
    if section.value(key).is_none() {
        let example = if key == "inbound" { "0x1002" } else { "0x1001" };
        section.missing(walker, key, &format!("{{ spi = {example}, key_file = \"site-b.key\" }}"));
    }
    // Known answers are packets as they are: those of RFCs have SPIs that no gateway may choose.
    let is_known = section.value(KNOWN_ANSWER).is_some();
    let parse: fn(&DeValue<'_>) -> Parsed<u32> = if is_known { value::any_spi } else { value::spi };
    let Some(mut sa) = section.table(walker, key) else { return (nothing(), nothing()) };
    let spi = sa.required(walker, "spi", "0x1001", parse);
    let own = SaDraft { spi, key: read_key_source(&mut sa, walker, base, &OF_SA) };
    let mut of_ah = nothing();
    if is_pair {
        of_ah.spi = sa.required(walker, "ah_spi", "0x2001", parse);
        of_ah.key = read_key_source(&mut sa, walker, base, &OF_AH);
    }
    sa.finish(walker);
    (own, of_ah)
}

/// Where a section names its keys: pasted (which is refused), in a file, in the environment.
struct KeyNames {
    pasted: &'static str,
    file: &'static str,
    variable: &'static str,
}

const OF_SA: KeyNames = KeyNames { pasted: "key", file: "key_file", variable: "key_env" };
const OF_AH: KeyNames = KeyNames { pasted: "ah_key", file: "ah_key_file", variable: "ah_key_env" };

fn read_key_source(
    sa: &mut Section<'_>,
    walker: &mut Walker<'_>,
    base: &Path,
    names: &KeyNames,
) -> Option<Located<KeySource>> {
    let pasted = sa.value(names.pasted).is_some();
    let help = "a configuration is copied, kept in backups and shown to others: put the key into a file of mode 0600 \
                and name it with `key_file`; if anybody has seen this key, make a new one";
    let either = format!("`{}` or `{}`", names.file, names.variable);
    let problem = Problem::expected(&*either).found("a key in the configuration (not shown)");
    sa.refuse(walker, names.pasted, problem.help(help));
    let (has_file, has_variable) = (sa.value(names.file).is_some(), sa.value(names.variable).is_some());
    let file = sa.located(walker, names.file, path(base));
    let variable = sa.located(walker, names.variable, environment_name);
    if has_file && has_variable {
        sa.refuse(walker, names.variable, Problem::expected(format!("either {either}")).found("both"));
    } else if !has_file && !has_variable && !pasted {
        sa.missing(walker, names.file, "\"site-b.key\"");
    }
    let file = file.map(|f| Located { value: KeySource::File(f.value), span: f.span, key: f.key });
    let variable =
        variable.map(|v| Located { value: KeySource::Environment(v.value), span: v.span, key: v.key });
    file.or(variable)
}

fn environment_name(value: &DeValue<'_>) -> Parsed<String> {
    let expected = "the name of an environment variable, of letters, digits and _";
    let text = value::string(value, expected)?;
    let allowed = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let starts = text.starts_with(|c: char| !c.is_ascii_digit());
    if allowed && starts && text.len() <= 128 {
        Ok(text.to_owned())
    } else {
        Err(Problem::expected(expected))
    }
}

/// Keys here are entered by hand, and the same one may be entered twice: a suite whose nonces are its
/// sequence numbers needs confirmation.
fn read_counter_nonce(section: &mut Section<'_>, walker: &mut Walker<'_>, rule: Option<NonceRule>) {
    let is_allowed = section.or_default(walker, ALLOW_COUNTER_NONCE, false, value::boolean);
    match (rule, is_allowed) {
        (Some(NonceRule::Counter), false) => {
            let problem = Problem::expected(format!("`{ALLOW_COUNTER_NONCE} = true`")).found("nothing");
            let help = "the nonces of this suite are its sequence numbers: a second gateway, or a second store, under these keys \
                        repeats them and gives the keys' secrets away; a suite with explicit IVs does not";
            let place = section.path_of(ALLOW_COUNTER_NONCE);
            walker.report(&section.span().clone(), place, problem.help(help));
        }
        (Some(NonceRule::Explicit), true) => {
            let problem = Problem::expected("it only where nonces are sequence numbers");
            section.refuse(
                walker,
                ALLOW_COUNTER_NONCE,
                problem.help("this suite has explicit IVs: leave it out"),
            );
        }
        _ => {}
    }
}

/// RFC 8221 5 and 6: what SHOULD NOT or MUST NOT be used is for peers that have nothing better, and is used
/// knowingly. `suites` are those of the tunnel, as far as they are known.
fn read_legacy(section: &mut Section<'_>, walker: &mut Walker<'_>, suites: &[Suite]) {
    let is_allowed = section.or_default(walker, ALLOW_LEGACY, false, value::boolean);
    let legacy: Vec<_> = suites.iter().copied().filter(|suite| suite.is_legacy()).map(legacy_parts).collect();
    if !legacy.is_empty() && !is_allowed {
        let problem = Problem::expected(format!("`{ALLOW_LEGACY} = true`")).found("nothing");
        let help = format!(
            "RFC 8221 says {}: such packets can be read or forged; \"aes256gcm16\" is better, or \"aes256-sha256\"",
            legacy.join(" and ")
        );
        walker.report(&section.span().clone(), section.path_of(ALLOW_LEGACY), problem.help(help));
    }
    if legacy.is_empty() && is_allowed && !suites.is_empty() {
        let problem = Problem::expected("it only where RFC 8221 speaks against a suite");
        section.refuse(walker, ALLOW_LEGACY, problem.help("there is nothing to allow: leave it out"));
    }
}

fn read_lifetime(section: &mut Section<'_>, walker: &mut Walker<'_>) -> Lifetime {
    let Some(mut table) = section.table(walker, "lifetime") else { return Lifetime::default() };
    let mut pair = |soft, hard, parse: fn(&DeValue<'_>) -> Parsed<u64>| {
        let soft = table.located(walker, soft, parse);
        let hard = table.located(walker, hard, parse);
        if let (Some(soft), Some(hard)) = (&soft, &hard)
            && soft.value >= hard.value
        {
            let problem = Problem::expected(format!("less than the hard limit of {}", hard.value));
            let help = "the soft limit warns in time, before the hard one stops the SA";
            walker.report(&soft.span, soft.key.clone(), problem.help(help));
        }
        (soft.map(|soft| soft.value), hard.map(|hard| hard.value))
    };
    let (soft_bytes, hard_bytes) = pair("soft_bytes", "hard_bytes", quantity::bytes);
    let (soft_packets, hard_packets) = pair("soft_packets", "hard_packets", quantity::packets);
    let (soft_seconds, hard_seconds) = pair("soft_seconds", "hard_seconds", quantity::seconds);
    table.finish(walker);
    let limits = |bytes, packets, seconds: Option<u64>| Limits {
        bytes,
        packets,
        time: seconds.map(Duration::from_secs),
    };
    Lifetime {
        soft: limits(soft_bytes, soft_packets, soft_seconds),
        hard: limits(hard_bytes, hard_packets, hard_seconds),
    }
}

impl Facts {
    /// Notes what must be unique of all SAs of a tunnel, with the suite of AH where that covers ESP.
    fn note_all(
        &mut self,
        sas: &Sas,
        worker_sas: &[WorkerSasDraft],
        ah_suite: Option<Option<Suite>>,
        (remote, protocol, suite): (Option<Remote>, IpsecProtocol, Option<Suite>),
    ) {
        self.note_sas((&sas.outbound, &sas.inbound), remote, protocol, suite);
        worker_sas::note(self, worker_sas, (remote, protocol, suite));
        if let Some(ah_suite) = ah_suite {
            self.note_sas_of_ah((&sas.outbound_ah, &sas.inbound_ah), remote, ah_suite);
        }
    }

    /// Notes what must be unique among all SAs.
    fn note_sas(
        &mut self,
        (outbound, inbound): (&SaDraft, &SaDraft),
        remote: Option<Remote>,
        protocol: IpsecProtocol,
        suite: Option<Suite>,
    ) {
        let at = |spi: &Located<u32>| (spi.span.clone(), spi.key.clone());
        if let Some(spi) = &inbound.spi {
            let (span, key) = at(spi);
            self.inbound_spis.push(Located { value: (spi.value, protocol), span, key });
        }
        if let (Some(spi), Some(remote)) = (&outbound.spi, remote) {
            let (span, key) = at(spi);
            self.outbound_spis.push(Located { value: (spi.value, protocol, remote), span, key });
        }
        let is_group = group::is_group(remote);
        for (sa, is_same) in [(outbound, false), (inbound, is_group)] {
            self.keys.extend(sa.key.clone().map(|source| KeyRequest { source, suite, is_same }));
        }
    }

    /// The same for SAs of AH that cover ESP: their keys come after those of all tunnels.
    fn note_sas_of_ah(&mut self, sas: (&SaDraft, &SaDraft), remote: Option<Remote>, suite: Option<Suite>) {
        let keys = std::mem::take(&mut self.keys);
        self.note_sas(sas, remote, IpsecProtocol::Ah, suite);
        self.keys_of_ah.append(&mut self.keys);
        self.keys = keys;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The errors about a tunnel with these lines under a suite with such a nonce rule.
    fn complaints(lines: &str, rule: NonceRule) -> String {
        complaints_of(lines, |section, walker| read_counter_nonce(section, walker, Some(rule)))
    }

    /// The errors about a tunnel with these lines, of which `read` reads some.
    fn complaints_of(lines: &str, read: impl FnOnce(&mut Section<'_>, &mut Walker<'_>)) -> String {
        let text = format!("[tunnel]\n{lines}\n");
        let mut walker = Walker::new(&text);
        let document = toml::de::DeTable::parse(&text).unwrap();
        let mut root = Section::new("", 0..0, Some(document.get_ref()));
        let mut section = root.table(&mut walker, "tunnel").unwrap();
        read(&mut section, &mut walker);
        section.finish(&mut walker);
        if walker.is_clean() { String::new() } else { walker.into_errors("t.toml").to_string() }
    }

    /// RFC 8221 5 and 6.
    #[test]
    fn legacy_suites_must_be_confirmed_and_others_must_not() {
        let allowed = "allow_legacy = true";
        let complaints = |lines: &str, suite: &str| {
            let suite = suite.parse().unwrap();
            complaints_of(lines, |section, walker| read_legacy(section, walker, &[suite]))
        };
        for suite in ["des-md5", "3des-sha1", "aes128-md5", "null-md5"] {
            assert_eq!(complaints(allowed, suite), "");
            let told = complaints("allow_legacy = false", suite);
            assert!(told.contains(allowed) && told.contains("RFC 8221"), "{told}");
        }
        let told = complaints("", "3des-md5");
        assert!(told.contains("SHOULD NOT to 3des and MUST NOT to md5"), "{told}");
        for suite in ["aes128gcm16", "aes128-sha1", "null-aesxcbc"] {
            assert_eq!(complaints("", suite), "");
            let told = complaints(allowed, suite);
            assert!(told.contains("leave it out"), "{told}");
        }
    }

    #[test]
    fn counter_nonces_must_be_confirmed_and_explicit_ones_must_not() {
        let allowed = "allow_manual_counter_nonce = true";
        assert_eq!(complaints(allowed, NonceRule::Counter), "");
        assert_eq!(complaints("", NonceRule::Explicit), "");
        let told = complaints("", NonceRule::Counter);
        assert!(told.contains(allowed) && told.contains("second store"), "{told}");
        let told = complaints(allowed, NonceRule::Explicit);
        assert!(told.contains("explicit IVs"), "{told}");
    }
}
