//! Tunnels that begin and end for single flows: `sa add --for`, and what ends them (see
//! [`populated`](super::populated)).
//!
//! ```text
//!   begins:  worker: add tunnel ──► add SAs, each way ──► insert its policy ahead of the populating one
//!   ends:    worker: remove its policy ──► remove the tunnel with its SAs
//! ```
//!
//! In this order no packet meets a policy without its tunnel. Each step costs the same beside any number of
//! others.

use super::assemble;
use super::installed::{InstalledTunnels, Running};
use super::populated::{MAX_POPULATED, PopulatedTunnel, Reserved};
use super::sa_control::{Checked, NOT_EPHEMERAL, SaControl, State, in_words};
use super::sa_request::{Flow, Wanted};
use super::sas::{KeyState, RunningSa, TunnelSas};
use crate::config::{Policy, Tunnel};
use serde_json::{Value, json};
use std::sync::Arc;
use testudo_crypto::Direction;
use testudo_gateway::{MAX_SA_CHANGES, SaChange};
use testudo_ipsec::{PolicyChange, PolicyId, Position, SaState, Selector, TunnelIndex};

impl SaControl {
    /// Adds SAs for a flow: to its tunnel, which is made if it has none. `template` is the tunnel that the
    /// populating policy names.
    pub(super) fn add_for(
        &self,
        state: &mut State,
        installed: &InstalledTunnels,
        template: &Running,
        flow: &Flow,
        wanted: Wanted,
    ) -> Result<Value, String> {
        let policy = populating(installed, template, flow.policy.as_deref())?;
        if let Some(populated) = installed.populated.with_values(policy.number, &flow.values) {
            return self.add(state, installed, &populated.running, wanted, None);
        }
        let selectors: Arc<[Selector]> = installed.entry(policy).populated(&flow.values).into();
        if selectors.is_empty() {
            return Err(unlike(policy, flow));
        }
        if wanted.key_state != KeyState::Ephemeral {
            return Err(NOT_EPHEMERAL.to_owned());
        }
        if wanted.inbound.is_none() || wanted.outbound.is_none() {
            return Err(
                "the tunnel of a flow begins with an SA each way: give an inbound and an outbound one"
                    .to_owned(),
            );
        }
        let reserved = installed.populated.reserve().ok_or_else(|| {
            format!(
                "{MAX_POPULATED} tunnels were populated from packets, and more are not possible: delete some"
            )
        })?;
        let new = New { policy, selectors, reserved };
        let outcome = self.begin(state, installed, template, flow, wanted, &new);
        outcome.inspect_err(|_| installed.populated.give_back(&new.reserved))
    }

    fn begin(
        &self,
        state: &mut State,
        installed: &InstalledTunnels,
        template: &Running,
        flow: &Flow,
        wanted: Wanted,
        new: &New<'_>,
    ) -> Result<Value, String> {
        let running = like(template, &new.reserved);
        let wanted = self.checked(state, installed, &running, wanted)?;
        let added = self.install_tunnel(state, installed, &running, &wanted, new);
        let (sas, id) = added.inspect_err(|_| {
            // Unless nothing of it is there.
            let _ = self.change(vec![SaChange::RemoveTunnel(running.index)]);
            state.forget_sas(&running);
        })?;
        let (number, policy, values) = (new.reserved.number, new.policy.number, flow.values);
        let selectors = Arc::clone(&new.selectors);
        let name = running.tunnel.name.clone();
        installed.populated.insert(PopulatedTunnel { running, number, policy, values, selectors, id });
        tracing::debug!("tunnel {name} begins, for {values}");
        let mut answer = in_words(&name, &sas, &[]);
        answer["template"] = json!(template.tunnel.name);
        Ok(answer)
    }

    /// Gives tunnel, SAs and policy to the worker.
    fn install_tunnel(
        &self,
        state: &mut State,
        installed: &InstalledTunnels,
        running: &Running,
        wanted: &Checked,
        new: &New<'_>,
    ) -> Result<(Vec<RunningSa>, PolicyId), String> {
        let (selectors, mtu) = (Arc::clone(&new.selectors), installed.configuration.unprotected.mtu);
        let mut parameters = assemble::parameters(&running.tunnel, selectors, mtu);
        // The address that answers probes need not be one of the flow's.
        parameters.rules.mtu_probe = None;
        let add = SaChange::AddTunnel(running.index, Box::new(parameters));
        for result in self.change(vec![add])? {
            result.map_err(|error| error.to_string())?;
        }
        let sas = self.install(state, running, wanted)?;
        let before = installed.book.workers_id(new.policy.number).ok_or("there is no such policy")?;
        let policy = installed.entry(new.policy).of_populated(running.index, Arc::clone(&new.selectors));
        let change = PolicyChange::Insert(Position::Before(before), policy);
        let changed = self.commander.change_policies(vec![change]).map_err(|error| error.to_string())?;
        let id = changed.into_iter().next().ok_or("the worker gave no answer")?;
        Ok((sas, id.map_err(|error| error.to_string())?))
    }

