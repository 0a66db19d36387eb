//! Fragments of outer datagrams: reassembly before an SA's packet is opened, and fragmentation after one was
//! sealed.
//!
//! ```text
//!   fragments ─► Reassembler ─┬─ whole datagram ─► demultiplex, SAD, replay check …
//!                             ├─ kept: its bytes are in the datagram's buffer
//!                             └─ dropped, with a reason
//! ```
//!
//! ESP and AH are processed only on whole datagrams (RFC 4303 3.4.1, RFC 4302 3.4.1), and a port may deliver
//! fragments: packet files, AF_XDP (all but those of UDP) and DPDK do. The kernel's sockets deliver whole
//! datagrams, which come past this module. Only fragments to an address where an SA ends are reassembled:
//! only a datagram's destination may do so (RFC 8200 4.5). All others stay fragments, and policy decides on
//! each, or on the later ones as on the first (`checker`).
//!
//! **Rules.** A datagram is known by addresses, Identification and, over IPv4, protocol (RFC 791 3.2, RFC
//! 8200 4.5). It keeps the header of its first fragment, which must hold the whole header chain (RFC 7112 5).
//! ECN is combined (RFC 3168 5.3). Atomic fragments are whole packets and do not come here
//! (RFC 6946 4). A fragment that overlaps another one ends its datagram, and later fragments of it are
//! dropped (RFC 5722 3). Over IPv4, RFC 791 would let the later bytes win; nobody but an attacker sends such
//! fragments (RFC 1858, RFC 3128), so that rule holds for both. An exact copy is dropped alone, as RFC 8200
//! 4.5 allows: networks duplicate packets.
//!
//! **Memory.** A datagram is assembled in one buffer of the pool: that of its fragment that came first. The
//! others are copied and give their buffers back at once. At most 256 datagrams are incomplete, and they have
//! at most an eighth of the pool's buffers; a datagram has at most 128 fragments. Nothing else grows.
//!
//! **Time.** A datagram may take 15 seconds: RFC 791 3.2 recommends that, and RFC 8200 4.5 allows 60 at most.
//! Between two gateways fragments leave one directly after the other; what comes later than that is rather a
//! part of another datagram with the same Identification (RFC 4963), which is why a datagram also ends after
//! 1,024 later ones between the same addresses. Under pressure it is less: see the next paragraph.
//!
//! **Fairness.** Fragments are not authentic, and their source addresses may be forged. Three rules keep a
//! flood from pushing out an honest datagram for long (`shares` counts):
//!
//! - A new datagram is always taken. If there is no room, the *oldest* incomplete datagram of the pair of
//!   addresses that has the *most* makes room. So nothing waits for a timeout: after a flood, and in any
//!   pause of it, the first honest datagram is reassembled.
//! - Peers (addresses that an SA sends to) have three quarters of the room, all others together one quarter.
//!   Neither takes from the other: a flood from any number of invented addresses evicts nothing of a peer's.
//! - Among peers, a datagram is evicted only if no pair has more incomplete datagrams than its own. With `n`
//!   pairs in use a pair therefore always has its `1/n` of the room, no matter in whose names the others are
//!   flooded.
//!
//! What remains: who forges the addresses of an honest pair competes within its share, where the honest
//! datagram is lost if that many forged ones begin between its first and last fragment; and who also guesses
//! its Identification makes it overlap. Nobody can tell such fragments apart before the ICV is checked. Who
//! depends on fragments in a hostile network should avoid them: `mtu`, and fragmentation before encryption.
//!
//! **The host's own fragments.** Transport mode and AH around it are for whole datagrams, too (RFC 4303
//! 3.3.4, RFC 4302 3.3.4), and a host's IP layer cuts a long datagram before it comes to the gateway's
//! interface. What goes to an SA in transport mode, or hides between two hosts that have one what policy asks
//! for, is put together by the same rules, with as much memory again. Policy decides on the whole; then it is
//! sealed, and the result is cut.
//!
//! **The other way.** A packet that is too long for the path is cut before it is encrypted, where its sender
//! allows that (`slow_path`), or sealed whole and its datagram cut ([`Fragmentation`](crate::Fragmentation)):
//! then the peer must reassemble, but the packet may have any length, and DF unless the tunnel copies that
//! (RFC 4301 8.1). Transport mode has only the second way, since it carries no fragments (RFC 4303 3.3.4).
//! The fragments have DF clear and an Identification of their own ([`Identifications`]); a host's own, and
//! one that AH covers, is kept. A port that cuts datagrams of UDP itself, as the kernel's sockets do, gets
//! them whole. Datagrams that fit have DF set, as ever.
//!
//! Deliberately missing: ICMP Time Exceeded and Parameter Problem to senders of bad fragments (RFC 792, RFC
//! 8200 4.5), which are not authentic and would make the gateway a reflector.

