//! SAs of a running worker, changed by every verb in turn, with what could go wrong between them.

use super::*;
use crate::config::{Configuration, Loaded, TunnelKeys};
use crate::service::ephemeral_keys::MAX_EPHEMERAL_KEYS;
use crate::service::installed::Numbers;
use crate::service::port_details::BothDetails;
use crate::service::report::{self, Facts};
use crate::service::saver::Saver;
use crate::service::threads::Threads;
use crate::store::MAX_WINDOW_BYTES;
use crate::{MemoryStore, Store};
use std::collections::HashSet;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{OnceLock, Weak};
use std::thread::JoinHandle;
use testudo_crypto::{Engine, PortableEngine, Suite};
use testudo_gateway::{AllCounters, EngineReport, Notice, PortPair, SystemClock, Worker, serve};
use testudo_ipsec::ReplayWindow;
use testudo_packet::Pool;
use testudo_port_memory::{MemoryHandle, MemoryPort};
use zeroize::Zeroizing;

pub(in crate::service) const SUITE: Suite = Suite::AES128GCM16;
/// Rounds that a packet may take through the worker: a test that needs more has failed.
const ROUNDS: usize = 100_000;

/// Two tunnels, a and b, with the inbound SPIs 0x1002 and 0x2002 and keys of the bytes 1 to 4, each with
/// `more`; `policies` come before.
fn configuration(policies: &str, more: &str) -> Configuration {
    let tunnel = |name: &str, number: u32| {
        format!(
            "[[tunnel]]\nname = \"{name}\"\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.2\"\nsuite = \"aes128gcm16\"\n{more}\n\
             selectors = [ {{ local = \"10.1.0.0/16\", remote = \"10.{number}.0.0/16\" }} ]\n\
             outbound = {{ spi = 0x{number}001, key_file = \"{name}.out\" }}\ninbound = {{ spi = 0x{number}002, key_file = \"{name}.in\" }}\n"
        )
    };
    let ports = "[gateway]\nstate = \"s\"\n[port.protected]\nkind = \"tun\"\nname = \"t0\"\n[port.unprotected]\nkind = \"socket\"\n";
    Configuration::parse(&format!("{ports}{policies}{}{}", tunnel("a", 1), tunnel("b", 2)), "t.toml").unwrap()
}

pub(in crate::service) fn material(byte: u8) -> KeyMaterial {
    KeyMaterial::new(SUITE, Zeroizing::new(vec![byte; SUITE.keying_material_bytes()])).unwrap()
}

/// The key of `byte` in hex.
fn hex(byte: u8) -> String {
    format!("{byte:02x}").repeat(SUITE.keying_material_bytes())
}

fn loaded(more: &str) -> Loaded {
    loaded_with("", more)
}

pub(in crate::service) fn loaded_with(policies: &str, more: &str) -> Loaded {
    let keys =
        [[1, 2], [3, 4]].map(|[outbound, inbound]| TunnelKeys::pair(material(outbound), material(inbound)));
    Loaded { configuration: configuration(policies, more), keys: keys.into() }
}

/// A gateway whose tunnels are of VPE.
pub(in crate::service) fn of_vpe() -> Gateway {
    of_vpe_with("", 1)
}

/// The same with further lines in each tunnel, and so many workers.
pub(in crate::service) fn of_vpe_with(more: &str, workers: usize) -> Gateway {
    let suite = SUITE.for_vpe().unwrap();
    let key = |byte| KeyMaterial::new(suite, Zeroizing::new(vec![byte; 16])).unwrap();
    let keys = [[1, 2], [3, 4]].map(|[outbound, inbound]| TunnelKeys::pair(key(outbound), key(inbound)));
    let store = MemoryStore::new();
    // Their nonces are numbers: the store has to know them.
    store.note_fresh(&[1, 3].map(|byte| numbers_of(&key(byte)))).unwrap();
    let lines = format!("encapsulation = \"vpe\"\nallow_manual_counter_nonce = true\n{more}");
    let loaded = Loaded { configuration: configuration("", &lines), keys: keys.into() };
    Gateway::of_workers(Arc::new(store), &loaded, workers)
}

