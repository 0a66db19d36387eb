//! The mbufs of DPDK: any addresses, lengths, chains and counts.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::dpdk_port::dpdk_mbufs(data));
