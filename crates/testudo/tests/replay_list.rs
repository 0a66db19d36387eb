//! `testudo replay --list`: each packet's line says what became of it, by which SA and policy. What it says
//! is held against the outputs and the counters of the same replay.

#![allow(clippy::unwrap_used, reason = "a test that cannot prepare its files has failed")]

mod support;

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use support::config::{CONFIGURATION, Config, pair};
use support::gateway::{PROGRAM, Said};
use support::wait;
use tempfile::TempDir;
use testudo_port_pcap::{FrameReader, FrameWriter, Link, Resolution};
use testudo_wire::checksum;

const UDP: u8 = 17;
const DONT_FRAGMENT: u8 = 0x40;
/// Bytes before the SPI in a datagram of ESP over IPv4.
const IP_BYTES: usize = 20;
const KNOWN: &str = "known_answer = { next_sequence_number = 7 }";

/// A gateway's folder.
struct Gateway(TempDir);

impl Gateway {
    fn new(config: &Config) -> Self {
        let folder = tempfile::tempdir().unwrap();
        config.write(folder.path()).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn replay(&self, words: &[&str]) -> Said {
        let mut command = Command::new(PROGRAM);
        command.current_dir(self.0.path()).args(["replay", CONFIGURATION]).args(words);
        wait::output(&mut command).unwrap().into()
    }

    /// Replays packets of both sides; returns the list, the counters, and what was sent to each side.
    fn list(&self, protected: &[Vec<u8>], unprotected: &[Vec<u8>]) -> Listed {
        self.list_in_batches(protected, unprotected, &[])
    }

    fn list_in_batches(&self, protected: &[Vec<u8>], unprotected: &[Vec<u8>], more: &[&str]) -> Listed {
        write(&self.path("p.pcap"), protected);
        write(&self.path("u.pcap"), unprotected);
        let words = "--rx protected=p.pcap --rx unprotected=u.pcap --tx protected=out-p.pcap --tx unprotected=out-u.pcap --list --json";
        let words: Vec<_> = words.split(' ').chain(more.iter().copied()).collect();
        let said = self.replay(&words);
        assert!(said.code == Some(0), "{said:#?}");
        let mut lines: Vec<Value> =
            said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let counters = lines.pop().unwrap();
        let [protected, unprotected] = ["out-p.pcap", "out-u.pcap"].map(|name| read(&self.path(name)));
        let listed = Listed { lines, counters, protected, unprotected };
        listed.agrees_with_the_counters();
        listed
    }
}

/// A frame and when it was captured.
type Timed = (Option<Duration>, Vec<u8>);

struct Listed {
    lines: Vec<Value>,
    counters: Value,
    protected: Vec<Timed>,
    unprotected: Vec<Timed>,
}

impl Listed {
    /// The lines of one packet of an input.
    fn of(&self, side: &str, number: u64) -> Vec<&Value> {
        let is_it = |line: &&Value| line["packet"]["side"] == side && line["packet"]["number"] == number;
        self.lines.iter().filter(is_it).collect()
    }

    /// The only line of one packet of an input.
    fn one(&self, side: &str, number: u64) -> &Value {
        let lines = self.of(side, number);
        assert_eq!(lines.len(), 1, "{lines:#?}");
        lines[0]
    }

    /// The packet that a line says was sent, with its time stamp.
    fn sent(&self, line: &Value) -> &Timed {
        let number = usize::try_from(line["as"]["number"].as_u64().unwrap()).unwrap();
        match line["as"]["side"].as_str().unwrap() {
            "protected" => &self.protected[number - 1],
            _ => &self.unprotected[number - 1],
        }
    }

