//! The engine and the port of a NIC together, without a gateway: marks, sessions that go, and frames.

#![allow(clippy::expect_used, reason = "a test says what must hold")]

use std::net::IpAddr;
use testudo_crypto::{
    DeviceError, DeviceLimits, Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, OffloadState,
    PortableEngine, SaFacts, SecurityDevice, SecurityMode, SecurityProtocol, SessionParameters, Suite,
};
use testudo_engine_inline::{Checks, InlineEngine, InlineFrames, Nic};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Buffer, DropReason, Mark, Pool, PortCounters, PortError};
use testudo_port_twin82599::{Faults, Twin82599, Work};
use testudo_wire::ethernet::MacAddress;
use zeroize::Zeroizing;

const SUITE: Suite = Suite::AES128GCM16;
/// Headers, IV, text, ICV.
const DATAGRAM_BYTES: usize = 20 + 8 + 8 + 32 + 16;
/// An Ethernet header of IPv4, one with a tag, and one with two. Of the last, what follows the first tag
/// begins like an IPv4 header.
const PLAIN: &[u8] = &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
const TAGGED: &[u8] = &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0, 5, 8, 0];
const TWICE: &[u8] = &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xA8, 0, 9, 0x81, 0, 0x45, 5, 8, 0];

fn material() -> KeyMaterial {
    let bytes = vec![7; SUITE.keying_material_bytes()];
    KeyMaterial::new(SUITE, Zeroizing::new(bytes)).expect("a key")
}

fn facts() -> SaFacts {
    SaFacts {
        spi: 0x1000,
        suite: SUITE,
        protocol: SecurityProtocol::Esp,
        mode: SecurityMode::Tunnel,
        esn: false,
        in_udp: false,
        local: IpAddr::from([192, 0, 2, 1]),
        remote: Some(IpAddr::from([192, 0, 2, 2])),
        is_covered: false,
        changed_if: 6,
    }
}

fn nic(twin: &Twin82599) -> (Nic, InlineEngine) {
    let nic = Nic::start(Box::new(twin.clone()), Box::new(PortableEngine::new()), Checks::usual(1));
    let nic = nic.expect("it gives right answers");
    let engine = nic.engine();
    (nic, engine)
}

fn admit(engine: &mut InlineEngine, direction: Direction) -> KeyId {
    let device = engine.offload().expect("a device");
    device.admit(direction, &material(), &facts()).expect("a session")
}

/// A framed datagram whose text is not sealed, with this number.
fn datagram(number: u8) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, DATAGRAM_BYTES.try_into().expect("short"), 0, 0, 0x40, 0, 64, 50, 0, 0];
    bytes.extend([192, 0, 2, 1, 192, 0, 2, 2]);
    bytes.extend([0, 0, 0x10, 0, 0, 0, 0, number, 1, 2, 3, 4, 5, 6, 7, number]);
    bytes.extend([0xAA; 30]);
    bytes.extend([0, 4]);
    bytes.extend([0xEE; 16]);
    bytes
}

fn job(bytes: &[u8], key: KeyId, direction: Direction) -> Job {
    let buffer = Buffer::copied(bytes, 64, 64);
    let sequence = bytes[27].into();
    Job { key, sequence, auth_start: 20, text_start: 36, text_bytes: 32, ..Job::new(buffer, direction, 0) }
}

fn submit(engine: &mut dyn Engine, job: Job) -> Job {
    let mut jobs = [job];
    assert_eq!(engine.submit(&mut jobs), 1);
    let [job] = jobs;
    job
}

/// What the portable engine makes of a datagram.
fn sealed(number: u8) -> Vec<u8> {
    let mut portable = PortableEngine::new();
    let key = portable.install(&material(), Direction::Seal).expect("a key");
    let job = submit(&mut portable, job(&datagram(number), key, Direction::Seal));
    assert_eq!(job.status, JobStatus::Done);
    job.buffer.bytes().to_vec()
}

/// A wire that seals what is marked, if the twin has its session, behind a header of the link layer.
#[derive(Default)]
struct Wire {
    twin: Option<Twin82599>,
    sent: Vec<Vec<u8>>,
    /// Whether it drops all frames.
    drops: bool,
}

impl Wire {
    fn of(twin: &Twin82599) -> Self {
        Self { twin: Some(twin.clone()), ..Self::default() }
    }
}

