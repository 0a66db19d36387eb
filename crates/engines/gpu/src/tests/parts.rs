//! Packets that lanes share: each number of lanes gives what the portable engine gives, in groups of every
//! shape, in either order of the lanes, and on PoCL; a forgery in any lane's part is found.

use super::compiled::Compiled;
use super::config;
use crate::device::MOST_LANES;
use crate::engine::GpuEngine;
use crate::opencl::OpenClDevice;
use crate::parts::{MOST_PARTS, Parts};
use crate::work::Work;
use testudo_conformance::{drive, random_bytes, run_only};
use testudo_crypto::{
    Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite, self_test,
};
use testudo_packet::Buffer;

/// Numbers of lanes that a packet may have.
const PARTS: [usize; 6] = [1, 2, 4, 8, 16, 32];
const _: () = assert!(PARTS[5] == MOST_PARTS);
const ESP_HEADER_BYTES: usize = 8;

/// Suites of each mode that is divided, by the names of proposals.
const SUITES: [&str; 9] = [
    "aes128-sha1",
    "aes256-sha512",
    "aes192-md5",
    "3des-sha1",
    "aes128ctr-sha256",
    "aes256ctr-sha384",
    "aes128gcm16",
    "aes256gcm8",
    "aes128gmac",
];

fn suites() -> impl Iterator<Item = Suite> {
    SUITES.iter().map(|name| name.parse().unwrap())
}

/// Around each block and each lane's share of a short packet, and of a long one.
fn lengths(suite: Suite) -> impl Iterator<Item = usize> {
    (0..=130).chain(1400..=1520).filter(move |bytes| bytes % suite.block_bytes() == 0)
}

/// An engine and the portable one, each with the same key in both directions.
struct Both<'a> {
    engine: &'a mut GpuEngine,
    portable: PortableEngine,
    suite: Suite,
    /// Of the engine, then of the portable one: for sealing, for opening.
    keys: [[KeyId; 2]; 2],
    random: fastrand::Rng,
}

const DIRECTIONS: [Direction; 2] = [Direction::Seal, Direction::Open];

impl<'a> Both<'a> {
    fn new(engine: &'a mut GpuEngine, suite: Suite, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut portable = PortableEngine::new();
        let bytes = random_bytes(&mut random, suite.keying_material_bytes());
        let material = KeyMaterial::new(suite, bytes.into()).unwrap();
        let install = |engine: &mut dyn Engine| DIRECTIONS.map(|to| engine.install(&material, to).unwrap());
        let keys = [install(engine), install(&mut portable)];
        Self { engine, portable, suite, keys, random }
    }

    /// A packet to be sealed, at an offset in its buffer that is not aligned as a rule.
    fn packet(&mut self, text_bytes: usize) -> Job {
        let (iv, icv) = (self.suite.iv_bytes(), self.suite.icv_bytes());
        let offset = self.random.usize(..64);
        let bytes = random_bytes(&mut self.random, offset + ESP_HEADER_BYTES + iv + text_bytes + icv + 5);
        let count = |bytes: usize| u32::try_from(bytes).unwrap();
        Job {
            auth_start: count(offset),
            text_start: count(offset + ESP_HEADER_BYTES + iv),
            text_bytes: count(text_bytes),
            sequence: self.random.u64(..),
            esn: self.random.bool(),
            ..Job::new(Buffer::copied(&bytes, 0, 0), Direction::Seal, 0)
        }
    }

