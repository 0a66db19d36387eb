//! The stand-in for the engine on other processors.

use testudo_crypto::{Absent, Reason};

/// The VAES engine, which does not exist for this machine.
pub type VaesEngine = Absent<Vaes>;

/// Why it is absent.
pub enum Vaes {}

impl Reason for Vaes {
    const ENGINE: &'static str = crate::NAME;
    const REASON: &'static str = "VAES exists on x86-64 only; use the portable engine";
}
