//! `testudo sa keys`: the keys of live SAs, for those who may have them, in the form that Wireshark reads.
//!
//! Wireshark's table of ESP SAs is the file `esp_sa` of a profile: a line for each SA, with the names of
//! algorithms as `epan/dissectors/packet-ipsec.c` has them (Wireshark 4.0, Debian 12).

use crate::cli::SaKeysArgs;
use crate::exit::{Failure, Kind};
use crate::out;
use crate::query::{Asked, rows};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use testudo_crypto::{Cipher, Integrity, Suite};
use zeroize::Zeroizing;

/// `testudo sa keys`
pub fn keys(args: &SaKeysArgs) -> Result<(), Failure> {
    testudo_control::service::privileges::hide_memory().map_err(crate::exit::failure(Kind::Port))?;
    let list = Asked::find(&args.gateway)?.change(&json!({ "verb": "sa-keys", "tunnel": args.tunnel }))?;
    let text = Zeroizing::new(if args.gateway.json { format!("{list}\n") } else { wireshark(&list) });
    let Some(path) = &args.output else {
        out::write(&text);
        return Ok(());
    };
    let written = if args.force { replace(path, &text) } else { create(path, &text) };
    written.map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AlreadyExists => "; --force replaces it",
            _ => "",
        };
        Failure::new(Kind::Other, format!("{}: {error}{hint}", path.display()))
    })
}

/// Writes a file that was not there, for its owner alone.
fn create(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes()).inspect_err(|_| {
        // Half of the keys helps nobody, and would be in the way of the next time.
        let _ = std::fs::remove_file(path);
    })
}

/// Puts a new file, for its owner alone, in the place of one that may be there: who has that one open, or may
/// read it, sees nothing of the keys.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".testudo-keys-").tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// A line for each SA of ESP; what Wireshark cannot read is a comment that says so.
fn wireshark(list: &Value) -> String {
    let mut text = String::from(
        "# Wireshark: the file esp_sa of a profile's folder, with \"esp.enable_encryption_decode\" set.\n",
    );
    for sa in rows(list) {
        match line(sa) {
            Ok(line) => text.push_str(&line),
            Err(why) => {
                let part = |key: &str| sa[key].as_str().unwrap_or("?").to_owned();
                let (tunnel, direction, suite) = (part("tunnel"), part("direction"), part("suite"));
                let spi = sa["spi"].as_u64().unwrap_or(0);
                text.push_str(&format!("# left out: {tunnel}, {direction}, {spi:#010x}, {suite}: {why}"));
            }
        }
        text.push('\n');
    }
    text
}

/// The line of an SA.
fn line(sa: &Value) -> Result<String, &'static str> {
    if sa["protocol"] != "esp" {
        return Err("AH hides nothing");
    }
    let suite: Suite = sa["suite"].as_str().and_then(|name| name.parse().ok()).ok_or("an unknown suite")?;
    let (cipher, integrity) = algorithms(suite)?;
    // A peer that has not spoken yet may be anywhere.
    let end = |key: &str| sa[key].as_str().unwrap_or("*").to_owned();
    let (source, destination) = (end("source"), end("destination"));
    let version = if [&source, &destination].iter().any(|end| end.contains(':')) { "IPv6" } else { "IPv4" };
    let key = |name: &str| match sa[name].as_str().unwrap_or_default() {
        "" => String::new(),
        digits => format!("0x{digits}"),
    };
    let (own, of_integrity) = (key("key"), key("integrity_key"));
    let spi = sa["spi"].as_u64().unwrap_or(0);
    Ok(format!(
        "\"{version}\",\"{source}\",\"{destination}\",\"{spi:#010x}\",\"{cipher}\",\"{own}\",\"{integrity}\",\"{of_integrity}\""
    ))
}

