//! Sending by the TUN port: any packets, any refusals.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::tun_port::tun_transmit(data));
