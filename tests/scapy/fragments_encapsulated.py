"""Scapy seals and cuts, Testudo reassembles and opens, in every protocol and mode: ESP, AH, AH over ESP, tunnel and transport mode.

    fragments_encapsulated.py PROGRAM CONFIGURATION SEED

AH and ESP are for whole datagrams (RFC 4302 3.4.1, RFC 4303 3.4.1). Fragments in any order become the datagram that was sealed, and it opens;
of a datagram with any overlap nothing comes through (RFC 5722 3), also where each of its bytes was authentic.
"""

import random
import sys

from encapsulations import gateway_and_tunnels, is_transport, normal
from fragments import changed_copy, cut, over_the_end, within_the_first
from gateway import IP, compare_drops, compare_lists, fail, ip
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

# Bytes of payload inside, and of a datagram in each fragment.
LENGTH, SIZE = 900, 400


class Sealed:
    """What arrives for one tunnel, each datagram with a number of its own."""

    def __init__(self, tunnel, chooser):
        self.tunnel, self.chooser = tunnel, chooser
        self.number = tunnel.first
        self.in_transport = tunnel.table.get("mode", "tunnel") == "transport"

    def parts(self):
        """The fragments of the next datagram, and the packet in it."""
        theirs, ours = reversed(self.tunnel.ends)
        identification = 0x1000 + self.number % 0x1000
        header = IPv6(src=theirs, dst=ours) if ":" in ours else IP(src=theirs, dst=ours, id=identification)
        packet = bytes(header / UDP(sport=5000, dport=53) / Raw(self.chooser.randbytes(LENGTH)))
        # AH covers it over IPv4 (RFC 4302 3.3.3.1.1.1), so it has to be there before the datagram is cut.
        self.tunnel.inbound.identify(identification)
        datagram = self.tunnel.inbound.seal(ip(packet), self.number)
        parts = cut(datagram, SIZE, identification)
        if len(parts) < 3:
            fail(f"{self.tunnel}: Scapy made {len(parts)} fragments", datagram=datagram)
        self.number += 1
        return parts, packet

    def play(self):
        """Fragments with the packets that come of them, and how many are dropped for an overlap."""
        yield *self.parts(), 0
        parts, packet = self.parts()
        self.chooser.shuffle(parts)
        yield parts, packet, 0
        for intruder in (over_the_end, within_the_first, changed_copy):
            parts, _ = self.parts()
            # Sometimes when the datagram is nearly whole: what has been put together by then is one buffer, and one drop.
            at = self.chooser.randrange(1, len(parts))
            parts.insert(at, intruder(parts))
            yield parts, None, len(parts) - (at - 1)
        yield *self.parts(), 0


def main(program, configuration, seed):
    chooser = random.Random(seed)
    gateway, tunnels = gateway_and_tunnels(program, configuration)
    given, expected, overlaps = [], [], 0
    for tunnel in tunnels:
        sealed = Sealed(tunnel, chooser)
        for parts, packet, dropped in sealed.play():
            given += parts
            overlaps += dropped
            if packet is not None:
                expected.append(normal(packet, sealed.in_transport))
    opened, back, counters = gateway.replay("unprotected", given)
    if back:
        fail(f"{len(back)} packets were sent back")
    compare_drops("fragments", {"fragment_overlap": overlaps}, counters["drops"])
    # AH over ESP passes the engines twice, so that its packets come out behind others of the same burst.
    compare_lists("opening", sorted(expected), sorted(normal(packet, is_transport(packet)) for packet in opened))
    books = len(opened) + sum(counters["drops"].values()) + counters["merged"]
    if books != len(given):
        fail(f"{len(given)} packets came, {books} are accounted for")
    print(f"{len(tunnels)} tunnels: {len(given)} fragments, {len(opened)} packets opened, {overlaps} fragments dropped with their datagrams")


if __name__ == "__main__":
    main(*sys.argv[1:])
