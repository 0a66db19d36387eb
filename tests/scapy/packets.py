"""Inner packets of every kind that a tunnel must carry unchanged, built by Scapy."""

from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_RR, IPOption_NOP, IPOption_Router_Alert, fragment
from scapy.layers.inet6 import (
    HBHOptUnknown, ICMPv6EchoRequest, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting, fragment6,
)
from scapy.packet import Raw

EXPERIMENTAL = 253  # a protocol without a header of its own (RFC 3692)
CODE_POINTS = (0, 10, 34, 46, 63)


def of_length(header, length, rng):
    """A packet of exactly this many bytes; the protocol alternates with the length."""
    room = length - len(header)
    echo = ICMP if header.version == 4 else ICMPv6EchoRequest
    transports = [UDP(sport=53, dport=50000), echo(id=7), TCP(sport=443, dport=50000)]
    fitting = 0 if room < 8 else 2 if room < 20 else 3
    if fitting:
        header = header / transports[length // 4 % fitting]
    else:
        setattr(header, "proto" if header.version == 4 else "nh", EXPERIMENTAL)
    packet = bytes(header / Raw(rng.randbytes(length - len(header))))
    assert len(packet) == length
    return packet


def inner_packets(version, source, destination, mtu, rng):
    """All kinds, from the bare header to the MTU."""
    def header(**fields):
        return (IP if version == 4 else IPv6)(src=source, dst=destination, **fields)

    shortest = len(header())
    lengths = [*range(shortest, shortest + 32), *range(shortest + 32, mtu - 5, 81), *range(mtu - 5, mtu + 1)]
    packets = [of_length(header(), length, rng) for length in lengths]
    field = "tos" if version == 4 else "tc"
    packets += [
        of_length(header(**{field: dscp << 2 | ecn}), 60 + dscp, rng) for dscp in CODE_POINTS for ecn in range(4)
    ]
    special = special_v4 if version == 4 else special_v6
    return packets + [bytes(packet) for packet in special(header, mtu, rng)]


def special_v4(header, mtu, rng):
    """Options, fragments, DF, addresses' own TTLs."""
    udp = UDP(sport=1, dport=2) / Raw(b"options")
    yield header(options=[IPOption_NOP()] * 4) / udp
    yield header(options=[IPOption_Router_Alert()]) / udp
    yield header(options=[IPOption_RR(routers=["192.0.2.9"] * 9)]) / udp
    yield header(flags="DF", ttl=1, id=0xFFFF) / udp
    yield from fragment(header(id=77) / UDP(sport=1, dport=2) / Raw(rng.randbytes(2 * mtu)), mtu - 40)


def special_v6(header, mtu, rng):
    """Extension headers, alone and in chains; fragments, whole ones (RFC 6946) among them; flow labels."""
    udp = UDP(sport=1, dport=2) / Raw(b"extensions")
    hop = IPv6ExtHdrHopByHop(options=[HBHOptUnknown(otype=0x1E, optdata=b"1234")])
    options = IPv6ExtHdrDestOpt(options=[HBHOptUnknown(otype=0x1E, optdata=b"1" * 30)])
    # Type 2 (RFC 6275 6.4): type 0 is a source route, which is dropped.
    routing = IPv6ExtHdrRouting(type=2, addresses=["fd00:ffff::1"], segleft=0)
    for chain in (hop, options, routing, hop / options / routing / options.copy()):
        yield header() / chain / udp
    yield header() / IPv6ExtHdrFragment(id=5, nh=17) / udp
    yield header(fl=0xFFFFF, hlim=1) / udp
    whole = header() / IPv6ExtHdrFragment(id=78) / UDP(sport=1, dport=2) / Raw(rng.randbytes(2 * mtu))
    yield from fragment6(whole, mtu - 40)
