//! Rows as tables, as JSON, and as a picture.

use std::cmp::Ordering;

use serde_json::{Map, Value, json};

use super::cpu::{STATES, Shares};
use super::ends::Ends;
use super::options::{Link, TcpOptions};
use super::printed::printed;
use super::states;
use super::subject::{Protocol, Setting, Subject};
use crate::bench::bars::Bars;
use crate::bench::chart::{self, Extent, Line, Panel, STRIPS};
use crate::bench::picture::{self, Part};
use crate::harness::{Interval, Unconverged};
use crate::rfc2544::{Remarks, cells};
use crate::statistics::Spread;
use crate::table::Table;

/// The ends of a stream, as rows name them.
const ENDS: [&str; 2] = ["sender", "receiver"];

/// Messages of one size, of one subject, in one setting; or a step of tuning that was left out.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) setting: Setting,
    pub(super) subject: Option<Subject>,
    pub(super) message_bytes: u32,
    pub(super) measured: Option<Measured>,
    /// Why nothing was measured.
    pub(super) left_out: Option<String>,
}

/// What the runs of a row found.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// Of user data per time, in Mbit/s.
    pub(super) interval: Interval,
    pub(super) lowest: f64,
    pub(super) highest: f64,
    pub(super) unconverged: Option<Unconverged>,
    /// Of all runs together.
    pub(super) received_bytes: u64,
    pub(super) link_bytes: u64,
    /// Processor time of the sending and of the receiving end.
    pub(super) ends: [Shares; 2],
    pub(super) engine: Option<String>,
    /// What was not taken of the steps of tuning.
    pub(super) untuned: Option<String>,
    /// Throughput as a share of plain IP's by the same path, in the same setting.
    pub(super) share_of_plain: Option<f64>,
    pub(super) gain: Option<Gain>,
}

/// What a step of tuning brought.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Gain {
    mbit_s: f64,
    /// Greater or less where the intervals are apart; `None` where one is unknown.
    verdict: Option<Ordering>,
}

impl Gain {
    /// Over a row of the stage before.
    pub(super) fn over(now: &Interval, before: &Row) -> Option<Self> {
        let before = before.measured.as_ref()?.interval;
        Some(Self { mbit_s: now.mean - before.mean, verdict: now.against(&before) })
    }

    const fn words(self) -> &'static str {
        match self.verdict {
            Some(Ordering::Greater) => "faster",
            Some(Ordering::Less) => "slower",
            Some(Ordering::Equal) => "no difference beyond the confidence intervals",
            None => "one repetition says nothing",
        }
    }
}

impl Row {
    /// A stage of tuning that was not measured.
    pub(super) fn left_out(setting: Setting, why: String) -> Self {
        Self { setting, subject: None, message_bytes: 0, measured: None, left_out: Some(why) }
    }

    /// Whether this is the base line of a subject.
    pub(super) fn is_plain_of(&self, subject: &Subject) -> bool {
        self.subject.as_ref().is_some_and(|own| own.protocol().is_none() && own.mode() == subject.mode())
    }

    pub(super) fn mean(&self) -> Option<f64> {
        self.measured.as_ref().map(|measured| measured.interval.mean)
    }
}

/// All rows of a run.
pub(super) struct Report<'a> {
    pub(super) options: &'a TcpOptions,
    pub(super) ends: &'a Ends,
    pub(super) rows: Vec<Row>,
}

