//! Reads what a tunnel of VPE has beyond one of ESP (`docs/VPE.md`): `ip_protocol`, `udp_port`, `slots`,
//! `classes`, `windows_max`, `udp_source_ports`.

use super::checks::Facts;
use super::model::{Configuration, Tunnel};
use super::value::{self, Parsed};
use super::walk::{Located, Problem, Section, Walker};
use super::workers::MAX_WORKERS;
use std::net::IpAddr;
use testudo_crypto::Suite;
use testudo_ipsec::{Encapsulation, IpsecProtocol, Mode, ReplayWindow, VpeClasses, VpeRules, VpeSourcePorts};
use testudo_wire::protocol;
use testudo_wire::vpe::{VPE_PROTOCOL, VPE_UDP_PORT};
use toml::de::DeValue;

/// The keys that only tunnels of VPE have.
const KEYS: [&str; 5] = ["ip_protocol", "slots", "classes", "windows_max", "rehash_seconds"];
/// Whether windows have UDP source ports of their own.
const SOURCE_PORTS: &str = "udp_source_ports";
const PER_WINDOW: &str = "per-window";
/// Sets of DSCP values at most: as many as there are values.
const MAX_SETS: usize = 64;
const DSCP_VALUES: usize = 64;
/// The most slots of a sender: with more, each would have less than one flow in a million.
const MAX_SLOTS: u16 = 8192;
/// The most windows of a sender: as many as there are Window IDs.
pub(super) const MAX_WINDOWS: u32 = 1 << 16;
/// A day.
const MAX_REHASH_SECONDS: u32 = 24 * 60 * 60;
/// Where ESP in UDP has its non-ESP marker (RFC 3948 2.2), VPE may have zeros.
const NAT_PORT: u16 = 4500;

impl Configuration {
    /// How much memory replay windows of VPE take if peers have all the windows that they may have: a line
    /// for `testudo check`. `None` where no tunnel is of VPE.
    #[must_use]
    pub fn vpe_note(&self) -> Option<String> {
        let are_shared = self.gateway.workers.most(self.gateway.workers_max, MAX_WORKERS) > 1;
        let bytes = |tunnel: &Tunnel| {
            let of_one = ReplayWindow::bitmap_bytes(tunnel.replay_window, are_shared) as u64;
            u64::from(tunnel.rules.of_vpe().windows_max) * of_one
        };
        let of_vpe = self.tunnels.iter().filter(|tunnel| tunnel.protocol == IpsecProtocol::Vpe);
        let largest = of_vpe.clone().max_by_key(|tunnel| bytes(tunnel))?;
        let all: u64 = of_vpe.map(bytes).sum();
        let [all, most] = [all, bytes(largest)].map(|bytes| bytes.div_ceil(1 << 20));
        Some(format!(
            "windows of VPE: at most {all} MiB, {most} MiB of them for tunnel {}, where peers have `windows_max`",
            largest.name
        ))
    }
}

/// What `encapsulation` says of VPE: `None` for a tunnel of ESP or AH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carried {
    ByNumber,
    InUdp,
}

/// Where tunnels listen, and what must not meet there.
#[derive(Default)]
pub(super) struct Ends {
    /// Addresses at which ESP is served as an IP protocol, and UDP ports on which it is.
    esp: Vec<IpAddr>,
    esp_ports: Vec<u16>,
    /// The same for VPE, as far as ESP may want it, too.
    vpe_as_esp: Vec<Located<IpAddr>>,
    vpe_ports: Vec<Located<u16>>,
}

impl Ends {
    /// Notes where a tunnel of ESP listens.
    pub(super) fn note(
        &mut self,
        protocol: IpsecProtocol,
        local: Option<IpAddr>,
        encapsulation: Option<Encapsulation>,
    ) {
        match encapsulation.filter(|_| protocol == IpsecProtocol::Esp) {
            Some(Encapsulation::Esp) => self.esp.extend(local),
            Some(Encapsulation::EspInUdp { local_port, .. }) => self.esp_ports.push(local_port),
            None => {}
        }
    }

    /// One protocol number, and one UDP port, mean one thing.
    pub(super) fn check(&self, walker: &mut Walker<'_>, ike_port: Option<u16>) {
        for at in &self.vpe_as_esp {
            if ike_port.is_some() || self.esp.contains(&at.value) {
                let problem = Problem::expected("another number than 50, where ESP is served");
                let help = format!("{} serves ESP: use 253, or an address of its own for VPE", at.value);
                walker.report(&at.span, at.key.clone(), problem.help(help));
            }
        }
        for port in &self.vpe_ports {
            if ike_port == Some(port.value) || self.esp_ports.contains(&port.value) {
                let problem = Problem::expected("a UDP port on which nobody expects ESP");
                walker.report(&port.span, port.key.clone(), problem.help("leave it out: VPE has port 4501"));
            }
        }
    }
}

