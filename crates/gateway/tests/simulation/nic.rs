//! The same simulations with a NIC that does cryptography, in both gateways, and fails at whatever it is
//! asked: every packet is accounted for, none is out of its SA's order, no IV comes twice, nothing that is
//! not authentic passes, and nothing leaves that the peer does not open.

use crate::late_engine::SharedEngine;
use crate::pair::Equipment;
use crate::support::TunnelSpec;
use crate::support::random::seed;
use crate::with_nic::fit;
use crate::{Scenario, name, run};
use std::cell::RefCell;
use testudo_crypto::{Engine, OffloadCounts, PortableEngine, Suite};
use testudo_engine_inline::{Checks, Nic};
use testudo_engine_late::LateConfig;
use testudo_ipsec::IpsecProtocol;
use testudo_port_twin82599::{Faults, Twin82599, Work};
use testudo_wire::ip::Version;

/// Packets of a scenario; `TESTUDO_NIC_PACKETS` asks for more.
const PACKETS: u32 = 20_000;

fn packets() -> u32 {
    let asked = std::env::var("TESTUDO_NIC_PACKETS").ok();
    asked.map_or(PACKETS, |text| text.parse().expect("TESTUDO_NIC_PACKETS is a number"))
}

fn scenarios() -> Vec<Scenario> {
    let gmac: Suite = "aes128gmac".parse().expect("a suite");
    let of = [
        (Version::V4, IpsecProtocol::Esp, Suite::AES128GCM16),
        (Version::V6, IpsecProtocol::Esp, Suite::AES128GCM16),
        (Version::V4, IpsecProtocol::Esp, gmac),
        (Version::V6, IpsecProtocol::Esp, gmac),
        (Version::V4, IpsecProtocol::Ah, gmac),
        (Version::V6, IpsecProtocol::Ah, gmac),
    ];
    let scenario = |(number, (outer, protocol, suite)): (usize, (Version, IpsecProtocol, Suite))| Scenario {
        seed: seed() ^ (number as u64 + 200) << 32,
        spec: TunnelSpec { outer, protocol, esn: false, window: 4096, ..TunnelSpec::new(0, suite) },
        packets: packets(),
        first_sequence: 1,
        lease_block: 1_000,
        restarts: true,
        keeps: false,
        scheduler: testudo_gateway::SchedulerSettings::default(),
    };
    of.into_iter().enumerate().map(scenario).collect()
}

/// What the NICs of all gateways have counted.
fn total(nics: &[Nic]) -> OffloadCounts {
    let mut total = OffloadCounts::default();
    for counts in nics.iter().map(|nic| nic.report().counts) {
        total.sealed += counts.sealed;
        total.opened += counts.opened;
        total.sealed_after_loss += counts.sealed_after_loss;
        total.doubtful += counts.doubtful;
        total.refused += counts.refused;
        total.resets += counts.resets;
        total.failed_calls += counts.failed_calls;
        total.differences += counts.differences;
        total.sessions_made += counts.sessions_made;
        total.sessions_ended += counts.sessions_ended;
        total.spot_checks += counts.spot_checks;
    }
    total
}

/// Runs all scenarios with devices that fail like this.
fn run_with(test: &str, faults: Faults, checks: impl Fn(u64) -> Checks, is_late: bool) -> OffloadCounts {
    let nics: RefCell<Vec<Nic>> = RefCell::default();
    for scenario in scenarios() {
        let mut equip = |seed, link| {
            // Every other device has room for one SA, over which two compete.
            let twin = Twin82599::new(Work::Real).with_sessions(if seed % 2 == 0 { 1024 } else { 1 });
            let others: Vec<Box<dyn Engine>> = match is_late {
                true => SharedEngine::new(LateConfig::unreliable(seed)).before_portable(),
                false => vec![Box::new(PortableEngine::new())],
            };
            let (engines, port, nic) = fit(&twin, checks(seed), link, others);
            twin.fail(faults, seed);
            nics.borrow_mut().push(nic);
            Equipment { engines, port }
        };
        let outcome = run(test, &scenario, &mut equip, || {});
        assert!(outcome.delivered * 2 > outcome.sent, "{}: {outcome:?}", name(&scenario));
    }
    let total = total(&nics.borrow());
    println!("{total:?}");
    assert!(nics.borrow().iter().all(|nic| nic.report().out_of_service.is_none()), "each went on to the end");
    total
}

#[test]
fn a_nic_that_works_loses_nothing_and_keeps_the_order() {
    let counts = run_with("a_nic_that_works", Faults::default(), Checks::usual, false);
    assert!(counts.sealed > 1000 && counts.opened > 1000, "{counts:?}");
    assert_eq!((counts.differences, counts.resets, counts.failed_calls), (0, 0, 0));
}

#[test]
fn a_nic_that_fails_at_everything_loses_nothing_and_keeps_the_order() {
    let counts = run_with("a_nic_that_fails", Faults::OFTEN, Checks::usual, false);
    assert!(counts.sealed > 1000 && counts.opened > 1000, "{counts:?}");
    assert!(counts.sealed_after_loss > 0 && counts.resets > 0 && counts.failed_calls > 0, "{counts:?}");
    assert!(counts.spot_checks > 10, "{counts:?}");
    assert_eq!(counts.differences, 0, "it never lied");
}

#[test]
fn a_nic_that_fails_before_a_late_engine_loses_nothing_and_keeps_the_order() {
    let counts = run_with("a_nic_that_fails_before", Faults::OFTEN, Checks::usual, true);
    assert!(counts.sealed > 1000 && counts.opened > 1000, "{counts:?}");
}

/// All that it says is checked, and it goes on lying for the whole simulation.
#[test]
fn a_nic_that_sets_wrong_flags_passes_nothing_and_loses_nothing() {
    let checks = |seed| Checks { one_of: 1, tolerated: u64::MAX, seed };
    let counts = run_with("a_nic_that_sets_wrong_flags", Faults::WRONG_FLAGS, checks, false);
    assert!(counts.opened > 1000 && counts.doubtful > 100 && counts.refused > 100, "{counts:?}");
    assert!(counts.differences > 10, "{counts:?}");
}
