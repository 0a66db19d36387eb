//! What a device declares of cryptography, and what of it is used.

use super::raw::{Offer, gcm_bit, gmac_bit, takes};
use crate::raw::offers;
use testudo_crypto::{Cipher, DeviceLimits, Offering, SecurityMode, SecurityProtocol, Suite};
use testudo_packet::Mark;

/// Drivers of devices whose tables rte_security does not tell of: sessions each way, and addresses of ours
/// that those for what is received may have.
const TABLES: [(&str, usize, usize); 3] =
    [("net_ixgbe", 1024, 128), ("net_txgbe", 1024, 128), ("net_testudo_twin", 1024, 128)];

/// The bit of a suite; none for those that are not done by devices.
pub(super) fn bit_of(suite: Suite) -> u32 {
    match suite.cipher() {
        Cipher::AesGcm(_) => gcm_bit(suite.key_bytes(), suite.icv_bytes()),
        Cipher::AesGmac(_) if suite.icv_bytes() == 16 => gmac_bit(suite.key_bytes()),
        _ => 0,
    }
}

/// Suites, as bits, that a device does both ways, for SAs of this protocol in this mode.
fn both_ways(declared: &[Offer], protocol: SecurityProtocol, mode: SecurityMode) -> u32 {
    let is_such = |offer: &&Offer| {
        let is_ah = protocol == SecurityProtocol::Ah;
        (offer.is_ah != 0) == is_ah && (offer.is_tunnel != 0) == (mode == SecurityMode::Tunnel)
    };
    let way = |is_inbound: bool| {
        let same = declared.iter().filter(is_such).filter(|offer| (offer.is_inbound != 0) == is_inbound);
        // GMAC alone is what AH can have.
        same.fold(0, |suites, offer| suites | offer.suites)
    };
    way(false) & way(true)
}

/// Suites with their protocols that a device does in all of these modes.
fn suites_in(declared: &[Offer], modes: &[SecurityMode]) -> Vec<(SecurityProtocol, Suite)> {
    let of_protocol = |protocol| {
        let bits = modes.iter().fold(u32::MAX, |bits, mode| bits & both_ways(declared, protocol, *mode));
        let may = move |suite: &Suite| protocol == SecurityProtocol::Esp || !suite.encrypts();
        let suites = Suite::ALL.iter().copied().filter(may);
        suites.filter(move |suite| bit_of(*suite) & bits != 0).map(move |suite| (protocol, suite))
    };
    of_protocol(SecurityProtocol::Esp).chain(of_protocol(SecurityProtocol::Ah)).collect()
}

