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
//!   output    by any interface but the TUN, of this host     outbound
//! ```
//!
//! `outbound` and `inbound` are the SPD (RFC 4301 4.4.1) in its order (`spd`): packets of a "bypass" policy
//! pass; those of a "protect" or "discard" policy are dropped, since they should not be in clear; a packet
//! that no policy names is dropped if its remote end is in a network that is routed into the tunnel.
//! Everything else is the host's business. Before that, `input` and `output` accept what the gateway itself
//! needs on the outer link (`outer`).
//!
//! The fallback routes (`routes`) answer hosts while the gateway is down and its own routes are gone: they
//! get "unreachable" at once instead of silence.
//!
//! A policy with any address at both ends is about what the operator routes into the tunnel: it names no
//! network and yields no dropping rule; [`Firewall::notes`] says so. A policy whose local network is within
//! its remote one (`any`, for example) does not apply to packets between two local hosts.
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

pub use routes::{FallbackRoutes, RouteChange, RouteIndex, TunnelRoute, routed_peers, tunnel_routes};

use crate::config::Configuration;
use entry::Entry;
use rule::{Chain, End, Interface, Match, Rule, Verdict};
use std::fmt;

/// Why no rules can be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FirewallError {
    /// nftables cannot spell the name of the TUN interface.
    #[error(
        "the interface name {0:?} in [port.protected] cannot be written in nftables' rules: \
         use letters, digits, '-', '_' and '.'"
    )]
    InterfaceName(String),
}

/// The rules of one gateway, in their own table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firewall {
    table: String,
    interface: String,
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
        let interface = &configuration.protected.name;
        let spelled = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !interface.chars().all(spelled) {
            return Err(FirewallError::InterfaceName(interface.clone()));
        }
        let entries = entry::entries(configuration);
        let routed = configuration.protected.routes;
        let rules = Chain::ALL.map(|chain| {
            let rules = match chain {
                Chain::Input => input(configuration, &entries),
                Chain::Forward => forward(),
                Chain::Output => output(configuration, &entries),
                Chain::Outbound => spd::rules(&entries, End::Source, routed),
                Chain::Inbound => spd::rules(&entries, End::Destination, routed),
            };
            (chain, rules)
        });
        Ok(Self {
            table: Self::table_of(interface),
            interface: interface.clone(),
            rules: rules.into(),
            routes: FallbackRoutes::of(configuration),
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
        text::removal(&self.table)
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

fn input(configuration: &Configuration, entries: &[Entry]) -> Vec<Rule> {
    let own = Rule::new(vec![Match::In(Interface::TunnelOrLoopback)], Verdict::Accept, "");
    let outer = outer::rules(configuration, entries, End::Destination);
    [vec![own], outer, vec![jump(Chain::Inbound)]].concat()
}

fn forward() -> Vec<Rule> {
    let from_tunnel = Rule::new(vec![Match::In(Interface::Tunnel)], Verdict::Accept, "");
    let spoofed = vec![Match::Out(Interface::Tunnel), Match::AnswersGoToTunnel];
    let spoofed = Rule::new(spoofed, Verdict::Drop, "into the tunnel, with a source that is in the tunnel");
    let to_tunnel = Rule::new(vec![Match::Out(Interface::Tunnel)], Verdict::Accept, "");
    vec![from_tunnel, spoofed, to_tunnel, jump(Chain::Outbound), jump(Chain::Inbound)]
}

fn output(configuration: &Configuration, entries: &[Entry]) -> Vec<Rule> {
    let own = Rule::new(vec![Match::Out(Interface::TunnelOrLoopback)], Verdict::Accept, "");
    let outer = outer::rules(configuration, entries, End::Source);
    [vec![own], outer, vec![jump(Chain::Outbound)]].concat()
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
