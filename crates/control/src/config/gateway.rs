//! Reads `[gateway]` and the ports.

use super::model::{
    AuditTarget, Gateway, InterfaceAddress, LogLevel, ProtectedPort, Tunnel, UnprotectedPort,
};
use super::port_kind::{self, KindName, PortKind};
use super::value::{self, Parsed};
use super::walk::{Located, Problem, Section, Walker};
use super::{dpdk, engine, mentions_ipv6, offload, workers, xdp};
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use testudo_ipsec::{Fragmentation, Mode};
use testudo_packet::Interface;
use toml::de::DeValue;

/// Engines that are tried if none are named; of equally fast ones the first is used.
pub const ENGINES: [&str; 3] = ["vaes", "ipsec-mb", PORTABLE];
/// Engines that may be named.
const NAMEABLE: [&str; 6] = ["vaes", "ipsec-mb", engine::CRYPTODEV, engine::GPU, engine::CORES, PORTABLE];
/// The engine that supports every suite and is always last.
const PORTABLE: &str = "portable";
/// Addresses per interface at most.
const MAX_ADDRESSES: usize = 64;
/// IPv6, UDP and ESP with an IV and the most padding of 16 bytes and an ICV of 32.
const LONGEST_HEADERS: u16 = 40 + 8 + 8 + 16 + 17 + 32;
/// The smallest MTU of a link with IPv4 (RFC 791: what every host must accept).
const MIN_MTU: u16 = 576;
/// The smallest MTU of a link with IPv6 (RFC 8200 5).
const MIN_MTU_IPV6: u16 = 1280;

/// A path; a relative one is resolved against the configuration's folder.
pub(super) fn path(base: &Path) -> impl Fn(&DeValue<'_>) -> Parsed<PathBuf> {
    move |value| match value::string(value, "a path")? {
        "" => Err(Problem::expected("a path")),
        text => Ok(base.join(text)),
    }
}

pub(super) fn read_gateway(
    mut section: Section<'_>,
    walker: &mut Walker<'_>,
    base: &Path,
) -> Option<Gateway> {
    let levels = [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug];
    let levels = levels.map(|level| (level.name(), level));
    let state = section.required(walker, "state", "\"/var/lib/testudo/state.redb\"", path(base));
    let control = PathBuf::from("/run/testudo/control.sock");
    let control = section.or_default(walker, "control", control, path(base));
    let (metrics, dashboard) = read_pages(&mut section, walker);
    let engines = read_engines(&mut section, walker);
    let engines_named = section.value("engines").is_some();
    let log = section.or_default(walker, "log", LogLevel::Info, value::choice(&levels));
    let buffers = section.located(walker, "buffers", value::number_u32(256, 1 << 20));
    let (workers, workers_max) = workers::read(&mut section, walker, &engines);
    let spread_inbound = workers::read_spread(&mut section, walker, workers, workers_max);
    let seccomp = section.or_default(walker, "seccomp", true, value::boolean);
    let allow_key_export = section.or_default(walker, "allow_key_export", false, value::boolean);
    let audit = section.located(walker, "audit", audit(base));
    section.finish(walker);
    if let Some(Located { value: AuditTarget::File(path), span, key }) = &audit {
        let is_state = state.as_ref().is_some_and(|state| is_same(&state.value, path));
        if is_state || is_same(&control, path) {
            let problem = Problem::expected("a file of its own, for lines of JSON");
            let found =
                if is_state { "the file of `state`, which they would destroy" } else { "that of `control`" };
            walker.report(span, key.clone(), problem.found(found));
        }
    }
    let audit = audit.map_or(AuditTarget::Log, |audit| audit.value);
    let buffers_named = buffers.is_some();
    // Without a number it follows from what is read later.
    let buffers = buffers.and_then(|buffers| usize::try_from(buffers.value).ok()).unwrap_or(0);
    Some(Gateway {
        state: state?.value,
        control,
        metrics,
        dashboard,
        engines,
        engines_named,
        log,
        audit,
        buffers,
        buffers_named,
        workers,
        workers_max,
        spread_inbound,
        seccomp,
        allow_key_export,
    })
}

