//! The installed tunnels, and what a new configuration changes about them.

use super::assemble;
use super::leases::{Leases, Start, check_known};
use super::negotiated::NegotiatedTunnels;
use super::policy_book::PolicyBook;
use super::populated::{PopulatedTunnel, PopulatedTunnels, PopulatingId};
use super::sas::{KeyState, RunningSa, TunnelSas};
use super::tunnel_indices::TunnelIndices;
use super::usages::spent;
use super::windows::{TRANSACTION_WINDOWS, first_ceiling, saved};
use crate::config::{Configuration, Loaded, Policy, Tunnel, TunnelKeys};
use crate::{Fingerprint, KeyDigests, LeaseStore, StoreError, Usage, fingerprint, numbers_of};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use testudo_crypto::{Direction, KeyMaterial};
use testudo_gateway::{
    InboundInstall, Installed, KeyPreparers, OutboundInstall, PlacedKey, TunnelInstall, Update, UpdateOutcome,
};
use testudo_ipsec::{Lease, PolicyId, SaRef, SaSelectors, Spd, TunnelIndex};

/// An installed tunnel.
#[derive(Debug, Clone)]
pub struct Running {
    /// Its configuration.
    pub tunnel: Tunnel,
    /// Its index in the worker.
    pub index: TunnelIndex,
    /// The outbound key of its configuration.
    pub outbound_key: Fingerprint,
    /// The inbound key of its configuration.
    pub inbound_key: Fingerprint,
    /// The keys of its other SAs, of its configuration, in the order of [`TunnelKeys::more`].
    pub more_keys: Arc<[Fingerprint]>,
    /// Its SAs.
    pub sas: TunnelSas,
    /// Whether it could be installed.
    pub is_installed: bool,
    /// Why it could not be.
    pub error: Option<String>,
}

/// The installed tunnels, in the order of the configuration, and their policies.
#[derive(Debug, Clone)]
pub struct InstalledTunnels {
    /// The configuration in force.
    pub configuration: Configuration,
    /// Its tunnels.
    pub tunnels: Vec<Running>,
    /// Its policies, as the worker has them, but for those of tunnels that are populated from packets.
    pub spd: Arc<Spd>,
    /// The same by what they are called.
    pub book: PolicyBook,
    /// The tunnels that were populated from packets.
    pub populated: Arc<PopulatedTunnels>,
    /// The tunnels that key exchanges negotiate.
    pub negotiated: Arc<NegotiatedTunnels>,
    /// Places for tunnels that are made at run time.
    pub(super) indices: Arc<TunnelIndices>,
    /// What goes on of policies that were made at run time, until the worker has this configuration.
    pub(super) left: Option<Left>,
    /// Positions of its tunnels by their names.
    by_name: HashMap<String, usize>,
}

/// The names that policies of run time will have in the worker's SPD.
#[derive(Debug, Clone, Default)]
pub(super) struct Left {
    /// Of flows' tunnels, by their numbers. All others end.
    pub(super) populated: HashMap<u64, PolicyId>,
    /// Of what is negotiated, by their indices in XFRM.
    pub(super) negotiated: HashMap<u32, PolicyId>,
}

/// Where the first numbers of new tunnels come from, and what is known of their keys.
pub enum Numbers<'s> {
    /// From the durable store: for a running gateway.
    Leased {
        /// The store.
        store: &'s dyn LeaseStore,
        /// Grants further numbers from then on.
        leases: &'s Leases,
        /// The time in seconds since 1970, which determines the age of keys.
        unix_s: u64,
        /// Expands keys for the worker's engines.
        preparers: &'s KeyPreparers,
    },
    /// The configuration's known answers, else 1: for `replay`, whose packets reach no peer.
    KnownAnswers,
}

/// The changes that a reload makes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Changes {
    /// Tunnels that continue untouched.
    pub kept: usize,
    /// New tunnels, and changed ones, which start afresh.
    pub started: usize,
    /// Removed tunnels, and changed ones.
    pub removed: usize,
}

impl InstalledTunnels {
    /// No tunnels yet.
    #[must_use]
    pub fn empty(configuration: Configuration) -> Self {
        let indices = Arc::<TunnelIndices>::default();
        Self {
            configuration,
            tunnels: Vec::new(),
            spd: Arc::default(),
            book: PolicyBook::default(),
            populated: Arc::new(PopulatedTunnels::new(Arc::clone(&indices))),
            negotiated: Arc::new(NegotiatedTunnels::new(Arc::clone(&indices))),
            indices,
            left: None,
            by_name: HashMap::new(),
        }
    }

