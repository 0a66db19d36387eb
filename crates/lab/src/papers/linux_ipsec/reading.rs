//! How rows of `testudo lab tcp` are read for the figures of paper 001.

use serde_json::Value;

use super::super::reading::{Length, Lines, Reading, Wrong, count, number, text};
use crate::bench::bars::{Bars, Group, Row};
use crate::bench::chart::{Extent, Panel};
use crate::statistics::Spread;
use crate::tcp::{STATES, states_of_processors};

/// The ends of a stream, as rows name them.
const ENDS: [&str; 2] = ["sender", "receiver"];
const IDLE: &str = "idle";
/// Of a link's rate, what user data has of it when it is full: 94.9 % fits into frames of 1,500 bytes.
const FULL: f64 = 0.9;

/// A row that was measured.
struct Stream<'a> {
    row: &'a Value,
    /// As rows name it: `plain`, `esp`.
    protocol: &'a str,
    /// Protocol, suites, and mode or path.
    name: String,
    in_transport: bool,
    bytes: usize,
    mtu: usize,
    step: &'a str,
    mbit_s: Spread,
}

impl<'a> Stream<'a> {
    fn of(row: &'a Value) -> Result<Self, Wrong> {
        let protocol = text(row, "protocol")?;
        let in_transport = text(row, "path")? == "gateways";
        let suites = ["suite", "ah_suite"].map(|member| row.get(member).and_then(Value::as_str));
        let suites: Vec<&str> = suites.into_iter().flatten().collect();
        let name = match protocol {
            "plain" => "plain IP".to_owned(),
            "esp" | "ah" | "ah+esp" => format!("{} {}", protocol.to_uppercase(), suites.join(" ")),
            other => return Err(format!("\"protocol\" of a row is {other:?}")),
        };
        let mbit_s = Spread {
            median: number(row, "mbit_per_second")?,
            lowest: number(row, "lowest_mbit_per_second")?,
            highest: number(row, "highest_mbit_per_second")?,
        };
        Ok(Self {
            row,
            protocol,
            name,
            in_transport,
            bytes: count(row, "message_bytes")?,
            mtu: count(row, "mtu_bytes")?,
            step: text(row, "tuning")?,
            mbit_s,
        })
    }

    fn mode(&self) -> &'static str {
        match (self.protocol, self.in_transport) {
            ("plain", true) => "between gateways",
            ("plain", false) => "between sites",
            (_, true) => "transport mode",
            (_, false) => "tunnel mode",
        }
    }

    fn words(&self) -> String {
        format!("{}, {}", self.name, self.mode())
    }

    /// Shares of an end's processors in each of [`STATES`], 0 to 1.
    fn states(&self, end: &str) -> Result<[f64; STATES.len()], Wrong> {
        let mut shares = [0.0; STATES.len()];
        for (share, state) in shares.iter_mut().zip(STATES) {
            *share = number(self.row, &format!("{end}_{state}"))?;
        }
        Ok(shares)
    }
}

/// Rows with streams; what they say of themselves is remarked.
fn streams<'a>(rows: &'a [Value], reading: &mut Reading) -> Result<Vec<Stream<'a>>, Wrong> {
    let mut streams = Vec::new();
    let is_measured = |row: &&Value| row.get("protocol").is_some_and(Value::is_string);
    for row in rows.iter().filter(is_measured) {
        let stream = Stream::of(row)?;
        if row.get("converged") == Some(&Value::Bool(false)) {
            let what = format!("{}, messages of {} bytes", stream.words(), stream.bytes);
            reading.remark(format!("{what}: the confidence interval is not within 3 %."));
        }
        streams.push(stream);
    }
    let measured: Vec<Value> = streams.iter().map(|stream| stream.row.clone()).collect();
    reading.remark_common_notes(&measured);
    if streams.is_empty() { Err("no row of a stream".to_owned()) } else { Ok(streams) }
}

