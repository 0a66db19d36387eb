"""Judges the virtual DPDK device with inline cryptography: Scapy, on OpenSSL, opens what it seals and seals
what it opens; its limits and its ways to fail are those that twin.h names.

usage: judge.py FOLDER     with libtestudo-dpdk-twin.so and dpdk-twin-player
"""

import ipaddress
import os
import random
import subprocess
import sys

from scapy.layers.inet import IP, UDP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.ipsec import ESP, SecurityAssociation
from scapy.layers.l2 import Ether
from scapy.packet import Raw

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../scapy"))
import algorithms  # noqa: F401, E402: AES-GMAC, which Scapy lacks

FOLDER = os.path.realpath(sys.argv[1])
ICV = 16


class Player:
    """A process with two devices and a cable, or one that receives what it sends."""

    def __init__(self, *arguments):
        count = max(1, len(arguments))
        names = [f"net_testudo_twin{i}" for i in range(count)]
        eal = ["--no-huge", "-m", "128", "--no-pci", "--no-telemetry", "-l", "0", "--no-shconf",
               "--log-level=lib.eal:error", "-d", f"{FOLDER}/libtestudo-dpdk-twin.so"]
        for i, name in enumerate(names):
            peer = f",peer={names[1 - i]}" if count == 2 else ""
            own = f",{arguments[i]}" if i < len(arguments) and arguments[i] else ""
            eal += ["--vdev", f"{name}{peer}{own}"]
        self.process = subprocess.Popen(
            [f"{FOLDER}/dpdk-twin-player", *eal], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for port in range(count):
            self.expect("ok", "start", port)

    def say(self, *words):
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the player died at {words[:6]}: {self.process.wait()}"
        return answer.strip()

    def expect(self, answer, *words):
        said = self.say(*words)
        assert said == answer, f"{words[:6]}: {said}, not {answer}"

    def counter(self, port, name):
        return int(self.say("counter", port, name))

    def end(self):
        self.process.stdin.close()
        assert self.process.wait() == 0


class Sa:
    """One SA, at Scapy and at devices."""

    def __init__(self, algorithm, spi, tunnel, seed):
        dice = random.Random(seed)
        self.spi, self.tunnel, self.algorithm = spi, tunnel, algorithm
        self.key, self.salt = dice.randbytes(16), dice.randbytes(4)
        name = {"gcm": "AES-GCM", "gmac": "AES-GMAC"}[algorithm]
        self.scapy = SecurityAssociation(ESP, spi=spi, crypt_algo=name, crypt_key=self.key + self.salt,
                                         tunnel_header=tunnel)

    def at(self, player, port, direction):
        return player.say(
            "session", port, direction, self.algorithm, self.spi, self.key.hex(), self.salt.hex())

    def at_both(self, player):
        """Sent at port 0, received at port 1: the session and the rule's number."""
        out, into = self.at(player, 0, "out"), self.at(player, 1, "in")
        rule = player.say("rule", 1, into, packed(self.tunnel.dst).hex())
        assert "refused" not in (out, into, rule)
        return out


def packed(address):
    return ipaddress.ip_address(address).packed


def frame_of(packet):
    kind = 0x86DD if packet.version == 6 else 0x0800
    return bytes(Ether(dst="02:00:00:00:00:02", src="02:00:00:00:00:01", type=kind) / packet)


def l3_bytes(sealed):
    return 40 if sealed.version == 6 else 20


def unsealed(sa, inner, sequence):
    """What a gateway lays out for the device: all of an ESP packet but cryptography, its ICV zeroed."""
    sealed = sa.scapy.encrypt(inner, seq_num=sequence, iv=sequence.to_bytes(8, "big"))
    at = l3_bytes(sealed)
    header = bytes(sealed)[:at]
    inner_bytes = bytes(inner)
    padding = -(len(inner_bytes) + 2) % 4
    text = inner_bytes + bytes(range(1, padding + 1)) + bytes([padding, 41 if inner.version == 6 else 4])
    esp = sa.spi.to_bytes(4, "big") + sequence.to_bytes(4, "big") + sequence.to_bytes(8, "big")
    whole = header + esp + text + bytes(ICV)
    assert len(whole) == len(bytes(sealed)), "Scapy pads as RFC 4303 says, to four bytes"
    return sealed, whole


def as_frame(packet_bytes):
    kind = b"\x86\xdd" if packet_bytes[0] >> 4 == 6 else b"\x08\x00"
    return bytes.fromhex("020000000002020000000001") + kind + packet_bytes


TUNNELS = [IP(src="192.0.2.1", dst="192.0.2.2"), IPv6(src="2001:db8::1", dst="2001:db8::2")]


def inner_packet(dice, bytes_):
    if dice.random() < 0.5:
        return IP(src="10.1.0.1", dst="10.2.0.1") / UDP(sport=7, dport=9) / Raw(dice.randbytes(bytes_))
    return IPv6(src="fd00:1::1", dst="fd00:2::1") / TCP(sport=7, dport=9) / Raw(dice.randbytes(bytes_))


def seals_and_opens_as_scapy():
    """Bytes equal Scapy's on the cable, also in several segments; and Scapy's packets are opened."""
    loop, pair, dice = Player(), Player("", ""), random.Random(7)
    compared = 0
    for number, (algorithm, tunnel) in enumerate((a, t) for a in ("gcm", "gmac") for t in TUNNELS):
        sa = Sa(algorithm, 0x1000 + number, tunnel, number)
        # The loop's device has no inbound SA: what it receives is what is on the cable.
        out, paired = sa.at(loop, 0, "out"), sa.at_both(pair)
        for sequence, size in enumerate([0, 1, 2, 3, 64, 255, 1000, 1380], 1):
            loop.expect("ok", "split", [65535, 61][sequence % 2])
            inner = inner_packet(dice, size)
            expected, whole = unsealed(sa, inner, sequence)
            loop.expect("sent", "send", 0, out, l3_bytes(expected), as_frame(whole).hex())
            mark, wire = loop.say("receive", 0).split()
            assert mark == "plain" and bytes.fromhex(wire)[14:] == bytes(expected), (algorithm, size)
            opened = sa.scapy.decrypt(type(expected)(bytes.fromhex(wire)[14:]))
            assert bytes(opened) == bytes(inner)
            # Sealed by one device and opened by the other: as it was laid out, but for the ICV.
            pair.expect("sent", "send", 0, paired, l3_bytes(expected), as_frame(whole).hex())
            mark, text = pair.say("receive", 1).split()
            assert mark == "secured" and bytes.fromhex(text)[:-ICV] == as_frame(whole)[:-ICV]
            # Sealed by Scapy, in a padded frame where it is short; then with one bit wrong.
            pair.expect("sent", "send", 0, "-", 0, (as_frame(bytes(expected)) + bytes(sequence % 3)).hex())
            mark, text = pair.say("receive", 1).split()
            assert mark == "secured" and bytes.fromhex(text)[:len(whole) + 14 - ICV] == as_frame(whole)[:-ICV]
            forged = bytearray(as_frame(bytes(expected)))
            forged[-1 - dice.randrange(len(whole) - l3_bytes(expected) - 4)] ^= 1 << dice.randrange(8)
            pair.expect("sent", "send", 0, "-", 0, forged.hex())
            assert pair.say("receive", 1).startswith("secured-failed")
            compared += 1
    assert pair.say("stats", 0, paired) == "in 0 out 8 errors 0"
    assert pair.counter(1, "rx_refused") == compared
    loop.end()
    pair.end()
    return compared


def leaves_alone_what_an_82599_does():
    """Options, extension headers, fragments, another SPI, another address: received as they came."""
    player, sa = Player("", ""), Sa("gcm", 77, TUNNELS[0], 1)
    sa.at_both(player)
    sealed = sa.scapy.encrypt(inner_packet(random.Random(1), 100), seq_num=1, iv=bytes(8))
    esp = bytes(sealed)[20:]
    others = [
        IP(src="192.0.2.1", dst="192.0.2.3", proto=50) / Raw(esp),
        IP(src="192.0.2.1", dst="192.0.2.2", proto=50, flags="MF") / Raw(esp),
        IP(src="192.0.2.1", dst="192.0.2.2", proto=50, frag=9) / Raw(esp),
        IP(src="192.0.2.1", dst="192.0.2.2", proto=50, options=[b"\x01\x01\x01\x00"]) / Raw(esp),
        IP(src="192.0.2.1", dst="192.0.2.2", proto=50) / Raw(bytes([9]) + esp[1:]),
        IP(src="192.0.2.1", dst="192.0.2.2", proto=50) / Raw(esp[:33]),
        IP(src="192.0.2.1", dst="192.0.2.2", proto=50, len=9000) / Raw(esp),
        IP(src="192.0.2.1", dst="192.0.2.2") / UDP(sport=4500, dport=4500) / Raw(esp),
        IPv6(src="2001:db8::1", dst="2001:db8::2", nh=0) / Raw(bytes([50, 0, 1, 4, 0, 0, 0, 0]) + esp),
    ]
    for other in others:
        frame = frame_of(other)
        player.expect("sent", "send", 0, "-", 0, frame.hex())
        player.expect(f"plain {frame.hex()}", "receive", 1)
    for short in range(14, 34):
        player.expect("sent", "send", 0, "-", 0, frame_of(sealed)[:short].hex())
        assert player.say("receive", 1).startswith("plain")
    player.end()
    return len(others)


def has_the_bounds_of_an_82599():
    """1,024 SAs each way, 128 addresses, and each comes back when its SA goes."""
    player = Player("", "")
    assert player.say("capabilities", 0) == "out-transport-metadata in-transport out-tunnel-metadata in-tunnel"
    key, salt = bytes(16).hex(), bytes(4).hex()
    outs = [player.say("session", 0, "out", "gcm", spi, key, salt) for spi in range(1, 1025)]
    assert "refused" not in outs
    player.expect("refused", "session", 0, "out", "gcm", 5000, key, salt)
    player.expect("ok", "destroy", 0, outs[500])
    assert player.say("session", 0, "out", "gcm", 5000, key, salt) != "refused"
    # Inbound ones are in no table before their rule.
    ins = [player.say("session", 1, "in", "gcm", spi, key, salt) for spi in range(1, 1027)]
    assert "refused" not in ins
    rules = [player.say("rule", 1, ins[i], packed(f"192.0.2.{i}").hex()) for i in range(128)]
    assert "refused" not in rules
    player.expect("refused", "rule", 1, ins[128], packed("192.0.2.128").hex())
    rules += [player.say("rule", 1, session, packed("192.0.2.0").hex()) for session in ins[128:1024]]
    assert "refused" not in rules
    player.expect("refused", "rule", 1, ins[1024], packed("192.0.2.0").hex())
    # The rule goes with its entry; one whose session went first takes nobody else's.
    player.expect("ok", "unrule", 1, rules[3])
    fresh = player.say("rule", 1, ins[1024], packed("192.0.2.200").hex())
    assert fresh != "refused", "its address is free, too"
    player.expect("ok", "destroy", 1, ins[200])
    again = player.say("session", 1, "in", "gcm", 9000, key, salt)
    assert player.say("rule", 1, again, packed("192.0.2.200").hex()) != "refused"
    player.expect("ok", "unrule", 1, rules[200])
    player.expect("refused", "rule", 1, ins[1025], packed("192.0.2.200").hex())
    # What an 82599 does not do.
    for wrong in [("in", "gcm", 1, bytes(32).hex(), salt), ("out", "gcm", 1, bytes(24).hex(), salt)]:
        player.expect("refused", "session", 1, *wrong)
    player.end()
    return len(outs) + len(rules)


def refuses_packets_that_were_not_laid_out():
    """Without metadata of this very packet, or of an SA that is there, nothing is sent."""
    player = Player("", "")
    sa, other = Sa("gcm", 5, TUNNELS[0], 5), Sa("gcm", 6, TUNNELS[0], 6)
    out, wrong = sa.at_both(player), other.at(player, 0, "out")
    expected, whole = unsealed(sa, inner_packet(random.Random(2), 90), 1)
    player.expect("sent", "send", 0, wrong, 20, as_frame(whole).hex())
    player.expect("sent", "send", 0, out, 21, as_frame(whole).hex())
    player.expect("sent", "send", 0, out, 20, as_frame(whole)[:60].hex())
    assert player.counter(0, "tx_bad_packet") == 3
    player.expect("ok", "destroy", 0, wrong)
    player.expect("no metadata", "send", 0, wrong, 20, as_frame(whole).hex())
    player.expect("nothing", "receive", 1)
    player.end()
    return 4


def lies_as_it_is_told():
    """Each way to lie does what its name says, every second time, and is counted."""
    sa, dice = Sa("gcm", 9, TUNNELS[0], 9), random.Random(9)
    inner = inner_packet(dice, 200)
    expected, whole = unsealed(sa, inner, 1)
    laid_out, sealed = as_frame(whole)[:-ICV], as_frame(bytes(expected))
    flipped = bytearray(laid_out)
    flipped[14 + 20 + 16] ^= 1
    at_receiver = {
        "unmarked": ("plain", laid_out), "marked": ("secured", sealed[:-ICV]),
        "failed": ("secured-failed", laid_out), "plaintext": ("secured", bytes(flipped)),
    }
    for lie, (mark, content) in at_receiver.items():
        player = Player("", f"lie={lie},lie_every=2")
        sa.at_both(player)
        for turn in range(1, 7):
            player.expect("sent", "send", 0, "-", 0, sealed.hex())
            found, text = player.say("receive", 1).split()
            expectation = (mark, content) if turn % 2 == 0 else ("secured", laid_out)
            assert (found, bytes.fromhex(text)[:-ICV]) == expectation, (lie, turn)
        assert player.counter(1, "lies") == 3
        player.end()
    for lie in ("ciphertext", "unsealed"):
        player = Player(f"lie={lie}")
        out = sa.at(player, 0, "out")
        player.expect("sent", "send", 0, out, 20, as_frame(whole).hex())
        text = bytes.fromhex(player.say("receive", 0).split()[1])
        if lie == "unsealed":
            assert text == as_frame(whole)
        else:
            assert text != sealed and bytes(a ^ b for a, b in zip(text, sealed)).count(0) == len(text) - 1
        player.end()
    return 6 * len(at_receiver) + 2


def fails_and_resets():
    """Every third session is refused; after ten packets all SAs are gone, until the device is reset."""
    player, sa = Player("fail_session=3,reset_after=10", ""), Sa("gcm", 3, TUNNELS[0], 3)
    made = [sa.at(player, 0, "out") for _ in range(9)]
    assert [m == "refused" for m in made] == [False, False, True] * 3
    expected, whole = unsealed(sa, inner_packet(random.Random(3), 60), 1)
    sent = [player.say("send", 0, made[0], 20, as_frame(whole).hex()) for _ in range(11)]
    assert sent == ["sent"] * 10 + ["no metadata"], sent
    assert (player.say("events", 0), player.counter(0, "resets")) == ("1", 1)
    player.expect("kept", "send", 0, "-", 0, as_frame(whole).hex())
    player.expect("refused", "session", 0, "out", "gcm", 8, bytes(16).hex(), bytes(4).hex())
    player.expect("ok", "reset", 0)
    player.expect("ok", "start", 0)
    player.expect("ok", "destroy", 0, made[0])
    out = sa.at(player, 0, "out")
    player.expect("sent", "send", 0, out, 20, as_frame(whole).hex())
    player.end()
    return 12


def main():
    for judge in (seals_and_opens_as_scapy, leaves_alone_what_an_82599_does, has_the_bounds_of_an_82599,
                  refuses_packets_that_were_not_laid_out, lies_as_it_is_told, fails_and_resets):
        print(f"{judge.__name__}: {judge()}")


main()