    /// An SA of a tunnel was removed. If the tunnel is one of a flow and has none left in that direction, it
    /// ends; `true` then.
    pub(super) fn end_without(
        &self,
        state: &mut State,
        installed: &InstalledTunnels,
        running: &Running,
        direction: Direction,
    ) -> bool {
        let Some(populated) = installed.populated.at(running.index) else { return false };
        let has_one = running.sas.lock().iter().any(|sa| sa.direction == direction);
        if !has_one {
            self.end_populated(state, installed, &[populated]);
        }
        !has_one
    }

    /// An SA has reached its hard lifetime: that of a flow's tunnel is deleted (RFC 4301 4.4.2.1), and the
    /// tunnel ends if it was the last in its direction.
    pub(crate) fn expire(&self, installed: &InstalledTunnels, index: TunnelIndex, spi: u32, outbound: bool) {
        let mut state = self.lock();
        let Some(populated) = installed.populated.at(index) else { return };
        let running = &populated.running;
        let direction = if outbound { Direction::Seal } else { Direction::Open };
        // The index may have had another tunnel when the event happened.
        let is_expired = running.sas.lock().iter().any(|sa| {
            let state = sa.added.as_ref().map(|added| added.counters.state());
            (sa.direction, sa.spi) == (direction, spi) && state == Some(SaState::Expired)
        });
        if is_expired && self.remove(&mut state, running, direction, spi).is_ok() {
            self.end_without(&mut state, installed, running, direction);
        }
    }

    /// Deletes all SAs of flows' tunnels that have reached their hard lifetime: events were lost.
    pub(crate) fn expire_all(&self, installed: &InstalledTunnels) {
        for populated in installed.populated.all() {
            let sas = populated.running.sas.lock().clone();
            let is_expired = |sa: &&super::sas::RunningSa| {
                sa.added.as_ref().is_some_and(|added| added.counters.state() == SaState::Expired)
            };
            for sa in sas.iter().filter(is_expired) {
                self.expire(installed, populated.running.index, sa.spi, sa.is_outbound());
            }
        }
    }

    /// Ends tunnels of flows: first their policies, then themselves with their SAs.
    pub(super) fn end_populated(
        &self,
        state: &mut State,
        installed: &InstalledTunnels,
        ending: &[Arc<PopulatedTunnel>],
    ) {
        for ending in ending.chunks(MAX_SA_CHANGES) {
            let policies = ending.iter().map(|populated| PolicyChange::Remove(populated.id)).collect();
            let changed = self.commander.change_policies(policies).map_err(|error| error.to_string());
            let tunnels = ending.iter().map(|populated| SaChange::RemoveTunnel(populated.running.index));
            if let Err(error) = changed.and_then(|_| self.change(tunnels.collect())) {
                tracing::error!("ending tunnels of flows: {error}");
            }
            for populated in ending {
                state.forget_sas(&populated.running);
                installed.populated.remove(populated.number);
                tracing::debug!("tunnel {} ends", populated.running.tunnel.name);
            }
        }
    }
}

/// What a tunnel is made of.
struct New<'i> {
    /// The populating policy.
    policy: &'i Policy,
    selectors: Arc<[Selector]>,
    reserved: Reserved,
}

/// A tunnel after a template.
fn like(template: &Running, reserved: &Reserved) -> Running {
    let tunnel = &template.tunnel;
    let name = format!("{}/{}", tunnel.name, reserved.number);
    Running {
        tunnel: Tunnel { name, selectors: Vec::new(), ..tunnel.clone() },
        index: reserved.index,
        sas: TunnelSas::default(),
        is_installed: true,
        error: None,
        ..template.clone()
    }
}

/// The policy that populates SAs after a template; by its label, if there are several.
fn populating<'i>(
    installed: &'i InstalledTunnels,
    template: &Running,
    label: Option<&str>,
) -> Result<&'i Policy, String> {
    let name = &template.tunnel.name;
    let numbers =
        installed.position(name).into_iter().flat_map(|tunnel| installed.book.index.of_tunnel(tunnel));
    let mut all = numbers.filter_map(|number| installed.policy(number)).filter(|p| !p.populate.is_empty());
    if let Some(label) = label {
        let found = all.find(|policy| policy.label() == label);
        return found.ok_or_else(|| format!("no policy \"{label}\" populates SAs after tunnel {name}"));
    }
    match (all.next(), all.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => {
            Err(format!("no policy populates SAs after tunnel {name}: add `populate_from_packet` to one"))
        }
        (Some(a), Some(b)) => Err(format!(
            "policies {} and {} populate SAs after tunnel {name}: say with --policy which one is meant",
            a.label(),
            b.label()
        )),
    }
}

fn unlike(policy: &Policy, flow: &Flow) -> String {
    let fields: Vec<_> = policy.populate.names().collect();
    format!(
        "policy {} makes SAs for {}, of packets that it selects: {} are no such values",
        policy.label(),
        fields.join(", "),
        flow.values
    )
}
