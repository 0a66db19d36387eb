//! The methods find what a device of known rate, latency and loss has, and say so where it has none.

use std::time::Duration;

use super::fake::{Delay, FakeDevice};
use super::*;
use crate::generator::Sizes;

const SIZES: Sizes = Sizes::Bytes(64);

fn plan() -> Plan {
    Plan { trial: Duration::from_secs(1), ..Plan::default() }
}

fn assert_within_2_percent(found: f64, known: f64) {
    assert!((found / known - 1.0).abs() <= 0.02, "found {found}, known {known}");
}

#[test]
fn the_throughput_of_a_known_device_is_found() {
    for (seed, rate) in [(1, 50_000.0), (2, 123_456.0), (3, 7_000.0)] {
        let mut device = FakeDevice::new(rate, seed);
        let row = throughput(&mut device, SIZES, &plan()).unwrap();
        println!("{row:?}");
        assert_within_2_percent(row.offered_packets_per_second, rate);
        assert_within_2_percent(row.throughput_packets_per_second, rate);
        assert_eq!((row.loss, row.unconverged, row.repeat_spread), (0.0, None, Some(0.0)));
        assert!(!row.was_generator_late && !row.is_disturbed);
    }
}

#[test]
fn a_device_as_fast_as_its_medium_has_the_rate_of_the_medium() {
    let mut device = FakeDevice { medium: 20_000.0, ..FakeDevice::new(50_000.0, 4) };
    let row = throughput(&mut device, SIZES, &plan()).unwrap();
    assert!((row.offered_packets_per_second - 20_000.0).abs() < 1.0, "{row:?}");
    assert_eq!(row.unconverged, None);
}

#[test]
fn latencies_of_a_known_distribution_are_found_at_every_step() {
    for (delay, [p50, p99, max]) in [
        (Delay::Fixed(25_000), [25.0, 25.0, 25.0]),
        (Delay::Uniform(100_000, 300_000), [200.0, 298.0, 300.0]),
        // One in 50 is slow: not the median, but the 99th percentile.
        (Delay::Rare(40_000, 900_000, 50), [40.0, 900.0, 900.0]),
    ] {
        let rate = 40_000.0;
        let mut device = FakeDevice { delay, ..FakeDevice::new(rate, 5) };
        let rows = latency(&mut device, SIZES, &plan(), 0.95 * rate).unwrap();
        assert_eq!(rows.len(), LATENCY_STEPS.len());
        // The server takes a packet's time, too.
        let service = 1e6 / rate;
        for (row, share) in rows.iter().zip(LATENCY_STEPS) {
            println!("{delay:?}: {row:?}");
            assert_within_2_percent(row.offered_packets_per_second, 0.95 * rate * share);
            let found = row.latency_us.unwrap();
            assert_within_2_percent(found.p50, p50 + service);
            assert_within_2_percent(found.p99, p99 + service);
            assert_within_2_percent(found.max, max + service);
            assert_eq!((row.loss, row.unconverged), (0.0, None));
        }
    }
}

#[test]
fn the_time_in_queues_is_a_part_of_the_latency() {
    // At twice the rate the queue is full but for the first packets: a packet waits for 64 others.
    let mut device = FakeDevice::new(10_000.0, 6);
    let trial = device.trial(SIZES, Load::rate(20_000.0, Duration::from_secs(1))).unwrap();
    assert_within_2_percent(trial.latency.quantile_us(0.5).unwrap(), 10.0 + 65.0 * 100.0);
}

#[test]
fn frame_loss_of_a_known_device_is_found_from_the_full_rate_down_to_none() {
    let rate = 50_000.0;
    let mut device = FakeDevice { medium: 2.0 * rate, ..FakeDevice::new(rate, 7) };
    let rows = frame_loss(&mut device, SIZES, &plan()).unwrap();
    // 100 % to 60 % of twice its rate lose packets, 50 and 40 % do not.
    let losses: Vec<_> = rows.iter().map(|row| row.loss).collect();
    assert_eq!(rows.len(), 7, "{losses:?}");
    for (row, step) in rows.iter().zip([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4]) {
        assert_within_2_percent(row.offered_packets_per_second, 2.0 * rate * step);
        let known = (1.0 - 0.5 / step).max(0.0);
        assert!((row.loss - known).abs() <= 0.02 * known, "{} at {step}, not {known}", row.loss);
        assert_within_2_percent(row.throughput_packets_per_second, rate.min(2.0 * rate * step));
    }
}

