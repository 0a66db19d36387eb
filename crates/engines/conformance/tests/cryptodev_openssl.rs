//! OpenSSL as a cryptodev of DPDK passes the suite and agrees with the portable engine. In a process of its
//! own: as its devices come and go, that driver unloads algorithms that the suite's references need, too.

mod dpdk;

use dpdk::{conforms, plugin};

#[test]
fn crypto_openssl_conforms() {
    let Some(plugin) = plugin("cryptodev-openssl") else { return };
    conforms(plugin, "crypto_openssl", 75);
}
