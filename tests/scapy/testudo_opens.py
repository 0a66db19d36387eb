"""Scapy seals, Testudo opens: exactly the inner packets must be forwarded, and every other packet must be counted
under the right reason.

    testudo_opens.py PROGRAM CONFIGURATION SEED

Where Scapy 2.5 needs help:
- Over IPv4 it writes the length of the UDP header before it appends the ESP packet; it is computed again here.
- Its UDP checksum is always zero; half of the IPv6 datagrams get the right one instead.
- `encrypt(seq_num=0)` and `esn=0` mean "as the SA says", so that numbers are set in the SA.
- It leaves the high half of an extended number out of HMAC; `gateway.py` puts it there.
- In tunnel mode it has no dummy packets, traffic flow confidentiality or foreign next headers: these are sealed in
  transport mode, which is the same for ESP, with the next header given as the outer header's protocol.
"""

import collections
import random
import sys

from gateway import Gateway, compare_drops, compare_lists, fail, ip
from packets import inner_packets, of_length
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.ipsec import _ESPPlain
from scapy.packet import Raw
from window import HALF, Window

ESP_PROTOCOL = 50
NOT_ECT, ECT1, ECT0, CE = range(4)
# The inner field at the tunnel's end, by inner and outer (RFC 6040, figure 4); None: the packet is dropped.
ECN = {
    NOT_ECT: {NOT_ECT: NOT_ECT, ECT0: NOT_ECT, ECT1: NOT_ECT, CE: None},
    ECT0: {NOT_ECT: ECT0, ECT0: ECT0, ECT1: ECT1, CE: CE},
    ECT1: {NOT_ECT: ECT1, ECT0: ECT1, ECT1: ECT1, CE: CE},
    CE: dict.fromkeys(range(4), CE),
}


def set_protocol(header, number):
    setattr(header, "proto" if header.version == 4 else "nh", number)


def set_class(header, traffic_class):
    setattr(header, "tos" if header.version == 4 else "tc", traffic_class)


