//! Chooses the threading model from the rates of I/O and of cryptography (paper 002, PIPSEA, section 3.1).
//!
//! The paper's figure 4 compares what one thread can do of the I/O with what the device can do of the
//! cryptography: "as long as the throughput of single-threaded packet I/O is higher", a second I/O thread is
//! overkill. The same comparison decides of the device thread: as long as a worker that drives the device
//! itself is faster than the device, it would only cost a processor.
//!
//! ```text
//!                                  cryptography is slower than
//!   run to completion    I/O and driving the device, by one thread
//!   one I/O thread       I/O, by one thread
//!   two I/O threads      neither
//! ```
//!
//! **Measured** is real traffic, in periods. Times are those of the packets that the device did: what else
//! the worker has to do for the others (cryptography, for one) is I/O here, since that thread has no time for
//! it twice. The device's rate is that of its chunks as they are: a device that always has some may do more
//! in larger ones. So it counts as the slower one only if the worker has a twentieth of its time left beside
//! it.
//!
//! **Hysteresis.** Threads are added where the ratio is below [`ENOUGH`], and taken away above [`AMPLE`], one
//! at a time, after [`PATIENCE`] loaded periods in a row that want the same. A change that takes the last one
//! back doubles that, up to [`MOST_PATIENCE`]; [`CALM`] periods that want no change end it. A period without
//! load says nothing.

use crate::threading::ThreadingModel;

/// Cryptography has to take so much longer than I/O, or nothing is left for a device that could do more.
const ENOUGH: f64 = 1.05;
/// So much longer, and fewer threads do.
const AMPLE: f64 = 1.25;
/// What a thread would take off the worker is worth it from so many parts of its time on.
const WORTH: u64 = 10;
/// Loaded is a period with so many jobs, in whose time somebody was busy but for so many parts.
const LEAST_JOBS: u64 = 1000;
const IDLE: u64 = 10;
/// Periods that have to agree, at first and at most.
const PATIENCE: u32 = 3;
const MOST_PATIENCE: u32 = 192;
/// Loaded periods without a change after which changes are no longer reckoned with.
const CALM: u32 = 600;

/// What a period of traffic took, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Period {
    /// The period.
    pub wall_ns: u64,
    /// Jobs that devices have ended.
    pub jobs: u64,
    /// Receiving, the protocol, sending, and all else but driving devices, on any thread.
    pub io_ns: u64,
    /// Of these, sending.
    pub transmit_ns: u64,
    /// Driving devices: calls of their drivers.
    pub driving_ns: u64,
    /// The time in which the busiest device had jobs.
    pub device_ns: u64,
}

/// What one thread could do of it, and a device, in packets a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThreadRates {
    /// I/O by one thread.
    pub io: u64,
    /// I/O by one thread that drives the device as well.
    pub alone: u64,
    /// Cryptography.
    pub cryptography: u64,
}

impl Period {
    fn cryptography_ns(&self) -> u64 {
        self.device_ns.max(self.driving_ns)
    }

    fn alone_ns(&self) -> u64 {
        self.io_ns.saturating_add(self.driving_ns)
    }

    /// Whether a thread or the device had little time left, as the model divides the work.
    fn is_loaded(&self, model: ThreadingModel) -> bool {
        let receiving_ns = self.io_ns.saturating_sub(self.transmit_ns);
        let busiest = match model {
            ThreadingModel::RunToCompletion => self.alone_ns(),
            ThreadingModel::OneIo => self.io_ns.max(self.driving_ns),
            ThreadingModel::TwoIo => receiving_ns.max(self.transmit_ns).max(self.driving_ns),
        };
        let busiest = busiest.max(self.device_ns);
        self.jobs >= LEAST_JOBS && busiest >= self.wall_ns - self.wall_ns / IDLE
    }

    /// How much longer cryptography takes than what takes `other_ns`.
    fn ratio(&self, other_ns: u64) -> f64 {
        self.cryptography_ns() as f64 / other_ns.max(1) as f64
    }

