//! The configuration: one TOML file, checked as a whole, as plain data.
//!
//! ```text
//!   text ──► TOML with spans ──► sections, key by key ──► checks across sections ──► Configuration
//!                  │                      │                       │
//!                  └──────────────────────┴───────────────────────┴──► ConfigErrors: where, expected, help
//! ```
//!
//! A [`Configuration`] needs no further check: values are in range, names are unique, references resolve, the
//! addresses of a tunnel are of one version, defaults are filled in, and relative paths are resolved against
//! the file's folder. Keys are not part of it: [`Configuration::load`] returns them beside it.
//!
//! Unknown keys are errors: in a security gateway, a misspelled option that is silently ignored is a hole. So
//! is a selector that an earlier one covers, since no packet ever reaches it. All sizes are bounded, and no
//! text makes the parser panic.

mod addition;
mod buffers;
mod checks;
mod dpdk;
mod engine;
mod error;
mod gateway;
mod group;
mod ike;
mod interface;
mod known_answer;
mod limits;
mod load;
mod loops;
mod mask;
mod messages;
mod model;
mod mtu_probe;
mod negotiated_vpe;
mod network;
mod offload;
mod outer;
mod packet_rules;
mod policy;
mod policy_index;
mod populate;
mod port_kind;
mod quantity;
mod scheduler;
mod selector;
mod shadow;
mod sizes;
mod source;
mod suggest;
mod threading;
mod traffic;
mod tunnel;
mod value;
mod vpe;
mod walk;
mod worker_sas;
mod workers;
mod xdp;

pub use addition::Slot;
pub use checks::MAX_RULES;
pub use dpdk::{DpdkSettings, NextHop};
pub use engine::{Cores, Cryptodev, Gpu, GpuApi};
pub use error::{ConfigError, ConfigErrors, Excerpt, MAX_ERRORS};
pub use gateway::ENGINES;
pub use interface::MAX_INTERFACES;
pub use limits::{lifetime_of, limits_of};
pub use load::{KnownAnswers, Loaded, TunnelKeys};
pub use messages::message;
pub use model::{
    Action, AuditTarget, Configuration, Gateway, Ike, Interface, InterfaceAddress, KnownAnswer, LogLevel,
    Policy, ProtectedPort, Received, Remote, SaSettings, Selectors, Tunnel, UnprotectedPort, WorkerSas,
};
pub use negotiated_vpe::NegotiatedVpe;
pub use network::Network;
pub(crate) use network::Networks;
pub use offload::Offload;
pub use outer::{OuterEndpoint, OuterProtocol, covered_by_wildcards};
pub use policy_index::PolicyIndex;
pub use port_kind::PortKind;
pub use sizes::Sizes;
pub(crate) use suggest::did_you_mean;
pub use threading::Threading;
pub(crate) use traffic::networks;
pub use traffic::{protocol_name, protocol_number};
pub use tunnel::MAX_SELECTORS;
pub use workers::{MAX_WORKERS, Roles, SpreadInbound, Workers};
pub use xdp::{XdpMode, XdpSettings, ZeroCopy};

use checks::Facts;
use gateway::Link;
use std::path::Path;
use testudo_wire::ip::Version;
use toml::Spanned;
use toml::de::DeTable;
use walk::{Problem, Section, Walker};

/// Largest configuration file, in bytes.
pub const MAX_FILE_BYTES: usize = 32 << 20;
/// Longest text, in bytes, in which all syntax errors are looked for and not just the first.
const MAX_RECOVERED_BYTES: usize = 1 << 20;
/// Tunnels per configuration at most.
pub const MAX_TUNNELS: usize = 20_000;
/// Policies per configuration at most.
pub const MAX_POLICIES: usize = 10_000;

impl Configuration {
    /// Parses and checks a configuration without its keys. `name` is the file's name: it appears in messages,
    /// and relative paths are resolved against its folder.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn parse(text: &str, name: &str) -> Result<Self, ConfigErrors> {
        if text.len() > MAX_FILE_BYTES {
            return Err(too_large(name));
        }
        let mut walker = Walker::new(text);
        let draft = Draft::read(&mut walker, text, name);
        draft.finish(walker, name).map(|(configuration, _)| configuration)
    }
}

fn too_large(name: &str) -> ConfigErrors {
    let expected = format!("at most {} MiB", MAX_FILE_BYTES >> 20);
    ConfigErrors::whole_file(name, &expected, "more".to_owned(), None)
}

/// A configuration, if everything needed could be read, and the facts noted on the way.
struct Draft {
    configuration: Option<Configuration>,
    facts: Facts,
}

