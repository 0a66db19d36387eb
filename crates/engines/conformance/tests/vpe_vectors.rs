//! The test vectors of `docs/VPE.md`, which a Scapy layer has written: headers as `testudo-wire` reads and
//! writes them, ciphers of OpenSSL.

#![allow(clippy::unwrap_used, reason = "a test panics on failure")]

use openssl::symm::{Cipher, decrypt_aead, encrypt_aead};
use serde_json::Value;
use testudo_wire::vpe::{
    BadVpePlaintext, VPE_HEADER_BYTES, VPE_ICV_AT, VPE_ICV_BYTES, VpeHeader, VpePlaintext,
};

const VECTORS: &str = include_str!("../../../../docs/vpe-vectors.json");

struct Vector(Value);

impl Vector {
    fn text(&self, member: &str) -> &str {
        self.0[member].as_str().unwrap()
    }

    fn bytes(&self, member: &str) -> Vec<u8> {
        let text = self.text(member);
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    fn number<T: TryFrom<u64, Error: std::fmt::Debug>>(&self, member: &str) -> T {
        self.0[member].as_u64().unwrap().try_into().unwrap()
    }

    fn header(&self) -> VpeHeader {
        VpeHeader {
            sender: self.number("sender"),
            window: self.number("window"),
            number: self.text("number").parse().unwrap(),
            spi: self.number("spi"),
        }
    }

    fn cipher(&self) -> Cipher {
        match self.text("suite") {
            "aes128gcm16" => Cipher::aes_128_gcm(),
            "aes256gcm16" => Cipher::aes_256_gcm(),
            "chacha20poly1305" => Cipher::chacha20_poly1305(),
            other => panic!("{other} is no suite of VPE"),
        }
    }
}

fn vectors() -> impl Iterator<Item = Vector> {
    let all: Vec<Value> = serde_json::from_str(VECTORS).unwrap();
    assert!(all.len() > 20, "{}", all.len());
    all.into_iter().map(Vector)
}

#[test]
fn packets_of_the_vectors_are_sealed_bit_by_bit() {
    for vector in vectors() {
        let header = vector.header();
        assert_eq!(header.nonce()[..], vector.bytes("nonce"));
        let mut icv = [0; VPE_ICV_BYTES];
        let text = vector.bytes("plaintext");
        let key = vector.bytes("key");
        let sealed =
            encrypt_aead(vector.cipher(), &key, Some(&header.nonce()), &[], &text, &mut icv).unwrap();
        assert_eq!([&header.to_bytes()[..], &icv, &sealed].concat(), vector.bytes("packet"), "{}", vector.0);
    }
}

#[test]
fn packets_of_the_vectors_are_opened_and_judged() {
    for vector in vectors() {
        let packet = vector.bytes("packet");
        let header = VpeHeader::parse(&packet).unwrap();
        assert_eq!(header, vector.header());
        let (front, sealed) = packet.split_at(VPE_HEADER_BYTES);
        let (key, icv) = (vector.bytes("key"), &front[VPE_ICV_AT..]);
        let text = decrypt_aead(vector.cipher(), &key, Some(&header.nonce()), &[], sealed, icv).unwrap();
        assert_eq!(text, vector.bytes("plaintext"));
        let expected = match vector.0["drop"].as_str() {
            None => Ok(VpePlaintext::Datagram { bytes: vector.number("inner_bytes") }),
            Some("fill") => Ok(VpePlaintext::Fill),
            Some("inner_version") => Err(BadVpePlaintext::Version),
            Some("inner_length") => Err(BadVpePlaintext::Length),
            Some(other) => panic!("{other}"),
        };
        assert_eq!(VpePlaintext::parse(&text), expected, "{}", vector.text("name"));
    }
}
