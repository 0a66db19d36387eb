//! A gateway in memory that is kept supplied, or is offered a rate: one on each thread.
//!
//! With a deep engine the bins are never overfilled: a packet that finds no place would be the next engine's.
//! What that one did is counted, whatever the reason, and a deep engine that goes out of service is an error.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use testudo_crypto::Engine;
use testudo_gateway::{
    Clock, Formation, OffloadMode, PortPair, Scheduled, SchedulerSettings, SystemClock, Worker,
};
use testudo_packet::{Pool, PortCounters, ticks};
use testudo_port_memory::{Demand, LoopPort, Packets, SinkHandle, SinkPort};

use super::super::case::{Case, Way};
use super::super::engines::all_in_service;
use super::super::error::Wrong;
use super::super::tunnels::{self, OVERHEAD_BYTES};
use super::super::vpe::threads::bind;
use super::lent::Done;
use crate::generator::Latency;
use crate::supply::Supply;

const BUFFER_BYTES: usize = 2048;
/// Packets under way where no engine gathers them.
const WINDOW_PACKETS: usize = 1024;
/// What a turn may bring.
const TURN_PACKETS: usize = 256;
/// Of packets that come out, one in this many is kept for the judge, so many at most.
const KEPT: (usize, usize) = (509, 64);
/// So few are all judged.
const JUDGED_ALL: usize = 1024;
/// Without a packet for so long, none is expected any more.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a gateway has.
pub(super) struct Parts {
    /// The engine that is measured, and behind a deep one what takes what it has no place for.
    pub(super) engines: Vec<Box<dyn Engine>>,
    /// How a deep engine's jobs are gathered; `None` for engines that are not.
    pub(super) scheduler: Option<SchedulerSettings>,
    /// What the first engine has done, where another one is behind it.
    pub(super) done: Option<Done>,
    pub(super) feed: Packets,
}

/// One gateway.
pub(super) struct Gateway {
    worker: Worker,
    supply: Supply,
    demand: Demand,
    sink: SinkHandle,
    clock: SystemClock,
    way: Way,
    /// With how many there were of these at the start.
    done: Option<(Done, u64)>,
    asked: u64,
    /// The most packets under way, and the most that wait for the engine.
    window: u64,
    places: u64,
    refused: u64,
}

/// When a measurement ends: after so long, and before that with the last packet of those there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Until {
    pub(super) elapsed: Duration,
    pub(super) packets: u64,
}

/// What came out of one gateway while it was kept supplied.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rate {
    pub(super) packets: u64,
    pub(super) elapsed: Duration,
    /// The same in ticks of the processor's.
    pub(super) ticks: u64,
    /// Of all packets: those that the first engine did not do, but the next one.
    pub(super) spilled: u64,
    pub(super) all: u64,
}

impl Rate {
    pub(super) fn per_second(&self) -> f64 {
        self.packets as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// The same of what the first engine did.
    pub(super) fn of_first_engine(&self) -> f64 {
        self.per_second() * (1.0 - share(self.spilled, self.all))
    }
}

/// The share of packets that others are of all; 0 of none.
pub(super) fn share(some: u64, all: u64) -> f64 {
    some as f64 / all.max(1) as f64
}

impl Gateway {
    pub(super) fn new(case: &Case, parts: Parts) -> Result<Self, Wrong> {
        let Parts { engines, scheduler, done, feed } = parts;
        let done = done.map(|done| {
            let before = done.count();
            (done, before)
        });
        let (feed, demand) = LoopPort::on_demand("feed", feed);
        let (sink_port, sink) = SinkPort::new("sink");
        let ports = match case.way {
            Way::Outbound => PortPair { protected: Box::new(feed), unprotected: Box::new(sink_port) },
            Way::Inbound => PortPair { protected: Box::new(sink_port), unprotected: Box::new(feed) },
        };
        let chunk = scheduler.map_or(0, |settings| settings.chunk);
        let window = WINDOW_PACKETS.max(3 * chunk);
        // Twice as many: an engine may have half of them.
        let buffers = 2 * window + 16 * TURN_PACKETS;
        let pool = Pool::new(buffers, BUFFER_BYTES.max(case.size.longest_bytes() + OVERHEAD_BYTES));
        let mut worker = Worker::new(ports, pool, engines, Box::default());
        worker.set_offload_mode(OffloadMode::Always);
        worker.set_formation(Formation::SuiteAndLength);
        if let Some(settings) = &scheduler {
            worker.set_scheduler(settings);
        }
        let supply = tunnels::install(&mut worker, case, case.way)?;
        let places = if chunk == 0 { window } else { chunk } as u64;
        let (clock, window) = (SystemClock::default(), window as u64);
        let (way, asked, refused) = (case.way, 0, 0);
        Ok(Self { worker, supply, demand, sink, clock, way, done, asked, window, places, refused })
    }

