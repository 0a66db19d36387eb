//! Cryptodevs of DPDK pass the suite and agree with the portable engine: intel-ipsec-mb as a device, and a
//! scheduler over two of these.

mod dpdk;

use dpdk::{WORKERS, conforms, open, plugin};
use testudo_crypto::EngineError;

const FOLDER: &str = "cryptodev";

#[test]
fn crypto_aesni_mb_conforms() {
    let Some(plugin) = plugin(FOLDER) else { return };
    conforms(plugin, "crypto_aesni_mb", 88);
}

#[test]
fn a_crypto_scheduler_over_two_devices_conforms() {
    let Some(plugin) = plugin(FOLDER) else { return };
    let [one, two] = WORKERS;
    conforms(plugin, &format!("crypto_scheduler,worker={one},worker={two},mode=round-robin"), 88);
}

#[test]
fn a_device_that_does_nothing_of_ours_is_refused_by_name() {
    let Some(plugin) = plugin(FOLDER) else { return };
    let error = open(plugin, "crypto_null").err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("crypto_null") && error.ends_with("does none of Testudo's suites"), "{error}");
}

#[test]
fn a_device_that_is_not_there_is_told_in_one_line() {
    let Some(plugin) = plugin(FOLDER) else { return };
    for device in ["crypto_nonsense", "0000:3d:01.0", "crypto_aesni_mb,nonsense=1"] {
        let Err(EngineError::Unavailable { reason, .. }) = open(plugin, device) else {
            panic!("{device} was opened")
        };
        assert!(reason.contains(device.split(',').next().unwrap_or(device)), "{reason}");
        assert!(!reason.contains('\n'), "{reason}");
    }
}
