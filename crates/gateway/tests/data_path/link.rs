//! A whole gateway whose unprotected port is a link port: what the link layer drops is in its books.

use crate::support::gateway::portable;
use crate::support::{Gateway, Inner, LeaseTwin, PortHandle, Side, TunnelSpec};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_gateway::{Clock, ManualClock, PortPair, Worker};
use testudo_ipsec::Spd;
use testudo_link::own::{OwnAddress, OwnResolver};
use testudo_link::routes::{NextHop, Route};
use testudo_link::{FrameDevice, LinkConfig, LinkPort};
use testudo_packet::{Batch, DropReason, Pool, Port, PortCounters, PortError};
use testudo_wire::arp::{ArpOperation, ArpPacket};
use testudo_wire::ethernet::{EthernetHeader, MacAddress, ether_type};

const OWN: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
const ROUTER: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);
const ROUTER_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);

/// A scripted port of the tests, whose packets are frames.
struct Frames(Box<dyn Port>);

impl FrameDevice for Frames {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn mac(&self) -> MacAddress {
        OWN
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.0.rx(pool, batch)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        self.0.tx(pool, batch)
    }

    fn counters(&self) -> PortCounters {
        self.0.counters()
    }
}

/// Side A with tunnel 0, its address on the link, and all else behind a router there.
fn gateway(routes: &[Route]) -> Gateway {
    gateway_with(LinkConfig { routes: routes.to_vec(), ..LinkConfig::default() })
}

fn gateway_with(config: LinkConfig) -> Gateway {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let (protected, unprotected, clock) =
        (PortHandle::default(), PortHandle::default(), ManualClock::default());
    let own = OwnAddress { address: spec.address(Side::A), prefix_bits: 24 };
    let resolver = OwnResolver::new(vec![own], vec![4500]);
    let time = clock.clone();
    let device = Frames(unprotected.port("unprotected"));
    let port = LinkPort::new(device, resolver, &config, Box::new(move || time.now().0));
    let ports = PortPair { protected: protected.port("protected"), unprotected: Box::new(port) };
    let policies = Spd::new(spec.policies(Side::A)).expect("few ranges");
    let worker = Worker::new(ports, Pool::new(512, 2048), portable(), Box::new(policies));
    let mut gateway = Gateway { worker, protected, unprotected, clock };
    gateway.install(spec.install(Side::A, &mut LeaseTwin::new(1 << 40), None));
    gateway
}

/// Everything is behind the router.
fn routed() -> Gateway {
    let router = NextHop::Gateway(ROUTER_ADDRESS.into());
    gateway(&[Route { network: Ipv4Addr::UNSPECIFIED.into(), prefix_bits: 0, next_hop: router, metric: 0 }])
}

fn frame(destination: MacAddress, kind: u16, payload: &[u8]) -> Vec<u8> {
    let header = EthernetHeader { destination, source: ROUTER, tags: [None; 2], ether_type: kind };
    [&header.to_bytes()[..header.bytes()], payload].concat()
}

/// The gateway, after this frame came.
fn given(frame: Vec<u8>) -> Gateway {
    let mut gateway = routed();
    assert!(gateway.open(frame).is_empty());
    gateway
}

fn arp(operation: ArpOperation, target: IpAddr) -> Vec<u8> {
    let IpAddr::V4(target) = target else { panic!("ARP is for IPv4") };
    let packet = ArpPacket { operation, sender_mac: ROUTER, sender: ROUTER_ADDRESS, target_mac: OWN, target };
    frame(OWN, ether_type::ARP, &packet.to_bytes())
}

fn own_address() -> IpAddr {
    TunnelSpec::new(0, Suite::AES128GCM16).address(Side::A)
}

fn to_own_port_9() -> Vec<u8> {
    let mut datagram = Inner::udp("192.0.2.77", &own_address().to_string(), 100).bytes();
    datagram[22..24].copy_from_slice(&9u16.to_be_bytes());
    frame(OWN, ether_type::IPV4, &datagram)
}

/// Packets wait for the router, which does not answer.
fn in_vain(packets: usize) -> Gateway {
    let mut gateway = routed();
    for _ in 0..packets {
        gateway.seal(Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes());
    }
    gateway
}

/// A gateway that has dropped a packet for one of the reasons of the link layer.
pub fn raise(reason: DropReason) -> Gateway {
    let mut gateway = match reason {
        DropReason::FrameMalformed => given(frame(OWN, ether_type::ARP, &[0; 28])),
        DropReason::OtherVlan => given(frame(OWN, ether_type::VLAN, &[0, 7, 8, 0, 0x45])),
        DropReason::OtherEtherType => given(frame(OWN, 0x88CC, &[0; 46])),
        DropReason::OtherMac => given(frame(ROUTER, ether_type::IPV4, &[0x45; 46])),
        DropReason::LinkControl => given(arp(ArpOperation::Request, own_address())),
        DropReason::NotServed => {
            let mut gateway = given(arp(ArpOperation::Request, own_address()));
            gateway.unprotected.take();
            assert!(gateway.open(to_own_port_9()).is_empty());
            gateway
        }
        DropReason::HopLimitExceeded => {
            let mut gateway = gateway_with(LinkConfig { forwards: true, ..LinkConfig::default() });
            let mut datagram = Inner::udp("192.0.2.77", &own_address().to_string(), 100).bytes();
            (datagram[8], datagram[9]) = (1, 50);
            assert!(gateway.open(frame(OWN, ether_type::IPV4, &datagram)).is_empty());
            gateway
        }
        DropReason::NoRoute => {
            let mut gateway = gateway(&[]);
            gateway.seal(Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes());
            gateway
        }
        DropReason::NeighbourUnresolved => in_vain(1),
        DropReason::NeighbourQueueFull => in_vain(17),
        other => panic!("{other:?} is not of the link layer"),
    };
    // What still waits is given up, so that the books can be closed.
    for _ in 0..4 {
        gateway.clock.advance(Duration::from_secs(1));
        gateway.settle();
    }
    gateway
}

/// Whether other packets end beside the one that a reason is about: what taught the gateway its neighbour,
/// and what waited beside it.
pub fn has_others_beside(reason: DropReason) -> bool {
    matches!(reason, DropReason::NotServed | DropReason::NeighbourQueueFull)
}

#[test]
fn sealed_packets_wait_for_the_router_and_leave_in_frames() {
    let mut gateway = routed();
    let packets = gateway.seal(Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes());
    let [question] = &packets[..] else { panic!("{packets:?}") };
    let header = EthernetHeader::parse(question).expect("a frame");
    assert_eq!((header.destination, header.ether_type), (MacAddress::BROADCAST, ether_type::ARP));
    assert!(gateway.open(arp(ArpOperation::Reply, own_address())).is_empty());
    let sealed = gateway.unprotected.take();
    let [sealed] = &sealed[..] else { panic!("{sealed:?}") };
    let header = EthernetHeader::parse(sealed).expect("a frame");
    assert_eq!((header.destination, header.source, header.ether_type), (ROUTER, OWN, ether_type::IPV4));
    let mut peer = Gateway::with_tunnels(Side::B, &[TunnelSpec::new(0, Suite::AES128GCM16)]);
    assert_eq!(peer.open(&sealed[14..]), [Inner::udp("10.0.0.1", "172.16.0.2", 100).bytes()]);
    gateway.assert_settled();
}
