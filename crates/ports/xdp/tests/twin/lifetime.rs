//! The calls that the device makes of the kernel, and its end.

use crate::played::{FRAMES, Played, jumbo, options, played, played_with};
use std::sync::atomic::{AtomicU32, Ordering};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Buffer, Pool};
use testudo_port_xdp::Descriptor;

#[test]
fn a_device_that_is_closed_gives_all_buffers_back_but_those_that_may_still_leave() {
    let mut played = played_with(Pool::new(FRAMES, 1522).with_long(4, 9100), jumbo(), 9000);
    let part = played.kernel.free.pop().unwrap() + 272;
    let options = Descriptor::MORE;
    played.kernel.received.push(Descriptor { address: part, bytes: 1000, options });
    assert_eq!(played.rx(), [0; 0]);
    let mut batch = played.batch(&[100, 200]);
    played.device.tx(&mut played.pool, &mut batch).unwrap();
    played.kernel.sent.push(played.kernel.to_send.pop().unwrap().address);
    let Played { device, mut pool, .. } = played;
    device.close(&mut pool);
    // One has not come back. It is written off, so that another can be made in its place.
    assert_eq!(pool.available(), FRAMES);
    let all: Vec<_> = std::iter::from_fn(|| pool.pop()).collect();
    let of_the_umem = all.iter().filter(|buffer| pool.region().owns(buffer)).count();
    assert_eq!((all.len(), of_the_umem), (FRAMES, FRAMES - 1));
    // A frame that is elsewhere is lent to no kernel.
    drop(all);
}

#[test]
fn frames_that_replace_lost_ones_are_lent_to_no_kernel() {
    let mut pool = Pool::new(FRAMES, 1522);
    let lost: Vec<_> = std::iter::from_fn(|| pool.pop()).take(FRAMES - 8).collect();
    pool.forget(lost.len());
    let mut played = played_with(pool, options(), 1500);
    let lent = std::iter::from_fn(|| played.kernel.free.pop()).count();
    assert!(lent <= 8 && played.device.statistics()[0].receiving as usize == lent, "{lent}");
    let mut batch: Batch = [Buffer::copied(&[5; 100], 0, 0)].into_iter().collect();
    let taken = played.device.tx(&mut played.pool, &mut batch).unwrap();
    assert_eq!(taken + batch.len(), 1, "it is sent, or stays");
}

#[test]
fn another_pool_is_refused() {
    let (mut played, mut other) = (played(), Pool::new(FRAMES, 1522));
    let error = played.device.rx(&mut other, &mut Batch::new()).unwrap_err();
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("opened with"));
    assert!(played.device.tx(&mut other, &mut Batch::new()).is_err());
}

#[test]
fn system_calls_are_made_where_the_kernel_asks_for_them() {
    let mut played = played();
    played.kernel.free.set_needs_wakeup(false);
    let mut batch = played.batch(&[100]);
    played.device.tx(&mut played.pool, &mut batch).unwrap();
    played.rx();
    let calls = |played: &Played| {
        let of = |count: &AtomicU32| count.swap(0, Ordering::Relaxed);
        (of(&played.calls.sends), of(&played.calls.receives))
    };
    assert_eq!(calls(&played), (0, 0));
    played.kernel.to_send.set_needs_wakeup(true);
    played.kernel.free.set_needs_wakeup(true);
    let mut batch = played.batch(&[100]);
    played.device.tx(&mut played.pool, &mut batch).unwrap();
    assert_eq!(calls(&played), (1, 0));
    // What it has not sent it is asked for again, with what comes.
    played.rx();
    assert_eq!(calls(&played), (1, 1));
    // The kernel sends so many at a time.
    played.calls.fail.store(libc_eagain(), Ordering::Relaxed);
    let mut batch = played.batch(&[100; 20]);
    played.device.tx(&mut played.pool, &mut batch).unwrap();
    assert_eq!(calls(&played), (1, 0));
}

fn libc_eagain() -> i32 {
    rustix::io::Errno::AGAIN.raw_os_error()
}

#[test]
fn an_interface_that_is_down_is_waited_for_and_one_that_has_gone_ends_the_device() {
    let mut played = played();
    played.kernel.to_send.set_needs_wakeup(true);
    for moment in [rustix::io::Errno::NETDOWN, rustix::io::Errno::NOBUFS, rustix::io::Errno::BUSY] {
        played.calls.fail.store(moment.raw_os_error(), Ordering::Relaxed);
        let mut batch = played.batch(&[100]);
        assert_eq!(played.device.tx(&mut played.pool, &mut batch).unwrap(), 1);
    }
    played.calls.fail.store(rustix::io::Errno::NXIO.raw_os_error(), Ordering::Relaxed);
    let mut batch = played.batch(&[100]);
    assert!(played.device.tx(&mut played.pool, &mut batch).is_err());
    // Where nothing is sent, it is noticed as well.
    played.kernel.to_send.set_consumer(played.kernel.to_send.producer());
    let calls = (0..1000).position(|_| played.device.rx(&mut played.pool, &mut Batch::new()).is_err());
    assert!(calls.is_some_and(|calls| calls < 100), "{calls:?}");
}