    /// The tunnel of a name in the configuration.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Running> {
        self.tunnels.get(*self.by_name.get(name)?)
    }

    /// The position of the tunnel of a name in the configuration.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// What the worker must do to run `loaded`, and the tunnels that are installed once it has. A tunnel
    /// whose settings and keys are unchanged keeps its index and its SAs.
    ///
    /// # Errors
    /// The store's error when numbers for new tunnels are leased; nothing has changed then.
    pub fn plan(
        &self,
        loaded: &Loaded,
        numbers: &Numbers<'_>,
    ) -> Result<(Update, InstalledTunnels, Changes), StoreError> {
        let configuration = &loaded.configuration;
        let mut old: HashMap<&str, &Running> =
            self.tunnels.iter().map(|r| (r.tunnel.name.as_str(), r)).collect();
        let mut free = self.free_indices();
        let mut next = Vec::with_capacity(configuration.tunnels.len());
        let mut fresh = Vec::new();
        let tunnels = configuration.tunnels.iter().zip(&loaded.keys);
        for (position, ((tunnel, keys), running)) in tunnels.zip(self.continuing(loaded)).enumerate() {
            match running {
                Some(running) => {
                    old.remove(tunnel.name.as_str());
                    let is_installed = running.is_installed;
                    let error = running.error.clone();
                    let planned = Running::planned(tunnel, keys, running.index, running.sas.clone());
                    next.push(Running { is_installed, error, ..planned });
                }
                None => {
                    fresh.push((position, keys));
                    let index = free.next().unwrap_or(TunnelIndex(u32::MAX));
                    let keeps_keys = configuration.gateway.allow_key_export;
                    let sas = planned_sas(tunnel, keys, numbers, keeps_keys)?;
                    next.push(Running::planned(tunnel, keys, index, sas));
                }
            }
        }
        let mut remove: Vec<_> = old.values().filter(|r| r.is_installed).map(|r| r.index).collect();
        let changes = Changes { kept: next.len() - fresh.len(), started: fresh.len(), removed: remove.len() };
        let mut install = begin(configuration, &next, &fresh, numbers)?;
        // Windows follow keys, not names: a key that continues under other settings resumes exactly where it
        // was.
        let by_key = self.inbound_sas();
        for (tunnel, (_, keys)) in install.iter_mut().zip(&fresh) {
            inherit(tunnel, keys, &by_key);
        }
        let indices: Vec<_> = next.iter().map(|r| r.index).collect();
        let spd = Arc::new(assemble::policies(configuration, &indices));
        let restarted: HashSet<usize> = fresh.iter().map(|(position, _)| *position).collect();
        let selectors = selectors_of_kept(configuration, &next, &restarted);
        let populating = self.populating_under(configuration, &restarted);
        remove.extend(self.in_the_way(&populating, &next, &fresh));
        let of_policy = populating.iter().map(|(number, id)| (*number, self.populated.of_policy(*id)));
        let of_policy = of_policy.filter(|(_, tunnels)| !tunnels.is_empty()).collect();
        let (policies, ids, left) =
            assemble::at_run_time(&spd, configuration, of_policy, &self.negotiated.policies());
        let policies = Some(policies);
        let update = Update { remove, install, selectors, policies };
        let by_name =
            next.iter().enumerate().map(|(at, running)| (running.tunnel.name.clone(), at)).collect();
        let book = PolicyBook::of(configuration, &spd, &ids, populating);
        let (configuration, tunnels) = (configuration.clone(), next);
        let next = InstalledTunnels {
            configuration,
            tunnels,
            spd,
            book,
            left: Some(left),
            by_name,
            populated: Arc::clone(&self.populated),
            negotiated: Arc::clone(&self.negotiated),
            indices: Arc::clone(&self.indices),
        };
        Ok((update, next, changes))
    }

    /// By tunnel of `loaded`, the one that continues as it.
    pub(super) fn continuing(&self, loaded: &Loaded) -> Vec<Option<&Running>> {
        let unchanged = self.unchanged(loaded);
        let continues = |position: usize| unchanged.get(position).copied().flatten();
        let tunnels = loaded.configuration.tunnels.iter().enumerate();
        let going_on = tunnels.map(|(position, tunnel)| {
            // AH that covers ESP and this ESP know each other by their indices: both continue, or neither.
            let partner = tunnel.covered_by.or(tunnel.covers);
            continues(position).filter(|_| partner.is_none_or(|p| continues(p).is_some()))
        });
        going_on.collect()
    }

    /// By tunnel of `loaded`, that of the same name whose SAs are the same.
    fn unchanged(&self, loaded: &Loaded) -> Vec<Option<&Running>> {
        let old: HashMap<&str, &Running> =
            self.tunnels.iter().map(|running| (running.tunnel.name.as_str(), running)).collect();
        let same_path = self.configuration.unprotected.mtu == loaded.configuration.unprotected.mtu;
        let tunnels = loaded.configuration.tunnels.iter().zip(&loaded.keys);
        let running = tunnels.map(|(tunnel, keys)| {
            let same = |r: &&Running| {
                r.is_installed && same_path && (r.is_configured_as(tunnel, keys) || r.runs_as(tunnel, keys))
            };
            old.get(tunnel.name.as_str()).copied().filter(same)
        });
        running.collect()
    }

    /// The policies of a configuration that populate tunnels, by their numbers. Each has the name, and with
    /// it the tunnels, of one that says the same now (at whatever place, under whatever number), unless their
    /// template is one of the tunnels that start afresh.
    pub(super) fn populating_under(
        &self,
        configuration: &Configuration,
        restarted: &HashSet<usize>,
    ) -> HashMap<u32, PopulatingId> {
        let said = |of: &Configuration, policy: &Policy| {
            let template = policy.tunnel().and_then(|tunnel| Some(of.tunnels.get(tunnel)?.name.clone()));
            (policy.name.clone(), policy.selectors.clone(), policy.directions, policy.populate, template)
        };
        let mut old = HashMap::new();
        for policy in &self.configuration.policies {
            if let Some(id) = self.book.populating(policy.number) {
                old.entry(said(&self.configuration, policy)).or_insert(id);
            }
        }
        let populating = configuration.policies.iter().filter(|policy| !policy.populate.is_empty());
        let named = populating.map(|policy| {
            let goes_on = policy.tunnel().is_some_and(|tunnel| !restarted.contains(&tunnel));
            let same = goes_on.then(|| old.remove(&said(configuration, policy))).flatten();
            (policy.number, same.unwrap_or_else(|| self.populated.name_policy()))
        });
        named.collect()
    }

    /// Tunnels of flows that end with a reload and have the inbound SPI of a tunnel that begins with it: they
    /// leave at once, and all others one after another.
    fn in_the_way(
        &self,
        populating: &HashMap<u32, PopulatingId>,
        next: &[Running],
        fresh: &[(usize, &TunnelKeys)],
    ) -> Vec<TunnelIndex> {
        let tunnels = fresh.iter().filter_map(|(position, _)| Some(&next.get(*position)?.tunnel));
        let spis_of = |tunnel: &Tunnel| {
            let more = tunnel.more_inbound().map(|(_, sa)| sa.spi);
            let protocol = tunnel.protocol;
            std::iter::once(tunnel.inbound.spi).chain(more).map(|spi| (protocol, spi)).collect::<Vec<_>>()
        };
        let spis: HashSet<_> = tunnels.flat_map(spis_of).collect();
        if spis.is_empty() {
            return Vec::new();
        }
        let goes_on = populating.values().copied().collect();
        let is_in_the_way = |populated: &&Arc<PopulatedTunnel>| {
            let Running { tunnel, sas, .. } = &populated.running;
            let has_spi = |sa: &RunningSa| !sa.is_outbound() && spis.contains(&(tunnel.protocol, sa.spi));
            self.populated.ends_but_for(populated, &goes_on) && sas.lock().iter().any(has_spi)
        };
        self.populated.all().iter().filter(is_in_the_way).map(|populated| populated.running.index).collect()
    }

    /// The SAs from peers, by their keys.
    fn inbound_sas(&self) -> HashMap<Fingerprint, SaRef> {
        let mut by_key = HashMap::new();
        for running in &self.tunnels {
            for sa in running.sas.lock().iter().filter(|sa| !sa.is_outbound()) {
                by_key.extend(sa.added.as_ref().map(|added| (sa.key, added.sa)));
            }
        }
        by_key
    }

    /// The keys of all SAs, and what their numbers belong to.
    #[must_use]
    pub fn keys(&self) -> HashSet<Fingerprint> {
        let mut keys = HashSet::new();
        for running in &self.tunnels {
            keys.extend(running.sas.lock().iter().flat_map(|sa| [sa.key, sa.numbers]));
        }
        keys
    }

    /// Free indices, lowest first, without end.
    fn free_indices(&self) -> impl Iterator<Item = TunnelIndex> + use<> {
        let made = self.indices_at_run_time();
        let taken = self.tunnels.iter().map(|r| r.index).chain(made).map(|index| index.0);
        let taken: HashSet<u32> = taken.collect();
        (0..u32::MAX).filter(move |index| !taken.contains(index)).map(TunnelIndex)
    }

    /// Records the outcome of an update. Returns what could not be installed, as text.
    ///
    /// Until the configuration before is replaced by this one, clients are told what is in force from that.
    /// They see which tunnels of flows end, as the worker's policies say by now, and nothing else of this:
    /// those that go on are found by the same names of policies in either configuration.
    pub fn note(&mut self, outcome: UpdateOutcome) -> Vec<String> {
        let mut outcome: HashMap<_, _> = outcome.into_iter().collect();
        let mut errors = Vec::new();
        for running in &mut self.tunnels {
            match outcome.remove(&running.index) {
                Some(Ok(installed)) => running.begin(installed),
                Some(Err(e)) => {
                    errors.push(e.to_string());
                    running.error = Some(e.to_string());
                }
                None => {}
            }
        }
        let left = self.left.take();
        let ended = left.as_ref().map_or(0, |left| self.populated.turn_over(&left.populated));
        left.into_iter().for_each(|left| self.negotiated.turn_over(&left.negotiated));
        self.indices.turn_over(self.all().map(|running| running.index));
        self.populated.wanted().retain(|policy| self.book.number_populating(policy).is_some());
        if ended > 0 {
            tracing::warn!("{ended} tunnels of flows end: their policies or templates have changed");
        }
        errors
    }
}

