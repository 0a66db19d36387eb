//! Reads `workers` of `[gateway]`: how many there are.

use super::checks::Facts;
use super::model::{Tunnel, UnprotectedPort};
use super::value::{self, Parsed};
use super::vpe;
use super::walk::{Located, Problem, Section, Walker};
use testudo_ipsec::IpsecProtocol;
use toml::de::DeValue;

/// Workers at most.
pub const MAX_WORKERS: usize = 64;

/// How many workers a gateway has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// As many as processors that the gateway may use.
    All,
    /// So many.
    Count(usize),
}

impl Workers {
    /// How many there are, where the gateway may use so many processors.
    #[must_use]
    pub fn count(self, processors: usize) -> usize {
        match self {
            Self::All => processors.clamp(1, MAX_WORKERS),
            Self::Count(count) => count,
        }
    }
}

/// `workers = 4`, or `workers = "all"`.
pub(super) fn read(section: &mut Section<'_>, walker: &mut Walker<'_>, engines: &[String]) -> Workers {
    let workers = section.or_default(walker, "workers", Workers::Count(1), parse);
    if workers != Workers::Count(1) && engines.iter().any(|engine| engine == "cryptodev") {
        let problem = Problem::expected("`workers = 1` beside the engine cryptodev");
        section.refuse(walker, "workers", problem.help("a device of DPDK's belongs to one worker"));
    }
    workers
}

fn parse(value: &DeValue<'_>) -> Parsed<Workers> {
    if value.as_str() == Some("all") {
        return Ok(Workers::All);
    }
    let limit = u64::try_from(MAX_WORKERS).unwrap_or(u64::MAX);
    let count = value::number(1, limit)(value).map_err(|_| {
        Problem::expected(format!("a number from 1 to {MAX_WORKERS}, or \"all\" for one on each processor"))
    })?;
    Ok(Workers::Count(usize::try_from(count).unwrap_or(1)))
}

/// What several workers cannot share: devices whose queues have one owner, and ESP that AH covers.
pub(super) fn check(
    walker: &mut Walker<'_>,
    workers: Workers,
    protected: (Option<Located<String>>, bool),
    unprotected: &Located<UnprotectedPort>,
    (tunnels, facts): (&[Tunnel], &Facts),
) {
    if workers == Workers::Count(1) {
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
    let named = |is_of_one: fn(&Tunnel) -> bool| {
        let found = tunnels.iter().zip(&facts.names).find(|(tunnel, _)| is_of_one(tunnel));
        found.and_then(|(_, name)| name.as_ref())
    };
    let help = "they cannot share its SAs: set `workers = 1` in [gateway]";
    if let Some(name) = named(|tunnel| tunnel.covered_by.is_some()) {
        let problem = Problem::expected("no tunnel of AH over ESP with several workers");
        walker.report(&name.span, format!("tunnel[{}].protocol", name.value), problem.help(help));
    }
    let of_vpe = tunnels.iter().zip(&facts.names).filter(|(tunnel, _)| tunnel.protocol == IpsecProtocol::Vpe);
    for (tunnel, name) in of_vpe.filter_map(|(tunnel, name)| Some((tunnel, name.as_ref()?))) {
        vpe::check_workers(walker, workers.count(MAX_WORKERS), name, &tunnel.rules.of_vpe());
    }
}
