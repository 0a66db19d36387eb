//! Requests to the control socket.

use crate::input::Input;
use crate::memory_file::MemoryFile;
use crate::support::Gateway;
use crate::support::gateway::{PoolSize, portable};
use serde_json::Value;
use std::io::{self, Read};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;
use testudo_control::Configuration;
use testudo_control::config::KnownAnswers;
use testudo_control::service::api::{Shared, converse};
use testudo_control::service::installed::{InstalledTunnels, Numbers};
use testudo_control::service::port_details::BothDetails;
use testudo_control::service::report::Facts;
use testudo_gateway::{AllCounters, SystemClock};

/// The longest request, according to the manual.
const MAX_REQUEST_BYTES: usize = 4096;

const CONFIGURATION: &str = r#"
[gateway]
state = "state.redb"
[port.protected]
kind = "tun"
name = "testudo0"
[port.unprotected]
kind = "socket"
interface = "eth0"
[[policy]]
action = "discard"
local = "10.1.0.0/16"
remote = "10.2.0.0/16"
protocol = "tcp"
remote_ports = "25"
[[policy]]
action = "bypass"
protocol = "udp"
remote_ports = "53"
[[tunnel]]
name = "site-b"
local = "192.0.2.1"
remote = "192.0.2.2"
suite = "aes128gcm16"
selectors = [ { local = "10.1.0.0/16", remote = "10.2.0.0/16" }, { local = "fd01::/64", remote = "fd02::/64" } ]
outbound = { spi = 0x1001, key_env = "OUT" }
inbound = { spi = 0x1002, key_env = "IN" }
"#;

thread_local! {
    /// A running gateway with one tunnel.
    static SHARED: Shared = shared();
}

fn shared() -> Shared {
    let file = MemoryFile::new(CONFIGURATION.as_bytes(), 0o600);
    let environment = |name: &str| Some(if name == "OUT" { "11" } else { "22" }.repeat(20));
    let loaded = Configuration::load(&file.path(), KnownAnswers::Refuse, &environment);
    let loaded = loaded.unwrap_or_else(|errors| panic!("{errors}"));
    let empty = InstalledTunnels::empty(loaded.configuration.clone());
    let planned = empty.plan(&loaded, &Numbers::KnownAnswers);
    let (update, mut installed, _) = planned.expect("there is no store that could fail");
    let mut gateway = Gateway::new(Vec::new(), PoolSize(8, 2048), portable());
    let now = gateway.now();
    let failed = installed.note(gateway.worker.update(update, now));
    assert!(failed.is_empty(), "{failed:?}");
    let counters = AllCounters::of([gateway.worker.counters()]);
    let facts = Facts {
        version: "fuzz",
        started: Instant::now(),
        clock: SystemClock::default(),
        engines: Vec::new(),
        ports: BothDetails::default(),
        counters,
        threads: testudo_control::service::threads::Threads::default(),
    };
    Shared {
        facts,
        installed: Mutex::new(Arc::new(installed)),
        peers: Mutex::default(),
        sas: OnceLock::new(),
        changer: OnceLock::new(),
    }
}

/// A client that sends its request in pieces.
struct Client<'a> {
    rest: &'a [u8],
    piece: usize,
}

impl Read for Client<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (piece, rest) = self.rest.split_at(self.piece.min(self.rest.len()).min(buffer.len()));
        buffer[..piece.len()].copy_from_slice(piece);
        self.rest = rest;
        Ok(piece.len())
    }
}

/// Any bytes get one line of JSON: the answer if they are a request, otherwise an error.
pub fn control_request(data: &[u8]) {
    let mut input = Input::new(data);
    let piece = 1 + usize::from(input.byte());
    let sent = input.take(usize::MAX);
    let mut out = Vec::new();
    SHARED
        .with(|shared| converse(Client { rest: sent, piece }, &mut out, shared))
        .expect("nothing fails here");
    let (line, end) = out.split_at(out.len() - 1);
    assert!(end == b"\n" && !line.contains(&b'\n'), "an answer is a line");
    let answer: Value = serde_json::from_slice(line).expect("an answer is JSON");
    let said = answer.get("error").and_then(Value::as_str);
    assert_eq!(said.is_none(), is_good(sent), "{said:?}");
    assert!(said.is_none_or(|said| !said.is_empty() && said.len() < 300), "{said:?}");
}

/// Whether a request has everything that its answer needs.
fn is_good(sent: &[u8]) -> bool {
    let line = sent.split_inclusive(|&byte| byte == b'\n').next().unwrap_or_default();
    let Ok(request) = serde_json::from_slice::<Value>(line) else { return false };
    if line.len() > MAX_REQUEST_BYTES {
        return false;
    }
    match request["verb"].as_str() {
        Some("status" | "sa-list" | "policy-list" | "firewall" | "sa-wanted") => true,
        Some("explain") => is_question(&request),
        _ => false,
    }
}

fn is_question(request: &Value) -> bool {
    let address = |key: &str| request[key].as_str().and_then(|text| text.parse::<IpAddr>().ok());
    let is_number = |key: &str, most: u64| {
        request[key].is_null() || request[key].as_u64().is_some_and(|number| number <= most)
    };
    matches!((address("source"), address("destination")), (Some(a), Some(b)) if a.is_ipv4() == b.is_ipv4())
        && matches!(request["side"].as_str(), Some("protected" | "unprotected"))
        && is_number("protocol", 255)
        && is_number("source_port", 65_535)
        && is_number("destination_port", 65_535)
        && is_number("message_type", 255)
        && is_number("message_code", 255)
}
