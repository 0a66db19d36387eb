//! The pictures of figures 3, 4 and 5 of paper 004.

use super::options::PlacementsOptions;
use super::{Found, Measured, Outcome};
use crate::bench::chart::{Extent, Line, Panel, STRIPS};
use crate::generator::Sizes;
use crate::harness::Block;
use crate::statistics::Spread;

/// Panels of capacities and of turnaround times for each suite, and of forwarding.
pub(super) fn panels(options: &PlacementsOptions, found: &Found) -> Vec<Panel> {
    let mut suites: Vec<String> = Vec::new();
    for outcome in &found.outcomes {
        let name = outcome.setup.suite_name();
        if !suites.contains(&name) {
            suites.push(name);
        }
    }
    let of_suite = |name: &String| {
        let of_it = || found.outcomes.iter().filter(move |outcome| outcome.setup.suite_name() == *name);
        let rates = rates(of_it());
        let times = times(of_it());
        let subtitle = format!("trials of {} s", options.plan().trial.as_secs_f64());
        let panel = |title: String, up: &str, lines| Panel {
            title,
            subtitle: subtitle.clone(),
            across: "frame size (bytes, with check sequence)".to_owned(),
            up: up.to_owned(),
            extent: Extent::Zero,
            lines,
        };
        [
            panel(format!("{name}: capacity by placement"), "what comes through (Mbit/s)", rates),
            panel(format!("{name}: turnaround by placement"), "turnaround of a packet (µs)", times),
        ]
    };
    suites.iter().flat_map(of_suite).collect()
}

/// A line for each placement and number of I/O threads.
fn rates<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Vec<Line> {
    let mut lines = Vec::new();
    for outcome in outcomes {
        if let Some(rate) = outcome.capacity() {
            add(&mut lines, &name(outcome), 0, outcome.sizes, rate);
        }
    }
    lines
}

/// Two lines for each: all blocks, and the cryptography.
fn times<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> Vec<Line> {
    let mut lines = Vec::new();
    for outcome in outcomes {
        let Ok(Measured { row, .. }) = &outcome.result else { continue };
        let all: f64 = row.blocks.iter().map(|time| time.turnaround_us).sum();
        let cryptography = row.blocks[Block::Cryptography as usize].turnaround_us;
        let name = name(outcome);
        add(&mut lines, &format!("{name}: all"), 0, outcome.sizes, all);
        add(&mut lines, &format!("{name}: cryptography"), 1, outcome.sizes, cryptography);
    }
    lines
}

fn name(outcome: &Outcome) -> String {
    match outcome.setup.threads.io.len() {
        0 => outcome.setup.placement.to_string(),
        count => format!("{}, I/O threads {count}", outcome.setup.placement),
    }
}

/// Adds a point to the line of this name; lines of one colour differ in their dashes.
fn add(lines: &mut Vec<Line>, name: &str, dash: usize, sizes: Sizes, value: f64) {
    let index = lines.iter().position(|line| line.name == name).unwrap_or_else(|| {
        let colour = lines.len() / if name.contains(": ") { 2 } else { 1 };
        let mixes = [None; STRIPS.len()];
        lines.push(Line { name: name.to_owned(), colour, dash, points: Vec::new(), mixes });
        lines.len() - 1
    });
    let value = Spread::of([value]);
    match sizes {
        Sizes::Bytes(bytes) => {
            lines[index].points.push((bytes, value));
            lines[index].points.sort_by_key(|(bytes, _)| *bytes);
        }
        Sizes::Imix | Sizes::SimpleImix => lines[index].mixes[0] = Some(value),
        Sizes::Random => lines[index].mixes[1] = Some(value),
    }
}
