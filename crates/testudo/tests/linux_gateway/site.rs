//! The network of `support::sites` with a Linux kernel in a virtual machine as its right gateway.

use crate::support::config::{Config, Sa, Tunnel};
use crate::support::gateway::Gateway;
use crate::support::sites::{Network, OUTER};
use crate::support::wait::PATIENCE;
use crate::support::{Outcome, ensure};
use testudo_crypto::Suite;
use testudo_judge::linux_peer::{LinuxPeer, Options};
use testudo_lab::namespaces::{Namespace, is_inside};

/// What protects the packets of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// AES-128-GCM.
    Esp,
    /// The same in UDP (RFC 3948).
    EspInUdp,
    /// HMAC-SHA-256-128.
    Ah,
}

/// A tunnel between the sites, for both IP versions, or transport mode between the gateways themselves.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub protocol: Protocol,
    /// Whether IPv6 is outside.
    pub over_ipv6: bool,
    pub in_transport: bool,
}

impl Kind {
    /// One of each protocol, and of each IP version.
    pub const ALL: [Kind; 4] = [
        Kind::tunnel(Protocol::Esp, false),
        Kind::tunnel(Protocol::Esp, true),
        Kind::tunnel(Protocol::EspInUdp, false),
        Kind::tunnel(Protocol::Ah, false),
    ];

    const fn tunnel(protocol: Protocol, over_ipv6: bool) -> Self {
        Self { protocol, over_ipv6, in_transport: false }
    }

    /// Transport mode in place of tunnel mode.
    pub const fn transport(self) -> Self {
        Self { in_transport: true, ..self }
    }

    /// A part of a test's name.
    pub fn name(self) -> String {
        let protocol = match self.protocol {
            Protocol::Esp => "esp",
            Protocol::EspInUdp => "esp_in_udp",
            Protocol::Ah => "ah",
        };
        format!("{protocol}_over_{}", if self.over_ipv6 { "ipv6" } else { "ipv4" })
    }

    /// The longest inner packet where the path carries so many bytes (RFC 4303 2, RFC 4302 2).
    pub fn inner_mtu(self, path: usize) -> usize {
        let outer = if self.over_ipv6 { 40 } else { 20 };
        let inside = match self.protocol {
            Protocol::Esp => (path - outer - 8 - 8 - 16) / 4 * 4 - 2,
            Protocol::EspInUdp => (path - outer - 8 - 8 - 8 - 16) / 4 * 4 - 2,
            // 12 bytes and the ICV: a multiple of 4, which is enough over IPv4.
            Protocol::Ah => path - outer - 12 - 16,
        };
        // In transport mode the IP header is the packet's own.
        if self.in_transport { inside + outer } else { inside }
    }
}

/// Dropped in this order.
pub struct Site {
    pub peer: LinuxPeer,
    pub network: Network,
}

/// The interfaces of the virtual machine, in the namespace that stands for its place.
const TAPS: [(&str, &str, &str); 2] = [("tap0", "wan", "br0"), ("tap1", "lan", "br1")];

/// The guest as a router between its interfaces. Routes name the inner address as their source, so that what
/// it says itself, such as ICMP errors, goes through the tunnel.
const ROUTER_SCRIPT: &str = "\
set -e
sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
sysctl -q -w net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0
ip address add 198.51.100.1/24 dev eth0; ip address add 2001:db8:b::1/64 dev eth0 nodad
ip address add 10.2.0.1/24 dev eth1; ip address add fd02::1/64 dev eth1 nodad
ip link set eth0 up; ip link set eth1 up
ip route add default via 198.51.100.254; ip -6 route add default via 2001:db8:b::254
ip route add 10.1.0.0/16 via 198.51.100.254 src 10.2.0.1
ip -6 route add fd01::/64 via 2001:db8:b::254 src fd02::1
";

impl Site {
    /// Enters private namespaces, builds the network, and boots the guest in the place of the right gateway.
    pub fn build() -> Outcome<Self> {
        Self::build_on(Network::build)
    }

