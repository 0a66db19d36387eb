//! Keys as text and in files: any bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::keys::keys(data));
