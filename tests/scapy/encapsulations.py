"""Scapy opens what Testudo seals, and seals what Testudo opens: ESP, AH and AH over ESP, in tunnel and transport mode (RFC 4302, RFC 4303).

Usage: encapsulations.py TESTUDO CONFIGURATION SEED
"""

import itertools
import random
import struct
import sys

from gateway import AH_SUITES, IP, Gateway, compare_drops, compare_lists, esp_association, fail, ip
from scapy.layers.inet import ICMP, TCP, UDP, IPOption_NOP, IPOption_Router_Alert, IPOption_RR
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop, PadN, RouterAlert
from scapy.layers.ipsec import AH, AuthAlgo, SecurityAssociation
from scapy.packet import Raw

class OverEsp(AuthAlgo):
    """Scapy 2.5 puts the ICV of AH into ESP where it sees ESP behind AH: this one shows it mere bytes there."""

    def __init__(self, inner):
        super().__init__(inner.name, inner.mac, inner.digestmod, inner.icv_size, inner.key_size)
        self.inner = inner

    def sign(self, pkt, key, esn_en=False, esn=0):
        payload = bytes(pkt[AH].payload)
        pkt[AH].remove_payload()
        return self.inner.sign(pkt / Raw(payload), key, esn_en=esn_en, esn=esn)

    def verify(self, pkt, key, esn_en=False, esn=0):
        self.inner.verify(pkt, key, esn_en=esn_en, esn=esn)


class End:
    """One direction of a tunnel: an SA, or that of ESP and that of AH around it."""

    def __init__(self, table, direction, source, destination, folder):
        self.protocol = table.get("protocol", "esp")
        self.esn = table["esn"]
        self.version = 6 if ":" in source else 4
        self.udp = table.get("encapsulation") == "esp-in-udp"
        outer = (IPv6 if self.version == 6 else IP)(src=source, dst=destination)
        tunnel = outer if table.get("mode", "tunnel") == "tunnel" else None
        sa = table[direction]
        key = bytes.fromhex((folder / sa["key_file"]).read_text())
        self.associations = []
        if self.protocol == "ah":
            self.associations.append(self.ah(sa["spi"], table["suite"], key, tunnel))
        else:
            self.associations.append(esp_association(sa["spi"], table["suite"], key, tunnel, self.udp, self.esn))
        if self.protocol == "ah+esp":
            key = bytes.fromhex((folder / sa["ah_key_file"]).read_text())
            self.associations.append(self.ah(sa["ah_spi"], table["ah_suite"], key, None))

    def ah(self, spi, name, key, tunnel):
        auth, key_bytes, _ = AH_SUITES[name]
        if len(key) != key_bytes:
            fail(f"a key of {len(key)} bytes for {name}")
        association = SecurityAssociation(AH, spi=spi, auth_algo=auth, auth_key=key, tunnel_header=tunnel, esn_en=self.esn)
        association.auth_algo = OverEsp(association.auth_algo)
        return association

    def identify(self, identification):
        """Gives the datagrams that follow this Identification, where the outer header has one and is not the packet's own."""
        for association in self.associations:
            if association.tunnel_header is not None and self.version == 4:
                association.tunnel_header.id = identification

    def seal(self, packet, number):
        for association in self.associations:
            association.esn = number >> 32
            packet = association.encrypt(packet, seq_num=number & 0xFFFFFFFF, esn_en=self.esn, esn=number >> 32)
            if self.udp:
                # Scapy 2.5 computes it before ESP is there, over IPv4.
                del packet[UDP].len
            packet = ip(bytes(packet))
        return bytes(packet)

    def open(self, datagram, number):
        packet = without_udp(ip(datagram)) if self.udp else ip(datagram)
        for association in reversed(self.associations):
            association.esn = number >> 32
            packet = association.decrypt(packet, verify=True, esn_en=self.esn, esn=number >> 32)
            packet = ip(bytes(packet))
        return bytes(packet)


def without_udp(packet):
    """ESP that was in UDP (RFC 3948), directly in IP. Scapy 2.5 leaves the UDP header before what it opens in transport mode over IPv6."""
    esp = packet[UDP].payload
    packet.remove_payload()
    if packet.version == 4:
        packet.proto = 50
        del packet.len, packet.chksum
    else:
        packet.nh = 50
        del packet.plen
    return ip(bytes(packet / esp))


class Tunnel:
    def __init__(self, table, folder):
        self.name, self.table = table["name"], table
        self.outbound = End(table, "outbound", table["local"], table["remote"], folder)
        self.inbound = End(table, "inbound", table["remote"], table["local"], folder)
        self.first = table["known_answer"]["next_sequence_number"]
        if table.get("mode", "tunnel") == "transport":
            self.ends = (table["local"], table["remote"])
        else:
            # A host in each network.
            self.ends = tuple(table["selectors"][0][end].split("/")[0][:-1] + "9" for end in ("local", "remote"))

    def packets(self, source, destination, chooser):
        """Packets of every length modulo an alignment, with each of what AH treats specially."""
        result = []
        for length in [*range(0, 33), 200, 1200]:
            payload = chooser.randbytes(length)
            if ":" in source:
                header = IPv6(src=source, dst=destination, tc=0xB8, fl=0x12345, hlim=chooser.randrange(2, 255))
                ping = ICMPv6EchoRequest(id=7, seq=length, data=payload)
            else:
                header = IP(src=source, dst=destination, tos=0xB8, id=chooser.randrange(1, 65536), ttl=chooser.randrange(2, 255))
                ping = ICMP(id=7, seq=length) / Raw(payload)
            layers = [ping, UDP(sport=5000, dport=53) / Raw(payload), TCP(sport=5000, dport=80, flags="A") / Raw(payload)]
            result.append(bytes(header / layers[length % 3]))
        udp = UDP(sport=5000, dport=53) / Raw(b"behind options")
        if ":" in source:
            hop = IPv6ExtHdrHopByHop(options=[RouterAlert(), PadN(optdata=b"\0\0")])
            end = IPv6ExtHdrDestOpt(options=[PadN(optdata=b"\0" * 4)])
            result.append(bytes(header / hop / udp))
            # Scapy leaves destination options before AH and ESP; Testudo puts them behind (RFC 4303 3.1.1 allows both).
            if self.table.get("mode", "tunnel") == "tunnel":
                result.append(bytes(header / hop / end / udp))
        else:
            options = [IPOption_Router_Alert(), IPOption_NOP(), IPOption_RR(length=7, pointer=4, routers=["0.0.0.0"])]
            result.append(bytes(IP(src=source, dst=destination, id=9, options=options) / udp))
        return result

    def __str__(self):
        return f"tunnel {self.name}"


