//! Configuration and key files as a user would write them.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

use testudo_crypto::{ProposalError, Suite};

use crate::error::{LabError, io};
use crate::suites;
use crate::workspace::write_private;

/// The name of the configuration in a gateway's folder.
pub(crate) const CONFIGURATION: &str = "testudo.toml";
/// The UDP port of ESP at both gateways (RFC 3948).
pub(crate) const UDP_PORT: u16 = 4500;

/// Fresh keying material for both directions of a tunnel.
#[derive(Debug)]
pub struct Keys {
    a_to_b: String,
    b_to_a: String,
}

impl Keys {
    /// Random keys for `suite`, from the kernel.
    ///
    /// # Errors
    /// There is no such suite, or no `/dev/urandom`.
    pub fn random(suite: &str) -> Result<Self, LabError> {
        let unknown =
            |e: ProposalError| io(format!("use the suite: {e}"))(std::io::ErrorKind::Unsupported.into());
        let bytes = suite.parse::<Suite>().map_err(unknown)?.keying_material_bytes();
        Ok(Self { a_to_b: random_hex(bytes)?, b_to_a: random_hex(bytes)? })
    }
}

/// Bytes from the kernel's random number generator.
pub(crate) fn random_bytes(length: usize) -> Result<Vec<u8>, LabError> {
    let mut bytes = vec![0; length];
    let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    read.map_err(io("read /dev/urandom"))?;
    Ok(bytes)
}

fn random_hex(length: usize) -> Result<String, LabError> {
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
    /// The protected network at this end.
    pub local_network: String,
    /// The protected network at the other end.
    pub remote_network: String,
    /// The suite's name.
    pub suite: String,
    /// `esp-in-udp` or `esp`.
    pub encapsulation: String,
    /// The engine to use; `None` for the gateway's own choice.
    pub engine: Option<String>,
}

impl Settings {
    /// Creates `folder` and writes the configuration and the key files into it.
    ///
    /// # Errors
    /// The folder exists or cannot be written.
    pub fn write(&self, keys: &Keys, folder: &Path) -> Result<(), LabError> {
        fs::create_dir(folder).map_err(io(format!("make the folder {}", folder.display())))?;
        write_private(&folder.join("a-to-b.key"), &format!("{}\n", keys.a_to_b))?;
        write_private(&folder.join("b-to-a.key"), &format!("{}\n", keys.b_to_a))?;
        write_private(&folder.join(CONFIGURATION), &self.text())
    }

    fn text(&self) -> String {
        let (peer, outbound, inbound) = if self.is_a {
            ("b", (0x1001, "a-to-b.key"), (0x1002, "b-to-a.key"))
        } else {
            ("a", (0x1002, "b-to-a.key"), (0x1001, "a-to-b.key"))
        };
        let engine = self.engine.as_ref().map(|name| format!("engines = [\"{name}\"]\n")).unwrap_or_default();
        let ports = match self.encapsulation.as_str() {
            "esp-in-udp" => format!("local_port = {UDP_PORT}\nremote_port = {UDP_PORT}\n"),
            _ => String::new(),
        };
        let Self { local, remote, suite, encapsulation, local_network, remote_network, .. } = self;
        let sa = |(spi, key): (u32, &str)| format!("{{ spi = {spi:#x}, key_file = \"{key}\" }}");
        let (outbound, inbound) = (sa(outbound), sa(inbound));
        let confirmations = suites::confirmations(suite);
        format!(
            r#"[gateway]
state = "state.redb"
control = "control.sock"
{engine}
[port.protected]
kind = "tun"
name = "testudo0"

[port.unprotected]
kind = "socket"
mtu = 1500

[[tunnel]]
name = "site-{peer}"
local = "{local}"
remote = "{remote}"
suite = "{suite}"
{confirmations}encapsulation = "{encapsulation}"
{ports}esn = true
replay_window = 4096
selectors = [ {{ local = "{local_network}", remote = "{remote_network}" }} ]
outbound = {outbound}
inbound = {inbound}
"#
        )
    }
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
            local_network: "10.1.0.0/24".to_owned(),
            remote_network: "10.2.0.0/24".to_owned(),
            suite: "aes128gcm16".to_owned(),
            encapsulation: "esp-in-udp".to_owned(),
            engine: Some("portable".to_owned()),
        }
    }

    #[test]
    fn the_outbound_keys_of_one_end_are_the_inbound_keys_of_the_other() {
        let (a, b) = (settings(true).text(), settings(false).text());
        let line =
            |text: &str, key: &str| text.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
        assert_eq!(line(&a, "outbound").replace("outbound", "inbound"), line(&b, "inbound"));
        assert_eq!(line(&b, "outbound").replace("outbound", "inbound"), line(&a, "inbound"));
        assert!(a.contains("engines = [\"portable\"]"), "{a}");
    }

    #[test]
    fn keys_have_the_suites_length_and_differ() {
        for (suite, bytes) in [("aes128gcm16", 20), ("aes256-sha256", 64), ("null-sha1", 20)] {
            let keys = Keys::random(suite).unwrap();
            assert_eq!((keys.a_to_b.len(), keys.b_to_a.len()), (2 * bytes, 2 * bytes));
            assert_ne!(keys.a_to_b, keys.b_to_a);
        }
        assert!(Keys::random("rot13").is_err());
    }
}
