//! Progress: what is measured, and how long the rest takes.

use std::time::{Duration, Instant};

use super::device::Offloaded;
use crate::estimate::Estimate;
use crate::generator::Sizes;
use crate::harness::{Ceiling, Device, DeviceError, Effort, Load, Placed, Trial};
use crate::progress::Progress;

/// A bar for all setups and sizes, each of which takes about as long as the others.
pub(super) struct Bar {
    progress: Progress,
    estimate: Estimate,
    each: Duration,
}

impl Bar {
    pub(super) fn new(cells: usize, each: Duration, is_silent: bool) -> Self {
        let all = each.saturating_mul(u32::try_from(cells).unwrap_or(u32::MAX));
        Self { progress: Progress::new(all, is_silent), estimate: Estimate::of(all), each }
    }

    /// Measures one setup with frames of one size by `measure`.
    pub(super) fn cell<T>(
        &mut self,
        name: &str,
        device: &mut Offloaded,
        measure: impl FnOnce(&mut dyn Placed) -> T,
    ) -> T {
        self.progress.stage(name, self.each);
        let begun = Instant::now();
        let result = measure(&mut Watched { device, bar: self, begun });
        self.estimate.done(self.each, begun.elapsed());
        result
    }
}

/// A device whose trials move the bar.
struct Watched<'a> {
    device: &'a mut Offloaded,
    bar: &'a Bar,
    begun: Instant,
}

impl Watched<'_> {
    fn show(&self, load: Load) {
        let Bar { progress, estimate, each } = self.bar;
        let elapsed = self.begun.elapsed();
        let pace = estimate.at_this_pace(*each).as_secs_f64().max(0.01);
        let share = (elapsed.as_secs_f64() / pace).min(1.0);
        let rate = crate::table::grouped_figure(load.packets_per_second);
        let left = estimate.left_words(*each, elapsed);
        progress.at(each.mul_f64(share), *each, &format!("{rate} packets/s, {left}"));
    }
}

impl Device for Watched<'_> {
    fn maximum_rate(&mut self, sizes: Sizes) -> Result<Ceiling, DeviceError> {
        self.device.maximum_rate(sizes)
    }

    fn trial(&mut self, sizes: Sizes, load: Load) -> Result<Trial, DeviceError> {
        self.show(load);
        self.device.trial(sizes, load)
    }
}

impl Placed for Watched<'_> {
    fn timed(&mut self, sizes: Sizes, load: Load) -> Result<(Trial, Effort), DeviceError> {
        self.show(load);
        self.device.timed(sizes, load)
    }
}