impl Running {
    /// A tunnel of a configuration that is not installed yet.
    fn planned(tunnel: &Tunnel, keys: &TunnelKeys, index: TunnelIndex, sas: TunnelSas) -> Self {
        let (outbound_key, inbound_key) = keys.fingerprints(tunnel);
        Self {
            tunnel: tunnel.clone(),
            index,
            outbound_key,
            inbound_key,
            more_keys: keys.more().map(fingerprint).collect(),
            sas,
            is_installed: false,
            error: None,
        }
    }

    /// Whether nothing has changed in its configuration that makes other SAs. It goes on with the SAs that it
    /// has, also if they have been replaced since.
    fn is_configured_as(&self, tunnel: &Tunnel, keys: &TunnelKeys) -> bool {
        is_same_sa(&self.tunnel, tunnel)
            && (self.outbound_key, self.inbound_key) == keys.fingerprints(tunnel)
            && self.more_keys.iter().copied().eq(keys.more().map(fingerprint))
    }

    /// Whether it runs with the SAs of this configuration already, which were added at run time.
    fn runs_as(&self, tunnel: &Tunnel, keys: &TunnelKeys) -> bool {
        let (outbound, inbound) = keys.fingerprints(tunnel);
        let own = Tunnel {
            suite: tunnel.suite,
            esn: tunnel.esn,
            replay_window: tunnel.replay_window,
            limits: tunnel.limits.clone(),
            outbound: tunnel.outbound.clone(),
            inbound: tunnel.inbound.clone(),
            worker_sas: tunnel.worker_sas.clone(),
            ..self.tunnel.clone()
        };
        let is = |sa: &RunningSa, worker, spi, key| {
            (sa.spi, sa.key, sa.suite, sa.esn) == (spi, key, tunnel.suite, tunnel.esn)
                && sa.worker == worker
                && (sa.lifetime(), sa.replay_window) == (tunnel.lifetime(), tunnel.replay_window)
                && sa.is_durable()
        };
        let sas = self.sas.lock();
        let sends = |worker, spi, key| sas.iter().any(|sa| sa.is_in_use() && is(sa, worker, spi, key));
        let takes = |worker, spi, key| sas.iter().any(|sa| !sa.is_outbound() && is(sa, worker, spi, key));
        let mut own_outbound = tunnel.own_outbound().zip(&keys.own_outbound);
        let mut more_inbound = tunnel.more_inbound().zip(&keys.more_inbound);
        is_same_sa(&own, tunnel)
            && sends(None, tunnel.outbound.spi, outbound)
            && takes(None, tunnel.inbound.spi, inbound)
            && own_outbound.all(|((worker, sa), key)| sends(Some(worker), sa.spi, fingerprint(key)))
            && more_inbound.all(|((worker, sa), key)| takes(Some(worker), sa.spi, fingerprint(key)))
            && sas.iter().filter(|sa| sa.is_in_use()).count() == 1 + keys.own_outbound.len()
    }

