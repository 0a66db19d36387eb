//! Sending by the socket port: any packets, any refusals.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::socket_port::socket_transmit(data));
