//! Cryptography in a device whose driver is played: when sessions end, and what verdicts are worth.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

#[path = "devices/flow.rs"]
#[allow(dead_code, reason = "shared with the tests of devices")]
mod flow;

use flow::{ETHERNET_BYTES, Flow};
use std::net::IpAddr;
use testudo_crypto::{
    DeviceError, Direction, KeyMaterial, SaFacts, SecurityDevice, SecurityMode, SecurityProtocol,
    SessionParameters, Suite,
};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, DropReason, Mark, Pool};
use testudo_port_dpdk::raw::{events, offers};
use testudo_port_dpdk::{DpdkConfig, DpdkDevice, DpdkSecurity, DpdkTwin, SECURITY_OFFERS, Words};
use zeroize::Zeroizing;

/// Flags of a received packet (RTE_MBUF_F_RX_SEC_OFFLOAD, …_FAILED).
const OPENED: u64 = 1 << 18;
const REFUSED: u64 = 3 << 18;
/// Flags of a packet to send, of the API's documentation (`rte_mbuf_core.h`).
const SEALS: u64 = 1 << 43;
const UDP_CHECKSUM: u64 = 3 << 52;
const TCP_SEGMENTS: u64 = 1 << 50 | 1 << 52;
const IPV4: u64 = 1 << 55;
const IPV6: u64 = 1 << 56;
/// The longest packet of IP, in a frame.
const LONGEST: usize = 65_535 + 22;
/// Calls after which sessions have been looked after.
const CALLS: usize = 64;

struct Played {
    device: DpdkDevice,
    pool: Pool,
    driver: DpdkTwin,
    security: DpdkSecurity,
}

fn played() -> Played {
    played_with(0)
}

/// One that does more beside.
fn played_with(more: u32) -> Played {
    let mut pool = Pool::for_devices(512, 1514).with_long(16, LONGEST);
    let (eal, driver) = DpdkTwin::start(SECURITY_OFFERS | more);
    let config = DpdkConfig {
        descriptors: 64,
        security: true,
        udp_over_ipv6: true,
        segmentation: Some(more & offers::TCP_SEGMENTATION != 0),
        ..DpdkConfig::of("played")
    };
    let device = DpdkDevice::open(&eal, &mut pool, &config).unwrap();
    let security = device.security().unwrap();
    Played { device, pool, driver, security }
}

fn facts(spi: u32) -> SaFacts {
    SaFacts {
        spi,
        suite: Suite::AES128GCM16,
        protocol: SecurityProtocol::Esp,
        mode: SecurityMode::Tunnel,
        esn: false,
        in_udp: false,
        local: IpAddr::from([192, 0, 2, 1]),
        remote: Some(IpAddr::from([192, 0, 2, 2])),
        is_covered: false,
        changed_if: 0,
    }
}

/// A frame with ESP to this address.
fn frame(spi: u32, to: u8, protocol: u8) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 9, 192, 0, 2, to]);
    frame.extend(spi.to_be_bytes());
    frame.resize(74, 0);
    frame
}

impl Played {
    fn create(&mut self, direction: Direction, number: u16, spi: u32) -> Result<(), DeviceError> {
        let (sa, suite) = (facts(spi), Suite::AES128GCM16);
        let key = KeyMaterial::new(suite, Zeroizing::new(vec![1; suite.keying_material_bytes()])).unwrap();
        self.security.create(number, SessionParameters { direction, sa: &sa, key: &key })
    }

    /// Sends a frame that is to be sealed under a session: how many the device took.
    fn send(&mut self, frame: &[u8], session: u16) -> usize {
        let mut buffer = self.pool.pop().unwrap();
        buffer.receive_area()[..frame.len()].copy_from_slice(frame);
        buffer.set_len(frame.len());
        buffer.set_mark(Mark::seal_under(session));
        let mut batch = Batch::from_iter([buffer]);
        let taken = self.device.tx(&mut self.pool, &mut batch).unwrap();
        for mut left in batch {
            assert_eq!((left.bytes(), left.mark()), (frame, Mark::seal_under(session)), "as it was");
            left.set_mark(Mark::NONE);
            self.pool.recycle(left);
        }
        taken
    }

