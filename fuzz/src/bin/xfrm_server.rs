//! Netlink messages of XFRM to a server that has SAs and policies: any records.

#![no_main]
#![allow(missing_docs, reason = "the macro makes a function without")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::xfrm_server::xfrm_server(data));