/// The suite of VPE that a suite stands for: there are three.
pub(super) fn read_suite(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    suite: Option<Suite>,
) -> Option<Suite> {
    let suite = suite?;
    let of_vpe = suite.for_vpe();
    if of_vpe.is_none() {
        let names = Suite::ALL_FOR_VPE.map(|suite| format!("\"{suite}\"")).join(", ");
        let problem = Problem::expected(format!("one of {names}, for VPE"));
        section.refuse(walker, "suite", problem.help("its ICV of 16 bytes and its nonce are in its header"));
    }
    of_vpe
}

/// Where datagrams of VPE go.
pub(super) fn read_ends(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    carried: Carried,
) -> (Option<Located<u16>>, Encapsulation) {
    for key in ["local_port", "remote_port"] {
        let problem = Problem::expected(format!("`{key}` only where ESP is in UDP"));
        section.refuse(walker, key, problem.help("both ends of VPE have one port: `udp_port`"));
    }
    if carried == Carried::ByNumber {
        for key in ["udp_port", "keepalive_seconds"] {
            let problem = Problem::expected(format!("`{key}` only where VPE is in UDP"));
            section.refuse(walker, key, problem.help("use `encapsulation = \"vpe-in-udp\"`"));
        }
        return (None, Encapsulation::Esp);
    }
    let (port, number) = read_port(section, walker);
    (port, Encapsulation::EspInUdp { local_port: number, remote_port: number })
}

/// The UDP source ports of a tunnel. Where each window has its own, no NAT may be on the way, so that there
/// is nothing to keep alive.
fn read_source_ports(section: &mut Section<'_>, walker: &mut Walker<'_>, carried: Carried) -> VpeSourcePorts {
    let words = [("one", VpeSourcePorts::One), (PER_WINDOW, VpeSourcePorts::PerWindow)];
    let ports = section.or_default(walker, SOURCE_PORTS, VpeSourcePorts::One, value::choice(&words));
    if carried == Carried::ByNumber {
        let problem = Problem::expected(format!("`{SOURCE_PORTS}` only where VPE is in UDP"));
        section.refuse(walker, SOURCE_PORTS, problem.help("use `encapsulation = \"vpe-in-udp\"`"));
    }
    if ports == VpeSourcePorts::PerWindow {
        let problem = Problem::expected("no `keepalive_seconds` with `udp_source_ports = \"per-window\"`");
        let help =
            "a NAT would map each window apart, and no mapping would lead back: behind one use \"one\"";
        section.refuse(walker, "keepalive_seconds", problem.help(help));
    }
    ports
}

/// Whether windows have UDP source ports of their own, as far as it is known before that is checked.
pub(super) fn has_port_per_window(section: &mut Section<'_>) -> bool {
    let value = section.value(SOURCE_PORTS);
    value.is_some_and(|value| value.get_ref().as_str() == Some(PER_WINDOW))
}

/// Refuses [`SOURCE_PORTS`] where a daemon may find a NAT.
pub(super) fn refuse_source_ports(section: &mut Section<'_>, walker: &mut Walker<'_>) {
    let problem = Problem::expected(format!("`{SOURCE_PORTS}` only in a tunnel that is configured"));
    let help = "a daemon may find a NAT, which needs one port for all that is sent: leave it out";
    section.refuse(walker, SOURCE_PORTS, problem.help(help));
}

/// VPE's UDP port: where it is given, and its number.
pub(super) fn read_port(section: &mut Section<'_>, walker: &mut Walker<'_>) -> (Option<Located<u16>>, u16) {
    let port = section.located(walker, "udp_port", value::number_u16(1, u16::MAX));
    if port.as_ref().is_some_and(|port| port.value == NAT_PORT) {
        let problem = Problem::expected("another port than 4500");
        let help = "its first four bytes may be zero, and would say there that it is IKE (RFC 3948 2.2)";
        section.refuse(walker, "udp_port", problem.help(help));
    }
    let number = port.as_ref().map_or(VPE_UDP_PORT, |port| port.value);
    (port, number)
}

/// Refuses what VPE has in another way than ESP.
pub(super) fn refuse_others(section: &mut Section<'_>, walker: &mut Walker<'_>, is_esp: bool, mode: Mode) {
    let refusals = [
        ("protocol", !is_esp, "`protocol` is for ESP and AH", "leave it out: VPE is a protocol of its own"),
        ("mode", mode == Mode::Transport, "tunnel mode", "VPE carries whole packets"),
        ("esn", true, "no `esn`", "each packet of VPE has all 64 bits of its number: leave it out"),
    ];
    for (key, is_wrong, expected, help) in refusals {
        if is_wrong {
            section.refuse(walker, key, Problem::expected(expected).help(help));
        }
    }
}

/// Refuses VPE's keys in a tunnel of ESP or AH.
pub(super) fn refuse_keys(section: &mut Section<'_>, walker: &mut Walker<'_>) {
    for key in KEYS.into_iter().chain(["udp_port", SOURCE_PORTS]) {
        let problem = Problem::expected(format!("`{key}` only with VPE"));
        section.refuse(walker, key, problem.help("add `encapsulation = \"vpe\"` or \"vpe-in-udp\""));
    }
}