    /// Whether packets go out through an SA that its configuration does not have: a restart brings back the
    /// one that it has.
    #[must_use]
    pub fn has_another_key(&self) -> bool {
        let is_configured = |key| self.outbound_key == key || self.more_keys.contains(&key);
        self.sas.lock().iter().any(|sa| sa.is_in_use() && !is_configured(sa.key))
    }

    /// What the worker needs of its SAs towards the peer: the one of all workers first.
    fn outbound_installs(
        &self,
        keys: &TunnelKeys,
        numbers: &Numbers<'_>,
        started: &mut impl Iterator<Item = Start>,
    ) -> Vec<OutboundInstall> {
        let sas = self.sas.lock();
        let sas = sas.iter().filter(|sa| sa.is_outbound());
        let keys = std::iter::once(&keys.outbound).chain(&keys.own_outbound);
        let install = |((sa, key), start): ((&RunningSa, &KeyMaterial), Start)| OutboundInstall {
            parameters: assemble::outbound(&self.tunnel, sa, start, spent(sa.before, numbers.unix_s())),
            key: numbers.prepared(key, Direction::Seal),
            peer_window: self.tunnel.peer_window,
        };
        sas.zip(keys).zip(started).map(install).collect()
    }

    /// The same of its SAs from the peer.
    fn inbound_installs(
        &self,
        keys: &TunnelKeys,
        numbers: &Numbers<'_>,
        windows: &mut impl Iterator<Item = Option<Vec<u8>>>,
    ) -> Vec<InboundInstall> {
        let sas = self.sas.lock();
        let sas = sas.iter().filter(|sa| !sa.is_outbound());
        let keys = std::iter::once(&keys.inbound).chain(&keys.more_inbound);
        let install = |((sa, key), window): ((&RunningSa, &KeyMaterial), Option<Vec<u8>>)| InboundInstall {
            parameters: assemble::inbound(&self.tunnel, sa, spent(sa.before, numbers.unix_s())),
            key: numbers.prepared(key, Direction::Open),
            window,
            inherits: None,
            shared: None,
        };
        sas.zip(keys).zip(windows).map(install).collect()
    }

    /// The worker has installed it.
    fn begin(&mut self, installed: Installed) {
        let Installed { outbound, inbound, more_outbound, more_inbound } = installed;
        let mut outbound = std::iter::once(outbound).chain(more_outbound);
        let mut inbound = std::iter::once(inbound).chain(more_inbound);
        for sa in self.sas.lock().iter_mut() {
            sa.added = if sa.is_outbound() { outbound.next() } else { inbound.next() };
        }
        self.is_installed = true;
    }
}

