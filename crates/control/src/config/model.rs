//! The configuration as plain data: everything in it has been checked against everything else.

use super::engine::{Cores, Cryptodev, Gpu};
use super::negotiated_vpe::NegotiatedVpe;
use super::offload::Offload;
use super::port_kind::PortKind;
use super::threading::Threading;
use super::workers::{SpreadInbound, Workers};
use crate::keys::KeySource;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use testudo_crypto::{NonceRule, Suite};
use testudo_gateway::SchedulerSettings;
use testudo_ipsec::{
    Directions, Dscp, Encapsulation, Fragmentation, IpsecProtocol, Lifetime, Limits, Mode, PacketRules,
    PopulateFlags, ReplayWindow, Selector, Shape,
};
use testudo_packet::Interface as InterfaceNumber;
use testudo_wire::ip::Version;

/// A whole configuration. Equal configurations run equal gateways, so that a reload can compare parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// `[gateway]`
    pub gateway: Gateway,
    /// `[engine.cryptodev]`; `engines` names it, too.
    pub cryptodev: Option<Cryptodev>,
    /// `[engine.gpu]`, or what it is without it.
    pub gpu: Gpu,
    /// `[scheduler]`, or what it is without it.
    pub scheduler: SchedulerSettings,
    /// `threading` and `processors` of `[scheduler]`.
    pub threading: Threading,
    /// `[engine.cores]`, or what it is without it.
    pub cores: Cores,
    /// `[ike]`; `None` where keys are typed in alone.
    pub ike: Option<Ike>,
    /// `[port.protected]`
    pub protected: ProtectedPort,
    /// `[port.unprotected]`
    pub unprotected: UnprotectedPort,
    /// `[[interface]]`, in order; the first one has number 1, behind the main one of `[port.protected]`.
    pub interfaces: Vec<Interface>,
    /// `[[policy]]`, in order; they come before the selectors of every tunnel.
    pub policies: Vec<Policy>,
    /// `[[tunnel]]`, in order; their selectors make protect policies, in the same order.
    pub tunnels: Vec<Tunnel>,
}

/// `[gateway]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gateway {
    /// The durable store of sequence numbers.
    pub state: PathBuf,
    /// The control socket.
    pub control: PathBuf,
    /// Loopback address that metrics are served on; `None` disables them.
    pub metrics: Option<SocketAddr>,
    /// Loopback address that the dashboard is served on; `None` disables it.
    pub dashboard: Option<SocketAddr>,
    /// Names of engines in the order of placement, without repetition; `portable` is the last.
    pub engines: Vec<String>,
    /// Whether the configuration names them; where it does not, the fastest comes first.
    pub engines_named: bool,
    /// What is logged.
    pub log: LogLevel,
    /// Where auditable events go (RFC 4303 4).
    pub audit: AuditTarget,
    /// Buffers in the pool of each worker.
    pub buffers: usize,
    /// Whether the configuration says so.
    pub buffers_named: bool,
    /// How many workers there are.
    pub workers: Workers,
    /// How many there may be while the gateway runs, where that is more.
    pub workers_max: Option<usize>,
    /// How packets from peers are spread over them.
    pub spread_inbound: SpreadInbound,
    /// Whether the system calls of the running gateway are filtered.
    pub seccomp: bool,
    /// Whether the keys of SAs stay in memory, for root and the gateway's own user to read.
    pub allow_key_export: bool,
}

/// Where auditable events go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditTarget {
    /// Nowhere: packets are counted alone.
    Off,
    /// Into the log.
    Log,
    /// To the end of this file, a line of JSON for each.
    File(PathBuf),
}

/// The log level: this and everything more severe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLevel {
    /// Errors that stop the gateway or a tunnel.
    Error,
    /// Conditions that an operator should look into.
    Warn,
    /// Normal events.
    Info,
    /// Details of normal events.
    Debug,
}

impl LogLevel {
    /// The name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
        }
    }
}