mod checker;
mod cut;
mod datagram;
mod identification;
mod reassembly;
mod shares;

pub(crate) use checker::{FragmentChecker, Way};
pub use cut::outer_fragments;
pub use identification::Identifications;
pub(crate) use identification::{folded, mix};
pub use reassembly::{Reassembled, Reassembler};

use crate::Ipsec;
use crate::lifetime::Moment;
use crate::spd::{Flow, Verdict};
use testudo_packet::{DropReason, Interface, Pool};
use testudo_wire::ip::IpHeader;
use testudo_wire::reassembly::ReceivedFragment;

impl Ipsec {
    /// Policy's verdict on a fragment that is not for us: on a later one that hides what policy asks for, the
    /// verdict on its first one (RFC 4301 7.3, 7.4).
    pub(crate) fn verdict_on_fragment(
        &mut self,
        way: Way,
        header: &IpHeader,
        packet: &[u8],
        now: Moment,
    ) -> Verdict {
        let (policies, flow, [local, remote]) = match way {
            Way::Outbound(interface) => {
                let ends = [header.source, header.destination];
                (self.spd.of(interface), Flow::outbound(header, packet), ends)
            }
            Way::Clear | Way::Tunnel(_) => {
                let ends = [header.destination, header.source];
                (self.spd.of(Interface::MAIN), Flow::inbound(header, packet), ends)
            }
        };
        let own = policies.verdict(&flow);
        let Some(fragment) = ReceivedFragment::read(header, packet) else { return own };
        if fragment.offset_bytes > 0 {
            if own != Verdict::FieldsHidden {
                return own;
            }
            let says = |first: &Flow| policies.verdict(first).action();
            let followed = self.checker.follow(way, header, &fragment, now, says);
            return followed.map_or(own, Verdict::Policy);
        }
        let later = Flow::of_later_fragments(flow.direction(), local, remote, header.protocol);
        if policies.verdict(&later) == Verdict::FieldsHidden {
            // What hides something of itself was decided on as what it shows (RFC 4301 7.2).
            let decision = own.action().filter(|_| !flow.hides_fields());
            self.checker.note(way, header, &fragment, (flow, decision), now);
        }
        own
    }

    /// Says whether the port to the unprotected side fragments datagrams of UDP itself: it then gets them
    /// whole.
    pub fn set_port_fragments_udp(&mut self, does: bool) {
        self.port_fragments_udp = does;
    }

    /// Where the Identifications of fragmented datagrams begin, which should differ for each start.
    pub fn seed_identifications(&mut self, seed: u64) {
        self.identifications = Identifications::new(seed);
    }

    /// Drops datagrams that were not complete in time. To be called about once a second.
    pub(crate) fn expire_fragments(&mut self, now: Moment, pool: &mut Pool) {
        self.fragments.expire(now, pool);
        self.host_fragments.expire(now, pool);
    }

    /// Drops all datagrams that are not complete, for this reason.
    pub(crate) fn discard_fragments(&mut self, reason: DropReason, pool: &mut Pool) {
        self.fragments.discard_all(reason, pool);
        self.host_fragments.discard_all(reason, pool);
    }

    /// Datagrams that are not complete, each of which has a buffer.
    #[must_use]
    pub fn incomplete_datagrams(&self) -> usize {
        self.fragments.incomplete() + self.host_fragments.incomplete()
    }
}
