//! A member of a group of VPE: any datagrams, authentic ones of many senders, and its own that come back.

#![no_main]
#![allow(missing_docs, reason = "the macro makes a function without")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::vpe::inbound_group(data));
