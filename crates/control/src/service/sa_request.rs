//! Requests to change SAs, as the control socket gets them.
//!
//! ```text
//!   { "verb": "sa-add" | "sa-replace", "tunnel": "site-b",
//!     "worker": 1, "inbound": 4097, "inbound_key": "4c80cdef…", "outbound": 4098, "outbound_key": "bb5d10da…",
//!     "suite": "aes128gcm16", "ephemeral": true, "resume": true, "use": true,
//!     "when_peer_does": true, "overlap_seconds": 30, "lifetime": { "soft_seconds": 3000, "hard_seconds": 3600 },
//!     "for": { "remote": "10.2.0.7", "protocol": "tcp", "remote_ports": 443 }, "policy": "web" }
//!   { "verb": "sa-use", "tunnel": "site-b", "spi": 4098 }
//!   { "verb": "sa-delete", "tunnel": "site-b", "spi": 4097, "direction": "inbound", "force": true }
//! ```
//!
//! `worker` names the worker that they are for: it alone sends through the outbound SA. `for` has the values
//! of a flow, under the names of the fields in a configuration: then the tunnel is the template of the
//! policy, and the SAs are for the flow's own. Keys are hex text as in key files. What is left out of the
//! first kind is as in the tunnel's configuration.

use super::sas::KeyState;
use crate::config::{self, protocol_number};
use crate::keys;
use serde_json::Value;
use std::time::Duration;
use testudo_crypto::{Direction, KeyMaterial, Suite};
use testudo_ipsec::{Lifetime, Limits, PacketValues, PopulateFlags};
use testudo_wire::protocol::ICMP;
use zeroize::Zeroizing;

/// The lowest SPI that is not reserved (RFC 4303 2.1).
const LOWEST_SPI: u64 = 256;
/// How long replaced SAs stay, unless the request says otherwise: longer than a packet lives (RFC 9293 3.4.1
/// has two minutes; 30 s cover what is seen).
const OVERLAP: Duration = Duration::from_secs(30);
/// Characters of an unknown name that an error shows.
const MAX_SHOWN_CHARS: usize = 32;
/// The longest overlap, in seconds: a day.
const MAX_OVERLAP_SECONDS: u64 = 86_400;

/// A change that is requested.
pub enum SaRequest {
    /// Add SAs to a tunnel.
    Add {
        /// Its name.
        tunnel: String,
        /// The SAs.
        sas: Wanted,
        /// The flow that they are for, if the tunnel is a template.
        flow: Option<Flow>,
    },
    /// Add SAs to a tunnel in place of those that it has.
    Replace {
        /// Its name.
        tunnel: String,
        /// The SAs.
        sas: Wanted,
        /// How long the old ones stay after that.
        overlap: Duration,
    },
    /// Send a tunnel's packets through this SA.
    Use {
        /// Its name.
        tunnel: String,
        /// The SA.
        spi: u32,
    },
    /// Remove an SA.
    Delete {
        /// The tunnel's name.
        tunnel: String,
        /// The SA.
        choice: SaChoice,
        /// Even if the tunnel's packets are dropped then.
        force: bool,
    },
}

/// A flow that is to have SAs of its own.
#[derive(Debug)]
pub struct Flow {
    /// The policy that populates them, where that is not clear.
    pub(super) policy: Option<String>,
    /// What they are populated with.
    pub(super) values: PacketValues,
}

/// SAs to be added.
pub struct Wanted {
    pub(super) inbound: Option<NewSa>,
    pub(super) outbound: Option<NewSa>,
    /// The worker that they are for; `None` for all.
    pub(super) worker: Option<u32>,
    pub(super) suite: Option<Suite>,
    pub(super) lifetime: Option<Lifetime>,
    pub(super) key_state: KeyState,
    pub(super) resumes: bool,
    pub(super) is_used_at_once: bool,
    pub(super) is_waiting_for_peer: bool,
}

/// An SA to be added.
pub struct NewSa {
    pub(super) spi: u32,
    pub(super) key: Zeroizing<String>,
}

/// An SA of a tunnel.
#[derive(Debug, Clone, Copy)]
pub struct SaChoice {
    pub(super) spi: u32,
    pub(super) direction: Option<Direction>,
}

