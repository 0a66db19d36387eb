"""Published ESP packets, sealed and opened by Testudo.

    official.py PROGRAM FOLDER

- RFC 7634, appendix A: a packet in tunnel mode, which must come out equal to the byte, both ways.
- draft-mcgrew-gcm-test-01, section 4: their trailers say next header 1, as in transport mode, which no gateway in
  tunnel mode sends. So what Testudo seals must be equal but for that byte, which a stream cipher shows in the same
  place, and the ICV, which Scapy checks; and what Testudo opens must be authentic, and dropped for its next header
  and nothing else.

- RFC 3602, section 4, cases 7 and 8: packets in tunnel mode without integrity. Their ciphertext, behind an ICV that Python's hmac
  computes, must open to their packets. (What Testudo seals has an IV that it makes itself: `testudo_seals.py` looks at that.)

An inner packet that can be sent must be a whole IPv4 packet (not so in cases 12 and 13), and a sequence number that
can be received at once has no high half (not so in 5 and 10). Left out are 1, 6, 9 and 11, which are neither; 4, as
SPI 0 is reserved; 7, with a key of 192 bits; 14, with the number 2^64 - 1, before which Testudo stops.
"""

import hashlib
import hmac
import pathlib
import sys

from gateway import Gateway, compare_drops, compare_lists, fail, ip
from scapy.layers.inet import IP
from scapy.layers.ipsec import ESP
from scapy.packet import Raw

IPV4 = 4
ICV_BYTES = 16
OURS, PEER = "192.0.2.1", "192.0.2.2"
GCM = {16: "aes128gcm16", 32: "aes256gcm16"}
CBC = {"aes128-sha1": bytes(range(0x41, 0x41 + 20))}  # with the integrity key that is used here


class Vector:
    """All in hexadecimal: cipher key, salt and IV, SPI, number (16 digits: ESN), plaintext, ciphertext and ICV."""

    def __init__(self, source, key, nonce, spi, number, text, sealed, suite=None):
        self.source, self.key, self.spi = source, bytes.fromhex(key), int(spi, 16)
        self.suite = suite or GCM[len(self.key)]
        salt_bytes = 0 if self.suite in CBC else 4
        # What stands behind the cipher key in the key file.
        self.salt, self.iv = bytes.fromhex(nonce)[:salt_bytes], bytes.fromhex(nonce)[salt_bytes:]
        self.esn, self.number = len(number) == 16, int(number, 16)
        self.text, self.sealed = bytes.fromhex(text), bytes.fromhex(sealed)
        padding, self.next_header = self.text[-2:]
        self.payload = self.text[:len(self.text) - 2 - padding]
        self.esp = self.spi.to_bytes(4) + self.number.to_bytes(8)[4:] + self.iv + self.sealed
        if self.suite in CBC:
            self.salt = CBC[self.suite]
            self.esp += hmac.new(self.salt, self.esp, hashlib.sha1).digest()[:12]

    def is_whole_packet(self):
        return len(self.payload) >= 20 and int.from_bytes(self.payload[2:4]) == len(self.payload)

    def configuration(self):
        seed = 0 if self.suite in CBC else int.from_bytes(self.iv) ^ self.number
        return f"""
[gateway]
state = "state.redb"
[port.protected]
kind = "tun"
name = "testudo0"
[port.unprotected]
kind = "socket"
mtu = 1500
[[tunnel]]
name = "official"
local = "{OURS}"
remote = "{PEER}"
suite = "{self.suite}"
mss_clamp = "off"
esn = {str(self.esn).lower()}
replay_window = 64
selectors = [{{ local = "0.0.0.0/0", remote = "0.0.0.0/0" }}]
outbound = {{ spi = {self.spi}, key_file = "outbound.key" }}
inbound = {{ spi = {self.spi}, key_file = "inbound.key" }}
known_answer = {{ next_sequence_number = {self.number}, iv_seed = {seed} }}
"""


RFC_7634 = Vector(
    "RFC 7634, appendix A", suite="chacha20poly1305",
    key="808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
    nonce="a0a1a2a31011121314151617", spi="01020304", number="00000005",
    text="45000054a6f200004001e778c6336405c000020508005b7a3a080000553bec10"
    "0007362708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223"
    "2425262728292a2b2c2d2e2f303132333435363701020204",
    sealed="24039428b97f417e3c13753a4f05087b67c352e6a7fab1b982d466ef407ae5c6"
    "14ee8099d52844eb61aa95dfab4c02f72aa71e7c4c4f64c9befe2facc638e8f3"
    "cbec163fac469b502773f6fb94e664da9165b82829f641e0"
    "76aaa8266b7fb0f7b11b369907e1ad43",
)

