//! Engines: any jobs, keys in any order.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::engines::engines(data));