impl SaRequest {
    /// The tunnel's name.
    #[must_use]
    pub fn tunnel(&self) -> &str {
        match self {
            Self::Add { tunnel, .. }
            | Self::Replace { tunnel, .. }
            | Self::Use { tunnel, .. }
            | Self::Delete { tunnel, .. } => tunnel,
        }
    }

    /// Reads a request; `None` if it is none of these. Keys are taken out of it.
    ///
    /// # Errors
    /// The message for the client.
    pub fn read(request: &mut Value) -> Result<Option<Self>, String> {
        let verb = request["verb"].as_str().unwrap_or_default().to_owned();
        if !["sa-add", "sa-replace", "sa-use", "sa-delete"].contains(&verb.as_str()) {
            return Ok(None);
        }
        // First of all, so that no error leaves them behind.
        let keys = [take_key(request, "inbound_key"), take_key(request, "outbound_key")];
        let tunnel = request["tunnel"].as_str().ok_or("tunnel: expected a tunnel's name")?.to_owned();
        Ok(Some(match verb.as_str() {
            "sa-add" => Self::Add { tunnel, sas: wanted(request, keys, false)?, flow: flow(request)? },
            "sa-replace" => {
                Self::Replace { tunnel, sas: wanted(request, keys, true)?, overlap: overlap(request)? }
            }
            "sa-use" => Self::Use { tunnel, spi: spi(request, "spi")?.ok_or("spi: missing")? },
            _ => {
                let spi = spi(request, "spi")?.ok_or("spi: missing")?;
                let choice = SaChoice { spi, direction: direction(&request["direction"])? };
                Self::Delete { tunnel, choice, force: request["force"] == true }
            }
        }))
    }
}

fn take_key(request: &mut Value, name: &str) -> Option<Zeroizing<String>> {
    match request.get_mut(name).map(Value::take) {
        Some(Value::String(key)) => Some(Zeroizing::new(key)),
        _ => None,
    }
}

fn wanted(
    request: &Value,
    [inbound_key, outbound_key]: [Option<Zeroizing<String>>; 2],
    replaces: bool,
) -> Result<Wanted, String> {
    let sa = |name: &str, key: Option<Zeroizing<String>>| match (spi(request, name)?, key) {
        (None, None) => Ok(None),
        (Some(spi), Some(key)) => Ok(Some(NewSa { spi, key })),
        (Some(_), None) => Err(format!("{name}_key: missing beside the SPI")),
        (None, Some(_)) => Err(format!("{name}: missing beside the key")),
    };
    let (inbound, outbound) = (sa("inbound", inbound_key)?, sa("outbound", outbound_key)?);
    if inbound.is_none() && outbound.is_none() {
        return Err("give an inbound SA, an outbound SA, or both".to_owned());
    }
    let suite = match &request["suite"] {
        Value::Null => None,
        value => {
            let name = value.as_str().ok_or("suite: expected a name")?;
            let of_ah = Suite::all_for_ah().find(|suite| suite.ah_name() == Some(name));
            Some(of_ah.map_or_else(|| name.parse().map_err(|e| format!("suite: {e}")), Ok)?)
        }
    };
    let is_waiting_for_peer = request["when_peer_does"] == true;
    let key_state = if request["ephemeral"] == true { KeyState::Ephemeral } else { KeyState::Durable };
    let resumes = request["resume"] == true;
    if resumes && key_state == KeyState::Ephemeral {
        return Err("resume: an ephemeral key has nothing to resume".to_owned());
    }
    Ok(Wanted {
        inbound,
        outbound,
        worker: worker(request)?,
        suite,
        lifetime: lifetime(&request["lifetime"])?,
        key_state,
        resumes,
        is_used_at_once: !is_waiting_for_peer && (replaces || request["use"] == true),
        is_waiting_for_peer,
    })
}

/// The flow of a request, if it names one.
fn flow(request: &Value) -> Result<Option<Flow>, String> {
    let policy = match &request["policy"] {
        Value::Null => None,
        value => Some(value.as_str().ok_or("policy: expected its name or number, as a text")?.to_owned()),
    };
    match &request["for"] {
        Value::Null if policy.is_some() => Err("policy: only beside the values of a flow, `for`".to_owned()),
        Value::Null => Ok(None),
        values => Ok(Some(Flow { policy, values: packet_values(values)? })),
    }
}