impl Report<'_> {
    /// What is to be said of a row besides its figures, in JSON; tables say in their heading what is the
    /// same for all.
    fn notes(&self, row: &Row) -> Vec<String> {
        let mut notes: Vec<String> = row.left_out.iter().cloned().collect();
        let Some(measured) = &row.measured else { return notes };
        notes.extend(measured.unconverged.iter().map(ToString::to_string));
        notes.extend(measured.untuned.clone());
        notes.extend(self.options.deviations());
        notes.push(self.ends.words().to_owned());
        notes.extend(self.shared(row));
        notes
    }

    /// That threads of a row outnumber their processors, if so.
    fn shared(&self, row: &Row) -> Option<String> {
        let subject = row.subject.as_ref()?;
        self.ends.shared(subject.threads(self.options.workers))
    }

    /// An array with an object for each row, none of which has objects in it.
    pub(super) fn json(&self) -> Value {
        Value::Array(self.rows.iter().map(|row| Value::Object(self.object(row))).collect())
    }

    fn object(&self, row: &Row) -> Map<String, Value> {
        let subject = row.subject.as_ref();
        let link = match row.setting.link {
            Link::Unlimited => Value::Null,
            Link::Mbit(rate) => json!(rate),
        };
        let printed = subject.and_then(|subject| printed(&row.setting, subject, row.message_bytes));
        let fields = json!({
            "test": "tcp",
            "link_mbit_per_second": link,
            "mtu_bytes": row.setting.mtu(),
            "tuning": row.setting.stage.name,
            "protocol": subject.map(|subject| subject.protocol().map_or("plain", Protocol::name)),
            "path": subject.map(Subject::path),
            "mode": subject.filter(|subject| subject.protocol().is_some()).map(|subject| match subject.path() {
                "gateways" => "transport",
                _ => "tunnel",
            }),
            "suite": subject.and_then(Subject::suite),
            "ah_suite": subject.and_then(Subject::ah_suite),
            "message_bytes": subject.map(|_| row.message_bytes),
            "seconds": self.options.duration().as_secs(),
            "paper_printed": printed.map(|printed| printed.words),
            "paper_mbit_per_second": printed.and_then(|printed| printed.mbit_s),
            "conforming": row.measured.is_some() && self.options.deviations().is_none(),
            "notes": self.notes(row),
        });
        let mut object = match fields {
            Value::Object(object) => object,
            _ => Map::new(),
        };
        object.extend(self.figures(row.measured.as_ref()));
        object.insert("ends_apart".to_owned(), json!(self.ends.are_apart));
        object.insert("processors_shared".to_owned(), json!(subject.map(|_| self.shared(row).is_some())));
        object
    }

    /// What was measured; null each where nothing was.
    fn figures(&self, measured: Option<&Measured>) -> Map<String, Value> {
        let interval = measured.map(|measured| measured.interval);
        let gain = measured.and_then(|measured| measured.gain);
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| {
            object.insert(name.to_owned(), value);
        };
        put("mbit_per_second", json!(interval.map(|interval| interval.mean)));
        put("lowest_mbit_per_second", json!(measured.map(|measured| measured.lowest)));
        put("highest_mbit_per_second", json!(measured.map(|measured| measured.highest)));
        let width = interval.and_then(|interval| interval.width_share()).filter(|width| width.is_finite());
        put("confidence_width", json!(width));
        put("converged", json!(measured.map(|measured| measured.unconverged.is_none())));
        put("repetitions", json!(interval.map(|interval| interval.repetitions)));
        put("share_of_plain", json!(measured.and_then(|measured| measured.share_of_plain)));
        put("received_bytes", json!(measured.map(|measured| measured.received_bytes)));
        put("link_bytes", json!(measured.map(|measured| measured.link_bytes)));
        put("engine", json!(measured.and_then(|measured| measured.engine.as_deref())));
        put("tuning_gain_mbit_per_second", json!(gain.map(|gain| gain.mbit_s)));
        put("tuning_verdict", json!(gain.map(Gain::words)));
        for (index, end) in ENDS.iter().enumerate() {
            put(&format!("{end}_processors"), json!(self.ends.processors.get(index).map(|all| list(all))));
            let shares = measured.and_then(|measured| measured.ends.get(index));
            put(&format!("{end}_processor_seconds"), json!(shares.map(|shares| shares.seconds)));
            for (state, name) in STATES.iter().enumerate() {
                let share = shares.and_then(|shares| shares.of.get(state));
                put(&format!("{end}_{name}"), json!(share));
            }
        }
        object
    }

    /// For people: a table for each setting.
    pub(super) fn table(&self) -> String {
        let mut text = self.heading();
        let mut remarks = Remarks::default();
        for rows in self.settings() {
            let Some(first) = rows.first() else { continue };
            let setting = &first.setting;
            let head =
                format!("Link: {}; MTU {} B; tuning: {}.", setting.link, setting.mtu(), setting.stage.name);
            match &first.left_out {
                Some(why) => text += &format!("\nTuning, {}: {why}.\n", setting.stage.name),
                None => text += &format!("\n{head}\n\n{}", self.one_table(&rows, &mut remarks)),
            }
        }
        text += "\n  Mbit/s: of user data at the receiver, 10^6 bits. interval: width of the 95 % confidence interval, of the mean. \
                 of plain: of plain IP\n  by the same path. user to steal: % of the processors' time in each state. paper 001: as \
                 printed there, of its systems and Linux 2.6.11.\n";
        text + &remarks.lines()
    }

    fn heading(&self) -> String {
        let [sender, receiver] = &self.ends.processors;
        let rule = self.options.rule();
        let processors = match self.ends.are_apart {
            true => format!("sender {}, receiver {}", list(sender), list(receiver)),
            false => list(sender),
        };
        let deviations = self.options.deviations().map(|what| format!("This run {what}.\n"));
        format!(
            "A TCP stream between two hosts in private namespaces, plain and through two gateways.\n\
             Runs of {} s, {} to {} of each row until the 95 % confidence interval is within {:.0} %.\n\
             Processors: {processors}; {}.\n{}",
            self.options.duration().as_secs(),
            rule.least,
            rule.most,
            rule.width * 100.0,
            self.ends.words(),
            deviations.unwrap_or_default(),
        )
    }

    /// Rows that are next to each other and have one setting.
    fn settings(&self) -> Vec<Vec<&Row>> {
        let key = |row: &Row| (row.setting.link, row.setting.untuned_mtu, row.setting.stage.name);
        self.rows.chunk_by(|a, b| key(a) == key(b)).map(|rows| rows.iter().collect()).collect()
    }

    fn one_table(&self, rows: &[&Row], remarks: &mut Remarks) -> String {
        let has_gain = rows.iter().any(|row| row.measured.as_ref().is_some_and(|m| m.gain.is_some()));
        let mut heads = vec!["", "message (B)", "Mbit/s", "interval (%)", "runs", "of plain (%)"];
        if self.ends.are_apart {
            heads.push("end");
        }
        heads.extend(STATES);
        if has_gain {
            heads.push("this step brings (Mbit/s)");
        }
        heads.extend(["paper 001", "remarks"]);
        let mut lines = vec![heads.into_iter().map(str::to_owned).collect()];
        for row in rows {
            lines.extend(self.lines(row, has_gain, remarks));
        }
        Table::report(lines).to_string()
    }

    /// A line of a row, or two if ends are told apart.
    fn lines(&self, row: &Row, has_gain: bool, remarks: &mut Remarks) -> Vec<Vec<String>> {
        let (Some(subject), Some(measured)) = (&row.subject, &row.measured) else { return Vec::new() };
        let interval = measured.interval;
        let mut line = vec![
            subject.name(),
            row.message_bytes.to_string(),
            cells::figure(interval.mean),
            cells::percent(interval.width_share()),
            interval.repetitions.to_string(),
            cells::percent(measured.share_of_plain),
        ];
        let states = |end: usize| -> Vec<String> {
            let name = self.ends.are_apart.then(|| ENDS.get(end).copied().unwrap_or_default().to_owned());
            let shares = measured.ends.get(end).map(|shares| shares.of).unwrap_or_default();
            name.into_iter().chain(shares.map(|share| format!("{:.1}", share * 100.0))).collect()
        };
        let second = self.ends.are_apart.then(|| {
            let blank = vec![String::new(); line.len()];
            blank.into_iter().chain(states(1)).collect()
        });
        line.extend(states(0));
        if has_gain {
            let words = |gain: Gain| format!("{:+.1}: {}", gain.mbit_s, gain.words());
            line.push(measured.gain.map_or_else(String::new, words));
        }
        let printed = printed(&row.setting, subject, row.message_bytes);
        line.push(printed.map_or("", |printed| printed.words).to_owned());
        let too_wide =
            format!("its confidence interval is not within {:.0} %", self.options.rule().width * 100.0);
        let said = measured.unconverged.map(|_| too_wide).into_iter().chain(measured.untuned.clone());
        line.push(remarks.refer(said.chain(self.shared(row)).collect()));
        [line].into_iter().chain(second).collect()
    }

    /// Two parts for each setting: throughput over message size, a line for each subject; and the processors'
    /// time by state, of both ends.
    pub(super) fn svg(&self) -> String {
        let measured =
            self.settings().into_iter().filter(|rows| rows.iter().any(|row| row.measured.is_some()));
        let parts: Vec<(Panel, Bars)> =
            measured.map(|rows| (self.panel(&rows), states::bars(&rows, self.ends.are_apart))).collect();
        let both = parts.iter().flat_map(|(lines, bars)| [Part::Lines(lines), Part::Bars(bars)]);
        picture::svg(&both.collect::<Vec<_>>())
    }

    fn panel(&self, rows: &[&Row]) -> Panel {
        let mut lines: Vec<Line> = Vec::new();
        for row in rows {
            let (Some(subject), Some(measured)) = (&row.subject, &row.measured) else { continue };
            let (name, count) = (subject.name(), lines.len());
            let known = lines.iter().position(|line| line.name == name).unwrap_or(count);
            if known == count {
                let mixes = [const { None }; STRIPS.len()];
                let dash = usize::from(subject.path() == "gateways");
                lines.push(Line { name, colour: count, dash, points: Vec::new(), mixes });
            }
            let Interval { mean, half_width, .. } = measured.interval;
            let half = half_width.unwrap_or(0.0);
            let spread = Spread { median: mean, lowest: (mean - half).max(0.0), highest: mean + half };
            if let (Some(line), Ok(bytes)) = (lines.get_mut(known), usize::try_from(row.message_bytes)) {
                line.points.push((bytes, spread));
            }
        }
        chart::sort(&mut lines);
        Panel {
            title: "A TCP stream over message size".to_owned(),
            subtitle: format!("{}; means with 95 % confidence intervals", of_setting(rows)),
            across: "message size (bytes)".to_owned(),
            up: "throughput (Mbit/s of user data)".to_owned(),
            extent: Extent::Doubling,
            lines,
        }
    }
}

