//! The command line of `testudo bench`, and the cases that it selects.

use std::path::PathBuf;
use std::time::Duration;

use super::case::{Carrier, Case, MIXED, Order, Size, Suites, Wanted, Way};
use super::device::{GpuCount, part_of_a_name};
use super::engines::Engines;
use super::error::BenchError;
use super::load::SEED;
use super::measure::{LEARNING, most_sas_inbound};
use super::report::Series;

/// Overhead per measurement of a case: tunnels, packets, judge.
const AROUND_A_VISIT: Duration = Duration::from_millis(15);

/// Below this processor share, a measurement says more about the machine's other work than about Testudo.
const QUIET_SHARE: f64 = 0.97;

/// Options of `testudo bench`.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchOptions {
    /// Suites, each measured separately, or ciphers without authentication (aes128-none), which no gateway
    /// has; all: each of these; mixed: tunnels are assigned in turn the suites that engines with bursts do
    /// (AEADs; aes128, aes256 and null with sha1 and sha256), and packets come from any tunnel [default: each
    /// that RFC 8221 recommends]
    #[arg(long, value_delimiter = ',', value_name = "SUITE,…")]
    pub suites: Vec<Wanted>,

    /// Lengths of whole inner IP packets in bytes, imix, or random: any from 46 to 1420 bytes
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "BYTES,…",
        default_value = "64,128,256,512,1024,1420,imix"
    )]
    pub sizes: Vec<Size>,

    /// Directions through the gateway
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "DIRECTION,…",
        default_value = "outbound,inbound"
    )]
    pub directions: Vec<Way>,

    /// Numbers of SAs, which packets are spread over evenly (of mixed suites: at random)
    #[arg(long, value_delimiter = ',', value_name = "NUMBER,…", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub sas: Vec<u32>,

    /// Order of jobs for engines that work on several at once. With `--suites mixed --sas 60 --sizes
    /// random,imix --formation none,suite,length` this is figure 9 of paper 002 (packet scheduling): none, by
    /// algorithm, by algorithm and length. A gateway orders by length
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ORDER,…", default_value = "length")]
    pub formation: Vec<Order>,

    /// Total number of policies: those beyond the tunnels' own precede them and are for other networks
    /// [default: one for each SA, and never fewer]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub policies: Option<u32>,

    /// Engines [default: all that work here; cryptodev, a device of DPDK's, and gpu only if they are named]
    #[arg(long, value_delimiter = ',', value_name = "NAME,…")]
    pub engines: Vec<String>,

    /// Also measure a gateway that has all of these engines and places each job by what it costs (`live`, as
    /// placement = "live" in a configuration). Its floor is that of the fastest of them,
    /// and it runs for half a second before it is measured: engines are asked for packets then
    #[arg(long)]
    pub live: bool,

    /// The device of the engine cryptodev, in software: a driver with its arguments
    #[arg(long, value_name = "DEVICE", default_value = "crypto_aesni_mb")]
    pub cryptodev: String,

    /// The device of the engine gpu: a part of its name or of its platform's [default: the first GPU; PoCL,
    /// which is correct and not fast, only if it is named]
    #[arg(long, value_name = "NAME", value_parser = part_of_a_name)]
    pub gpu: Option<String>,

    /// How many GPUs with that name are one engine: a number, or all
    #[arg(long, value_name = "N", default_value = "1")]
    pub gpus: GpuCount,

    /// Encapsulations of ESP, or VPE in its place
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND,…", default_value = "esp")]
    pub encapsulation: Vec<Carrier>,

    /// Measurements of each case; cases are measured in turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,

    /// Milliseconds of each measurement; its floor takes half as long
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub milliseconds: u64,

    /// Print a JSON array instead of the table, and no progress
    #[arg(long)]
    pub json: bool,

    /// Also draw throughput over packet size to a file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// The most reasons of one engine that are told one by one.
const REASONS_TOLD: usize = 4;

/// Why engines do not do cases: each reason, or where an engine has many, how many there are.
fn summarised(refused: &[(usize, String)], engines: &Engines) -> Vec<String> {
    let mut told = Vec::new();
    for (engine, available) in engines.available.iter().enumerate() {
        let of_it: Vec<_> = refused.iter().filter(|(other, _)| *other == engine).collect();
        match of_it.len() {
            0..=REASONS_TOLD => told.extend(of_it.into_iter().map(|(_, reason)| reason.clone())),
            many => {
                told.push(format!("{many} suites or sizes with {}, which does not do them", available.name()))
            }
        }
    }
    told
}

