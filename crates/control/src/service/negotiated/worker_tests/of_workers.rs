//! SAs of single workers that are negotiated (RFC 9611), with `XFRMA_SA_PCPU` as a daemon says it.

use super::*;
use crate::service::assemble;
use crate::service::report;
use crate::service::worker_sas::counted;
use std::collections::HashMap;
use testudo_gateway::{Notice, SaChange};
use testudo_ipsec::{Acquire, EventKind, MAX_SAS_OF_WORKER};
use testudo_wire::xfrm::policy_flag::CPU_ACQUIRE;
use testudo_wire::xfrm::sa::{Encapsulation as XfrmEncapsulation, SpiRequest};

/// A gateway of so many workers, on a machine with so many processors.
fn of_workers(workers: usize, processors: u32) -> Spoken {
    let gateway = Gateway::of_workers(Arc::new(MemoryStore::new()), &loaded_with("", ""), workers);
    let settings = Settings { processors, ..Settings::default() };
    Spoken::over(gateway, NotedRoutes::new(), settings)
}

/// An SA of one processor.
fn own(processor: u32, spi: u32, is_inbound: bool, key: u8) -> Message {
    let mut message = sa(spi, is_inbound, key);
    message.attributes.push(Attribute::Processor(processor));
    message
}

/// The policy for packets that leave, of which each processor wants an SA of its own.
fn wanting(flags: u8) -> Message {
    let mut info = policy_info(1, 100);
    info.flags = flags;
    Message { body: Body::NewPolicy(info), ..policy(1, 0) }
}

impl Spoken {
    /// SPI and number of a packet that one worker sends.
    #[track_caller]
    fn sent_by(&self, worker: usize) -> (u32, u32) {
        let [protected, unprotected] = self.ports_of(worker);
        let (spi, number, _) = self.seals_at(protected, unprotected).expect("it leaves");
        (spi, number)
    }

    fn ports_of(&self, worker: usize) -> [&MemoryHandle; 2] {
        let first = [&self.gateway.protected, &self.gateway.unprotected];
        let others = self.gateway.of_others.iter().map(|[protected, unprotected]| [protected, unprotected]);
        std::iter::once(first).chain(others).nth(worker).expect("a worker")
    }

    #[track_caller]
    fn spis(&self) -> Vec<u32> {
        (0..=self.gateway.of_others.len()).map(|worker| self.sent_by(worker).0).collect()
    }

    /// What workers have asked for. To be called when they have sent something since.
    fn asked(&self) -> Vec<Acquire> {
        let of = |notice: Notice| match notice {
            Notice::Tunnel(event) => match event.kind {
                EventKind::Acquire(acquire) => Some(acquire),
                _ => None,
            },
            _ => None,
        };
        // An answer to a command comes after what the worker had to say before.
        for _ in 0..2 {
            self.gateway.commander.save_windows(Vec::new()).unwrap();
        }
        let mut asked: Vec<_> = self.gateway.notices.try_iter().filter_map(of).collect();
        asked.sort_by_key(|acquire| acquire.worker);
        asked
    }

    /// What a daemon is told of an acquire.
    fn told(&self, acquire: &Acquire) -> Option<Message> {
        let index = self.tunnels().policy_with_id(acquire.policy)?;
        let packet = super::super::of_packet(&acquire.packet);
        let told = self.xfrm.acquire(index, packet, acquire.worker, 9)?;
        let message = messages(told.datagram.as_bytes()).next().unwrap().unwrap();
        Some(Message::read(&message).unwrap())
    }

    /// The processor of an SA as a daemon is shown it.
    fn shown(&mut self, spi: u32, is_inbound: bool) -> Option<u32> {
        let mut datagram = Datagram::new();
        let header = Header { flags: flag::REQUEST, sequence: 1, ..Header::default() };
        Message::from(Body::GetSa(info(spi, is_inbound).sa_id())).write(header, &mut datagram);
        let request = messages(datagram.as_bytes()).next().unwrap().unwrap();
        let client = Client::default();
        let answers = self.xfrm.answer_at_once(&client, &request, false, Now::default(), &mut |_| 7);
        let answer = messages(answers.datagrams[0].as_bytes()).next().unwrap().unwrap();
        Message::read(&answer).unwrap().attributes.processor().copied()
    }
}

