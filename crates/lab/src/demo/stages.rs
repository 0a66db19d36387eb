//! The demonstration, step by step.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::attacker::{Attack, FORGED, REPLAYED, REPLAYED_OF_RENEWED, count, refused};
use super::ike::{Negotiation, Rekeying};
use super::report::Report;
use super::{DemoOptions, Direction};
use crate::attack::{self, Recorded};
use crate::capture::{Capture, Eavesdropper, HEADERS, Seen, WHOLE};
use crate::charon::Installed;
use crate::error::LabError;
use crate::gateway::{Gateway, Status};
use crate::namespaces::{Entered, Namespace};
use crate::network::{ETHERNET_MTU, Network, Site, Tunnel};
use crate::progress::Progress;
use crate::protection::Protection;
use crate::traffic::{RoundTrips, Stream, gbit_s, ping, tcp_stream, udp_echo};
use crate::workspace::Workspace;

const SECOND: Duration = Duration::from_secs(1);
/// Pings each way.
const PINGS: u16 = 50;
/// Bytes of UDP data: small, nearly a whole packet, and large enough to be fragmented inside the tunnel.
const UDP_SIZES: [usize; 6] = [1, 64, 512, 1350, 4000, 8000];
/// The first of these fit a packet.
const WHOLE_SIZES: usize = 4;
/// How long it may take until the refusals are counted.
const REFUSED_WITHIN: Duration = Duration::from_secs(3);
/// Rekeys beside the numbered datagrams, at least: one by each end.
const REKEYS: u64 = 2;
/// How long these may take.
const REKEYED_WITHIN: Duration = Duration::from_secs(60);

/// What is to be shown.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) options: &'a DemoOptions,
    pub(super) protection: &'a Protection,
    /// The daemons that negotiate, if they are asked for.
    pub(super) strongswan: Option<&'a Installed>,
}

/// The state shared by the stages.
struct Demo<'a> {
    options: &'a DemoOptions,
    protection: &'a Protection,
    workspace: &'a Workspace,
    progress: &'a mut Progress,
    network: Network,
    eavesdropper: Eavesdropper,
    gateways: [Gateway; 2],
    negotiation: Option<Arc<Negotiation>>,
    report: Report,
}

/// Builds everything, runs every stage, tears everything down.
pub(super) fn run(
    inside: Entered,
    asked: &Asked<'_>,
    program: &Path,
    workspace: &Workspace,
    progress: &mut Progress,
) -> Result<Report, LabError> {
    let Asked { options, protection, strongswan } = *asked;
    progress.stage("building two sites and a link", SECOND);
    let network = Network::build(inside, options.ipv6, options.port)?;
    progress.stage("starting two gateways", SECOND);
    let (engine, workers) = (options.engine.as_deref(), options.workers);
    let tunnel =
        Tunnel { protection, port: options.port, engine, workers, mtu: ETHERNET_MTU, processors: None };
    let gateways = match strongswan {
        None => network.start_gateways(&tunnel, program, workspace.path())?,
        Some(_) => network.start_gateways_for_daemons(&tunnel, program, workspace.path())?,
    };
    let eavesdropper = eavesdropper(&network, asked);
    let report = Report::in_namespaces(options, protection, workspace);
    let negotiation = None;
    let mut demo = Demo {
        options,
        protection,
        workspace,
        progress,
        network,
        eavesdropper,
        gateways,
        negotiation,
        report,
    };
    match demo.negotiate(strongswan).and_then(|()| demo.stages()) {
        Ok(()) => demo.finish(),
        // A gateway that has died explains any other failure.
        Err(error) => {
            demo.gateways.iter_mut().try_for_each(Gateway::check_alive)?;
            Err(error)
        }
    }
}

/// The addresses and port that the eavesdropper judges by.
fn eavesdropper(network: &Network, asked: &Asked<'_>) -> Eavesdropper {
    let protection = asked.protection;
    let address = |site: &Site| site.end(protection.in_transport).1;
    Eavesdropper {
        gateways: [network.a.outer, network.b.outer],
        udp_port: protection.udp_port(),
        inner: [address(&network.a), address(&network.b)],
        protocols: protection.protocols,
        ike: asked.strongswan.is_some(),
    }
}

