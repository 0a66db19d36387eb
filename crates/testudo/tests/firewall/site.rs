//! A site with its gateway, and an outer host that is the other gateway, an attacker, or both.

use crate::support::config::{CONFIGURATION, Config, pair};
use crate::support::gateway::{PROGRAM, Said};
use crate::support::link::{LINK, Link};
use crate::support::{Outcome, ensure, wait};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use testudo_lab::namespaces::{Namespace, enter, veth};

/// A host of the site, and the site's gateway on the inner side.
pub const HOST: [&str; 2] = ["10.1.9.9", "fd01::9"];
pub const GATEWAY: [&str; 2] = ["10.1.9.254", "fd01::254"];
/// A host of the other site; here, an address of the other gateway.
pub const REMOTE: [&str; 2] = ["10.2.0.1", "fd02::1"];
/// The outer addresses of the outer host and of the gateway.
pub const OUTER: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
pub const OUR_OUTER: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// ```text
///   host ══ lan ── A (gateway) ── wan ══ B (outer host: 10.2.0.1 and fd02::1 are its own)
/// ```
pub struct Site {
    pub link: Link,
    pub host: Namespace,
}

impl Site {
    pub fn build() -> Outcome<Self> {
        let inside = enter()?;
        let site = Self { link: Link::build()?, host: Namespace::new(inside, "host")? };
        let (a, b) = (&site.link.a, &site.link.b);
        veth((a, "lan"), (&site.host, "lan"))?;
        for (version, prefix) in [(0, 24), (1, 64)] {
            site.host.address("lan", &format!("{}/{prefix}", HOST[version]))?;
            a.address("lan", &format!("{}/{prefix}", GATEWAY[version]))?;
            b.address("lo", &format!("{}/{}", REMOTE[version], [32, 128][version]))?;
        }
        a.address(LINK, "2001:db8::1/64")?;
        b.address(LINK, "2001:db8::2/64")?;
        a.forward()?;
        // The default route leads to the outer host, as on a gateway with a provider.
        for (version, local) in ["10.1.0.0/16", "fd01::/64"].into_iter().enumerate() {
            let everything = ["0.0.0.0/0", "::/0"][version];
            site.host.route_via(everything, GATEWAY[version])?;
            a.route_via(everything, OUTER[version])?;
            // With a worse metric than the route into a tunnel, which the gateway adds.
            let route = ["ip", ["-4", "-6"][version], "route", "add", local, "via", OUR_OUTER[version]];
            b.run(&[&route[..], &["metric", "2048"]].concat())?;
        }
        Ok(site)
    }

    /// The gateway's configuration: all traffic between the two sites, IPv4 and IPv6.
    pub fn config(&self) -> Outcome<Config> {
        Ok(Self::pair()?[0].clone())
    }

    /// Configurations for both gateways. The other gateway has no inner addresses except those of its
    /// loopback.
    pub fn pair() -> Outcome<[Config; 2]> {
        let networks = [("10.1.0.0/16", "10.2.0.0/16"), ("fd01::/64", "fd02::/64")];
        let mut pair = pair(true)?;
        let selectors = networks.map(|(local, remote)| (local.to_owned(), remote.to_owned()));
        pair[0].tunnels[0].selectors = selectors.to_vec();
        pair[1].tunnels[0].selectors = selectors.map(|(local, remote)| (remote, local)).to_vec();
        pair[1].addresses.clear();
        Ok(pair)
    }

    /// Creates a folder with a configuration and applies its rules on A until the end of the test.
    pub fn protected(&mut self, config: &Config) -> Outcome<Rules> {
        let folder = self.link.prepare(config)?;
        Rules::apply(&self.link.a, folder)
    }
}

/// Runs `testudo firewall` on the configuration in `folder`.
pub fn firewall(namespace: &Namespace, folder: &Path, options: &[&str]) -> Outcome<Said> {
    let mut command = namespace.command(PROGRAM);
    command.arg("firewall").arg(folder.join(CONFIGURATION)).args(options);
    Ok(wait::output(&mut command)?.into())
}

/// As [`firewall`], and expects it to succeed.
pub fn expect(namespace: &Namespace, folder: &Path, options: &[&str]) -> Outcome<String> {
    let said = firewall(namespace, folder, options)?;
    ensure(said.code == Some(0), || format!("firewall {options:?}: {said:#?}"))?;
    Ok(said.stdout)
}

/// Rules in force; dropping them removes them.
pub struct Rules {
    pub namespace: String,
    pub folder: PathBuf,
}

impl Rules {
    pub fn apply(namespace: &Namespace, folder: PathBuf) -> Outcome<Self> {
        let rules = Self { namespace: namespace.name().to_owned(), folder };
        expect(namespace, &rules.folder, &["--apply"])?;
        Ok(rules)
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        let mut command = std::process::Command::new("ip");
        command.args(["netns", "exec", &self.namespace, PROGRAM, "firewall"]);
        let _ = wait::output(command.arg(self.folder.join(CONFIGURATION)).arg("--remove"));
    }
}

/// A UDP socket in a namespace.
pub fn socket(namespace: &Namespace, address: &str, port: u16) -> Outcome<UdpSocket> {
    let address = SocketAddr::new(address.parse()?, port);
    let socket = namespace.within(|| UdpSocket::bind(address))??;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The packets that `receiver` has received.
pub fn heard(receiver: &UdpSocket) -> Vec<(Vec<u8>, SocketAddr)> {
    let mut buffer = [0; 2048];
    let mut heard = Vec::new();
    while let Ok((length, from)) = receiver.recv_from(&mut buffer) {
        heard.push((buffer[..length].to_vec(), from));
    }
    heard
}

/// Waits until `receiver` gets `word` from `from`, and returns what else it received.
pub fn hears(receiver: &UdpSocket, word: &[u8], from: IpAddr) -> Outcome<Vec<(Vec<u8>, SocketAddr)>> {
    let mut others = Vec::new();
    wait::until(&format!("for {:?} from {from}", String::from_utf8_lossy(word)), || {
        let mut is_there = false;
        for (bytes, sender) in heard(receiver) {
            if bytes == word && sender.ip() == from { is_there = true } else { others.push((bytes, sender)) }
        }
        Ok(is_there.then_some(()))
    })?;
    Ok(others)
}
