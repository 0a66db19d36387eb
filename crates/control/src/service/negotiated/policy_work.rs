//! Policies of XFRM in the worker's SPD, and the routes that follow them.

use super::super::assemble;
use super::super::xfrm::{Direction as PolicyDirection, XfrmPolicy};
use super::data_path::{Work, failed, is_own, running_sa};
use super::policies::NegotiatedPolicy;
use super::template::TemplateKey;
use super::{NegotiatedTunnel, selector};
use crate::config::Network;
use crate::firewall::TunnelRoute;
use std::collections::HashSet;
use std::sync::Arc;
use testudo_crypto::Direction;
use testudo_gateway::{SaChange, Update};
use testudo_ipsec::{Action, Directions, Policy, PolicyChange, PolicyId, PopulateFlags, Selector};
use testudo_packet::Interface;
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;

/// Policies for packets that arrive, of one tunnel: each change of one makes an index of all of them.
const MAX_ARRIVING: usize = 1024;

impl Work<'_> {
    /// Puts the selectors of packets in force that may come through a tunnel: those of its policies, without
    /// those of `without`, and `more`.
    fn select(&self, number: u64, without: Option<u32>, more: &[Selector]) -> Result<(), Refusal> {
        let (tunnel, mut selectors) = {
            let table = self.tunnels().table();
            let Some(tunnel) = table.by_number.get(&number).map(Arc::clone) else { return Ok(()) };
            (tunnel, table.policies.selectors_of(number, without))
        };
        selectors.extend_from_slice(more);
        if selectors.len() > MAX_ARRIVING && !more.is_empty() {
            let text = format!(
                "{MAX_ARRIVING} policies for packets from {} are there, and more are not possible",
                tunnel.key
            );
            return Err(Refusal::new(Errno::NOMEM, text));
        }
        // "in" and "fwd" say the same, and one selector is checked faster than two.
        let mut seen = HashSet::new();
        selectors.retain(|selector| seen.insert(*selector));
        let selectors = assemble::sa_selectors(&tunnel.running.tunnel, selectors);
        let update = Update { selectors: vec![(tunnel.running.index, selectors)], ..Update::default() };
        self.control.commander.update(update).map(drop).map_err(|error| failed(error.to_string()))
    }

    /// A policy as the worker has it, and the tunnel that it names.
    fn entry(
        &self,
        policy: &XfrmPolicy,
        key: Option<TemplateKey>,
        action: Action,
    ) -> Result<(Policy, Option<Arc<NegotiatedTunnel>>), Refusal> {
        let selector = selector::of_xfrm(&policy.info.selector, policy.direction)?;
        let interface = self.interface(policy.if_id())?;
        let tunnel = key.map(|key| self.tunnel(key, None)).transpose()?;
        let action = tunnel.as_ref().map_or(action, |tunnel| Action::Protect(tunnel.running.index));
        let directions = match policy.direction {
            PolicyDirection::Outbound => Directions::Outbound,
            PolicyDirection::Inbound | PolicyDirection::Forward => Directions::Inbound,
        };
        let (selectors, populate) = (Arc::from([selector]), PopulateFlags::default());
        let asks_for_own = policy.wants_own();
        Ok((Policy { selectors, interface, directions, action, populate, asks_for_own }, tunnel))
    }

    /// Puts a policy in force, in the place of the one with its index, if there is one.
    pub(super) fn put_policy(
        &mut self,
        policy: &XfrmPolicy,
        key: Option<TemplateKey>,
        action: Action,
    ) -> Result<(), Refusal> {
        let (entry, tunnel) = self.entry(policy, key, action)?;
        let number = tunnel.as_ref().map(|tunnel| tunnel.number);
        if let Err(refusal) = self.check_route(route_of(&entry, policy.direction), key) {
            number.into_iter().for_each(|number| self.tidy(number));
            return Err(refusal);
        }
        let put = self.put_entry(policy, entry, number);
        if put.is_err() {
            number.into_iter().for_each(|number| self.tidy(number));
        }
        put
    }

    /// charon names the SA towards the peer in its policy, and another one once that has a successor.
    fn use_named(&self, tunnel: Option<u64>, spi: u32) {
        let tunnel = tunnel.and_then(|number| self.tunnels().table().by_number.get(&number).map(Arc::clone));
        let named = tunnel.filter(|tunnel| running_sa(&tunnel.running, Direction::Seal, spi).is_some());
        let Some(tunnel) = named else { return };
        if let Err(refusal) = self.change(vec![SaChange::UseOutbound(tunnel.running.index, spi)]) {
            tracing::error!("tunnel {}: {}", tunnel.running.tunnel.name, refusal.text);
        }
    }

    fn put_entry(&mut self, policy: &XfrmPolicy, entry: Policy, tunnel: Option<u64>) -> Result<(), Refusal> {
        let named = policy.templates.first().map_or(0, |template| template.id.spi);
        let (index, priority, direction) = (policy.info.index, policy.info.priority, policy.direction);
        let (before, position) = {
            let policies = &self.tunnels().table().policies;
            (policies.get(index), policies.position(priority))
        };
        // Wider first: no packet meets the new policy under the old selectors.
        let is_arriving = direction != PolicyDirection::Outbound;
        if let Some(tunnel) = tunnel.filter(|_| is_arriving) {
            self.select(tunnel, None, &entry.selectors)?;
        }
        let changes = match &before {
            None => vec![PolicyChange::Insert(position, entry.clone())],
            Some(old) if old.priority == priority => vec![PolicyChange::Replace(old.id, entry.clone())],
            Some(old) => {
                vec![PolicyChange::Insert(position, entry.clone()), PolicyChange::Remove(old.id)]
            }
        };
        let id = self.change_policies(changes)?;
        let route = route_of(&entry, direction);
        let wants_own = policy.wants_own();
        let policy =
            NegotiatedPolicy { index, priority, direction, entry, tunnel, spi: named, wants_own, route, id };
        self.tunnels().table().policies.insert(policy);
        self.use_named(tunnel, named);
        tunnel.into_iter().for_each(|tunnel| self.settle_own(tunnel));
        route.into_iter().for_each(|route| self.count_route(route, true));
        if let Some(old) = before {
            self.settle(&old);
        }
        Ok(())
    }

    /// The name of the first policy that the changes are about.
    fn change_policies(&self, changes: Vec<PolicyChange>) -> Result<PolicyId, Refusal> {
        let made = self.control.commander.change_policies(changes);
        let mut made = made.map_err(|error| failed(error.to_string()))?.into_iter();
        let first = made.next().ok_or_else(|| failed("the worker gave no answer"))?;
        for rest in made {
            rest.map_err(|error| failed(error.to_string()))?;
        }
        first.map_err(|error| failed(error.to_string()))
    }

    pub(super) fn remove_policy(&mut self, index: u32) {
        let Some(policy) = self.tunnels().table().policies.get(index) else { return };
        if let Err(refusal) = self.change_policies(vec![PolicyChange::Remove(policy.id)]) {
            tracing::error!("a negotiated policy is not removed: {}", refusal.text);
        }
        self.tunnels().table().policies.take(index);
        self.settle(&policy);
    }

    /// What a policy that is gone leaves of its tunnel.
    fn settle(&self, gone: &NegotiatedPolicy) {
        self.uncount_route_of(gone);
        let Some(tunnel) = gone.tunnel else { return };
        self.settle_own(tunnel);
        if gone.direction != PolicyDirection::Outbound
            && let Err(refusal) = self.select(tunnel, None, &[])
        {
            tracing::error!("SAs deliver what they did under a policy that is gone: {}", refusal.text);
        }
        self.tidy(tunnel);
    }
}

/// The route into the gateway because of a policy. Routes into other interfaces than the main one say which
/// packets are meant: they are not made here.
fn route_of(entry: &Policy, direction: PolicyDirection) -> Option<TunnelRoute> {
    let is_protected = matches!(entry.action, Action::Protect(_)) && entry.interface == Interface::MAIN;
    let selector = entry.selectors.first()?;
    let network = Network::of(selector.remote.prefix()?)?;
    // Packets of one host alone are this host's, as those from a virtual address (RFC 7296 2.19).
    let host = selector.local.ends().filter(|(first, last)| first == last).map(|(address, _)| address);
    let source = host.filter(|address| is_own(*address));
    let is_routed = is_protected && direction == PolicyDirection::Outbound;
    is_routed.then_some(TunnelRoute { network, source })
}
