"""Testudo seals, Scapy opens: exactly the inner packets must come out, in order, under correct outer headers.

    testudo_seals.py PROGRAM CONFIGURATION SEED
"""

import collections
import random
import struct
import sys

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES, TripleDES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from gateway import Gateway, compare_drops, compare_lists, fail, ip
from packets import inner_packets, of_length
from scapy.layers.inet import ICMP, IP, UDP, defragment
from scapy.layers.inet6 import ICMPv6PacketTooBig, IPv6, in6_chksum
from scapy.layers.ipsec import ESP, IPSecIntegrityError


def plaintext(tunnel, seed):
    """What the hosts behind us send into a tunnel, both IP versions taking turns."""
    rng = random.Random(f"{seed} {tunnel.name}")
    kinds = []
    for version in sorted(tunnel.networks):
        ours, theirs = tunnel.addresses(version)
        kinds.append(inner_packets(version, ours, theirs, tunnel.inner_mtu, rng))
    packets = [packet for pair in zip(*kinds) for packet in pair]
    return packets + [packet for kind in kinds for packet in kind[len(packets) // 2:]]


def check_outer(tunnel, datagram, inner, number):
    """The outer headers, field by field (RFC 4301 5.1.2, RFC 3948 2.1, RFC 4303 2)."""
    def expect(what, found, wanted):
        if found != wanted:
            fail(f"{tunnel}, number {number}: {what} is {found}, not {wanted}", outer=datagram, inner=inner)

    outer, inside = ip(datagram), ip(inner)
    expect("source", outer.src, tunnel.local)
    expect("destination", outer.dst, tunnel.remote)
    expect("traffic class", traffic_class(outer), traffic_class(inside))
    expect("hop limit", outer.ttl if outer.version == 4 else outer.hlim, 64)
    if outer.version == 4:
        expect("length", outer.len, len(datagram))
        expect("header checksum", outer.chksum, rebuilt(outer).chksum)
    else:
        expect("length", outer.plen, len(datagram) - 40)
    expect("encapsulation", UDP in outer, tunnel.udp)
    if tunnel.udp:
        udp = outer[UDP]
        expect("UDP ports", (udp.sport, udp.dport), (4500, 4500))
        expect("UDP length", udp.len, len(bytes(udp)))
        expect("UDP checksum", udp.chksum, correct_udp_checksum(outer))
    expect("SPI", outer[ESP].spi, tunnel.outbound.spi)
    expect("sequence number", outer[ESP].seq, number % 2**32)
    expect("IV", outer[ESP].data[:tunnel.suite.iv_bytes], iv(tunnel, number))
    if len(datagram) > 1500:
        fail(f"{tunnel}, number {number}: longer than the link's MTU", outer=datagram)


def iv(tunnel, number):
    """The IV of an AEAD or of AES-CTR is the number; of CBC the same as a block, encrypted under the SA's key (SP 800-38A, appendix C)."""
    unique = struct.pack("!Q", number ^ tunnel.iv_seed)
    cipher = {"AES-CBC": AES, "3DES": TripleDES, "DES": TripleDES}.get(tunnel.suite.crypt)
    if cipher is None:
        return unique[:tunnel.suite.iv_bytes]
    encryptor = Cipher(cipher(tunnel.outbound.crypt_key), ECB()).encryptor()
    return encryptor.update(unique.rjust(tunnel.suite.iv_bytes, b"\0")) + encryptor.finalize()


def traffic_class(packet):
    return packet.tos if packet.version == 4 else packet.tc


def rebuilt(packet):
    """The same header, its checksum computed by Scapy."""
    copy = packet.copy()
    del copy.chksum
    return ip(bytes(copy))


def correct_udp_checksum(outer):
    """Zero over IPv4, as RFC 3948 2.1 wants it; over IPv6 zero is forbidden (RFC 8200 8.1)."""
    if outer.version == 4:
        return 0
    datagram = bytes(outer[UDP])
    return in6_chksum(17, outer[IPv6], datagram[:6] + b"\0\0" + datagram[8:]) or 0xFFFF


def open_with_scapy(tunnel, datagram, number):
    sa = tunnel.outbound
    sa.esn = number >> 32
    try:
        return bytes(sa.decrypt(ip(datagram)))
    except IPSecIntegrityError:
        fail(f"{tunnel}: Scapy finds the ICV of number {number} wrong", datagram=datagram)


def too_long(tunnel, seed):
    """Packets that do not fit: one that may be cut, one that may not, and one of IPv6, which never may."""
    rng = random.Random(f"{seed} {tunnel.name} too long")
    headers = [IP(id=9), IP(id=10, flags="DF"), IPv6()]
    for header, length in zip(headers, (2000, tunnel.inner_mtu + 1, tunnel.inner_mtu + 1)):
        header.src, header.dst = tunnel.addresses(header.version)
        yield of_length(header, length, rng)


def check_too_long(gateway, seed):
    """What may be cut arrives in pieces; where it may not, the sender hears the MTU (RFC 1191 4, RFC 4443 3.2)."""
    tunnels = [tunnel for tunnel in gateway.tunnels if tunnel.first_number == 1]
    sent = {tunnel: list(too_long(tunnel, seed)) for tunnel in tunnels}
    across, back, counters = gateway.replay("protected", [packet for packets in sent.values() for packet in packets])
    compare_drops("too long", {"too_big": 2 * len(tunnels)}, counters["drops"])
    for tunnel, (divisible, *indivisible) in sent.items():
        datagrams = [d for d in across if ip(d)[ESP].spi == tunnel.outbound.spi]
        pieces = [open_with_scapy(tunnel, datagram, 1 + at) for at, datagram in enumerate(datagrams)]
        if any(len(piece) > tunnel.inner_mtu for piece in pieces):
            fail(f"{tunnel}: fragments of {[len(piece) for piece in pieces]} bytes, MTU {tunnel.inner_mtu}")
        whole = [bytes(packet) for packet in defragment([ip(piece) for piece in pieces])]
        compare_lists(f"{tunnel}, reassembled by Scapy", [divisible], whole)
        for packet in indivisible:
            check_reply(tunnel, packet, back.pop(0))
    compare_lists("replies", [], back)


def check_reply(tunnel, packet, reply):
    """`reply` must tell the sender of `packet` how long it may be, and quote it."""
    sender, answer = ip(packet), ip(reply)
    told = answer[ICMP] if answer.version == 4 else answer[ICMPv6PacketTooBig]
    mtu, kind = (told.nexthopmtu, (3, 4)) if answer.version == 4 else (told.mtu, (2, 0))
    found = (answer.dst, mtu, (told.type, told.code), bytes(told) == bytes(checksummed(answer)))
    wanted = (sender.src, tunnel.inner_mtu, kind, True)
    quoted = reply[len(reply) - len(bytes(told)) + 8:]
    if found != wanted or not packet.startswith(quoted):
        fail(f"{tunnel}: addressee, MTU, type, checksum are {found}, not {wanted}", reply=reply, packet=packet)


def checksummed(answer):
    """The message with the checksum that Scapy computes."""
    copy = answer.copy()
    if answer.version == 4:
        del copy[ICMP].chksum
        return ip(bytes(copy))[ICMP]
    del copy[ICMPv6PacketTooBig].cksum
    return ip(bytes(copy))[ICMPv6PacketTooBig]


def main(program, configuration, seed):
    gateway = Gateway(program, configuration)
    sent = {tunnel: plaintext(tunnel, seed) for tunnel in gateway.tunnels}
    # Packets of all tunnels in turn, so that batches mix them.
    longest = max(map(len, sent.values()))
    mixed = [sent[t][i] for i in range(longest) for t in sent if i < len(sent[t])]
    across, back, counters = gateway.replay("protected", mixed)
    by_spi = collections.defaultdict(list)
    for datagram in across:
        by_spi[ip(datagram)[ESP].spi].append(datagram)
    drops = collections.Counter()
    for tunnel, packets in sent.items():
        last = 2**64 - 1 if tunnel.esn else 2**32 - 1
        allowed = packets[:last - tunnel.first_number + 1]
        if len(allowed) < len(packets):
            drops["sequence_exhausted"] += len(packets) - len(allowed)
        opened = []
        for offset, datagram in enumerate(by_spi.pop(tunnel.outbound.spi, [])):
            number = tunnel.first_number + offset
            inner = open_with_scapy(tunnel, datagram, number)
            check_outer(tunnel, datagram, inner, number)
            opened.append(inner)
        compare_lists(f"{tunnel}, inner packets", allowed, opened)
    if by_spi or back:
        fail(f"packets that nobody asked for: of SPIs {list(by_spi)}, {len(back)} sent back")
    compare_drops("sealing", drops, counters["drops"])
    check_too_long(gateway, seed)
    engine = counters["engines"][0]
    print(f"{len(across)} packets sealed by {engine}, {sum(drops.values())} dropped, {len(sent)} tunnels")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
