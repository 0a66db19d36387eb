"""Rows of the matrix of interoperability, with Scapy as the peer: each is a tunnel between Testudo and Scapy's own security associations.

    rows.py PROGRAM CONFIGURATION SEED [ENGINE]

Prints a line of JSON for each `[[tunnel]]` of the configuration: its name, and why its row does not pass, or nothing. Through each go, both
ways: pings, a stream of TCP, and a datagram of UDP of 5,000 bytes, which needs fragments; in tunnel mode with IPv4 and IPv6 inside, in
transport mode between the hosts' own addresses. A row passes if all arrives unchanged and no SA of it has dropped anything. Where an engine
is named, no row passes unless the packet scheduler has given it every packet.
"""

import collections
import json
import random
import struct
import sys

from encapsulations import End, numbers_from
from fragments import cut
from gateway import IP, Gateway, ip
from scapy.layers.inet import ICMP, TCP, UDP, defragment
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6, IPv6ExtHdrFragment, defragment6
from scapy.packet import Raw

UDP_BYTES = 5000
TCP_SEGMENTS, SEGMENT_BYTES = 4, 1000
PINGS = 3
# Bytes of a packet that a host cuts a datagram into, as on a link of 1,280 bytes.
HOST_FRAGMENT = 1200
# Bytes of payload in each fragment of a datagram of the peer's.
PEER_FRAGMENT = 1400
PROTOCOL_ESP, PROTOCOL_AH, FRAGMENT_HEADER = 50, 51, 44


class Broken(Exception):
    """Why a row does not pass."""


class Row:
    """A `[[tunnel]]`, its hosts, and the peer's SAs."""

    def __init__(self, table, folder):
        self.name, self.table = table["name"], table
        self.outbound = End(table, "outbound", table["local"], table["remote"], folder)
        self.inbound = End(table, "inbound", table["remote"], table["local"], folder)
        self.first = table["known_answer"]["next_sequence_number"]
        self.in_transport = table["mode"] == "transport"
        if self.in_transport:
            self.hosts = [(table["local"], table["remote"])]
        else:
            self.hosts = [tuple(selector[end].split("/")[0][:-1] + "9" for end in ("local", "remote")) for selector in table["selectors"]]

    def key(self):
        """What a datagram of ours shows of its SA."""
        spi = self.table["outbound"]["ah_spi" if self.table["protocol"] == "ah+esp" else "spi"]
        return (self.table["local"], self.table["remote"]), spi

    def datagrams(self, source, destination, chooser):
        """What a host sends: whole datagrams, before anything cuts them."""
        for layer in self.layers(":" in source, chooser):
            if ":" in source:
                yield bytes(IPv6(src=source, dst=destination, hlim=64) / layer)
            else:
                yield bytes(IP(src=source, dst=destination, ttl=64, id=chooser.randrange(1, 65536)) / layer)

    def layers(self, ipv6, chooser):
        for sequence in range(PINGS):
            data = chooser.randbytes(56 + 7 * sequence)
            yield ICMPv6EchoRequest(id=7, seq=sequence, data=data) if ipv6 else ICMP(id=7, seq=sequence) / Raw(data)
        for segment in range(TCP_SEGMENTS):
            tcp = TCP(sport=5000, dport=80, flags="PA", seq=1 + segment * SEGMENT_BYTES, ack=1)
            yield tcp / Raw(chooser.randbytes(SEGMENT_BYTES))
        yield UDP(sport=5000, dport=53) / Raw(chooser.randbytes(UDP_BYTES))

    def given(self, chooser):
        """What our hosts give to the gateway, long datagrams in their own fragments; and the datagrams."""
        packets, whole = [], []
        for ours, theirs in self.hosts:
            for datagram in self.datagrams(ours, theirs, chooser):
                whole.append(datagram)
                packets += [datagram] if len(datagram) <= 1280 else cut(datagram, HOST_FRAGMENT, chooser.randrange(1, 65536))
        return packets, whole

    def sealed(self, chooser):
        """What the peer sends: every datagram sealed, and cut where it is long; and the datagrams."""
        datagrams, whole = [], []
        numbers = numbers_from(self.first)
        for ours, theirs in self.hosts:
            for datagram in self.datagrams(theirs, ours, chooser):
                whole.append(datagram)
                identification = chooser.randrange(1, 65536)
                self.inbound.identify(identification)
                outer = self.inbound.seal(ip(datagram), next(numbers))
                if len(outer) <= 1500:
                    datagrams.append(outer)
                else:
                    # AH over IPv4 covers the Identification, which is the packet's own in transport mode.
                    if outer[0] >> 4 == 4:
                        identification = struct.unpack("!H", outer[4:6])[0]
                    datagrams += cut(outer, PEER_FRAGMENT, identification)
        return datagrams, whole

    def opened(self, datagrams):
        """What Scapy makes of what left for it."""
        packets = []
        for number, datagram in enumerate(datagrams, self.first):
            try:
                packets.append(self.outbound.open(datagram, number))
            except Exception as error:
                raise Broken(f"Scapy refuses packet {number}: {type(error).__name__} {error}") from error
        return packets


