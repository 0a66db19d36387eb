//! What the host's firewall and routes must do for a gateway, derived from its policies.
//!
//! In host mode the gateway sees only what the kernel routes into its TUN interface. Packets that policy
//! wants protected may go around it in clear: from hosts on the outer link that spoof an address of the
//! remote network; to the remote network by another route; all of them, while the gateway is down. So the
//! rules apply the same policies to packets that pass the host in clear:
//!
//! ```text
//!   hook      clear packets it sees                          asks
//!   input     by any interface but the TUN, to this host     inbound
//!   forward   neither from nor to the TUN                    outbound and inbound: it may be either
//!   forward   into the TUN                                   whether their source lies in the tunnel itself
//!   forward   into an `[[interface]]`                        the same, and inbound
//!   output    by any interface but the TUN, of this host     outbound
//! ```
//!
//! `outbound` and `inbound` are the SPD (RFC 4301 4.4.1) in its order (`spd`): packets of a "bypass" policy
//! pass; those of a "protect" or "discard" policy are dropped, since they should not be in clear; a packet
//! that no policy names is dropped if its remote end is in a network that is routed into the tunnel.
//! Everything else is the host's business. Before that, `input` and `output` accept what the gateway itself
//! needs on the outer link (`outer`).
//!
//! What goes into an `[[interface]]` does not leave in clear, even where policies of the main one name it:
//! forward and output let it pass. What comes out of one is asked like a clear packet, so that a peer there
//! cannot take a source that the main interface's policies protect.
//!
//! The fallback routes (`routes`) answer hosts while the gateway is down and its own routes are gone: they
//! get "unreachable" at once instead of silence.
//!
//! A policy with any address at both ends is about what the operator routes into the tunnel: it names no
//! network and yields no dropping rule; [`Firewall::notes`] says so. A policy whose local network is within
//! its remote one (`any`, for example) does not apply to packets between two local hosts.
//!
//! Where the protected port is no TUN interface but takes frames before the kernel sees them, none of its
//! packets passes these hooks: whatever policy wants protected is in clear there, by any interface.
//!
//! Policies that key exchanges negotiate come behind the configuration's, as in the gateway, and their
//! networks are as closed to clear packets. Where `[ike]` has a daemon, its packets (IKE, ESP, AH) pass to
//! and from every address: its peers are not known beforehand.
//!
//! This module does not touch the system: `testudo firewall` passes the text to `nft` and `ip`.

mod entry;
mod outer;
mod routes;
mod rule;
mod spd;
#[cfg(test)]
mod tests;
mod text;

pub use routes::{
    Destinations, FallbackRoutes, RouteChange, RouteIndex, TunnelRoute, destinations, routed_peers,
    tunnel_routes,
};

use crate::config::{Configuration, Tunnel};
use entry::Entry;
use rule::{Chain, End, Interface, Match, Rule, Verdict};
use std::collections::BTreeMap;
use std::fmt;
use testudo_ipsec::{Direction, Policy};

/// Why no rules can be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FirewallError {
    /// nftables cannot spell the name of a TUN interface.
    #[error(
        "the interface name {0:?} in [port.protected] or [[interface]] cannot be written in nftables' rules: \
         use letters, digits, '-', '_' and '.'"
    )]
    InterfaceName(String),
}

/// What key exchanges have negotiated in a running gateway.
#[derive(Debug, Clone, Default)]
pub struct Negotiated {
    /// Policies in order, each with a name for people.
    pub policies: Vec<(String, Policy)>,
    /// Tunnels.
    pub tunnels: Vec<Tunnel>,
}

impl Negotiated {
    /// What the policies of the main interface close to clear packets: pairs of addresses, the local ones and
    /// the remote ones, with protocol and ports unless they are any, and the direction unless it is both.
    /// Rules for the same pairs close the same, and those for narrower ones do not.
    #[must_use]
    pub fn pairs(&self) -> Vec<String> {
        let mut closed: BTreeMap<String, [bool; 2]> = BTreeMap::new();
        for entry in entry::of_negotiated(self).filter(|entry| !entry.bypass) {
            let [out, inbound] = closed.entry(entry.closed()).or_default();
            *out |= entry.directions.include(Direction::Outbound);
            *inbound |= entry.directions.include(Direction::Inbound);
        }
        let said = |(selector, directions): (String, [bool; 2])| match directions {
            [true, false] => format!("{selector} out"),
            [false, true] => format!("{selector} in"),
            _ => selector,
        };
        closed.into_iter().map(said).collect()
    }
}

/// The rules of one gateway, in their own table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firewall {
    table: String,
    interface: String,
    /// The names of each `[[interface]]`.
    others: Vec<String>,
    rules: Vec<(Chain, Vec<Rule>)>,
    routes: FallbackRoutes,
    notes: Vec<String>,
}

impl Firewall {
    /// Derives the rules from a configuration.
    ///
    /// # Errors
    /// [`FirewallError`] if nftables cannot spell the interface name.
    pub fn of(configuration: &Configuration) -> Result<Self, FirewallError> {
        Self::beside(configuration, &Negotiated::default())
    }

