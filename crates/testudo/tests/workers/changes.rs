//! Workers that come and go while packets flow.

use crate::support::config::{Config, pair};
use crate::support::gateway::Gateway;
use crate::support::link::Link;
use crate::support::wait::until;
use crate::support::{Outcome, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::Namespace;

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("workers_come_and_go_under_a_flood_and_nothing_is_lost_or_comes_twice", |link| {
            come_and_go(link, true)?;
            come_and_go(link, false)
        })
        .test("a_reload_changes_the_number_of_workers_and_keeps_what_was_set", by_reload)
        .test("more_workers_than_there_may_be_are_refused", refused)
}

/// Flows of a direction: so many that not all of them have the hash of one worker. (Ports are the system's.)
const FLOWS: usize = 24;
/// Datagrams of a direction that are sent and not yet received: fewer than any queue holds.
const UNDER_WAY: u64 = 100;
/// Datagrams of a flow in a burst, and what is between bursts: a rate that a store on a busy disk keeps up
/// with.
const BURST: usize = 8;
const PAUSE: Duration = Duration::from_millis(8);
/// Datagrams of a direction that are sent slowly at first.
const WARM_UP: u64 = 600;

/// The flows of one direction. Each datagram has the number of its flow and its own there.
struct Flood {
    sent: [AtomicU64; FLOWS],
    received: AtomicU64,
    stop: AtomicBool,
    /// Nothing more will be sent.
    is_over: AtomicBool,
    /// How often each number of each flow came, in the order of arrival.
    arrived: Mutex<[Vec<u64>; FLOWS]>,
}

impl Flood {
    fn new() -> Self {
        Self {
            sent: Default::default(),
            received: 0.into(),
            stop: false.into(),
            is_over: false.into(),
            arrived: Mutex::default(),
        }
    }

    fn sent(&self) -> [u64; FLOWS] {
        self.sent.each_ref().map(|count| count.load(Ordering::Acquire))
    }

