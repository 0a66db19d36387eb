"""Testudo and the Scapy layer of VPE, both ways, by `testudo replay`: gateway.py PROGRAM FOLDER.

What Testudo seals the layer opens, in every suite, over IPv4, IPv6 and UDP; what the layer seals, among attacks, Testudo opens,
and it counts every attack by its name. The same in a group of many senders under one key.
"""

import json
import os
import pathlib
import random
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "contrib/scapy"))

from scapy.layers.inet import IP, UDP, defragment  # noqa: E402
from scapy.layers.inet6 import IPv6  # noqa: E402
from scapy.packet import Raw  # noqa: E402
from scapy.utils import RawPcapReader, RawPcapWriter  # noqa: E402
from vpe import HEADER_BYTES, KEEPALIVE, PORT, PROTOCOL, SUITES, VPE, Association  # noqa: E402

RAW_IP = 101
CASES = [(suite, version, udp) for suite in SUITES for version in (4, 6) for udp in (False, True)]
HEAD = """
[gateway]
state = "state.redb"
[port.protected]
kind = "tun"
name = "testudo0"
[port.unprotected]
kind = "socket"
mtu = 1500
"""
TUNNEL = """
[[tunnel]]
name = "t{index}"
local = "{local}"
remote = "{remote}"
encapsulation = "{encapsulation}"
suite = "{suite}"
allow_manual_counter_nonce = true
classes = [[46]]
windows_max = 20
selectors = [
    {{ local = "10.{index}.0.0/17", remote = "10.{index}.128.0/17" }},
    {{ local = "fd00:{index}::/48", remote = "fd00:{index}:1::/48" }},
]
outbound = {{ spi = {spi:#x}, key_file = "t{index}-out.key" }}
inbound = {{ spi = {spi:#x}, key_file = "t{index}-in.key" }}
known_answer = {{ next_sequence_number = 1, iv_seed = 0 }}
"""


class Case:
    """One tunnel of the gateway, and its peer in Scapy."""

    def __init__(self, index, suite, version, udp):
        self.index, self.suite, self.version, self.udp = index, suite, version, udp
        self.local, self.remote = [("192.0.2.1", "192.0.2.2"), ("2001:db8::1", "2001:db8::2")][version == 6]
        self.spi = 0x01010101 * (index + 1)
        self.keys = {way: bytes((mark ^ (at * 7)) & 255 for at in range(SUITES[suite][1])) for way, mark in (("out", index), ("in", 128 + index))}

    def table(self):
        encapsulation = "vpe-in-udp" if self.udp else "vpe"
        return TUNNEL.format(**vars(self), encapsulation=encapsulation)

    def peer(self, way):
        return Association(self.spi, self.suite, self.keys[way], windows_max=20)

    def outer(self, payload, from_peer=True):
        source, destination = (self.remote, self.local) if from_peer else (self.local, self.remote)
        layer = IP(src=source, dst=destination) if self.version == 4 else IPv6(src=source, dst=destination)
        if self.udp:
            return bytes(layer / UDP(sport=PORT, dport=PORT, chksum=0 if self.version == 4 else None) / Raw(bytes(payload)))
        layer.fields["proto" if self.version == 4 else "nh"] = PROTOCOL
        return bytes(layer / Raw(bytes(payload)))

    def inner(self, nbytes, version, from_peer, port=4000, dscp=0):
        near, far = {4: (f"10.{self.index}.0.1", f"10.{self.index}.128.2"), 6: (f"fd00:{self.index}::1", f"fd00:{self.index}:1::2")}[version]
        source, destination = (far, near) if from_peer else (near, far)
        header = IP(src=source, dst=destination, tos=dscp << 2) if version == 4 else IPv6(src=source, dst=destination, tc=dscp << 2)
        data = bytes(at & 255 for at in range(nbytes))
        return bytes(header / UDP(sport=port, dport=9) / Raw(data))

    def payload(self, datagram):
        """What is behind the outer headers of a datagram of the gateway; None for another tunnel's."""
        layer = (IP if datagram[0] >> 4 == 4 else IPv6)(datagram)
        if (layer.src, layer.dst) != (self.local, self.remote):
            return None
        number = layer.proto if self.version == 4 else layer.nh
        if number == 17:
            udp = layer[UDP]
            return bytes(udp.payload) if self.udp and (udp.sport, udp.dport) == (PORT, PORT) else None
        return bytes(layer.payload) if not self.udp and number == PROTOCOL else None