    /// What it says of rates.
    #[must_use]
    pub fn rates(&self) -> ThreadRates {
        let rate = |ns: u64| {
            let jobs = u128::from(self.jobs) * 1_000_000_000;
            u64::try_from(jobs / u128::from(ns.max(1))).unwrap_or(u64::MAX)
        };
        let [io, alone, cryptography] = [self.io_ns, self.alone_ns(), self.cryptography_ns()].map(rate);
        ThreadRates { io, alone, cryptography }
    }

    /// The model that it asks for where `model` is in force: that one, or its neighbour.
    fn wanted(&self, model: ThreadingModel, most: ThreadingModel) -> ThreadingModel {
        use ThreadingModel::{OneIo, RunToCompletion, TwoIo};
        let (by_alone, by_io) = (self.ratio(self.alone_ns()), self.ratio(self.io_ns));
        let is_worth = |ns: u64| ns >= self.io_ns / WORTH;
        let of_threads = match most {
            TwoIo => self.driving_ns.saturating_add(self.transmit_ns),
            _ => self.driving_ns,
        };
        let wanted = match model {
            RunToCompletion if by_alone < ENOUGH && is_worth(of_threads) => OneIo,
            OneIo if by_io < ENOUGH && is_worth(self.transmit_ns) => TwoIo,
            OneIo if by_alone > AMPLE => RunToCompletion,
            TwoIo if by_io > AMPLE => OneIo,
            _ => model,
        };
        wanted.min(most)
    }
}

/// Chooses, period by period.
#[derive(Debug)]
pub struct Chooser {
    model: ThreadingModel,
    /// The model with the most threads that may be chosen.
    most: ThreadingModel,
    /// The model before this one.
    before: Option<ThreadingModel>,
    /// What the last periods have asked for, and how many of them.
    asked: (ThreadingModel, u32),
    patience: u32,
    /// Loaded periods since the last change, or since one asked for another.
    calm: u32,
    /// The next period has a change in it.
    is_mixed: bool,
    rates: Option<ThreadRates>,
}

impl Chooser {
    /// Begins with run to completion, and never goes beyond `most`.
    #[must_use]
    pub fn new(most: ThreadingModel) -> Self {
        let model = ThreadingModel::RunToCompletion;
        let (asked, patience) = ((model, 0), PATIENCE);
        Self { model, most, before: None, asked, patience, calm: 0, is_mixed: false, rates: None }
    }

    /// The model in force.
    #[must_use]
    pub fn model(&self) -> ThreadingModel {
        self.model
    }

    /// The model with the most threads that may be chosen.
    #[must_use]
    pub fn most(&self) -> ThreadingModel {
        self.most
    }

    /// Rates of the last period under load; `None` before there was any.
    #[must_use]
    pub fn rates(&self) -> Option<ThreadRates> {
        self.rates
    }

    /// A thread of the model could not be started: the worker does all of it, until three periods ask for a
    /// thread again; for twice as many each time that this is in vain.
    pub fn fall_back(&mut self) {
        let before = std::mem::replace(&mut self.model, ThreadingModel::RunToCompletion);
        self.before = Some(before.min(ThreadingModel::OneIo));
        (self.asked, self.calm, self.is_mixed) = ((self.model, 0), 0, true);
    }

