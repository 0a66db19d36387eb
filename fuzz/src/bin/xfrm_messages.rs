//! Netlink messages of XFRM, as daemons and `ip xfrm` send them: any datagram.

#![no_main]
#![allow(missing_docs, reason = "the macro makes a function without")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::netlink::xfrm_messages(data));
