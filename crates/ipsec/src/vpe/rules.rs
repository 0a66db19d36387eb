//! What a tunnel of VPE has beyond one of ESP.

use std::fmt;
use testudo_wire::vpe::VPE_PROTOCOL;

/// Values of DSCP.
const DSCP_VALUES: usize = 64;
/// Window IDs of a sender.
const WINDOW_IDS: u32 = 1 << 16;

/// Classes of service, by the inner DSCP: each has windows of its own, so that one class may overtake another
/// on the way without loss to the replay check. Class 0 has all that no other has.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct VpeClasses {
    of: [u8; DSCP_VALUES],
    count: u8,
}

impl Default for VpeClasses {
    fn default() -> Self {
        Self { of: [0; DSCP_VALUES], count: 1 }
    }
}

impl VpeClasses {
    /// Class 0, and one class for each set of DSCP values. Of a value that is in two sets, the first counts;
    /// values above 63 do not exist.
    #[must_use]
    pub fn of_sets<'s>(sets: impl IntoIterator<Item = &'s [u8]>) -> Self {
        let mut classes = Self::default();
        for set in sets {
            for &dscp in set {
                if let Some(class @ 0) = classes.of.get_mut(usize::from(dscp)) {
                    *class = classes.count;
                }
            }
            classes.count = classes.count.saturating_add(1);
        }
        classes
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u8 {
        self.count
    }

    /// That of packets with this DSCP; values above 63 do not exist.
    #[must_use]
    pub fn of_dscp(&self, dscp: u8) -> u8 {
        self.of.get(usize::from(dscp)).copied().unwrap_or(0)
    }

    /// The traffic class of a packet of this class: the lowest DSCP that it has; 0 if it has none.
    pub(crate) fn traffic_class_of(&self, class: u8) -> u8 {
        let lowest = self.of.iter().zip(0_u8..).find(|(of, _)| **of == class);
        lowest.map_or(0, |(_, dscp)| dscp << 2)
    }

    /// That of a packet with this traffic class.
    #[inline]
    pub(crate) fn class_of(&self, traffic_class: u8) -> u8 {
        self.of[usize::from(traffic_class >> 2)]
    }
}

impl fmt::Debug for VpeClasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VpeClasses({})", self.count)
    }
}

/// More windows than there are Window IDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{slots} slots of {classes} classes are more than 65,536 windows")]
pub struct TooManyWindows {
    slots: u32,
    classes: u8,
}

/// The UDP source ports of a tunnel's packets, at both of its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum VpeSourcePorts {
    /// The tunnel's own port for all: where a NAT is between the ends, its mapping leads back to the sender.
    #[default]
    One,
    /// One for each window, so that a hash of ports spreads windows and keeps each in its order
    /// ([`of_window`](Self::of_window)). Such a port says nothing of where its sender receives.
    PerWindow,
}

impl VpeSourcePorts {
    /// The first of the ports that say nothing but which window it is: the dynamic ones (RFC 6335 6), as
    /// VXLAN (RFC 7348 5) and GRE in UDP (RFC 8086 3.2.1) have them. They go up to 65,535.
    pub const FIRST: u16 = 0xC000;

    /// The source port of a window's packets, of a tunnel with this port of its own.
    #[must_use]
    #[inline]
    pub fn of_window(self, own: u16, window: u16) -> u16 {
        let (first, mask) = self.first_and_mask(own);
        first | window & mask
    }

    /// What every port has, and which bits of a Window ID it has, so that no packet asks which case it is.
    #[inline]
    pub(crate) fn first_and_mask(self, own: u16) -> (u16, u16) {
        match self {
            Self::One => (own, 0),
            Self::PerWindow => (Self::FIRST, !Self::FIRST),
        }
    }
}

/// What a tunnel of VPE has beyond one of ESP: its protocol number, its sender's windows, and how many
/// windows it takes from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VpeRules {
    /// The protocol number of its datagrams, where they are not in UDP.
    pub ip_protocol: u8,
    /// The Sender ID of its packets: 0 on a unicast SA.
    pub sender: u16,
    /// The most windows that an SA from the peer may have.
    pub windows_max: u32,
    /// After so many seconds flows have other windows; 0 for never. At that moment packets of a flow may
    /// overtake one another.
    pub rehash_seconds: u32,
    /// The UDP source ports of its packets, where they are in UDP.
    pub source_ports: VpeSourcePorts,
    classes: VpeClasses,
    first_slot: u16,
    slots: u16,
}

