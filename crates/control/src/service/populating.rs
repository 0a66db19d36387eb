//! Tunnels that begin for single flows ([`populated`](super::populated)): `sa add --for`.
//!
//! ```text
//!   worker: add tunnel ──► add SAs, each way ──► insert its policy ahead of the populating one
//! ```
//!
//! In this order no packet meets a policy without its tunnel. Each step costs the same beside any number of
//! others. How they end: [`ending`](super::ending).

use super::assemble;
use super::checked_sas::Checked;
use super::installed::{InstalledTunnels, Running};
use super::populated::{PopulatedTunnel, PopulatingId, Reserved};
use super::sa_control::{NOT_EPHEMERAL, SaControl, State, in_words};
use super::sa_request::{Flow, Wanted};
use super::sas::{KeyState, RunningSa, TunnelSas};
use crate::config::{Policy, Tunnel};
use serde_json::{Value, json};
use std::sync::Arc;
use testudo_gateway::{SaChange, SaChangeError};
use testudo_ipsec::{PolicyChange, PolicyId, Position, Selector, TunnelIndex};

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
        let id = installed.book.populating(policy.number).ok_or("the policy populates no SAs")?;
        if let Some(populated) = installed.populated.with_values(id, &flow.values) {
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
        let entry = installed.entry(policy).of_populated(template.index, Arc::clone(&selectors));
        let pieces = entry.count_pieces();
        let reserved = installed.populated.reserve(pieces).map_err(|full| full.to_string())?;
        let new = New { policy, id, template: &template.tunnel.name, selectors, pieces, reserved };
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
            if self.take_back(running.index) {
                installed.populated.give_back(&new.reserved);
            }
        })?;
        let (number, policy, values, id) = (new.reserved.number, new.id, flow.values, Some(id));
        let (selectors, pieces) = (Arc::clone(&new.selectors), new.pieces);
        let name = running.tunnel.name.clone();
        let tunnel = PopulatedTunnel { running, number, policy, values, selectors, pieces, id };
        installed.populated.insert(tunnel);
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

    /// Whether the worker does not have a tunnel any more that could not be made.
    fn take_back(&self, index: TunnelIndex) -> bool {
        let removed = self.change(vec![SaChange::RemoveTunnel(index)]);
        let is_gone = |result: &Result<_, _>| matches!(result, Ok(_) | Err(SaChangeError::NoTunnel(_)));
        match removed {
            Ok(results) if results.iter().all(is_gone) => return true,
            Ok(results) => tracing::error!("taking back a tunnel of a flow: {results:?}"),
            Err(error) => tracing::error!("taking back a tunnel of a flow: {error}"),
        }
        false
    }
}

/// What a tunnel is made of.
struct New<'i> {
    /// The populating policy.
    policy: &'i Policy,
    /// What tunnels call it.
    id: PopulatingId,
    /// The name of the tunnel that it names.
    template: &'i str,
    selectors: Arc<[Selector]>,
    /// How many pairs of prefixes they make in the index of the worker's SPD.
    pieces: usize,
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
