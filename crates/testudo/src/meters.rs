//! The meters of energy that `testudo lab` has: those of the laboratory, and NVIDIA's of its GPUs.

use std::time::Instant;
use testudo_engine_gpu::NvidiaEnergy;
use testudo_lab::harness::{EnergySample, Meter, NotKnown};
use testudo_lab::meters::Meters;

const GPUS: &str = "GPUs (NVML)";

/// All that this machine has.
pub fn of_this_machine() -> Meters {
    with(NvidiaEnergy::open())
}

fn with(nvidia: Result<NvidiaEnergy, String>) -> Meters {
    let nvidia =
        nvidia.map(|energy| -> Box<dyn Meter> { Box::new(Nvidia { energy, begun: Instant::now() }) });
    Meters::of_this_machine().with(GPUS, nvidia.map_err(NotKnown))
}

struct Nvidia {
    energy: NvidiaEnergy,
    begun: Instant,
}

impl Meter for Nvidia {
    fn name(&self) -> &str {
        GPUS
    }

    fn ranges(&self) -> Vec<Option<u64>> {
        vec![None; self.energy.devices()]
    }

    fn sample(&mut self) -> Result<EnergySample, NotKnown> {
        let microjoules = self.energy.microjoules().map_err(NotKnown)?;
        Ok(EnergySample { at: self.begun.elapsed(), microjoules })
    }
}
