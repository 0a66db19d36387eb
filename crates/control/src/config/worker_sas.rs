//! Reads `[[tunnel.worker_sas]]`: SAs of one worker each under one tunnel (RFC 9611), beside those that all
//! workers have.

use super::checks::{Facts, KeyRequest};
use super::known_answer::KNOWN_ANSWER;
use super::model::{Remote, Tunnel, WorkerSas};
use super::tunnel::{SaDraft, read_sa};
use super::value;
use super::walk::{Located, Problem, Section, Walker};
use super::workers::{MAX_WORKERS, Workers};
use std::path::Path;
use testudo_crypto::Suite;
use testudo_gateway::Role;
use testudo_ipsec::IpsecProtocol;

/// The key of the list.
const WORKER_SAS: &str = "worker_sas";

/// What could be read of the SAs of one worker.
pub(super) struct WorkerSasDraft {
    worker: Option<Located<u32>>,
    outbound: Option<SaDraft>,
    inbound: Option<SaDraft>,
}

/// An SA towards the peer of one worker, to be checked once it is known which workers there are.
pub(super) struct OwnSa {
    worker: Located<u32>,
}

/// Why workers cannot have SAs of their own under a tunnel, if they cannot.
pub(super) fn cannot_split(
    section: &mut Section<'_>,
    is_pair: bool,
    is_vpe: bool,
    is_group: bool,
) -> Option<&'static str> {
    let is_known = section.value(KNOWN_ANSWER).is_some();
    match (is_pair, is_vpe || is_group, is_known) {
        (true, ..) => Some("with ah+esp"),
        (_, true, _) => Some("with VPE, whose workers have windows of their own"),
        (.., true) => Some("beside known answers"),
        _ => None,
    }
}

/// The SAs of workers, and those that are asked for wrongly reported.
pub(super) fn read(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    base: &Path,
    of_one: Option<&str>,
) -> Vec<WorkerSasDraft> {
    if let Some(what) = of_one {
        let problem = Problem::expected(format!("no SAs of single workers {what}"));
        section.refuse(
            walker,
            WORKER_SAS,
            problem.help("tunnels of esp or of ah alone have them (RFC 9611)"),
        );
        return Vec::new();
    }
    let mut all: Vec<WorkerSasDraft> = Vec::new();
    for mut item in section.tables(walker, WORKER_SAS, MAX_WORKERS) {
        let last = u64::try_from(MAX_WORKERS - 1).unwrap_or(0);
        let number = item.required(walker, "worker", "0", value::number(0, last));
        let worker = number.map(|number| number.map(|number| u32::try_from(number).unwrap_or(u32::MAX)));
        let mut sa = |key| item.value(key).is_some().then(|| read_sa(&mut item, walker, key, base, false).0);
        let (outbound, inbound) = (sa("outbound"), sa("inbound"));
        if outbound.is_none() && inbound.is_none() {
            let help =
                "`outbound` is the SA that this worker sends through, `inbound` one more from the peer";
            let problem = Problem::expected("`outbound`, `inbound`, or both").found("neither");
            walker.report(&item.span().clone(), item.path_of("outbound"), problem.help(help));
        }
        item.finish(walker);
        let same = |draft: &&WorkerSasDraft| {
            draft.worker.as_ref().zip(worker.as_ref()).is_some_and(|(one, other)| one.value == other.value)
        };
        if let (Some(first), Some(worker)) = (all.iter().find(same).and_then(|d| d.worker.as_ref()), &worker)
        {
            let problem = Problem::expected("a worker that has no SAs of its own in this tunnel yet");
            walker.report_repeated(worker, first, problem);
        }
        all.push(WorkerSasDraft { worker, outbound, inbound });
    }
    all
}

/// Notes what must be unique among all SAs, and their keys, which come after those of all tunnels.
pub(super) fn note(
    facts: &mut Facts,
    drafts: &[WorkerSasDraft],
    (remote, protocol, suite): (Option<Remote>, IpsecProtocol, Option<Suite>),
) {
    for draft in drafts {
        if let Some(spi) = draft.inbound.as_ref().and_then(|sa| sa.spi.clone()) {
            facts.inbound_spis.push(spi.map(|spi| (spi, protocol)));
        }
        let outbound = draft.outbound.as_ref();
        if let (Some(spi), Some(remote)) = (outbound.and_then(|sa| sa.spi.clone()), remote) {
            facts.outbound_spis.push(spi.map(|spi| (spi, protocol, remote)));
        }
        facts.own_sas.extend(outbound.and(draft.worker.clone()).map(|worker| OwnSa { worker }));
        let keys = [outbound, draft.inbound.as_ref()].into_iter().flatten().filter_map(|sa| sa.key.clone());
        facts.keys_of_workers.extend(keys.map(|source| KeyRequest { source, suite, is_same: false }));
    }
}

/// The SAs, if all could be read.
pub(super) fn complete(drafts: Vec<WorkerSasDraft>) -> Option<Vec<WorkerSas>> {
    let complete = |draft: WorkerSasDraft| {
        let sa = |sa: Option<SaDraft>| match sa {
            None => Some(None),
            Some(draft) => draft.complete().map(Some),
        };
        let worker = draft.worker?.value;
        Some(WorkerSas { worker, outbound: sa(draft.outbound)?, inbound: sa(draft.inbound)? })
    };
    drafts.into_iter().map(complete).collect()
}

/// An SA that no worker would ever send through was meant for another one.
pub(super) fn check(
    walker: &mut Walker<'_>,
    facts: &Facts,
    (workers, workers_max): (Workers, Option<usize>),
) {
    let most = workers.most(workers_max, MAX_WORKERS);
    let roles = workers.roles(MAX_WORKERS);
    for OwnSa { worker } in &facts.own_sas {
        let index = usize::try_from(worker.value).unwrap_or(usize::MAX);
        let problem = if index >= most {
            let expected = match most {
                1 => "no SA of a single worker, as there is only one: set `workers` in [gateway]".to_owned(),
                most => format!("a worker that there may be: 0 to {}", most - 1),
            };
            Problem::expected(expected)
                .help("`workers` and `workers_max` in [gateway] say how many there are")
        } else if roles.get(index).is_some_and(|role| !role.encrypts()) {
            let role = roles.get(index).map_or("", |role: &Role| role.name());
            let problem = Problem::expected("a worker that takes packets from the protected side");
            problem.found(format!("{index}, whose role is \"{role}\""))
        } else {
            continue;
        };
        walker.report(&worker.span, worker.key.clone(), problem);
    }
}

impl Tunnel {
    /// SAs towards the peer beside the one of all workers, with the worker of each.
    pub fn own_outbound(&self) -> impl Iterator<Item = (u32, &super::SaSettings)> {
        self.worker_sas.iter().filter_map(|sas| Some((sas.worker, sas.outbound.as_ref()?)))
    }

    /// SAs from the peer beside the first one, with the worker whose SA each is renewed with.
    pub fn more_inbound(&self) -> impl Iterator<Item = (u32, &super::SaSettings)> {
        self.worker_sas.iter().filter_map(|sas| Some((sas.worker, sas.inbound.as_ref()?)))
    }
}