impl Demo<'_> {
    fn stages(&mut self) -> Result<(), LabError> {
        let mut seen = Seen::default();
        self.progress.stage("ping", SECOND);
        self.recorded("link-1-ping.pcap", WHOLE, &mut seen, Self::pings)?;
        let old = std::mem::take(&mut seen.to_send_again);
        self.recorded("link-2-tcp.pcap", HEADERS, &mut seen, |demo| demo.under_rekeys(Self::streams))?;
        if self.negotiation.is_some() {
            let work = |demo: &mut Self| demo.under_rekeys(Self::numbered);
            self.recorded("link-2-renewed.pcap", HEADERS, &mut seen, work)?;
        }
        self.progress.stage("UDP", SECOND);
        self.recorded("link-3-udp.pcap", WHOLE, &mut seen, Self::datagrams)?;
        let fresh = std::mem::take(&mut seen.to_send_again);
        self.progress.stage("attack: replayed and forged packets", SECOND);
        self.recorded("link-4-attack.pcap", WHOLE, &mut seen, |demo| demo.attack(&old, &fresh))?;
        self.report.set_seen(&seen);
        Ok(())
    }

    /// Starts the daemons, if they are asked for, and has them negotiate.
    fn negotiate(&mut self, strongswan: Option<&Installed>) -> Result<(), LabError> {
        let Some(installed) = strongswan else { return Ok(()) };
        self.progress.stage("two charons negotiate", SECOND);
        let negotiation =
            Negotiation::start(&self.network, &self.gateways, installed, self.protection, self.workspace)?;
        self.report.ike_daemon = Some(negotiation.daemon()?);
        self.negotiation = Some(Arc::new(negotiation));
        Ok(())
    }

    /// Does `work` while the daemons, if there are some, renew their CHILD_SA again and again.
    fn under_rekeys(&mut self, work: impl FnOnce(&mut Self) -> Result<(), LabError>) -> Result<(), LabError> {
        let rekeying = self.negotiation.clone().map(Rekeying::start);
        let outcome = work(self);
        // A rekey that has failed explains what has become of the traffic.
        rekeying.map_or(Ok(()), Rekeying::end).and(outcome)
    }

    /// Datagrams both ways, each with a number, while SAs are renewed: none may be missing.
    fn numbered(&mut self) -> Result<(), LabError> {
        let Some(negotiation) = self.negotiation.clone() else { return Ok(()) };
        let duration = Duration::from_secs(self.options.seconds);
        self.progress.stage("UDP while SAs are renewed", duration);
        let ((a, b, at_b), (_, _, at_a)) = (self.ends(Direction::AToB), self.ends(Direction::BToA));
        let (at_a, at_b) = (at_a.to_string(), at_b.to_string());
        let streams = [Stream::start((a, &at_a), (b, &at_b))?, Stream::start((b, &at_b), (a, &at_a))?];
        let (started, rekeys_before) = (Instant::now(), negotiation.rekeys());
        let is_enough = || started.elapsed() >= duration && negotiation.rekeys() >= rekeys_before + REKEYS;
        while !is_enough() {
            if started.elapsed() > duration + REKEYED_WITHIN {
                let what = format!("SAs were not renewed {REKEYS} times under load");
                return Err(LabError::TooLate { what, limit: duration + REKEYED_WITHIN });
            }
            let renewed = negotiation.rekeys() - rekeys_before;
            self.progress.at(started.elapsed(), duration, &format!("{renewed} rekeys"));
            thread::sleep(Duration::from_millis(100));
        }
        for stream in streams {
            let (sent, lost) = stream.end()?;
            self.report.add_numbered(sent, &lost);
        }
        Ok(())
    }

    /// Does `work` while the link is recorded, and adds the recorded packets to `seen`.
    fn recorded(
        &mut self,
        file: &str,
        snap: u32,
        seen: &mut Seen,
        work: impl FnOnce(&mut Self) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        let file = self.workspace.join(file);
        let (at, interface) = self.network.tap();
        let capture = Capture::start(at, interface, &file, snap)?;
        work(self)?;
        self.eavesdropper.judge(&capture.finish(self.network.tap().0)?, seen)
    }

    /// Who sends and who receives, with the receiver's address.
    fn ends(&self, direction: Direction) -> (&Namespace, &Namespace, IpAddr) {
        let [a, b] = [&self.network.a, &self.network.b].map(|site| site.end(self.protection.in_transport));
        let (from, to) = match direction {
            Direction::AToB => (a, b),
            Direction::BToA => (b, a),
        };
        (from.0, to.0, to.1)
    }

    fn ping(&mut self, direction: Direction) -> Result<RoundTrips, LabError> {
        let (from, _, address) = self.ends(direction);
        let trips = ping(from, address, PINGS, SECOND)?;
        self.report.add_pings(&trips);
        Ok(trips)
    }

    fn pings(&mut self) -> Result<(), LabError> {
        let mut trips = self.ping(Direction::AToB)?;
        trips.times.extend(self.ping(Direction::BToA)?.times);
        self.report.ping_ms = trips.median_ms();
        Ok(())
    }

    fn streams(&mut self) -> Result<(), LabError> {
        self.report.tcp_gbit_s_a_to_b = Some(self.stream(Direction::AToB, "TCP, site A → site B")?);
        self.report.tcp_gbit_s_b_to_a = Some(self.stream(Direction::BToA, "TCP, site B → site A")?);
        Ok(())
    }

    fn stream(&mut self, direction: Direction, name: &str) -> Result<f64, LabError> {
        let duration = Duration::from_secs(self.options.seconds);
        self.progress.stage(name, duration);
        let (from, to, address) = self.ends(direction);
        let mut observe = |elapsed: Duration, bytes| {
            self.progress.at(elapsed, duration, &format!("{:.2} Gbit/s", gbit_s(bytes, elapsed)));
        };
        let result = tcp_stream(from, to, address, duration, &mut observe)?;
        Ok(result.gbit_s())
    }

    /// After TCP, so that both hosts know the path's MTU and fragment larger packets.
    fn datagrams(&mut self) -> Result<(), LabError> {
        // Transport mode takes no fragments (RFC 4303 3.3.4), and the host cuts what is longer.
        let sizes = &UDP_SIZES[..if self.protection.in_transport { WHOLE_SIZES } else { UDP_SIZES.len() }];
        for direction in [Direction::AToB, Direction::BToA] {
            let (from, to, address) = self.ends(direction);
            let trips = udp_echo(from, to, address, sizes)?;
            self.report.add_udp(&trips);
        }
        // The last packets from A: still in B's replay window when they are sent again.
        self.ping(Direction::AToB).map(drop)
    }

    /// Sends packets to gateway B in the name of A: recorded ones from the beginning and the end of the run,
    /// and forged ones.
    fn attack(&mut self, old: &[Vec<u8>], fresh: &[Vec<u8>]) -> Result<(), LabError> {
        let Attack { replayed, forged } = Attack::plan(&self.eavesdropper, old, fresh);
        let replayed_by = if self.negotiation.is_some() { &REPLAYED_OF_RENEWED[..] } else { &REPLAYED };
        self.report.valid_refused = self.statuses()?.iter().map(|status| refused(status, replayed_by)).sum();
        (self.report.replayed_sent, self.report.forged_sent) = (count(&replayed), count(&forged));
        self.report.replayed_refused = self.strike(&replayed, replayed_by)?;
        self.report.forged_refused = self.strike(&forged, &FORGED)?;
        // The forged numbers must not have moved B's window beyond A's next packets.
        self.ping(Direction::AToB).map(drop)
    }

    /// Sends `packets` to gateway B, waits until it has counted them as dropped for any of `reasons`, and
    /// returns that number.
    fn strike(&mut self, packets: &[Recorded], reasons: &[&str]) -> Result<u64, LabError> {
        let before = self.gateways[1].status()?;
        let (at, interface) = self.network.attacker();
        attack::send_by(at, interface, self.network.b.outer, packets)?;
        let deadline = Instant::now() + REFUSED_WITHIN;
        loop {
            let now = self.gateways[1].status()?;
            let since = refused(&now, reasons).saturating_sub(refused(&before, reasons));
            if since >= count(packets) || Instant::now() > deadline {
                let [now, before] = [now, before].map(|status| status.ports.protected.tx_packets);
                self.report.attack_packets_forwarded += now.saturating_sub(before);
                return Ok(since);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn statuses(&self) -> Result<[Status; 2], LabError> {
        Ok([self.gateways[0].status()?, self.gateways[1].status()?])
    }

    /// Reads the gateways' counters, stops them, and judges.
    fn finish(mut self) -> Result<Report, LabError> {
        let statuses = self.statuses()?;
        self.report.set_gateways(&statuses);
        let negotiation = self.negotiation.take().and_then(Arc::into_inner);
        self.report.rekeys = negotiation.as_ref().map(Negotiation::rekeys);
        let daemons = negotiation.map_or(Ok(()), Negotiation::stop);
        let ends = std::iter::once(daemons).chain(self.gateways.into_iter().map(Gateway::stop));
        self.report.failures = ends.filter_map(|end| end.err().map(|error| error.to_string())).collect();
        self.report.conclude();
        Ok(self.report)
    }
}
