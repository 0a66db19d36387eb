"""Testudo seals long packets and cuts their datagrams, Scapy joins the fragments and opens them.

    fragments_sealed.py PROGRAM CONFIGURATION SEED

Every tunnel of the configuration says `fragment = "after"`. What Scapy's `defragment` and `defragment6` make of the fragments must be
datagrams that open to exactly the packets that went in.
"""

import random
import sys

from gateway import Gateway, compare_drops, compare_lists, fail, ip
from packets import of_length
from scapy.layers.inet import IP, defragment
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, defragment6
from testudo_seals import open_with_scapy

# Bytes of inner packets: what fits, the edges of one and of two fragments, and long ones.
LENGTHS = (100, 1400, 1430, 1460, 1500, 2000, 2900, 2950, 4000, 9000, 30000)
ESP = 50
UDP = 17


def plaintext(tunnel, seed):
    """Both IP versions, with and without DF."""
    rng = random.Random(f"{seed} {tunnel.name}")
    for version in sorted(tunnel.networks):
        ours, theirs = tunnel.addresses(version)
        for length in LENGTHS:
            header = IP(src=ours, dst=theirs, flags=rng.choice(["DF", 0])) if version == 4 else IPv6(src=ours, dst=theirs)
            yield of_length(header, length, rng)


def joined(tunnel, fragments, path_mtu):
    """The datagram of all these packets."""
    if max(map(len, fragments)) > path_mtu:
        fail(f"{tunnel}: {[len(fragment) for fragment in fragments]} bytes over a path of {path_mtu}")
    if len(fragments) == 1:
        return fragments[0]
    packets = [ip(fragment) for fragment in fragments]
    if tunnel.version == 4:
        if any(packet.flags.DF or packet.id != packets[0].id or packet.id == 0 for packet in packets):
            fail(f"{tunnel}: DF or identification: {[(packet.flags, packet.id) for packet in packets]}")
        whole = [bytes(packet) for packet in defragment(packets)]
        if len(whole) != 1:
            fail(f"{tunnel}: {len(packets)} fragments become {len(whole)} packets")
        return whole[0]
    if {packet[IPv6ExtHdrFragment].id for packet in packets} != {packets[0][IPv6ExtHdrFragment].id}:
        fail(f"{tunnel}: identifications of {len(packets)} fragments differ")
    whole = defragment6(packets)
    # Scapy keeps the length of the first fragment, and knows what was behind the fragment header only as a number.
    protocol = packets[0][IPv6ExtHdrFragment].nh
    payload = b"".join(fragment[48:] for fragment in fragments)
    header = IPv6(src=whole.src, dst=whole.dst, tc=whole.tc, fl=whole.fl, hlim=whole.hlim, nh=protocol, plen=len(payload))
    if bytes(whole)[40:] != payload:
        fail(f"{tunnel}: Scapy joins other bytes")
    return bytes(header) + payload


def groups(tunnel, datagrams):
    """The packets of one datagram each, in the order in which they left."""
    group = []
    for datagram in datagrams:
        group.append(datagram)
        outer = ip(datagram)
        more = outer.flags.MF if tunnel.version == 4 else IPv6ExtHdrFragment in outer and outer[IPv6ExtHdrFragment].m
        if not more:
            yield group
            group = []


def main(program, configuration, seed):
    gateway, count = Gateway(program, configuration), 0
    # The others are about sequence numbers.
    tunnels = [tunnel for tunnel in gateway.tunnels if tunnel.first_number == 1]
    for tunnel in tunnels:
        packets = list(plaintext(tunnel, seed))
        across, back, counters = gateway.replay("protected", packets)
        if back:
            fail(f"{tunnel}: {len(back)} packets sent back")
        compare_drops(f"{tunnel}", {}, counters["drops"])
        whole = [joined(tunnel, group, 1500) for group in groups(tunnel, across)]
        opened = [open_with_scapy(tunnel, datagram, tunnel.first_number + at) for at, datagram in enumerate(whole)]
        compare_lists(f"{tunnel}, inner packets", packets, opened)
        count += len(across)
        if len(across) < 3 * len(packets) or counters["created"] != len(across) - len(packets):
            fail(f"{tunnel}: {len(across)} packets left, {counters['created']} were created")
    print(f"{count} fragments of {len(tunnels)} tunnels joined and opened")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
