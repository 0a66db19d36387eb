//! Independent implementations that judge Testudo in tests, and a runner for tests that need private
//! namespaces.
//!
//! Two copies of the same misreading agree with each other, so another implementation judges what Testudo
//! sends. [`linux_peer`] is an unmodified Linux kernel in a virtual machine, on the same wire as the code
//! under test; [`interop`] is the matrix of all tunnels that it is tried with. [`scapy`] is Scapy, which
//! exchanges packet files with Testudo. [`harness`] runs tests whose program must first enter private
//! namespaces (`testudo_lab::namespaces`), which the standard harness does not support.
//!
//! This crate is for tests only and is not shipped.

#![forbid(unsafe_code)]

pub mod harness;
pub mod interop;
pub mod linux_peer;
pub mod scapy;
