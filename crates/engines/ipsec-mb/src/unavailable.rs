//! The stand-in for the engine where the library does not exist.

use testudo_crypto::{Absent, Reason};

/// The intel-ipsec-mb engine, which does not exist for this machine.
pub type IpsecMbEngine = Absent<IpsecMb>;

/// Why it is absent.
pub enum IpsecMb {}

impl Reason for IpsecMb {
    const ENGINE: &'static str = crate::NAME;
    const REASON: &'static str = "intel-ipsec-mb exists for x86-64 Linux only; use the portable engine";
}
