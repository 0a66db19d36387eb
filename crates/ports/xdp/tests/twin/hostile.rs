//! A kernel that lies.

use crate::played::{FRAMES, LENT, RING, jumbo, played, played_with, received};
use proptest::prelude::*;
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Buffer, DropReason, Pool};
use testudo_port_xdp::Descriptor;

#[test]
fn frames_that_are_not_lent_and_packets_beyond_their_frame_are_dropped_by_name() {
    let mut played = played();
    let lent = played.kernel.free.pop().unwrap() + 272;
    let end = FRAMES as u64 * played.chunk;
    for lie in [end, u64::MAX, lent + played.chunk * 40, 1 << 48] {
        played.kernel.received.push(received(lie, 60));
    }
    played.kernel.received.push(received(lent, 60));
    played.kernel.received.push(received(lent, 60));
    let other = played.kernel.free.pop().unwrap() + 272;
    played.kernel.received.push(received(other, played.chunk as usize - 271));
    assert_eq!(played.rx(), [60]);
    // A frame for receipt is not one that was sent.
    played.kernel.sent.push(played.kernel.free.pop().unwrap());
    assert_eq!(played.rx(), [0; 0]);
    let expected = [(DropReason::DeviceFrameUnknown, 6), (DropReason::DeviceFrameBounds, 1)];
    assert_eq!(played.drops(), expected);
    let counts = played.device.statistics()[0];
    assert_eq!((counts.unknown_frames, counts.out_of_bounds), (6, 1));
}

#[test]
fn a_ring_that_holds_more_than_it_can_ends_the_device() {
    for broken in 0..4 {
        let mut played = played();
        match broken {
            0 => played.kernel.received.set_producer(RING + 1),
            1 => played.kernel.sent.set_producer(u32::MAX),
            2 => played.kernel.to_send.set_consumer(1),
            _ => {
                // Only looked at when frames are lent again.
                for _ in 0..LENT {
                    let address = played.kernel.free.pop().unwrap();
                    played.kernel.received.push(received(address, 60));
                }
                played.kernel.free.set_consumer(LENT + 1);
            }
        }
        let mut batch = Batch::new();
        let outcome = match broken {
            2 => played.device.tx(&mut played.pool, &mut batch),
            _ => played.device.rx(&mut played.pool, &mut batch),
        };
        let error = std::error::Error::source(&outcome.unwrap_err()).unwrap().to_string();
        assert!(error.contains("a ring of 64 entries is said to hold"), "{error}");
        batch.drain(..).for_each(|buffer| played.pool.recycle(buffer));
    }
}

/// What a hostile kernel does next.
#[derive(Debug, Clone)]
enum Step {
    /// Gives back a frame that it has, as one should.
    Receive {
        bytes: u32,
        more: bool,
    },
    Sent,
    /// Any address in either ring.
    LieReceived(u64, u32, bool),
    LieSent(u64),
    /// A frame that it gave back before.
    Again {
        sent: bool,
    },
    Rx,
    Tx(Vec<usize>),
    /// A packet in several buffers.
    TxChain(Vec<usize>),
}

fn step() -> impl Strategy<Value = Step> {
    let address =
        prop_oneof![0..FRAMES as u64 * 2112, any::<u64>(), (0..64_u64).prop_map(|f| f * 2112 + 272)];
    let length = prop_oneof![0..2200_u32, any::<u32>()];
    prop_oneof![
        4 => (length.clone(), any::<bool>()).prop_map(|(bytes, more)| Step::Receive { bytes, more }),
        2 => Just(Step::Sent),
        2 => (address.clone(), length, any::<bool>()).prop_map(|(a, b, m)| Step::LieReceived(a, b, m)),
        2 => address.prop_map(Step::LieSent),
        1 => any::<bool>().prop_map(|sent| Step::Again { sent }),
        4 => Just(Step::Rx),
        2 => prop::collection::vec(0..9100_usize, 0..8).prop_map(Step::Tx),
        1 => prop::collection::vec(0..1700_usize, 1..12).prop_map(Step::TxChain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever the kernel writes into its rings: each buffer is the pool's, the device's or the caller's,
    /// never two of them, and nothing is read beyond a frame.
    #[test]
    fn no_lie_of_the_kernel_makes_two_owners_of_a_buffer(steps in prop::collection::vec(step(), 0..120)) {
        let mut played = played_with(Pool::new(FRAMES, 1522).with_long(4, 9100), jumbo(), 9000);
        let mut given_back = 0;
        for step in steps {
            match step {
                Step::Receive { bytes, more } => {
                    if let Some(frame) = played.kernel.free.pop() {
                        let address = frame + 272;
                        given_back = address;
                        let options = u32::from(more);
                        played.kernel.received.push(Descriptor { address, bytes, options });
                    }
                }
                Step::Sent => {
                    if let Some(descriptor) = played.kernel.to_send.pop() {
                        given_back = descriptor.address;
                        played.kernel.sent.push(descriptor.address);
                    }
                }
                Step::LieReceived(address, bytes, more) => {
                    played.kernel.received.push(Descriptor { address, bytes, options: u32::from(more) });
                }
                Step::LieSent(address) => played.kernel.sent.push(address),
                Step::Again { sent: true } => played.kernel.sent.push(given_back),
                Step::Again { sent: false } => played.kernel.received.push(received(given_back, 64)),
                Step::Rx => {
                    let lengths = played.rx();
                    prop_assert!(lengths.iter().all(|bytes| *bytes <= 9100));
                }
                Step::Tx(lengths) => {
                    let mut batch = Batch::new();
                    for bytes in lengths {
                        if let Some(mut buffer) = played.pool.pop_for(bytes) {
                            buffer.set_len(bytes);
                            batch.push(buffer);
                        }
                    }
                    played.device.tx(&mut played.pool, &mut batch).unwrap();
                    batch.drain(..).for_each(|buffer| played.pool.recycle(buffer));
                }
                Step::TxChain(lengths) => {
                    let lengths = &lengths[..lengths.len().min(played.pool.available())];
                    if !lengths.is_empty() {
                        let mut batch: Batch = [played.chain(lengths)].into_iter().collect();
                        played.device.tx(&mut played.pool, &mut batch).unwrap();
                        batch.drain(..).for_each(|buffer| played.pool.recycle(buffer));
                    }
                }
            }
            // Before a ring would hold more than it can, which ends the device.
            if played.kernel.received.producer().wrapping_sub(played.kernel.received.consumer()) > 50
                || played.kernel.sent.producer().wrapping_sub(played.kernel.sent.consumer()) > 50
            {
                played.rx();
            }
            let counts = played.device.statistics()[0];
            let lent = (counts.receiving + counts.sending) as usize;
            // What is in neither is a part of a frame whose rest has not come.
            prop_assert!(played.pool.available() + lent <= FRAMES);
            prop_assert!(played.pool.available() + lent + 18 >= FRAMES);
        }
        // Buffers that come from the pool are all different.
        let all: Vec<Buffer> = std::iter::from_fn(|| played.pool.pop()).collect();
        let different: std::collections::HashSet<_> = all.iter().map(Buffer::identity).collect();
        prop_assert_eq!(all.len(), different.len());
    }
}
