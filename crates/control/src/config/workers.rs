//! Reads `workers` and `spread_inbound` of `[gateway]`: how many there are, what each does, and which packets
//! come to which.

use super::checks::Facts;
use super::group;
use super::interface::InterfaceDraft;
use super::model::{Tunnel, UnprotectedPort};
use super::value::{self, Parsed};
use super::vpe;
use super::walk::{Located, Problem, Section, Walker};
use testudo_gateway::Role;
use testudo_ipsec::IpsecProtocol;
use toml::de::{DeTable, DeValue};

/// Workers at most.
pub const MAX_WORKERS: usize = 64;

/// What `workers` may be.
const EXPECTED: &str = "a number from 1 to 64, or \"all\" for one on each processor, or a list of roles";
/// What the table may be.
const HALVES: &str = "{ count = 4, roles = \"half\" }";

/// How many workers a gateway has, and what they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// As many as processors that the gateway may use, each for both sides.
    All,
    /// So many, each for both sides.
    Count(usize),
    /// So many, or as many as processors: one half encrypts, the other decrypts. Of an odd number, one does
    /// both.
    Halves(Option<usize>),
    /// One for each role, not all for both sides.
    Roles(Roles),
}

/// The roles of up to 64 workers, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roles {
    count: usize,
    /// A bit for each worker that takes from the protected side.
    encrypt: u64,
    /// A bit for each worker that takes from the unprotected side.
    decrypt: u64,
}

impl Roles {
    fn of(roles: &[Role]) -> Self {
        let bits = |takes: fn(Role) -> bool| {
            let set = |bits, (place, role): (usize, &Role)| bits | (u64::from(takes(*role)) << (place % 64));
            roles.iter().enumerate().fold(0, set)
        };
        Self { count: roles.len(), encrypt: bits(Role::encrypts), decrypt: bits(Role::decrypts) }
    }

    fn each(self) -> impl Iterator<Item = Role> {
        (0..self.count).map(move |place| match (self.encrypt >> place & 1, self.decrypt >> place & 1) {
            (1, 0) => Role::Encrypt,
            (0, 1) => Role::Decrypt,
            _ => Role::Both,
        })
    }
}

impl Workers {
    /// How many there are, where the gateway may use so many processors.
    #[must_use]
    pub fn count(self, processors: usize) -> usize {
        let all = processors.clamp(1, MAX_WORKERS);
        match self {
            Self::All => all,
            Self::Count(count) => count,
            Self::Halves(count) => count.unwrap_or(all),
            Self::Roles(roles) => roles.count,
        }
    }

    /// What each does, where the gateway may use so many processors. At least one takes packets from each
    /// side.
    #[must_use]
    pub fn roles(self, processors: usize) -> Vec<Role> {
        let count = self.count(processors);
        match self {
            Self::All | Self::Count(_) => vec![Role::Both; count],
            Self::Halves(_) => {
                let role = |place| match (place < count / 2, place < count - count / 2) {
                    (true, _) => Role::Encrypt,
                    (false, true) => Role::Both,
                    (false, false) => Role::Decrypt,
                };
                (0..count).map(role).collect()
            }
            Self::Roles(roles) => roles.each().collect(),
        }
    }

    /// How many there may be, where the gateway may use so many processors and `workers_max` is this.
    #[must_use]
    pub fn most(self, workers_max: Option<usize>, processors: usize) -> usize {
        workers_max.unwrap_or(0).max(self.count(processors))
    }

    /// Whether there may be more or fewer while the gateway runs.
    #[must_use]
    pub fn may_change(self) -> bool {
        matches!(self, Self::All | Self::Count(_))
    }

    /// These roles, in the simplest words.
    fn of(roles: &[Role]) -> Self {
        let is_for_both = roles.iter().all(|role| *role == Role::Both);
        if is_for_both { Self::Count(roles.len()) } else { Self::Roles(Roles::of(roles)) }
    }
}

/// How packets from peers are spread over several workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpreadInbound {
    /// Those of an SA come to one worker.
    BySa,
    /// Those of an SA come to all workers, by their numbers, and leave in the order of these.
    InOrder,
    /// Those of an SA come to all workers, by their numbers, and leave as they are opened.
    Unordered,
    /// Those of ESP in UDP come to a worker by their UDP source port, others to that of their SA.
    BySourcePort,
}

