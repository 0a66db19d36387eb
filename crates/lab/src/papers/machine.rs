//! The machine that figures are of, and how much of it other programs had.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use testudo_gateway::Candidate;

use crate::bench::{GpuCount, GpuDevice, Gpus};
use crate::meters::Meters;

/// Longest text of a file of the kernel's that is read, in bytes.
const MOST_BYTES: usize = 1 << 20;
/// Flags of the processor that engines depend on.
const FEATURES: [&str; 7] = ["aes", "pclmulqdq", "sha_ni", "avx2", "avx512f", "vaes", "vpclmulqdq"];

/// What figures depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    /// The name that the processor gives itself.
    pub(super) processor: String,
    /// Logical processors that this program may use.
    pub(super) processors: usize,
    /// Of [`FEATURES`], those that it has.
    pub(super) features: Vec<String>,
    pub(super) memory_gib: u64,
    pub(super) kernel: String,
    /// Engines that start here.
    pub(super) engines: Vec<String>,
    /// What each GPU says of itself: without one a model predicts.
    #[serde(default)]
    pub(super) gpus: Vec<String>,
    /// Meters of energy that can be read: without one energy is not known.
    #[serde(default)]
    pub(super) meters: Vec<String>,
    /// Whether the program is the superuser's, to whom the kernel refuses no step of tuning.
    #[serde(default)]
    pub(super) is_root: bool,
    /// A number that two machines of one kind differ in; empty where the system has none.
    #[serde(default)]
    pub(super) id: String,
    /// How the first processor's frequency is governed, and how many huge pages are set aside: what
    /// `testudo tune apply` changes of the machine that lasts. The governor is empty where there is none.
    #[serde(default)]
    pub(super) governor: String,
    #[serde(default)]
    pub(super) huge_pages: u64,
}

fn read(path: &str) -> String {
    let mut text = fs::read_to_string(path).unwrap_or_default();
    if text.len() > MOST_BYTES {
        text.clear();
    }
    text
}

/// The value of the first line `NAME : VALUE`.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let of = |line: &'a str| line.split_once(':').filter(|(key, _)| key.trim() == name);
    text.lines().find_map(of).map(|(_, value)| value.trim())
}

/// A number of the installation's (machine-id(5), which is not to be shown itself) and the board's, which the
/// superuser alone may read, whose results are of root in any case.
fn id(installation: &str, board: &str) -> String {
    use std::hash::Hasher;
    let texts = [installation.trim(), board.trim()];
    if texts.concat().is_empty() {
        return String::new();
    }
    let mut hasher = std::hash::DefaultHasher::new();
    texts.iter().for_each(|text| hasher.write(format!("testudo lab papers, {text}\n").as_bytes()));
    format!("{:016x}", hasher.finish())
}

/// What each GPU says of itself, or why it cannot be used.
fn descriptions(gpus: &Gpus) -> Vec<String> {
    let of = |gpu: &GpuDevice| match (gpu.engine)() {
        Ok(engine) => engine.description(),
        Err(reason) => format!("not usable: {reason}"),
    };
    (gpus.find)(None, GpuCount::default()).unwrap_or_default().iter().map(of).collect()
}

/// The names of those that can be read now.
fn readable(meters: Meters) -> Vec<String> {
    let named = meters.present.into_iter().filter_map(|mut meter| {
        let can_be_read = meter.sample().is_ok();
        can_be_read.then(|| meter.name().to_owned())
    });
    named.collect()
}

