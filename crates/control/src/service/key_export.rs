//! Keys of SAs, for root and the gateway's own user to read recorded packets with.
//!
//! Only where the configuration says `allow_key_export = true`: else there is nothing to tell, since the
//! worker's engines alone have the keys. (Of what is negotiated XFRM's SAD has them besides, as the kernel's
//! has, for those who may connect to that socket.) Each reading is audited before anything is told, also
//! where packets' events are not (`audit = "off"`): then the log has it.

use super::api::Shared;
use super::installed::{InstalledTunnels, Running};
use super::policies;
use super::report::Peers;
use super::sa_control;
use super::sas::RunningSa;
use crate::config::Remote;
use serde_json::{Value, json};
use std::net::IpAddr;
use testudo_ipsec::{Encapsulation, IpsecProtocol};

/// The verb by which the main thread is told that keys are read: the event of the audit.
pub(super) const NOTE: &str = "keys_read";

/// The keys of all SAs, or of one tunnel's, for `user`.
///
/// # Errors
/// It is not allowed, there is no such tunnel, or it could not be audited.
pub(super) fn keys(
    shared: &Shared,
    installed: &InstalledTunnels,
    user: Option<u32>,
    tunnel: Option<&str>,
) -> Result<Value, String> {
    if !installed.configuration.gateway.allow_key_export {
        let text = "its keys are not to be read: with `allow_key_export = true` in [gateway], from its next start on, \
                    root and the gateway's own user may";
        return Err(text.to_owned());
    }
    let user = user.ok_or("the system does not tell who asks")?;
    let tunnels: Vec<Running> = match tunnel {
        Some(name) => vec![sa_control::find(installed, name)?],
        None => installed.all().map(|running| Running::clone(&running)).collect(),
    };
    let sas = |running: &Running| {
        let sas = running.sas.lock().clone();
        sas.into_iter().filter(|sa| sa.kept_key.is_some()).collect::<Vec<_>>()
    };
    let found: Vec<(&Running, RunningSa)> =
        tunnels.iter().flat_map(|running| sas(running).into_iter().map(move |sa| (running, sa))).collect();
    note(shared, user, tunnel, found.len())?;
    let peers = shared.peers();
    Ok(found.iter().filter_map(|(running, sa)| row(installed, running, sa, &peers)).collect())
}

/// Has it audited.
fn note(shared: &Shared, user: u32, tunnel: Option<&str>, sas: usize) -> Result<(), String> {
    let changer = shared.changer.get().ok_or("the gateway is still starting: try again")?;
    let note = json!({ "verb": NOTE, "user": user, "tunnel": tunnel, "sas": sas });
    policies::ask_main(changer, &note, "try again").map(drop)
}

/// An SA with its key.
fn row(installed: &InstalledTunnels, running: &Running, sa: &RunningSa, peers: &Peers) -> Option<Value> {
    let key = sa.kept_key.as_ref()?;
    let tunnel = &installed.negotiated.in_force(running).tunnel;
    let configured = match tunnel.remote {
        Remote::Address(address) => Some(address),
        Remote::Any => None,
    };
    let remote: Option<IpAddr> = peers.get(&running.index).map(|peer| peer.ip()).or(configured);
    let local = Some(tunnel.local);
    let (source, destination) = if sa.is_outbound() { (local, remote) } else { (remote, local) };
    let is_in_udp = matches!(tunnel.encapsulation, Encapsulation::EspInUdp { .. });
    let mut row = json!({
        "tunnel": tunnel.name,
        "direction": if sa.is_outbound() { "outbound" } else { "inbound" },
        "protocol": match tunnel.protocol {
            IpsecProtocol::Esp => "esp",
            IpsecProtocol::Ah => "ah",
            IpsecProtocol::Vpe => "vpe",
        },
        "udp": tunnel.protocol != IpsecProtocol::Ah && is_in_udp,
        "source": source,
        "destination": destination,
        "spi": sa.spi,
        "suite": sa.suite.to_string(),
        "esn": sa.esn,
    });
    // Moved into the answer, where they are zeroed: the macro would copy them.
    row["key"] = Value::String(hex(&[key.key(), key.salt()]));
    row["integrity_key"] = Value::String(hex(&[key.integrity_key()]));
    Some(row)
}

/// Hexadecimal digits, in memory that never grows: what it has is zeroed with the answer.
fn hex(parts: &[&[u8]]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let bytes = parts.iter().map(|part| part.len()).sum::<usize>();
    let mut text = String::with_capacity(2 * bytes);
    for byte in parts.iter().copied().flatten() {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_all_bytes_and_the_memory_does_not_grow() {
        let text = hex(&[&[0, 0x0f, 0xf0], &[0xab]]);
        assert_eq!((&*text, text.capacity()), ("000ff0ab", 8));
        assert_eq!(hex(&[&[], &[]]), "");
    }
}