RFC_3602 = [
    Vector(
        "RFC 3602, 4, case 7", suite="aes128-sha1",
        key="0123456789abcdef0123456789abcdef", nonce="f4e765244f6407adf13dc1380f673f37",
        spi="00008765", number="00000002",
        text="45000054090400004001f988c0a87b03c0a87bc808009f76a90a0100b49c083d"
        "02a2040008090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20212223"
        "2425262728292a2b2c2d2e2f30313233343536370102030405060708090a0a04",
        sealed="773b5241a4c449225e4f3ce5ed611b0c237ca96cf74a93013c1b0ea1a0cf70f8"
        "e4ecaec78ac53aad7a0f022b859243c647752e94a859352b8a4d4d2decd136e5"
        "c177f132ad3fbfb2201ac9904c74ee0a109e0ca1e4dfe9d5a100b842f1c22f0d",
    ),
    Vector(
        "RFC 3602, 4, case 8", suite="aes128-sha1",
        key="0123456789abcdef0123456789abcdef", nonce="85d47224b5f3dd5d2101d4ea8dffab22",
        spi="00008765", number="00000005",
        text="45000044090c00004001f990c0a87b03c0a87bc80800d63caa0a0200c69c083d"
        "a3de0300ffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
        "ffffffff0102030405060708090a0a04",
        sealed="15b92683819596a8047232cc00f7048fe45318e11f8a0f62ede3c3fc61203bb5"
        "0f980a08c9843fd3a1b06d5c07ff9639b7eb7dfb3512e5de435e7207ed971ef3"
        "d2726d9b5ef6affc6d17a0decbb13892",
    ),
]

MCGREW = [
    Vector(
        "draft-mcgrew-gcm-test-01, case 2",
        key="feffe9928665731c6d6a8f9467308308", nonce="cafebabefacedbaddecaf888",
        spi="0000a5f8", number="0000000a",
        text="4500003e698f000080114dccc0a80102c0a801010a980035002a2343b2d00100"
        "0001000000000000037369700963796265726369747902646b00000100010001",
        sealed="deb22cd9b07c72c16e3a65beeb8df304a5a5897d33ae530f1ba76d5d114d2a5c"
        "3de81827c10e9a4f51330d0eec416642cfbb85a5b47e48a4ec3b9ba95d918bd1"
        "83b70d3aa8bc6ee4c309e9d85a41ad4a",
    ),
    Vector(
        "draft-mcgrew-gcm-test-01, case 3",
        key="abbccddef00112233445566778899aababbccddef00112233445566778899aab", nonce="112233440102030405060708",
        spi="4a2cbfe3", number="00000002",
        text="4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee000000000"
        "7002400020bf0000020405b40101040201020201",
        sealed="ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763"
        "748a637985771d347f0545659f14e99def842d8eb335f4eecfdbf831824b4c49"
        "15956c96",
    ),
    Vector(
        "draft-mcgrew-gcm-test-01, case 5",
        key="3de09874b388e6491988d0c3607eae1f", nonce="57690e434e280000a2fca1a3",
        spi="42f67e3f", number="1010101010101010",
        text="4500003c99c300008001cb7c40679318010101010800085c0200430061626364"
        "65666768696a6b6c6d6e6f707172737475767761626364656667686901020201",
        sealed="fba2caa4853cf9f0f22cb10d86dd83b0fec75691cf1a04b00d1138ec9c357917"
        "65acbd8701ad79845bf9fe3fba487bc91755e6662b4c8d0d1f5e22739530320a"
        "e0d731cc978ecafaeae88f00e80d6e48",
    ),
    Vector(
        "draft-mcgrew-gcm-test-01, case 8",
        key="abbccddef00112233445566778899aab", nonce="decaf888cafedebaceface74",
        spi="00000100", number="0000000000000001",
        text="4500004933ba00007f119106c3fb1d10c2b1d326c02831ce0035dd7b800302d5"
        "00004e20001e8c18d75b81dc91baa0476b91b924b280389d92c963bac046ec95"
        "9b6266c04722b14923010101",
        sealed="18a6fd42f72cbf4ab2a2ea901f73d814e3e7f243d95412e1c349c1d2fbec168f"
        "9190feebaf2cb01984e65863965d7472b79da345e0e780191f0d2f0e0f496c22"
        "6f2127b27db35724e7845d68651f57e65f354f75ff17015769623436",
    ),
    Vector(
        "draft-mcgrew-gcm-test-01, case 10",
        key="3de09874b388e6491988d0c3607eae1f", nonce="57690e434e280000a2fca1a3",
        spi="42f67e3f", number="1010101010101010",
        text="45000049333e00007f119182c3fb1d10c2b1d326c02831ce0035cb458003025b"
        "000001e0001e8c18d65759d52284a0352c71475c8880391c764d6e5ee0496b32"
        "5ae270c03899493915010101",
        sealed="fba2cad12fc1f9f00d3cebf305410db83d7784b607323d220f24b0a97d541828"
        "00cadb0f68d99ef0e0c0c89ae9bea8884e52d65bc1afd0740f742444747b5b39"
        "ab533163aad4550ee5160975cdb608c5769189609763b8e18caa81e2",
    ),
    Vector(
        "draft-mcgrew-gcm-test-01, case 12",
        key="7d773d00c144c525ac619d18c84a3f47", nonce="d966426743457e9182443bc6",
        spi="335467ae", number="ffffffff",
        text="01020201",
        sealed="437f866bcb3f699fe9b0822bac961c4504bef270",
    ),
    Vector(
        "draft-mcgrew-gcm-test-01, case 13",
        key="abbccddef00112233445566778899aab", nonce="decaf888cafedebaceface74",
        spi="00000100", number="0000000000000001",
        text="746f016265016f72016e6f7401746f0162650001",
        sealed="29c9fc69a197d038ccdd14e2ddfcaa0543332164412503524303ed3c6c5f2838"
        "43af8c3e",
    ),
]


