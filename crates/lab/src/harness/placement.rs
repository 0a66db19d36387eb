//! Who does the work of a device, block by block, and who limits it (paper 004, section 4).

use super::device::{Device, DeviceError, Load, Trial};
use super::measurement::{Measurement, Plan, Test, Unconverged};
use super::repeat::{Figure, RECEIVED};
use super::search::throughput;
use crate::generator::Sizes;
use crate::traffic::median;

/// A part that had work for less than this share of the time waited for others.
const BUSY: f64 = 0.9;

/// A functional block of packet processing, as in figure 5 of paper 004.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Block {
    /// Receiving, checking, reading headers, transmitting.
    Ip,
    /// The policy, and the SA.
    LookUp,
    /// What else IPsec takes: sequence numbers, replay windows, headers and trailers, and what turns of the
    /// worker cost besides.
    Headers,
    /// Encryption and authentication, and handing both over where others do it.
    Cryptography,
}

impl Block {
    /// All of them, in the order of the outbound path.
    pub const ALL: [Block; 4] = [Block::Ip, Block::LookUp, Block::Headers, Block::Cryptography];

    /// Name in tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Block::Ip => "IP",
            Block::LookUp => "IPsec look-up",
            Block::Headers => "IPsec headers",
            Block::Cryptography => "cryptography",
        }
    }
}

/// Work that is not the worker's.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Elsewhere {
    /// There is none.
    #[default]
    Nowhere,
    /// Threads do it, which were at work for so many seconds, all together.
    Threads {
        /// How many.
        count: usize,
        /// Seconds.
        busy: f64,
    },
    /// A device does it, of which only hand-over and return are seen.
    Device {
        /// The sum of the seconds that packets were there.
        stay: f64,
    },
}

impl Elsewhere {
    /// Seconds that packets took there, one after the other.
    fn seconds(self) -> f64 {
        match self {
            Elsewhere::Nowhere => 0.0,
            Elsewhere::Threads { busy, .. } => busy,
            Elsewhere::Device { stay } => stay,
        }
    }
}

/// What packets took of whom, in one trial.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Effort {
    /// How many packets went in.
    pub packets: u64,
    /// Seconds of the worker, by index of [`Block::ALL`].
    pub worker: [f64; Block::ALL.len()],
    /// Receiving, checking and transmitting elsewhere.
    pub io: Elsewhere,
    /// Cryptography elsewhere.
    pub cryptography: Elsewhere,
}

/// A device whose parts tell what they do.
pub trait Placed: Device {
    /// A [trial](Device::trial) in which the parts are timed, which slows them down a little.
    ///
    /// # Errors
    /// [`DeviceError`] as of a trial.
    fn timed(&mut self, sizes: Sizes, load: Load) -> Result<(Trial, Effort), DeviceError>;
}

/// Who limits the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bottleneck {
    /// The thread that has the protocol.
    Worker,
    /// The threads that receive and transmit.
    IoThreads,
    /// The threads that do cryptography.
    CryptographyThreads,
    /// The device that does cryptography.
    CryptographyDevice,
    /// The generator: what it sent came through.
    Generator,
    /// Packets were lost, and yet each part waited for others: a burst was more than a ring holds, or parts
    /// share a processor.
    NotKnown,
}

impl Bottleneck {
    /// Name in tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Bottleneck::Worker => "worker",
            Bottleneck::IoThreads => "I/O threads",
            Bottleneck::CryptographyThreads => "cryptography threads",
            Bottleneck::CryptographyDevice => "cryptography device",
            Bottleneck::Generator => "generator",
            Bottleneck::NotKnown => "not known",
        }
    }
}

/// What a packet takes in one block, in the mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockTime {
    /// The block.
    pub block: Block,
    /// Microseconds that somebody works on the packet; of a device, until it comes back.
    pub turnaround_us: f64,
    /// Those of the worker.
    pub worker_us: f64,
    /// The block's share of the turnaround of all, 0 to 1.
    pub share: f64,
    /// How far the turnarounds of repetitions are apart, as a share of their median; `None` of one.
    pub repeat_spread: Option<f64>,
    /// Why the turnaround is not to be relied on; `None` if it is.
    pub unconverged: Option<Unconverged>,
}

/// What a device does with frames of one size, and who of it.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementRow {
    /// The highest rate without loss (RFC 2544, 26.1).
    pub throughput: Measurement,
    /// What comes through of the highest rate that makes sense to offer.
    pub capacity: Measurement,
    /// By index of [`Block::ALL`], at that rate.
    pub blocks: [BlockTime; Block::ALL.len()],
    /// Who limits the capacity.
    pub bottleneck: Bottleneck,
}

