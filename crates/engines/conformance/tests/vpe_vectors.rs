//! The test vectors of `docs/VPE.md`, which a Scapy layer has written: headers as `testudo-wire` reads and
//! writes them, ciphers of OpenSSL, and jobs of every engine that does VPE.

#![allow(clippy::unwrap_used, reason = "a test panics on failure")]

use openssl::symm::{Cipher, decrypt_aead, encrypt_aead};
use serde_json::Value;
use testudo_conformance::{drive, unless_waived};
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, KeyMaterial, PortableEngine, Suite};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use testudo_engine_ipsec_mb::IpsecMbEngine;
use testudo_engine_vaes::VaesEngine;
use testudo_packet::Buffer;
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

/// Bytes of outer headers before VPE's, here.
const OUTER_BYTES: usize = 20;

/// The suite of VPE with this name.
fn suite(name: &str) -> Suite {
    name.parse::<Suite>().unwrap().for_vpe().unwrap()
}

/// The engines that do VPE in any suite, which this machine has. On x86-64 ipsec-mb must be there.
fn engines() -> Vec<Box<dyn Engine>> {
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(PortableEngine::new())];
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    engines.push(Box::new(IpsecMbEngine::open().unwrap()));
    let vaes = unless_waived(VaesEngine::open(), "TESTUDO_WITHOUT_VAES");
    engines.extend(vaes.map(|engine| Box::new(engine) as _));
    engines
}

fn install(engine: &mut dyn Engine, suite: Suite, key: &[u8], direction: Direction) -> KeyId {
    engine.install(&KeyMaterial::new(suite, key.to_vec().into()).unwrap(), direction).unwrap()
}

fn job(packet: &[u8], key: KeyId, direction: Direction) -> Job {
    let bytes = [&[0x45; OUTER_BYTES], packet].concat();
    let text_start = OUTER_BYTES + VPE_HEADER_BYTES;
    Job {
        key,
        auth_start: OUTER_BYTES.try_into().unwrap(),
        text_start: text_start.try_into().unwrap(),
        text_bytes: (bytes.len() - text_start).try_into().unwrap(),
        ..Job::new(Buffer::copied(&bytes, 64, 64), direction, 0)
    }
}

/// What an engine makes of a packet of VPE.
fn done(engine: &mut dyn Engine, job: Job) -> (JobStatus, Vec<u8>) {
    let ended = drive(engine, vec![job]).unwrap().remove(0);
    (ended.status, ended.buffer.bytes()[OUTER_BYTES..].to_vec())
}

#[test]
fn engines_seal_and_open_the_vectors_and_refuse_a_changed_bit() {
    for mut engine in engines() {
        let mut count = 0;
        for vector in vectors() {
            let suite = suite(vector.text("suite"));
            if engine.capability(suite).is_none() {
                continue;
            }
            count += 1;
            let (engine, key) = (engine.as_mut(), vector.bytes("key"));
            let (seal, open) = (Direction::Seal, Direction::Open);
            let (to_seal, to_open) = (install(engine, suite, &key, seal), install(engine, suite, &key, open));
            let (sealed, text) = (vector.bytes("packet"), vector.bytes("plaintext"));
            let plain = [&sealed[..VPE_ICV_AT], &[0; VPE_ICV_BYTES], &text].concat();
            let (status, packet) = done(engine, job(&plain, to_seal, seal));
            assert_eq!((status, &packet), (JobStatus::Done, &sealed), "{}", vector.0);
            let (status, packet) = done(engine, job(&sealed, to_open, open));
            assert_eq!((status, &packet[VPE_HEADER_BYTES..]), (JobStatus::Done, &text[..]), "{}", vector.0);
            // The SPI is not authenticated (bytes 12 to 15); everything else is.
            for at in (0..sealed.len()).filter(|at| !(12..16).contains(at)) {
                let mut forged = sealed.clone();
                forged[at] ^= 1 << (at % 8);
                let (status, packet) = done(engine, job(&forged, to_open, open));
                assert_eq!(status, JobStatus::AuthenticationFailed, "byte {at} of {}", vector.0);
                // Engines may wipe a text with zeros, which fill packets consist of.
                let is_fill = text.iter().all(|byte| *byte == 0);
                assert!(is_fill || packet[VPE_HEADER_BYTES..] != text, "nothing decrypted remains");
            }
            engine.remove(to_seal);
            engine.remove(to_open);
        }
        assert!(count > 10, "{} does {count} of the vectors", engine.name());
    }
}

