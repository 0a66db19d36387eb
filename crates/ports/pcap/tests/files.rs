//! Packet files, valid and hostile: written and read back, and read with every byte damaged.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

use std::fs::File;
use std::io::Cursor;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testudo_packet::{Batch, Buffer, DropReason, Journal, Passage, Pool, Port, Record};
use testudo_port_pcap::{
    Allowance, FrameReader, FrameWriter, Link, PcapError, PcapPort, PcapReader, PcapWriter,
};

const PACKET_BYTES: usize = 2000;

/// A pcap file in the byte order that `word` writes.
fn pcap(word: fn(u32) -> [u8; 4], magic: u32, link: u32, frames: &[(&[u8], u32)]) -> Vec<u8> {
    let mut file = [word(magic), [0; 4], [0; 4], [0; 4], word(65_535), word(link)].concat();
    for (frame, original) in frames {
        file.extend([word(1), word(2), word(frame.len() as u32), word(*original)].concat());
        file.extend_from_slice(frame);
    }
    file
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = [body, &vec![0; body.len().next_multiple_of(4) - body.len()]].concat();
    let length = (padded.len() as u32 + 12).to_le_bytes();
    [&kind.to_le_bytes()[..], &length, &padded, &length].concat()
}

fn section() -> Vec<u8> {
    block(0x0A0D_0D0A, &[&0x1A2B_3C4D_u32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xFF; 8]].concat())
}

fn interface(link: u8, snap_bytes: u32) -> Vec<u8> {
    block(1, &[&[link, 0, 0, 0][..], &snap_bytes.to_le_bytes()].concat())
}

fn enhanced(interface: u32, captured: u32, original: u32, frame: &[u8]) -> Vec<u8> {
    let fields = [interface, 0, 0, captured, original].map(u32::to_le_bytes).concat();
    block(6, &[&fields, frame].concat())
}

fn reader(file: Vec<u8>) -> Result<PcapReader, PcapError> {
    FrameReader::from_read("test.pcap", Box::new(Cursor::new(file))).map(PcapReader::new)
}

fn writer(path: &Path) -> PcapWriter {
    PcapWriter::new("out.pcap", Box::new(File::create(path).unwrap())).unwrap()
}

/// All packets of a file, the drops by reason, and the error at its end.
type Content = (Vec<Vec<u8>>, Vec<(DropReason, u64)>, Option<String>);

fn read(reader: &mut PcapReader) -> Content {
    let (packets, drops) = packets(reader);
    let ending = reader.ending();
    (packets, drops, ending.get().unwrap().error.as_ref().map(ToString::to_string))
}

fn packets(port: &mut dyn Port) -> (Vec<Vec<u8>>, Vec<(DropReason, u64)>) {
    let (mut pool, mut batch) = (Pool::new(64, PACKET_BYTES), Batch::new());
    let mut packets = Vec::new();
    while !port.exhausted() {
        port.rx(&mut pool, &mut batch).unwrap();
        for buffer in batch.drain(..) {
            packets.push(buffer.bytes().to_vec());
            pool.recycle(buffer);
        }
    }
    assert_eq!(pool.available(), 64);
    (packets, pool.drops().iter().filter(|d| d.1 > 0).collect())
}

fn packet(index: usize) -> Vec<u8> {
    let mut bytes = vec![index as u8; 20 + index * 7 % 1400];
    bytes[0] = 0x45;
    bytes
}

