//! A small assembler of eBPF (RFC 9669): as many instructions as the ports' programs need, by name, and
//! labels to jump to.
//!
//! ```text
//!   8 bits    4 bits   4 bits       16 bits   32 bits
//!   opcode | source | destination | offset | immediate
//! ```

/// One of eBPF's registers. `R0` has results, `R1` to `R5` are arguments, which a call destroys, `R6` to `R9`
/// survive it, and `R10` is the end of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Register {
    /// The result of calls and of the program.
    R0,
    /// First argument; at the start, the context.
    R1,
    /// Second argument.
    R2,
    /// Third argument.
    R3,
    /// Fourth argument.
    R4,
    /// Fifth argument.
    R5,
    /// Survives calls.
    R6,
    /// Survives calls.
    R7,
    /// Survives calls.
    R8,
    /// Survives calls.
    R9,
    /// The end of the stack.
    R10,
}

/// An instruction as the kernel reads it (`struct bpf_insn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// What it does.
    pub opcode: u8,
    /// Destination in the lower half, source in the upper one: the order on little-endian machines.
    pub registers: u8,
    /// Of memory, or of a jump's target.
    pub offset: i16,
    /// A number as operand.
    pub immediate: i32,
}

/// A place in the program that jumps lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label(usize);

/// Widths of loads and stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Width {
    /// 32 bits.
    Word = 0x00,
    /// 16 bits.
    Half = 0x08,
    /// 8 bits.
    Byte = 0x10,
}

/// Conditions of jumps, between a register and a number or another register. All are unsigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum If {
    /// Equal.
    Equal = 0x10,
    /// Greater.
    Greater = 0x20,
    /// Any of these bits is set.
    AnyBit = 0x40,
    /// Not equal.
    Other = 0x50,
    /// Less.
    Less = 0xa0,
}

/// A program that is being written.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<Instruction>,
    /// Where each label is, once it is placed.
    labels: Vec<Option<usize>>,
    /// Jumps whose offsets are still to be written.
    jumps: Vec<(usize, Label)>,
}

const LOAD: u8 = 0x61;
const STORE: u8 = 0x63;
/// Loads 64 bits, by an instruction of double length.
const LOAD_LONG: u8 = 0x18;
/// In the source register of [`LOAD_LONG`]: the number is a descriptor of a map.
const IS_MAP: u8 = 1;
const SET: u8 = 0xb7;
const ADD: u8 = 0x07;
const MULTIPLY: u8 = 0x27;
const EXCLUSIVE_OR: u8 = 0xa7;
const AND: u8 = 0x57;
const SHIFT_LEFT: u8 = 0x67;
const SHIFT_RIGHT: u8 = 0x77;
const TO_LITTLE_ENDIAN: u8 = 0xd4;
const TO_BIG_ENDIAN: u8 = 0xdc;
const JUMP: u8 = 0x05;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// The second operand is a register, not a number.
const OF_REGISTER: u8 = 0x08;

impl Assembler {
    fn push(&mut self, opcode: u8, to: Register, from: u8, offset: i16, immediate: i32) {
        let registers = to as u8 | from << 4;
        self.code.push(Instruction { opcode, registers, offset, immediate });
    }

    /// `to = value`
    pub fn set(&mut self, to: Register, value: i32) {
        self.push(SET, to, 0, 0, value);
    }

    /// `to = from`
    pub fn copy(&mut self, to: Register, from: Register) {
        self.push(SET | OF_REGISTER, to, from as u8, 0, 0);
    }

    /// `to += value`
    pub fn add(&mut self, to: Register, value: i32) {
        self.push(ADD, to, 0, 0, value);
    }

    /// `to += from`
    pub fn add_register(&mut self, to: Register, from: Register) {
        self.push(ADD | OF_REGISTER, to, from as u8, 0, 0);
    }

    /// `to &= value`
    pub fn and(&mut self, to: Register, value: i32) {
        self.push(AND, to, 0, 0, value);
    }

    /// `to <<= bits`
    pub fn shift_left(&mut self, to: Register, bits: i32) {
        self.push(SHIFT_LEFT, to, 0, 0, bits);
    }

    /// `to = value`: an instruction of double length.
    pub fn set_long(&mut self, to: Register, value: u64) {
        let [a, b, c, d, e, f, g, h] = value.to_ne_bytes();
        let halves = [[a, b, c, d], [e, f, g, h]].map(i32::from_ne_bytes);
        let [low, high] = if cfg!(target_endian = "big") { [halves[1], halves[0]] } else { halves };
        self.push(LOAD_LONG, to, 0, 0, low);
        self.push(0, Register::R0, 0, 0, high);
    }

    /// `to *= from`
    pub fn multiply_register(&mut self, to: Register, from: Register) {
        self.push(MULTIPLY | OF_REGISTER, to, from as u8, 0, 0);
    }

    /// `to ^= from`
    pub fn exclusive_or_register(&mut self, to: Register, from: Register) {
        self.push(EXCLUSIVE_OR | OF_REGISTER, to, from as u8, 0, 0);
    }

    /// `to >>= bits`, with zeros from above.
    pub fn shift_right(&mut self, to: Register, bits: i32) {
        self.push(SHIFT_RIGHT, to, 0, 0, bits);
    }

