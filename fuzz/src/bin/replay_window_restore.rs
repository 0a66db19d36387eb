//! Replay windows from any bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| testudo_fuzz::data_path::replay_window_restore(data));