#[test]
fn what_is_written_is_read_back_and_is_the_same_every_time() {
    let folder = tempfile::tempdir().unwrap();
    let packets: Vec<_> = (0..300).map(packet).collect();
    let files = ["a.pcap", "b.pcap"].map(|name| folder.path().join(name));
    for file in &files {
        let mut pool = Pool::new(64, PACKET_BYTES);
        let mut writer = writer(file);
        for chunk in packets.chunks(64) {
            let mut batch: Batch = chunk.iter().map(|p| Buffer::copied(p, 0, 0)).collect();
            assert_eq!(writer.tx(&mut pool, &mut batch).unwrap(), chunk.len());
        }
        writer.finish().unwrap();
        assert_eq!(writer.counters().tx_packets, 300);
    }
    assert_eq!(std::fs::read(&files[0]).unwrap(), std::fs::read(&files[1]).unwrap());
    let mut port = PcapPort::new("both", Some(PcapReader::open(&files[0]).unwrap()), None);
    assert_eq!(self::packets(&mut port), (packets, vec![]));
    assert_eq!(port.counters().rx_packets, 300);
}

#[test]
fn tcpdump_reads_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.pcap");
    let mut writer = writer(&file);
    let ping =
        [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 8, 0, 0xF7, 0xFD, 0, 1, 0, 1];
    let mut batch: Batch = [Buffer::copied(&ping, 0, 0), Buffer::copied(&ping, 0, 0)].into_iter().collect();
    writer.tx(&mut Pool::new(2, 100), &mut batch).unwrap();
    drop(writer);
    match Command::new("tcpdump").args(["-ttnr".as_ref(), file.as_os_str()]).output() {
        Ok(output) => {
            let text = String::from_utf8(output.stdout).unwrap();
            let lines: Vec<_> = text.lines().collect();
            assert!(lines.len() == 2 && lines[0].starts_with("0.000000 IP 10.0.0.1 > 10.0.0.2"), "{text}");
            assert!(lines[1].starts_with("0.000001 "), "{text}");
        }
        Err(error) => println!("tcpdump: {error}; skipped"),
    }
}

#[test]
fn both_byte_orders_and_resolutions_are_read() {
    for (word, magic) in [
        (u32::to_le_bytes as fn(u32) -> [u8; 4], 0xA1B2_C3D4),
        (u32::to_be_bytes, 0xA1B2_C3D4),
        (u32::to_le_bytes, 0xA1B2_3C4D),
        (u32::to_be_bytes, 0xA1B2_3C4D),
    ] {
        for link in [101, 228, 229] {
            let file = pcap(word, magic, link, &[(&[0x45; 20], 20), (&[0x60; 40], 40)]);
            let expected = (vec![vec![0x45; 20], vec![0x60; 40]], vec![], None);
            assert_eq!(read(&mut reader(file).unwrap()), expected);
        }
    }
}

#[test]
fn ethernet_frames_lose_their_header_and_others_are_counted() {
    let ip = [&[0; 12][..], &[8, 0], &[0x45; 30]].concat();
    let arp = [&[0; 12][..], &[8, 6], &[0; 28]].concat();
    let file =
        pcap(u32::to_le_bytes, 0xA1B2_C3D4, 1, &[(&ip, 44), (&arp, 42), (&ip[..10], 10), (&ip[..30], 44)]);
    let (packets, drops, error) = read(&mut reader(file).unwrap());
    assert_eq!((packets, error), (vec![vec![0x45; 30]], None));
    assert_eq!(drops, [(DropReason::NotIp, 1), (DropReason::Truncated, 2)]);
}

#[test]
fn a_packet_longer_than_a_buffer_is_counted() {
    let long = vec![0x45; PACKET_BYTES + 1];
    let file = pcap(u32::to_le_bytes, 0xA1B2_C3D4, 101, &[(&long, 2001), (&long[1..], 2000)]);
    let (packets, drops, _) = read(&mut reader(file).unwrap());
    assert_eq!((packets.len(), drops), (1, vec![(DropReason::ReceiveTruncated, 1)]));
}

