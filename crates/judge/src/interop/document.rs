//! The matrix for people and for programs: docs/INTEROP.md, a summary, and JSON.

use super::peer::Peer;
use super::results::{Results, Verdict};
use super::row::{Mode, Protocol, Row, ah_name, all_rows};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What the document says about the run.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Version and commit of the program.
    pub program: String,
    /// The day, as 2026-11-22.
    pub date: String,
}

/// What became of a row, in a word.
fn outcome(results: &Results, peer: Peer, row: &Row) -> &'static str {
    results.of(peer, row).map_or("not run", |verdict| match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail(_) => "FAIL",
        Verdict::Lacking(_) => "lacking",
    })
}

/// One line for each peer: how many rows there are, and what became of them.
#[must_use]
pub fn summary(results: &Results) -> String {
    let lines = Peer::ALL.map(|peer| format!("{peer}: {}", counts(results, peer)));
    lines.join("\n")
}

fn counts(results: &Results, peer: Peer) -> String {
    let rows = all_rows();
    let count = |word: &str| rows.iter().filter(|row| outcome(results, peer, row) == word).count();
    let [pass, fail, lacking, rest] = ["pass", "FAIL", "lacking", "not run"].map(count);
    format!(
        "{} rows: {pass} passed, {fail} failed, {lacking} lacking at the peer, {rest} not run",
        rows.len()
    )
}

/// All rows with each peer, as objects of protocol, mode, suite, family, ESN, peer, result (`pass`, `fail`,
/// `lacking`, `not run`) and reason. A peer that no row was run with has only its kind for a name.
#[must_use]
pub fn json(results: &Results) -> Value {
    let rows = all_rows();
    let object = |peer: Peer, row: &Row| {
        let verdict = results.of(peer, row);
        json!({
            "protocol": row.protocol.name(),
            "mode": row.mode.name(),
            "suite": row.suites(),
            "family": row.family(),
            "esn": row.esn,
            "peer": results.name(peer).unwrap_or(peer.name()),
            "result": verdict.map_or("not run", Verdict::name),
            "reason": verdict.map_or("", Verdict::reason),
        })
    };
    Peer::ALL.iter().flat_map(|peer| rows.iter().map(|row| object(*peer, row))).collect()
}

/// The text of docs/INTEROP.md.
#[must_use]
pub fn document(results: &Results, facts: &Facts) -> String {
    let rows = all_rows();
    let mut page = Page { results, rows: &rows, notes: BTreeMap::new() };
    let tables = [Protocol::Esp, Protocol::AhAndEsp, Protocol::Ah, Protocol::EspInUdp]
        .map(|protocol| (heading(protocol), page.table(protocol)));
    let mut text = introduction(results, facts);
    for (heading, table) in tables {
        let _ = write!(text, "\n## {heading}\n\n{table}");
    }
    text + &page.list_of_notes()
}

fn introduction(results: &Results, facts: &Facts) -> String {
    let Facts { program, date } = facts;
    let mut text =
        "# Interoperability\n\n`make interop` wrote this page; do not edit it.\n\n| | |\n| --- | --- |\n"
            .to_owned();
    let _ = write!(text, "| program | {program} |\n| date | {date} |\n");
    for peer in Peer::ALL {
        let name = results.name(peer).unwrap_or("not run");
        let how = match peer {
            Peer::Linux => ", unmodified, in a virtual machine",
            Peer::Scapy => ", through `testudo replay`",
        };
        let how = if results.name(peer).is_some() { how } else { "" };
        let _ = writeln!(text, "| {peer} | {name}{how}: {} |", counts(results, peer));
    }
    format!("{text}\n{EXPLANATION}")
}

/// What a row is, and what cannot be tried.
const EXPLANATION: &str = "\
A row is one tunnel with keys of its own: a protocol, a mode, a suite, the IP version outside, extended sequence
numbers or not. Through each pass pings, TCP, and a datagram of UDP of 5,000 bytes, which needs fragments, all of
it both ways; in tunnel mode with IPv4 and IPv6 inside, in transport mode between the hosts' own addresses. A row
passes if all arrives unchanged, each SA has carried packets, and neither end has counted an error.

With Linux the whole program runs against the kernel's own IPsec (`ip xfrm`), with 64 KiB of TCP to the peer and
back. With Scapy packet files go through the same data path, and sequence numbers cross 2^32 with ESN. Scapy 2.5
has neither AES-XCBC nor AES-GMAC nor implicit IVs: these are written down from RFC 3566, RFC 4543 and RFC 8750 in
`tests/scapy/algorithms.py`, on OpenSSL's ciphers.

A cell of the tables stands for four rows: IPv4 and IPv6 outside, each with and without extended sequence numbers.
\"pass\": all four passed. \"lacking\": the peer does not have the suite. Where the four differ, those that did not
pass are named: \"IPv6, ESN\" is IPv6 outside with extended sequence numbers. Numbers lead to the notes at the end.

Peculiarities of Linux, which these rows respect:

