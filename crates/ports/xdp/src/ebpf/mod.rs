//! eBPF: the filter that decides which frames are the gateway's, and what it takes to run it in the kernel.
//! [`raw`] is bpf(2), [`objects`] owns what bpf(2) makes, [`assembler`] writes programs, [`program`] is the
//! filter's, and [`filter`] is the filter at an interface.

pub(crate) mod assembler;
pub(crate) mod filter;
pub(crate) mod objects;
pub(crate) mod program;
mod raw;

pub(crate) use raw::{GENERIC_MODE, NATIVE_MODE};