/// Searches the throughput, then floods the device in `plan.repetitions` trials, in which its parts are
/// timed: medians of what packets took of whom.
///
/// # Errors
/// [`DeviceError`] if the device failed, or told of no packet.
pub fn placement(device: &mut dyn Placed, sizes: Sizes, plan: &Plan) -> Result<PlacementRow, DeviceError> {
    let throughput = throughput(device, sizes, plan)?;
    let ceiling = device.maximum_rate(sizes)?;
    let load = Load::rate(ceiling.packets_per_second, plan.trial);
    // Nobody is timed here: what is forwarded is what the device does by itself.
    let repetitions = 0..plan.repetitions.max(1);
    let trials: Vec<Trial> =
        repetitions.clone().map(|_| device.trial(sizes, load)).collect::<Result<_, _>>()?;
    let capacity = Measurement::of(Test::Placement, sizes, plan, &trials, &RECEIVED);
    let capacity = capacity.below(&ceiling, &trials);
    let efforts: Vec<Effort> =
        repetitions.map(|_| device.timed(sizes, load).map(|(_, effort)| effort)).collect::<Result<_, _>>()?;
    if efforts.iter().any(|effort| effort.packets == 0) {
        return Err(DeviceError("no packet was timed".to_owned()));
    }
    let bottleneck = bottleneck(&efforts, &capacity);
    Ok(PlacementRow { throughput, bottleneck, blocks: blocks(&efforts, plan), capacity })
}

/// A figure for each packet, in microseconds, of each repetition.
fn each_per_packet(efforts: &[Effort], seconds: impl Fn(&Effort) -> f64) -> Vec<f64> {
    efforts.iter().map(|effort| seconds(effort) * 1e6 / effort.packets.max(1) as f64).collect()
}

/// The median over repetitions.
fn per_packet(efforts: &[Effort], seconds: impl Fn(&Effort) -> f64) -> f64 {
    median(&each_per_packet(efforts, seconds)).unwrap_or(0.0)
}

fn blocks(efforts: &[Effort], plan: &Plan) -> [BlockTime; Block::ALL.len()] {
    let mut times = Block::ALL.map(|block| {
        let worker = |effort: &Effort| effort.worker[block as usize];
        let elsewhere = |effort: &Effort| match block {
            Block::Ip => effort.io.seconds(),
            Block::Cryptography => effort.cryptography.seconds(),
            Block::LookUp | Block::Headers => 0.0,
        };
        let turnarounds = each_per_packet(efforts, |effort| worker(effort) + elsewhere(effort));
        let (figure, limit) = (Figure::Turnaround(block), plan.spread_limit);
        let repeat_spread = figure.spread(&turnarounds);
        let above = |spread| (spread > limit).then_some(Unconverged::SpreadAbove { figure, spread, limit });
        BlockTime {
            block,
            turnaround_us: median(&turnarounds).unwrap_or(0.0),
            worker_us: per_packet(efforts, worker),
            share: 0.0,
            repeat_spread,
            unconverged: repeat_spread.map_or(Some(Unconverged::MeasuredOnce), above),
        }
    });
    let all: f64 = times.iter().map(|time| time.turnaround_us).sum();
    times.iter_mut().for_each(|time| time.share = time.turnaround_us / all.max(f64::MIN_POSITIVE));
    times
}

/// The part that takes longest for a packet, each thread of several taking its share of packets, if any part
/// was busy.
fn bottleneck(efforts: &[Effort], capacity: &Measurement) -> Bottleneck {
    let of_threads = |part: fn(&Effort) -> Elsewhere| {
        per_packet(efforts, |effort| match part(effort) {
            Elsewhere::Threads { count, busy } => busy / count.max(1) as f64,
            Elsewhere::Nowhere | Elsewhere::Device { .. } => 0.0,
        })
    };
    let mut longest = (per_packet(efforts, |effort| effort.worker.iter().sum()), Bottleneck::Worker);
    for other in [
        (of_threads(|effort| effort.io), Bottleneck::IoThreads),
        (of_threads(|effort| effort.cryptography), Bottleneck::CryptographyThreads),
    ] {
        if other.0 > longest.0 {
            longest = other;
        }
    }
    let is_idle = longest.0 * 1e-6 * capacity.throughput_packets_per_second < BUSY;
    let is_device = efforts.iter().any(|effort| matches!(effort.cryptography, Elsewhere::Device { .. }));
    match (is_idle, is_device) {
        (true, _) if capacity.loss == 0.0 => Bottleneck::Generator,
        (true, true) => Bottleneck::CryptographyDevice,
        (true, false) => Bottleneck::NotKnown,
        (false, _) => longest.1,
    }
}

#[cfg(test)]
mod tests;
