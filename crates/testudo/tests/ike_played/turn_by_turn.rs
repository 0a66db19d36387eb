//! Packets before and after each message, whose fate is known to the last one.

use crate::Pair;
use crate::played::Gateway;
use crate::ports::packet;
use testudo_crypto::{Engine, PortableEngine};
use testudo_gateway::PortPair;
use testudo_packet::Pool;
use testudo_port_memory::{MemoryHandle, MemoryPort};

/// Rounds of two renewals, by one end and by the other.
const ROUNDS: usize = 20;
/// Packets of each end before and after each message.
const PACKETS: u64 = 3;
/// Turns that packets may take: a test that needs more has failed.
const MOST_TURNS: usize = 1000;

/// The hosts behind A and B.
pub struct Hosts {
    handles: [MemoryHandle; 2],
    sent: u64,
    arrived: [u64; 2],
}

impl Hosts {
    /// At the protected ports of A and B.
    pub fn behind(handles: [MemoryHandle; 2]) -> Self {
        Self { handles, sent: 0, arrived: [0; 2] }
    }

    /// Each sends some packets to the other.
    pub fn send(&mut self) {
        for number in self.sent..self.sent + PACKETS {
            for (host, handle) in self.handles.iter().enumerate() {
                let mut bytes = [0; 100];
                packet(host, number, &mut bytes);
                assert!(handle.input.push(&bytes));
            }
        }
        self.sent += PACKETS;
    }

    /// All that was sent arrives, in order.
    pub fn receive(&mut self, gateways: &[Gateway; 2]) {
        for _ in 0..MOST_TURNS {
            gateways.iter().for_each(Gateway::turns);
            for (host, handle) in self.handles.iter().enumerate() {
                for bytes in handle.output.drain() {
                    let mut expected = [0; 100];
                    packet(1 - host, self.arrived[host], &mut expected);
                    // The path has taken hops of its TTL, whose checksum follows.
                    assert_eq!(bytes[12..], expected[12..], "packet {} at {host}", self.arrived[host]);
                    self.arrived[host] += 1;
                }
            }
            if self.arrived == [self.sent; 2] {
                return;
            }
        }
        let counts = gateways.each_ref().map(Gateway::counts);
        panic!("{} were sent each way, {:?} have arrived:\n{}", self.sent, self.arrived, counts.join("\n"));
    }
}

fn pair() -> (Pair, Hosts) {
    let (a, b) = MemoryPort::pair(64);
    let mut handles = Vec::new();
    let mut unprotected = [a, b].into_iter();
    let gateways = [1, 2].map(|seed| {
        let (protected, handle) = MemoryPort::with_handle("protected", 64);
        handles.push(handle);
        let unprotected = Box::new(unprotected.next().unwrap());
        let ports = PortPair { protected: Box::new(protected), unprotected };
        let engines: Vec<Box<dyn Engine>> = vec![Box::new(PortableEngine::new())];
        Gateway::start(ports, Pool::new(256, 2048), engines, seed << 24)
    });
    let handles = handles.try_into().expect("two");
    (Pair::new(gateways), Hosts::behind(handles))
}

/// RFC 7296 2.8: by either end, in the order in which each end's daemon says it.
#[test]
fn no_packet_is_lost_whenever_it_comes_while_sas_are_renewed() {
    let (mut pair, mut hosts) = pair();
    pair.plays("negotiated", None, |_| {});
    hosts.send();
    hosts.receive(&pair.gateways);
    pair.renew(ROUNDS, |gateways| {
        hosts.send();
        hosts.receive(gateways);
    });
    assert!(hosts.sent > 20 * ROUNDS as u64, "{} packets", hosts.sent);
    for gateway in &pair.gateways {
        assert_eq!(gateway.drops(), []);
    }
}

/// The same, but packets are under way while the message takes effect.
#[test]
fn no_packet_is_lost_that_is_under_way_while_sas_are_renewed() {
    let (mut pair, mut hosts) = pair();
    pair.plays("negotiated", None, |_| {});
    let mut is_before = true;
    pair.renew(ROUNDS, |gateways| {
        if is_before {
            hosts.send();
        } else {
            hosts.receive(gateways);
        }
        is_before = !is_before;
    });
    for gateway in &pair.gateways {
        assert_eq!(gateway.drops(), []);
    }
    pair.plays("ended", Some("renewed by b"), |_| {});
}
