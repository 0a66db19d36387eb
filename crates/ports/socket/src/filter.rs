//! Classic BPF (linux/filter.h) for sockets: what of the host's datagrams a raw socket receives, and which of
//! several sockets receives each.
//!
//! **Raw sockets** each get a copy of everything of their protocol, so that of several each has a filter that
//! lets its own share pass ([`Raw::program`]). One of UDP would else receive all UDP of the host. A raw
//! socket of IPv4 shows the filter the IP header, one of IPv6 what follows all headers before its protocol's.
//!
//! **UDP sockets** of one port share one program, which names the socket for each datagram ([`udp_queue`]).
//! It sees what the datagram carries, and reads the headers from where they are. Those of a multicast group
//! each get a copy of everything, as raw sockets do, and have filters as these: which see the UDP header.
//!
//! Both compute [`Steering::queue`](testudo_wire::steering::Steering::queue).

use libc::sock_filter;
use testudo_wire::ip::Version;
use testudo_wire::protocol;
use testudo_wire::steering::{Steering, slots_of_a_turn};

/// The bits of an IPv4 header's seventh and eighth byte that say "fragment": MF and the offset.
const FRAGMENT_BITS: u32 = 0x3FFF;
/// UDP header, SPI and sequence number: no ESP is shorter (RFC 4303 2).
const LEAST_UDP_BYTES: u32 = 16;
const UDP_BYTES: u32 = 8;
/// Offsets from here on are from the IP header (`SKF_NET_OFF`, -0x100000).
const FROM_IP_HEADER: u32 = 0xFFF0_0000;
/// Where the number that a packet is steered by is kept, and the slot of a window of VPE.
const NUMBER: u32 = 0;
const SLOT: u32 = 4;
/// Extension headers that are stepped over, as many as [`testudo_wire::ip`] does.
const MAX_HEADERS: usize = 8;

const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_IND;
const LOAD_HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_IND;
const LOAD_HALF_AT: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const LOAD_BYTE_AT: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const LOAD_LENGTH: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_LEN;
const LOAD_KEPT: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_MEM;
const KEEP: u32 = libc::BPF_ST;
const KEPT_TO_BASE: u32 = libc::BPF_LDX | libc::BPF_W | libc::BPF_MEM;
const TO_BASE: u32 = libc::BPF_MISC | libc::BPF_TAX;
const IPV4_HEADER_BYTES: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
const SET_BASE: u32 = libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM;
const ADD: u32 = libc::BPF_ALU | libc::BPF_ADD | libc::BPF_K;
const ADD_BASE: u32 = libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X;
const LESS_BASE: u32 = libc::BPF_ALU | libc::BPF_SUB | libc::BPF_X;
const OR_BASE: u32 = libc::BPF_ALU | libc::BPF_OR | libc::BPF_X;
const SHIFT_LEFT: u32 = libc::BPF_ALU | libc::BPF_LSH | libc::BPF_K;
const DIVIDE: u32 = libc::BPF_ALU | libc::BPF_DIV | libc::BPF_K;
const REMAINDER: u32 = libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
const IF_ANY_BIT: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
const RETURN_NUMBER: u32 = libc::BPF_RET | libc::BPF_A;

/// Lets nothing pass.
pub(crate) const NOTHING: [sock_filter; 1] = [instruction(RETURN, 0)];

/// Targets of jumps at the end of a program, until [`Program::finish`] knows where that is. No jump of ours
/// is that long.
const PASS: u8 = 255;
const REFUSE: u8 = 254;

/// What a raw socket is for, or one of UDP in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Raw {
    pub(crate) version: Version,
    pub(crate) content: Content,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Esp,
    Ah,
    /// In UDP to this port; no IKE (the SPI is where IKE has four zero bytes, RFC 3948 2.2), keepalive (one
    /// byte, RFC 3948 2.3) or other UDP.
    EspInUdp(u16),
    /// What comes to a UDP socket.
    Udp,
}

