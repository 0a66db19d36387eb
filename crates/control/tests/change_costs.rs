//! What a change of one policy or of one SA costs the control plane: the same beside a few others and beside
//! nearly as many as a configuration may have. Allocations and their bytes show that nothing is copied; the
//! time of the thread, the least of many rounds, that nothing is searched. And what a tunnel takes there.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;
use testudo_control::config::{Configuration, Loaded, TunnelKeys};
use testudo_control::service::api::{Shared, converse};
use testudo_control::service::installed::{InstalledTunnels, Numbers};
use testudo_control::service::leases::Leases;
use testudo_control::service::policies;
use testudo_control::service::port_details::BothDetails;
use testudo_control::service::report::{self, Facts};
use testudo_control::service::sa_control::SaControl;
use testudo_control::service::threads::Threads;
use testudo_control::{LeaseStore, MemoryStore};
use testudo_crypto::{KeyMaterial, PortableEngine, Suite};
use testudo_gateway::{AllCounters, Clock, Commander, PortPair, SystemClock, Worker, serve};
use testudo_packet::Pool;
use testudo_port_memory::MemoryPort;
use zeroize::Zeroizing;

thread_local! {
    static ALLOCATED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static FREED: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts each thread's allocations and their bytes.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator; counting touches a thread-local cell
// that needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATED.try_with(|n| n.set((n.get().0 + 1, n.get().1 + layout.size() as u64)));
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let _ = FREED.try_with(|freed| freed.set(freed.get() + layout.size() as u64));
        // SAFETY: the caller's promises about both are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Rounds of each measurement.
const ROUNDS: usize = 200;
/// Larger tables and caches that do not hold them make an access slower, not the number of accesses larger.
const SLOWER: u64 = 6;

/// Bytes that this thread holds.
fn held() -> u64 {
    ALLOCATED.get().1.wrapping_sub(FREED.get())
}

/// The least of some rounds, each for itself.
#[derive(Debug, Clone, Copy)]
struct Cost {
    allocations: u64,
    bytes: u64,
    nanoseconds: u64,
}

fn cpu_time() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

fn cost_of(mut round: impl FnMut()) -> Cost {
    let mut least = Cost { allocations: u64::MAX, bytes: u64::MAX, nanoseconds: u64::MAX };
    for _ in 0..ROUNDS {
        let (before, began) = (ALLOCATED.get(), cpu_time());
        round();
        let (took, after) = (cpu_time() - began, ALLOCATED.get());
        least.allocations = least.allocations.min(after.0 - before.0);
        least.bytes = least.bytes.min(after.1 - before.1);
        least.nanoseconds = least.nanoseconds.min(took);
    }
    least
}

fn compare(what: &str, few: Cost, many: Cost) {
    println!("{what}: {few:?} beside a few, {many:?} beside many");
    assert!(many.allocations <= few.allocations + few.allocations / 4, "{what}: {few:?}, {many:?}");
    assert!(many.bytes <= 2 * few.bytes, "{what}: {few:?}, {many:?}");
    assert!(many.nanoseconds <= SLOWER * few.nanoseconds, "{what}: {few:?}, {many:?}");
}

/// A key that no other number has.
fn key(number: u64) -> KeyMaterial {
    let suite = Suite::AES128GCM16;
    let mut bytes = vec![0x5A; suite.keying_material_bytes()];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    KeyMaterial::new(suite, Zeroizing::new(bytes)).unwrap()
}

/// As many tunnels, with so many selectors each, and as many policies.
fn loaded(tunnels: u32, selectors: u32, policies: u32) -> Loaded {
    let mut text =
        "[gateway]\nstate = \"s\"\n[port.protected]\nkind = \"tun\"\nname = \"t0\"\n[port.unprotected]\n\
                    kind = \"socket\"\n"
            .to_owned();
    for number in 0..policies {
        let [_, _, high, low] = number.to_be_bytes();
        writeln!(text, "[[policy]]\naction = \"discard\"\nremote = \"10.200.{high}.{low}\"").unwrap();
    }
    let mut keys = Vec::new();
    for tunnel in 0..tunnels {
        let [_, _, high, low] = tunnel.to_be_bytes();
        let entry = |number: u32| {
            let [_, top, high, low] = (tunnel * selectors + number).to_be_bytes();
            format!("{{ local = \"10.1.0.0/16\", remote = \"100.{}.{high}.{low}\" }}", 64 + top)
        };
        let entries: Vec<String> = (0..selectors).map(entry).collect();
        let (outbound, inbound) = (0x10000 + tunnel, 0x20000 + tunnel);
        writeln!(
            text,
            "[[tunnel]]\nname = \"t{tunnel}\"\nlocal = \"192.0.2.1\"\nremote = \"198.18.{high}.{low}\"\nsuite = \"aes128gcm16\"\n\
             selectors = [ {} ]\noutbound = {{ spi = {outbound}, key_file = \"{outbound}\" }}\n\
             inbound = {{ spi = {inbound}, key_file = \"{inbound}\" }}",
            entries.join(", ")
        )
        .unwrap();
        keys.push(TunnelKeys::pair(key(outbound.into()), key(inbound.into())));
    }
    Loaded { configuration: Configuration::parse(&text, "t.toml").unwrap(), keys }
}

/// Adds a policy at a place in the middle and deletes it again, as the main thread does without the worker.
fn policy_cost(loaded: &Loaded, words: &Value) -> Cost {
    let empty = InstalledTunnels::empty(loaded.configuration.clone());
    let (_, mut installed, _) = empty.plan(loaded, &Numbers::KnownAnswers).unwrap();
    drop(empty);
    let middle = (loaded.configuration.policies.len() / 2).to_string();
    let add = json!({ "verb": "policy-add", "words": words, "before": middle });
    let delete = json!({ "verb": "policy-delete", "policy": "passing" });
    cost_of(|| {
        for request in [&add, &delete] {
            let planned = policies::plan(&installed, request).unwrap();
            planned.apply(&mut installed).unwrap();
        }
    })
}

/// A gateway behind a control socket.
struct Gateway {
    shared: Arc<Shared>,
    commander: Commander,
    worker: Option<std::thread::JoinHandle<()>>,
}

impl Gateway {
    fn new(loaded: &Loaded) -> Self {
        let store: Arc<dyn LeaseStore> = Arc::new(MemoryStore::new());
        let (protected, unprotected) = MemoryPort::pair(1);
        let ports = PortPair { protected: Box::new(protected), unprotected: Box::new(unprotected) };
        let engines: Vec<Box<dyn testudo_crypto::Engine>> = vec![Box::new(PortableEngine::new())];
        let mut worker = Worker::new(ports, Pool::new(8, 2048), engines, Box::default());
        let (clock, leases, preparers) =
            (SystemClock::default(), Arc::new(Leases::default()), worker.preparers());
        let empty = InstalledTunnels::empty(loaded.configuration.clone());
        let numbers =
            Numbers::Leased { store: store.as_ref(), leases: &leases, unix_s: 0, preparers: &preparers };
        let (update, mut installed, _) = empty.plan(loaded, &numbers).unwrap();
        assert!(installed.note(worker.update(update, clock.now())).is_empty());
        let (commander, inbox) = Commander::channel().unwrap();
        let sas = SaControl::new(commander.clone(), leases, store, preparers, &installed);
        let facts = Facts {
            version: "test",
            started: Instant::now(),
            clock,
            engines: Vec::new(),
            ports: BothDetails::default(),
            counters: AllCounters::of([worker.counters()]),
            threads: Threads::default(),
        };
        let shared = Arc::new(Shared {
            facts,
            installed: Mutex::new(Arc::new(installed)),
            peers: Mutex::default(),
            sas: OnceLock::from(sas),
            changer: OnceLock::new(),
        });
        let worker = std::thread::spawn(move || {
            serve(&mut worker, &inbox, &SystemClock::default(), &mut |_| {}).unwrap();
        });
        Self { shared, commander, worker: Some(worker) }
    }

    fn ask(&self, request: &Value) {
        let mut answer = Vec::new();
        converse(format!("{request}\n").as_bytes(), &mut answer, &self.shared).unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        assert!(answer["error"].is_null(), "{answer}");
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.commander.stop();
        self.worker.take().into_iter().for_each(|worker| worker.join().unwrap());
    }
}

/// Adds an SA from the peer and one towards it, and deletes them. The worker's part is counted elsewhere: its
/// thread is another one.
fn sa_cost(loaded: &Loaded, ephemeral: bool) -> Cost {
    let gateway = Gateway::new(loaded);
    let mut next = 1 << 40;
    cost_of(|| {
        let mut hex = || {
            next += 1;
            let key = key(next);
            let bytes = key.key().iter().chain(key.salt());
            bytes.fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
        };
        gateway.ask(&json!({
            "verb": "sa-add", "tunnel": "t1", "inbound": 0x50000, "inbound_key": hex(), "outbound": 0x60000,
            "outbound_key": hex(), "ephemeral": ephemeral,
        }));
        for spi in [0x50000, 0x60000] {
            gateway.ask(&json!({ "verb": "sa-delete", "tunnel": "t1", "spi": spi }));
        }
    })
}

/// RFC 4301 4.4.1 has one ordered SPD; what one entry costs must not depend on the others.
#[test]
fn one_policy_costs_the_control_plane_the_same_beside_10_and_100_000_selectors() {
    let (few, many) = (loaded(2, 3, 4), loaded(18_000, 5, 9_990));
    let discard = json!({ "action": "discard", "name": "passing", "remote": "10.201.0.0/24" });
    compare("a policy that discards", policy_cost(&few, &discard), policy_cost(&many, &discard));
    let protect = json!({
        "action": "protect", "name": "passing", "tunnel": "t1", "local": "10.1.0.0/16", "remote": "10.202.0.0/24",
    });
    compare("a policy that protects", policy_cost(&few, &protect), policy_cost(&many, &protect));
}

/// A client waits five seconds: what a row of the list costs must not depend on how many tunnels there are.
#[test]
fn each_row_of_the_list_of_policies_costs_the_same_beside_2_and_18_000_tunnels() {
    let row_cost = |loaded: &Loaded, rounds: usize| {
        let empty = InstalledTunnels::empty(loaded.configuration.clone());
        let (_, installed, _) = empty.plan(loaded, &Numbers::KnownAnswers).unwrap();
        let rows = installed.spd.len() as u64;
        let once = || {
            let began = cpu_time();
            assert_eq!(report::policies(&installed).as_array().map(Vec::len), Some(installed.spd.len()));
            (cpu_time() - began) / rows
        };
        (0..rounds).map(|_| once()).min().unwrap()
    };
    let few = row_cost(&loaded(2, 3, 4), 1000);
    let many = row_cost(&loaded(18_000, 1, 0), 2);
    println!("{few} ns a row beside 2 tunnels, {many} beside 18,000");
    assert!(many <= SLOWER * few, "{few} ns a row beside 2 tunnels, {many} beside 18,000");
}

#[test]
fn one_pair_of_sas_costs_the_control_plane_the_same_beside_4_and_36_000() {
    let (few, many) = (loaded(2, 1, 0), loaded(18_000, 1, 0));
    for (what, ephemeral) in [("SAs with leased numbers", false), ("ephemeral SAs", true)] {
        compare(what, sa_cost(&few, ephemeral), sa_cost(&many, ephemeral));
    }
}

/// Beside the worker, whose part a test of the gateway bounds. The counters of its SAs, which the worker
/// shares, are among it; the store, which a running gateway has in a file, is not.
#[test]
fn a_tunnel_and_its_two_sas_take_at_most_4_kb_of_the_control_plane() {
    const TUNNELS: u32 = 2000;
    let store: Arc<dyn LeaseStore> = Arc::new(MemoryStore::new());
    let (protected, unprotected) = MemoryPort::pair(1);
    let ports = PortPair { protected: Box::new(protected), unprotected: Box::new(unprotected) };
    let engines: Vec<Box<dyn testudo_crypto::Engine>> = vec![Box::new(PortableEngine::new())];
    let mut worker = Worker::new(ports, Pool::new(8, 2048), engines, Box::default());
    let (commander, _inbox) = Commander::channel().unwrap();
    let before = held();
    let (leases, preparers) = (Arc::new(Leases::default()), worker.preparers());
    let loaded = loaded(TUNNELS, 1, 0);
    let empty = InstalledTunnels::empty(loaded.configuration.clone());
    let numbers =
        Numbers::Leased { store: store.as_ref(), leases: &leases, unix_s: 0, preparers: &preparers };
    let (update, mut installed, _) = empty.plan(&loaded, &numbers).unwrap();
    assert!(installed.note(worker.update(update, SystemClock::default().now())).is_empty());
    let sas = SaControl::new(commander, leases, Arc::clone(&store), preparers, &installed);
    drop((empty, loaded));
    // What others share is freed with the last of them.
    drop(worker);
    let with_store = held().wrapping_sub(before);
    drop((installed, sas));
    let of_store = held().wrapping_sub(before);
    let each = with_store.wrapping_sub(of_store) / u64::from(TUNNELS);
    println!("{each} bytes of the control plane for a tunnel with two SAs");
    assert!(each <= 4 * 1024, "{each} bytes");
}
