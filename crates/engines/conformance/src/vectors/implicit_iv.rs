//! Implicit IVs.

use super::Vector;

/// RFC 8750 has no packets. These are McGrew's, sealed with OpenSSL; the nonce is the salt alone, since the
/// rest of it is the number: with zeros before its 32 bits, or with ESN all of its 64 (RFC 8750 4).
pub(super) const IMPLICIT_IV: &[Vector] = &[
    Vector {
        source: "RFC 8750 4, by OpenSSL",
        suite: "aes128gcm16iiv",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "22433c64",
        aad: "0000432100000007",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "4419a9092ee5ced2ef3c4034607b581ef9c4b5cca8e4ef0820d9b48093b1ed0e\
                 46acb00f0a6bcca34d3bd5626aadbed4cb7134cf22ca33f16542df6880c52194\
                 7f8f66be",
    },
    Vector {
        source: "RFC 8750 4, by OpenSSL",
        suite: "aes128ccm8iiv",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "433c64",
        aad: "0000432100000007",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "429b877fc09789a9bb43c52cf05dac29c51e5c5e339b6a4a861703340331835c\
                 c5685cfff21caa6d8c26c7bea64b86977a068e265a8e7c1bf2a60a80",
    },
    Vector {
        source: "RFC 8750 4, by OpenSSL",
        suite: "aes192gcm16iiv",
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c",
        nonce: "22433c64",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "6971ac4756734ef926a01b8986aded4f35ae1d76d3e490d4279f8ad58cfd97fa\
                 18c81de1e7ee1a143cdb929bb3f8b831",
    },
    Vector {
        source: "RFC 8750 4, by OpenSSL",
        suite: "aes192ccm8iiv",
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c",
        nonce: "433c64",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "897c7d06a6dd971b550055dd7739469066a6a6ef6faabc1e0da1c37ab7d61480\
                 0fffb8c9d2165083",
    },
    Vector {
        source: "RFC 8750 4, by OpenSSL",
        suite: "aes256gcm16iiv",
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "22433c64",
        aad: "0000432100000007",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "887f673ea4c1163e6edd9a0b545db377912fbc7d6b165e79a8976e9cdc7a26b0\
                 71743d5f4a59905cd673f157e4c65f4604c5630ba7757d29bb50a9e7534a30a3\
                 b1a48c1a",
    },
    Vector {
        source: "RFC 8750 4, by OpenSSL",
        suite: "aes256ccm8iiv",
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "433c64",
        aad: "0000432100000007",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "b144491f6e23d1cf98e2ca424f778afa817cafde451467e98cd166776fbab7ed\
                 8dc2d3153c73c79b0195c388ad9d15c0e7f6a9dd3eaee5c0d0210f61",
    },
    Vector {
        source: "RFC 8750 4, by OpenSSL",
        suite: "chacha20poly1305iiv",
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        nonce: "a0a1a2a3",
        aad: "0000432100000007",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "73dcd832271fcdb964934937168119a17448807017c84b184ee228653f9d2b21\
                 4d848385082803c81b76af44836c8e48afd2f33ff11f9d8b7c670b50268537dc\
                 97b48a44",
    },
];
