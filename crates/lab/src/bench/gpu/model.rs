//! What a GPU would take by what is known of it: transfers by the rate of its bus, kernels by how many of its
//! lanes have work. A prediction, which no GPU has confirmed.
//!
//! ```text
//!   a packet's chain   = steps of one lane, one after the other: no device does it in less
//!   all packets' steps = spread over all units, if there are enough lanes with work to keep them busy
//!   kernel             = the longer of both
//!   with transfers     = kernel, way there, way back overlap: the longest of the three, and the launch
//!   end to end         = with transfers, or what workers hand over, which is measured, if that is less
//! ```

use super::devices::Steps;

/// What a lane takes for a step that waits for the one before, in cycles: an operation's latency is 4 to 5,
/// a look-up's some 25, and several of a step's neighbours are under way at a time.
const CHAIN_CYCLES: f64 = 2.0;
/// Steps that a unit does in a cycle when it has lanes enough: look-ups limit it.
const UNIT_STEPS: f64 = 32.0;
/// Lanes that a unit has at a time at most.
const RESIDENT_LANES: f64 = 2048.0;
/// A launch, in nanoseconds.
const LAUNCH_NS: f64 = 20_000.0;
/// What goes there and back with each packet: its place in the plan, and digest and mark.
const EXTRA_BYTES: f64 = 48.0 + 68.0;

/// A GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Model {
    /// Units (NVIDIA: multiprocessors).
    pub(super) units: f64,
    /// Their clock, in GHz.
    pub(super) clock_ghz: f64,
    /// The bus, each way, in gigabytes per second.
    pub(super) bus_gb_s: f64,
}

/// Packets of one launch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Load {
    pub(super) packets: f64,
    /// Bytes as they go to the device, of all.
    pub(super) bytes: f64,
    /// Steps of all, and of the longest chain of one lane.
    pub(super) steps: f64,
    pub(super) chain_steps: f64,
    pub(super) lanes: f64,
}

impl Load {
    /// Adds a packet of so many bytes, which is `steps`.
    pub(super) fn add(&mut self, bytes: usize, steps: Steps) {
        let (bytes, lanes) = (bytes as f64, steps.lanes.max(1) as f64);
        let (cipher, hash) = (bytes * steps.cipher as f64, bytes * steps.hash as f64);
        self.packets += 1.0;
        self.bytes += bytes;
        self.steps += cipher + hash;
        self.chain_steps = self.chain_steps.max(cipher / lanes + hash);
        self.lanes += lanes;
    }
}

/// What limits a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    Chain,
    Units,
    Bus,
    Launch,
}

impl Limit {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Chain => "a packet's chain",
            Self::Units => "units",
            Self::Bus => "bus",
            Self::Launch => "launch",
        }
    }
}

/// What is expected of a launch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prediction {
    pub(super) kernel_ns: f64,
    /// Each way.
    pub(super) transfer_ns: f64,
    pub(super) with_transfers_ns: f64,
    /// Lanes with work, of those that the device has at a time: 0 to 1.
    pub(super) occupancy: f64,
    pub(super) limit: Limit,
}

impl Prediction {
    /// Packets a second end to end, of launches of `packets`: what the device does, or what workers hand over
    /// to it, if that is less; and whether it is.
    pub(super) fn end_to_end(&self, packets: f64, handed_over: f64) -> (f64, bool) {
        let device = packets * 1e9 / self.with_transfers_ns.max(1.0);
        (device.min(handed_over), handed_over < device)
    }
}

impl Model {
    pub(super) fn predict(&self, load: &Load) -> Prediction {
        let chain_ns = load.chain_steps * CHAIN_CYCLES / self.clock_ghz;
        let units_ns = load.steps / (self.units * UNIT_STEPS * self.clock_ghz);
        let kernel_ns = chain_ns.max(units_ns);
        let transfer_ns = (load.bytes + load.packets * EXTRA_BYTES) / self.bus_gb_s;
        let limit = match (transfer_ns > kernel_ns, chain_ns > units_ns) {
            _ if LAUNCH_NS > kernel_ns.max(transfer_ns) => Limit::Launch,
            (true, _) => Limit::Bus,
            (false, true) => Limit::Chain,
            (false, false) => Limit::Units,
        };
        Prediction {
            kernel_ns,
            transfer_ns,
            with_transfers_ns: kernel_ns.max(transfer_ns).max(LAUNCH_NS),
            occupancy: (load.lanes / (self.units * RESIDENT_LANES)).min(1.0),
            limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Model = Model { units: 100.0, clock_ghz: 2.0, bus_gb_s: 20.0 };

    fn load(packets: usize, bytes: usize, lanes: usize) -> Load {
        let mut load = Load::default();
        (0..packets).for_each(|_| load.add(bytes, Steps { cipher: 30, hash: 10, lanes }));
        load
    }

    #[test]
    fn few_packets_wait_for_a_chain_and_many_for_units_or_the_bus() {
        let few = MODEL.predict(&load(10, 1000, 1));
        assert_eq!((few.limit, few.kernel_ns), (Limit::Chain, 40_000.0));
        // Three of four steps are shared by ten lanes.
        let shared = MODEL.predict(&load(10, 1000, 10));
        assert!((shared.kernel_ns - 13_000.0).abs() < 1e-6);
        assert_eq!((shared.limit, shared.with_transfers_ns), (Limit::Launch, LAUNCH_NS));
        let many = MODEL.predict(&load(10_000, 1000, 1));
        assert_eq!(many.limit, Limit::Bus);
        assert!((many.with_transfers_ns - 10_000.0 * 1116.0 / 20.0).abs() < 1e-3);
        let quick = Model { bus_gb_s: 1000.0, ..MODEL }.predict(&load(10_000, 1000, 1));
        assert_eq!(quick.limit, Limit::Units);
        assert!((quick.kernel_ns - 4e8 / 6400.0).abs() < 1e-3);
    }

    #[test]
    fn end_to_end_is_no_more_than_workers_hand_over() {
        let prediction = MODEL.predict(&load(1000, 1000, 1));
        let device = 1000.0 * 1e9 / prediction.with_transfers_ns;
        assert_eq!(prediction.end_to_end(1000.0, 2.0 * device), (device, false));
        assert_eq!(prediction.end_to_end(1000.0, 0.5 * device), (0.5 * device, true));
    }

    #[test]
    fn occupancy_is_the_share_of_lanes_that_have_work() {
        let occupancy = |packets, lanes| MODEL.predict(&load(packets, 64, lanes)).occupancy;
        assert!((occupancy(2048, 1) - 0.01).abs() < 1e-9 && (occupancy(2048, 32) - 0.32).abs() < 1e-9);
        assert!((occupancy(2048, 1000) - 1.0).abs() < 1e-9);
    }
}