- AH over IPv4 needs `flag align4`. Without it Linux pads AH to 8 bytes (RFC 4302 2.6 wants 4).
- Through AH over ESP in tunnel mode it takes only packets of the IP version outside, so only these pass here: it
  compares them with the selector of AH's SA, too, which in transport mode cannot be for both versions.
- In transport mode it applies a policy for all packets between two hosts to Neighbor Discovery and to the UDP
  that ESP is in, too. It has policies here that let these pass in clear.
- It has no implicit IVs (RFC 8750), and no combined mode in AH (RFC 4543 4).

Defects of Scapy 2.5, which the scripts mend: it leaves the high half of an extended sequence number out of the ICV
of ESP with an integrity algorithm (RFC 4303 2.2.1), seals with AES-GCM only with ICVs of 16 bytes, writes the ICV
of AH into ESP where AH covers that, and counts by itself where the low half of a number is 0.
";

/// What tells a row from the others of its cell.
fn within_cell(row: &Row) -> String {
    let version = if row.ipv6 { "IPv6" } else { "IPv4" };
    format!("{version}{}", if row.esn { ", ESN" } else { "" })
}

const fn heading(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Esp => "ESP",
        Protocol::EspInUdp => "ESP in UDP (NAT traversal)",
        Protocol::Ah => "AH",
        Protocol::AhAndEsp => "AH over ESP",
    }
}

struct Page<'a> {
    results: &'a Results,
    rows: &'a [Row],
    /// Reasons with their numbers, and the rows that each is about.
    notes: BTreeMap<usize, (String, Vec<(Peer, Row)>)>,
}

