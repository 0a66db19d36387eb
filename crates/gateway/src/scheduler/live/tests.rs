use super::*;
use fastrand::Rng;

const BOUND: u64 = 1000;

/// Of an engine where nothing waits.
fn offer(cost_ps: u64, expected_ps: u64) -> Offer {
    Offer { can: true, fails: false, has_room: true, cost_ps, expected_ps, alone_ps: expected_ps }
}

fn offers<const N: usize>(of: [Offer; N]) -> Offers {
    let mut all = Offers::default();
    all[..N].copy_from_slice(&of);
    all
}

/// Offers of up to so many engines, some of which cannot, are full, or cost the same as others.
fn random(random: &mut Rng) -> Offers {
    let count = random.usize(..=MAX_ENGINES);
    let mut all = Offers::default();
    for offer in &mut all[..count] {
        let (cost_ps, expected_ps) = (random.u64(..8) * 100, random.u64(..16) * 100);
        let [can, has_room, works] = [4, 4, 8].map(|one_in| random.u8(..one_in) > 0);
        let alone_ps = random.u64(..=expected_ps);
        *offer = Offer { can, fails: !works, has_room, cost_ps, expected_ps, alone_ps };
    }
    all
}

/// The rule, one sentence after the other, over lists.
fn best_by_lists(offers: &Offers) -> Option<usize> {
    let able: Vec<usize> = (0..MAX_ENGINES).filter(|at| offers[*at].can).collect();
    let working: Vec<usize> = able.iter().copied().filter(|at| !offers[*at].fails).collect();
    let with_room: Vec<usize> = working.iter().copied().filter(|at| offers[*at].has_room).collect();
    let in_time: Vec<usize> =
        with_room.iter().copied().filter(|at| offers[*at].expected_ps <= BOUND).collect();
    let least = |among: &[usize], of: fn(&Offer) -> u64| {
        let mut sorted = among.to_vec();
        sorted.sort_by_key(|at| of(&offers[*at]));
        sorted.first().copied()
    };
    if !in_time.is_empty() {
        return least(&in_time, |offer| offer.cost_ps);
    }
    let first = [with_room, working, able].into_iter().find(|among| !among.is_empty())?;
    least(&first, |offer| offer.expected_ps)
}

/// A class's engine, by the history of all that was offered.
#[derive(Default)]
struct Slow {
    engine: Option<usize>,
    /// Who was a twentieth cheaper, or a tenth sooner, for each job since the engine has the class.
    better: Vec<Option<usize>>,
    /// Jobs since then that counted for nothing.
    skipped: usize,
}

impl Slow {
    fn decide(&mut self, offers: &Offers) -> Option<(usize, Reason)> {
        let best = best_by_lists(offers)?;
        if offers.iter().filter(|offer| offer.can).count() == 1 {
            return Some((best, Reason::Only));
        }
        match self.engine {
            None => Some((self.begin(Some(best)).unwrap(), Reason::Best)),
            Some(mine) if !offers[mine].can => Some((best, Reason::Refused)),
            Some(mine) => Some(self.keep_or_change(mine, best, offers)),
        }
    }

    fn begin(&mut self, engine: Option<usize>) -> Option<usize> {
        *self = Self { engine, ..Self::default() };
        engine
    }

    fn withdraw(&mut self, engine: usize) {
        let rival = self.better.last().copied().flatten();
        if self.engine == Some(engine) {
            self.begin(None);
        } else if rival == Some(engine) {
            self.begin(self.engine);
        }
    }

