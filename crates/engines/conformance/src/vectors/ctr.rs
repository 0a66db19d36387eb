//! AES-CTR.

use super::Vector;

/// RFC 3686 6 has texts, but no packets: their ICVs, each of another algorithm, were computed with OpenSSL,
/// under an integrity key that counts up from 41.
pub(super) const CTR: &[Vector] = &[
    Vector {
        source: "RFC 3686, 6, test vector 1, ICV by OpenSSL",
        suite: "aes128ctr-sha1",
        key: "ae6852f8121067cc4bf7a5765577f39e4142434445464748494a4b4c4d4e4f50\
              51525354",
        nonce: "000000300000000000000000",
        aad: "0000368600000001",
        text: "53696e676c6520626c6f636b206d7367",
        sealed: "e4095d4fb7a7b3792d6175a3261311b80b68548f0a49ee21d89237c6",
    },
    Vector {
        source: "RFC 3686, 6, test vector 3, ICV by OpenSSL",
        suite: "aes128ctr-aesxcbc",
        key: "7691be035e5020a8ac6e618529f9a0dc4142434445464748494a4b4c4d4e4f50",
        nonce: "00e0017b27777f3f4a1786f0",
        aad: "0000368600000003",
        text: "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\
               20212223",
        sealed: "c1cf48a89f2ffdd9cf4652e9efdb72d74540a42bde6d7836d59a5ceaaef31053\
                 25b2072ff707a6739fb0443211ecf00b",
    },
    Vector {
        source: "RFC 3686, 6, test vector 4, ICV by OpenSSL",
        suite: "aes192ctr-md5",
        key: "16af5b145fc9f579c175f93e3bfb0eed863d06ccfdb785154142434445464748\
              494a4b4c4d4e4f50",
        nonce: "0000004836733c147d6d93cb",
        aad: "000036860000000500000004",
        text: "53696e676c6520626c6f636b206d7367",
        sealed: "4b55384fe259c9c84e7935a003cbe928ea602610ecfede705069fc33",
    },
    Vector {
        source: "RFC 3686, 6, test vector 6, ICV by OpenSSL",
        suite: "aes192ctr-sha512",
        key: "02bf391ee8ecb159b959617b0965279bf59b60a786d3e0fe4142434445464748\
              494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768\
              696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f80",
        nonce: "0007bdfd5cbd60278dcc0912",
        aad: "000036860000000500000006",
        text: "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\
               20212223",
        sealed: "96893fc55e5c722f540b7dd1ddf7e758d288bc95c69165884536c811662f2188\
                 abee09353716f26151dcd22b19b323a64cd9eafbec4f5c89115be3ab65aaaea5\
                 6297aaf1",
    },
    Vector {
        source: "RFC 3686, 6, test vector 7, ICV by OpenSSL",
        suite: "aes256ctr-aescmac",
        key: "776beff2851db06f4c8a0542c8696f6c6a81af1eec96b4d37fc1d689e6c1c104\
              4142434445464748494a4b4c4d4e4f50",
        nonce: "00000060db5672c97aa8f0b2",
        aad: "0000368600000007",
        text: "53696e676c6520626c6f636b206d7367",
        sealed: "145ad01dbf824ec7560863dc71e3e0c0013e7ec38673988b6399960c",
    },
    Vector {
        source: "RFC 3686, 6, test vector 9, ICV by OpenSSL",
        suite: "aes256ctr-sha1",
        key: "ff7a617ce69148e4f1726e2f43581de2aa62d9f805532edff1eed687fb54153d\
              4142434445464748494a4b4c4d4e4f5051525354",
        nonce: "001cc5b751a51d70a1c11148",
        aad: "0000368600000009",
        text: "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\
               20212223",
        sealed: "eb6c52821d0bbbf7ce7594462aca4faab407df866569fd07f48cc0b583d6071f\
                 1ec0e6b856a6d8a7548c23553d69a6ef",
    },
];
