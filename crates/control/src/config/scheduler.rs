//! Reads `[scheduler]`, which gathers packets for engines that want thousands of them.

use super::threading::{self, ThreadingDraft};
use super::value;
use super::walk::{Located, Problem, Section, Walker};
use std::time::Duration;
use testudo_gateway::{PlacementMode, SchedulerSettings, SettingsError};

/// The section, or what holds without it.
pub(super) fn read_scheduler(
    root: &mut Section<'_>,
    walker: &mut Walker<'_>,
) -> (SchedulerSettings, ThreadingDraft) {
    let Some(mut section) = root.table(walker, "scheduler") else { return Default::default() };
    let threading = threading::read(&mut section, walker);
    (read_settings(section, walker), threading)
}

fn read_settings(mut section: Section<'_>, walker: &mut Walker<'_>) -> SchedulerSettings {
    let mut settings = SchedulerSettings::default();
    let chunk = section.located(walker, "chunk", value::number_u32(0, u32::MAX));
    let bins = section.located(walker, "bins", value::number_u32(0, u32::MAX));
    let range = section.located(walker, "range_bytes", value::number_u32(0, u32::MAX));
    let latency = section.located(walker, "latency_us", value::number(0, u64::MAX));
    let choice = value::choice(&[("first", PlacementMode::First), ("live", PlacementMode::Live)]);
    settings.placement = section.or_default(walker, "placement", PlacementMode::First, choice);
    settings.tune = section.or_default(walker, "tune", settings.tune, value::boolean);
    section.finish(walker);
    let count = |number: &Located<u32>| usize::try_from(number.value).unwrap_or(usize::MAX);
    settings.chunk = chunk.as_ref().map_or(settings.chunk, count);
    settings.bins = bins.as_ref().map_or(settings.bins, count);
    settings.range_bytes = range.as_ref().map_or(settings.range_bytes, |range| range.value);
    settings.latency =
        latency.as_ref().map_or(settings.latency, |latency| Duration::from_micros(latency.value));
    let Err(error) = settings.check() else { return settings };
    let place =
        |number: Option<&Located<u32>>| number.map(|number| (number.span.clone(), number.key.clone()));
    let place = match error {
        SettingsError::Chunk(_) => place(chunk.as_ref()),
        SettingsError::Bins(_) => place(bins.as_ref()),
        SettingsError::Uneven { .. } => place(bins.as_ref().or(chunk.as_ref())),
        SettingsError::Range(_) => place(range.as_ref()),
        SettingsError::Latency => latency.map(|latency| (latency.span, latency.key)),
    };
    // What is wrong was written: the settings are right without it.
    if let Some((span, key)) = place {
        walker.report(&span, key, Problem::expected(expected(error)).help(HELP));
    }
    SchedulerSettings::default()
}

const HELP: &str =
    "`chunk` packets are cut into `bins` of equal size; 4096, 64 and 256 are good to begin with";

fn expected(error: SettingsError) -> String {
    match error {
        SettingsError::Chunk(_) => "a chunk of 1024 to 8192 packets".to_owned(),
        SettingsError::Bins(_) => "4 to 128 bins".to_owned(),
        SettingsError::Uneven { chunk, .. } => format!("a number of bins that divides {chunk} packets"),
        SettingsError::Range(_) => "64, 256, 512 or 1536 bytes".to_owned(),
        SettingsError::Latency => "50 to 50000 microseconds".to_owned(),
    }
}
