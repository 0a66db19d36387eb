//! A gateway in memory: SAs and policies come from XFRM, and from a configuration where a test wants a tunnel
//! that belongs to no daemon.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testudo_control::config::{Configuration, Loaded, TunnelKeys};
use testudo_control::firewall::RouteChange;
use testudo_control::service::api::Shared;
use testudo_control::service::installed::{InstalledTunnels, Numbers};
use testudo_control::service::leases::Leases;
use testudo_control::service::negotiated::{NegotiatedRoutes, Settings, WorkerPath};
use testudo_control::service::port_details::BothDetails;
use testudo_control::service::report::Facts;
use testudo_control::service::sa_control::SaControl;
use testudo_control::service::threads::Threads;
use testudo_control::service::xfrm::{Client, Now, Xfrm};
use testudo_control::{LeaseStore, MemoryStore};
use testudo_crypto::{Engine, KeyMaterial, Suite};
use testudo_gateway::{AllCounters, Clock, Commander, PortPair, SystemClock, Worker, serve};
use testudo_packet::{DropReason, Pool};
use testudo_wire::netlink::ack::Answer;
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::messages;
use testudo_wire::xfrm::message::{Body, Message};

const CONFIGURATION: &str = "[gateway]\nstate = \"s\"\n[port.protected]\nkind = \"tun\"\nname = \"t0\"\nroutes = false\n\
                             [port.unprotected]\nkind = \"socket\"\n";
/// Where the networks of the recording speak to each other by a tunnel of the configuration: the outer ends
/// of A and B, their networks, and the SPIs and keys towards each of them.
const ENDS: [&str; 2] = ["198.51.100.1", "198.51.100.2"];
const NETWORKS: [&str; 2] = ["10.3.0.0/16", "10.2.0.0/16"];
const TOWARDS: [u8; 2] = [0xA, 0xB];
/// How long the thread that leases numbers sleeps if no SA wakes it.
const IDLE: Duration = Duration::from_secs(1);

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
    is_over: Arc<AtomicBool>,
    /// The worker, and what leases numbers to the SAs of the configuration.
    threads: Vec<JoinHandle<()>>,
}

/// A configuration without a tunnel, or with one as the host A or B has it.
fn loaded(of_host: Option<usize>) -> Loaded {
    let Some(own) = of_host else {
        return Loaded {
            configuration: Configuration::parse(CONFIGURATION, "t.toml").unwrap(),
            keys: Vec::new(),
        };
    };
    let other = 1 - own;
    let sa = |towards: usize| format!("{{ spi = 0x{0:x}001, key_file = \"{0:x}\" }}", TOWARDS[towards]);
    let tunnel = format!(
        "[[tunnel]]\nname = \"steady\"\nlocal = \"{}\"\nremote = \"{}\"\nsuite = \"aes128gcm16\"\n\
         selectors = [ {{ local = \"{}\", remote = \"{}\" }} ]\noutbound = {}\ninbound = {}\n",
        ENDS[own],
        ENDS[other],
        NETWORKS[own],
        NETWORKS[other],
        sa(other),
        sa(own),
    );
    let suite: Suite = "aes128gcm16".parse().unwrap();
    let key = |towards: usize| {
        KeyMaterial::new(suite, vec![TOWARDS[towards]; suite.keying_material_bytes()].into()).unwrap()
    };
    Loaded {
        configuration: Configuration::parse(&format!("{CONFIGURATION}{tunnel}"), "t.toml").unwrap(),
        keys: vec![TunnelKeys::pair(key(other), key(own))],
    }
}

/// Leases numbers to SAs that ask for them, until it is over.
fn supplier(leases: &Arc<Leases>, store: &Arc<dyn LeaseStore>, is_over: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (granted, store, is_over) = (Arc::clone(leases), Arc::clone(store), Arc::clone(is_over));
    let thread = std::thread::spawn(move || {
        let clock = SystemClock::default();
        while !is_over.load(Ordering::Acquire) {
            if granted.refill(store.as_ref(), clock.now()).unwrap() == 0 {
                std::thread::park_timeout(IDLE);
            }
        }
    });
    leases.granted_by(thread.thread().clone());
    thread
}

impl Gateway {
    /// SPIs follow from `seed`.
    pub fn start(ports: PortPair, pool: Pool, engines: Vec<Box<dyn Engine>>, seed: u32) -> Self {
        Self::with(&loaded(None), ports, pool, engines, seed)
    }

