"""A gateway's own configuration, and what its peer makes of it: Scapy's security associations."""

import collections
import copy
import functools
import ipaddress
import json
import pathlib
import struct
import subprocess
import sys
import tomllib

import algorithms
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.ipsec import ESP, AuthAlgo, CryptAlgo, SecurityAssociation
from scapy.utils import RawPcapReader, RawPcapWriter, hexdump

# Scapy's names for the algorithms; bytes of the cipher's key (with its salt, as RFC 4106 8.1 has it), of the integrity key, of IV and ICV,
# and what ciphertext is a multiple of.
Suite = collections.namedtuple("Suite", "crypt auth crypt_key_bytes auth_key_bytes iv_bytes icv_bytes alignment")
AES_BYTES = {"aes128": 16, "aes192": 24, "aes256": 32}
# By keyword: Scapy's name, bytes of key with salt, of IV, and what ciphertext is a multiple of.
CIPHERS = {
    **{name: ("AES-CBC", key, 16, 16) for name, key in AES_BYTES.items()},
    **{name + "ctr": ("AES-CTR", key + 4, 8, 4) for name, key in AES_BYTES.items()},
    "3des": ("3DES", 24, 8, 8),
    "des": ("DES", 8, 8, 8),
    "null": ("NULL", 0, 0, 4),
}
# By keyword: Scapy's name, bytes of key and of ICV.
INTEGRITY = {
    "md5": ("HMAC-MD5-96", 16, 12),
    "sha1": ("HMAC-SHA1-96", 20, 12),
    "sha256": ("SHA2-256-128", 32, 16),
    "sha384": ("SHA2-384-192", 48, 24),
    "sha512": ("SHA2-512-256", 64, 32),
    "aescmac": ("AES-CMAC-96", 16, 12),
    "aesxcbc": ("AES-XCBC-96", 16, 12),
}
# Of AH: AES-GMAC's key ends with a salt, its ICV field begins with an IV (RFC 4543 4).
AH_SUITES = {**INTEGRITY, **{name + "gmac": ("AES-GMAC", key + 4, 24) for name, key in AES_BYTES.items()}}
SUITES = {
    "chacha20poly1305": Suite("CHACHA20-POLY1305", "NULL", 36, 0, 8, 16, 4),
    **{f"{name}gcm{icv}": Suite("AES-GCM", "NULL", key + 4, 0, 8, icv, 4) for name, key in AES_BYTES.items() for icv in (8, 12, 16)},
    **{f"{name}ccm{icv}": Suite("AES-CCM", "NULL", key + 3, 0, 8, icv, 4) for name, key in AES_BYTES.items() for icv in (8, 12, 16)},
    "chacha20poly1305iiv": Suite("CHACHA20-POLY1305-IIV", "NULL", 36, 0, 0, 16, 4),
    **{f"{name}gcm16iiv": Suite("AES-GCM-IIV", "NULL", key + 4, 0, 0, 16, 4) for name, key in AES_BYTES.items()},
    **{f"{name}ccm8iiv": Suite("AES-CCM-IIV", "NULL", key + 3, 0, 0, 8, 4) for name, key in AES_BYTES.items()},
    **{f"{name}gmac": Suite("AES-GMAC", "NULL", key + 4, 0, 8, 16, 4) for name, key in AES_BYTES.items()},
    **{
        f"{name}-{auth_name}": Suite(crypt, auth, key, auth_key, iv, icv, alignment)
        for name, (crypt, key, iv, alignment) in CIPHERS.items()
        for auth_name, (auth, auth_key, icv) in INTEGRITY.items()
    },
}
HEADER_BYTES = {4: 20, 6: 40}
RAW_IP = 101  # LINKTYPE_RAW


def ip(packet):
    """Dissects a packet that starts with its IP header."""
    return (IP if packet[0] >> 4 == 4 else IPv6)(packet)


def with_icv(algorithm, icv_bytes):
    """Scapy's AES-GCM or AES-CCM with a shorter ICV. Its AES-CCM takes the length as it is; its AES-GCM always seals with 16 bytes, by an
    AEAD of cryptography's that has no other, but the same class does it with that library's mode of the cipher (SP 800-38D 5.2.1.2)."""
    if algorithm.name == "AES-GCM":
        return CryptAlgo(
            algorithm.name, cipher=AES, mode=GCM, block_size=1, iv_size=8, icv_size=icv_bytes, salt_size=4,
            format_mode_iv=algorithm._format_mode_iv,
        )
    algorithm = copy.copy(algorithm)
    algorithm.icv_size = icv_bytes
    return algorithm


class WithHighHalf(AuthAlgo):
    """Scapy 2.5 authenticates the high half of an extended number of AH, but not of ESP (RFC 4303 2.2.1): this one adds it."""

    def __init__(self, inner, association):
        super().__init__(inner.name, inner.mac, inner.digestmod, inner.icv_size, inner.key_size)
        self.inner, self.association = inner, association

    def new_mac(self, key):
        return MacWithHighHalf(self.inner.new_mac(key), self.association)


class MacWithHighHalf:
    def __init__(self, mac, association):
        self.mac, self.association = mac, association

    def update(self, data):
        self.mac.update(data)

    def finalize(self):
        if self.association.esn_en:
            self.mac.update(struct.pack("!L", self.association.esn))
        return self.mac.finalize()


