//! Classic BPF (linux/filter.h) for raw sockets of UDP, which would else receive all UDP of the host.

use libc::sock_filter;
use testudo_wire::ip::Version;

/// The bits of an IPv4 header's seventh and eighth byte that say "fragment": MF and the offset.
const FRAGMENT_BITS: u32 = 0x3FFF;
/// UDP header, SPI and sequence number: no ESP is shorter (RFC 4303 2).
const LEAST_UDP_BYTES: u32 = 16;

const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_IND;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
const LOAD_HALF_AT: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const IPV4_HEADER_BYTES: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
const SET_BASE: u32 = libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// Lets nothing pass.
pub(crate) const NOTHING: [sock_filter; 1] = [instruction(RETURN, 0)];

/// Lets pass what is ESP in UDP to `port`, and no IKE (the SPI is where IKE has four zero bytes, RFC 3948
/// 2.2), keepalive (one byte, RFC 3948 2.3) or other UDP.
///
/// A raw socket of IPv4 shows the filter the IP header, one of IPv6 what follows the headers. A byte that is
/// missing ends the filter, and the datagram.
pub(crate) fn esp_in_udp(version: Version, port: u16) -> Vec<sock_filter> {
    let mut program = match version {
        Version::V4 => vec![
            instruction(LOAD_HALF_AT, 6),
            jump(IF_ANY_BIT, FRAGMENT_BITS, 9, 0),
            instruction(IPV4_HEADER_BYTES, 0),
        ],
        Version::V6 => vec![instruction(SET_BASE, 0)],
    };
    program.extend([
        instruction(LOAD_HALF, 2),
        jump(IF_EQUAL, port.into(), 0, 6),
        instruction(LOAD_HALF, 4),
        jump(IF_AT_LEAST, LEAST_UDP_BYTES, 0, 4),
        instruction(LOAD_WORD, 12),
        instruction(LOAD_WORD, 8),
        jump(IF_EQUAL, 0, 1, 0),
        instruction(RETURN, u32::MAX),
        instruction(RETURN, 0),
    ]);
    program
}

const fn instruction(code: u32, operand: u32) -> sock_filter {
    jump(code, operand, 0, 0)
}

/// Goes on after as many instructions as it says for yes and for no.
const fn jump(code: u32, operand: u32, yes: u8, no: u8) -> sock_filter {
    // Lossless: every code is below 256.
    sock_filter { code: code.to_le_bytes()[0] as u16, jt: yes, jf: no, k: operand }
}
