//! The rows that are tried with a gateway whose only fast engine is a GPU: PoCL, for correctness alone.
//!
//! Every cipher, mode and integrity algorithm that its kernels do, in both encapsulations of ESP and in AH,
//! in both modes, over both versions of IP, with ESN and without. All of a lot are in one gateway, so that
//! their packets share launches.

use crate::support::Outcome;
use testudo_crypto::Suite;
use testudo_judge::interop::Mode::{Transport, Tunnel};
use testudo_judge::interop::Protocol::{self, Ah, AhAndEsp, Esp, EspInUdp};
use testudo_judge::interop::{Mode, Row};

/// Protocol, mode, whether IPv6 is outside, whether with ESN, suite, and that of AH around ESP.
type Words = (Protocol, Mode, bool, bool, &'static str, Option<&'static str>);

const ROWS: [Words; 14] = [
    (Esp, Tunnel, false, false, "aes128gcm16", None),
    (Esp, Transport, true, true, "aes256gcm16", None),
    (EspInUdp, Tunnel, false, true, "aes128gcm16", None),
    (EspInUdp, Transport, false, false, "aes128-sha1", None),
    (Esp, Tunnel, true, true, "aes256gmac", None),
    (Esp, Tunnel, false, true, "aes128ctr-sha256", None),
    (Esp, Tunnel, true, false, "aes192-sha1", None),
    (Esp, Transport, false, true, "aes256-sha256", None),
    (Esp, Tunnel, true, true, "aes256-sha512", None),
    (Esp, Tunnel, false, false, "3des-sha384", None),
    (Esp, Transport, true, false, "null-md5", None),
    (Ah, Transport, false, true, "sha256", None),
    (Ah, Tunnel, true, false, "sha512", None),
    (AhAndEsp, Tunnel, false, true, "aes128-sha1", Some("sha1")),
];

/// AH has no frame that a GPU writes, so that here its packets are beside those that have one.
const ROWS_WITH_HEADERS: [Words; 5] = [
    (Esp, Tunnel, false, true, "aes128gcm16", None),
    (EspInUdp, Tunnel, true, false, "aes256-sha256", None),
    (Esp, Transport, false, false, "aes128ctr-sha512", None),
    (Esp, Transport, true, true, "3des-sha1", None),
    (AhAndEsp, Tunnel, true, true, "aes256gcm16", Some("sha256")),
];

fn read((protocol, mode, ipv6, esn, suite, ah): &Words) -> Outcome<Row> {
    let suite = if *protocol == Ah { Suite::for_ah(suite) } else { suite.parse() };
    let ah = ah.map(Suite::for_ah).transpose()?;
    Ok(Row { protocol: *protocol, mode: *mode, ipv6: *ipv6, esn: *esn, suite: suite?, ah })
}

/// Rows of everything that the kernels do.
pub fn rows() -> Outcome<Vec<Row>> {
    ROWS.iter().map(read).collect()
}

/// Rows of what the kernels may write headers for, and of AH.
pub fn rows_with_headers() -> Outcome<Vec<Row>> {
    ROWS_WITH_HEADERS.iter().map(read).collect()
}
