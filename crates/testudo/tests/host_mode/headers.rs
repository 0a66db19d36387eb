//! Outer headers as they are seen on the wire, of packets that a Linux host sends, in sockets of UDP and of
//! ESP: DSCP, ECN, TTL, DF (RFC 4301 5.1.2.1 and 8.1, RFC 6040), flow labels (RFC 6438); and the MSS of TCP
//! connections through a narrow path (RFC 9293 3.7.1).

use crate::support::config::{Config, pair};
use crate::support::link::{LINK, Link};
use crate::support::{Outcome, ensure, folder};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::thread;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::capture::{Capture, WHOLE};
use testudo_lab::traffic::{Load, Stream};

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("outer_headers_follow_the_inner_ones_as_the_tunnel_says", v4_fields)
        .test("outer_flow_labels_tell_flows_apart_only_where_that_is_wanted", flow_labels)
        .test("windows_of_vpe_have_udp_source_ports_of_their_own_where_that_is_wanted", source_ports)
        .test("tcp_segments_fit_a_narrow_path_from_the_start", clamps_mss)
}

const A: &str = "10.1.0.1";
const B: &str = "10.2.0.1";
/// What each of many streams sends, so that none of them loses any on a small machine.
const EASY: Load = Load { per_second: 25.0, bytes: 8 };
const OUTER_V6: [&str; 2] = ["fd08::1", "fd08::2"];

/// The headers of packets with this source, as far as ports and SPI, that cross the wire while `work` runs.
fn seen(link: &Link, source: &[u8], work: impl FnOnce() -> TestResult) -> Outcome<Vec<Vec<u8>>> {
    let capture = Capture::start(&link.a, LINK, &folder("headers")?.join("wan.pcap"), WHOLE)?;
    work()?;
    let mut packets = Vec::new();
    capture.finish(&link.a)?.frames(|frame, _| {
        let (at, protocol_at) = if source.len() == 4 { (26, 23) } else { (22, 20) };
        let protocol = frame.get(protocol_at).copied().unwrap_or(0);
        if frame.get(at..at + source.len()) == Some(source) && [17, 50].contains(&protocol) {
            packets.push(frame[14..].to_vec());
        }
    })?;
    ensure(!packets.is_empty(), || "nothing crossed the wire".to_owned())?;
    Ok(packets)
}

/// Three pings with this TOS and this answer of the host to "may it be cut".
fn ping(link: &Link, tos: u8, df: &str) -> TestResult {
    let tos = tos.to_string();
    link.a.run(&["ping", "-q", "-c", "3", "-i", "0.02", "-W", "5", "-Q", &tos, "-M", df, "-s", "100", B])?;
    Ok(())
}

/// Many flows in both directions, between gateways that know each other's address and such that learn it:
/// every window has one port, which no other has, and neither gateway takes that for a move.
fn source_ports(link: &mut Link) -> TestResult {
    for (learns, is_per_window) in [(false, true), (true, true), (false, false)] {
        let mut ends = pair(true)?;
        let ports = if is_per_window { "per-window" } else { "one" };
        for end in &mut ends {
            let tunnel = &mut end.tunnels[0];
            tunnel.vpe = true;
            tunnel.more = format!(
                "allow_manual_counter_nonce = true\nclasses = [[46]]\nudp_source_ports = \"{ports}\""
            );
            for sa in [&mut tunnel.outbound, &mut tunnel.inbound] {
                // Of VPE it is the cipher's key alone.
                sa.key.truncate(32);
            }
        }
        let [a, mut b] = ends;
        if learns {
            b.tunnels[0].remote = "any".to_owned();
        }
        let (left, _) = link.start_a(&a)?;
        let (right, _) = link.start_b(&b)?;
        for (from, work) in [([192, 0, 2, 1], [A, B]), ([192, 0, 2, 2], [B, A])] {
            let (here, there) = if work[0] == A { (&link.a, &link.b) } else { (&link.b, &link.a) };
            let packets = seen(link, &from, || {
                let mut streams = Vec::new();
                for _ in 0..24 {
                    streams.push(Stream::start_with((here, work[0]), (there, work[1]), EASY)?);
                }
                streams.iter().try_for_each(|stream| stream.flows(10))?;
                for stream in streams {
                    let (_, lost) = stream.end()?;
                    ensure(lost.is_empty(), || format!("lost: {lost:?}\n{}", left.log()))?;
                }
                Ok(())
            })?;
            spread_over_ports(&packets, is_per_window)?;
        }
        for log in [left.log(), right.log()] {
            let moves =
                log.lines().filter(|line| line.contains("moved") || line.contains("the peer is at")).count();
            ensure(moves <= usize::from(learns), || format!("a peer that moved: {log}"))?;
        }
        left.stop()?;
        right.stop()?;
    }
    Ok(())
}