/// `[ike]`: key exchange daemons may configure SAs and policies, as they do with the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ike {
    /// The socket that they connect to.
    pub socket: PathBuf,
    /// The user that may connect beside root and the gateway's own: a name or a number.
    pub user: Option<String>,
    /// The UDP port of ESP where a NAT is on the way, which the daemon has for IKE.
    pub udp_port: u16,
    /// Where strongSwan's charon tells what its connections are called (its plugin vici).
    pub vici: PathBuf,
    /// Whether SAs may have algorithms that RFC 8221 says SHOULD NOT or MUST NOT be used.
    pub allow_legacy: bool,
    /// The mark of what the gateway and the daemons send to peers: it passes by `routing_table`. 0 for none.
    pub mark: u32,
    /// The routing table of routes to what is negotiated.
    pub routing_table: u32,
    /// The lowest priority of the rules that lead there.
    pub rule_priority: u32,
}

/// `[port.protected]`: a TUN interface, or an interface of the host that hosts are behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtectedPort {
    /// What packets come and go by.
    pub kind: PortKind,
    /// Name of the interface, 1 to 15 characters.
    pub name: String,
    /// Its addresses; none of an interface that is not the gateway's own.
    pub addresses: Vec<InterfaceAddress>,
    /// Its MTU in bytes: as configured, or the largest inner packet that fits every tunnel; of a fast port,
    /// the longest packet of the hosts.
    pub mtu: u16,
    /// Whether packets to the remote network of each protect selector are led into the gateway: by a route,
    /// or by the filter of a fast port.
    pub routes: bool,
}

/// An address of an interface, with the length of the prefix that is on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InterfaceAddress {
    /// The address, host part and all.
    pub address: IpAddr,
    /// Bits of the prefix, 0 to 32 or 128.
    pub prefix_length: u8,
}

/// `[[interface]]`: a TUN interface beside the main one, whose packets meet only the policies of tunnels that
/// name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, 1 to 15 characters.
    pub name: String,
    /// The number by which key exchange daemons name it, as an XFRM interface of Linux.
    pub if_id: Option<u32>,
    /// How what they negotiate for it runs as VPE; `None` where ESP stays ESP.
    pub vpe: Option<NegotiatedVpe>,
    /// Its addresses.
    pub addresses: Vec<InterfaceAddress>,
    /// Its MTU in bytes: as configured, or the largest inner packet that fits each of its tunnels.
    pub mtu: u16,
}

/// `[port.unprotected]`: sockets, or an interface of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnprotectedPort {
    /// What packets come and go by.
    pub kind: PortKind,
    /// MTU of the link, in bytes.
    pub mtu: u16,
    /// The interface that the sockets are bound to, always there if a policy says bypass; that of a fast
    /// port.
    pub interface: Option<String>,
    /// Whether its NIC does cryptography.
    pub offload: Offload,
}

/// What an entry of the configuration selects: any of these, one for each combination of the lists in it (RFC
/// 4301 4.4.1.1).
pub type Selectors = Arc<[Selector]>;

/// `[[policy]]`: an entry of the SPD (RFC 4301 4.4.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Its name, unique among policies: 1 to 64 of `a-z`, `0-9`, `-`, `_` and `.`.
    pub name: Option<String>,
    /// Its number, by which it is called without a name: its place in the file from 1 on; of those that are
    /// added later, one above all others.
    pub number: u32,
    /// The packets that it matches.
    pub selectors: Selectors,
    /// The directions that it applies to.
    pub directions: Directions,
    /// What happens to them.
    pub action: Action,
    /// The fields that the SA of a flow takes from its packets (RFC 4301 4.4.1.2). If there are some, the
    /// tunnel of the action is a template, and each flow has a tunnel of its own.
    pub populate: PopulateFlags,
}

impl Policy {
    /// What it is called by: its name, or its number.
    #[must_use]
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.number.to_string())
    }

    /// The index in [`Configuration::tunnels`] of the tunnel that it names.
    #[must_use]
    pub fn tunnel(&self) -> Option<usize> {
        match self.action {
            Action::Protect { tunnel } => Some(tunnel),
            Action::Bypass | Action::Discard => None,
        }
    }
}

