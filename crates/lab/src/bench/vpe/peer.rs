//! Figures of DPDK's ipsec-secgw, which `scripts/bench-peer.sh` measures: it needs root and huge pages.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use crate::bench::error::BenchError;

/// The longest file that is read, in bytes: it has a few lines.
const MOST_BYTES: u64 = 1 << 20;
/// Why there are none, and how they come about.
pub(super) const NOT_MEASURED: &str = "not measured here: it takes root and huge pages; \
    JSON=FILE make bench-peer CASES='gcm:82 gcm:1438' measures it, and --peer-json FILE shows it";

/// What it seals with one thread, packets of one length.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct PeerFigure {
    pub(super) suite: String,
    /// Of the inner IP packet.
    pub(super) inner_bytes: usize,
    pub(super) packets_per_second: f64,
}

/// Reads what `scripts/bench-peer.sh` wrote.
pub(super) fn read(path: &Path) -> Result<Vec<PeerFigure>, BenchError> {
    let mut text = String::new();
    let file = File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
    file.map_err(|source| BenchError::File { path: path.to_owned(), source })?;
    parse(&text).map_err(|what| BenchError::Malformed { path: path.to_owned(), what })
}

fn parse(text: &str) -> Result<Vec<PeerFigure>, String> {
    let figures: Vec<PeerFigure> = serde_json::from_str(text)
        .map_err(|e| format!("not what scripts/bench-peer.sh writes with JSON=FILE: {e}"))?;
    match figures.iter().find(|figure| figure.packets_per_second <= 0.0) {
        Some(wrong) => Err(format!("impossible packets per second of {} bytes", wrong.inner_bytes)),
        None => Ok(figures),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_and_what_is_none_is_refused() {
        let text =
            r#"[{"suite": "aes128gcm16", "inner_bytes": 64, "packets_per_second": 2500000, "more": 1}]"#;
        let figures = parse(text).unwrap();
        assert_eq!((figures.len(), figures[0].inner_bytes), (1, 64));
        for (wrong, reason) in [
            ("", "EOF"),
            ("{}", "sequence"),
            (r#"[{"suite": "aes128gcm16", "inner_bytes": 64}]"#, "missing field"),
            (&text.replace("2500000", "-1"), "impossible"),
            (&text.replace("2500000", "0"), "impossible"),
        ] {
            assert!(parse(wrong).unwrap_err().contains(reason), "{wrong}");
        }
        assert!(read(Path::new("/nowhere/at-all.json")).unwrap_err().to_string().starts_with("/nowhere"));
    }
}
