//! A map that many threads read and fill without a lock, and from which nothing is taken away.
//!
//! It is a tree that branches by two bits of a key's hash. A place in it is filled once: who comes second
//! goes on from what is there, so that a key has one value for everybody. The hash is a bijection, so that
//! two keys part within sixteen steps, even if an attacker has chosen them.

use crate::sync::OnceLock;
use arrayvec::ArrayVec;

/// How deep the tree may be below its root: two bits of a hash each.
const STEPS: usize = 16;

type Place<T> = OnceLock<Box<Node<T>>>;

#[derive(Debug)]
struct Node<T: 'static> {
    key: u32,
    value: T,
    next: [Place<T>; 4],
}

#[derive(Debug)]
pub(super) struct GrowMap<T: 'static>(Place<T>);

impl<T: 'static> GrowMap<T> {
    pub(super) fn new() -> Self {
        Self(OnceLock::new())
    }

    #[inline]
    pub(super) fn get(&self, key: u32) -> Option<&T> {
        let (mut place, mut path) = (&self.0, mixed(key));
        loop {
            let node = place.get()?;
            if node.key == key {
                return Some(&node.value);
            }
            (place, path) = (node.next(path), path >> 2);
        }
    }

    /// The value of a key, made if nobody has made one, and whether this call has put it there. A value that
    /// another thread was faster with is dropped.
    #[cold]
    pub(super) fn get_or_insert(&self, key: u32, make: impl FnOnce() -> T) -> Option<(&T, bool)> {
        let mut made = Some(Box::new(Node { key, value: make(), next: [(); 4].map(|()| OnceLock::new()) }));
        let (mut place, mut path) = (&self.0, mixed(key));
        loop {
            if place.get().is_none()
                && let Some(node) = made.take()
            {
                match place.set(node) {
                    Ok(()) => return place.get().map(|node| (&node.value, true)),
                    Err(node) => made = Some(node),
                }
            }
            let node = place.get()?;
            if node.key == key {
                return Some((&node.value, false));
            }
            (place, path) = (node.next(path), path >> 2);
        }
    }

    /// All keys with their values, in no order.
    pub(super) fn each(&self) -> impl Iterator<Item = (u32, &T)> {
        // Nothing is allocated: who shows windows has packets to forward. A step down adds three at most.
        let mut ahead: ArrayVec<_, { 3 * STEPS + 1 }> = self.0.get().into_iter().collect();
        std::iter::from_fn(move || {
            let node = ahead.pop()?;
            ahead.extend(node.next.iter().filter_map(OnceLock::get));
            Some((node.key, &node.value))
        })
    }
}

impl<T: 'static> Node<T> {
    #[inline]
    fn next(&self, path: u32) -> &Place<T> {
        let [a, b, c, d] = &self.next;
        match path & 3 {
            0 => a,
            1 => b,
            2 => c,
            _ => d,
        }
    }
}

/// MurmurHash3's last step for 32 bits: each of its operations can be undone.
#[inline]
fn mixed(key: u32) -> u32 {
    let key = (key ^ key >> 16).wrapping_mul(0x85EB_CA6B);
    let key = (key ^ key >> 13).wrapping_mul(0xC2B2_AE35);
    key ^ key >> 16
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn it_agrees_with_a_map_of_the_standard_library() {
        let (map, mut model) = (GrowMap::new(), BTreeMap::new());
        let mut random = fastrand::Rng::with_seed(27);
        for step in 0..20_000_u32 {
            let key = random.u32(..) & random.u32(..) & 0xF00F;
            assert_eq!(map.get(key), model.get(&key));
            let is_new = !model.contains_key(&key);
            let expected = *model.entry(key).or_insert(step);
            assert_eq!(map.get_or_insert(key, || step), Some((&expected, is_new)));
        }
        assert!(map.each().map(|(key, value)| (key, *value)).collect::<BTreeMap<_, _>>() == model);
    }

    /// Keys whose hashes begin alike: the tree is no deeper than a hash is long.
    #[test]
    fn keys_that_are_chosen_to_collide_part_within_sixteen_steps() {
        let map = GrowMap::new();
        let colliding: Vec<u32> =
            (0..u32::MAX).step_by(7).filter(|key| mixed(*key) & 0xF_FFFF == 0).collect();
        assert!(colliding.len() > 100, "{}", colliding.len());
        for key in &colliding {
            assert_eq!(map.get_or_insert(*key, || *key), Some((key, true)));
        }
        assert!(colliding.iter().all(|key| map.get(*key) == Some(key)));
        assert_eq!(map.each().count(), colliding.len());
    }

    #[test]
    fn threads_that_fill_it_at_once_have_one_value_for_a_key() {
        let (map, inserted) = (GrowMap::new(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (map, inserted) = (&map, &inserted);
                scope.spawn(move || {
                    for key in 0..5000 {
                        let (_, is_new) = map.get_or_insert(key * 77, || thread).unwrap();
                        inserted.fetch_add(is_new.into(), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!((inserted.load(Ordering::Relaxed), map.each().count()), (5000, 5000));
    }
}
