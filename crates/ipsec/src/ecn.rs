//! Explicit congestion notification through a tunnel (RFC 6040, which RFC 4301 5.1.2.1 points to) and over
//! reassembly (RFC 3168 5.3).

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

/// The ECN field of a datagram whose fragments had the fields of `seen`, a bit for each value; `own` is that
/// of its first fragment. `None` if it must be dropped.
///
/// RFC 3168 5.3: congestion that any fragment met is kept, unless another one is not ECN-capable, and what
/// all have in common stays. Fragments of which some are ECN-capable and others are not contradict each
/// other, with or without congestion; Linux drops these, too.
#[must_use]
pub(crate) fn of_fragments(own: u8, seen: u8) -> Option<u8> {
    let has = |ecn: u8| seen & 1 << ecn != 0;
    if has(NOT_ECT) && seen != 1 << NOT_ECT {
        return None;
    }
    Some(if has(CE) { CE } else { own & MASK })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn congestion_is_not_lost_in_reassembly() {
        let bits = |fields: &[u8]| fields.iter().fold(0, |seen, ecn| seen | 1 << ecn);
        for ecn in 0..4 {
            assert_eq!(of_fragments(0xB8 | ecn, bits(&[ecn])), Some(ecn), "all the same");
        }
        for (fields, own, expected) in [
            (&[ECT_0, CE][..], ECT_0, Some(CE)),
            (&[ECT_1, CE], CE, Some(CE)),
            (&[ECT_0, ECT_1, CE], ECT_1, Some(CE)),
            (&[ECT_0, ECT_1], ECT_0, Some(ECT_0)),
            (&[NOT_ECT, CE], NOT_ECT, None),
            (&[NOT_ECT, CE, ECT_0], CE, None),
            (&[NOT_ECT, ECT_0], ECT_0, None),
            (&[NOT_ECT, ECT_1], NOT_ECT, None),
        ] {
            assert_eq!(of_fragments(own, bits(fields)), expected, "{fields:?}");
        }
    }

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
