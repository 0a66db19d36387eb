//! The integrity algorithms, each beside no cipher or with an empty text.

use super::Vector;

/// - RFC 2202 2 and 3 for HMAC-MD5 and HMAC-SHA-1, which RFC 2403 and RFC 2404 refer to; RFC 4868 and RFC
///   4231 for HMAC-SHA-2; RFC 3566 and RFC 4434 for AES-XCBC; RFC 4493 for AES-CMAC, which RFC 4494
///   truncates.
/// - A message's first 8 bytes are the header, the others a text that is not encrypted, or at the end the
///   high half of the number. Cases that fit no packet are tested against the reference implementation, in
///   the module `reference`, and beside the portable engine's MACs.
pub(super) const MAC: &[Vector] = &[
    Vector {
        source: "RFC 4868, 2.7.2.1, AUTH256-2, as header, IV and high half of an empty text",
        suite: "aes256-sha256",
        key: "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4\
               4a6566654a6566654a6566654a6566654a6566654a6566654a6566654a656665",
        nonce: "79612077616e7420666f72206e6f7468",
        aad: "77686174696e673f20646f20",
        text: "",
        sealed: "167f928588c5cc2eef8e3093caa0e87c",
    },
    Vector {
        source: "RFC 4231, 4.3, test case 2, likewise, its key filled up with zeros",
        suite: "aes256-sha256",
        key: "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4\
               4a65666500000000000000000000000000000000000000000000000000000000",
        nonce: "79612077616e7420666f72206e6f7468",
        aad: "77686174696e673f20646f20",
        text: "",
        sealed: "5bdcc146bf60754e6a042426089575c7",
    },
    Vector {
        source: "RFC 2202, 3, test case 1",
        suite: "null-sha1",
        key: "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b",
        nonce: "",
        aad: "4869205468657265",
        text: "",
        sealed: "b617318655057264e28bc0b6",
    },
    Vector {
        source: "RFC 2202, 3, test case 2, its key filled up with zeros",
        suite: "null-sha1",
        key: "4a65666500000000000000000000000000000000",
        nonce: "",
        aad: "7768617420646f20",
        text: "79612077616e7420666f72206e6f7468696e673f",
        sealed: "79612077616e7420666f72206e6f7468696e673feffcdf6ae5eb2fa2d27416d5",
    },
    Vector {
        source: "RFC 2202, 3, test case 2, its last bytes taken for the high half",
        suite: "null-sha1",
        key: "4a65666500000000000000000000000000000000",
        nonce: "",
        aad: "77686174696e673f20646f20",
        text: "79612077616e7420666f72206e6f7468",
        sealed: "79612077616e7420666f72206e6f7468effcdf6ae5eb2fa2d27416d5",
    },
    Vector {
        source: "RFC 2202, 3, test case 3",
        suite: "null-sha1",
        key: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        nonce: "",
        aad: "dddddddddddddddd",
        text: "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd\
               dddddddddddddddddddd",
        sealed: "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd\
               dddddddddddddddddddd125d7342b9ac11cd91a39af4",
    },
    Vector {
        source: "RFC 2202, 3, test case 5",
        suite: "null-sha1",
        key: "0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c",
        nonce: "",
        aad: "5465737420576974",
        text: "68205472756e636174696f6e",
        sealed: "68205472756e636174696f6e4c1a03424b55e07fe7f27be1",
    },
    Vector {
        source: "RFC 4868, 2.7.2.2, AUTH384-2",
        suite: "null-sha384",
        key: "4a6566654a6566654a6566654a6566654a6566654a6566654a6566654a656665\
               4a6566654a6566654a6566654a656665",
        nonce: "",
        aad: "7768617420646f20",
        text: "79612077616e7420666f72206e6f7468696e673f",
        sealed: "79612077616e7420666f72206e6f7468696e673f\
                 2c7353974f1842fd66d53c452ca42122b28c0b594cfb184d",
    },
    Vector {
        source: "RFC 4868, 2.7.2.2, AUTH384-2, its last bytes taken for the high half",
        suite: "null-sha384",
        key: "4a6566654a6566654a6566654a6566654a6566654a6566654a6566654a656665\
               4a6566654a6566654a6566654a656665",
        nonce: "",
        aad: "77686174696e673f20646f20",
        text: "79612077616e7420666f72206e6f7468",
        sealed: "79612077616e7420666f72206e6f7468\
                 2c7353974f1842fd66d53c452ca42122b28c0b594cfb184d",
    },
    Vector {
        source: "RFC 4868, 2.7.2.3, AUTH512-2",
        suite: "null-sha512",
        key: "4a6566654a6566654a6566654a6566654a6566654a6566654a6566654a656665\
               4a6566654a6566654a6566654a6566654a6566654a6566654a6566654a656665",
        nonce: "",
        aad: "7768617420646f20",
        text: "79612077616e7420666f72206e6f7468696e673f",
        sealed: "79612077616e7420666f72206e6f7468696e673f\
                 cb370917ae8a7ce28cfd1d8f4705d6141c173b2a9362c15df235dfb251b15454",
    },
    Vector {
        source: "RFC 4868, 2.7.2.3, AUTH512-2, its last bytes taken for the high half",
        suite: "null-sha512",
        key: "4a6566654a6566654a6566654a6566654a6566654a6566654a6566654a656665\
               4a6566654a6566654a6566654a6566654a6566654a6566654a6566654a656665",
        nonce: "",
        aad: "77686174696e673f20646f20",
        text: "79612077616e7420666f72206e6f7468",
        sealed: "79612077616e7420666f72206e6f7468\
                 cb370917ae8a7ce28cfd1d8f4705d6141c173b2a9362c15df235dfb251b15454",
    },
    Vector {
        source: "RFC 2202, 2, test case 1",
        suite: "null-md5",
        key: "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b",
        nonce: "",
        aad: "4869205468657265",
        text: "",
        sealed: "9294727a3638bb1c13f48ef8",
    },
    Vector {
        source: "RFC 2202, 2, test case 2, its key filled up with zeros",
        suite: "null-md5",
        key: "4a656665000000000000000000000000",
        nonce: "",
        aad: "7768617420646f20",
        text: "79612077616e7420666f72206e6f7468696e673f",
        sealed: "79612077616e7420666f72206e6f7468696e673f750c783e6ab0b503eaa86e31",
    },
    Vector {
        source: "RFC 2202, 2, test case 2, its last bytes taken for the high half",
        suite: "null-md5",
        key: "4a656665000000000000000000000000",
        nonce: "",
        aad: "77686174696e673f20646f20",
        text: "79612077616e7420666f72206e6f7468",
        sealed: "79612077616e7420666f72206e6f7468750c783e6ab0b503eaa86e31",
    },
    Vector {
        source: "RFC 2202, 2, test case 3",
        suite: "null-md5",
        key: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        nonce: "",
        aad: "dddddddddddddddd",
        text: "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd\
               dddddddddddddddddddd",
        sealed: "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd\
                 dddddddddddddddddddd56be34521d144c88dbb8c733",
    },
    Vector {
        source: "RFC 2202, 2, test case 5",
        suite: "null-md5",
        key: "0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c",
        nonce: "",
        aad: "5465737420576974",
        text: "68205472756e636174696f6e",
        sealed: "68205472756e636174696f6e56461ef2342edc00f9bab995",
    },
    Vector {
        source: "RFC 3566, 4.6, test case 3",
        suite: "null-aesxcbc",
        key: "000102030405060708090a0b0c0d0e0f",
        nonce: "",
        aad: "0001020304050607",
        text: "08090a0b0c0d0e0f",
        sealed: "08090a0b0c0d0e0fd2a246fa349b68a79998a439",
    },
    Vector {
        source: "RFC 3566, 4.6, test case 4, and RFC 4434, 3",
        suite: "null-aesxcbc",
        key: "000102030405060708090a0b0c0d0e0f",
        nonce: "",
        aad: "0001020304050607",
        text: "08090a0b0c0d0e0f10111213",
        sealed: "08090a0b0c0d0e0f1011121347f51b4564966215b8985c63",
    },
    Vector {
        source: "RFC 3566, 4.6, test case 5, its last bytes taken for the high half",
        suite: "null-aesxcbc",
        key: "000102030405060708090a0b0c0d0e0f",
        nonce: "",
        aad: "000102031c1d1e1f04050607",
        text: "08090a0b0c0d0e0f101112131415161718191a1b",
        sealed: "08090a0b0c0d0e0f101112131415161718191a1bf54f0ec8d2b9f3d36807734b",
    },
    Vector {
        source: "RFC 3566, 4.6, test case 6, its last bytes taken for the high half",
        suite: "null-aesxcbc",
        key: "000102030405060708090a0b0c0d0e0f",
        nonce: "",
        aad: "000102031e1f202104050607",
        text: "08090a0b0c0d0e0f101112131415161718191a1b1c1d",
        sealed: "08090a0b0c0d0e0f101112131415161718191a1b1c1dbecbb3bccdb518a30677\
                 d548",
    },
    Vector {
        source: "RFC 3566, 4.6, test case 7",
        suite: "null-aesxcbc",
        key: "000102030405060708090a0b0c0d0e0f",
        nonce: "",
        aad: "0000000000000000",
        text: "0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000\
               0000000000000000000000000000000000000000000000000000000000000000",
        sealed: "0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 0000000000000000000000000000000000000000000000000000000000000000\
                 f0dafee895db30253761103b",
    },
    Vector {
        source: "RFC 4493, 4, example 2",
        suite: "null-aescmac",
        key: "2b7e151628aed2a6abf7158809cf4f3c",
        nonce: "",
        aad: "6bc1bee22e409f96",
        text: "e93d7e117393172a",
        sealed: "e93d7e117393172a070a16b46b4d4144f79bdd9d",
    },
    Vector {
        source: "RFC 4493, 4, example 3, its last bytes taken for the high half",
        suite: "null-aescmac",
        key: "2b7e151628aed2a6abf7158809cf4f3c",
        nonce: "",
        aad: "6bc1bee2a35ce4112e409f96",
        text: "e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46",
        sealed: "e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46dfa66747\
                 de9ae63030ca3261",
    },
    Vector {
        source: "RFC 4493, 4, example 4",
        suite: "null-aescmac",
        key: "2b7e151628aed2a6abf7158809cf4f3c",
        nonce: "",
        aad: "6bc1bee22e409f96",
        text: "e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46a35ce411\
               e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710",
        sealed: "e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46a35ce411\
                 e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c371051f0bebf7e3b9d92\
                 fc497417",
    },
    Vector {
        source: "RFC 4493, 4, example 4, its last bytes taken for the high half",
        suite: "null-aescmac",
        key: "2b7e151628aed2a6abf7158809cf4f3c",
        nonce: "",
        aad: "6bc1bee2e66c37102e409f96",
        text: "e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46a35ce411\
               e5fbc1191a0a52eff69f2445df4f9b17ad2b417b",
        sealed: "e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46a35ce411\
                 e5fbc1191a0a52eff69f2445df4f9b17ad2b417b51f0bebf7e3b9d92fc497417",
    },
    Vector {
        source: "RFC 4231, 4.2, test case 1, its key filled up with zeros",
        suite: "null-sha256",
        key: "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b000000000000000000000000",
        nonce: "",
        aad: "4869205468657265",
        text: "",
        sealed: "b0344c61d8db38535ca8afceaf0bf12b",
    },
    Vector {
        source: "RFC 4231, 4.3, test case 2, its key filled up with zeros",
        suite: "null-sha384",
        key: "4a65666500000000000000000000000000000000000000000000000000000000\
              00000000000000000000000000000000",
        nonce: "",
        aad: "7768617420646f20",
        text: "79612077616e7420666f72206e6f7468696e673f",
        sealed: "79612077616e7420666f72206e6f7468696e673faf45d2e376484031617f78d2\
                 b58a6b1b9c7ef464f5a01b47",
    },
    Vector {
        source: "RFC 4231, 4.3, test case 2, its key filled up with zeros",
        suite: "null-sha512",
        key: "4a65666500000000000000000000000000000000000000000000000000000000\
              0000000000000000000000000000000000000000000000000000000000000000",
        nonce: "",
        aad: "77686174696e673f20646f20",
        text: "79612077616e7420666f72206e6f7468",
        sealed: "79612077616e7420666f72206e6f7468164b7a7bfcf819e2e395fbe73b56e0a3\
                 87bd64222e831fd610270cd7ea250554",
    },
    Vector {
        source: "RFC 4231, 4.4, test case 3, its key filled up with zeros",
        suite: "null-sha256",
        key: "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa000000000000000000000000",
        nonce: "",
        aad: "dddddddddddddddd",
        text: "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd\
               dddddddddddddddddddd",
        sealed: "dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd\
                 dddddddddddddddddddd773ea91e36800e46854db8ebd09181a7",
    },
];
