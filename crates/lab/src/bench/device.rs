//! On which device an engine's figures were measured, and what they are worth.

use std::str::FromStr;

/// The engine whose device may be a processor.
pub(crate) const GPU: &str = "gpu";
/// The engine whose device may compute on the worker's own processor, and what it says of itself then.
pub(crate) const CRYPTODEV: &str = "cryptodev";
const IN_SOFTWARE: &str = ", in software";
const SOFTWARE_NOTE: &str = "a driver in software";
/// What is said of figures that were measured with OpenCL on the processor.
pub(crate) const POCL_NOTE: &str = "PoCL: correctness only";
/// PoCL as its platform is called, and what the engine says of a processor.
const PROCESSORS: [&str; 2] = ["portable computing language", "a processor"];

/// What is to be said of an engine's rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Device {
    /// What it is; `None` of an engine without a device.
    pub(crate) name: Option<String>,
    /// Why its figures are no speed.
    pub(crate) note: Option<&'static str>,
}

impl Device {
    /// Of an engine that says so of itself.
    pub(crate) fn of(engine: &str, description: &str) -> Self {
        if engine != GPU {
            return Self::default();
        }
        let lower = description.to_lowercase();
        let is_processor = PROCESSORS.iter().any(|word| lower.contains(word));
        Self { name: Some(description.to_owned()), note: is_processor.then_some(POCL_NOTE) }
    }

    /// Why an engine takes nothing off the processor of the worker that asks it, of those that may.
    pub(crate) fn why_on_the_processor(engine: &str, description: &str) -> Option<&'static str> {
        match engine {
            CRYPTODEV if description.ends_with(IN_SOFTWARE) => Some(SOFTWARE_NOTE),
            _ => Self::of(engine, description).note,
        }
    }

    /// The engine with its device, for people.
    pub(crate) fn words(&self, engine: &str) -> String {
        match (&self.name, self.note) {
            (None, _) => engine.to_owned(),
            (Some(name), None) => format!("{engine} ({name})"),
            (Some(name), Some(note)) => format!("{engine} ({note}: {name})"),
        }
    }
}

/// How many GPUs are one engine, of those that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuCount {
    /// So many.
    Number(u16),
    /// As many as there are.
    All,
}

/// The most that may be one engine.
const MOST_GPUS: u16 = 16;

impl Default for GpuCount {
    fn default() -> Self {
        Self::Number(1)
    }
}

impl FromStr for GpuCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let number = text.parse::<u16>().ok().filter(|number| (1..=MOST_GPUS).contains(number));
        number.map(Self::Number).ok_or_else(|| format!("expected 1 to {MOST_GPUS}, or all"))
    }
}

/// A part of a GPU's name, as an option of a command. No text at all is a part of each name, a processor's
/// too.
pub(crate) fn part_of_a_name(text: &str) -> Result<String, String> {
    match text.trim().is_empty() {
        true => Err("expected a part of a GPU's name or of its platform's".to_owned()),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{BenchGpuOptions, BenchOptions, BenchSchedulerOptions};
    use crate::placements::PlacementsOptions;

    #[test]
    fn gpus_are_counted_or_all() {
        assert_eq!("2".parse(), Ok(GpuCount::Number(2)));
        assert_eq!("all".parse(), Ok(GpuCount::All));
        for wrong in ["0", "17", "-1", "", "both"] {
            assert_eq!(wrong.parse::<GpuCount>(), Err("expected 1 to 16, or all".to_owned()), "{wrong}");
        }
    }

    /// Why a command with these options does not take this name of a GPU, if it does not.
    fn refusal<T: clap::Args>(gpu: &str) -> Option<String> {
        let command = T::augment_args(clap::Command::new("a-command"));
        command.try_get_matches_from(["a-command", "--gpu", gpu]).err().map(|error| error.to_string())
    }

    #[test]
    fn a_gpu_without_a_name_is_refused_by_each_command() {
        let commands: [fn(&str) -> Option<String>; 4] = [
            refusal::<BenchOptions>,
            refusal::<BenchGpuOptions>,
            refusal::<BenchSchedulerOptions>,
            refusal::<PlacementsOptions>,
        ];
        for refusal in commands {
            for empty in ["", " "] {
                let error = refusal(empty).unwrap();
                assert!(error.contains("expected a part of a GPU's name"), "{error}");
            }
            assert_eq!(refusal("NVIDIA"), None);
        }
    }

    #[test]
    fn a_cryptodev_in_software_takes_nothing_off_the_worker_and_its_figures_are_a_speed() {
        let why = Device::why_on_the_processor;
        let said = "DPDK 22.11.5, crypto_aesni_mb, 2 queue pairs";
        assert_eq!(why(CRYPTODEV, &format!("{said}, in software")), Some(SOFTWARE_NOTE));
        assert_eq!(why(CRYPTODEV, said), None);
        assert_eq!(why("late", &format!("{said}, in software")), None);
        assert_eq!(why(GPU, "Portable Computing Language, a processor"), Some(POCL_NOTE));
        assert_eq!(Device::of(CRYPTODEV, &format!("{said}, in software")), Device::default());
    }

    #[test]
    fn a_gpu_is_named_and_a_processor_says_what_its_figures_are_worth() {
        assert_eq!(Device::of("vaes", "Portable Computing Language").words("vaes"), "vaes");
        let gpu = Device::of("gpu", "NVIDIA CUDA, H100, 128 lanes");
        assert_eq!((gpu.words("gpu"), gpu.note), ("gpu (NVIDIA CUDA, H100, 128 lanes)".to_owned(), None));
        for said in ["Portable Computing Language, cpu-haswell, 64 lanes", "AMD, EPYC, a processor: slow"] {
            let device = Device::of("gpu", said);
            assert_eq!(device.note, Some(POCL_NOTE));
            assert_eq!(device.words("gpu"), format!("gpu (PoCL: correctness only: {said})"));
        }
    }
}
