//! The filter, judged by the kernel over packets (BPF_PROG_TEST_RUN).

use crate::support::{Opened, Sites, config, network, open};
use testudo_judge::harness::{Suite, TestResult};
use testudo_port_xdp::{Filter, FilterConfig, Taken, UdpContent, UdpPort, Verdict, XdpConfig, XdpMode};
use testudo_wire::protocol;

pub fn tests(suite: Suite<'_, Sites>) -> Suite<'_, Sites> {
    suite
        .test("the_filter_takes_what_is_the_gateways_and_nothing_else", takes_and_leaves)
        .test("the_filter_decides_the_same_behind_vlan_tags", tagged)
        .test("the_filter_reads_nothing_of_frames_that_are_cut", cut)
        .test("protected_networks_can_be_replaced", replaced)
        .test("without_a_device_the_kernel_gets_everything", unbound)
}

/// The header of Ethernet, with tags of these kinds.
fn ethernet(kind: u16, tags: &[u16]) -> Vec<u8> {
    let mut frame = vec![0x02; 12];
    for tag in tags {
        frame.extend(tag.to_be_bytes());
        frame.extend([0x20, 0x05]);
    }
    frame.extend(kind.to_be_bytes());
    frame
}

/// A packet as a test writes it down.
#[derive(Clone)]
struct Packet {
    to: &'static str,
    protocol: u8,
    payload: Vec<u8>,
    /// Offset in units of 8 bytes, and whether more follow.
    fragment: Option<(u16, bool)>,
    /// Bytes of options of IPv4.
    options: usize,
}

fn packet(to: &'static str, protocol: u8, payload: Vec<u8>) -> Packet {
    Packet { to, protocol, payload, fragment: None, options: 0 }
}

fn udp(to: &'static str, port: u16, payload: &[u8]) -> Packet {
    let mut bytes = 40_000_u16.to_be_bytes().to_vec();
    bytes.extend(port.to_be_bytes());
    bytes.extend((8 + payload.len() as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    packet(to, protocol::UDP, bytes)
}

impl Packet {
    fn fragment(self, offset: u16, more: bool) -> Self {
        Self { fragment: Some((offset, more)), ..self }
    }

    fn bytes(&self) -> Vec<u8> {
        if self.to.contains(':') { self.ipv6() } else { self.ipv4() }
    }

    fn ipv4(&self) -> Vec<u8> {
        let to: std::net::Ipv4Addr = self.to.parse().unwrap();
        let mut bytes = vec![0x45 + self.options as u8 / 4, 0];
        bytes.extend((20 + self.options as u16 + self.payload.len() as u16).to_be_bytes());
        let (offset, more) = self.fragment.unwrap_or((0, false));
        bytes.extend([0, 1]);
        bytes.extend((offset | u16::from(more) << 13).to_be_bytes());
        bytes.extend([64, self.protocol, 0, 0, 192, 0, 2, 9]);
        bytes.extend(to.octets());
        bytes.extend(vec![1; self.options]);
        bytes.extend(&self.payload);
        bytes
    }

    fn ipv6(&self) -> Vec<u8> {
        let to: std::net::Ipv6Addr = self.to.parse().unwrap();
        let mut payload = self.payload.clone();
        let mut next = self.protocol;
        if let Some((offset, more)) = self.fragment {
            let mut header = vec![next, 0];
            // Two reserved bits are set: nobody may look at them.
            header.extend((offset << 3 | 6 | u16::from(more)).to_be_bytes());
            header.extend([0, 0, 0, 7]);
            payload = [header, payload].concat();
            next = protocol::FRAGMENT;
        }
        let mut bytes = vec![0x60, 0, 0, 0];
        bytes.extend((payload.len() as u16).to_be_bytes());
        bytes.extend([next, 64]);
        bytes.extend([0xFD; 16]);
        bytes.extend(to.octets());
        bytes.extend(payload);
        bytes
    }

    fn frame(&self, tags: &[u16]) -> Vec<u8> {
        let mut frame = ethernet(if self.to.contains(':') { 0x86DD } else { 0x0800 }, tags);
        frame.extend(self.bytes());
        // Short frames are padded on the wire.
        let least = frame.len().max(60);
        frame.resize(least, 0);
        frame
    }
}

/// Packets that the gateway gets, and those that it does not get, each with its name.
fn cases() -> Vec<(&'static str, Packet, Verdict)> {
    let esp = [0xC0, 0xFF, 0xEE, 0x01, 0, 0, 0, 1, 9, 9, 9, 9];
    let ike = [[0; 4], [1, 2, 3, 4], [5, 6, 7, 8]].concat();
    let mut cases = Vec::new();
    let leave = Verdict::Leave;
    // What the host only forwards is somebody else's, whatever it is.
    for (to, take) in
        [("10.9.0.2", Verdict::Take), ("fd09::2", Verdict::Take), ("198.51.100.3", leave), ("fd10::3", leave)]
    {
        cases.extend([
            ("ESP", packet(to, protocol::ESP, esp.to_vec()), take),
            ("AH", packet(to, protocol::AH, esp.to_vec()), take),
            ("VPE", packet(to, 253, esp.to_vec()), take),
            ("a first fragment of ESP", packet(to, protocol::ESP, esp.to_vec()).fragment(0, true), take),
            ("a last fragment of ESP", packet(to, protocol::ESP, esp.to_vec()).fragment(9, false), take),
            ("a fragment of AH", packet(to, protocol::AH, esp.to_vec()).fragment(9, true), take),
            ("ESP in UDP", udp(to, 4500, &esp), take),
            ("the shortest ESP in UDP", udp(to, 4500, &esp[..8]), take),
            ("anything to VPE's port", udp(to, 4501, &[0]), take),
            ("IKE", udp(to, 500, &esp), leave),
            ("IKE on ESP's port", udp(to, 4500, &ike), leave),
            ("a keepalive", udp(to, 4500, &[0xFF]), leave),
            ("too little for ESP", udp(to, 4500, &esp[..7]), leave),
            ("another port", udp(to, 53, &esp), leave),
            ("a first fragment of UDP", udp(to, 4500, &esp).fragment(0, true), leave),
            ("a last fragment of UDP", udp(to, 4500, &esp).fragment(3, false), leave),
            ("ssh", packet(to, protocol::TCP, vec![0; 40]), leave),
            ("a ping", packet(to, protocol::ICMP, vec![8; 64]), leave),
            ("neighbour discovery", packet(to, protocol::ICMPV6, vec![135; 64]), leave),
        ]);
    }
    for (there, verdict) in [
        ("172.16.0.1", Verdict::Take),
        ("172.31.255.255", Verdict::Take),
        ("172.32.0.0", Verdict::Leave),
        ("172.16.7.7", Verdict::Leave),
        ("172.16.7.6", Verdict::Take),
        ("fd16:7::1", Verdict::Take),
        ("fd17::1", Verdict::Leave),
    ] {
        cases.extend([
            ("TCP to a network", packet(there, protocol::TCP, vec![0; 40]), verdict),
            ("UDP to a network", udp(there, 53, b"question"), verdict),
            ("IKE to a network", udp(there, 4500, &ike), verdict),
            ("a fragment to a network", udp(there, 4500, &esp).fragment(7, true), verdict),
            ("no next header to a network", packet(there, 59, vec![]), verdict),
        ]);
    }
    let with_options = |to, port| Packet { options: 8, ..udp(to, port, &esp) };
    cases.push(("forwarded ESP in UDP after options", with_options("198.51.100.3", 4500), leave));
    cases.push(("ESP in UDP after options", with_options("10.9.0.2", 4500), Verdict::Take));
    cases.push(("UDP after options", with_options("10.9.0.2", 53), Verdict::Leave));
    cases.push(("an atomic fragment", udp("fd09::2", 4500, &esp).fragment(0, false), Verdict::Take));
    cases
}

fn judge_all(opened: &Opened, tags: &[u16]) {
    for (name, packet, verdict) in cases() {
        let judged = opened.filter.judge(&packet.frame(tags)).unwrap();
        assert_eq!(judged, verdict, "{name} to {}, tags {tags:x?}", packet.to);
    }
}

/// A test run is as if at queue 0, for which a device has to be open.
fn opened(sites: &Sites) -> Opened {
    open(&sites.left, "eth0", XdpMode::Native, &XdpConfig::default())
}

fn takes_and_leaves(sites: &mut Sites) -> TestResult {
    let opened = opened(sites);
    judge_all(&opened, &[]);
    for kind in [0x0806, 0x88CC, 0x0805] {
        let mut frame = ethernet(kind, &[]);
        frame.extend(packet("172.16.0.1", protocol::ESP, vec![0; 40]).bytes());
        assert_eq!(opened.filter.judge(&frame)?, Verdict::Leave, "EtherType {kind:#x}");
    }
    let mut lying = packet("172.16.0.1", protocol::ESP, vec![0; 40]).frame(&[]);
    for first in [0x65, 0x44, 0x05, 0x40] {
        lying[14] = first;
        assert_eq!(opened.filter.judge(&lying)?, Verdict::Leave, "first byte {first:#x}");
    }
    Ok(())
}

fn tagged(sites: &mut Sites) -> TestResult {
    let opened = opened(sites);
    for tags in [&[0x8100][..], &[0x88A8], &[0x88A8, 0x8100], &[0x8100, 0x8100]] {
        judge_all(&opened, tags);
    }
    let three = packet("172.16.0.1", protocol::ESP, vec![0; 40]).frame(&[0x88A8, 0x8100, 0x8100]);
    assert_eq!(opened.filter.judge(&three)?, Verdict::Leave, "a third tag is not read");
    Ok(())
}

/// Every frame that ends early, down to its Ethernet header: the kernel has to get it, or the gateway, and no
/// byte after it may decide.
fn cut(sites: &mut Sites) -> TestResult {
    let opened = opened(sites);
    for (name, packet, verdict) in cases() {
        let whole = packet.frame(&[]);
        for bytes in 14..whole.len() {
            let judged = opened.filter.judge(&whole[..bytes])?;
            assert!(judged == Verdict::Leave || judged == verdict, "{name} of {bytes} bytes: {judged:?}");
            let headers = if packet.to.contains(':') { 54 } else { 34 };
            assert!(bytes >= headers || judged == Verdict::Leave, "{name} of {bytes} bytes");
        }
    }
    Ok(())
}

fn replaced(sites: &mut Sites) -> TestResult {
    let opened = opened(sites);
    let judge = |to| opened.filter.judge(&packet(to, protocol::TCP, vec![0; 40]).frame(&[])).unwrap();
    assert_eq!(judge("172.16.0.1"), Verdict::Take);
    opened
        .filter
        .replace_networks(&[network("192.168.0.0", 16, Taken::All), network("172.16.7.7", 32, Taken::All)])?;
    assert_eq!((judge("172.16.0.1"), judge("192.168.3.4")), (Verdict::Leave, Verdict::Take));
    assert_eq!((judge("172.16.7.7"), judge("fd16::1")), (Verdict::Take, Verdict::Leave));
    opened.filter.replace_networks(&[network("0.0.0.0", 0, Taken::All), network("::", 0, Taken::All)])?;
    assert_eq!((judge("8.8.8.8"), judge("2001:db8::1")), (Verdict::Take, Verdict::Take));
    opened.filter.replace_networks(&[])?;
    assert_eq!((judge("8.8.8.8"), judge("172.16.7.7")), (Verdict::Leave, Verdict::Leave));
    // Of the same network something else.
    let esp = packet("172.16.0.1", protocol::ESP, vec![0; 40]).frame(&[]);
    for (taken, verdicts) in [
        (Taken::All, [Verdict::Take, Verdict::Take]),
        (Taken::OfTunnels, [Verdict::Take, Verdict::Leave]),
        (Taken::Nothing, [Verdict::Leave, Verdict::Leave]),
    ] {
        opened.filter.replace_networks(&[network("172.16.0.0", 16, taken)])?;
        assert_eq!([opened.filter.judge(&esp)?, judge("172.16.0.1")], verdicts, "{taken:?}");
    }
    Ok(())
}

fn unbound(sites: &mut Sites) -> TestResult {
    let load = |config: &FilterConfig| sites.left.within(|| Filter::load("eth0", config)).unwrap();
    let filter = load(&config())?;
    assert_eq!(filter.attached(), None);
    for (name, packet, _) in cases() {
        assert_eq!(filter.judge(&packet.frame(&[]))?, Verdict::Leave, "{name}");
    }
    // Every part may be left out.
    let all = UdpPort { port: 4501, content: UdpContent::All };
    for config in [FilterConfig::default(), FilterConfig { udp: vec![all], ..FilterConfig::default() }] {
        assert_eq!(load(&config)?.judge(&udp("172.16.0.1", 4501, &[0; 40]).frame(&[]))?, Verdict::Leave);
    }
    Ok(())
}
