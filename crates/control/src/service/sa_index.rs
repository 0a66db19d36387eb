//! Which SAs have an inbound SPI or a key, across all tunnels, so that a new SA is checked against all others
//! at a cost that does not depend on how many there are.

use super::installed::{InstalledTunnels, Running};
use super::sas::RunningSa;
use crate::config::Loaded;
use crate::{HalfDigest, KeyDigests};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use testudo_ipsec::{IpsecProtocol, TunnelIndex};

/// A tunnel that has something, and how many of its SAs have it.
#[derive(Debug, Clone, Copy)]
struct Holder {
    tunnel: TunnelIndex,
    sas: u32,
}

/// SPIs and keys of the SAs that are installed.
#[derive(Debug, Default)]
pub(super) struct SaIndex {
    /// SPIs of SAs from peers are ours to choose, one for each protocol (RFC 4301 4.1).
    inbound: HashMap<(IpsecProtocol, u32), Holder>,
    keys: HashMap<HalfDigest, Holder>,
}

impl SaIndex {
    /// Those of all tunnels.
    pub(super) fn of(installed: &InstalledTunnels) -> Self {
        let mut index = Self::default();
        for running in &installed.tunnels {
            running.sas.lock().iter().filter(|sa| sa.added.is_some()).for_each(|sa| index.add(running, sa));
        }
        index
    }

    /// After a reload: the SAs of tunnels that are gone are, too, and new tunnels have theirs.
    pub(super) fn turn_over(&mut self, old: &InstalledTunnels, new: &InstalledTunnels) {
        let ids = |of: &InstalledTunnels| of.tunnels.iter().map(|running| running.sas.id()).collect();
        let (before, after): (HashSet<_>, HashSet<_>) = (ids(old), ids(new));
        for running in old.tunnels.iter().filter(|running| !after.contains(&running.sas.id())) {
            let sas = running.sas.lock();
            sas.iter().filter(|sa| sa.added.is_some()).for_each(|sa| self.remove(running, sa));
        }
        for running in new.tunnels.iter().filter(|running| !before.contains(&running.sas.id())) {
            let sas = running.sas.lock();
            sas.iter().filter(|sa| sa.added.is_some()).for_each(|sa| self.add(running, sa));
        }
    }

    /// Why `loaded` cannot be put in force beside SAs that were added at run time, to tunnels that go on: a
    /// new tunnel would have the key or the inbound SPI of one of them. Two SAs with one key share its
    /// numbers and overwrite each other's replay window in the store.
    pub(super) fn conflict(&self, installed: &InstalledTunnels, loaded: &Loaded) -> Option<String> {
        let continuing = installed.continuing(loaded);
        let going_on: HashSet<_> = continuing.iter().flatten().map(|running| running.index).collect();
        let restarted = continuing.iter().enumerate().filter(|(_, running)| running.is_none());
        let restarted: HashSet<usize> = restarted.map(|(position, _)| position).collect();
        let populating = installed.populating_under(&loaded.configuration, &restarted);
        let populating: HashSet<_> = populating.into_values().collect();
        let is_of_flow = |holder: &TunnelIndex| installed.populated.at(*holder);
        // What a flow's SA has is ephemeral: its key is for no configuration, also if the flow ends.
        let is_negotiated = |holder: &TunnelIndex| installed.negotiated.at(*holder).is_some();
        let keeps_key = |holder: &TunnelIndex| {
            going_on.contains(holder) || is_of_flow(holder).is_some() || is_negotiated(holder)
        };
        // Its SPI is free once it has gone, which those in the way do at once.
        let keeps_spi = |holder: &TunnelIndex| match is_of_flow(holder) {
            Some(populated) => !installed.populated.ends_but_for(&populated, &populating),
            None => going_on.contains(holder) || is_negotiated(holder),
        };
        let tunnels = loaded.configuration.tunnels.iter().zip(&loaded.keys).zip(&continuing);
        let mut new = tunnels.filter(|(_, running)| running.is_none()).map(|(tunnel, _)| tunnel);
        new.find_map(|(tunnel, keys)| {
            let mut digests = [&keys.outbound, &keys.inbound].into_iter().chain(keys.more()).map(KeyDigests::of);
            let of_key = digests.find_map(|keys| self.with_key(keys).filter(keeps_key));
            let more = tunnel.more_inbound().map(|(_, sa)| sa.spi);
            let mut spis = std::iter::once(tunnel.inbound.spi).chain(more);
            let of_spi = spis.find_map(|spi| {
                let holder = self.with_inbound_spi(tunnel.protocol, spi).filter(keeps_spi)?;
                Some((format!("its inbound SPI {spi:#x}"), holder))
            });
            let of_key = of_key.map(|holder| ("a key of its SAs".to_owned(), holder));
            let (what, holder) = of_key.or(of_spi)?;
            Some(format!(
                "tunnel {}: {what} belongs to an SA that was added to tunnel {} at run time: delete that one first",
                tunnel.name,
                installed.name_at(holder)
            ))
        })
    }

    /// An SA was added to a tunnel.
    pub(super) fn add(&mut self, running: &Running, sa: &RunningSa) {
        sa.key_digests.iter().for_each(|key| hold(&mut self.keys, key, running.index));
        if !sa.is_outbound() {
            hold(&mut self.inbound, (running.tunnel.protocol, sa.spi), running.index);
        }
    }

    /// An SA of a tunnel is gone.
    pub(super) fn remove(&mut self, running: &Running, sa: &RunningSa) {
        sa.key_digests.iter().for_each(|key| release(&mut self.keys, key));
        if !sa.is_outbound() {
            release(&mut self.inbound, (running.tunnel.protocol, sa.spi));
        }
    }

    /// The tunnel with an SA from its peer that has this SPI.
    pub(super) fn with_inbound_spi(&self, protocol: IpsecProtocol, spi: u32) -> Option<TunnelIndex> {
        self.inbound.get(&(protocol, spi)).map(|holder| holder.tunnel)
    }

    /// A tunnel with an SA that has one of these keys.
    pub(super) fn with_key(&self, keys: KeyDigests) -> Option<TunnelIndex> {
        keys.iter().find_map(|key| self.keys.get(&key)).map(|holder| holder.tunnel)
    }
}

fn hold<K: Eq + Hash>(holders: &mut HashMap<K, Holder>, what: K, tunnel: TunnelIndex) {
    holders.entry(what).or_insert(Holder { tunnel, sas: 0 }).sas += 1;
}

fn release<K: Eq + Hash>(holders: &mut HashMap<K, Holder>, what: K) {
    let Entry::Occupied(mut held) = holders.entry(what) else { return };
    match held.get().sas {
        0 | 1 => drop(held.remove()),
        _ => held.get_mut().sas -= 1,
    }
}