#[test]
fn pcapng_is_read_with_its_interfaces_and_sections() {
    let ethernet = [&[0; 12][..], &[8, 0], &[0x45; 30]].concat();
    let simple = block(3, &[&25_u32.to_le_bytes()[..], &[0x45; 25]].concat());
    let file = [
        section(),
        interface(101, 0),
        interface(1, 0),
        interface(147, 0),
        enhanced(0, 20, 20, &[0x45; 20]),
        block(4, &[1, 2, 3]),
        enhanced(1, 44, 44, &ethernet),
        enhanced(2, 30, 30, &[0x45; 30]),
        enhanced(0, 20, 90, &[0x45; 20]),
        simple,
        section(),
        interface(1, 0),
        enhanced(0, 44, 44, &ethernet),
    ]
    .concat();
    let (packets, drops, error) = read(&mut reader(file).unwrap());
    assert_eq!(packets.iter().map(Vec::len).collect::<Vec<_>>(), [20, 30, 25, 30]);
    assert_eq!(drops, [(DropReason::NotIp, 1), (DropReason::Truncated, 1)]);
    assert_eq!(error, None);
}

#[test]
fn a_broken_record_is_named_after_the_packets_before_it() {
    let mut file = pcap(u32::to_le_bytes, 0xA1B2_C3D4, 101, &[(&[0x45; 20], 20), (&[0x45; 20], 20)]);
    file.extend([0, 0, 0xFFFF_FFFF, 0xFFFF_FFFF].map(u32::to_le_bytes).concat());
    let (packets, _, error) = read(&mut reader(file).unwrap());
    assert_eq!(packets.len(), 2);
    let error = error.unwrap();
    assert!(
        error.contains("test.pcap") && error.contains("record 3") && error.contains("4294967295"),
        "{error}"
    );
    let ng = [section(), interface(101, 0), enhanced(5, 20, 20, &[0x45; 20])].concat();
    assert!(read(&mut reader(ng).unwrap()).2.unwrap().contains("interface 5 was not described"));
    let ng = [section(), interface(101, 0), enhanced(0, 99, 99, &[0x45; 20])].concat();
    assert!(read(&mut reader(ng).unwrap()).2.unwrap().contains("99 bytes"));
}

#[test]
fn a_cut_file_gives_the_packets_before_the_cut_and_says_where_it_was() {
    let pcap = pcap(u32::to_le_bytes, 0xA1B2_C3D4, 101, &[(&[0x45; 20], 20), (&[0x46; 24], 24)]);
    let ng =
        [section(), interface(101, 0), enhanced(0, 20, 20, &[0x45; 20]), enhanced(0, 24, 24, &[0x46; 24])];
    let at = ng[..3].concat().len();
    for (file, second, place) in
        [(pcap, 24 + 36, "record 2, at byte 60: "), (ng.concat(), at, "record 4, at byte 100: ")]
    {
        for len in second + 1..file.len() {
            let (packets, drops, error) = read(&mut reader(file[..len].to_vec()).unwrap());
            assert_eq!((packets, drops), (vec![vec![0x45; 20]], vec![]), "cut at {len}");
            assert_eq!(error.unwrap(), format!("test.pcap: {place}the file ends within it"));
        }
        assert_eq!(read(&mut reader(file[..second].to_vec()).unwrap()).2, None, "cut between two packets");
    }
}

#[test]
fn obsolete_packet_blocks_are_read() {
    // Interface and drop count, 16 bits each: the count is not part of the interface's number.
    let obsolete = |interface: u16, frame: &[u8], original: u32| {
        let fields = [0, 0, frame.len() as u32, original].map(u32::to_le_bytes).concat();
        block(2, &[&interface.to_le_bytes()[..], &[7, 1], &fields, frame].concat())
    };
    let ethernet = [&[0; 12][..], &[8, 0], &[0x46; 30]].concat();
    let file = [
        section(),
        interface(101, 0),
        interface(1, 0),
        obsolete(0, &[0x45; 21], 21),
        obsolete(1, &ethernet, 44),
        obsolete(0, &[0x45; 20], 90),
    ];
    let (packets, drops, error) = read(&mut reader(file.concat()).unwrap());
    assert_eq!((packets, error), (vec![vec![0x45; 21], vec![0x46; 30]], None));
    assert_eq!(drops, [(DropReason::Truncated, 1)]);
    let undescribed = [section(), interface(101, 0), obsolete(1, &[0x45; 21], 21)].concat();
    assert!(read(&mut reader(undescribed).unwrap()).2.unwrap().contains("interface 1 was not described"));
}

