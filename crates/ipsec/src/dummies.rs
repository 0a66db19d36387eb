//! Dummy packets (RFC 4303 2.6): ESP with next header 59, which the peer authenticates and drops.
//! With them, and with [TFC padding](crate::PacketRules::tfc_pad_to), who watches cannot tell how much a
//! tunnel carries (RFC 4303 2.7). In VPE they are fill packets, whose plaintext is nothing but zeros
//! (`docs/VPE.md`), in one window after another by chance, as if each were of another flow and of any class.
//!
//! A tunnel sends them at a steady rate, beside its own packets, with intervals that vary by half. Of several
//! workers one sends those of an SA of ESP, and each that encrypts those of its windows of VPE. What could
//! not be sent in time is not made up for. Where a tunnel [sends by a clock](crate::clocked), they have the
//! ticks that none of its packets waits for.
//!
//! They use up sequence numbers and lifetime as all packets do, and are counted apart. While the peer is
//! unknown there are none.

use crate::Ipsec;
use crate::clocked::phase;
use crate::encap::esp_tunnel::{Content, Framing};
use crate::encap::vpe::VpeFraming;
use crate::encap::{Encap, IpsecProtocol, outer_fields};
use crate::fragments::mix;
use crate::lifetime::Moment;
use crate::outcome::Prepared;
use crate::sa::OutboundSa;
use crate::slots::SaRef;
use crate::spd::TunnelIndex;
use crate::tunnel::TunnelParameters;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;
use testudo_crypto::Job;
use testudo_packet::{Buffer, DropReason, Pool};
use testudo_wire::protocol;

/// Packets that are made at a time; others stay due.
const MAX_AT_A_TIME: usize = 256;
/// Where packets are not padded to one length, that of dummies varies from here to what fits the path, in
/// bytes.
const LEAST_BYTES: u16 = 40;
/// The most where a path carries more.
const MOST_BYTES: u16 = 1400;

/// When the next dummy, or the next tick, of each tunnel is due.
#[derive(Debug, Default)]
pub(crate) struct Dummies {
    due: BinaryHeap<Reverse<Due>>,
    /// Tunnels so far.
    tunnels: u64,
    /// Those of them with a clock.
    clocks: u64,
    /// Dummies so far, which lengths and intervals are drawn with.
    count: u64,
    /// Another worker sends those of ESP.
    of_vpe_alone: bool,
}

/// When, for the tunnel at which index, and which of those that were there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due(Moment, TunnelIndex, u64);

impl Dummies {
    /// A number below `limit`, at least 1, that follows from the seed.
    fn draw(&mut self, seed: u64, limit: u64) -> u64 {
        self.count = self.count.wrapping_add(1);
        mix(seed ^ self.count.rotate_left(32)) % limit.max(1)
    }
}

impl Ipsec {
    /// Notes a tunnel that may send dummies, and returns its number. When it is gone, its entry ends as soon
    /// as it is due.
    pub(crate) fn add_dummies(
        &mut self,
        index: TunnelIndex,
        parameters: &TunnelParameters,
        now: Moment,
    ) -> u64 {
        let (clock, beside) = (parameters.clock(), parameters.dummies_beside());
        let dummies = &mut self.dummies;
        dummies.tunnels += 1;
        let first = match clock {
            0 => now,
            per_second => {
                dummies.clocks += 1;
                Moment(now.0 + phase(dummies.clocks - 1, self.identifications.seed(), per_second))
            }
        };
        if beside.max(clock) > 0 {
            dummies.due.push(Reverse(Due(first, index, dummies.tunnels)));
        }
        dummies.tunnels
    }

    /// Another worker sends the dummies of ESP that come beside packets: from now on there are those of VPE
    /// alone, whose windows are this worker's own, and those of clocks, which are this worker's own.
    pub fn leave_dummies_of_esp(&mut self) {
        self.dummies.of_vpe_alone = true;
    }

    /// When [`dummies`](Self::dummies) has something to do next; `None` for never.
    #[must_use]
    pub fn next_dummy(&self) -> Option<Moment> {
        self.dummies.due.peek().map(|Reverse(due)| due.0)
    }

    /// Appends the jobs of dummies and of packets that have waited for their tick, at most 256 of those that
    /// are due, and messages to the senders of packets that are too long. A worker that encrypts nothing has
    /// nothing to `hide`: it sends what still waits, and dummies `beside` packets if it is the first of all.
    pub fn dummies(&mut self, now: Moment, hides: bool, beside: bool, pool: &mut Pool, out: &mut Prepared) {
        let sends_beside = beside && (hides || !self.dummies.of_vpe_alone);
        for _ in 0..MAX_AT_A_TIME {
            let Some(&Reverse(Due(due, index, number))) = self.dummies.due.peek() else { return };
            if due > now {
                return;
            }
            self.dummies.due.pop();
            let Some(tunnel) = self.tunnel(index).filter(|tunnel| tunnel.dummies == number) else { continue };
            let next = match tunnel.parameters.clock() {
                0 => self.send_beside(index, due, now, sends_beside, pool, &mut out.jobs),
                _ => self.tick(index, due, now, hides, pool, out),
            };
            self.dummies.due.extend(next.map(|next| Reverse(Due(next, index, number))));
        }
    }