/// The throughput of each, over message size.
fn throughput<'a>(rows: &'a [Value], title: &str) -> Result<(Reading, Vec<Stream<'a>>), Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    let streams = streams(rows, &mut reading)?;
    let mut names: Vec<&str> = Vec::new();
    for stream in &streams {
        let known = names.iter().position(|name| *name == stream.name).unwrap_or(names.len());
        if known == names.len() {
            names.push(&stream.name);
        }
        let what = format!("{}, messages of {} bytes", stream.words(), stream.bytes);
        reading.find(what, "Mbit/s", stream.mbit_s);
        let style = (known, usize::from(stream.in_transport));
        lines.add(&stream.words(), style, Length::Bytes(stream.bytes), stream.mbit_s);
    }
    let axes = ["message size (bytes)", "throughput (Mbit/s of user data)"];
    reading.panels.push(of_means(lines.panel(title, axes, Extent::Doubling)));
    Ok((reading, streams))
}

/// Rows are of means, where other commands' are of medians.
fn of_means(panel: Panel) -> Panel {
    Panel { subtitle: "Testudo on this machine; means, with lowest and highest".to_owned(), ..panel }
}

/// What tunnel mode lacks of transport mode, in percent of it, of each protection and size.
fn lost_by_tunnels(reading: &mut Reading, streams: &[Stream<'_>], what: &str) {
    let protected = streams.iter().filter(|stream| stream.protocol != "plain" && !stream.in_transport);
    for tunnel in protected {
        let is_other = |other: &&Stream<'_>| {
            other.in_transport && other.name == tunnel.name && other.bytes == tunnel.bytes
        };
        let Some(transport) = streams.iter().find(is_other) else { continue };
        let share = 1.0 - tunnel.mbit_s.median / transport.mbit_s.median.max(f64::MIN_POSITIVE);
        let what = format!("{what}, {}, {} bytes", tunnel.name, tunnel.bytes);
        reading.find(what, "%", Spread::of([share * 100.0]));
    }
}

/// Figure 1.
pub(super) fn slow(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, streams) = throughput(rows, "A link of 10 Mbit/s (figure 1)")?;
    lost_by_tunnels(&mut reading, &streams, "throughput lost by tunnel mode, of transport mode");
    for stream in &streams {
        let busy = busy(&stream.states(ENDS[0])?);
        let what = format!("processors busy, {}, {} bytes", stream.words(), stream.bytes);
        reading.find(what, "%", Spread::of([busy * 100.0]));
    }
    Ok(reading)
}

/// Figure 2.
pub(super) fn modes(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, streams) = throughput(rows, "A link of 100 Mbit/s (figure 2)")?;
    lost_by_tunnels(&mut reading, &streams, "difference between transport and tunnel mode");
    Ok(reading)
}

/// Figure 3.
pub(super) fn triple(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, streams) = throughput(rows, "A link of 100 Mbit/s (figure 3)")?;
    for triple in streams.iter().filter(|stream| stream.name.contains("3des")) {
        let is_plain = |other: &&Stream<'_>| {
            other.protocol == "plain"
                && other.in_transport == triple.in_transport
                && other.bytes == triple.bytes
        };
        let Some(plain) = streams.iter().find(is_plain) else { continue };
        let lost = plain.mbit_s.median - triple.mbit_s.median;
        let what =
            format!("throughput lost by 3DES, of plain IP's, {}, {} bytes", triple.mode(), triple.bytes);
        reading.find(what, "Mbit/s", Spread::of([lost]));
    }
    Ok(reading)
}

