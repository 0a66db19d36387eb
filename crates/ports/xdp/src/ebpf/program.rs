//! The filter's program: which frames go to the gateway, and which to the kernel.
//!
//! ```text
//!   Ethernet, up to two VLAN tags
//!     ├─ IPv4 ──┬─ destination: the longest prefix decides
//!     ├─ IPv6 ──┘    ├─ a protected network ─────────────────► take
//!     │              └─ an address where tunnels end
//!     │                    ├─ ESP, AH, VPE ──────────────────► take
//!     │                    └─ UDP to a port of ours, no fragment ► take (of a port of ESP: only ESP)
//!     └─ the rest: ARP, ND, ssh, BGP, IKE, what is forwarded ► the kernel
//! ```
//!
//! **Fragments.** Each fragment of ESP and AH says so, and is taken: the gateway puts them together. Only the
//! first fragment of UDP has ports, and IKE's long messages are fragments of UDP, too: these stay with the
//! kernel. To a protected network every fragment is taken, since its address decides.
//!
//! **IPv6 extension headers.** A fragment header is read where it comes first. What is after another
//! extension header is not looked for: such packets are taken for their destination, or stay with the kernel.

use crate::config::{FilterConfig, Taken, UdpContent, UdpPort};
use testudo_ebpf::assembler::{Assembler, If, Instruction, Label, Register, Width};
use testudo_wire::protocol;

use Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10};

/// The maps that the program names, as descriptors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Maps {
    pub sockets: i32,
    pub networks_v4: i32,
    pub networks_v6: i32,
}

/// Actions (`enum xdp_action`).
pub(crate) const PASS: u32 = 2;
pub(crate) const REDIRECT: u32 = 4;

/// The same as an immediate operand.
const PASS_OPERAND: i32 = 2;

/// What the maps of prefixes have for a network.
pub(crate) const fn value(taken: Taken) -> u32 {
    match taken {
        Taken::Nothing => 0,
        Taken::OfTunnels => 1,
        Taken::All => 2,
    }
}

/// The same as an immediate operand.
const fn value_operand(taken: Taken) -> i32 {
    value(taken).cast_signed()
}

/// Functions of the kernel (`enum bpf_func_id`).
const MAP_LOOKUP: i32 = 1;
const REDIRECT_MAP: i32 = 51;

/// `struct xdp_md`: where it has the first byte of the packet, the end, and the queue.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;

const ETHERNET_BYTES: i32 = 14;
const TAG_BYTES: i32 = 4;
const IPV4_BYTES: i32 = 20;
const IPV6_BYTES: i32 = 40;
const FRAGMENT_HEADER_BYTES: i32 = 8;
const UDP_BYTES: i32 = 8;
/// UDP header, SPI and sequence number: no ESP in UDP is shorter (RFC 4303 2).
const LEAST_ESP_IN_UDP_BYTES: i32 = 16;

/// The filter for `config`.
pub(crate) fn assemble(config: &FilterConfig, maps: Maps) -> Vec<Instruction> {
    let mut a = Assembler::default();
    let (v4, v6, take, pass) = (a.label(), a.label(), a.label(), a.label());
    let mut filter = Filter { a, config, maps, take, pass };
    filter.ethernet(v4, v6);
    filter.a.place(pass);
    filter.a.set(R0, PASS_OPERAND);
    filter.a.exit();
    filter.ipv4(v4);
    filter.ipv6(v6);
    filter.a.place(take);
    filter.redirect();
    filter.a.finish()
}

/// R6 is the context, R7 the header that is read, R8 the end of the packet, R9 the protocol.
struct Filter<'a> {
    a: Assembler,
    config: &'a FilterConfig,
    maps: Maps,
    take: Label,
    pass: Label,
}

