//! AES-CBC.

use super::Vector;

/// - RFC 3602 4: cases 5 and 6 are whole ESP packets in transport mode, 7 and 8 in tunnel mode. They have no
///   integrity, and are here twice: as they are printed, and with the ICV of HMAC-SHA-1.
/// - NIST SP 800-38A F.2.
///
/// ICVs were computed with OpenSSL, under an integrity key that counts up from 41 or 61.
pub(super) const CBC: &[Vector] = &[
    Vector {
        source: "RFC 3602, 4, case 1",
        suite: "aes128-none",
        key: "06a9214036b8a15b512e03d534120006",
        nonce: "3dafba429d9eb430b422da802c9fac41",
        aad: "0000000100000001",
        text: "53696e676c6520626c6f636b206d7367",
        sealed: "e353779c1079aeb82708942dbe77181a",
    },
    Vector {
        source: "RFC 3602, 4, case 2",
        suite: "aes128-none",
        key: "c286696d887c9aa0611bbb3e2025a45a",
        nonce: "562e17996d093d28ddb3ba695a2e6f58",
        aad: "000000020000000100000002",
        text: "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        sealed: "d296cd94c2cccf8a3a863028b5e1dc0a7586602d253cfff91b8266bea6d61ab1",
    },
    Vector {
        source: "RFC 3602, 4, case 3",
        suite: "aes128-none",
        key: "6c3ea0477630ce21a2ce334aa746c2cd",
        nonce: "c782dc4c098c66cbd9cd27d825682c81",
        aad: "0000000300000003",
        text: "5468697320697320612034382d62797465206d65737361676520286578616374\
               6c7920332041455320626c6f636b7329",
        sealed: "d0a02b3836451753d493665d33f0e8862dea54cdb293abc7506939276772f8d5\
                 021c19216bad525c8579695d83ba2684",
    },
    Vector {
        source: "RFC 3602, 4, case 4",
        suite: "aes128-none",
        key: "56e47a38c5598974bc46903dba290349",
        nonce: "8ce82eefbea0da3c44699ed7db51b7d9",
        aad: "000000040000000000000004",
        text: "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf\
               c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf",
        sealed: "c30e32ffedc0774e6aff6af0869f71aa0f3af07a9a31a9c684db207eb0ef8e4e\
                 35907aa632c3ffdf868bb7b29d3d46ad83ce9f9a102ee99d49a53e87f4c3da55",
    },
    Vector {
        source: "RFC 3602, 4, case 5",
        suite: "aes128-none",
        key: "90d382b410eeba7ad938c46cec1a82bf",
        nonce: "e96e8c08ab465763fd098d45dd3ff893",
        aad: "0000432100000001",
        text: "08000ebda70a00008e9c083db95b070008090a0b0c0d0e0f1011121314151617\
               18191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031323334353637\
               0102030405060708090a0b0c0d0e0e01",
        sealed: "f663c25d325c18c6a9453e194e120849a4870b66cc6b9965330013b4898dc856\
                 a4699e523a55db080b59ec3a8e4b7e52775b07d1db34ed9c538ab50c551b874a\
                 a269add047ad2d5913ac19b7cfbad4a6",
    },
    Vector {
        source: "RFC 3602, 4, case 6",
        suite: "aes128-none",
        key: "90d382b410eeba7ad938c46cec1a82bf",
        nonce: "69d08df7d203329db093fc4924e5bd80",
        aad: "0000432100000008",
        text: "0800b5e8a80a0500a69c083d0b660e0077777777777777777777777701020201",
        sealed: "f51995881ec4e0c4488987ce742e8109689bb379d2d750c0d915dca346a89f75",
    },
    Vector {
        source: "RFC 3602, 4, case 7",
        suite: "aes128-none",
        key: "0123456789abcdef0123456789abcdef",
        nonce: "f4e765244f6407adf13dc1380f673f37",
        aad: "0000876500000002",
        text: "45000054090400004001f988c0a87b03c0a87bc808009f76a90a0100b49c083d\
               02a2040008090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223\
               2425262728292a2b2c2d2e2f30313233343536370102030405060708090a0a04",
        sealed: "773b5241a4c449225e4f3ce5ed611b0c237ca96cf74a93013c1b0ea1a0cf70f8\
                 e4ecaec78ac53aad7a0f022b859243c647752e94a859352b8a4d4d2decd136e5\
                 c177f132ad3fbfb2201ac9904c74ee0a109e0ca1e4dfe9d5a100b842f1c22f0d",
    },
    Vector {
        source: "RFC 3602, 4, case 8",
        suite: "aes128-none",
        key: "0123456789abcdef0123456789abcdef",
        nonce: "85d47224b5f3dd5d2101d4ea8dffab22",
        aad: "0000876500000005",
        text: "45000044090c00004001f990c0a87b03c0a87bc80800d63caa0a0200c69c083d\
               a3de0300ffffffffffffffffffffffffffffffffffffffffffffffffffffffff\
               ffffffff0102030405060708090a0a04",
        sealed: "15b92683819596a8047232cc00f7048fe45318e11f8a0f62ede3c3fc61203bb5\
                 0f980a08c9843fd3a1b06d5c07ff9639b7eb7dfb3512e5de435e7207ed971ef3\
                 d2726d9b5ef6affc6d17a0decbb13892",
    },
    Vector {
        source: "RFC 3602, 4, case 1, ICV by OpenSSL",
        suite: "aes128-sha1",
        key: "06a9214036b8a15b512e03d5341200064142434445464748494a4b4c4d4e4f50\
               51525354",
        nonce: "3dafba429d9eb430b422da802c9fac41",
        aad: "0000000100000001",
        text: "53696e676c6520626c6f636b206d7367",
        sealed: "e353779c1079aeb82708942dbe77181ab447ef688da124c87df02d66",
    },
    Vector {
        source: "RFC 3602, 4, case 2, ICV by OpenSSL",
        suite: "aes128-sha1",
        key: "c286696d887c9aa0611bbb3e2025a45a4142434445464748494a4b4c4d4e4f50\
               51525354",
        nonce: "562e17996d093d28ddb3ba695a2e6f58",
        aad: "000000020000000100000002",
        text: "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        sealed: "d296cd94c2cccf8a3a863028b5e1dc0a7586602d253cfff91b8266bea6d61ab1\
               bf037a096f6d82f63911e534",
    },
    Vector {
        source: "RFC 3602, 4, case 3, ICV by OpenSSL",
        suite: "aes128-sha1",
        key: "6c3ea0477630ce21a2ce334aa746c2cd4142434445464748494a4b4c4d4e4f50\
               51525354",
        nonce: "c782dc4c098c66cbd9cd27d825682c81",
        aad: "0000000300000003",
        text: "5468697320697320612034382d62797465206d65737361676520286578616374\
               6c7920332041455320626c6f636b7329",
        sealed: "d0a02b3836451753d493665d33f0e8862dea54cdb293abc7506939276772f8d5\
               021c19216bad525c8579695d83ba26849ad7aa62a4a81c69416046ae",
    },
    Vector {
        source: "RFC 3602, 4, case 4, ICV by OpenSSL",
        suite: "aes128-sha1",
        key: "56e47a38c5598974bc46903dba2903494142434445464748494a4b4c4d4e4f50\
               51525354",
        nonce: "8ce82eefbea0da3c44699ed7db51b7d9",
        aad: "000000040000000000000004",
        text: "a0a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf\
               c0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedf",
        sealed: "c30e32ffedc0774e6aff6af0869f71aa0f3af07a9a31a9c684db207eb0ef8e4e\
               35907aa632c3ffdf868bb7b29d3d46ad83ce9f9a102ee99d49a53e87f4c3da55\
               1d9e15edc1c89223c7baefd8",
    },
    Vector {
        source: "RFC 3602, 4, case 5, ICV by OpenSSL",
        suite: "aes128-sha1",
        key: "90d382b410eeba7ad938c46cec1a82bf4142434445464748494a4b4c4d4e4f50\
               51525354",
        nonce: "e96e8c08ab465763fd098d45dd3ff893",
        aad: "0000432100000001",
        text: "08000ebda70a00008e9c083db95b070008090a0b0c0d0e0f1011121314151617\
               18191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031323334353637\
               0102030405060708090a0b0c0d0e0e01",
        sealed: "f663c25d325c18c6a9453e194e120849a4870b66cc6b9965330013b4898dc856\
               a4699e523a55db080b59ec3a8e4b7e52775b07d1db34ed9c538ab50c551b874a\
               a269add047ad2d5913ac19b7cfbad4a65ffaae9822395f396ec52f33",
    },
    Vector {
        source: "RFC 3602, 4, case 6, ICV by OpenSSL",
        suite: "aes128-sha1",
        key: "90d382b410eeba7ad938c46cec1a82bf4142434445464748494a4b4c4d4e4f50\
               51525354",
        nonce: "69d08df7d203329db093fc4924e5bd80",
        aad: "0000432100000008",
        text: "0800b5e8a80a0500a69c083d0b660e0077777777777777777777777701020201",
        sealed: "f51995881ec4e0c4488987ce742e8109689bb379d2d750c0d915dca346a89f75\
               7a5103fbe48603ea8aa5ca15",
    },
    Vector {
        source: "RFC 3602, 4, case 8, ICV by OpenSSL",
        suite: "aes128-sha1",
        key: "0123456789abcdef0123456789abcdef4142434445464748494a4b4c4d4e4f50\
               51525354",
        nonce: "85d47224b5f3dd5d2101d4ea8dffab22",
        aad: "0000876500000005",
        text: "45000044090c00004001f990c0a87b03c0a87bc80800d63caa0a0200c69c083d\
               a3de0300ffffffffffffffffffffffffffffffffffffffffffffffffffffffff\
               ffffffff0102030405060708090a0a04",
        sealed: "15b92683819596a8047232cc00f7048fe45318e11f8a0f62ede3c3fc61203bb5\
               0f980a08c9843fd3a1b06d5c07ff9639b7eb7dfb3512e5de435e7207ed971ef3\
               d2726d9b5ef6affc6d17a0decbb13892559de0327e34cf61319df2be",
    },
    Vector {
        source: "SP 800-38A, F.2.1, ICV by OpenSSL",
        suite: "aes128-sha1",
        key: "2b7e151628aed2a6abf7158809cf4f3c4142434445464748494a4b4c4d4e4f50\
               51525354",
        nonce: "000102030405060708090a0b0c0d0e0f",
        aad: "0000380a0000000a00000021",
        text: "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51\
               30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710",
        sealed: "7649abac8119b246cee98e9b12e9197d5086cb9b507219ee95db113a917678b2\
               73bed6b8e3c1743b7116e69e222295163ff1caa1681fac09120eca307586e1a7\
               d76f74c762a45e51e9b6dd9c",
    },
    Vector {
        source: "SP 800-38A, F.2.5, ICV by OpenSSL",
        suite: "aes256-sha256",
        key: "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4\
               6162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f80",
        nonce: "000102030405060708090a0b0c0d0e0f",
        aad: "0000380a00000025",
        text: "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51\
               30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710",
        sealed: "f58c4c04d6e5f1ba779eabfb5f7bfbd69cfc4e967edb808d679f777bc6702c7d\
               39f23369a9d9bacfa530e26304231461b2eb05e2c39be9fcda6c19078c6a9d1b\
               4a2d2ff8b577212384e5e378b03e6306",
    },
    Vector {
        source: "SP 800-38A, F.2.3, ICV by OpenSSL",
        suite: "aes192-sha512",
        key: "8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b4142434445464748\
              494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768\
              696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f80",
        nonce: "000102030405060708090a0b0c0d0e0f",
        aad: "0000380a0000000a00000023",
        text: "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51\
               30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710",
        sealed: "4f021db243bc633d7178183a9fa071e8b4d9ada9ad7dedf4e5e738763f69145a\
                 571b242012fb7ae07fa9baac3df102e008b0e27988598881d920a9e64f5615cd\
                 ee0261b595dd781b082833da2a05d008a573a47a53b0a228c769026a152c7d61",
    },
];
