//! AES-GMAC.

use super::Vector;

/// draft-mcgrew-gcm-test-01 has one packet of RFC 4543. It has none with ESN and none with longer keys: these
/// were computed with OpenSSL from other packets of it.
pub(super) const GMAC: &[Vector] = &[Vector {
    source: "draft-mcgrew-gcm-test-01, case 17 under RFC 4543, by OpenSSL",
    suite: "aes128gmac",
    key: "4c80cdefbb5d10da906ac73c3613a634",
    nonce: "22433c644855ec7d3a234bfd",
    aad: "000043218765432100000007",
    text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
    sealed: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201\
                 c462077aff7175a6c050d71ad1803331",
}];
