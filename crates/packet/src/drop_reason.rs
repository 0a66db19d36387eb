//! Why a packet was dropped.

/// Declares the closed list of drop reasons once: member, name in metrics and tables, description.
macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $member:ident, $name:literal, $description:literal;)*) => {
        /// Why a packet was dropped: a closed list, each member counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DropReason { $(#[doc = $description] $member,)* }

        impl DropReason {
            /// Every reason, in the order of its discriminant.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$member,)*];

            /// The name used in metrics, JSON and tables: lower case with underscores.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(DropReason::$member => $name,)* }
            }

            /// One sentence for people.
            #[must_use]
            pub fn description(self) -> &'static str {
                match self { $(DropReason::$member => $description,)* }
            }
        }
    };
}

drop_reasons! {
    // Checks that every packet passes first.
    NotIp, "not_ip", "The bytes are neither an IPv4 nor an IPv6 packet.";
    Truncated, "truncated", "A length field promises more bytes than there are.";
    BadHeader, "bad_header", "An IP or transport header breaks its own format.";
    BadChecksum, "bad_checksum", "The checksum of an IPv4 header is wrong.";
    // Policy.
    PolicyDiscard, "policy_discard", "A discard policy matched.";
    NoPolicy, "no_policy", "No policy matched, and what no policy names is discarded (RFC 4301 4.4.1).";
    FieldsHidden, "fields_hidden", "A fragment, or an IPv6 packet with an unknown extension header, hides its protocol or ports, and the first policy that concerns it asks for them (RFC 4301 7.4), or is to populate an SA with them (RFC 4301 4.4.2.2).";
    SourceRoute, "source_route", "A packet names its own route (IPv4 LSRR or SSRR, IPv6 routing header 0): policy sees another destination than it goes to (RFC 7126 4.3, RFC 5095).";
    CleartextForProtected, "cleartext_for_protected", "A packet came in clear that policy wants protected (RFC 4301 5.2).";
    SelectorMismatch, "selector_mismatch", "A decrypted packet does not match the selectors of its SA (RFC 4301 5.2).";
    BypassUnavailable, "bypass_unavailable", "A bypass policy matched, but the port cannot send packets in clear.";
    // Outbound.
    NoSa, "no_sa", "Policy asks for protection by an SA that does not exist.";
    SaWanted, "sa_wanted", "Policy wants an SA of its own for the packet's flow, populated from the packet, which is not there yet (RFC 4301 4.4.1.2).";
    HoldFull, "hold_full", "Policy asks for protection by an SA that is being negotiated, and no more packets may wait for it.";
    HoldExpired, "hold_expired", "The packet waited for an SA to be negotiated, which did not come in time.";
    ClockFull, "clock_full", "The packet's tunnel sends at one rate, and no more packets may wait for its clock.";
    ClockExpired, "clock_expired", "The packet waited for the clock of its tunnel, which sends at one rate, and no tick came to it in time.";
    PeerUnknown, "peer_unknown", "The peer's address is not known until it has sent an authentic packet.";
    LifetimeExpired, "lifetime_expired", "The SA has reached a hard limit of its lifetime (RFC 4301 4.4.2.1).";
    SequenceExhausted, "sequence_exhausted", "The SA has used all its sequence numbers (RFC 4303 3.3.3).";
    SequenceNotLeased, "sequence_not_leased", "No sequence number is leased from the durable store.";
    VpeSenderTaken, "vpe_sender_taken", "Another device sends with our Sender ID, so that the tunnel to the group has stopped.";
    TooBig, "too_big", "The packet does not fit the tunnel and must not be fragmented; its sender was told, within the limits for such messages.";
    NoRoom, "no_room", "The buffer has no room for the headers or the trailer.";
    TransportFragment, "transport_fragment", "Transport mode and AH are for whole datagrams, not for fragments (RFC 4303 3.3.4, RFC 4302 3.3.4).";
    NotBetweenHosts, "not_between_hosts", "Transport mode is between the two endpoints of its SA, and the packet is not (RFC 4301 4.1).";
    // Inbound, before authentication.
    NotForUs, "not_for_us", "The packet is neither ESP nor ESP in UDP.";
    OuterFragment, "outer_fragment", "A fragment of ESP came to an address where no SA ends.";
    FragmentMalformed, "fragment_malformed", "A fragment breaks the rules for fragments (RFC 791 3.2, RFC 8200 4.5, RFC 7112 5), or contradicts the others of its datagram.";
    FragmentOverlap, "fragment_overlap", "A fragment overlaps another one: its whole datagram is dropped, later fragments included (RFC 5722 3).";
    FragmentDuplicate, "fragment_duplicate", "A fragment came a second time, exactly the same (RFC 8200 4.5).";
    FragmentLimit, "fragment_limit", "A datagram came in more fragments than are reassembled, or is longer than a buffer.";
    FragmentEcn, "fragment_ecn", "Fragments of a datagram disagree on whether it is ECN-capable (RFC 3168 5.3).";
    FragmentTimeout, "fragment_timeout", "The rest of an incomplete datagram did not come in time (RFC 791 3.2, RFC 8200 4.5).";
    FragmentEvicted, "fragment_evicted", "An incomplete datagram made room for a newer one: too many were incomplete at once.";
    IcmpBelieved, "icmp_believed", "An ICMP error said that a packet of an SA was too big, and lowered the SA's path MTU (RFC 4301 8.2).";
    IcmpIgnored, "icmp_ignored", "An ICMP error about a packet of ESP or AH was not believed, or says nothing that an SA follows (RFC 4301 8.2.1).";
    NatKeepalive, "nat_keepalive", "A NAT keepalive, consumed as it should be (RFC 3948 4).";
    MtuProbeAnswered, "mtu_probe_answered", "An answer to a probe of the path's MTU, consumed as it should be (RFC 8899 4.1).";
    IkeOnEspPort, "ike_on_esp_port", "An IKE message came to the ESP port (non-ESP marker, RFC 3948 2.2).";
    UnknownSpi, "unknown_spi", "No SA has this SPI.";
    WrongEncapsulation, "wrong_encapsulation", "The SA exists, but with another encapsulation or IP version.";
    EspMalformed, "esp_malformed", "Too short or misaligned for an ESP packet of its SA.";
    AhMalformed, "ah_malformed", "The authentication header is not one of its SA, or the headers before it cannot be covered (RFC 4302 3.3.3.1).";
    VpeMalformed, "vpe_malformed", "Too short for a packet of VPE: its header has 32 bytes.";
    ReplayTooOld, "replay_too_old", "The sequence number lies left of the replay window.";
    ReplayDuplicate, "replay_duplicate", "The sequence number was received before.";
    VpeWindows, "vpe_windows", "The packet is the first of a window, and its SA has as many windows of VPE as it may have.";
    // Cryptography and what follows it.
    AuthenticationFailed, "authentication_failed", "The integrity check value is wrong.";
    EngineFault, "engine_fault", "No engine could process the packet, or one kept it too long and was taken out of service.";
    BadPadding, "bad_padding", "Padding or pad length is wrong (RFC 4303 2.4).";
    BadNextHeader, "bad_next_header", "The ESP trailer names no IP version (tunnel mode carries 4 or 41).";
    ResyncFailed, "resync_failed", "A copy of a packet, made after many had failed authentication in a row, failed under a higher half of its extended sequence number, too (RFC 4303 A3).";
    DummyPacket, "dummy_packet", "A dummy packet, consumed as it should be (RFC 4303 2.6).";
    VpeSender, "vpe_sender", "An authentic packet of VPE has a Sender ID that no packet of its SA may have.";
    VpeInner, "vpe_inner", "The decrypted bytes of VPE begin with no IP datagram of a length that fits.";
    VpeFill, "vpe_fill", "A fill packet of VPE, consumed as it should be.";
    InnerMalformed, "inner_malformed", "The decrypted bytes are no well-formed packet of the announced version.";
    EcnCongestion, "ecn_congestion", "Congestion was marked outside, but the inner packet cannot carry the mark (RFC 6040 4.2).";
    // Ports.
    ReceiveTruncated, "receive_truncated", "A datagram, or the extension headers before it, was longer than the room for it.";
    DeviceFrameUnknown, "device_frame_unknown", "A device's ring named a frame that the device did not have: an address out of range, or one given back twice.";
    DeviceFrameBounds, "device_frame_bounds", "A device's ring described a packet that does not lie within its frame.";
    PoolEmpty, "pool_empty", "No buffer was free.";
    NotSealed, "not_sealed", "A NIC was to seal the packet, and it came to a port that does not, or nothing was left that could.";
    QueueFull, "queue_full", "The queue to a port was full.";
    MessageTooLong, "message_too_long", "The link's MTU is smaller than the packet.";
    SendRefused, "send_refused", "The kernel refused to send the packet (no route, host unreachable, not permitted).";
    // The link layer.
    FrameMalformed, "frame_malformed", "A frame ends in its header, or its ARP packet or neighbour discovery message breaks a rule (RFC 826, RFC 4861 7.1).";
    OtherVlan, "other_vlan", "A frame is of another VLAN than the port.";
    OtherEtherType, "other_ether_type", "A frame carries neither IP nor, where the gateway keeps it, ARP.";
    OtherMac, "other_mac", "A frame is for another station, or for a group that the gateway is not in.";
    LinkControl, "link_control", "An ARP packet or a neighbour discovery message, consumed as it should be.";
    NotServed, "not_served", "A packet to an address of the port asks for something that the gateway does not do; its sender was told, within the limits for such messages.";
    HopLimitExceeded, "hop_limit_exceeded", "A packet that was to be forwarded had no hop left (RFC 1812 5.3.1, RFC 8200 3); its sender is not told.";
    NoRoute, "no_route", "No route of the port leads to the packet's destination.";
    NeighbourUnresolved, "neighbour_unresolved", "The packet waited for its next hop's link-layer address, and nobody answered (ARP, neighbour discovery).";
    NeighbourQueueFull, "neighbour_queue_full", "The packet waited for its next hop's link-layer address, and gave way to a newer one.";
    ShuttingDown, "shutting_down", "The gateway was ending or the packet's tunnel was removed.";
}

/// One count per [`DropReason`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropCounters([u64; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        Self([0; DropReason::ALL.len()])
    }
}

impl DropCounters {
    /// Counts `n` packets for `reason`.
    pub fn add(&mut self, reason: DropReason, n: u64) {
        self.0[reason as usize] += n;
    }

    /// How many packets were dropped for `reason`.
    #[must_use]
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Drops for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Reason and count, in declaration order, zero counts included.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.get(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_fit_metrics() {
        let names: HashSet<_> = DropReason::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), DropReason::ALL.len());
        assert!(names.iter().all(|n| n.chars().all(|c| c.is_ascii_lowercase() || c == '_')));
    }

    #[test]
    fn each_reason_has_its_own_count() {
        let mut counters = DropCounters::default();
        for (i, &reason) in DropReason::ALL.iter().enumerate() {
            counters.add(reason, i as u64 + 1);
        }
        for (i, (_, count)) in counters.iter().enumerate() {
            assert_eq!(count, i as u64 + 1);
        }
    }
}