    fn all_sent(&self) -> u64 {
        self.sent().iter().sum()
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Acquire)
    }

    /// Sends in bursts. The first ones are short: an SA has few numbers until the store has leased more.
    fn send(&self, sockets: &[UdpSocket]) {
        while !self.stop.load(Ordering::Acquire) {
            let burst = if self.all_sent() < WARM_UP { 1 } else { BURST };
            for (flow, socket) in sockets.iter().enumerate().flat_map(|pair| std::iter::repeat_n(pair, burst))
            {
                if self.all_sent() >= self.received() + UNDER_WAY {
                    // A datagram that is lost would stop all: that is a failure of the test, told by `flows`.
                    break;
                }
                let number = self.sent[flow].fetch_add(1, Ordering::AcqRel);
                let content = [(flow as u64).to_be_bytes(), number.to_be_bytes()].concat();
                let _ = socket.send(&content);
            }
            thread::sleep(PAUSE);
        }
        self.is_over.store(true, Ordering::Release);
    }

    fn receive(&self, socket: &UdpSocket) {
        let mut content = [0; 16];
        while !(self.is_over.load(Ordering::Acquire) && self.received() == self.all_sent()) {
            // Until nothing has come for as long as the socket waits after the end.
            let Ok(16) = socket.recv(&mut content) else {
                if self.is_over.load(Ordering::Acquire) {
                    return;
                }
                continue;
            };
            let number = |at: usize| u64::from_be_bytes(content[at..at + 8].try_into().unwrap());
            self.arrived.lock().unwrap()[number(0) as usize].push(number(8));
            self.received.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Waits until `count` more datagrams have arrived.
    fn flows(&self, count: u64) -> Outcome<()> {
        let goal = self.received() + count;
        until("for a flood to flow", || Ok((self.received() >= goal).then_some(())))
    }

    /// Each datagram came once. Those that overtook others were sent after a change had begun, and those that
    /// were overtaken before it had ended.
    fn assert_whole(&self, changes: &[[[u64; FLOWS]; 2]]) -> Outcome<usize> {
        let (arrived, sent) = (self.arrived.lock().unwrap(), self.sent());
        let mut overtaken = 0;
        for flow in 0..FLOWS {
            let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
            let mut highest = 0;
            for number in &arrived[flow] {
                *counts.entry(*number).or_default() += 1;
                let is_of =
                    |[begun, ended]: &[[u64; FLOWS]; 2]| highest + 1 >= begun[flow] && *number <= ended[flow];
                ensure(*number >= highest || changes.iter().any(is_of), || {
                    format!("flow {flow}: {number} after {highest}, changes {changes:?}")
                })?;
                overtaken += usize::from(*number < highest);
                highest = highest.max(*number);
            }
            let missing: Vec<_> = (0..sent[flow]).filter(|number| !counts.contains_key(number)).collect();
            let twice: Vec<_> = counts.iter().filter(|(_, count)| **count != 1).collect();
            ensure(missing.is_empty() && twice.is_empty(), || {
                format!("flow {flow} of {}: lost {missing:?}, twice {twice:?}", sent[flow])
            })?;
        }
        Ok(overtaken)
    }
}

/// The sockets of a flood: one for each flow, and that of the receiver.
fn sockets(from: (&Namespace, &str), to: (&Namespace, &str)) -> Outcome<(Vec<UdpSocket>, UdpSocket)> {
    let far = to.0.within(|| UdpSocket::bind((to.1, 0)))??;
    far.set_read_timeout(Some(Duration::from_secs(2)))?;
    let end = far.local_addr()?;
    let open = || -> std::io::Result<Vec<UdpSocket>> {
        let one = |_| {
            let socket = UdpSocket::bind((from.1, 0))?;
            socket.connect(end)?;
            Ok(socket)
        };
        (0..FLOWS).map(one).collect()
    };
    Ok((from.0.within(open)??, far))
}

/// Packets that each worker has taken from both sides, and whether it is parked.
fn workers(gateway: &Gateway) -> Outcome<Vec<(u64, bool)>> {
    let list = gateway.ask_json(&["workers"])?;
    let of = |worker: &Value| {
        let count = |side: &str| worker[side]["rx_packets"].as_u64();
        Some((count("protected")? + count("unprotected")?, worker["parked"].as_bool()?))
    };
    let all = list.as_array().into_iter().flatten().map(of).collect::<Option<_>>();
    all.ok_or_else(|| format!("no workers in {list:#}").into())
}

/// Two ends with windows for several workers. What A receives comes to its second worker, if that runs.
fn ends(udp: bool, gateway: &str) -> Outcome<[Config; 2]> {
    let mut ends = pair(udp)?;
    for end in &mut ends {
        end.tunnels[0].more = "peer_window = 4096\nreplay_window = 4096".to_owned();
    }
    ends[0].tunnels[0].inbound.spi = 0x1003;
    ends[1].tunnels[0].outbound.spi = 0x1003;
    ends[0].gateway = gateway.to_owned();
    Ok(ends)
}

fn set(gateway: &Gateway, workers: &str) -> Outcome<()> {
    let said = gateway.ask(&["workers", "set", workers])?;
    ensure(said.code == Some(0) && said.stderr.is_empty(), || format!("{said:#?}\n{}", gateway.log()))
}

fn come_and_go(link: &mut Link, udp: bool) -> TestResult {
    come_and_go_between(link, ends(udp, "workers = 2")?, |_, _| Ok(()))
}

/// The same between these two ends; `then` looks at them before they end.
pub fn come_and_go_between(
    link: &mut Link,
    [a, b]: [Config; 2],
    then: impl FnOnce(&Gateway, &Gateway) -> TestResult,
) -> TestResult {
    let udp = a.tunnels[0].udp;
    let (gateway, _) = link.start_a(&a)?;
    let (peer, _) = link.start_b(&b)?;
    let (here, there) = ((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"));
    let floods = [Flood::new(), Flood::new()];
    let ends = [sockets(here, there)?, sockets(there, here)?];
    let mut changes: [Vec<_>; 2] = Default::default();
    thread::scope(|scope| {
        for (flood, (senders, receiver)) in floods.iter().zip(&ends) {
            scope.spawn(|| flood.send(senders));
            scope.spawn(|| flood.receive(receiver));
        }
        let mut changing = || -> Outcome<()> {
            for round in 0..4 {
                for wanted in ["1", "2"] {
                    floods.iter().try_for_each(|flood| flood.flows(500))?;
                    let begun = floods.each_ref().map(Flood::sent);
                    set(&gateway, wanted)?;
                    let ended = floods.each_ref().map(Flood::sent);
                    (0..2).for_each(|at| changes[at].push([begun[at], ended[at]]));
                    let before = workers(&gateway)?;
                    floods.iter().try_for_each(|flood| flood.flows(500))?;
                    let after = workers(&gateway)?;
                    let more: Vec<_> = before.iter().zip(&after).map(|(then, now)| now.0 - then.0).collect();
                    let is_right = match wanted {
                        "1" => more[1] == 0 && after[1].1,
                        _ => more[1] > 0 && !after[1].1,
                    };
                    ensure(is_right && !after[0].1, || format!("{round}, {wanted}: {before:?} {after:?}"))?;
                }
            }
            Ok(())
        };
        let outcome = changing();
        floods.iter().for_each(|flood| flood.stop.store(true, Ordering::Release));
        outcome
    })
    .map_err(|e| format!("{e}\n{}", gateway.log()))?;
    for (flood, changes) in floods.iter().zip(&changes) {
        let drops = || -> Outcome<String> {
            let counted = |end: &Gateway| -> Outcome<Vec<String>> {
                let status = end.ask_json(&["status"])?;
                let drops = status["drops"].as_object().into_iter().flatten();
                Ok(drops.filter(|(_, count)| **count != 0).map(|drop| format!("{drop:?}")).collect())
            };
            Ok(format!("drops: {:?} {:?}", counted(&gateway)?, counted(&peer)?))
        };
        let overtaken = match flood.assert_whole(changes) {
            Ok(overtaken) => overtaken,
            Err(e) => return Err(format!("{e}\n{}\n{}", drops()?, gateway.log()).into()),
        };
        println!("udp {udp}: {} datagrams, {overtaken} overtaken", flood.all_sent());
    }
    // A number that was used twice would be a replay to the peer.
    let refused = ["replay_duplicate", "replay_too_old", "authentication_failed"];
    for reason in refused {
        ensure(peer.dropped(reason)? == 0, || format!("{reason} at the peer"))?;
    }
    then(&gateway, &peer)?;
    gateway.stop()?;
    peer.stop()
}

fn by_reload(link: &mut Link) -> TestResult {
    let [mut a, _] = ends(true, "workers = 1\nworkers_max = 3")?;
    let (mut gateway, folder) = link.start_a(&a)?;
    let parked = |gateway: &Gateway| -> Outcome<Vec<bool>> {
        Ok(workers(gateway)?.into_iter().map(|(_, is_parked)| is_parked).collect())
    };
    ensure(parked(&gateway)? == [false, true, true], || "as many run as the file says".to_owned())?;
    a.gateway = "workers = 3\nworkers_max = 3".to_owned();
    a.write(&folder)?;
    gateway.reload()?;
    ensure(parked(&gateway)? == [false; 3], || gateway.log())?;
    set(&gateway, "2")?;
    gateway.reload()?;
    ensure(parked(&gateway)? == [false, false, true], || "the file did not change".to_owned())?;
    a.gateway = "workers = [\"encrypt\", \"decrypt\"]".to_owned();
    a.write(&folder)?;
    gateway.reload()?;
    gateway.logs("restart")?;
    ensure(parked(&gateway)? == [false, false, true], || gateway.log())?;
    gateway.stop()
}

fn refused(link: &mut Link) -> TestResult {
    let [a, _] = ends(true, "workers = 2")?;
    let (gateway, _) = link.start_a(&a)?;
    for workers in ["0", "3", "18446744073709551615"] {
        gateway.ask(&["workers", "set", workers])?.refused(1, "1 to 2 workers")?;
    }
    gateway.stop()?;
    let [a, _] = ends(true, "workers = { count = 2, roles = \"half\" }")?;
    let (gateway, _) = link.start_a(&a)?;
    gateway.ask(&["workers", "set", "1"])?.refused(1, "workers with roles")?;
    gateway.stop()
}
