#!/usr/bin/python3
"""Writes docs/vpe-vectors.json, or with --check says whether it is what this script writes.

The Scapy layer in contrib/scapy seals the packets; each field has bytes of its own, so that a wrong byte order shows.
"""

import json
import pathlib
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "contrib/scapy"))

from scapy.layers.inet import IP, UDP  # noqa: E402
from scapy.layers.inet6 import IPv6  # noqa: E402
from scapy.packet import Raw  # noqa: E402

import vpe  # noqa: E402

FILE = ROOT / "docs/vpe-vectors.json"
KEYS = {16: bytes(range(0x40, 0x50)), 32: bytes(range(0x60, 0x80))}
SPI, SENDER, WINDOW, NUMBER = 0x11223344, 0x5566, 0x7788, 0x99AABBCCDDEEFF01


def ipv4(nbytes):
    header = IP(src="10.1.2.3", dst="10.4.5.6", id=7, ttl=61) / UDP(sport=1000, dport=2000)
    return bytes(header / Raw(bytes(i % 251 for i in range(nbytes - 28))))


def ipv6(nbytes):
    header = IPv6(src="fd01::1", dst="fd02::2", hlim=61) / UDP(sport=1000, dport=2000)
    return bytes(header / Raw(bytes(i % 241 for i in range(nbytes - 48))))


def patched(packet, at, value):
    return packet[:at] + value + packet[at + len(value):]


# What a receiver says of each plaintext: the bytes of the inner datagram, or why there is none.
PLAINTEXTS = {
    "IPv4, 46 bytes": ipv4(46),
    "IPv6, 77 bytes": ipv6(77),
    "IPv4, the shortest": bytes(IP(src="10.1.2.3", dst="10.4.5.6", proto=59)),
    "IPv4, 1,400 bytes": ipv4(1400),
    "IPv4 and 18 bytes of padding": ipv4(46) + bytes(18),
    "IPv6 and 5 bytes of padding, not zero": ipv6(60) + b"\x01\x02\x03\x04\x05",
    "fill: 64 zeros": bytes(64),
    "fill: nothing": b"",
    "IPv4 longer than the plaintext": patched(ipv4(46), 2, struct.pack("!H", 47)),
    "IPv4 shorter than its header": patched(ipv4(46), 2, struct.pack("!H", 19)),
    "IPv4 with a header of 16 bytes": patched(ipv4(46), 0, b"\x44"),
    "IPv4, cut within its header": ipv4(46)[:19],
    "IPv6 longer than the plaintext": patched(ipv6(60), 4, struct.pack("!H", 21)),
    "IPv6 with a payload length of 0": patched(ipv6(60), 4, b"\0\0"),
    "IPv6, cut within its header": ipv6(60)[:39],
    "version 5": patched(ipv4(46), 0, b"\x55"),
    "version 0, not a fill packet": b"\0" * 30 + b"\x01",
}


def vector(name, suite, key, plaintext, spi=SPI, sender=SENDER, window=WINDOW, number=NUMBER):
    association = vpe.Association(spi, suite, key, sender=sender, multicast=sender != 0)
    packet = association.seal(Raw(plaintext), window, number)
    try:
        expected = {"inner_bytes": len(bytes(vpe.inner(plaintext)))}
    except vpe.Refused as refused:
        expected = {"drop": refused.reason}
    return {
        "name": name, "suite": suite, "key": key.hex(), "spi": spi, "sender": sender, "window": window, "number": str(number),
        "nonce": packet.nonce().hex(), "plaintext": plaintext.hex(), "packet": bytes(packet).hex(), **expected,
    }


def vectors():
    for suite, (_, key_bytes) in vpe.SUITES.items():
        yield vector(f"{suite}: IPv4", suite, KEYS[key_bytes], ipv4(46))
        yield vector(f"{suite}: IPv6", suite, KEYS[key_bytes], ipv6(77))
    for name, plaintext in PLAINTEXTS.items():
        yield vector(name, "aes128gcm16", KEYS[16], plaintext)
    for name, fields in {
        "unicast: sender 0, the first number of window 0": {"sender": 0, "window": 0, "number": 1},
        "the last number of the last window": {"sender": 0, "window": 0xFFFF, "number": vpe.LAST_NUMBER},
        "the lowest SPI": {"sender": 0, "spi": 256},
    }.items():
        yield vector(name, "aes256gcm16", KEYS[32], ipv4(46), **fields)


def main():
    text = json.dumps(list(vectors()), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        if FILE.read_text() != text:
            sys.exit(f"{FILE.name} is not what tests/vpe/vectors.py writes: run it")
        print(f"{FILE.name}: {len(json.loads(text))} vectors")
    else:
        FILE.write_text(text)


if __name__ == "__main__":
    main()