    /// The same on a network that `build` makes.
    pub fn build_on(build: impl FnOnce() -> Outcome<Network>) -> Outcome<Self> {
        let cache = LinuxPeer::default_cache();
        if !is_inside() {
            // While there is still a network.
            LinuxPeer::prepare_image(&cache)?;
        }
        let network = build()?;
        let b = &network.b;
        for (tap, cable, bridge) in TAPS {
            b.tap(tap)?;
            b.run(&["ip", "address", "flush", "dev", cable])?;
            b.run(&["ip", "link", "add", bridge, "type", "bridge"])?;
            for port in [tap, cable] {
                b.run(&["ip", "link", "set", port, "master", bridge])?;
            }
            b.link_up(bridge)?;
        }
        // Frames as on a cable: what is measured and counted here are packets.
        let options =
            Options { offloads: false, second_tap: Some(TAPS[1].0.to_owned()), ..Options::default() };
        let mut peer = LinuxPeer::boot_with(b, TAPS[0].0, &cache, &options)?;
        peer.wait_until("test -e /sys/class/net/eth1", PATIENCE)?;
        peer.run(ROUTER_SCRIPT)?;
        // RFC 3948: a socket that accepts ESP (level UDP, option UDP_ENCAP, value UDP_ENCAP_ESPINUDP).
        for (family, address) in [("UDP4", "0.0.0.0:4500"), ("UDP6", "\\[::\\]:4500")] {
            let only = if family == "UDP6" { ",ipv6only=1" } else { "" };
            let socket =
                format!("exec socat -u {family}-RECV:4500{only},setsockopt-listen=17:100:i2 /dev/null");
            let _ = peer.background(&socket)?;
            peer.wait_until(&format!("ss -Hlun | grep -q '{address}'"), PATIENCE)?;
        }
        Ok(Self { peer, network })
    }

    /// Connects the sites by a tunnel: starts Testudo on the left, with further lines of its tunnel, and
    /// configures the kernel on the right. All hosts and the kernel forget what they have learned of paths.
    pub fn connect(&mut self, kind: Kind, more: &str) -> Outcome<Gateway> {
        self.connect_with(kind, more, |_| ())
    }

    /// The same with a configuration that `change` has changed.
    pub fn connect_with(
        &mut self,
        kind: Kind,
        more: &str,
        change: impl FnOnce(&mut Config),
    ) -> Outcome<Gateway> {
        let [mut end, _] = Network::ends(kind.over_ipv6, kind.protocol == Protocol::EspInUdp, more)?;
        let tunnel = &mut end.tunnels[0];
        if kind.protocol == Protocol::Ah {
            tunnel.suite = "sha256".to_owned();
            tunnel.more += "\nprotocol = \"ah\"";
            for sa in [&mut tunnel.outbound, &mut tunnel.inbound] {
                *sa = Sa::of(sa.spi, Suite::for_ah("sha256")?)?;
            }
        }
        if kind.in_transport {
            let [left, right] = OUTER[usize::from(kind.over_ipv6)].map(str::to_owned);
            tunnel.selectors = vec![(left, right)];
            tunnel.more += "\nmode = \"transport\"";
            // The route to the peer leads into the tunnel.
            end.unprotected = "interface = \"wan\"".to_owned();
        }
        let batch = states_and_policies(kind, &end.tunnels[0]);
        self.peer.run(&format!("/usr/bin/ip -batch - <<'END'\n{batch}END\n"))?;
        self.peer.run("ip route flush cache; ip -6 route flush cache")?;
        for host in [&self.network.left, &self.network.a, &self.network.right] {
            forget_paths(host)?;
        }
        change(&mut end);
        self.network.start_left(&end)
    }