#[test]
fn the_sa_of_a_processor_is_used_by_the_worker_of_its_number_and_the_fallback_by_the_others() {
    let mut spoken = of_workers(3, 8);
    spoken.takes(policy(1, 0));
    spoken.takes(policy(0, 0));
    spoken.takes(sa(0x5001, false, 21));
    spoken.takes(sa(0x5002, true, 22));
    assert_eq!(spoken.spis(), [0x5001; 3]);
    spoken.takes(own(1, 0x5011, false, 23));
    spoken.takes(own(1, 0x5012, true, 24));
    assert_eq!(spoken.spis(), [0x5001, 0x5011, 0x5001]);
    assert_eq!(spoken.sent_by(1), (0x5011, 2), "its numbers are nobody else's");
    spoken.takes(own(2, 0x5021, false, 25));
    assert_eq!(spoken.spis(), [0x5001, 0x5011, 0x5021]);
    // As a daemon and an operator see them.
    let shown = [(0x5001, false), (0x5011, false), (0x5012, true), (0x5021, false)];
    assert_eq!(shown.map(|(spi, is_in)| spoken.shown(spi, is_in)), [None, Some(1), Some(1), Some(2)]);
    let shared = &spoken.gateway.shared;
    let engines = report::EnginesInService::of(&shared.facts);
    let now = testudo_gateway::Clock::now(&shared.facts.clock);
    let rows = report::security_associations(&shared.installed(), &shared.peers(), &engines, now);
    let negotiated = rows.as_array().unwrap().iter().filter(|row| row["tunnel"] == "ike:1");
    let listed: Vec<_> = negotiated.map(|row| [&row["worker"], &row["renewed_with_worker"]]).collect();
    let (none, one, two) = (&Value::Null, &json!(1), &json!(2));
    assert_eq!(listed, [[none, none], [none, none], [one, none], [none, one], [two, none]]);
    assert_eq!(counted(&shared.installed()), HashMap::from([(1, 1), (2, 1)]));
    // A renewal: the newest is used, and with the last one gone the fallback.
    spoken.takes(own(1, 0x5013, false, 26));
    assert_eq!(spoken.spis(), [0x5001, 0x5013, 0x5021]);
    spoken.takes(deletion(0x5011, false));
    assert_eq!(spoken.spis(), [0x5001, 0x5013, 0x5021]);
    spoken.takes(deletion(0x5013, false));
    assert_eq!(spoken.spis(), [0x5001, 0x5001, 0x5021]);
}

