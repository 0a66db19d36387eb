//! Medians, spread and ratios.

use serde_json::{Map, Value, json};

use super::subject::Subject;
use super::wireguard::WireguardGo;
use crate::statistics::Spread;
use crate::table::Table;
use crate::traffic::median;

/// The measurements of one subject with so many streams, in order of turns.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) streams: u16,
    pub(super) subject: Subject,
    pub(super) gbit_s: Vec<f64>,
}

impl Series {
    pub(super) fn new(streams: u16, subject: Subject) -> Self {
        Self { streams, subject, gbit_s: Vec::new() }
    }

    fn spread(&self) -> Spread {
        Spread::of(self.gbit_s.iter().copied())
    }
}

/// All measurements of a run.
pub(super) struct Report {
    pub(super) series: Vec<Series>,
    pub(super) engine: String,
    /// The wireguard-go that was measured, if any.
    pub(super) wireguard: Option<WireguardGo>,
    pub(super) suite: String,
    /// Of each of Testudo's gateways.
    pub(super) workers: u8,
    pub(super) seconds: u64,
}

impl Report {
    fn of(&self, streams: u16, subject: Subject) -> Option<&Series> {
        self.series.iter().find(|series| series.streams == streams && series.subject == subject)
    }

    /// Numbers of streams, lowest first.
    fn streams(&self) -> Vec<u16> {
        let mut numbers: Vec<u16> = self.series.iter().map(|series| series.streams).collect();
        numbers.dedup();
        numbers
    }

    /// Speed of `this` as a multiple of `other` with so many streams: the median of the ratios within each
    /// turn.
    fn ratio(&self, streams: u16, this: Subject, other: Subject) -> Option<f64> {
        let pairs = self.of(streams, this)?.gbit_s.iter().zip(&self.of(streams, other)?.gbit_s);
        median(&pairs.map(|(this, other)| this / other).collect::<Vec<_>>())
    }

    /// The lowest ratio with any number of streams; `None` if there is one that was not measured.
    pub(super) fn lowest_ratio(&self, this: Subject, other: Subject) -> Option<f64> {
        let ratios: Option<Vec<f64>> =
            self.streams().into_iter().map(|streams| self.ratio(streams, this, other)).collect();
        ratios?.into_iter().reduce(f64::min)
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let heads = ["TCP streams", "", "Gbit/s", "lowest", "highest", "testudo is"];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        for series in &self.series {
            let Series { streams, subject, .. } = *series;
            let ratio = match subject {
                Subject::Testudo => String::new(),
                other => self
                    .ratio(streams, Subject::Testudo, other)
                    .map_or_else(String::new, |ratio| format!("{ratio:.2} ×")),
            };
            let Spread { median, lowest, highest } = series.spread();
            let names = [streams.to_string(), subject.name().to_owned()];
            let figures = [median, lowest, highest].map(|figure| format!("{figure:.2}"));
            rows.push([names.to_vec(), figures.to_vec(), vec![ratio]].concat());
        }
        let turns = self.series.first().map_or(0, |series| series.gbit_s.len());
        let Self { engine, suite, seconds, .. } = self;
        let workers = if self.workers == 1 { "1 worker".into() } else { format!("{} workers", self.workers) };
        let mut text = Table::report(rows).to_string();
        text += &format!(
            "\n  medians of {turns} turns of {seconds} s; testudo: {suite}, ESP in UDP, {engine}, {workers}\n"
        );
        text += &match &self.wireguard {
            Some(wireguard) => format!("  wireguard-go: {wireguard}\n"),
            None => "  wireguard-go is not installed: `go install golang.zx2c4.com/wireguard@latest` and the package \
                     wireguard-tools\n"
                .to_owned(),
        };
        text
    }

    /// For programs: `streams`, an array with one object for each number of streams, and of the lowest of
    /// them its members again beside the array. These are `bare_gbit_s`, `testudo_gbit_s`,
    /// `wireguard_go_gbit_s`, each with `…_all`, and the ratios. `wireguard_go_path` and
    /// `wireguard_go_version` identify the program measured; null if there was none or it did not print its
    /// version.
    pub(super) fn json(&self) -> Value {
        let all: Vec<Map<String, Value>> =
            self.streams().into_iter().map(|streams| self.json_of(streams)).collect();
        let mut object = all.first().cloned().unwrap_or_default();
        object.insert("streams".to_owned(), json!(all));
        let path = self.wireguard.as_ref().map(|w| w.path.to_string_lossy());
        let version = self.wireguard.as_ref().and_then(|w| w.version.as_deref());
        object.insert("wireguard_go_path".to_owned(), json!(path));
        object.insert("wireguard_go_version".to_owned(), json!(version));
        object.insert("engine".to_owned(), json!(self.engine));
        object.insert("suite".to_owned(), json!(self.suite));
        object.insert("workers".to_owned(), json!(self.workers));
        object.insert("seconds".to_owned(), json!(self.seconds));
        Value::Object(object)
    }