    fn keep_or_change(&mut self, mine: usize, best: usize, offers: &Offers) -> (usize, Reason) {
        let [one, other] = [offers[mine], offers[best]];
        let in_time = [one, other].map(|offer| offer.expected_ps <= BOUND);
        let is_less = |its: u64, my: u64| its <= my - my / 10;
        let reason = match best != mine {
            true if one.fails && !other.fails => Reason::Failed,
            true if !one.has_room && other.has_room => Reason::Full,
            true if in_time == [false, true] => Reason::Late,
            true if in_time == [false; 2] && is_less(other.expected_ps, one.expected_ps) => Reason::Late,
            _ => Reason::Best,
        };
        let rival = self.better.last().copied().flatten();
        if rival.is_some_and(|rival| !offers[rival].can) && self.skipped < usize::from(STEADY) {
            self.skipped += 1;
            return (if reason == Reason::Best { mine } else { best }, reason);
        }
        self.skipped = 0;
        let is_cheaper = other.cost_ps <= one.cost_ps - one.cost_ps / 20;
        let counts = match reason {
            Reason::Best => best != mine && in_time == [true; 2] && is_cheaper,
            Reason::Late => one.alone_ps > BOUND || other.cost_ps <= one.cost_ps,
            _ => true,
        };
        self.better.push(counts.then_some(best));
        let recent = self.better.iter().rev().take(usize::from(STEADY));
        if recent.filter(|who| **who == Some(best)).count() == usize::from(STEADY) {
            self.begin(Some(best));
            return (best, reason);
        }
        (if reason == Reason::Best { mine } else { best }, reason)
    }
}

#[test]
fn the_best_engine_is_that_of_the_rule_over_lists() {
    let mut rng = Rng::with_seed(1);
    for _ in 0..100_000 {
        let offers = random(&mut rng);
        assert_eq!(best(&offers, BOUND), best_by_lists(&offers), "{offers:?}");
    }
}

/// Offers stay for a while, so that rivals win at times.
#[test]
fn decisions_are_those_of_the_history() {
    let mut rng = Rng::with_seed(2);
    let (mut changes, mut reasons) = (0, [0; Reason::ALL.len()]);
    for _ in 0..300 {
        let (mut choice, mut slow) = (Choice::default(), Slow::default());
        for _ in 0..20 {
            let mut offers = random(&mut rng);
            if rng.u8(..8) == 0 {
                let gone = rng.usize(..MAX_ENGINES);
                choice.withdraw(gone);
                slow.withdraw(gone);
            }
            for _ in 0..rng.usize(..120) {
                if rng.u8(..30) == 0 {
                    // A job of an SA whose key others take.
                    let at = rng.usize(..MAX_ENGINES);
                    offers[at].can = !offers[at].can && offers[at].expected_ps > 0;
                }
                let before = choice.engine;
                let decided = choice.decide(&offers, BOUND);
                assert_eq!(decided, slow.decide(&offers), "{offers:?}");
                changes += usize::from(before.is_some() && choice.engine != before);
                if let Some((_, reason)) = decided {
                    reasons[Reason::ALL.iter().position(|of| *of == reason).unwrap()] += 1;
                }
            }
        }
    }
    let [only, best, full, late, withdrawn, failed, refused, measured] = reasons;
    let decided = [only, best, full, late, failed, refused];
    assert!(changes > 100 && decided.iter().all(|count| *count > 100), "{changes} changes, {reasons:?}");
    assert_eq!([withdrawn, measured], [0, 0], "these are not decisions");
}

#[test]
fn no_engine_gets_a_job_that_it_cannot_do_or_that_another_would_have_back_in_time() {
    let mut rng = Rng::with_seed(3);
    let mut choice = Choice::default();
    for _ in 0..200_000 {
        let offers = random(&mut rng);
        let Some((engine, _)) = choice.decide(&offers, BOUND) else {
            assert!(offers.iter().all(|offer| !offer.can));
            continue;
        };
        assert!(offers[engine].can, "{engine} of {offers:?}");
        let is_good = |offer: &Offer| offer.is_open() && offer.is_within(BOUND);
        assert!(is_good(&offers[engine]) || !offers.iter().any(is_good), "{engine} of {offers:?}");
    }
}