#[test]
fn a_loss_that_does_not_follow_the_rate_is_found_at_every_step() {
    let mut device = FakeDevice { loss: 0.05, medium: 50_000.0, ..FakeDevice::new(100_000.0, 8) };
    let rows = frame_loss(&mut device, SIZES, &plan()).unwrap();
    assert_eq!(rows.len(), 10, "no step is without loss");
    let mean = rows.iter().map(|row| row.loss).sum::<f64>() / 10.0;
    assert_within_2_percent(mean, 0.05);
}

#[test]
fn the_longest_burst_of_a_known_queue_is_found() {
    for queue in [64.0, 1000.0, 10_000.0] {
        let rate = 100_000.0;
        let mut device = FakeDevice { queue, medium: 4.0 * rate, ..FakeDevice::new(rate, 9) };
        let row = back_to_back(&mut device, SIZES, &plan()).unwrap();
        // While four packets come one leaves, and the server has one more.
        let known = (queue + 1.0) / (1.0 - 0.25);
        println!("{row:?}");
        assert_within_2_percent(row.burst_packets.unwrap(), known);
        assert_eq!((row.loss, row.unconverged), (0.0, None));
    }
}

#[test]
fn overload_of_a_known_device_is_found_up_to_four_times_its_rate() {
    let rate = 50_000.0;
    let mut device = FakeDevice { medium: 2.0 * rate, ..FakeDevice::new(rate, 19) };
    let Overload { capacity, steps: rows } = overload(&mut device, SIZES, &plan()).unwrap();
    assert_within_2_percent(capacity.throughput_packets_per_second, rate);
    assert_eq!((capacity.repetitions, capacity.unconverged), (3, None));
    assert_eq!((rows.len(), rows.last().map(|(share, _)| *share)), (OVERLOAD_STEPS.len(), Some(4.0)));
    for (share, row) in &rows {
        println!("{share}: {row:?}");
        assert_within_2_percent(row.offered_packets_per_second, share * rate);
        assert_within_2_percent(1.0 - row.loss, (1.0 / share).min(1.0));
        assert_within_2_percent(row.busy_share.unwrap(), share.min(1.0));
        assert!(row.unconverged.is_none() && !row.was_generator_late, "{row:?}");
    }
}

#[test]
fn a_device_that_keeps_up_takes_bursts_of_a_whole_trial() {
    let mut device = FakeDevice { medium: 20_000.0, ..FakeDevice::new(50_000.0, 10) };
    let row = back_to_back(&mut device, SIZES, &plan()).unwrap();
    assert_eq!((row.burst_packets, row.unconverged), (Some(20_000.0), None));
}

#[test]
fn a_device_that_loses_at_every_rate_has_no_throughput_and_no_burst() {
    let mut device = FakeDevice { loss: 1.0, ..FakeDevice::new(100_000.0, 11) };
    let row = throughput(&mut device, SIZES, &plan()).unwrap();
    let Some(Unconverged::LossAtEveryRate { lowest }) = row.unconverged else { panic!("{row:?}") };
    assert!(lowest <= 400.0 && row.throughput_packets_per_second < 1e-9, "{row:?}");
    let text = Unconverged::LossAtEveryRate { lowest }.to_string();
    assert!(text.starts_with("packets are lost at every rate, down to "), "{text}");
    let row = back_to_back(&mut device, SIZES, &plan()).unwrap();
    assert_eq!((row.unconverged, row.burst_packets), (Some(Unconverged::LossInEveryBurst), Some(0.0)));
}

#[test]
fn a_device_that_loses_one_in_a_hundred_never_converges() {
    let mut device = FakeDevice { loss: 0.01, ..FakeDevice::new(100_000.0, 12) };
    let row = throughput(&mut device, SIZES, &plan()).unwrap();
    println!("{row:?}");
    assert!(row.unconverged.is_some(), "no rate of it is without loss");
}

#[test]
fn a_device_that_loses_at_lower_rates_alone_is_not_monotone() {
    let rate = 100_000.0;
    let mut device = FakeDevice { bad_band: (20_000.0, 30_000.0), ..FakeDevice::new(rate, 13) };
    let row = throughput(&mut device, SIZES, &plan()).unwrap();
    let Some(Unconverged::NotMonotone { lost_at, passed_at }) = row.unconverged else { panic!("{row:?}") };
    assert!((20_000.0..30_000.0).contains(&lost_at) && passed_at > 90_000.0, "{row:?}");
}

