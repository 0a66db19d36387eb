//! Outbound processing of a whole gateway: any packets.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::data_path::outbound(data));
