//! Judged by a worker of known cost and a meter of known watts.

use super::*;
use crate::harness::Unconverged;
use crate::harness::sleeper::{CYCLES_PER_SECOND, Fault, Sleeper};

const SIZES: Sizes = Sizes::Bytes(500);

fn plan() -> Plan {
    Plan { trial: Duration::from_secs(1), ..Plan::default() }
}

fn assert_within_2_percent(found: f64, known: f64) {
    assert!((found / known - 1.0).abs() <= 0.02, "found {found}, known {known}");
}

#[test]
fn what_a_known_worker_takes_at_a_rate_is_found() {
    // Long enough that a pause more or less is no percent of it.
    let plan = Plan { trial: Duration::from_secs(4), repetitions: 1, ..Plan::default() };
    for (rate, share) in [(100_000.0, 0.1), (400_000.0, 0.25), (200_000.0, 0.75)] {
        let mut device = Sleeper::new(rate);
        let mut meters = [device.meter(Fault::None)];
        let steps = efficiency(&mut device, &mut meters, SIZES, share * rate, &plan).unwrap();
        let held: Vec<_> = steps.iter().filter(|step| step.is_held).collect();
        // Packets that come in one pause are what the queue holds: longer pauses lose some.
        let fits = |us: &&u64| share * rate * (**us as f64) / 1e6 <= 1024.0;
        let longest = PAUSE_STEPS_US.iter().take_while(fits).last().unwrap();
        assert_eq!(held.last().unwrap().pause, Duration::from_micros(*longest), "{share} of {rate}");
        let ended = *longest == *PAUSE_STEPS_US.last().unwrap();
        assert_eq!((steps.last().unwrap().is_held, held.len()), (ended, steps.len() - usize::from(!ended)));
        for step in held {
            // Without a pause a worker polls all the time; with one, it is awake for its packets.
            let awake = if step.pause.is_zero() { 1.0 } else { share };
            assert_within_2_percent(step.awake_share.unwrap(), awake);
            assert_within_2_percent(step.row.busy_share.unwrap(), share);
            let bytes = share * rate * 500.0;
            assert_within_2_percent(step.cycles_per_byte.unwrap(), awake * CYCLES_PER_SECOND / bytes);
            assert_within_2_percent(step.busy_cycles_per_byte.unwrap(), CYCLES_PER_SECOND / rate / 500.0);
            let watts = 88.0 + 20.0 * awake;
            assert_within_2_percent(step.power.total().unwrap(), watts);
            assert_within_2_percent(step.joules_per_byte().unwrap(), watts / bytes);
        }
        assert_eq!(device.pause, Duration::ZERO);
    }
}

#[test]
fn the_capacity_of_a_known_worker_and_what_it_costs_are_found() {
    for rate in [50_000.0, 400_000.0] {
        let mut device = Sleeper::new(rate);
        let mut meters = [device.meter(Fault::None)];
        let step = capacity(&mut device, &mut meters, SIZES, &plan()).unwrap();
        assert_within_2_percent(step.row.throughput_packets_per_second, rate);
        assert_within_2_percent(step.gbit_per_second(), rate * 500.0 * 8.0 / 1e9);
        assert_within_2_percent(step.cycles_per_byte.unwrap(), CYCLES_PER_SECOND / rate / 500.0);
        assert_within_2_percent(step.joules_per_byte().unwrap(), 108.0 / rate / 500.0);
    }
}

#[test]
fn more_than_a_device_can_is_not_held_even_without_a_pause() {
    let mut device = Sleeper::new(100_000.0);
    let steps = efficiency(&mut device, &mut [], SIZES, 150_000.0, &plan()).unwrap();
    assert_eq!((steps.len(), steps[0].is_held, steps[0].pause), (1, false, Duration::ZERO));
    assert!(steps[0].power.total().is_err() && steps[0].joules_per_byte().is_err());
}

/// One trial of three: in the median nothing is lost.
#[test]
fn a_pause_with_which_one_trial_loses_packets_is_not_held() {
    let mut device = Sleeper::new(1_000_000.0);
    // The second trial of the second pause.
    device.loses_in = Some(5);
    let steps = efficiency(&mut device, &mut [], SIZES, 100_000.0, &plan()).unwrap();
    let held: Vec<bool> = steps.iter().map(|step| step.is_held).collect();
    assert_eq!(held, [true, false], "{steps:?}");
    assert!(steps[1].row.loss == 0.0 && steps[1].row.lossy_trials == 1, "{steps:?}");
}

