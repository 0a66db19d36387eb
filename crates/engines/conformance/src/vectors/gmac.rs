//! AES-GMAC.

use super::Vector;

/// draft-mcgrew-gcm-test-01 has one packet of RFC 4543. It has none with ESN and none with longer keys: these
/// were computed with OpenSSL from other packets of it.
pub(super) const GMAC: &[Vector] = &[
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 15",
        suite: "aes128gmac",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "22433c640000000000000000",
        aad: "0000432100000007",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
                 65666768696a6b6c6d6e6f707172737401020201f2a9a836e155106aa8dcd618\
                 e4099aaa",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 17 under RFC 4543, by OpenSSL",
        suite: "aes192gmac",
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c",
        nonce: "22433c644855ec7d3a234bfd",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201\
                 165ba92d55d13be0a27af43a24b8738c",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 17 under RFC 4543, by OpenSSL",
        suite: "aes256gmac",
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "22433c644855ec7d3a234bfd",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201\
                 135eb030ab0b8a8691f020c823ac51a9",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 17 under RFC 4543, by OpenSSL",
        suite: "aes128gmac",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "22433c644855ec7d3a234bfd",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201\
                 c462077aff7175a6c050d71ad1803331",
    },
];