    /// The same with a configured tunnel between the networks of the recording, as A (0) or B (1) has it.
    pub fn with_tunnel(
        host: usize,
        ports: PortPair,
        pool: Pool,
        engines: Vec<Box<dyn Engine>>,
        seed: u32,
    ) -> Self {
        Self::with(&loaded(Some(host)), ports, pool, engines, seed)
    }

    fn with(loaded: &Loaded, ports: PortPair, pool: Pool, engines: Vec<Box<dyn Engine>>, seed: u32) -> Self {
        let store: Arc<dyn LeaseStore> = Arc::new(MemoryStore::new());
        let mut worker = Worker::new(ports, pool, engines, Box::default());
        let (clock, leases) = (SystemClock::default(), Arc::new(Leases::default()));
        let is_over = Arc::<AtomicBool>::default();
        let supplier = supplier(&leases, &store, &is_over);
        let preparers = worker.preparers();
        let empty = InstalledTunnels::empty(loaded.configuration.clone());
        let numbers =
            Numbers::Leased { store: store.as_ref(), leases: &leases, unix_s: 0, preparers: &preparers };
        let (update, mut installed, _) = empty.plan(loaded, &numbers).unwrap();
        assert!(installed.note(worker.update(update, clock.now())).is_empty());
        let (commander, inbox) = Commander::channel().unwrap();
        let sas = SaControl::new(commander.clone(), leases, store, preparers, &installed);
        let counters = AllCounters::of([worker.counters()]);
        let facts = Facts {
            version: "test",
            started: Instant::now(),
            clock,
            engines: Vec::new(),
            ports: BothDetails::default(),
            counters,
            threads: Threads::default(),
        };
        let shared = Arc::new(Shared {
            facts,
            installed: Mutex::new(Arc::new(installed)),
            peers: Mutex::default(),
            sas: OnceLock::from(sas),
            changer: OnceLock::new(),
        });
        let worker = std::thread::spawn(move || serve(&mut worker, &inbox, &clock, &mut |_| {}).unwrap());
        let path = WorkerPath::new(Arc::clone(&shared), Settings::default(), Arc::new(NoRoutes));
        let threads = vec![worker, supplier];
        Self { xfrm: Xfrm::new(path, NOW), shared, commander, random: seed, is_over, threads }
    }

    /// Takes a request; the SPI that it has reserved, if that is what was asked for.
    pub fn hears(&mut self, request: &Datagram) -> Option<u32> {
        self.answers(request).unwrap_or_else(|(code, text)| {
            panic!("{code}, {text}: {:?}", messages(request.as_bytes()).next())
        })
    }

    /// The same; the errno and the text of a refusal.
    pub fn answers(&mut self, request: &Datagram) -> Result<Option<u32>, (i32, String)> {
        let message = messages(request.as_bytes()).next().unwrap().unwrap();
        let client = Client::default();
        // An odd factor: all numbers come, and neighbours are far from each other.
        let last = &mut self.random;
        let mut random = |highest: u32| {
            *last = last.wrapping_add(0x9E37_79B1);
            u32::try_from((u64::from(*last) * (u64::from(highest) + 1)) >> 32).unwrap()
        };
        let answers = self.xfrm.answer_at_once(&client, &message, false, NOW, &mut random);
        let datagram = answers.datagrams.first().expect("an answer");
        let answer = messages(datagram.as_bytes()).next().unwrap().unwrap();
        if let Some(Answer { code, text, .. }) = Answer::read(&answer) {
            return if code == 0 { Ok(None) } else { Err((code, text.unwrap_or_default())) };
        }
        match Message::read(&answer).unwrap().body {
            Body::NewSa(sa) => Ok(Some(sa.id.spi)),
            _ => Ok(None),
        }
    }

    /// Commands that its worker has been sent.
    pub fn commands(&self) -> u64 {
        self.commander.sent()
    }

    /// How many tunnels and policies are negotiated.
    pub fn negotiated(&self) -> [usize; 2] {
        let negotiated = &self.shared.installed().negotiated;
        [negotiated.len(), negotiated.count_policies()]
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
        let _ = self.commander.stop();
        self.is_over.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            thread.join().unwrap();
        }
    }
}