impl Page<'_> {
    fn table(&mut self, protocol: Protocol) -> String {
        let both = protocol == Protocol::AhAndEsp;
        let columns = Peer::ALL.map(|peer| format!("{peer}, tunnel | {peer}, transport"));
        let mut text =
            format!("| suite |{} {} |\n", if both { " with AH |" } else { "" }, columns.join(" | "));
        text += if both { "| --- | --- |" } else { "| --- |" };
        text += &" --- | --- |".repeat(Peer::ALL.len());
        text.push('\n');
        let of_protocol: Vec<Row> = self.rows.iter().copied().filter(|r| r.protocol == protocol).collect();
        let first = of_protocol.first().copied();
        let lines = of_protocol.iter().filter(|row| {
            first.is_some_and(|first| (row.mode, row.ipv6, row.esn) == (first.mode, first.ipv6, first.esn))
        });
        for line in lines {
            let name = if protocol == Protocol::Ah { ah_name(line.suite) } else { line.suite.to_string() };
            let ah = line.ah.map_or(String::new(), |ah| format!(" `{}` |", ah_name(ah)));
            let mut cells = Vec::new();
            for (peer, mode) in Peer::ALL.into_iter().flat_map(|peer| Mode::ALL.map(|mode| (peer, mode))) {
                let is_here = |row: &&Row| row.mode == mode && row.suite == line.suite;
                let rows: Vec<Row> = of_protocol.iter().filter(is_here).copied().collect();
                cells.push(self.cell(peer, &rows));
            }
            let _ = writeln!(text, "| `{name}` |{ah} {} |", cells.join(" | "));
        }
        text
    }

    /// What became of the rows of a cell.
    fn cell(&mut self, peer: Peer, rows: &[Row]) -> String {
        let mut numbers: Vec<usize> = Vec::new();
        for row in rows {
            let reason = self.results.of(peer, row).map(Verdict::reason).filter(|r| !r.is_empty());
            if let Some(reason) = reason {
                numbers.push(self.note(reason.to_owned(), peer, *row));
            }
        }
        numbers.sort_unstable();
        numbers.dedup();
        let notes: String = numbers.iter().map(|number| format!(" ({number})")).collect();
        self.outcomes(peer, rows) + &notes
    }

    /// One word where the rows of a cell agree; otherwise how many passed, and which others did not.
    fn outcomes(&self, peer: Peer, rows: &[Row]) -> String {
        let mut said = Vec::new();
        for kind in ["pass", "FAIL", "lacking", "not run"] {
            let those: Vec<&Row> =
                rows.iter().filter(|row| outcome(self.results, peer, row) == kind).collect();
            let names: Vec<String> = those.iter().map(|row| within_cell(row)).collect();
            match those.len() {
                0 => {}
                all if all == rows.len() => said.push(kind.to_owned()),
                count if kind == "pass" => said.push(format!("{count} pass")),
                _ => said.push(format!("{kind}: {}", names.join("; "))),
            }
        }
        said.join(". ")
    }

    /// The number of a note, which is about this row, too.
    fn note(&mut self, reason: String, peer: Peer, row: Row) -> usize {
        let known = self.notes.iter().find(|(_, (other, _))| *other == reason).map(|(number, _)| *number);
        let number = known.unwrap_or(self.notes.len() + 1);
        self.notes.entry(number).or_insert_with(|| (reason, Vec::new())).1.push((peer, row));
        number
    }

    fn list_of_notes(&self) -> String {
        if self.notes.is_empty() {
            return String::new();
        }
        let mut text = "\n## Notes\n\n".to_owned();
        for (number, (reason, rows)) in &self.notes {
            // A reason may have several lines; a list's item is one paragraph.
            let reason: Vec<&str> = reason.split_whitespace().collect();
            let _ = write!(text, "{number}. {}", reason.join(" "));
            let (peer, first) = &rows[0];
            match (self.results.of(*peer, first), rows.len()) {
                (Some(Verdict::Fail(_)), 0..=8) => {
                    let rows: Vec<String> = rows.iter().map(|(peer, row)| format!("{peer}: {row}")).collect();
                    let _ = writeln!(text, " ({})", rows.join("; "));
                }
                (_, count) => {
                    let _ = writeln!(text, " ({count} rows)");
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_crypto::Suite;

    fn results(name: &str, verdict: impl Fn(&Row) -> Option<Verdict>) -> Results {
        let path = std::env::temp_dir().join(format!("testudo-document-{}-{name}", std::process::id()));
        let rows = all_rows();
        let mut results = Results::open(&path, "p", &rows).expect("no file is no error");
        let known = rows.iter().filter_map(|row| Some((*row, verdict(row)?))).collect();
        results.add(Peer::Linux, "Linux 6.1", known).expect("writable");
        std::fs::remove_file(&path).expect("removable");
        results
    }

    fn facts() -> Facts {
        Facts { program: "testudo 1".to_owned(), date: "2026-01-02".to_owned() }
    }

    #[test]
    fn the_document_has_a_line_for_every_suite_and_says_which_rows_were_not_run() {
        let results = results("lines", |row| (row.protocol == Protocol::Ah).then_some(Verdict::Pass));
        let text = document(&results, &facts());
        for suite in Suite::ALL {
            assert!(
                text.contains(&format!("\n| `{suite}` | not run | not run | not run | not run |\n")),
                "{suite}\n{text}"
            );
        }
        for suite in Suite::all_for_ah() {
            let line = format!("\n| `{}` | pass | pass | not run | not run |\n", ah_name(suite));
            assert!(text.contains(&line), "{line}\n{text}");
        }
        assert!(text.contains("80 passed, 0 failed, 0 lacking at the peer, 1520 not run"), "{text}");
        assert!(text.contains("| date | 2026-01-02 |") && !text.contains("## Notes"), "{text}");
    }

    #[test]
    fn reasons_become_notes_which_name_the_rows_that_failed() {
        let is_lost = |row: &Row| row.suite == Suite::AES128GCM16 && row.ipv6 && row.esn;
        let results = results("notes", |row| {
            Some(match row {
                row if row.has_counter_nonces() => Verdict::Lacking("no implicit\nIVs".to_owned()),
                row if is_lost(row) && row.protocol == Protocol::Esp => Verdict::Fail("lost".to_owned()),
                _ => Verdict::Pass,
            })
        });
        let text = document(&results, &facts());
        let failed = "3 pass. FAIL: IPv6, ESN (1)";
        assert!(
            text.contains(&format!("| `aes128gcm16` | {failed} | {failed} | not run | not run |")),
            "{text}"
        );
        assert!(text.contains("| `aes128gcm16iiv` | lacking (2) | lacking (2) | not run"), "{text}");
        assert!(
            text.contains("1. lost (Linux: esp tunnel aes128gcm16 over ipv6, ESN; Linux: esp transport"),
            "{text}"
        );
        assert!(text.contains("2. no implicit IVs (112 rows)"), "{text}");
    }

    #[test]
    fn a_cell_names_the_rows_that_were_not_run() {
        let results = results("rest", |row| (!row.ipv6).then_some(Verdict::Pass));
        let text = document(&results, &facts());
        let rest = "2 pass. not run: IPv6; IPv6, ESN";
        assert!(text.contains(&format!("| `aes128gcm16` | {rest} | {rest} | not run")), "{text}");
    }

    #[test]
    fn json_has_every_row_with_its_fields() {
        let results = results("json", |row| row.esn.then_some(Verdict::Fail("lost".to_owned())));
        let rows = json(&results);
        assert_eq!(rows.as_array().map(Vec::len), Some(2 * all_rows().len()));
        let expected = json!({
            "protocol": "esp", "mode": "tunnel", "suite": "aes128gcm8", "family": "ipv4", "esn": true,
            "peer": "Linux 6.1", "result": "fail", "reason": "lost",
        });
        assert!(rows.as_array().into_iter().flatten().any(|row| *row == expected));
        let of_both = |row: &&Value| row["protocol"] == "ah+esp" && row["suite"] == "aes128gcm8+md5";
        let rest = rows.as_array().into_iter().flatten().filter(of_both).filter(|row| row["esn"] == false);
        // With each peer.
        assert_eq!(rest.filter(|row| row["result"] == "not run").count(), 8);
    }
}