/// Where metrics and the dashboard are served: each at a port of its own.
fn read_pages(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
) -> (Option<SocketAddr>, Option<SocketAddr>) {
    let why = "metrics are not authenticated: let a proxy or scraper on this machine pass them on";
    let metrics = section.located(walker, "metrics", value::loopback_socket(9468, why));
    let why =
        "the dashboard is not authenticated: reach it from elsewhere with `ssh -L 9469:127.0.0.1:9469 HOST`";
    let dashboard = section.located(walker, "dashboard", value::loopback_socket(9469, why));
    if let (Some(metrics), Some(dashboard)) = (&metrics, &dashboard)
        && metrics.value == dashboard.value
    {
        walker.report_repeated(dashboard, metrics, Problem::expected("another port than that of `metrics`"));
    }
    (metrics.map(|metrics| metrics.value), dashboard.map(|dashboard| dashboard.value))
}

/// Whether two paths name the same file, as far as their texts say.
fn is_same(a: &Path, b: &Path) -> bool {
    let parts = |path: &Path| -> Vec<_> {
        let parts = path.components().filter(|part| *part != Component::CurDir);
        parts.map(|part| part.as_os_str().to_owned()).collect()
    };
    parts(a) == parts(b)
}

/// Where auditable events go: "log", "off", or the path of a file.
fn audit(base: &Path) -> impl Fn(&DeValue<'_>) -> Parsed<AuditTarget> {
    move |value| match value.as_str() {
        Some("log") => Ok(AuditTarget::Log),
        Some("off") => Ok(AuditTarget::Off),
        Some(text) if text.contains('/') => Ok(AuditTarget::File(base.join(text))),
        _ => Err(Problem::expected("\"log\", \"off\" or the path of a file")
            .help("a path has a slash, such as \"/var/log/testudo/audit.json\" or \"./audit.json\"")),
    }
}

fn read_engines(section: &mut Section<'_>, walker: &mut Walker<'_>) -> Vec<String> {
    let words = NAMEABLE.map(|name| (name, name));
    let named = section.list(walker, "engines", 16, value::choice(&words));
    let mut engines: Vec<&str> = Vec::new();
    for engine in named.unwrap_or_default() {
        if engines.contains(&engine.value) {
            walker.report(&engine.span, engine.key, Problem::expected("each engine once"));
        } else if engines.contains(&PORTABLE) {
            let help = "portable does everything, so that an engine behind it would never be asked";
            walker.report(&engine.span, engine.key, Problem::expected("\"portable\" last").help(help));
        } else {
            engines.push(engine.value);
        }
    }
    let engines = if section.value("engines").is_none() { ENGINES.to_vec() } else { engines };
    let mut engines: Vec<String> = engines.into_iter().map(str::to_owned).collect();
    if !engines.iter().any(|name| name == PORTABLE) {
        engines.push(PORTABLE.to_owned());
    }
    engines
}

/// What the MTUs of interfaces follow from.
pub(super) struct Link<'l> {
    pub(super) port: &'l Located<UnprotectedPort>,
    pub(super) tunnels: &'l [Tunnel],
}

/// The longest packet of hosts behind a fast port, unless the configuration says another: Ethernet's.
const ETHERNET_MTU: u16 = 1500;

/// `[port.protected]` before its MTU is settled.
pub(super) struct ProtectedDraft {
    kind: PortKind,
    name: Option<Located<String>>,
    addresses: Vec<InterfaceAddress>,
    mtu: Option<Located<u16>>,
    pub(super) routes: bool,
}

pub(super) fn read_protected(mut section: Section<'_>, walker: &mut Walker<'_>) -> ProtectedDraft {
    let kind = section.required(walker, "kind", "\"tun\"", value::choice(&port_kind::PROTECTED));
    let draft = match kind.map(|kind| kind.value) {
        Some(KindName::Xdp) => read_fast(&mut section, walker),
        Some(KindName::Dpdk) => read_dpdk(&mut section, walker),
        Some(KindName::Host) | None => {
            let name = section.required(walker, "name", "\"testudo0\"", value::interface);
            let addresses = read_addresses(&mut section, walker);
            let mtu = read_mtu(&mut section, walker);
            let routes = section.or_default(walker, "routes", true, value::boolean);
            ProtectedDraft { kind: PortKind::Host, name, addresses, mtu, routes }
        }
    };
    section.finish(walker);
    draft
}

/// An interface of the host that the protected hosts are behind.
fn read_fast(section: &mut Section<'_>, walker: &mut Walker<'_>) -> ProtectedDraft {
    let name = section.required(walker, "interface", "\"eth1\"", value::interface);
    refuse_of_tun(section, walker);
    let mtu = read_mtu(section, walker);
    let kind = PortKind::Xdp(xdp::read_settings(section, walker));
    ProtectedDraft { kind, name, addresses: Vec::new(), mtu, routes: true }
}

