//! Paper 000: what is left for the CPU if a NIC does the cryptography.
//!
//! The NIC is simulated, and costs nothing. What is measured is the processor's part beside it; the
//! throughput of a NIC that keeps up with that is predicted.

use serde_json::Value;

use super::item::{How, Item, Method, Paper, Printed, printed};
use super::reading::{Finding, Length, Lines, Reading, Wrong, count, number, text};
use crate::bench::chart::Extent;
use crate::statistics::Spread;

const PAPER: Paper = Paper::Moongen;
const CONDITIONS: &str = "One core, AES-128-GCM, ESP in tunnel mode, one SA, in memory. No NIC with cryptography was measured: a simulated one takes packets for sealed as they are, \
     and what it does to find its SA counts as the CPU's. So what is measured is the processor's part beside it; the throughput is predicted of a NIC and a link that keep up with the processor. The paper's Linux 3.16 is not run.";

/// Throughput as the text of section V-B has it.
const THROUGHPUT: &[Printed] = &[
    printed("cryptography in the NIC, 64 bytes, outbound", "10", "Gbit/s (line rate)"),
    printed("cryptography in the NIC, 1518 bytes, outbound", "10", "Gbit/s (line rate)"),
    printed("Linux 3.16 with AES-NI, shortest packets", "0.94", "Gbit/s"),
    printed("Linux 3.16 with AES-NI, at most", "4.32", "Gbit/s"),
    printed("Linux 3.16, shortest packets", "0.48", "Gbit/s"),
    printed("Linux 3.16, at most", "1.33", "Gbit/s"),
];
const CYCLES: &[Printed] = &[
    printed("the processor's part beside a simulated NIC, 256 bytes, outbound", "about 3", "cycles/byte"),
    printed("the processor's part beside a simulated NIC, 1518 bytes, outbound", "about 3", "cycles/byte"),
    printed("Linux 3.16, times the cycles of the NIC's path", "10 to 20", "times"),
    printed("6WIND Turbo IPsec (from published values)", "about 3.4", "cycles/byte"),
];
/// MoonGen's line of the table is of the shortest packets: the text has its 20 % of these.
const ENERGY: &[Printed] = &[
    printed("throughput at 1 Gbit/s, frames of 64 bytes", "1.00", "Gbit/s (MoonGen)"),
    printed("CPU load at 1 Gbit/s, frames of 64 bytes", "20", "% (MoonGen, at 3.3 GHz)"),
    printed("power at 1 Gbit/s, frames of 64 bytes", "100", "W (MoonGen)"),
    printed("energy at 1 Gbit/s, frames of 64 bytes", "0.100", "mJ/byte (MoonGen)"),
    printed("CPU load at 1 Gbit/s, frames of 256 bytes", "about 10", "% (MoonGen)"),
    printed("cycles at 1 Gbit/s, frames of 256 bytes", "about 3", "cycles/byte (MoonGen)"),
    printed("Linux 3.16 (AES-NI), power drain", "108", "W"),
    printed("Linux 3.16 (AES-NI), throughput", "1.00", "Gbit/s"),
    printed("Linux 3.16 (AES-NI), CPU load at 3.3 GHz", "100", "%"),
    printed("Linux 3.16 (AES-NI), energy", "0.108", "mJ/byte"),
    printed("Linux 3.16, power drain", "107", "W"),
    printed("Linux 3.16, throughput", "0.48", "Gbit/s"),
    printed("Linux 3.16, CPU load at 3.3 GHz", "100", "%"),
    printed("Linux 3.16, energy", "0.208", "mJ/byte"),
];

const AT_A_GIGABIT: Method = Method {
    quick: "lab efficiency --quick --sizes 64,256 --rates 1 --repetitions 2",
    full: "lab efficiency --sizes 64,256,1518 --rates 1",
    quick_seconds: 9,
    full_seconds: 150,
    conditions: "Two gateways in series on one core, in memory, AES-128-GCM, without a NIC that does cryptography: the core both seals and opens each packet, where the paper's does neither. Power is that of what has a meter, generator included, and not of the whole server at the wall. The paper prints energy in mJ for each byte, but 100 W at 1 Gbit/s are 800 nJ a byte. Where nothing has a meter, the paper's power and energy stand alone.",
    read: energy,
};