/// The values of a packet, each a text or a number.
fn packet_values(value: &Value) -> Result<PacketValues, String> {
    let fields = value.as_object().ok_or("for: expected an object")?;
    let known = PopulateFlags::NAMED.map(|(name, _)| name);
    if let Some(unknown) = fields.keys().find(|key| !known.contains(&key.as_str())) {
        let unknown: String = unknown.chars().take(MAX_SHOWN_CHARS).collect();
        return Err(format!("for: expected {}, found {unknown}", known.join(", ")));
    }
    let word = |name: &str| match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(_) => Err(format!("for: {name}: expected a text or a number")),
    };
    let address = |name: &str| {
        let parse = |text: String| text.parse().map_err(|_| format!("for: {name}: expected an IP address"));
        word(name)?.map(parse).transpose()
    };
    let port = |name: &str| {
        let parse =
            |text: String| text.parse().map_err(|_| format!("for: {name}: expected a port, 0 to 65535"));
        word(name)?.map(parse).transpose()
    };
    let parse = |text: String| protocol_number(&text).ok_or("for: protocol: expected a name or a number");
    let protocol = word("protocol")?.map(parse).transpose()?;
    let parse = |text: String| {
        let numbers =
            text.split_once('/').and_then(|(kind, code)| Some((kind.parse().ok()?, code.parse().ok()?)));
        let message = numbers.map_or_else(|| config::message(protocol.unwrap_or(ICMP), &text), Ok);
        message.map(|(kind, code)| u16::from_be_bytes([kind, code])).map_err(|e| format!("for: types: {e}"))
    };
    Ok(PacketValues {
        local: address("local")?,
        remote: address("remote")?,
        protocol,
        local_port: port("local_ports")?,
        remote_port: port("remote_ports")?,
        message: word("types")?.map(parse).transpose()?,
    })
}

