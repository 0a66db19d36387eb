//! Fragments that Scapy makes, on both sides of a tunnel to Linux: of sealed datagrams, which are for the
//! host of the gateway, and of packets between hosts (RFC 5722, RFC 4301 7).

use crate::site::{Kind, Site, stop};
use crate::support::config::Config;
use crate::support::pings::ping_of;
use crate::support::sites::OUTER;
use crate::support::{Outcome, ensure, folder, wait};
use std::fs::File;
use std::io::BufWriter;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_judge::scapy::Scapy;
use testudo_lab::capture::{Capture, WHOLE};
use testudo_lab::namespaces::Namespace;
use testudo_port_pcap::{FrameWriter, Link};
use testudo_wire::ip::IpHeader;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/scapy");
const LEFT: [&str; 2] = ["10.1.0.2", "fd01::2"];
/// In how many ways `send_fragments.py` sends a datagram. In the first, one fragment lies over the end of
/// another; in two, one lies inside another; the last two have no overlap.
const WAYS: usize = 5;
/// Where hosts listen, and where policy lets nothing go.
const PORT: u16 = 4000;
const FORBIDDEN: u16 = 4001;

pub fn tests<'a>(suite: Suite<'a, Site>) -> Suite<'a, Site> {
    let mut suite = suite;
    for kind in Kind::ALL {
        let name = format!("no_overlapping_byte_of_fragments_of_linux_is_opened_in_{}", kind.name());
        suite = suite.test(name, move |site| refuses_overlaps(site, kind));
    }
    suite
        .test("sealed_datagrams_that_routers_cut_are_put_together_at_both_ends", crosses_in_pieces_of_routers)
        .test("linux_puts_together_what_testudo_cuts_after_encryption", crosses_in_pieces_of_testudo)
        .test("fragments_between_hosts_cross_a_tunnel_to_linux_as_they_are", crosses_as_it_is)
        .test("fragments_between_hosts_follow_their_first_one_where_policy_asks_for_ports", follows_the_first)
}

/// Pings of so many bytes in all from the left host to the right one, which may be cut (`dont`) or not
/// (`do`); whether all three came back.
fn ping(site: &Site, to: &str, bytes: usize, may_be_cut: &str) -> bool {
    let payload = (bytes - if to.contains(':') { 48 } else { 28 }).to_string();
    let words = ["ping", "-q", "-c", "3", "-i", "0.05", "-W", "5", "-M", may_be_cut, "-s", &payload, to];
    site.network.left.run(&words).is_ok()
}

/// Fragments that a router has made so far, over IPv4 (RFC 4293).
fn fragments_made(router: &Namespace) -> Outcome<u64> {
    let table = router.within(|| std::fs::read_to_string("/proc/thread-self/net/snmp"))??;
    let mut lines = table.lines().filter(|line| line.starts_with("Ip:"));
    let names = lines.next().unwrap_or_default().split_whitespace();
    let values = lines.next().unwrap_or_default().split_whitespace();
    let made = names.zip(values).find(|(name, _)| *name == "FragCreates");
    Ok(made.ok_or("no FragCreates")?.1.parse()?)
}

/// RFC 4301 8.1: where the outer DF is a copy of one that is clear, routers cut datagrams that are too long
/// for the path, and nobody has to learn anything. So do Linux's.
fn crosses_in_pieces_of_routers(site: &mut Site) -> TestResult {
    for kind in Kind::ALL.into_iter().filter(|kind| !kind.over_ipv6) {
        let gateway = site.connect(kind, "df = \"copy\"")?;
        let [right, _] = site.network.fresh_host()?;
        let before = site.network.routers.each_ref().map(fragments_made);
        let bytes = kind.inner_mtu(1500);
        ensure(ping(site, &right, bytes, "dont"), || format!("pings were lost in {}", kind.name()))?;
        for (router, before) in site.network.routers.iter().zip(before) {
            let made = fragments_made(router)? - before?;
            ensure(made == 6, || format!("{} made {made} fragments in {}", router.name(), kind.name()))?;
        }
        stop(gateway, &[])?;
    }
    Ok(())
}