/// A gateway whose ports are queues.
pub(in crate::service) struct Gateway {
    pub(in crate::service) shared: Arc<Shared>,
    leases: Arc<Leases>,
    store: Arc<dyn LeaseStore>,
    pub(in crate::service) commander: Commander,
    pub(in crate::service) protected: MemoryHandle,
    pub(in crate::service) unprotected: MemoryHandle,
    /// The same of each worker after the first.
    pub(in crate::service) of_others: Vec<[MemoryHandle; 2]>,
    /// What the workers tell.
    pub(in crate::service) notices: Receiver<Notice>,
    workers: Vec<JoinHandle<()>>,
}

impl Gateway {
    fn new(store: Arc<dyn LeaseStore>, more: &str) -> Self {
        Self::running(store, &loaded(more))
    }

    pub(in crate::service) fn running(store: Arc<dyn LeaseStore>, loaded: &Loaded) -> Self {
        Self::of_workers(store, loaded, 1)
    }

    /// With so many workers.
    pub(in crate::service) fn of_workers(store: Arc<dyn LeaseStore>, loaded: &Loaded, count: usize) -> Self {
        let (mut workers, mut handles) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (protected_port, protected) = MemoryPort::with_handle("protected", 64);
            let (unprotected_port, unprotected) = MemoryPort::with_handle("unprotected", 64);
            let (protected_port, unprotected_port) = (Box::new(protected_port), Box::new(unprotected_port));
            let ports = PortPair { protected: protected_port, unprotected: unprotected_port };
            let engines: Vec<Box<dyn testudo_crypto::Engine>> = vec![Box::new(PortableEngine::new())];
            workers.push(Worker::new(ports, Pool::new(256, 2048), engines, Box::default()));
            handles.push([protected, unprotected]);
        }
        let [protected, unprotected] = handles.remove(0);
        let preparers = workers[0].preparers().for_workers(count);
        let (clock, leases) = (SystemClock::default(), Arc::new(Leases::default()));
        let empty = InstalledTunnels::empty(loaded.configuration.clone());
        let numbers =
            Numbers::Leased { store: store.as_ref(), leases: &leases, unix_s: 1000, preparers: &preparers };
        let (update, mut installed, _) = empty.plan(loaded, &numbers).unwrap();
        let now = testudo_gateway::Clock::now(&clock);
        assert!(installed.note(Worker::update_all(&mut workers, update, now)).is_empty());
        let (commander, inboxes) = Commander::channels(count).unwrap();
        let sas =
            SaControl::new(commander.clone(), Arc::clone(&leases), Arc::clone(&store), preparers, &installed);
        let portable = EngineReport {
            name: "portable".to_owned(),
            in_use: true,
            detail: PortableEngine::new().description(),
            suites: Suite::ALL.to_vec(),
        };
        let facts = Facts {
            version: "test",
            started: Instant::now(),
            clock,
            engines: vec![portable],
            ports: BothDetails::default(),
            counters: AllCounters::of(workers.iter().map(Worker::counters)),
            threads: Threads::default(),
        };
        let shared = Arc::new(Shared {
            facts,
            installed: Mutex::new(Arc::new(installed)),
            peers: Mutex::default(),
            sas: OnceLock::from(sas),
            changer: OnceLock::new(),
        });
        let (news, notices) = channel();
        let start = |(mut worker, inbox): (Worker, testudo_gateway::Inbox)| {
            let news = news.clone();
            std::thread::spawn(move || {
                let mut tell = |notice| {
                    let _ = news.send(notice);
                };
                serve(&mut worker, &inbox, &SystemClock::default(), &mut tell).unwrap();
            })
        };
        let workers = workers.into_iter().zip(inboxes).map(start).collect();
        let of_others = handles;
        Self { shared, leases, store, commander, protected, unprotected, of_others, notices, workers }
    }

    fn in_memory() -> Self {
        Self::new(Arc::new(MemoryStore::new()), "")
    }

    pub(in crate::service) fn sas(&self) -> &SaControl {
        self.shared.sas.get().unwrap()
    }

    pub(in crate::service) fn ask(&self, mut request: Value) -> Result<Value, String> {
        let change = SaRequest::read(&mut request)?.expect("a change of SAs");
        self.sas().answer(&self.shared, change)
    }

    /// Adds SAs with these SPIs and keys to a tunnel, where `more` says the rest.
    fn add(
        &self,
        tunnel: &str,
        inbound: Option<(u32, u8)>,
        outbound: Option<(u32, u8)>,
        more: &Value,
    ) -> Result<Value, String> {
        let mut request = json!({ "verb": "sa-add", "tunnel": tunnel });
        for (name, sa) in [("inbound", inbound), ("outbound", outbound)] {
            if let Some((spi, key)) = sa {
                request[name] = json!(spi);
                request[format!("{name}_key")] = json!(hex(key));
            }
        }
        for (key, value) in more.as_object().unwrap() {
            request[key] = value.clone();
        }
        self.ask(request)
    }

    /// The SAs of a tunnel: direction, SPI, and whether it is in use.
    fn list(&self, tunnel: &str) -> Vec<(Direction, u32, bool)> {
        let installed = self.shared.installed();
        let sas = installed.find(tunnel).unwrap().sas.lock();
        sas.iter().map(|sa| (sa.direction, sa.spi, sa.is_in_use())).collect()
    }

    fn in_use(&self, tunnel: &str) -> Option<u32> {
        self.list(tunnel).into_iter().find(|(_, _, is_in_use)| *is_in_use).map(|(_, spi, _)| spi)
    }

    /// Sends a packet through tunnel a, and returns SPI, sequence number and IV of what leaves.
    pub(in crate::service) fn seal(&self) -> (u32, u32, [u8; 8]) {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 1, 10, 1, 0, 2];
        packet.extend([0, 7, 0, 7, 0, 8, 0, 0]);
        let sum: u32 = packet[..20].chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        let sum = u16::try_from((sum & 0xFFFF) + (sum >> 16)).unwrap();
        packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
        assert!(self.protected.input.push(&packet));
        for _ in 0..ROUNDS {
            self.commander.save_windows(Vec::new()).unwrap();
            if let Some(sealed) = self.unprotected.output.pop() {
                let number = |at: usize| u32::from_be_bytes(*sealed[at..].first_chunk().unwrap());
                return (number(20), number(24), *sealed[28..].first_chunk().unwrap());
            }
        }
        panic!("nothing left");
    }

    pub(in crate::service) fn end_overlaps(&self, seconds: u64) -> Vec<Fingerprint> {
        self.sas().end_overlaps(&self.shared, Instant::now() + Duration::from_secs(seconds))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.commander.stop();
        let ended: Vec<_> = self.workers.drain(..).map(JoinHandle::join).collect();
        assert!(ended.iter().all(Result::is_ok) || std::thread::panicking());
    }
}

