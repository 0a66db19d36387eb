//! The one GPU of a gateway hangs while most buffers of the pool are with it or wait for what it has: the
//! packets are back before the gateway gives them up, with and without a device thread.
//!
//! The engine's time is the machine's. The gateway's follows it, and stops where the test has no processor.

use crate::support::gateway::PoolSize;
use crate::support::packet::{number, numbered};
use crate::support::{Gateway, LeaseTwin, Side, TunnelSpec};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use testudo_crypto::{Engine, PortableEngine, Suite};
use testudo_engine_device_thread::DeviceThread;
use testudo_engine_gpu::{GpuConfig, OneGpu};
use testudo_gateway::{SchedulerSettings, Withdrawal, WithdrawalReason};
use testudo_packet::DropReason;

const BUFFERS: usize = 512;
/// The gateway's time between two turns at most.
const STEP: Duration = Duration::from_millis(4);
/// More than any machine needs; nothing is asserted about the time that passes.
const PATIENCE: Duration = Duration::from_secs(60);

fn gateway(side: Side, engines: Vec<Box<dyn Engine>>) -> Gateway {
    let spec = TunnelSpec::new(0, Suite::AES128GCM16);
    let mut gateway = Gateway::new(spec.policies(side), PoolSize(BUFFERS, 2048), engines);
    gateway.worker.set_scheduler(&SchedulerSettings::default());
    gateway.install(spec.install(side, &mut LeaseTwin::new(1 << 40), None));
    gateway
}

/// A with a GPU that hangs before the portable engine, and B, which opens what A has sealed.
struct Ends {
    a: Gateway,
    b: Gateway,
    sent: u32,
}

impl Ends {
    fn new(around: fn(Box<dyn Engine>) -> Box<dyn Engine>) -> Self {
        let config = GpuConfig { keys: 64, batch_jobs: 1024, ..GpuConfig::default() };
        let gpu = OneGpu::idle_that_hangs(&config, Arc::new(AtomicBool::new(true))).into_engine();
        let portable = || -> Box<dyn Engine> { Box::new(PortableEngine::new()) };
        let a = gateway(Side::A, vec![around(gpu), portable()]);
        Self { a, b: gateway(Side::B, vec![portable()]), sent: 0 }
    }

    fn send(&mut self, packets: u32) {
        let ids = self.sent..self.sent + packets;
        ids.for_each(|id| self.a.protected.push(numbered(5, id, 0, true, 1000).bytes()));
        self.sent += packets;
    }

    /// Takes turns until something has come about, with so many packets more before each.
    fn until(&mut self, packets: u32, what: impl Fn(&Self) -> bool) {
        let (began, mut last) = (Instant::now(), Instant::now());
        while !what(self) {
            assert!(began.elapsed() < PATIENCE, "it does not come");
            let passed = last.elapsed();
            last += passed;
            self.a.clock.advance(passed.min(STEP));
            self.send(packets);
            self.a.turn();
            self.a.assert_books_balance();
            std::thread::yield_now();
        }
    }

    fn withdrawn(&self) -> usize {
        self.a.worker.counters().withdrawn_engines().count()
    }
}

fn a_gpu_that_hangs_in_a_crowded_pool_loses_nothing(around: fn(Box<dyn Engine>) -> Box<dyn Engine>) {
    let mut ends = Ends::new(around);
    ends.send(4 * BUFFERS as u32);
    let was_dry = Cell::new(false);
    ends.until(0, |ends| {
        was_dry.set(was_dry.get() || ends.a.worker.pool().available() == 0);
        ends.a.unprotected.departed() == 4 * BUFFERS
    });
    assert!(was_dry.get(), "all buffers are with it or wait for what it has");
    assert_eq!(ends.withdrawn(), 0, "it may answer yet");
    // It does not; what comes meanwhile waits for it no more.
    ends.until(1, |ends| ends.withdrawn() == 1);
    let gone = Withdrawal { engine: "gpu", packets: 0, reason: WithdrawalReason::Failed };
    assert_eq!(ends.a.worker.take_withdrawals(), [gone]);
    let sent = ends.sent as usize;
    ends.until(0, |ends| ends.a.unprotected.departed() == sent);
    assert_eq!(ends.a.drops(DropReason::EngineFault), 0);
    let sealed = ends.a.unprotected.take();
    let opened: Vec<_> = sealed.into_iter().flat_map(|datagram| ends.b.open(datagram)).collect();
    assert!(opened.iter().map(|packet| number(packet, true)).eq(0..ends.sent), "each once, in order");
    ends.a.assert_settled();
}

#[test]
fn a_gateway_in_need_loses_no_packet_to_its_one_gpu_that_hangs() {
    a_gpu_that_hangs_in_a_crowded_pool_loses_nothing(|engine| engine);
}

#[test]
fn a_gateway_in_need_loses_no_packet_to_its_one_gpu_that_hangs_on_a_device_thread() {
    a_gpu_that_hangs_in_a_crowded_pool_loses_nothing(|engine| Box::new(DeviceThread::over(engine, None)));
}