/// Figure 4.
pub(super) fn gigabit(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, streams) = throughput(rows, "A link of 1 Gbit/s (figure 4)")?;
    let encrypted = streams.iter().filter(|stream| stream.protocol == "esp");
    if let Some(most) = encrypted.map(|stream| stream.mbit_s.median).reduce(f64::max) {
        reading.find("confidentiality and integrity, at most", "Mbit/s", Spread::of([most]));
    }
    let mut full = Vec::new();
    for stream in streams.iter().filter(|stream| stream.protocol == "plain") {
        if stream.mbit_s.median >= FULL * number(stream.row, "link_mbit_per_second")? {
            full.push(stream.bytes);
        }
    }
    match full.into_iter().min() {
        Some(bytes) => {
            let what = "plain IP fills the link, with messages from";
            reading.find(what, "bytes", Spread::of([bytes as f64]));
            reading.remark("The link is full when user data has 90 % of its rate.".to_owned());
        }
        None => {
            reading.remark("Plain IP does not fill the link: user data has less than 90 % of it.".to_owned())
        }
    }
    Ok(reading)
}

/// The share in which processors had work, 0 to 1.
fn busy(states: &[f64; STATES.len()]) -> f64 {
    let of = STATES.iter().zip(states).filter(|(state, _)| !matches!(**state, IDLE | "steal"));
    of.map(|(_, share)| share).sum()
}

/// Figure 5: of the largest messages in the table, of all in the picture.
pub(super) fn processors(rows: &[Value]) -> Result<Reading, Wrong> {
    let mut reading = Reading::default();
    let streams = streams(rows, &mut reading)?;
    let is_shared = streams.iter().any(|stream| stream.row.get("ends_apart") == Some(&Value::Bool(false)));
    let ends = if is_shared { &ENDS[..1] } else { &ENDS[..] };
    let largest = streams.iter().map(|stream| stream.bytes).max().unwrap_or(0);
    let mut drawn: Vec<Row> = Vec::new();
    for stream in &streams {
        let mut bars = Vec::new();
        for end in ends {
            let states = stream.states(end)?;
            bars.push(states.to_vec());
            if stream.bytes == largest {
                find_states(&mut reading, stream, if is_shared { "both ends" } else { end }, &states);
            }
        }
        let group = Group { label: stream.bytes.to_string(), bars };
        match drawn.iter_mut().find(|row| row.name == stream.words()) {
            Some(row) => row.groups.push(group),
            None => drawn.push(Row { name: stream.words(), groups: vec![group] }),
        }
    }
    let which =
        if is_shared { "both ends share them" } else { "left bar: the sender's, right bar: the receiver's" };
    reading.bars.push(Bars {
        title: "Processors' time by state (figure 5)".to_owned(),
        subtitle: format!("Testudo on this machine; {which}"),
        across: "message size (bytes)".to_owned(),
        parts: states_of_processors(),
        rows: drawn,
    });
    Ok(reading)
}

fn find_states(reading: &mut Reading, stream: &Stream<'_>, end: &str, states: &[f64; STATES.len()]) {
    let what = if stream.protocol == "plain" { "CPU usage" } else { "CPU usage with IPsec" };
    let of = format!("{}, {} bytes, {end}", stream.words(), stream.bytes);
    reading.find(format!("{what}, {of}"), "%", Spread::of([busy(states) * 100.0]));
    for (state, share) in STATES.iter().zip(states).filter(|(state, _)| **state != IDLE) {
        reading.find(format!("{state}, {of}"), "%", Spread::of([share * 100.0]));
    }
}

/// Section 5: what each step of tuning brought, and which changed nothing.
pub(super) fn steps(rows: &[Value]) -> Result<Reading, Wrong> {
    let mut reading = Reading::default();
    for stream in streams(rows, &mut reading)? {
        // The paper's numbers are of protocols, with any suite.
        let name = match stream.protocol {
            "plain" => stream.name.clone(),
            _ => stream.name.replacen(' ', ", ", 1),
        };
        let of = format!("{name}, messages of {} bytes", stream.bytes);
        let step = step(stream.step);
        reading.find(format!("after {step}, {of}"), "Mbit/s", stream.mbit_s);
        if let Some(gain) = stream.row.get("tuning_gain_mbit_per_second").and_then(Value::as_f64) {
            reading.find(format!("gain by {step}, {of}"), "Mbit/s", Spread::of([gain]));
            reading.remark(format!("Gain by {step}, {of}: {}.", text(stream.row, "tuning_verdict")?));
        }
    }
    for row in rows.iter().filter(|row| row.get("protocol").is_some_and(Value::is_null)) {
        reading.remark_notes(row, &format!("Step {}", text(row, "tuning")?));
    }
    Ok(reading)
}