impl Machine {
    /// This one, with these engines beside the portable one, GPUs and meters.
    pub(super) fn here(candidates: &[Candidate], gpus: &Gpus, meters: Meters) -> Self {
        let processor = read("/proc/cpuinfo");
        let flags: Vec<&str> = value(&processor, "flags").unwrap_or_default().split_whitespace().collect();
        let memory = read("/proc/meminfo");
        let kib = value(&memory, "MemTotal").and_then(|size| size.split_whitespace().next()?.parse().ok());
        let opened = candidates.iter().filter(|candidate| (candidate.open)().is_ok());
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
        Self {
            processor: value(&processor, "model name").unwrap_or(std::env::consts::ARCH).to_owned(),
            processors,
            features: FEATURES.iter().filter(|f| flags.contains(f)).map(|&f| f.to_owned()).collect(),
            memory_gib: (kib.unwrap_or(0_u64) + (1 << 19)) >> 20,
            kernel: format!("{} {kernel}", std::env::consts::OS).trim_end().to_owned(),
            engines: opened.map(|engine| engine.name).chain(["portable"]).map(str::to_owned).collect(),
            gpus: descriptions(gpus),
            meters: readable(meters),
            is_root: rustix::process::geteuid().is_root(),
            id: id(&read("/etc/machine-id"), &read("/sys/class/dmi/id/product_uuid")),
            governor: read("/sys/devices/system/cpu/cpufreq/policy0/scaling_governor").trim().to_owned(),
            huge_pages: value(&memory, "HugePages_Total").and_then(|n| n.parse().ok()).unwrap_or(0),
        }
    }

    /// For people, a line each: what, and which.
    pub(super) fn lines(&self) -> [(&'static str, String); 8] {
        let or_none = |words: &[String]| if words.is_empty() { "none".to_owned() } else { words.join(", ") };
        [
            ("Processor", format!("{}, {} logical processors", self.processor, self.processors)),
            ("Instructions of use", or_none(&self.features)),
            ("Memory", format!("{} GiB", self.memory_gib)),
            ("System", self.kernel.clone()),
            ("Engines", or_none(&self.engines)),
            ("GPUs", or_none(&self.gpus)),
            ("Meters of energy", or_none(&self.meters)),
            ("User", if self.is_root { "root" } else { "not root" }.to_owned()),
        ]
    }
}

/// The program that measures: its version, how it was built, and a number that differs between builds.
pub(super) fn program() -> String {
    use std::hash::Hasher;
    let own = std::env::current_exe().and_then(fs::read);
    let build = own.map(|bytes| {
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write(&bytes);
        hasher.finish()
    });
    let kind =
        if cfg!(debug_assertions) { ", built with checks: rates are too low, times too high" } else { "" };
    format!("testudo {}, build {:016x}{kind}", env!("CARGO_PKG_VERSION"), build.unwrap_or(0))
}

/// The date and time now, in UTC: `2026-01-31 23:59 UTC`.
pub(super) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs())
}

/// Of seconds since 1970. Days are counted in eras of 400 years that begin in March (Hinnant,
/// "chrono-compatible low-level date algorithms").
fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
}

/// Time of all processors since the start of the system, in ticks of the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    all: u64,
    busy: u64,
    /// The kernel's work for devices and packets, a part of `busy`.
    interrupts: u64,
    /// Of this process, and of those that it started and that have ended.
    own: u64,
}

impl Usage {
    /// Until now; `None` where the system does not say.
    pub(super) fn now() -> Option<Self> {
        Self::of(&read("/proc/stat"), &read("/proc/self/stat"))
    }

    /// user, nice, system, idle, iowait, irq, softirq, steal in the first line; utime, stime, cutime and
    /// cstime behind the name in parentheses (proc(5)).
    fn of(stat: &str, own: &str) -> Option<Self> {
        let first = stat.lines().next()?.strip_prefix("cpu ")?;
        let times: Vec<u64> = first.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
        let all = times.iter().sum();
        let idle: u64 = times.get(3..5)?.iter().sum();
        let interrupts = times.get(5..7)?.iter().sum();
        let fields: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
        let spent = |index: usize| fields.get(index).and_then(|word| word.parse::<u64>().ok());
        let own = [11, 12, 13, 14].into_iter().map(spent).sum::<Option<u64>>()?;
        Some(Self { all, busy: all - idle, interrupts, own })
    }

