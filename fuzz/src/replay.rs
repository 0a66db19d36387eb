//! Replays the corpora without libFuzzer.

use crate::Target;
use crate::support::random_bytes;
use fastrand::Rng;
use std::path::PathBuf;

/// The files of a target's corpus, sorted by name.
fn files(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let entries = std::fs::read_dir(corpus.join(target)).expect("every target has a corpus");
    let mut paths: Vec<_> = entries.map(|e| e.expect("a readable folder").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(&path).expect("a readable file"))).collect()
}

/// Runs a target on each file of its corpus, and names the file if it fails.
pub fn corpus(Target { name, run, .. }: &Target) {
    let files = files(name);
    assert!(!files.is_empty(), "the corpus of {name} is empty");
    for (path, bytes) in files {
        let outcome = std::panic::catch_unwind(|| run(&bytes));
        assert!(outcome.is_ok(), "{name} fails on {}", path.display());
    }
}

/// Runs a target on its corpus with a few bytes changed, cut off or repeated: a little fuzzing in every test
/// run, the same each time.
pub fn damaged_corpus(Target { name, run, damaged }: &Target) {
    let mut random = Rng::with_seed(1);
    for (path, original) in files(name) {
        for time in 0..*damaged {
            let bytes = damage(&mut random, original.clone());
            let outcome = std::panic::catch_unwind(|| run(&bytes));
            assert!(
                outcome.is_ok(),
                "{name} fails on {} damaged (time {time}): {bytes:02x?}",
                path.display()
            );
        }
    }
}

fn damage(random: &mut Rng, mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..=random.usize(..4) {
        if bytes.is_empty() {
            return random_bytes(random, 16);
        }
        let at = random.usize(..bytes.len());
        match random.usize(..5) {
            0 => bytes[at] ^= 1 << random.usize(..8),
            1 => bytes[at] = random.u8(..),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, random.u8(..)),
            _ => {
                let end = (at + random.usize(..32)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}
