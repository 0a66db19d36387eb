//! Medians, spread and ratios.

use serde_json::{Map, Value, json};

use super::subject::Subject;
use super::wireguard::WireguardGo;
use crate::statistics::Spread;
use crate::table::Table;
use crate::traffic::median;

/// The measurements of one subject, in order of turns.
#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) subject: Subject,
    pub(super) gbit_s: Vec<f64>,
}

impl Series {
    pub(super) fn new(subject: Subject) -> Self {
        Self { subject, gbit_s: Vec::new() }
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
    pub(super) seconds: u64,
}

impl Report {
    fn of(&self, subject: Subject) -> Option<&Series> {
        self.series.iter().find(|series| series.subject == subject)
    }

    /// Speed of `this` as a multiple of `other`: the median of the ratios within each turn.
    pub(super) fn ratio(&self, this: Subject, other: Subject) -> Option<f64> {
        let pairs = self.of(this)?.gbit_s.iter().zip(&self.of(other)?.gbit_s);
        median(&pairs.map(|(this, other)| this / other).collect::<Vec<_>>())
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let mut rows =
            vec![["one TCP stream", "Gbit/s", "lowest", "highest", "testudo is"].map(str::to_owned).to_vec()];
        for series in &self.series {
            let ratio = match series.subject {
                Subject::Testudo => String::new(),
                other => {
                    self.ratio(Subject::Testudo, other).map_or_else(String::new, |r| format!("{r:.2} ×"))
                }
            };
            let Spread { median, lowest, highest } = series.spread();
            let name = series.subject.name().to_owned();
            let figures = [median, lowest, highest].map(|figure| format!("{figure:.2}"));
            rows.push([vec![name], figures.to_vec(), vec![ratio]].concat());
        }
        let turns = self.series.first().map_or(0, |series| series.gbit_s.len());
        let Self { engine, suite, seconds, .. } = self;
        let mut text = Table::report(rows).to_string();
        text +=
            &format!("\n  medians of {turns} turns of {seconds} s; testudo: {suite}, ESP in UDP, {engine}\n");
        text += &match &self.wireguard {
            Some(wireguard) => format!("  wireguard-go: {wireguard}\n"),
            None => "  wireguard-go is not installed: `go install golang.zx2c4.com/wireguard@latest` and the package \
                     wireguard-tools\n"
                .to_owned(),
        };
        text
    }

    /// For programs: `bare_gbit_s`, `testudo_gbit_s`, `wireguard_go_gbit_s`, each with `…_all`, and the
    /// ratios. `wireguard_go_path` and `wireguard_go_version` identify the program measured; null if there
    /// was none or it did not print its version.
    pub(super) fn json(&self) -> Value {
        let mut object = Map::new();
        for series in &self.series {
            let name = match series.subject {
                Subject::Bare => "bare",
                Subject::Testudo => "testudo",
                Subject::WireguardGo => "wireguard_go",
            };
            object.insert(format!("{name}_gbit_s"), json!(series.spread().median));
            object.insert(format!("{name}_gbit_s_all"), json!(series.gbit_s));
        }
        let ratio = |other| json!(self.ratio(Subject::Testudo, other));
        object.insert("ratio_to_bare".to_owned(), ratio(Subject::Bare));
        object.insert("ratio_to_wireguard_go".to_owned(), ratio(Subject::WireguardGo));
        let path = self.wireguard.as_ref().map(|w| w.path.to_string_lossy());
        let version = self.wireguard.as_ref().and_then(|w| w.version.as_deref());
        object.insert("wireguard_go_path".to_owned(), json!(path));
        object.insert("wireguard_go_version".to_owned(), json!(version));
        object.insert("engine".to_owned(), json!(self.engine));
        object.insert("suite".to_owned(), json!(self.suite));
        object.insert("seconds".to_owned(), json!(self.seconds));
        Value::Object(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(wireguard_go: Option<Vec<f64>>) -> Report {
        let mut series = vec![
            Series { subject: Subject::Bare, gbit_s: vec![10.0, 20.0, 12.0] },
            Series { subject: Subject::Testudo, gbit_s: vec![5.0, 10.0, 9.0] },
        ];
        let wireguard = wireguard_go.as_ref().map(|_| WireguardGo {
            path: "/opt/wireguard-go".into(),
            version: Some("wireguard-go v1".to_owned()),
        });
        series.extend(wireguard_go.map(|gbit_s| Series { subject: Subject::WireguardGo, gbit_s }));
        let (engine, suite) = ("portable".to_owned(), "aes128gcm16".to_owned());
        Report { series, engine, wireguard, suite, seconds: 3 }
    }

    #[test]
    fn ratios_are_taken_within_a_turn() {
        let report = report(Some(vec![2.5, 2.0, 3.0]));
        assert_eq!(report.ratio(Subject::Testudo, Subject::Bare), Some(0.5));
        assert_eq!(report.ratio(Subject::Testudo, Subject::WireguardGo), Some(3.0));
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
        assert_eq!(cells, ["bare", "link", "12.00", "10.00", "20.00", "0.50", "×"], "{table}");
    }
}
