//! What launches take, apart from a gateway: kernels alone, transfers alone, and both.

use super::{GpuEngine, PATIENCE};
use crate::device::{BIN_WORDS, Device, Launch};
use std::time::{Duration, Instant};

/// Launches before those that count: drivers raise clocks and set themselves up.
const WARM_UP: u32 = 3;
/// Bytes of the arena that a launch has at least.
const LEAST_BYTES: usize = 4;

/// What a launch of some jobs takes: medians.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchTimes {
    /// Packets of the launch.
    pub packets: usize,
    /// What goes to the device and back with them.
    pub to_device_bytes: usize,
    /// The kernel: a launch whose packets are on the device, less an empty one.
    pub kernel: Duration,
    /// An empty launch.
    pub empty: Duration,
    /// Transfers both ways, one after the other, without the kernel.
    pub transfers: Duration,
    /// The same, two launches under way, so that a bus that can carries both ways at once: from one end to
    /// the next, on average.
    pub bus: Duration,
    /// With transfers, two under way: from one end to the next, on average.
    pub with_transfers: Duration,
    /// With transfers, nothing else under way: from hand-over to the end.
    pub alone: Duration,
}

impl GpuEngine {
    /// Times launches of the jobs that the open batch has, `launches` of each kind, and drops the jobs.
    pub(crate) fn time(&mut self, launches: u32) -> Result<LaunchTimes, String> {
        let mut batch = self.open.take_if(|batch| !batch.is_empty()).ok_or("no job waits for a launch")?;
        let other = self.free.last().map(|other| other.index);
        let (lanes, parts, packets) = (self.device.lanes(), self.parts, batch.left());
        self.mark = self.mark.wrapping_add(1).max(1);
        let mark = self.mark;
        let mut times = Err("another batch is under way".to_owned());
        let begun = Instant::now();
        if let Some(other) = other {
            self.with_device(|device| {
                let (plan, _) = device.memory(batch.index).ok_or("a batch is with the device already")?;
                let launch = batch.plan(mark, lanes, parts, plan).ok_or("a plan is too long")?;
                let clock = || begun.elapsed();
                times = Ok(time(device, &clock, [batch.index, other], (launch, packets), launches.max(1))?);
                Ok(())
            });
        }
        self.jobs.lock().clear(batch.index);
        batch.clear();
        self.free.push(batch);
        times.map_err(|what| self.broken.clone().unwrap_or(what))
    }
}

/// The time since some moment.
type Clock<'a> = &'a dyn Fn() -> Duration;