    /// What Linux counted as wrong so far (`/proc/net/xfrm_stat`): names and numbers that are not 0.
    pub fn errors_of_linux(&mut self) -> Outcome<String> {
        let said = self.peer.run("grep -v '[^0-9]0$' /proc/net/xfrm_stat || true")?;
        Ok(said.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

/// Has a host forget the MTUs of paths.
fn forget_paths(host: &Namespace) -> Outcome<()> {
    for family in ["-4", "-6"] {
        host.run(&["ip", family, "route", "flush", "cache"])?;
    }
    Ok(())
}

/// The kernel's end of a tunnel that is given from the left, in the syntax of `ip -batch`.
fn states_and_policies(kind: Kind, tunnel: &Tunnel) -> String {
    let [left, right] = OUTER[usize::from(kind.over_ipv6)];
    let protocol = if kind.protocol == Protocol::Ah { "ah" } else { "esp" };
    let mode = if kind.in_transport { "transport" } else { "tunnel" };
    let mut flags = vec!["esn"];
    if !kind.in_transport {
        flags.push("af-unspec");
    }
    // RFC 4302 2.6: a multiple of 4 bytes over IPv4.
    if kind.protocol == Protocol::Ah && !kind.over_ipv6 {
        flags.push("align4");
    }
    let flags = flags.join(" ");
    let in_udp = kind.protocol == Protocol::EspInUdp;
    let encapsulation = match (in_udp, kind.over_ipv6) {
        (true, false) => "encap espinudp 4500 4500 0.0.0.0",
        (true, true) => "encap espinudp 4500 4500 ::",
        (false, _) => "",
    };
    let mut batch = "xfrm state flush\nxfrm policy flush\n".to_owned();
    for (sa, [from, to]) in [(&tunnel.outbound, [left, right]), (&tunnel.inbound, [right, left])] {
        let algorithm = match kind.protocol {
            Protocol::Ah => format!("auth-trunc hmac(sha256) 0x{} 128", sa.key),
            _ => format!("aead rfc4106(gcm(aes)) 0x{} 128", sa.key),
        };
        batch += &format!(
            "xfrm state add src {from} dst {to} proto {protocol} spi {:#x} reqid 1 mode {mode} \
             replay-window 4096 flag {flags} {encapsulation} {algorithm}\n",
            sa.spi
        );
    }
    // In transport mode the kernel applies a policy for two hosts to Neighbor Discovery and to the UDP that
    // ESP is in, too (RFC 4301 4.4.1 has bypass policies for such). By number: the guest has no
    // /etc/protocols.
    let clear = [
        ("::/0", "proto 58 type 135 code 0"),
        ("::/0", "proto 58 type 136 code 0"),
        ("0.0.0.0/0", "proto 17 sport 4500 dport 4500"),
    ];
    for (direction, (any, packets)) in ["in", "out"].into_iter().flat_map(|way| clear.map(|c| (way, c))) {
        batch += &format!("xfrm policy add src {any} dst {any} {packets} dir {direction} priority 1\n");
    }
    let template =
        |from: &str, to: &str| format!("tmpl src {from} dst {to} proto {protocol} reqid 1 mode {mode}");
    for (ours, theirs) in &tunnel.selectors {
        let (inward, outward) = (template(left, right), template(right, left));
        batch += &format!("xfrm policy add src {theirs} dst {ours} dir out priority 10 {outward}\n");
        for direction in ["in", "fwd"] {
            batch +=
                &format!("xfrm policy add src {ours} dst {theirs} dir {direction} priority 10 {inward}\n");
        }
    }
    batch
}

/// Stops a gateway that has dropped nothing but what these reasons name.
pub fn stop(gateway: Gateway, expected: &[&str]) -> Outcome<()> {
    let status = gateway.ask_json(&["status"])?;
    for (reason, count) in status["drops"].as_object().into_iter().flatten() {
        // Hosts say things on a new interface that no policy is for (router solicitations and the like).
        let is_expected = reason == "no_policy" || expected.contains(&reason.as_str());
        ensure(is_expected || *count == 0, || format!("{count} packets were dropped as {reason}"))?;
    }
    gateway.stop()
}
