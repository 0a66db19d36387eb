//! Tunnels that a key exchange negotiates: IKE daemons say SAs and policies in the messages of XFRM
//! ([`super::xfrm`]), and the worker has them as tunnels and policies of its own.
//!
//! ```text
//!   NEWPOLICY ─► template ─┐                 ┌─► policy of the worker's SPD, behind the configuration's
//!                          ├─► TemplateKey ──┤
//!   NEWSA ─────────────────┘   ("ike:5")     └─► SA of the tunnel
//! ```
//!
//! A tunnel is there while a policy names it or an SA serves it. Without an SA towards the peer its packets
//! wait, and the daemon is asked for one. Daemon and kernel know no tunnels: what a template and its SAs have
//! in common ([`TemplateKey`]) makes one.
//!
//! Such tunnels belong to no configuration: a reload leaves them alone, and their keys die with the process.

mod data_path;
mod kept_numbers;
mod own_sas;
mod policies;
mod policy_work;
mod routes;
mod selector;
mod template;
#[cfg(test)]
mod tests;
mod vpe;
#[cfg(test)]
mod worker_tests;

pub use data_path::{Settings, WorkerPath};
pub use policies::NegotiatedPolicy;
pub use routes::NegotiatedRoutes;
pub(super) use selector::of_packet;
pub use template::TemplateKey;

use super::installed::{InstalledTunnels, Running};
use super::tunnel_indices::TunnelIndices;
use super::xfrm::{Place as XfrmPlace, ProcessName, RenewalState, SaKey};
use crate::config::Network;
use crate::firewall::Negotiated;
use kept_numbers::KeptNumbers;
use policies::Policies;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use testudo_crypto::Direction;
use testudo_ipsec::{Encapsulation, PolicyId, TunnelIndex};

/// A tunnel that is negotiated.
#[derive(Debug, Clone)]
pub struct NegotiatedTunnel {
    /// The tunnel.
    pub running: Running,
    /// Its number, which no other in this run of the gateway has.
    pub number: u64,
    /// What policies and SAs name it by.
    pub key: TemplateKey,
}

/// Where an SA of XFRM is.
#[derive(Debug, Clone, Copy)]
struct Place {
    tunnel: u64,
    direction: Direction,
    iv_mask: u64,
    /// Its place in the SAD of XFRM.
    of_xfrm: XfrmPlace,
    /// The process that has installed it.
    daemon: Option<ProcessName>,
    /// The processor that it is for, as that process says.
    processor: Processor,
}

/// The number of a processor, or none, with all bits set: no processor has that one. An `Option`
/// would take as much again, and with it each [`Place`] 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Processor(u32);

const _: () = assert!(size_of::<(SaKey, Place)>() <= 80);

impl Processor {
    fn new(number: Option<u32>) -> Self {
        Self(number.unwrap_or(u32::MAX))
    }

    fn number(self) -> Option<u32> {
        Some(self.0).filter(|number| *number != u32::MAX)
    }
}

/// All of them, shared by the configurations that follow one another.
#[derive(Debug, Default)]
pub struct NegotiatedTunnels {
    table: Mutex<Table>,
    indices: Arc<TunnelIndices>,
}

#[derive(Debug, Default)]
struct Table {
    by_number: BTreeMap<u64, Arc<NegotiatedTunnel>>,
    /// By the hashes of their keys, which are long.
    by_key: BTreeSet<(u64, u64)>,
    hasher: RandomState,
    by_index: HashMap<TunnelIndex, u64>,
    /// The peers, and how many tunnels each has.
    peers: BTreeMap<IpAddr, usize>,
    numbers: u64,
    /// How the packets of those that an SA has redirected are carried.
    encapsulations: HashMap<u64, Encapsulation>,
    /// The tunnels of which workers know that each is to have an SA of its own.
    want_own: BTreeSet<u64>,
    places: HashMap<SaKey, Place>,
    /// By tunnel, direction and SPI, the marks of SAs: the rest of their names is their tunnel's.
    marks: HashMap<(u64, bool, u32), (u32, u32)>,
    policies: Policies,
    kept: KeptNumbers,
    /// Networks that are routed into the gateway: their source, and how many policies ask for each.
    routes: HashMap<Network, (Option<IpAddr>, usize)>,
    /// Indices of tunnels that have gone, and what is known by them has not yet.
    gone: BTreeSet<TunnelIndex>,
    renewal: Option<RenewalState>,
}

impl Table {
    fn insert(&mut self, tunnel: NegotiatedTunnel) -> Arc<NegotiatedTunnel> {
        let tunnel = Arc::new(tunnel);
        self.by_key.insert((self.hasher.hash_one(tunnel.key), tunnel.number));
        self.by_index.insert(tunnel.running.index, tunnel.number);
        *self.peers.entry(tunnel.key.remote).or_default() += 1;
        self.by_number.insert(tunnel.number, Arc::clone(&tunnel));
        tunnel
    }

