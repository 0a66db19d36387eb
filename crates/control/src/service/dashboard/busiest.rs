//! The SAs that carried most since the last look, with their rates.

use super::RECENT;
use crate::service::api::Shared;
use crate::service::installed::InstalledTunnels;
use crate::service::report::{self, EnginesInService};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use testudo_gateway::{Clock, SaCounts};
use testudo_ipsec::TunnelIndex;

/// SAs that are listed at most.
pub(super) const MOST: usize = 100;

/// An SA: its tunnel, its SPI, and whether it is an outbound one.
type Name = (TunnelIndex, u32, bool);
/// Packets and bytes.
type Counts = [u64; 2];

/// What the last look has seen.
#[derive(Debug, Default)]
pub(super) struct Busiest {
    counts: HashMap<Name, Counts>,
    at: Option<Instant>,
}

/// An SA on its way into the list.
#[derive(Debug, Clone, Copy)]
struct Seen {
    name: Name,
    total: Counts,
    /// Since the last look, where that has seen it, too.
    moved: Option<Counts>,
}

impl Busiest {
    /// The rows of `sa list` of at most [`MOST`] SAs, the busiest first, each with `packets_per_second` and
    /// `bits_per_second` (of inner packets; null where no recent look has seen it), and how many SAs there
    /// are.
    pub(super) fn look(
        &mut self,
        shared: &Shared,
        installed: &InstalledTunnels,
        now: Instant,
    ) -> (Vec<Value>, usize) {
        let before = self.at.map(|at| now.saturating_duration_since(at));
        let interval = before.filter(|interval| !interval.is_zero() && *interval <= RECENT);
        let mut seen = self.see(installed, interval.is_some());
        self.counts = seen.iter().map(|seen| (seen.name, seen.total)).collect();
        self.at = Some(now);
        let count = seen.len();
        keep_busiest(&mut seen);
        (rows(&seen, shared, installed, interval), count)
    }

    fn see(&self, installed: &InstalledTunnels, has_interval: bool) -> Vec<Seen> {
        let mut seen = Vec::new();
        for running in installed.all() {
            seen.extend(running.sas.lock().iter().map(|sa| {
                let counters = sa.added.as_ref().map(|added| &added.counters);
                let count = |get: fn(&SaCounts) -> u64| counters.map_or(0, get);
                let total = [count(SaCounts::packets), count(SaCounts::bytes)];
                let name = (running.index, sa.spi, sa.is_outbound());
                let before = self.counts.get(&name).filter(|_| has_interval);
                let moved = before
                    .map(|before| [total[0].saturating_sub(before[0]), total[1].saturating_sub(before[1])]);
                Seen { name, total, moved }
            }));
        }
        seen
    }
}

/// Of SAs that are equally busy, those that have carried most come first.
fn keep_busiest(seen: &mut Vec<Seen>) {
    let rank = |seen: &Seen| Reverse((seen.moved.unwrap_or_default()[0], seen.total[0]));
    if seen.len() > MOST {
        seen.select_nth_unstable_by_key(MOST, rank);
        seen.truncate(MOST);
    }
    seen.sort_by_key(rank);
}

/// Rows in the order of `seen`.
fn rows(
    seen: &[Seen],
    shared: &Shared,
    installed: &InstalledTunnels,
    interval: Option<Duration>,
) -> Vec<Value> {
    let places: HashMap<Name, usize> =
        seen.iter().enumerate().map(|(place, seen)| (seen.name, place)).collect();
    let tunnels: HashSet<TunnelIndex> = seen.iter().map(|seen| seen.name.0).collect();
    let (engines, now) = (EnginesInService::of(&shared.facts), shared.facts.clock.now());
    let mut rows: Vec<(usize, Value)> = Vec::with_capacity(seen.len());
    for running in installed.all().filter(|running| tunnels.contains(&running.index)) {
        let of_tunnel = report::tunnel_sas(&running, installed, &shared.peers(), &engines, now);
        let Value::Array(of_tunnel) = of_tunnel else { continue };
        for mut row in of_tunnel {
            let spi = row["spi"].as_u64().and_then(|spi| u32::try_from(spi).ok()).unwrap_or_default();
            let name = (running.index, spi, row["direction"] == "outbound");
            let Some((place, seen)) = places.get(&name).and_then(|at| Some((*at, seen.get(*at)?))) else {
                continue;
            };
            let rates = seen
                .moved
                .zip(interval)
                .map(|(moved, interval)| moved.map(|count| per_second(count, interval)));
            row["packets_per_second"] = json!(rates.map(|[packets, _]| packets));
            row["bits_per_second"] = json!(rates.map(|[_, bytes]| bytes * 8.0));
            rows.push((place, row));
        }
    }
    rows.sort_by_key(|(place, _)| *place);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn per_second(count: u64, interval: Duration) -> f64 {
    count as f64 / interval.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(index: u32, moved: Option<u64>, total: u64) -> Seen {
        Seen { name: (TunnelIndex::default(), index, true), total: [total, 0], moved: moved.map(|n| [n, 0]) }
    }

    fn spis(seen: &[Seen]) -> Vec<u32> {
        seen.iter().map(|seen| seen.name.1).collect()
    }

    #[test]
    fn those_that_moved_most_come_first_then_those_that_have_carried_most() {
        let mut all = vec![seen(1, None, 50), seen(2, Some(0), 9), seen(3, Some(7), 7), seen(4, Some(8), 8)];
        keep_busiest(&mut all);
        assert_eq!(spis(&all), [4, 3, 1, 2]);
    }

    #[test]
    fn at_most_a_hundred_are_listed_and_they_are_the_busiest() {
        let mut all: Vec<_> = (0..1000).map(|n| seen(n, Some(u64::from(n) * 7919 % 1000), 0)).collect();
        keep_busiest(&mut all);
        let moved: Vec<_> = all.iter().filter_map(|seen| seen.moved).map(|moved| moved[0]).collect();
        assert_eq!(moved, (900..1000).rev().collect::<Vec<u64>>());
    }

    #[test]
    fn a_rate_is_a_count_over_its_interval() {
        assert!((per_second(5, Duration::from_millis(500)) - 10.0).abs() < 1e-9);
    }
}
