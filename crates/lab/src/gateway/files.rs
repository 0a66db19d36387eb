//! Configuration and key files as a user would write them.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

use testudo_crypto::Suite;

use crate::error::{LabError, io};
use crate::network::{ETHERNET_MTU, LINK, PortKind, SITE, TAPS};
use crate::protection::Protection;
use crate::suites;
use crate::workspace::write_private;

/// The name of the configuration in a gateway's folder.
pub(crate) const CONFIGURATION: &str = "testudo.toml";
/// The socket for IKE daemons in a gateway's folder.
pub(super) const DAEMON_SOCKET: &str = "xfrm.sock";
/// The UDP port of ESP at both gateways (RFC 3948).
pub(crate) const UDP_PORT: u16 = 4500;
/// Between the SPI of ESP and that of AH that covers it: more than tunnels have.
const AH_SPIS: u32 = 0x1000;

/// Fresh keying material for both directions of a tunnel.
#[derive(Debug)]
pub struct Keys {
    a_to_b: String,
    b_to_a: String,
    /// Of AH that covers ESP: A to B, and back.
    ah: Option<[String; 2]>,
}

impl Keys {
    /// Random keys for a tunnel, from the kernel.
    ///
    /// # Errors
    /// There is no such suite, or no `/dev/urandom`.
    pub fn random(protection: &Protection) -> Result<Self, LabError> {
        let (suite, ah_suite) = protection.suites()?;
        let key = |suite: Suite| random_hex(suite.keying_material_bytes());
        let ah = ah_suite.map(|suite| Ok::<_, LabError>([key(suite)?, key(suite)?])).transpose()?;
        Ok(Self { a_to_b: key(suite)?, b_to_a: key(suite)?, ah })
    }
}

/// Bytes from the kernel's random number generator.
pub(crate) fn random_bytes(length: usize) -> Result<Vec<u8>, LabError> {
    let mut bytes = vec![0; length];
    let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    read.map_err(io("read /dev/urandom"))?;
    Ok(bytes)
}

