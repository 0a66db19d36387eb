"""Sends datagrams in fragments from the host that it runs on; in some of these a fragment overlaps others (RFC 5722 3, RFC 1858, RFC 3128).

    send_fragments.py recorded FILE                    the packets of a file, each in another way
    send_fragments.py udp SOURCE DESTINATION PORT      a datagram of UDP in each way, whose payload begins with its name

The ways with an overlap come first: once a datagram of the others has arrived, nothing of theirs is to come.
"""

import socket
import sys

from fragments import changed_copy, cut, over_the_end, within_the_first
from gateway import IP, fail, ip, read
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

WAYS = {
    "over the end": lambda parts: [parts[0], over_the_end(parts), *parts[1:]],
    "within the first": lambda parts: [parts[0], within_the_first(parts), *parts[1:]],
    "changed copy": lambda parts: [parts[0], changed_copy(parts), *parts[1:]],
    "reversed": lambda parts: parts[::-1],
    "in order": lambda parts: parts,
}
SIZE = 400


def send(packet):
    """As it is: the source in the header may be another host's (`man 7 raw`)."""
    header = ip(packet)
    family = socket.AF_INET if header.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        raw.sendto(packet, (header.dst, 0))


def recorded(path):
    datagrams = read(path)
    if len(datagrams) < len(WAYS):
        fail(f"{len(datagrams)} packets are too few")
    # Over IPv4 the Identification stays, since AH covers it (RFC 4302 3.3.3.1.1.1).
    return [(datagram, ip(datagram).id if datagram[0] >> 4 == 4 else at) for at, datagram in enumerate(datagrams[:len(WAYS)], 1)]


def udp(source, destination, port):
    header = IPv6(src=source, dst=destination) if ":" in source else IP(src=source, dst=destination)
    payloads = [name.encode().ljust(1000, b".") for name in WAYS]
    return [(bytes(header / UDP(sport=40000, dport=int(port)) / Raw(payload)), at) for at, payload in enumerate(payloads, 1)]


def main(kind, *arguments):
    datagrams = {"recorded": recorded, "udp": udp}[kind](*arguments)
    for (datagram, identification), way in zip(datagrams, WAYS.values(), strict=True):
        for fragment in way(cut(datagram, SIZE, identification)):
            send(fragment)


if __name__ == "__main__":
    main(*sys.argv[1:])