impl Draft {
    fn read(walker: &mut Walker<'_>, text: &str, name: &str) -> Self {
        let (document, errors) = parse_toml(text);
        let mut facts = Facts::default();
        let readable = report_syntax(walker, &errors);
        let base = Path::new(name).parent().unwrap_or(Path::new(""));
        let configuration =
            readable.then(|| read_document(walker, document.get_ref(), base, &mut facts)).flatten();
        Self { configuration, facts }
    }

    fn finish(self, walker: Walker<'_>, name: &str) -> Result<(Configuration, Facts), ConfigErrors> {
        let incomplete = || ConfigErrors::whole_file(name, "a configuration", "none".to_owned(), None);
        match self.configuration {
            Some(configuration) if walker.is_clean() => Ok((configuration, self.facts)),
            None if walker.is_clean() => Err(incomplete()),
            _ => Err(walker.into_errors(name)),
        }
    }
}

/// The document, as far as it can be parsed, and its syntax errors. In a long text only the first is looked
/// for: there may be one for each character.
fn parse_toml(text: &str) -> (Spanned<DeTable<'_>>, Vec<toml::de::Error>) {
    if text.len() <= MAX_RECOVERED_BYTES {
        return DeTable::parse_recoverable(text);
    }
    match DeTable::parse(text) {
        Ok(document) => (document, Vec::new()),
        Err(error) => (Spanned::new(0..0, DeTable::new()), vec![error]),
    }
}

/// The parser's message about a key that occurs twice.
const DUPLICATE: &str = "duplicate key";

/// Reports syntax errors, one per line; returns whether the rest is worth reading. After broken syntax,
/// further errors would only be about the parser's recovery.
fn report_syntax(walker: &mut Walker<'_>, errors: &[toml::de::Error]) -> bool {
    let place = |error: &toml::de::Error| error.span().unwrap_or(0..0);
    let mut errors: Vec<_> = errors.iter().collect();
    errors.sort_by_key(|error| place(error).start);
    errors.dedup_by_key(|error| walker.line(&place(error)));
    for error in &errors {
        let problem = match error.message() {
            DUPLICATE => Problem::expected("each key once"),
            message => Problem::expected("TOML").found(message),
        };
        walker.report(&place(error), "", problem);
    }
    // Duplicates leave the rest intact.
    errors.iter().all(|error| error.message() == DUPLICATE)
}

/// What a port that no kernel sees cannot be used with.
fn check_dpdk(
    walker: &mut Walker<'_>,
    port: &walk::Located<UnprotectedPort>,
    tunnels: &[Tunnel],
    has_ike: bool,
) {
    let Some(settings) = port.value.kind.dpdk() else { return };
    let located = port.clone().map(|_| settings.clone());
    dpdk::check_locals(walker, &located, tunnels);
    if has_ike {
        let problem = Problem::expected("no [ike] with kind = \"dpdk\" in [port.unprotected]");
        let help = "an IKE daemon speaks by the kernel's sockets, and no kernel sees this port: \
                    use kind = \"xdp\" here, or keys from files without [ike] (docs/DPDK.md)";
        walker.report(&port.span, "port.unprotected.kind", problem.help(help));
    }
}

