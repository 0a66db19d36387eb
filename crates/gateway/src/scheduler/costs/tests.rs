use super::super::live::STEADY;
use super::*;
use crate::clock::ManualClock;
use testudo_crypto::Direction;
use testudo_ipsec::SaRef;

const OF: Label = Label { rank: 0, class: 3 };
const BOTH: u8 = 0b11;
const BOUND: Duration = Duration::from_millis(1);

/// A device that has jobs elsewhere, and an engine that ends them inside `submit`.
const DEVICE: usize = 0;
const INSIDE: usize = 1;

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn at(time: u64) -> Moment {
    Moment(us(time))
}

/// The device costs 1 us of the worker and has a job for 100 us; the other one takes 5 us.
fn costs() -> Costs {
    let shares = Arc::new(SharedShares::new(vec!["device", "inside"], BOUND));
    let mut costs = Costs::new(BOUND, &[false, true], shares, Box::new(ManualClock::default()));
    costs.know(DEVICE, OF, us(100));
    costs.know_elsewhere(DEVICE, us(1), us(2));
    costs.know(INSIDE, OF, us(5));
    costs
}

fn id(ticket: u32) -> JobId {
    JobId { direction: Direction::Seal, sa: SaRef::NOBODY, ticket }
}

fn held(jobs: usize, room: usize) -> Held {
    Held { jobs, room, oldest: Duration::ZERO }
}

/// The device has so many jobs; decides of one and gives it.
fn decide(costs: &mut Costs, time: u64, jobs: usize) -> (usize, Reason) {
    costs.begin(at(time), |_| held(jobs, 1000));
    let (engine, reason) = costs.decide(OF, BOTH).expect("both can");
    costs.give(engine, OF, reason);
    (engine, reason)
}

fn apart(costs: &Costs) -> Duration {
    costs.shares.snapshot().apart
}

#[test]
fn a_device_gets_jobs_until_it_has_so_many_that_one_would_be_late() {
    let mut costs = costs();
    assert_eq!(decide(&mut costs, 0, 0), (DEVICE, Reason::Best));
    assert_eq!(decide(&mut costs, 1, 450), (DEVICE, Reason::Best), "450 jobs of 2 us, and 100 us");
    assert_eq!(decide(&mut costs, 1, 451), (INSIDE, Reason::Late));
    assert_eq!(decide(&mut costs, 1, 10), (DEVICE, Reason::Best));
    costs.handed_over(DEVICE, 9, true, us(9));
    assert_eq!(decide(&mut costs, 1, 10), (INSIDE, Reason::Full), "it has refused one");
}

/// In one submission: what it is given counts, and so does what the other one has to do before.
#[test]
fn what_a_submission_gives_counts_for_its_next_jobs() {
    let mut costs = costs();
    costs.begin(at(0), |_| held(440, 1000));
    let mut given = [0_u64; 2];
    for _ in 0..400 {
        let (engine, reason) = costs.decide(OF, BOTH).unwrap();
        costs.give(engine, OF, reason);
        given[engine] += 1;
    }
    assert!(given[DEVICE] >= 11 && given[INSIDE] >= 199, "{given:?}: until neither is within the bound");
    let by_time = given[DEVICE] * 2 + 980;
    assert!(by_time.abs_diff(given[INSIDE] * 5) < 300, "{given:?}: then by who has it back first");
}

/// A packet that came as the turn before began has waited for as long as that took. Were it not counted,
/// turns of the whole bound would follow each other, and what comes meanwhile would be late when it is seen.
#[test]
fn what_waited_for_the_turn_before_counts_for_engines_that_end_jobs_inside_submit() {
    let mut costs = costs();
    assert_eq!(decide(&mut costs, 0, 0), (DEVICE, Reason::Best));
    let given = |costs: &mut Costs, time| {
        costs.begin(at(time), |_| held(451, 1000));
        let is_inside = |_: &u32| {
            let (engine, reason) = costs.decide(OF, BOTH).unwrap();
            costs.give(engine, OF, reason);
            engine == INSIDE
        };
        (0..400).take_while(is_inside).count()
    };
    assert_eq!(given(&mut costs, 0), 200, "5 us each, in 1 ms");
    assert_eq!(given(&mut costs, 200), 160);
    assert_eq!(given(&mut costs, 2000), 100, "half of the bound is left after any turn");
    assert_eq!(given(&mut costs, 2000), 100, "another submission of that turn");
}

