//! What is measured, and one trial of it.

use std::time::Duration;

use crate::generator::{Arrivals, Generator, Latency, Pace, Sizes};

/// A device that reaches less than this share of the rate it was to offer was kept waiting by the generator.
const REACHED: f64 = 0.99;

/// A device under test, with the generator before it and the sink after it.
pub trait Device {
    /// The highest rate of packets of `sizes` that makes sense to offer, and what sets it.
    ///
    /// # Errors
    /// [`DeviceError`] if the device does not work.
    fn maximum_rate(&mut self, sizes: Sizes) -> Result<Ceiling, DeviceError>;

    /// Offers `load` in packets of `sizes`, waits for those that are still under way, and returns what came.
    /// Packets of an earlier trial never count.
    ///
    /// # Errors
    /// [`DeviceError`] if the device failed. That it lost packets is no error.
    fn trial(&mut self, sizes: Sizes, load: Load) -> Result<Trial, DeviceError>;

    /// From now on, while packets are offered, the device's worker sleeps for so long each time that it found
    /// nothing to do; 0 is a worker that asks again at once.
    ///
    /// # Errors
    /// [`DeviceError`] if the device's worker cannot.
    fn set_pause(&mut self, pause: Duration) -> Result<(), DeviceError> {
        if pause.is_zero() { Ok(()) } else { Err(DeviceError("this device never pauses".to_owned())) }
    }
}

/// What keeps a higher rate from being offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The medium, which carries no more: a device that takes this rate takes all there is.
    Medium,
    /// The generator, which reaches no more.
    Generator,
    /// The method: it is a multiple of what comes through when the device is flooded.
    Flood,
}

impl Limit {
    /// Name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Limit::Medium => "medium",
            Limit::Generator => "generator",
            Limit::Flood => "flood",
        }
    }
}

/// The highest rate that is offered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceiling {
    /// Packets per second.
    pub packets_per_second: f64,
    /// What sets it.
    pub limit: Limit,
}

impl Ceiling {
    /// The lower of what the generator reaches and a multiple of what came through a flood, where the medium
    /// has no rate of its own.
    #[must_use]
    pub fn without_medium(generator: f64, of_flood: f64) -> Self {
        let limit = if generator <= of_flood { Limit::Generator } else { Limit::Flood };
        Self { packets_per_second: generator.min(of_flood), limit }
    }

    /// What kept the device from showing more in this trial: the generator, if it was late and yet nothing
    /// was lost, or what sets the highest rate, if all of that came back. `None` if packets were lost, or if
    /// a higher rate could have been offered.
    #[must_use]
    pub fn limits(&self, trial: &Trial) -> Option<Limit> {
        if trial.has_loss() {
            return None;
        }
        let is_highest = trial.load.packets_per_second >= self.packets_per_second * (1.0 - f64::EPSILON);
        match self.limit {
            _ if trial.was_generator_late() => Some(Limit::Generator),
            Limit::Generator | Limit::Flood if is_highest => Some(self.limit),
            Limit::Medium | Limit::Generator | Limit::Flood => None,
        }
    }
}

/// How the device's worker spent the time in which packets were offered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Activity {
    /// All of it.
    pub elapsed: Duration,
    /// What it slept of that: longer than its pauses say, because sleepers are woken late.
    pub paused: Duration,
    /// How often.
    pub pauses: u64,
    /// What it had no processor for although it wanted one: that of other work, or of other machines.
    pub lost: Duration,
    /// Cycles of a processor's time stamp counter per second.
    pub cycles_per_second: f64,
}

impl Activity {
    /// The share of the time in which the worker had a processor, 0 to 1.
    #[must_use]
    pub fn awake_share(&self) -> f64 {
        let awake = self.elapsed.saturating_sub(self.paused).saturating_sub(self.lost);
        awake.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// The share that others had of the processor, 0 to 1.
    #[must_use]
    pub fn lost_share(&self) -> f64 {
        self.lost.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// How long a pause was in the mean, in microseconds; `None` if there was none.
    #[must_use]
    pub fn mean_pause_us(&self) -> Option<f64> {
        (self.pauses > 0).then(|| self.paused.as_secs_f64() * 1e6 / self.pauses as f64)
    }
}

/// The device failed, or changed packets: figures of it would mean nothing. The text is for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeviceError(pub String);

/// Packets to offer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// Per second.
    pub packets_per_second: f64,
    /// How many.
    pub length: Length,
}

/// How long packets are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// For this time.
    Time(Duration),
    /// Until there were so many.
    Packets(u64),
}