/// A device that the protected hosts are behind: they send what is for tunnels to its addresses.
fn read_dpdk(section: &mut Section<'_>, walker: &mut Walker<'_>) -> ProtectedDraft {
    let problem = |help: &str| Problem::expected("no such key with this `kind`").help(help);
    section.refuse(walker, "name", problem("the device names itself: write `device`"));
    section.refuse(walker, "routes", problem("no kernel sees this port: hosts have routes to its addresses"));
    let mtu = read_mtu(section, walker);
    let (settings, name) = dpdk::read_settings(section, walker);
    let kind = PortKind::Dpdk(Box::new(settings));
    ProtectedDraft { kind, name, addresses: Vec::new(), mtu, routes: true }
}

/// Keys that are about an interface of the gateway's own.
fn refuse_of_tun(section: &mut Section<'_>, walker: &mut Walker<'_>) {
    let problem = |help: &str| Problem::expected("no such key with this `kind`").help(help);
    section.refuse(walker, "name", problem("the interface is the host's: write `interface`"));
    section.refuse(walker, "addresses", problem("give the interface its addresses with `ip address`"));
    let help =
        "the filter follows the policies: it takes packets to their remote networks, and there are no routes";
    section.refuse(walker, "routes", problem(help));
}

/// The addresses of a TUN interface.
pub(super) fn read_addresses(section: &mut Section<'_>, walker: &mut Walker<'_>) -> Vec<InterfaceAddress> {
    let addresses = section.list(walker, "addresses", MAX_ADDRESSES, value::interface_address);
    let mut unique: Vec<Located<InterfaceAddress>> = Vec::new();
    for address in addresses.unwrap_or_default() {
        match unique.iter().find(|other| other.value.address == address.value.address) {
            Some(first) => walker.report_repeated(&address, first, Problem::expected("each address once")),
            None => unique.push(address),
        }
    }
    unique.into_iter().map(|address| address.value).collect()
}

/// The MTU of a link, if it is configured.
pub(super) fn read_mtu(section: &mut Section<'_>, walker: &mut Walker<'_>) -> Option<Located<u16>> {
    section.located(walker, "mtu", value::number_u16(MIN_MTU, u16::MAX))
}

pub(super) fn read_unprotected(
    mut section: Section<'_>,
    walker: &mut Walker<'_>,
) -> Located<UnprotectedPort> {
    let kind = section.required(walker, "kind", "\"socket\"", value::choice(&port_kind::UNPROTECTED));
    let kind = kind.map_or(KindName::Host, |kind| kind.value);
    let mtu = read_mtu(&mut section, walker);
    let offload = offload::read(&mut section, walker, kind);
    let (kind, interface) = match kind {
        KindName::Host => (PortKind::Host, section.located(walker, "interface", value::interface)),
        KindName::Xdp => {
            let interface = section.required(walker, "interface", "\"eth0\"", value::interface);
            (PortKind::Xdp(xdp::read_settings(&mut section, walker)), interface)
        }
        KindName::Dpdk => {
            let (settings, name) = dpdk::read_settings(&mut section, walker);
            (PortKind::Dpdk(Box::new(settings)), name)
        }
    };
    let interface = interface.map(|interface| interface.value);
    let (span, key) = (section.span().clone(), section.path_of("mtu"));
    section.finish(walker);
    let (mtu, span) = mtu.map_or((1500, span), |mtu| (mtu.value, mtu.span));
    Located { value: UnprotectedPort { kind, mtu, interface, offload }, span, key }
}

impl ProtectedDraft {
    /// Whether it is an interface of the gateway's own.
    pub(super) fn has_tun(&self) -> bool {
        self.kind.is_host()
    }

    /// DPDK starts once, with one list of arguments and by one plugin.
    fn check_start(&self, walker: &mut Walker<'_>, unprotected: &UnprotectedPort) {
        let (Some(this), Some(other)) = (self.kind.dpdk(), unprotected.kind.dpdk()) else { return };
        let differ = !this.eal.is_empty() && !other.eal.is_empty() && this.eal != other.eal;
        let two = this.library.is_some() && other.library.is_some() && this.library != other.library;
        if let Some(name) = self.name.as_ref().filter(|_| differ || two) {
            let problem = Problem::expected("the same `eal` and `library` as in [port.unprotected]");
            let help = "DPDK starts once in a process: write them on one side only, or the same on both";
            walker.report(&name.span, name.key.clone(), problem.help(help));
        }
    }

