//! The answers that engines must know: in hexadecimal, each with its source.

/// One official answer; all members but source and suite in hexadecimal.
#[derive(Debug)]
pub struct KnownAnswer {
    /// Document and case.
    pub source: &'static str,
    /// The suite's name.
    pub suite: &'static str,
    /// Cipher key, then integrity key; the salt is in the nonce.
    pub key: &'static str,
    /// Salt, if there is one, and what is in the IV's field before sealing: the IV, or for CBC the block that
    /// becomes it.
    pub nonce: &'static str,
    /// SPI and sequence number: 8 bytes, or 12 with ESN.
    pub aad: &'static str,
    /// Plaintext.
    pub text: &'static str,
    /// IV where the engine makes it, ciphertext, then ICV.
    pub sealed: &'static str,
}

/// At least one for each primitive, of lengths that are no multiple of a cipher block where the cipher takes
/// them, with both lengths of AAD.
///
/// Some documents have no packets. Those of RFC 3602, RFC 3686, SP 800-38A, SP 800-67 and FIPS 81 were
/// completed with OpenSSL: the ICV, under an integrity key that counts up, and for CBC the block that becomes
/// the IV, which is the IV decrypted. RFC 4309 and RFC 8750 have no examples at all: these are McGrew's
/// packets, sealed with OpenSSL.
pub const KNOWN_ANSWERS: &[KnownAnswer] = &[
    KnownAnswer {
        source: "draft-mcgrew-gcm-test-01, case 1",
        suite: "aes128gcm16",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "2e443b684956ed7e3b244cfe",
        aad: "000043218765432100000000",
        text: "45000048699a000080114db7c0a80102c0a801010a9bf15638d3010000010000\
               00000000045f736970045f756470037369700963796265726369747902646b00\
               0021000101020201",
        sealed: "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34\
                 cfa2436f14a3f3cf65925bf1f4a13c5d15b21e1884f5ff6247aeabb786b93bce\
                 61bc17d768fd9732459018148f6cbe722fd04796562dfdb4",
    },
    KnownAnswer {
        source: "draft-mcgrew-gcm-test-01, case 3",
        suite: "aes256gcm16",
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "112233440102030405060708",
        aad: "4a2cbfe300000002",
        text: "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee000000000\
               7002400020bf0000020405b40101040201020201",
        sealed: "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763\
                 748a637985771d347f0545659f14e99def842d8eb335f4eecfdbf831824b4c49\
                 15956c96",
    },
    KnownAnswer {
        source: "RFC 7634, appendix A",
        suite: "chacha20poly1305",
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        nonce: "a0a1a2a31011121314151617",
        aad: "0102030400000005",
        text: "45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec10\
               0007362708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223\
               2425262728292a2b2c2d2e2f303132333435363701020204",
        sealed: "24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c6\
                 14ee8099d52844eb61aa95dfab4c02f72aa71e7c4c4f64c9befe2facc638e8f3\
                 cbec163fac469b502773f6fb94e664da9165b82829f641e076aaa8266b7fb0f7\
                 b11b369907e1ad43",
    },
    KnownAnswer {
        source: "RFC 8439, 2.8.2",
        suite: "chacha20poly1305",
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        nonce: "070000004041424344454647",
        aad: "50515253c0c1c2c3c4c5c6c7",
        text: "4c616469657320616e642047656e746c656d656e206f662074686520636c6173\
               73206f66202739393a204966204920636f756c64206f6666657220796f75206f\
               6e6c79206f6e652074697020666f7220746865206675747572652c2073756e73\
               637265656e20776f756c642062652069742e",
        sealed: "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6\
                 3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36\
                 92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc\
                 3ff4def08e4b7a9de576d26586cec64b61161ae10b594f09e26a7e902ecbd060\
                 0691",
    },
    KnownAnswer {
        source: "RFC 3602, 4, case 7",
        suite: "aes128-sha1",
        key: "0123456789abcdef0123456789abcdef4142434445464748494a4b4c4d4e4f5051525354",
        nonce: "0acb3a717fe7f1861ae9c1e58f324ade",
        aad: "0000876500000002",
        text: "45000054090400004001f988c0a87b03c0a87bc808009f76a90a0100b49c083d\
               02a2040008090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223\
               2425262728292a2b2c2d2e2f30313233343536370102030405060708090a0a04",
        sealed: "f4e765244f6407adf13dc1380f673f37\
                 773b5241a4c449225e4f3ce5ed611b0c237ca96cf74a93013c1b0ea1a0cf70f8\
                 e4ecaec78ac53aad7a0f022b859243c647752e94a859352b8a4d4d2decd136e5\
                 c177f132ad3fbfb2201ac9904c74ee0a109e0ca1e4dfe9d5a100b842f1c22f0d\
                 d89f10fa84e8b7f07f41c8e8",
    },
    KnownAnswer {
        source: "SP 800-38A, F.2.5",
        suite: "aes256-sha256",
        key: "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4\
              6162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f80",
        nonce: "393e4e6cdf9b1fc836120fa2a3d8f140",
        aad: "0000380a0000000a00000025",
        text: "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51\
               30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710",
        sealed: "000102030405060708090a0b0c0d0e0f\
                 f58c4c04d6e5f1ba779eabfb5f7bfbd69cfc4e967edb808d679f777bc6702c7d\
                 39f23369a9d9bacfa530e26304231461b2eb05e2c39be9fcda6c19078c6a9d1b\
                 d1cd02836527f00879670594e12cfca7",
    },
    KnownAnswer {
        source: "RFC 2202, 3, test case 5",
        suite: "null-sha1",
        key: "0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c",
        nonce: "",
        aad: "5465737420576974",
        text: "68205472756e636174696f6e",
        sealed: "68205472756e636174696f6e4c1a03424b55e07fe7f27be1",
    },
    KnownAnswer {
        source: "RFC 2202, 3, test case 2, its key filled up with zeros and its last bytes taken for the high half",
        suite: "null-sha1",
        key: "4a65666500000000000000000000000000000000",
        nonce: "",
        aad: "77686174696e673f20646f20",
        text: "79612077616e7420666f72206e6f7468",
        sealed: "79612077616e7420666f72206e6f7468effcdf6ae5eb2fa2d27416d5",
    },
    KnownAnswer {
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
    KnownAnswer {
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
    KnownAnswer {
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
    KnownAnswer {
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
    KnownAnswer {
        source: "draft-mcgrew-gcm-test-01, case 7",
        suite: "aes192gcm16",
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c",
        nonce: "cafebabefacedbaddecaf888",
        aad: "0000a5f80000000a",
        text: "45000028a4ad4000400678800a01038f0a010612802306b8cb712602dd6bb03e\
               501016d075680001",
        sealed: "a5b1f8066029aea40e598b8122de02420938b3ab33f828e687b8858b5bfbdbd0\
                 315b27452144cc7795457b9652037f5318027b5b4cd7a636",
    },
    KnownAnswer {
        source: "draft-mcgrew-gcm-test-01, case 16, its tag cut to 8 bytes",
        suite: "aes128gcm8",
        key: "3de09874b388e6491988d0c3607eae1f",
        nonce: "57690e434e280000a2fca1a3",
        aad: "3f7ef6421010101010101010",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "fba2caa8c6c5f9f0f22ca54a061210ad3f6e5791cf1aca210d117cec9c357917\
                 65acbd8701ad79845bf9fe3fba487bc96321930684eecadb56912546",
    },
    KnownAnswer {
        source: "draft-mcgrew-gcm-test-01, case 17, its tag cut to 12 bytes",
        suite: "aes128gcm12",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "22433c644855ec7d3a234bfd",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "74752e8aeb5d873cd7c0f4acc36c4bff84b7d7b98f0ca8b6acda6894bc619069\
                 ef9cbc28fe1b56a7c4e0d58c",
    },
    KnownAnswer {
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
    KnownAnswer {
        source: "draft-mcgrew-gcm-test-01, case 17 under RFC 4543, by OpenSSL",
        suite: "aes192gmac",
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c",
        nonce: "22433c644855ec7d3a234bfd",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201\
                 165ba92d55d13be0a27af43a24b8738c",
    },
    KnownAnswer {
        source: "draft-mcgrew-gcm-test-01, case 17 under RFC 4543, by OpenSSL",
        suite: "aes256gmac",
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "22433c644855ec7d3a234bfd",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201\
                 135eb030ab0b8a8691f020c823ac51a9",
    },
    KnownAnswer {
        source: "RFC 8750 4, by OpenSSL",
        suite: "aes128gcm16iiv",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "22433c64",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "331513a65f74715a3b2d369cfc0d5021d610273d2a560fbcf6e721fb2d1bd55d\
                 682167855ef05c27f4f113b95207a4f3",
    },
    KnownAnswer {
        source: "RFC 8750 4, by OpenSSL",
        suite: "aes192gcm16iiv",
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c",
        nonce: "22433c64",
        aad: "0000432100000007",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "dfb301edf191ce02ab55e814b292262f06c924e0086a7b415e6a2d1a7185ef8a\
                 89501c302862031c27f16c52288d824de674f0e179d4aebf63d84ff9d8d66acf\
                 dd142928",
    },
    KnownAnswer {
        source: "RFC 8750 4, by OpenSSL",
        suite: "aes256gcm16iiv",
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "22433c64",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "44e1bec5c2ae57f4977c1c55e8fd2d5fe16470602afa80325a652e828e33b805\
                 93659bf4f80ec2546a725c1c42a71db8",
    },
    KnownAnswer {
        source: "RFC 8750 4, by OpenSSL",
        suite: "chacha20poly1305iiv",
        key: "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
        nonce: "a0a1a2a3",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "51371ea58169b9994c35bdd280723c8fb9f2e1dd395693f8f2f53c07d024fc4d\
                 c372671bba911bd81b5e2f6eeaf40ee6",
    },
    KnownAnswer {
        source: "RFC 4309, by OpenSSL",
        suite: "aes128ccm8",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "433c644855ec7d3a234bfd",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "120d4c68c8be1e4d1fcb0e969d8207c83da06d746ffb45df98b543e7bcf1ec0d\
                 45c0ccf4355e8740",
    },
    KnownAnswer {
        source: "RFC 4309, by OpenSSL",
        suite: "aes128ccm12",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "433c644855ec7d3a234bfd",
        aad: "0000432100000007",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "5f0d8a951084194dfea8b2c9384c60a5946206190a95ec62ebc73793dc918d68\
                 277ed478522fccc89905413792fcb12d7c39df8efca318075af52797208ec906",
    },
    KnownAnswer {
        source: "RFC 4309, by OpenSSL",
        suite: "aes128ccm16",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "433c644855ec7d3a234bfd",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "120d4c68c8be1e4d1fcb0e969d8207c83da06d746ffb45df98b543e7bcf1ec0d\
                 5b6b924523c05ccfe7fbcaae36f273fd",
    },
    KnownAnswer {
        source: "RFC 4309, by OpenSSL",
        suite: "aes192ccm16",
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c",
        nonce: "433c644855ec7d3a234bfd",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "951298d4ce1b4d76e4e6e004c59d78d7dfe535b7d0b5d6dc322c718b72af787e\
                 ebe3700a9042abfd3862b09b14577f28",
    },
    KnownAnswer {
        source: "RFC 4309, by OpenSSL",
        suite: "aes256ccm8",
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "433c644855ec7d3a234bfd",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "d59caae6aac12665beecbda316da1552bbe41fd00772f2656a463cc1c02c1d8a\
                 40943fbd940f4ff5",
    },
    KnownAnswer {
        source: "RFC 8750 4, by OpenSSL",
        suite: "aes128ccm8iiv",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "433c64",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "f63477242df91c598217de46344c36c9c276db6f5564951d19f665008ec857e6\
                 5f2b9d79ea4f71b9",
    },
    KnownAnswer {
        source: "RFC 8750 4, by OpenSSL",
        suite: "aes192ccm8iiv",
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c",
        nonce: "433c64",
        aad: "0000432100000007",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "a25eabcfa3a4b4815787a975b875a5d3e498993994e5a25d7d01a8c747479b3d\
                 5b02f1b8c748ce1166f151897a6760e78107baa486fd5a4c5b683037",
    },
    KnownAnswer {
        source: "RFC 8750 4, by OpenSSL",
        suite: "aes256ccm8iiv",
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "433c64",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "4d310be00fee715081ff1fbef5fefe337200103b6076a2290355fc5404d7e7d1\
                 6117977d66a1a0cb",
    },
    KnownAnswer {
        source: "RFC 3686, 6, test vector 2, ICV by OpenSSL",
        suite: "aes128ctr-sha256",
        key: "7e24067817fae0d743d6ce1f325391634142434445464748494a4b4c4d4e4f50\
              5152535455565758595a5b5c5d5e5f60",
        nonce: "006cb6dbc0543b59da48d90b",
        aad: "000036860000000500000002",
        text: "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        sealed: "5104a106168a72d9790d41ee8edad388eb2e1efc46da57c8fce630df9141be28\
                 52c2fd214825c012af99c8c31198c85c",
    },
    KnownAnswer {
        source: "RFC 3686, 6, test vector 5, ICV by OpenSSL",
        suite: "aes192ctr-sha384",
        key: "7c5cb2401b3dc33c19e7340819e0f69c678c3db8e6f6a91a4142434445464748\
              494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f606162636465666768\
              696a6b6c6d6e6f70",
        nonce: "0096b03b020c6eadc2cb500d",
        aad: "0000368600000005",
        text: "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        sealed: "453243fc609b23327edfaafa7131cd9f8490701c5ad4a79cfc1fe0ff42f4fb00\
                 2d98c88d9ff23e1ead7eec1d5d8db652ce5e64edeb8fcea8",
    },
    KnownAnswer {
        source: "RFC 3686, 6, test vector 8, ICV by OpenSSL",
        suite: "aes256ctr-sha256",
        key: "f6d66d6bd52d59bb0796365879eff886c66dd51a5b6a99744b50590c87a23884\
              4142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f60",
        nonce: "00faac24c1585ef15a43d875",
        aad: "000036860000000500000008",
        text: "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        sealed: "f05e231b3894612c49ee000b804eb2a9b8306b508f839d6a5530831d9344af1c\
                 413da6f0c05416709b8d26cea56814fe",
    },
    KnownAnswer {
        source: "SP 800-38A, F.2.3, ICV by OpenSSL",
        suite: "aes192-aescmac",
        key: "8e73b0f7da0e6452c810f32b809079e562f8ead2522c6b7b4142434445464748\
              494a4b4c4d4e4f50",
        nonce: "2996ff21b81641c7bef3124e9efe4780",
        aad: "0000380a00000023",
        text: "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51\
               30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710",
        sealed: "000102030405060708090a0b0c0d0e0f4f021db243bc633d7178183a9fa071e8\
                 b4d9ada9ad7dedf4e5e738763f69145a571b242012fb7ae07fa9baac3df102e0\
                 08b0e27988598881d920a9e64f5615cd9de671d3d9759f547f26ff1f",
    },
    KnownAnswer {
        source: "FIPS 81, table C1, ICV by OpenSSL",
        suite: "des-md5",
        key: "0123456789abcdef4142434445464748494a4b4c4d4e4f50",
        nonce: "99f363c9f09bde44",
        aad: "0000008100000001",
        text: "4e6f77206973207468652074696d6520666f7220616c6c20",
        sealed: "1234567890abcdefe5c7cdde872bf27c43e934008c389c0f683788499a7c05f6\
                 bef38951f43ce86a8ea445b1",
    },
    KnownAnswer {
        source: "SP 800-67, B.1, block 2, as a packet with an IV of zeros, ICV by OpenSSL",
        suite: "3des-aesxcbc",
        key: "0123456789abcdef23456789abcdef01456789abcdef01234142434445464748\
              494a4b4c4d4e4f50",
        nonce: "24b3dd5e0a403cf5",
        aad: "000000670000000100000002",
        text: "6b2062726f776e20",
        sealed: "0000000000000000cce21c8112256fe614c8f3baa267f21691e4fda6",
    },
    KnownAnswer {
        source: "RFC 2202, 2, test case 2, its last bytes taken for the high half",
        suite: "null-md5",
        key: "4a656665000000000000000000000000",
        nonce: "",
        aad: "77686174696e673f20646f20",
        text: "79612077616e7420666f72206e6f7468",
        sealed: "79612077616e7420666f72206e6f7468750c783e6ab0b503eaa86e31",
    },
    KnownAnswer {
        source: "RFC 3566, 4.6, test case 4, and RFC 4434, 3",
        suite: "null-aesxcbc",
        key: "000102030405060708090a0b0c0d0e0f",
        nonce: "",
        aad: "0001020304050607",
        text: "08090a0b0c0d0e0f10111213",
        sealed: "08090a0b0c0d0e0f1011121347f51b4564966215b8985c63",
    },
    KnownAnswer {
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
];