/// The second pause loses packets in one trial of three, however often it is made again, and each time others
/// have the processor.
#[test]
fn a_search_of_pauses_that_others_ended_says_so() {
    let ended = |loses_in: Option<u16>, disturbed_in: std::ops::Range<u16>| {
        let mut device = Sleeper::new(1_000_000.0);
        (device.loses_in, device.disturbed_in) = (loses_in, disturbed_in);
        let steps = efficiency(&mut device, &mut [], SIZES, 100_000.0, &plan()).unwrap();
        let of = |step: &Step| (step.is_held, step.is_ended_by_others, step.is_converged());
        steps.iter().take(2).map(of).collect::<Vec<_>>()
    };
    assert_eq!(ended(None, 4..10), [(true, true, false), (false, false, true)]);
    assert_eq!(ended(Some(5), 0..0), [(true, false, true), (false, false, true)], "it lost them itself");
    // Without any pause, too.
    assert_eq!(ended(None, 1..7), [(false, true, false)]);
    assert_eq!(ended(Some(2), 0..0), [(false, false, true)]);
    // What is held when it is made again has ended nothing.
    assert_eq!(ended(None, 4..6), [(true, false, true); 2]);
    // One trial of the pause lost packets in peace.
    assert_eq!(ended(Some(10), 4..10)[0], (true, false, true));
}

#[test]
fn a_meter_that_wraps_is_read_and_one_that_restarts_or_vanishes_is_not_known() {
    let run = |faulty| {
        let mut device = Sleeper::new(1_000_000.0);
        let mut meters = [device.meter(faulty)];
        efficiency(&mut device, &mut meters, SIZES, 100_000.0, &plan()).unwrap()
    };
    for step in run(Fault::Wraps).iter().filter(|step| step.is_held) {
        let awake = if step.pause.is_zero() { 1.0 } else { 0.1 };
        assert_within_2_percent(step.power.total().unwrap(), 88.0 + 20.0 * awake);
    }
    // The first trial of the first step is lost with the restart, and so is its median.
    let steps = run(Fault::Restarts);
    assert!(steps[0].power.total().is_err() && steps[1].power.total().is_ok(), "{steps:?}");
    // Three trials of two readings each: the first step has all of them, the second none.
    let steps = run(Fault::Vanishes(6));
    assert!(steps[0].power.total().is_ok(), "{steps:?}");
    for step in &steps[1..] {
        assert_eq!(step.power.total(), Err(NotKnown("fake: gone".to_owned())));
        assert!(step.joules_per_byte().is_err() && step.cycles_per_byte.is_some());
    }
}

/// All packets come back at their rate; only what the worker takes for them differs from trial to trial.
#[test]
fn a_worker_whose_cost_wanders_is_said_not_to_repeat() {
    let mut device = Sleeper::new(100_000.0);
    device.wander = 0.2;
    let mut meters = [device.meter(Fault::None)];
    let plan = Plan { trial: Duration::from_secs(4), ..plan() };
    let steps = efficiency(&mut device, &mut meters, SIZES, 50_000.0, &plan).unwrap();
    let why = |step: &Step| step.row.unconverged;
    assert_eq!(why(&steps[0]), None, "without pauses it is always awake");
    let longest = steps.iter().rev().find(|step| step.is_held).unwrap();
    let is_awake = matches!(why(longest), Some(Unconverged::SpreadAbove { figure: Figure::Awake, .. }));
    assert!(is_awake && longest.row.repeat_spread.unwrap() > 0.03, "{longest:?}");
    let found = capacity(&mut device, &mut meters, SIZES, &plan).unwrap();
    assert!(matches!(why(&found), Some(Unconverged::SpreadAbove { .. })), "{found:?}");
}

#[test]
fn devices_that_cannot_pause_say_so() {
    let mut device = crate::harness::fake::FakeDevice::new(50_000.0, 31);
    let error = efficiency(&mut device, &mut [], SIZES, 10_000.0, &plan()).unwrap_err();
    assert_eq!(error.to_string(), "this device never pauses");
}