fn replace(more: Value) -> Value {
    let mut request = json!({ "verb": "sa-replace", "overlap_seconds": 30 });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

#[test]
fn reordering_is_told_of_sas_from_peers_that_several_workers_have() {
    let gateway = Gateway::in_memory();
    let told = || {
        let (shared, engines) = (&gateway.shared, report::EnginesInService::of(&gateway.shared.facts));
        let now = testudo_gateway::Clock::now(&shared.facts.clock);
        let rows = report::security_associations(&shared.installed(), &shared.peers(), &engines, now);
        let of = |row: &Value| (row["direction"].clone(), row["reordering"].clone(), row["release"].clone());
        let mut rows: Vec<_> = rows.as_array().unwrap().iter().map(of).collect();
        rows.dedup();
        rows.truncate(2);
        let page = crate::service::metrics::tests::page(shared);
        let samples = page.lines().filter(|line| line.starts_with("testudo_sa_reordered_total{"));
        (rows, samples.count())
    };
    let directions = ["outbound", "inbound"].map(Value::from);
    assert_eq!(told(), (directions.clone().map(|of| (of, Value::Null, Value::Null)).to_vec(), 0));
    let loaded = loaded("");
    let empty = InstalledTunnels::empty(loaded.configuration.clone());
    let (update, mut installed, _) = empty.plan(&loaded, &Numbers::KnownAnswers).unwrap();
    let mut workers = [(); 2].map(|()| {
        let [protected, unprotected] =
            ["protected", "unprotected"].map(|name| Box::new(MemoryPort::with_handle(name, 64).0));
        let ports = PortPair { protected, unprotected };
        let engines: Vec<Box<dyn testudo_crypto::Engine>> = vec![Box::new(PortableEngine::new())];
        let mut worker = Worker::new(ports, Pool::new(256, 2048), engines, Box::default());
        worker.release_in_order();
        worker
    });
    let now = testudo_gateway::Clock::now(&gateway.shared.facts.clock);
    assert!(installed.note(Worker::update_all(&mut workers, update, now)).is_empty());
    gateway.shared.replace_installed(installed);
    let counted = json!({ "arrived": 0, "reordered": 0, "longest_extent": 0 });
    let cost = json!({ "waited": 0, "longest_wait_us": 0, "passed_over": 0 });
    let [outbound, inbound] = directions;
    let rows = vec![(outbound, Value::Null, Value::Null), (inbound, counted, cost)];
    assert_eq!(told(), (rows, 2), "of each of two tunnels");
}

/// RFC 4106 2: under a key that began again at 1, nonces would repeat.
#[test]
fn a_refused_replacement_leaves_the_tunnel_as_it_was_and_its_key_unused() {
    let gateway = Gateway::in_memory();
    gateway.seal();
    let before = gateway.list("a");
    // The SPI is tunnel b's.
    let refused =
        gateway.add("a", Some((0x2002, 11)), Some((0x3001, 12)), &replace(json!({ "ephemeral": true })));
    assert_eq!(refused.unwrap_err(), "tunnel a: SPI 0x2002 is reserved or in use");
    assert_eq!(gateway.list("a"), before);
    assert_eq!(gateway.seal().0, 0x1001);
    // The worker refuses a window that it cannot read, when all that can be checked beforehand is.
    gateway.store.save_windows(&[(fingerprint(&material(13)), b"rubbish")]).unwrap();
    let resumed = replace(json!({ "resume": true }));
    let refused = gateway.add("a", Some((0x3002, 13)), Some((0x3003, 14)), &resumed);
    assert!(refused.unwrap_err().contains("its saved replay window is damaged"));
    assert_eq!(gateway.list("a"), before);
    assert_eq!(gateway.seal().0, 0x1001);
    assert!(!gateway.store.is_known(numbers_of(&material(14))).unwrap());
    gateway.add("a", None, Some((0x3001, 12)), &replace(json!({ "ephemeral": true }))).unwrap();
    assert_eq!(gateway.seal().1, 1, "the key was new");
}

/// RFC 4106 8.2, as in the configuration: in any tunnel, direction, and with any salt and ICV.
#[test]
fn a_key_belongs_to_one_sa_alone_of_all_tunnels() {
    let gateway = Gateway::in_memory();
    let resume = json!({ "resume": true });
    for (key, holder) in [(1, "a"), (2, "a"), (3, "b"), (4, "b")] {
        let print = fingerprint(&material(key));
        let told = format!("key {print} belongs to an SA of tunnel {holder}: give a new one");
        assert_eq!(gateway.add("a", Some((0x3002, key)), None, &resume), Err(told.clone()));
        assert_eq!(gateway.add("b", None, Some((0x3002, key)), &resume), Err(told));
    }
    let other_icv = json!({ "suite": "aes128gcm8", "ephemeral": true });
    assert!(gateway.add("b", None, Some((0x3001, 2)), &other_icv).unwrap_err().contains("SA of tunnel a"));
    let mut other_salt = hex(2);
    other_salt.replace_range(32.., "00000000");
    let request = json!({
        "verb": "sa-add", "tunnel": "b", "outbound": 0x3001, "outbound_key": other_salt, "ephemeral": true,
    });
    assert!(gateway.ask(request).unwrap_err().contains("SA of tunnel a"));
    // A key that is free again may be resumed.
    gateway.ask(json!({ "verb": "sa-delete", "tunnel": "b", "spi": 0x2002, "force": true })).unwrap();
    gateway.add("a", Some((0x3002, 4)), None, &resume).unwrap();
}

#[test]
fn an_ephemeral_key_is_refused_as_long_as_an_sa_has_it() {
    let gateway = Gateway::in_memory();
    let ephemeral = json!({ "ephemeral": true });
    gateway.add("a", None, Some((0x3001, 11)), &ephemeral).unwrap();
    // As many later ones as are remembered.
    for number in 0..=MAX_EPHEMERAL_KEYS {
        gateway.sas().lock().ephemeral.add(crate::fingerprint::digest_of(&[&number.to_le_bytes()]));
    }
    assert!(!gateway.sas().lock().was_ephemeral(&material(11)));
    for more in [&ephemeral, &json!({})] {
        let refused = gateway.add("b", None, Some((0x3001, 11)), more).unwrap_err();
        assert!(refused.contains("belongs to an SA of tunnel a"), "{refused}");
    }
    // Nor may a reload configure it.
    let mut configured = loaded("");
    configured.configuration.tunnels[1].outbound.spi = 0x4001;
    configured.keys[1].outbound = material(11);
    let conflict = gateway.sas().lock().check(&gateway.shared.installed(), &configured).unwrap_err();
    assert!(
        conflict.contains("tunnel b: a key of its SAs belongs to an SA that was added to tunnel a"),
        "{conflict}"
    );
}

#[test]
fn a_reload_gives_no_tunnel_the_key_or_the_spi_of_an_sa_that_was_added() {
    let gateway = Gateway::in_memory();
    gateway.add("a", Some((0x3002, 11)), None, &json!({})).unwrap();
    let installed = gateway.shared.installed();
    let check = |loaded: &Loaded| gateway.sas().lock().check(&installed, loaded);
    assert_eq!(check(&loaded("")), Ok(()));
    let changed = |spi, key| {
        let mut changed = loaded("");
        changed.configuration.tunnels[1].inbound.spi = spi;
        changed.keys[1].inbound = material(key);
        check(&changed)
    };
    assert_eq!(changed(0x3003, 12), Ok(()));
    let told = "belongs to an SA that was added to tunnel a at run time: delete that one first";
    assert_eq!(changed(0x3002, 12), Err(format!("tunnel b: its inbound SPI 0x3002 {told}")));
    assert_eq!(changed(0x3003, 11), Err(format!("tunnel b: a key of its SAs {told}")));
    // A tunnel that changes itself loses the SAs that were added to it.
    let mut own = loaded("");
    own.configuration.tunnels[0].inbound.spi = 0x3002;
    own.keys[0].inbound = material(11);
    assert_eq!(check(&own), Ok(()));
}

#[test]
fn an_sa_that_was_added_under_the_spi_of_a_replaced_one_does_not_leave_with_it() {
    let gateway = Gateway::in_memory();
    gateway.add("a", Some((0x3002, 11)), Some((0x3001, 12)), &replace(json!({}))).unwrap();
    let delete = |spi: u32| json!({ "verb": "sa-delete", "tunnel": "a", "spi": spi });
    gateway.ask(delete(0x1002)).unwrap();
    gateway.ask(delete(0x1001)).unwrap();
    gateway.add("a", Some((0x1002, 13)), Some((0x1001, 14)), &json!({})).unwrap();
    gateway.end_overlaps(0);
    gateway.end_overlaps(60);
    let spis: Vec<_> = gateway.list("a").into_iter().map(|(_, spi, _)| spi).collect();
    assert_eq!(spis, [0x3002, 0x3001, 0x1002, 0x1001]);
}

#[test]
fn a_replaced_sa_that_is_put_to_use_again_stays() {
    let gateway = Gateway::in_memory();
    gateway.add("a", Some((0x3002, 11)), Some((0x3001, 12)), &replace(json!({}))).unwrap();
    assert_eq!(gateway.seal().0, 0x3001);
    gateway.end_overlaps(0);
    gateway.ask(json!({ "verb": "sa-use", "tunnel": "a", "spi": 0x1001 })).unwrap();
    gateway.end_overlaps(60);
    assert_eq!((gateway.in_use("a"), gateway.list("a").len()), (Some(0x1001), 4));
    assert_eq!(gateway.seal().0, 0x1001);
    // Another replacement ends it.
    gateway.add("a", None, Some((0x4001, 13)), &replace(json!({}))).unwrap();
    gateway.end_overlaps(70);
    gateway.end_overlaps(170);
    let outbound = gateway.list("a").into_iter().filter(|(direction, ..)| *direction == Direction::Seal);
    assert_eq!(outbound.collect::<Vec<_>>(), [(Direction::Seal, 0x4001, true)]);
}

#[test]
fn a_replaced_sa_that_was_deleted_is_waited_for_no_more() {
    let gateway = Gateway::in_memory();
    let mut last = 0x1002;
    for number in 0..20 {
        let spi = 0x3000 + u32::from(number);
        gateway
            .add("a", Some((spi, 100 + number)), None, &replace(json!({ "overlap_seconds": 86_400 })))
            .unwrap();
        gateway.ask(json!({ "verb": "sa-delete", "tunnel": "a", "spi": last })).unwrap();
        gateway.end_overlaps(u64::from(number));
        last = spi;
    }
    let state = gateway.sas().lock();
    assert!(format!("{:?}", state.overlaps).matches("Overlap {").count() <= 1, "{:?}", state.overlaps);
}

/// The largest windows have half a megabyte, and a new key each hour would keep as much an hour.
#[test]
fn the_window_of_a_replaced_key_is_kept_as_its_highest_number() {
    let gateway = Gateway::new(Arc::new(MemoryStore::new()), "replay_window = 2_097_152");
    gateway.add("a", Some((0x3002, 11)), None, &json!({})).unwrap();
    gateway.ask(json!({ "verb": "sa-delete", "tunnel": "a", "spi": 0x3002 })).unwrap();
    let kept = gateway.store.window(fingerprint(&material(11))).unwrap().unwrap();
    assert!(kept == ReplayWindow::closed_up_to(0), "{} bytes", kept.len());
    // A restart brings the configured one back, exactly as it is.
    gateway.ask(json!({ "verb": "sa-delete", "tunnel": "a", "spi": 0x1002, "force": true })).unwrap();
    let exact = gateway.store.window(fingerprint(&material(2))).unwrap().unwrap();
    assert!(exact.len() > 2_097_152 / 8 && exact.len() <= MAX_WINDOW_BYTES);
}

/// All of them, not their highest number alone: each goes on by itself when the key comes back.
#[test]
fn the_windows_of_a_deleted_sa_of_vpe_are_kept() {
    let gateway = of_vpe();
    gateway.ask(json!({ "verb": "sa-delete", "tunnel": "a", "spi": 0x1002, "force": true })).unwrap();
    let key = KeyMaterial::new(SUITE.for_vpe().unwrap(), Zeroizing::new(vec![2; 16])).unwrap();
    let kept = gateway.store.window(fingerprint(&key)).unwrap().unwrap();
    assert!(testudo_ipsec::closed_windows(&kept).is_some(), "{} bytes", kept.len());
}

/// NIST SP 800-38D 7.1: the shorter ICV of AES-GCM is the beginning of the longer one, so that a recorded
/// packet can be cut to it. RFC 4303 3.4.3: what was received is refused.
#[test]
fn a_key_that_goes_on_under_another_icv_receives_nothing_again() {
    let gateway = Gateway::in_memory();
    let mut window = ReplayWindow::new(64, true);
    window.commit(5000).unwrap();
    gateway.store.save_windows(&[(fingerprint(&material(11)), &window.save())]).unwrap();
    let shorter = |resume| json!({ "suite": "aes128gcm8", "resume": resume });
    let refused = gateway.add("a", Some((0x3002, 11)), None, &shorter(false)).unwrap_err();
    assert!(refused.contains("known to the store"), "{refused}");
    gateway.add("a", Some((0x3002, 11)), None, &shorter(true)).unwrap();
    let short = KeyMaterial::new(
        "aes128gcm8".parse().unwrap(),
        Zeroizing::new(vec![11; SUITE.keying_material_bytes()]),
    );
    let (short, top) = (short.unwrap(), |saved: Vec<u8>| ReplayWindow::top_of(&saved).unwrap());
    // After a crash it is closed as far ahead as any other.
    let ceiling = gateway.store.window(fingerprint(&short)).unwrap().unwrap();
    assert_eq!(top(ceiling), 5000 + windows::FIRST_REACH);
    gateway.ask(json!({ "verb": "sa-delete", "tunnel": "a", "spi": 0x3002 })).unwrap();
    assert_eq!(top(gateway.store.window(fingerprint(&short)).unwrap().unwrap()), 5000);
    // And back: whichever has received more counts.
    gateway.store.save_windows(&[(fingerprint(&short), &ReplayWindow::closed_up_to(7000))]).unwrap();
    assert_eq!(top(windows::saved(gateway.store.as_ref(), &material(11)).unwrap().unwrap()), 7000);
    assert_eq!(top(windows::saved(gateway.store.as_ref(), &short).unwrap().unwrap()), 7000);
}

/// Were it lost, the key would accept again what came after the last ceiling (RFC 4303 3.4.3).
#[test]
fn the_window_of_an_sa_that_leaves_while_the_disk_is_full_is_saved_when_it_is_not() {
    let store = Arc::new(MemoryStore::new());
    let gateway = Gateway::new(Arc::clone(&store) as _, "");
    gateway.add("a", Some((0x3002, 11)), None, &json!({})).unwrap();
    let window = || store.window(fingerprint(&material(11))).unwrap().unwrap();
    assert_eq!(window(), ReplayWindow::closed_up_to(windows::FIRST_REACH));
    store.set_full(true);
    gateway.ask(json!({ "verb": "sa-delete", "tunnel": "a", "spi": 0x3002 })).unwrap();
    gateway.end_overlaps(0);
    let resume = || gateway.add("a", Some((0x3002, 11)), None, &json!({ "resume": true }));
    assert!(resume().unwrap_err().contains("could not be saved yet"));
    let reload = gateway.sas().lock().check(&gateway.shared.installed(), &loaded(""));
    assert!(reload.unwrap_err().contains("could not be saved yet"));
    store.set_full(false);
    assert!(resume().unwrap_err().contains("could not be saved yet"), "until it is");
    gateway.end_overlaps(2);
    assert_eq!(window(), ReplayWindow::closed_up_to(0));
    resume().unwrap();
}

#[test]
fn numbers_go_on_where_a_resumed_key_was() {
    let gateway = Gateway::in_memory();
    gateway.add("a", None, Some((0x3001, 11)), &json!({ "use": true })).unwrap();
    let first: Vec<_> = (0..3).map(|_| gateway.seal()).collect();
    assert_eq!(first.iter().map(|(_, number, _)| *number).collect::<Vec<_>>(), [1, 2, 3]);
    gateway.ask(json!({ "verb": "sa-delete", "tunnel": "a", "spi": 0x3001, "force": true })).unwrap();
    assert!(gateway.add("b", None, Some((0x3001, 11)), &json!({})).unwrap_err().contains("--resume"));
    gateway.add("a", None, Some((0x3007, 11)), &json!({ "resume": true, "use": true })).unwrap();
    let (spi, number, iv) = gateway.seal();
    assert_eq!((spi, number), (0x3007, 4));
    assert!(first.iter().all(|(_, _, earlier)| *earlier != iv));
}

/// Notes whether SAs could be changed while windows were saved.
struct Guarded {
    inner: MemoryStore,
    shared: OnceLock<Weak<Shared>>,
    saves: Mutex<Vec<bool>>,
}

impl LeaseStore for Guarded {
    fn lease_many(&self, requests: &[(Fingerprint, u64)]) -> Result<Vec<crate::Lease>, StoreError> {
        self.inner.lease_many(requests)
    }

    fn is_known(&self, fingerprint: Fingerprint) -> Result<bool, StoreError> {
        self.inner.is_known(fingerprint)
    }

    fn note_fresh(&self, keys: &[Fingerprint]) -> Result<(), StoreError> {
        self.inner.note_fresh(keys)
    }

    fn give_back(&self, rests: &[(Fingerprint, std::ops::Range<u64>)]) -> Result<(), StoreError> {
        self.inner.give_back(rests)
    }

    fn save(
        &self,
        windows: &[(Fingerprint, &[u8])],
        usages: &[(Fingerprint, Usage)],
    ) -> Result<(), StoreError> {
        if let Some(shared) = self.shared.get().and_then(Weak::upgrade) {
            let is_free = shared.sas.get().unwrap().state.try_lock().is_ok();
            self.saves.lock().unwrap().push(is_free);
        }
        self.inner.save(windows, usages)
    }

    fn window(&self, fingerprint: Fingerprint) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.window(fingerprint)
    }

    fn usage(&self, fingerprint: Fingerprint) -> Result<Option<Usage>, StoreError> {
        self.inner.usage(fingerprint)
    }

    fn retire(&self, kept: &HashSet<Fingerprint>) -> Result<u64, StoreError> {
        self.inner.retire(kept)
    }
}

