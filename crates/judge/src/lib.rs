//! Foreign judges for tests, and the runner for tests that need a world of their own.
//!
//! Two copies of one misreading agree with each other, so another implementation judges what Testudo sends.
//! [`linux_peer`] is one: an unmodified Linux kernel in a virtual machine, on the same wire as the code under
//! test. [`scapy`] is another, between packet files. [`harness`] runs tests whose program must first enter
//! private namespaces (`testudo_lab::namespaces`), which the standard harness does not support.
//!
//! This crate supports tests only and is no part of what is shipped.

#![forbid(unsafe_code)]

pub mod harness;
pub mod linux_peer;
pub mod scapy;
