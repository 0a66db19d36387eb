//! Sequence numbers of any kind, received by a whole gateway.

#![no_main]
#![allow(missing_docs, reason = "the macro makes a function without")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::sas::sequence_numbers(data));