/// The action of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Through the tunnel at this index of [`Configuration::tunnels`].
    Protect {
        /// The index.
        tunnel: usize,
    },
    /// Between the sides, unchanged.
    Bypass,
    /// Discard.
    Discard,
}

/// `[[tunnel]]`: a pair of SAs, one each way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnel {
    /// Its name, unique: 1 to 64 of `a-z`, `0-9`, `-`, `_` and `.`.
    pub name: String,
    /// Our outer address.
    pub local: IpAddr,
    /// The peer's outer address, of the same version.
    pub remote: Remote,
    /// The interface whose packets it carries. Policies name tunnels of the main one alone.
    pub interface: InterfaceNumber,
    /// ESP, AH or VPE.
    pub protocol: IpsecProtocol,
    /// Tunnel or transport mode.
    pub mode: Mode,
    /// With `ah+esp`, the index in [`Configuration::tunnels`] of the SAs of AH that cover this one's
    /// datagrams.
    pub covered_by: Option<usize>,
    /// The reverse: the tunnel whose datagrams this one covers. It has no selectors.
    pub covers: Option<usize>,
    /// The algorithms; those of AH are an integrity algorithm alone.
    pub suite: Suite,
    /// How ESP is carried; with [`Remote::Any`], the peer's port counts only until another is learned.
    pub encapsulation: Encapsulation,
    /// Silence after which a NAT keepalive is sent (RFC 3948 4); `None` for never, and where ESP is not in
    /// UDP.
    pub keepalive: Option<Duration>,
    /// Extended sequence numbers: 64 bits (RFC 4303 2.2.1).
    pub esn: bool,
    /// Packets in the replay window: 32 to 2,097,152, a multiple of 32; 0 if replays are accepted.
    pub replay_window: u32,
    /// The replay window that the peer has, in packets: what several workers have in flight stays within it.
    pub peer_window: u32,
    /// The DSCP of outer headers.
    pub dscp: Dscp,
    /// What is done to packets and their headers.
    pub rules: PacketRules,
    /// Where packets are cut that are too long for the path; in transport mode after encryption in any case.
    pub fragmentation: Fragmentation,
    /// Whether the peer takes fragments that hide what policies ask for, as we do (RFC 4301 7.3).
    pub non_first_fragments: bool,
    /// Traffic that it protects, an entry each, in order. May be empty only if a policy names the tunnel.
    pub selectors: Vec<Selectors>,
    /// The SA towards the peer.
    pub outbound: SaSettings,
    /// The SA from the peer.
    pub inbound: SaSettings,
    /// SAs of one worker each, beside these two (RFC 9611): a worker without uses `outbound`.
    pub worker_sas: Vec<WorkerSas>,
    /// When its keys wear out, over restarts; the same for each direction. Soft is below hard where both are
    /// given. `None` if they do not, as most that key exchanges negotiate: [`lifetime`](Self::lifetime).
    pub limits: Option<Box<Lifetime>>,
    /// Known answers; for `replay` only.
    pub known_answer: Option<Box<KnownAnswer>>,
}

/// The peer's outer address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remote {
    /// It never changes.
    Address(IpAddr),
    /// It is learned from authenticated packets; only with ESP in UDP.
    Any,
}

/// The SPI of an SA, and where its key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaSettings {
    /// The SPI, 256 or more; in a tunnel with known answers 1 or more.
    pub spi: u32,
    /// Where the keying material is.
    pub key: KeySource,
}

/// The SAs of one worker under a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSas {
    /// The worker, by its index.
    pub worker: u32,
    /// The SA that it sends through, and no other does; `None` if it uses that of all.
    pub outbound: Option<SaSettings>,
    /// One more SA from the peer, which is renewed together with the other.
    pub inbound: Option<SaSettings>,
}

