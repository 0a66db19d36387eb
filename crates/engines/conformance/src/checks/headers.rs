//! Headers that are longer than ESP's: AH authenticates the whole packet (RFC 4302 3.3.3), with the integrity
//! algorithms of suites that do not encrypt.

use crate::make::{DIRECTIONS, TestKey, random_bytes, suites};
use crate::{MakeEngine, drive, reference};
use fastrand::Rng;
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, Suite};
use testudo_packet::Buffer;

const SEED: u64 = 0x5EED_0005;

/// Bytes before the IV or text: around one and two blocks of AES and of a digest, and as AH behind headers of
/// IPv4 and IPv6.
const HEADER_BYTES: [usize; 10] = [9, 15, 16, 17, 24, 44, 63, 64, 65, 104];

/// Packets with long headers, with and without ESN, come out right, and with a flipped bit they are refused.
pub(super) fn long(make: MakeEngine<'_>) -> Result<u64, String> {
    let mut engine = make();
    let mut random = Rng::with_seed(SEED);
    let mut jobs = 0;
    for suite in suites(engine.as_ref()).into_iter().filter(|suite| !suite.encrypts()) {
        for direction in DIRECTIONS {
            jobs += one_suite(engine.as_mut(), suite, direction, &mut random)
                .map_err(|e| format!("{suite}, {direction:?}, seed {SEED:#x}: {e}"))?;
        }
    }
    Ok(jobs)
}

/// A packet and its ICV.
struct Long {
    header_bytes: usize,
    /// Header, IV and text.
    packet: Vec<u8>,
    icv: Vec<u8>,
    sequence: u64,
    esn: bool,
}

impl Long {
    fn random(key: &TestKey, header_bytes: usize, random: &mut Rng) -> Result<Self, String> {
        let text_bytes = random.usize(..1500);
        let header = random_bytes(random, header_bytes);
        let iv = random_bytes(random, key.suite.iv_bytes());
        let text = random_bytes(random, text_bytes);
        let (sequence, esn) = (random.u64(..), random.bool());
        let high_half = (sequence >> 32) as u32;
        let high_half: &[u8] = if esn { &high_half.to_be_bytes() } else { &[] };
        let icv = reference::ah(key.suite, &key.key, (&key.salt, &iv), &header, &text, high_half)?;
        Ok(Self { header_bytes, packet: [header, iv, text].concat(), icv, sequence, esn })
    }

    fn job(&self, suite: Suite, id: KeyId, direction: Direction) -> Result<Job, String> {
        const OFFSET: usize = 5;
        let icv = if direction == Direction::Open { self.icv.clone() } else { vec![0xEE; self.icv.len()] };
        let bytes = [&[0x5A; OFFSET], &self.packet[..], &icv].concat();
        let text_at = self.header_bytes + suite.iv_bytes();
        let place = |n: usize| u32::try_from(n).map_err(|e| e.to_string());
        Ok(Job {
            sequence: self.sequence,
            key: id,
            auth_start: place(OFFSET)?,
            text_start: place(OFFSET + text_at)?,
            text_bytes: place(self.packet.len() - text_at)?,
            esn: self.esn,
            ..Job::new(Buffer::copied(&bytes, 0, 0), direction, 0)
        })
    }

    /// Whether a job ended with this packet and its ICV.
    fn is(&self, job: &Job) -> bool {
        let expected = [&self.packet[..], &self.icv].concat();
        job.status == JobStatus::Done && job.buffer.bytes().ends_with(&expected)
    }
}

fn one_suite(
    engine: &mut dyn Engine,
    suite: Suite,
    direction: Direction,
    random: &mut Rng,
) -> Result<u64, String> {
    let key = TestKey::random(suite, random);
    let id = key.install(engine, direction)?;
    let (mut packets, mut jobs) = (Vec::new(), Vec::new());
    for header_bytes in HEADER_BYTES.into_iter().cycle().take(8 * HEADER_BYTES.len()) {
        let long = Long::random(&key, header_bytes, random)?;
        jobs.push(long.job(suite, id, direction)?);
        let mut forged = long.job(suite, id, direction)?;
        let at = forged.auth_start as usize + random.usize(..long.packet.len());
        forged.buffer.bytes_mut()[at] ^= 1 << random.u32(..8);
        jobs.push(forged);
        packets.push(long);
    }
    let done = drive(engine, jobs)?;
    engine.remove(id);
    for (pair, long) in done.chunks(2).zip(&packets) {
        let what = || format!("a header of {} bytes, ESN {}", long.header_bytes, long.esn);
        if !long.is(&pair[0]) {
            return Err(format!("{} came out wrong, {:?}", what(), pair[0].status));
        }
        let is_refused = match direction {
            Direction::Open => pair[1].status == JobStatus::AuthenticationFailed,
            // Another packet has another ICV.
            Direction::Seal => !pair[1].buffer.bytes().ends_with(&long.icv),
        };
        if !is_refused {
            return Err(format!("{}: a flipped bit was not noticed, {:?}", what(), pair[1].status));
        }
    }
    Ok(done.len() as u64)
}