    /// Appends the job of a dummy of a tunnel, beside its packets, and returns when the next one is due;
    /// `None` if another worker sends them.
    fn send_beside(
        &mut self,
        index: TunnelIndex,
        due: Moment,
        now: Moment,
        sends: bool,
        pool: &mut Pool,
        jobs: &mut Vec<Job>,
    ) -> Option<Moment> {
        let parameters = &self.tunnel(index)?.parameters;
        let (protocol, rate) = (parameters.protocol, parameters.rules.dummy_packets_per_second);
        if self.dummies.of_vpe_alone && protocol != IpsecProtocol::Vpe {
            return None;
        }
        if sends {
            jobs.extend(self.dummy(index, now, pool));
        }
        let mean = Duration::from_secs(1) / u32::from(rate.max(1));
        let nanoseconds = u64::try_from(mean.as_nanos()).unwrap_or(u64::MAX);
        let varied = nanoseconds / 2 + self.dummies.draw(self.identifications.seed(), nanoseconds);
        // What was missed is not made up for: a burst would tell the dummies from the rest.
        let next = due.0 + Duration::from_nanos(varied);
        Some(Moment(next.max(now.0)))
    }

    /// The job of one dummy packet; `None` if it cannot be sent now.
    pub(crate) fn dummy(&mut self, index: TunnelIndex, now: Moment, pool: &mut Pool) -> Option<Job> {
        let sa_ref = self.way_of(self.tunnel(index)?)?;
        self.note_flying(sa_ref);
        // Also where longer packets are cut after they were sealed.
        let uncut = self.shape_in_use(index)?.inner_mtu(self.tunnel(index)?.parameters.path_mtu);
        let sa = self.outbound.get_mut(sa_ref)?;
        // A packet in transport mode brings its header; this one gets the tunnel's.
        let header = match (sa.encap, &sa.template) {
            (Encap::EspTransport, Some(template)) => template.version().header_bytes(),
            _ => 0,
        };
        let fits = u16::try_from(uncut.saturating_sub(header)).unwrap_or(u16::MAX);
        let longest = fits.min(MOST_BYTES);
        let bytes = match sa.tfc_pad_to {
            0 => {
                let range = longest.saturating_sub(LEAST_BYTES) + 1;
                let more = self.dummies.draw(self.identifications.seed(), range.into());
                LEAST_BYTES + u16::try_from(more).unwrap_or(0)
            }
            // As long as other packets become.
            padded => padded.min(fits),
        };
        if sa.template.is_none() || pool.available_for(bytes.into()) == 0 {
            return None;
        }
        let flow = self.dummies.draw(self.identifications.seed(), u64::MAX);
        // Who watches the windows of one class alone would see the packets of it without any others.
        let traffic_class = match sa.vpe.as_ref().map(|windows| windows.rules().classes()) {
            Some(classes) if classes.count() > 1 => {
                let class = self.dummies.draw(self.identifications.seed(), classes.count().into());
                classes.traffic_class_of(u8::try_from(class).unwrap_or(0))
            }
            _ => 0,
        };
        let sequence = match sa.encap {
            Encap::Vpe => sa.admit_in_window(|_| flow, traffic_class, bytes.into(), now, &mut self.events),
            _ => sa.admit(bytes.into(), now, &mut self.events),
        };
        let sequence = sequence.ok()?;
        let mut buffer = pool.create(bytes.into())?;
        buffer.receive_area()[..usize::from(bytes)].fill(0);
        buffer.set_len(bytes.into());
        // The last one of any window.
        sa.counters.count_dummy(bytes.into(), sa.sequence.next() - 1);
        let content = Content { bytes, traffic_class, next_header: protocol::NO_NEXT_HEADER };
        let framed = match sa.encap {
            Encap::Vpe => framed_as_fill(sa, sa_ref, buffer, content, sequence),
            _ => framed_as_dummy(sa, sa_ref, buffer, content, sequence),
        };
        let mut job = match framed {
            Ok(job) => job,
            Err(buffer) => {
                pool.discard(buffer, DropReason::NoRoom);
                return None;
            }
        };
        if sa.headers_vary {
            let (template, jobs) = (sa.template.as_ref(), std::iter::once(&mut job));
            outer_fields::complete_run(template, sa_ref, jobs, &mut self.identifications);
        }
        Some(job)
    }
}

/// The job of a dummy of ESP with this text.
fn framed_as_dummy(
    sa: &OutboundSa,
    sa_ref: SaRef,
    text: Buffer,
    content: Content,
    sequence: u64,
) -> Result<Job, Buffer> {
    let Some(framing) = Framing::of(sa, sa_ref) else { return Err(text) };
    let mut job = framing.job(text, sequence);
    if framing.write_one(&mut job, content, sequence) { Ok(job) } else { Err(job.buffer) }
}

/// The job of a fill packet of VPE with this text, in the window whose number was reserved.
fn framed_as_fill(
    sa: &OutboundSa,
    sa_ref: SaRef,
    text: Buffer,
    content: Content,
    sequence: u64,
) -> Result<Job, Buffer> {
    let (Some(framing), Some(windows)) = (VpeFraming::of(sa, sa_ref), &sa.vpe) else { return Err(text) };
    let mut job = framing.job(text, content.bytes, sequence);
    let packets = std::iter::once((content, windows.chosen()));
    if framing.write(std::slice::from_mut(&mut job), packets) { Ok(job) } else { Err(job.buffer) }
}
