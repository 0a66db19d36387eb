//! The definitions that the gateways are checked against: slow, and obviously right.

use std::collections::HashSet;

/// RFC 4303 3.4.3 by its definition: every number received, and the highest of them.
#[derive(Debug, Clone, Default)]
pub struct WindowModel {
    top: u64,
    size: u64,
    seen: HashSet<u64>,
}

impl WindowModel {
    pub fn new(size: u32) -> Self {
        Self { size: size.into(), ..Self::default() }
    }

    /// A window that begins after `sequence`.
    pub fn behind(size: u32, sequence: u64) -> Self {
        Self { top: sequence, size: size.into(), seen: HashSet::from([sequence]) }
    }

    /// Whether it has accepted this number.
    pub fn has(&self, sequence: u64) -> bool {
        self.seen.contains(&sequence)
    }

    /// Receives an authentic packet; `true` if it must be accepted.
    pub fn receive(&mut self, sequence: u64) -> bool {
        let inside = sequence > 0 && sequence + self.size > self.top;
        let fresh = inside && self.seen.insert(sequence);
        if fresh {
            self.top = self.top.max(sequence);
        }
        fresh
    }
}

/// RFC 6040, figure 4: what the inner ECN field becomes; `None` where the packet must be dropped.
pub fn ecn_at_egress(inner: u8, outer: u8) -> Option<u8> {
    const FIGURE_4: [[Option<u8>; 4]; 4] = [
        // Columns: outer Not-ECT (00), ECT(1) (01), ECT(0) (10), CE (11).
        [Some(0), Some(0), Some(0), None],
        [Some(1), Some(1), Some(1), Some(3)],
        [Some(2), Some(1), Some(2), Some(3)],
        [Some(3), Some(3), Some(3), Some(3)],
    ];
    FIGURE_4[usize::from(inner & 3)][usize::from(outer & 3)]
}