/// Nobody looks at ports and engines meanwhile.
#[test]
fn what_has_waited_too_long_goes_on_a_quarter_of_the_bound_at_a_time() {
    let mut costs = costs();
    assert_eq!(costs.most_at_once(), 50, "of 5 us; the device's 100 us are none of the worker's");
    let dear = Label { rank: 1, class: 6 };
    costs.know(INSIDE, dear, us(100));
    assert_eq!(costs.most_at_once(), 2, "it is not known what waits");
    costs.know(INSIDE, dear, us(1000));
    assert_eq!(costs.most_at_once(), 1);
}

/// Places a submission, job by job or by runs.
fn placed(
    costs: &mut Costs,
    time: u64,
    load: (usize, usize),
    count: u32,
    by_runs: bool,
) -> Vec<(usize, Reason)> {
    costs.begin(at(time), |_| held(load.0, load.1));
    let mut all: Vec<(usize, Reason)> = Vec::new();
    for _ in 0..count {
        let last = all.last().copied().filter(|(_, reason)| by_runs && *reason == Reason::Best);
        let next = match last {
            Some((engine, reason)) if costs.goes_on(OF, engine, BOTH) => (engine, reason),
            _ => costs.decide(OF, BOTH).unwrap(),
        };
        costs.give(next.0, OF, next.1);
        all.push(next);
    }
    all
}

/// A run is decided of as each of its jobs would be.
#[test]
fn jobs_of_a_run_go_where_each_would_go_alone() {
    println!("seed 5");
    let mut random = fastrand::Rng::with_seed(5);
    let [mut by_job, mut by_run] = [costs(), costs()];
    let mut seen = [0; 2];
    for step in 0..2000_u64 {
        let load = (random.usize(..600), [0, 5, 100, 1000][random.usize(..4)]);
        let count = random.u32(1..320);
        let [one, other] = [(&mut by_job, false), (&mut by_run, true)]
            .map(|(costs, by_runs)| placed(costs, step * 10_000, load, count, by_runs));
        assert_eq!(one, other, "step {step}");
        one.iter().for_each(|(engine, _)| seen[*engine] += 1);
        let took = us(random.u64(1..2000));
        let labels = vec![OF; one.iter().filter(|(engine, _)| *engine == INSIDE).count()];
        for costs in [&mut by_job, &mut by_run] {
            costs.ended_inside(INSIDE, &labels, took);
        }
    }
    assert!(seen.iter().all(|jobs| *jobs > 10_000), "{seen:?}");
}

/// Nothing is decided while nothing can change; but a look does not take long to come.
#[test]
fn among_engines_that_end_jobs_inside_submit_another_is_found_by_the_next_look() {
    let shares = Arc::new(SharedShares::new(vec!["first", "second"], BOUND));
    let mut costs = Costs::new(BOUND, &[true; 2], shares, Box::new(ManualClock::default()));
    costs.know(0, OF, us(5));
    costs.know(1, OF, us(6));
    // A turn far beyond the bound is no reason for a change.
    let first = placed(&mut costs, 0, (0, 0), 1000, true);
    assert!(first.iter().all(|placed| *placed == (0, Reason::Best)), "{first:?}");
    costs.know(1, OF, us(3));
    let most = usize::try_from(PUBLISH).unwrap() + usize::from(STEADY);
    let then = placed(&mut costs, 1, (0, 0), 1000, true);
    assert!(then[most..].iter().all(|placed| *placed == (1, Reason::Best)), "{then:?}");
    // One that alone can do a job is told so.
    assert_eq!(costs.decide(OF, 0b01), Some((0, Reason::Only)));
}

#[test]
fn a_job_that_stays_away_makes_its_engine_late_before_it_is_back() {
    let mut costs = costs();
    decide(&mut costs, 0, 0);
    costs.follow(DEVICE, OF, id(1));
    costs.look(at(500));
    assert_eq!(decide(&mut costs, 900, 1), (DEVICE, Reason::Best));
    costs.look(at(1000));
    assert_eq!(decide(&mut costs, 1001, 1), (INSIDE, Reason::Late));
    costs.gave_back(DEVICE, at(1002), us(1), [id(1)].into_iter(), 0);
    assert_eq!(decide(&mut costs, 1003, 0), (DEVICE, Reason::Best), "one measurement is an eighth");
    assert_eq!(apart(&costs), Duration::ZERO);
}