    fn sent(&self) -> u64 {
        let counters: PortCounters = match self.way {
            Way::Outbound => self.worker.unprotected_port().counters(),
            Way::Inbound => self.worker.protected_port().counters(),
        };
        counters.tx_packets
    }

    /// Of the packets that were sent, each of which is one job: those that the first engine did not do.
    pub(super) fn spilled(&self) -> u64 {
        let Some((done, before)) = &self.done else { return 0 };
        self.sent().saturating_sub(done.count().wrapping_sub(*before))
    }

    /// Their share.
    pub(super) fn share_spilled(&self) -> f64 {
        share(self.spilled(), self.sent())
    }

    fn scheduled(&self) -> Option<Scheduled> {
        self.worker.counters().scheduled().next().map(|(_, scheduled)| scheduled)
    }

    fn ask(&mut self, packets: u64) {
        if packets > 0 {
            self.demand.ask(packets);
            self.asked += packets;
        }
    }

    fn turn(&mut self) -> Result<(), Wrong> {
        let now = self.clock.now();
        self.worker.turn(now).map_err(|error| error.to_string())?;
        self.supply.serve(now);
        // What it kept is lost: this says why.
        all_in_service(&mut self.worker)?;
        match self.worker.pool().drops().total() {
            0 => Ok(()),
            _ => Err(self.loss()),
        }
    }

    fn loss(&self) -> Wrong {
        let drops = self.worker.pool().drops().iter().filter(|(_, count)| *count > 0);
        let drops: Vec<String> = drops.map(|(reason, count)| format!("{} {count}", reason.name())).collect();
        format!("{} of {} packets came out; drops: {}", self.sent(), self.asked, drops.join(", "))
    }

    /// How many more packets find a place: bins depend on how packets fill them, so it is a little more each
    /// time, and less when one found none.
    fn room(&mut self) -> u64 {
        let under_way = self.asked - self.sent();
        let left = self.window.saturating_sub(under_way).min(TURN_PACKETS as u64);
        let Some(scheduled) = self.scheduled() else { return left };
        let gone = scheduled.packets + scheduled.no_room + scheduled.too_late;
        let waiting = self.asked.saturating_sub(gone);
        self.places = match scheduled.no_room > self.refused {
            true => self.places * 3 / 4,
            false => (self.places + TURN_PACKETS as u64 / 4).min(2 * self.window / 3),
        };
        self.refused = scheduled.no_room;
        left.min(self.places.saturating_sub(waiting))
    }

    /// Turns until all that was asked for has come out.
    fn settle(&mut self) -> Result<(), Wrong> {
        let (mut last, mut since) = (self.sent(), Instant::now());
        while self.sent() < self.asked {
            self.turn()?;
            if self.sent() > last {
                (last, since) = (self.sent(), Instant::now());
            }
            if since.elapsed() > PATIENCE {
                return Err(self.loss());
            }
        }
        Ok(())
    }

