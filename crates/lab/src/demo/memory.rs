//! The demonstration where namespaces or TUN devices are not available: the same data path and engines, in
//! this process.
//!
//! ```text
//!   host A ── queue ── worker A ── queue, eavesdropper, attacker ── queue ── worker B ── queue ── host B
//! ```
//!
//! Pings, UDP both ways, replayed and forged packets go through as in the other mode, with the same
//! expectations. Anything that needs a kernel at the ends (TCP) or processes (their logs and control sockets)
//! is missing, and the report says so.

mod host;
mod pair;

use std::time::{Duration, Instant};

use testudo_gateway::Candidate;

use super::attacker::{Attack, FORGED, REPLAYED, count, refused};
use super::report::Report;
use super::{DemoOptions, Direction};
use crate::attack::Recorded;
use crate::capture::{Eavesdropper, HEADERS, Tap, WHOLE};
use crate::error::LabError;
use crate::progress::Progress;
use crate::protection::Protection;
use crate::traffic::{Pattern, RoundTrips, echo_answers, echo_request, gbit_s};
use crate::workspace::Workspace;
use host::{Route, echo_message, udp_data};
use pair::{Pair, Tunnel, addresses};

const SECOND: Duration = Duration::from_secs(1);
/// Pings each way.
const PINGS: u16 = 50;
/// Bytes of UDP data: of the datagrams that are echoed, and of each one of the stream. All fit the link,
/// since there is no kernel at the ends to reassemble fragments.
const UDP_SIZES: [usize; 4] = [1, 64, 512, 1350];
const BULK_BYTES: usize = 1350;
/// A datagram begins with its number in the stream.
const NUMBER_BYTES: usize = 8;
/// Packets that are sent before the output is checked.
const WINDOW: u64 = 256;

struct Demo<'a> {
    options: &'a DemoOptions,
    workspace: &'a Workspace,
    progress: &'a mut Progress,
    hosts: [std::net::IpAddr; 2],
    pair: Pair,
    report: Report,
}

/// Builds both gateways, runs every stage, and judges. The report states `why` it is not in namespaces.
pub(super) fn run(
    options: &DemoOptions,
    protection: &Protection,
    why: &str,
    candidates: Vec<Candidate>,
    workspace: &Workspace,
    progress: &mut Progress,
) -> Result<Report, LabError> {
    progress.stage("starting two gateways in this process", SECOND);
    let [gateways, hosts] = addresses(options.ipv6, protection.in_transport)?;
    let eavesdropper = Eavesdropper {
        gateways,
        udp_port: protection.udp_port(),
        inner: hosts,
        protocols: protection.protocols,
        ike: false,
    };
    let tunnel = Tunnel { protection, engine: options.engine.as_deref(), ipv6: options.ipv6 };
    let pair = Pair::build(&tunnel, candidates, Tap::new(eavesdropper))?;
    let report = Report::in_memory(options, protection, workspace, why);
    let mut demo = Demo { options, workspace, progress, hosts, pair, report };
    demo.stages()?;
    Ok(demo.finish())
}