/// A gap in which the worker did not look teaches nothing.
#[test]
fn time_that_the_worker_did_not_have_is_counted_apart() {
    let mut costs = costs();
    decide(&mut costs, 0, 0);
    costs.follow(DEVICE, OF, id(1));
    let before = costs.offers(OF, BOTH)[DEVICE].expected_ps;
    costs.look(at(50_000));
    costs.gave_back(DEVICE, at(50_000), us(1), [id(1)].into_iter(), 0);
    costs.begin(at(50_000), |_| held(1, 1000));
    assert_eq!(costs.offers(OF, BOTH)[DEVICE].expected_ps, before);
    assert_eq!(apart(&costs), us(50_000));
    // Nor does a submission that was interrupted, unless that goes on.
    for _ in 0..2 {
        costs.ended_inside(INSIDE, &[OF; 4], us(2000));
        assert_eq!(costs.offers(OF, BOTH)[INSIDE].cost_ps, 5_000_000);
    }
    assert_eq!(apart(&costs), us(50_000 + 2 * 1980));
    costs.ended_inside(INSIDE, &[OF; 4], us(2000));
    assert!(costs.offers(OF, BOTH)[INSIDE].cost_ps > 5_000_000);
}

/// What an engine was asked for so that something is known of it teaches nothing where the worker was away:
/// it is asked again with the next job.
#[test]
fn an_engine_whose_first_measurement_was_spoiled_is_measured_again_at_once() {
    let shares = Arc::new(SharedShares::new(vec!["device", "inside"], BOUND));
    let mut costs = Costs::new(BOUND, &[false, true], shares, Box::new(ManualClock::default()));
    costs.know(INSIDE, OF, us(5));
    for (number, time) in [(1, 0), (2, 60_000)] {
        assert_eq!(decide(&mut costs, time, 0), (DEVICE, Reason::Measured));
        costs.follow(DEVICE, OF, id(number));
        assert_eq!(decide(&mut costs, time + 1, 1).1, Reason::Best, "one job is asked for");
        costs.look(at(time + 50_000));
        costs.gave_back(DEVICE, at(time + 50_000), us(1), [id(number)].into_iter(), 0);
        assert_eq!(costs.known(DEVICE, OF), 0);
    }
}

/// Slow suites make turns longer than the bound. That is the worker's own work: what is away meanwhile is
/// learned of.
#[test]
fn a_turn_that_is_long_by_its_own_submissions_teaches() {
    let mut costs = costs();
    decide(&mut costs, 0, 0);
    costs.follow(DEVICE, OF, id(1));
    (0..4).for_each(|_| costs.ended_inside(INSIDE, &[OF; 100], us(500)));
    costs.look(at(2400));
    costs.gave_back(DEVICE, at(2400), us(1), [id(1)].into_iter(), 0);
    assert_eq!(
        (costs.known(DEVICE, OF), apart(&costs)),
        (387_500_000, Duration::ZERO),
        "an eighth of 2300 us"
    );
    // The next one is away while the worker is, too.
    decide(&mut costs, 2400, 0);
    costs.follow(DEVICE, OF, id(2));
    costs.ended_inside(INSIDE, &[OF; 100], us(500));
    costs.look(at(4400));
    assert_eq!(apart(&costs), us(1499), "less 500 us inside, and 1 us of the last poll");
    costs.gave_back(DEVICE, at(4400), us(1), [id(2)].into_iter(), 0);
    assert_eq!(costs.known(DEVICE, OF), 387_500_000);
}

/// Nothing is learned of it, but it is away.
#[test]
fn a_device_that_stalls_is_late_though_the_worker_did_not_look() {
    let mut costs = costs();
    decide(&mut costs, 0, 0);
    costs.follow(DEVICE, OF, id(1));
    for turn in 1..100 {
        costs.look(at(turn * 2000));
        costs.gave_back(DEVICE, at(turn * 2000), us(1), [].into_iter(), 1);
        assert_eq!(
            decide(&mut costs, turn * 2000, 1),
            (INSIDE, if turn < 65 { Reason::Late } else { Reason::Best })
        );
    }
    assert_eq!(costs.known(DEVICE, OF), 100_000_000);
}

/// An engine with threads of its own does few jobs at once.
#[test]
fn a_job_that_ends_early_is_followed_no_longer() {
    let mut costs = costs();
    for turn in 0..100 {
        assert_eq!(decide(&mut costs, turn * 2000, 1), (DEVICE, Reason::Best));
        costs.follow(DEVICE, OF, id(1));
        costs.ended_early(DEVICE, id(2), us(10));
        costs.ended_early(DEVICE, id(1), us(20));
        costs.look(at(turn * 2000));
    }
    assert!(costs.known(DEVICE, OF).abs_diff(20_000_000) < 100_000, "{} ps", costs.known(DEVICE, OF));
    // And should one be lost sight of: nothing is away from an engine that has nothing.
    decide(&mut costs, 200_000, 0);
    costs.follow(DEVICE, OF, id(3));
    assert_eq!(decide(&mut costs, 210_000, 1), (INSIDE, Reason::Late));
    assert_eq!(decide(&mut costs, 210_000, 0), (DEVICE, Reason::Best));
}