#[test]
fn another_engine_must_be_a_twentieth_cheaper_for_a_while() {
    let mut choice = Choice::default();
    let [slow, fast] = [offers([offer(100, 100), offer(200, 200)]), offers([offer(100, 100), offer(95, 95)])];
    let nearly = offers([offer(100, 100), offer(96, 96)]);
    assert_eq!(choice.decide(&slow, BOUND), Some((0, Reason::Best)));
    (0..1000).for_each(|_| assert_eq!(choice.decide(&nearly, BOUND), Some((0, Reason::Best))));
    for _ in 1..STEADY {
        assert_eq!(choice.decide(&fast, BOUND), Some((0, Reason::Best)));
    }
    assert_eq!(choice.decide(&nearly, BOUND), Some((0, Reason::Best)), "in a row");
    for _ in 1..STEADY {
        assert_eq!(choice.decide(&fast, BOUND), Some((0, Reason::Best)));
    }
    assert_eq!(choice.decide(&fast, BOUND), Some((1, Reason::Best)));
    assert_eq!(choice.decide(&nearly, BOUND), Some((1, Reason::Best)), "and nothing goes back");
}

#[test]
fn a_job_that_would_be_late_goes_elsewhere_alone() {
    let mut choice = Choice::default();
    let idle = offers([offer(10, 500), offer(100, 100)]);
    let busy = offers([offer(10, 1001), offer(100, 100)]);
    let full = offers([Offer { has_room: false, ..offer(10, 500) }, offer(100, 100)]);
    let gone = offers([Offer { can: false, ..offer(10, 500) }, offer(100, 100), offer(120, 120)]);
    let decide = |choice: &mut Choice, offers| choice.decide(offers, BOUND).unwrap();
    assert_eq!(decide(&mut choice, &idle), (0, Reason::Best), "it costs less, though it takes longer");
    for _ in 0..200 {
        assert_eq!(decide(&mut choice, &busy), (1, Reason::Late));
        assert_eq!(decide(&mut choice, &full), (1, Reason::Full));
        assert_eq!(decide(&mut choice, &idle), (0, Reason::Best));
    }
    assert_eq!(decide(&mut choice, &gone), (1, Reason::Refused));
    assert_eq!(decide(&mut choice, &idle), (0, Reason::Best), "others of the class are still its own");
    choice.withdraw(0);
    assert_eq!(decide(&mut choice, &gone), (1, Reason::Best));
    let alone = offers([Offer { can: false, ..offer(10, 500) }, offer(100, 100)]);
    assert_eq!(decide(&mut choice, &alone), (1, Reason::Only));
}

/// Where no engine is in time, an outage of the one that has the jobs is not waited for.
#[test]
fn a_job_goes_at_once_to_who_has_it_back_a_tenth_sooner_if_nobody_is_in_time() {
    let mut choice = Choice::default();
    let decide = |choice: &mut Choice, offers: &Offers| choice.decide(offers, BOUND).unwrap();
    let stalled = offers([offer(10, 90_000), offer(100, 1_500)]);
    assert_eq!(decide(&mut choice, &offers([offer(10, 500), offer(100, 600)])), (0, Reason::Best));
    assert_eq!(decide(&mut choice, &stalled), (1, Reason::Late));
    let nearly = offers([offer(10, 1_600), offer(100, 1_500)]);
    assert_eq!(decide(&mut choice, &nearly), (0, Reason::Best), "not for less than a tenth");
    (1..STEADY).for_each(|_| assert_eq!(decide(&mut choice, &stalled), (1, Reason::Late)));
    assert_eq!(choice.engine, Some(0));
    assert_eq!(decide(&mut choice, &stalled), (1, Reason::Late));
    assert_eq!(choice.engine, Some(1), "late for so many jobs in a row");
}

/// An engine that is full or late for every job of a class has lost it: the class is told to be another's.
#[test]
fn an_engine_that_is_full_or_late_for_long_loses_its_class() {
    let idle = offers([offer(10, 500), offer(100, 100)]);
    let full = offers([Offer { has_room: false, ..offer(10, 500) }, offer(100, 100)]);
    let late = offers([offer(10, 1001), offer(100, 100)]);
    for (offers, reason) in [(full, Reason::Full), (late, Reason::Late)] {
        let mut choice = Choice::default();
        assert_eq!(choice.decide(&idle, BOUND), Some((0, Reason::Best)));
        for _ in 0..STEADY {
            assert_eq!(choice.engine, Some(0));
            assert_eq!(choice.decide(&offers, BOUND), Some((1, reason)));
        }
        assert_eq!((choice.engine, choice.decide(&offers, BOUND)), (Some(1), Some((1, Reason::Best))));
    }
}

