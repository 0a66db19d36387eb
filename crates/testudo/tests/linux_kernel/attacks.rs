//! Packets that an attacker has recorded or made, and ends that disagree on a key.

use crate::engines::Engines;
use crate::site::{Site, TAP};
use crate::slot::Slot;
use crate::support::config::{Sa, Tunnel};
use crate::support::wait::{PATIENCE, until};
use crate::support::{Outcome, ensure, folder};
use crate::traffic::pings_both_ways;
use std::net::Ipv4Addr;
use std::time::Duration;
use testudo_crypto::Suite;
use testudo_judge::harness::TestResult;
use testudo_judge::interop::{Mode, Protocol, Row};
use testudo_lab::attack::{self, Recorded};
use testudo_lab::capture::{Capture, WHOLE};
use testudo_lab::traffic::ping;

const PLAIN: Row = Row {
    protocol: Protocol::Esp,
    mode: Mode::Tunnel,
    ipv6: false,
    esn: true,
    suite: Suite::AES128GCM16,
    ah: None,
};

/// The name of the only tunnel.
fn only(standing: &[(Row, Slot, String)]) -> Outcome<String> {
    Ok(standing.first().ok_or("no tunnel stands")?.2.clone())
}

/// TFC padding and dummy packets against one who watches (RFC 4303 2.6, 2.7): Linux finds the end of each
/// inner packet, and counts a packet whose next header is 59 as one that it has no protocol for.
pub fn hides_traffic(site: &mut Site) -> TestResult {
    let before = site.statistics()?;
    let more = "tfc_pad_to = 1300\ndummy_packets_per_second = 200\n";
    let lot = site.connect(&[PLAIN], Engines::Usual, |tunnel| tunnel.more.push_str(more))?;
    let tunnel = only(&lot.standing)?;
    until("for dummies to be sent", || {
        Ok((lot.gateway.sa(&tunnel, "outbound")?["dummies"].as_u64() > Some(20)).then_some(()))
    })?;
    let (ours, theirs) = Slot(0).inner(false);
    pings_both_ways(site, &ours, &theirs, 5)?;
    let now = site.statistics()?;
    let changed: Vec<_> = now.lines().filter(|line| !before.contains(*line)).collect();
    ensure(matches!(changed[..], [line] if line.starts_with("XfrmInStateProtoError")), || {
        format!("Linux counted {changed:?}")
    })?;
    lot.gateway.stop()
}

pub fn refuses_replays(site: &mut Site) -> TestResult {
    let lot = site.connect(&[PLAIN], Engines::Usual, |_| {})?;
    let tunnel = only(&lot.standing)?;
    site.host.sysctl("net.ipv4.conf.lo.rp_filter", "0")?;
    let file = folder("replay")?.join("tap.pcap");
    let capture = Capture::start(&site.host, TAP, &file, WHOLE)?;
    let (ours, theirs) = Slot(0).inner(false);
    pings_both_ways(site, &ours, &theirs, 3)?;
    let mut from_linux = Vec::new();
    let (local, guest) = Slot(0).outer(false);
    let guest: Ipv4Addr = guest.parse()?;
    capture.finish(&site.host)?.frames(|frame, _| {
        let is_esp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&50);
        if is_esp && frame.get(26..30) == Some(&guest.octets()) {
            from_linux.extend(Recorded::new(&frame[14..], 20, false));
        }
    })?;
    let (accepted, count) = (lot.gateway.sa(&tunnel, "inbound")?["packets"].clone(), from_linux.len());
    ensure(count >= 6, || format!("only {count} ESP packets of Linux were recorded"))?;
    // They come by the loopback, whose reverse path the strictest setting decides.
    site.host.sysctl("net.ipv4.conf.all.rp_filter", "0")?;
    attack::send(&site.host, local.parse()?, &from_linux)?;
    lot.gateway.counts("replay_duplicate", u64::try_from(count)?)?;
    let now = lot.gateway.sa(&tunnel, "inbound")?["packets"].clone();
    ensure(now == accepted, || format!("{accepted} packets were accepted before the replay, {now} after"))?;
    lot.gateway.stop()
}

pub fn refuses_wrong_keys(site: &mut Site) -> TestResult {
    let other = Sa::of(0, PLAIN.suite)?.key;
    let spoil = |tunnel: &mut Tunnel| tunnel.inbound.key.clone_from(&other);
    let lot = site.connect(&[PLAIN], Engines::Usual, spoil)?;
    let (ours, theirs) = Slot(0).inner(false);
    let printed = site.peer.sh(&format!("ping -c 2 -i 0.1 -W 1 -I {theirs} {ours}"), PATIENCE)?.stdout;
    ensure(printed.contains(" 0 packets received"), || printed)?;
    lot.gateway.counts("authentication_failed", 2)?;
    let packets = lot.gateway.sa(&only(&lot.standing)?, "inbound")?["packets"].clone();
    ensure(packets == 0, || format!("{packets} packets with a wrong ICV passed"))?;
    lot.gateway.stop()
}

/// The reverse: how Linux reports a packet of ours under another key.
pub fn linux_refuses_wrong_keys(site: &mut Site) -> TestResult {
    let other = Sa::of(0, PLAIN.suite)?.key;
    let spoil = |tunnel: &mut Tunnel| tunnel.outbound.key.clone_from(&other);
    let lot = site.connect(&[PLAIN], Engines::Usual, spoil)?;
    let trips = ping(&site.host, Slot(0).inner(false).1.parse()?, 2, Duration::from_secs(1))?;
    ensure(trips.times.is_empty(), || "a ping under a wrong key was answered".to_owned())?;
    let errors = "grep -q 'XfrmInStateProtoError *[^0]' /proc/net/xfrm_stat";
    site.peer.wait_until(errors, PATIENCE).map_err(|e| format!("Linux did not count them: {e}"))?;
    lot.gateway.stop()
}