/// The time that the device takes for a job among others, as it is known, in picoseconds.
fn between(costs: &Costs) -> u64 {
    costs.loads[DEVICE].between_ps
}

/// Otherwise it would be the time between two jobs that the device is given.
#[test]
fn an_engine_is_timed_while_it_has_a_batch_waiting() {
    let mut costs = costs();
    let ids: Vec<_> = (0..8).map(id).collect();
    let give_back = |costs: &mut Costs, turn: u64, left| {
        costs.look(at(turn * 24));
        costs.gave_back(DEVICE, at(turn * 24), us(1), ids.iter().copied(), left);
    };
    (0..100).for_each(|turn| give_back(&mut costs, turn, 63));
    assert_eq!(between(&costs), 2_000_000, "it waits for jobs");
    (100..200).for_each(|turn| give_back(&mut costs, turn, 64));
    assert!(between(&costs).abs_diff(3_000_000) < 100_000, "8 in 24 us: {} ps", between(&costs));
    let known = between(&costs);
    costs.set_batch(DEVICE, Some(256));
    (200..300).for_each(|turn| give_back(&mut costs, 1000 + 2 * turn, 255));
    assert_eq!(between(&costs), known, "it wants 256");
    // One window that an idle moment is in counts for nothing.
    (0..1000).for_each(|turn| give_back(&mut costs, 2000 + turn * 2, if turn % 7 == 0 { 0 } else { 999 }));
    assert_eq!(between(&costs), known);
    (0..100).for_each(|_| costs.learn_between(DEVICE, us(7)));
    assert!(between(&costs).abs_diff(7_000_000) < 100_000, "{} ps", between(&costs));
}

/// Under little load chunks do not fill a device: what they take for each job is no measure of a queue.
#[test]
fn a_small_chunk_makes_the_time_between_two_jobs_no_longer() {
    let mut costs = costs();
    costs.learn_between_at_most(DEVICE, us(4));
    assert_eq!(between(&costs), 2_000_000);
    costs.learn_between_at_most(DEVICE, us(1));
    assert_eq!(between(&costs), 1_750_000, "a quarter");
    costs.loads[DEVICE].between_ps = 0;
    costs.learn_between_at_most(DEVICE, us(4));
    assert_eq!(between(&costs), 4_000_000, "nothing was known");
}

#[test]
fn of_several_suites_the_longest_time_between_two_jobs_counts() {
    let mut costs = costs();
    costs.know_elsewhere(DEVICE, us(1), us(9));
    costs.know_elsewhere(DEVICE, us(1), us(3));
    assert_eq!(between(&costs), 9_000_000);
}

#[test]
fn what_is_expected_follows_what_is_measured_of_either_kind() {
    let mut costs = costs();
    for n in 0..200 {
        costs.ended_inside(INSIDE, &[OF; 10], us(80));
        costs.begin(at(1000 * u64::from(n)), |_| held(0, 1000));
        costs.give(DEVICE, OF, Reason::Best);
        costs.follow(DEVICE, OF, id(n));
        costs.look(at(1000 * u64::from(n) + 300));
        costs.gave_back(DEVICE, at(1000 * u64::from(n) + 300), us(1), [id(n)].into_iter(), 0);
    }
    costs.begin(at(300_000), |_| held(0, 1000));
    let offers = costs.offers(OF, BOTH);
    let close = |ps: u64, us: u64| ps.abs_diff(us * 1_000_000) < us * 50_000;
    assert!(close(offers[INSIDE].cost_ps, 8) && close(offers[DEVICE].expected_ps, 300), "{offers:?}");
}

/// What the engine inside takes for a job, as it is known, in picoseconds.
fn known(costs: &Costs) -> u64 {
    costs.known(INSIDE, OF)
}

/// Within so many percent of 5 us.
fn is_near(ps: u64, percent: u64) -> bool {
    ps.abs_diff(5_000_000) <= 50_000 * percent
}