fn read_document(
    walker: &mut Walker<'_>,
    document: &DeTable<'_>,
    base: &Path,
    facts: &mut Facts,
) -> Option<Configuration> {
    let mut root = Section::new("", 0..0, Some(document));
    let gateway = section(&mut root, walker, "gateway", "[gateway]");
    let gateway = gateway::read_gateway(gateway, walker, base);
    let named = gateway.as_ref().map(|gateway| gateway.engines.as_slice());
    let engine::Engines { cryptodev, gpu, cores } = engine::read_engine(&mut root, walker, named);
    let (scheduler, threading) = scheduler::read_scheduler(&mut root, walker);
    let ike = root.table(walker, "ike").map(|section| ike::read_ike(section, walker, base));
    let (protected, unprotected) = read_ports(&mut root, walker);
    let interfaces = interface::read_interfaces(&mut root, walker, facts);
    let sections = root.tables(walker, "tunnel", MAX_TUNNELS);
    let count = sections.len();
    let read = |section| tunnel::read_tunnel(section, walker, base, facts);
    let pairs: Vec<tunnel::Pair> = sections.into_iter().filter_map(read).collect();
    let is_complete = pairs.len() == count;
    let tunnels = with_ah(pairs);
    order_keys(facts);
    let by_name = facts.tunnels_by_name();
    let sections = root.tables(walker, "policy", MAX_POLICIES).into_iter();
    let policies = numbered(sections.filter_map(|s| policy::read_policy(s, walker, &by_name, facts)));
    root.finish(walker);
    facts.check_templates(walker, &tunnels);
    facts.check_named(walker, &tunnels);
    facts.check(walker, &policies, &unprotected.value);
    facts.ends.check(walker, ike.as_ref().map(|ike| ike.udp_port));
    protected.check_sides(walker, &unprotected.value);
    check_dpdk(walker, &unprotected, &tunnels, ike.is_some());
    group::check_port(
        walker,
        &unprotected,
        (&tunnels, interfaces.iter().any(|one| one.vpe().is_some())),
        facts,
    );
    facts.check_modes(walker, &tunnels, protected.has_tun());
    if let Some(gateway) = &gateway {
        threading::check(walker, &threading, gateway, (&protected, &unprotected.value));
        let Gateway { workers, workers_max, spread_inbound, .. } = *gateway;
        worker_sas::check(walker, facts, (workers, workers_max));
        let (workers, side) =
            ((workers, workers_max, spread_inbound), (protected.name(), protected.has_tun()));
        workers::check(walker, workers, side, &unprotected, (&tunnels, &interfaces, facts));
    }
    if protected.routes && protected.has_tun() {
        facts.check_routes(walker, &unprotected.value);
    }
    let link = Link { port: &unprotected, tunnels: &tunnels };
    let interfaces = interface::complete(interfaces, walker, &link, protected.name(), ike.is_some());
    let protected = protected.complete(walker, &link, ike.is_some(), protect_ipv6(&policies));
    let (gateway, protected, interfaces) = (buffers::complete(gateway?, &scheduler), protected?, interfaces?);
    // Policies hold indices into all tunnels; after an error there are fewer.
    is_complete.then_some(Configuration {
        gateway,
        cryptodev,
        gpu,
        scheduler,
        threading: threading.threading,
        cores,
        ike,
        protected,
        unprotected: unprotected.value,
        interfaces,
        policies,
        tunnels,
    })
}

/// The ports of both sides.
fn read_ports(
    root: &mut Section<'_>,
    walker: &mut Walker<'_>,
) -> (gateway::ProtectedDraft, walk::Located<UnprotectedPort>) {
    let mut ports = section(root, walker, "port", "[port.protected] and [port.unprotected]");
    let protected = section(&mut ports, walker, "protected", "[port.protected]");
    let protected = gateway::read_protected(protected, walker);
    let unprotected = section(&mut ports, walker, "unprotected", "[port.unprotected]");
    let unprotected = gateway::read_unprotected(unprotected, walker);
    ports.finish(walker);
    (protected, unprotected)
}

/// Keys in the order of the SAs: those of AH's tunnels and of workers come after all others.
fn order_keys(facts: &mut Facts) {
    facts.keys.append(&mut facts.keys_of_ah);
    facts.keys.append(&mut facts.keys_of_workers);
}

/// Whether packets of IPv6 are protected.
fn protect_ipv6(policies: &[Policy]) -> bool {
    policies.iter().any(|p| matches!(p.action, Action::Protect { .. }) && mentions_ipv6(&p.selectors))
}

/// Policies in their order, numbered from 1 on.
fn numbered(policies: impl Iterator<Item = Policy>) -> Vec<Policy> {
    policies.zip(1..).map(|(policy, number)| Policy { number, ..policy }).collect()
}

/// All tunnels, those of AH that cover others last, so that policies' indices hold.
fn with_ah(pairs: Vec<tunnel::Pair>) -> Vec<Tunnel> {
    let count = pairs.len();
    let (mut tunnels, mut of_ah) = (Vec::with_capacity(count), Vec::new());
    for (index, (tunnel, ah)) in pairs.into_iter().enumerate() {
        let covered_by = ah.is_some().then_some(count + of_ah.len());
        tunnels.push(Tunnel { covered_by, ..tunnel });
        of_ah.extend(ah.map(|ah| Tunnel { covers: Some(index), ..ah }));
    }
    tunnels.append(&mut of_ah);
    tunnels
}

fn mentions_ipv6(selectors: &Selectors) -> bool {
    let mut ends = selectors.iter().flat_map(|selector| [selector.local, selector.remote]);
    ends.any(|range| range.version() == Some(Version::V6))
}

/// A section that must exist. If it is missing, that is reported and an empty one is returned.
fn section<'d>(
    parent: &mut Section<'d>,
    walker: &mut Walker<'_>,
    key: &'static str,
    header: &str,
) -> Section<'d> {
    let found = parent.table(walker, key);
    found.unwrap_or_else(|| parent.absent_section(walker, key, header))
}

#[cfg(test)]
pub(crate) mod tests;