/// What of a device is used.
///
/// # Errors
/// Why nothing.
pub(super) fn limits_of(
    declared: &[Offer],
    driver: &str,
    offered: u32,
    datagram_bytes: usize,
) -> Result<DeviceLimits, String> {
    use SecurityMode::{Transport, Tunnel};
    let crypto = |offer: &&Offer| offer.takes == takes::CRYPTOGRAPHY;
    let usable: Vec<Offer> =
        declared.iter().filter(crypto).filter(|offer| offer.has_trailer == 0).copied().collect();
    let both = offers::SEALING | offers::OPENING;
    let modes = [&[Tunnel, Transport][..], &[Tunnel], &[Transport]];
    let of_modes = |modes: &[SecurityMode]| (suites_in(&usable, modes), modes.to_vec());
    let (suites, modes) =
        modes.into_iter().map(of_modes).find(|(suites, _)| !suites.is_empty()).unwrap_or_default();
    let table = TABLES.iter().find(|(name, ..)| *name == driver);
    let (sessions, receive_addresses) = table
        .map_or((usize::from(Mark::SESSIONS) / 2, usize::MAX), |(_, sessions, addresses)| {
            (*sessions, *addresses)
        });
    let limits = DeviceLimits {
        offering: Offering::Cryptography,
        suites,
        modes,
        // Nothing says how such a device learns the high half of a packet's number.
        esn: false,
        // The engine gives a device no packets in UDP.
        in_udp: false,
        sealing_sessions: sessions,
        opening_sessions: sessions,
        receive_addresses,
        datagram_bytes,
        // Nothing says so of any device, and most decrypt before they know.
        leaves_refused_unchanged: false,
    };
    match () {
        () if declared.is_empty() => Err(format!("its driver {driver} does no cryptography of IPsec")),
        () if declared.iter().all(|offer| offer.takes == takes::PROTOCOL) => Err(format!(
            "its driver {driver} has inline protocol alone, whose sequence numbers no store of ours would know"
        )),
        () if usable.is_empty() => {
            Err(format!("its driver {driver} writes and removes trailers of ESP, which is not supported"))
        }
        () if offered & both != both => {
            Err(format!("its driver {driver} does not offer it both for what is sent and what is received"))
        }
        () if limits.suites.is_empty() => {
            Err(format!("its driver {driver} has neither AES-GCM nor AES-GMAC in both directions"))
        }
        () => Ok(limits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: u32 = offers::SEALING | offers::OPENING;

    fn offer(is_ah: bool, is_tunnel: bool, is_inbound: bool, suites: u32) -> Offer {
        let [is_ah, is_tunnel, is_inbound] = [is_ah, is_tunnel, is_inbound].map(u8::from);
        Offer { takes: takes::CRYPTOGRAPHY, is_ah, is_tunnel, is_inbound, suites, ..Offer::default() }
    }

    fn limits(declared: &[Offer]) -> Result<DeviceLimits, String> {
        limits_of(declared, "net_any", BOTH, 1500)
    }

    #[test]
    fn what_is_declared_in_both_directions_is_used() {
        let (gcm, gmac) = (gcm_bit(16, 16), gmac_bit(32));
        let all = [(false, gcm | gmac), (true, gcm | gmac)].map(|(is_ah, suites)| {
            [true, false].map(|is_inbound| [true, false].map(|mode| offer(is_ah, mode, is_inbound, suites)))
        });
        let all = all.as_flattened().as_flattened();
        let found = limits(all).unwrap();
        let names: Vec<_> =
            found.suites.iter().map(|(protocol, suite)| (*protocol, suite.to_string())).collect();
        let (esp, ah) = (SecurityProtocol::Esp, SecurityProtocol::Ah);
        let (gcm, gmac) = ("aes128gcm16".to_owned(), "aes256gmac".to_owned());
        assert_eq!(names, [(esp, gcm), (esp, gmac.clone()), (ah, gmac)], "AH encrypts nothing");
        assert_eq!(found.modes, [SecurityMode::Tunnel, SecurityMode::Transport]);
        assert_eq!((found.sealing_sessions, found.leaves_refused_unchanged), (8192, false));
        let ixgbe = limits_of(all, "net_ixgbe", BOTH, 1500).unwrap();
        assert_eq!((ixgbe.opening_sessions, ixgbe.receive_addresses), (1024, 128));
    }

    #[test]
    fn a_mode_that_is_missing_leaves_the_other() {
        let suites = gcm_bit(32, 8);
        let tunnel = [offer(false, true, true, suites), offer(false, true, false, suites)];
        let found = limits(&tunnel).unwrap();
        assert_eq!((found.modes.as_slice(), found.suites.len()), (&[SecurityMode::Tunnel][..], 1));
        assert_eq!(found.suites[0].1.to_string(), "aes256gcm8");
    }

    #[test]
    fn each_reason_for_nothing_is_told() {
        let out = offer(false, true, false, gcm_bit(16, 16));
        let into = offer(false, true, true, gcm_bit(16, 16));
        let why = |declared: &[Offer]| limits(declared).unwrap_err();
        assert!(why(&[]).contains("net_any does no cryptography"));
        assert!(why(&[Offer { takes: takes::PROTOCOL, ..out }]).contains("inline protocol alone"));
        assert!(why(&[Offer { has_trailer: 1, ..out }]).contains("trailers"));
        assert!(why(&[out]).contains("in both directions"), "nothing is opened");
        assert!(limits_of(&[out, into], "net_any", offers::SEALING, 1500).unwrap_err().contains("received"));
        assert!(limits(&[out, into]).is_ok());
    }
}