/// A submission is one measurement, however many jobs it has.
#[test]
fn an_interruption_changes_an_estimate_by_little_and_not_for_long() {
    for jobs in [1, 64, 319] {
        let mut costs = costs();
        let labels = vec![OF; jobs];
        let took = us(5 * u64::try_from(jobs).unwrap());
        costs.ended_inside(INSIDE, &labels, took);
        costs.ended_inside(INSIDE, &labels, took + us(100));
        assert!(is_near(known(&costs), 13), "{jobs} jobs: {} ps", known(&costs));
        (0..20).for_each(|_| costs.ended_inside(INSIDE, &labels, took));
        assert!(is_near(known(&costs), 1), "{jobs} jobs: {} ps", known(&costs));
    }
}

#[test]
fn noise_of_a_twentieth_leaves_an_estimate_near_the_truth() {
    println!("seed 4");
    let mut random = fastrand::Rng::with_seed(4);
    for jobs in [64, 319] {
        let mut costs = costs();
        for _ in 0..1000 {
            let took_ns = jobs * 50 * random.u64(95..=105);
            costs.ended_inside(
                INSIDE,
                &vec![OF; usize::try_from(jobs).unwrap()],
                Duration::from_nanos(took_ns),
            );
            assert!(is_near(known(&costs), 5), "{jobs} jobs: {} ps", known(&costs));
        }
    }
}

/// Far below the bound, too: a worker that is interrupted for a tenth of a millisecond was interrupted.
#[test]
fn an_interruption_below_the_bound_is_counted_apart() {
    let mut costs = costs();
    costs.ended_inside(INSIDE, &[OF; 2], us(110));
    assert_eq!((known(&costs), apart(&costs)), (5_000_000, us(100)));
    for _ in 0..40 {
        costs.ended_inside(INSIDE, &[OF; 2], us(110));
    }
    assert!(known(&costs) > 50_000_000, "what goes on was none: {} ps", known(&costs));
}

/// Those of a class that is not known have what is left of the time.
#[test]
fn what_is_not_known_is_learned_beside_what_is() {
    let mut costs = costs();
    let other = Label { rank: 2, class: 6 };
    costs.ended_inside(INSIDE, &[OF, OF, other, other], us(30));
    let of_other = |costs: &Costs| costs.known(INSIDE, other);
    assert_eq!((known(&costs), of_other(&costs)), (5_000_000, 10_000_000));
    costs.ended_inside(INSIDE, &[OF, OF, other, other], us(60));
    // An eighth, more of it of what takes longer; but for rounding.
    assert!(known(&costs).abs_diff(5_375_000) < 10 && of_other(&costs) == 11_250_000);
}

/// Who gets no jobs of a class is measured again, once a second at most.
#[test]
fn an_engine_without_jobs_is_measured_now_and_then() {
    let mut costs = costs();
    let mut measured = 0;
    for step in 0..50_000 {
        let (engine, reason) = decide(&mut costs, step * 200, 0);
        assert_eq!(reason == Reason::Measured, engine == INSIDE, "at {step}");
        measured += u32::from(reason == Reason::Measured);
    }
    assert!((8..=10).contains(&measured), "{measured} times in 10 seconds");
}

#[test]
fn an_engine_that_nothing_is_known_of_is_measured_with_the_first_job() {
    let mut costs = costs();
    let other = Label { rank: 1, class: 0 };
    costs.begin(at(0), |_| held(0, 1000));
    let decided = [(); 3].map(|()| {
        let (engine, reason) = costs.decide(other, BOTH).unwrap();
        costs.give(engine, other, reason);
        costs.follow(engine, other, id(7));
        (engine, reason)
    });
    assert_eq!(decided[..2], [(DEVICE, Reason::Measured), (INSIDE, Reason::Measured)]);
    assert_eq!(decided[2].1, Reason::Best);
}

/// Two suites that always come together: their times are found as their shares differ.
#[test]
fn suites_of_mixed_submissions_find_their_own_times() {
    println!("seed 6");
    let (mut costs, mut random) = (costs(), fastrand::Rng::with_seed(6));
    let all = [OF, Label { rank: 1, class: 3 }, Label { rank: 2, class: 0 }];
    let truth_ns = [250, 25_000, 1_000];
    all.iter().for_each(|of| costs.know(INSIDE, *of, us(5)));
    for _ in 0..20_000 {
        let counts = [(); 3].map(|()| random.usize(1..100));
        let labels: Vec<_> = all.iter().zip(counts).flat_map(|(of, count)| vec![*of; count]).collect();
        let took_ns: usize = truth_ns.iter().zip(counts).map(|(time, count)| time * count).sum();
        costs.ended_inside(INSIDE, &labels, Duration::from_nanos(took_ns.try_into().unwrap()));
    }
    for (of, truth_ns) in all.into_iter().zip([250_000_u64, 25_000_000, 1_000_000]) {
        let known = costs.known(INSIDE, of);
        assert!(known.abs_diff(truth_ns) < truth_ns / 5, "{known} ps, not {truth_ns}");
    }
    assert!(
        costs.parts.as_flattened().iter().all(|part| *part == (0, 0)),
        "nothing is left for the next one"
    );
}