/// Where an SA starts, for known answers. Dangerous with a key in use: sequence numbers may repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownAnswer {
    /// The sequence number of the first packet, at least 1.
    pub next_sequence_number: u64,
    /// The seed of the IVs.
    pub iv_seed: u64,
    /// What the inbound SA has received; `None` for nothing.
    pub received: Option<Received>,
}

/// The sequence numbers that an SA has received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The highest, at least 1.
    pub highest: u64,
    /// Bit `n % 8` of byte `n / 8` says that `highest - n` was received; bit 0 is set. `None`: as if all
    /// numbers up to the highest were.
    pub window: Option<Arc<[u8]>>,
}

impl Received {
    /// The replay window of an SA that has received these, as bytes for [`ReplayWindow::restore`].
    #[must_use]
    pub fn window(&self, replay_window: u32, esn: bool) -> Vec<u8> {
        let Some(bits) = &self.window else { return ReplayWindow::closed_up_to(self.highest).to_vec() };
        let mut window = ReplayWindow::new(replay_window, esn);
        let marked = (0..).zip(bits.iter()).flat_map(|(byte, bits)| {
            let bits = *bits;
            (0..8).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| byte * 8 + bit)
        });
        for number in marked.filter_map(|back| self.highest.checked_sub(back)) {
            // The configuration was checked: no number is left of the window.
            let _ = window.commit(number);
        }
        window.save()
    }
}

impl Configuration {
    /// The name of an interface of the protected side.
    #[must_use]
    pub fn interface_name(&self, number: InterfaceNumber) -> &str {
        let other = usize::from(number.0).checked_sub(1).and_then(|at| self.interfaces.get(at));
        other.map_or(&self.protected.name, |interface| &interface.name)
    }

    /// The interface of the protected side with a name.
    #[must_use]
    pub fn interface_named(&self, name: &str) -> Option<InterfaceNumber> {
        let main = (InterfaceNumber::MAIN, &self.protected.name);
        let others = self.numbered_interfaces().map(|(number, interface)| (number, &interface.name));
        std::iter::once(main).chain(others).find(|(_, other)| *other == name).map(|(number, _)| number)
    }

    /// The interfaces of `[[interface]]` with their numbers.
    pub fn numbered_interfaces(&self) -> impl Iterator<Item = (InterfaceNumber, &Interface)> {
        (1..).map(InterfaceNumber).zip(&self.interfaces)
    }

