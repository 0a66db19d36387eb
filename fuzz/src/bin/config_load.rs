//! Configurations loaded with their keys: any text, any keys.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::operator::config_load(data));