/// A queue, of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) queue: u32,
    pub(crate) queues: u32,
}

/// All there is.
pub(crate) const WHOLE: Share = Share { queue: 0, queues: 1 };

impl Raw {
    /// Lets pass what belongs to any of these shares. What is too short to say so belongs to queue 0.
    pub(crate) fn program(self, steering: Steering, shares: &[Share]) -> Vec<sock_filter> {
        if shares.is_empty() {
            return NOTHING.to_vec();
        }
        let mut program = Program::default();
        program.raw_headers(self);
        let field = Field::of(steering, self.content);
        if shares != [WHOLE] {
            let if_short = if shares.iter().any(|share| share.queue == 0) { PASS } else { REFUSE };
            program.push(LOAD_LENGTH, 0);
            program.push(LESS_BASE, 0);
            // The word that is looked at next is there as well: a byte that is missing ends the filter.
            let least = if self.content == Content::Udp { UDP_BYTES + 4 } else { 0 };
            program.jump(IF_AT_LEAST, field.end().max(least), 0, if_short);
            if self.content == Content::Udp {
                // As in `udp_queue`.
                program.push(LOAD_WORD, UDP_BYTES);
                program.jump(IF_EQUAL, 0, if_short, 0);
            }
            program.load(field);
            program.push(KEEP, NUMBER);
            for share in shares {
                program.load_queue(field, share.queues);
                program.jump(IF_EQUAL, share.queue, PASS, 0);
            }
            program.push(RETURN, 0);
        }
        program.finish()
    }
}

/// The program of a UDP port's sockets: which of `queues` gets a datagram. A byte that is missing ends it,
/// with queue 0.
pub(crate) fn udp_queue(version: Version, steering: Steering, queues: u32) -> Vec<sock_filter> {
    let mut program = Program::default();
    program.push(SET_BASE, 0);
    program.push(LOAD_WORD, 0);
    // IKE, or the first window of VPE, which is in the first queue anyway.
    program.jump(IF_EQUAL, 0, REFUSE, 0);
    // The source port is not where the datagram's content is: it is loaded apart.
    let field = Field::of(steering, Content::Esp);
    match (steering, version) {
        (Steering::ByUdpSource, Version::V4) => {
            program.push(IPV4_HEADER_BYTES, FROM_IP_HEADER);
            program.push(LOAD_HALF, FROM_IP_HEADER);
        }
        (Steering::ByUdpSource, Version::V6) => {
            program.step_over_extension_headers();
            program.push(LOAD_HALF, FROM_IP_HEADER);
        }
        _ => program.load(field),
    }
    program.push(KEEP, NUMBER);
    program.load_queue(field, queues);
    program.push(RETURN_NUMBER, 0);
    program.finish()
}

/// The number that a packet is steered by, and where it is after the base.
#[derive(Debug, Clone, Copy)]
enum Field {
    Spi(u32),
    /// With the SPI before it.
    Sequence(u32, u32),
    Window(u32, u32),
    SourcePort,
}

impl Field {
    fn of(steering: Steering, content: Content) -> Self {
        let (start, spi) = match content {
            Content::Esp => (0, 0),
            Content::Ah => (0, 4),
            Content::EspInUdp(_) | Content::Udp => (UDP_BYTES, UDP_BYTES),
        };
        match (steering, content) {
            (Steering::ByUdpSource, Content::EspInUdp(_) | Content::Udp) => Field::SourcePort,
            (Steering::BySpi | Steering::ByUdpSource, _) => Field::Spi(spi),
            (Steering::BySequence { block }, _) => Field::Sequence(spi, block.get()),
            (Steering::ByWindow { classes }, _) => Field::Window(start, classes.get().into()),
        }
    }

    /// Bytes from the base to its end.
    fn end(self) -> u32 {
        match self {
            Field::Spi(at) | Field::Window(at, _) => at + 4,
            Field::Sequence(at, _) => at + 8,
            Field::SourcePort => 2,
        }
    }
}

