#!/usr/bin/python3
"""Has tshark read packets of VPE by contrib/wireshark/vpe.lua, and compares what it shows.

usage: dissected.py USR FOLDER       USR has bin/tshark, as tests/wireshark/unpack.sh leaves it; FOLDER gets the recordings
"""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "contrib/scapy"))

from scapy.layers.inet import IP, UDP  # noqa: E402
from scapy.layers.inet6 import IPv6  # noqa: E402
from scapy.packet import Raw  # noqa: E402
from scapy.utils import PcapWriter  # noqa: E402

import vpe  # noqa: E402

SPI, SENDER, WINDOW, NUMBER = 0x11223344, 0x5566, 0x7788, 0x99AABBCCDDEEFF01
FIELDS = ["vpe.sender", "vpe.window", "vpe.number", "vpe.spi", "vpe.icv", "vpe.ciphertext", "vpe.keepalive"]
EXPERTS = ["vpe.truncated", "vpe.number.zero", "vpe.spi.reserved"]


def packets():
    association = vpe.Association(SPI, "aes128gcm16", bytes(range(16)), sender=SENDER, multicast=True)
    return [association.seal(Raw(bytes(range(size))), WINDOW, NUMBER - size) for size in (0, 1, 200)]


def shown(packet):
    """The fields, and which remarks there are, as they are expected of a header and its ciphertext."""
    data = bytes(packet.payload).hex()
    fields = [str(packet.sender), str(packet.window), str(packet.number), f"0x{packet.spi:08x}", packet.icv.hex(), data, ""]
    return fields + [""] * len(EXPERTS)


def cases(port, protocol):
    """Each datagram, and the columns that are expected of it."""
    for packet in packets():
        for outer in (
            IP(src="192.0.2.1", dst="192.0.2.2") / UDP(sport=9, dport=port),
            IP(src="192.0.2.1", dst="192.0.2.2", proto=protocol),
            IPv6(src="fd00::1", dst="fd00::2", nh=protocol),
        ):
            yield outer / packet, shown(packet)
    outer = IP(src="192.0.2.1", dst="192.0.2.2") / UDP(sport=9, dport=port)
    nothing = [""] * len(FIELDS)
    yield outer / Raw(vpe.KEEPALIVE), nothing[:-1] + ["1"] + [""] * len(EXPERTS)
    yield outer / Raw(bytes(31)), nothing + ["1", "", ""]
    zero = vpe.VPE(spi=255, number=0)
    yield outer / zero, shown(zero)[:len(FIELDS)] + ["", "1", "1"]


def dissect(usr, file, preferences):
    # tshark reads no Lua as root: root of this machine is somebody else in a namespace.
    command = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.getuid() == 0 else []
    command += [str(usr / "bin/tshark"), "-X", f"lua_script:{ROOT / 'contrib/wireshark/vpe.lua'}", "-r", str(file), "-T", "fields"]
    for field in FIELDS + EXPERTS:
        command += ["-e", field]
    for name, value in preferences.items():
        command += ["-o", f"{name}:{value}"]
    paths = {"HOME": file.parent, "LD_LIBRARY_PATH": usr / "lib/x86_64-linux-gnu", "WIRESHARK_DATA_DIR": usr / "share/wireshark"}
    environment = {**os.environ, **{name: str(path) for name, path in paths.items()}}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode or "Lua" in done.stderr:
        sys.exit(f"tshark failed: {done.stderr}")
    return done.stdout.splitlines()


def main():
    usr, folder = (pathlib.Path(argument) for argument in sys.argv[1:3])
    for port, protocol, preferences in ((4501, 253, {}), (5501, 50, {"vpe.udp_port": 5501, "vpe.ip_protocol": 50})):
        file = folder / f"vpe-{port}.pcap"
        expected = []
        with PcapWriter(str(file), linktype=101) as writer:
            for packet, columns in cases(port, protocol):
                writer.write(bytes(packet))
                expected.append("\t".join(columns))
        found = dissect(usr, file, preferences)
        for number, (line, wanted) in enumerate(zip(found, expected, strict=True), 1):
            if line != wanted:
                sys.exit(f"{file.name}, packet {number}:\n  shown    {line}\n  expected {wanted}")
        print(f"{file.name}: {len(found)} packets")


if __name__ == "__main__":
    main()