/// While an engine inside `submit` does jobs that cost it much, as many come as make the next queue: a class
/// that moved there for a queue would stay for thousands.
#[test]
fn a_queue_gives_no_class_to_an_engine_that_costs_the_worker_more() {
    let mut choice = Choice::default();
    let idle = offers([offer(10, 500), offer(100, 100)]);
    let queue = offers([Offer { alone_ps: 500, ..offer(10, 1001) }, offer(100, 100)]);
    assert_eq!(choice.decide(&idle, BOUND), Some((0, Reason::Best)));
    for _ in 0..10 * STEADY {
        assert_eq!(choice.decide(&queue, BOUND), Some((1, Reason::Late)), "each alone");
    }
    assert_eq!(choice.decide(&idle, BOUND), Some((0, Reason::Best)), "and the class stays");
    // To one that costs no more it moves.
    let cheap = offers([Offer { alone_ps: 500, ..offer(10, 1001) }, offer(10, 100)]);
    (0..STEADY).for_each(|_| assert_eq!(choice.decide(&cheap, BOUND), Some((1, Reason::Late))));
    assert_eq!(choice.engine, Some(1));
}

#[test]
fn classes_end_at_their_lengths() {
    let classes = [0, 64, 65, 128, 129, 256, 512, 513, 1024, 1536, 1537, u32::MAX].map(class_of);
    assert_eq!(classes, [0, 0, 1, 1, 2, 2, 3, 4, 4, 5, 6, 6]);
}

/// One SA's key was refused by the engine that has the class, and another's by the one that is better.
#[test]
fn an_sa_whose_key_an_engine_refused_takes_the_class_from_no_other_sa() {
    let mut choice = Choice::default();
    let [mine, rival, other] = [offer(100, 100), offer(50, 50), offer(120, 120)];
    let without = |offer| Offer { can: false, ..offer };
    let decide = |choice: &mut Choice, of| choice.decide(&offers(of), BOUND).unwrap();
    assert_eq!(decide(&mut choice, [mine, without(rival), other]), (0, Reason::Best));
    for _ in 1..STEADY {
        assert_eq!(decide(&mut choice, [mine, rival, other]), (0, Reason::Best));
        assert_eq!(decide(&mut choice, [mine, without(rival), other]), (0, Reason::Best));
        assert_eq!(decide(&mut choice, [without(mine), offer(500, 500), other]), (2, Reason::Refused));
    }
    assert_eq!(decide(&mut choice, [mine, rival, other]), (1, Reason::Best), "64 that it could do");
    // A rival that nobody's key is taken by holds up none.
    for _ in 0..10 {
        assert_eq!(decide(&mut choice, [offer(10, 10), rival, other]), (1, Reason::Best));
    }
    let cheap = offer(20, 20);
    let changed = (0..).find(|_| decide(&mut choice, [without(mine), rival, cheap]).0 == 2).unwrap();
    assert_eq!(changed, 2 * usize::from(STEADY) - 1, "as many as were waited for, and a row");
}

#[test]
fn an_engine_that_fails_at_what_it_gets_loses_it() {
    let mut choice = Choice::default();
    let broken = offers([Offer { fails: true, ..offer(0, 0) }, offer(100, 2000)]);
    assert_eq!(choice.decide(&offers([offer(10, 10), offer(100, 100)]), BOUND), Some((0, Reason::Best)));
    (0..STEADY).for_each(|_| assert_eq!(choice.decide(&broken, BOUND), Some((1, Reason::Failed))));
    assert_eq!((choice.engine, choice.decide(&broken, BOUND)), (Some(1), Some((1, Reason::Best))));
}