/// The cases, and behind the last engine of each direction those of a gateway that has all that do it; none
/// where there is but one.
fn with_placed(cases: Vec<Case>) -> Vec<Case> {
    let mut all = Vec::new();
    for group in cases.chunk_by(|one, next| (one.suites, one.way) == (next.suites, next.way)) {
        all.extend_from_slice(group);
        let mut together: Vec<Case> = Vec::new();
        for case in group {
            let is_same = |other: &&mut Case| Case { engine: case.engine, placed: 0, ..**other } == *case;
            match together.iter_mut().find(is_same) {
                Some(other) => other.placed |= 1 << case.engine,
                None => together.push(Case { placed: 1 << case.engine, ..*case }),
            }
        }
        all.extend(together.into_iter().filter(|case| case.placed.count_ones() > 1));
    }
    all
}

/// `items` without duplicates, in order.
fn distinct<T: PartialEq + Copy>(items: &[T]) -> Vec<T> {
    let mut kept = Vec::new();
    for item in items {
        if !kept.contains(item) {
            kept.push(*item);
        }
    }
    kept
}

impl BenchOptions {
    /// The cases, in table order, and a message for each that no engine can do.
    pub(super) fn cases(&self, engines: &Engines) -> Result<(Vec<Case>, Vec<String>), BenchError> {
        self.check_memory()?;
        self.check_mixture()?;
        let is_wanted =
            |name: &str| self.engines.is_empty() || self.engines.iter().any(|wanted| wanted == name);
        let (mut cases, mut refused) = (Vec::new(), Vec::new());
        for (engine, case) in self.cells(engines.available.len()) {
            let available = &engines.available[engine];
            if !is_wanted(available.name()) {
                continue;
            }
            match available.refusal(&case) {
                None => cases.push(case),
                Some(reason) if refused.contains(&(engine, reason.clone())) => {}
                Some(reason) => refused.push((engine, reason)),
            }
        }
        if self.live {
            cases = with_placed(cases);
        }
        if cases.is_empty() {
            let reasons: Vec<_> = refused.into_iter().map(|(_, reason)| reason).collect();
            return Err(BenchError::Engine(format!("nothing can be measured: {}", reasons.join("; "))));
        }
        Ok((cases, summarised(&refused, engines)))
    }

    /// All combinations of the options, for this many engines, before unsupported ones are removed.
    fn cells(&self, engines: usize) -> Vec<(usize, Case)> {
        let wanted: Vec<Suites> = self.suites.iter().flat_map(|wanted| wanted.each()).collect();
        let suites = if wanted.is_empty() { Wanted::recommended().collect() } else { distinct(&wanted) };
        let (ways, numbers, sizes) = (distinct(&self.directions), distinct(&self.sas), distinct(&self.sizes));
        let orders = distinct(&self.formation);
        let kinds = distinct(&self.encapsulation);
        let orders = || kinds.iter().flat_map(|&carrier| orders.iter().map(move |&order| (carrier, order)));
        let mut cells = Vec::new();
        for suites in suites {
            for &way in &ways {
                for engine in 0..engines {
                    for &sas in &numbers {
                        let policies = self.policies.unwrap_or(sas).max(sas);
                        for (carrier, order) in orders() {
                            let case = |&size| Case {
                                suites,
                                way,
                                size,
                                sas,
                                policies,
                                carrier,
                                order,
                                esn: true,
                                engine,
                                placed: 0,
                            };
                            cells.extend(sizes.iter().map(case).map(|case| (engine, case)));
                        }
                    }
                }
            }
        }
        cells
    }

    fn check_mixture(&self) -> Result<(), BenchError> {
        let (least, all) = (self.sas.iter().copied().min().unwrap_or(1), MIXED.len());
        if !self.suites.contains(&Wanted::Only(Suites::Mixed)) || least as usize >= all {
            return Ok(());
        }
        Err(BenchError::Usage(format!(
            "--suites mixed needs --sas {all} or more: it has {all} suites, and {least} is too few"
        )))
    }

    fn check_memory(&self) -> Result<(), BenchError> {
        let sas = self.sas.iter().copied().max().unwrap_or(1);
        let longest = self.sizes.iter().copied().max_by_key(|size| size.longest_bytes());
        let Some(size) = longest.filter(|_| self.directions.contains(&Way::Inbound)) else { return Ok(()) };
        let most = most_sas_inbound(size);
        if sas as usize <= most {
            return Ok(());
        }
        let bytes = size.longest_bytes();
        Err(BenchError::Usage(format!(
            "{sas} SAs with packets of {bytes} bytes take too much memory inbound: use at most {most} SAs, or shorter packets, or --directions outbound"
        )))
    }

