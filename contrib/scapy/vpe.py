"""Vector Packet Encapsulation for Scapy: the header as a layer, and security associations that seal and open.

The format is specified in docs/VPE.md of Testudo. This file shares no code with Testudo: it is a second implementation, written
from that page, slow and obvious. It needs Scapy 2.5 or newer and the package cryptography.

    >>> from scapy.all import IP, UDP, ICMP
    >>> from vpe import VPE, Association
    >>> sa = Association(spi=0x1000, suite="aes128gcm16", key=bytes(range(16)))
    >>> outer = IP(src="192.0.2.1", dst="192.0.2.2") / UDP(sport=4501, dport=4501)
    >>> packet = outer / sa.seal(IP(dst="10.0.0.1") / ICMP(), window=3)
    >>> sa.open(VPE(bytes(packet[UDP].payload)))
    <IP  version=4 ...

`Association.open` raises `Refused`, whose `reason` is one of the names of docs/VPE.md.
"""

import hashlib
import hmac
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from scapy.fields import LEIntField, LELongField, LEShortField, StrFixedLenField
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet, Raw, bind_layers

PROTOCOL = 253  # RFC 3692: for experiments
PORT = 4501
KEEPALIVE = b"\xff"
HEADER_BYTES = 32
LAST_NUMBER = 2**64 - 1

# By strongSwan's keyword: the AEAD, and the bytes of its key, which is all of the key material.
SUITES = {
    "aes128gcm16": (AESGCM, 16),
    "aes256gcm16": (AESGCM, 32),
    "chacha20poly1305": (ChaCha20Poly1305, 32),
}


class VPE(Packet):
    """The header, all of whose integers are little-endian. What follows is ciphertext."""

    name = "VPE"
    fields_desc = [
        LEShortField("sender", 0),
        LEShortField("window", 0),
        LELongField("number", 1),
        LEIntField("spi", 0),
        StrFixedLenField("icv", bytes(16), length=16),
    ]

    def nonce(self):
        """The first 12 bytes as they stand on the wire."""
        return struct.pack("<HHQ", self.sender, self.window, self.number)

    def guess_payload_class(self, payload):
        return Raw


# The program's ports and protocol number are configured; these are its defaults.
bind_layers(UDP, VPE, dport=PORT)
bind_layers(IP, VPE, proto=PROTOCOL)
bind_layers(IPv6, VPE, nh=PROTOCOL)


def hkdf_sha256(keymat, salt, info, length):
    """RFC 5869, with SHA-256."""
    extracted = hmac.new(salt or bytes(32), keymat, hashlib.sha256).digest()
    block, made, count = b"", b"", 0
    while len(made) < length:
        count += 1
        block = hmac.new(extracted, block + info + bytes([count]), hashlib.sha256).digest()
        made += block
    return made[:length]


def negotiated_key(suite, keymat, spi):
    """The key of an SA that was negotiated as one of ESP, whose cipher key and salt are `keymat`."""
    _, key_bytes = SUITES[suite]
    if len(keymat) != key_bytes + 4:
        raise ValueError("the cipher key and 4 bytes of salt")
    return hkdf_sha256(keymat, b"", b"VPE" + struct.pack("!I", spi), key_bytes)


class Refused(Exception):
    """A packet is dropped, for this reason."""

    def __init__(self, reason):
        super().__init__(reason)
        self.reason = reason


def inner(plaintext):
    """The datagram at the start of a plaintext, without padding after it."""
    if not any(plaintext):
        raise Refused("fill")
    version = plaintext[0] >> 4
    if version == 4 and len(plaintext) >= 20:
        header, length = 4 * (plaintext[0] & 15), struct.unpack("!H", plaintext[2:4])[0]
        if header < 20 or length < header:
            raise Refused("inner_length")
        layer = IP
    elif version == 6 and len(plaintext) >= 40:
        payload = struct.unpack("!H", plaintext[4:6])[0]
        if payload == 0:  # a jumbogram (RFC 2675), or nothing
            raise Refused("inner_length")
        length, layer = 40 + payload, IPv6
    else:
        raise Refused("inner_length" if version in (4, 6) else "inner_version")
    if length > len(plaintext):
        raise Refused("inner_length")
    return layer(plaintext[:length])


