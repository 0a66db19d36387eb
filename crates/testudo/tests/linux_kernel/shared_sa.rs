//! One SA of ESP over several workers, and a peer whose window is Linux's smallest: 32 numbers.

use crate::site::{Ends, Lot, Site};
use crate::slot::Slot;
use crate::support::wait::until;
use crate::support::{Outcome, ensure};
use std::net::UdpSocket;
use testudo_judge::harness::TestResult;
use testudo_judge::interop::{Mode, Protocol, Row};

/// The smallest window that RFC 4303 3.4.3 allows, and what `ip xfrm` sets unless told.
const WINDOW: u32 = 32;
/// Flows, which the workers share.
const FLOWS: usize = 32;
/// Datagrams of a flow in a burst: all of them fit the queue towards the guest.
const BURST: usize = 8;
const BURSTS: usize = 24;
/// Where packets are to be lost: workers that share a processor with others may be in step for long.
const MOST_BURSTS: usize = 20 * BURSTS;
/// Where nothing listens in the guest: what counts is what its SA takes.
const PORT: u16 = 9;

/// What the guest's SA made of what was sent.
struct Counts {
    sent: u64,
    taken: u64,
    refused: u64,
}

pub fn workers_keep_within_the_smallest_window(site: &mut Site) -> TestResult {
    let counts = send(site, WINDOW, |bursts, _| bursts == BURSTS)?;
    ensure((counts.taken, counts.refused) == (counts.sent, 0), || {
        format!("of {} packets Linux took {} and refused {}", counts.sent, counts.taken, counts.refused)
    })
}

/// What the promise above is worth: told of a wider window than the peer's, the workers use it.
pub fn a_wider_window_than_the_peers_loses_packets(site: &mut Site) -> TestResult {
    let is_enough = |bursts, counts: &Counts| bursts >= BURSTS && counts.refused > 0 || bursts == MOST_BURSTS;
    let counts = send(site, 4096, is_enough)?;
    ensure(counts.refused > 0, || format!("Linux took all {} packets", counts.sent))
}

/// Sends bursts by two workers that take the guest's window for `peer_window` numbers, until that is enough.
fn send(site: &mut Site, peer_window: u32, is_enough: impl Fn(usize, &Counts) -> bool) -> Outcome<Counts> {
    // Linux defers ciphers that need vector units, packet by packet, and so reorders them itself.
    let suite = "null-sha256".parse().map_err(|error| format!("{error}"))?;
    let row = Row { protocol: Protocol::Esp, mode: Mode::Tunnel, ipv6: false, esn: false, suite, ah: None };
    let ends = Ends { gateway: "workers = 2".to_owned(), replay_window: WINDOW, ..Ends::default() };
    let before = refused(site)?;
    let more = format!("peer_window = {peer_window}\n");
    let lot = site.connect_as(&ends, &[row], |tunnel| tunnel.more.push_str(&more))?;
    let [(_, _, tunnel)] = &lot.standing[..] else { return Err(format!("{:?}", lot.refused).into()) };
    let (ours, theirs) = Slot(0).inner(false);
    // Not connected: what answers that nobody listens is no error of theirs.
    let open =
        |_| Ok::<_, Box<dyn std::error::Error>>(site.host.within(|| UdpSocket::bind((ours.as_str(), 0)))??);
    let flows = (0..FLOWS).map(open).collect::<Result<Vec<_>, _>>()?;
    let mut counts = Counts { sent: 0, taken: 0, refused: 0 };
    for burst in 1.. {
        for flow in (0..BURST).flat_map(|_| &flows) {
            flow.send_to(&[0x5a; 64], (theirs.as_str(), PORT))?;
        }
        let all = u64::try_from(burst * BURST * FLOWS)?;
        until("for the guest to have had the burst", || {
            let sent = lot.gateway.sa(tunnel, "outbound")?["packets"].as_u64().unwrap_or(0);
            counts = Counts { sent, taken: taken(site)?, refused: refused(site)? - before };
            Ok((sent >= all && counts.taken + counts.refused >= sent).then_some(()))
        })?;
        if is_enough(burst, &counts) {
            break;
        }
    }
    both_workers_sent(&lot)?;
    lot.gateway.stop()?;
    Ok(counts)
}

fn both_workers_sent(lot: &Lot) -> Outcome<()> {
    let status = lot.gateway.ask_json(&["status"])?;
    let count = |worker: &serde_json::Value| worker["protected"]["rx_packets"].as_u64().unwrap_or(0);
    let each: Vec<u64> = status["workers"].as_array().into_iter().flatten().map(count).collect();
    ensure(each.len() == 2 && each.iter().all(|&packets| packets > 500), || format!("{each:?}"))
}

/// Packets that the guest's SA towards it has taken.
fn taken(site: &mut Site) -> Outcome<u64> {
    let (_, guest) = Slot(0).outer(false);
    let listed = site.peer.run(&format!("/usr/bin/ip -s xfrm state list dst {guest}"))?;
    let count = |line: &str| line.trim().split_once(", ")?.1.strip_suffix("(packets)")?.parse().ok();
    let lines = listed.lines().skip_while(|line| !line.contains("lifetime current"));
    lines.skip(1).find_map(count).ok_or_else(|| format!("no count of packets in {listed}").into())
}

/// Packets that the guest's windows have refused since it booted.
fn refused(site: &mut Site) -> Outcome<u64> {
    let statistics = site.statistics()?;
    let line = statistics.lines().find_map(|line| line.strip_prefix("XfrmInStateSeqError"));
    Ok(line.ok_or("no XfrmInStateSeqError")?.trim().parse()?)
}