impl FrameDevice for Wire {
    fn name(&self) -> &str {
        "wire"
    }

    fn mac(&self) -> MacAddress {
        MacAddress([2, 0, 0, 0, 0, 1])
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn rx(&mut self, _: &mut Pool, _: &mut Batch) -> Result<usize, PortError> {
        Ok(0)
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let mut left = 0;
        while self.drops && !batch.is_empty() {
            pool.discard(batch.remove(0), DropReason::MessageTooLong);
            left += 1;
        }
        while let Some(frame) = batch.first_mut() {
            let mark = frame.mark();
            if mark.is_to_be_sealed() {
                let at = frame.len() - DATAGRAM_BYTES;
                let twin = self.twin.as_mut().expect("a device");
                let done = twin.loop_back(Direction::Seal, mark.session(), &mut frame.bytes_mut()[at..]);
                if done != Some(Mark::NONE) {
                    break;
                }
                frame.set_mark(Mark::NONE);
            }
            let frame = batch.remove(0);
            self.sent.push(frame.bytes().to_vec());
            pool.recycle(frame);
            left += 1;
        }
        Ok(left)
    }

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

/// Frames of marked datagrams, behind these headers in turns.
fn marked_frames(engine: &mut InlineEngine, key: KeyId, pool: &mut Pool, numbers: &[u8]) -> Batch {
    let mut batch = Batch::new();
    for (number, header) in numbers.iter().zip([PLAIN, TAGGED, TWICE].into_iter().cycle()) {
        let done = submit(engine, job(&datagram(*number), key, Direction::Seal));
        assert!(done.status == JobStatus::Done && done.buffer.mark().is_to_be_sealed());
        assert_eq!(done.buffer.bytes()[68..], [0; 16], "the device fills in the ICV");
        let mut frame = pool.pop().expect("a buffer");
        frame
            .append(header.len() + DATAGRAM_BYTES)
            .expect("room")
            .copy_from_slice(&[header, done.buffer.bytes()].concat());
        frame.set_mark(done.buffer.mark());
        batch.push(frame);
    }
    batch
}

fn expected(numbers: &[u8]) -> Vec<Vec<u8>> {
    let headers = [PLAIN, TAGGED, TWICE].into_iter().cycle();
    numbers.iter().zip(headers).map(|(number, header)| [header, &sealed(*number)].concat()).collect()
}

/// Each seen from outside: sealed by the device, by software after a reset, by software after the table was
/// lost, and after the key was removed.
#[test]
fn frames_leave_sealed_whether_their_sessions_are_there_or_not() {
    for lose in [|_: &Twin82599| {}, Twin82599::reset, Twin82599::lose_table] {
        let twin = Twin82599::new(Work::Real);
        let (nic, mut engine) = nic(&twin);
        let key = admit(&mut engine, Direction::Seal);
        let mut pool = Pool::new(8, 1500);
        let mut batch = marked_frames(&mut engine, key, &mut pool, &[1, 2, 3, 4]);
        engine.remove(key);
        lose(&twin);
        let mut sent = Vec::new();
        let mut frames = InlineFrames::around(Wire::of(&twin), &nic);
        assert!(frames.seals_marked());
        assert_eq!(frames.tx(&mut pool, &mut batch).expect("the wire works"), 4);
        sent.append(&mut frames.device_mut().sent);
        assert!(sent == expected(&[1, 2, 3, 4]));
        assert_eq!((pool.in_use(), nic.report().sealing.0), (0, 0));
    }
}

#[test]
fn frames_whose_session_goes_under_way_are_sealed_by_software_in_the_same_call() {
    let twin = Twin82599::new(Work::Real);
    let (nic, mut engine) = nic(&twin);
    let key = admit(&mut engine, Direction::Seal);
    let mut pool = Pool::new(8, 1500);
    let mut batch = marked_frames(&mut engine, key, &mut pool, &[1, 2, 3]);
    twin.lose_table();
    let mut frames = InlineFrames::around(Wire::of(&twin), &nic);
    assert_eq!(frames.tx(&mut pool, &mut batch).expect("the wire works"), 3);
    assert!(frames.device_mut().sent == expected(&[1, 2, 3]));
    let counts = nic.report().counts;
    assert_eq!((counts.sealed, counts.sealed_after_loss), (0, 3));
}

#[test]
fn a_mark_that_no_session_has_is_dropped_by_name_and_others_leave() {
    let twin = Twin82599::new(Work::Real);
    let (nic, mut engine) = nic(&twin);
    let key = admit(&mut engine, Direction::Seal);
    let mut pool = Pool::new(8, 1500);
    let mut batch = marked_frames(&mut engine, key, &mut pool, &[1, 2, 3]);
    batch[1].set_mark(Mark::seal_under(900));
    let mut frames = InlineFrames::around(Wire::of(&twin), &nic);
    assert_eq!(frames.tx(&mut pool, &mut batch).expect("the wire works"), 2);
    assert_eq!((pool.drops().get(DropReason::NotSealed), frames.device_mut().sent.len()), (1, 2));
}

#[test]
fn packets_that_the_device_dropped_are_not_counted_as_sealed() {
    let twin = Twin82599::new(Work::Real);
    let (nic, mut engine) = nic(&twin);
    let key = admit(&mut engine, Direction::Seal);
    let mut pool = Pool::new(8, 1500);
    let mut batch = marked_frames(&mut engine, key, &mut pool, &[1, 2]);
    let mut frames = InlineFrames::around(Wire { drops: true, ..Wire::of(&twin) }, &nic);
    assert_eq!(frames.tx(&mut pool, &mut batch).expect("the wire works"), 2);
    frames.device_mut().drops = false;
    let mut batch = marked_frames(&mut engine, key, &mut pool, &[3]);
    assert_eq!(frames.tx(&mut pool, &mut batch).expect("the wire works"), 1);
    assert_eq!((nic.report().counts.sealed, pool.drops().total(), pool.in_use()), (1, 2, 0));
    engine.remove(key);
    assert_eq!(nic.report().sealing.0, 0);
}

/// What a mark says, and what the engine makes of it.
#[test]
fn marks_of_received_packets_are_believed_doubted_or_refused() {
    let twin = Twin82599::new(Work::Real);
    let (nic, mut engine) = nic(&twin);
    let key = admit(&mut engine, Direction::Open);
    let open = |engine: &mut InlineEngine, bytes: &[u8], mark: Mark| {
        let mut job = job(bytes, key, Direction::Open);
        job.buffer.set_mark(mark);
        let job = submit(engine, job);
        assert_eq!(job.buffer.mark(), Mark::NONE, "it is used up");
        job.status
    };
    // As the device leaves them: the text in clear, the ICV as it came.
    let mut opened = sealed(9);
    opened[36..68].copy_from_slice(&datagram(9)[36..68]);
    let mut forged = opened.clone();
    forged[40] ^= 1;
    let (ours, others) = (Mark::opened_under(0), Mark::opened_under(5));
    // The first packet is always checked: the next few are not.
    assert_eq!(open(&mut engine, &opened, ours), JobStatus::Done);
    assert_eq!(open(&mut engine, &opened, others), JobStatus::Done, "software finds it authentic");
    assert_eq!(open(&mut engine, &forged, others), JobStatus::Fault, "the next engine decides");
    assert_eq!(open(&mut engine, &sealed(9), Mark::refused_under(0)), JobStatus::Fault);
    assert_eq!(open(&mut engine, &sealed(9), Mark::NONE), JobStatus::Fault);
    assert_eq!(open(&mut engine, &opened, Mark::NONE), JobStatus::Done, "open, and not said to be");
    assert_eq!(nic.report().counts.differences, 0);
    // A text that was not decrypted does not end as senders' texts do.
    assert_eq!(open(&mut engine, &sealed(9), ours), JobStatus::Fault);
    assert!(nic.report().out_of_service.is_some());
    assert_eq!(open(&mut engine, &opened, ours), JobStatus::Done, "checked from now on");
    assert_eq!(open(&mut engine, &forged, ours), JobStatus::Fault);
    let device = engine.offload().expect("a device");
    assert_eq!(device.check(&facts()), Err(OffloadState::OutOfService));
}

/// A device that does not end a session goes on to open packets: nobody but its engine can tell them from
/// those on the wire.
#[test]
fn an_sa_stays_with_the_engine_until_the_device_has_ended_its_session() {
    let twin = Twin82599::new(Work::Real);
    let (nic, mut engine) = nic(&twin);
    let key = admit(&mut engine, Direction::Open);
    let mut frames = InlineFrames::around(Wire::of(&twin), &nic);
    let mut pool = Pool::new(8, 1500);
    let mut receive = |times: usize| {
        let came = (0..times).map(|_| frames.rx(&mut pool, &mut Batch::new()).expect("the wire works"));
        assert_eq!(came.sum::<usize>(), 0);
    };
    twin.fail(Faults { calls: 1_000_000, ..Faults::default() }, 1);
    engine.offload().expect("a device").close(key);
    receive(10);
    assert!(!engine.offload().expect("a device").is_drained(key), "the device has the session");
    let mut opened = sealed(9);
    opened[36..68].copy_from_slice(&datagram(9)[36..68]);
    let mut job = job(&opened, key, Direction::Open);
    job.buffer.set_mark(Mark::opened_under(0));
    assert_eq!(submit(&mut engine, job).status, JobStatus::Done, "as software finds");
    twin.fail(Faults::default(), 1);
    let device = engine.offload().expect("a device");
    device.look_after();
    assert!(twin.sessions() == (0, 0) && !device.is_drained(key), "what it opened last is on its way");
    receive(2);
    assert!(engine.offload().expect("a device").is_drained(key));
}

/// A twin that authenticates the high half of numbers, as it says.
struct WithEsn(Twin82599);

impl SecurityDevice for WithEsn {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn limits(&self) -> DeviceLimits {
        DeviceLimits { esn: true, ..self.0.limits() }
    }

    fn generation(&self) -> u64 {
        self.0.generation()
    }

    fn create(&mut self, number: u16, session: SessionParameters<'_>) -> Result<(), DeviceError> {
        let sa = SaFacts { esn: false, ..session.sa.clone() };
        self.0.create(number, SessionParameters { sa: &sa, ..session })
    }

    fn destroy(&mut self, direction: Direction, number: u16) -> Result<(), DeviceError> {
        self.0.destroy(direction, number)
    }

    fn holds(&self, direction: Direction, number: u16) -> bool {
        self.0.holds(direction, number)
    }
}

/// The high half of its number is in no packet: software would make a wrong ICV after a reset, and take that
/// of the device for wrong.
#[test]
fn packets_with_extended_numbers_are_not_left_to_a_device() {
    let device = Box::new(WithEsn(Twin82599::new(Work::Real)));
    let nic = Nic::start(device, Box::new(PortableEngine::new()), Checks::usual(1)).expect("right answers");
    let (mut engine, facts) = (nic.engine(), SaFacts { esn: true, ..facts() });
    let device = engine.offload().expect("a device");
    assert_eq!(device.admit(Direction::Seal, &material(), &facts), Err(OffloadState::Esn));
    assert!(device.admit(Direction::Open, &material(), &facts).is_ok(), "jobs to open have it");
}

/// Of a device that may have opened what it refuses.
#[test]
fn a_packet_that_was_refused_and_is_right_is_taken_and_tells_of_the_device() {
    let (nic, mut engine) = nic(&Twin82599::new(Work::Real).that_changes_refused());
    let key = admit(&mut engine, Direction::Open);
    let mut opened = sealed(9);
    opened[36..68].copy_from_slice(&datagram(9)[36..68]);
    let mut refuse = |bytes: &[u8]| {
        let mut job = job(bytes, key, Direction::Open);
        job.buffer.set_mark(Mark::refused_under(0));
        submit(&mut engine, job).status
    };
    let mut forged = opened.clone();
    forged[40] ^= 1;
    assert_eq!((refuse(&forged), nic.report().out_of_service), (JobStatus::AuthenticationFailed, None));
    assert_eq!(refuse(&opened), JobStatus::Done);
    assert!(nic.report().out_of_service.expect("it differs").contains("says it refused"));
}

#[test]
fn a_device_with_wrong_answers_does_not_start() {
    let twin = Twin82599::new(Work::Nothing);
    let nic = Nic::start(Box::new(twin), Box::new(PortableEngine::new()), Checks::usual(1));
    let error = nic.err().expect("it seals nothing").to_string();
    assert!(error.contains("aes128gcm16 (Esp)") && error.contains("sealed wrongly"), "{error}");
    let twin = Twin82599::new(Work::Real);
    twin.fail(Faults { calls: 1_000_000, ..Faults::default() }, 1);
    let nic = Nic::start(Box::new(twin), Box::new(PortableEngine::new()), Checks::usual(1));
    assert!(nic.err().expect("no session").to_string().contains("the mailbox does not answer"));
}