const fn nic(read: fn(&[Value]) -> Result<Reading, Wrong>) -> How {
    How::Measured(Method {
        quick: "bench nic --duration 40 --repeat 3",
        full: "bench nic --duration 200 --repeat 5",
        quick_seconds: 10,
        full_seconds: 36,
        conditions: CONDITIONS,
        read,
    })
}

/// Its figures and tables.
pub(super) static ITEMS: [Item; 7] = [
    Item {
        paper: PAPER,
        name: "Figure 1",
        title: "IPsec VPN tunnel mode",
        printed: &[],
        how: How::Drawing("it shows two networks and a tunnel"),
    },
    Item {
        paper: PAPER,
        name: "Figure 2",
        title: "NIC accelerated and software IPsec processing path",
        printed: &[],
        how: How::Drawing("it shows where the cryptography is done"),
    },
    Item {
        paper: PAPER,
        name: "Figure 3",
        title: "MoonGen architecture: IPsec components",
        printed: &[],
        how: How::Drawing("it shows parts of MoonGen"),
    },
    Item {
        paper: PAPER,
        name: "Figure 4",
        title: "Test setup",
        printed: &[],
        how: How::Drawing("it shows two servers and a cable"),
    },
    Item {
        paper: PAPER,
        name: "Figure 5(a)",
        title: "VPN throughput at different packet sizes",
        printed: THROUGHPUT,
        how: nic(throughput),
    },
    Item {
        paper: PAPER,
        name: "Figure 5(b)",
        title: "Consumed CPU cycles per byte",
        printed: CYCLES,
        how: nic(cycles),
    },
    Item {
        paper: PAPER,
        name: "Table I",
        title: "Energy comparison",
        printed: ENERGY,
        how: How::Measured(AT_A_GIGABIT),
    },
];

/// What a row is of.
struct Case<'a> {
    is_nic: bool,
    bytes: usize,
    way: &'a str,
}

impl<'a> Case<'a> {
    fn of(row: &'a Value) -> Result<Self, Wrong> {
        let is_nic = match text(row, "path")? {
            "nic" => true,
            "software" => false,
            other => return Err(format!("\"path\" of a row is {other:?}")),
        };
        Ok(Self { is_nic, bytes: count(row, "frame_bytes")?, way: text(row, "direction")? })
    }

    fn words(&self, what: &str) -> String {
        format!("{what}, {} bytes, {}", self.bytes, self.way)
    }

    fn add(&self, lines: &mut Lines, [nic, software]: [&str; 2], value: f64) {
        let (name, colour) = if self.is_nic { (nic, 0) } else { (software, 1) };
        let style = (colour, usize::from(self.way == "inbound"));
        lines.add(&format!("{name}, {}", self.way), style, Length::Bytes(self.bytes), Spread::of([value]));
    }
}

const SOFTWARE: &str = "cryptography in software";
/// What is measured of a NIC's path.
const PART: &str = "the processor's part beside a simulated NIC";
const ACROSS: &str = "frame size (bytes, with check sequence)";

/// Figure 5(a).
fn throughput(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    for row in rows {
        let case = Case::of(row)?;
        if !case.is_nic {
            let rate = number(row, "gbit_s")?;
            reading.find(case.words(SOFTWARE), "Gbit/s", Spread::of([rate]));
            case.add(&mut lines, ["", "software"], rate);
            continue;
        }
        let packets = number(row, "packets_per_second")? * 1e-6;
        reading.find(case.words(PART), "Mpackets/s", Spread::of([packets]));
        let rate = number(row, "predicted_gbit_s")?;
        let what = case.words("cryptography in the NIC");
        reading.findings.push(Finding { what, unit: "Gbit/s", here: None, predicted: Some(rate) });
        case.add(&mut lines, ["a NIC (predicted)", ""], rate);
    }
    let axes = [ACROSS, "throughput (Gbit/s of frames)"];
    reading.panels.push(lines.panel("VPN throughput (figure 5a)", axes, Extent::Zero));
    Ok(reading)
}