class Stream:
    """What arrives for one tunnel, together with what must become of it."""

    def __init__(self, tunnel, seed, strangers):
        self.tunnel, self.strangers = tunnel, strangers
        self.header = tunnel.inbound.tunnel_header
        self.rng = random.Random(f"{seed} {tunnel.name}")
        self.window = Window(tunnel.window, tunnel.esn)
        self.datagrams, self.forwarded = [], []
        self.drops = collections.Counter()
        self.inner = []
        for version in sorted(tunnel.networks):
            ours, theirs = tunnel.addresses(version)
            kinds = inner_packets(version, theirs, ours, tunnel.inner_mtu, self.rng)
            # The tunnels that start elsewhere are about numbers: a part of the packets does.
            self.inner += kinds if tunnel.first_number == 1 else kinds[::4]
        self.rng.shuffle(self.inner)

    # Sealing

    def seal(self, number, payload, next_header=None, outer_class=0):
        """The datagram that carries `payload` under a number: in tunnel mode unless a next header is given."""
        sa = self.tunnel.inbound
        sa.esn, sa.seq_num = divmod(number, HALF)
        outer = self.header.copy()
        set_class(outer, outer_class)
        iv = self.rng.randbytes(self.tunnel.suite.iv_bytes)
        if next_header is None:
            sa.tunnel_header = outer
            datagram = sa.encrypt(ip(payload), iv=iv)
        else:
            sa.tunnel_header = None
            set_protocol(outer, next_header)
            datagram = sa.encrypt(outer.__class__(bytes(outer / Raw(payload))), iv=iv)
        sa.tunnel_header = self.header
        if UDP in datagram:
            del datagram[UDP].len
            if datagram.version == 6 and self.rng.random() < 0.5:
                del datagram[UDP].chksum
        return bytes(datagram)

    def seal_padded(self, number, payload, next_header, padding, announced):
        """The same with any padding and pad length: Scapy's algorithms offer that, its SA does not."""
        sa = self.tunnel.inbound
        high, low = divmod(number, HALF)
        iv = self.rng.randbytes(self.tunnel.suite.iv_bytes)
        plain = _ESPPlain(spi=sa.spi, seq=low, iv=iv, nh=next_header, data=Raw(payload))
        plain.padding, plain.padlen = padding, announced
        sa.esn = high
        esp = sa.crypt_algo.encrypt(sa, plain, sa.crypt_key, esn_en=sa.esn_en, esn=high)
        return self.wrap(bytes(sa.auth_algo.sign(esp, sa.auth_key)))

    def wrap(self, esp, udp=None):
        """Outer headers around the bytes of an ESP packet; with UDP as the tunnel has it unless told otherwise."""
        outer = self.header.copy()
        if self.tunnel.udp if udp is None else udp:
            return bytes(outer / UDP(sport=4500, dport=4500, chksum=0) / Raw(esp))
        set_protocol(outer, ESP_PROTOCOL)
        return bytes(outer / Raw(esp))

    # Arrivals: each notes what must happen

    def deliver(self, number, datagram, verdict):
        """An authentic datagram. `verdict` is the packet to be forwarded or, as text, a reason to drop it."""
        self.datagrams.append(datagram)
        inferred = self.window.infer(number % HALF)
        reason = self.window.refusal(inferred)
        if reason is None and inferred != number:
            reason = "authentication_failed"  # another high half was authenticated
        if reason is None:
            self.window.accept(number)
            if isinstance(verdict, bytes):
                self.forwarded.append(verdict)
                return
            reason = verdict
        self.drops[reason] += 1

    def refuse(self, datagram, reason):
        """A datagram that must not be forwarded and must not move the window."""
        self.datagrams.append(datagram)
        self.drops[reason] += 1

    def refuse_forged(self, datagram, low):
        """One that is not authentic, whose sequence number is still looked at first."""
        self.refuse(datagram, self.window.refusal(self.window.infer(low)) or "authentication_failed")

    def genuine(self, number, inner=None):
        inner = inner or self.rng.choice(self.inner)
        inner_class = inner[1] if inner[0] >> 4 == 4 else ip(inner).tc
        self.deliver(number, self.seal(number, inner, outer_class=inner_class), inner)

    # The play

    def play(self):
        origin = 0 if self.tunnel.first_number == 1 else HALF - 3 * self.tunnel.window
        if origin and not self.tunnel.esn:
            origin -= 5 * self.tunnel.window + 4096  # everything stays below the last number
        self.window_edges(origin)
        self.random_order()
        self.odd_packets()
        for inner in self.inner:
            if self.rng.random() < 0.3:
                self.attack()
            self.genuine(self.window.top + 1, inner)
        if not self.tunnel.esn:
            self.last_numbers()
        return self

    def window_edges(self, origin):
        """First numbers, both edges of the window, duplicates, leaps by one window and more."""
        size = self.tunnel.window
        offsets = [0, 1, 2, 2, 1, 0, size, 1, size + 1, 1, 2, 3, 3]
        offsets += [3 * size, 2 * size + 1, 2 * size, 2 * size + 1, 3 * size, 3 * size - 1, 3 * size + 1]
        offsets += [2 * size + 1, 2 * size + 2, 4 * size, 4 * size + 1, 4 * size + 64, 3 * size + 64, 3 * size + 65]
        for offset in offsets:
            self.genuine(origin + offset)

    def random_order(self):
        """From just below the window to just above it."""
        for _ in range(40):
            number = self.window.top + self.rng.randint(-self.tunnel.window - 2, 3)
            self.genuine(max(number, 0))

    def last_numbers(self):
        """Without ESN the window ends at 2^32 - 1, and nothing follows."""
        size = self.tunnel.window
        for number in (HALF - 1, HALF - 1, HALF - size, HALF - 1 - size, 1, 0):
            self.genuine(number)

    def odd_packets(self):
        """Authentic packets of unusual shape: ECN in all its combinations, TFC, dummies, paddings, wrong insides."""
        for version, networks in self.tunnel.networks.items():
            ours, theirs = self.tunnel.addresses(version)
            self.ecn(version, theirs, ours)
            protocol = {4: 4, 6: 41}[version]
            plain = self.plain(version, theirs, ours)
            foreign = self.strangers.addresses(version)
            for payload, next_header, verdict in [
                (plain + bytes(200), protocol, plain),  # traffic flow confidentiality (RFC 4303 2.7)
                (plain + self.rng.randbytes(3), protocol, plain),
                (b"", 59, "dummy_packet"),
                (self.rng.randbytes(500), 59, "dummy_packet"),
                (plain, 17, "bad_next_header"),
                (plain, {4: 41, 6: 4}[version], "inner_malformed"),
                (plain[:-1], protocol, "inner_malformed"),
                (plain[:19], protocol, "inner_malformed"),
                (self.plain(version, foreign[1], ours), protocol, "selector_mismatch"),
                (self.plain(version, theirs, foreign[0]), protocol, "selector_mismatch"),
                (self.plain(version, ours, theirs), protocol, "selector_mismatch"),
            ]:
                number = self.window.top + 1
                self.deliver(number, self.seal(number, payload, next_header), verdict)
            self.paddings(plain, protocol)

    def plain(self, version, source, destination):
        return of_length((IP if version == 4 else IPv6)(src=source, dst=destination), 61, self.rng)

    def ecn(self, version, source, destination):
        packets = {}
        for ecn in range(4):
            header = (IP if version == 4 else IPv6)(src=source, dst=destination)
            set_class(header, 46 << 2 | ecn)
            packets[ecn] = bytes(header / UDP())
        for inner, outer in [(i, o) for i in range(4) for o in range(4)]:
            result = ECN[inner][outer]
            number = self.window.top + 1
            datagram = self.seal(number, packets[inner], outer_class=outer)
            self.deliver(number, datagram, "ecn_congestion" if result is None else packets[result])

    def paddings(self, plain, protocol):
        """More padding than needed is right up to 255 bytes; other bytes than 1, 2, 3, … are not (RFC 4303 2.4)."""
        step = self.tunnel.suite.alignment
        least = -(len(plain) + 2) % step
        longest = least + (255 - least) // step * step
        ascending = bytes(range(1, 256))
        cases = [(ascending[:length], length, plain) for length in (least, least + step, longest)]
        cases += [(bytes(least + step), least + step, "bad_padding"), (ascending[:least], 255, "bad_padding")]
        for padding, announced, verdict in cases:
            number = self.window.top + 1
            self.deliver(number, self.seal_padded(number, plain, protocol, padding, announced), verdict)

    def attack(self):
        """One datagram that an attacker could send, made of one that is to come."""
        number = self.window.top + self.rng.randint(1, 5)
        datagram = self.seal(number, self.rng.choice(self.inner))
        esp_at = {4: 20, 6: 40}[self.tunnel.version] + 8 * self.tunnel.udp
        esp = bytearray(datagram[esp_at:])
        choice = self.rng.choice([self.flip, self.cut, self.cut_inside, self.misdirect, self.not_esp, self.clear])
        choice(datagram, esp, number)

    def flip(self, _datagram, esp, number):
        """One bit of number, IV, ciphertext or ICV, or of the SPI."""
        at = self.rng.randrange(len(esp))
        esp[at] ^= 1 << self.rng.randrange(8)
        datagram = self.wrap(bytes(esp))
        if at < 4:
            self.refuse(datagram, "unknown_spi")
        else:
            self.refuse_forged(datagram, int.from_bytes(esp[4:8]))

    def cut(self, _datagram, esp, number):
        """Shortened, with outer headers that agree."""
        length = self.rng.choice([self.rng.randrange(4, 44), self.rng.randrange(4, len(esp))])
        datagram = self.wrap(bytes(esp[:length]))
        text = length - self.tunnel.esp_overhead
        if text <= 0 or text % self.tunnel.suite.alignment:
            self.refuse(datagram, "esp_malformed")
        else:
            self.refuse_forged(datagram, number % HALF)

    def cut_inside(self, datagram, _esp, _number):
        """Shortened on the way: the IP header promises more."""
        self.refuse(datagram[:self.rng.randrange(len(datagram))] or datagram[:1], "truncated")

    def misdirect(self, _datagram, esp, _number):
        """To an SA that nobody has, or in the other encapsulation."""
        if self.rng.random() < 0.5:
            esp[:4] = (0xDEAD0000).to_bytes(4)
            self.refuse(self.wrap(bytes(esp)), "unknown_spi")
        else:
            other = self.wrap(bytes(esp), udp=not self.tunnel.udp)
            self.refuse(other, "wrong_encapsulation")

    def not_esp(self, _datagram, esp, _number):
        """What else comes to port 4500 (RFC 3948 2.2, 2.3)."""
        if self.rng.random() < 0.5:
            self.refuse(self.wrap(b"\xff", udp=True), "nat_keepalive")
        else:
            self.refuse(self.wrap(bytes(4) + bytes(esp), udp=True), "ike_on_esp_port")

    def clear(self, _datagram, _esp, _number):
        """The inner packet without any protection."""
        self.refuse(self.rng.choice(self.inner), "cleartext_for_protected")


