//! What is compared with what.

use testudo_crypto::{Cipher, Integrity, Suite};
use testudo_gateway::{Formation, Ideas, SchedulerSettings, ThreadingModel};

use super::Experiment;
use super::run::{Plan, SAS};
use crate::bench::case::{COMBINATIONS, Size, Suites, Way};

/// One row: a setting with packets of one size.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    pub(super) experiment: Experiment,
    /// The setting, for people.
    pub(super) setting: String,
    pub(super) plan: Plan,
}

/// What figures 9 to 11 have: 4,096 packets in 64 bins, ranges of 256 bytes; and a bound that no chunk
/// reaches, so that nothing is taken from the engine for the time it takes.
fn usual() -> SchedulerSettings {
    let latency = std::time::Duration::from_secs(3600);
    SchedulerSettings { latency, tune: false, ..SchedulerSettings::default() }
}

/// With self-tuning, within a bound that all chunks of the model keep.
fn tuned() -> SchedulerSettings {
    let latency = std::time::Duration::from_millis(50);
    SchedulerSettings { latency, tune: true, ..SchedulerSettings::default() }
}

/// Chunk, bins and range where self-tuning begins: far from good, and as a gateway does.
const BEGINNINGS: [(usize, usize, u32); 2] = [(1024, 4, 1536), (4096, 64, 256)];
/// Packets for either: chunks enough for some trials.
const TUNING_PACKETS: usize = 200 * 1024;

/// The mix of the six combinations in both directions.
fn mix(size: Size, chunks: usize) -> Plan {
    let (suites, settings) = (Suites::Combinations, usual());
    let formation = Formation::SuiteAndLength;
    let threads = ThreadingModel::RunToCompletion;
    Plan { suites, way: None, size, sas: SAS, formation, settings, threads, chunks, under_way: None }
}

/// Figure 9, and each idea left out.
fn ideas() -> Vec<(&'static str, Formation, Ideas)> {
    let all = Ideas::default();
    let unsorted = Ideas { longest_first: false, ..all };
    vec![
        ("no scheduling", Formation::None, unsorted),
        ("by algorithm", Formation::Suite, unsorted),
        ("by algorithm and length", Formation::SuiteAndLength, unsorted),
        ("all", Formation::SuiteAndLength, all),
        ("all, but not by length", Formation::Suite, all),
        ("all, but leftovers last", Formation::SuiteAndLength, Ideas { leftovers_first: false, ..all }),
        ("all, but no waiting bins", Formation::SuiteAndLength, Ideas { waiting_bins: false, ..all }),
    ]
}

/// Figure 10: chunks, and packets of a bin.
const CHUNKS: [usize; 4] = [1024, 2048, 4096, 8192];
const BIN_PACKETS: [usize; 3] = [256, 128, 64];
/// Figure 11.
const RANGES: [u32; 4] = [64, 256, 512, 1536];

/// Figure 14(a): chunks, and packets of a bin.
const LATENCY_CHUNKS: [usize; 3] = [2048, 4096, 8192];
const LATENCY_BIN_PACKETS: usize = 64;

/// What the paper calls a suite in a direction.
fn combination(suite: Suite, way: Way) -> String {
    let cipher = if suite.cipher() == Cipher::Null { None } else { Some("AES-CBC") };
    let integrity = if suite.integrity() == Integrity::None { None } else { Some("HMAC-SHA1") };
    let names: Vec<&str> = cipher.into_iter().chain(integrity).collect();
    format!("{} ({})", names.join("+"), if way == Way::Outbound { "ENC" } else { "DEC" })
}

/// Chunks of figure 13, a quarter of the usual ones, and four times as many: all that is under way finds a
/// place before a thread that sends.
const THREADING_CHUNK: usize = 1024;

/// Figure 13: combinations outbound by each model. A device thread takes no cipher without authentication,
/// which gateways do not have: there is neither AES-CBC alone nor a mix with it.
fn threading(mix: Plan) -> Vec<(String, Plan)> {
    let (chunk, bins) = (THREADING_CHUNK, THREADING_CHUNK / LATENCY_BIN_PACKETS);
    let settings = SchedulerSettings { chunk, bins, ..mix.settings };
    let chunks = mix.settings.chunk / chunk * mix.chunks;
    let suites = COMBINATIONS.iter().filter(|suite| suite.integrity() != Integrity::None);
    let with = |suite: &Suite| {
        let (suites, way) = (Suites::One(*suite), Some(Way::Outbound));
        let name = combination(*suite, Way::Outbound);
        ThreadingModel::ALL.map(|threads| {
            let plan = Plan { suites, way, settings, chunks, threads, ..mix };
            (format!("{name}, {}", threads.name()), plan)
        })
    };
    suites.flat_map(with).collect()
}