    /// Settings that are valid but should be deliberate: a line each, for `testudo check` and the log.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut warn = |is_meant: &dyn Fn(&Tunnel) -> bool, text: &str| {
            let mut names = self.tunnels.iter().filter(|t| is_meant(t)).map(|t| t.name.as_str());
            let Some(first) = names.next() else { return };
            let others = match names.count() {
                0 => String::new(),
                count => format!(" (and {count} more)"),
            };
            warnings.push(format!("tunnel {first}{others}: {text}"));
        };
        for suite in Suite::every() {
            let is_of_suite = |t: &Tunnel| t.suite == suite;
            if !suite.encrypts() {
                let text = "does not encrypt, anybody on the way can read what it carries";
                warn(&is_of_suite, &format!("{suite} {text}"));
            }
            if let Some(text) = nonce_warning(suite.nonce_rule()) {
                warn(&is_of_suite, &format!("{suite}: {text}"));
            }
            if suite.is_legacy() {
                let text = "such packets can be read or forged";
                warn(&is_of_suite, &format!("{suite}: RFC 8221 says {}, {text}", legacy_parts(suite)));
            }
        }
        let accepts_replays = |t: &Tunnel| t.replay_window == 0;
        warn(&accepts_replays, "replay_window = 0: packets that somebody recorded are accepted again");
        let lasts_for_ever = |t: &Tunnel| t.lifetime().hard == Limits::default();
        warn(&lasts_for_ever, "no hard lifetime: its keys are good until somebody changes them");
        let cuts_after = |t: &Tunnel| {
            t.mode == Mode::Tunnel && t.fragmentation == Fragmentation::After && t.covers.is_none()
        };
        warn(
            &cuts_after,
            "fragment = \"after\": long packets cross the path in fragments, which the peer must reassemble; some \
             firewalls and NATs drop fragments, and one that is lost loses its packet",
        );
        self.warn_of_clocks(&mut warn);
        for (_, interface) in self.numbered_interfaces() {
            if interface.vpe.as_ref().is_some_and(|vpe| vpe.clocked_packets_per_second > 0) {
                let text = "clocked_packets_per_second: lengths still show, unless the daemon's `tfc_padding` hides them";
                warnings.push(format!("interface {}: {text}", interface.name));
            }
        }
        warnings.extend(super::loops::warning(self));
        warnings.extend(self.buffers_warning());
        if !self.gateway.seccomp {
            warnings.push("seccomp = false: the system calls of the gateway are not filtered".to_owned());
        }
        if self.gateway.allow_key_export {
            let text = "allow_key_export = true: the keys of all SAs stay in memory, and root and the gateway's user can \
                        read them (`testudo sa keys`)";
            warnings.push(text.to_owned());
        }
        warnings
    }

    /// What still shows of tunnels that send by a clock, and what they may cost.
    fn warn_of_clocks(&self, warn: &mut impl FnMut(IsOf<'_>, &str)) {
        let is_clocked = |t: &Tunnel| t.rules.clocked_packets_per_second > 0;
        let shows_lengths = |t: &Tunnel| is_clocked(t) && t.rules.tfc_pad_to == 0;
        warn(&shows_lengths, "clocked_packets_per_second without `tfc_pad_to`: lengths still show");
        let shows_some = |t: &Tunnel| {
            let padded = t.rules.tfc_pad_to;
            let covering = t.covered_by.and_then(|ah| self.tunnels.get(ah));
            let carried = t.inner_mtu(t.path_mtu(self.unprotected.mtu, covering));
            is_clocked(t) && padded > 0 && padded < carried
        };
        let text = "clocked_packets_per_second and a `tfc_pad_to` below what the path carries: longer packets show \
                    their length";
        warn(&shows_some, text);
        let templates = self.policies.iter().filter(|policy| !policy.populate.is_empty());
        let populated: Vec<_> = templates.filter_map(Policy::tunnel).collect();
        let populates = |t: &Tunnel| {
            let is_it = |at: &usize| self.tunnels.get(*at).is_some_and(|other| other.name == t.name);
            is_clocked(t) && populated.iter().any(is_it)
        };
        let text = "clocked_packets_per_second with `populate_from_packet`: each flow has a clock of its own, and who \
                    makes flows makes the gateway send";
        warn(&populates, text);
    }
}

/// Whether a warning is of a tunnel.
type IsOf<'a> = &'a dyn Fn(&Tunnel) -> bool;

impl UnprotectedPort {
    /// Ethernet's MTU; many a path carries slightly less.
    const ETHERNET_MTU: u32 = 1500;

    /// A possible MTU problem, in a line: where a path carries less and no ICMP error says so, the longest
    /// packets are lost. `link` is the MTU of the interface that outer packets leave by, if known.
    #[must_use]
    pub fn mtu_warning(&self, link: Option<u32>) -> Option<String> {
        let mtu = u32::from(self.mtu);
        let begin = format!("port.unprotected.mtu is {mtu}");
        match link {
            Some(link) if mtu > link => Some(format!(
                "{begin}, and the interface of the outer packets carries {link} bytes: full-size packets will not leave; \
                 set `mtu` to {link} or less"
            )),
            _ if mtu < Self::ETHERNET_MTU && link != Some(mtu) => None,
            _ => Some(format!(
                "{begin}: full-size packets leave as outer packets of up to {mtu} bytes; where a link on the way to a peer \
                 carries less (PPPoE 1492, mobile networks, other tunnels) and somebody filters the ICMP errors that say \
                 so, they vanish, while short ones pass: set `mtu` to what the path carries, or `mtu_probe` in the tunnel"
            )),
        }
    }
}