fn number(value: &Value, name: &str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>, String> {
    if value.is_null() {
        return Ok(None);
    }
    let number = value.as_u64().filter(|number| range.contains(number));
    number.map(Some).ok_or_else(|| format!("{name}: expected {} to {}", range.start(), range.end()))
}

fn spi(request: &Value, name: &str) -> Result<Option<u32>, String> {
    let spi = number(&request[name], name, LOWEST_SPI..=u32::MAX.into())?;
    Ok(spi.and_then(|spi| u32::try_from(spi).ok()))
}

/// The worker that SAs are for.
fn worker(request: &Value) -> Result<Option<u32>, String> {
    let last = u64::try_from(config::MAX_WORKERS - 1).unwrap_or(0);
    let worker = number(&request["worker"], "worker", 0..=last)?;
    Ok(worker.and_then(|worker| u32::try_from(worker).ok()))
}

fn overlap(request: &Value) -> Result<Duration, String> {
    let seconds = number(&request["overlap_seconds"], "overlap_seconds", 0..=MAX_OVERLAP_SECONDS)?;
    Ok(seconds.map_or(OVERLAP, Duration::from_secs))
}

fn direction(value: &Value) -> Result<Option<Direction>, String> {
    match value.as_str() {
        None if value.is_null() => Ok(None),
        Some("inbound") => Ok(Some(Direction::Open)),
        Some("outbound") => Ok(Some(Direction::Seal)),
        _ => Err("direction: expected \"inbound\" or \"outbound\"".to_owned()),
    }
}

/// Limits of a lifetime, soft below hard.
fn lifetime(value: &Value) -> Result<Option<Lifetime>, String> {
    if value.is_null() {
        return Ok(None);
    }
    let pair = |unit: &str| {
        let names = [format!("soft_{unit}"), format!("hard_{unit}")];
        let [soft, hard] = names.map(|name| number(&value[&name], &name, 1..=u64::MAX));
        let (soft, hard) = (soft?, hard?);
        match (soft, hard) {
            (Some(soft), Some(hard)) if soft >= hard => {
                Err(format!("lifetime: soft_{unit} must be less than hard_{unit}"))
            }
            limits => Ok(limits),
        }
    };
    let (bytes, packets, seconds) = (pair("bytes")?, pair("packets")?, pair("seconds")?);
    let limits = |bytes, packets, seconds: Option<u64>| Limits {
        bytes,
        packets,
        time: seconds.map(Duration::from_secs),
    };
    let (soft, hard) = (limits(bytes.0, packets.0, seconds.0), limits(bytes.1, packets.1, seconds.1));
    Ok(Some(Lifetime { soft, hard }))
}

impl NewSa {
    /// The SPI and the key, for this suite.
    pub(super) fn key(self, suite: Suite, way: &str) -> Result<(u32, KeyMaterial), String> {
        let key = keys::parse(self.key.as_bytes(), suite).map_err(|error| match error {
            keys::KeyError::Length { expected, found } => {
                format!("the {way} key has {found} hex digits; {suite} needs {expected}")
            }
            other => format!("the {way} key: {other}"),
        })?;
        Ok((self.spi, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(mut request: Value) -> String {
        SaRequest::read(&mut request).err().unwrap()
    }

    #[test]
    fn a_flow_is_read_as_it_is_listed() {
        let read = |values: Value| packet_values(&values);
        let values = PacketValues {
            local: Some([10, 1, 0, 5].into()),
            protocol: Some(17),
            remote_port: Some(53),
            ..PacketValues::default()
        };
        assert_eq!(read(super::super::wanted::named(&values)), Ok(values));
        let words = json!({ "local": "10.1.0.5", "protocol": "udp", "remote_ports": "53" });
        assert_eq!(read(words), Ok(values));
        let ping = PacketValues { message: Some(0x0800), ..PacketValues::default() };
        assert_eq!(read(json!({ "types": "8/0" })), Ok(ping));
        assert_eq!(read(super::super::wanted::named(&ping)), Ok(ping));
        for (wrong, expected) in [
            (json!([]), "expected an object"),
            (json!({ "ports": 5 }), "found ports"),
            (json!({ "local": "10.1.0.0/16" }), "local: expected an IP address"),
            (json!({ "remote_ports": 65_536 }), "expected a port"),
            (json!({ "protocol": "rot13" }), "protocol: expected"),
            (json!({ "types": "300" }), "types: expected"),
            (json!({ "local": [1] }), "a text or a number"),
        ] {
            let told = read(wrong).unwrap_err();
            assert!(told.contains(expected), "{told}");
        }
        let sa =
            json!({ "verb": "sa-add", "tunnel": "t", "inbound": 256, "inbound_key": "11", "policy": "web" });
        assert!(refusal(sa).starts_with("policy: only beside"));
    }

    #[test]
    fn keys_are_taken_out_of_a_request() {
        let mut request =
            json!({ "verb": "sa-add", "tunnel": "t", "inbound": 300, "inbound_key": "11", "suite": "rot13" });
        assert!(SaRequest::read(&mut request).is_err_and(|error| error.starts_with("suite: ")));
        assert_eq!(request["inbound_key"], Value::Null);
    }

    #[test]
    fn what_is_wrong_in_a_request_is_named() {
        let add = |more: Value| {
            let mut request = json!({ "verb": "sa-add", "tunnel": "t" });
            for (name, value) in more.as_object().unwrap() {
                request[name] = value.clone();
            }
            refusal(request)
        };
        assert!(add(json!({})).contains("inbound SA, an outbound SA, or both"));
        assert_eq!(add(json!({ "inbound": 255, "inbound_key": "" })), "inbound: expected 256 to 4294967295");
        assert_eq!(add(json!({ "inbound": 256 })), "inbound_key: missing beside the SPI");
        assert_eq!(add(json!({ "outbound_key": "11" })), "outbound: missing beside the key");
        let sa = json!({ "inbound": 256, "inbound_key": "11", "resume": true, "ephemeral": true });
        assert!(add(sa).contains("nothing to resume"));
        let limits = json!({ "soft_packets": 5, "hard_packets": 5 });
        let sa = json!({ "inbound": 256, "inbound_key": "11", "lifetime": limits });
        assert!(add(sa).contains("soft_packets must be less than hard_packets"));
        assert_eq!(refusal(json!({ "verb": "sa-delete", "tunnel": "t" })), "spi: missing");
        let wrong = json!({ "verb": "sa-delete", "tunnel": "t", "spi": 300, "direction": "up" });
        assert!(refusal(wrong).starts_with("direction: "));
        let long = json!({ "verb": "sa-replace", "tunnel": "t", "inbound": 256, "inbound_key": "11",
                           "overlap_seconds": 86_401 });
        assert_eq!(refusal(long), "overlap_seconds: expected 0 to 86400");
        assert!(SaRequest::read(&mut json!({ "verb": "status" })).unwrap().is_none());
    }
}
