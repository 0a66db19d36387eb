//! Hosts' traffic through two gateways, and the kernel's own beside it.

use crate::support::config::Config;
use crate::support::gateway::Gateway;
use crate::support::sites::{NARROW, Network, OUTER};
use crate::support::{Outcome, ensure, wait};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::Namespace;
use testudo_lab::traffic::{ping, tcp_stream, udp_echo};

pub fn tests(suite: Suite<'_, Network>) -> Suite<'_, Network> {
    suite
        .test("traffic_passes_in_native_mode_over_ipv4", |network| passes(network, false, false, NATIVE))
        .test("traffic_passes_in_native_mode_in_udp_over_ipv6", |network| passes(network, true, true, NATIVE))
        .test("traffic_passes_in_generic_mode", generic)
        .test("one_side_may_be_the_kernels", mixed)
        .test("the_kernels_own_traffic_on_the_interfaces_goes_on", kernels_own)
        .test("packets_of_9000_bytes_pass_in_chains_by_esp_and_vpe", jumbo)
        .test("esp_that_the_host_forwards_for_somebody_else_stays_with_the_kernel", forwarded)
}

pub const NATIVE: &str = "mode = \"native\"";
/// The last two are cut inside the tunnel.
const UDP_SIZES: [usize; 5] = [1, 64, 1300, 4000, 8000];
const SECOND: Duration = Duration::from_secs(1);
/// MTU between hosts and gateways, and between gateways, where packets of 9,000 bytes pass whole.
const JUMBO: [usize; 2] = [9000, 9200];
const USUAL: [usize; 2] = [1500, 1500];

/// Two gateways with AF_XDP.
pub fn ends(over_ipv6: bool, udp: bool, more: &str) -> Outcome<[Config; 2]> {
    let mut ends = Network::ends(over_ipv6, udp, "")?;
    ends.iter_mut().for_each(|end| end.with_xdp(more));
    Ok(ends)
}

/// The hosts reach each other, both ways, with packets of all sizes.
pub fn hosts_reach_each_other(network: &mut Network) -> TestResult {
    let Network { left, right, .. } = &*network;
    for [at_left, at_right] in [["10.1.0.2", "10.2.0.10"], ["fd01::2", "fd02::10"]] {
        let [at_left, at_right]: [IpAddr; 2] = [at_left.parse()?, at_right.parse()?];
        for (from, to, address) in [(left, right, at_right), (right, left, at_left)] {
            let trips = ping(from, address, 5, wait::PATIENCE)?;
            ensure(trips.lost == 0, || format!("{} pings to {address} were lost", trips.lost))?;
            // The path is narrower than what is configured: routers say so, by ICMP.
            tcp_stream(from, to, address, SECOND / 5, &mut |_, _| ())?;
            let trips = udp_echo(from, to, address, &UDP_SIZES)?;
            ensure(trips.lost == 0, || format!("{} datagrams to {address} were lost", trips.lost))?;
        }
    }
    Ok(())
}

/// A side of the status.
pub fn port(gateway: &Gateway, side: &str) -> Outcome<Value> {
    Ok(gateway.ask_json(&["status"])?["ports"][side].clone())
}

fn passes(network: &mut Network, over_ipv6: bool, udp: bool, more: &str) -> TestResult {
    // What earlier tests have taught hosts of the path would keep them from learning it here.
    for (host, family) in
        [(&network.left, "-4"), (&network.left, "-6"), (&network.right, "-4"), (&network.right, "-6")]
    {
        host.run(&["ip", family, "route", "flush", "cache"])?;
    }
    let [a, b] = network.start(&ends(over_ipv6, udp, more)?)?;
    hosts_reach_each_other(network).map_err(|e| format!("{e}\n{}\n{}", a.log(), b.log()))?;
    for gateway in [&a, &b] {
        for side in ["protected", "unprotected"] {
            let port = port(gateway, side)?;
            let (facts, queues) = (&port["device"]["facts"], &port["device"]["queues"]);
            assert_eq!(port["kind"], "xdp", "{port:#}");
            assert!(more.contains(facts["mode"].as_str().unwrap_or("none")), "{port:#}");
            assert_eq!((&facts["zero_copy"], &facts["driver"]), (&false.into(), &"veth".into()), "{port:#}");
            assert_eq!(queues.as_array().map(Vec::len), Some(2), "{port:#}");
            assert!(port["rx_packets"].as_u64() > Some(100), "{port:#}");
        }
        // Path MTU: the port hears what routers say, and the gateway believes it.
        let believed = gateway.dropped("icmp_believed")?;
        ensure(believed > 0, || "no ICMP error was heard".to_owned())?;
        for reason in ["no_route", "neighbour_unresolved", "device_frame_unknown", "device_frame_bounds"] {
            assert_eq!(gateway.dropped(reason)?, 0, "{reason}\n{}", gateway.log());
        }
    }
    a.stop()?;
    b.stop()
}

/// Without super-frames of the hosts' kernels: these come as they are, in this mode alone.
fn generic(network: &mut Network) -> TestResult {
    let segments = |network: &Network, most: &str| -> TestResult {
        for host in [&network.left, &network.right] {
            host.run(&["ip", "link", "set", "dev", "lan", "gso_max_segs", most])?;
        }
        Ok(())
    };
    segments(network, "1")?;
    let passed = passes(network, false, true, "mode = \"generic\"");
    segments(network, "65535")?;
    passed
}

/// A gateway with AF_XDP at its outer interface alone, and one at its inner one.
fn mixed(network: &mut Network) -> TestResult {
    let [mut a, mut b] = ends(false, false, NATIVE)?;
    (a.kinds[0], b.kinds[1]) = (None, None);
    let [a, b] = network.start(&[a, b])?;
    hosts_reach_each_other(network).map_err(|e| format!("{e}\n{}\n{}", a.log(), b.log()))?;
    let kinds = |gateway: &Gateway| -> Outcome<[Value; 2]> {
        Ok([port(gateway, "protected")?["kind"].clone(), port(gateway, "unprotected")?["kind"].clone()])
    };
    assert_eq!(
        (kinds(&a)?, kinds(&b)?),
        (["tun", "xdp"].map(Value::from), ["xdp", "socket"].map(Value::from))
    );
    a.stop()?;
    b.stop()
}

/// Packets that nobody may cut, over a path that carries them sealed.
fn jumbo(network: &mut Network) -> TestResult {
    set_mtus(network, JUMBO, JUMBO[1])?;
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    let passed = ways.into_iter().try_for_each(|(vpe, udp)| jumbo_by(network, vpe, udp));
    set_mtus(network, USUAL, NARROW)?;
    passed
}

fn set_mtus(network: &Network, [inner, outer]: [usize; 2], narrow: usize) -> TestResult {
    let Network { left, a, routers: [at_a, at_b], b, right, .. } = network;
    for host in [left, a, b, right] {
        host.mtu("lan", inner)?;
    }
    for host in [a, at_a, at_b, b] {
        host.mtu("wan", outer)?;
    }
    network.narrow_to(narrow)
}

/// They come in several buffers, are sealed and opened there, and leave so: no packet is merged.
fn jumbo_by(network: &mut Network, vpe: bool, udp: bool) -> TestResult {
    let mut ends = ends(false, udp, NATIVE)?;
    for end in &mut ends {
        end.gateway = "engines = [\"portable\"]".to_owned();
        (end.protected, end.unprotected) = ("mtu = 9000".to_owned(), "mtu = 9200".to_owned());
        for tunnel in end.tunnels.iter_mut().filter(|_| vpe) {
            (tunnel.vpe, tunnel.more) = (true, "allow_manual_counter_nonce = true".to_owned());
            for sa in [&mut tunnel.outbound, &mut tunnel.inbound] {
                // Of VPE it is the cipher's key alone.
                sa.key.truncate(32);
            }
        }
    }
    let [a, b] = network.start(&ends)?;
    let way = format!("VPE {vpe}, in UDP {udp}");
    for host in [&network.left, &network.right] {
        // What earlier tests have taught of the path.
        host.run(&["ip", "-4", "route", "flush", "cache"])?;
        host.run(&["ip", "-6", "route", "flush", "cache"])?;
    }
    for (from, to, bytes) in [
        (&network.left, "10.2.0.10", "8972"),
        (&network.right, "10.1.0.2", "8972"),
        (&network.left, "fd02::10", "8952"),
    ] {
        let said = from.run(&["ping", "-M", "do", "-c", "20", "-i", "0.05", "-W", "5", "-s", bytes, to]);
        let said = said.map_err(|error| format!("{way}: {error}\n{}\n{}", a.log(), b.log()))?;
        ensure(said.contains("20 received"), || format!("{way}: {said}\n{}\n{}", a.log(), b.log()))?;
    }
    for gateway in [&a, &b] {
        for side in ["protected", "unprotected"] {
            // The port publishes them a few times a second.
            wait::until(&format!("for chains at the {side} side, {way}"), || {
                let port = port(gateway, side)?;
                let count = |name: &str| -> u64 {
                    let queues = port["device"]["queues"].as_array().into_iter().flatten();
                    queues.filter_map(|queue| queue[name].as_u64()).sum()
                };
                assert_eq!(count("rx_merged"), 0, "{way}: {port:#}");
                Ok((count("rx_chains") >= 60 && count("tx_chains") >= 60).then_some(()))
            })?;
        }
        assert_eq!(gateway.ask_json(&["status"])?["linearised"], 0, "{way}: {}", gateway.log());
    }
    a.stop()?;
    b.stop()
}

/// Ping and a connection, as of ssh, to the gateway's own addresses on both interfaces, and from it.
fn kernels_own(network: &mut Network) -> TestResult {
    let [a, b] = network.start(&ends(false, false, NATIVE)?)?;
    let Network { left, a: gateway, routers, .. } = &*network;
    for (client, server, address) in [
        (left, gateway, "10.1.0.1"),
        (left, gateway, "fd01::1"),
        (&routers[0], gateway, OUTER[0][0]),
        (&routers[0], gateway, OUTER[1][0]),
        (gateway, left, "10.1.0.2"),
    ] {
        let address: IpAddr = address.parse()?;
        let trips = ping(client, address, 5, wait::PATIENCE)?;
        ensure(trips.lost == 0, || format!("{} pings to {address} were lost\n{}", trips.lost, a.log()))?;
        converse(client, server, address)?;
    }
    a.stop()?;
    b.stop()
}

/// From the network outside to the left host, through the host of gateway A: what looks like ESP in UDP,
/// to the port that A's tunnels have, too.
fn forwarded(network: &mut Network) -> TestResult {
    let gateways = network.start(&ends(false, true, NATIVE)?)?;
    let Network { left, routers, .. } = &*network;
    for (from, to) in [("192.0.2.254", "10.1.0.2"), ("2001:db8:a::254", "fd01::2")] {
        let [from, to]: [IpAddr; 2] = [from.parse()?, to.parse()?];
        let receiver = left.within(|| UdpSocket::bind((to, 4500)))??;
        receiver.set_read_timeout(Some(5 * SECOND))?;
        let esp = [0xC0, 0xFF, 0xEE, 0x01, 0, 0, 0, 1, 9, 9, 9, 9];
        let sender = routers[0].within(|| UdpSocket::bind((from, 0)))??;
        let (route, gateway) = (to.to_string(), if to.is_ipv4() { OUTER[0][0] } else { OUTER[1][0] });
        routers[0].route_via(&route, gateway)?;
        sender.send_to(&esp, (to, 4500))?;
        let mut datagram = [0; 64];
        let came = receiver.recv(&mut datagram);
        routers[0].run(&["ip", "route", "delete", &route])?;
        let bytes = came.map_err(|error| format!("{error}: {to}\n{}", gateways[0].log()))?;
        ensure(datagram[..bytes] == esp, || "another datagram came".to_owned())?;
    }
    for gateway in gateways {
        assert_eq!(port(&gateway, "unprotected")?["rx_packets"], 0);
        gateway.stop()?;
    }
    Ok(())
}

/// A connection over which some kilobytes pass each way.
fn converse(client: &Namespace, server: &Namespace, address: IpAddr) -> TestResult {
    let listener = server.within(|| TcpListener::bind((address, 0)))??;
    let (to, data) = (listener.local_addr()?, vec![0x5A; 20_000]);
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut all = vec![0; 20_000];
        stream.read_exact(&mut all)?;
        stream.write_all(&all)
    });
    let mut stream = client.within(|| TcpStream::connect_timeout(&to, 5 * SECOND))??;
    stream.set_read_timeout(Some(5 * SECOND))?;
    stream.write_all(&data)?;
    let mut back = vec![0; data.len()];
    stream.read_exact(&mut back)?;
    echo.join().map_err(|_| "the server panicked")??;
    ensure(back == data, || "other data came back".to_owned())?;
    Ok(())
}