def numbers_from(first):
    """Sequence numbers but those whose low half is 0, for which Scapy 2.5 takes its own count."""
    return (number for number in itertools.count(first) if number & 0xFFFFFFFF)


def travelled(datagram, chooser):
    """As it arrives behind routers: time to live, DSCP and congestion marks have changed, which AH leaves out (RFC 4302 3.3.3.1)."""
    packet = ip(datagram)
    if packet.version == 4:
        packet.ttl, packet.tos = chooser.randrange(1, 255), packet.tos ^ 0x20
        del packet.chksum
    else:
        packet.hlim, packet.tc, packet.fl = chooser.randrange(1, 255), packet.tc ^ 0x20, chooser.randrange(1 << 20)
    return bytes(packet)


def is_transport(packet):
    """Whether a packet that came out is between hosts in transport mode: these have the addresses of the gateways."""
    version = packet[0] >> 4
    source = packet[12:15] if version == 4 else packet[8:12]
    return source in (bytes([192, 0, 2]), bytes.fromhex("20010db8"))


def normal(packet, in_transport):
    """What transport mode and AH must keep of a packet: all but fields that routers change, which `travelled` changed."""
    packet = bytearray(packet)
    if in_transport:
        if packet[0] >> 4 == 4:
            packet[1] = packet[8] = 0
            packet[10:12] = b"\0\0"
        else:
            packet[:4], packet[7] = b"\x60\0\0\0", 0
    return bytes(packet)


def gateway_and_tunnels(program, configuration):
    gateway = Gateway(program, configuration)
    return gateway, [Tunnel(table, gateway.folder) for table in gateway.table["tunnel"]]


def main():
    program, configuration, seed = sys.argv[1:]
    chooser = random.Random(int(seed))
    gateway, tunnels = gateway_and_tunnels(program, configuration)
    sealed_count = opened_count = 0

    sent = [(t, p) for t in tunnels for p in t.packets(*t.ends, chooser)]
    sealed, back, counters = gateway.replay("protected", [packet for _, packet in sent])
    compare_drops("sealing", {}, {r: n for r, n in counters["drops"].items() if n} if "drops" in counters else {})
    if len(sealed) != len(sent):
        fail(f"{len(sent)} packets were given to be sealed, {len(sealed)} left, {len(back)} came back")
    numbers = {t.name: t.first for t in tunnels}
    for (tunnel, packet), datagram in zip(sent, sealed):
        number = numbers[tunnel.name]
        numbers[tunnel.name] += 1
        in_transport = tunnel.table.get("mode", "tunnel") == "transport"
        try:
            opened = tunnel.outbound.open(travelled(datagram, chooser), number)
        except Exception as error:
            fail(f"{tunnel}: Scapy refuses packet {number}: {type(error).__name__} {error}", packet=packet, datagram=datagram)
        if normal(opened, in_transport) != normal(packet, in_transport):
            fail(f"{tunnel}: packet {number} comes out changed", packet=packet, opened=opened, datagram=datagram)
        sealed_count += 1

    numbered = [
        (number, tunnel, packet)
        for tunnel in tunnels
        for number, packet in zip(numbers_from(tunnel.first), tunnel.packets(*reversed(tunnel.ends), chooser))
    ]
    # All numbers with one high half first: a receiver infers it from what came before (RFC 4303 A2.1), which in a burst is not yet known.
    numbered.sort(key=lambda entry: entry[0] >> 32)
    given = [travelled(tunnel.inbound.seal(ip(packet), number), chooser) for number, tunnel, packet in numbered]
    opened, _, counters = gateway.replay("unprotected", given)
    modes = [tunnel.table.get("mode", "tunnel") == "transport" for _, tunnel, _ in numbered]
    if len(opened) != len(given):
        refused = [(sa["tunnel"], sa["drops"]) for sa in counters["sas"] if sa["drops"]]
        fail(f"{len(given)} datagrams were given, {len(opened)} packets came out: {refused}")
    expected = [normal(packet, mode) for (_, _, packet), mode in zip(numbered, modes)]
    # AH over ESP passes the engines twice, so that its packets come out behind others of the same burst.
    compare_lists("opening", sorted(expected), sorted(normal(packet, is_transport(packet)) for packet in opened))
    opened_count += len(opened)
    print(f"{len(tunnels)} tunnels: {sealed_count} packets opened by Scapy, {opened_count} sealed by Scapy")


if __name__ == "__main__":
    main()