    pub(super) fn expected_visit(&self, case: &Case) -> Duration {
        let learning = if case.is_placed() { LEARNING } else { Duration::ZERO };
        Duration::from_millis(self.milliseconds * 3 / 2) + AROUND_A_VISIT + learning
    }

    pub(super) fn expected(&self, cases: &[Case]) -> Duration {
        let visits: Duration = cases.iter().map(|case| self.expected_visit(case)).sum();
        visits.saturating_mul(self.repetitions)
    }

    /// The encapsulations, for people.
    pub(super) fn encapsulations(&self) -> String {
        let names: Vec<_> = distinct(&self.encapsulation).into_iter().map(Carrier::name).collect();
        names.join(", ")
    }

    /// Announces what will be measured.
    pub(super) fn announcement(&self, cases: &[Case], engines: &Engines) -> String {
        let mut text = format!(
            "The data path in memory: receive copies, tunnel mode ({}), transmit discards; one worker.\n\
             {} cases, {} repetitions of {} ms in turn, about {} s.\n",
            self.encapsulations(),
            cases.len(),
            self.repetitions,
            self.milliseconds,
            self.expected(cases).as_secs().max(1),
        );
        for (index, engine) in engines.available.iter().enumerate() {
            if cases.iter().any(|case| case.engines().contains(&index)) {
                text += &format!("  {}: {}\n", engine.name(), engine.instance.description());
            }
        }
        text
    }

    /// Explains the columns of the table, and why its figures can be trusted.
    pub(super) fn legend(&self, series: &[Series]) -> String {
        let judged: u64 = series.iter().flat_map(|series| &series.samples).map(|sample| sample.judged).sum();
        let mut text = format!(
            "\n  Medians of {} repetitions; spread: lowest and highest. bytes, Gbit/s, /byte: of inner packets; random choices use seed {SEED}.\n  \
             cycles: of the time stamp counter, per packet. floor: the engine alone with the same jobs, in the same run.\n  \
             Where rows are suites, each has the engines that do it, the fastest first.\n  \
             rx … tx: percent of the cycles, by stage. No packet was lost; a peer processed {judged} of them, and all match the originals.\n",
            self.repetitions,
        );
        if series.iter().any(|series| series.case.is_placed()) {
            text += &format!(
                "  live: gateways that had run for {} ms before, in which engines are asked for packets.\n",
                LEARNING.as_millis()
            );
        }
        let shares = series.iter().map(|series| series.processor_share().median);
        let least = shares.fold(1.0, f64::min);
        if least < QUIET_SHARE {
            text += &format!(
                "  This machine is busy: other work had the processor for up to {:.0} % of a measurement. Figures are too low, ratios unreliable.\n",
                (1.0 - least) * 100.0
            );
        }
        let mut devices: Vec<&Series> = series.iter().filter(|series| series.device.note.is_some()).collect();
        devices.dedup_by(|one, other| one.device == other.device);
        for series in devices {
            text += &format!("  {}: its figures are no speed.\n", series.device.words(series.engine));
        }
        let own: Vec<_> = series.iter().filter(|series| series.judge == series.engine).collect();
        if let Some(series) = own.first() {
            text += &format!("  No other engine here can judge {}: it judged itself.\n", series.engine);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_crypto::Suite;

    #[test]
    fn a_gateway_with_all_engines_is_measured_behind_each_alone() {
        let case = |suite, size, engine| Case {
            suites: Suites::One(suite),
            way: Way::Outbound,
            size: Size::Bytes(size),
            sas: 1,
            policies: 1,
            carrier: Carrier::Esp,
            order: Order::default(),
            esn: true,
            engine,
            placed: 0,
        };
        let (gcm, other) = (Suite::AES128GCM16, Suite::CHACHA20POLY1305);
        let alone = [case(gcm, 64, 0), case(gcm, 1420, 0), case(gcm, 64, 2), case(other, 64, 2)];
        let together = Case { placed: 0b101, ..alone[0] };
        assert_eq!(with_placed(alone.to_vec()), [alone[0], alone[1], alone[2], together, alone[3]]);
        assert_eq!((together.engines(), alone[3].engines()), (vec![0, 2], vec![2]));
    }
}