    /// Packets that are to be sealed under a session, or sent as they are.
    fn batch(&mut self, packets: &[(Vec<u8>, Option<u16>)]) -> Batch {
        let mut batch = Batch::new();
        for (frame, session) in packets {
            let mut buffer = self.pool.pop().unwrap();
            buffer.receive_area()[..frame.len()].copy_from_slice(frame);
            buffer.set_len(frame.len());
            buffer.set_mark(session.map_or(Mark::NONE, Mark::seal_under));
            batch.push(buffer);
        }
        batch
    }

    fn tx(&mut self, batch: &mut Batch) -> usize {
        self.device.tx(&mut self.pool, batch).unwrap()
    }

    /// The marks of what came.
    fn receive(&mut self) -> Vec<Mark> {
        let mut batch = Batch::new();
        self.device.rx(&mut self.pool, &mut batch).unwrap();
        let marks = batch.iter().map(|frame| frame.mark()).collect();
        batch.iter_mut().for_each(|frame| frame.set_mark(Mark::NONE));
        self.pool.recycle_all(&mut batch);
        marks
    }

    fn calls(&mut self) {
        (0..CALLS).for_each(|_| assert!(self.receive().is_empty()));
    }

    /// A frame with these flags has come: its mark.
    fn verdict(&mut self, frame: &[u8], flags: u64) -> Mark {
        let address = self.driver.take().unwrap();
        self.driver.describe(address, Words { flags, ..Words::of(frame.len() as u16) });
        self.driver.fill(address, frame);
        self.driver.deliver(address);
        self.receive()[0]
    }

    fn close(mut self) {
        self.driver.free_all();
        self.device.close(&mut self.pool);
        assert_eq!((self.pool.available(), self.driver.sessions()), (512, 0));
        assert_eq!(self.pool.available_for(LONGEST), 16);
    }
}

#[test]
fn a_session_ends_after_its_packets_have_left() {
    let mut played = played();
    played.create(Direction::Seal, 7, 1).unwrap();
    assert_eq!(played.send(&frame(1, 2, 50), 7), 1);
    played.security.destroy(Direction::Seal, 7).unwrap();
    played.calls();
    assert!(!played.security.holds(Direction::Seal, 7));
    assert_eq!(played.driver.sessions(), 1, "a packet under it is on its way");
    // Its number serves another meanwhile, which is not the one that ends.
    played.create(Direction::Seal, 7, 2).unwrap();
    assert_eq!(played.send(&frame(2, 2, 50), 7), 1);
    played.driver.finish().unwrap();
    played.driver.fail_to_end(1);
    played.calls();
    assert_eq!((played.driver.sessions(), played.device.statistics().failed_session_ends), (2, 1));
    played.calls();
    assert_eq!(played.driver.sessions(), 1, "it is tried again");
    assert!(played.security.holds(Direction::Seal, 7));
    assert_eq!(played.send(&frame(2, 2, 50), 7), 1);
    played.close();
}

#[test]
fn nothing_leaves_under_a_session_that_is_not_there_or_another_ones() {
    let mut played = played();
    played.create(Direction::Seal, 3, 1).unwrap();
    for (session, spi) in [(4, 1), (16_383, 1), (3, 9)] {
        assert_eq!(played.send(&frame(spi, 2, 50), session), 0, "session {session}, SPI {spi}");
    }
    assert!(!played.security.holds(Direction::Seal, 3), "it is not used for what it is not for");
    played.create(Direction::Seal, 3, 1).unwrap();
    played.driver.refuse_to_seal(true);
    assert_eq!(played.send(&frame(1, 2, 50), 3), 0);
    assert!(!played.security.holds(Direction::Seal, 3), "the device does not know it any more");
    // What no device finds is dropped.
    assert_eq!(played.send(&frame(1, 2, 17), 3), 1);
    assert_eq!(played.pool.drops().get(DropReason::NotSealed), 1);
    assert!(played.driver.to_send().is_empty());
    played.close();
}