    /// Nothing is listed twice, nothing is missing, and every reason is counted as often as it is listed.
    fn agrees_with_the_counters(&self) {
        let count =
            |verdict: &str| self.lines.iter().filter(|line| line["verdict"] == verdict).count() as u64;
        let ports = &self.counters["ports"];
        let total = |what: &str| {
            ["protected", "unprotected"].map(|side| ports[side][what].as_u64().unwrap()).iter().sum::<u64>()
        };
        assert_eq!(count("sent"), total("tx_packets"));
        assert_eq!(count("joined"), self.counters["merged"].as_u64().unwrap());
        let mut reasons = BTreeMap::<String, u64>::new();
        for line in self.lines.iter().filter(|line| line["verdict"] == "dropped") {
            *reasons.entry(line["reason"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        let counted = self.counters["drops"].as_object().unwrap().iter();
        let counted: BTreeMap<String, u64> = counted
            .filter_map(|(reason, n)| Some((reason.clone(), n.as_u64().filter(|n| *n > 0)?)))
            .collect();
        assert_eq!(reasons, counted);
        let mut places: Vec<_> =
            self.lines.iter().filter(|l| l["verdict"] == "sent").map(|l| l["as"].to_string()).collect();
        places.sort();
        places.dedup();
        assert_eq!(places.len() as u64, total("tx_packets"), "each packet of an output is named once");
        for line in self.lines.iter().filter(|line| line["verdict"] == "sent" && line["packet"].is_object()) {
            let time = self.sent(line).0.unwrap();
            let text = format!("{}.{:09}", time.as_secs(), time.subsec_nanos());
            let same = |other: &&Value| {
                other["with"]["side"] == line["packet"]["side"]
                    && other["with"]["number"] == line["packet"]["number"]
            };
            let parts = self.lines.iter().filter(same).chain([line]);
            let last = parts.filter_map(|part| part["packet"]["time"].as_str()).max();
            assert_eq!(last, Some(&*text), "an output has the time of its input, or of its last fragment");
        }
    }
}

fn write(path: &std::path::Path, packets: &[Vec<u8>]) {
    let mut file = Vec::new();
    let mut writer = FrameWriter::with_resolution(&mut file, Link::Raw, 65_535, Resolution::Nanos).unwrap();
    for (number, packet) in (0..).zip(packets) {
        let time = Duration::new(1_700_000_000 + number, 123_456_789);
        writer.write(time, packet, packet.len()).unwrap();
    }
    fs::write(path, file).unwrap();
}

fn read(path: &std::path::Path) -> Vec<Timed> {
    let mut reader = FrameReader::open(path).unwrap();
    let mut packets = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        packets.push((frame.time, frame.bytes.to_vec()));
    }
    packets
}

fn bytes(packets: &[Timed]) -> Vec<Vec<u8>> {
    packets.iter().map(|(_, packet)| packet.clone()).collect()
}

/// A UDP packet of IPv4, without a checksum of its own.
fn packet(source: [u8; 4], destination: [u8; 4], bytes: u16, flags: u8) -> Vec<u8> {
    let length = bytes.to_be_bytes();
    let udp_length = (bytes - 20).to_be_bytes();
    let mut packet = vec![0x45, 0, length[0], length[1], 0, 9, flags, 0, 64, UDP, 0, 0];
    packet.extend([source, destination].as_flattened());
    let sum = checksum::of(&packet).to_bytes();
    packet[10..12].copy_from_slice(&sum);
    packet.extend([0, 40, 0, 50, udp_length[0], udp_length[1], 0, 0]);
    packet.resize(bytes.into(), 0x5A);
    packet
}

fn inner(host: u8, bytes: u16) -> Vec<u8> {
    packet([10, 1, 0, host], [10, 2, 0, host], bytes, 0)
}

/// A gateway whose tunnel takes hosts 1, 3 and 4, and one whose tunnel takes hosts 1, 4 and 5, but whose
/// first policy discards 4.
fn gateways(more: &str) -> [Gateway; 2] {
    let [mut a, mut b] = pair(false).unwrap();
    let host = |n: u8| (format!("10.1.0.{n}"), format!("10.2.0.{n}"));
    a.tunnels[0].selectors = [1, 3, 4].map(host).into();
    let selector = |local: &str, remote: &str| (local.to_owned(), remote.to_owned());
    b.tunnels[0].selectors = vec![selector("10.2.0.1", "10.1.0.1"), selector("10.2.0.4/31", "10.1.0.4/31")];
    b.policies = "[[policy]]\nlocal = \"10.2.0.4\"\nremote = \"10.1.0.4\"\naction = \"discard\"\n".to_owned();
    a.tunnels[0].more = format!("{KNOWN}\n{more}");
    b.tunnels[0].more = KNOWN.to_owned();
    [a, b].map(|config| Gateway::new(&config))
}

fn outbound(sequence: u64) -> Value {
    json!([{ "tunnel": "a-b", "direction": "outbound", "protocol": "esp", "spi": 0x1001, "sequence": sequence }])
}

fn inbound(sequence: u64) -> Value {
    json!([{ "tunnel": "a-b", "direction": "inbound", "protocol": "esp", "spi": 0x1001, "sequence": sequence }])
}

/// SPI and low half of the sequence number in a datagram of ESP.
fn esp_of(datagram: &[u8]) -> (u32, u32) {
    let word = |at: usize| u32::from_be_bytes(datagram[at..at + 4].try_into().unwrap());
    (word(IP_BYTES), word(IP_BYTES + 4))
}

#[test]
fn each_outbound_packet_has_its_verdict_sa_and_policy() {
    let [a, _] = gateways("");
    let mut broken = inner(1, 100);
    broken[10] ^= 1;
    let packets = [
        inner(1, 100),
        inner(9, 100),
        packet([10, 1, 0, 1], [10, 2, 0, 1], 3000, DONT_FRAGMENT),
        inner(3, 3000),
        broken,
        inner(4, 60),
    ];
    let listed = a.list(&packets, &[]);
    for (number, sequence, place) in [(1, 7, 1), (6, 11, 3)] {
        let line = listed.one("protected", number);
        assert_eq!((&line["verdict"], &line["sas"]), (&json!("sent"), &outbound(sequence)));
        assert_eq!(line["policy"]["origin"], format!("tunnel a-b, selector {place}"));
        assert_eq!(u64::from(esp_of(&listed.sent(line).1).1), sequence);
    }
    let line = listed.one("protected", 2);
    assert_eq!(
        (&line["reason"], &line["sas"], &line["policy"]),
        (&json!("no_policy"), &json!([]), &Value::Null)
    );
    let lines = listed.of("protected", 3);
    let (message, refused) = (lines[0], lines[1]);
    let (message, refused) =
        if message["verdict"] == "sent" { (message, refused) } else { (refused, message) };
    assert_eq!((&message["made"], &message["policy"]), (&json!("message"), &Value::Null));
    assert_eq!(listed.sent(message).1[9], 1, "ICMP, RFC 792");
    assert_eq!((&refused["reason"], &refused["policy"]["place"]), (&json!("too_big"), &json!(1)));
    assert_eq!(refused["sas"][0]["spi"], 0x1001, "the SA that it does not fit, RFC 4301 8.2.1");
    let cut = listed.of("protected", 4);
    assert_eq!(cut.len(), 3, "3000 bytes in three packets: {cut:#?}");
    for (line, sequence) in cut.iter().zip(8..) {
        assert_eq!((&line["sas"], &line["policy"]["place"]), (&outbound(sequence), &json!(2)));
        assert_eq!(u64::from(esp_of(&listed.sent(line).1).1), sequence);
    }
    assert_eq!(cut.iter().filter(|line| line["made"] == "fragment").count(), 2, "two were made");
    assert_eq!(listed.one("protected", 5)["reason"], "bad_checksum");
}

#[test]
fn each_inbound_packet_has_its_verdict_sa_and_policy() {
    let [a, b] = gateways("");
    let sealed = a.list(&[inner(1, 100), inner(1, 101), inner(3, 100), inner(4, 100)], &[]);
    let mut sealed = bytes(&sealed.unprotected);
    let (mut forged, mut unknown) = (sealed[1].clone(), sealed[1].clone());
    *forged.last_mut().unwrap() ^= 1;
    unknown[IP_BYTES + 2] = 0x77;
    let clear = packet([10, 1, 0, 1], [10, 2, 0, 1], 60, 0);
    sealed.extend([sealed[0].clone(), forged, unknown, clear, vec![0x45; 10]]);
    // Packet 2 comes after the forgery of it: it was not received before.
    sealed.swap(1, 5);
    let listed = b.list(&[], &sealed);
    let verdict = |number: u64| {
        let line = listed.one("unprotected", number);
        let what = line["reason"].as_str().unwrap_or("sent").to_owned();
        (what, line["sas"].clone(), line["policy"]["place"].clone())
    };
    let foreign =
        json!([{ "tunnel": null, "direction": null, "protocol": "esp", "spi": 0x7701, "sequence": 8 }]);
    let expected = [
        ("sent", inbound(7), json!(2)),
        ("authentication_failed", inbound(8), Value::Null),
        ("selector_mismatch", inbound(9), Value::Null),
        ("policy_discard", inbound(10), json!(1)),
        ("replay_duplicate", inbound(7), Value::Null),
        ("sent", inbound(8), json!(2)),
        ("unknown_spi", foreign, Value::Null),
        ("cleartext_for_protected", json!([]), json!(2)),
    ];
    for (number, (what, sas, policy)) in (1..).zip(expected) {
        assert_eq!(verdict(number), (what.to_owned(), sas, policy), "packet {number}");
    }
    assert_eq!(listed.one("unprotected", 9)["verdict"], "dropped");
    assert_eq!(listed.sent(listed.one("unprotected", 1)).1, inner(1, 100));
    assert_eq!(listed.sent(listed.one("unprotected", 6)).1, inner(1, 101));
}

#[test]
fn fragments_that_are_joined_say_with_whom() {
    let [a, b] = gateways("fragment = \"after\"");
    let sealed = a.list(&[inner(1, 3000)], &[]);
    assert_eq!(sealed.of("protected", 1).len(), 3, "one packet, three fragments outside");
    let fragments = bytes(&sealed.unprotected);
    // The second one comes first, and one of another datagram never gets its rest.
    let mut alone = bytes(&a.list(&[inner(4, 3000)], &[]).unprotected).remove(0);
    alone[5] ^= 0x55;
    let sum = checksum::of(&[&alone[..10], &[0, 0], &alone[12..20]].concat()).to_bytes();
    alone[10..12].copy_from_slice(&sum);
    let inputs = [fragments[1].clone(), fragments[0].clone(), alone, fragments[2].clone()];
    let listed = b.list(&[], &inputs);
    let whole = json!({ "side": "unprotected", "number": 1 });
    for number in [2, 4] {
        let line = listed.one("unprotected", number);
        assert_eq!((&line["verdict"], &line["with"]), (&json!("joined"), &whole));
    }
    assert_eq!(listed.one("unprotected", 3)["reason"], "fragment_timeout");
    let line = listed.lines.iter().find(|line| line["verdict"] == "sent").unwrap();
    assert_eq!((&line["packet"]["number"], &line["sas"]), (&json!(1), &inbound(7)));
    assert_eq!(bytes(&listed.protected), [inner(1, 3000)]);
}

/// Sender ID and Window ID in a datagram of VPE (`docs/VPE.md`).
fn sender_and_window(datagram: &[u8]) -> (u16, u16) {
    let half = |at: usize| u16::from_le_bytes(datagram[at..at + 2].try_into().unwrap());
    (half(IP_BYTES), half(IP_BYTES + 2))
}

/// A number of VPE counts in a window of a sender: without these it says nothing.
#[test]
fn packets_of_vpe_are_listed_with_their_sender_and_window() {
    let ends = pair(false).unwrap().map(|mut config| {
        let tunnel = &mut config.tunnels[0];
        tunnel.vpe = true;
        tunnel.more = "classes = [[46]]\nallow_manual_counter_nonce = true\n\
                       known_answer = { next_sequence_number = 1 }"
            .to_owned();
        for sa in [&mut tunnel.outbound, &mut tunnel.inbound] {
            // Of VPE it is the cipher's key alone.
            sa.key.truncate(32);
        }
        Gateway::new(&config)
    });
    let [a, b] = ends;
    let mut urgent = inner(1, 100);
    urgent[1] = 46 << 2;
    urgent[10..12].fill(0);
    let sum = checksum::of(&urgent[..20]).to_bytes();
    urgent[10..12].copy_from_slice(&sum);
    let listed = a.list(&[inner(1, 100), urgent], &[]);
    let sa = |direction: &str, window: u16| {
        json!([{
            "tunnel": "a-b", "direction": direction, "protocol": "vpe", "spi": 0x1001, "sequence": 1, "sender_id": 0,
            "window": window,
        }])
    };
    let sealed: Vec<Vec<u8>> = [(1, 0), (2, 1)]
        .map(|(number, class)| {
            let line = listed.one("protected", number);
            let datagram = listed.sent(line).1.clone();
            let (sender, window) = sender_and_window(&datagram);
            assert_eq!((sender, window % 2), (0, class), "slot times classes plus class");
            assert_eq!(line["sas"], sa("outbound", window));
            datagram
        })
        .into();
    let (mut forged, mut unknown) = (sealed[0].clone(), sealed[0].clone());
    forged[IP_BYTES..IP_BYTES + 4].copy_from_slice(&[3, 0, 0x77, 7]);
    unknown[IP_BYTES + 13] = 0x77;
    let arriving = [sealed[0].clone(), sealed[1].clone(), sealed[0].clone(), forged, unknown];
    let listed = b.list(&[], &arriving);
    let [first, second] = [0, 1].map(|at: usize| sender_and_window(&sealed[at]).1);
    for (number, what, sas) in [
        (1, "sent", sa("inbound", first)),
        (2, "sent", sa("inbound", second)),
        (3, "replay_duplicate", sa("inbound", first)),
    ] {
        let line = listed.one("unprotected", number);
        let found = (line["reason"].as_str().unwrap_or("sent"), &line["sas"]);
        assert_eq!(found, (what, &sas), "packet {number}");
    }
    let named = |number: u64| {
        let line = listed.one("unprotected", number);
        let sa = &line["sas"][0];
        (line["reason"].clone(), sa["tunnel"].clone(), sa["sender_id"].clone(), sa["window"].clone())
    };
    let forged = (json!("authentication_failed"), json!("a-b"), json!(3), json!(0x777));
    assert_eq!(named(4), forged, "as the packet says");
    assert_eq!(named(5), (json!("unknown_spi"), Value::Null, json!(0), json!(first)));
    let said = b.replay(&["--rx", "unprotected=u.pcap", "--list"]);
    for name in [format!("a-b vpe 0x1001 s0 w{first} #1"), "a-b vpe 0x1001 s3 w1911 #1".to_owned()] {
        assert!(said.stdout.contains(&name), "{name}: {said:#?}");
    }
}

/// The books of a list, over packets of every kind and all shapes of batches.
#[test]
fn every_batch_gives_the_same_packets_and_verdicts() {
    let [a, b] = gateways("fragment = \"after\"");
    let inputs: Vec<_> = (0..400u16).map(|n| inner([1, 3, 4, 9][usize::from(n % 4)], 60 + n * 13)).collect();
    let sealed = bytes(&a.list(&inputs, &[]).unprotected);
    // Every seventh comes twice, every fifth is forged, and pairs are swapped.
    let mut arriving = Vec::new();
    for (number, datagram) in sealed.into_iter().enumerate() {
        let copies = if number % 7 == 0 { 2 } else { 1 };
        let mut datagram = datagram;
        if number % 5 == 0 {
            *datagram.last_mut().unwrap() ^= 0x10;
        }
        arriving.extend(vec![datagram; copies]);
    }
    arriving.chunks_exact_mut(2).step_by(3).for_each(|pair| pair.swap(0, 1));
    for gateway in [&a, &b] {
        let whole = gateway.list(&inputs, &arriving);
        let verdicts = |listed: &Listed| {
            let mut lines: Vec<_> = listed.lines.iter().map(ToString::to_string).collect();
            lines.sort();
            lines
        };
        for batch in ["1", "2", "3", "63", "64", "65", "256"] {
            let listed = gateway.list_in_batches(&inputs, &arriving, &["--batch", batch]);
            assert_eq!(verdicts(&listed), verdicts(&whole), "--batch {batch}");
            assert_eq!(
                (listed.protected, listed.unprotected),
                (whole.protected.clone(), whole.unprotected.clone())
            );
        }
    }
    for wrong in ["0", "257", "x"] {
        let said = a.replay(&["--rx", "protected=p.pcap", "--batch", wrong]);
        assert!(said.code == Some(2) && said.stderr.contains("from 1 to 256"), "{said:#?}");
    }
}

#[test]
fn the_list_is_lined_up_and_fits_100_columns() {
    let [a, b] = gateways("");
    let sealed = bytes(&a.list(&[inner(1, 100), inner(3, 100)], &[]).unprotected);
    write(&b.path("p.pcap"), &[packet([10, 2, 0, 1], [10, 1, 0, 1], 60, 0), inner(9, 60)]);
    write(&b.path("u.pcap"), &[sealed[0].clone(), sealed[0].clone(), sealed[1].clone()]);
    let said = b.replay(&["--rx", "protected=p.pcap", "--rx", "unprotected=u.pcap", "--list"]);
    let expected = "\
packet   becomes                  by                         policy  addresses, protocol, bytes
P2       no_policy                -                               -  10.1.0.9 > 10.2.0.9 udp 60
P1       U1                       a-b esp 0x1002 #7               2  10.2.0.1 > 10.1.0.1 udp 60
U1       P1                       a-b esp 0x1001 #7               2  192.0.2.1 > 192.0.2.2 esp 156
U3       selector_mismatch        a-b esp 0x1001 #8               -  192.0.2.1 > 192.0.2.2 esp 156
U2       replay_duplicate         a-b esp 0x1001 #7               -  192.0.2.1 > 192.0.2.2 esp 156
";
    let list: String = said.stdout.lines().take(6).map(|line| format!("{line}\n")).collect();
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&list), sorted(expected), "{said:#?}");
    assert!(list.lines().all(|line| line.chars().count() <= 100), "{list}");
    assert!(said.stdout.contains("dropped, no policy: 1"), "the counters follow: {said:#?}");
}

#[test]
fn a_list_does_not_go_among_the_packets_and_may_be_cut_short() {
    let [a, _] = gateways("");
    write(&a.path("p.pcap"), &vec![inner(1, 100); 5000]);
    let words = ["--rx", "protected=p.pcap", "--tx", "unprotected=/dev/stdout", "--list"];
    let said = a.replay(&words);
    assert!(said.code == Some(2) && said.stderr.contains("--list prints to standard output"), "{said:#?}");
    let script = format!(
        "'{PROGRAM}' replay {CONFIGURATION} --rx protected=p.pcap --tx unprotected=out.pcap --list | head -3"
    );
    let mut command = Command::new("sh");
    command.current_dir(a.0.path()).args(["-c", &script]);
    let said = Said::from(wait::output(&mut command).unwrap());
    assert_eq!(said.stdout.lines().count(), 3);
    assert_eq!(read(&a.path("out.pcap")).len(), 5000, "who reads no further loses the list alone");
}

/// Packets of another gateway: their SPIs may be reserved ones, and what it had received is known.
#[test]
fn a_known_answer_starts_in_the_middle_of_a_window() {
    let [mut a, mut b] = pair(false).unwrap();
    for config in [&mut a, &mut b] {
        let tunnel = &mut config.tunnels[0];
        tunnel.outbound.spi -= 0x1000;
        tunnel.inbound.spi -= 0x1000;
    }
    a.tunnels[0].more = "known_answer = { next_sequence_number = 1 }".to_owned();
    // 10 is the highest, and of those before it 9 and 7 were received.
    b.tunnels[0].more =
        "known_answer = { inbound_sequence_number = 10, inbound_window = \"0xb\" }\nreplay_window = 32"
            .to_owned();
    let sealed = bytes(&Gateway::new(&a).list(&vec![inner(1, 100); 12], &[]).unprotected);
    assert_eq!(esp_of(&sealed[0]), (1, 1), "an SPI that RFC 4303 2.1 reserves");
    let listed = Gateway::new(&b).list(&[], &sealed);
    let refused: Vec<u64> =
        (1..=12).filter(|n| listed.one("unprotected", *n)["reason"] == "replay_duplicate").collect();
    assert_eq!(refused, [7, 9, 10]);
    assert_eq!(listed.protected.len(), 9);
    b.tunnels[0].more = "known_answer = { inbound_sequence_number = 10 }".to_owned();
    let listed = Gateway::new(&b).list(&[], &sealed);
    assert_eq!(listed.protected.len(), 2, "without a window all up to the number were received");
    assert_eq!(listed.one("unprotected", 11)["sas"][0]["spi"], 1);
}
