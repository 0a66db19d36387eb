//! Receiving by the TUN port: any frames, any errors.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::tun_port::tun_receive(data));
