//! Where auditable events are written (RFC 4303 4): a line of JSON for each, in the log or in a file of its
//! own.

use crate::config::AuditTarget;
use rustix::fs::OFlags;
use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use testudo_ipsec::{AuditRecord, IpsecProtocol};

/// The destination of audit lines.
#[derive(Debug)]
pub(super) struct AuditLog {
    /// `None` for the log.
    file: Option<File>,
    /// Whether the file ends within a line that could not be written whole.
    is_torn: bool,
}

impl AuditLog {
    /// Opens the file, which is appended to, and readable by its owner alone if it is new.
    ///
    /// # Errors
    /// That of the system; or it is no regular file.
    pub(super) fn open(target: &AuditTarget) -> io::Result<Self> {
        let file = match target {
            AuditTarget::Off | AuditTarget::Log => None,
            AuditTarget::File(path) => {
                let told = |e: io::Error| io::Error::new(e.kind(), format!("audit: {}: {e}", path.display()));
                Some(open_regular(path).map_err(told)?)
            }
        };
        Ok(Self { file, is_torn: false })
    }

    /// Writes an event. Where a file cannot be written, the log has the line.
    pub(super) fn write(&mut self, record: &AuditRecord) {
        self.put(&line(record, since_1970()));
    }

    /// Writes that an operator has done something: a request of [`key_export`](super::key_export), with the
    /// name of its verb as the event.
    pub(super) fn write_note(&mut self, request: &Value) {
        self.put(&note(request, since_1970()));
    }

    fn put(&mut self, line: &Value) {
        let is_torn = &mut self.is_torn;
        let is_written = self.file.as_mut().is_some_and(|file| append(file, is_torn, line).is_ok());
        if !is_written {
            tracing::warn!("audit: {line}");
        }
    }
}

/// A pipe would have the gateway wait for its reader, now or when it is full.
fn open_regular(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file; `audit = \"log\"` writes to the log"));
    }
    Ok(file)
}

/// Appends a line in one piece, so that a crash leaves no part of one. After a full disk has cut one, the
/// next begins on a line of its own.
fn append(out: &mut impl Write, is_torn: &mut bool, line: &Value) -> io::Result<()> {
    let begin = if *is_torn { "\n" } else { "" };
    let text = format!("{begin}{line}\n");
    *is_torn = true;
    out.write_all(text.as_bytes())?;
    *is_torn = false;
    Ok(())
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The line of an operator's doing.
fn note(request: &Value, since_1970: Duration) -> Value {
    let mut fields = Map::new();
    fields.insert("time".to_owned(), json!(date_and_time(since_1970)));
    fields.insert("event".to_owned(), request["verb"].clone());
    let others = request.as_object().into_iter().flatten();
    let others = others.filter(|(key, value)| *key != "verb" && !value.is_null());
    fields.extend(others.map(|(key, value)| (key.clone(), value.clone())));
    Value::Object(fields)
}

/// The line: what is not known is left out.
fn line(record: &AuditRecord, since_1970: Duration) -> Value {
    let AuditRecord {
        reason, protocol, spi, sequence, source, destination, flow_label, inner, untold, ..
    } = *record;
    let mut fields = Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        fields.extend(value.map(|value| (key.to_owned(), value)));
    };
    put("time", Some(json!(date_and_time(since_1970))));
    put("event", Some(json!(reason.name())));
    let name = |protocol| match protocol {
        IpsecProtocol::Esp => "esp",
        IpsecProtocol::Ah => "ah",
        IpsecProtocol::Vpe => "vpe",
    };
    put("tunnel", record.tunnel.as_deref().map(|name| json!(name)));
    put("protocol", protocol.map(|protocol| json!(name(protocol))));
    put("spi", spi.map(|spi| json!(spi)));
    put("source", source.map(|address| json!(address)));
    put("destination", destination.map(|address| json!(address)));
    put("sequence", sequence.map(|sequence| json!(sequence)));
    put("flow_label", flow_label.map(|label| json!(label)));
    if let Some(inner) = inner {
        put("inner_source", Some(json!(inner.source)));
        put("inner_destination", Some(json!(inner.destination)));
        put("inner_protocol", inner.protocol.map(|protocol| json!(protocol)));
        put("inner_ports", inner.ports.map(|(source, destination)| json!([source, destination])));
    }
    put("untold", (untold > 0).then(|| json!(untold)));
    Value::Object(fields)
}