#[test]
fn verdicts_are_of_the_session_that_the_packet_names() {
    let mut played = played();
    played.create(Direction::Open, 5, 0x77).unwrap();
    let (ours, none) = (frame(0x77, 1, 50), Mark::opened_under(16_383));
    assert_eq!(played.verdict(&ours, OPENED), Mark::opened_under(5));
    assert_eq!(played.verdict(&ours, REFUSED), Mark::refused_under(5));
    assert_eq!(played.verdict(&ours, 0), Mark::NONE);
    assert_eq!(played.verdict(&frame(0x78, 1, 50), OPENED), none, "another SPI");
    assert_eq!(played.verdict(&frame(0x77, 3, 50), OPENED), none, "another destination");
    for other in [frame(0x77, 1, 17), vec![0xFF; 60]] {
        assert_eq!(played.verdict(&other, OPENED), Mark::NONE);
        assert_eq!(played.verdict(&other, REFUSED), Mark::NONE);
    }
    assert_eq!(played.device.statistics().misplaced_verdicts, 4);
    // One that does not end is not believed any more.
    played.driver.fail_to_end(1);
    assert!(played.security.destroy(Direction::Open, 5).is_err());
    assert_eq!(played.verdict(&ours, OPENED), none);
    played.security.destroy(Direction::Open, 5).unwrap();
    assert_eq!(played.driver.sessions(), 0);
    played.close();
}

#[test]
fn a_reset_ends_all_sessions_before_packets_go_on() {
    let mut played = played();
    for number in 0..3 {
        played.create(Direction::Seal, number, u32::from(number) + 1).unwrap();
        played.create(Direction::Open, number, u32::from(number) + 1).unwrap();
    }
    let generation = played.security.generation();
    // Some are forgotten, since their driver does not end them.
    played.driver.fail_to_end(2);
    played.driver.happen(events::RESET);
    assert!(played.receive().is_empty());
    assert_ne!(played.security.generation(), generation);
    assert_eq!((played.driver.sessions(), played.driver.resets()), (0, 1));
    assert_eq!(played.send(&frame(1, 2, 50), 0), 0);
    let again = played.create(Direction::Seal, 16_384, 1);
    assert!(matches!(again, Err(DeviceError::Failed(why)) if why.contains("no mark")));
    played.create(Direction::Seal, 0, 1).unwrap();
    assert_eq!(played.send(&frame(1, 2, 50), 0), 1);
    played.close();
}

/// ESP in UDP over IPv6 as it leaves the gateway, and a frame that the device is to seal, which has bytes of
/// its own where the other has its checksum.
fn without_checksum_and_to_seal(spi: u32) -> [Vec<u8>; 2] {
    let mut datagram = Flow::udp(true).packet(0, 0, 0, &[0x5A; 333]);
    datagram[ETHERNET_BYTES + 46..][..2].fill(0);
    let mut to_seal = frame(spi, 2, 50);
    to_seal[42..].fill(0xA5);
    [datagram, to_seal]
}

#[test]
fn only_what_was_asked_for_is_taken_off_packets_that_are_not_sent() {
    let mut played = played_with(offers::UDP_CHECKSUMS);
    played.create(Direction::Seal, 3, 1).unwrap();
    let [datagram, to_seal] = without_checksum_and_to_seal(1);
    // The last one but one has no session.
    let packets = [3, 4].map(|session| [(to_seal.clone(), Some(session)), (datagram.clone(), None)]).concat();
    let mut batch = played.batch(&packets);
    let as_it_was = |batch: &Batch, packets: &[(Vec<u8>, Option<u16>)]| {
        let of = |frame: &testudo_packet::Buffer| {
            (frame.bytes().to_vec(), frame.mark().is_to_be_sealed().then(|| frame.mark().session()))
        };
        assert_eq!(batch.iter().map(of).collect::<Vec<_>>(), packets);
    };
    played.driver.set_takes(Some(0));
    assert_eq!(played.tx(&mut batch), 0);
    as_it_was(&batch, &packets);
    assert_eq!(played.device.statistics().checksums_left, 0);
    played.driver.set_takes(None);
    assert_eq!(played.tx(&mut batch), 2);
    as_it_was(&batch, &packets[2..]);
    let [(SEALS, _, sealed), (asked, _, sent)] = &played.driver.requests()[..] else {
        panic!("{:?}", played.driver.requests());
    };
    assert_eq!((sealed, *asked), (&to_seal, UDP_CHECKSUM | IPV6));
    assert_ne!(*sent, datagram, "the device continues the sum of the pseudo-header");
    assert_eq!(played.device.statistics().checksums_left, 1);
    batch.iter_mut().for_each(|frame| frame.set_mark(Mark::NONE));
    played.pool.recycle_all(&mut batch);
    played.close();
}

const JOINS: u32 = offers::SCATTER | offers::SEGMENTS | offers::TCP_SEGMENTATION;

