//! The engine of all gateways where none is named: the fastest of those that seal and open ESP and VPE.
//!
//! They take turns, as everything does that is compared here: what else the machine does meets all of them.
//! One after the other, the machine would choose, and figures of two runs be of two engines.

use std::time::Duration;

use testudo_crypto::Suite;
use testudo_gateway::Candidate;

use super::case;
use super::side_by_side::{Effort, side_by_side};
use crate::bench::case::{Carrier, Case, Way};
use crate::bench::engines::Engines;
use crate::bench::error::{BenchError, Wrong};
use crate::traffic::median;

/// Packets that an engine does alone before it takes turns with others: a broken one stops nobody.
const ALONE: u64 = 64;
/// How often they take turns, all built anew, and how long each is measured then.
const TAKES: u32 = 5;
const TRIAL: Duration = Duration::from_millis(20);
/// How many times as fast an engine has to be as one that comes before it: of two that are about as fast,
/// each run takes the same.
const FASTER: f64 = 1.02;
/// Length of the packets, in bytes.
const INNER_BYTES: usize = 1420;

/// The engine of this name, or the fastest that seals and opens both ESP and VPE, or ESP where VPE lacks the
/// suite.
pub(super) fn choose(engines: &Engines, name: Option<&str>, suite: Suite) -> Result<usize, BenchError> {
    let refusal = |engine: usize| {
        let carriers =
            [Carrier::Esp, Carrier::Vpe].into_iter().filter(|carrier| carrier.suite(suite).is_some());
        let mut cases = carriers.map(|carrier| case(engine, suite, carrier, Way::Outbound, INNER_BYTES));
        cases.find_map(|case| engines.available.get(engine).and_then(|one| one.refusal(&case)))
    };
    if let Some(name) = name {
        let named = (0..).zip(&engines.available).find(|(_, engine)| engine.name() == name);
        let index = named.map_or(0, |(index, _)| index);
        return refusal(index).map_or(Ok(index), |reason| Err(BenchError::Engine(reason)));
    }
    let able: Vec<usize> = (0..engines.available.len()).filter(|engine| refusal(*engine).is_none()).collect();
    match able[..] {
        [] => Err(BenchError::Engine(format!("no engine here does {suite} for ESP and VPE"))),
        [only] => Ok(only),
        _ => fastest(&able, |some, effort| in_turns(engines, suite, some, effort))
            .map_err(|what| BenchError::Invalid { case: "choosing an engine".to_owned(), what }),
    }
}

/// The engine that gateways have where none is named, of these and the portable one: for who gives several
/// commands whose figures are to be of one engine.
///
/// # Errors
/// [`BenchError`] if none seals and opens ESP and VPE.
pub(crate) fn fastest_engine(candidates: Vec<Candidate>) -> Result<&'static str, BenchError> {
    let engines = Engines::start(candidates, &[])?;
    let chosen = choose(&engines, None, Suite::AES128GCM16)?;
    Ok(engines.available[chosen].name())
}

/// How many times as fast as the first of these engines each of them is.
fn in_turns(engines: &Engines, suite: Suite, some: &[usize], effort: Effort) -> Result<Vec<f64>, Wrong> {
    let of = |&engine: &usize| case(engine, suite, Carrier::Esp, Way::Outbound, INNER_BYTES);
    let cases: Vec<Case> = some.iter().map(of).collect();
    let take = side_by_side(&cases, engines, effort, None)?;
    Ok((0..cases.len()).map(|lane| take.ratio(lane, 0)).collect())
}

/// The fastest of several engines by what `take` says of those that take turns in it: how many times as fast
/// as the first each is, or what is wrong.
fn fastest(
    able: &[usize],
    mut take: impl FnMut(&[usize], Effort) -> Result<Vec<f64>, Wrong>,
) -> Result<usize, Wrong> {
    let (mut sound, mut wrong) = (Vec::new(), "there is none".to_owned());
    for &engine in able {
        match take(&[engine], Effort::Packets(ALONE)) {
            Ok(_) => sound.push(engine),
            Err(what) => wrong = what,
        }
    }
    let Some((&first, others)) = sound.split_first() else { return Err(wrong) };
    if others.is_empty() {
        return Ok(first);
    }
    let takes = (0..TAKES).map(|_| take(&sound, Effort::Time(TRIAL)));
    let takes = takes.collect::<Result<Vec<_>, Wrong>>()?;
    let mut best = (first, 1.0);
    for (lane, &engine) in sound.iter().enumerate().skip(1) {
        let ratios: Vec<f64> = takes.iter().filter_map(|ratios| ratios.get(lane).copied()).collect();
        let speed = median(&ratios).unwrap_or_default();
        if speed > best.1 * FASTER {
            best = (engine, speed);
        }
    }
    Ok(best.0)
}

