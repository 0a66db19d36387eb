//! Raw ESP, packets in clear, and MTUs.

use crate::support::{ADDRESSES, Datagram, datagram, fragments_sent, open, open_with_mtu, receive, send};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use testudo_lab::namespaces::Namespace;
use testudo_packet::{DropReason, Port};
use testudo_port_socket::{Encapsulation, Endpoint, OpenError, SocketConfig, SocketPort};
use testudo_wire::fragment::pieces_of_ours;
use testudo_wire::ip::IpHeader;
use testudo_wire::protocol;

pub fn tests(sites: &[Namespace; 2]) {
    for addresses in ADDRESSES {
        let [left, right] = addresses.map(|text| text.parse().unwrap());
        raw_esp_crosses_whole(sites, left, right);
        a_packet_beyond_the_mtu_is_refused_alone(sites, left, right);
        packets_in_clear_leave_by_the_interface(sites, left, right);
        raw_sockets_send_fragments_that_were_made_before(sites, left, right);
    }
    without_df_the_kernel_fragments(sites);
    over_ipv6_the_kernel_fragments_beyond_the_configured_mtu(sites);
    an_unprivileged_program_is_told_what_it_lacks(&sites[0]);
}

fn raw_esp_crosses_whole([left, right]: &[Namespace; 2], source: IpAddr, destination: IpAddr) {
    let mut a = open(left, source, Encapsulation::RawEsp);
    let mut b = open(right, destination, Encapsulation::RawEsp);
    let packets: Vec<_> = (0..60_usize)
        .map(|i| {
            let class = [0, 0xBA, 0x03][i % 3];
            let esp = Datagram { traffic_class: class, ..datagram(source, destination, protocol::ESP) };
            esp.with(&vec![i as u8; 20 + i * 23])
        })
        .collect();
    assert_eq!(send(&mut a, &packets), []);
    for (sent, received) in packets.iter().zip(receive(&mut b, 60)) {
        let [sent_header, header] = [sent, &received].map(|bytes| IpHeader::parse(bytes).unwrap());
        assert_eq!((header.source, header.destination), (source, destination));
        assert_eq!((header.protocol, header.traffic_class), (protocol::ESP, sent_header.traffic_class));
        assert_eq!(header.total_bytes, received.len());
        assert_eq!(header.payload(&received), sent_header.payload(sent));
    }
    assert!(a.counters().tx_calls == 1 && b.counters().rx_calls <= 3);
}

fn a_packet_beyond_the_mtu_is_refused_alone(
    [left, right]: &[Namespace; 2],
    source: IpAddr,
    destination: IpAddr,
) {
    let port = Encapsulation::Udp { port: 4500 };
    let (mut a, mut b) = (open(left, source, port), open(right, destination, port));
    let udp = datagram(source, destination, protocol::UDP);
    let packets = [100, 1480, 1480, 1480, 90].map(|n| udp.udp((4500, 4500), &vec![7; n]));
    assert_eq!(send(&mut a, &packets), [(DropReason::MessageTooLong, 4 - 1)]);
    assert_eq!(
        receive(&mut b, 2).iter().map(Vec::len).collect::<Vec<_>>(),
        [packets[0].len(), packets[4].len()]
    );
    let mut raw = open(left, source, Encapsulation::RawEsp);
    let esp = datagram(source, destination, protocol::ESP);
    assert_eq!(send(&mut raw, &[esp.with(&[0; 1490])]), [(DropReason::MessageTooLong, 1)]);
    assert!(a.endpoints_without_segmentation().next().is_none());
}

fn without_df_the_kernel_fragments([left, right]: &[Namespace; 2]) {
    let [source, destination] = ADDRESSES[0].map(|text| text.parse().unwrap());
    let port = Encapsulation::Udp { port: 4500 };
    let (mut a, mut b) = (open(left, source, port), open(right, destination, port));
    let udp = Datagram { dont_fragment: false, ..datagram(source, destination, protocol::UDP) };
    let packets = [udp.udp((4500, 4500), &[9; 4000])];
    assert_eq!(send(&mut a, &packets), []);
    assert_eq!(receive(&mut b, 1)[0].len(), 4028);
    let udp = datagram(source, destination, protocol::UDP);
    assert_eq!(send(&mut a, &[udp.udp((4500, 4500), &[9; 4000])]), [(DropReason::MessageTooLong, 1)]);
}