/// Says which SAs from the peer take over the windows of those that have their keys now.
fn inherit(tunnel: &mut TunnelInstall, keys: &TunnelKeys, by_key: &HashMap<Fingerprint, SaRef>) {
    let inbound = std::iter::once(&mut tunnel.inbound).chain(&mut tunnel.more_inbound);
    for (inbound, key) in inbound.zip(std::iter::once(&keys.inbound).chain(&keys.more_inbound)) {
        inbound.inherits = by_key.get(&fingerprint(key)).copied();
    }
}

/// The selectors of tunnels that go on. Fresh ones are installed with their own.
fn selectors_of_kept(
    configuration: &Configuration,
    tunnels: &[Running],
    fresh: &HashSet<usize>,
) -> Vec<(TunnelIndex, SaSelectors)> {
    let kept = tunnels.iter().enumerate().filter(|(position, _)| !fresh.contains(position));
    let selectors = kept.map(|(position, running)| {
        let selectors = assemble::tunnel_selectors(configuration, position);
        (running.index, assemble::sa_selectors(&running.tunnel, selectors.iter().copied()))
    });
    selectors.collect()
}

/// The SAs of a tunnel's configuration, before they are installed.
fn planned_sas(
    tunnel: &Tunnel,
    keys: &TunnelKeys,
    numbers: &Numbers<'_>,
    keeps_keys: bool,
) -> Result<TunnelSas, StoreError> {
    let (outbound_key, inbound_key) = keys.fingerprints(tunnel);
    let sa = |direction, worker, spi, material: &KeyMaterial, key, numbers_of| {
        let kept_key = keeps_keys.then(|| Arc::new(material.clone()));
        let key_digests = KeyDigests::of(material);
        Ok(RunningSa {
            direction,
            spi,
            worker,
            suite: tunnel.suite,
            esn: tunnel.esn,
            replay_window: tunnel.replay_window,
            limits: tunnel.limits.clone(),
            key,
            numbers: numbers_of,
            key_digests,
            key_state: KeyState::Durable,
            before: numbers.before(key)?,
            kept_key,
            added: None,
        })
    };
    let own_numbers = keys.numbers(tunnel);
    let mut sas = Vec::with_capacity(2 + 2 * tunnel.worker_sas.len());
    sas.push(sa(Direction::Seal, None, tunnel.outbound.spi, &keys.outbound, outbound_key, own_numbers)?);
    let numbers = numbers_of(&keys.inbound);
    sas.push(sa(Direction::Open, None, tunnel.inbound.spi, &keys.inbound, inbound_key, numbers)?);
    let outbound = tunnel.own_outbound().zip(&keys.own_outbound).map(|of| (Direction::Seal, of));
    let inbound = tunnel.more_inbound().zip(&keys.more_inbound).map(|of| (Direction::Open, of));
    for (direction, ((worker, settings), key)) in outbound.chain(inbound) {
        let (print, numbers) = (fingerprint(key), numbers_of(key));
        sas.push(sa(direction, Some(worker), settings.spi, key, print, numbers)?);
    }
    Ok(TunnelSas::new(sas))
}

/// Whether two settings of a tunnel make the same SAs. Selectors may differ: they are changed in place. So
/// may the positions of tunnels that cover each other.
fn is_same_sa(a: &Tunnel, b: &Tunnel) -> bool {
    let sas_alone = |t: &Tunnel| Tunnel {
        selectors: Vec::new(),
        covered_by: t.covered_by.map(|_| 0),
        covers: t.covers.map(|_| 0),
        ..t.clone()
    };
    sas_alone(a) == sas_alone(b)
}

