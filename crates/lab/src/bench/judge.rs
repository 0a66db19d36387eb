//! Authenticity before figures: a peer must accept the measured packets.

use std::collections::HashMap;

use testudo_crypto::Engine;
use testudo_port_memory::{LoopPort, Packets};

use super::case::{Case, Way};
use super::error::Wrong;
use super::load::SMALLEST_BYTES;
use super::subject::Subject;

/// Maximum number of sealed packets that exist twice while they are collected.
const STEP: usize = 4096;

/// Seals `count` packets, cycling through `packets`; each SA's sequence numbers start from 1.
pub(super) fn seal(
    case: &Case,
    engine: Box<dyn Engine>,
    packets: &Packets,
    count: usize,
) -> Result<Packets, Wrong> {
    let mut sealed = Packets::default();
    pass(case, Way::Outbound, engine, packets.clone(), count, |some| sealed.extend(some))?;
    Ok(sealed)
}

/// A peer with `engine` opens the packets that a measured gateway sealed: it must accept every packet, and
/// each must be one of `originals`.
pub(super) fn accept(
    case: &Case,
    engine: Box<dyn Engine>,
    sealed: Vec<Vec<u8>>,
    originals: &Packets,
) -> Result<(), Wrong> {
    let (count, mut opened) = (sealed.len(), Vec::new());
    let passed = pass(case, Way::Inbound, engine, sealed.into(), count, |some| opened.extend(some));
    passed.map_err(|wrong| format!("a peer refuses the sealed packets: {wrong}"))?;
    compare(&opened, originals)
}

/// Every packet of `found` must be one of `originals`, byte by byte.
pub(super) fn compare(found: &[Vec<u8>], originals: &Packets) -> Result<(), Wrong> {
    let parts = |(head, tail)| Some((<[u8]>::split_at_checked(head, SMALLEST_BYTES)?, tail));
    // Keyed by headers, which are unique; the value is the rest of the packet, in two parts.
    let originals: HashMap<&[u8], (&[u8], &[u8])> =
        originals.iter().filter_map(parts).map(|((headers, rest), tail)| (headers, (rest, tail))).collect();
    let is_original = |packet: &&Vec<u8>| {
        packet.split_at_checked(SMALLEST_BYTES).is_some_and(|(headers, payload)| {
            originals.get(headers).is_some_and(|(rest, tail)| payload.strip_prefix(*rest) == Some(*tail))
        })
    };
    match found.len() - found.iter().filter(is_original).count() {
        0 => Ok(()),
        changed => Err(format!("{changed} of {} packets came out changed", found.len())),
    }
}

/// Sends `count` packets through a separate gateway; `take` gets all packets that came out, in order.
fn pass(
    case: &Case,
    way: Way,
    engine: Box<dyn Engine>,
    packets: Packets,
    count: usize,
    mut take: impl FnMut(Vec<Vec<u8>>),
) -> Result<(), Wrong> {
    let (feed, demand) = LoopPort::on_demand("load", packets);
    let mut peer = Subject::new(case, way, engine, feed)?;
    let mut left = count;
    while left > 0 {
        let step = left.min(STEP);
        peer.sink.keep(1, step);
        demand.ask(step as u64);
        peer.advance(step)?;
        take(peer.sink.take());
        left -= step;
    }
    peer.settle()?;
    peer.check_books()
}