GROUP_TUNNEL = """
[[tunnel]]
name = "g{index}"
local = "{local}"
remote = "{remote}"
encapsulation = "{encapsulation}"
suite = "{suite}"
allow_manual_counter_nonce = true
sender_id = {sender}
windows_max = 40
selectors = [
    {{ local = "10.{index}.0.0/16", remote = "239.{index}.0.0/16" }},
    {{ local = "fd00:{index}::/32", remote = "ff35:{index}::/32" }},
]
sa = {{ spi = {spi:#x}, key_file = "t{index}-out.key" }}
known_answer = {{ next_sequence_number = 1, iv_seed = 0 }}
"""


class Group(Case):
    """One tunnel of the gateway to a group, and other members of it in Scapy."""

    def __init__(self, index, suite, version, udp):
        super().__init__(index, suite, version, udp)
        self.remote, self.sender = [(f"239.255.2.{index + 1}", 0x1234), (f"ff05::{index + 1}", 0xFFFF)][version == 6]

    def table(self):
        return GROUP_TUNNEL.format(**vars(self), encapsulation="vpe-in-udp" if self.udp else "vpe")

    def member(self, sender):
        return Association(self.spi, self.suite, self.keys["out"], sender=sender, multicast=True, windows_max=40)

    def outer(self, payload, source=None):
        source = source or self.local[:-1] + "9"
        layer = IP(src=source, dst=self.remote) if self.version == 4 else IPv6(src=source, dst=self.remote)
        if self.udp:
            return bytes(layer / UDP(sport=PORT, dport=PORT, chksum=0 if self.version == 4 else None) / Raw(bytes(payload)))
        layer.fields["proto" if self.version == 4 else "nh"] = PROTOCOL
        return bytes(layer / Raw(bytes(payload)))

    def inner(self, nbytes, version, member=1):
        source, group = {4: (f"10.{self.index}.{member}.1", f"239.{self.index}.7.7"), 6: (f"fd00:{self.index}::{member}", f"ff35:{self.index}::7")}[version]
        header = IP(src=source, dst=group) if version == 4 else IPv6(src=source, dst=group)
        return bytes(header / UDP(sport=4000 + nbytes % 7, dport=9) / Raw(bytes(at & 255 for at in range(nbytes))))