# A gateway checks the numbers of a whole batch, then what is authentic, then the numbers again. So where packets of
# one SA share a batch, one that is refused in the end may be refused for either reason.
EITHER = ("replay_too_old", "replay_duplicate", "authentication_failed")
# Four batches of 64: so many are gathered for an engine that wants company.
LARGEST_BATCH = 256


def keepalives(streams, count):
    """What fills a batch without touching any SA."""
    udp = next(stream for stream in streams if stream.tunnel.udp)
    return [udp.wrap(b"\xff")] * count


def together(streams):
    """The datagrams of one tunnel after those of the other, so that a batch has many of one SA.

    Only the first of each stands in an earlier batch: where it leaps by almost 2^32, nobody could infer the high half
    of those that go on from there before it has proved authentic.
    """
    first = [stream.datagrams[0] for stream in streams]
    rest = [datagram for stream in streams for datagram in stream.datagrams[1:]]
    return first + keepalives(streams, LARGEST_BATCH) + rest


def apart(streams):
    """The datagrams of all tunnels in turn, those of one never in the same batch."""
    datagrams = []
    for index in range(max(len(stream.datagrams) for stream in streams)):
        line = [stream.datagrams[index] for stream in streams if index < len(stream.datagrams)]
        datagrams += line + keepalives(streams, LARGEST_BATCH - len(line))
    return datagrams


