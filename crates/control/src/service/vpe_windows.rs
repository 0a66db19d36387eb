//! The windows of SAs of VPE (`docs/VPE.md`), as reports have them.

use super::api::Shared;
use super::explanation::Side;
use super::installed::{InstalledTunnels, Running};
use super::sa_control;
use super::sas::RunningSa;
use crate::config::Workers;
use serde_json::{Value, json};
use testudo_ipsec::{IpsecProtocol, WindowTop, WindowsFrom, WindowsSeen};

/// SAs whose windows the status has, at most, and windows of each.
const SHOWN_SAS: usize = 16;
const SHOWN_WINDOWS: usize = 64;

/// The windows of an SA of VPE.
pub(super) fn windows(seen: WindowsSeen) -> Value {
    first_windows(&seen, usize::MAX)
}

/// So many of them, each with its highest number.
fn first_windows(seen: &WindowsSeen, shown: usize) -> Value {
    let tops: Vec<_> = seen.tops.iter().take(shown).map(top).collect();
    let omitted = seen.count.saturating_sub(tops.len() as u64);
    json!({ "count": seen.count, "most": seen.most, "tops": tops, "omitted": omitted })
}

fn top(top: &WindowTop) -> Value {
    let mut value = json!({ "window": top.window, "sequence": top.number });
    if top.sender != 0 {
        value["sender_id"] = top.sender.into();
    }
    value
}

/// Some of all windows of one SA, of which [`windows`] has the first: `from` in a request is 0, or what the
/// answer before had as `next`, which is null at the end. So neither an answer nor what a worker does between
/// two batches of packets grows with the windows that a peer has.
///
/// # Errors
/// What is wrong with the request, or why there is no answer.
pub(super) fn page(shared: &Shared, installed: &InstalledTunnels, request: &Value) -> Result<Value, String> {
    let control = shared.sas.get().ok_or("the gateway is still starting: try again")?;
    let name = request["tunnel"].as_str().ok_or("tunnel: expected a tunnel's name")?;
    let spi = request["spi"].as_u64().ok_or("spi: expected a number")?;
    let is_outbound = match request["direction"].as_str() {
        Some("outbound") => true,
        Some("inbound") => false,
        _ => return Err("direction: expected \"inbound\" or \"outbound\"".to_owned()),
    };
    let from = match &request["from"] {
        Value::Null => Some(0),
        value => value.as_u64().and_then(|from| usize::try_from(from).ok()),
    };
    let from = from.ok_or("from: expected 0, or what an answer had as `next`")?;
    let running = sa_control::find(installed, name)?;
    let is_meant = |sa: &&RunningSa| sa.is_outbound() == is_outbound && u64::from(sa.spi) == spi;
    let added =
        running.sas.lock().iter().find(is_meant).and_then(|sa| sa.added.as_ref().map(|added| added.sa));
    let none = || format!("tunnel {name} has no such SA of VPE with SPI {spi:#x}");
    let asked = WindowsFrom { sa: added.ok_or_else(none)?, is_outbound, from };
    let page = control.commander.windows_from(asked).map_err(|error| error.to_string())?.ok_or_else(none)?;
    Ok(json!({ "tops": page.tops.iter().map(top).collect::<Vec<_>>(), "next": page.next }))
}

/// The windows of the first SAs, and how many SAs are left out; `None` where no tunnel is of VPE.
pub(super) fn windows_of_sas(installed: &InstalledTunnels) -> Option<Value> {
    let (mut shown, mut omitted, mut is_any) = (Vec::new(), 0_usize, false);
    for running in installed.all().filter(|running| running.tunnel.protocol == IpsecProtocol::Vpe) {
        is_any = true;
        for sa in running.sas.lock().iter() {
            if shown.len() == SHOWN_SAS {
                omitted += 1;
                continue;
            }
            let outbound = sa.is_outbound();
            let seen = sa.added.as_ref().and_then(|added| added.counters.windows(outbound));
            let mut row = first_windows(&seen.unwrap_or_default(), SHOWN_WINDOWS);
            row["tunnel"] = running.tunnel.name.clone().into();
            row["direction"] = if outbound { "outbound" } else { "inbound" }.into();
            row["spi"] = sa.spi.into();
            shown.push(row);
        }
    }
    is_any.then(|| json!({ "sas": shown, "omitted": omitted }))
}