    /// Both sides of a gateway cannot be at one interface: whose a frame is, its queue says.
    pub(super) fn check_sides(&self, walker: &mut Walker<'_>, unprotected: &UnprotectedPort) {
        self.check_start(walker, unprotected);
        let Some(name) = self.name.as_ref().filter(|_| !self.has_tun()) else { return };
        if unprotected.interface.as_ref() == Some(&name.value) {
            let problem = Problem::expected("another interface than that of [port.unprotected]");
            let help = "one queue of an interface has one side: use kind = \"tun\" here for packets that the kernel routes";
            walker.report(&name.span, name.key.clone(), problem.help(help));
        }
    }

    /// Its interface's name, if that could be read.
    pub(super) fn name(&self) -> Option<Located<String>> {
        self.name.clone()
    }

    /// Settles the MTU: the configured one, or the largest that fits every tunnel.
    pub(super) fn complete(
        self,
        walker: &mut Walker<'_>,
        link: &Link<'_>,
        are_negotiated: bool,
        policies_with_ipv6: bool,
    ) -> Option<ProtectedPort> {
        let of = Of { number: Interface::MAIN, has_ipv6: policies_with_ipv6, are_negotiated };
        let Self { kind, name, addresses, mtu, routes } = self;
        let mtu = match kind {
            PortKind::Host => settle_mtu(walker, mtu, &of, &addresses, link),
            // Longer packets than fit are cut, or their senders told: hosts know nothing of the tunnels.
            PortKind::Xdp(_) | PortKind::Dpdk(_) => {
                settle_mtu(walker, None, &of, &addresses, link);
                mtu.map_or(ETHERNET_MTU, |mtu| mtu.value)
            }
        };
        Some(ProtectedPort { kind, name: name?.value, addresses, mtu, routes })
    }
}

/// Whose MTU is settled.
pub(super) struct Of {
    pub(super) number: Interface,
    /// Whether it has IPv6 for another reason than its addresses and tunnels.
    pub(super) has_ipv6: bool,
    /// Whether tunnels of its own may be negotiated.
    pub(super) are_negotiated: bool,
}

/// The MTU of an interface: the configured one, or the largest that fits each of its tunnels.
pub(super) fn settle_mtu(
    walker: &mut Walker<'_>,
    mtu: Option<Located<u16>>,
    of: &Of,
    addresses: &[InterfaceAddress],
    link: &Link<'_>,
) -> u16 {
    let own = || link.tunnels.iter().filter(|tunnel| tunnel.interface == of.number);
    let has_ipv6 = of.has_ipv6
        || addresses.iter().any(|address| address.address.is_ipv6())
        || own().flat_map(|tunnel| &tunnel.selectors).any(mentions_ipv6);
    let least = if has_ipv6 { MIN_MTU_IPV6 } else { MIN_MTU };
    // Checked even if an MTU is configured: a tunnel that carries less than the minimum
    // would report an MTU to senders that they need not heed.
    let fits = default_mtu(walker, own(), link, least);
    // What will be negotiated is not known yet: what the longest headers leave.
    let fits = match of.are_negotiated {
        true => fits.min(link.port.value.mtu.saturating_sub(LONGEST_HEADERS)).max(least),
        false => fits,
    };
    let Some(mtu) = mtu else { return fits };
    if mtu.value < least {
        let problem = Problem::expected(format!("a number from {least} to 65535"));
        walker.report(&mtu.span, mtu.key, problem.help("IPv6 needs 1280 (RFC 8200 5)"));
    }
    mtu.value
}

fn default_mtu<'t>(
    walker: &mut Walker<'_>,
    own: impl Iterator<Item = &'t Tunnel>,
    Link { port: link, tunnels }: &Link<'_>,
    least: u16,
) -> u16 {
    let fits = own.filter(|tunnel| tunnel.covers.is_none()).map(|tunnel| {
        let covering = tunnel.covered_by.and_then(|ah| tunnels.get(ah));
        let inner = tunnel.inner_mtu(tunnel.path_mtu(link.value.mtu, covering));
        // Longer datagrams are cut: any path leaves what hosts must be able to send.
        let cuts = tunnel.mode == Mode::Tunnel && tunnel.fragmentation == Fragmentation::After;
        if cuts { inner.max(least) } else { inner }
    });
    let fits = fits.min();
    let mtu = fits.unwrap_or(link.value.mtu);
    if mtu < least {
        let problem = Problem::expected(format!("an MTU that leaves {least} bytes for inner packets"));
        let problem = problem.found(format!("{}, which leaves {mtu}", link.value.mtu));
        let help = "raise it, or let its tunnels cut datagrams after encryption: `fragment = \"after\"`";
        walker.report(&link.span, link.key.clone(), problem.help(help));
    }
    mtu
}