/// What the worker needs to start the `fresh` tunnels, with numbers leased in one transaction.
fn begin(
    configuration: &Configuration,
    tunnels: &[Running],
    fresh: &[(usize, &TunnelKeys)],
    numbers: &Numbers<'_>,
) -> Result<Vec<TunnelInstall>, StoreError> {
    // Of each tunnel: of the SA of all workers, then of those of single ones.
    let of_tunnel = |(p, keys): &(usize, &TunnelKeys)| {
        let own = keys.own_outbound.iter().map(|key| (numbers_of(key), key.suite().nonce_rule()));
        let first = (keys.numbers(&tunnels[*p].tunnel), keys.outbound.suite().nonce_rule());
        std::iter::once(first).chain(own).collect::<Vec<_>>()
    };
    let (keys, rules): (Vec<_>, Vec<_>) = fresh.iter().flat_map(of_tunnel).unzip();
    // Before anything is saved: a ceiling makes the next start refuse what the peer sent below it.
    if let Numbers::Leased { store, .. } = numbers {
        check_known(*store, keys.iter().copied().zip(rules.iter().copied()))?;
    }
    // Numbers come last: once they are leased, an installed tunnel with such a key gets no more.
    let mut windows = Vec::with_capacity(fresh.len());
    for (p, keys) in fresh {
        for key in std::iter::once(&keys.inbound).chain(&keys.more_inbound) {
            windows.push((fingerprint(key), tunnels[*p].tunnel.esn, numbers.window(&tunnels[*p], key)?));
        }
    }
    numbers.keep_first_ceilings(&windows)?;
    let started: Vec<Start> = match numbers {
        Numbers::Leased { store, leases, .. } if !keys.is_empty() => {
            let starts = leases.begin(*store, &keys)?.into_iter().zip(&rules);
            starts.map(|(start, rule)| start.under(*rule)).collect()
        }
        Numbers::Leased { .. } => Vec::new(),
        Numbers::KnownAnswers => {
            let each = |(p, keys): &(usize, &TunnelKeys)| vec![*p; 1 + keys.own_outbound.len()];
            fresh.iter().flat_map(each).map(|p| known_answer(&tunnels[p].tunnel)).collect()
        }
    };
    let (mut started, mut windows) = (started.into_iter(), windows.into_iter().map(|(.., window)| window));
    let mut installs = Vec::with_capacity(fresh.len());
    for (position, keys) in fresh {
        let running = &tunnels[*position];
        let (started, windows) = (&mut started, &mut windows);
        let mut outbound = running.outbound_installs(keys, numbers, started).into_iter();
        let mut inbound = running.inbound_installs(keys, numbers, windows).into_iter();
        let Some((first_outbound, first_inbound)) = outbound.next().zip(inbound.next()) else { continue };
        let selectors = assemble::tunnel_selectors(configuration, *position);
        let index = |position: Option<usize>| position.and_then(|p| Some(tunnels.get(p)?.index));
        let covering = running.tunnel.covered_by.and_then(|p| Some(&tunnels.get(p)?.tunnel));
        let mtu = running.tunnel.path_mtu(configuration.unprotected.mtu, covering);
        let mut parameters = assemble::parameters(&running.tunnel, selectors, mtu);
        parameters.covered_by = index(running.tunnel.covered_by);
        parameters.covers = index(running.tunnel.covers);
        installs.push(TunnelInstall {
            index: running.index,
            parameters,
            outbound: first_outbound,
            inbound: first_inbound,
            more_outbound: outbound.collect(),
            more_inbound: inbound.collect(),
        });
    }
    Ok(installs)
}

impl Numbers<'_> {
    /// Makes durable where the windows that are about to be used start after a crash: each with its key, and
    /// whether its numbers are extended.
    fn keep_first_ceilings(
        &self,
        windows: &[(Fingerprint, bool, Option<Vec<u8>>)],
    ) -> Result<(), StoreError> {
        let Numbers::Leased { store, .. } = self else { return Ok(()) };
        let ceilings = windows
            .iter()
            .filter_map(|(key, esn, window)| Some((*key, first_ceiling(window.as_deref(), *esn)?)));
        let ceilings: Vec<_> = ceilings.collect();
        for part in ceilings.chunks(TRANSACTION_WINDOWS) {
            let part: Vec<_> = part.iter().map(|(key, ceiling)| (*key, &ceiling[..])).collect();
            store.save_windows(&part)?;
        }
        Ok(())
    }

    /// The window that a tunnel's inbound SA continues with, as bytes.
    fn window(&self, running: &Running, key: &KeyMaterial) -> Result<Option<Vec<u8>>, StoreError> {
        let tunnel = &running.tunnel;
        let received = || tunnel.known_answer.as_ref()?.received.as_ref();
        match self {
            Numbers::Leased { store, .. } => saved(*store, key),
            Numbers::KnownAnswers => Ok(received().map(|r| r.window(tunnel.replay_window, tunnel.esn))),
        }
    }

    /// The previous usage of a key. One without a record is installed for the first time.
    fn before(&self, key: Fingerprint) -> Result<Usage, StoreError> {
        let unused = Usage { bytes: 0, packets: 0, since_unix_s: self.unix_s() };
        match self {
            Numbers::Leased { store, .. } => Ok(store.usage(key)?.unwrap_or(unused)),
            Numbers::KnownAnswers => Ok(unused),
        }
    }

    /// A key as the worker gets it: expanded, as far as engines can have that done here.
    fn prepared(&self, key: &KeyMaterial, direction: Direction) -> PlacedKey {
        match self {
            Numbers::Leased { preparers, .. } => preparers.prepare(key.clone(), direction),
            Numbers::KnownAnswers => key.clone().into(),
        }
    }

    fn unix_s(&self) -> u64 {
        match self {
            Numbers::Leased { unix_s, .. } => *unix_s,
            Numbers::KnownAnswers => 0,
        }
    }
}