def esp_association(spi, name, key, tunnel_header, udp, esn):
    """An SA of ESP, in a suite of ours: in transport mode without a header for a tunnel."""
    suite = SUITES[name]
    crypt_key, auth_key = key[:suite.crypt_key_bytes], key[suite.crypt_key_bytes:]
    if len(auth_key) != suite.auth_key_bytes:
        fail(f"{name}: a key of {len(key)} bytes")
    association = SecurityAssociation(
        ESP,
        spi=spi,
        crypt_algo=suite.crypt,
        crypt_key=crypt_key,
        auth_algo=suite.auth,
        auth_key=auth_key,
        tunnel_header=tunnel_header,
        nat_t_header=UDP(sport=4500, dport=4500) if udp else None,
        esn_en=esn,
    )
    if association.auth_algo.mac:
        association.auth_algo = WithHighHalf(association.auth_algo, association)
    elif suite.icv_bytes < 16 and not isinstance(association.crypt_algo, algorithms.CombinedMode):
        association.crypt_algo = with_icv(association.crypt_algo, suite.icv_bytes)
    return association


class Tunnel:
    """A `[[tunnel]]` of the configuration, with an SA for each direction, both held by Scapy."""

    def __init__(self, table, folder, path_mtu):
        self.name = table["name"]
        self.esn = table["esn"]
        self.window = table["replay_window"]
        self.udp = table.get("encapsulation") == "esp-in-udp"
        self.local, self.remote = table["local"], table["remote"]
        self.version = ipaddress.ip_address(self.local).version
        known = table.get("known_answer", {})
        self.first_number = known.get("next_sequence_number", 1)
        self.iv_seed = known.get("iv_seed", 0)
        self.suite = SUITES[table["suite"]]
        # RFC 4303 2: SPI and number (8), IV, ICV; padding to 4 bytes or a block, of which the trailer takes 2.
        self.esp_overhead = 8 + self.suite.iv_bytes + self.suite.icv_bytes
        overhead = HEADER_BYTES[self.version] + 8 * self.udp + self.esp_overhead
        self.inner_mtu = (path_mtu - overhead) // self.suite.alignment * self.suite.alignment - 2
        self.networks = {}  # by IP version: ours, the peer's
        for selector in table["selectors"]:
            pair = [ipaddress.ip_network(selector[end]) for end in ("local", "remote")]
            self.networks[pair[0].version] = pair
        self.outbound = self.association(table, "outbound", self.local, self.remote, folder)
        self.inbound = self.association(table, "inbound", self.remote, self.local, folder)

    def association(self, table, direction, source, destination, folder):
        header = (IP if self.version == 4 else IPv6)(src=source, dst=destination)
        key = bytes.fromhex((folder / table[direction]["key_file"]).read_text())
        return esp_association(table[direction]["spi"], table["suite"], key, header, self.udp, self.esn)

    def addresses(self, version):
        """A host of ours and one of the peer's."""
        return tuple(str(network[1]) for network in self.networks[version])

    def owns(self, packet):
        """Whether a packet that came out of a tunnel is for one of this tunnel's hosts."""
        version = packet[0] >> 4
        destination = packet[16:20] if version == 4 else packet[24:40]
        return ipaddress.ip_address(destination) in self.networks[version][0]

    def __str__(self):
        return f"tunnel {self.name}"


class Gateway:
    """Testudo, run by `replay` on packet files in the configuration's folder."""

    def __init__(self, program, configuration):
        self.program = program
        self.configuration = pathlib.Path(configuration)
        self.folder = self.configuration.parent
        self.table = tomllib.loads(self.configuration.read_text())

    @functools.cached_property
    def tunnels(self):
        """Its tunnels, where all of them are ESP in tunnel mode."""
        mtu = self.table["port"]["unprotected"]["mtu"]
        return [Tunnel(tunnel, self.folder, mtu) for tunnel in self.table["tunnel"]]

    def replay(self, side, packets):
        """Gives packets to one side; returns what left by the other one, what left by the same, and all counters."""
        other = {"protected": "unprotected", "unprotected": "protected"}[side]
        files = {name: self.folder / f"{name}.pcap" for name in ("in", "across", "back")}
        write(files["in"], packets)
        command = [self.program, "replay", self.configuration, "--json", "--rx", f"{side}={files['in']}"]
        command += ["--tx", f"{other}={files['across']}", "--tx", f"{side}={files['back']}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"testudo replay ended with {done.returncode}: {done.stderr}")
        return read(files["across"]), read(files["back"]), json.loads(done.stdout)


def write(path, packets):
    with RawPcapWriter(str(path), linktype=RAW_IP) as file:
        file.write_header(None)
        for packet in packets:
            file.write_packet(packet)


def read(path):
    return [packet for packet, _ in RawPcapReader(str(path))]


def fail(what, **packets):
    """Ends with a message, and the packets that it is about."""
    print(what)
    for name, packet in packets.items():
        print(f"{name.replace('_', ' ')}:", "none" if packet is None else f"{len(packet)} bytes")
        if packet:
            hexdump(packet)
    sys.exit(1)


def compare_lists(what, expected, found):
    """Ends at the first packet that differs."""
    for index in range(max(len(expected), len(found))):
        want, got = (packets[index] if index < len(packets) else None for packets in (expected, found))
        if want != got:
            counts = f"{len(expected)} expected, {len(found)} found"
            fail(f"{what}: packet {index} differs ({counts})", expected=want, found=got)


def compare_drops(what, expected, found):
    """Every reason must have exactly the expected count, those not expected none."""
    different = [r for r in sorted({*expected, *found}) if expected.get(r, 0) != found.get(r, 0)]
    if different:
        lines = [f"  {r}: {expected.get(r, 0)} expected, {found.get(r, 0)} found" for r in different]
        fail("\n".join([f"{what}, drops differ", *lines]))
