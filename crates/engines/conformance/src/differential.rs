//! Compares two engines.

use crate::drive;
use crate::make::{DIRECTIONS, Sample, TestKey, suites};
use fastrand::Rng;
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId};

/// Packets in one comparison.
const PACKETS: usize = 2_000;

/// Gives two engines the same random packets, genuine and forged, in the suites that both do, and compares
/// statuses and bytes.
///
/// Returns how many packets were compared.
///
/// # Errors
/// The first difference, with the seed.
pub fn differential(a: &mut dyn Engine, b: &mut dyn Engine, seed: u64) -> Result<u64, String> {
    let names = (a.name(), b.name());
    compare(a, b, seed).map_err(|why| format!("{} and {}, seed {seed}: {why}", names.0, names.1))
}

/// A key in both engines.
struct Pair {
    key: TestKey,
    direction: Direction,
    ids: (KeyId, KeyId),
}

fn compare(a: &mut dyn Engine, b: &mut dyn Engine, seed: u64) -> Result<u64, String> {
    let mut random = Rng::with_seed(seed);
    let mut pairs = Vec::new();
    let mut common = suites(a);
    common.retain(|suite| b.capability(*suite).is_some());
    for suite in common {
        for direction in DIRECTIONS {
            let key = TestKey::random(suite, &mut random);
            let ids = (key.install(a, direction)?, key.install(b, direction)?);
            pairs.push(Pair { key, direction, ids });
        }
    }
    if pairs.is_empty() {
        return Err("no suite is common to both".to_owned());
    }
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    for _ in 0..PACKETS {
        let pair = &pairs[random.usize(..pairs.len())];
        let (for_a, for_b) = packet(pair, &mut random)?;
        of_a.push(for_a);
        of_b.push(for_b);
    }
    let (done_a, done_b) = (drive(a, of_a)?, drive(b, of_b)?);
    for Pair { ids, .. } in pairs {
        a.remove(ids.0);
        b.remove(ids.1);
    }
    match done_a.iter().zip(&done_b).position(|(x, y)| !same(x, y)) {
        Some(n) => Err(format!("packet {n}: {:?} and {:?}", done_a[n], done_b[n])),
        None => Ok(PACKETS as u64),
    }
}

/// A random packet, every eighth one forged, for both engines.
fn packet(pair: &Pair, random: &mut Rng) -> Result<(Job, Job), String> {
    let longest = if random.usize(..20) == 0 { 9000 } else { 1500 };
    let len = random.usize(..longest);
    let mut sample = Sample::random(&pair.key, len, random)?;
    if random.usize(..8) == 0 {
        let forged = random.usize(..sample.sealed.len());
        sample.sealed[forged] ^= 1 << random.usize(..8);
    }
    let offset = random.usize(..64);
    let (a, b) = pair.ids;
    Ok((sample.job(a, pair.direction, offset, 0)?, sample.job(b, pair.direction, offset, 0)?))
}

/// Same verdict, and the same bytes where bytes mean something.
fn same(x: &Job, y: &Job) -> bool {
    x.status == y.status && (x.status != JobStatus::Done || x.buffer.bytes() == y.buffer.bytes())
}
