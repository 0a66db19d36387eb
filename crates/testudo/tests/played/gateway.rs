//! A gateway in memory, without a configured tunnel: SAs and policies come from XFRM alone.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Instant;
use testudo_control::config::{Configuration, Loaded};
use testudo_control::firewall::RouteChange;
use testudo_control::service::api::Shared;
use testudo_control::service::installed::{InstalledTunnels, Numbers};
use testudo_control::service::leases::Leases;
use testudo_control::service::negotiated::{NegotiatedRoutes, Settings, WorkerPath};
use testudo_control::service::report::Facts;
use testudo_control::service::sa_control::SaControl;
use testudo_control::service::xfrm::{Client, Now, Xfrm};
use testudo_control::{LeaseStore, MemoryStore};
use testudo_crypto::Engine;
use testudo_gateway::{Clock, Command, Commander, PortPair, SystemClock, Worker, serve};
use testudo_packet::{DropReason, Pool};
use testudo_wire::netlink::ack::Answer;
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::messages;
use testudo_wire::xfrm::message::{Body, Message};

const CONFIGURATION: &str = "[gateway]\nstate = \"s\"\n[port.protected]\nkind = \"tun\"\nname = \"t0\"\nroutes = false\n\
                             [port.unprotected]\nkind = \"socket\"\n";

/// The time, which stands still.
const NOW: Now = Now { unix_s: 1000, monotonic_ms: 1000 };

/// The configuration makes none.
struct NoRoutes;

impl NegotiatedRoutes for NoRoutes {
    fn refusal(&self) -> Option<String> {
        None
    }

    fn spare_peers(&self) -> bool {
        true
    }

    fn change(&self, _: RouteChange, _: Option<IpAddr>) -> Result<(), String> {
        Ok(())
    }
}

/// Two such are a pair. Ends its worker when it is dropped.
pub struct Gateway {
    xfrm: Xfrm<WorkerPath>,
    shared: Arc<Shared>,
    commander: Commander,
    random: u32,
    worker: Option<JoinHandle<()>>,
}

impl Gateway {
    /// SPIs follow from `seed`.
    pub fn start(ports: PortPair, pool: Pool, engines: Vec<Box<dyn Engine>>, seed: u32) -> Self {
        let loaded = Loaded {
            configuration: Configuration::parse(CONFIGURATION, "t.toml").unwrap(),
            keys: Vec::new(),
        };
        let store: Arc<dyn LeaseStore> = Arc::new(MemoryStore::new());
        let mut worker = Worker::new(ports, pool, engines, Box::default());
        let (clock, leases) = (SystemClock::default(), Arc::new(Leases::default()));
        let preparers = worker.preparers();
        let empty = InstalledTunnels::empty(loaded.configuration.clone());
        let numbers =
            Numbers::Leased { store: store.as_ref(), leases: &leases, unix_s: 0, preparers: &preparers };
        let (update, mut installed, _) = empty.plan(&loaded, &numbers).unwrap();
        assert!(installed.note(worker.update(update, clock.now())).is_empty());
        let (commander, inbox) = Commander::channel().unwrap();
        let sas = SaControl::new(commander.clone(), leases, store, preparers, &installed);
        let counters = worker.counters();
        let facts = Facts { version: "test", started: Instant::now(), clock, engines: Vec::new(), counters };
        let shared = Arc::new(Shared {
            facts,
            installed: Mutex::new(Arc::new(installed)),
            peers: Mutex::default(),
            sas: OnceLock::from(sas),
            changer: OnceLock::new(),
        });
        let worker = std::thread::spawn(move || serve(&mut worker, &inbox, &clock, &mut |_| {}).unwrap());
        let path = WorkerPath::new(Arc::clone(&shared), Settings::default(), Arc::new(NoRoutes));
        Self { xfrm: Xfrm::new(path, NOW), shared, commander, random: seed, worker: Some(worker) }
    }

    /// Takes a request; the SPI that it has reserved, if that is what was asked for.
    pub fn hears(&mut self, request: &Datagram) -> Option<u32> {
        let message = messages(request.as_bytes()).next().unwrap().unwrap();
        let client = Client::default();
        // An odd factor: all numbers come, and neighbours are far from each other.
        let last = &mut self.random;
        let mut random = |highest: u32| {
            *last = last.wrapping_add(0x9E37_79B1);
            u32::try_from((u64::from(*last) * (u64::from(highest) + 1)) >> 32).unwrap()
        };
        let answers = self.xfrm.answer(&client, &message, false, NOW, &mut random);
        let datagram = answers.datagrams.first().expect("an answer");
        let answer = messages(datagram.as_bytes()).next().unwrap().unwrap();
        if let Some(Answer { code, text, .. }) = Answer::read(&answer) {
            assert_eq!(code, 0, "{text:?}: {message:?}");
            return None;
        }
        match Message::read(&answer).unwrap().body {
            Body::NewSa(sa) => Some(sa.id.spi),
            _ => None,
        }
    }

    /// Returns once the worker has gone through two turns more.
    pub fn turns(&self) {
        self.commander.save_windows(Vec::new()).unwrap();
        self.commander.save_windows(Vec::new()).unwrap();
    }

    /// What has gone through its ports, and what was dropped.
    pub fn counts(&self) -> String {
        let counters = &self.shared.facts.counters;
        let (protected, unprotected) = (counters.protected(), counters.unprotected());
        let negotiated = &self.shared.installed().negotiated;
        let (tunnels, policies) = (negotiated.all(), negotiated.policies());
        format!(
            "{:?}, {:?}, {:?}\n{tunnels:#?}\n{policies:#?}",
            protected.counters,
            unprotected.counters,
            self.drops()
        )
    }

    /// Packets that were dropped, by reason.
    pub fn drops(&self) -> Vec<(DropReason, u64)> {
        let drops = self.shared.facts.counters.drops();
        let all = DropReason::ALL.iter().map(|reason| (*reason, drops.get(*reason)));
        all.filter(|(_, count)| *count > 0).collect()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.commander.send(Command::Stop);
        self.worker.take().into_iter().for_each(|worker| worker.join().unwrap());
    }
}
