"""Packet files as Scapy writes them, read by Testudo, and as Testudo writes them, read by Scapy.

    captures.py PROGRAM CONFIGURATION

The configuration lets everything pass. Each file holds the same packets in another format: pcap of both byte orders and resolutions, and
pcapng with enhanced or simple packet blocks, of raw IP and of Ethernet with VLAN tags. Then each file is cut at several places: the packets before
the cut must come, then an error that names the file, and exit status 1.
"""

import pathlib
import struct
import subprocess
import sys

from gateway import RAW_IP, compare_lists, fail, read
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw
from scapy.utils import RawPcapNgWriter, RawPcapWriter

ETHERNET = 1
PACKETS = [
    bytes(header / UDP(sport=1000 + size, dport=2000) / Raw(bytes(size)))
    for size in (0, 1, 2, 3, 500, 1400)
    for header in (IP(src="10.1.0.1", dst="10.2.0.1"), IPv6(src="fd01::1", dst="fd02::1"))
]


def frame(packet, index):
    """In Ethernet, with as many VLAN tags as fit, and padded as a NIC pads."""
    header = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
    for tag in range(index % 3):
        header = header / Dot1Q(vlan=tag + 1)
    layer = IP if packet[0] >> 4 == 4 else IPv6
    return bytes(header / layer(packet)).ljust(60, b"\0")


class PcapNg(RawPcapNgWriter):
    """Scapy writes little-endian enhanced packet blocks; its own methods can do more."""

    def __init__(self, path, linktype, endianness="<", simple=False):
        super().__init__(path)
        self.linktype, self.endian, self.simple, self.sync = linktype, endianness, simple, False
        self.endian_magic = struct.pack(endianness + "I", 0x1A2B3C4D)

    def _write_packet(self, packet, **keywords):
        if self.simple:
            self._write_block_spb(packet)
        else:
            super()._write_packet(packet, **keywords)


def writers():
    """The name of each kind of file, and how to open one."""
    for linktype in (RAW_IP, ETHERNET):
        for order in "<>":
            link = f"{'raw' if linktype == RAW_IP else 'ethernet'}-{'little' if order == '<' else 'big'}"
            for nano in (False, True):
                yield f"{link}-{'nano' if nano else 'micro'}.pcap", linktype, lambda path, l=linktype, o=order, n=nano: (
                    RawPcapWriter(path, linktype=l, endianness=o, nano=n)
                )
            for simple in (False, True):
                yield f"{link}-{'simple' if simple else 'enhanced'}.pcapng", linktype, lambda path, l=linktype, o=order, s=simple: (
                    PcapNg(path, l, o, s)
                )


def replay(program, configuration, path):
    """What comes out at the other side, the exit status, and the last line of complaint."""
    across = path.parent / "across.pcap"
    command = [program, "replay", configuration, "--rx", f"protected={path}", "--tx", f"unprotected={across}"]
    done = subprocess.run(command, capture_output=True, text=True)
    return read(across), done.returncode, done.stderr.strip().splitlines()[-1:]


def main(program, configuration):
    folder, count = pathlib.Path(configuration).parent, 0
    for name, linktype, opened in writers():
        path, ends = folder / name, []
        file = opened(str(path))
        file._write_header(None)
        for index, packet in enumerate(PACKETS):
            file._write_packet(packet if linktype == RAW_IP else frame(packet, index), sec=index, usec=0)
            file.f.flush()
            ends.append(path.stat().st_size)
        file.close()
        across, status, said = replay(program, configuration, path)
        compare_lists(name, PACKETS, across)
        if status != 0:
            fail(f"{name}: exit status {status}: {said}")
        whole = path.read_bytes()
        for cut in (ends[0] + 1, ends[3] - 1, ends[-1] - 5):
            path.write_bytes(whole[:cut])
            across, status, said = replay(program, configuration, path)
            complete = sum(end <= cut for end in ends)
            compare_lists(f"{name} cut at byte {cut}", PACKETS[:complete], across)
            if status != 1 or not all(word in said[0] for word in (name, "ends within")):
                fail(f"{name} cut at byte {cut}: exit status {status}: {said}")
        count += 1
    print(f"{count} formats, {len(PACKETS)} packets each, whole and cut")


main(*sys.argv[1:])
