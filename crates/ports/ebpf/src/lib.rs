//! eBPF without a compiler or a library: what ports need to run small programs in the kernel.
//!
//! | module | what |
//! | --- | --- |
//! | [`assembler`] | writes programs, instruction by instruction |
//! | [`objects`] | maps, programs and links as owning types |
//! | `raw` | bpf(2) |
//!
//! bpf(2) needs CAP_BPF, for network programs CAP_NET_ADMIN, too, and is refused in every user namespace but
//! the first.
//!
//! Deliberately missing: BTF, maps that programs share memory by, everything but network programs.

mod raw;

pub mod assembler;
pub mod objects;

pub use raw::{GENERIC_MODE, NATIVE_MODE};