/// An engine with threads of its own, which does up to 16 jobs at once and hands over what is more: 0.3 us
/// against 0.05 us for each. The other one takes 0.2 us.
fn turn(costs: &mut Costs, number: u64, count: u32) -> [u32; 2] {
    let (now, mut given, mut followed) = (at(number * 1000), [0_u32; 2], None);
    costs.look(now);
    costs.begin(now, |_| held(0, 1000));
    let decided: Vec<_> = (0..count)
        .map(|_| {
            let (engine, reason) = costs.decide(OF, BOTH).unwrap();
            costs.give(engine, OF, reason);
            engine
        })
        .collect();
    for engine in decided {
        costs.follow(engine, OF, id(given[engine]));
        followed = followed.or((engine == DEVICE).then(|| id(given[engine])));
        given[engine] += 1;
    }
    let ns = |count: u32, each: u64| Duration::from_nanos(u64::from(count) * each);
    let [elsewhere, inside] = given;
    let took = ns(elsewhere, if elsewhere > 16 { 50 } else { 300 });
    costs.handed_over(DEVICE, usize::try_from(elsewhere).unwrap(), false, took);
    match followed {
        Some(id) if elsewhere <= 16 => costs.ended_early(DEVICE, id, took),
        _ => costs.gave_back(DEVICE, now, ns(elsewhere, 20), (0..elsewhere).map(id), 0),
    }
    costs.ended_inside(INSIDE, &vec![OF; usize::try_from(inside).unwrap()], ns(inside, 200));
    given
}

/// What an engine costs for few jobs says nothing of what it costs for many: it is asked for as many as show
/// it, and wins back what it lost.
#[test]
fn an_engine_that_costs_more_for_few_jobs_has_its_class_again_when_there_are_many() {
    let mut costs = costs();
    costs.know(INSIDE, OF, Duration::from_nanos(200));
    costs.know(DEVICE, OF, us(1));
    let few = (0..5_000).map(|number| turn(&mut costs, number, 12)).skip(1000);
    let few = few.fold([0, 0], |sum: [u32; 2], given| [sum[0] + given[0], sum[1] + given[1]]);
    assert!(few[0] * 20 < few[1], "{few:?}: of few, it has little");
    let many: Vec<_> = (5_000..50_000).map(|number| turn(&mut costs, number, 300)).collect();
    let first = many.iter().position(|given| given[0] > 250).expect("it has its class again");
    // A measurement a second, each of which moves its cost by a sixteenth.
    assert!(first < 40_000, "after {first} turns");
    assert!(many[first + 1000..].iter().all(|given| given[0] > 200), "and keeps it");
}

/// A chunk that stays away is seen, whatever is followed.
#[test]
fn an_engine_whose_oldest_jobs_stay_away_is_late() {
    let mut costs = costs();
    assert_eq!(decide(&mut costs, 0, 0), (DEVICE, Reason::Best));
    for _ in 0..200 {
        costs.begin(at(1), |_| Held { oldest: us(1001), ..held(10, 1000) });
        let (engine, reason) = costs.decide(OF, BOTH).unwrap();
        assert_eq!(engine, INSIDE);
        assert!(matches!(reason, Reason::Late | Reason::Best));
    }
}

#[test]
fn an_engine_that_fails_is_asked_now_and_then_until_it_does_a_job() {
    let mut costs = costs();
    assert_eq!(decide(&mut costs, 0, 0), (DEVICE, Reason::Best));
    (0..FAILING).for_each(|_| costs.failed(DEVICE, OF));
    assert_eq!(decide(&mut costs, 1, 0), (INSIDE, Reason::Failed));
    let mut asked = 0;
    for step in 1..20_000 {
        let (engine, reason) = decide(&mut costs, step * 1000, 0);
        assert_eq!(engine == DEVICE, reason == Reason::Measured);
        if engine == DEVICE {
            costs.failed(DEVICE, OF);
            asked += 1;
        }
    }
    assert!((10..=20).contains(&asked), "{asked} times in 20 seconds");
    // One is done.
    costs.begin(at(30_000_000), |_| held(0, 1000));
    costs.follow(DEVICE, OF, id(1));
    costs.gave_back(DEVICE, at(30_000_100), us(1), [id(1)].into_iter(), 0);
    let back = (0..).find(|step| decide(&mut costs, 30_001_000 + step, 0) == (DEVICE, Reason::Best));
    assert_eq!(back, Some(u64::from(STEADY) - 1), "it is the better one, for so many jobs");
}