impl Default for VpeRules {
    fn default() -> Self {
        let (classes, first_slot) = (VpeClasses::default(), 0);
        let (slots, windows_max) = (Self::SLOTS, Self::WINDOWS_MAX);
        let ip_protocol = VPE_PROTOCOL;
        let source_ports = VpeSourcePorts::One;
        Self {
            ip_protocol,
            sender: 0,
            windows_max,
            rehash_seconds: 0,
            source_ports,
            classes,
            first_slot,
            slots,
        }
    }
}

impl VpeRules {
    /// Slots of a worker: hashes of few windows collide.
    pub const SLOTS: u16 = 8;
    /// Windows that an SA from the peer may have, unless configured otherwise.
    pub const WINDOWS_MAX: u32 = 1024;

    /// The same with this protocol number.
    #[must_use]
    pub fn with_ip_protocol(self, ip_protocol: u8) -> Self {
        Self { ip_protocol, ..self }
    }

    /// The same for packets with this Sender ID.
    #[must_use]
    pub fn with_sender(self, sender: u16) -> Self {
        Self { sender, ..self }
    }

    /// The same where flows have other windows after so many seconds; 0 for never.
    #[must_use]
    pub fn with_rehash(self, rehash_seconds: u32) -> Self {
        Self { rehash_seconds, ..self }
    }

    /// The same with these UDP source ports.
    #[must_use]
    pub fn with_source_ports(self, source_ports: VpeSourcePorts) -> Self {
        Self { source_ports, ..self }
    }

    /// The same with so many windows at the most from the peer.
    #[must_use]
    pub fn with_windows_max(self, windows_max: u32) -> Self {
        Self { windows_max, ..self }
    }

    /// The same with these classes, and these slots of the sender's, which belong to this worker alone.
    ///
    /// # Errors
    /// [`TooManyWindows`] if a Window ID would have more than 16 bits.
    pub fn with_slots(
        self,
        classes: VpeClasses,
        first_slot: u16,
        slots: u16,
    ) -> Result<Self, TooManyWindows> {
        let end = u32::from(first_slot) + u32::from(slots.max(1));
        if end * u32::from(classes.count) > WINDOW_IDS {
            return Err(TooManyWindows { slots: end, classes: classes.count });
        }
        Ok(Self { classes, first_slot, slots: slots.max(1), ..self })
    }

    /// The same for one of several workers, by its index. Each has as many slots as the first one, after
    /// those of the workers before it.
    ///
    /// # Errors
    /// [`TooManyWindows`] if a Window ID would have more than 16 bits.
    pub fn of_worker(self, worker: usize) -> Result<Self, TooManyWindows> {
        let slots = u32::try_from(worker).ok().and_then(|worker| worker.checked_mul(self.slots.into()));
        let first = slots.and_then(|slots| slots.checked_add(self.first_slot.into())).unwrap_or(u32::MAX);
        let too_many =
            TooManyWindows { slots: first.saturating_add(self.slots.into()), classes: self.classes.count };
        self.with_slots(self.classes, u16::try_from(first).map_err(|_| too_many)?, self.slots)
    }

    /// The windows that it sends in; with several workers, each of them does.
    #[must_use]
    pub fn windows(&self) -> u32 {
        u32::from(self.slots) * u32::from(self.classes.count)
    }

    /// Classes of service.
    #[must_use]
    pub fn classes(&self) -> &VpeClasses {
        &self.classes
    }

