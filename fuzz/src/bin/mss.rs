//! The MSS of a SYN: a limit and a segment.

#![no_main]
#![allow(missing_docs, reason = "the macro makes a function without")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::headers::mss(data));
