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
use testudo_gateway::{MAX_SA_CHANGES, SaChange, SaChangeError};
use testudo_ipsec::{PolicyChange, PolicyId, Position, SaState, Selector, SpdError, TunnelIndex};

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
        let new = New { policy, template: &template.tunnel.name, selectors, reserved };
        let running = like(template, &new.reserved);
        let wanted = self.checked(state, installed, &running, wanted);
        let wanted = wanted.inspect_err(|_| installed.populated.give_back(&new.reserved))?;
        self.begin(state, installed, flow, running, &wanted, &new)
    }

    fn begin(
        &self,
        state: &mut State,
        installed: &InstalledTunnels,
        flow: &Flow,
        running: Running,
        wanted: &Checked,
        new: &New<'_>,
    ) -> Result<Value, String> {
        // If the worker refuses the index, another tunnel has it: it is not given again, nor removed here.
        self.install_tunnel(installed, &running, new)?;
        let added = self.install_sas(state, installed, &running, wanted, new);
        let (sas, id) = added.inspect_err(|_| {
            state.forget_sas(&running);
            if self.remove_tunnels(&[running.index]) {
                installed.populated.give_back(&new.reserved);
            }
        })?;
        let (number, policy, values) = (new.reserved.number, new.policy.number, flow.values);
        let selectors = Arc::clone(&new.selectors);
        let name = running.tunnel.name.clone();
        installed.populated.insert(PopulatedTunnel { running, number, policy, values, selectors, id });
        tracing::debug!("tunnel {name} begins, for {values}");
        let mut answer = in_words(&name, &sas, &[]);
        answer["template"] = json!(new.template);
        Ok(answer)
    }

    /// Gives the tunnel to the worker.
    fn install_tunnel(
        &self,
        installed: &InstalledTunnels,
        running: &Running,
        new: &New<'_>,
    ) -> Result<(), String> {
        let (selectors, mtu) = (Arc::clone(&new.selectors), installed.configuration.unprotected.mtu);
        let mut parameters = assemble::parameters(&running.tunnel, selectors, mtu);
        // The address that answers probes need not be one of the flow's.
        parameters.rules.mtu_probe = None;
        let add = SaChange::AddTunnel(running.index, Box::new(parameters));
        for result in self.change(vec![add])? {
            result.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Gives SAs and policy to the worker.
    fn install_sas(
        &self,
        state: &mut State,
        installed: &InstalledTunnels,
        running: &Running,
        wanted: &Checked,
        new: &New<'_>,
    ) -> Result<(Vec<RunningSa>, PolicyId), String> {
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

    /// An SA has reached its hard lifetime, or its last number: that of a flow's tunnel is deleted (RFC 4301
    /// 4.4.2.1), and the tunnel ends if it was the last in its direction.
    pub(crate) fn expire(&self, installed: &InstalledTunnels, index: TunnelIndex, spi: u32, outbound: bool) {
        let mut state = self.lock();
        let Some(populated) = installed.populated.at(index) else { return };
        let running = &populated.running;
        let direction = if outbound { Direction::Seal } else { Direction::Open };
        // The index may have had another tunnel when the event happened.
        let is_expired = running.sas.lock().iter().any(|sa| {
            let state = sa.added.as_ref().map(|added| added.counters.state());
            (sa.direction, sa.spi) == (direction, spi) && state.is_some_and(has_stopped)
        });
        if is_expired && self.remove(&mut state, running, direction, spi).is_ok() {
            self.end_without(&mut state, installed, running, direction);
        }
    }

    /// Deletes all SAs of flows' tunnels that have stopped: events were lost.
    pub(crate) fn expire_all(&self, installed: &InstalledTunnels) {
        for populated in installed.populated.all() {
            let sas = populated.running.sas.lock().clone();
            let is_expired = |sa: &&super::sas::RunningSa| {
                sa.added.as_ref().is_some_and(|added| has_stopped(added.counters.state()))
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
            let policies: Vec<_> =
                ending.iter().map(|populated| PolicyChange::Remove(populated.id)).collect();
            let indices: Vec<_> = ending.iter().map(|populated| populated.running.index).collect();
            // Else a policy may still lead to the index: no other flow's tunnel may have it.
            let is_free = self.remove_policies(policies) && self.remove_tunnels(&indices);
            for populated in ending {
                state.forget_sas(&populated.running);
                installed.populated.remove(populated.number, is_free);
                tracing::debug!("tunnel {} ends", populated.running.tunnel.name);
            }
        }
    }
}

impl SaControl {
    /// Whether none of these policies is in the worker's SPD any more.
    fn remove_policies(&self, changes: Vec<PolicyChange>) -> bool {
        let results = self.commander.change_policies(changes).map_err(|error| error.to_string());
        let left = results.map(|results| {
            let is_there = |result: &&Result<_, _>| !matches!(result, Ok(_) | Err(SpdError::UnknownPolicy));
            results.iter().filter(is_there).count()
        });
        is_done("policies", &left)
    }

    /// Whether the worker has none of these tunnels any more.
    fn remove_tunnels(&self, indices: &[TunnelIndex]) -> bool {
        let changes = indices.iter().map(|index| SaChange::RemoveTunnel(*index)).collect();
        let left = self.change(changes).map(|results| {
            let is_there =
                |result: &&Result<_, _>| !matches!(result, Ok(_) | Err(SaChangeError::NoTunnel(_)));
            results.iter().filter(is_there).count()
        });
        is_done("tunnels", &left)
    }
}

fn is_done(what: &str, left: &Result<usize, String>) -> bool {
    match left {
        Ok(0) => return true,
        Ok(left) => tracing::error!("ending tunnels of flows: {left} {what} are left"),
        Err(error) => tracing::error!("ending tunnels of flows: {error}"),
    }
    false
}

/// Whether an SA carries nothing any more.
fn has_stopped(state: SaState) -> bool {
    matches!(state, SaState::Expired | SaState::Exhausted)
}

/// What a tunnel is made of.
struct New<'i> {
    /// The populating policy.
    policy: &'i Policy,
    /// The name of the tunnel that it names.
    template: &'i str,
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
        installed.position(name).into_iter().flat_map(|tunnel| installed.book.index.populating(tunnel));
    let mut all = numbers.filter_map(|number| installed.policy(number));
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
