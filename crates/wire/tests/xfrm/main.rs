//! The XFRM codec before foreign judges: messages that iproute2, key exchange daemons and a Linux kernel
//! made, the decoder of iproute2, and an independent Rust codec.

#![forbid(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::expect_used,
    reason = "all of it is test code: its data is made of small numbers, and it panics where something must hold"
)]

mod captures;
mod command;
mod daemons;
mod examples;
mod foreign;
mod hostile;
mod ip_prints;
mod iproute2;
mod kernel;
mod lengths;
mod strongswan;
