"""A gateway's own configuration, and what its peer makes of it: Scapy's security associations."""

import collections
import ipaddress
import json
import pathlib
import struct
import subprocess
import sys
import tomllib

from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.ipsec import ESP, AuthAlgo, SecurityAssociation
from scapy.utils import RawPcapReader, RawPcapWriter, hexdump

# Scapy's names for the algorithms; bytes of the cipher's key (with its salt, as RFC 4106 8.1 has it), of the integrity key, of IV and ICV,
# and what ciphertext is a multiple of.
Suite = collections.namedtuple("Suite", "crypt auth crypt_key_bytes auth_key_bytes iv_bytes icv_bytes alignment")
SUITES = {
    "aes128gcm16": Suite("AES-GCM", "NULL", 20, 0, 8, 16, 4),
    "aes256gcm16": Suite("AES-GCM", "NULL", 36, 0, 8, 16, 4),
    "chacha20poly1305": Suite("CHACHA20-POLY1305", "NULL", 36, 0, 8, 16, 4),
    "aes128-sha1": Suite("AES-CBC", "HMAC-SHA1-96", 16, 20, 16, 12, 16),
    "aes128-sha256": Suite("AES-CBC", "SHA2-256-128", 16, 32, 16, 16, 16),
    "aes128-sha384": Suite("AES-CBC", "SHA2-384-192", 16, 48, 16, 24, 16),
    "aes128-sha512": Suite("AES-CBC", "SHA2-512-256", 16, 64, 16, 32, 16),
    "aes256-sha384": Suite("AES-CBC", "SHA2-384-192", 32, 48, 16, 24, 16),
    "aes256-sha512": Suite("AES-CBC", "SHA2-512-256", 32, 64, 16, 32, 16),
    "null-sha384": Suite("NULL", "SHA2-384-192", 0, 48, 0, 24, 4),
    "null-sha512": Suite("NULL", "SHA2-512-256", 0, 64, 0, 32, 4),
    "aes256-sha1": Suite("AES-CBC", "HMAC-SHA1-96", 32, 20, 16, 12, 16),
    "aes256-sha256": Suite("AES-CBC", "SHA2-256-128", 32, 32, 16, 16, 16),
    "null-sha1": Suite("NULL", "HMAC-SHA1-96", 0, 20, 0, 12, 4),
    "null-sha256": Suite("NULL", "SHA2-256-128", 0, 32, 0, 16, 4),
}
HEADER_BYTES = {4: 20, 6: 40}
RAW_IP = 101  # LINKTYPE_RAW


def ip(packet):
    """Dissects a packet that starts with its IP header."""
    return (IP if packet[0] >> 4 == 4 else IPv6)(packet)


class WithHighHalf(AuthAlgo):
    """Scapy 2.5 authenticates the high half of an extended number of AH, but not of ESP (RFC 4303 2.2.1): this one adds it."""

    def __init__(self, inner, association):
        super().__init__(inner.name, inner.mac, inner.digestmod, inner.icv_size, inner.key_size)
        self.association = association

    def new_mac(self, key):
        return MacWithHighHalf(super().new_mac(key), self.association)


class MacWithHighHalf:
    def __init__(self, mac, association):
        self.mac, self.association = mac, association

    def update(self, data):
        self.mac.update(data)

    def finalize(self):
        if self.association.esn_en:
            self.mac.update(struct.pack("!L", self.association.esn))
        return self.mac.finalize()


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
        crypt_key, auth_key = key[:self.suite.crypt_key_bytes], key[self.suite.crypt_key_bytes:]
        if len(auth_key) != self.suite.auth_key_bytes:
            fail(f"{self}: a key of {len(key)} bytes")
        association = SecurityAssociation(
            ESP,
            spi=table[direction]["spi"],
            crypt_algo=self.suite.crypt,
            crypt_key=crypt_key,
            auth_algo=self.suite.auth,
            auth_key=auth_key,
            tunnel_header=header,
            nat_t_header=UDP(sport=4500, dport=4500) if self.udp else None,
            esn_en=self.esn,
        )
        if association.auth_algo.mac:
            association.auth_algo = WithHighHalf(association.auth_algo, association)
        return association

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
        table = tomllib.loads(self.configuration.read_text())
        mtu = table["port"]["unprotected"]["mtu"]
        self.tunnels = [Tunnel(tunnel, self.folder, mtu) for tunnel in table["tunnel"]]

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
