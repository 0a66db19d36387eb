//! What the packet scheduler could leave out: measurements show what each of its ideas is worth.

/// The ideas of the packet scheduler (PIPSEA, paper 002, sections 3.2 and 3.3) beside
/// [formation](crate::Formation). A gateway has all of them; no configuration says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ideas {
    /// Jobs that found no bin are sorted before newer ones. Without that when a chunk goes, into what newer
    /// ones have left of its bins.
    pub leftovers_first: bool,
    /// The bins of a chunk go in the order of what they cost, the longest first. Without that in the order in
    /// which they were opened.
    pub longest_first: bool,
    /// Jobs are sorted into bins while the engine has others: active and waiting bins. Without that the
    /// engine has one chunk at a time, and what came meanwhile is sorted when that has come back.
    pub waiting_bins: bool,
}

impl Default for Ideas {
    /// All of them.
    fn default() -> Self {
        Self { leftovers_first: true, longest_first: true, waiting_bins: true }
    }
}
