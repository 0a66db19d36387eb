//! Fragmentation of a datagram after it was sealed (RFC 4303 3.3.4, RFC 4302 3.3.4).

use crate::Ipsec;
use crate::outcome::Sealed;
use crate::parsed::reason_of;
use crate::slots::SaRef;
use testudo_packet::{Buffer, DropReason, Pool};
use testudo_wire::checksum;
use testudo_wire::fragment::{self, Piece};
use testudo_wire::ip::{IPV6_HEADER_BYTES, IpHeader, Version};
use testudo_wire::protocol;
use testudo_wire::reassembly::FRAGMENT_HEADER_BYTES;
use testudo_wire::udp::complete_ipv6_checksum;

impl Ipsec {
    /// Sends a sealed datagram, in fragments if it is longer than the path carries. DF is clear in these,
    /// since what fits the path today may meet a narrower one; it stays where nothing is cut.
    pub(crate) fn send_in_fragments(
        &mut self,
        mut datagram: Buffer,
        sa_ref: SaRef,
        pool: &mut Pool,
        send: &mut impl FnMut(Sealed, &mut Pool),
    ) {
        let mtu = self.path_mtu_of(sa_ref);
        if datagram.len() <= mtu {
            return send(Sealed::new(datagram), pool);
        }
        let header = match IpHeader::parse(datagram.bytes()) {
            Ok(header) => header,
            Err(error) => return pool.discard(datagram, reason_of(error)),
        };
        if self.port_fragments_udp && header.protocol == protocol::UDP {
            match header.version {
                Version::V4 => clear_dont_fragment(&header, &mut datagram),
                Version::V6 => make_atomic_fragment(&mut datagram),
            }
            return send(Sealed::new(datagram), pool);
        }
        // AH covers the one that is there, and in transport mode it is the host's own.
        let own = identification(&header, datagram.bytes());
        let fresh = || self.identifications.next(header.source, header.destination, header.protocol);
        match outer_fragments(datagram, mtu, own.unwrap_or_else(fresh), pool) {
            Ok(fragments) => fragments.into_iter().for_each(|fragment| send(Sealed::new(fragment), pool)),
            Err(reason) => {
                if let Some(sa) = self.outbound.get(sa_ref) {
                    sa.counters.count_drop(reason);
                }
            }
        }
    }
}

/// The Identification of an IPv4 datagram that has one.
fn identification(header: &IpHeader, datagram: &[u8]) -> Option<u32> {
    let bytes = datagram.get(4..6)?.first_chunk()?;
    let number = u32::from(u16::from_be_bytes(*bytes));
    (header.version == Version::V4 && number != 0).then_some(number)
}

/// Lets an IPv4 datagram be fragmented on its way.
fn clear_dont_fragment(header: &IpHeader, datagram: &mut Buffer) {
    let bytes = datagram.bytes_mut().get_mut(..header.header_bytes).unwrap_or_default();
    if bytes.len() >= 12 {
        bytes[6] &= !0x40;
        bytes[10..12].fill(0);
        let sum = checksum::of(bytes).to_bytes();
        bytes[10..12].copy_from_slice(&sum);
    }
}

/// Tells a port that an IPv6 datagram of UDP is too long for its path, by a fragment header around the whole
/// (RFC 6946): IPv6 has no DF to clear. Where there is no room for one, the datagram is longer than any path
/// carries, which the port sees.
fn make_atomic_fragment(datagram: &mut Buffer) {
    let payload_bytes = u16::try_from(datagram.len() + FRAGMENT_HEADER_BYTES - IPV6_HEADER_BYTES);
    let (Ok(payload_bytes), Ok(_)) = (payload_bytes, datagram.prepend(FRAGMENT_HEADER_BYTES)) else { return };
    let bytes = datagram.bytes_mut();
    bytes.copy_within(FRAGMENT_HEADER_BYTES..FRAGMENT_HEADER_BYTES + IPV6_HEADER_BYTES, 0);
    let next_header = std::mem::replace(&mut bytes[6], protocol::FRAGMENT);
    bytes[4..6].copy_from_slice(&payload_bytes.to_be_bytes());
    let fragment_header = [next_header, 0, 0, 0, 0, 0, 0, 0];
    bytes[IPV6_HEADER_BYTES..][..FRAGMENT_HEADER_BYTES].copy_from_slice(&fragment_header);
}