/// How many windows the SAs of VPE have, in each direction; `None` where no tunnel is of VPE.
pub(super) fn windows_of_all(installed: &InstalledTunnels) -> Option<Value> {
    let mut sums = [(0, 0); 2];
    let mut is_any = false;
    for running in installed.all().filter(|running| running.tunnel.protocol == IpsecProtocol::Vpe) {
        is_any = true;
        for sa in running.sas.lock().iter() {
            let outbound = sa.is_outbound();
            let seen = sa.added.as_ref().and_then(|added| added.counters.windows(outbound));
            let (count, most) = seen.map_or((0, 0), |seen| (seen.count, seen.most));
            let sum = &mut sums[usize::from(outbound)];
            *sum = (sum.0 + count, sum.1 + most);
        }
    }
    let [inbound, outbound] = sums.map(|(count, most)| json!({ "count": count, "most": most }));
    is_any.then(|| json!({ "inbound": inbound, "outbound": outbound }))
}

/// Workers whose windows are told of in a sentence, at most.
const TOLD_WORKERS: usize = 4;

/// The windows that packets of a class go in at one worker: from the first to the last in equal steps.
struct OfWorker {
    worker: usize,
    first: u16,
    last: u16,
}

impl OfWorker {
    fn row(&self, step: u8) -> Value {
        json!({ "worker": self.worker, "first": self.first, "last": self.last, "step": step })
    }
}

/// The windows of a class at each worker that has the SA and takes packets from the protected side. One that
/// decrypts alone sends no more than probes of its own.
fn of_workers(running: &Running, sa: &RunningSa, class: u8, workers: Workers) -> Vec<OfWorker> {
    let rules = running.tunnel.rules.of_vpe();
    let count = sa.added.as_ref().map_or(1, |added| added.counters.each().count());
    let roles = workers.roles(count);
    let encrypts = |worker: &usize| roles.get(*worker).is_none_or(|role| role.encrypts());
    let of_worker = |worker: usize| {
        let mut windows = rules.of_worker(worker).ok()?.windows_of_class(class);
        let first = windows.next()?;
        Some(OfWorker { worker, first, last: windows.last().unwrap_or(first) })
    };
    (0..count).filter(encrypts).filter_map(of_worker).collect()
}

/// Whether packets from this side choose a window of ours: those from a peer have the one that it chose.
fn has_choice(side: Side, running: &Running) -> bool {
    side == Side::Protected && running.tunnel.protocol == IpsecProtocol::Vpe
}

/// Which windows a packet from this side with this DSCP may go in, for `explain`: those of its class. Hashes
/// of its flow say at which worker it is, and which of these it has. Null where packets choose none.
pub(super) fn of_packet(side: Side, running: &Running, sa: &RunningSa, dscp: u8, workers: Workers) -> Value {
    if !has_choice(side, running) {
        return Value::Null;
    }
    let rules = running.tunnel.rules.of_vpe();
    let (class, classes) = (rules.classes().of_dscp(dscp), rules.classes().count());
    let rows = of_workers(running, sa, class, workers).into_iter().map(|of| of.row(classes));
    json!({ "dscp": dscp, "class": class, "classes": classes, "of_workers": rows.collect::<Vec<_>>() })
}