/// Whether outer datagrams of VPE have a source port for each window, or one for all, and one destination.
fn spread_over_ports(packets: &[Vec<u8>], is_per_window: bool) -> TestResult {
    let mut windows = HashSet::new();
    for packet in packets {
        let port = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let window = u16::from_le_bytes([packet[30], packet[31]]);
        let expected = if is_per_window { 0xC000 + window } else { 4501 };
        let (source, destination) = (port(20), port(22));
        ensure((source, destination) == (expected, 4501), || {
            format!("window {window} goes from port {source} to {destination}")
        })?;
        windows.insert(window);
    }
    // Twenty-four flows in eight windows of the default class.
    ensure(windows.len() > 2, || format!("{windows:?}"))
}

fn v4_fields(link: &mut Link) -> TestResult {
    for udp in [true, false] {
        for (df, dscp) in [("copy", "\"copy\""), ("set", "46"), ("clear", "0")] {
            let [mut a, b] = pair(udp)?;
            a.tunnels[0].more = format!("df = \"{df}\"\ndscp = {dscp}");
            let (left, _) = link.start_a(&a)?;
            let (right, _) = link.start_b(&b)?;
            for tos in [0, 0xB8, 0x02, 0x89] {
                for hosts in ["do", "dont"] {
                    let packets = seen(link, &[192, 0, 2, 1], || ping(link, tos, hosts))?;
                    let fixed = dscp.parse::<u8>().ok().map(|dscp| dscp << 2);
                    let class = fixed.map_or(tos, |fixed| fixed | tos & 3);
                    let is_set = df == "set" || df == "copy" && hosts == "do";
                    let expected = (class, 64, is_set);
                    let found: HashSet<_> = packets.iter().map(|p| (p[1], p[8], p[6] & 0x40 != 0)).collect();
                    ensure(found == HashSet::from([expected]), || {
                        format!("TOS {tos:#x}, DF {hosts}, {df}, UDP {udp}: {found:?}, not {expected:?}")
                    })?;
                    let numbers: HashSet<_> = packets.iter().map(|p| [p[4], p[5]]).collect();
                    // RFC 6864 4: what may be cut has an Identification of its own.
                    ensure(is_set || numbers.len() == packets.len() && !numbers.contains(&[0, 0]), || {
                        format!("identifications {numbers:?} of {} packets", packets.len())
                    })?;
                }
            }
            right.stop()?;
            left.stop()?;
        }
    }
    Ok(())
}

/// Eight flows of UDP, five datagrams each.
fn send_flows(link: &Link) -> TestResult {
    let receiver = link.b.within(|| UdpSocket::bind((B, 4000)))??;
    for _ in 0..8 {
        let socket = link.a.within(|| UdpSocket::bind((A, 0)))??;
        for _ in 0..5 {
            socket.send_to(b"any flow", (B, 4000))?;
            receiver.recv_from(&mut [0; 16])?;
        }
    }
    Ok(())
}

