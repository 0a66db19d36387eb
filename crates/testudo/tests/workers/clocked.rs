//! Workers that send at the ticks of a clock (`clocked_packets_per_second`): who watches the link sees one
//! picture, whatever there is to send.

use crate::support::config::{Config, pair};
use crate::support::gateway::Gateway;
use crate::support::link::{LINK, Link};
use crate::support::wait::until;
use crate::support::{Outcome, ensure, folder};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::capture::{Capture, HEADERS, Recording};

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite.test("two_workers_with_a_clock_show_one_picture_whatever_they_have_to_send", |link| {
        show_one_picture(link, false)?;
        show_one_picture(link, true)
    })
}

/// Ticks of a worker in a second.
const RATE: u64 = 50;
const PERIOD: Duration = Duration::from_millis(1000 / RATE);
/// What each worker must send beside no load, and under load. (On a busy machine ticks are missed, and few of
/// them made up for: how long that takes is not asked.)
const DATAGRAMS: u64 = 60;
/// Datagrams for ticks that were missed before somebody looked, or are shown late.
const BEFORE: u64 = 8;
/// Flows of the load: so many that not all of them have the hash of one worker.
const FLOWS: usize = 16;

/// Two ends, of which A has two workers and a clock. Neither ESP nor VPE is in UDP: the kernel would join
/// datagrams.
fn ends(vpe: bool) -> Outcome<[Config; 2]> {
    let [mut a, mut b] = pair(false)?;
    for end in [&mut a, &mut b] {
        let tunnel = &mut end.tunnels[0];
        tunnel.more = "replay_window = 4096\n".to_owned();
        if vpe {
            tunnel.vpe = true;
            tunnel.more += "allow_manual_counter_nonce = true\n";
            for sa in [&mut tunnel.outbound, &mut tunnel.inbound] {
                // Of VPE it is the cipher's key alone.
                sa.key.truncate(32);
            }
        }
    }
    a.gateway = "workers = 2".to_owned();
    a.tunnels[0].more += &format!("clocked_packets_per_second = {RATE}\ntfc_pad_to = 700\n");
    Ok([a, b])
}

/// Datagrams that each worker has sent.
fn sent(gateway: &Gateway) -> Outcome<Vec<u64>> {
    let list = gateway.ask_json(&["workers"])?;
    let of = |worker: &Value| worker["unprotected"]["tx_packets"].as_u64();
    let all: Option<Vec<_>> = list.as_array().into_iter().flatten().map(of).collect();
    all.filter(|all| all.len() == 2).ok_or_else(|| format!("no two workers in {list:#}").into())
}

/// Waits until both workers have sent some datagrams: neither sends more than one at each tick.
fn send(gateway: &Gateway) -> Outcome<()> {
    let begun = Instant::now();
    let before = sent(gateway)?;
    let more = until("for two workers to send", || {
        let more: Vec<_> = sent(gateway)?.iter().zip(&before).map(|(now, before)| now - before).collect();
        Ok(more.iter().all(|count| *count >= DATAGRAMS).then_some(more))
    })?;
    let most = begun.elapsed().as_nanos() / PERIOD.as_nanos() + u128::from(BEFORE);
    ensure(more.iter().all(|count| u128::from(*count) <= most), || format!("{more:?} of {most} ticks"))
}

/// The lengths of A's datagrams, and how many there were.
fn picture(recording: &Recording, protocol: u8) -> Outcome<(BTreeSet<usize>, u64)> {
    let (mut lengths, mut count) = (BTreeSet::new(), 0);
    recording.frames(|frame, bytes| {
        let is_as = frame.get(12..14) == Some(&[8, 0][..])
            && frame.get(23) == Some(&protocol)
            && frame.get(26..30) == Some(&[192, 0, 2, 1][..]);
        if is_as {
            lengths.insert(bytes);
            count += 1;
        }
    })?;
    Ok((lengths, count))
}

/// More than the clock lets pass, from many sockets to one.
struct Flood {
    near: Vec<UdpSocket>,
    far: UdpSocket,
    received: AtomicU64,
    stop: AtomicBool,
    is_over: AtomicBool,
}

impl Flood {
    fn new(link: &Link) -> Outcome<Self> {
        let far = link.b.within(|| UdpSocket::bind(("10.2.0.1", 0)))??;
        far.set_read_timeout(Some(Duration::from_millis(50)))?;
        let end = far.local_addr()?;
        let open = || -> std::io::Result<Vec<UdpSocket>> {
            let one = |_| {
                let socket = UdpSocket::bind(("10.1.0.1", 0))?;
                socket.connect(end)?;
                Ok(socket)
            };
            (0..FLOWS).map(one).collect()
        };
        let near = link.a.within(open)??;
        Ok(Self { near, far, received: 0.into(), stop: false.into(), is_over: false.into() })
    }

    fn send(&self) {
        while !self.stop.load(Ordering::Acquire) {
            for socket in &self.near {
                // Lengths that would tell one packet from the other.
                let _ = socket.send(&[7; 300]);
                let _ = socket.send(&[7; 3]);
            }
            thread::sleep(PERIOD);
        }
    }

    fn receive(&self) {
        let mut content = [0; 512];
        while !self.is_over.load(Ordering::Acquire) {
            let has_come = self.far.recv(&mut content).is_ok();
            self.received.fetch_add(u64::from(has_come), Ordering::AcqRel);
        }
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Acquire)
    }
}

fn show_one_picture(link: &mut Link, vpe: bool) -> TestResult {
    let [a, b] = ends(vpe)?;
    let (fill, protocol) = if vpe { ("vpe_fill", 253) } else { ("dummy_packet", 50) };
    // All that A ever sends is recorded, and comes to B.
    let (peer, _) = link.start_b(&b)?;
    let capture = Capture::start(&link.a, LINK, &folder(fill)?.join("wan.pcap"), HEADERS)?;
    let (gateway, _) = link.start_a(&a)?;
    send(&gateway)?;
    peer.counts(fill, 2 * DATAGRAMS)?;
    let flood = Flood::new(link)?;
    thread::scope(|scope| -> Outcome<()> {
        scope.spawn(|| flood.send());
        scope.spawn(|| flood.receive());
        let under_load = || -> Outcome<()> {
            gateway.counts("clock_full", 1)?;
            send(&gateway)?;
            until("for packets to arrive", || Ok((flood.received() >= DATAGRAMS).then_some(())))?;
            flood.stop.store(true, Ordering::Release);
            gateway.stop()?;
            let recording = capture.finish(&link.a)?;
            let (lengths, count) = picture(&recording, protocol)?;
            ensure(lengths.len() == 1, || format!("more than one length: {lengths:?}"))?;
            let opened = || -> Outcome<u64> { Ok(peer.dropped(fill)? + flood.received()) };
            until("for B to open them", || Ok((opened()? >= count).then_some(())))?;
            let (opened, missed) = (opened()?, recording.not_recorded);
            ensure(opened == count, || format!("{opened} of {count}, and {missed} that were not recorded"))
        };
        let outcome = under_load();
        flood.stop.store(true, Ordering::Release);
        flood.is_over.store(true, Ordering::Release);
        outcome
    })
    .map_err(|error| format!("vpe {vpe}: {error}\n{}", peer.log()))?;
    peer.stop()
}