#[test]
fn a_device_whose_rate_wanders_is_said_not_to_repeat() {
    let mut unsettled = 0;
    for seed in 14..24 {
        let mut device = FakeDevice { wander: 0.2, ..FakeDevice::new(50_000.0, seed) };
        let row = throughput(&mut device, SIZES, &plan()).unwrap();
        println!("{:?}, spread {:?}", row.unconverged, row.repeat_spread);
        // A search may find one rate three times by chance; ten do not.
        unsettled += u32::from(row.unconverged.is_some());
    }
    assert!(unsettled >= 9, "{unsettled} of 10");
    // The same where nothing is lost, but what comes back differs.
    let mut device = FakeDevice { wander: 0.2, ..FakeDevice::new(50_000.0, 14) };
    let rows = frame_loss(&mut device, SIZES, &Plan { repetitions: 6, ..plan() }).unwrap();
    let Some(Unconverged::SpreadAbove { spread, limit, .. }) = rows[0].unconverged else {
        panic!("{rows:?}")
    };
    assert!(spread > limit && Some(spread) == rows[0].repeat_spread);
    assert!(rows[0].unconverged.unwrap().to_string().ends_with("which is more than 3 %"));
}

#[test]
fn a_generator_that_is_too_slow_is_told_from_a_device_that_is() {
    let mut device = FakeDevice { generator: 30_000.0, ..FakeDevice::new(50_000.0, 15) };
    let row = throughput(&mut device, SIZES, &plan()).unwrap();
    assert!(row.was_generator_late, "{row:?}");
    assert_eq!(row.limit, Some(Limit::Generator), "nothing was lost: the device may be faster");
    assert_within_2_percent(row.throughput_packets_per_second, 30_000.0);
    // What was asked for and not offered is no figure.
    assert_within_2_percent(row.offered_packets_per_second, 30_000.0);
}

/// A device that takes all that can be offered has shown nothing of its own, unless the medium has no more.
#[test]
fn figures_at_the_highest_rate_are_those_of_what_sets_it() {
    for limit in [Limit::Generator, Limit::Flood, Limit::Medium] {
        let mut device = FakeDevice { medium: 20_000.0, limit, ..FakeDevice::new(50_000.0, 33) };
        let said = Some(limit).filter(|limit| *limit != Limit::Medium);
        let found = throughput(&mut device, SIZES, &plan()).unwrap();
        assert_within_2_percent(found.offered_packets_per_second, 20_000.0);
        let burst = back_to_back(&mut device, SIZES, &plan()).unwrap();
        let losses = frame_loss(&mut device, SIZES, &plan()).unwrap();
        let overloaded = overload(&mut device, SIZES, &plan()).unwrap().steps;
        assert_eq!([found.limit, burst.limit, losses[0].limit], [said; 3]);
        assert_eq!(losses[1].limit, None, "a higher rate was offered");
        assert!(overloaded.iter().all(|(_, row)| row.limit == said), "shares of a rate that is not its own");
        assert_eq!(latency(&mut device, SIZES, &plan(), 20_000.0).unwrap()[5].limit, said);

        // A device that is slower shows its own figures.
        let mut device = FakeDevice { limit, ..FakeDevice::new(50_000.0, 34) };
        let found = throughput(&mut device, SIZES, &plan()).unwrap();
        let burst = back_to_back(&mut device, SIZES, &plan()).unwrap();
        let losses = frame_loss(&mut device, SIZES, &plan()).unwrap();
        assert_eq!([found.limit, burst.limit, losses[0].limit], [None; 3]);
        assert!(
            overload(&mut device, SIZES, &plan()).unwrap().steps.iter().all(|(_, row)| row.limit.is_none())
        );
    }
}