/// strongSwan leaves the peer's port open in each inbound SA of one processor: a peer may send each from a
/// port of its own (`per_cpu_sas = encap`), and receives at none of these.
#[test]
fn an_own_sa_that_leaves_the_peers_port_open_redirects_nothing() {
    let in_udp = |mut message: Message, source_port, destination_port| {
        let udp = XfrmEncapsulation { kind: 2, source_port, destination_port, ..Default::default() };
        message.attributes.push(Attribute::Encapsulation(udp));
        message
    };
    let of_udp = |workers| {
        let gateway = Gateway::of_workers(Arc::new(MemoryStore::new()), &loaded_with("", ""), workers);
        let settings = Settings { udp_port: 4500, processors: 2, ..Settings::default() };
        Spoken::over(gateway, NotedRoutes::new(), settings)
    };
    let mut spoken = of_udp(2);
    spoken.takes(policy(1, 0));
    spoken.takes(policy(0, 0));
    spoken.takes(in_udp(sa(0x5002, true, 22), 61_000, 4500));
    spoken.takes(in_udp(sa(0x5001, false, 21), 4500, 61_000));
    // Ports, then the SPI and the number behind the header of UDP.
    let (ours, theirs) = (4500 << 16, 61_000);
    let sent = |spoken: &Spoken, worker| {
        let [protected, unprotected] = spoken.ports_of(worker);
        let (ports, _, esp) = spoken.seals_at(protected, unprotected).expect("it leaves");
        (ports, esp >> 32)
    };
    let both = |spoken: &Spoken| [sent(spoken, 0), sent(spoken, 1)];
    assert_eq!(both(&spoken), [(ours | theirs, 0x5001); 2]);
    spoken.takes(in_udp(own(1, 0x5012, true, 24), 0, 4500));
    assert_eq!(both(&spoken), [(ours | theirs, 0x5001); 2]);
    spoken.takes(in_udp(own(1, 0x5011, false, 23), 4500, 61_000));
    assert_eq!(both(&spoken), [(ours | theirs, 0x5001), (ours | theirs, 0x5011)]);
    // The peer's packet under it, with its ends as they are seen here.
    let mut peer = of_udp(1);
    peer.takes(policy(1, 0));
    peer.takes(in_udp(sa(0x5012, false, 24), 4500, 4500));
    let [protected, unprotected] = peer.ports_of(0);
    let mut datagram = peer.sealed_at(protected, unprotected).expect("it leaves");
    let ends: [u8; 8] = *datagram[12..].first_chunk().unwrap();
    datagram[12..16].copy_from_slice(&ends[4..]);
    datagram[16..20].copy_from_slice(&ends[..4]);
    datagram[20..22].copy_from_slice(&40_000_u16.to_be_bytes());
    let opened = |spoken: &Spoken| {
        let tunnel = Arc::clone(&spoken.tunnels().all()[0]);
        let sas = tunnel.running.sas.lock();
        let own = sas.iter().find(|sa| sa.spi == 0x5012).unwrap();
        own.added.as_ref().unwrap().counters.sequence()
    };
    assert!(spoken.ports_of(0)[1].input.push(&datagram));
    for _ in 0..ROUNDS {
        spoken.gateway.commander.save_windows(Vec::new()).unwrap();
        if opened(&spoken) == 1 {
            break;
        }
    }
    assert_eq!(opened(&spoken), 1, "it is authentic");
    assert_eq!(both(&spoken), [(ours | theirs, 0x5001), (ours | theirs, 0x5011)]);
    // Where nothing else is in UDP yet, its packets come in UDP, and none is sent to port 0.
    let mut spoken = of_udp(1);
    spoken.takes(policy(1, 0));
    spoken.takes(sa(0x5001, false, 21));
    spoken.takes(in_udp(own(0, 0x5012, true, 24), 0, 4500));
    assert_eq!(sent(&spoken, 0), (ours | 4500, 0x5001));
}

/// charon names an SA in its policies, where that is the one of all.
#[test]
fn a_policy_that_names_the_fallback_keeps_no_own_sa_waiting() {
    let mut spoken = of_workers(2, 2);
    spoken.takes(sa(0x5001, false, 21));
    spoken.takes(policy(1, 0x5001));
    spoken.takes(own(1, 0x5011, false, 22));
    assert_eq!(spoken.spis(), [0x5001, 0x5011]);
    // One of all waits, as it does without own ones.
    spoken.takes(sa(0x5003, false, 23));
    assert_eq!(spoken.spis(), [0x5001, 0x5011]);
    spoken.takes(update(policy(1, 0x5003)));
    assert_eq!(spoken.spis(), [0x5003, 0x5011]);
}

