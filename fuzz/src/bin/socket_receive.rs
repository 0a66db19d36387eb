//! Receiving by the socket port: any messages, sizes, control data, errors.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::socket_port::socket_receive(data));