/// Of the batch that is planned; the other one is free.
fn time(
    device: &mut dyn Device,
    clock: Clock<'_>,
    [batch, other]: [usize; 2],
    (launch, packets): (Launch, usize),
    launches: u32,
) -> Result<LaunchTimes, String> {
    let of = |device: &mut dyn Device, batch: usize, launch: Launch| -> Result<Duration, String> {
        let all = (0..WARM_UP + launches).map(|_| once(device, clock, batch, launch));
        let counted = all.collect::<Result<Vec<_>, _>>()?.split_off(WARM_UP as usize);
        Ok(median(counted))
    };
    let alone = of(device, batch, launch)?;
    // Plan and packets are on the device: nothing but a few bytes is copied again.
    let resident = Launch { plan_words: BIN_WORDS, arena_bytes: LEAST_BYTES, ..launch };
    let resident = of(device, batch, resident)?;
    empty_plan(device, other)?;
    let nothing = Launch { bins: 1, plan_words: BIN_WORDS, arena_bytes: LEAST_BYTES };
    let empty = of(device, other, nothing)?;
    let copies = Launch { bins: 1, ..launch };
    let transfers = of(device, other, copies)?.saturating_sub(empty);
    copy(device, batch, other)?;
    let with_transfers = overlapped(device, clock, [batch, other], launch, launches)?;
    [batch, other].into_iter().try_for_each(|each| empty_plan(device, each))?;
    let bus = overlapped(device, clock, [batch, other], copies, launches)?;
    Ok(LaunchTimes {
        packets,
        to_device_bytes: launch.arena_bytes + launch.plan_words * size_of::<u32>(),
        kernel: resident.saturating_sub(empty),
        empty,
        transfers,
        bus,
        with_transfers,
        alone,
    })
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Launches a batch and waits for its end.
fn once(device: &mut dyn Device, clock: Clock<'_>, batch: usize, launch: Launch) -> Result<Duration, String> {
    let begun = clock();
    device.launch(batch, launch)?;
    wait(device, clock, batch)?;
    Ok(clock().saturating_sub(begun))
}

fn wait(device: &mut dyn Device, clock: Clock<'_>, batch: usize) -> Result<(), String> {
    let begun = clock();
    while !device.is_done(batch)? {
        if clock().saturating_sub(begun) > PATIENCE {
            return Err(format!("a launch was not done after {PATIENCE:?}"));
        }
        std::hint::spin_loop();
    }
    Ok(())
}

/// A plan of one bin without jobs.
fn empty_plan(device: &mut dyn Device, batch: usize) -> Result<(), String> {
    let (plan, _) = device.memory(batch).ok_or("a batch is with the device already")?;
    plan.fill(0);
    plan.get_mut(BIN_WORDS - 1).map(|parts| *parts = 1).ok_or_else(|| "there is no plan".to_owned())
}

/// Gives one batch what another has.
fn copy(device: &mut dyn Device, from: usize, to: usize) -> Result<(), String> {
    let gone = || "a batch is with the device already".to_owned();
    let (plan, arena) = device.memory(from).ok_or_else(gone)?;
    let (plan_copy, arena_copy) = (plan.to_vec(), arena.to_vec());
    let (plan, arena) = device.memory(to).ok_or_else(gone)?;
    plan.copy_from_slice(&plan_copy);
    arena.copy_from_slice(&arena_copy);
    Ok(())
}

/// Launches two batches in turn, as the engine does, and returns the time from one end to the next. Until the
/// first end nothing has overlapped: it does not count.
fn overlapped(
    device: &mut dyn Device,
    clock: Clock<'_>,
    batches: [usize; 2],
    launch: Launch,
    launches: u32,
) -> Result<Duration, String> {
    let [first, second] = batches;
    batches.iter().try_for_each(|batch| device.launch(*batch, launch))?;
    wait(device, clock, first)?;
    let begun = clock();
    let (mut ended, mut next) = (first, second);
    for _ in 0..launches {
        device.launch(ended, launch)?;
        wait(device, clock, next)?;
        std::mem::swap(&mut ended, &mut next);
    }
    let elapsed = clock().saturating_sub(begun);
    wait(device, clock, next)?;
    Ok(elapsed / launches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MIN_LANES;
    use crate::work::RawKey;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// What a copy takes either way, and a look at the device; the kernel takes no time.
    const COPY_US: u64 = 1000;
    const LOOK_US: u64 = 10;

    /// A device behind a bus that carries one copy each way at a time, or one in all, on a clock of its own.
    struct Behind {
        is_duplex: bool,
        now_us: Arc<AtomicU64>,
        /// When the bus is free: there, and back.
        free_us: [u64; 2],
        ends_us: [u64; 2],
        memory: [(Vec<u32>, Vec<u8>); 2],
    }

    impl Behind {
        fn now_us(&self) -> u64 {
            self.now_us.load(Ordering::Relaxed)
        }

        /// When a copy that may begin at `from_us` has ended.
        fn copied(&mut self, way: usize, from_us: u64, takes_us: u64) -> u64 {
            let end = self.free_us[way].max(from_us) + takes_us;
            if self.is_duplex {
                self.free_us[way] = end;
            } else {
                self.free_us = [end; 2];
            }
            end
        }
    }

    impl Device for Behind {
        fn description(&self) -> String {
            "a bus".to_owned()
        }

        fn lanes(&self) -> usize {
            MIN_LANES
        }

        fn memory(&mut self, batch: usize) -> Option<(&mut [u32], &mut [u8])> {
            let (plan, arena) = self.memory.get_mut(batch)?;
            Some((plan, arena))
        }

        fn expand(&mut self, _: u32, _: u32, _: &RawKey) -> Result<(), String> {
            Ok(())
        }

        fn wipe(&mut self, _: u32) -> Result<(), String> {
            Ok(())
        }

        fn launch(&mut self, batch: usize, launch: Launch) -> Result<(), String> {
            let takes_us = if launch.arena_bytes > LEAST_BYTES { COPY_US } else { 0 };
            let there = self.copied(0, self.now_us(), takes_us);
            self.ends_us[batch] = self.copied(1, there, takes_us);
            Ok(())
        }

        fn is_done(&mut self, batch: usize) -> Result<bool, String> {
            let is_done = self.ends_us[batch] <= self.now_us();
            if !is_done {
                self.now_us.fetch_add(LOOK_US, Ordering::Relaxed);
            }
            Ok(is_done)
        }
    }

    /// What transfers take one after the other is twice what a bus allows that carries both ways at once.
    #[test]
    fn a_bus_that_carries_both_ways_at_once_allows_twice_what_one_launch_uses_of_it() {
        for (is_duplex, bus_us) in [(true, COPY_US), (false, 2 * COPY_US)] {
            let now_us = Arc::new(AtomicU64::new(0));
            let memory = || (vec![0; 64], vec![0; 1024]);
            let (clock_us, memory) = (now_us.clone(), [memory(), memory()]);
            let mut device = Behind { is_duplex, now_us, free_us: [0; 2], ends_us: [0; 2], memory };
            let clock = || Duration::from_micros(clock_us.load(Ordering::Relaxed));
            let launch = Launch { bins: 1, plan_words: 64, arena_bytes: 1024 };
            let times = time(&mut device, &clock, [0, 1], (launch, 1), 7).unwrap();
            assert_eq!(times.transfers, Duration::from_micros(2 * COPY_US), "{times:?}");
            assert_eq!(times.bus, Duration::from_micros(bus_us), "{times:?}");
            assert_eq!(times.with_transfers, times.bus, "a kernel that takes no time: {times:?}");
            assert_eq!((times.kernel, times.empty), (Duration::ZERO, Duration::ZERO), "{times:?}");
        }
    }
}