/// Figure 5(b).
fn cycles(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    for row in rows {
        let (case, cycles) = (Case::of(row)?, number(row, "cycles_per_byte")?);
        let what = if case.is_nic { PART } else { SOFTWARE };
        reading.find(case.words(what), "cycles/byte", Spread::of([cycles]));
        case.add(&mut lines, [PART, "software"], cycles);
    }
    let axes = [ACROSS, "cycles per byte"];
    reading.panels.push(lines.panel("CPU cycles per byte (figure 5b)", axes, Extent::Zero));
    Ok(reading)
}

/// The member of rows that does not depend on pauses.
const BUSY: &str = "busy_cycles_per_byte";

/// Table I: the longest pause that holds the rate; of a rate that is not held, what came through.
fn energy(rows: &[Value]) -> Result<Reading, Wrong> {
    let mut reading = Reading::default();
    let is_step = |row: &&Value| {
        row.get("test").and_then(Value::as_str) == Some("efficiency")
            && row.get("longest_pause") == Some(&Value::Bool(true))
    };
    for row in rows.iter().filter(is_step) {
        let of = format!(
            "at {} Gbit/s, frames of {}",
            text(row, "rate")?,
            Length::of(row, "frame_bytes")?.words()
        );
        let rate = number(row, "throughput_gbit_per_second")?;
        reading.find(format!("throughput {of}"), "Gbit/s", Spread::of([rate]));
        let figures = [
            ("awake_share", 100.0, "CPU load", "%"),
            ("cycles_per_byte", 1.0, "cycles", "cycles/byte"),
            ("watts", 1.0, "power", "W"),
            ("joules_per_byte", 1e9, "energy", "nJ/byte"),
            (BUSY, 1.0, "cycles in turns with packets", "cycles/byte"),
        ];
        // A worker that cannot keep up is always awake: of what it takes then, only turns with packets are of
        // packets.
        let is_held = row.get("held") == Some(&Value::Bool(true));
        for (member, factor, what, unit) in figures.into_iter().filter(|(name, ..)| is_held || *name == BUSY)
        {
            // What was not metered is null, and notes say why.
            if row.get(member).is_some_and(|figure| !figure.is_null()) {
                reading.find(format!("{what} {of}"), unit, Spread::of([number(row, member)? * factor]));
            }
        }
        if !is_held {
            reading.remark(format!("What the processor takes {of} is not known: the rate is not held."));
        }
        reading.remark_notes(row, &of);
    }
    if reading.findings.is_empty() { Err("no row of a rate that holds".to_owned()) } else { Ok(reading) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_simulated_nic_would_carry_is_a_prediction_and_the_processors_part_is_measured() {
        let row = |path: &str, gbit_s: Value, predicted: Value| {
            json!({ "path": path, "frame_bytes": 64, "direction": "outbound", "packets_per_second": 20e6,
                "gbit_s": gbit_s, "predicted_gbit_s": predicted, "cycles_per_byte": 1.5 })
        };
        let rows = [row("nic", Value::Null, json!(10.24)), row("software", json!(9.0), Value::Null)];
        let found: Vec<_> = throughput(&rows)
            .unwrap()
            .findings
            .into_iter()
            .map(|one| (one.what, one.here.map(|here| here.median), one.predicted))
            .collect();
        let expected = [
            (format!("{PART}, 64 bytes, outbound"), Some(20.0), None),
            ("cryptography in the NIC, 64 bytes, outbound".to_owned(), None, Some(10.24)),
            (format!("{SOFTWARE}, 64 bytes, outbound"), Some(9.0), None),
        ];
        assert_eq!(found, expected);
        assert!(THROUGHPUT.iter().any(|printed| printed.what == found[1].0));
        let cycles = cycles(&rows).unwrap();
        assert!(cycles.findings[0].what.starts_with(PART) && cycles.findings[0].predicted.is_none());
        assert!(CYCLES.iter().any(|printed| printed.what.starts_with(PART)));
        assert!(
            throughput(&[row("nic", json!(10.24), Value::Null)]).is_err(),
            "no rate of a NIC is measured"
        );
    }
}