/// The peer has more processors: strongSwan answers it with numbers of this machine's, the highest first.
#[test]
fn numbers_beyond_the_workers_are_of_workers_that_lack_an_sa() {
    let mut spoken = of_workers(2, 4);
    spoken.takes(policy(1, 0));
    spoken.takes(policy(0, 0));
    spoken.takes(sa(0x5001, false, 21));
    let in_use = [[0x5031, 0x5001], [0x5031, 0x5021], [0x5031, 0x5011], [0x5001, 0x5011]];
    for (processor, in_use) in [3, 2, 1, 0].into_iter().zip(&in_use[..3]) {
        let spi = 0x5000 + 16 * processor;
        let key = 30 + 2 * u8::try_from(processor).unwrap();
        spoken.takes(own(processor, spi + 2, true, key));
        spoken.takes(own(processor, spi + 1, false, key + 1));
        assert_eq!(spoken.spis(), *in_use, "with {processor}");
        assert_eq!(
            (spoken.shown(spi + 1, false), spoken.shown(spi + 2, true)),
            (Some(processor), Some(processor))
        );
    }
    // A renewal by its number is at the same worker, though that has the newer one of another number, too.
    spoken.takes(own(2, 0x5023, false, 50));
    assert_eq!(spoken.spis(), [0x5031, 0x5023]);
    spoken.takes(deletion(0x5023, false));
    assert_eq!(spoken.spis(), [0x5031, 0x5011]);
    spoken.takes(deletion(0x5031, false));
    assert_eq!(spoken.spis(), in_use[3]);
    // None lacks one.
    spoken.takes(own(3, 0x5033, false, 51));
    spoken.takes(own(0, 0x5003, false, 52));
    assert_eq!(spoken.spis(), [0x5003, 0x5011]);
    let mut spoken = of_workers(1, 4);
    spoken.takes(policy(1, 0));
    spoken.takes(own(0, 0x5001, false, 21));
    spoken.takes(own(3, 0x5031, false, 22));
    assert_eq!(spoken.spis(), [0x5001]);
    spoken.refuses(own(4, 0x5041, false, 24), Errno::RANGE, "numbers from 0 to 3");
    spoken.refuses(own(u32::MAX, 0x5041, true, 24), Errno::RANGE, "numbers from 0 to 3");
    // More workers than processors have numbers, too.
    let mut spoken = of_workers(3, 1);
    spoken.takes(policy(1, 0));
    spoken.takes(own(2, 0x5021, false, 21));
    assert_eq!(spoken.sent_by(2).0, 0x5021);
    spoken.refuses(own(3, 0x5031, false, 22), Errno::RANGE, "numbers from 0 to 2");
}

/// Asked of Linux 6.18.
#[test]
fn what_the_kernel_refuses_of_processors_is_refused_and_leaves_nothing() {
    let mut spoken = of_workers(2, 2);
    let mut without_direction = own(1, 0x5011, false, 21);
    let kept = without_direction.attributes.iter().filter(|a| !matches!(a, Attribute::Direction(_)));
    without_direction.attributes = kept.cloned().collect();
    spoken.refuses(without_direction, Errno::INVAL, "XFRMA_SA_DIR");
    for bytes in [0, 2, 3, 5, 8] {
        let mut wrong = sa(0x5011, false, 21);
        wrong.attributes.push(Attribute::Unknown { kind: 35, value: vec![0; bytes] });
        spoken.refuses(wrong, Errno::INVAL, "exactly 4 are needed");
    }
    let mut of_policy = policy(1, 0);
    of_policy.attributes.push(Attribute::Processor(0));
    spoken.refuses(of_policy, Errno::INVAL, "XFRMA_SA_PCPU");
    let wish = SpiRequest { sa: info(0, true), lowest: 0x200, highest: 0x300 };
    let wish = Message { body: Body::AllocateSpi(wish), attributes: [Attribute::Processor(2)].into() };
    spoken.refuses(wish, Errno::INVAL, "numbers from 0 to 1");
    assert_eq!((spoken.tunnels().len(), spoken.tunnels().count_policies()), (0, 0));
}

/// Workers of VPE have windows of their own in one SA.
#[test]
fn an_interface_of_vpe_has_no_sas_of_single_workers() {
    let sections = "[[interface]]\nname = \"ipsec0\"\nif_id = 42\nencapsulation = \"vpe\"\n";
    let mut spoken = Spoken::with(NotedRoutes::new(), sections);
    let at = |mut message: Message| {
        message.attributes.push(Attribute::IfId(42));
        message
    };
    spoken.refuses(at(own(0, 0x5001, false, 21)), Errno::OPNOTSUPP, "windows of their own");
    spoken.refuses(at(wanting(CPU_ACQUIRE)), Errno::OPNOTSUPP, "windows of their own");
    assert!(spoken.tunnels().is_empty());
    spoken.takes(at(wanting(0)));
}