#[derive(Debug, Default)]
struct Program(Vec<sock_filter>);

impl Program {
    fn push(&mut self, code: u32, operand: u32) {
        self.0.push(instruction(code, operand));
    }

    fn jump(&mut self, code: u32, operand: u32, yes: u8, no: u8) {
        self.0.push(jump(code, operand, yes, no));
    }

    /// Refuses what is not this content, and makes the base the end of the IP header.
    fn raw_headers(&mut self, raw: Raw) {
        let Content::EspInUdp(port) = raw.content else {
            return match (raw.version, raw.content) {
                (Version::V6, _) | (_, Content::Udp) => self.push(SET_BASE, 0),
                (Version::V4, _) => self.push(IPV4_HEADER_BYTES, 0),
            };
        };
        match raw.version {
            Version::V4 => {
                self.push(LOAD_HALF_AT, 6);
                self.jump(IF_ANY_BIT, FRAGMENT_BITS, REFUSE, 0);
                self.push(IPV4_HEADER_BYTES, 0);
            }
            Version::V6 => self.push(SET_BASE, 0),
        }
        self.push(LOAD_HALF, 2);
        self.jump(IF_EQUAL, port.into(), 0, REFUSE);
        self.push(LOAD_HALF, 4);
        self.jump(IF_AT_LEAST, LEAST_UDP_BYTES, 0, REFUSE);
        // A byte that is missing ends the filter, and the datagram.
        self.push(LOAD_WORD, 12);
        self.push(LOAD_WORD, 8);
        self.jump(IF_EQUAL, 0, REFUSE, 0);
    }

    /// Makes the base the offset of the UDP header from the IP header; returns 0 if there is none.
    fn step_over_extension_headers(&mut self) {
        self.push(SET_BASE, 40);
        self.push(LOAD_BYTE_AT, FROM_IP_HEADER.wrapping_add(6));
        const STEP: u8 = 12;
        for header in 0..MAX_HEADERS {
            let headers_left = u8::try_from(MAX_HEADERS - header - 1).unwrap_or(0);
            // To the end of all steps, past the last comparison.
            self.jump(IF_EQUAL, protocol::UDP.into(), headers_left * STEP + STEP, 0);
            self.jump(IF_EQUAL, protocol::HOP_BY_HOP.into(), 2, 0);
            self.jump(IF_EQUAL, protocol::ROUTING.into(), 1, 0);
            self.jump(IF_EQUAL, protocol::DESTINATION_OPTIONS.into(), 0, REFUSE);
            self.push(LOAD_BYTE, FROM_IP_HEADER);
            self.push(KEEP, 0);
            self.push(LOAD_BYTE, FROM_IP_HEADER.wrapping_add(1));
            self.push(ADD, 1);
            self.push(SHIFT_LEFT, 3);
            self.push(ADD_BASE, 0);
            self.push(TO_BASE, 0);
            self.push(LOAD_KEPT, 0);
        }
        self.jump(IF_EQUAL, protocol::UDP.into(), 0, REFUSE);
    }

    /// Loads the number, and keeps the slot of a window. The base is lost.
    fn load(&mut self, field: Field) {
        match field {
            Field::Spi(at) => self.push(LOAD_WORD, at),
            Field::SourcePort => self.push(LOAD_HALF, 0),
            Field::Sequence(at, block) => {
                self.push(LOAD_WORD, at + 4);
                self.push(DIVIDE, block);
                self.push(KEEP, 0);
                self.push(LOAD_WORD, at);
                self.push(KEPT_TO_BASE, 0);
                self.push(ADD_BASE, 0);
            }
            Field::Window(at, classes) => {
                // Sender and window, each with its lower byte first.
                for byte in 0..4 {
                    self.push(LOAD_BYTE, at + byte);
                    self.push(SHIFT_LEFT, 8 * (byte % 2));
                    self.push(KEEP, byte);
                }
                self.push(LOAD_KEPT, 2);
                self.push(KEPT_TO_BASE, 3);
                self.push(OR_BASE, 0);
                self.push(DIVIDE, classes);
                self.push(KEEP, SLOT);
                self.push(KEPT_TO_BASE, 0);
                self.push(ADD_BASE, 0);
                self.push(KEPT_TO_BASE, 1);
                self.push(ADD_BASE, 0);
            }
        }
    }