impl Demo<'_> {
    fn stages(&mut self) -> Result<(), LabError> {
        self.progress.stage("ping", SECOND);
        self.record("link-1-ping.pcap", WHOLE)?;
        let mut trips = self.ping(Direction::AToB)?;
        trips.times.extend(self.ping(Direction::BToA)?.times);
        self.report.ping_ms = trips.median_ms();
        let old = self.pair.tap().take_kept();
        self.record("link-2-bulk.pcap", HEADERS)?;
        self.report.memory_gbit_s_a_to_b = Some(self.stream(Direction::AToB, "UDP, site A → site B")?);
        self.report.memory_gbit_s_b_to_a = Some(self.stream(Direction::BToA, "UDP, site B → site A")?);
        self.record("link-3-udp.pcap", WHOLE)?;
        self.datagrams()?;
        let fresh = self.pair.tap().take_kept();
        self.progress.stage("attack: replayed and forged packets", SECOND);
        self.record("link-4-attack.pcap", WHOLE)?;
        self.attack(&old, &fresh)?;
        self.report.set_seen(self.pair.tap().finish()?);
        Ok(())
    }

    fn record(&mut self, name: &str, snap: u32) -> Result<(), LabError> {
        self.pair.tap().record(&self.workspace.join(name), snap)
    }

    fn route(&self, direction: Direction) -> Route {
        let [a, b] = self.hosts;
        match direction {
            Direction::AToB => Route { source: a, destination: b },
            Direction::BToA => Route { source: b, destination: a },
        }
    }

    fn ping(&mut self, direction: Direction) -> Result<RoundTrips, LabError> {
        let (route, mut trips) = (self.route(direction), RoundTrips::default());
        for number in 0..PINGS {
            let request = echo_request(route.destination, number);
            let answer = self.pair.round_trip(direction, &route.echo(&request)?)?;
            let is_right = |packet: &[u8]| {
                echo_message(packet).is_some_and(|answer| echo_answers(route.destination, &request, answer))
            };
            match answer.filter(|(packet, _)| is_right(packet)) {
                Some((_, time)) => trips.times.push(time),
                None => trips.lost += 1,
            }
        }
        self.report.add_pings(&trips);
        Ok(trips)
    }

    /// UDP at full speed: Gbit/s of user data.
    fn stream(&mut self, direction: Direction, name: &str) -> Result<f64, LabError> {
        let duration = Duration::from_secs(self.options.seconds);
        self.progress.stage(name, duration);
        let (route, pattern, started) = (self.route(direction), Pattern::new(), Instant::now());
        let (mut sent, mut stream) = (0, Stream { pattern: &pattern, next: 0, received: 0 });
        while started.elapsed() < duration {
            for number in sent..sent + WINDOW {
                let packet = route.udp(&stream.data(number))?;
                self.pair.sites(direction).0.input.push(&packet);
            }
            sent += WINDOW;
            self.pair.settle()?;
            let came = self.pair.sites(direction).1.output.drain();
            came.iter().try_for_each(|packet| stream.take(packet))?;
            let bytes = stream.received * BULK_BYTES as u64;
            let rate = gbit_s(bytes, started.elapsed());
            self.progress.at(started.elapsed(), duration, &format!("{rate:.2} Gbit/s"));
        }
        self.report.memory_packets_sent += sent;
        self.report.memory_packets_lost += sent - stream.received;
        Ok(gbit_s(stream.received * BULK_BYTES as u64, started.elapsed()))
    }

    fn datagrams(&mut self) -> Result<(), LabError> {
        let pattern = Pattern::new();
        for direction in [Direction::AToB, Direction::BToA] {
            let (route, mut trips) = (self.route(direction), RoundTrips::default());
            for size in UDP_SIZES {
                let data = pattern.from(0).get(..size).unwrap_or_default();
                match self.pair.round_trip(direction, &route.udp(data)?)? {
                    Some((packet, _)) if udp_data(&packet) != Some(data) => {
                        return Err(LabError::Corrupted(format!(
                            "a UDP datagram of {size} bytes came back changed"
                        )));
                    }
                    Some((_, time)) => trips.times.push(time),
                    None => trips.lost += 1,
                }
            }
            self.report.add_udp(&trips);
        }
        // The last packets from A: still in B's replay window when they are sent again.
        self.ping(Direction::AToB).map(drop)
    }

    /// Sends packets to gateway B in the name of A.
    fn attack(&mut self, old: &[Vec<u8>], fresh: &[Vec<u8>]) -> Result<(), LabError> {
        let attack = Attack::plan(self.pair.tap().eavesdropper(), old, fresh);
        self.report.valid_refused = self.pair.ends.iter().map(|end| refused(&end.status(), &REPLAYED)).sum();
        (self.report.replayed_sent, self.report.forged_sent) =
            (count(&attack.replayed), count(&attack.forged));
        self.report.replayed_refused = self.strike(&attack.replayed, &REPLAYED)?;
        self.report.forged_refused = self.strike(&attack.forged, &FORGED)?;
        // The forged numbers must not have moved B's window beyond A's next packets.
        self.ping(Direction::AToB).map(drop)
    }

    fn strike(&mut self, packets: &[Recorded], reasons: &[&str]) -> Result<u64, LabError> {
        let before = self.pair.ends[1].status();
        packets.iter().try_for_each(|packet| self.pair.inject(packet.packet()))?;
        self.pair.settle()?;
        let now = self.pair.ends[1].status();
        let [now_sent, sent_before] = [&now, &before].map(|status| status.ports.protected.tx_packets);
        self.report.attack_packets_forwarded += now_sent.saturating_sub(sent_before);
        Ok(refused(&now, reasons).saturating_sub(refused(&before, reasons)))
    }

    fn finish(mut self) -> Report {
        self.report.set_gateways(&self.pair.ends.each_ref().map(pair::End::status));
        self.report.conclude();
        self.report
    }
}

/// UDP datagrams that carry a known pattern, each starting with its number.
struct Stream<'a> {
    pattern: &'a Pattern,
    /// One more than the highest number received.
    next: u64,
    received: u64,
}