#[test]
fn each_worker_has_room_for_eight_sas_of_its_own() {
    let mut spoken = of_workers(2, 2);
    let (mut spi, mut key) = (0x5000, 20);
    let mut next = |processor: Option<u32>| {
        (spi, key) = (spi + 1, key + 1);
        match processor {
            Some(processor) => own(processor, spi, false, key),
            None => sa(spi, false, key),
        }
    };
    for processor in [None, Some(0), Some(1)] {
        for _ in 0..MAX_SAS_OF_WORKER {
            spoken.takes(next(processor));
        }
    }
    let all = |spoken: &Spoken| {
        let tunnel = Arc::clone(&spoken.tunnels().all()[0]);
        let sas = tunnel.running.sas.lock();
        sas.iter().map(|sa| (sa.worker, sa.spi)).collect::<Vec<_>>()
    };
    let mut before = all(&spoken);
    assert_eq!(before.len(), 3 * MAX_SAS_OF_WORKER);
    // One more takes the place of that worker's oldest: no connection is there whose process would delete it.
    spoken.takes(next(Some(0)));
    before.remove(MAX_SAS_OF_WORKER);
    before.push((Some(0), 0x5000 + 3 * 8 + 1));
    assert_eq!(all(&spoken), before);
}

/// Or nobody could renew the fallback.
#[test]
fn sas_of_single_processors_leave_room_for_those_of_all() {
    let mut spoken = of_workers(2, 20);
    let mut key = 20;
    let mut next = |processor: Option<u32>| {
        key += 1;
        let spi = 0x5000 + u32::from(key);
        processor.map_or_else(|| sa(spi, false, key), |processor| own(processor, spi, false, key))
    };
    // Those of the last one take the places of the oldest, whichever processor these are for.
    for processor in 0..17 {
        for _ in 0..MAX_SAS_OF_WORKER {
            spoken.takes(next(Some(processor)));
        }
    }
    for _ in 0..MAX_SAS_OF_WORKER {
        spoken.takes(next(None));
    }
    let tunnel = Arc::clone(&spoken.tunnels().all()[0]);
    let sas = tunnel.running.sas.lock();
    let of = |is_own: bool| sas.iter().filter(|sa| sa.worker.is_some() == is_own).count();
    assert_eq!((of(true), of(false)), (16 * MAX_SAS_OF_WORKER, MAX_SAS_OF_WORKER));
    assert!(sas.iter().all(|sa| sa.spi > 0x5000 + 20 + 8), "the oldest have gone");
}

/// As Linux has it: an acquire without a processor for the fallback, and with it one of each processor that
/// sends something and has no SA of its own.
#[test]
fn a_policy_that_wants_own_sas_has_each_worker_acquire_one() {
    let mut spoken = of_workers(3, 3);
    spoken.takes(policy(0, 0));
    spoken.takes(wanting(CPU_ACQUIRE));
    assert!(spoken.seals().is_none(), "it waits");
    let asked = spoken.asked();
    assert_eq!(asked.iter().map(|acquire| acquire.worker).collect::<Vec<_>>(), [None]);
    let told = spoken.told(&asked[0]).unwrap();
    assert_eq!(told.attributes.processor(), None);
    let Body::Acquire(of_none) = told.body else { panic!("{told:?}") };
    spoken.takes(sa(0x5001, false, 21));
    while spoken.gateway.unprotected.output.pop().is_none() {
        spoken.gateway.commander.save_windows(Vec::new()).unwrap();
    }
    assert_eq!(spoken.spis(), [0x5001; 3]);
    let asked = spoken.asked();
    assert_eq!(asked.iter().map(|acquire| acquire.worker).collect::<Vec<_>>(), [0, 1, 2].map(Some));
    for (acquire, processor) in asked.iter().zip(0..) {
        let told = spoken.told(acquire).unwrap();
        assert_eq!(told.attributes.processor(), Some(&processor));
        let Body::Acquire(body) = told.body else { panic!("{told:?}") };
        assert_eq!((body.policy.index, body.policy.flags), (of_none.policy.index, CPU_ACQUIRE));
        assert_eq!((body.id, body.selector), (of_none.id, of_none.selector));
    }
    // With the SA that a daemon makes of it the worker asks no more; nor does any, within the time.
    spoken.takes(own(1, 0x5011, false, 22));
    for _ in 0..20 {
        assert_eq!(spoken.spis(), [0x5001, 0x5011, 0x5001]);
    }
    // An update that says the same changes nothing, nor does another policy of the tunnel, which wants none.
    for same in [wanting(CPU_ACQUIRE), policy(0, 0)] {
        spoken.takes(update(same));
        assert_eq!(spoken.spis(), [0x5001, 0x5011, 0x5001]);
        assert_eq!(spoken.asked(), []);
    }
    let Body::NewPolicy(PolicyInfo { selector, .. }) = policy(0, 0).body else { panic!("a policy") };
    spoken.takes(Body::DeletePolicy(PolicyId { selector, direction: 0, ..PolicyId::default() }));
    assert_eq!(spoken.spis(), [0x5001, 0x5011, 0x5001]);
    assert_eq!(spoken.asked(), []);
}