/// A window that was asked for, then the removal of its SA with a later one, then the first one saved:
/// packets between the two would be accepted again (RFC 4303 3.4.3).
#[test]
fn no_sa_leaves_between_the_window_that_is_asked_for_and_the_one_that_is_saved() {
    let inner = MemoryStore::new();
    let store = Arc::new(Guarded { inner, shared: OnceLock::new(), saves: Mutex::default() });
    let gateway = Gateway::new(Arc::clone(&store) as _, "");
    store.shared.set(Arc::downgrade(&gateway.shared)).unwrap();
    gateway.seal();
    let (mut saver, now) = (Saver::new(), Instant::now() + Duration::from_secs(5));
    saver.save_due(&gateway.shared, &gateway.commander, store.as_ref(), now).unwrap().unwrap();
    gateway.ask(json!({ "verb": "sa-delete", "tunnel": "a", "spi": 0x1002, "force": true })).unwrap();
    assert_eq!(*store.saves.lock().unwrap(), [false, false]);
}

fn bytes_of(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

/// Every verb, traffic, the saver, a reload and the end of the gateway: not a byte of the store changes, and
/// none of the names under which it could know the keys is in it.
#[test]
fn ephemeral_keys_change_no_byte_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.redb");
    let store = Arc::new(Store::create(&path).unwrap());
    let gateway = Gateway::new(Arc::clone(&store) as _, "");
    let mut saver = Saver::new();
    let mut save = |gateway: &Gateway, now: Instant| {
        let saved = saver.save_due(&gateway.shared, &gateway.commander, gateway.store.as_ref(), now);
        saved.unwrap_or(Ok(())).unwrap();
    };
    // What concerns configured keys is written before.
    save(&gateway, Instant::now() + Duration::from_secs(10));
    let before = bytes_of(&path);
    let ephemeral = |more: Value| {
        let mut request = json!({ "ephemeral": true });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    gateway.add("a", Some((0x3002, 11)), Some((0x3001, 12)), &ephemeral(replace(json!({})))).unwrap();
    (0..2000).for_each(|_| assert_eq!(gateway.seal().0, 0x3001));
    save(&gateway, Instant::now() + Duration::from_secs(20));
    gateway.add("b", Some((0x3004, 13)), Some((0x3003, 14)), &ephemeral(json!({}))).unwrap();
    gateway.ask(json!({ "verb": "sa-use", "tunnel": "b", "spi": 0x3003 })).unwrap();
    gateway.ask(json!({ "verb": "sa-delete", "tunnel": "b", "spi": 0x3004 })).unwrap();
    let refused = gateway.add("b", Some((0x3006, 15)), Some((0x3001, 12)), &ephemeral(json!({})));
    assert!(refused.unwrap_err().contains("was used in this run already"));
    gateway.add("a", Some((0x3008, 16)), Some((0x3007, 17)), &ephemeral(replace(json!({})))).unwrap();
    assert_eq!(gateway.seal().0, 0x3007);
    save(&gateway, Instant::now() + Duration::from_secs(30));
    // A reload that changes nothing.
    let installed = gateway.shared.installed();
    let numbers = Numbers::Leased {
        store: gateway.store.as_ref(),
        leases: &gateway.leases,
        unix_s: 2000,
        preparers: &KeyPreparers::default(),
    };
    let (_, next, changes) = installed.plan(&loaded(""), &numbers).unwrap();
    assert_eq!(changes.kept, 2);
    usages::carry_over(&installed, &next);
    gateway.sas().lock().turn_over(&installed, &next, &[]);
    let mut kept = loaded("").fingerprints();
    kept.extend(next.keys());
    assert_eq!(gateway.store.retire(&kept).unwrap(), 0);
    gateway.leases.give_back(gateway.store.as_ref()).unwrap();
    assert!(bytes_of(&path) == before, "the store has changed");
    // The configured SAs leave, which it notes, and then the gateway ends.
    gateway.end_overlaps(0);
    gateway.end_overlaps(100);
    assert_eq!(gateway.list("a").len(), 2);
    let installed = gateway.shared.installed();
    let last = saver.last(&installed);
    saver.save(gateway.store.as_ref(), &last, &[]).unwrap();
    drop(gateway);
    let known: Vec<_> = store.known().unwrap().into_iter().map(|known| known.fingerprint).collect();
    let configured = loaded("").fingerprints();
    assert!(known.iter().all(|key| configured.contains(key)), "{known:?}");
    drop(store);
    let text = bytes_of(&path);
    for byte in 11..=17 {
        let key = material(byte);
        let names = [fingerprint(&key), numbers_of(&key)].map(|name| name.as_bytes().to_vec());
        let digests = KeyDigests::of(&key).iter().map(|digest| digest.as_bytes().to_vec());
        for name in names.into_iter().chain(digests).chain([key.key().to_vec()]) {
            assert!(!text.windows(name.len()).any(|part| part == name), "of key {byte}");
        }
    }
}
