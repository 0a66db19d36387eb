//! Frames over real interfaces.

use crate::support::{
    JUMBO, MTU, Opened, Sites, config, esp, open, open_with, pool, receive, send, send_udp, udp_payload, wait,
};
use rustix::event::PollFlags;
use std::sync::Arc;
use testudo_judge::harness::{Suite, TestResult};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Buffer, Pool};
use testudo_port_xdp::{Attached, Filter, SharedUmem, XdpConfig, XdpDevice, XdpMode};
use testudo_wire::checksum::{self, Sum};
use testudo_wire::ip::IpHeader;

pub fn tests(suite: Suite<'_, Sites>) -> Suite<'_, Sites> {
    suite
        .test("frames_pass_in_native_mode", |sites| passes(sites, XdpMode::Native, Attached::Native))
        .test("frames_pass_in_generic_mode", |sites| passes(sites, XdpMode::Generic, Attached::Generic))
        .test("frames_pass_with_frames_of_the_pool_that_are_a_power_of_two", power_of_two)
        .test("the_kernels_own_traffic_goes_on", kernel_traffic)
        .test("packets_cross_from_interface_to_interface_without_a_copy", crossing)
        .test("an_interface_with_jumbo_frames_shares_memory_with_one_without", mixed)
        .test("several_queues_are_one_device", two_queues)
        .test("a_worker_may_drive_the_devices_queue_itself", busy_polling)
        .test("jumbo_frames_pass_in_several_buffers", jumbo)
        .test("chains_of_buffers_are_sent_back_from_where_they_came", echo)
        .test("checksums_that_a_local_kernel_left_out_are_complete", checksums)
}

/// A kernel chooses a queue for each of its flows.
fn both_queues() -> XdpConfig {
    XdpConfig { queues: vec![0, 1], ..XdpConfig::default() }
}

/// Both ends are devices: what one sends the other receives, in order, and vice versa.
fn passes(sites: &mut Sites, mode: XdpMode, attached: Attached) -> TestResult {
    let xdp = XdpConfig::default();
    let (mut left, mut right) =
        (open(&sites.left, "eth0", mode, &xdp), open(&sites.right, "eth0", mode, &xdp));
    assert_eq!((left.filter.attached(), right.filter.attached()), (Some(attached), Some(attached)));
    exchange(&mut left, &mut right);
    exchange(&mut right, &mut left);
    assert_eq!(left.device.counters().tx_packets, 320);
    assert_eq!(right.device.counters().rx_packets, 320);
    Ok(())
}

fn exchange(from: &mut Opened, to: &mut Opened) {
    for round in 0..10_u32 {
        let frames: Vec<_> = (0..32).map(|n| esp_frame(round * 32 + n, 60 + n as usize * 44)).collect();
        from.send(&frames);
        assert!(to.receive(32) == frames, "round {round}");
    }
}

/// A frame of ESP to an address that the filter knows.
fn esp_frame(number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0xFF; 12];
    frame.extend([0x08, 0x00, 0x45, 0]);
    frame.extend((bytes as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 50, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    let sum = checksum::of(&frame[14..34]).to_bytes();
    frame[24..26].copy_from_slice(&sum);
    frame.extend(esp(number, bytes - 20));
    frame
}

fn power_of_two(sites: &mut Sites) -> TestResult {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let (xdp, pool) = (XdpConfig::default(), || Pool::for_devices(1024, MTU + 14));
        let mut left = open_with(&sites.left, "eth0", mode, &xdp, pool());
        let mut right = open_with(&sites.right, "eth0", mode, &xdp, pool());
        assert_eq!(left.pool.region().frame_bytes(), 2048);
        exchange(&mut left, &mut right);
    }
    Ok(())
}

/// ARP, neighbour discovery and pings pass the filter, and nothing of them comes to the device.
fn kernel_traffic(sites: &mut Sites) -> TestResult {
    for mode in [XdpMode::Native, XdpMode::Generic] {
        let mut right = open(&sites.right, "eth0", mode, &both_queues());
        sites.left.run(&["ip", "neigh", "flush", "dev", "eth0"])?;
        for (family, address) in [("-4", "10.9.0.2"), ("-6", "fd09::2")] {
            sites.left.run(&["ping", family, "-c", "3", "-i", "0.05", "-W", "5", address])?;
        }
        send_udp(&sites.left, ("10.9.0.2", 4500), &[esp(7, 100)]);
        let frames = right.receive(1);
        assert_eq!(udp_payload(&frames[0]), esp(7, 100), "{mode:?}");
    }
    Ok(())
}

/// From the far host to the left one: one umem for both interfaces, and each packet is sent from the frame
/// that it was received into.
fn crossing(sites: &mut Sites) -> TestResult {
    let mut pool = pool();
    let (mut inside, mut outside, filters) = sites.right.within(|| {
        let umem = SharedUmem::new();
        let filters =
            ["eth1", "eth0"].map(|name| Arc::new(Filter::attach(name, XdpMode::Native, &config()).unwrap()));
        let open = |filter: &Arc<Filter>, pool: &mut Pool| {
            XdpDevice::open(filter, &umem, pool, &both_queues()).unwrap()
        };
        let (inside, outside) = (open(&filters[0], &mut pool), open(&filters[1], &mut pool));
        assert_eq!(umem.sockets(), 4);
        (inside, outside, filters)
    })?;
    let mut left = open(&sites.left, "eth0", XdpMode::Native, &both_queues());
    for round in 0..20 {
        let sent: Vec<_> = (0..32).map(|n| esp(round * 32 + n, 1000)).collect();
        send_udp(&sites.far, ("10.9.1.2", 4500), &sent);
        let (mut came, mut left_over) = (0, Batch::new());
        while came < 32 {
            let count = inside.rx(&mut pool, &mut left_over)?;
            came += count;
            if count == 0 {
                wait(&inside, PollFlags::IN, "a frame to cross");
            }
            let places: Vec<_> = left_over.iter().map(Buffer::identity).collect();
            assert!(places.iter().all(|place| place.is_some()));
            send(&mut outside, &mut pool, &mut left_over);
        }
        let frames = left.receive(32);
        assert!(frames.iter().map(|frame| udp_payload(frame)).eq(sent.iter().map(Vec::as_slice)));
    }
    assert_eq!(outside.statistics()[0].tx_copied, 0);
    assert_eq!(pool.drops().total(), 0);
    inside.close(&mut pool);
    outside.close(&mut pool);
    drop(filters);
    assert_eq!(pool.available(), 2048);
    Ok(())
}

/// The umem of sockets whose frames are in one buffer each takes no others: the memory is registered again.
fn mixed(sites: &mut Sites) -> TestResult {
    sites.set_mtu(JUMBO);
    let mut pool = pool();
    let (mut narrow, mut wide) = sites.right.within(|| {
        let umem = SharedUmem::new();
        let mut open = |name| {
            let filter = Arc::new(Filter::attach(name, XdpMode::Native, &config()).unwrap());
            XdpDevice::open(&filter, &umem, &mut pool, &both_queues()).unwrap()
        };
        (open("eth1"), open("eth0"))
    })?;
    send_udp(&sites.left, ("10.9.0.2", 4500), &[esp(1, 8000)]);
    let jumbo = receive(&mut wide, &mut pool, 1);
    send_udp(&sites.far, ("10.9.1.2", 4500), &[esp(2, 1000)]);
    let mut batch = Batch::new();
    while narrow.rx(&mut pool, &mut batch)? == 0 {
        wait(&narrow, PollFlags::IN, "a frame to cross");
    }
    send(&mut wide, &mut pool, &mut batch);
    let copied: u64 = wide.statistics().iter().map(|queue| queue.tx_copied).sum();
    narrow.close(&mut pool);
    wide.close(&mut pool);
    sites.set_mtu(MTU);
    assert_eq!((udp_payload(&jumbo[0]), copied, pool.available()), (&esp(1, 8000)[..], 0, 2048));
    Ok(())
}

/// The kernel spreads flows over the two queues of the cable: all of them come.
fn two_queues(sites: &mut Sites) -> TestResult {
    let mut right = open(&sites.right, "eth0", XdpMode::Native, &both_queues());
    let mut both = [0_u32; 2];
    for queue in [0, 1] {
        // A device that sends by one queue of the cable is heard at that queue.
        let xdp = XdpConfig { queues: vec![queue], ..XdpConfig::default() };
        let mut left = open(&sites.left, "eth0", XdpMode::Native, &xdp);
        let before = right.device.statistics();
        left.send(&(0..20).map(|n| esp_frame(n, 100)).collect::<Vec<_>>());
        right.receive(20);
        assert_eq!(before.len(), 2);
        both[queue as usize] += 20;
    }
    assert_eq!((both, right.device.readiness().len()), ([20, 20], 2));
    Ok(())
}

fn busy_polling(sites: &mut Sites) -> TestResult {
    let xdp = XdpConfig { busy_poll: Some(64), ..XdpConfig::default() };
    let mut left = open(&sites.left, "eth0", XdpMode::Native, &xdp);
    let mut right = open(&sites.right, "eth0", XdpMode::Native, &xdp);
    assert_eq!(right.device.busy_poll_refused(), None);
    exchange(&mut left, &mut right);
    let before = right.device.statistics()[0].wakeups;
    assert_eq!(right.device.rx(&mut right.pool, &mut Batch::new())?, 0);
    assert_eq!(right.device.statistics()[0].wakeups, before + 1, "it looks at the device each time");
    Ok(())
}

fn jumbo(sites: &mut Sites) -> TestResult {
    sites.set_mtu(JUMBO);
    let outcome = [XdpMode::Native, XdpMode::Generic].into_iter().try_for_each(|mode| jumbo_in(sites, mode));
    sites.set_mtu(MTU);
    outcome
}

fn jumbo_in(sites: &Sites, mode: XdpMode) -> TestResult {
    let xdp = both_queues();
    let mut left = open(&sites.left, "eth0", mode, &xdp);
    let mut right = open(&sites.right, "eth0", mode, &xdp);
    assert!(right.filter.multi_buffer());
    let lengths = [60, 1500, 1790, 1791, 3600, 4096, 8000, JUMBO];
    let frames: Vec<_> = lengths.iter().zip(0..).map(|(bytes, n)| esp_frame(n, *bytes)).collect();
    left.send(&frames);
    let came = right.receive(frames.len());
    assert!(came == frames, "{mode:?}: {:?}", came.iter().map(Vec::len).collect::<Vec<_>>());
    send_udp(&sites.left, ("10.9.0.2", 4500), &[esp(9, 8900)]);
    assert_eq!(udp_payload(&right.receive(1)[0]), esp(9, 8900), "{mode:?}, from the kernel");
    // Those beyond a frame's room.
    assert!(right.sum(|queue| queue.rx_chains) >= 5, "{:?}", right.device.statistics());
    assert_eq!((right.sum(|queue| queue.rx_merged), right.pool.linearised()), (0, 0));
    Ok(())
}

fn echo(sites: &mut Sites) -> TestResult {
    sites.set_mtu(JUMBO);
    let outcome = [XdpMode::Native, XdpMode::Generic].into_iter().try_for_each(|mode| echo_in(sites, mode));
    sites.set_mtu(MTU);
    outcome
}

/// What came in several buffers leaves in the same, and none is lost.
fn echo_in(sites: &Sites, mode: XdpMode) -> TestResult {
    let xdp = both_queues();
    let mut left = open(&sites.left, "eth0", mode, &xdp);
    let mut right = open(&sites.right, "eth0", mode, &xdp);
    for round in 0..20 {
        let frames: Vec<_> = (0..16).map(|n| esp_frame(round * 16 + n, JUMBO - 50 * n as usize)).collect();
        left.send(&frames);
        let (mut came, mut batch) = (0, Batch::new());
        while came < frames.len() {
            let count = right.device.rx(&mut right.pool, &mut batch)?;
            came += count;
            if count == 0 {
                wait(&right.device, PollFlags::IN, "a frame to send back");
            }
            assert!(batch.iter().all(Buffer::is_chain), "{mode:?}: merged");
            send(&mut right.device, &mut right.pool, &mut batch);
        }
        assert!(left.receive(frames.len()) == frames, "{mode:?}, round {round}");
    }
    let counts = (right.sum(|queue| queue.rx_chains), right.sum(|queue| queue.tx_chains));
    assert_eq!((counts, right.sum(|queue| queue.tx_copied)), ((320, 320), 0), "{mode:?}");
    let Opened { device, mut pool, .. } = right;
    device.close(&mut pool);
    assert_eq!((pool.available(), pool.drops().total()), (2048, 0), "{mode:?}");
    Ok(())
}

fn checksums(sites: &mut Sites) -> TestResult {
    let mut right = open(&sites.right, "eth0", XdpMode::Native, &both_queues());
    send_udp(&sites.left, ("10.9.0.2", 4501), &[b"a datagram of an odd length".to_vec()]);
    send_udp(&sites.left, ("fd09::2", 4501), &[b"another".to_vec()]);
    for frame in right.receive(2) {
        let packet = &frame[14..];
        let header = IpHeader::parse(packet).unwrap();
        let payload = header.payload(packet);
        let sum = Sum::default().pseudo_header(
            header.source,
            header.destination,
            header.protocol,
            payload.len() as u32,
        );
        assert!(sum.bytes(payload).finish().is_intact(), "{header:?}");
    }
    let completed: u64 = right.device.statistics().iter().map(|queue| queue.checksums_completed).sum();
    assert_eq!(completed, 2);
    Ok(())
}
