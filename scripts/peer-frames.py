#!/usr/bin/env python3
"""Writes the packet files that ipsec-secgw receives: FOLDER/SIZE.pcap for each SIZE, a frame's bytes with its FCS, or imix.

usage: peer-frames.py FOLDER SIZE...
"""

import random
import struct
import sys

ETHERNET_BYTES, FCS_BYTES, HEADERS_BYTES = 14, 4, 20 + 8
FLOWS = 512
# How many frames of which length, FCS not counted: the mix of `testudo bench`.
MIX = ((600, 60), (230, 536), (150, 1360))


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def frame(number, length):
    """UDP from 10.0.1.0/24 to 10.0.2.0/24; `length` without FCS. UDP over IPv4 may do without a checksum."""
    host = 1 + number % 250
    total = length - ETHERNET_BYTES
    addresses = bytes([10, 0, 1, host, 10, 0, 2, host])
    before = struct.pack("!BBHHHBB", 0x45, 0, total, number, 0, 64, 17)
    ip = before + struct.pack("!H", checksum(before + bytes(2) + addresses)) + addresses
    udp = struct.pack("!HHHH", 1024 + number, 5000, total - 20, 0)
    ethernet = bytes.fromhex("020000000001" "020000000002" "0800")
    return ethernet + ip + udp + random.randbytes(total - HEADERS_BYTES)


def lengths(size):
    if size != "imix":
        return [int(size) - FCS_BYTES] * FLOWS
    mix = [length for count, length in MIX for _ in range(count)]
    random.shuffle(mix)
    return mix


def main():
    folder, sizes = sys.argv[1], sys.argv[2:]
    for size in sizes:
        random.seed(1)
        with open(f"{folder}/{size}.pcap", "wb") as file:
            file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
            for number, length in enumerate(lengths(size)):
                data = frame(number, length)
                file.write(struct.pack("<IIII", 0, 0, len(data), len(data)) + data)


if __name__ == "__main__":
    main()