impl SpreadInbound {
    /// All, with their names in the configuration.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("by-sa", Self::BySa),
        ("in-order", Self::InOrder),
        ("unordered", Self::Unordered),
        ("by-source-port", Self::BySourcePort),
    ];
}

/// `spread_inbound = "in-order"`: with several workers.
pub(super) fn read_spread(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    workers: Workers,
    workers_max: Option<usize>,
) -> SpreadInbound {
    let choice = value::choice(&SpreadInbound::NAMES);
    let spread = section.or_default(walker, "spread_inbound", SpreadInbound::BySa, choice);
    if spread != SpreadInbound::BySa && workers.most(workers_max, MAX_WORKERS) == 1 {
        let problem = Problem::expected("`spread_inbound` with several workers");
        section.refuse(walker, "spread_inbound", problem.help("set `workers`, or leave it out"));
    }
    spread
}

/// `workers = 4`, or `workers = "all"`, or `workers = ["encrypt", "decrypt"]`, or
/// `workers = { count = 4, roles = "half" }`.
///
/// `workers_max = 8` is how many there may be while the gateway runs, where that is more than at the start.
pub(super) fn read(
    section: &mut Section<'_>,
    walker: &mut Walker<'_>,
    engines: &[String],
) -> (Workers, Option<usize>) {
    let workers = section.or_default(walker, "workers", Workers::Count(1), parse);
    let most = section.or_default(walker, "workers_max", None, |value| count(value).map(Some));
    if workers != Workers::Count(1) && engines.iter().any(|engine| engine == "cryptodev") {
        let problem = Problem::expected("`workers = 1` beside the engine cryptodev");
        section.refuse(walker, "workers", problem.help("a device of DPDK's belongs to one worker"));
    }
    if most.is_some_and(|most| most > 1) && engines.iter().any(|engine| engine == "cryptodev") {
        let problem = Problem::expected("no `workers_max` beside the engine cryptodev");
        section.refuse(walker, "workers_max", problem.help("a device of DPDK's belongs to one worker"));
    }
    let help = match workers {
        Workers::Count(count) => {
            most.filter(|most| *most < count).map(|_| "there are more to begin with".to_owned())
        }
        Workers::All => None,
        Workers::Halves(_) | Workers::Roles(_) => {
            most.map(|_| "workers with roles are as many as there are until a restart".to_owned())
        }
    };
    if let Some(help) = help {
        let problem = Problem::expected("as many as `workers`, or more, all for both sides");
        section.refuse(walker, "workers_max", problem.help(help));
    }
    (workers, most)
}

fn parse(value: &DeValue<'_>) -> Parsed<Workers> {
    match value {
        DeValue::Array(roles) => {
            let words = Role::ALL.map(|role| (role.name(), role));
            let role = value::choice(&words);
            let roles = roles.iter().take(MAX_WORKERS + 1).map(|value| role(value.get_ref()));
            of_roles(&roles.collect::<Parsed<Vec<_>>>()?)
        }
        DeValue::Table(table) => halves(table),
        _ if value.as_str() == Some("all") => Ok(Workers::All),
        _ => count(value).map(Workers::Count).map_err(|_| Problem::expected(EXPECTED)),
    }
}

fn count(value: &DeValue<'_>) -> Parsed<usize> {
    let limit = u64::try_from(MAX_WORKERS).unwrap_or(u64::MAX);
    value::number(1, limit)(value).map(|count| usize::try_from(count).unwrap_or(1))
}

fn of_roles(roles: &[Role]) -> Parsed<Workers> {
    if !(1..=MAX_WORKERS).contains(&roles.len()) {
        return Err(Problem::expected(format!("1 to {MAX_WORKERS} roles, one for each worker")));
    }
    for (takes, side, help) in [
        (Role::encrypts as fn(Role) -> bool, "protected", "\"encrypt\" or \"both\""),
        (Role::decrypts, "unprotected", "\"decrypt\" or \"both\""),
    ] {
        if !roles.iter().any(|role| takes(*role)) {
            let problem = Problem::expected(format!("a worker that takes packets from the {side} side"));
            return Err(problem.help(format!("add {help}")));
        }
    }
    Ok(Workers::of(roles))
}

