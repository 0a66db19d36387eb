//! SAs of one worker each (RFC 9611): which may be added at run time, and how they are shown.

use super::explanation::Side;
use super::installed::{InstalledTunnels, Running};
use super::sa_control::SaControl;
use crate::processors::lacking_own_sas;
use serde_json::{Value, json};
use std::collections::HashMap;
use testudo_ipsec::IpsecProtocol;

/// How many SAs each worker alone sends through, by its index.
pub(super) fn counted(installed: &InstalledTunnels) -> HashMap<usize, usize> {
    let mut counted = HashMap::new();
    for running in installed.all() {
        let sas = running.sas.lock();
        for worker in sas.iter().filter(|sa| sa.is_outbound()).filter_map(|sa| sa.worker) {
            *counted.entry(usize::try_from(worker).unwrap_or(usize::MAX)).or_default() += 1;
        }
    }
    counted
}

/// Warns, in the log and in the answer to who has changed the number of workers, of those that get packets
/// and lack an SA of their own where others have one. (Those whose SAs are negotiated ask by themselves.)
pub(super) fn with_warnings(installed: &InstalledTunnels, mut answer: Value) -> Value {
    let workers = answer["workers"].as_u64().and_then(|workers| usize::try_from(workers).ok());
    let senders: Vec<_> = (0..workers.unwrap_or(0)).collect();
    let own = |running: &Running| {
        let sas = running.sas.lock();
        let outbound = sas.iter().filter(|sa| sa.is_outbound() && !sa.has_stopped());
        outbound.filter_map(|sa| usize::try_from(sa.worker?).ok()).collect()
    };
    let tunnels = installed.tunnels.iter().map(|running| (&*running.tunnel.name, own(running)));
    let lines = lacking_own_sas(tunnels, &senders);
    lines.iter().for_each(|line| tracing::warn!("{line}"));
    let said: Vec<_> = answer["warning"].as_str().map(str::to_owned).into_iter().chain(lines).collect();
    if !said.is_empty() {
        answer["warning"] = said.join("; ").into();
    }
    answer
}

/// The SAs of a tunnel that single workers send through, with the SPI of each, by workers.
fn in_use(running: &Running) -> Vec<(u32, u32)> {
    let sas = running.sas.lock();
    let mut own: Vec<_> =
        sas.iter().filter(|sa| sa.is_in_use()).filter_map(|sa| Some((sa.worker?, sa.spi))).collect();
    own.sort_unstable();
    own
}

/// The same of a packet from this side, for `explain`: which one it is depends on the worker of its flow.
pub(super) fn outbound_of(running: &Running, side: Side) -> Value {
    if side != Side::Protected {
        return json!([]);
    }
    in_use(running).into_iter().map(|(worker, spi)| json!({ "worker": worker, "spi": spi })).collect()
}

/// The same in words.
pub(super) fn in_words(side: Side, running: &Running) -> String {
    let own = if side == Side::Protected { in_use(running) } else { Vec::new() };
    if own.is_empty() {
        return String::new();
    }
    let each: Vec<_> = own.iter().map(|(worker, spi)| format!("worker {worker} through {spi:#x}")).collect();
    format!("; a worker with an SA of its own sends through that: {}", each.join(", "))
}

