"""Fragments that Scapy makes meet policies on ports: stateful fragment checking (RFC 4301 7.3, 7.4).

    policy_fragments.py PROGRAM FOLDER SEED

All fragments of a datagram but the first hide its ports, over IPv6 also its protocol. The decision on the first one is theirs: of each
scenario below the fragments that pass are named, and every other one must be dropped and counted. Ways are judged apart: out in clear, out
through a tunnel, in in clear, in through a tunnel. One tunnel has an end that takes later fragments (`non_first_fragments`), as IKE would have
negotiated; to the other none may be sent, and from it none may be taken (7.3).
"""

import collections
import pathlib
import random
import sys

from encapsulations import End
from fragments import over_the_end, within_the_first
from gateway import Gateway, compare_drops, compare_lists, fail, ip
from scapy.layers.inet import IP, UDP, fragment
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, fragment6
from scapy.layers.ipsec import ESP
from scapy.packet import Raw

OUTER = ("192.0.2.1", "192.0.2.2")
OURS, THEIRS = {4: "10.1.0.", 6: "fd01::"}, {4: "10.2.0.", 6: "fd02::"}
# By remote port. The first fragment decides by these.
DISCARDED, AGREED, REFUSED, CLEAR = 25, 5000, 6000, 7000
TUNNELS = {AGREED: "agreed", REFUSED: "refused"}
KEY_BYTES = 20
CONFIGURATION = f"""
[gateway]
state = "state.redb"
[port.protected]
kind = "tun"
name = "testudo0"
[port.unprotected]
kind = "socket"
interface = "lo"
mtu = 1500
[[policy]]
action = "discard"
protocol = "udp"
remote_ports = {DISCARDED}
[[policy]]
action = "protect"
tunnel = "agreed"
protocol = "udp"
remote_ports = {AGREED}
local = ["10.1.0.0/16", "fd01::/64"]
remote = ["10.2.0.0/16", "fd02::/64"]
[[policy]]
action = "protect"
tunnel = "refused"
protocol = "udp"
remote_ports = {REFUSED}
local = ["10.1.0.0/16", "fd01::/64"]
remote = ["10.2.0.0/16", "fd02::/64"]
[[policy]]
action = "bypass"
protocol = "udp"
remote_ports = {CLEAR}
"""


def table(port):
    spi = 0x1000 + port
    return {
        "name": TUNNELS[port],
        "suite": "aes128gcm16",
        "esn": True,
        "outbound": {"spi": spi, "key_file": f"{port}-out.key"},
        "inbound": {"spi": spi, "key_file": f"{port}-in.key"},
    }


def tunnel_text(port):
    end = table(port)
    return f"""
[[tunnel]]
name = "{end["name"]}"
local = "{OUTER[0]}"
remote = "{OUTER[1]}"
suite = "{end["suite"]}"
esn = true
non_first_fragments = {str(port == AGREED).lower()}
outbound = {{ spi = {end["outbound"]["spi"]}, key_file = "{end["outbound"]["key_file"]}" }}
inbound = {{ spi = {end["inbound"]["spi"]}, key_file = "{end["inbound"]["key_file"]}" }}
"""


class Scenarios:
    """The fragments of one direction: for each, what must become of it."""

    def __init__(self, inward, rng):
        self.inward, self.rng = inward, rng
        self.identification = 0x100
        self.events = []  # (port of the way, fragment, None where it passes or the reason for which it is dropped)

    def parts(self, version, port, host=2, identification=None):
        """Three fragments of a UDP datagram. The remote port is the source's where it comes in."""
        if identification is None:
            self.identification += 1
            identification = self.identification
        ours, theirs = OURS[version] + str(host), THEIRS[version] + str(host)
        source, destination = (theirs, ours) if self.inward else (ours, theirs)
        sport, dport = (port, 40000) if self.inward else (40000, port)
        udp = UDP(sport=sport, dport=dport) / Raw(self.rng.randbytes(1000))
        if version == 4:
            return [bytes(p) for p in fragment(IP(src=source, dst=destination, id=identification) / udp, 400)]
        whole = IPv6(src=source, dst=destination) / IPv6ExtHdrFragment(id=identification) / udp
        return [bytes(p) for p in fragment6(whole, 448)]

    def event(self, port, fragment_, passes):
        reason = None
        if not passes:
            reason = "fields_hidden"
        elif port == DISCARDED:
            reason = "policy_discard"
        self.events.append((port, fragment_, reason))

    def play(self):
        for version in (4, 6):
            for port in (DISCARDED, AGREED, REFUSED, CLEAR):
                # Where later fragments follow at all.
                follow = port in (AGREED, CLEAR)
                for scenario in (
                    self.in_order, self.overtaken, self.headless, self.other_identification, self.other_host,
                    self.over_its_end, self.inside, self.second_first, self.repeated,
                ):
                    scenario(version, port, follow)
        return self

    def in_order(self, version, port, follow):
        first, *later = self.parts(version, port)
        self.event(port, first, True)
        for fragment_ in later:
            self.event(port, fragment_, follow)

    def overtaken(self, version, port, follow):
        """What comes before the first fragment is dropped, what comes after it is not."""
        first, second, third = self.parts(version, port)
        self.event(port, third, False)
        self.event(port, first, True)
        self.event(port, second, follow)

    def headless(self, version, port, _follow):
        for fragment_ in self.parts(version, port)[1:]:
            self.event(port, fragment_, False)

    def other_identification(self, version, port, _follow):
        self.event(port, self.parts(version, port)[0], True)
        self.event(port, self.parts(version, port)[1], False)

    def other_host(self, version, port, _follow):
        self.event(port, self.parts(version, port)[0], True)
        self.event(port, self.parts(version, port, host=3, identification=self.identification)[1], False)

    def over_its_end(self, version, port, _follow):
        """RFC 5722 3, RFC 3128: nothing of a datagram passes any more of which bytes came twice that policy looked at."""
        parts = self.parts(version, port)
        self.event(port, parts[0], True)
        self.event(port, over_the_end(parts), False)
        self.event(port, parts[1], False)

    def inside(self, version, port, _follow):
        """RFC 1858 4: over the transport header."""
        parts = self.parts(version, port)
        self.event(port, parts[0], True)
        self.event(port, within_the_first(parts), False)
        self.event(port, parts[2], False)

    def second_first(self, version, port, _follow):
        """Another first fragment, about which policy decides otherwise: nobody knows to which of both a later one belongs."""
        parts = self.parts(version, port)
        other = self.parts(version, CLEAR if port == DISCARDED else DISCARDED, identification=self.identification)
        self.event(port, parts[0], True)
        self.events.append((port, other[0], self.verdict_on_other(port)))
        self.event(port, parts[1], False)

    def verdict_on_other(self, port):
        """Of a first fragment for another port on the way of this one: through a tunnel it is not what the tunnel is for."""
        if port == DISCARDED:
            return None
        return "selector_mismatch" if self.inward and port in TUNNELS else "policy_discard"

    def repeated(self, version, port, follow):
        """Once all its bytes have come, an Identification may be another datagram's."""
        parts = self.parts(version, port)
        self.event(port, parts[0], True)
        for fragment_ in parts[1:]:
            self.event(port, fragment_, follow)
        self.event(port, parts[1], False)