/// RFC 4303 3.3.4: packets with DF that are too long cross in fragments of their sealed datagrams, which
/// Linux puts together.
fn crosses_in_pieces_of_testudo(site: &mut Site) -> TestResult {
    for kind in Kind::ALL {
        let change = |end: &mut Config| end.protected = "mtu = 1500".to_owned();
        let gateway = site.connect_with(kind, "fragment = \"after\"", change)?;
        for right in site.network.fresh_host()? {
            // Over IPv6 no router cuts: the first are lost, and the path becomes known.
            let name = kind.name();
            wait::until(&format!("for pings to {right} in {name}"), || {
                Ok(ping_of(&site.network.left, &right, 1500, "0.3")?.0.then_some(()))
            })?;
            for bytes in [1500, kind.inner_mtu(1500) + 1] {
                ensure(ping(site, &right, bytes, "do"), || format!("pings of {bytes} bytes in {name}"))?;
            }
        }
        stop(gateway, &["icmp_believed", "icmp_ignored"])?;
    }
    Ok(())
}

/// Runs the script that sends fragments.
fn send_fragments(from: &Namespace, words: &[&str]) -> TestResult {
    Scapy::find(Path::new(SCRIPTS))?;
    let script = format!("{SCRIPTS}/send_fragments.py");
    let output = wait::output(from.command("/usr/bin/python3").args(["-B", &script]).args(words))?;
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    ensure(output.status.success(), || format!("send_fragments.py {words:?}: {}", said.concat()))
}

/// Sealed datagrams of Linux that do not reach Testudo: pings whose numbers are still unused.
fn intercept(site: &Site, kind: Kind) -> Outcome<Vec<Vec<u8>>> {
    let network = &site.network;
    let [ours, theirs] = OUTER[usize::from(kind.over_ipv6)].map(str::parse::<IpAddr>);
    let (ours, theirs) = (ours?, theirs?);
    let router = &network.routers[0];
    let family = if kind.over_ipv6 { "ip6" } else { "ip" };
    router.run(&["nft", "add table inet hold"])?;
    router.run(&["nft", "add chain inet hold out { type filter hook forward priority 0; }"])?;
    router.run(&["nft", &format!("add rule inet hold out {family} daddr {ours} drop")])?;
    let capture = Capture::start(router, "narrow", &folder("overlap")?.join("narrow.pcap"), WHOLE)?;
    let count = WAYS.to_string();
    // Without DF, so that each has an Identification of its own.
    let words = ["-q", "-c", &count, "-i", "0.02", "-W", "0.2", "-s", "1000", "-M", "dont", LEFT[0]];
    let output = wait::output(network.right.command("ping").args(words))?;
    ensure(!output.status.success(), || "a ping passed a router that drops it".to_owned())?;
    let mut datagrams = Vec::new();
    capture.finish(router)?.frames(|frame, _| {
        let bytes = frame.get(14..).unwrap_or_default();
        let is_theirs = IpHeader::parse(bytes).is_ok_and(|ip| ip.source == theirs && ip.destination == ours);
        if is_theirs && bytes.len() > 1000 {
            datagrams.push(bytes.to_vec());
        }
    })?;
    router.run(&["nft", "delete table inet hold"])?;
    ensure(datagrams.len() == WAYS, || format!("{} datagrams were intercepted", datagrams.len()))?;
    Ok(datagrams)
}

/// Writes packets that begin with their IP headers.
fn write(packets: &[Vec<u8>], path: &Path) -> TestResult {
    let mut file = FrameWriter::new(BufWriter::new(File::create(path)?), Link::Raw, WHOLE)?;
    for (at, packet) in (0..).zip(packets) {
        file.write(Duration::from_secs(at), packet, packet.len())?;
    }
    Ok(file.flush()?)
}

/// Host mode's sockets get what the host's kernel has put together. It drops a datagram of which one fragment
/// lies over the end of another (RFC 5722 3), and takes one that lies inside another for a copy of it (RFC
/// 8200 4.5): then the first bytes stay, and the datagram is authentic.
fn refuses_overlaps(site: &mut Site, kind: Kind) -> TestResult {
    let gateway = site.connect(kind, "")?;
    let datagrams = intercept(site, kind)?;
    let file = folder("overlap")?.join("datagrams.pcap");
    write(&datagrams, &file)?;
    send_fragments(&site.network.routers[0], &["recorded", &file.display().to_string()])?;
    let packets = || -> Outcome<u64> { Ok(gateway.sa("a-b", "inbound")?["packets"].as_u64().unwrap_or(0)) };
    let whole = WAYS as u64 - 1;
    wait::until("for datagrams to be opened", || Ok((packets()? >= whole).then_some(())))?;
    let sa = gateway.sa("a-b", "inbound")?;
    let drops = sa["drops"].as_object().map_or(0, serde_json::Map::len);
    ensure(sa["packets"] == whole && drops == 0, || {
        format!("{} of {WAYS} datagrams were opened, dropped: {}", sa["packets"], sa["drops"])
    })?;
    stop(gateway, &[])
}