/// Over IPv6, by length alone: a wire that carries 1,500 bytes gets fragments of 1,280 if these are
/// configured.
fn over_ipv6_the_kernel_fragments_beyond_the_configured_mtu([left, right]: &[Namespace; 2]) {
    let [source, destination] = ADDRESSES[1].map(|text| text.parse().unwrap());
    let encapsulation = Encapsulation::Udp { port: 4500 };
    let packet = |bytes| datagram(source, destination, protocol::UDP).udp((4500, 4500), &vec![9; bytes]);
    let mut b = open(right, destination, encapsulation);
    for mtu in [1280, 1500] {
        let mut a = open_with_mtu(left, source, encapsulation, mtu);
        let before = fragments_sent(left);
        let packets = [1100, 4000, 1200, 8000].map(packet);
        assert_eq!(send(&mut a, &packets), []);
        let lengths: Vec<_> = receive(&mut b, 4).iter().map(Vec::len).collect();
        assert_eq!(lengths, packets.each_ref().map(Vec::len));
        let room = (mtu - 48) / 8 * 8;
        let long = packets.iter().filter(|packet| packet.len() > mtu);
        let expected: usize = long.map(|packet| (packet.len() - 40).div_ceil(room)).sum();
        assert_eq!(fragments_sent(left) - before, expected as u64, "fragments of {mtu} bytes");
    }
    let mut a = open(left, source, encapsulation);
    assert_eq!(send(&mut a, &[packet(4000)]), [(DropReason::MessageTooLong, 1)], "no MTU, no fragments");
}

/// The other host's kernel puts them together.
fn raw_sockets_send_fragments_that_were_made_before(
    [left, right]: &[Namespace; 2],
    source: IpAddr,
    destination: IpAddr,
) {
    let mut a = open(left, source, Encapsulation::RawEsp);
    let mut b = open(right, destination, Encapsulation::RawEsp);
    for (number, bytes) in (1..).zip([1600u16, 4000, 8900]) {
        let payload: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        let whole = datagram(source, destination, protocol::ESP).with(&payload);
        let header = IpHeader::parse(&whole).unwrap();
        let fragments: Vec<_> = pieces_of_ours(&header, &whole, 1500, number)
            .map(|piece| {
                let payload = piece.payload_start..piece.payload_start + piece.payload_bytes;
                [&piece.header[..piece.header_bytes], &whole[payload]].concat()
            })
            .collect();
        assert_eq!(send(&mut a, &fragments), []);
        let received = receive(&mut b, 1).remove(0);
        let header = IpHeader::parse(&received).unwrap();
        assert_eq!((header.source, header.protocol, header.fragment), (source, protocol::ESP, None));
        assert!(header.payload(&received) == payload, "{bytes} bytes");
    }
}

fn packets_in_clear_leave_by_the_interface(
    [left, right]: &[Namespace; 2],
    source: IpAddr,
    destination: IpAddr,
) {
    let endpoint = Endpoint { local: source, encapsulation: Encapsulation::Udp { port: 4500 } };
    let config =
        SocketConfig { interface: Some("eth0".into()), bypass: true, ..SocketConfig::new(vec![endpoint]) };
    let mut port = left.within(|| SocketPort::open(&config).unwrap()).unwrap();
    assert!(port.can_bypass());
    let receiver = right.within(|| UdpSocket::bind(SocketAddr::new(destination, 53)).unwrap()).unwrap();
    receiver.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    // IPv6 needs a checksum from us: the kernel changes nothing in a packet in clear.
    let mut packet = datagram(source, destination, protocol::UDP).udp((5353, 53), b"in clear");
    let at = packet.len() - 16;
    let sum = testudo_wire::checksum::Sum::default()
        .pseudo_header(source, destination, protocol::UDP, 16)
        .bytes(&packet[at..])
        .finish();
    packet[at + 6..at + 8].copy_from_slice(&sum.to_bytes());
    assert_eq!(send(&mut port, &[packet]), []);
    let mut bytes = [0; 100];
    let (length, from) = receiver.recv_from(&mut bytes).unwrap();
    assert_eq!((&bytes[..length], from), (&b"in clear"[..], SocketAddr::new(source, 5353)));
}

fn an_unprivileged_program_is_told_what_it_lacks(site: &Namespace) {
    let local = ADDRESSES[0][0].parse().unwrap();
    for encapsulation in [Encapsulation::RawEsp, Encapsulation::UdpBeside { port: 4500 }] {
        let config = SocketConfig::new(vec![Endpoint { local, encapsulation }]);
        let error = site
            .within(|| {
                // This thread only: it ends with this closure.
                let none = rustix::thread::CapabilitySet::empty();
                let sets =
                    rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
                rustix::thread::set_capabilities(None, sets).unwrap();
                SocketPort::open(&config).err().unwrap()
            })
            .unwrap();
        assert!(matches!(&error, OpenError::NotPermitted { capability: "CAP_NET_RAW", .. }), "{error}");
        assert!(error.to_string().contains("cap_net_raw"));
    }
}
