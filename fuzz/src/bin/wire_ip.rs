//! IP headers, and what is made of them: any bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::wire::wire_ip(data));
