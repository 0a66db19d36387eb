//! SAs that come and go at both ends of a tunnel.

#![no_main]
#![allow(missing_docs, reason = "the macro makes a function without")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::sas::sa_changes(data));