#[test]
fn a_super_frame_and_what_the_device_seals_do_not_mix() {
    let mut played = played_with(JOINS);
    assert!(played.device.chosen().segmentation);
    played.create(Direction::Seal, 3, 1).unwrap();
    let segments = Flow::tcp(false).segments(5, 1000);
    let to_seal = frame(1, 2, 50);
    let mut packets: Vec<_> = segments.iter().map(|segment| (segment.clone(), None)).collect();
    packets.insert(2, (to_seal.clone(), Some(3)));
    packets.insert(5, (to_seal.clone(), Some(3)));
    let mut batch = played.batch(&packets);
    assert_eq!(played.tx(&mut batch), packets.len());
    let requests = played.driver.requests();
    let kinds: Vec<_> =
        requests.iter().map(|(flags, lengths, bytes)| (*flags, *lengths, bytes.len())).collect();
    let sealed = (SEALS, 14 | 20 << 7, to_seal.len());
    // Nothing overtakes what is no TCP: the flow leaves in the parts that it came in.
    let joined = |from: usize, to: usize| {
        let bytes = Flow::tcp(false).joined(&segments[from..to]).len();
        (TCP_SEGMENTS | IPV4, 14 | 20 << 7 | 20 << 16 | 1000 << 24, bytes)
    };
    assert_eq!(kinds, [joined(0, 2), sealed, joined(2, 4), sealed, joined(4, 6)]);
    // Marks on what no device seals: none of a flow is joined with it, and it is dropped by name.
    let mut packets: Vec<_> = segments.iter().map(|segment| (segment.clone(), None)).collect();
    packets[2].1 = Some(3);
    let mut batch = played.batch(&packets);
    assert_eq!(played.tx(&mut batch), packets.len());
    assert_eq!(played.pool.drops().get(DropReason::NotSealed), 1);
    assert!(
        played.driver.requests().iter().all(|(flags, ..)| flags & SEALS == 0 || flags & TCP_SEGMENTS == 0)
    );
    played.close();
}

#[test]
fn a_session_does_not_wait_for_super_frames_in_mbufs_of_its_packets() {
    let mut played = played_with(JOINS);
    played.create(Direction::Seal, 3, 1).unwrap();
    assert_eq!(played.send(&frame(1, 2, 50), 3), 1);
    let mbuf = played.driver.finish().unwrap();
    let packets: Vec<_> = Flow::tcp(true).segments(5, 1000).into_iter().map(|frame| (frame, None)).collect();
    let mut batch = played.batch(&packets);
    assert_eq!(played.tx(&mut batch), packets.len());
    played.security.destroy(Direction::Seal, 3).unwrap();
    played.calls();
    assert_eq!(played.driver.sessions(), 0, "nothing under it is on its way");
    assert_eq!(played.driver.finish(), Some(mbuf), "the super-frame has the mbuf of the packet before");
    played.close();
}

#[test]
fn verdicts_are_kept_by_packets_that_wait_after_a_super_frame() {
    let mut played = played_with(JOINS);
    played.create(Direction::Open, 5, 0x77).unwrap();
    let flow = Flow::tcp(false);
    let whole = flow.joined(&flow.segments(99, 500));
    let parts: Vec<&[u8]> = whole.chunks(1700).collect();
    let mbufs: Vec<usize> = parts.iter().map(|_| played.driver.take().unwrap()).collect();
    for (nth, (&mbuf, part)) in mbufs.iter().zip(&parts).enumerate() {
        let words = Words {
            segments: parts.len() as u16,
            next: mbufs.get(nth + 1).copied().unwrap_or(0),
            flags: 1 << 16, // RTE_MBUF_F_RX_LRO
            segment_bytes: 500,
            ..Words::of(part.len() as u16)
        };
        played.driver.describe(mbuf, words);
        played.driver.fill(mbuf, part);
    }
    played.driver.deliver(mbufs[0]);
    for (to, flags) in [(1, OPENED), (3, REFUSED), (1, 0)] {
        let (opened, mbuf) = (frame(0x77, to, 50), played.driver.take().unwrap());
        played.driver.describe(mbuf, Words { flags, ..Words::of(opened.len() as u16) });
        played.driver.fill(mbuf, &opened);
        played.driver.deliver(mbuf);
    }
    assert_eq!(played.receive(), [Mark::NONE; 64]);
    let later = played.receive();
    assert_eq!(later.len(), 36 + 3);
    assert!(later[..36].iter().all(|mark| *mark == Mark::NONE));
    assert_eq!(later[36..], [Mark::opened_under(5), Mark::refused_under(16_383), Mark::NONE]);
    played.close();
}