/// The rules of a tunnel of VPE at this address of ours.
pub(super) fn read_rules(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    carried: Carried,
    (local, port): (Option<IpAddr>, Option<Located<u16>>),
    facts: &mut Facts,
) -> VpeRules {
    let number = section.located(walker, "ip_protocol", ip_protocol);
    if carried == Carried::InUdp && number.is_some() {
        let problem = Problem::expected("no `ip_protocol` where VPE is in UDP");
        section.refuse(walker, "ip_protocol", problem.help("UDP has a number of its own: leave it out"));
    }
    if let (Some(number), Some(local)) = (&number, local)
        && number.value == protocol::ESP
    {
        let place = number.clone();
        facts.ends.vpe_as_esp.push(Located { value: local, span: place.span, key: place.key });
    }
    facts.ends.vpe_ports.extend(port);
    let slots = section.or_default(walker, "slots", VpeRules::SLOTS, value::number_u16(8, MAX_SLOTS));
    let classes = section.or_default(walker, "classes", VpeClasses::default(), classes);
    let windows_max = section.located(walker, "windows_max", value::number_u32(1, MAX_WINDOWS));
    let rules = VpeRules::default()
        .with_ip_protocol(number.map_or(VPE_PROTOCOL, |number| number.value))
        .with_windows_max(windows_max.as_ref().map_or(VpeRules::WINDOWS_MAX, |max| max.value))
        .with_rehash(section.or_default(
            walker,
            "rehash_seconds",
            0,
            value::number_u32(0, MAX_REHASH_SECONDS),
        ));
    let rules = rules.with_source_ports(read_source_ports(section, walker, carried));
    let rules = rules.with_slots(classes, 0, slots).unwrap_or_else(|error| {
        let problem = Problem::expected("at most 65,536 windows, of slots and classes together");
        section.refuse(walker, "slots", problem.help(error.to_string()));
        rules
    });
    if rules.windows_max < rules.windows() {
        let problem = Problem::expected(format!("{} or more", rules.windows()));
        let help = format!(
            "a peer that is configured like this gateway sends in {} windows, slots times classes",
            rules.windows()
        );
        let place = section.path_of("windows_max");
        let span = windows_max.map_or_else(|| section.span().clone(), |max| max.span);
        walker.report(&span, place, problem.found(rules.windows_max.to_string()).help(help));
    }
    rules
}

/// The windows of several workers, of which each has slots of its own: `"all"` may be as many as there can
/// be.
pub(super) fn check_workers(
    walker: &mut Walker<'_>,
    workers: usize,
    (section, name): (&str, &Located<String>),
    rules: &VpeRules,
) {
    let windows = u64::from(rules.windows()) * u64::try_from(workers).unwrap_or(u64::MAX);
    if rules.of_worker(workers.saturating_sub(1)).is_err() {
        let problem = Problem::expected("at most 65,536 windows, of slots, classes and workers together");
        let help = format!("{workers} workers would send in {windows}: have fewer slots");
        walker.report(&name.span, format!("{section}[{}].slots", name.value), problem.help(help));
    } else if u64::from(rules.windows_max) < windows && rules.windows_max >= rules.windows() {
        let problem = Problem::expected(format!("{windows} or more, with {workers} workers"));
        let help = format!(
            "a peer that is configured like this gateway sends in {windows} windows, slots times classes \
             times workers"
        );
        let problem = problem.found(rules.windows_max.to_string()).help(help);
        walker.report(&name.span, format!("{section}[{}].windows_max", name.value), problem);
    }
}

/// Numbers that mean nothing else (IANA, "Protocol Numbers"), those for experiments, and that of ESP.
fn ip_protocol(value: &DeValue<'_>) -> Parsed<u8> {
    let expected = || Problem::expected("50, or a number from 146 to 254");
    let number = value::number(0, 255)(value).map_err(|p| Problem { help: p.help, ..expected() })?;
    match u8::try_from(number) {
        Ok(number @ (50 | 146..=254)) => Ok(number),
        _ => {
            Err(expected().help("other numbers belong to other protocols: 253 is for experiments (RFC 3692)"))
        }
    }
}

/// Sets of DSCP values, each of which has windows of its own.
fn classes(value: &DeValue<'_>) -> Parsed<VpeClasses> {
    let expected = || Problem::expected("a list of lists of DSCP values, each value once");
    let sets = value.as_array().filter(|sets| sets.len() <= MAX_SETS).ok_or_else(expected)?;
    let (mut all, mut seen) = (Vec::with_capacity(sets.len()), [false; DSCP_VALUES]);
    for set in sets {
        let mut values = Vec::new();
        for dscp in set.get_ref().as_array().filter(|set| !set.is_empty()).ok_or_else(expected)? {
            let dscp = value::number(0, 63)(dscp.get_ref()).map_err(|_| expected())?;
            let dscp = u8::try_from(dscp).map_err(|_| expected())?;
            if std::mem::replace(&mut seen[usize::from(dscp)], true) {
                return Err(expected().found(format!("{dscp} twice")));
            }
            values.push(dscp);
        }
        all.push(values);
    }
    Ok(VpeClasses::of_sets(all.iter().map(Vec::as_slice)))
}