def check(gateway, streams, datagrams, how, merge=False):
    """Replays the datagrams: exactly the expected packets must be forwarded, the others dropped as expected."""
    drops = sum((stream.drops for stream in streams), collections.Counter())
    drops["nat_keepalive"] += len(datagrams) - sum(len(stream.datagrams) for stream in streams)
    across, back, counters = gateway.replay("unprotected", datagrams)
    for stream in streams:
        found = [packet for packet in across if stream.tunnel.owns(packet)]
        compare_lists(f"{stream.tunnel}, {how}, forwarded packets", stream.forwarded, found)
    if len(across) != sum(len(stream.forwarded) for stream in streams) or back:
        fail(f"{how}: packets for nobody were forwarded, or {len(back)} sent back")
    found = counters["drops"]
    if merge:
        drops, found = merged(drops), merged(found)
    compare_drops(how, drops, found)
    engine = counters["engines"][0]
    print(f"{how}: {len(across)} packets forwarded by {engine}, {sum(drops.values())} dropped, {len(streams)} tunnels")


def merged(drops):
    """The counters with those of `EITHER` in one."""
    rest = {reason: count for reason, count in drops.items() if reason not in EITHER}
    return {**rest, " or ".join(EITHER): sum(drops.get(reason, 0) for reason in EITHER)}


def main(program, configuration, seed):
    gateway = Gateway(program, configuration)
    tunnels = gateway.tunnels
    streams = [
        Stream(tunnel, seed, strangers=tunnels[index - 1]).play() for index, tunnel in enumerate(tunnels)
    ]
    check(gateway, streams, together(streams), "many of an SA in a batch", merge=True)
    check(gateway, streams, apart(streams), "one of an SA in a batch")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