#[test]
fn workers_that_could_not_be_told_are_told_with_the_next_change() {
    let mut spoken = of_workers(2, 2);
    spoken.takes(wanting(0));
    let index = spoken.tunnels().all()[0].running.index;
    let change = |spoken: &Spoken, change| {
        let done = spoken.gateway.commander.change_sas(vec![change]).unwrap();
        assert!(done.iter().all(Result::is_ok), "{done:?}");
    };
    // So that they refuse.
    change(&spoken, SaChange::RemoveTunnel(index));
    spoken.takes(update(wanting(CPU_ACQUIRE)));
    let mut parameters = assemble::parameters(&spoken.tunnels().all()[0].running.tunnel, Arc::new([]), 1500);
    parameters.acquires = true;
    change(&spoken, SaChange::AddTunnel(index, Box::new(parameters)));
    spoken.takes(sa(0x5001, false, 21));
    assert_eq!(spoken.spis(), [0x5001; 2]);
    let asked = spoken.asked();
    assert_eq!(asked.iter().map(|acquire| acquire.worker).collect::<Vec<_>>(), [0, 1].map(Some));
}

#[test]
fn policies_that_want_no_own_sas_have_none_acquired() {
    let mut spoken = of_workers(2, 2);
    spoken.takes(wanting(0));
    spoken.takes(sa(0x5001, false, 21));
    assert_eq!(spoken.spis(), [0x5001; 2]);
    assert_eq!(spoken.asked(), []);
    // Another one of the same tunnel does: packets of the first still ask for nothing.
    let mut second = wanting(CPU_ACQUIRE);
    let Body::NewPolicy(info) = &mut second.body else { panic!("a policy") };
    info.selector.destination = IpAddr::from([10, 8, 0, 0]).into();
    let selector = info.selector;
    spoken.takes(second);
    assert_eq!(spoken.tunnels().len(), 1);
    assert_eq!(spoken.sent_by(0).0, 0x5001);
    assert_eq!(spoken.asked(), []);
    // When that one goes, workers stop to ask.
    spoken.takes(Body::DeletePolicy(PolicyId { selector, direction: 1, ..PolicyId::default() }));
    assert_eq!(spoken.spis(), [0x5001; 2]);
    assert_eq!(spoken.asked(), []);
    // And begin where the first one is replaced.
    let Body::NewPolicy(same) = wanting(CPU_ACQUIRE).body else { panic!("a policy") };
    spoken.takes(Message { body: Body::UpdatePolicy(same), ..wanting(CPU_ACQUIRE) });
    assert_eq!(spoken.spis(), [0x5001; 2]);
    let asked = spoken.asked();
    assert_eq!(asked.iter().map(|acquire| acquire.worker).collect::<Vec<_>>(), [0, 1].map(Some));
    assert_eq!(spoken.told(&asked[1]).unwrap().attributes.processor(), Some(&1));
    let Body::NewPolicy(not) = wanting(0).body else { panic!("a policy") };
    spoken.takes(deletion(0x5001, false));
    spoken.takes(Message { body: Body::UpdatePolicy(not), ..wanting(0) });
    spoken.takes(sa(0x5003, false, 23));
    assert_eq!(spoken.spis(), [0x5003; 2]);
    assert_eq!(spoken.asked(), []);
}