def joined(packets):
    """Packets in the order in which they were complete; fragments put together by Scapy."""
    done, parts = [], collections.defaultdict(list)
    for packet in packets:
        layers = ip(packet)
        if layers.version == 4:
            is_part, more, key = layers.flags.MF or layers.frag, layers.flags.MF, (layers.src, layers.dst, layers.proto, layers.id)
        else:
            # Not that of a packet within, which AH does not hide.
            piece = layers[IPv6ExtHdrFragment] if layers.nh == FRAGMENT_HEADER else None
            is_part, more, key = piece is not None, piece is not None and piece.m, (layers.src, layers.dst, piece and piece.id)
        if not is_part:
            done.append(packet)
            continue
        parts[key].append(packet)
        if not more:
            done.append(whole_of(parts.pop(key)))
    if parts:
        raise Broken(f"{sum(map(len, parts.values()))} fragments of {len(parts)} datagrams are without a last one")
    return done


def whole_of(fragments):
    packets = [ip(fragment) for fragment in fragments]
    if packets[0].version == 4:
        whole = [bytes(packet) for packet in defragment(packets)]
        if len(whole) != 1:
            raise Broken(f"{len(packets)} fragments become {len(whole)} packets")
        return whole[0]
    first = packets[0]
    # Scapy keeps the length of the first fragment, and what was behind the fragment header only as a number.
    payload = bytes(defragment6(packets))[40:]
    return bytes(IPv6(src=first.src, dst=first.dst, tc=first.tc, fl=first.fl, hlim=first.hlim, nh=first[IPv6ExtHdrFragment].nh, plen=len(payload))) + payload


def essence(packet):
    """What must arrive: addresses, protocol and payload. Hosts' fragments lose the rest when they are put together."""
    layers = ip(packet)
    protocol = layers.proto if layers.version == 4 else layers.nh
    header_bytes = layers.ihl * 4 if layers.version == 4 else 40
    return f"{layers.src} {layers.dst} {protocol}", packet[header_bytes:]


def compare(what, expected, found):
    expected, found = ([essence(packet) for packet in packets] for packets in (expected, found))
    if len(expected) != len(found):
        raise Broken(f"{what}: {len(expected)} datagrams were sent, {len(found)} came")
    # AH over ESP passes the engines twice, so that its packets come out behind others of the same burst.
    for sent, came in zip(sorted(expected), sorted(found)):
        if sent != came:
            raise Broken(f"{what}: {sent[0]}, {len(sent[1])} bytes, came as {came[0]}, {len(came[1])} bytes, or changed")


def spi_of(datagram):
    """Outer addresses and SPI of ESP, AH, or ESP in UDP."""
    layers = ip(datagram)
    protocol, start = (layers.proto, layers.ihl * 4) if layers.version == 4 else (layers.nh, 40)
    start += {PROTOCOL_ESP: 0, PROTOCOL_AH: 4}.get(protocol, 8)
    return (layers.src, layers.dst), struct.unpack("!L", datagram[start:start + 4])[0]


class Verdicts:
    """Why each row does not pass: the first reason counts."""

    def __init__(self, rows):
        self.reasons = {row.name: "" for row in rows}

    def judge(self, row, what):
        """Runs a judgement of a row."""
        try:
            what()
        except Broken as error:
            self.reasons[row.name] = self.reasons[row.name] or str(error)

    def count_drops(self, counters):
        for sa in counters["sas"]:
            drops = {reason: count for reason, count in sa["drops"].items() if count}
            if drops and sa["tunnel"] in self.reasons:
                self.reasons[sa["tunnel"]] = self.reasons[sa["tunnel"]] or f"the {sa['direction']} SA dropped {drops}"

    def count_engine(self, engine, counters):
        """Every job of every SA, of AH and of ESP, must have been this engine's."""
        carried = sum(sa["packets"] or 0 for sa in counters["sas"])
        taken = counters["scheduler"].get(engine, {}).get("packets", 0)
        if taken < carried or not carried:
            self.reasons = {name: reason or f"{engine} took {taken} of {carried} packets" for name, reason in self.reasons.items()}


def judge_outbound(gateway, rows, verdicts, chooser, engine):
    given = {row.name: row.given(chooser) for row in rows}
    left, _, counters = gateway.replay("protected", [packet for packets, _ in given.values() for packet in packets])
    verdicts.count_drops(counters)
    if engine:
        verdicts.count_engine(engine, counters)
    by_sa = collections.defaultdict(list)
    for datagram in joined(left):
        by_sa[spi_of(datagram)].append(datagram)
    for row in rows:
        sent = given[row.name][1]
        verdicts.judge(row, lambda: compare("to Scapy", sent, joined(row.opened(by_sa[row.key()]))))


def judge_inbound(gateway, rows, verdicts, chooser, engine):
    sealed = {row.name: row.sealed(chooser) for row in rows}
    came, _, counters = gateway.replay("unprotected", [datagram for datagrams, _ in sealed.values() for datagram in datagrams])
    verdicts.count_drops(counters)
    if engine:
        verdicts.count_engine(engine, counters)
    by_host = collections.defaultdict(list)
    for packet in came:
        layers = ip(packet)
        by_host[(layers.src, layers.dst)].append(packet)
    for row in rows:
        mine = [packet for ours, theirs in row.hosts for packet in by_host[(theirs, ours)]]
        verdicts.judge(row, lambda: compare("from Scapy", sealed[row.name][1], joined(mine)))


def main(program, configuration, seed, engine=None):
    chooser = random.Random(int(seed))
    gateway = Gateway(program, configuration)
    rows = [Row(table, gateway.folder) for table in gateway.table["tunnel"]]
    verdicts = Verdicts(rows)
    judge_outbound(gateway, rows, verdicts, chooser, engine)
    judge_inbound(gateway, rows, verdicts, chooser, engine)
    for name, reason in verdicts.reasons.items():
        print(json.dumps({"tunnel": name, "reason": reason}))


if __name__ == "__main__":
    main(*sys.argv[1:])
