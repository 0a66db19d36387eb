//! GPUs as the laboratory measures them: found, opened for gateways, and timed.

use std::sync::Arc;

use testudo_crypto::{Direction, Engine, Suite};
use testudo_engine_gpu::{GpuConfig, LaunchTimes, OneGpu, devices, kernel_work, open_at};
use testudo_gateway::CHUNKS;
use testudo_lab::bench::{GpuCount, GpuDevice, Gpus, Launches, Steps, TimedDevice};

use crate::engines::counted;

/// The GPUs of this machine.
pub fn of_this_machine() -> Gpus {
    Gpus { find: Box::new(find), idle: Box::new(idle), steps }
}

fn find(named: Option<&str>, count: GpuCount) -> Result<Vec<GpuDevice>, String> {
    // Chunks of any size are one launch, and headers may be left to it.
    let config = GpuConfig {
        device: named.map(str::to_owned),
        devices: counted(count),
        batch_jobs: *CHUNKS.end(),
        headers: true,
        ..GpuConfig::default()
    };
    let found = devices(&config).map_err(|error| error.to_string())?;
    if count != GpuCount::default() {
        return Ok(vec![together(config)]);
    }
    let open = Arc::new(move |which| open_at(&config, which).map_err(|error| error.to_string()));
    let device = |which| {
        let (engine, timed) = (Arc::clone(&open), Arc::clone(&open));
        GpuDevice {
            engine: Box::new(move || engine(which).map(OneGpu::into_engine)),
            timed: Some(Box::new(move || Ok(Box::new(Timed(timed(which)?))))),
        }
    };
    Ok(found.into_iter().map(device).collect())
}

/// Several devices as one engine.
fn together(config: GpuConfig) -> GpuDevice {
    let open = move || testudo_engine_gpu::open(&config).map_err(|error| error.to_string());
    GpuDevice { engine: Box::new(open), timed: None }
}

/// A device that does nothing.
fn idle() -> Result<Box<dyn Engine>, String> {
    let config = GpuConfig { batch_jobs: *CHUNKS.end(), ..GpuConfig::default() };
    Ok(OneGpu::idle(&config).into_engine())
}

struct Timed(OneGpu);

impl TimedDevice for Timed {
    fn engine(&mut self) -> &mut dyn Engine {
        self.0.engine()
    }

    fn time(&mut self, launches: u32) -> Result<Launches, String> {
        let times = self.0.time(launches)?;
        let LaunchTimes { packets, to_device_bytes: transfer_bytes, kernel, bus, .. } = times;
        let LaunchTimes { transfers, with_transfers, alone, .. } = times;
        Ok(Launches { packets, transfer_bytes, kernel, transfers, bus, with_transfers, alone })
    }
}

fn steps(suite: Suite, direction: Direction, bytes: usize, lanes: usize) -> Option<Steps> {
    let work = kernel_work(suite, direction, bytes, lanes)?;
    Some(Steps { cipher: work.cipher_steps, hash: work.hash_steps, lanes: work.lanes })
}