/// Cuts a sealed datagram into fragments of at most `mtu` bytes, without DF, under this Identification (its
/// low 16 bits over IPv4). The first stays in its own buffer, before which IPv6 needs 8 bytes of headroom;
/// the others get new ones. UDP over IPv6 has its checksum before it is cut: ports complete that of whole
/// datagrams alone.
///
/// # Errors
/// Why there are none: all have been discarded to `pool` for this reason.
pub fn outer_fragments(
    mut buffer: Buffer,
    mtu: usize,
    identification: u32,
    pool: &mut Pool,
) -> Result<Vec<Buffer>, DropReason> {
    let header = IpHeader::parse(buffer.bytes());
    let Ok(header) = header else {
        // Not reached: the datagram is of our own making.
        pool.discard(buffer, DropReason::BadHeader);
        return Err(DropReason::BadHeader);
    };
    complete_ipv6_checksum(buffer.bytes_mut());
    let pieces = fragment::pieces_of_ours(&header, buffer.bytes(), mtu, identification);
    let cut = copy_later(&buffer, pieces, pool);
    put_first(buffer, cut, pool)
}

/// The first fragment as it will be, the others, and what went wrong.
struct Cut {
    first: Option<Piece>,
    later: Vec<Buffer>,
    failure: Option<DropReason>,
}

/// Copies all fragments but the first into buffers of their own.
fn copy_later(packet: &Buffer, mut pieces: impl Iterator<Item = Piece>, pool: &mut Pool) -> Cut {
    let mut cut = Cut { first: pieces.next(), later: Vec::new(), failure: None };
    for piece in pieces {
        let Some(mut own) = pool.create_from(packet, piece.header_bytes + piece.payload_bytes) else {
            cut.failure = Some(DropReason::PoolEmpty);
            break;
        };
        let has_room = copy(packet.bytes(), &piece, &mut own);
        cut.later.push(own);
        if !has_room {
            cut.failure = Some(DropReason::NoRoom);
            break;
        }
    }
    cut
}

/// Writes a fragment into an empty buffer; `false` if it is too short.
fn copy(packet: &[u8], piece: &Piece, own: &mut Buffer) -> bool {
    let payload = packet.get(piece.payload_start..piece.payload_start + piece.payload_bytes);
    let total = piece.header_bytes + piece.payload_bytes;
    let (Some(payload), Some(area)) = (payload, own.receive_area().get_mut(..total)) else { return false };
    let (header, rest) = area.split_at_mut(piece.header_bytes);
    header.copy_from_slice(&piece.header[..piece.header_bytes]);
    rest.copy_from_slice(payload);
    own.set_len(total);
    true
}

/// Makes the packet's own buffer that of the first fragment.
fn put_first(mut buffer: Buffer, cut: Cut, pool: &mut Pool) -> Result<Vec<Buffer>, DropReason> {
    let Cut { first, later: mut fragments, failure } = cut;
    let failure = failure.or_else(|| match first {
        // No fragment is short enough for the path, or the packet cannot be fragmented.
        None => Some(DropReason::TooBig),
        Some(piece) => shrink(&mut buffer, &piece).err(),
    });
    fragments.insert(0, buffer);
    match failure {
        None => Ok(fragments),
        Some(reason) => {
            fragments.drain(..).for_each(|buffer| pool.discard(buffer, reason));
            Err(reason)
        }
    }
}