/// The rows of an experiment, of packets of one size each; those that are measured by themselves have their
/// own.
pub(super) fn cells(experiment: Experiment, sizes: &[Size], chunks: usize) -> Vec<Cell> {
    let each = |size: Size| -> Vec<(String, Plan)> {
        let mix = mix(size, chunks);
        match experiment {
            Experiment::Placement | Experiment::Bound => Vec::new(),
            Experiment::Ideas => {
                let with = |(name, formation, ideas): (&str, _, _)| {
                    let settings = SchedulerSettings { ideas, ..mix.settings };
                    (name.to_owned(), Plan { formation, settings, ..mix })
                };
                ideas().into_iter().map(with).collect()
            }
            Experiment::Chunks => {
                let pairs = CHUNKS.iter().flat_map(|chunk| BIN_PACKETS.map(|each| (*chunk, chunk / each)));
                let with = |(chunk, bins)| {
                    let settings = SchedulerSettings { chunk, bins, ..mix.settings };
                    (format!("{chunk} packets, {bins} bins"), Plan { settings, ..mix })
                };
                pairs.map(with).collect()
            }
            Experiment::Ranges => {
                let with = |range_bytes| {
                    let settings = SchedulerSettings { range_bytes, ..mix.settings };
                    (format!("ranges of {range_bytes} bytes"), Plan { settings, ..mix })
                };
                RANGES.map(with).into()
            }
            Experiment::Algorithms => {
                let ways = COMBINATIONS
                    .iter()
                    .flat_map(|suite| [Way::Outbound, Way::Inbound].map(|way| (*suite, way)));
                let alone = ways.map(|(suite, way)| {
                    let plan = Plan { suites: Suites::One(suite), way: Some(way), ..mix };
                    (combination(suite, way), plan)
                });
                alone.chain([("Mix".to_owned(), mix)]).collect()
            }
            Experiment::Latency => {
                // One SA keeps its order: the packet that leaves is the one that came first.
                let alone = Plan { suites: Suites::One(Suite::AES128_SHA1), way: Some(Way::Outbound), ..mix };
                let with = |chunk| {
                    let bins = chunk / LATENCY_BIN_PACKETS;
                    let settings = SchedulerSettings { chunk, bins, ..mix.settings };
                    (format!("{chunk} packets, {bins} bins"), Plan { sas: 1, settings, ..alone })
                };
                LATENCY_CHUNKS.map(with).into()
            }
            Experiment::Threading => threading(mix),
            Experiment::Tuning => {
                let with = |(chunk, bins, range_bytes)| {
                    let settings = SchedulerSettings { chunk, bins, range_bytes, ..tuned() };
                    let name = format!("from {chunk} packets, {bins} bins, {range_bytes} bytes");
                    (name, Plan { settings, chunks: TUNING_PACKETS / chunk, ..mix })
                };
                BEGINNINGS.map(with).into()
            }
        }
    };
    let all = sizes.iter().flat_map(|size| each(*size));
    all.map(|(setting, plan)| Cell { experiment, setting, plan }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_have_the_rows_of_their_figures() {
        let rows = |experiment| cells(experiment, &[Size::Random, Size::Imix], 1);
        let counts = Experiment::ALL.map(|experiment| rows(experiment).len() / 2);
        assert_eq!(counts, [7, 12, 4, 7, 3, 6, 2, 0, 0]);
        let names: Vec<String> = rows(Experiment::Algorithms).into_iter().map(|cell| cell.setting).collect();
        assert_eq!(names[..3], ["AES-CBC+HMAC-SHA1 (ENC)", "AES-CBC+HMAC-SHA1 (DEC)", "AES-CBC (ENC)"]);
        assert_eq!(names[6], "Mix");
        let bins = |chunk| -> Vec<usize> {
            let of_chunk = rows(Experiment::Chunks).into_iter().map(|cell| cell.plan.settings);
            of_chunk
                .filter(|settings| settings.chunk == chunk)
                .take(3)
                .map(|settings| settings.bins)
                .collect()
        };
        assert_eq!((bins(1024), bins(8192)), (vec![4, 8, 16], vec![32, 64, 128]), "as in figure 10");
    }
}