    /// Loads which of so many queues the number that is kept says. The base is lost.
    fn load_queue(&mut self, field: Field, queues: u32) {
        if let Field::Window(..) = field {
            self.push(LOAD_KEPT, SLOT);
            self.push(DIVIDE, slots_of_a_turn(queues));
            self.push(KEPT_TO_BASE, NUMBER);
            self.push(ADD_BASE, 0);
        } else {
            self.push(LOAD_KEPT, NUMBER);
        }
        self.push(REMAINDER, queues);
    }

    /// The program with its two ends: to pass, and to refuse.
    fn finish(mut self) -> Vec<sock_filter> {
        let pass = self.0.len();
        self.push(RETURN, u32::MAX);
        self.push(RETURN, 0);
        for (at, instruction) in self.0.iter_mut().enumerate() {
            let is_jump = u32::from(instruction.code) & 7 == libc::BPF_JMP;
            for target in [&mut instruction.jt, &mut instruction.jf] {
                let end = match *target {
                    PASS if is_jump => pass,
                    REFUSE if is_jump => pass + 1,
                    _ => continue,
                };
                // A program has some hundred instructions.
                let Ok(distance) = u8::try_from(end - at - 1) else {
                    panic!("a jump over {end} instructions")
                };
                *target = distance;
            }
        }
        self.0
    }
}

const fn instruction(code: u32, operand: u32) -> sock_filter {
    jump(code, operand, 0, 0)
}

/// Goes on after as many instructions as it says for yes and for no.
const fn jump(code: u32, operand: u32, yes: u8, no: u8) -> sock_filter {
    // Lossless: every code is below 256.
    sock_filter { code: code.to_le_bytes()[0] as u16, jt: yes, jf: no, k: operand }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Socket;
    use std::os::unix::net::UnixDatagram;

    /// The kernel's own interpreter, which shows the filter of any socket what that receives.
    #[test]
    fn datagrams_of_any_length_to_a_group_reach_one_worker_and_short_ones_the_first() {
        for version in [Version::V4, Version::V6] {
            let raw = Raw { version, content: Content::Udp };
            let queues = 3;
            let all: Vec<_> = (0..queues)
                .map(|queue| {
                    let (sender, receiver) = UnixDatagram::pair().unwrap();
                    receiver.set_nonblocking(true).unwrap();
                    let program = raw.program(Steering::ByUdpSource, &[Share { queue, queues }]);
                    let descriptor = receiver.try_clone().unwrap().into();
                    Socket::new(descriptor).set_filter(&program).unwrap();
                    (sender, receiver)
                })
                .collect();
            for (content, port) in (0..16_usize).flat_map(|content| [(content, 4501_u16), (content, 4502)]) {
                let mut datagram = vec![7; 8 + content];
                datagram[..2].copy_from_slice(&port.to_be_bytes());
                let reached: Vec<_> = (0..)
                    .zip(&all)
                    .filter(|(_, (sender, receiver))| {
                        // A datagram that the filter refuses is an error to who sends it, of this kind.
                        let _ = sender.send(&datagram);
                        receiver.recv(&mut [0; 64]).is_ok()
                    })
                    .map(|(queue, _): (u32, _)| queue)
                    .collect();
                let expected = if content < 4 { 0 } else { u32::from(port) % queues };
                assert_eq!(reached, [expected], "{version:?}, {content} bytes from port {port}");
            }
        }
    }
}