def replay(program, folder, side, packets, configuration="gateway.toml"):
    other = {"protected": "unprotected", "unprotected": "protected"}[side]
    files = {name: folder / f"{name}.pcap" for name in ("in", "across", "back")}
    with RawPcapWriter(str(files["in"]), linktype=RAW_IP) as file:
        file.write_header(None)
        for packet in packets:
            file.write_packet(packet)
    command = [program, "replay", folder / configuration, "--json", "--rx", f"{side}={files['in']}"]
    command += ["--tx", f"{other}={files['across']}", "--tx", f"{side}={files['back']}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"testudo replay ended with {done.returncode}: {done.stderr}{done.stdout}")
    # Scapy's packaged reader is no context manager.
    file = RawPcapReader(str(files["across"]))
    try:
        return [packet for packet, _ in file], json.loads(done.stdout)
    finally:
        file.close()


def drops_of(counters):
    return {name: count for name, count in counters["drops"].items() if count}


def check(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: {found!r}, not {expected!r}")


def scapy_opens(program, folder, cases):
    sent, windows = [], {}
    for case in cases:
        for version in (4, 6):
            sent += [(case, case.inner(nbytes, version, False, 4000 + nbytes % 7, nbytes % 2 * 46)) for nbytes in range(0, 120)]
            sent += [(case, case.inner(1300, version, False))]
    across, counters = replay(program, folder, "protected", [packet for _, packet in sent])
    check("drops of what is sealed", drops_of(counters), {})
    check("packets sealed", len(across), len(sent))
    peers = {case: case.peer("out") for case in cases}
    for (case, packet), datagram in zip(sent, across):
        payload = case.payload(datagram)
        header = VPE(payload)
        numbers = windows.setdefault((case.index, header.window), [])
        numbers.append(header.number)
        check("the SPI", header.spi, case.spi)
        check("the class", header.window % 2, int(packet[1] >> 2 == 46 if packet[0] >> 4 == 4 else (packet[0] << 4 | packet[1] >> 4) & 255 == 184))
        check("the length", len(payload), HEADER_BYTES + len(packet))
        check(f"tunnel {case.index}", bytes(peers[case].open(header)), packet)
    for name, numbers in windows.items():
        check(f"the numbers of window {name}", numbers, list(range(1, len(numbers) + 1)))
    print(f"Scapy opened {len(across)} packets in {len(windows)} windows")


def scapy_opens_long_ones(program, folder, cases):
    """9,000 bytes: whole over a path of 9,100, and over one of 1,500 in pieces, each with its own header and number."""
    for name, mtu in (("gateway.toml", 1500), ("jumbo.toml", 9100)):
        sent = [(case, case.inner(9000 - 28, 4, False)) for case in cases]
        across, counters = replay(program, folder, "protected", [packet for _, packet in sent], name)
        check("drops of long packets", drops_of(counters), {})
        peers, pieces = {case: case.peer("out") for case in cases}, {case: [] for case in cases}
        for datagram in across:
            check("a datagram that fits", len(datagram) <= mtu, True)
            [(case, payload)] = [(case, case.payload(datagram)) for case in cases if case.payload(datagram) and VPE(case.payload(datagram)).spi == case.spi]
            header = VPE(payload)
            opened = peers[case].open(header)
            check("nothing is appended", len(payload), HEADER_BYTES + len(bytes(opened)))
            pieces[case].append((header.window, header.number, opened))
        for case, packet in sent:
            windows, numbers, opened = zip(*pieces[case])
            check("pieces", len(opened) >= 7 if mtu == 1500 else len(opened) == 1, True)
            check("one window", len(set(windows)), 1)
            check("their numbers", list(numbers), list(range(1, len(numbers) + 1)))
            whole = opened if len(opened) == 1 else defragment(opened)
            check("the packet", [bytes(IP(bytes(p)).payload) for p in whole], [bytes(IP(packet).payload)])
        print(f"Scapy opened {len(across)} datagrams of {len(sent)} packets of 9,000 bytes over a path of {mtu}")


def testudo_opens(program, folder, cases, seed):
    rng = random.Random(seed)
    sent, expected, drops = [], [], {}

    def attack(reason, packet):
        drops[reason] = drops.get(reason, 0) + 1
        sent.append(packet)

    for case in cases:
        peer = case.peer("in")
        for turn in range(60):
            version, window = rng.choice((4, 6)), rng.randrange(16)
            packet = case.inner(rng.randrange(1200), version, True)
            sealed = bytes(peer.seal(packet, window=window, padding=rng.choice((0, 0, 7, 40))))
            sent.append(case.outer(sealed))
            expected.append(packet)
            attack("replay_duplicate", case.outer(sealed))
            fresh = bytes(peer.seal(packet, window=window))
            at = rng.choice([at for at in range(len(fresh)) if not 12 <= at < 16])
            forged = fresh[:at] + bytes([fresh[at] ^ 1 << rng.randrange(8)]) + fresh[at + 1 :]
            # A number that was there, or a window beyond the limit, is refused before the ICV is looked at.
            attack("authentication_failed", case.outer(fresh[:31] + bytes([fresh[31] ^ 1]) + fresh[32:] if at < 12 else forged))
            attack("vpe_malformed", case.outer(fresh[: rng.randrange(2, HEADER_BYTES)]))
            attack("unknown_spi", case.outer(fresh[:12] + bytes([fresh[12] ^ 1]) + fresh[13:]))
            if case.udp:
                attack("nat_keepalive", case.outer(KEEPALIVE))
        attack("vpe_fill", case.outer(peer.fill(rng.randrange(200), window=1)))
        attack("vpe_inner", case.outer(peer.seal(b"\x50" + packet[1:], window=2)))
        attack("replay_too_old", case.outer(peer.seal(packet, window=3, number=0)))
        stranger = Association(case.spi, case.suite, case.keys["in"], sender=7, multicast=True)
        attack("vpe_sender", case.outer(stranger.seal(packet, window=15)))
        for window in range(16, 20):
            sent.append(case.outer(peer.seal(packet, window=window, number=2**64 - 1)))
            expected.append(packet)
        # Each window that was drawn has had an authentic packet.
        used = sum(window in peer.next for window in range(16))
        for window in range(1000, 1000 + 20 - 4 - used):
            sent.append(case.outer(peer.seal(packet, window=window)))
            expected.append(packet)
        attack("vpe_windows", case.outer(peer.seal(packet, window=5000)))
        for window in range(16, 20):
            attack("replay_duplicate", case.outer(peer.seal(packet, window=window, number=2**64 - 1)))
    across, counters = replay(program, folder, "unprotected", sent)
    check("drops of what is opened", drops_of(counters), drops)
    check("packets opened", len(across), len(expected))
    for number, (found, packet) in enumerate(zip(across, expected)):
        check(f"packet {number}", found, packet)
    print(f"Testudo opened {len(across)} packets, and dropped {sum(drops.values())} by name")


def group_sends(program, folder, groups):
    sent = [(group, group.inner(nbytes, version)) for group in groups for version in (4, 6) for nbytes in range(0, 60)]
    across, counters = replay(program, folder, "protected", [packet for _, packet in sent])
    check("drops of what is sealed for groups", drops_of(counters), {})
    check("packets sealed for groups", len(across), len(sent))
    receivers = {group: group.member(7) for group in groups}
    for (group, packet), datagram in zip(sent, across):
        layer = (IP if datagram[0] >> 4 == 4 else IPv6)(datagram)
        check("the TTL", layer.ttl if group.version == 4 else layer.hlim, 64)
        header = VPE(group.payload(datagram))
        check("the Sender ID", header.sender, group.sender)
        check(f"group {group.index}", bytes(receivers[group].open(header, layer.src)), packet)
    print(f"Scapy opened {len(across)} packets of groups")


def group_receives(program, folder, groups, seed):
    rng = random.Random(seed)
    sent, expected, drops = [], [], {}

    def attack(reason, packet):
        drops[reason] = drops.get(reason, 0) + 1
        sent.append(packet)

    for group in groups:
        members = [group.member(sender) for sender in (1, 2, 0x0102, 0xFFFE)]
        for turn in range(60):
            member, window = rng.choice(members), rng.randrange(8)
            packet = group.inner(rng.randrange(1200), rng.choice((4, 6)), 1 + members.index(member))
            # Who joins late accepts the first number of a window, whatever it is.
            number = None if window in member.next else rng.randrange(1, 2**40)
            sealed = bytes(member.seal(packet, window=window, number=number))
            member.next[window] = VPE(sealed).number + 1
            sent.append(group.outer(sealed))
            expected.append(packet)
            attack("replay_duplicate", group.outer(sealed))
            fresh = bytes(member.seal(packet, window=window))
            # The Sender ID is a part of the nonce.
            attack("authentication_failed", group.outer(bytes([fresh[0] ^ 0x80]) + fresh[1:]))
            attack("authentication_failed", group.outer(fresh[:31] + bytes([fresh[31] ^ 1]) + fresh[32:]))
        for sender in (0, group.sender):
            attack("vpe_sender", group.outer(bytes(group.member(sender).seal(packet, window=3, number=1))))
        attack("wrong_encapsulation", bytes(unicast(group, bytes(members[0].seal(packet, window=0)))))
        used = sum(len(member.next) for member in members)
        for sender in range(1000, 1000 + 40 - used):
            sent.append(group.outer(bytes(group.member(sender).seal(packet))))
            expected.append(packet)
        attack("vpe_windows", group.outer(bytes(group.member(5000).seal(packet))))
    across, counters = replay(program, folder, "unprotected", sent)
    check("drops of what groups send", drops_of(counters), drops)
    check("packets of groups opened", len(across), len(expected))
    for number, (found, packet) in enumerate(zip(across, expected)):
        check(f"packet {number}", found, packet)
    print(f"Testudo opened {len(across)} packets of groups, and dropped {sum(drops.values())} by name")


def unicast(group, payload):
    """What is for the group, to the address of the gateway."""
    layer = IP(src=group.local[:-1] + "9", dst=group.local) if group.version == 4 else IPv6(src=group.local[:-1] + "9", dst=group.local)
    if group.udp:
        return layer / UDP(sport=PORT, dport=PORT, chksum=0 if group.version == 4 else None) / Raw(payload)
    layer.fields["proto" if group.version == 4 else "nh"] = PROTOCOL
    return layer / Raw(payload)


def prepare(folder, cases):
    """A configuration with these tunnels, and their keys."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        for way, key in case.keys.items():
            file = folder / f"t{case.index}-{way}.key"
            file.unlink(missing_ok=True)
            with open(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as out:
                out.write(key.hex())
    tables = "".join(case.table() for case in cases)
    (folder / "gateway.toml").write_text(HEAD + tables)
    (folder / "jumbo.toml").write_text(HEAD.replace("mtu = 1500", "mtu = 9100") + tables)


def main():
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    cases = [Case(index, *case) for index, case in enumerate(CASES)]
    prepare(folder, cases)
    scapy_opens(program, folder, cases)
    scapy_opens_long_ones(program, folder, cases)
    testudo_opens(program, folder, cases, 4501)
    groups = [Group(index, *case) for index, case in enumerate(CASES)]
    prepare(folder / "groups", groups)
    group_sends(program, folder / "groups", groups)
    group_receives(program, folder / "groups", groups, 239)


main()