#[test]
fn losses_of_disturbed_trials_are_not_the_devices() {
    for disturbed in [1, DISTURBED_AGAIN] {
        let mut device = FakeDevice { disturbed, medium: 20_000.0, ..FakeDevice::new(50_000.0, 16) };
        let row = throughput(&mut device, SIZES, &plan()).unwrap();
        assert_eq!((row.loss, row.unconverged, row.is_disturbed), (0.0, None, false));
    }
    // A machine that is never quiet is said to be none.
    let mut device = FakeDevice { disturbed: u32::MAX, medium: 20_000.0, ..FakeDevice::new(50_000.0, 17) };
    let row = throughput(&mut device, SIZES, &Plan { trial: Duration::from_millis(10), ..plan() }).unwrap();
    assert!(row.is_disturbed && row.unconverged.is_some(), "{row:?}");
}

fn figure_of(row: &Measurement) -> Option<Figure> {
    match row.unconverged {
        Some(Unconverged::SpreadAbove { figure, .. }) => Some(figure),
        _ => None,
    }
}

/// The median of the latencies is always the same, and so is the rate: only the slow packets are not.
#[test]
fn latencies_whose_99th_percentile_wanders_are_said_not_to_repeat() {
    let delay = Delay::Wandering(40_000, 100_000, 1_000_000);
    let mut device = FakeDevice { delay, ..FakeDevice::new(40_000.0, 36) };
    for row in latency(&mut device, SIZES, &plan(), 38_000.0).unwrap() {
        println!("{row:?}");
        assert_eq!(figure_of(&row), Some(Figure::P99));
        assert!(row.unconverged.unwrap().to_string().contains("% in p99, which is more than 3 %"));
        assert_within_2_percent(row.latency_us.unwrap().p50, 40.0 + 25.0);
    }
}

/// Rates of 1 % more or less are the same, but of what is a twentieth too much the losses are not.
#[test]
fn losses_that_differ_where_rates_do_not_are_said_not_to_repeat() {
    let rate = 50_000.0;
    let wandering = FakeDevice { wander: 0.01, medium: 1.05 * rate, ..FakeDevice::new(rate, 37) };
    let losses = frame_loss(&mut wandering.clone(), SIZES, &plan()).unwrap();
    assert_eq!(figure_of(&losses[0]), Some(Figure::Loss), "{:?}", losses[0]);
    let steps = overload(&mut wandering.clone(), SIZES, &plan()).unwrap().steps;
    let (_, above) = steps.iter().find(|(share, _)| *share > 1.0).unwrap();
    assert_eq!(figure_of(above), Some(Figure::Loss), "{above:?}");
}

#[test]
fn an_overloaded_device_whose_capacity_wanders_is_said_not_to_repeat() {
    let mut device = FakeDevice { wander: 0.2, ..FakeDevice::new(50_000.0, 38) };
    let Overload { capacity, steps } = overload(&mut device, SIZES, &plan()).unwrap();
    assert_eq!((capacity.repetitions, figure_of(&capacity)), (3, Some(Figure::ReceivedRate)));
    assert!(figure_of(&steps.last().unwrap().1).is_some(), "{steps:?}");
    assert_eq!(steps[0].1.unconverged, None, "a tenth of it comes back however it wanders");
}

#[test]
fn one_repetition_has_no_spread_and_is_said_to_be_the_only_one() {
    let plan = Plan { repetitions: 1, ..plan() };
    let row = throughput(&mut FakeDevice::new(9_000.0, 18), SIZES, &plan).unwrap();
    let once = Some(Unconverged::MeasuredOnce);
    assert_eq!((row.repeat_spread, row.repetitions, row.unconverged), (None, 1, once));
    let mut device = FakeDevice::new(9_000.0, 18);
    let latencies = latency(&mut device, SIZES, &plan, 8_000.0).unwrap();
    let losses = frame_loss(&mut device, SIZES, &plan).unwrap();
    let burst = back_to_back(&mut device, SIZES, &plan).unwrap();
    let Overload { capacity, steps } = overload(&mut device, SIZES, &plan).unwrap();
    let steps = steps.iter().map(|(_, row)| row);
    let all = latencies.iter().chain(&losses).chain([&burst, &capacity]).chain(steps);
    assert!(all.clone().count() > 20 && all.clone().all(|row| row.unconverged == once));
    assert!(Unconverged::MeasuredOnce.to_string().starts_with("measured once"));
}

#[test]
fn figures_become_whole_numbers_without_wrapping() {
    assert_eq!([1.99, 0.0, -5.0, 1e30].map(count), [1, 0, 0, u64::MAX]);
    assert_eq!([f64::NAN, f64::INFINITY].map(count), [0, u64::MAX]);
}