/// A time of RFC 3339, in UTC, to the millisecond.
fn date_and_time(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let millisecond = since_1970.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
}

/// Year, month and day of a day since 1970-01-01, in the Gregorian calendar.
fn date(day: u64) -> (u64, u64, u64) {
    // Years begin with March here, so that a leap day is a year's last; 719,468 days lie between 0000-03-01
    // and 1970-01-01, and 146,097 in 400 years.
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year + era * 400 + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_packet::DropReason;

    /// Times of `date -u -d @SECONDS +%FT%T`.
    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_709_251_200, "2024-03-01T00:00:00.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(date_and_time(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn what_an_operator_has_done_is_an_event_with_what_is_known_of_it() {
        let request = json!({ "verb": "keys_read", "user": 0, "tunnel": null, "sas": 4 });
        let line = note(&request, Duration::from_secs(951_782_400)).to_string();
        assert_eq!(line, r#"{"event":"keys_read","sas":4,"time":"2000-02-29T00:00:00.000Z","user":0}"#);
    }

    /// Takes some bytes, then no more; counts calls.
    struct Disk {
        written: Vec<u8>,
        room: usize,
        calls: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.calls += 1;
            let taken = bytes.len().min(self.room - self.written.len());
            self.written.extend(&bytes[..taken]);
            if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_is_written_in_one_piece_and_one_that_a_full_disk_cuts_spoils_no_other() {
        let (mut disk, mut is_torn) = (Disk { written: Vec::new(), room: 40, calls: 0 }, false);
        let event = |number: u32| json!({ "event": "authentication_failed", "spi": number });
        assert!(append(&mut disk, &mut is_torn, &event(1)).is_err());
        (disk.room, disk.calls) = (1000, 0);
        assert!(append(&mut disk, &mut is_torn, &event(2)).is_ok());
        assert!(append(&mut disk, &mut is_torn, &event(3)).is_ok());
        assert_eq!(disk.calls, 2);
        let text = String::from_utf8(disk.written).unwrap();
        let whole: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        assert_eq!(whole, [event(2), event(3)], "{text}");
    }

    #[test]
    fn a_pipe_is_no_file_for_audit_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        let refused =
            |path: &Path| AuditLog::open(&AuditTarget::File(path.to_owned())).unwrap_err().to_string();
        assert!(refused(&path).contains("pipe: "), "without a reader");
        let _reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert!(refused(&path).contains("not a regular file"), "with one");
    }

    #[test]
    fn a_line_has_what_is_known_and_nothing_else() {
        let record = AuditRecord {
            reason: DropReason::AuthenticationFailed,
            tunnel: None,
            protocol: Some(IpsecProtocol::Esp),
            spi: Some(0x1001),
            sequence: Some(7),
            source: Some("2001:db8::1".parse().unwrap()),
            destination: Some("2001:db8::2".parse().unwrap()),
            flow_label: Some(0xABCDE),
            inner: None,
            untold: 3,
        };
        let expected = json!({
            "time": "1970-01-01T00:00:01.500Z", "event": "authentication_failed", "protocol": "esp", "spi": 0x1001,
            "sequence": 7, "source": "2001:db8::1", "destination": "2001:db8::2", "flow_label": 0xABCDE, "untold": 3,
        });
        assert_eq!(line(&record, Duration::from_millis(1500)), expected);
        let waiting =
            AuditRecord { reason: DropReason::HoldExpired, tunnel: Some("branch".into()), ..record.clone() };
        let line_of_waiting = line(&waiting, Duration::ZERO);
        assert_eq!(
            (&line_of_waiting["event"], &line_of_waiting["tunnel"]),
            (&json!("hold_expired"), &json!("branch"))
        );
        let bare = AuditRecord {
            protocol: None,
            spi: None,
            sequence: None,
            source: None,
            destination: None,
            flow_label: None,
            ..record
        };
        let keys: Vec<_> = line(&bare, Duration::ZERO).as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["event", "time", "untold"]);
    }
}
