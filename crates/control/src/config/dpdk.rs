//! Reads the keys of `kind = "dpdk"`: a device of DPDK's, which no kernel sees.

use super::model::{InterfaceAddress, Tunnel};
use super::network::Network;
use super::value::{self, Parsed};
use super::walk::{Located, Problem, Section, Walker};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use toml::de::DeValue;

/// Arguments of the EAL at most, and next hops.
const MAX_WORDS: usize = 256;

/// A device of DPDK's. Its port has addresses of its own, for which the gateway answers itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DpdkSettings {
    /// The device, as DPDK's programs take it.
    pub device: String,
    /// More arguments of DPDK's start, which both sides share.
    pub eal: Vec<String>,
    /// The plugin; `None` for where it is installed.
    pub library: Option<PathBuf>,
    /// Receive queues.
    pub queues: u16,
    /// Whether the worker polls all the time.
    pub busy_poll: bool,
    /// Whether frames for other stations are received.
    pub promiscuous: bool,
    /// The port's addresses, with the networks of its neighbours.
    pub addresses: Vec<InterfaceAddress>,
    /// Routers to other networks.
    pub next_hops: Vec<NextHop>,
}

/// A network, and the router that leads there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    /// The network.
    pub network: Network,
    /// A neighbour.
    pub via: IpAddr,
}

impl DpdkSettings {
    /// The device's name: what comes before its arguments.
    #[must_use]
    pub fn name(&self) -> &str {
        self.device.split(',').next().unwrap_or_default()
    }
}

/// The keys of a side, and where its device is named.
pub(super) fn read_settings(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
) -> (DpdkSettings, Option<Located<String>>) {
    let device = section.required(walker, "device", "\"0000:03:00.0\"", device);
    let eal = section.list(walker, "eal", MAX_WORDS, eal_argument).unwrap_or_default();
    let library = section.optional(walker, "library", library);
    let addresses = super::gateway::read_addresses(section, walker);
    if addresses.is_empty() {
        section.missing(walker, "addresses", "[\"192.0.2.1/24\"]");
    }
    let next_hops = section.list(walker, "next_hops", MAX_WORDS, next_hop).unwrap_or_default();
    let near = |via: IpAddr| {
        addresses.iter().any(|own| {
            Network::containing(own.address, own.prefix_length) == Network::containing(via, own.prefix_length)
        })
    };
    for hop in next_hops.iter().filter(|hop| !near(hop.value.via)) {
        let problem = Problem::expected("a router that is a neighbour").found(hop.value.via.to_string());
        walker.report(&hop.span, hop.key.clone(), problem.help("it is in no network of `addresses`"));
    }
    let settings = DpdkSettings {
        device: device.as_ref().map(|device| device.value.clone()).unwrap_or_default(),
        eal: eal.into_iter().map(|argument| argument.value).collect(),
        library,
        queues: section.or_default(walker, "queues", 1, value::number_u16(1, 1024)),
        busy_poll: section.or_default(walker, "busy_poll", false, value::boolean),
        promiscuous: section.or_default(walker, "promiscuous", false, value::boolean),
        addresses,
        next_hops: next_hops.into_iter().map(|hop| hop.value).collect(),
    };
    let name = settings.name().to_owned();
    (settings, device.map(|device| device.map(|_| name)))
}

/// Peers send to the local addresses of tunnels, for which somebody must answer.
pub(super) fn check_locals(walker: &mut Walker<'_>, port: &Located<DpdkSettings>, tunnels: &[Tunnel]) {
    let has = |address: IpAddr| port.value.addresses.iter().any(|own| own.address == address);
    // Without any that is said already.
    let has_some = !port.value.addresses.is_empty();
    if let Some(tunnel) = tunnels.iter().find(|tunnel| has_some && !has(tunnel.local)) {
        let local = tunnel.local;
        let problem =
            Problem::expected(format!("the address {local} among `addresses` of [port.unprotected]"));
        let help = format!(
            "the tunnel \"{}\" has it as `local`, and nobody else answers for it: no kernel sees this port",
            tunnel.name
        );
        walker.report(&port.span, port.key.clone(), problem.help(help));
    }
}

fn device(value: &DeValue<'_>) -> Parsed<String> {
    let expected = "a device of DPDK, such as \"0000:03:00.0\" or \"net_tap0,iface=dtap0\"";
    let text = value::string(value, expected)?;
    let is_one = !text.is_empty() && !text.starts_with(',') && text.chars().all(|c| c.is_ascii_graphic());
    if is_one { Ok(text.to_owned()) } else { Err(Problem::expected(expected)) }
}

fn eal_argument(value: &DeValue<'_>) -> Parsed<String> {
    let expected = "an argument of DPDK's EAL, such as \"--no-huge\"";
    let text = value::string(value, expected)?;
    let problem = || Problem::expected(expected);
    match text {
        _ if text.is_empty() || text.contains('\0') => Err(problem()),
        _ if ends_the_process(text) => {
            Err(problem().help("DPDK would show its arguments and end the gateway, as if all were well"))
        }
        "--vdev" => Err(problem().help("write the virtual device as `device`")),
        _ => Ok(text.to_owned()),
    }
}

/// Whether DPDK's start exits with an argument, by itself and with success.
pub(super) fn ends_the_process(argument: &str) -> bool {
    matches!(argument, "-h" | "--help")
}

fn library(value: &DeValue<'_>) -> Parsed<PathBuf> {
    let expected = "the absolute path of libtestudo-dpdk.so";
    let path = Path::new(value::string(value, expected)?);
    if path.is_absolute() { Ok(path.to_owned()) } else { Err(Problem::expected(expected)) }
}

/// `"default via 192.0.2.254"`, `"10.9.0.0/16 via 192.0.2.7"`.
fn next_hop(value: &DeValue<'_>) -> Parsed<NextHop> {
    let expected =
        "a network and its router, such as \"10.9.0.0/16 via 192.0.2.7\" or \"default via 192.0.2.254\"";
    let problem = || Problem::expected(expected);
    let text = value::string(value, expected)?;
    let (network, via) = text.split_once(" via ").ok_or_else(problem)?;
    let via: IpAddr = via.trim().parse().map_err(|_| problem())?;
    let (address, length) = match network.trim() {
        "default" => (via, 0),
        network => value::split_prefix(network, expected)?,
    };
    let network = Network::containing(address, length).filter(|_| address.is_ipv4() == via.is_ipv4());
    Ok(NextHop { network: network.ok_or_else(problem)?, via })
}
