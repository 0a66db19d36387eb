//! Inbound VPE of a whole gateway: any datagrams, and authentic ones.

#![no_main]
#![allow(missing_docs, reason = "the macro makes a function without")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::vpe::inbound_vpe(data));