impl Stream<'_> {
    fn data(&self, number: u64) -> Vec<u8> {
        let mut data = number.to_be_bytes().to_vec();
        let start = number * (BULK_BYTES - NUMBER_BYTES) as u64;
        while data.len() < BULK_BYTES {
            let piece = self.pattern.from(start + (data.len() - NUMBER_BYTES) as u64);
            data.extend_from_slice(&piece[..piece.len().min(BULK_BYTES - data.len())]);
        }
        data
    }

    /// Checks a received datagram: it must be one of those sent, in order and not a duplicate.
    fn take(&mut self, packet: &[u8]) -> Result<(), LabError> {
        let wrong = |what: &str| LabError::Corrupted(format!("wrong UDP data: {what}"));
        let data = udp_data(packet).ok_or_else(|| wrong("no UDP"))?;
        let number = data.first_chunk().map(|number| u64::from_be_bytes(*number));
        let number = number.ok_or_else(|| wrong("truncated"))?;
        if number < self.next {
            return Err(wrong("out of order, or twice"));
        }
        if data != self.data(number) {
            return Err(wrong("altered in transit"));
        }
        (self.next, self.received) = (number + 1, self.received + 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Pair, Route) {
        pair_of(&Protection::esp("aes128gcm16", "esp-in-udp"), false)
    }

    fn tap(protection: &Protection, ipv6: bool) -> (Tap, [std::net::IpAddr; 2]) {
        let [gateways, inner] = addresses(ipv6, protection.in_transport).unwrap();
        let (udp_port, protocols) = (protection.udp_port(), protection.protocols);
        (Tap::new(Eavesdropper { gateways, udp_port, inner, protocols, ike: false }), inner)
    }

    fn pair_of(protection: &Protection, ipv6: bool) -> (Pair, Route) {
        let (tap, inner) = tap(protection, ipv6);
        let tunnel = Tunnel { protection, engine: None, ipv6 };
        let route = Route { source: inner[0], destination: inner[1] };
        (Pair::build(&tunnel, Vec::new(), tap).unwrap(), route)
    }

    #[test]
    fn packets_on_the_link_are_sealed_and_cleartext_there_is_seen() {
        let (mut pair, route) = pair();
        let packet = route.udp(b"secret").unwrap();
        let (answer, _) = pair.round_trip(Direction::AToB, &packet).unwrap().unwrap();
        assert_eq!(udp_data(&answer), Some(&b"secret"[..]));
        let seen = pair.tap().finish().unwrap();
        assert_eq!((seen.protected, seen.cleartext), (2, 0));
        pair.inject(&packet).unwrap();
        assert_eq!(pair.tap().finish().unwrap().cleartext, 1);
    }

    #[test]
    fn every_protocol_and_mode_carries_packets_and_only_ah_alone_lets_them_be_read() {
        for (protocol, readable) in [("esp", 0), ("ah", 2), ("ah+esp", 0)] {
            for (mode, ipv6) in
                [("tunnel", false), ("tunnel", true), ("transport", false), ("transport", true)]
            {
                let protection = Protection::choose(protocol, mode, None, None, None).unwrap();
                let (mut pair, route) = pair_of(&protection, ipv6);
                let pattern = Pattern::new();
                let text = &pattern.from(0)[..100];
                let packet = route.udp(text).unwrap();
                let (answer, _) = pair.round_trip(Direction::AToB, &packet).unwrap().unwrap();
                assert_eq!(udp_data(&answer), Some(text), "{protocol}, {mode}");
                let seen = pair.tap().finish().unwrap();
                let found = (seen.protected, seen.readable, seen.cleartext);
                assert_eq!(found, (2, readable, 0), "{protocol}, {mode}, IPv6: {ipv6}");
            }
        }
    }

    #[test]
    fn a_packet_sent_again_is_counted_as_refused_and_goes_no_further() {
        let (mut pair, route) = pair();
        pair.round_trip(Direction::AToB, &route.udp(b"once").unwrap()).unwrap().unwrap();
        let kept = pair.tap().take_kept();
        let before = pair.ends[1].status();
        pair.inject(&kept[0]).unwrap();
        pair.settle().unwrap();
        let now = pair.ends[1].status();
        assert_eq!(refused(&now, &REPLAYED) - refused(&before, &REPLAYED), 1);
        assert_eq!(now.ports.protected.tx_packets, before.ports.protected.tx_packets);
    }

    #[test]
    fn datagrams_that_are_changed_doubled_or_exchanged_are_noticed() {
        let pattern = Pattern::new();
        let (_, route) = pair();
        let fresh = || Stream { pattern: &pattern, next: 0, received: 0 };
        let packet = |number| route.udp(&fresh().data(number)).unwrap();
        let mut stream = fresh();
        // Includes numbers whose data spans the end of the pattern.
        (0..400).for_each(|number| stream.take(&packet(number)).unwrap());
        assert!(stream.take(&packet(399)).is_err(), "twice");
        assert!(stream.take(&packet(7)).is_err(), "out of order");
        stream.take(&packet(500)).unwrap();
        assert_eq!(stream.received, 401, "the others are lost");
        let mut changed = packet(600);
        *changed.last_mut().unwrap() ^= 1;
        assert!(stream.take(&changed).is_err());
    }

    #[test]
    fn an_engine_that_does_not_exist_is_refused_with_those_that_do() {
        let protection = Protection::esp("aes128gcm16", "esp");
        let (tap, _) = tap(&protection, false);
        let tunnel = Tunnel { protection: &protection, engine: Some("abacus"), ipv6: false };
        let words = Pair::build(&tunnel, Vec::new(), tap).err().unwrap().to_string();
        assert!(words.contains("abacus") && words.contains("portable"), "{words}");
    }
}
