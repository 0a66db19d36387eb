//! Authenticity of figures first: what was measured must be what a peer accepts.

use std::collections::HashSet;

use testudo_crypto::Engine;
use testudo_port_memory::LoopPort;

use super::case::{Case, Way};
use super::error::Wrong;
use super::subject::Subject;

/// Seals `count` packets, `packets` in turn, each SA's in sequence from 1.
pub(super) fn seal(
    case: &Case,
    engine: Box<dyn Engine>,
    packets: &[Vec<u8>],
    count: usize,
) -> Result<Vec<Vec<u8>>, Wrong> {
    pass(case, Way::Outbound, engine, LoopPort::new("load", packets.to_vec()), count)
}

/// A peer with `engine` opens what a measured gateway has sealed: every packet must be accepted, and be one of `originals`.
pub(super) fn accept(
    case: &Case,
    engine: Box<dyn Engine>,
    sealed: Vec<Vec<u8>>,
    originals: &[Vec<u8>],
) -> Result<(), Wrong> {
    let count = sealed.len();
    let opened = pass(case, Way::Inbound, engine, LoopPort::new("sealed", sealed), count);
    let opened = opened.map_err(|wrong| format!("a peer refuses what was sealed: {wrong}"))?;
    compare(&opened, originals)
}

/// Every packet of `found` must be one of `originals`, byte by byte.
pub(super) fn compare(found: &[Vec<u8>], originals: &[Vec<u8>]) -> Result<(), Wrong> {
    let originals: HashSet<&[u8]> = originals.iter().map(Vec::as_slice).collect();
    let changed = found.iter().filter(|packet| !originals.contains(packet.as_slice())).count();
    match changed {
        0 => Ok(()),
        _ => Err(format!("{changed} of {} packets did not come out as they went in", found.len())),
    }
}

/// Sends `count` packets through a gateway of its own and returns all that came out.
fn pass(
    case: &Case,
    way: Way,
    engine: Box<dyn Engine>,
    feed: LoopPort,
    count: usize,
) -> Result<Vec<Vec<u8>>, Wrong> {
    let mut peer = Subject::new(case, way, engine, feed.with_limit(count as u64))?;
    peer.sink.keep(1, count);
    peer.advance(count)?;
    peer.settle()?;
    peer.check_books()?;
    Ok(peer.sink.take())
}