#[cfg(test)]
mod tests {
    use testudo_crypto::{
        Capability, Direction, Engine, EngineError, Job, KeyId, KeyMaterial, PortableEngine,
    };
    use testudo_packet::ticks;

    use super::*;

    /// Engines of these speeds on a machine that is up to three times as fast in one take as in another, and
    /// differs by a hundredth within one.
    fn played(speeds: &'static [f64], seed: u64) -> impl FnMut(&[usize], Effort) -> Result<Vec<f64>, Wrong> {
        let mut draw = fastrand::Rng::with_seed(seed);
        move |engines: &[usize], _: Effort| {
            let machine = 1.0 + 2.0 * draw.f64();
            let rate = |&engine: &usize| machine * speeds[engine] * (0.995 + 0.01 * draw.f64());
            let rates: Vec<f64> = engines.iter().map(rate).collect();
            Ok(rates.iter().map(|rate| rate / rates[0]).collect())
        }
    }

    #[test]
    fn an_engine_that_is_faster_by_a_twentieth_is_chosen_in_each_run_and_one_that_is_as_fast_in_none() {
        for seed in 0..20 {
            let chosen = |speeds: &'static [f64]| fastest(&[0, 1, 2], played(speeds, seed));
            assert_eq!(chosen(&[1.0, 1.05, 0.5]), Ok(1), "{seed}");
            assert_eq!(chosen(&[1.05, 1.0, 0.5]), Ok(0), "{seed}");
            assert_eq!(chosen(&[1.0, 1.05, 1.105]), Ok(2), "{seed}");
            assert_eq!(chosen(&[1.0, 1.005, 1.0]), Ok(0), "{seed}");
        }
    }

    #[test]
    fn an_engine_that_fails_is_not_chosen_and_stops_nobody() {
        let mut machine = played(&[1.0, 9.0, 1.5], 1);
        let mut take = |engines: &[usize], effort: Effort| -> Result<Vec<f64>, Wrong> {
            if engines.contains(&1) {
                return Err("packets are missing".to_owned());
            }
            machine(engines, effort)
        };
        assert_eq!(fastest(&[0, 1, 2], &mut take), Ok(2));
        assert_eq!(fastest(&[0, 1], &mut take), Ok(0));
        assert_eq!(fastest(&[1], &mut take), Err("packets are missing".to_owned()));
    }

    /// The portable engine, which takes four times as long as it needs.
    struct Slow(PortableEngine);

    impl Engine for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }
        fn description(&self) -> String {
            "the portable engine, four times as slow".to_owned()
        }
        fn capability(&self, suite: Suite) -> Option<Capability> {
            self.0.capability(suite)
        }
        fn install(&mut self, key: &KeyMaterial, direction: Direction) -> Result<KeyId, EngineError> {
            self.0.install(key, direction)
        }
        fn remove(&mut self, key: KeyId) {
            self.0.remove(key);
        }
        fn is_synchronous(&self) -> bool {
            true
        }
        fn submit(&mut self, jobs: &mut [Job]) -> usize {
            let begun = ticks();
            let taken = self.0.submit(jobs);
            let end = begun.wrapping_add(4 * ticks().wrapping_sub(begun));
            while ticks() < end {
                std::hint::spin_loop();
            }
            taken
        }
    }

    fn slow() -> Candidate {
        let open = || -> Result<Box<dyn Engine>, EngineError> { Ok(Box::new(Slow(PortableEngine::new()))) };
        Candidate { name: "slow", open: Box::new(open) }
    }

    #[test]
    fn the_faster_of_two_engines_is_chosen_by_packets() {
        let engines = Engines::start(vec![slow()], &[]).unwrap();
        assert_eq!(engines.available.len(), 2, "{:?}", engines.missing);
        let chosen = |name| engines.available[choose(&engines, name, Suite::AES128GCM16).unwrap()].name();
        assert_eq!([chosen(None), chosen(Some("slow"))], ["portable", "slow"]);
        assert_eq!(fastest_engine(vec![slow()]).unwrap(), "portable");
    }
}