/// What RFC 8221 says about the parts of `suite` that it speaks against: "MUST NOT to des and MUST NOT to
/// md5".
pub(super) fn legacy_parts(suite: Suite) -> String {
    let parts = suite.legacy_parts();
    let told: Vec<_> = parts.iter().map(|(keyword, level)| format!("{level} to {keyword}")).collect();
    told.join(" and ")
}

/// The warning for suites whose nonces are sequence numbers.
fn nonce_warning(rule: NonceRule) -> Option<&'static str> {
    match rule {
        NonceRule::Explicit => None,
        NonceRule::Counter => Some(
            "nonces are sequence numbers: never use these keys in another gateway or with another state file",
        ),
    }
}

impl Tunnel {
    /// The multicast group that it sends to and receives from, if it is one of a group.
    #[must_use]
    pub fn group(&self) -> Option<IpAddr> {
        match self.remote {
            Remote::Address(address) => Some(address).filter(IpAddr::is_multicast),
            Remote::Any => None,
        }
    }

    /// Our Sender ID in its group; `None` without a group, and where we only receive.
    #[must_use]
    pub fn sender(&self) -> Option<u16> {
        let sender = self.rules.vpe.as_deref().map(|rules| rules.sender);
        sender.filter(|sender| *sender != 0 && self.group().is_some())
    }