fn flow_labels(link: &mut Link) -> TestResult {
    for (host, address) in [&link.a, &link.b].into_iter().zip(OUTER_V6) {
        host.run(&["ip", "address", "add", &format!("{address}/64"), "dev", LINK, "nodad"])?;
    }
    for udp in [true, false] {
        for (lines, expected) in [("", 1), ("flow_label = \"per-flow\"", 8)] {
            let [mut a, mut b] = pair(udp)?;
            let over_v6 = |end: &mut Config, [local, remote]: [&str; 2]| {
                (end.tunnels[0].local, end.tunnels[0].remote) = (local.to_owned(), remote.to_owned());
            };
            over_v6(&mut a, OUTER_V6);
            over_v6(&mut b, [OUTER_V6[1], OUTER_V6[0]]);
            a.tunnels[0].more = lines.to_owned();
            let (left, _) = link.start_a(&a)?;
            let (right, _) = link.start_b(&b)?;
            let source = OUTER_V6[0].parse::<std::net::Ipv6Addr>()?.octets();
            let packets = seen(link, &source, || send_flows(link))?;
            let labels: HashSet<_> = packets.iter().map(|p| [p[1] & 0xF, p[2], p[3]]).collect();
            let is_right = labels.len() == expected && labels.contains(&[0; 3]) == (expected == 1);
            ensure(is_right, || format!("{lines:?}, UDP {udp}: labels {labels:?}"))?;
            right.stop()?;
            left.stop()?;
        }
    }
    for (host, address) in [&link.a, &link.b].into_iter().zip(OUTER_V6) {
        host.run(&["ip", "address", "del", &format!("{address}/64"), "dev", LINK])?;
    }
    Ok(())
}

/// A megabyte each way over one connection from A to B.
fn transfer(link: &Link) -> TestResult {
    const BYTES: usize = 1 << 20;
    let listener = link.b.within(|| TcpListener::bind((B, 5000)))??;
    let server = thread::spawn(move || -> std::io::Result<usize> {
        let (mut stream, _) = listener.accept()?;
        let received = stream.read_to_end(&mut Vec::new())?;
        stream.write_all(&vec![0xB0; BYTES])?;
        Ok(received)
    });
    let mut stream = link.a.within(|| TcpStream::connect((B, 5000)))??;
    stream.write_all(&vec![0xA0; BYTES])?;
    stream.shutdown(Shutdown::Write)?;
    let back = stream.read_to_end(&mut Vec::new())?;
    let there = server.join().map_err(|_| "the server has panicked")??;
    ensure((there, back) == (BYTES, BYTES), || format!("{there} bytes there, {back} back"))
}

/// The hosts' interfaces carry 4,000 bytes, the path 1,300: without clamping their first segments are too
/// long, and they must be told.
fn clamps_mss(link: &mut Link) -> TestResult {
    const PATH: usize = 1300;
    for host in [&link.a, &link.b] {
        host.mtu(LINK, PATH)?;
    }
    for (udp, clamp) in [(true, "\"auto\""), (false, "\"auto\""), (true, "\"off\""), (false, "1000")] {
        let mut ends = pair(udp)?;
        for end in &mut ends {
            end.protected = "mtu = 4000".to_owned();
            end.unprotected = format!("mtu = {PATH}");
            end.tunnels[0].more = format!("mss_clamp = {clamp}");
        }
        let (left, _) = link.start_a(&ends[0])?;
        let (right, _) = link.start_b(&ends[1])?;
        transfer(link)?;
        let too_long = left.dropped("too_big")? + right.dropped("too_big")?;
        ensure((too_long > 0) == (clamp == "\"off\""), || {
            format!("mss_clamp = {clamp}, UDP {udp}: {too_long} packets were too long")
        })?;
        right.stop()?;
        left.stop()?;
    }
    for host in [&link.a, &link.b] {
        host.mtu(LINK, 1500)?;
    }
    Ok(())
}
