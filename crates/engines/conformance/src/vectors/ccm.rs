//! AES-CCM.

use super::Vector;

/// RFC 4309 has no packets, and the examples of SP 800-38C and RFC 3610 have nonces of other lengths. These
/// are McGrew's packets, sealed with OpenSSL. (Project Wycheproof has some, and NIST's CAVP one, which is
/// tested beside the portable engine's CCM.)
pub(super) const CCM: &[Vector] = &[
    Vector {
        source: "RFC 4309, by OpenSSL",
        suite: "aes128ccm8",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "433c644855ec7d3a234bfd",
        aad: "0000432100000007",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "5f0d8a951084194dfea8b2c9384c60a5946206190a95ec62ebc73793dc918d68\
                 277ed478522fccc89905413792fcb12d7c39df8ebb40491ae0d017ca",
    },
    Vector {
        source: "RFC 4309, by OpenSSL",
        suite: "aes128ccm12",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "433c644855ec7d3a234bfd",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "120d4c68c8be1e4d1fcb0e969d8207c83da06d746ffb45df98b543e7bcf1ec0d\
                 52f1271df45188b77970460e",
    },
    Vector {
        source: "RFC 4309, by OpenSSL",
        suite: "aes128ccm16",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "433c644855ec7d3a234bfd",
        aad: "0000432100000007",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "5f0d8a951084194dfea8b2c9384c60a5946206190a95ec62ebc73793dc918d68\
                 277ed478522fccc89905413792fcb12d7c39df8eab4b3688630d093947530c51\
                 15eac087",
    },
    Vector {
        source: "RFC 4309, by OpenSSL",
        suite: "aes192ccm8",
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c",
        nonce: "433c644855ec7d3a234bfd",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "951298d4ce1b4d76e4e6e004c59d78d7dfe535b7d0b5d6dc322c718b72af787e\
                 49a9dd9392d7f7d6",
    },
    Vector {
        source: "RFC 4309, by OpenSSL",
        suite: "aes192ccm12",
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c",
        nonce: "433c644855ec7d3a234bfd",
        aad: "0000432100000007",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "d8125e2916214a7605855c5b60531fba76275edab5db7f61415e05ff12cf191b\
                 72d2a06934f35888ecb3526923fe8062d927e4acbd23164b854dc48ab7b84195",
    },
    Vector {
        source: "RFC 4309, by OpenSSL",
        suite: "aes256ccm12",
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "433c644855ec7d3a234bfd",
        aad: "0000432100000007",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "989c6c1b72fb21655f8f01fcb314723f122674bd621c5bd8193448b5a04c7cef\
                 b851b0e2d5d26fefc3f94812ce75e97e8631482f5a271b5c8f7793171b20078b",
    },
    Vector {
        source: "RFC 4309, by OpenSSL",
        suite: "aes256ccm16",
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "433c644855ec7d3a234bfd",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "d59caae6aac12665beecbda316da1552bbe41fd00772f2656a463cc1c02c1d8a\
                 de2941e2e8c45b212accab4a1244ba1a",
    },
];
