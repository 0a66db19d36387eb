//! ESP trailers: any bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::wire::esp_trailer(data));
