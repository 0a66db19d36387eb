//! The program by which a TUN device with several queues chooses one for each packet: the
//! [hash of its flow](testudo_wire::flow) names a bucket, and a map has the queue of each.
//!
//! ```text
//!   packet of the host ──► flow hash ──► bucket of 256 ──► map ──► queue ──► worker
//! ```
//!
//! Left to itself, the kernel learns: a flow's packets come by the queue to which somebody last wrote a
//! packet of its other direction. That moves a flow whenever another worker decrypts for it, and packets
//! overtake each other on two queues (`tun_automq_select_queue`; the test
//! `left_to_itself_the_kernel_moves_a_flow_to_the_queue_of_its_answers`). With this program a flow has one
//! queue whatever comes back.

use rustix::thread::{MembarrierCommand, membarrier};
use std::io;
use testudo_ebpf::assembler::{Assembler, If, Instruction, Label, Register, Width};
use testudo_ebpf::objects::{Kind, Map, Program};
use testudo_wire::flow::{FLOW_MULTIPLIER, PROTOCOLS_WITH_PORTS};
use testudo_wire::steering::{FLOW_BUCKETS, FlowBuckets};

use Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10};

/// Functions of the kernel (`enum bpf_func_id`).
const MAP_LOOKUP: i32 = 1;
const LOAD_BYTES: i32 = 26;

const IPV4_BYTES: i32 = 20;
const IPV6_BYTES: i32 = 40;
/// Where on the stack the header is, the ports, and the key for the map.
const HEADER: i16 = -48;
const PORTS: i16 = -8;
const KEY: i16 = -4;

/// The program and its map.
#[derive(Debug)]
pub(crate) struct Steering {
    pub(crate) program: Program,
    map: Map,
    /// What the map has.
    in_force: [u32; FLOW_BUCKETS],
}

impl Steering {
    /// Loads the program, with every bucket at queue 0.
    ///
    /// # Errors
    /// Those of bpf(2), with what the verifier said.
    pub(crate) fn load() -> io::Result<Self> {
        let map = Map::of_numbers(u32::try_from(FLOW_BUCKETS).unwrap_or(0))?; // 256
        let program = Program::load(Kind::SocketFilter, &assemble(map.descriptor())).map_err(|refused| {
            let log = refused.log.trim().to_owned();
            if log.is_empty() {
                refused.source
            } else {
                io::Error::new(refused.source.kind(), format!("{}: {log}", refused.source))
            }
        })?;
        Ok(Self { program, map, in_force: [0; FLOW_BUCKETS] })
    }

    /// Puts other queues in force, bucket by bucket. When this returns, every packet that the kernel steers
    /// meets the new ones.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub(crate) fn set(&mut self, buckets: &FlowBuckets) -> io::Result<()> {
        for (bucket, (now, wanted)) in (0_u32..).zip(self.in_force.iter_mut().zip(buckets.table())) {
            if now != wanted {
                self.map.set(&bucket.to_ne_bytes(), &wanted.to_ne_bytes())?;
                *now = *wanted;
            }
        }
        wait_for_readers();
        Ok(())
    }
}

/// Waits until every processor is out of the kernel's read-side sections of now, such as that in which a
/// packet's queue is chosen and the packet put there.
fn wait_for_readers() {
    // Missing only where some processors run without ticks: packets that are on their way there are then not
    // waited for.
    let _ = membarrier(MembarrierCommand::Global);
}

/// R6 is the packet, R7 the multiplier, R8 the hash, R9 the protocol.
fn assemble(map: i32) -> Vec<Instruction> {
    let mut a = Assembler::default();
    let (v4, v6, ports, done) = (a.label(), a.label(), a.label(), a.label());
    let bucket = a.label();
    a.copy(R6, R1);
    a.set_long(R7, FLOW_MULTIPLIER);
    a.set(R8, 0);
    load_header(&mut a, IPV4_BYTES, bucket);
    a.load(Width::Byte, R2, R10, HEADER);
    a.and(R2, 0xF0);
    a.jump_if(If::Equal, R2, 0x40, v4);
    a.jump_if(If::Equal, R2, 0x60, v6);
    a.jump(bucket);
    a.place(v4);
    words(&mut a, 12, 2);
    a.load(Width::Byte, R9, R10, HEADER + 9);
    a.copy(R2, R9);
    word(&mut a);
    // MF and the offset: a fragment.
    a.load(Width::Half, R2, R10, HEADER + 6);
    a.jump_if(If::AnyBit, R2, i32::from(0x3FFF_u16.to_be()), done);
    a.load(Width::Byte, R2, R10, HEADER);
    a.and(R2, 0x0F);
    a.shift_left(R2, 2);
    a.jump(ports);
    a.place(v6);
    load_header(&mut a, IPV6_BYTES, bucket);
    words(&mut a, 8, 8);
    a.load(Width::Byte, R9, R10, HEADER + 6);
    a.copy(R2, R9);
    word(&mut a);
    a.set(R2, IPV6_BYTES);
    a.place(ports);
    with_ports(&mut a, done);
    a.place(done);
    a.set(R2, 0);
    word(&mut a);
    a.place(bucket);
    queue_of_bucket(&mut a, map);
    a.finish()
}

/// Copies the header's first bytes to the stack; where there are fewer, the hash stays 0.
fn load_header(a: &mut Assembler, bytes: i32, otherwise: Label) {
    a.set(R2, 0);
    load(a, HEADER, bytes, otherwise);
}

/// Copies bytes of the packet, from offset R2 on, to the stack.
fn load(a: &mut Assembler, to: i16, bytes: i32, otherwise: Label) {
    a.copy(R1, R6);
    a.copy(R3, R10);
    a.add(R3, to.into());
    a.set(R4, bytes);
    a.call(LOAD_BYTES);
    a.jump_if(If::Other, R0, 0, otherwise);
}

/// Hashes words of the header.
fn words(a: &mut Assembler, first: i16, count: i16) {
    for index in 0..count {
        a.load(Width::Word, R2, R10, HEADER + first + 4 * index);
        a.little_endian_32_bits(R2);
        word(a);
    }
}

/// Hashes the word in R2.
fn word(a: &mut Assembler) {
    a.exclusive_or_register(R8, R2);
    a.multiply_register(R8, R7);
    a.copy(R2, R8);
    a.shift_right(R2, 32);
    a.exclusive_or_register(R8, R2);
}

/// Hashes the ports at offset R2, if the protocol has them and they are there.
fn with_ports(a: &mut Assembler, otherwise: Label) {
    let has_ports = a.label();
    for number in PROTOCOLS_WITH_PORTS {
        a.jump_if(If::Equal, R9, number.into(), has_ports);
    }
    a.jump(otherwise);
    a.place(has_ports);
    load(a, PORTS, 4, otherwise);
    a.load(Width::Word, R2, R10, PORTS);
    a.little_endian_32_bits(R2);
    word(a);
}

/// Ends with the queue of the hash.
fn queue_of_bucket(a: &mut Assembler, map: i32) {
    let absent = a.label();
    a.and(R8, 0xFF);
    a.store(Width::Word, R10, KEY, R8);
    a.load_map(R1, map);
    a.copy(R2, R10);
    a.add(R2, KEY.into());
    a.call(MAP_LOOKUP);
    a.jump_if(If::Equal, R0, 0, absent);
    a.load(Width::Word, R0, R0, 0);
    // R0 is 0 where the map had nothing.
    a.place(absent);
    a.exit();
}