/// The names of the ways whose datagrams a host gets, while the script sends them from another.
fn received(from: (&Namespace, &str), to: (&Namespace, &str), port: u16) -> Outcome<Vec<String>> {
    let socket = to.0.within(|| UdpSocket::bind((to.1, port)))??;
    socket.set_read_timeout(Some(wait::PATIENCE))?;
    send_fragments(from.0, &["udp", from.1, to.1, &port.to_string()])?;
    let mut names = Vec::new();
    let mut bytes = [0; 2048];
    while names.last().is_none_or(|last| last != "in order") {
        let length = socket.recv(&mut bytes).map_err(|e| format!("after {names:?}: {e}"))?;
        names.push(String::from_utf8_lossy(&bytes[..length]).trim_end_matches('.').to_owned());
    }
    Ok(names)
}

/// Both directions, both IP versions.
fn directions(site: &Site, rights: &[String; 2], each: impl Fn(Vec<String>) -> TestResult) -> TestResult {
    let network = &site.network;
    for (left, right) in LEFT.into_iter().zip(rights) {
        let (left, right) = ((&network.left, left), (&network.right, right.as_str()));
        each(received(left, right, PORT)?)?;
        each(received(right, left, PORT)?)?;
    }
    Ok(())
}

/// Where policy asks for addresses alone, fragments of hosts are none of a gateway's business: all pass, and
/// the host that they are for puts them together or refuses them. It gets no byte of those that lie over
/// others.
fn crosses_as_it_is(site: &mut Site) -> TestResult {
    for kind in [Kind::ALL[0], Kind::ALL[1]] {
        let gateway = site.connect(kind, "")?;
        let rights = site.network.fresh_host()?;
        directions(site, &rights, |names| {
            let expected = ["within the first", "changed copy", "reversed", "in order"];
            ensure(names == expected, || format!("{names:?} arrived"))
        })?;
        // Three datagrams with an overlap in one more fragment, two without, each way.
        for direction in ["outbound", "inbound"] {
            let packets = gateway.sa("a-b", direction)?["packets"].clone();
            ensure(packets == 2 * (5 * 3 + 3), || format!("{packets} fragments {direction}"))?;
        }
        stop(gateway, &[])?;
    }
    Ok(())
}

/// With a policy on ports in front, later fragments follow their first one, in both directions (RFC 4301
/// 7.3). What comes before it or overlaps it is dropped by the gateway, and nothing of a forbidden datagram
/// passes. A second first fragment as long as the first one decides the same.
fn follows_the_first(site: &mut Site) -> TestResult {
    let policy = format!(
        "[[policy]]\naction = \"discard\"\nprotocol = \"udp\"\nremote_ports = {FORBIDDEN}\n\
         [[policy]]\naction = \"discard\"\nprotocol = \"udp\"\nlocal_ports = {FORBIDDEN}\n"
    );
    let more = "non_first_fragments = true";
    let gateway = site.connect_with(Kind::ALL[0], more, |end| end.policies.clone_from(&policy))?;
    let rights = site.network.fresh_host()?;
    directions(site, &rights, |names| {
        ensure(names == ["changed copy", "in order"], || format!("{names:?} arrived"))
    })?;
    // Of each direction and version: from the overlap on, twice, and the two that overtook their first one.
    let hidden = gateway.dropped("fields_hidden")?;
    ensure(hidden == 4 * (2 * 3 + 2), || format!("{hidden} fragments were dropped"))?;
    let before = gateway.sa("a-b", "outbound")?["packets"].clone();
    let words = ["udp", LEFT[0], &rights[0], &FORBIDDEN.to_string()];
    send_fragments(&site.network.left, &words)?;
    gateway.counts("policy_discard", 6)?;
    gateway.counts("fields_hidden", hidden + 2 * 3 + 3 * 2)?;
    let after = gateway.sa("a-b", "outbound")?["packets"].clone();
    ensure(before == after, || format!("{before} packets before, {after} after"))?;
    stop(gateway, &["fields_hidden", "policy_discard"])
}