class Window:
    """The numbers of one counter that were received: the highest, and those of the last `size`."""

    def __init__(self, size, highest=0):
        self.size, self.highest, self.seen = size, highest, set()

    def check(self, number):
        if number == 0 or number in self.seen:
            raise Refused("replayed")
        if number + self.size <= self.highest:
            raise Refused("too_old")

    def commit(self, number):
        self.highest = max(self.highest, number)
        self.seen = {seen for seen in self.seen | {number} if seen + self.size > self.highest}


class Association:
    """A security association: sealing counts up in each window, opening refuses what was seen.

    `sender` is what this device seals with. `multicast` shares the key among senders with an ID each. `clock` gives seconds.
    """

    def __init__(self, spi, suite, key, sender=0, multicast=False, window_size=1024, windows_max=1024, clock=lambda: 0):
        aead, key_bytes = SUITES[suite]
        if len(key) != key_bytes:
            raise ValueError(f"{suite} has a key of {key_bytes} bytes, not {len(key)}")
        if not multicast and sender != 0:
            raise ValueError("a unicast association has the sender ID 0")
        if not 255 < spi < 2**32:
            raise ValueError("an SPI is between 256 and 4,294,967,295 (RFC 4303 2.1)")
        self.spi, self.aead = spi, aead(key)
        self.sender, self.multicast = sender, multicast
        self.window_size, self.windows_max, self.clock = window_size, windows_max, clock
        self.next = {}  # by window: the number to seal with
        self.windows = {}  # by sender and window: what was received
        self.origins = {}  # by sender: its last outer address and when that was
        self.duplicates = set()  # senders that come from two addresses

    def seal(self, packet, window=0, number=None, padding=0):
        """The packet below VPE, with as many bytes of padding (traffic-flow confidentiality) as asked for."""
        if self.sender in self.duplicates:
            raise Refused("duplicate_sender")
        if number is None:
            number = self.next.get(window, 1)
            if number > LAST_NUMBER:
                raise Refused("numbers_used_up")
            self.next[window] = number + 1
        header = VPE(sender=self.sender, window=window, number=number, spi=self.spi)
        sealed = self.aead.encrypt(header.nonce(), bytes(packet) + bytes(padding), None)
        header.icv = sealed[-16:]
        return header / Raw(sealed[:-16])

    def fill(self, nbytes, window=0):
        """A fill packet: zeros, which the receiver drops."""
        return self.seal(bytes(nbytes), window)

    def open(self, packet, source=None):
        """The inner packet. `source` is the outer source address, by which senders with one ID are told apart."""
        whole = bytes(packet)
        if len(whole) < HEADER_BYTES:
            raise Refused("truncated")
        packet = VPE(whole)
        if packet.spi != self.spi:
            raise Refused("no_sa")
        key = packet.sender, packet.window
        if key in self.windows:
            self.windows[key].check(packet.number)
        try:
            plaintext = self.aead.decrypt(whole[:12], whole[HEADER_BYTES:] + whole[16:HEADER_BYTES], None)
        except InvalidTag:
            raise Refused("icv") from None
        self._judge_sender(packet, source)
        self._window(key, packet.number).commit(packet.number)
        return inner(plaintext)

    def _judge_sender(self, packet, source):
        """What is wrong with the sender of an authentic packet."""
        sender = packet.sender
        if not self.multicast:
            if sender != 0:
                raise Refused("foreign_sender")
            return
        if sender == 0:
            raise Refused("foreign_sender")
        if sender == self.sender:
            # What was sent comes back at times; what was not is another device's.
            if packet.number >= self.next.get(packet.window, max(self.next.values(), default=1)):
                self.duplicates.add(sender)
            raise Refused("own_sender")
        now = self.clock()
        last, when = self.origins.get(sender, (source, now))
        self.origins[sender] = source, now
        if source != last and now - when < 1:
            self.duplicates.add(sender)

    def _window(self, key, number):
        """The window of an authentic packet, made with the first one."""
        window = self.windows.get(key)
        if window is None:
            if len(self.windows) >= self.windows_max:
                raise Refused("too_many_windows")
            window = self.windows[key] = Window(self.window_size)
        window.check(number)
        return window
