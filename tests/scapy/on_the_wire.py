"""Scapy at the other end of a gateway's wire: it seals echo requests, and opens the sealed replies.

    on_the_wire.py INTERFACE OWN_MAC GATEWAY_MAC esp|udp|ah OUR_ADDRESS GATEWAY_ADDRESS SPI_TO KEY_TO SPI_FROM KEY_FROM

Each reply must come in a correct frame, open under Scapy's own SecurityAssociation, and have lost two hops: none of them on the link.
"""

import socket
import struct
import sys
import time

from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import ICMPv6EchoReply, ICMPv6EchoRequest, IPv6
from scapy.layers.ipsec import AH, ESP, SecurityAssociation
from scapy.layers.l2 import Ether
from scapy.packet import Raw

HOSTS = {4: ("10.2.0.77", "10.1.0.2"), 6: ("fd02::77", "fd01::2")}
SIZES = (0, 1, 64, 500, 1200)
ETHER_TYPES = {4: 0x0800, 6: 0x86DD}
ALL_PROTOCOLS = 0x0003
PATIENCE_SECONDS = 20
# RFC 3948 2.3
KEEPALIVE = b"\xff"
# The host answers with 64, and the gateway forwards.
HOPS_LEFT = 63


def association(kind, spi, key, source, destination):
    header = (IPv6 if ":" in source else IP)(src=source, dst=destination)
    key = bytes.fromhex(key)
    if kind == "ah":
        return SecurityAssociation(AH, spi=spi, auth_algo="SHA2-256-128", auth_key=key, tunnel_header=header)
    in_udp = UDP(sport=4500, dport=4500) if kind == "udp" else None
    return SecurityAssociation(ESP, spi=spi, crypt_algo="AES-GCM", crypt_key=key, tunnel_header=header, nat_t_header=in_udp)


def request(version, number, size):
    source, destination = HOSTS[version]
    data = Raw(bytes((number + place) % 256 for place in range(size)))
    if version == 4:
        return IP(src=source, dst=destination) / ICMP(type=8, id=7465, seq=number) / data
    return IPv6(src=source, dst=destination) / ICMPv6EchoRequest(id=7465, seq=number) / data


def is_reply(inner, sent):
    """The addresses exchanged, the same identifier, number and data, and a right checksum."""
    version = inner.version
    if (inner.src, inner.dst) != (sent.dst, sent.src):
        return False
    again = inner.copy()
    message, asked = (again[ICMP], sent[ICMP]) if version == 4 else (again[ICMPv6EchoReply], sent[ICMPv6EchoRequest])
    checksum = message.chksum if version == 4 else message.cksum
    if version == 4:
        del message.chksum
    else:
        del message.cksum
    rebuilt = type(again)(bytes(again))
    right = rebuilt[ICMP].chksum if version == 4 else rebuilt[ICMPv6EchoReply].cksum
    data = bytes(message.payload) if version == 4 else bytes(message.data)
    asked_data = bytes(asked.payload) if version == 4 else bytes(asked.data) + bytes(asked.payload)
    return (message.id, message.seq, data, checksum) == (asked.id, asked.seq, asked_data, right)


def main():
    interface, own_mac, gateway_mac, kind, ours, theirs, spi_to, key_to, spi_from, key_from = sys.argv[1:]
    to_gateway = association(kind, int(spi_to), key_to, ours, theirs)
    from_gateway = association(kind, int(spi_from), key_from, theirs, ours)
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    wire.bind((interface, 0))
    wire.settimeout(PATIENCE_SECONDS)
    ether_type = ETHER_TYPES[6 if ":" in ours else 4]
    number = 0
    for version in (4, 6):
        for size in SIZES:
            number += 1
            sent = request(version, number, size)
            sealed = to_gateway.encrypt(sent)
            if kind == "udp":
                del sealed[UDP].len
            wire.send(bytes(Ether(src=own_mac, dst=gateway_mac, type=ether_type)) + bytes(sealed))
            inner = answer(wire, own_mac, gateway_mac, ours, theirs, from_gateway, kind, number)
            if not is_reply(inner, type(sent)(bytes(sent))):
                sys.exit(f"number {number}: no reply to {sent!r}, but {inner!r}")
            hops = inner.ttl if version == 4 else inner.hlim
            if hops != HOPS_LEFT:
                sys.exit(f"number {number}: {hops} hops are left, not {HOPS_LEFT}")
    print(f"{number} echo requests sealed, and as many replies opened")


def answer(wire, own_mac, gateway_mac, ours, theirs, association, kind, number):
    """The next packet of the SA on the wire, opened."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < give_up:
        frame = Ether(wire.recv(65536))
        outer = frame.payload
        if not isinstance(outer, (IP, IPv6)) or (outer.src, outer.dst) != (theirs, ours):
            continue
        if (frame.src, frame.dst) != (gateway_mac, own_mac):
            sys.exit(f"number {number}: a frame from {frame.src} to {frame.dst}")
        protocol = outer.proto if isinstance(outer, IP) else outer.nh
        if protocol != {"esp": socket.IPPROTO_ESP, "udp": socket.IPPROTO_UDP, "ah": socket.IPPROTO_AH}[kind]:
            sys.exit(f"number {number}: protocol {protocol}")
        if kind == "udp" and bytes(outer[UDP].payload) == KEEPALIVE:
            continue
        opened = association.decrypt(type(outer)(bytes(outer)))
        (first,) = struct.unpack("!B", bytes(opened)[:1])
        return (IP if first >> 4 == 4 else IPv6)(bytes(opened))
    sys.exit(f"number {number}: nothing came back")


main()
