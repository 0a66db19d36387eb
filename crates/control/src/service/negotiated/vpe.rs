//! What a daemon negotiates as ESP for an interface of VPE runs as VPE, under a key of its own
//! (`docs/VPE.md`).

use super::super::installed::InstalledTunnels;
use super::template::unsupported;
use crate::config::{NegotiatedVpe, Tunnel};
use crate::vpe_key;
use testudo_crypto::{KeyMaterial, Suite};
use testudo_ipsec::{Encapsulation, IpsecProtocol, Mode, PacketRules};
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;

/// How what has this if_id runs as VPE; `None` where ESP stays ESP.
pub(super) fn of(installed: &InstalledTunnels, if_id: u32) -> Option<&NegotiatedVpe> {
    let mut interfaces = installed.configuration.interfaces.iter();
    interfaces.find(|interface| interface.if_id == Some(if_id))?.vpe.as_ref()
}

/// Refuses a suite that VPE does not have.
pub(super) fn check_suite(suite: Suite) -> Result<(), Refusal> {
    let has = suite.for_vpe().is_some();
    if has { Ok(()) } else { Err(no_suite(suite)) }
}

/// Refuses what is one worker's alone.
pub(super) fn check_processor(is_of_one: bool) -> Result<(), Refusal> {
    let why = "the interface of this if_id has VPE, whose workers have windows of their own in one SA: negotiate none for \
               each processor";
    if is_of_one { Err(unsupported(why)) } else { Ok(()) }
}

fn no_suite(suite: Suite) -> Refusal {
    let names = Suite::ALL_FOR_VPE.map(|suite| suite.to_string()).join(", ");
    let text =
        format!("{suite} is no suite of VPE, which the interface of this if_id has: propose one of {names}");
    Refusal::new(Errno::NOSYS, text)
}

/// The same tunnel over VPE.
///
/// # Errors
/// `EOPNOTSUPP` for AH and for transport mode.
pub(super) fn tunnel_of(tunnel: Tunnel, vpe: &NegotiatedVpe) -> Result<Tunnel, Refusal> {
    if tunnel.protocol != IpsecProtocol::Esp {
        return Err(unsupported("the interface of this if_id has VPE, in which ESP runs: AH does not"));
    }
    if tunnel.mode != Mode::Tunnel {
        return Err(unsupported(
            "the interface of this if_id has VPE, which carries whole packets: use tunnel mode",
        ));
    }
    Ok(Tunnel {
        protocol: IpsecProtocol::Vpe,
        // Each SA has its own.
        suite: tunnel.suite.for_vpe().unwrap_or(tunnel.suite),
        encapsulation: vpe.carried(tunnel.encapsulation != Encapsulation::Esp),
        keepalive: vpe.keepalive,
        esn: true,
        rules: PacketRules {
            vpe: Some(Box::new(vpe.rules)),
            dummy_packets_per_second: vpe.fill_packets_per_second,
            clocked_packets_per_second: vpe.clocked_packets_per_second,
            ..tunnel.rules
        },
        ..tunnel
    })
}

/// The key of an SA of VPE, from what was negotiated for ESP.
pub(super) fn key_of(keymat: &KeyMaterial, spi: u32) -> Result<KeyMaterial, Refusal> {
    vpe_key::of_negotiated(keymat, spi).ok_or_else(|| no_suite(keymat.suite()))
}