#[test]
fn unknown_blocks_and_foreign_link_types_are_named() {
    let notes = |blocks: &[Vec<u8>]| {
        let mut reader = reader(
            [section(), interface(101, 0), interface(147, 0)]
                .concat()
                .into_iter()
                .chain(blocks.concat())
                .collect(),
        )
        .unwrap();
        let (_, _, error) = read(&mut reader);
        assert_eq!(error, None);
        reader.ending().get().unwrap().notes.clone()
    };
    let ours = enhanced(0, 20, 20, &[0x45; 20]);
    let silent: Vec<_> = [4, 5, 9, 10, 0x0BAD, 0x4000_0BAD].map(|kind| block(kind, &[0; 8])).into();
    assert_eq!(
        notes(&silent),
        [""; 0],
        "names, statistics, journal, secrets and custom blocks are no packets"
    );
    // Longer than any packet: skipped, not kept in memory.
    let long = block(77, &vec![0; 400_000]);
    assert_eq!(
        notes(&[ours.clone(), long, block(78, &[]), ours.clone()]),
        ["test.pcap: passed over blocks of a type that is not known here: 2, the first of type 0x4d"]
    );
    assert_eq!(
        notes(&[ours, enhanced(1, 20, 20, &[0x45; 20])]),
        ["test.pcap: packets of a link type that is not supported: 1, the first of type 147"]
    );
}

#[test]
fn a_big_endian_section_may_follow_a_little_endian_one() {
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_be_bytes()).collect::<Vec<_>>();
    let big = [
        words(&[0x0A0D_0D0A, 28, 0x1A2B_3C4D, 0x0001_0000, u32::MAX, u32::MAX, 28]),
        words(&[1, 20, 101 << 16, 0, 20]),
        words(&[6, 52, 0, 0, 0, 20, 20, 0x4545_4545, 0x4545_4545, 0x4545_4545, 0x4545_4545, 0x4545_4545, 52]),
    ]
    .concat();
    let file = [
        section(),
        interface(1, 0),
        big.clone(),
        section(),
        interface(101, 0),
        enhanced(0, 21, 21, &[0x46; 21]),
    ];
    let (packets, drops, error) = read(&mut reader(file.concat()).unwrap());
    assert_eq!((packets, drops, error), (vec![vec![0x45; 20], vec![0x46; 21]], vec![], None));
    assert_eq!(read(&mut reader(big).unwrap()).0.len(), 1);
}

#[test]
fn a_simple_packet_is_cut_where_its_interface_cuts() {
    let simple = |original: u32, frame: &[u8]| block(3, &[&original.to_le_bytes()[..], frame].concat());
    let file = [section(), interface(101, 24), simple(24, &[0x45; 24]), simple(90, &[0x45; 24])];
    let (packets, drops, error) = read(&mut reader(file.concat()).unwrap());
    assert_eq!((packets, drops, error), (vec![vec![0x45; 24]], vec![(DropReason::Truncated, 1)], None));
}

