//! Messages about routes and neighbours: any bytes.

#![no_main]
#![allow(missing_docs, reason = "the macro makes a function without")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::netlink::rt_messages(data));