impl SaControl {
    /// Whether a tunnel may have SAs of this worker alone.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check_worker(&self, running: &Running, worker: u32) -> Result<(), String> {
        let (tunnel, workers) = (&running.tunnel, self.commander.workers());
        if !usize::try_from(worker).is_ok_and(|worker| worker < workers) {
            return Err(format!(
                "there is no worker {worker}: `workers_max` in [gateway] says that there are {workers} at most, from 0 on"
            ));
        }
        if tunnel.protocol == IpsecProtocol::Vpe {
            return Err(
                "workers have windows of their own in an SA of VPE, and no SAs of their own".to_owned()
            );
        }
        if tunnel.covered_by.is_some() || tunnel.covers.is_some() {
            return Err(
                "SAs of ah+esp are of one worker: there are none for single ones of several".to_owned()
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;
    use crate::service::metrics;
    use crate::service::report;
    use crate::service::sa_control::tests::{Gateway, SUITE, loaded_with, of_vpe};
    use std::sync::Arc;

    fn key(byte: u8) -> String {
        format!("{byte:02x}").repeat(SUITE.keying_material_bytes())
    }

    fn add(verb: &str, worker: u32, [inbound, outbound]: [u32; 2]) -> Value {
        let [in_key, out_key] = [inbound, outbound].map(|spi| key(spi.to_be_bytes()[3]));
        json!({
            "verb": verb, "tunnel": "a", "worker": worker, "inbound": inbound, "inbound_key": in_key,
            "outbound": outbound, "outbound_key": out_key,
        })
    }

    /// The SAs of tunnel a as `sa list` has them: SPI, and whose they are.
    fn list(gateway: &Gateway) -> Vec<(u64, Value, Value)> {
        let shared = &gateway.shared;
        let engines = report::EnginesInService::of(&shared.facts);
        let now = testudo_gateway::Clock::now(&shared.facts.clock);
        let rows = report::security_associations(&shared.installed(), &shared.peers(), &engines, now);
        let of = |row: &Value| {
            (row["spi"].as_u64().unwrap(), row["worker"].clone(), row["renewed_with_worker"].clone())
        };
        rows.as_array().unwrap().iter().filter(|row| row["tunnel"] == "a").map(of).collect()
    }

    #[test]
    fn an_sa_of_one_worker_is_added_shown_and_renewed_by_itself() {
        let gateway = Gateway::running(Arc::new(MemoryStore::new()), &loaded_with("", ""));
        assert_eq!(gateway.seal().0, 0x1001);
        gateway.ask(add("sa-add", 0, [0x3011, 0x3012])).unwrap();
        assert_eq!(gateway.seal().0, 0x3012, "the first of a worker is used at once");
        let of_all = |spi: u64| (spi, Value::Null, Value::Null);
        let own = |inbound: u64, outbound: u64| {
            [(inbound, Value::Null, json!(0)), (outbound, json!(0), Value::Null)]
        };
        let expected = [of_all(0x1001), of_all(0x1002)].into_iter().chain(own(0x3011, 0x3012));
        assert_eq!(list(&gateway), expected.collect::<Vec<_>>());
        let page = metrics::tests::page(&gateway.shared);
        let sample =
            "testudo_sa_packets_total{tunnel=\"a\",direction=\"outbound\",spi=\"0x3012\",worker=\"0\"} 1";
        assert!(page.lines().any(|line| line == sample), "{page}");
        let installed = gateway.shared.installed();
        assert_eq!(counted(&installed), HashMap::from([(0, 1)]));
        let running = installed.find("a").unwrap();
        assert!(in_words(Side::Protected, running).ends_with("sends through that: worker 0 through 0x3012"));
        assert_eq!(in_words(Side::Unprotected, running), "");
        assert_eq!(outbound_of(running, Side::Protected), json!([{ "worker": 0, "spi": 0x3012 }]));
        // A renewal replaces what the worker has, and nothing else.
        let answer = gateway.ask(add("sa-replace", 0, [0x3021, 0x3022])).unwrap();
        let leaving: Vec<_> =
            answer["leaving"].as_array().unwrap().iter().map(|sa| sa["spi"].clone()).collect();
        assert_eq!(leaving, [0x3011, 0x3012].map(|spi: u32| json!(spi)));
        assert_eq!(gateway.seal().0, 0x3022);
        gateway.end_overlaps(0);
        gateway.end_overlaps(31);
        let expected = [of_all(0x1001), of_all(0x1002)].into_iter().chain(own(0x3021, 0x3022));
        assert_eq!(list(&gateway), expected.collect::<Vec<_>>());
        // Without it the worker sends through that of all.
        let delete = json!({ "verb": "sa-delete", "tunnel": "a", "spi": 0x3022 });
        gateway.ask(delete).unwrap();
        assert_eq!(gateway.seal().0, 0x1001);
    }

    #[test]
    fn sas_of_workers_that_cannot_be_are_refused() {
        let gateway = Gateway::running(Arc::new(MemoryStore::new()), &loaded_with("", ""));
        let refused = gateway.ask(add("sa-add", 1, [0x3011, 0x3012])).unwrap_err();
        assert!(refused.contains("there is no worker 1") && refused.contains("workers_max"), "{refused}");
        let refused = gateway.ask(add("sa-add", 64, [0x3011, 0x3012])).unwrap_err();
        assert_eq!(refused, "worker: expected 0 to 63");
        let refused = of_vpe().ask(add("sa-add", 0, [0x3011, 0x3012])).unwrap_err();
        assert!(refused.contains("windows of their own"), "{refused}");
        assert_eq!(list(&gateway).len(), 2);
    }
}