/// Cuts the payload of a packet to that of its first fragment, and writes the fragment's header before it.
fn shrink(buffer: &mut Buffer, first: &Piece) -> Result<(), DropReason> {
    buffer.truncate(first.payload_start + first.payload_bytes);
    let longer = first.header_bytes.saturating_sub(first.payload_start);
    buffer.prepend(longer).map_err(|_| DropReason::NoRoom)?;
    let header = buffer.bytes_mut().get_mut(..first.header_bytes).ok_or(DropReason::NoRoom)?;
    header.copy_from_slice(&first.header[..first.header_bytes]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fragments::{Reassembled, Reassembler};
    use crate::lifetime::Moment;
    use testudo_packet::HEADROOM_BYTES;
    use testudo_wire::checksum::Sum;
    use testudo_wire::ip::OuterHeader;
    use testudo_wire::protocol;
    use testudo_wire::udp::UdpHeader;

    fn datagram(is_v6: bool, bytes: usize) -> Vec<u8> {
        let ends = if is_v6 { ["2001:db8::1", "2001:db8::2"] } else { ["192.0.2.1", "192.0.2.2"] };
        let [source, destination] = ends.map(|text| text.parse().unwrap());
        let header = OuterHeader {
            source,
            destination,
            protocol: protocol::ESP,
            traffic_class: 0xB8,
            hop_limit: 64,
            dont_fragment: true,
        };
        let mut datagram: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        header.write(&mut datagram, bytes, 0).unwrap();
        datagram
    }

    fn buffer(pool: &mut Pool, bytes: &[u8]) -> Buffer {
        let mut buffer = pool.pop().unwrap();
        buffer.receive_area()[..bytes.len()].copy_from_slice(bytes);
        buffer.set_len(bytes.len());
        buffer
    }

    /// What is cut is put together again, byte for byte but for DF and Identification.
    #[test]
    fn outer_fragments_fit_and_become_the_datagram_again() {
        let mut pool = Pool::new(2048, 65_535);
        let mut reassembler = Reassembler::default();
        for is_v6 in [false, true] {
            let longest = if is_v6 { 65_575 } else { 65_535 };
            for (bytes, mtu) in [(1501, 1500), (1600, 1280), (9100, 9000), (40_000, 576), (longest, 1500)] {
                let identification = bytes as u32;
                let whole = datagram(is_v6, bytes);
                let packet = buffer(&mut pool, &whole);
                let fragments = outer_fragments(packet, mtu, identification, &mut pool).unwrap();
                let room = (mtu - if is_v6 { 48 } else { 20 }) / 8 * 8;
                assert_eq!(fragments.len(), (bytes - if is_v6 { 40 } else { 20 }).div_ceil(room));
                let (mut joined, count) = (None, fragments.len());
                for (place, mut fragment) in fragments.into_iter().enumerate() {
                    assert!(fragment.len() <= mtu);
                    let header = IpHeader::parse(fragment.bytes()).unwrap();
                    assert_eq!(header.dont_fragment, is_v6, "IPv6 has no such bit");
                    let now = Moment::default();
                    let taken = reassembler.take(&mut fragment, &header, true, now, &mut pool).unwrap();
                    let is_last = place + 1 == count;
                    assert_eq!(taken == Reassembled::Whole, is_last);
                    joined = is_last.then_some(fragment);
                }
                let joined = joined.unwrap();
                let mut expected = whole;
                if !is_v6 {
                    expected[4..6].copy_from_slice(&(identification as u16).to_be_bytes());
                    expected[6..8].fill(0);
                    expected[10..12].fill(0);
                    let sum = testudo_wire::checksum::of(&expected[..20]).to_bytes();
                    expected[10..12].copy_from_slice(&sum);
                }
                assert!(joined.bytes() == expected, "{bytes} by {mtu}");
                pool.recycle(joined);
            }
        }
        assert_eq!((pool.available(), pool.drops().total()), (pool.size(), 0));
        assert_eq!(pool.created(), pool.merged(), "all but the first were made, and merged again");
    }

    #[test]
    fn udp_over_ipv6_has_its_checksum_before_it_is_cut() {
        let mut pool = Pool::new(9, 9000);
        let mut whole = datagram(true, 3000);
        whole[6] = protocol::UDP;
        let udp = UdpHeader { source_port: 4500, destination_port: 4500, total_bytes: 3000 - 40 };
        udp.write(&mut whole[40..]).unwrap();
        let packet = buffer(&mut pool, &whole);
        let fragments = outer_fragments(packet, 1280, 1, &mut pool).unwrap();
        let payloads = fragments.iter().flat_map(|fragment| &fragment.bytes()[48..]);
        let payload: Vec<u8> = payloads.copied().collect();
        assert_ne!(payload[6..8], [0, 0]);
        let ends = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().unwrap());
        let sum = Sum::default().pseudo_header(ends[0], ends[1], protocol::UDP, 3000 - 40);
        assert_eq!(sum.bytes(&payload).finish().to_bytes(), [0, 0], "what receivers compute");
        fragments.into_iter().for_each(|fragment| pool.recycle(fragment));
    }

    #[test]
    fn all_fragments_are_dropped_if_one_cannot_be_made() {
        for (buffers, mtu, reason) in [(4, 1000, DropReason::PoolEmpty), (9, 27, DropReason::TooBig)] {
            let mut pool = Pool::new(buffers, 9000);
            let packet = buffer(&mut pool, &datagram(false, 5000));
            assert_eq!(outer_fragments(packet, mtu, 1, &mut pool).unwrap_err(), reason);
            assert_eq!((pool.available(), pool.drops().total()), (buffers, 1 + pool.created()));
        }
        let mut pool = Pool::new(9, 9000);
        let mut packet = buffer(&mut pool, &datagram(true, 5000));
        assert_eq!(packet.headroom(), HEADROOM_BYTES);
        packet.prepend(HEADROOM_BYTES - 7).unwrap();
        packet.narrow(HEADROOM_BYTES as u32 - 7, 5000);
        let fragments = outer_fragments(packet, 1280, 1, &mut pool).unwrap();
        fragments.into_iter().for_each(|fragment| pool.recycle(fragment));
        let mut packet = pool.pop().unwrap();
        packet.reset(7);
        packet.receive_area()[..5000].copy_from_slice(&datagram(true, 5000));
        packet.set_len(5000);
        assert_eq!(outer_fragments(packet, 1280, 1, &mut pool).unwrap_err(), DropReason::NoRoom);
    }
}
