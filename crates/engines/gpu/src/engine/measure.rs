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
    /// Transfers both ways, without the kernel.
    pub transfers: Duration,
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
        if let Some(other) = other {
            self.with_device(|device| {
                let (plan, _) = device.memory(batch.index).ok_or("a batch is with the device already")?;
                let launch = batch.plan(mark, lanes, parts, plan).ok_or("a plan is too long")?;
                times = Ok(time(device, [batch.index, other], (launch, packets), launches.max(1))?);
                Ok(())
            });
        }
        batch.clear();
        self.free.push(batch);
        times.map_err(|what| self.broken.clone().unwrap_or(what))
    }
}

/// Of the batch that is planned; the other one is free.
fn time(
    device: &mut dyn Device,
    [batch, other]: [usize; 2],
    (launch, packets): (Launch, usize),
    launches: u32,
) -> Result<LaunchTimes, String> {
    let of = |device: &mut dyn Device, batch: usize, launch: Launch| -> Result<Duration, String> {
        let all = (0..WARM_UP + launches).map(|_| once(device, batch, launch));
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
    let transfers = of(device, other, Launch { bins: 1, ..launch })?.saturating_sub(empty);
    copy(device, batch, other)?;
    let with_transfers = overlapped(device, [batch, other], launch, launches)?;
    Ok(LaunchTimes {
        packets,
        to_device_bytes: launch.arena_bytes + launch.plan_words * size_of::<u32>(),
        kernel: resident.saturating_sub(empty),
        empty,
        transfers,
        with_transfers,
        alone,
    })
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Launches a batch and waits for its end.
fn once(device: &mut dyn Device, batch: usize, launch: Launch) -> Result<Duration, String> {
    let begun = Instant::now();
    device.launch(batch, launch)?;
    wait(device, batch)?;
    Ok(begun.elapsed())
}

fn wait(device: &mut dyn Device, batch: usize) -> Result<(), String> {
    let begun = Instant::now();
    while !device.is_done(batch)? {
        if begun.elapsed() > PATIENCE {
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

/// Launches two batches in turn, as the engine does, and returns the time for each.
fn overlapped(
    device: &mut dyn Device,
    batches: [usize; 2],
    launch: Launch,
    launches: u32,
) -> Result<Duration, String> {
    batches.iter().try_for_each(|batch| device.launch(*batch, launch))?;
    let begun = Instant::now();
    for number in 0..launches {
        let batch = batches[number as usize % 2];
        wait(device, batch)?;
        device.launch(batch, launch)?;
    }
    let elapsed = begun.elapsed();
    batches.iter().try_for_each(|batch| wait(device, *batch))?;
    Ok(elapsed / launches)
}
