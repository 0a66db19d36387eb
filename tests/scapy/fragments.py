"""Scapy seals and cuts, Testudo reassembles and opens: exactly the datagrams that are complete and whole must come through, and
every other fragment must be counted under the right reason.

    fragments.py PROGRAM CONFIGURATION SEED

The fragments are Scapy's own, from `fragment` and `fragment6`, in any order, twice, with one missing, and with others between them
that overlap, lie about their place, or break the rules for fragments.
"""

import random
import sys

from gateway import Gateway, compare_drops, compare_lists, fail, ip
from scapy.layers.inet import IP, fragment
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, fragment6
from scapy.packet import Raw
from testudo_opens import Stream

# Bytes of the inner packet, and of its datagram in each fragment. Few, since a packet file's clock stands still: incomplete datagrams and
# what is remembered of refused ones stay until the end, and there is room for 192.
SHAPES = ((300, 200), (1400, 552), (1400, 1000))


def cut(datagram, size, identification):
    """Scapy's fragments of a datagram, each with up to `size` bytes of it."""
    whole = ip(datagram)
    if whole.version == 4:
        whole.id, whole.flags = identification, 0
        del whole.chksum
        return [bytes(part) for part in fragment(IP(bytes(whole)), size)]
    header = IPv6(src=whole.src, dst=whole.dst, tc=whole.tc, hlim=whole.hlim)
    marked = header / IPv6ExtHdrFragment(id=identification << 12, nh=whole.nh) / Raw(datagram[40:])
    return [bytes(part) for part in fragment6(marked, 48 + size // 8 * 8)]


def part(like, offset, payload, more=True):
    """A fragment of the same datagram as `like`, with any place and payload."""
    if like[0] >> 4 == 4:
        header = IP(like[:20])
        header.frag, header.flags = offset // 8, "MF" if more else 0
        del header.len, header.chksum
        return bytes(header / Raw(payload))
    header = IPv6(like[:48])
    place = IPv6ExtHdrFragment(id=header[IPv6ExtHdrFragment].id, nh=like[40], offset=offset // 8, m=int(more))
    return bytes(IPv6(src=header.src, dst=header.dst, tc=header.tc, nh=44) / place / Raw(payload))


def payload_bytes(fragment_):
    return len(fragment_) - (20 if fragment_[0] >> 4 == 4 else 48)


def over_the_end(parts):
    """A fragment over the end of the first one."""
    return part(parts[0], payload_bytes(parts[0]) - 8, bytes(16))


def within_the_first(parts):
    """As in the attack called teardrop."""
    return part(parts[0], 8, bytes(8))


def changed_copy(parts):
    return parts[0][:-1] + bytes([parts[0][-1] ^ 1])


class Cut(Stream):
    """What arrives for one tunnel in fragments, together with what must become of it."""

    def __init__(self, tunnel, seed, strangers):
        super().__init__(tunnel, seed, strangers)
        # Datagrams of tunnels between the same addresses must have different numbers.
        self.identification = (tunnel.inbound.spi & 0xFF) << 8

    def cut(self, datagram, size):
        self.identification += 1
        return cut(datagram, size, self.identification)

    def sealed(self, length):
        """The next number's datagram, and the packet in it."""
        number = self.window.top + 1
        self.window.accept(number)
        ours, theirs = self.tunnel.addresses(self.tunnel.version)
        inner = (IP if self.tunnel.version == 4 else IPv6)(src=theirs, dst=ours)
        inner = bytes(inner / Raw(self.rng.randbytes(length - len(inner))))
        return self.seal(number, inner), inner

    def play(self):
        for shape in SHAPES:
            for case in (
                self.natural, self.shuffled, self.repeated, self.missing, self.overlapping, self.within, self.changed_copy,
                self.forged, self.crooked, self.beyond, self.contradicting, self.atomic, self.tiny,
            ):
                case(*shape)
        return self

    # Cases: each notes what must happen

    def arrive(self, parts, inner=None, **drops):
        self.datagrams += parts
        if inner is not None:
            self.forwarded.append(inner)
        self.drops.update(drops)

    def parts(self, length, size):
        datagram, inner = self.sealed(length)
        parts = self.cut(datagram, min(size, length // 2))
        if len(parts) < 2:
            fail(f"{self.tunnel}: Scapy did not cut {len(datagram)} bytes")
        return parts, inner

    def natural(self, length, size):
        self.arrive(*self.parts(length, size))

    def shuffled(self, length, size):
        parts, inner = self.parts(length, size)
        self.rng.shuffle(parts)
        self.arrive(parts, inner)

    def repeated(self, length, size):
        """RFC 8200 4.5: an exact copy is dropped alone."""
        parts, inner = self.parts(length, size)
        twice = [copy for part in parts[:-1] for copy in (part, part)]
        self.rng.shuffle(twice)
        self.arrive([*twice, parts[-1]], inner, fragment_duplicate=len(parts) - 1)

    def missing(self, length, size):
        parts, _ = self.parts(length, size)
        del parts[self.rng.randrange(len(parts))]
        self.arrive(parts, fragment_timeout=1)

    def overlapping(self, length, size):
        """RFC 5722: over the end of the first fragment; what comes later is dropped with the datagram."""
        parts, _ = self.parts(length, size)
        self.arrive([parts[0], over_the_end(parts), *parts[1:]], fragment_overlap=2 + len(parts) - 1)

    def within(self, length, size):
        """Within the first one, as in the attack called teardrop."""
        parts, _ = self.parts(length, size)
        self.arrive([parts[0], within_the_first(parts), *parts[1:]], fragment_overlap=2 + len(parts) - 1)

    def changed_copy(self, length, size):
        parts, _ = self.parts(length, size)
        self.arrive([parts[0], changed_copy(parts), *parts[1:]], fragment_overlap=2 + len(parts) - 1)

    def forged(self, length, size):
        """Reassembled, and not authentic."""
        parts, _ = self.parts(length, size)
        parts[-1] = parts[-1][:-1] + bytes([parts[-1][-1] ^ 1])
        self.arrive(parts, authentication_failed=1)

    def crooked(self, length, size):
        """All but the last are multiples of 8 bytes: another is dropped, and harms no other."""
        parts, inner = self.parts(length, size)
        wrong = part(parts[0], 8, bytes(13))
        self.arrive([parts[0], wrong, *parts[1:]], inner, fragment_malformed=1)

    def beyond(self, length, size):
        """The ping of death: it would end beyond 65,535 bytes."""
        parts, inner = self.parts(length, size)
        self.arrive([parts[0], part(parts[0], 65528, bytes(64)), *parts[1:]], inner, bad_header=1)

    def contradicting(self, length, size):
        """Two fragments that both claim to be the last one."""
        parts, _ = self.parts(length, size)
        wrong = part(parts[0], 8192, bytes(20), more=False)
        self.arrive([wrong, parts[-1], *parts[:-1]], fragment_malformed=2 + len(parts) - 1)

    def atomic(self, length, _size):
        """RFC 6946: a datagram in one fragment is processed by itself. IPv4 has no such fragments."""
        datagram, inner = self.sealed(length)
        if datagram[0] >> 4 == 4:
            return self.arrive([datagram], inner)
        whole = ip(datagram)
        header = IPv6(src=whole.src, dst=whole.dst, tc=whole.tc, nh=44)
        lone = IPv6ExtHdrFragment(id=7, nh=whole.nh)
        return self.arrive([bytes(header / lone / Raw(datagram[40:]))], inner)

    def tiny(self, length, _size):
        """RFC 1858: fragments too short for any header beyond their own. They are judged when they are whole."""
        datagram, inner = self.sealed(60 + length // 20)
        self.arrive(self.cut(datagram, 8), inner)


def main(program, configuration, seed):
    gateway = Gateway(program, configuration)
    tunnels = gateway.tunnels
    streams = [Cut(tunnel, seed, strangers=tunnels[index - 1]) for index, tunnel in enumerate(tunnels)]
    # The others are about sequence numbers.
    streams = [stream.play() for stream in streams if stream.tunnel.first_number == 1]
    order = random.Random(seed)
    # All tunnels in turn, a few fragments at a time, so that many datagrams are incomplete at once.
    queues, datagrams = [list(stream.datagrams) for stream in streams], []
    while any(queues):
        queue = order.choice([queue for queue in queues if queue])
        some = order.randint(1, 5)
        datagrams += queue[:some]
        del queue[:some]
    across, back, counters = gateway.replay("unprotected", datagrams)
    for stream in streams:
        found = [packet for packet in across if stream.tunnel.owns(packet)]
        compare_lists(f"{stream.tunnel}, forwarded packets", stream.forwarded, found)
    if len(across) != sum(len(stream.forwarded) for stream in streams) or back:
        fail(f"packets for nobody were forwarded, or {len(back)} sent back")
    drops = sum((stream.drops for stream in streams), start=type(streams[0].drops)())
    compare_drops("fragments", drops, counters["drops"])
    books = len(across) + sum(counters["drops"].values()) + counters["merged"]
    if books != len(datagrams):
        fail(f"{len(datagrams)} packets came, {books} are accounted for")
    print(f"{len(datagrams)} fragments, {len(across)} packets forwarded, {counters['merged']} merged, {len(streams)} tunnels")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
