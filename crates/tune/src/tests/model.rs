//! Random histories of two interfaces, in one network namespace or in two, beside a slow and obvious model:
//! once all are undone, every value is the one from before the first apply.

use super::played::{HOME, Life, Machine};
use crate::host::Host;
use crate::journal::Stores;
use crate::plan::{Options, plan};
use crate::setting::Group;
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
        let machine = Machine::new().with_companions();
        machine.join();
        // In every second history eth1 is in a namespace of its own, where variables are other ones.
        let only = if seed % 2 == 0 { Vec::new() } else { Group::ALL[2..].to_vec() };
        let there = machine.root().with_file_name("there");
        let state = machine.state();
        let place = |interface| match interface {
            "eth1" if seed % 2 == 1 => ("net:[2]", there.as_path()),
            _ => (HOME, state.as_path()),
        };
        let undo_all = |interface| {
            let work = |host: &dyn Host, stores: Stores<'_>| undo::undo(host, stores);
            machine.process_in(place(interface), interface, Life::long(), work).unwrap();
        };
        let before = machine.everything();
        // Who may still have something to undo.
        let mut appliers: Vec<&str> = Vec::new();
        for _ in 0..12 {
            let interface = ["eth0", "eth1"][usize::try_from(random.below(2)).unwrap()];
            let dies_at = usize::try_from(random.below(60)).unwrap();
            let life = Life::until(dies_at, random.below(2) == 0);
            let options = Options {
                mtu: (random.below(2) == 0)
                    .then_some([9000, 8999, 1400, 1300][usize::try_from(random.below(4)).unwrap()]),
                huge_pages: (random.below(2) == 0).then_some(random.below(99)),
                isolate: [vec![], vec![3], vec![2, 3]][usize::try_from(random.below(3)).unwrap()].clone(),
                only: only.clone(),
            };
            if random.below(3) > 0 {
                appliers.push(interface);
                let _ = machine.process_in(place(interface), interface, life, |host, stores| {
                    apply::apply(host, stores, &plan(host, &options))
                });
            } else {
                let undone = machine
                    .process_in(place(interface), interface, life, |host, stores| undo::undo(host, stores));
                if undone.is_ok() {
                    appliers.retain(|applier| *applier != interface);
                }
            }
            if appliers.is_empty() {
                assert_eq!(machine.everything(), before, "seed {seed}");
            }
        }
        undo_all("eth0");
        undo_all("eth1");
        assert_eq!(machine.everything(), before, "seed {seed}");
        assert!(machine.journals().is_empty() && !there.join("eth1.json").exists(), "seed {seed}");
    }
}