/// A device that is busy with others is asked for a job of a suite that is new, and that job is followed.
#[test]
fn a_job_that_an_engine_is_asked_for_is_followed_before_others() {
    let mut costs = costs();
    let new = Label { rank: 1, class: 0 };
    assert_eq!(decide(&mut costs, 0, 0), (DEVICE, Reason::Best));
    costs.know(INSIDE, new, us(5));
    costs.begin(at(1), |_| held(10, 1000));
    assert_eq!(costs.decide(OF, BOTH), Some((DEVICE, Reason::Best)));
    assert_eq!(costs.decide(new, BOTH), Some((DEVICE, Reason::Measured)));
    assert_eq!(costs.decide(new, BOTH), Some((INSIDE, Reason::Best)), "one is enough");
    costs.follow(DEVICE, OF, id(1));
    costs.follow(DEVICE, new, id(2));
    costs.look(at(51));
    costs.gave_back(DEVICE, at(51), us(1), [id(1), id(2)].into_iter(), 0);
    assert!(costs.known(DEVICE, new) > 0);
}

/// It was of packets that a cache had.
#[test]
fn what_was_measured_before_packets_came_counts_until_the_first_of_them_are_measured() {
    let mut costs = costs();
    costs.groups[OF.rank][OF.class] = Group::default();
    costs.presume(INSIDE, OF, us(4));
    costs.presume(DEVICE, OF, us(50));
    assert_eq!([INSIDE, DEVICE].map(|engine| costs.known(engine, OF)), [4_000_000, 50_000_000]);
    assert_eq!(decide(&mut costs, 0, 0), (DEVICE, Reason::Measured));
    assert_eq!(decide(&mut costs, 1, 0), (DEVICE, Reason::Best));
    for (took, known) in [(7, 7), (6, 6), (9, 6)] {
        costs.ended_inside(INSIDE, &[OF], us(took));
        let now = costs.known(INSIDE, OF);
        assert!(now.abs_diff(known * 1_000_000) < 2, "{now} ps: the least of three");
    }
    costs.ended_inside(INSIDE, &[OF], us(10));
    let now = costs.known(INSIDE, OF);
    assert!(now.abs_diff(6_500_000) < 3, "{now} ps: an eighth");
}

/// Jobs of a submission that an engine is asked for at the start, which costs so much more than another.
fn asked_at_the_start(times: u64) -> usize {
    let shares = Arc::new(SharedShares::new(vec!["one", "other"], BOUND));
    let mut costs = Costs::new(BOUND, &[true; 2], shares, Box::new(ManualClock::default()));
    costs.know(0, OF, us(1));
    costs.presume(1, OF, us(times));
    costs.begin(at(0), |_| held(0, 0));
    (0..100).filter(|_| costs.decide(OF, BOTH).is_some_and(|(_, reason)| reason == Reason::Measured)).count()
}

/// The first packets do not pay for what is known: 3DES is so much dearer on a processor than on a device
/// that all lengths together would take milliseconds.
#[test]
fn an_engine_that_cannot_win_is_asked_for_one_job_at_the_start() {
    assert_eq!([2, 3].map(asked_at_the_start), [32, 1]);
}

/// Its code and keys are in no cache then: few jobs look dearer than many are.
#[test]
fn an_engine_that_is_measured_after_a_pause_is_measured_again_at_once() {
    let shares = Arc::new(SharedShares::new(vec!["one", "other"], BOUND));
    let clock = ManualClock::default();
    let mut costs = Costs::new(BOUND, &[true; 2], shares, Box::new(clock.clone()));
    costs.know(0, OF, us(1));
    costs.know(1, OF, us(2));
    let known = |costs: &Costs| costs.known(1, OF);
    costs.ended_inside(1, &[OF; 32], us(64));
    assert_eq!(known(&costs), 2_000_000);
    assert_eq!(decide(&mut costs, 0, 0), (0, Reason::Best));
    clock.advance(us(2_000_000));
    costs.groups[OF.rank][OF.class].decisions = 0;
    assert_eq!(decide(&mut costs, 2_000_000, 0), (1, Reason::Measured));
    costs.ended_inside(1, &[OF; 32], us(90));
    assert_eq!((known(&costs), costs.asks_again()), (2_000_000, true), "after a pause");
    assert_eq!(decide(&mut costs, 2_000_050, 0), (1, Reason::Measured));
    assert!(!costs.asks_again());
    costs.ended_inside(1, &[OF; 32], us(80));
    assert!(known(&costs).abs_diff(2_062_500) < 2, "{}", known(&costs));
    assert_eq!(decide(&mut costs, 2_000_100, 0), (0, Reason::Best));
    // Where no more jobs of the kind come that is soon forgotten.
    clock.advance(us(2_000_000));
    costs.groups[OF.rank][OF.class].decisions = 0;
    assert_eq!(decide(&mut costs, 4_000_000, 0), (1, Reason::Measured));
    costs.ended_inside(1, &[OF; 32], us(90));
    (0..5).for_each(|turn| costs.begin(at(4_000_000 + turn), |_| held(0, 0)));
    assert!(!costs.asks_again());
}