impl Load {
    /// This rate for this time.
    #[must_use]
    pub fn rate(packets_per_second: f64, time: Duration) -> Self {
        Self { packets_per_second, length: Length::Time(time) }
    }

    /// The generator of this load, for the trial of this number, which begins at `start_ns`.
    #[must_use]
    pub fn generator(self, trial: u16, start_ns: u64) -> Generator {
        let pace = Pace::new(self.packets_per_second, start_ns);
        match self.length {
            Length::Packets(packets) => Generator::new(pace, trial, packets),
            Length::Time(time) => {
                let limit = super::count(time.as_secs_f64() * self.packets_per_second).max(1);
                let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                Generator::new(pace, trial, limit).until(start_ns.saturating_add(time_ns))
            }
        }
    }
}

/// The processors that threads are bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cores {
    /// That of the device's worker.
    pub device: usize,
    /// That of generator and sink.
    pub generator: usize,
}

impl Cores {
    /// Whether the threads have fewer processors than they are: what each does slows the other down.
    #[must_use]
    pub fn are_shared(&self) -> bool {
        self.device == self.generator
    }
}

/// What became of a load.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The load.
    pub load: Load,
    /// Packets offered: that left the generator.
    pub offered: u64,
    /// Packets that the system refused to send: none of `offered`.
    pub refused: u64,
    /// Packets that came back, each counted once.
    pub received: u64,
    /// Packets that came back again.
    pub duplicated: u64,
    /// Packets that came back after one sent later.
    pub reordered: u64,
    /// From the first packet offered to the last.
    pub sending: Duration,
    /// From the first packet that came back to the last.
    pub receiving: Duration,
    /// How late packets came back.
    pub latency: Latency,
    /// Share of the time of the trial, 0 to 1, in which the device had work; `None` where nobody knows.
    pub busy_share: Option<f64>,
    /// What the device's worker did meanwhile; `None` where nobody knows.
    pub activity: Option<Activity>,
    /// Whether the machine took the device's processor away meanwhile: its losses may not be its own.
    pub is_disturbed: bool,
}

impl Trial {
    /// What `generator` sent for `load` and what arrived of it, by a device that says nothing of itself.
    #[must_use]
    pub fn of(load: Load, generator: &Generator, arrivals: Arrivals) -> Self {
        Self {
            load,
            offered: generator.offered(),
            refused: 0,
            received: arrivals.received(),
            duplicated: arrivals.duplicated(),
            reordered: arrivals.reordered(),
            sending: Duration::from_nanos(generator.sending_ns()),
            receiving: Duration::from_nanos(arrivals.receiving_ns()),
            latency: arrivals.into_latency(),
            busy_share: None,
            activity: None,
            is_disturbed: false,
        }
    }

    /// Packets offered per second, as it was done.
    #[must_use]
    pub fn offered_rate(&self) -> f64 {
        rate(self.offered, self.sending).unwrap_or(self.load.packets_per_second)
    }

    /// Packets that came back per second, from the first to the last: what waits in queues when the generator
    /// ends makes it no higher.
    #[must_use]
    pub fn received_rate(&self) -> f64 {
        let one = || self.received as f64 / self.sending.as_secs_f64().max(1e-9);
        rate(self.received, self.receiving).unwrap_or_else(one)
    }

    /// The share of packets that did not come back, 0 to 1.
    #[must_use]
    pub fn loss(&self) -> f64 {
        if self.offered == 0 { 0.0 } else { self.lost() as f64 / self.offered as f64 }
    }

    /// Packets that did not come back.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.offered.saturating_sub(self.received)
    }

    /// Whether a packet did not come back, or nothing was offered at all.
    #[must_use]
    pub fn has_loss(&self) -> bool {
        self.lost() > 0 || self.offered == 0
    }

    /// Whether the generator offered less than it was to, be it a hundredth or one packet that the system
    /// refused: RFC 2544 wants all of them. Where nothing is lost either, it was the
    /// bottleneck, and the device may be faster than this trial says.
    #[must_use]
    pub fn was_generator_late(&self) -> bool {
        self.refused > 0 || self.offered_rate() < REACHED * self.load.packets_per_second
    }
}

/// So many packets have one interval less between them; `None` if there is no interval.
fn rate(packets: u64, time: Duration) -> Option<f64> {
    (packets > 1 && !time.is_zero()).then(|| (packets - 1) as f64 / time.as_secs_f64())
}