    /// A period has ended; returns the model from now on, if that is another one.
    pub fn ended(&mut self, period: &Period) -> Option<ThreadingModel> {
        if std::mem::take(&mut self.is_mixed) || !period.is_loaded(self.model) {
            return None;
        }
        self.rates = Some(period.rates());
        let wanted = period.wanted(self.model, self.most);
        let count = if self.asked.0 == wanted { self.asked.1 + 1 } else { 1 };
        if wanted == self.model {
            self.calm += 1;
            if self.calm == CALM {
                (self.patience, self.before) = (PATIENCE, None);
            }
            self.asked = (wanted, 0);
            return None;
        }
        self.calm = 0;
        self.asked = (wanted, count);
        if count < self.patience {
            return None;
        }
        if self.before == Some(wanted) {
            self.patience = (2 * self.patience).min(MOST_PATIENCE);
        }
        (self.before, self.model) = (Some(self.model), wanted);
        (self.asked, self.is_mixed) = ((wanted, 0), true);
        Some(wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ThreadingModel::{OneIo, RunToCompletion, TwoIo};

    /// A tenth of a second of packets, each of which takes the worker so many nanoseconds to receive and to
    /// send, so many to drive the device, and so many the device: as fast as the slowest allows.
    fn period(model: ThreadingModel, [receive, send, drive, device]: [u64; 4]) -> Period {
        let slowest = match model {
            RunToCompletion => receive + send + drive,
            OneIo => (receive + send).max(drive),
            TwoIo => receive.max(send).max(drive),
        };
        let wall_ns = 100_000_000;
        let jobs = wall_ns / slowest.max(device);
        Period {
            wall_ns,
            jobs,
            io_ns: jobs * (receive + send),
            transmit_ns: jobs * send,
            driving_ns: jobs * drive,
            device_ns: jobs * device,
        }
    }

    /// A device that always has jobs, since it takes what there is at once: it seems as slow as the slowest.
    fn always_busy(period: Period) -> Period {
        Period { device_ns: period.wall_ns, ..period }
    }

    #[test]
    fn threads_are_added_where_the_worker_is_slower_and_taken_away_where_it_is_ample() {
        let rows = [
            // The device is slower than the worker with all it has to do.
            (RunToCompletion, [100, 100, 50, 300], RunToCompletion),
            (RunToCompletion, [100, 100, 50, 263], RunToCompletion),
            // The worker has less than a twentieth of its time left.
            (RunToCompletion, [100, 100, 50, 262], OneIo),
            (RunToCompletion, [100, 100, 50, 20], OneIo),
            // The I/O is slower than the device.
            (OneIo, [100, 100, 50, 100], TwoIo),
            (OneIo, [100, 100, 50, 209], TwoIo),
            (OneIo, [100, 100, 50, 211], OneIo),
            // And faster, but not with the device's driver; then with that.
            (OneIo, [100, 100, 50, 310], OneIo),
            (OneIo, [100, 100, 50, 313], RunToCompletion),
            (TwoIo, [100, 100, 50, 249], TwoIo),
            (TwoIo, [100, 100, 50, 251], OneIo),
            // Threads that would do next to nothing.
            (RunToCompletion, [200, 5, 10, 20], RunToCompletion),
            (RunToCompletion, [200, 25, 1, 20], OneIo),
            (OneIo, [200, 5, 50, 20], OneIo),
            // A driver that takes longer than the device is what cryptography takes.
            (OneIo, [50, 50, 120, 20], OneIo),
            (OneIo, [50, 50, 100, 20], TwoIo),
        ];
        for (model, costs, expected) in rows {
            let period = period(model, costs);
            assert!(period.is_loaded(model), "{model}, {costs:?}");
            assert_eq!(period.wanted(model, TwoIo), expected, "{model}, {costs:?}");
        }
    }

    #[test]
    fn a_device_that_always_has_jobs_is_not_believed_to_be_the_slower_one() {
        for (model, next) in [(RunToCompletion, OneIo), (OneIo, TwoIo), (TwoIo, TwoIo)] {
            let period = always_busy(period(model, [100, 100, 50, 10]));
            assert_eq!(period.wanted(model, TwoIo), next, "{model}");
        }
    }

    #[test]
    fn no_more_threads_are_chosen_than_there_may_be() {
        let fast = [100, 100, 50, 10];
        for (most, model, expected) in [
            (RunToCompletion, RunToCompletion, RunToCompletion),
            (OneIo, RunToCompletion, OneIo),
            (OneIo, OneIo, OneIo),
            (TwoIo, OneIo, TwoIo),
        ] {
            assert_eq!(period(model, fast).wanted(model, most), expected, "{model} of {most}");
        }
        // Without a transmit thread, only the driver is taken off the worker.
        assert_eq!(
            period(RunToCompletion, [100, 100, 5, 10]).wanted(RunToCompletion, OneIo),
            RunToCompletion
        );
    }

    #[test]
    fn a_period_without_load_says_nothing() {
        let loaded = period(RunToCompletion, [100, 100, 50, 20]);
        let longer = |percent| Period { wall_ns: loaded.wall_ns * percent / 100, ..loaded };
        assert!(longer(110).is_loaded(RunToCompletion) && !longer(113).is_loaded(RunToCompletion));
        assert!(!Period { jobs: 999, ..loaded }.is_loaded(RunToCompletion));
        assert!(!Period::default().is_loaded(OneIo));
        let mut chooser = Chooser::new(TwoIo);
        assert!((0..50).all(|_| chooser.ended(&longer(200)).is_none()));
        assert_eq!((chooser.model(), chooser.rates()), (RunToCompletion, None));
    }

    /// Periods of these costs until the model changes, of which it is told.
    fn until_changed(chooser: &mut Chooser, costs: [u64; 4]) -> (ThreadingModel, u32) {
        for count in 1..1000 {
            if let Some(model) = chooser.ended(&period(chooser.model(), costs)) {
                return (model, count);
            }
        }
        panic!("{:?} stays with {costs:?}", chooser.model());
    }

    #[test]
    fn one_thread_at_a_time_is_added_when_periods_agree() {
        let mut chooser = Chooser::new(TwoIo);
        let fast = [100, 100, 50, 10];
        assert_eq!(until_changed(&mut chooser, fast), (OneIo, 3));
        assert_eq!(until_changed(&mut chooser, fast), (TwoIo, 4), "the first one after a change is mixed");
        assert!((0..100).all(|_| chooser.ended(&period(TwoIo, fast)).is_none()));
        let expected = ThreadRates { io: 5_000_000, alone: 4_000_000, cryptography: 20_000_000 };
        assert_eq!(chooser.rates(), Some(expected));
        let slow = [100, 100, 50, 1000];
        assert_eq!(until_changed(&mut chooser, slow), (OneIo, 3));
        assert_eq!(until_changed(&mut chooser, slow), (RunToCompletion, 7), "patience has doubled");
    }

    #[test]
    fn periods_that_do_not_agree_change_nothing() {
        let mut chooser = Chooser::new(OneIo);
        let [fast, slow] = [10, 1000].map(|device| period(RunToCompletion, [100, 100, 50, device]));
        for _ in 0..20 {
            assert_eq!([fast, fast, slow].map(|period| chooser.ended(&period)), [None; 3]);
        }
        // One without load in between is as if it had not been.
        let idle = Period { wall_ns: u64::MAX, ..fast };
        assert_eq!([fast, idle, fast, idle].map(|period| chooser.ended(&period)), [None; 4]);
        assert_eq!(chooser.ended(&fast), Some(OneIo));
    }

    #[test]
    fn a_thread_that_does_not_start_is_tried_ever_more_rarely() {
        let mut chooser = Chooser::new(OneIo);
        let mut counts = Vec::new();
        for _ in 0..4 {
            let (model, count) = until_changed(&mut chooser, [100, 100, 50, 10]);
            assert_eq!(model, OneIo);
            counts.push(count);
            chooser.fall_back();
            assert_eq!(chooser.model(), RunToCompletion);
        }
        assert_eq!(counts, [3, 4, 7, 13]);
    }

    #[test]
    fn load_that_goes_to_and_fro_changes_the_model_ever_more_rarely() {
        let mut chooser = Chooser::new(OneIo);
        let (fast, slow) = ([100, 100, 50, 10], [100, 100, 50, 1000]);
        let mut counts = Vec::new();
        for _ in 0..5 {
            counts.extend([fast, slow].map(|costs| until_changed(&mut chooser, costs).1));
        }
        assert_eq!(counts, [3, 4, 7, 13, 25, 49, 97, 193, 193, 193]);
        (0..CALM + 1).for_each(|_| assert!(chooser.ended(&period(RunToCompletion, slow)).is_none()));
        assert_eq!(until_changed(&mut chooser, fast), (OneIo, 3), "that was long ago");
    }
}
