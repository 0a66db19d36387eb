//! How `testudo replay` applies policy to handmade files: IPv6 fragments whose headers say too little or lie.

#![allow(clippy::unwrap_used, reason = "a test that cannot prepare its files has failed")]

use std::fs;
use std::net::Ipv6Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
const ESP: u8 = 50;
const DESTINATION_OPTIONS: u8 = 60;
/// What follows in the file is an IP packet (`LINKTYPE_RAW`).
const RAW: u32 = 101;

/// TCP between two networks is protected; everything else between them is bypassed.
const CONFIGURATION: &str = r#"
[gateway]
state = "state.redb"

[port.protected]
kind = "tun"
name = "testudo0"

[port.unprotected]
kind = "socket"
interface = "lo"
mtu = 1500

[[tunnel]]
name = "t"
local = "192.0.2.1"
remote = "192.0.2.2"
suite = "aes128gcm16"
outbound = { spi = 0x1001, key_file = "out.key" }
inbound = { spi = 0x1002, key_file = "in.key" }

[[policy]]
action = "protect"
tunnel = "t"
local = "fd01::/64"
remote = "fd02::/64"
protocol = "tcp"

[[policy]]
action = "bypass"
local = "fd01::/64"
remote = "fd02::/64"
"#;

fn ipv6(source: &str, destination: &str, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let ends = [source, destination].map(|address| address.parse::<Ipv6Addr>().unwrap().octets());
    [&[0x60, 0, 0, 0, length[0], length[1], next_header, 64], ends.as_flattened(), payload].concat()
}

fn fragment_header(next_header: u8, offset: usize, more: bool) -> [u8; 8] {
    let offset_and_flag = (u16::try_from(offset).unwrap() | u16::from(more)).to_be_bytes();
    [next_header, 0, offset_and_flag[0], offset_and_flag[1], 0, 0, 0, 77]
}

fn write_pcap(path: &Path, packets: &[Vec<u8>]) {
    let mut file = Vec::new();
    for word in [0xA1B2_C3D4, 4 << 16 | 2, 0, 0, 65_535, RAW] {
        file.extend(u32::to_le_bytes(word));
    }
    for packet in packets {
        let length = u32::try_from(packet.len()).unwrap();
        file.extend([0, 0, length, length].map(u32::to_le_bytes).as_flattened());
        file.extend_from_slice(packet);
    }
    fs::write(path, file).unwrap();
}

/// The packets of a file that `replay` wrote, in either byte order.
fn read_pcap(path: &Path) -> Vec<Vec<u8>> {
    let file = fs::read(path).unwrap();
    let is_little = file[..4] == 0xA1B2_C3D4_u32.to_le_bytes() || file[..4] == 0xA1B2_3C4D_u32.to_le_bytes();
    let mut rest = &file[24..];
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let field = rest[8..12].try_into().unwrap();
        let length = if is_little { u32::from_le_bytes(field) } else { u32::from_be_bytes(field) };
        let (packet, after) = rest[16..].split_at(usize::try_from(length).unwrap());
        packets.push(packet.to_vec());
        rest = after;
    }
    packets
}

/// The packets that leave on side `to` of the gateway when these packets arrive on side `from`.
fn replayed(purpose: &str, from: &str, to: &str, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("replay-policy-{purpose}"));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("gateway.toml"), CONFIGURATION).unwrap();
    for (key, digit) in [("out.key", "1f"), ("in.key", "2e")] {
        let path = folder.join(key);
        fs::write(&path, digit.repeat(20)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    write_pcap(&folder.join("in.pcap"), packets);
    let _ = fs::remove_file(folder.join("out.pcap"));
    let output = Command::new(env!("CARGO_BIN_EXE_testudo"))
        .current_dir(&folder)
        .args([
            "replay",
            "gateway.toml",
            "--rx",
            &format!("{from}=in.pcap"),
            "--tx",
            &format!("{to}=out.pcap"),
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    read_pcap(&folder.join("out.pcap"))
}

#[test]
fn nothing_of_a_fragmented_tcp_segment_leaves_in_clear() {
    let secret = b"SECRET-TCP-PAYLOAD-";
    let tcp = [0x9C, 0x40, 1, 0xBB, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 3, 0xE8, 0, 0, 0, 0];
    let datagram = [&[TCP, 0, 1, 4, 0, 0, 0, 0], &tcp[..], &secret.repeat(40)].concat();
    let cut = 256;
    let fragments = [0, cut, 2 * cut].map(|at| {
        let end = if at < 2 * cut { at + cut } else { datagram.len() };
        let header = fragment_header(DESTINATION_OPTIONS, at, at < 2 * cut);
        ipv6("fd01::1", "fd02::1", FRAGMENT, &[&header, &datagram[at..end]].concat())
    });
    let left = replayed("out", "protected", "unprotected", &fragments);
    assert!(left.iter().all(|packet| packet[0] == 0x45 && packet[9] == ESP), "{left:02x?}");
    assert!(left.iter().all(|packet| !packet.windows(6).any(|bytes| bytes == b"SECRET")));
    assert_eq!(left.len(), 1, "the first fragment shows its protocol");
}

#[test]
fn no_clear_fragment_comes_in_that_may_belong_to_a_tcp_segment() {
    let packets = [UDP, TCP, DESTINATION_OPTIONS].map(|next_header| {
        let header = fragment_header(next_header, 256, false);
        ipv6("fd02::1", "fd01::1", FRAGMENT, &[&header[..], &b"INJECTED".repeat(10)].concat())
    });
    let came = replayed("in", "unprotected", "protected", &packets);
    assert!(came.is_empty(), "{came:02x?}");
}
