//! Random histories of two interfaces, beside a slow and obvious model: once all are undone, every value
//! is the one from before the first apply.

use super::played::{Life, Machine};
use crate::plan::{Options, plan};
use crate::{apply, undo};

/// Marsaglia's xorshift64 (2003).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

#[test]
fn any_history_of_applies_undos_and_kills_ends_where_it_began() {
    for seed in 1..=30_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let machine = Machine::new();
        let before = machine.everything();
        // Who may still have something to undo.
        let mut appliers: Vec<&str> = Vec::new();
        for _ in 0..12 {
            let interface = ["eth0", "eth1"][usize::try_from(random.below(2)).unwrap()];
            let dies_at = usize::try_from(random.below(60)).unwrap();
            let life = Life::until(dies_at, random.below(2) == 0);
            let options = Options {
                mtu: (random.below(2) == 0).then_some(9000 - random.below(3)),
                huge_pages: (random.below(2) == 0).then_some(random.below(99)),
                only: Vec::new(),
            };
            if random.below(3) > 0 {
                appliers.push(interface);
                let _ = machine
                    .process(interface, life, |host, store| apply::apply(host, store, &plan(host, &options)));
            } else {
                let undone = machine.process(interface, life, |host, store| undo::undo(host, store));
                if undone.is_ok() {
                    appliers.retain(|applier| *applier != interface);
                }
            }
            if appliers.is_empty() {
                assert_eq!(machine.everything(), before, "seed {seed}");
            }
        }
        machine.undo("eth0");
        machine.undo("eth1");
        assert_eq!(machine.everything(), before, "seed {seed}");
        assert!(machine.journals().is_empty(), "seed {seed}");
    }
}