    fn remove(&mut self, number: u64) {
        let Some(gone) = self.by_number.remove(&number) else { return };
        self.by_key.remove(&(self.hasher.hash_one(gone.key), number));
        self.by_index.remove(&gone.running.index);
        if let Some(tunnels) = self.peers.get_mut(&gone.key.remote) {
            *tunnels -= 1;
            if *tunnels == 0 {
                self.peers.remove(&gone.key.remote);
            }
        }
        self.encapsulations.remove(&number);
        self.want_own.remove(&number);
        self.gone.insert(gone.running.index);
    }

    fn place(&mut self, sa: SaKey, place: Place) {
        self.marks.insert((place.tunnel, place.direction == Direction::Seal, sa.spi), sa.mark);
        self.places.insert(sa, place);
    }

    /// An SA is gone. Returns where it was.
    fn take_place(&mut self, sa: &SaKey) -> Option<(Place, Arc<NegotiatedTunnel>)> {
        let place = self.places.remove(sa)?;
        self.marks.remove(&(place.tunnel, place.direction == Direction::Seal, sa.spi));
        Some((place, Arc::clone(self.by_number.get(&place.tunnel)?)))
    }

    /// Where an SA is.
    fn place_of(&self, sa: &SaKey) -> Option<(Place, Arc<NegotiatedTunnel>)> {
        let place = self.places.get(sa)?;
        Some((*place, Arc::clone(self.by_number.get(&place.tunnel)?)))
    }

    /// A peer in a network.
    fn peer_in(&self, network: Network) -> Option<IpAddr> {
        let next = self.peers.range(network.address()..).next().map(|(peer, _)| *peer);
        next.filter(|peer| network.contains(*peer))
    }

    /// Where the SA of a tunnel is that has this SPI.
    fn place_at(&self, index: TunnelIndex, spi: u32, is_outbound: bool) -> Option<&Place> {
        let number = *self.by_index.get(&index)?;
        let mark = *self.marks.get(&(number, is_outbound, spi))?;
        self.places.get(&self.by_number.get(&number)?.key.sa(spi, is_outbound, mark))
    }

    fn with_key(&self, key: &TemplateKey) -> Option<Arc<NegotiatedTunnel>> {
        let hash = self.hasher.hash_one(key);
        let numbers = self.by_key.range((hash, 0)..=(hash, u64::MAX));
        let mut tunnels = numbers.filter_map(|(_, number)| self.by_number.get(number));
        tunnels.find(|tunnel| tunnel.key == *key).map(Arc::clone)
    }
}

/// Why an operator cannot change what a key exchange has negotiated.
pub(super) fn not_ours(what: &str, installed: &InstalledTunnels) -> String {
    let socket = installed.configuration.ike.as_ref().map(|ike| format!(" behind {}", ike.socket.display()));
    let socket = socket.unwrap_or_default();
    format!(
        "{what} is negotiated: it belongs to the key exchange daemon{socket}, which alone changes it; change the \
         connection there"
    )
}

