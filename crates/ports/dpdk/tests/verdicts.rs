//! Cryptography in a device whose driver is played: when sessions end, and what verdicts are worth.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

use std::net::IpAddr;
use testudo_crypto::{
    DeviceError, Direction, KeyMaterial, SaFacts, SecurityDevice, SecurityMode, SecurityProtocol,
    SessionParameters, Suite,
};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, DropReason, Mark, Pool};
use testudo_port_dpdk::raw::events;
use testudo_port_dpdk::{DpdkConfig, DpdkDevice, DpdkSecurity, DpdkTwin, SECURITY_OFFERS, Words};
use zeroize::Zeroizing;

/// Flags of a received packet (RTE_MBUF_F_RX_SEC_OFFLOAD, …_FAILED).
const OPENED: u64 = 1 << 18;
const REFUSED: u64 = 3 << 18;
/// Calls after which sessions have been looked after.
const CALLS: usize = 64;

struct Played {
    device: DpdkDevice,
    pool: Pool,
    driver: DpdkTwin,
    security: DpdkSecurity,
}

fn played() -> Played {
    let mut pool = Pool::for_devices(512, 1514);
    let (eal, driver) = DpdkTwin::start(SECURITY_OFFERS);
    let config = DpdkConfig { descriptors: 64, security: true, ..DpdkConfig::of("played") };
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