    /// The entries of the SPD that its own selectors are, in order; in a group, what we send and what others
    /// send are two.
    pub fn entries(&self) -> impl Iterator<Item = (Selectors, Directions)> + '_ {
        self.selectors.iter().flat_map(|selectors| {
            let (one, of_group) = match self.group() {
                None => (Some((Arc::clone(selectors), Directions::Both)), None),
                Some(_) => (None, Some(super::group::entries(selectors, self.sender().is_some()))),
            };
            one.into_iter().chain(of_group.into_iter().flatten())
        })
    }

    /// How many of these each of its selectors is.
    #[must_use]
    pub fn entries_per_selector(&self) -> usize {
        if self.sender().is_some() { 2 } else { 1 }
    }

    /// What is left of a path's `mtu` for its datagrams, in bytes, if those of AH go around them.
    #[must_use]
    pub fn path_mtu(&self, mtu: u16, covering: Option<&Tunnel>) -> u16 {
        covering.map_or(mtu, |ah| ah.inner_mtu(mtu))
    }

    /// The longest inner packet, in bytes, whose outer packet fits `mtu`; 0 if nothing fits.
    #[must_use]
    pub fn inner_mtu(&self, mtu: u16) -> u16 {
        let outer = Version::of(self.local);
        let (encapsulation, protocol, mode, suite) =
            (self.encapsulation, self.protocol, self.mode, self.suite);
        let inner = Shape { outer, encapsulation, protocol, mode, suite }.inner_mtu(mtu.into());
        u16::try_from(inner).unwrap_or(mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::limits_of;
    use crate::config::tests::MINIMAL;

    /// RFC 4303: 1500 - 20 (IPv4) - 8 (ESP) - 8 (IV) - 16 (ICV) = 1448, a multiple of 4; the trailer takes 2
    /// bytes of it.
    #[test]
    fn the_inner_mtu_leaves_room_for_padding() {
        let configuration = Configuration::parse(MINIMAL, "t.toml").unwrap();
        let mut tunnel = configuration.tunnels[0].clone();
        assert_eq!(tunnel.inner_mtu(1500), 1446);
        assert_eq!(tunnel.inner_mtu(1499), 1442);
        assert_eq!(tunnel.inner_mtu(53), 0);
        tunnel.encapsulation = Encapsulation::EspInUdp { local_port: 4500, remote_port: 4500 };
        assert_eq!(tunnel.inner_mtu(1500), 1438);
        tunnel.local = "2001:db8::1".parse().unwrap();
        assert_eq!(tunnel.inner_mtu(1500), 1418);
    }

    /// 1500 - 20 - 8 = 1472 for IV, ciphertext and ICV. The trailer takes 2 bytes of the ciphertext: whole
    /// blocks with CBC, words with NULL.
    #[test]
    fn the_inner_mtu_follows_the_suites_iv_blocks_and_icv() {
        let configuration = Configuration::parse(MINIMAL, "t.toml").unwrap();
        let tunnel = configuration.tunnels[0].clone();
        for (suite, inner) in
            [(Suite::AES128_SHA1, 1440 - 2), (Suite::AES256_SHA256, 1440 - 2), (Suite::NULL_SHA1, 1460 - 2)]
        {
            assert_eq!(Tunnel { suite, ..tunnel.clone() }.inner_mtu(1500), inner, "{suite}");
        }
        assert_eq!(Tunnel { suite: Suite::AES256_SHA256, ..tunnel }.inner_mtu(1499), 1424 - 2);
    }

    #[test]
    fn an_mtu_that_leaves_nothing_for_a_narrower_path_is_warned_of() {
        let warning = |mtu, link| {
            UnprotectedPort { kind: PortKind::Host, mtu, interface: None, offload: Offload::Auto }
                .mtu_warning(link)
                .unwrap_or_default()
        };
        for (mtu, link) in [(1499, None), (1400, Some(1500)), (1491, Some(1492))] {
            assert_eq!(warning(mtu, link), "");
        }
        for (mtu, link) in [(1500, None), (1500, Some(1500)), (9000, Some(9000)), (1492, Some(1492))] {
            assert!(
                warning(mtu, link).contains(&format!("outer packets of up to {mtu} bytes")),
                "{mtu} {link:?}"
            );
        }
        assert!(warning(1500, Some(1492)).ends_with("will not leave; set `mtu` to 1492 or less"));
    }

    fn limit(configuration: &mut Configuration, change: impl FnOnce(&mut Lifetime)) {
        let mut lifetime = configuration.tunnels[0].lifetime();
        change(&mut lifetime);
        configuration.tunnels[0].limits = limits_of(lifetime);
    }

    #[test]
    fn who_configures_no_encryption_is_told_in_one_line() {
        let mut configuration = Configuration::parse(MINIMAL, "t.toml").unwrap();
        limit(&mut configuration, |lifetime| lifetime.hard.packets = Some(1 << 40));
        assert!(configuration.warnings().is_empty());
        configuration.tunnels[0].suite = Suite::NULL_SHA1;
        let name = configuration.tunnels[0].name.clone();
        let expected = "null-sha1 does not encrypt, anybody on the way can read what it carries";
        assert_eq!(configuration.warnings(), [format!("tunnel {name}: {expected}")]);
        configuration.tunnels.push(configuration.tunnels[0].clone());
        assert_eq!(configuration.warnings(), [format!("tunnel {name} (and 1 more): {expected}")]);
    }

    #[test]
    fn who_configures_a_legacy_suite_is_told_what_rfc_8221_says() {
        let mut configuration = Configuration::parse(MINIMAL, "t.toml").unwrap();
        limit(&mut configuration, |lifetime| lifetime.hard.packets = Some(1 << 40));
        let name = configuration.tunnels[0].name.clone();
        for (suite, said) in
            [("3des-sha1", "SHOULD NOT to 3des"), ("des-md5", "MUST NOT to des and MUST NOT to md5")]
        {
            configuration.tunnels[0].suite = suite.parse().unwrap();
            let expected =
                format!("tunnel {name}: {suite}: RFC 8221 says {said}, such packets can be read or forged");
            assert_eq!(configuration.warnings(), [expected]);
        }
    }

    #[test]
    fn keys_that_nothing_ends_and_nonces_that_are_numbers_are_told() {
        let mut configuration = Configuration::parse(MINIMAL, "t.toml").unwrap();
        limit(&mut configuration, |lifetime| lifetime.soft.packets = Some(5));
        let warnings = configuration.warnings();
        assert!(warnings.len() == 1 && warnings[0].contains("no hard lifetime"), "{warnings:?}");
        assert!(nonce_warning(NonceRule::Counter).is_some_and(|text| text.contains("state file")));
        assert_eq!(nonce_warning(NonceRule::Explicit), None);
    }
}