def outward(gateway, ends, rng):
    events = Scenarios(False, rng).play().events
    across, back, counters = gateway.replay("protected", [fragment_ for _, fragment_, _ in events])
    if back:
        fail(f"{len(back)} packets were sent back")
    spis = {end.associations[0].spi: port for port, end in ends["outbound"].items()}
    found, numbers = collections.defaultdict(list), collections.Counter()
    for datagram in across:
        packet = ip(datagram)
        if ESP not in packet:
            found[CLEAR].append(datagram)
            continue
        port = spis[packet[ESP].spi]
        numbers[port] += 1
        found[port].append(ends["outbound"][port].open(datagram, numbers[port]))
    judge("outward", events, found, counters)


def judge(what, events, found, counters):
    """Each way has exactly the fragments that pass, in their order, and each reason its count."""
    passing = collections.defaultdict(list)
    for port, fragment_, reason in events:
        if reason is None:
            passing[CLEAR if port == DISCARDED else port].append(fragment_)
    for port in sorted({*passing, *found}):
        compare_lists(f"{what}, port {port}", passing[port], found[port])
    compare_drops(what, collections.Counter(reason for _, _, reason in events if reason), counters["drops"])
    print(f"{what}: {len(events)} fragments, {sum(map(len, found.values()))} passed")


def inward(gateway, ends, rng):
    events = Scenarios(True, rng).play().events
    events += crossed(rng)
    given, numbers = [], collections.Counter()
    for port, fragment_, _ in events:
        if port in TUNNELS:
            numbers[port] += 1
            fragment_ = ends["inbound"][port].seal(ip(fragment_), numbers[port])
        given.append(fragment_)
    forwarded, back, counters = gateway.replay("unprotected", given)
    if back:
        fail(f"{len(back)} packets were sent back")
    # What came out does not say which way it came: each way has Identifications of its own.
    ways = {fragment_: CLEAR if port == DISCARDED else port for port, fragment_, _ in events}
    found = collections.defaultdict(list)
    for packet in forwarded:
        if packet not in ways:
            fail("a packet came out that did not go in", packet=packet)
        found[ways[packet]].append(packet)
    judge("inward", events, found, counters)


def crossed(rng):
    """7.4: a first fragment in clear decides nothing for what comes through a tunnel, nor the other way round."""
    scenarios = Scenarios(True, rng)
    scenarios.identification = 0x8000
    for version in (4, 6):
        for one, other in ((CLEAR, AGREED), (AGREED, CLEAR)):
            parts = scenarios.parts(version, one)
            scenarios.event(one, parts[0], True)
            scenarios.event(other, parts[1], False)
            scenarios.event(one, parts[2], True)
    return scenarios.events


def prepare(program, folder):
    configuration = folder / "gateway.toml"
    configuration.write_text(CONFIGURATION + "".join(tunnel_text(port) for port in TUNNELS))
    for port in TUNNELS:
        for direction, mark in (("out", 0), ("in", 128)):
            path = folder / f"{port}-{direction}.key"
            path.touch(mode=0o600)
            path.write_text(bytes(mark ^ port & 0xFF ^ at for at in range(KEY_BYTES)).hex())
    gateway = Gateway.__new__(Gateway)
    gateway.program, gateway.configuration, gateway.folder = program, configuration, folder
    ends = {
        "outbound": {port: End(table(port), "outbound", *OUTER, folder) for port in TUNNELS},
        "inbound": {port: End(table(port), "inbound", *reversed(OUTER), folder) for port in TUNNELS},
    }
    return gateway, ends


def main(program, folder, seed):
    gateway, ends = prepare(program, pathlib.Path(folder))
    rng = random.Random(seed)
    outward(gateway, ends, rng)
    inward(gateway, ends, rng)


if __name__ == "__main__":
    main(*sys.argv[1:])