/// Other suites are other code, with other keys.
#[test]
fn an_engine_is_measured_again_after_a_pause_of_the_suite_whatever_else_it_did() {
    let shares = Arc::new(SharedShares::new(vec!["one", "other"], BOUND));
    let clock = ManualClock::default();
    let mut costs = Costs::new(BOUND, &[true; 2], shares, Box::new(clock.clone()));
    let another = Label { rank: 1, class: 0 };
    costs.know(0, OF, us(1));
    costs.know(1, OF, us(2));
    costs.know(1, another, us(1));
    costs.ended_inside(1, &[OF; 32], us(64));
    assert_eq!(decide(&mut costs, 0, 0), (0, Reason::Best));
    clock.advance(us(2_000_000));
    costs.groups[OF.rank][OF.class].decisions = 0;
    costs.ended_inside(1, &[another; 32], us(32));
    assert_eq!(decide(&mut costs, 2_000_000, 0), (1, Reason::Measured));
    costs.ended_inside(1, &[OF; 32], us(90));
    assert_eq!((costs.known(1, OF), costs.asks_again()), (2_000_000, true), "its suite had a pause");
    assert_eq!(decide(&mut costs, 2_000_050, 0), (1, Reason::Measured));
    costs.ended_inside(1, &[OF; 32], us(80));
    assert!(costs.known(1, OF).abs_diff(2_062_500) < 2, "{}", costs.known(1, OF));
}

#[test]
fn an_engine_is_asked_again_for_as_many_jobs_as_before() {
    let shares = Arc::new(SharedShares::new(vec!["one", "other"], BOUND));
    let clock = ManualClock::default();
    let mut costs = Costs::new(BOUND, &[true; 2], shares, Box::new(clock.clone()));
    costs.know(0, OF, us(1));
    costs.presume(1, OF, us(3));
    costs.ended_inside(1, &[Label { class: 0, ..OF }], us(1));
    clock.advance(us(2000));
    let measured = |costs: &mut Costs, time| {
        costs.begin(at(time), |_| held(0, 0));
        let decided = (0..100).filter_map(|_| costs.decide(OF, BOTH));
        decided.filter(|(_, reason)| *reason == Reason::Measured).count()
    };
    assert_eq!(measured(&mut costs, 2000), 1);
    costs.ended_inside(1, &[OF], us(9));
    assert_eq!((costs.known(1, OF), costs.asks_again()), (3_000_000, true));
    assert_eq!(measured(&mut costs, 2050), 1);
}

/// What two engines take for a class is compared: neither is to be a guess of what a submission of many
/// suites and lengths took.
#[test]
fn who_is_asked_and_who_has_the_class_do_its_jobs_by_themselves() {
    let shares = Arc::new(SharedShares::new(vec!["one", "other", "third"], BOUND));
    let mut costs = Costs::new(BOUND, &[true; 3], shares, Box::new(ManualClock::default()));
    costs.know(0, OF, us(1));
    costs.presume(1, OF, us(2));
    let alone = |costs: &Costs| [0, 1, 2].map(|engine| costs.alone(engine));
    costs.begin(at(0), |_| held(0, 0));
    assert_eq!(alone(&costs), [None; 3]);
    assert_eq!(costs.decide(OF, BOTH), Some((1, Reason::Measured)));
    assert_eq!(alone(&costs), [None, Some((OF, 1)), None], "nobody has the class yet");
    let last = (0..40).map(|_| costs.decide(OF, BOTH)).last();
    assert_eq!(last, Some(Some((0, Reason::Best))));
    assert_eq!(alone(&costs), [Some((OF, MANY_ALONE)), Some((OF, 1)), None]);
    costs.begin(at(1), |_| held(0, 0));
    assert_eq!(alone(&costs), [None; 3], "in that submission");
}
