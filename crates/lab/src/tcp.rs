//! `testudo lab tcp`: the harness of paper 001. A TCP stream over message sizes, plain and protected, with
//! the processors' time by state.
//!
//! ```text
//!   for each link, MTU and stage of tuning
//!     in turns until every row's confidence interval is narrow
//!       plain IP, then each protection:   build sites, cables, gateways ─► a run for each size ─► take down
//! ```
//!
//! The network is that of the demonstration: four hosts in namespaces of their own, and processes of the
//! program at the gateways. In tunnel mode streams go from site to site, and plain IP is forwarded by two
//! routers; in transport mode from gateway to gateway, and plain IP goes over the bare link.
//!
//! Both ends are on one machine. Each is bound to half of its processors, so that their states are told
//! apart, unless there is one or `--no-pin` is given; rows say which it was. A packet's work in the kernel is
//! done where it was sent, on a virtual cable, so that pinned senders have much of the receiver's softirq,
//! too.
//!
//! Deliberately missing: two machines, and the paper's systems and kernel; its numbers stand beside those of
//! the run.

mod cpu;
mod ends;
mod options;
mod printed;
mod report;
#[cfg(test)]
pub(crate) mod sample;
mod states;
mod subject;
mod tuning;
mod watch;

pub(crate) use cpu::STATES;
pub use options::{Link, Mode, Protocols, Repetitions, TcpOptions};
pub(crate) use states::parts as states_of_processors;
pub use subject::Protocol;
pub use tuning::Tuning;

use std::path::PathBuf;
use std::time::Duration;

use crate::bench::{BenchError, open_picture, write_picture};
use crate::demo::{program, require_programs};
use crate::error::LabError;
use crate::harness::{Interval, Round, in_turns};
use crate::namespaces::{Entered, NamespaceError, require_tun};
use crate::programs::find_program;
use crate::rfc2544::is_silent;
use crate::workspace::{Workspace, enter_as_root_with_workspace, enter_with_workspace};
use cpu::Shares;
use ends::Ends;
use report::{Gain, Measured, Report, Row};
use subject::{Bed, Sample, Setting, Subject};
use tuning::{NOT_OURS, OF_THE_MACHINE, Stage};
use watch::Watch;

/// Measures what `options` say: tables, or the array of `--json`. It draws the picture, too.
///
/// It re-executes the program inside private namespaces.
pub(crate) fn report(options: &TcpOptions) -> Result<String, BenchError> {
    let subjects = options.subjects()?;
    let ends = Ends::choose(options)?;
    // Fail before the measurement, not after it, if the picture cannot be written.
    let picture = options.svg.as_deref().map(open_picture).transpose()?;
    require_programs()?;
    if options.links().iter().any(|link| *link != Link::Unlimited) && find_program("tc").is_none() {
        return Err(LabError::MissingProgram { program: "tc", package: "iproute2" }.into());
    }
    let (inside, workspace) = enter(options)?;
    require_tun().map_err(LabError::from)?;
    let bed = Bed { inside, options, program: program(options.testudo.as_deref())?, ends };
    let rows = Run::new(&bed, &subjects, &workspace).all()?;
    let report = Report { options, ends: &bed.ends, rows };
    if let Some((path, file)) = picture {
        write_picture(&report.svg(), path, file)?;
    }
    Ok(if options.json { format!("{:#}\n", report.json()) } else { report.table() })
}

/// Root tunes without a user namespace, in which the kernel refuses what a queue or a poll is set to.
fn enter(options: &TcpOptions) -> Result<(Entered, Workspace), LabError> {
    if options.tuning != Tuning::None {
        match enter_as_root_with_workspace("tcp", false) {
            Err(LabError::Namespace(NamespaceError::NotRoot(_))) => {}
            entered => return entered,
        }
    }
    enter_with_workspace("tcp", false)
}

/// A run in progress.
struct Run<'a> {
    bed: &'a Bed<'a>,
    subjects: &'a [Subject],
    sizes: Vec<u32>,
    workspace: &'a Workspace,
    watch: Watch,
    /// Networks that were built so far: each has a folder.
    built: u32,
}

impl<'a> Run<'a> {
    fn new(bed: &'a Bed<'a>, subjects: &'a [Subject], workspace: &'a Workspace) -> Self {
        let options = bed.options;
        let sizes = options.message_bytes();
        let settings = options.links().len() * options.mtus().len() * options.tuning.stages().len();
        let rows = settings * subjects.len() * sizes.len();
        let watch = Watch::new(rows, options.rule(), options.duration(), is_silent(options.json));
        Self { bed, subjects, sizes, workspace, watch, built: 0 }
    }