/// A step of `testudo tune`, in the paper's words where it has it.
fn step(name: &str) -> &str {
    match name {
        "none" => "no step",
        "sockets" => "socket buffers",
        "tcp" => "TCP's options and buffers",
        "coalescing" => "interrupt coalescing or NAPI, by coalescing",
        "napi" => "interrupt coalescing or NAPI, by NAPI",
        "mtu" => "an MTU of 9,000 bytes",
        other => other,
    }
}

/// Figure 6. Plain IP is in the measurements of protections of their own and of combined ones: the first one
/// counts.
pub(super) fn frames(rows: &[Value]) -> Result<Reading, Wrong> {
    let (mut reading, mut lines) = (Reading::default(), Lines::default());
    let mut each: Vec<Stream<'_>> = Vec::new();
    for stream in streams(rows, &mut reading)? {
        let key = |one: &Stream<'_>| (one.name.clone(), one.bytes, one.mtu);
        if !each.iter().any(|known| key(known) == key(&stream)) {
            each.push(stream);
        }
    }
    let (mut names, mut sizes): (Vec<&str>, Vec<usize>) = Default::default();
    for stream in &each {
        if !names.contains(&stream.name.as_str()) {
            names.push(&stream.name);
        }
        if !sizes.contains(&stream.bytes) {
            sizes.push(stream.bytes);
        }
        let place = |of: Option<usize>| of.unwrap_or(0);
        let style = (
            place(names.iter().position(|name| *name == stream.name)),
            place(sizes.iter().position(|bytes| *bytes == stream.bytes)),
        );
        let of = format!("{}, messages of {} bytes", stream.name, stream.bytes);
        reading.find(format!("{of}, MTU {} bytes", stream.mtu), "Mbit/s", stream.mbit_s);
        lines.add(&of, style, Length::Bytes(stream.mtu), stream.mbit_s);
    }
    for name in names {
        let of_it: Vec<&Stream<'_>> = each.iter().filter(|stream| stream.name == name).collect();
        gains(&of_it, &sizes, &mut reading);
    }
    let axes = ["MTU (bytes of an IP packet)", "throughput (Mbit/s of user data)"];
    reading.panels.push(of_means(lines.panel("Throughput over MTU (figure 6)", axes, Extent::FirstPoint)));
    Ok(reading)
}

/// The peak of a protection where the paper has it, and what the largest MTU brings, of each message size.
fn gains(of_it: &[&Stream<'_>], sizes: &[usize], reading: &mut Reading) {
    let Some(any) = of_it.first() else { return };
    let peak = of_it.iter().map(|stream| stream.mbit_s.median).fold(0.0, f64::max);
    let what = match (any.protocol, any.name.as_str()) {
        ("plain", _) => Some("plain IP, peak"),
        ("ah", "AH md5") => Some("AH with MD5 in tunnel mode, peak"),
        _ => None,
    };
    if let Some(what) = what {
        reading.find(what, "Mbit/s", Spread::of([peak]));
    }
    for bytes in sizes {
        let of_size = || of_it.iter().filter(|stream| stream.bytes == *bytes);
        let (Some(first), Some(last)) = (of_size().min_by_key(|s| s.mtu), of_size().max_by_key(|s| s.mtu))
        else {
            continue;
        };
        let gain = Spread::of([last.mbit_s.median - first.mbit_s.median]);
        let what = if any.protocol == "ah+esp" { "ESP and AH combined, gain" } else { "gain" };
        let of = format!("{}, messages of {bytes} bytes", any.name);
        let what = format!("{what}, {of}, MTU {} over {} bytes", last.mtu, first.mtu);
        reading.find(what, "Mbit/s", gain);
    }
}
