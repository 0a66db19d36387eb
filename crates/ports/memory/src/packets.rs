//! The packets of a measurement, stored compactly.

use std::sync::Arc;

/// Where one packet is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    head_start: usize,
    head_bytes: usize,
    tail_bytes: usize,
}

/// Packets that each have their own head; the rest of each is the start of one tail that all share. So a
/// hundred thousand long packets that differ only in their headers take a few megabytes, and copying them
/// costs as much as copying a few. Clones share everything.
#[derive(Debug, Clone, Default)]
pub struct Packets {
    heads: Arc<Vec<u8>>,
    places: Arc<Vec<Place>>,
    tail: Arc<Vec<u8>>,
}

impl Packets {
    /// No packets yet, with their tail.
    #[must_use]
    pub fn with_tail(tail: Vec<u8>) -> Self {
        Self { tail: Arc::new(tail), ..Self::default() }
    }

    /// No packets yet, with the tail of these.
    pub(crate) fn with_the_same_tail(&self) -> Self {
        Self { tail: Arc::clone(&self.tail), ..Self::default() }
    }

    /// Appends a packet: `head`, and then `tail_bytes` of the tail, or all of it if it is shorter.
    pub fn push(&mut self, head: &[u8], tail_bytes: usize) {
        let (head_bytes, tail_bytes) = (head.len(), tail_bytes.min(self.tail.len()));
        let place = Place { head_start: self.heads.len(), head_bytes, tail_bytes };
        Arc::make_mut(&mut self.heads).extend_from_slice(head);
        Arc::make_mut(&mut self.places).push(place);
    }

    /// The number of packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Head and tail of one packet; empty beyond the last.
    #[must_use]
    pub fn get(&self, number: usize) -> (&[u8], &[u8]) {
        let view = self.view();
        view.places.get(number).map_or((&[], &[]), |place| view.at(place))
    }

    /// A borrowed view, for a loop over many packets.
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        View { heads: &self.heads, places: &self.places, tail: &self.tail }
    }

    /// Head and tail of each packet.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.len()).map(|number| self.get(number))
    }

    /// Bytes of all packets, with tails counted for each.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.places.iter().map(Place::bytes).sum()
    }
}

impl Place {
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.head_bytes + self.tail_bytes
    }
}

/// [`Packets`], borrowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    heads: &'a [u8],
    pub(crate) places: &'a [Place],
    tail: &'a [u8],
}

impl<'a> View<'a> {
    /// Head and tail of the packet at an index.
    #[inline]
    pub(crate) fn at(&self, place: &Place) -> (&'a [u8], &'a [u8]) {
        let head = &self.heads[place.head_start..place.head_start + place.head_bytes];
        (head, &self.tail[..place.tail_bytes])
    }
}

impl<P: AsRef<[u8]>> Extend<P> for Packets {
    /// Packets that share nothing.
    fn extend<I: IntoIterator<Item = P>>(&mut self, packets: I) {
        packets.into_iter().for_each(|packet| self.push(packet.as_ref(), 0));
    }
}

impl From<Vec<Vec<u8>>> for Packets {
    fn from(whole: Vec<Vec<u8>>) -> Self {
        let mut packets = Self::default();
        packets.extend(whole);
        packets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_end_as_the_tail_begins() {
        let mut packets = Packets::with_tail(vec![7, 8, 9]);
        packets.push(&[1, 2], 1);
        packets.push(&[3], 100);
        packets.extend([[4, 5]]);
        let whole: Vec<Vec<u8>> = packets.iter().map(|(head, tail)| [head, tail].concat()).collect();
        assert_eq!(whole, [vec![1, 2, 7], vec![3, 7, 8, 9], vec![4, 5]]);
        assert_eq!((packets.len(), packets.bytes()), (3, 9));
        assert_eq!(packets.get(3), (&[][..], &[][..]));
    }
}
