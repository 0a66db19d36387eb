//! The rings of AF_XDP: any addresses, lengths and indices.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::xdp_port::xdp_rings(data));