#[test]
fn frames_are_written_with_the_length_that_they_had_on_the_wire() {
    let mut file = Vec::new();
    let mut writer = FrameWriter::new(&mut file, Link::Ethernet, 128).unwrap();
    let frames: [(&[u8], usize); 3] = [(b"one", 3), (b"", 0), (b"thre", 1500)];
    for (frame, wire_bytes) in frames {
        writer.write(std::time::Duration::from_micros(1_000_001), frame, wire_bytes).unwrap();
    }
    writer.flush().unwrap();
    assert_eq!(file.len(), 24 + 3 * 16 + 7);
    assert_eq!(file[16..40], [128, 1, 1, 1, 3, 3].map(u32::to_le_bytes).concat()[..24]);
    let mut reader = FrameReader::from_read("frames.pcap", Box::new(Cursor::new(file))).unwrap();
    for (bytes, wire_bytes) in frames {
        let frame = reader.next_frame().unwrap().unwrap();
        assert_eq!((frame.link, frame.bytes, frame.wire_bytes), (Some(Link::Ethernet), bytes, wire_bytes));
    }
    assert_eq!(reader.next_frame().unwrap(), None);
}

/// When the frames of a file were captured, in nanoseconds.
fn times(file: Vec<u8>) -> Vec<Option<u128>> {
    let mut reader = FrameReader::from_read("times.pcap", Box::new(Cursor::new(file))).unwrap();
    let mut times = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        times.push(frame.time.map(|time| time.as_nanos()));
    }
    times
}

/// An interface description whose time stamps have this resolution and this offset in seconds.
fn clock(resolution: u8, offset: i64) -> Vec<u8> {
    let options =
        [&[9, 0, 1, 0, resolution, 0, 0, 0, 14, 0, 8, 0][..], &offset.to_le_bytes(), &[0; 4]].concat();
    block(1, &[&[101, 0, 0, 0, 0, 0, 0, 0][..], &options].concat())
}

fn at(interface: u32, ticks: u64) -> Vec<u8> {
    let fields = [interface, (ticks >> 32) as u32, ticks as u32, 20, 20].map(u32::to_le_bytes).concat();
    block(6, &[&fields, &[0x45; 20][..]].concat())
}

#[test]
fn time_stamps_are_read_in_every_resolution() {
    for word in [u32::to_le_bytes as fn(u32) -> [u8; 4], u32::to_be_bytes] {
        for (magic, nanos) in [(0xA1B2_C3D4, 1_000_002_000), (0xA1B2_3C4D, 1_000_000_002)] {
            assert_eq!(times(pcap(word, magic, 101, &[(&[0x45; 20], 20)])), [Some(nanos)]);
        }
    }
    let interfaces = [
        // The default is microseconds.
        (interface(101, 0), 1_500_000, 1_500_000_000),
        (clock(9, 0), 1_500_000_001, 1_500_000_001),
        (clock(0, 0), 7, 7_000_000_000),
        // An upper bit asks for a power of 2.
        (clock(0x80 | 10, 0), 1536, 1_500_000_000),
        (clock(3, 100), 2500, 102_500_000_000),
        (clock(3, -100), 102_500, 2_500_000_000),
        // Before 1970, and finer or further than can be told.
        (clock(3, -100), 2500, 500_000_000),
        (clock(19, 0), u64::MAX, 1_844_674_407),
        (clock(127, 0), u64::MAX, 0),
        (clock(0xFF, 0), u64::MAX, 0),
        (clock(0, 1), u64::MAX, u128::from(u64::MAX) * 1_000_000_000),
    ];
    for (interface, ticks, nanos) in interfaces {
        let file = [section(), interface.clone(), at(0, ticks)].concat();
        assert_eq!(times(file), [Some(nanos)], "{ticks} on {interface:?}");
    }
    let simple = [section(), interface(101, 0), block(3, &[&[20, 0, 0, 0][..], &[0x45; 20]].concat())];
    assert_eq!(times(simple.concat()), [None], "a simple packet has none");
}

