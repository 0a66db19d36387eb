//! Explicit congestion notification through a tunnel (RFC 6040, which RFC 4301 5.1.2.1 points to).

/// The ECN field: the low two bits of TOS and Traffic Class.
pub(crate) const MASK: u8 = 3;
const NOT_ECT: u8 = 0;
const ECT_1: u8 = 1;
const ECT_0: u8 = 2;
const CE: u8 = 3;

/// The inner packet's ECN field at the tunnel's end (RFC 6040 4.2, figure 4); `None` if the packet must be
/// dropped.
#[must_use]
pub(crate) fn at_egress(inner: u8, outer: u8) -> Option<u8> {
    match (inner & MASK, outer & MASK) {
        (NOT_ECT, CE) => None,
        (NOT_ECT, _) => Some(NOT_ECT),
        (_, CE) => Some(CE),
        (ECT_0, ECT_1) => Some(ECT_1),
        (inner, _) => Some(inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6040, figure 4: rows are the inner field, columns the outer one (Not-ECT, ECT(0), ECT(1), CE).
    #[test]
    fn figure_4_of_rfc_6040() {
        let columns = [NOT_ECT, ECT_0, ECT_1, CE];
        let rows = [
            (NOT_ECT, [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]),
            (ECT_0, [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)]),
            (ECT_1, [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)]),
            (CE, [Some(CE); 4]),
        ];
        for (inner, expected) in rows {
            assert_eq!(columns.map(|outer| at_egress(inner, outer)), expected, "inner {inner:02b}");
        }
    }
}
