//! The store of sequence numbers: any history, any damage.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::store::store(data));