#[test]
fn time_stamps_are_those_that_tcpdump_reads() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("times.pcapng");
    let seconds = 1_700_000_000;
    // tcpdump reads no file with several interfaces of raw IP.
    let ethernet = |mut interface: Vec<u8>| {
        interface[8] = 1;
        interface
    };
    let content = [
        section(),
        ethernet(interface(101, 0)),
        ethernet(clock(9, 0)),
        ethernet(clock(0x80 | 20, 0)),
        ethernet(clock(3, 1_600_000_000)),
        at(0, seconds * 1_000_000 + 123_456),
        at(1, seconds * 1_000_000_000 + 123_456_789),
        at(2, (seconds << 20) + 1),
        at(3, 100_000_123),
    ];
    std::fs::write(&file, content.concat()).unwrap();

    match Command::new("tcpdump").args(["-ttn", "--nano", "-r"]).arg(&file).output() {
        Ok(output) => {
            let text = String::from_utf8(output.stdout).unwrap();
            // Frames of no known protocol are dumped on further lines, indented.
            let packets = text.lines().filter(|line| !line.starts_with('\t'));
            let theirs: Vec<_> = packets.filter_map(|line| line.split(' ').next()).collect();
            let ours = times(content.concat()).into_iter().flatten();
            let ours: Vec<_> =
                ours.map(|n| format!("{}.{:09}", n / 1_000_000_000, n % 1_000_000_000)).collect();
            assert_eq!(ours, theirs, "{}", String::from_utf8_lossy(&output.stderr));
        }
        Err(error) => println!("tcpdump: {error}; skipped"),
    }
}

/// Notes what it is told, and says of each packet that it came at a second of its own.
#[derive(Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn note(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }
}

impl Journal for Told {
    fn received(&mut self, packet: &Buffer, Record { port, number, time }: Record<'_>) {
        self.note(format!("{port} received {number}, {} bytes, {time:?}", packet.len()));
    }
    fn derived(&mut self, _: &Buffer, _: &Buffer) {}
    fn moved(&mut self, _: &Buffer, _: &Buffer) {}
    fn joined(&mut self, _: &Buffer, _: &Buffer) {}
    fn assigned(&mut self, _: &Buffer, _: Passage) {}
    fn sent(&mut self, packet: &Buffer, port: &str, number: u64) -> Option<Duration> {
        self.note(format!("{port} sent {number}, {} bytes", packet.len()));
        (number != 2).then_some(Duration::new(number, 7))
    }
    fn dropped(&mut self, packet: &Buffer, reason: DropReason) {
        self.note(format!("dropped {reason:?}, {} bytes", packet.len()));
    }
}

#[test]
fn a_journal_is_told_of_every_record_and_says_when_packets_came() {
    let folder = tempfile::tempdir().unwrap();
    let arp = [&[0; 12][..], &[8, 6], &[0; 28]].concat();
    let ip = [&[0; 12][..], &[8, 0], &[0x45; 30]].concat();
    let frames = [(&arp[..], 42), (&ip[..], 44), (&ip[..30], 44), (&ip[..], 44), (&ip[..], 44)];
    let file = pcap(u32::to_le_bytes, 0xA1B2_C3D4, 1, &frames);
    let told = Told::default();
    let lines = Arc::clone(&told.0);
    let mut pool = Pool::new(64, PACKET_BYTES).with_journal(Box::new(told));
    let out = folder.path().join("out.pcap");
    let mut port = PcapPort::new("outside", Some(reader(file).unwrap()), Some(writer(&out)));
    let mut batch = Batch::new();
    port.rx(&mut pool, &mut batch).unwrap();
    port.tx(&mut pool, &mut batch).unwrap();
    port.finish().unwrap();
    let time = "Some(1.000002s)";
    let expected = [
        format!("outside received 1, 0 bytes, {time}"),
        "dropped NotIp, 0 bytes".to_owned(),
        format!("outside received 2, 30 bytes, {time}"),
        format!("outside received 3, 0 bytes, {time}"),
        "dropped Truncated, 0 bytes".to_owned(),
        format!("outside received 4, 30 bytes, {time}"),
        format!("outside received 5, 30 bytes, {time}"),
        "outside sent 1, 30 bytes".to_owned(),
        "outside sent 2, 30 bytes".to_owned(),
        "outside sent 3, 30 bytes".to_owned(),
    ];
    assert_eq!(*lines.lock().unwrap(), expected);
    let written = times(std::fs::read(&out).unwrap());
    assert_eq!(
        written,
        [Some(1_000_000_007), Some(1000), Some(3_000_000_007)],
        "what is unknown is a number"
    );
}

