//! An SA for each worker under one tunnel (RFC 9611), between two gateways.

use crate::changes::come_and_go_between;
use crate::support::config::{Config, Sa, pair};
use crate::support::gateway::Gateway;
use crate::support::link::Link;
use crate::support::{Outcome, ensure};
use serde_json::Value;
use testudo_judge::harness::{Suite, TestResult};

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("each_worker_has_an_sa_and_a_window_of_32_drops_nothing_while_workers_come_and_go", |link| {
            for udp in [false, true] {
                come_and_go_between(link, ends(udp)?, each_was_used)?;
            }
            Ok(())
        })
        .test("a_worker_that_comes_without_an_sa_of_its_own_is_warned_of", warns_of_one_without)
}

/// A has an SA for its first worker alone. When the second one comes, who has it come is told, and the log;
/// an SA that is added for it ends that.
fn warns_of_one_without(link: &mut Link) -> TestResult {
    let [mut a, _] = pair(false)?;
    a.gateway = "workers = 1\nworkers_max = 2".to_owned();
    a.tunnels[0].own = vec![(0, [Some(Sa::random(0x1010, "aes128gcm16")?), None])];
    let (gateway, _) = link.start_a(&a)?;
    let expected = "worker 1 has no SA in `worker_sas`";
    ensure(!gateway.log().contains(expected), || gateway.log())?;
    for (workers, warns) in [("2", true), ("1", false), ("2", true)] {
        let said = gateway.ask(&["workers", "set", workers])?;
        ensure(said.code == Some(0) && said.stderr.contains(expected) == warns, || format!("{said:#?}"))?;
    }
    gateway.logs(expected)?;
    gateway.stop()
}

/// A and B have two workers each. B has windows of 32. Those of A are long, since its own workers change: for
/// a moment the one before and the next open packets of the same SA. At A each has an SA of its own; of B the
/// second one sends through that of all. SPIs of a direction are even and odd, so that both workers receive.
fn ends(udp: bool) -> Outcome<[Config; 2]> {
    let suite = "aes128gcm16";
    let [mut a, _] = pair(udp)?;
    a.gateway = "workers = 2".to_owned();
    let tunnel = &mut a.tunnels[0];
    tunnel.more = "peer_window = 32\nreplay_window = 1024".to_owned();
    tunnel.inbound.spi = 0x1003;
    let sas = |outbound, inbound| -> Outcome<[Option<Sa>; 2]> {
        Ok([Some(Sa::random(outbound, suite)?), Some(Sa::random(inbound, suite)?)])
    };
    tunnel.own = vec![(0, sas(0x1010, 0x1012)?), (1, sas(0x1021, 0x1023)?)];
    let mut b = Config {
        addresses: vec!["10.2.0.1/32".to_owned()],
        gateway: a.gateway.clone(),
        tunnels: vec![tunnel.mirrored()],
        ..Config::default()
    };
    b.tunnels[0].more = "replay_window = 32".to_owned();
    // B's second worker has none: what A would take under it is not there.
    a.tunnels[0].own[1].1[1] = None;
    b.tunnels[0].own[1].1[0] = None;
    Ok([a, b])
}

/// Packets of each outbound SA of a gateway, by the worker that alone sends through it.
fn sent(gateway: &Gateway) -> Outcome<Vec<(Option<u64>, u64)>> {
    let list = gateway.ask_json(&["sa", "list"])?;
    let outbound = list.as_array().into_iter().flatten().filter(|sa| sa["direction"] == "outbound");
    let of = |sa: &Value| Some((sa["worker"].as_u64(), sa["packets"].as_u64()?));
    outbound.map(of).collect::<Option<_>>().ok_or_else(|| format!("no packets in {list:#}").into())
}

fn each_was_used(a: &Gateway, b: &Gateway) -> TestResult {
    let of_a = sent(a)?;
    let [(None, 0), (Some(0), first), (Some(1), second)] = of_a[..] else {
        return Err(format!("each worker of A has its own: {of_a:?}").into());
    };
    ensure(first > 500 && second > 500, || format!("{of_a:?}"))?;
    let of_b = sent(b)?;
    let [(None, of_all), (Some(0), own)] = of_b[..] else {
        return Err(format!("the second worker of B has none: {of_b:?}").into());
    };
    ensure(of_all > 500 && own > 500, || format!("{of_b:?}"))?;
    for gateway in [a, b] {
        // Raw sockets give A copies of what comes while its workers change. At B a duplicate would be a
        // number that was used twice.
        ensure(std::ptr::eq(gateway, a) || gateway.dropped("replay_duplicate")? == 0, || gateway.log())?;
        for reason in ["replay_too_old", "authentication_failed", "sequence_not_leased"] {
            ensure(gateway.dropped(reason)? == 0, || format!("{reason}: {}", gateway.log()))?;
        }
        let status = gateway.ask_json(&["status"])?;
        let received = |worker: &Value| worker["unprotected"]["rx_packets"].as_u64().unwrap_or(0);
        let counts: Vec<_> = status["workers"].as_array().into_iter().flatten().map(received).collect();
        ensure(counts.len() == 2 && counts.iter().all(|count| *count > 500), || format!("{counts:?}"))?;
    }
    let told = a.ask(&["explain", "10.1.0.1", "10.2.0.1"])?;
    ensure(told.stdout.contains("worker 0 through 0x1010, worker 1 through 0x1021"), || format!("{told:?}"))
}
