//! Devices in memory: a ring, and one that makes packets of nothing.

use crate::support::{Dpdk, FRAMES, MTU, Port, buffer, frame};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use testudo_judge::harness::{Suite, TestResult};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Pool};
use testudo_port_dpdk::raw::{self, Config, events};
use testudo_port_dpdk::{DpdkConfig, DpdkDevice, Eal, EalConfig, OpenError};

pub fn tests(suite: Suite<'_, Dpdk>) -> Suite<'_, Dpdk> {
    suite
        .test("the_eal_starts_once_and_pins_no_other_thread", starts_once)
        .test("a_missing_device_is_told_in_dpdks_words", missing_device)
        .test("frames_cross_a_ring_in_order_and_are_not_copied", ring)
        .test("jumbo_frames_cross_a_ring_in_several_mbufs", jumbo)
        .test("a_full_ring_keeps_packets_with_the_caller", full_ring)
        .test("a_device_that_makes_packets_of_nothing", null)
        .test("what_happens_to_a_device_while_it_starts_is_not_forgotten", event_at_start)
}

fn starts_once(dpdk: &mut Dpdk) -> TestResult {
    let own = rustix::thread::sched_getaffinity(None)?;
    assert_eq!(usize::try_from(own.count())?, std::thread::available_parallelism()?.get());
    assert!(dpdk.eal.plugin().dpdk_version().starts_with(char::is_numeric));
    let again = EalConfig { arguments: vec!["--no-huge".into()], pci: Vec::new() };
    assert!(Eal::start(dpdk.eal.plugin(), &again).is_ok());
    let other = EalConfig { arguments: vec!["--no-huge".into(), "-m".into(), "99".into()], pci: Vec::new() };
    assert!(matches!(Eal::start(dpdk.eal.plugin(), &other), Err(OpenError::EalRuns { .. })));
    Ok(())
}

fn missing_device(dpdk: &mut Dpdk) -> TestResult {
    let mut pool = Pool::for_devices(512, 1514);
    for device in ["net_nonesuch0", "0000:ff:1f.7"] {
        let error = DpdkDevice::open(&dpdk.eal, &mut pool, &DpdkConfig::of(device)).unwrap_err();
        assert!(matches!(error, OpenError::NoDevice { .. }), "{error}");
        assert!(error.to_string().contains(device) && !error.to_string().contains('\n'), "{error}");
    }
    let error =
        DpdkDevice::open(&dpdk.eal, &mut pool, &DpdkConfig { queues: 99, ..DpdkConfig::of("net_ring7") });
    assert!(matches!(error, Err(OpenError::Queues { wanted: 99, .. })));
    assert_eq!(pool.available(), 512);
    Ok(())
}

fn ring(dpdk: &mut Dpdk) -> TestResult {
    let mut port = Port::open(dpdk, &DpdkConfig::of("net_ring0"));
    assert!(port.device.chosen().zero_copy);
    let sizes = [60, 61, 512, 1514];
    let frames: Vec<Vec<u8>> = (0..2000).map(|number| frame(number, sizes[number % 4])).collect();
    for some in frames.chunks(100) {
        port.send(some);
        assert_eq!(port.receive(some.len()), some);
    }
    // The buffer that was sent is the one that comes.
    let sent = buffer(&mut port.pool, &frame(1, 100));
    let (place, at) = (sent.identity(), sent.headroom());
    let mut batch = Batch::from_iter([sent]);
    assert_eq!(port.device.tx(&mut port.pool, &mut batch)?, 1);
    assert_eq!(port.device.rx(&mut port.pool, &mut batch)?, 1);
    assert_eq!((batch[0].identity(), batch[0].headroom()), (place, at));
    port.pool.recycle_all(&mut batch);
    let counters = port.device.counters();
    assert_eq!((counters.rx_packets, counters.tx_packets), (2001, 2001));
    let statistics = port.device.statistics();
    assert_eq!((statistics.tx_copied, statistics.rx_copied, statistics.unknown_frames), (0, 0, 0));
    port.close();
    Ok(())
}

fn jumbo(dpdk: &mut Dpdk) -> TestResult {
    let config = DpdkConfig { mtu: Some(9000), ..DpdkConfig::of("net_ring0") };
    let mut port = Port::with(dpdk, &config, Pool::for_devices(FRAMES, MTU + 14).with_long(128, 9022));
    assert!(port.device.mtu() == 9000 && port.device.chosen().scatter);
    let sizes = [60, 9014, 1514, 1905];
    let frames: Vec<Vec<u8>> = (0..400).map(|number| frame(number, sizes[number % 4])).collect();
    for some in frames.chunks(20) {
        port.send(some);
        assert!(port.receive(some.len()) == some);
    }
    let statistics = port.device.statistics();
    assert_eq!((statistics.rx_copied, statistics.tx_copied), (200, 200), "{statistics:?}");
    port.close();
    Ok(())
}

fn full_ring(dpdk: &mut Dpdk) -> TestResult {
    let mut port = Port::open(dpdk, &DpdkConfig { descriptors: 256, ..DpdkConfig::of("net_ring0") });
    let free = port.pool.available();
    let mut sent = 0;
    let left = loop {
        let frames = (0..64).map(|nth| buffer(&mut port.pool, &frame(sent + nth, 60)));
        let mut batch: Batch = frames.collect();
        sent += port.device.tx(&mut port.pool, &mut batch)?;
        if !batch.is_empty() {
            break batch;
        }
    };
    assert!((256..1024).contains(&sent), "{sent}");
    assert_eq!(port.pool.available() + left.len(), free, "the device has as many buffers as before");
    assert_eq!(left[0].bytes()[14..22], sent.to_be_bytes(), "what is left is unchanged, and in order");
    left.into_iter().for_each(|buffer| port.pool.recycle(buffer));
    let numbers = port.receive(sent).iter().map(|frame| frame[14..22].to_vec()).collect::<Vec<_>>();
    assert!(numbers.iter().zip(0_usize..).all(|(number, nth)| *number == nth.to_be_bytes()));
    port.close();
    Ok(())
}

fn null(dpdk: &mut Dpdk) -> TestResult {
    let mut port = Port::open(dpdk, &DpdkConfig::of("net_null0,size=64"));
    assert_eq!(port.device.mtu(), MTU);
    let mut identities = HashSet::new();
    for _ in 0..100 {
        let mut batch = Batch::new();
        assert_eq!(port.device.rx(&mut port.pool, &mut batch)?, 64);
        assert!(batch.iter().all(|frame| frame.len() == 64));
        identities.extend(batch.iter().map(testudo_packet::Buffer::identity));
        assert_eq!(port.device.tx(&mut port.pool, &mut batch)?, 64);
    }
    assert!(
        (64..=192).contains(&identities.len()),
        "the frames used last are used first, and are in the cache"
    );
    let hardware = port.device.statistics().hardware;
    assert_eq!((hardware.rx_packets, hardware.tx_packets), (6400, 6400));
    port.close();
    Ok(())
}

/// By the plugin's own functions: a thread of DPDK's may tell of an event at any time, also when the device
/// is started again after a reset.
fn event_at_start(dpdk: &mut Dpdk) -> TestResult {
    let (pool, mut port) = (std::ptr::null_mut(), 0);
    let mut config = Config {
        pool,
        rx_queues: 0,
        tx_queues: 0,
        rx_descriptors: 0,
        tx_descriptors: 0,
        mtu: 0,
        padding: 0,
        offers: 0,
        spreads: 0,
    };
    // SAFETY: the plugin declares the symbol and its functions so. The device is nobody else's, and has no
    // queues, and so no mbufs; its word of events stays as long as the process.
    unsafe {
        let symbol = dpdk.eal.plugin().symbol::<raw::Symbol>(raw::SYMBOL).ok_or("no such symbol")?;
        let table = &*symbol();
        assert_eq!((table.device_find)(c"net_null7".as_ptr(), &raw mut port), 0);
        let word = AtomicU32::from_ptr((table.device_events)(port));
        word.fetch_or(events::REMOVED, Ordering::Release);
        let _without_queues = (table.device_start)(port, &raw mut config);
        assert_eq!(word.load(Ordering::Acquire), events::REMOVED);
        (table.device_close)(port);
        assert_eq!(word.load(Ordering::Acquire), 0, "the next device of this number has had no event");
    }
    Ok(())
}
