//! ICMP errors, probes and packets of any length on a path.

#![no_main]
#![allow(missing_docs, reason = "the macro makes a function without")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::paths::path_mtu(data));