impl NegotiatedTunnels {
    /// None yet. Theirs are among these indices.
    pub(super) fn new(indices: Arc<TunnelIndices>) -> Self {
        Self { indices, ..Self::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table().by_number.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<NegotiatedTunnel>> {
        self.table().by_number.values().map(Arc::clone).collect()
    }

    /// The one of a name: `ike:` and its number.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<Arc<NegotiatedTunnel>> {
        let number: u64 = name.strip_prefix("ike:")?.parse().ok()?;
        self.table().by_number.get(&number).map(Arc::clone)
    }

    /// The one with this index.
    #[must_use]
    pub fn at(&self, index: TunnelIndex) -> Option<Arc<NegotiatedTunnel>> {
        let table = self.table();
        table.by_number.get(table.by_index.get(&index)?).map(Arc::clone)
    }

    /// A tunnel as it is now: its outer ends follow its SAs, and `Running` has those that it began with.
    #[must_use]
    pub fn in_force<'r>(&self, running: &'r Running) -> Cow<'r, Running> {
        let table = self.table();
        let number = table.by_index.get(&running.index);
        let Some(now) = number.and_then(|number| table.encapsulations.get(number)) else {
            return Cow::Borrowed(running);
        };
        let mut running = running.clone();
        running.tunnel.encapsulation = *now;
        Cow::Owned(running)
    }

    /// How a tunnel's packets are carried, as its daemon has said last.
    fn encapsulation(&self, tunnel: &NegotiatedTunnel) -> Encapsulation {
        let said = self.table().encapsulations.get(&tunnel.number).copied();
        said.unwrap_or(tunnel.running.tunnel.encapsulation)
    }

    /// An SA has changed how a tunnel's packets are carried.
    fn redirected(&self, number: u64, encapsulation: Encapsulation) {
        self.table().encapsulations.insert(number, encapsulation);
    }

    /// What daemons have renewed that have outlived the gateway before.
    pub(super) fn note_renewal(&self, renewal: Option<RenewalState>) {
        self.table().renewal = renewal;
    }

    /// What daemons have renewed that have outlived the gateway before; `None` if none has.
    #[must_use]
    pub fn renewal(&self) -> Option<RenewalState> {
        self.table().renewal
    }

    /// The indices of all.
    pub(super) fn indices(&self) -> Vec<TunnelIndex> {
        self.table().by_index.keys().copied().collect()
    }

    /// The indices of those that have gone since the last call. Later ones may have them already.
    pub(super) fn take_gone(&self) -> BTreeSet<TunnelIndex> {
        std::mem::take(&mut self.table().gone)
    }

    /// Their policies, in the order of the worker's SPD.
    #[must_use]
    pub fn policies(&self) -> Vec<Arc<NegotiatedPolicy>> {
        self.table().policies.all()
    }

    /// Whether a word means one of their policies: its place in the SPD behind `configured` ones, as `policy
    /// list` has it; its index, as `ip xfrm policy` has it; or the name of its tunnel.
    pub(super) fn has_policy(&self, word: &str, configured: usize) -> bool {
        let Ok(number) = word.parse::<u32>() else { return self.named(word).is_some() };
        let table = self.table();
        let places = configured..configured + table.policies.len();
        let is_place =
            usize::try_from(number).is_ok_and(|n| n.checked_sub(1).is_some_and(|n| places.contains(&n)));
        is_place || table.policies.get(number).is_some()
    }

    /// What the host's rules are to know of them.
    #[must_use]
    pub fn for_firewall(&self) -> Negotiated {
        let policies = self.policies();
        let policies = policies.iter().map(|policy| (policy.origin(), policy.entry.clone()));
        let mut policies: Vec<_> = policies.collect();
        // "in" and "fwd" say the same, one after the other.
        policies.dedup_by(|next, last| next.1 == last.1);
        let tunnels = self.all();
        let tunnels = tunnels.iter().map(|tunnel| self.in_force(&tunnel.running).tunnel.clone()).collect();
        Negotiated { policies, tunnels }
    }

    /// How many policies there are.
    #[must_use]
    pub fn count_policies(&self) -> usize {
        self.table().policies.len()
    }

    /// How many SAs there are of each daemon, by what it calls itself; `ike` has those of one that says none.
    #[must_use]
    pub fn count_sas(&self) -> BTreeMap<String, usize> {
        let mut counts: HashMap<Option<ProcessName>, usize> = HashMap::new();
        self.table().places.values().for_each(|place| *counts.entry(place.daemon).or_default() += 1);
        let named =
            |name: Option<ProcessName>| name.map_or_else(|| "ike".to_owned(), |name| name.to_string());
        counts.into_iter().map(|(name, count)| (named(name), count)).collect()
    }

    /// A new SPD is in force in the worker, where their policies have these names, by their indices in XFRM.
    pub(super) fn turn_over(&self, names: &HashMap<u32, PolicyId>) {
        self.table().policies.rename(names);
    }

    /// SAs that have stopped and are still there: tunnel, SPI, and whether it is the one towards the peer.
    #[must_use]
    pub fn stopped(&self) -> Vec<(TunnelIndex, u32, bool)> {
        let stopped = |tunnel: &Arc<NegotiatedTunnel>| -> Vec<_> {
            let sas = tunnel.running.sas.lock();
            let sas = sas.iter().filter(|sa| sa.has_stopped());
            sas.map(|sa| (tunnel.running.index, sa.spi, sa.is_outbound())).collect()
        };
        self.all().iter().flat_map(stopped).collect()
    }

    /// The policy with a name in the worker's SPD: its index in XFRM.
    #[must_use]
    pub fn policy_with_id(&self, id: PolicyId) -> Option<u32> {
        self.table().policies.with_id(id)
    }

    /// The SA of a tunnel that has this SPI: its place in the SAD of XFRM.
    #[must_use]
    pub fn sa_of(&self, index: TunnelIndex, spi: u32, is_outbound: bool) -> Option<XfrmPlace> {
        self.table().place_at(index, spi, is_outbound).map(|place| place.of_xfrm)
    }

    /// The process that has installed the SA of a tunnel that has this SPI, if it has said its name.
    #[must_use]
    pub fn daemon_of(&self, index: TunnelIndex, spi: u32, is_outbound: bool) -> Option<ProcessName> {
        self.table().place_at(index, spi, is_outbound)?.daemon
    }
}