def gateway(program, folder, vector, direction):
    """A gateway with the vector's key for one direction, and some other key for the other one."""
    configuration = folder / "gateway.toml"
    configuration.write_text(vector.configuration())
    key = vector.key + vector.salt
    for name in ("outbound", "inbound"):
        path = folder / f"{name}.key"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text((key if name == direction else bytes(b ^ 0xFF for b in key)).hex())
    return Gateway(program, configuration)


def seal(program, folder, vector):
    """Testudo seals the vector's packet."""
    peer = gateway(program, folder, vector, "outbound")
    across, _, counters = peer.replay("protected", [vector.payload])
    compare_drops(f"{vector.source}, sealing", {}, counters["drops"])
    found = bytes(ip(across[0])[ESP])
    if vector.next_header == IPV4:
        compare_lists(f"{vector.source}, sealed", [vector.esp], [found])
        return
    # Up to the next header; in its place the cipher's stream shows the difference of the two.
    end = len(vector.esp) - ICV_BYTES - 1
    expected = vector.esp[:end] + bytes([vector.esp[end] ^ vector.next_header ^ IPV4])
    compare_lists(f"{vector.source}, sealed without ICV", [expected], [found[:end + 1]])
    sa = peer.tunnels[0].outbound
    sa.esn = vector.number >> 32
    compare_lists(f"{vector.source}, opened by Scapy", [vector.payload], [bytes(sa.decrypt(ip(across[0])))])


def open_(program, folder, vector):
    """Testudo opens the vector, and again with one bit of it changed, which it must refuse."""
    header = IP(src=PEER, dst=OURS, proto=50)
    forged = bytearray(vector.esp)
    forged[-1] ^= 1
    datagrams = [bytes(header / Raw(bytes(esp))) for esp in (forged, vector.esp)]
    across, _, counters = gateway(program, folder, vector, "inbound").replay("unprotected", datagrams)
    is_tunnel = vector.next_header == IPV4
    compare_lists(f"{vector.source}, opened", [vector.payload] if is_tunnel else [], across)
    drops = {"authentication_failed": 1} | ({} if is_tunnel else {"bad_next_header": 1})
    compare_drops(f"{vector.source}, opening", drops, counters["drops"])


def main(program, folder):
    folder = pathlib.Path(folder)
    sealed = opened = 0
    for vector in [RFC_7634, *MCGREW, *RFC_3602]:
        if vector.is_whole_packet() and vector.suite not in CBC:
            seal(program, folder, vector)
            sealed += 1
        if vector.number < 2**32:
            open_(program, folder, vector)
            opened += 1
    if (sealed, opened) != (6, 8):
        fail(f"{sealed} vectors sealed and {opened} opened")
    print(f"{sealed} vectors sealed, {opened} opened")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