fn known_answer(tunnel: &Tunnel) -> Start {
    let (first, iv_mask) =
        tunnel.known_answer.as_ref().map_or((1, 0), |k| (k.next_sequence_number, k.iv_seed));
    Start { first, iv_mask, lease: Arc::new(Lease::until(u64::MAX)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::MINIMAL;
    use crate::service::populated::tests::populated;
    use crate::{MemoryStore, config, fingerprint};
    use std::time::Duration;
    use testudo_crypto::Suite;
    use testudo_ipsec::{FIRST_BLOCK, NumberSource, Spent, VpeRules};
    use zeroize::Zeroizing;

    fn loaded() -> Loaded {
        let key = |byte| {
            let suite = Suite::AES128GCM16;
            KeyMaterial::new(suite, Zeroizing::new(vec![byte; suite.keying_material_bytes()])).unwrap()
        };
        let configuration = Configuration::parse(MINIMAL, "t.toml").unwrap();
        Loaded { configuration, keys: vec![TunnelKeys::pair(key(1), key(2))] }
    }

    /// What both SAs start with at `unix_s`.
    fn spent_at(unix_s: u64, store: &MemoryStore) -> [Spent; 2] {
        let (loaded, leases) = (loaded(), Leases::default());
        let empty = InstalledTunnels::empty(loaded.configuration.clone());
        let numbers = Numbers::Leased { store, leases: &leases, unix_s, preparers: &KeyPreparers::default() };
        let (update, ..) = empty.plan(&loaded, &numbers).unwrap();
        let tunnel = &update.install[0];
        [tunnel.outbound.parameters.sa.spent, tunnel.inbound.parameters.sa.spent]
    }

    /// What is in force under policies in front of the minimal configuration's tunnel.
    fn loaded_with(policies: &str) -> Loaded {
        let configuration = Configuration::parse(&format!("{policies}{MINIMAL}"), "t.toml").unwrap();
        Loaded { configuration, ..loaded() }
    }

    fn reloaded(from: &InstalledTunnels, to: &Loaded) -> (Update, InstalledTunnels) {
        let (update, mut next, _) = from.plan(to, &Numbers::KnownAnswers).unwrap();
        next.tunnels.iter_mut().for_each(|running| running.is_installed = true);
        (update, next)
    }

    /// Policies of tunnels that are populated from packets, in a worker's SPD: each by the index of its
    /// tunnel.
    fn protecting(spd: &Spd) -> Vec<Option<u32>> {
        let index = |action| match action {
            testudo_ipsec::Action::Protect(TunnelIndex(index)) => Some(index),
            _ => None,
        };
        spd.policies().map(|(_, policy)| index(policy.action)).collect()
    }

    /// RFC 4301 4.4.1.2: tunnels of flows go on under a policy that says what it said, wherever it stands,
    /// and end where it or their template is another one.
    #[test]
    fn tunnels_of_flows_go_on_under_the_policy_that_they_come_from() {
        const HOSTS: &str = "[[policy]]\naction = \"protect\"\ntunnel = \"site-b\"\nremote = \"10.2.0.0/24\"\n\
                             populate_from_packet = \"remote\"\n";
        const MAIL: &str = "[[policy]]\naction = \"discard\"\nprotocol = \"tcp\"\nremote_ports = 25\n";
        let empty = InstalledTunnels::empty(loaded().configuration);
        let (_, mut first) = reloaded(&empty, &loaded_with(HOSTS));
        assert!(first.note(Vec::new()).is_empty());
        let policy = first.book.populating(1).unwrap();
        for host in [1, 2] {
            let reserved = first.populated.reserve(0).unwrap();
            first.populated.insert(populated(&reserved, policy, host));
        }
        let (update, mut second) = reloaded(&first, &loaded_with(&format!("{MAIL}{HOSTS}")));
        let spd = update.policies.unwrap();
        assert_eq!(protecting(&spd), [None, Some(1), Some(2), None, Some(0)], "right ahead of theirs");
        assert!(update.remove.is_empty());
        second.note(Vec::new());
        assert_eq!((second.book.populating(1), second.book.populating(2)), (None, Some(policy)));
        assert_eq!(second.populated.count_of(policy), 2);
        for tunnel in second.populated.all() {
            assert_eq!(
                spd.get(tunnel.id.unwrap()).unwrap().action,
                testudo_ipsec::Action::Protect(tunnel.running.index)
            );
        }
        let ids = second.configuration.policies.iter().map(|policy| second.book.workers_id(policy.number));
        assert!(ids.into_iter().all(|id| id.is_some_and(|id| spd.get(id).is_some())));
        // Each of these ends them.
        let other_fields = HOSTS.replace("\"remote\"", "\"local, remote\"");
        let mut other_template = loaded_with(HOSTS);
        other_template.configuration.tunnels[0].esn = false;
        for to in [loaded_with(&other_fields), loaded_with(MAIL), other_template] {
            let (update, next) = reloaded(&second, &to);
            assert!(!update.remove.iter().any(|index| index.0 > 0), "in parts, after it");
            assert!(next.left.is_some_and(|left| left.populated.is_empty()));
            assert!(
                next.configuration.policies.iter().all(|p| next.book.populating(p.number) != Some(policy))
            );
            let left = protecting(&update.policies.unwrap());
            assert!(!left.contains(&Some(1)) && !left.contains(&Some(2)), "{left:?}");
        }
    }

    /// RFC 9611: numbers, keys and windows are each SA's own.
    #[test]
    fn sas_of_workers_are_installed_with_those_of_all_and_go_on_over_a_reload() {
        const OWN: &str = "\n[[tunnel.worker_sas]]\nworker = 1\noutbound = { spi = 0x3001, key_file = \"a\" }\n\
                           inbound = { spi = 0x3002, key_file = \"b\" }\n\
                           [[tunnel.worker_sas]]\nworker = 0\noutbound = { spi = 0x3003, key_file = \"c\" }\n";
        let text = MINIMAL.replacen("[gateway]", "[gateway]\nworkers = 2", 1) + OWN;
        let key = |byte| {
            let suite = Suite::AES128GCM16;
            KeyMaterial::new(suite, Zeroizing::new(vec![byte; suite.keying_material_bytes()])).unwrap()
        };
        let with_keys = |text: &str, own: [u8; 3]| {
            let [first, inbound, second] = own.map(key);
            let keys = TunnelKeys {
                own_outbound: vec![first, second],
                more_inbound: vec![inbound],
                ..TunnelKeys::pair(key(1), key(2))
            };
            Loaded { configuration: Configuration::parse(text, "t.toml").unwrap(), keys: vec![keys] }
        };
        let (store, leases) = (MemoryStore::new(), Leases::default());
        let loaded = with_keys(&text, [3, 4, 5]);
        let empty = InstalledTunnels::empty(loaded.configuration.clone());
        let preparers = &KeyPreparers::default();
        let numbers = Numbers::Leased { store: &store, leases: &leases, unix_s: 0, preparers };
        let (update, mut next, _) = empty.plan(&loaded, &numbers).unwrap();
        let install = &update.install[0];
        let own: Vec<_> = install.more_outbound.iter().map(|own| &own.parameters).collect();
        let whose = |at: usize| (own[at].sa.spi, own[at].worker.map(|only| only.worker));
        assert_eq!([whose(0), whose(1)], [(0x3001, Some(1)), (0x3003, Some(0))]);
        assert_eq!(install.outbound.parameters.worker, None);
        assert_eq!(install.more_inbound[0].parameters.sa.spi, 0x3002);
        for key in [1, 3, 5].map(key) {
            assert!(store.is_known(numbers_of(&key)).unwrap(), "its numbers are leased");
        }
        let rows = |installed: &InstalledTunnels| -> Vec<(u32, Option<u32>)> {
            installed.tunnels[0].sas.lock().iter().map(|sa| (sa.spi, sa.worker)).collect()
        };
        let [outbound, inbound] =
            [&loaded.configuration.tunnels[0]].map(|t| [t.outbound.spi, t.inbound.spi])[0];
        let all =
            [(outbound, None), (inbound, None), (0x3001, Some(1)), (0x3003, Some(0)), (0x3002, Some(1))];
        assert_eq!(rows(&next), all);
        next.tunnels[0].is_installed = true;
        assert!(next.keys().is_superset(&loaded.fingerprints()));
        let kept = |loaded: &Loaded| next.continuing(loaded)[0].is_some();
        assert!(kept(&loaded));
        assert!(!kept(&with_keys(&text, [3, 4, 6])), "another key");
        assert!(!kept(&with_keys(
            &text.replacen("worker = 1", "worker = 2", 1).replace("s = 2", "s = 3"),
            [3, 4, 5]
        )));
    }

    /// Numbers of a group's key belong to the sender that uses them: another one does not go on with them,
    /// and one that has its ID again begins behind all of its own.
    #[test]
    fn each_sender_of_a_group_has_numbers_of_its_own() {
        let store = MemoryStore::new();
        let first = |sender: u16| {
            let mut loaded = loaded();
            let tunnel = &mut loaded.configuration.tunnels[0];
            tunnel.remote = config::Remote::Address([239, 1, 2, 3].into());
            tunnel.rules.vpe = Some(Box::new(VpeRules::default().with_sender(sender)));
            loaded.keys[0].outbound = loaded.keys[0].inbound.clone();
            let leases = Leases::default();
            let empty = InstalledTunnels::empty(loaded.configuration.clone());
            let preparers = &KeyPreparers::default();
            let numbers = Numbers::Leased { store: &store, leases: &leases, unix_s: 0, preparers };
            let (update, next, _) = empty.plan(&loaded, &numbers).unwrap();
            let sas = next.tunnels[0].sas.lock();
            assert!(sas[0].key != sas[1].key && sas[0].numbers != sas[1].numbers);
            match &update.install[0].outbound.parameters.numbers {
                NumberSource::Leased { first, .. } => *first,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([1, 2, 0xFFFF].map(first), [1; 3]);
        // Nothing was given back.
        assert_eq!([1, 2, 3].map(first), [1 + FIRST_BLOCK, 1 + FIRST_BLOCK, 1]);
    }

    #[test]
    fn keys_continue_with_their_usage_and_new_ones_start_with_none() {
        let store = MemoryStore::new();
        assert_eq!(spent_at(1000, &store), [Spent::default(); 2]);
        let key = fingerprint(&loaded().keys[0].outbound);
        store.save(&[], &[(key, Usage { bytes: 5000, packets: 50, since_unix_s: 1000 })]).unwrap();
        let spent = Spent { bytes: 5000, packets: 50, time: Duration::from_secs(60) };
        assert_eq!(spent_at(1060, &store), [spent, Spent::default()]);
        let clock_went_back = Spent { time: Duration::ZERO, ..spent };
        assert_eq!(spent_at(900, &store)[0], clock_went_back);
    }
}
