//! Super-frames cut and joined: any bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::ports::tun_split(data));