/// Wireshark's names of a suite's algorithms.
fn algorithms(suite: Suite) -> Result<(&'static str, &'static str), &'static str> {
    let cipher = match (suite.cipher(), suite.icv_bytes()) {
        (Cipher::AesGcm(_), 8) => "AES-GCM with 8 octet ICV [RFC4106]",
        (Cipher::AesGcm(_), 12) => "AES-GCM with 12 octet ICV [RFC4106]",
        (Cipher::AesGcm(_), _) => "AES-GCM with 16 octet ICV [RFC4106]",
        (Cipher::AesCbc(_), _) => "AES-CBC [RFC3602]",
        (Cipher::AesCtr(_), _) => "AES-CTR [RFC3686]",
        (Cipher::TripleDesCbc, _) => "TripleDES-CBC [RFC2451]",
        (Cipher::DesCbc, _) => "DES-CBC [RFC2405]",
        (Cipher::Null, _) => "NULL",
        (
            Cipher::AesGcmImplicitIv(_)
            | Cipher::AesCcm(_)
            | Cipher::AesCcmImplicitIv(_)
            | Cipher::AesGmac(_)
            | Cipher::ChaCha20Poly1305
            | Cipher::ChaCha20Poly1305ImplicitIv
            | Cipher::AesGcmVpe(_)
            | Cipher::ChaCha20Poly1305Vpe,
            _,
        ) => return Err("Wireshark 4.0 does not know this cipher"),
    };
    let integrity = match suite.integrity() {
        Integrity::Combined | Integrity::None => "NULL",
        Integrity::HmacMd5 => "HMAC-MD5-96 [RFC2403]",
        Integrity::HmacSha1 => "HMAC-SHA-1-96 [RFC2404]",
        Integrity::HmacSha256 => "HMAC-SHA-256-128 [RFC4868]",
        Integrity::HmacSha384 => "HMAC-SHA-384-192 [RFC4868]",
        Integrity::HmacSha512 => "HMAC-SHA-512-256 [RFC4868]",
        // It takes off what it cannot check.
        Integrity::AesXcbc | Integrity::AesCmac => "ANY 96 bit authentication [no checking]",
    };
    Ok((cipher, integrity))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn sa(suite: &str) -> Value {
        json!({
            "tunnel": "site-b", "direction": "outbound", "protocol": "esp", "source": "192.0.2.1",
            "destination": "192.0.2.2", "spi": 0x1001, "suite": suite, "key": "00ff", "integrity_key": "",
        })
    }

    #[test]
    fn an_sa_is_a_line_of_eight_fields_as_wireshark_writes_them() {
        assert_eq!(
            line(&sa("aes128gcm16")).unwrap(),
            "\"IPv4\",\"192.0.2.1\",\"192.0.2.2\",\"0x00001001\",\"AES-GCM with 16 octet ICV [RFC4106]\",\"0x00ff\",\"NULL\",\"\""
        );
        let mut ipv6 = sa("aes256-sha512");
        (ipv6["source"], ipv6["destination"]) = (Value::Null, "2001:db8::1".into());
        ipv6["integrity_key"] = "0102".into();
        assert_eq!(
            line(&ipv6).unwrap(),
            "\"IPv6\",\"*\",\"2001:db8::1\",\"0x00001001\",\"AES-CBC [RFC3602]\",\"0x00ff\",\"HMAC-SHA-512-256 [RFC4868]\",\"0x0102\""
        );
    }

    /// The names that Wireshark 4.0.17 takes: any other one has it read nothing of the whole file.
    #[test]
    fn every_suite_has_names_that_wireshark_knows_or_is_left_out_with_a_reason() {
        const CIPHERS: [&str; 8] = [
            "NULL",
            "TripleDES-CBC [RFC2451]",
            "AES-CBC [RFC3602]",
            "AES-CTR [RFC3686]",
            "DES-CBC [RFC2405]",
            "AES-GCM with 8 octet ICV [RFC4106]",
            "AES-GCM with 12 octet ICV [RFC4106]",
            "AES-GCM with 16 octet ICV [RFC4106]",
        ];
        const INTEGRITIES: [&str; 7] = [
            "NULL",
            "HMAC-MD5-96 [RFC2403]",
            "HMAC-SHA-1-96 [RFC2404]",
            "HMAC-SHA-256-128 [RFC4868]",
            "HMAC-SHA-384-192 [RFC4868]",
            "HMAC-SHA-512-256 [RFC4868]",
            "ANY 96 bit authentication [no checking]",
        ];
        for &suite in Suite::ALL {
            if let Ok((cipher, integrity)) = algorithms(suite) {
                assert!(CIPHERS.contains(&cipher) && INTEGRITIES.contains(&integrity), "{suite}");
                assert_eq!(suite.is_combined(), integrity == "NULL", "{suite}");
            }
        }
        let mut of_ah = sa("null-sha256");
        of_ah["protocol"] = "ah".into();
        let text = wireshark(&json!([sa("aes128gcm16"), sa("chacha20poly1305"), of_ah]));
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.len() == 4 && lines[1].starts_with("\"IPv4\""), "{text}");
        assert!(
            lines[2].starts_with("# left out: site-b, outbound, 0x00001001, chacha20poly1305: "),
            "{text}"
        );
        assert!(lines[3].ends_with("AH hides nothing") && !lines[2..].concat().contains("00ff"), "{text}");
    }

    #[test]
    fn a_file_of_keys_is_its_owners_alone_and_takes_nobodys_place_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("esp_sa");
        let mode = || std::fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777;
        create(&path, "one").unwrap();
        assert_eq!(mode(), 0o600);
        assert_eq!(create(&path, "two").unwrap_err().kind(), ErrorKind::AlreadyExists);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        replace(&path, "three").unwrap();
        assert_eq!((mode(), std::fs::read_to_string(&path).unwrap().as_str()), (0o600, "three"));
        // Not what a link leads to.
        let (link, other) = (folder.path().join("link"), folder.path().join("other"));
        std::fs::write(&other, "other").unwrap();
        symlink(&other, &link).unwrap();
        assert!(create(&link, "keys").is_err());
        replace(&link, "keys").unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "other");
    }
}