    /// The share of all processors' time that others had until `later`, 0 to 1. Where this process's packets
    /// crossed the kernel, the time of interrupts was its own: the kernel counts it for no process.
    pub(super) fn share_of_others(&self, later: &Self, crossed_the_kernel: bool) -> Option<f64> {
        let all = later.all.checked_sub(self.all).filter(|all| *all > 0)?;
        let (busy, mut own) = (later.busy.checked_sub(self.busy)?, later.own.checked_sub(self.own)?);
        if crossed_the_kernel {
            own += later.interrupts.checked_sub(self.interrupts)?;
        }
        Some((busy.saturating_sub(own) as f64 / all as f64).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use testudo_crypto::{Engine, PortableEngine};

    use super::*;
    use crate::harness::{EnergySample, Meter, NotKnown};

    /// A meter that may be read, or not.
    struct Counter(Option<u64>);

    impl Meter for Counter {
        fn name(&self) -> &str {
            if self.0.is_some() { "one" } else { "none" }
        }

        fn ranges(&self) -> Vec<Option<u64>> {
            vec![None]
        }

        fn sample(&mut self) -> Result<EnergySample, NotKnown> {
            let energy = self.0.ok_or_else(|| NotKnown("for root alone".to_owned()))?;
            Ok(EnergySample { at: std::time::Duration::ZERO, microjoules: vec![energy] })
        }
    }

    /// A GPU that does all that the portable engine does, and one that cannot be opened.
    fn two_gpus() -> Gpus {
        fn device(is_whole: bool) -> GpuDevice {
            GpuDevice {
                engine: Box::new(move || match is_whole {
                    true => Ok(Box::new(PortableEngine::new())),
                    false => Err("it is broken".to_owned()),
                }),
                timed: Some(Box::new(|| Err("it is not timed".to_owned()))),
            }
        }
        Gpus {
            find: Box::new(|_, _| Ok(vec![device(true), device(false)])),
            idle: Box::new(|| Ok(Box::new(PortableEngine::new()))),
            steps: |_, _, _, _| None,
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59 UTC"),
            (1_735_689_600, "2025-01-01 00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn what_others_had_is_told_from_what_this_process_had() {
        let own = |ticks: u64| format!("7 (a) b) R 1 1 1 0 -1 0 0 0 0 0 {ticks} 10 {} 0 20 0", ticks / 7);
        let before = Usage::of("cpu  100 0 0 1000 0 0 0 0 0 0\ncpu0 1", &own(50)).unwrap();
        let after = Usage::of("cpu  160 0 0 1100 20 0 20 0 0 0\n", &own(85)).unwrap();
        // 200 ticks passed; 80 of them were busy, 40 of these with this process and what it had started, 20
        // with packets.
        assert_eq!(before.share_of_others(&after, false), Some(0.2));
        assert_eq!(before.share_of_others(&after, true), Some(0.1));
        assert_eq!(before.share_of_others(&before, false), None);
        assert_eq!(Usage::of("", ""), None);
        assert_eq!(Usage::of("cpu  1 2\n", &own(1)), None);
        assert!(Usage::now().is_some(), "proc(5) is here");
    }

    #[test]
    fn two_machines_of_one_kind_have_numbers_of_their_own() {
        let [one, two] = ["3f0a\n", "77b1\n"];
        assert_eq!(id(one, "a"), id("3f0a", "a\n"), "the same at each start");
        let all = [id(one, ""), id(two, ""), id(one, "a"), id(one, "b"), id("", "a"), id("", "")];
        assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), all.len(), "{all:?}");
        assert!(all[5].is_empty() && !all[0].contains("3f0a"), "{all:?}");
    }

    #[test]
    fn this_machine_has_a_processor_the_portable_engine_and_what_can_be_used_of_gpus_and_meters() {
        let meters =
            Meters { present: vec![Box::new(Counter(Some(7))), Box::new(Counter(None))], absent: Vec::new() };
        let machine = Machine::here(&[], &two_gpus(), meters);
        assert!(machine.processors > 0 && !machine.processor.is_empty());
        assert_eq!(machine.engines, ["portable"]);
        let gpus = [PortableEngine::new().description(), "not usable: it is broken".to_owned()];
        assert_eq!(
            (machine.gpus.as_slice(), machine.meters.as_slice()),
            (gpus.as_slice(), ["one".to_owned()].as_slice())
        );
        let lines = machine.lines();
        assert!(lines.contains(&("Meters of energy", "one".to_owned())), "{lines:?}");
        assert_eq!(program(), program());
    }
}
