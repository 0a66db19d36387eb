//! Where ESP and AH go in transport mode: any bytes.

#![no_main]
#![allow(missing_docs, reason = "the macro makes a function without")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::headers::transport_mode(data));