#[test]
fn engines_agree_with_openssl_at_every_length() {
    let key: Vec<u8> = (7..39).collect();
    for mut engine in engines() {
        let engine = engine.as_mut();
        for name in ["aes128gcm16", "aes256gcm16", "chacha20poly1305"] {
            let (suite, key) = (suite(name), &key[..if name == "aes128gcm16" { 16 } else { 32 }]);
            if engine.capability(suite).is_none() {
                continue;
            }
            let cipher = Vector(serde_json::json!({ "suite": name })).cipher();
            let id = install(engine, suite, key, Direction::Seal);
            let lengths: Vec<usize> = (0..300).chain([1419, 1420, 1500, 8999, 9000]).collect();
            let texts = lengths.iter().map(|&n| (0..=250).cycle().take(n).collect::<Vec<u8>>());
            let texts: Vec<Vec<u8>> = texts.collect();
            let header = |n: usize| VpeHeader { sender: 0, window: 3, number: n as u64 + 1, spi: 0x1000 };
            // All in one burst, so that packets of several lengths are done in parallel.
            let jobs = (0..).zip(&texts).map(|(n, text)| {
                job(&[&header(n).to_bytes()[..], &[0; VPE_ICV_BYTES], text].concat(), id, Direction::Seal)
            });
            let ended = drive(engine, jobs.collect()).unwrap();
            for (n, (text, job)) in texts.iter().zip(&ended).enumerate() {
                let mut icv = [0; VPE_ICV_BYTES];
                let nonce = header(n).nonce();
                let sealed = encrypt_aead(cipher, key, Some(&nonce), &[], text, &mut icv).unwrap();
                let expected = [&header(n).to_bytes()[..], &icv, &sealed].concat();
                assert_eq!(job.buffer.bytes()[OUTER_BYTES..], expected, "{name}, {} bytes", text.len());
            }
        }
    }
}

/// Headers in a segment of their own, ends of segments at every place of a short packet, and 9,000 bytes in
/// frames.
#[test]
fn engines_that_take_chains_seal_and_open_vpe_in_several_buffers() {
    let mut tried = 0;
    for mut engine in engines() {
        let engine = engine.as_mut();
        for name in ["aes128gcm16", "aes256gcm16", "chacha20poly1305"] {
            let (suite, key) = (suite(name), &[7; 32][..if name == "aes128gcm16" { 16 } else { 32 }]);
            if !engine.capability(suite).is_some_and(|capability| capability.takes_chains) {
                continue;
            }
            tried += 1;
            let cipher = Vector(serde_json::json!({ "suite": name })).cipher();
            let directions = [Direction::Seal, Direction::Open];
            let ids = directions.map(|direction| install(engine, suite, key, direction));
            let front = OUTER_BYTES + VPE_HEADER_BYTES;
            let mut all: Vec<(usize, Vec<usize>)> = (1..front + 40).map(|cut| (40, vec![cut])).collect();
            all.extend((front..front + 40).map(|cut| (40, vec![front, cut])));
            all.push((9_000, (0..5).map(|n| front + 1_773 * n).collect()));
            for (bytes, cuts) in all {
                let text: Vec<u8> = (0..=250).cycle().take(bytes).collect();
                let header = VpeHeader { sender: 0, window: 3, number: cuts[0] as u64, spi: 0x1000 };
                let mut icv = [0; VPE_ICV_BYTES];
                let sealed = encrypt_aead(cipher, key, Some(&header.nonce()), &[], &text, &mut icv).unwrap();
                let packets = [
                    [&header.to_bytes()[..], &[0; VPE_ICV_BYTES], &text].concat(),
                    [&header.to_bytes()[..], &icv, &sealed].concat(),
                ];
                let expected = [&packets[1], &[&header.to_bytes()[..], &icv, &text].concat()];
                for at in 0..2 {
                    let whole = job(&packets[at], ids[at], directions[at]);
                    let bytes = whole.buffer.bytes().to_vec();
                    let borders = [&[0], &cuts[..], &[bytes.len()]].concat();
                    let mut pieces =
                        borders.windows(2).map(|ends| Buffer::copied(&bytes[ends[0]..ends[1]], 0, 128));
                    let mut chain = pieces.next().unwrap();
                    pieces.for_each(|piece| chain.link(piece).unwrap());
                    let ended = drive(engine, vec![Job { buffer: chain, ..whole }]).unwrap().remove(0);
                    let mut all = vec![0; bytes.len()];
                    ended.buffer.copy_to(0, &mut all);
                    assert_eq!(ended.status, JobStatus::Done, "{name} cut at {cuts:?}");
                    assert!(all[OUTER_BYTES..] == expected[at][..], "{name} cut at {cuts:?}");
                }
            }
        }
    }
    assert!(tried >= 2);
}

#[test]
fn a_job_whose_header_is_none_of_vpe_is_a_fault() {
    for mut engine in engines() {
        let (engine, suite) = (engine.as_mut(), suite("aes128gcm16"));
        let id = install(engine, suite, &[1; 16], Direction::Open);
        let short = Job { text_start: 50, text_bytes: 0, ..job(&[0; 40], id, Direction::Open) };
        let long = Job { text_bytes: 9, ..job(&[0; 40], id, Direction::Open) };
        for job in [short, long] {
            assert_eq!(done(engine, job).0, JobStatus::Fault);
        }
    }
}