    /// Slots of this worker.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.slots
    }

    /// The Window IDs of a class, one for each slot of this worker, in order: flows are spread over them.
    pub fn windows_of_class(&self, class: u8) -> impl Iterator<Item = u16> + use<> {
        let (first, count) = (u32::from(self.first_slot), u32::from(self.classes.count));
        let slots = first..first + u32::from(self.slots);
        // None is higher than a Window ID may be, if there is such a class.
        slots.map(move |slot| u16::try_from(slot * count + u32::from(class)).unwrap_or(u16::MAX))
    }

    /// The Window ID of a packet with this traffic class, of a flow with this hash: slot × classes + class.
    #[inline]
    pub(crate) fn window_of(&self, flow: u64, traffic_class: u8) -> u16 {
        self.first_window() + self.place_for(flow, traffic_class)
    }

    /// Its place among those of this worker.
    #[inline]
    pub(crate) fn place_for(&self, flow: u64, traffic_class: u8) -> u16 {
        let class = u16::from(self.classes.class_of(traffic_class));
        self.slot_of(flow) * u16::from(self.classes.count) + class
    }

    /// This worker's first window.
    #[inline]
    pub(crate) fn first_window(&self) -> u16 {
        self.first_slot * u16::from(self.classes.count)
    }

    /// The place of a window among those of this worker; `None` for another's.
    #[inline]
    pub(crate) fn place_of(&self, window: u16) -> Option<usize> {
        window.checked_sub(self.first_window()).map(usize::from)
    }

    /// The window at such a place.
    pub(crate) fn window_at(&self, place: usize) -> u16 {
        u16::try_from(usize::from(self.first_window()) + place).unwrap_or(u16::MAX)
    }

    /// The high bits of a hash, spread over the slots.
    #[inline]
    fn slot_of(&self, flow: u64) -> u16 {
        let spread = ((flow >> 32) * u64::from(self.slots)) >> 32;
        // Less than the number of slots.
        u16::try_from(spread).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn window_ids_are_slot_times_classes_plus_class() {
        let classes = VpeClasses::of_sets([&[46][..], &[10, 12, 46, 200]]);
        assert_eq!(classes.count(), 3);
        let rules = VpeRules::default().with_slots(classes, 16, 8).unwrap();
        let mut seen = BTreeSet::new();
        for n in 0..10_000_u64 {
            let flow = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            for (dscp, class) in [(0_u8, 0), (46, 1), (10, 2), (12, 2), (63, 0)] {
                let window = rules.window_of(flow, dscp << 2 | 1);
                assert_eq!(window % 3, class);
                assert!((16..24).contains(&(window / 3)), "{window}");
                assert_eq!(rules.window_at(rules.place_of(window).unwrap()), window);
                seen.insert(window);
            }
        }
        assert_eq!(seen.len(), 24, "every slot of every class is used");
        assert_eq!(seen.len(), rules.windows() as usize);
    }

    #[test]
    fn a_packet_of_each_class_has_a_dscp_of_it() {
        let classes = VpeClasses::of_sets([&[46, 34][..], &[10, 0], &[46]]);
        assert_eq!([0, 1, 2, 3, 9].map(|class| classes.traffic_class_of(class) >> 2), [1, 34, 0, 0, 0]);
        for class in 0..3 {
            assert_eq!(classes.class_of(classes.traffic_class_of(class)), class);
        }
    }

    #[test]
    fn each_class_has_a_window_in_each_slot() {
        let rules =
            VpeRules::default().with_slots(VpeClasses::of_sets([&[46][..], &[10, 12]]), 8, 8).unwrap();
        let classes = [0, 46, 10, 12, 63, 64, 255].map(|dscp| rules.classes().of_dscp(dscp));
        assert_eq!(classes, [0, 1, 2, 2, 0, 0, 0]);
        let windows: BTreeSet<u16> = (0..3).flat_map(|class| rules.windows_of_class(class)).collect();
        assert_eq!(windows, (24..48).collect::<BTreeSet<u16>>());
        for flow in 0..64 {
            let window = rules.window_of(flow << 58, 12 << 2);
            assert!(rules.windows_of_class(2).any(|other| other == window), "{window}");
        }
        let last = VpeRules::default().with_slots(VpeClasses::default(), 65_535, 1).unwrap();
        assert_eq!(last.windows_of_class(0).collect::<Vec<_>>(), [65_535]);
    }

    #[test]
    fn more_windows_than_window_ids_are_refused() {
        let two = VpeClasses::of_sets([&[46][..]]);
        assert!(VpeRules::default().with_slots(two, 32_760, 8).is_ok());
        let error = VpeRules::default().with_slots(two, 32_761, 8).unwrap_err();
        assert_eq!(error.to_string(), "32769 slots of 2 classes are more than 65,536 windows");
        assert!(VpeRules::default().with_slots(VpeClasses::default(), 65_535, 1).is_ok());
    }

    #[test]
    fn each_worker_has_slots_of_its_own() {
        let two = VpeClasses::of_sets([&[46][..]]);
        let rules = VpeRules::default().with_slots(two, 0, 8).unwrap();
        let mut seen = BTreeSet::new();
        for worker in 0..64 {
            let own = rules.of_worker(worker).unwrap();
            assert_eq!((own.slots(), own.windows(), own.classes()), (8, 16, &two));
            for flow in 0..64 {
                for class in [0, 46 << 2] {
                    let window = own.window_of(flow << 58, class);
                    assert_eq!(usize::from(window / 16), worker);
                    seen.insert(window);
                }
            }
        }
        assert_eq!(seen.len(), 64 * 16);
        let wide = VpeRules::default().with_slots(two, 0, 16_384).unwrap();
        assert!(wide.of_worker(1).is_ok());
        let error = wide.of_worker(2).unwrap_err();
        assert_eq!(error.to_string(), "49152 slots of 2 classes are more than 65,536 windows");
        assert!(wide.of_worker(usize::MAX).is_err());
    }
}