/// The setting of rows, for people.
pub(super) fn of_setting(rows: &[&Row]) -> String {
    let words = |setting: &Setting| {
        format!("link: {}, MTU {} B, tuning: {}", setting.link, setting.mtu(), setting.stage.name)
    };
    rows.first().map(|row| words(&row.setting)).unwrap_or_default()
}

/// Processors for people: `0 1 3`.
fn list(processors: &[usize]) -> String {
    processors.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::options::Mode;
    use super::super::tuning::Tuning;
    use super::*;
    use crate::harness::Confidence;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        options: TcpOptions,
    }

    fn options(words: &str) -> TcpOptions {
        Program::parse_from(["tcp"].into_iter().chain(words.split_whitespace())).options
    }

    fn row(subject: Subject, stage: usize, rates: &[f64]) -> Row {
        let interval = Interval::of(rates).unwrap();
        let shares = |user: f64| Shares { of: [user, 0.1, 0.4, 0.05, 0.45 - user, 0.0], seconds: 20.0 };
        let measured = Measured {
            interval,
            lowest: rates.iter().copied().fold(f64::INFINITY, f64::min),
            highest: rates.iter().copied().fold(0.0, f64::max),
            unconverged: Confidence::default().judge(&interval),
            received_bytes: 1000,
            link_bytes: 1100,
            ends: [shares(0.25), shares(0.125)],
            engine: subject.protocol().map(|_| "portable".to_owned()),
            untuned: (stage == 2).then(|| "tuning, tcp: tcp_wmem refused".to_owned()),
            share_of_plain: subject.protocol().map(|_| 0.5),
            gain: None,
        };
        let stage = Tuning::Each.stages().swap_remove(stage);
        let setting = Setting { link: Link::Mbit(1000), untuned_mtu: 1500, stage };
        Row { setting, subject: Some(subject), message_bytes: 512, measured: Some(measured), left_out: None }
    }

    fn protected() -> Subject {
        Subject::protected(Protocol::Esp, Protocol::Esp.protection(Mode::Tunnel, "aes128-sha1", "sha256"))
    }

    fn rows() -> Vec<Row> {
        let plain = row(Subject::plain(Mode::Tunnel), 0, &[940.0, 941.0, 942.0, 941.0]);
        let before = row(protected(), 0, &[200.0, 300.0, 250.0, 280.0]);
        let mut after = row(protected(), 2, &[500.0, 501.0, 502.0, 501.0]);
        after.measured.as_mut().unwrap().gain =
            Gain::over(&after.measured.as_ref().unwrap().interval, &before);
        let left_out = Row::left_out(
            Setting { stage: Tuning::Each.stages().swap_remove(4), ..before.setting.clone() },
            "it changes nothing here: ring rx not supported".to_owned(),
        );
        vec![plain, before, after, left_out]
    }

    /// Four processors, two for each end or all for both.
    fn ends(are_apart: bool) -> Ends {
        let processors =
            if are_apart { [vec![0, 1], vec![2, 3]] } else { [vec![0, 1, 2, 3], vec![0, 1, 2, 3]] };
        Ends { processors, are_apart }
    }

    #[test]
    fn tables_have_the_papers_figures_in_a_column_of_their_own_and_say_what_did_not_settle() {
        let (options, ends) = (options(""), ends(false));
        let text = Report { options: &options, ends: &ends, rows: rows() }.table();
        println!("{text}");
        let line = |part: &str| text.lines().find(|line| line.contains(part)).unwrap().to_owned();
        assert!(line("plain IP between sites").contains("fills the link (figure 4)"));
        assert!(line("257.5").contains("300 Mbit/s at most (figure 4)") && line("257.5").ends_with(" 1"));
        assert!(text.contains("  1: its confidence interval is not within 3 %"));
        assert!(line("501.0").contains("+243.5: faster") && line("501.0").contains("up to 150 Mbit/s more"));
        assert!(text.contains("Tuning, rings: it changes nothing here: ring rx not supported."));
        assert!(line("501.0").ends_with(" 2") && text.contains("  2: tuning, tcp: tcp_wmem refused"));
        assert!(text.contains("ends are not told apart") && !text.contains("does not conform"));
        assert!(line("Mbit/s   interval").contains("user   system   softirq   irq   idle   steal"));
    }

    #[test]
    fn pinned_ends_have_a_line_each() {
        let (options, ends) = (options("--quick"), ends(true));
        let text = Report { options: &options, ends: &ends, rows: rows() }.table();
        println!("{text}");
        let first = text.lines().position(|line| line.contains("plain IP")).unwrap();
        let lines: Vec<&str> = text.lines().skip(first).take(2).collect();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(lines[0]).contains("sender 25.0 10.0 40.0 5.0 20.0 0.0"), "{}", lines[0]);
        assert!(words(lines[1]).starts_with("receiver 12.5 10.0"), "{}", lines[1]);
        assert!(
            text.contains("sender 0 1, receiver 2 3; each end has")
                && text.contains("This run does not conform")
        );
    }

    #[test]
    fn json_is_an_array_of_flat_rows_whose_states_are_the_whole_time() {
        let (options, ends) = (options("--quick"), ends(true));
        let json = Report { options: &options, ends: &ends, rows: rows() }.json();
        let rows = json.as_array().unwrap();
        assert_eq!(rows.len(), 4);
        let keys = |row: &Value| row.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        for row in rows {
            assert_eq!(keys(row), keys(&rows[0]), "all rows have the same fields");
            assert!(row.as_object().unwrap().values().all(|value| !value.is_object()), "{row}");
            assert_eq!(row["conforming"], false);
        }
        for row in &rows[..3] {
            for end in ENDS {
                let sum: f64 =
                    STATES.iter().map(|state| row[format!("{end}_{state}")].as_f64().unwrap()).sum();
                assert!((sum - 1.0).abs() < 1e-9, "{row}");
            }
        }
        assert_eq!((&rows[0]["protocol"], &rows[0]["mode"]), (&json!("plain"), &Value::Null));
        assert_eq!((&rows[1]["protocol"], &rows[1]["mode"]), (&json!("esp"), &json!("tunnel")));
        assert_eq!((&rows[1]["converged"], &rows[2]["converged"]), (&json!(false), &json!(true)));
        assert_eq!(rows[1]["paper_mbit_per_second"], 300.0);
        assert_eq!((&rows[2]["tuning"], &rows[2]["tuning_verdict"]), (&json!("tcp"), &json!("faster")));
        let untuned = |row: &Value| row["notes"].to_string().contains("tuning, tcp: tcp_wmem refused");
        assert_eq!([0, 1, 2].map(|index| untuned(&rows[index])), [false, false, true]);
        assert!(
            rows[3]["mbit_per_second"].is_null() && rows[3]["notes"][0].as_str().unwrap().contains("ring rx")
        );
    }

    /// Bound to one processor each, a stream and its gateway share it: rows of plain IP have one thread an
    /// end.
    #[test]
    fn rows_whose_threads_outnumber_the_processors_of_an_end_say_so() {
        let options = options("");
        let says = |processors: [Vec<usize>; 2]| -> Vec<bool> {
            let ends = Ends { processors, are_apart: true };
            let report = Report { options: &options, ends: &ends, rows: rows() };
            let (text, json) = (report.table(), report.json());
            let of = |row: &Value| {
                let is_noted = row["notes"].to_string().contains("cores shared: an end has 2 threads");
                assert!(row["processors_shared"] == is_noted && row["ends_apart"] == true, "{row}");
                is_noted
            };
            let said: Vec<bool> = json.as_array().unwrap()[..3].iter().map(of).collect();
            assert_eq!(text.contains("cores shared: an end has 2 threads"), said.contains(&true), "{text}");
            said
        };
        assert_eq!(says([vec![0], vec![1]]), [false, true, true]);
        assert_eq!(says([vec![0, 1], vec![2, 3]]), [false; 3]);
    }

    #[test]
    fn a_picture_has_axes_for_each_setting_that_was_measured() {
        let (options, ends) = (options(""), ends(false));
        let picture = Report { options: &options, ends: &ends, rows: rows() }.svg();
        assert_eq!(picture.matches("A TCP stream over message size").count(), 2);
        assert!(picture.contains("plain IP between sites") && picture.contains("tuning: tcp"));
        assert_eq!(picture.matches("Processors' time by state").count(), 2, "beside each of them");
        assert!(picture.contains("<title>softirq: 40.0 %</title>"), "{picture}");
    }
}