    /// Makes the lower 32 bits, as loaded from a packet, the number whose lowest byte came first, and clears
    /// the others.
    pub fn little_endian_32_bits(&mut self, register: Register) {
        self.push(TO_LITTLE_ENDIAN, register, 0, 0, 32);
    }

    /// Makes the lower 16 bits, as loaded from a packet, a number, and clears the others.
    pub fn number_of_16_bits(&mut self, register: Register) {
        self.push(TO_BIG_ENDIAN, register, 0, 0, 16);
    }

    /// `to = *(from + offset)`, with zeros above.
    pub fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.push(LOAD | width as u8, to, from as u8, offset, 0);
    }

    /// `*(to + offset) = from`
    pub fn store(&mut self, width: Width, to: Register, offset: i16, from: Register) {
        self.push(STORE | width as u8, to, from as u8, offset, 0);
    }

    /// `to` becomes the map of this descriptor: an instruction of double length.
    pub fn load_map(&mut self, to: Register, descriptor: i32) {
        self.push(LOAD_LONG, to, IS_MAP, 0, descriptor);
        self.push(0, Register::R0, 0, 0, 0);
    }

    /// Calls a function of the kernel, by its number.
    pub fn call(&mut self, function: i32) {
        self.push(CALL, Register::R0, 0, 0, function);
    }

    /// Ends the program, with the value of `R0`.
    pub fn exit(&mut self) {
        self.push(EXIT, Register::R0, 0, 0, 0);
    }

    /// A label that is yet to be placed.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places `label` before the next instruction.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    /// Goes to `label`.
    pub fn jump(&mut self, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JUMP, Register::R0, 0, 0, 0);
    }

    /// Goes to `label` if `register` compares so to `value`.
    pub fn jump_if(&mut self, condition: If, register: Register, value: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JUMP | condition as u8, register, 0, 0, value);
    }

    /// Goes to `label` if `a` compares so to `b`.
    pub fn jump_if_register(&mut self, condition: If, a: Register, b: Register, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(JUMP | condition as u8 | OF_REGISTER, a, b as u8, 0, 0);
    }

    /// The program, with its jumps resolved.
    ///
    /// # Panics
    /// If a label was not placed, or is more than 32,767 instructions away: the filter's author erred.
    #[must_use]
    pub fn finish(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let Some(target) = self.labels[label.0] else { panic!("label {} was not placed", label.0) };
            // Counted from the instruction after the jump. Programs have some hundred instructions.
            let distance = i64::try_from(target).unwrap_or(i64::MAX) - i64::try_from(at + 1).unwrap_or(0);
            let Ok(offset) = i16::try_from(distance) else { panic!("a jump over {distance} instructions") };
            self.code[at].offset = offset;
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9669: opcodes and fields of a program written by hand.
    #[test]
    fn instructions_are_encoded_as_the_rfc_says() {
        let mut assembler = Assembler::default();
        let end = assembler.label();
        assembler.copy(Register::R6, Register::R1);
        assembler.load(Width::Half, Register::R5, Register::R7, 12);
        assembler.jump_if(If::Equal, Register::R5, 8, end);
        assembler.load_map(Register::R1, 7);
        assembler.store(Width::Word, Register::R10, -8, Register::R2);
        assembler.place(end);
        assembler.exit();
        let code = assembler.finish();
        let fields: Vec<_> = code.iter().map(|i| (i.opcode, i.registers, i.offset, i.immediate)).collect();
        assert_eq!(
            fields,
            [
                (0xbf, 0x16, 0, 0),
                (0x69, 0x75, 12, 0),
                (0x15, 0x05, 3, 8),
                (0x18, 0x11, 0, 7),
                (0, 0, 0, 0),
                (0x63, 0x2a, -8, 0),
                (0x95, 0, 0, 0)
            ]
        );
        assert_eq!(size_of::<Instruction>(), 8);
    }

    #[test]
    fn arithmetic_of_64_bits_is_encoded_as_the_rfc_says() {
        let mut assembler = Assembler::default();
        assembler.set_long(Register::R7, 0x0123_4567_89AB_CDEF);
        assembler.multiply_register(Register::R8, Register::R7);
        assembler.exclusive_or_register(Register::R8, Register::R2);
        assembler.shift_right(Register::R2, 32);
        assembler.little_endian_32_bits(Register::R2);
        let code = assembler.finish();
        let fields: Vec<_> = code.iter().map(|i| (i.opcode, i.registers, i.immediate)).collect();
        let [low, high] = [0x89AB_CDEF_u32, 0x0123_4567].map(u32::cast_signed);
        assert_eq!(
            fields,
            [(0x18, 7, low), (0, 0, high), (0x2f, 0x78, 0), (0xaf, 0x28, 0), (0x77, 2, 32), (0xd4, 2, 32)]
        );
    }

    #[test]
    fn jumps_lead_backwards_too() {
        let mut assembler = Assembler::default();
        let start = assembler.label();
        assembler.place(start);
        assembler.set(Register::R0, 2);
        assembler.jump(start);
        assert_eq!(assembler.finish()[1].offset, -2);
    }

    #[test]
    #[should_panic(expected = "label 0 was not placed")]
    fn a_label_that_is_nowhere_is_an_error() {
        let mut assembler = Assembler::default();
        let label = assembler.label();
        assembler.jump(label);
        let _never = assembler.finish();
    }
}