/// The default of the paper: half of the workers encrypt, half decrypt.
fn halves(table: &DeTable<'_>) -> Parsed<Workers> {
    let problem = || Problem::expected(HALVES);
    let of = |key: &str| table.get(key).map(|value| value.get_ref());
    let mut keys = table.keys().map(|key| key.get_ref().as_ref());
    let is_known = keys.all(|key| matches!(key, "count" | "roles"));
    if !is_known || of("roles").and_then(DeValue::as_str) != Some("half") {
        return Err(problem().help("it has `count`, a number or \"all\", and `roles`, which is \"half\""));
    }
    match of("count") {
        Some(value) if value.as_str() == Some("all") => Ok(Workers::Halves(None)),
        Some(value) => count(value).map(|count| match count {
            1 => Workers::Count(1),
            _ => Workers::Halves(Some(count)),
        }),
        None => Err(problem().help("`count` is missing: a number, or \"all\"")),
    }
}

/// What a worker knows of an SA's packets that others do not: where they are spread, each gets but a part.
fn check_spread(walker: &mut Walker<'_>, tunnels: &[Tunnel], facts: &Facts) {
    let named = tunnels.iter().zip(&facts.names).filter_map(|(tunnel, name)| Some((tunnel, name.as_ref()?)));
    for (tunnel, name) in named {
        if tunnel.rules.mtu_probe.is_some() {
            let problem = Problem::expected("no `mtu_probe` beside `spread_inbound`");
            let help = "answers to a worker's probes would come to others: leave `spread_inbound` out";
            walker.report(&name.span, format!("tunnel[{}].mtu_probe", name.value), problem.help(help));
        }
        if tunnel.non_first_fragments {
            let problem = Problem::expected("no `non_first_fragments` beside `spread_inbound`");
            let help = "fragments of a datagram would come to several workers: leave `spread_inbound` out";
            walker.report(
                &name.span,
                format!("tunnel[{}].non_first_fragments", name.value),
                problem.help(help),
            );
        }
    }
}

/// What several workers cannot share: devices whose queues have one owner, and ESP that AH covers.
pub(super) fn check(
    walker: &mut Walker<'_>,
    (workers, most, spread): (Workers, Option<usize>, SpreadInbound),
    protected: (Option<Located<String>>, bool),
    unprotected: &Located<UnprotectedPort>,
    (tunnels, interfaces, facts): (&[Tunnel], &[InterfaceDraft], &Facts),
) {
    group::check_senders(walker, workers.most(most, MAX_WORKERS), tunnels, facts);
    if workers == Workers::Count(1) && most.is_none_or(|most| most == 1) {
        return;
    }
    let help = "ports of other kinds have one worker: set `workers = 1` in [gateway]";
    if let (Some(name), false) = protected {
        let problem = Problem::expected("kind = \"tun\" in [port.protected] with several workers");
        walker.report(&name.span, "port.protected.kind", problem.help(help));
    }
    if !unprotected.value.kind.is_host() {
        let problem = Problem::expected("kind = \"socket\" in [port.unprotected] with several workers");
        walker.report(&unprotected.span, "port.unprotected.kind", problem.help(help));
    }
    let help = "they cannot share its SAs: set `workers = 1` in [gateway]";
    let covered = tunnels.iter().zip(&facts.names).find(|(tunnel, _)| tunnel.covered_by.is_some());
    if let Some(name) = covered.and_then(|(_, name)| name.as_ref()) {
        let problem = Problem::expected("no tunnel of AH over ESP with several workers");
        walker.report(&name.span, format!("tunnel[{}].protocol", name.value), problem.help(help));
    }
    if spread != SpreadInbound::BySa {
        check_spread(walker, tunnels, facts);
    }
    let of_vpe = tunnels.iter().zip(&facts.names).filter(|(tunnel, _)| tunnel.protocol == IpsecProtocol::Vpe);
    for (tunnel, name) in of_vpe.filter_map(|(tunnel, name)| Some((tunnel, name.as_ref()?))) {
        vpe::check_workers(walker, workers.most(most, MAX_WORKERS), ("tunnel", name), &tunnel.rules.of_vpe());
    }
    for interface in interfaces {
        if let (Some(name), Some(vpe)) = (interface.name(), interface.vpe()) {
            vpe::check_workers(walker, workers.most(most, MAX_WORKERS), ("interface", name), &vpe.rules);
        }
    }
}
