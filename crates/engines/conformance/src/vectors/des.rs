//! DES-CBC and 3DES-CBC.

use super::Vector;

/// RFC 2405 and RFC 2451 have no examples. FIPS 81 has one of DES-CBC; SP 800-67 has blocks of 3DES without a
/// mode, which are packets of CBC with an IV of zeros. ICVs were computed with OpenSSL, under an integrity
/// key that counts up from 41.
pub(super) const DES: &[Vector] = &[
    Vector {
        source: "FIPS 81, table C1, ICV by OpenSSL",
        suite: "des-sha1",
        key: "0123456789abcdef4142434445464748494a4b4c4d4e4f5051525354",
        nonce: "1234567890abcdef",
        aad: "000000810000000200000001",
        text: "4e6f77206973207468652074696d6520666f7220616c6c20",
        sealed: "e5c7cdde872bf27c43e934008c389c0f683788499a7c05f606bf3b8143f33d4f\
                 d2a89e4a",
    },
    Vector {
        source: "SP 800-67, B.1, block 1, as a packet with an IV of zeros, ICV by OpenSSL",
        suite: "3des-sha1",
        key: "0123456789abcdef23456789abcdef01456789abcdef01234142434445464748\
              494a4b4c4d4e4f5051525354",
        nonce: "0000000000000000",
        aad: "0000006700000001",
        text: "5468652071756663",
        sealed: "a826fd8ce53b855fb45dd73e26029364b23ec108",
    },
    Vector {
        source: "SP 800-67, B.1, block 3, as a packet with an IV of zeros, ICV by OpenSSL",
        suite: "3des-md5",
        key: "0123456789abcdef23456789abcdef01456789abcdef01234142434445464748\
              494a4b4c4d4e4f50",
        nonce: "0000000000000000",
        aad: "0000006700000003",
        text: "666f78206a756d70",
        sealed: "68d5c05dd9b6b9006d554b72dea3f80e1bea699f",
    },
];