/// The same as hexadecimal digits, two a byte.
pub(crate) fn random_hex(length: usize) -> Result<String, LabError> {
    Ok(random_bytes(length)?.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

/// One end of a tunnel between the gateways A and B.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Whether this is A: selects key and SPI for each direction.
    pub is_a: bool,
    /// Outer address.
    pub local: IpAddr,
    /// The peer's outer address.
    pub remote: IpAddr,
    /// The protected networks of each tunnel: at this end, and at the other.
    pub networks: Vec<[String; 2]>,
    /// Protocols, mode, suites.
    pub protection: Protection,
    /// The interface to the unprotected side: sealed packets go by it, whatever routes say.
    pub interface: &'static str,
    /// The gateway's addresses at its site and on the link, with prefix lengths: where no kernel has them.
    pub addresses: [String; 2],
    /// What its packets come and go by.
    pub port: PortKind,
    /// The engine to use; `None` for the gateway's own choice.
    pub engine: Option<String>,
    /// How many workers it has.
    pub workers: u8,
    /// MTU of the link, in bytes of an IP packet.
    pub mtu: u16,
}

impl Settings {
    /// Creates `folder` and writes the configuration and the key files of each tunnel into it.
    ///
    /// # Errors
    /// The folder exists or cannot be written.
    pub fn write(&self, keys: &[Keys], folder: &Path) -> Result<(), LabError> {
        fs::create_dir(folder).map_err(io(format!("make the folder {}", folder.display())))?;
        for (number, keys) in (0..).zip(keys) {
            let file = |name: &str| folder.join(format!("{}{name}.key", prefix(number)));
            write_private(&file("a-to-b"), &format!("{}\n", keys.a_to_b))?;
            write_private(&file("b-to-a"), &format!("{}\n", keys.b_to_a))?;
            if let Some([there, back]) = &keys.ah {
                write_private(&file("a-to-b-ah"), &format!("{there}\n"))?;
                write_private(&file("b-to-a-ah"), &format!("{back}\n"))?;
            }
        }
        write_private(&folder.join(CONFIGURATION), &self.text()?)
    }

    fn text(&self) -> Result<String, LabError> {
        let common = common((self.engine.as_deref(), self.workers), (self.port, self.mtu), &self.addresses);
        // Between two hosts the policy is about the outer addresses, and the route to the peer leads inside.
        let interface = match self.protection.in_transport {
            true => format!("interface = \"{}\"\n", self.interface),
            false => String::new(),
        };
        let tunnels = (0..).zip(&self.networks).map(|(number, networks)| self.tunnel(number, networks));
        Ok([Ok(common + &interface)]
            .into_iter()
            .chain(tunnels)
            .collect::<Result<Vec<_>, LabError>>()?
            .concat())
    }

    /// The section of a tunnel.
    fn tunnel(&self, number: u32, networks: &[String; 2]) -> Result<String, LabError> {
        let first = 0x1001 + 2 * number;
        let (peer, outbound, inbound) = if self.is_a {
            ("b", (first, "a-to-b"), (first + 1, "b-to-a"))
        } else {
            ("a", (first + 1, "b-to-a"), (first, "a-to-b"))
        };
        let peer_window = if self.workers > 1 { "peer_window = 4096\n" } else { "" };
        let Self { local, remote, protection, .. } = self;
        let (suite, ah_suite) = protection.suites()?;
        let prefix = prefix(number);
        let sa = |(spi, key): (u32, &str)| {
            let ah = match ah_suite {
                Some(_) => format!(", ah_spi = {:#x}, ah_key_file = \"{prefix}{key}-ah.key\"", spi + AH_SPIS),
                None => String::new(),
            };
            format!("{{ spi = {spi:#x}, key_file = \"{prefix}{key}.key\"{ah} }}")
        };
        let (outbound, inbound) = (sa(outbound), sa(inbound));
        let confirmations = suites::confirmations(suite, ah_suite);
        let lines = protection.lines();
        let outer = [local.to_string(), remote.to_string()];
        let [local_network, remote_network] = if protection.in_transport { &outer } else { networks };
        let name = if number == 0 { format!("site-{peer}") } else { format!("site-{peer}-{}", number + 1) };
        Ok(format!(
            r#"
[[tunnel]]
name = "{name}"
local = "{local}"
remote = "{remote}"
{lines}{confirmations}replay_window = 4096
{peer_window}selectors = [ {{ local = "{local_network}", remote = "{remote_network}" }} ]
outbound = {outbound}
inbound = {inbound}
"#
        ))
    }
}

/// What the names of a tunnel's key files begin with: the first one's are those of a gateway with one tunnel.
fn prefix(number: u32) -> String {
    if number == 0 { String::new() } else { format!("{}-", number + 1) }
}

/// The sections of any gateway of the laboratory, the last one still open.
fn common(
    (engine, workers): (Option<&str>, u8),
    (port, mtu): (PortKind, u16),
    addresses: &[String; 2],
) -> String {
    let engine = engine.map(|name| format!("engines = [\"{name}\"]\n")).unwrap_or_default();
    let workers = if workers > 1 { format!("workers = {workers}\n") } else { String::new() };
    let fast = |kind: &str, interface: &str| {
        format!("kind = \"{kind}\"\ninterface = \"{interface}\"\nmode = \"native\"")
    };
    let [protected, unprotected] = match port {
        PortKind::Tun => ["kind = \"tun\"\nname = \"testudo0\"", "kind = \"socket\""].map(str::to_owned),
        PortKind::Xdp => [SITE, LINK].map(|interface| fast("xdp", interface)),
        PortKind::Dpdk => [0, 1].map(|side| {
            let (tap, ..) = TAPS[side];
            driven_by(&format!("net_tap{side},iface={tap}"), &addresses[side])
        }),
        PortKind::DpdkOnCables => [0, 1].map(|side| {
            let cable = [SITE, LINK][side];
            driven_by(&format!("net_af_xdp{side},iface={cable}"), &addresses[side])
        }),
    };
    format!(
        r#"[gateway]
state = "state.redb"
control = "control.sock"
{engine}{workers}
[port.protected]
{protected}

[port.unprotected]
{unprotected}
mtu = {mtu}
"#
    )
}

/// A port of DPDK.
fn driven_by(device: &str, own: &str) -> String {
    format!("kind = \"dpdk\"\ndevice = \"{device}\"\neal = [\"--no-huge\"]\naddresses = [\"{own}\"]")
}

/// Creates `folder` and writes the configuration of a gateway whose keys an IKE daemon negotiates.
///
/// # Errors
/// The folder exists or cannot be written, or there is no such suite.
pub(crate) fn write_for_daemon(
    protection: &Protection,
    engine: Option<&str>,
    folder: &Path,
) -> Result<(), LabError> {
    fs::create_dir(folder).map_err(io(format!("make the folder {}", folder.display())))?;
    let (suite, _) = protection.suites()?;
    let confirmations = suites::confirmations(suite, None);
    let ike = format!("\n[ike]\nsocket = \"{DAEMON_SOCKET}\"\n{confirmations}");
    write_private(
        &folder.join(CONFIGURATION),
        &(common((engine, 1), (PortKind::Tun, ETHERNET_MTU), &Default::default()) + &ike),
    )
}

/// The options of `testudo init` for this configuration: its keys are new, which matters to the store where
/// sequence numbers are nonces.
///
/// # Errors
/// It cannot be read.
pub(super) fn init_options(configuration: &Path) -> Result<&'static [&'static str], LabError> {
    let text = fs::read_to_string(configuration).map_err(io(format!("read {}", configuration.display())))?;
    Ok(if text.contains(suites::ALLOW_COUNTER_NONCE) { &["--fresh-keys"] } else { &[] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(is_a: bool) -> Settings {
        Settings {
            is_a,
            local: "192.0.2.1".parse().unwrap(),
            remote: "192.0.2.2".parse().unwrap(),
            networks: vec![["10.1.0.0/24", "10.2.0.0/24"].map(str::to_owned)],
            protection: Protection::esp("aes128gcm16", "esp-in-udp"),
            interface: "wan",
            addresses: ["10.1.0.1/24", "192.0.2.1/24"].map(str::to_owned),
            port: PortKind::Tun,
            engine: Some("portable".to_owned()),
            workers: 1,
            mtu: 1500,
        }
    }

    #[test]
    fn the_outbound_keys_of_one_end_are_the_inbound_keys_of_the_other() {
        let (a, b) = (settings(true).text().unwrap(), settings(false).text().unwrap());
        let line =
            |text: &str, key: &str| text.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
        assert_eq!(line(&a, "outbound").replace("outbound", "inbound"), line(&b, "inbound"));
        assert_eq!(line(&b, "outbound").replace("outbound", "inbound"), line(&a, "inbound"));
        assert!(a.contains("engines = [\"portable\"]"), "{a}");
    }

    #[test]
    fn fast_ports_are_at_the_interfaces_of_both_sides() {
        let text = Settings { port: PortKind::Xdp, ..settings(true) }.text().unwrap();
        assert!(text.contains("[port.protected]\nkind = \"xdp\"\ninterface = \"lan\""), "{text}");
        assert!(text.contains("[port.unprotected]\nkind = \"xdp\"\ninterface = \"wan\""), "{text}");
        let text = Settings { port: PortKind::Dpdk, ..settings(true) }.text().unwrap();
        assert!(text.contains("device = \"net_tap1,iface=dtap1\""), "{text}");
        assert!(text.contains("addresses = [\"192.0.2.1/24\"]"), "{text}");
        let text = Settings { port: PortKind::DpdkOnCables, ..settings(true) }.text().unwrap();
        assert!(text.contains("device = \"net_af_xdp0,iface=lan\""), "{text}");
    }

    #[test]
    fn each_tunnel_has_spis_keys_and_networks_of_its_own() {
        let networks: Vec<_> =
            (0..3).map(|part| [format!("10.1.0.{}/26", 64 * part), "10.2.0.0/24".to_owned()]).collect();
        let text = Settings { networks: networks.clone(), ..settings(true) }.text().unwrap();
        assert_eq!(text.matches("[[tunnel]]").count(), 3);
        for [local, _] in &networks {
            assert_eq!(text.matches(&format!("local = \"{local}\"")).count(), 1, "{text}");
        }
        for sa in ["spi = 0x1005, key_file = \"3-a-to-b.key\"", "spi = 0x1006, key_file = \"3-b-to-a.key\""] {
            assert!(text.contains(sa), "{text}");
        }
    }

    #[test]
    fn keys_have_the_suites_length_and_differ() {
        for (suite, bytes) in [("aes128gcm16", 20), ("aes256-sha256", 64), ("null-sha1", 20)] {
            let keys = Keys::random(&Protection::esp(suite, "esp")).unwrap();
            assert_eq!((keys.a_to_b.len(), keys.b_to_a.len()), (2 * bytes, 2 * bytes));
            assert_ne!(keys.a_to_b, keys.b_to_a);
        }
        assert!(Keys::random(&Protection::esp("rot13", "esp")).is_err());
        let both = Protection::choose("ah+esp", "tunnel", None, Some("sha512"), None).unwrap();
        assert_eq!(Keys::random(&both).unwrap().ah.unwrap().map(|key| key.len()), [128, 128]);
    }
}