    /// Derives the rules from a configuration, with what is `negotiated` behind its policies.
    ///
    /// # Errors
    /// The same.
    pub fn beside(configuration: &Configuration, negotiated: &Negotiated) -> Result<Self, FirewallError> {
        let interface = &configuration.protected.name;
        let spelled = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let others: Vec<_> = configuration.interfaces.iter().map(|other| other.name.clone()).collect();
        if let Some(name) = others.iter().chain([interface]).find(|name| !name.chars().all(spelled)) {
            return Err(FirewallError::InterfaceName(name.clone()));
        }
        let has_others = !others.is_empty();
        let has_tunnel = configuration.protected.kind.is_host();
        let own = entry::entries(configuration);
        let entries: Vec<_> = own.iter().cloned().chain(entry::of_negotiated(negotiated)).collect();
        let outer = |ours| outer::rules(configuration, &negotiated.tunnels, &entries, ours);
        let routed = configuration.protected.routes;
        let rules = Chain::ALL.map(|chain| {
            let rules = match chain {
                Chain::Input => input(outer(End::Destination), has_tunnel),
                Chain::Forward => forward(has_others, has_tunnel),
                Chain::Output => output(outer(End::Source), has_others, has_tunnel),
                Chain::Outbound => spd::rules(&entries, End::Source, routed),
                Chain::Inbound => spd::rules(&entries, End::Destination, routed),
            };
            (chain, rules)
        });
        Ok(Self {
            table: Self::table_of(interface),
            interface: interface.clone(),
            others,
            rules: rules.into(),
            routes: FallbackRoutes::of(configuration, &own, &entries, &negotiated.tunnels),
            notes: notes(&entries),
        })
    }

    /// The name of the table, in the family `inet`. Each gateway on a host has its own interface, and so its
    /// own table.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The name of the TUN interface.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The name of the table of the gateway with this TUN interface.
    #[must_use]
    pub fn table_of(interface: &str) -> String {
        format!("testudo-{interface}")
    }

    /// For `nft -f -`: removes a table, whether it exists or not.
    #[must_use]
    pub fn removal_of(table: &str) -> String {
        text::removal(table)
    }

    /// The fallback routes.
    #[must_use]
    pub fn routes(&self) -> &FallbackRoutes {
        &self.routes
    }

    /// What the rules cannot do for this configuration, and what to write instead; one line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// For `nft -f -`: removes the table, whether it exists or not.
    #[must_use]
    pub fn removal(&self) -> String {
        Self::removal_of(&self.table)
    }
}

/// For `nft -f -`: installs the table, replacing an earlier one in the same transaction.
impl fmt::Display for Firewall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::write(f, self)
    }
}

fn jump(to: Chain) -> Rule {
    Rule::new(Vec::new(), Verdict::Jump(to), "")
}

/// Where nothing of the network comes in: there is no TUN interface where the gateway's packets pass the
/// kernel by.
fn inside(has_tunnel: bool) -> Interface {
    if has_tunnel { Interface::TunnelOrLoopback } else { Interface::Loopback }
}

fn input(outer: Vec<Rule>, has_tunnel: bool) -> Vec<Rule> {
    let own = Rule::new(vec![Match::In(inside(has_tunnel))], Verdict::Accept, "");
    [vec![own], outer, vec![jump(Chain::Inbound)]].concat()
}

fn forward(has_others: bool, has_tunnel: bool) -> Vec<Rule> {
    let spoofed = |into| {
        let matches = vec![Match::Out(into), Match::AnswersGoToTunnel];
        Rule::new(matches, Verdict::Drop, "into the tunnel, with a source that is in the tunnel")
    };
    let mut rules = Vec::new();
    if has_tunnel {
        let from_tunnel = Rule::new(vec![Match::In(Interface::Tunnel)], Verdict::Accept, "");
        let to_tunnel = Rule::new(vec![Match::Out(Interface::Tunnel)], Verdict::Accept, "");
        rules.extend([from_tunnel, spoofed(Interface::Tunnel), to_tunnel]);
    }
    if has_others {
        // Inbound policies first: nobody takes a source that is protected, also where no route says so.
        let asked = Rule::new(vec![Match::Out(Interface::Others)], Verdict::Jump(Chain::Inbound), "");
        rules.extend(has_tunnel.then(|| spoofed(Interface::Others)));
        rules.extend([asked, into_others()]);
    }
    rules.extend([jump(Chain::Outbound), jump(Chain::Inbound)]);
    rules
}

fn output(outer: Vec<Rule>, has_others: bool, has_tunnel: bool) -> Vec<Rule> {
    let own = Rule::new(vec![Match::Out(inside(has_tunnel))], Verdict::Accept, "");
    let others = has_others.then(into_others).into_iter().collect();
    [vec![own], others, outer, vec![jump(Chain::Outbound)]].concat()
}

/// What goes into an `[[interface]]` leaves sealed or not at all.
fn into_others() -> Rule {
    Rule::new(vec![Match::Out(Interface::Others)], Verdict::Accept, "")
}

/// Policies that each kind of note is given for at most.
const MAX_NOTES: usize = 8;

fn notes(entries: &[Entry]) -> Vec<String> {
    let nameless = entries.iter().filter(|entry| !entry.bypass && !entry.names_a_network());
    let nameless = nameless.map(|entry| {
        format!(
            "{}: takes any address at both ends, so that no rule can tell its traffic from this host's other traffic; \
             name a local or a remote network",
            entry.name
        )
    });
    let same = entries.iter().filter(|entry| !entry.bypass && entry.local().is_some());
    let same = same.filter(|entry| entry.local() == entry.remote()).map(|entry| {
        format!(
            "{}: its local and its remote network are the same, so that clear packets between two local hosts, and \
             from them to this host, are dropped; narrow the local network",
            entry.name
        )
    });
    // Selectors of one policy say the same, one after the other.
    let (mut nameless, mut same): (Vec<_>, Vec<_>) = (nameless.collect(), same.collect());
    nameless.dedup();
    same.dedup();
    nameless.into_iter().take(MAX_NOTES).chain(same.into_iter().take(MAX_NOTES)).collect()
}