#[test]
fn an_allowance_is_for_frames_also_those_that_are_no_packets() {
    let arp = [&[0; 12][..], &[8, 6], &[0; 28]].concat();
    let ip = [&[0; 12][..], &[8, 0], &[0x45; 30]].concat();
    let frames: Vec<_> = (0..100).map(|n| if n % 4 == 0 { (&arp[..], 42) } else { (&ip[..], 44) }).collect();
    let file = pcap(u32::to_le_bytes, 0xA1B2_C3D4, 1, &frames);
    let allowance = Allowance::default();
    let mut port = reader(file).unwrap().within(allowance.clone());
    let (mut pool, mut batch) = (Pool::new(64, PACKET_BYTES), Batch::new());
    assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 0, "none was allowed");
    for (frames, packets) in [(1, 0), (4, 3), (3, 3), (0, 0), (1, 0)] {
        allowance.set(frames);
        assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), packets);
        assert_eq!(port.rx(&mut pool, &mut batch).unwrap(), 0, "it is used up");
    }
    assert!(!port.exhausted());
}

#[test]
fn a_file_of_another_kind_is_refused() {
    let refusal = |file: Vec<u8>| reader(file).err().unwrap().to_string();
    assert!(refusal(b"#!/bin/sh".to_vec()).contains("neither a pcap nor a pcapng"));
    assert!(refusal(pcap(u32::to_le_bytes, 0xA1B2_C3D4, 147, &[])).contains("link type 147"));
    assert!(refusal(vec![]).contains("ends within"));
    let missing = PcapReader::open("/nonexistent/in.pcap".as_ref()).err().unwrap();
    assert!(missing.to_string().contains("/nonexistent/in.pcap"), "{missing}");
}

#[test]
fn every_truncation_and_every_changed_byte_ends_in_packets_or_an_error() {
    let ethernet = [&[0; 12][..], &[8, 0], &[0x45; 30]].concat();
    let files = [
        pcap(u32::to_be_bytes, 0xA1B2_C3D4, 1, &[(&ethernet, 44), (&ethernet, 44)]),
        [section(), interface(1, 96), enhanced(0, 44, 44, &ethernet), section(), interface(101, 0)].concat(),
        [
            section(),
            interface(101, 24),
            block(2, &[&[0; 12][..], &[20, 0, 0, 0, 20, 0, 0, 0], &[0x45; 20]].concat()),
            block(77, &[1; 8]),
        ]
        .concat(),
    ];
    for file in files {
        for len in 0..file.len() {
            if let Ok(mut port) = reader(file[..len].to_vec()) {
                read(&mut port);
            }
            for value in [0, 1, 0x7F, 0xFF] {
                let mut changed = file.clone();
                changed[len] = value;
                if let Ok(mut port) = reader(changed) {
                    read(&mut port);
                }
            }
        }
    }
}

#[test]
fn a_full_disk_is_an_error_that_keeps_the_packet() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if bytes.len() == 24 { Ok(24) } else { Err(std::io::ErrorKind::StorageFull.into()) }
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
    }
    let mut writer = PcapWriter::new("full.pcap", Box::new(Full)).unwrap();
    let mut batch: Batch = [Buffer::copied(&[0x45; 20], 0, 0)].into_iter().collect();
    let error = writer.tx(&mut Pool::new(1, 100), &mut batch).unwrap_err();
    assert!(error.to_string().contains("full.pcap") && batch.len() == 1);
    assert!(writer.finish().unwrap_err().to_string().contains("full.pcap"));
}