    /// Keeps it supplied, and measures once as many packets have come out as may be under way, or from the
    /// first on if there are no more.
    pub(super) fn supplied(&mut self, until: Until) -> Result<Rate, Wrong> {
        let kept = if until.packets <= JUDGED_ALL as u64 { (1, JUDGED_ALL) } else { KEPT };
        self.sink.keep(kept.0, kept.1);
        let warm = self.window.min(until.packets / 4);
        let (start, start_ticks) = (Instant::now(), ticks());
        let mut begun = None;
        let (first, last) = loop {
            let room = self.room().min(until.packets - self.asked);
            self.ask(room);
            self.turn()?;
            let sent = self.sent();
            if begun.is_none() && sent >= warm {
                begun = Some((sent, Instant::now(), ticks()));
            }
            let is_over = begun.is_some_and(|(_, at, _)| at.elapsed() >= until.elapsed);
            if is_over || (self.asked >= until.packets && (begun.is_some() || sent >= until.packets)) {
                break (begun.unwrap_or((0, start, start_ticks)), (sent, Instant::now(), ticks()));
            }
            if start.elapsed() > PATIENCE + until.elapsed {
                return Err(self.loss());
            }
        };
        self.settle()?;
        let last = if last.0 == first.0 { (self.sent(), Instant::now(), ticks()) } else { last };
        let (packets, elapsed, ticks) = (last.0 - first.0, last.1 - first.1, last.2.wrapping_sub(first.2));
        Ok(Rate { packets, elapsed, ticks, spilled: self.spilled(), all: self.sent() })
    }

    /// Offers packets at a rate; how long each was in the gateway from when it was due at the port until it
    /// had been sent. Its tunnel is one, so that packets leave in the order in which they came.
    pub(super) fn offered(&mut self, per_second: f64, until: Until) -> Result<Latency, Wrong> {
        self.sink.keep(KEPT.0, KEPT.1);
        let (start, first) = (Instant::now(), self.sent());
        let due_at = |number: u64| whole(number as f64 * 1e9 / per_second);
        let (mut latency, mut seen) = (Latency::default(), 0);
        loop {
            let now = nanoseconds(start.elapsed());
            if now < nanoseconds(until.elapsed) {
                let due = (whole(now as f64 * per_second / 1e9) + 1).min(until.packets);
                let more = due.saturating_sub(self.asked - first);
                self.ask(more);
            } else if self.sent() >= self.asked {
                break;
            }
            self.turn()?;
            let (sent, now) = (self.sent() - first, nanoseconds(start.elapsed()));
            (seen..sent).for_each(|number| latency.record(now.saturating_sub(due_at(number))));
            seen = sent;
            if start.elapsed() > PATIENCE + until.elapsed {
                return Err(self.loss());
            }
        }
        self.settle()?;
        Ok(latency)
    }

    /// Packets that were kept.
    pub(super) fn kept(&self) -> Vec<Vec<u8>> {
        self.sink.take()
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Keeps all gateways supplied at once, each on a thread and a processor of its own.
pub(super) fn together(
    gateways: &mut [Gateway],
    until: Until,
    processors: &[usize],
) -> Result<Vec<Rate>, Wrong> {
    let barrier = Barrier::new(gateways.len());
    let one = |(number, gateway): (usize, &mut Gateway)| {
        processors.get(number).copied().into_iter().for_each(bind);
        barrier.wait();
        gateway.supplied(until)
    };
    let one = &one;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            gateways.iter_mut().enumerate().map(|of| scope.spawn(move || one(of))).collect();
        // All of them first: one that failed must not leave others that run.
        let ended: Vec<_> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a gateway's thread has panicked".to_owned())))
            .collect();
        ended.into_iter().collect()
    })
}

/// A number of packets or nanoseconds, without its fraction.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "neither negative nor beyond hours"
)]
fn whole(number: f64) -> u64 {
    number as u64
}
