//! The addresses of a row: several tunnels stand side by side, each with its own.

/// Tunnels that stand side by side.
pub const SLOTS: usize = 16;

/// One set of addresses, by its number below [`SLOTS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub usize);

impl Slot {
    /// Outer addresses: ours, the guest's.
    pub fn outer(self, ipv6: bool) -> (String, String) {
        let (ours, theirs) = (2 * self.0 + 1, 2 * self.0 + 2);
        if ipv6 {
            (format!("2001:db8::{ours:x}"), format!("2001:db8::{theirs:x}"))
        } else {
            (format!("192.0.2.{ours}"), format!("192.0.2.{theirs}"))
        }
    }

    /// Inner addresses: ours, the guest's.
    pub fn inner(self, ipv6: bool) -> (String, String) {
        let at = self.0;
        if ipv6 {
            (format!("fd00:1:0:{at:x}::1"), format!("fd00:2:0:{at:x}::1"))
        } else {
            (format!("10.1.{at}.1"), format!("10.2.{at}.1"))
        }
    }
}