    /// Has the same packets done by both, and compares whole buffers; returns the portable engine's.
    fn agree(&mut self, direction: Direction, jobs: &[Job]) -> Vec<Job> {
        let turn = usize::from(direction == Direction::Open);
        let jobs = |keys: [KeyId; 2]| {
            jobs.iter().map(|job| Job { key: keys[turn], direction, ..copy(job) }).collect::<Vec<_>>()
        };
        let [ours, theirs] = self.keys.map(jobs);
        let (ours, theirs) = (drive(self.engine, ours).unwrap(), drive(&mut self.portable, theirs).unwrap());
        for (ours, theirs) in ours.iter().zip(&theirs) {
            let what = format!("{} {direction:?} of {} bytes", self.suite, ours.text_bytes);
            assert_eq!(ours.status, JobStatus::Done, "{what}");
            assert!(ours.buffer.bytes() == theirs.buffer.bytes(), "{what}");
        }
        theirs
    }

    /// A bit of each block of a sealed packet and of its ICV is turned: refused, and as it came.
    fn forgeries_are_found(&mut self, sealed: &Job) {
        let (start, icv) = (sealed.auth_start as usize, self.suite.icv_bytes());
        let end = (sealed.text_start + sealed.text_bytes) as usize + icv;
        let places = (start..end).step_by(8).chain([end - icv, end - 1]);
        let forged: Vec<Job> = places
            .map(|place| {
                let mut job = copy(sealed);
                job.buffer.bytes_mut()[place] ^= 1 << self.random.usize(..8);
                Job { key: self.keys[0][1], direction: Direction::Open, ..job }
            })
            .collect();
        let before: Vec<_> = forged.iter().map(|job| job.buffer.bytes().to_vec()).collect();
        let ended = drive(self.engine, forged).unwrap();
        for (job, before) in ended.iter().zip(&before) {
            assert_eq!(job.status, JobStatus::AuthenticationFailed, "{}", self.suite);
            assert!(job.buffer.bytes() == before);
        }
    }
}

fn copy(job: &Job) -> Job {
    let Job { sequence, auth_start, text_start, text_bytes, esn, .. } = *job;
    let buffer = Buffer::copied(job.buffer.bytes(), 0, 0);
    Job { sequence, auth_start, text_start, text_bytes, esn, ..Job::new(buffer, job.direction, 0) }
}

/// Every suite, length and direction with `parts` lanes for a packet, and forgeries.
fn is_right(engine: &mut GpuEngine, parts: Parts, seed: u64) {
    println!("seed {seed}, {parts:?}, {}", engine.description());
    engine.set_parts(parts);
    for suite in suites() {
        let mut both = Both::new(engine, suite, seed);
        let packets: Vec<_> = lengths(suite).map(|bytes| both.packet(bytes)).collect();
        let sealed = both.agree(Direction::Seal, &packets);
        both.agree(Direction::Open, &sealed);
        for sealed in [sealed.last(), sealed.iter().find(|job| job.text_bytes == 64)] {
            both.forgeries_are_found(sealed.unwrap());
        }
        let keys = both.keys[0];
        keys.into_iter().for_each(|key| engine.remove(key));
    }
}

fn compiled(lanes: u32, is_last_lane_first: bool) -> GpuEngine {
    let sizes = config().sizes();
    GpuEngine::over(Box::new(Compiled::with_lanes(sizes, lanes, is_last_lane_first)), sizes)
}

/// Each step is done by lane after lane, once from the first and once from the last one: a lane that needs
/// what another one does in the same step, which devices do at once, does not get it in both orders.
#[test]
fn each_number_of_lanes_gives_the_same_in_either_order_of_lanes() {
    for (seed, lanes) in (1..).zip([1, 7, 32, 64, u32::try_from(MOST_LANES).unwrap()]) {
        for is_last_lane_first in [false, true] {
            let mut engine = compiled(lanes, is_last_lane_first);
            for parts in PARTS {
                is_right(&mut engine, Parts::Fixed(parts), seed);
            }
            is_right(&mut engine, Parts::ByLength, seed);
        }
    }
}