/// The same for a sentence about the SA; empty where packets choose none.
pub(super) fn in_words(side: Side, running: &Running, sa: &RunningSa, dscp: u8, workers: Workers) -> String {
    if !has_choice(side, running) {
        return String::new();
    }
    let rules = running.tunnel.rules.of_vpe();
    let (class, classes) = (rules.classes().of_dscp(dscp), rules.classes().count());
    let steps = if classes > 1 { format!(" in steps of {classes}") } else { String::new() };
    let all = of_workers(running, sa, class, workers);
    let told = all.iter().take(TOLD_WORKERS).map(|OfWorker { worker, first, last }| match all.len() {
        1 => format!("{first} to {last}{steps}"),
        _ => format!("{first} to {last}{steps} (worker {worker})"),
    });
    let told = told.collect::<Vec<_>>().join(", ");
    let others = match all.len().saturating_sub(TOLD_WORKERS) {
        0 => String::new(),
        others => format!(" and those of {others} more workers"),
    };
    format!(
        ", in class {class} of {classes} (DSCP {dscp}): a hash of its flow chooses one of the windows {told}{others}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::explanation::{Question, explain};
    use crate::service::metrics;
    use crate::service::sa_control::tests::{Gateway, of_vpe_with};
    use testudo_packet::Interface;

    fn explained(gateway: &Gateway, side: Side, dscp: u8) -> Value {
        let [inside, outside]: [[u8; 4]; 2] = [[10, 1, 0, 1], [10, 1, 0, 2]];
        let [source, destination] =
            if side == Side::Protected { [inside, outside] } else { [outside, inside] };
        let question = Question {
            interface: Interface::MAIN,
            side,
            source: source.into(),
            destination: destination.into(),
            protocol: 17,
            dscp,
            ports: Some((7, 7)),
            message: None,
            is_later_fragment: false,
        };
        let shared = &gateway.shared;
        explain(&shared.installed(), &shared.peers(), &question, &|_| Value::Null)
    }

    /// How far each window is, not how many there are alone.
    #[test]
    fn single_windows_are_in_status_and_metrics() {
        let gateway = of_vpe_with("", 1);
        gateway.seal();
        gateway.seal();
        let page = || metrics::tests::page(&gateway.shared);
        let of_window = |line: &str| {
            let of_sa =
                "testudo_sa_window_sequence{tunnel=\"a\",direction=\"outbound\",spi=\"0x1001\",window=\"";
            let (window, number) = line.strip_prefix(of_sa)?.split_once("\"} ")?;
            Some((window.parse::<u16>().unwrap(), number.to_owned()))
        };
        let found = || page().lines().filter_map(of_window).collect::<Vec<_>>();
        // The worker shows them in its next second.
        let window = loop {
            if let [(window, number)] = &found()[..]
                && number == "2"
            {
                break *window;
            }
            gateway.commander.save_windows(Vec::new()).unwrap();
        };
        // It has ended that turn, in which it shows the peer's as well.
        gateway.commander.save_windows(Vec::new()).unwrap();
        for (direction, spi) in [("outbound", "0x1001"), ("inbound", "0x1002")] {
            let line = format!(
                "testudo_sa_windows_omitted{{tunnel=\"a\",direction=\"{direction}\",spi=\"{spi}\"}} 0"
            );
            assert!(page().lines().any(|other| other == line), "{line}: {}", page());
        }
        let told = windows_of_sas(&gateway.shared.installed()).unwrap();
        let sas = told["sas"].as_array().unwrap();
        assert_eq!((sas.len(), &told["omitted"]), (4, &json!(0)), "two tunnels: {told}");
        let outbound = sas.iter().find(|sa| sa["spi"] == 0x1001).unwrap();
        let expected = json!({
            "tunnel": "a", "direction": "outbound", "spi": 0x1001, "count": 1, "most": 8, "omitted": 0,
            "tops": [{ "window": window, "sequence": 2 }],
        });
        assert_eq!(outbound, &expected);
    }

    /// A page at a time, of the SA that is meant.
    #[test]
    fn all_windows_of_an_sa_are_told_some_at_a_time() {
        let gateway = of_vpe_with("slots = 400", 1);
        for _ in 0..3 {
            gateway.seal();
        }
        let ask = |request: Value| page(&gateway.shared, &gateway.shared.installed(), &request);
        let of = |spi: u32, direction: &str, from: u64| json!({ "tunnel": "a", "spi": spi, "direction": direction, "from": from });
        let first = ask(json!({ "tunnel": "a", "spi": 0x1001, "direction": "outbound" })).unwrap();
        assert_eq!(first["next"], 256, "of 400 places");
        let second = ask(of(0x1001, "outbound", 256)).unwrap();
        assert_eq!(second["next"], Value::Null);
        let tops = [&first, &second].map(|page| page["tops"].as_array().unwrap().clone()).concat();
        assert!(matches!(&tops[..], [top] if top["sequence"] == 3), "of one flow: {tops:?}");
        let nothing = json!({ "tops": [], "next": null });
        assert_eq!(ask(of(0x1002, "inbound", 0)), Ok(nothing.clone()));
        assert_eq!(ask(of(0x1001, "outbound", u64::MAX)), Ok(nothing));
        for (request, wrong) in [
            (of(0x1001, "inbound", 0), "tunnel a has no such SA of VPE with SPI 0x1001"),
            (of(0x1001, "both", 0), "direction: expected"),
            (json!({ "tunnel": "a", "direction": "inbound" }), "spi: expected"),
            (json!({ "tunnel": "c", "spi": 1, "direction": "inbound" }), "there is no tunnel c"),
            (json!({ "tunnel": "a", "spi": 1, "direction": "inbound", "from": -1 }), "from: expected"),
        ] {
            let said = ask(request).unwrap_err();
            assert!(said.starts_with(wrong), "{said}");
        }
    }

    /// What is told is bounded; what is left out is counted; a window of a group is one of a sender.
    #[test]
    fn windows_that_are_not_shown_are_counted() {
        let tops = (0..70).map(|window| WindowTop { sender: 3, window, number: 9 }).collect();
        let seen = WindowsSeen { count: 100, most: 1024, tops };
        let shown = first_windows(&seen, SHOWN_WINDOWS);
        assert_eq!((shown["tops"].as_array().unwrap().len(), &shown["omitted"]), (64, &json!(36)));
        assert_eq!(shown["tops"][5], json!({ "window": 5, "sequence": 9, "sender_id": 3 }));
        assert_eq!(windows(seen)["omitted"], 30);
    }

    /// `docs/VPE.md`: slot times classes plus class; each worker has slots of its own.
    #[test]
    fn a_packets_class_and_its_windows_are_explained() {
        let gateway = of_vpe_with("classes = [[46], [10, 12]]", 1);
        let row = |worker: usize, first: u16, last: u16, step: u8| OfWorker { worker, first, last }.row(step);
        let classes = [(0, 0, [0, 21]), (46, 1, [1, 22]), (12, 2, [2, 23]), (63, 0, [0, 21])];
        for (dscp, class, [first, last]) in classes {
            let told = explained(&gateway, Side::Protected, dscp);
            let rows = [json!({ "worker": 0, "first": first, "last": last, "step": 3 })];
            let expected = json!({ "dscp": dscp, "class": class, "classes": 3, "of_workers": rows });
            assert_eq!(told["vpe"], expected);
            let words = format!(
                "outbound SA 0x1001, in class {class} of 3 (DSCP {dscp}): a hash of its flow chooses one of the windows \
                 {first} to {last} in steps of 3"
            );
            assert!(told["verdict"].as_str().unwrap().ends_with(&words), "{told}");
        }
        let back = explained(&gateway, Side::Unprotected, 46);
        assert_eq!(back["vpe"], Value::Null, "the peer has chosen it");
        assert!(!back["verdict"].as_str().unwrap().contains("class"), "{back}");
        let gateway = of_vpe_with("", 6);
        let told = explained(&gateway, Side::Protected, 46);
        let rows: Vec<_> =
            (0..6_u16).map(|worker| row(worker.into(), worker * 8, worker * 8 + 7, 1)).collect();
        assert_eq!(told["vpe"], json!({ "dscp": 46, "class": 0, "classes": 1, "of_workers": rows }));
        let words = "in class 0 of 1 (DSCP 46): a hash of its flow chooses one of the windows 0 to 7 (worker 0), 8 to 15 \
                     (worker 1), 16 to 23 (worker 2), 24 to 31 (worker 3) and those of 2 more workers";
        assert!(told["verdict"].as_str().unwrap().ends_with(words), "{told}");
    }

    /// Of two workers that encrypt and two that decrypt, packets from the protected side come to the former.
    #[test]
    fn windows_of_workers_that_decrypt_alone_are_not_explained() {
        let gateway = of_vpe_with("", 4);
        let installed = gateway.shared.installed();
        let running = installed.find("a").unwrap();
        let sa = running.sas.outbound().unwrap();
        let told = of_packet(Side::Protected, running, &sa, 0, Workers::Halves(None));
        let rows =
            [(0, 0, 7), (1, 8, 15)].map(|(worker, first, last)| OfWorker { worker, first, last }.row(1));
        assert_eq!(told["of_workers"], json!(rows));
        let words = in_words(Side::Protected, running, &sa, 0, Workers::Halves(None));
        assert!(words.ends_with("the windows 0 to 7 (worker 0), 8 to 15 (worker 1)"), "{words}");
    }
}