    /// The rows of all settings.
    fn all(&mut self) -> Result<Vec<Row>, LabError> {
        let options = self.bed.options;
        let mut rows = Vec::new();
        for link in options.links() {
            for untuned_mtu in options.mtus() {
                // Rows of the last stage that was measured, which the next is compared with.
                let mut before: Vec<Row> = Vec::new();
                for stage in options.tuning.stages() {
                    let setting = Setting { link, untuned_mtu, stage };
                    match self.changes_nothing(&setting)? {
                        Some(why) => {
                            self.watch.settled(self.subjects.len() * self.sizes.len());
                            rows.push(Row::left_out(setting, why));
                        }
                        None => {
                            let measured = self.setting(&setting, &before)?;
                            rows.extend(measured.iter().cloned());
                            before = measured;
                        }
                    }
                }
                if options.tuning != Tuning::None {
                    let left_out = |name| {
                        let stage = Stage { name, steps: Vec::new() };
                        Row::left_out(Setting { link, untuned_mtu, stage }, NOT_OURS.to_owned())
                    };
                    rows.extend(OF_THE_MACHINE.map(left_out));
                }
            }
        }
        Ok(rows)
    }

    fn folder(&mut self) -> PathBuf {
        self.built += 1;
        self.workspace.join(self.built.to_string())
    }

    /// Why a stage need not be measured: its last step changes nothing.
    fn changes_nothing(&mut self, setting: &Setting) -> Result<Option<String>, LabError> {
        if self.bed.options.tuning != Tuning::Each || setting.stage.steps.is_empty() {
            return Ok(None);
        }
        let folder = self.folder();
        let (network, done) = self.bed.build(setting, &folder)?;
        drop(network);
        Ok(setting.stage.last_changed(&done).err())
    }

    /// The rows of one setting, in the order of subjects and sizes.
    fn setting(&mut self, setting: &Setting, before: &[Row]) -> Result<Vec<Row>, LabError> {
        let (rule, groups) = (self.bed.options.rule(), vec![self.sizes.len(); self.subjects.len()]);
        let samples =
            in_turns(&rule, &groups, |sample: &Sample| sample.mbit_s, |round| self.round(setting, round))?;
        self.watch.settled(self.subjects.len() * self.sizes.len());
        let mut rows: Vec<Row> = Vec::new();
        for (subject, of_subject) in self.subjects.iter().zip(&samples) {
            for (&message_bytes, samples) in self.sizes.iter().zip(of_subject) {
                let Some(mut measured) = self.measured(samples) else { continue };
                let same_size = |row: &&Row| row.message_bytes == message_bytes;
                let plain = rows.iter().filter(same_size).find(|row| row.is_plain_of(subject));
                measured.share_of_plain =
                    plain.and_then(|row| row.mean()).map(|mean| measured.interval.mean / mean);
                let earlier =
                    before.iter().filter(same_size).find(|row| row.subject.as_ref() == Some(subject));
                measured.gain = earlier.and_then(|row| Gain::over(&measured.interval, row));
                rows.push(Row {
                    setting: setting.clone(),
                    subject: Some(subject.clone()),
                    message_bytes,
                    measured: Some(measured),
                    left_out: None,
                });
            }
        }
        Ok(rows)
    }

    fn round(&mut self, setting: &Setting, round: &Round) -> Result<Vec<Sample>, LabError> {
        let Some(subject) = self.subjects.get(round.group) else { return Ok(Vec::new()) };
        let sizes: Vec<u32> =
            round.members.iter().filter_map(|&member| self.sizes.get(member)).copied().collect();
        let folder = self.folder();
        let (mut current, name, turn) = (None, subject.name(), round.turn);
        let watch = &mut self.watch;
        let mut observe = |size: u32, elapsed: Duration, bytes: u64| {
            if current != Some(size) {
                if current.is_some() {
                    watch.done(turn);
                }
                current = Some(size);
                watch.stage(&format!("{name}, messages of {size} B, run {}", turn + 1));
            }
            watch.at(&format!("{:.0} Mbit/s", crate::traffic::gbit_s(bytes, elapsed) * 1e3));
        };
        let samples = self.bed.measure(setting, subject, &sizes, &folder, &mut observe)?;
        if current.is_some() {
            watch.done(turn);
        }
        Ok(samples)
    }

    /// What the runs of a row come to.
    fn measured(&self, samples: &[Sample]) -> Option<Measured> {
        let rates: Vec<f64> = samples.iter().map(|sample| sample.mbit_s).collect();
        let interval = Interval::of(&rates)?;
        let end = |end: usize| {
            let shares: Vec<Shares> =
                samples.iter().filter_map(|sample| sample.ends.get(end)).copied().collect();
            Shares::together(&shares)
        };
        Some(Measured {
            interval,
            lowest: rates.iter().copied().fold(f64::INFINITY, f64::min),
            highest: rates.iter().copied().fold(0.0, f64::max),
            unconverged: self.bed.options.rule().judge(&interval),
            received_bytes: samples.iter().map(|sample| sample.received_bytes).sum(),
            link_bytes: samples.iter().map(|sample| sample.link_bytes).sum(),
            ends: [end(0), end(1)],
            engine: samples.last().and_then(|sample| sample.engine.clone()),
            untuned: samples.last().and_then(|sample| sample.untuned.clone()),
            share_of_plain: None,
            gain: None,
        })
    }
}