impl Filter<'_> {
    fn ethernet(&mut self, v4: Label, v6: Label) {
        self.a.copy(R6, R1);
        self.a.load(Width::Word, R7, R6, DATA);
        self.a.load(Width::Word, R8, R6, DATA_END);
        self.need(R7, ETHERNET_BYTES, self.pass);
        self.a.load(Width::Half, R5, R7, 12);
        for _ in 0..2 {
            let (tag, untagged) = (self.a.label(), self.a.label());
            self.a.jump_if(If::Equal, R5, network_order(0x8100), tag);
            self.a.jump_if(If::Other, R5, network_order(0x88A8), untagged);
            self.a.place(tag);
            self.a.add(R7, TAG_BYTES);
            self.need(R7, ETHERNET_BYTES, self.pass);
            self.a.load(Width::Half, R5, R7, 12);
            self.a.place(untagged);
        }
        self.a.add(R7, ETHERNET_BYTES);
        self.a.jump_if(If::Equal, R5, network_order(0x0800), v4);
        self.a.jump_if(If::Equal, R5, network_order(0x86DD), v6);
    }

    fn ipv4(&mut self, start: Label) {
        self.a.place(start);
        self.need(R7, IPV4_BYTES, self.pass);
        self.a.load(Width::Byte, R2, R7, 0);
        self.a.copy(R3, R2);
        self.a.and(R2, 0xF0);
        self.a.jump_if(If::Other, R2, 0x40, self.pass);
        self.a.and(R3, 0x0F);
        self.a.jump_if(If::Less, R3, 5, self.pass);
        self.a.load(Width::Byte, R9, R7, 9);
        self.a.load(Width::Word, R2, R7, 16);
        self.a.store(Width::Word, R10, -4, R2);
        self.destination(self.maps.networks_v4, 32, -8);
        self.protocols();
        self.a.jump_if(If::Other, R9, protocol::UDP.into(), self.pass);
        // MF and the offset: a fragment.
        self.a.load(Width::Half, R2, R7, 6);
        self.a.jump_if(If::AnyBit, R2, network_order(0x3FFF), self.pass);
        self.a.load(Width::Byte, R3, R7, 0);
        self.a.and(R3, 0x0F);
        self.a.shift_left(R3, 2);
        self.a.copy(R1, R7);
        self.a.add_register(R1, R3);
        self.udp();
    }

    fn ipv6(&mut self, start: Label) {
        let upper = self.a.label();
        self.a.place(start);
        self.need(R7, IPV6_BYTES, self.pass);
        self.a.load(Width::Byte, R2, R7, 0);
        self.a.and(R2, 0xF0);
        self.a.jump_if(If::Other, R2, 0x60, self.pass);
        for word in 0..4 {
            self.a.load(Width::Word, R2, R7, 24 + word * 4);
            self.a.store(Width::Word, R10, -16 + word * 4, R2);
        }
        self.destination(self.maps.networks_v6, 128, -20);
        self.a.load(Width::Byte, R9, R7, 6);
        self.a.copy(R1, R7);
        self.a.add(R1, IPV6_BYTES);
        self.a.set(R4, 0);
        self.a.jump_if(If::Other, R9, protocol::FRAGMENT.into(), upper);
        self.need(R1, FRAGMENT_HEADER_BYTES, self.pass);
        self.a.load(Width::Byte, R9, R1, 0);
        self.a.load(Width::Half, R4, R1, 2);
        // Without the reserved bits: 0 in an atomic fragment (RFC 6946), which is a whole packet.
        self.a.and(R4, network_order(0xFFF9));
        self.a.add(R1, FRAGMENT_HEADER_BYTES);
        self.a.place(upper);
        self.protocols();
        self.a.jump_if(If::Other, R9, protocol::UDP.into(), self.pass);
        self.a.jump_if(If::Other, R4, 0, self.pass);
        self.udp();
    }

    /// Goes on with a packet whose destination, on the stack after `key`, is an address where tunnels end;
    /// takes it if it is to a protected network, else leaves it to the kernel. R0 to R5 are lost.
    fn destination(&mut self, map: i32, prefix_bits: i32, key: i16) {
        self.a.set(R2, prefix_bits);
        self.a.store(Width::Word, R10, key, R2);
        self.a.load_map(R1, map);
        self.a.copy(R2, R10);
        self.a.add(R2, key.into());
        self.a.call(MAP_LOOKUP);
        self.a.jump_if(If::Equal, R0, 0, self.pass);
        self.a.load(Width::Word, R0, R0, 0);
        self.a.jump_if(If::Equal, R0, value_operand(Taken::All), self.take);
        self.a.jump_if(If::Other, R0, value_operand(Taken::OfTunnels), self.pass);
    }

    /// Takes what R9 names, if it is of a protocol that is ours whatever follows.
    fn protocols(&mut self) {
        let config = self.config;
        let ours =
            [config.esp.then_some(protocol::ESP), config.ah.then_some(protocol::AH), config.vpe_protocol];
        for protocol in ours.into_iter().flatten() {
            self.a.jump_if(If::Equal, R9, protocol.into(), self.take);
        }
    }

    /// Takes UDP, whose header R1 points to, if it is to a port of ours, else leaves it to the kernel.
    fn udp(&mut self) {
        // The verifier refuses code that nothing leads to.
        if self.config.udp.is_empty() {
            return self.a.jump(self.pass);
        }
        self.need(R1, UDP_BYTES, self.pass);
        self.a.load(Width::Half, R2, R1, 2);
        let esp = self.a.label();
        for UdpPort { port, content } in &self.config.udp {
            let target = if *content == UdpContent::Esp { esp } else { self.take };
            self.a.jump_if(If::Equal, R2, network_order(*port), target);
        }
        self.a.jump(self.pass);
        if self.config.udp.iter().all(|port| port.content != UdpContent::Esp) {
            return;
        }
        // ESP, and no IKE (the SPI is where IKE has four zero bytes, RFC 3948 2.2) nor keepalive (one byte,
        // RFC 3948 2.3). The length is the datagram's own: short frames are padded.
        self.a.place(esp);
        self.a.load(Width::Half, R2, R1, 4);
        self.a.number_of_16_bits(R2);
        self.a.jump_if(If::Less, R2, LEAST_ESP_IN_UDP_BYTES, self.pass);
        self.need(R1, LEAST_ESP_IN_UDP_BYTES, self.pass);
        self.a.load(Width::Word, R2, R1, 8);
        self.a.jump_if(If::Other, R2, 0, self.take);
        self.a.jump(self.pass);
    }

    /// Hands the frame to the socket of its queue, or to the kernel if there is none.
    fn redirect(&mut self) {
        self.a.load(Width::Word, R2, R6, QUEUE);
        self.a.load_map(R1, self.maps.sockets);
        self.a.set(R3, PASS_OPERAND);
        self.a.call(REDIRECT_MAP);
        self.a.exit();
    }

    /// Goes to `otherwise` unless `bytes` bytes are there from `start` on. The verifier believes no access
    /// without. R2 is lost.
    fn need(&mut self, start: Register, bytes: i32, otherwise: Label) {
        self.a.copy(R2, start);
        self.a.add(R2, bytes);
        self.a.jump_if_register(If::Greater, R2, R8, otherwise);
    }
}

/// What a 16-bit load from a packet yields for this number.
fn network_order(number: u16) -> i32 {
    i32::from(number.to_be())
}