    /// The figures with so many streams.
    fn json_of(&self, streams: u16) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("streams".to_owned(), json!(streams));
        for series in self.series.iter().filter(|series| series.streams == streams) {
            let name = match series.subject {
                Subject::Bare => "bare",
                Subject::Testudo => "testudo",
                Subject::WireguardGo => "wireguard_go",
            };
            object.insert(format!("{name}_gbit_s"), json!(series.spread().median));
            object.insert(format!("{name}_gbit_s_all"), json!(series.gbit_s));
        }
        let ratio = |other| json!(self.ratio(streams, Subject::Testudo, other));
        object.insert("ratio_to_bare".to_owned(), ratio(Subject::Bare));
        object.insert("ratio_to_wireguard_go".to_owned(), ratio(Subject::WireguardGo));
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(wireguard_go: Option<Vec<f64>>) -> Report {
        let mut series = vec![
            Series { streams: 1, subject: Subject::Bare, gbit_s: vec![10.0, 20.0, 12.0] },
            Series { streams: 1, subject: Subject::Testudo, gbit_s: vec![5.0, 10.0, 9.0] },
        ];
        let wireguard = wireguard_go.as_ref().map(|_| WireguardGo {
            path: "/opt/wireguard-go".into(),
            version: Some("wireguard-go v1".to_owned()),
        });
        let wireguard_go =
            wireguard_go.map(|gbit_s| Series { streams: 1, subject: Subject::WireguardGo, gbit_s });
        series.extend(wireguard_go);
        let (engine, suite) = ("portable".to_owned(), "aes128gcm16".to_owned());
        Report { series, engine, wireguard, suite, workers: 2, seconds: 3 }
    }

    #[test]
    fn ratios_are_taken_within_a_turn() {
        let report = report(Some(vec![2.5, 2.0, 3.0]));
        assert_eq!(report.ratio(1, Subject::Testudo, Subject::Bare), Some(0.5));
        assert_eq!(report.lowest_ratio(Subject::Testudo, Subject::WireguardGo), Some(3.0));
        let json = report.json();
        assert_eq!(json["ratio_to_wireguard_go"], 3.0);
        assert_eq!(json["testudo_gbit_s"], 9.0);
    }

    #[test]
    fn a_missing_wireguard_go_is_reported_and_gives_no_ratio() {
        let report = report(None);
        assert!(report.table().contains("wireguard-go is not installed"), "{}", report.table());
        let json = report.json();
        let keys = ["ratio_to_wireguard_go", "wireguard_go_path", "wireguard_go_version"];
        assert!(keys.iter().all(|key| json[key].is_null()), "{json}");
    }

    /// Each number of streams has its own figures, and a required ratio holds for all of them.
    #[test]
    fn numbers_of_streams_are_apart() {
        let mut report = report(Some(vec![2.5, 2.0, 3.0]));
        report.series.push(Series { streams: 8, subject: Subject::Testudo, gbit_s: vec![8.0; 3] });
        assert_eq!(report.lowest_ratio(Subject::Testudo, Subject::WireguardGo), None, "not measured with 8");
        report.series.push(Series { streams: 8, subject: Subject::WireguardGo, gbit_s: vec![4.0; 3] });
        assert_eq!(report.lowest_ratio(Subject::Testudo, Subject::WireguardGo), Some(2.0));
        let json = report.json();
        let ratios: Vec<_> = json["streams"].as_array().unwrap().iter().collect();
        assert_eq!(ratios.len(), 2);
        assert_eq!((&ratios[0]["streams"], &ratios[0]["ratio_to_wireguard_go"]), (&json!(1), &json!(3.0)));
        assert_eq!((&ratios[1]["streams"], &ratios[1]["testudo_gbit_s"]), (&json!(8), &json!(8.0)));
        assert_eq!(json["testudo_gbit_s"], 9.0, "the first number of streams stands beside the array");
        assert_eq!(json["workers"], 2);
        assert_eq!(report.table().lines().filter(|line| line.contains("testudo  ")).count(), 2);
    }

    #[test]
    fn the_measured_wireguard_go_is_reported() {
        let mut report = report(Some(vec![2.5, 2.0, 3.0]));
        let last = |report: &Report| report.table().lines().last().map(str::to_owned).unwrap();
        assert_eq!(last(&report), "  wireguard-go: /opt/wireguard-go, wireguard-go v1");
        let json = report.json();
        assert_eq!(json["wireguard_go_path"], "/opt/wireguard-go");
        assert_eq!(json["wireguard_go_version"], "wireguard-go v1");
        report.wireguard.as_mut().unwrap().version = None;
        assert_eq!(last(&report), "  wireguard-go: /opt/wireguard-go, version unknown");
        assert!(report.json()["wireguard_go_version"].is_null());
    }

    #[test]
    fn the_table_shows_median_and_spread() {
        let table = report(Some(vec![2.5, 2.0, 3.0])).table();
        let row = table.lines().find(|line| line.contains("bare link")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells, ["1", "bare", "link", "12.00", "10.00", "20.00", "0.50", "×"], "{table}");
    }
}
