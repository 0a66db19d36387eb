//! Headers by template: one for each next hop, put before packets as it is.

use testudo_packet::{Buffer, DropReason};
use testudo_wire::ethernet::{
    ETHERNET_HEADER_BYTES, EthernetHeader, MAX_ETHERNET_HEADER_BYTES, MacAddress, VLAN_TAG_BYTES, VlanTag,
    ether_type,
};

/// What all frames of a port have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Framing {
    source: MacAddress,
    tags: [Option<VlanTag>; 2],
    header_bytes: usize,
}

/// A header as it is on the wire, of which the first bytes count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Template([u8; MAX_ETHERNET_HEADER_BYTES]);

impl Framing {
    pub(crate) fn new(source: MacAddress, tags: [Option<VlanTag>; 2]) -> Self {
        let header_bytes = ETHERNET_HEADER_BYTES + VLAN_TAG_BYTES * tags.iter().flatten().count();
        Self { source, tags, header_bytes }
    }

    pub(crate) fn mac(&self) -> MacAddress {
        self.source
    }

    /// Bytes of the header of every frame that is sent.
    pub(crate) fn header_bytes(&self) -> usize {
        self.header_bytes
    }

    /// Whether a frame with these tags is of the port's VLAN. A tag with identifier 0 carries a priority and
    /// no VLAN (802.1Q 6.9.1).
    #[inline]
    pub(crate) fn is_ours(&self, tags: [Option<VlanTag>; 2]) -> bool {
        let vlan = |tag: VlanTag| (tag.protocol, tag.id);
        match (self.tags, tags) {
            ([None, None], [None, None]) => true,
            ([None, None], [Some(tag), None]) => tag.protocol == ether_type::VLAN && tag.id == 0,
            (ours, theirs) => ours.map(|tag| tag.map(vlan)) == theirs.map(|tag| tag.map(vlan)),
        }
    }

    pub(crate) fn template(&self, destination: MacAddress, ether_type: u16) -> Template {
        let header = EthernetHeader { destination, source: self.source, tags: self.tags, ether_type };
        Template(header.to_bytes())
    }

    /// Puts a header before a packet. A buffer without room for it stays as it is.
    #[inline]
    pub(crate) fn put(&self, template: &Template, buffer: &mut Buffer) -> Result<(), DropReason> {
        match self.header_bytes {
            ETHERNET_HEADER_BYTES => write::<ETHERNET_HEADER_BYTES>(template, buffer),
            18 => write::<18>(template, buffer),
            _ => write::<MAX_ETHERNET_HEADER_BYTES>(template, buffer),
        }
    }

    /// Takes a header that was [put](Self::put) there off again.
    pub(crate) fn take_off(&self, buffer: &mut Buffer) {
        // A header has at most 22 bytes.
        buffer.narrow(u32::try_from(self.header_bytes).unwrap_or(0), u32::MAX);
    }
}

/// With a length that is a constant, the copy is two moves.
#[inline(always)]
fn write<const BYTES: usize>(template: &Template, buffer: &mut Buffer) -> Result<(), DropReason> {
    let around = buffer.around::<BYTES, 0>().ok_or(DropReason::NoRoom)?;
    around.before.copy_from_slice(&template.0[..BYTES]);
    around.grow(u32::try_from(BYTES).unwrap_or(0), 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddress = MacAddress([2, 0, 0, 0, 0, 1]);
    const B: MacAddress = MacAddress([2, 0, 0, 0, 0, 2]);

    #[test]
    fn headers_of_each_length_are_put_and_taken_off() {
        for tags in [
            [None, None],
            [Some(VlanTag::customer(7)), None],
            [Some(VlanTag::service(9)), Some(VlanTag::customer(7))],
        ] {
            let framing = Framing::new(A, tags);
            let template = framing.template(B, ether_type::IPV6);
            let mut buffer = Buffer::copied(b"packet", 22, 0);
            framing.put(&template, &mut buffer).unwrap();
            let header = EthernetHeader::parse(buffer.bytes()).unwrap();
            assert_eq!((header.destination, header.source, header.tags), (B, A, tags));
            assert_eq!((header.ether_type, header.bytes()), (ether_type::IPV6, framing.header_bytes()));
            assert!(framing.is_ours(header.tags));
            framing.take_off(&mut buffer);
            assert_eq!(buffer.bytes(), b"packet");
            let mut narrow = Buffer::copied(b"packet", framing.header_bytes() - 1, 0);
            assert_eq!(framing.put(&template, &mut narrow), Err(DropReason::NoRoom));
            assert_eq!(narrow.bytes(), b"packet");
        }
    }

    #[test]
    fn a_frame_is_of_the_vlan_whatever_its_priority() {
        let priority = VlanTag { priority: 0xE, ..VlanTag::customer(0) };
        let seven = VlanTag { priority: 3, ..VlanTag::customer(7) };
        let (plain, tagged) =
            (Framing::new(A, [None; 2]), Framing::new(A, [Some(VlanTag::customer(7)), None]));
        assert!(plain.is_ours([Some(priority), None]) && tagged.is_ours([Some(seven), None]));
        for tags in [[Some(seven), None], [Some(priority), Some(priority)], [Some(VlanTag::service(0)), None]]
        {
            assert!(!plain.is_ours(tags), "{tags:?}");
        }
        for tags in [[None; 2], [Some(priority), None], [Some(VlanTag::service(7)), None], [Some(seven); 2]] {
            assert!(!tagged.is_ours(tags), "{tags:?}");
        }
    }
}