/// Official vectors and foreign implementations, in groups of 32.
#[test]
fn each_number_of_lanes_gives_the_known_answers() {
    for parts in PARTS {
        let make = || {
            let mut engine = compiled(32, parts % 3 == 1);
            engine.set_parts(Parts::Fixed(parts));
            engine
        };
        assert_eq!(self_test(&mut make()), Ok(()));
        // Every length costs seconds; the tests above compare many with the portable engine.
        let both = ["official vectors", "every length"];
        let only = if [2, MOST_PARTS].contains(&parts) { &both[..] } else { &both[..1] };
        let report = run_only(&mut || -> Box<dyn Engine> { Box::new(make()) }, only);
        report.assert_passed();
        assert_eq!(report.outcomes.len(), only.len());
    }
}

#[test]
fn each_number_of_lanes_gives_the_same_on_pocl() {
    let sizes = config().sizes();
    let device = OpenClDevice::open(Some("Portable Computing Language"), 0, sizes).unwrap();
    let mut engine = GpuEngine::over(Box::new(device), sizes);
    for (seed, parts) in (1..).zip(PARTS) {
        engine.set_parts(Parts::Fixed(parts));
        assert_eq!(self_test(&mut engine), Ok(()));
        is_right(&mut engine, Parts::Fixed(parts), seed);
    }
    is_right(&mut engine, Parts::ByLength, 7);
}

/// The table of the documentation.
#[test]
fn the_documentation_has_the_most_lanes_of_each_suite() {
    let documentation = include_str!("../../../../../docs/GPU.md");
    for (name, ciphers) in [
        ("AES-128: CTR; CBC opened", &["aes128", "aes128ctr"][..]),
        ("AES-192: CTR; CBC opened", &["aes192", "aes192ctr"]),
        ("AES-256: CTR; CBC opened", &["aes256", "aes256ctr"]),
        ("3DES: CBC opened", &["3des"]),
    ] {
        for cipher in ciphers {
            let most = |hash: &str| {
                let suite = format!("{cipher}-{hash}").parse().unwrap();
                Work::of(suite, Direction::Open).unwrap().most_parts()
            };
            assert_eq!(most("sha384"), most("sha512"));
            let cells = ["md5", "sha1", "sha256", "sha384"].map(|hash| most(hash).to_string());
            let row = format!("| {name} | {} | 32 |\n", cells.join(" | "));
            assert!(documentation.contains(&row), "{row}");
        }
    }
}

/// A power of two that leaves each lane 64 bytes, up to what suite and group allow.
#[test]
fn lanes_of_a_packet_follow_from_suite_direction_and_length() {
    use Direction::{Open, Seal};
    let of = |suite: &str, direction, bytes| {
        let work = Work::of(suite.parse().unwrap(), direction).unwrap();
        let parts = |lanes| Parts::ByLength.of(&work, bytes, lanes);
        assert!([1, 7, 32, 128].iter().all(|lanes| parts(*lanes) <= *lanes));
        parts(32)
    };
    // A chain has one lane, and so has what is hashed alone.
    for (suite, direction) in
        [("aes128-sha1", Seal), ("3des-sha1", Seal), ("null-sha256", Seal), ("null-sha256", Open)]
    {
        assert_eq!(of(suite, direction, 9000), 1, "{suite}");
    }
    assert_eq!(of("aes128ctr-sha1", Seal, 1500), 4);
    assert_eq!([64, 128, 1500, 9000].map(|bytes| of("aes256gcm16", Seal, bytes)), [1, 2, 16, 32]);
    for (suite, most) in [
        ("aes128-sha1", 4),
        ("aes256-sha512", 2),
        ("aes192ctr-sha256", 2),
        ("3des-sha1", 16),
        ("3des-md5", 32),
        ("aes128gcm16", 32),
        ("aes256gmac", 32),
    ] {
        let counts =
            [0, 64, 127, 128, 255, 256, 512, 1024, 1500, 2048, 65_535].map(|bytes| of(suite, Open, bytes));
        assert_eq!(counts, [1, 1, 1, 2, 2, 4, 8, 16, 16, 32, 32].map(|count| most.min(count)), "{suite}");
    }
}
