"""Judges a gateway whose unprotected port is the virtual DPDK NIC with inline cryptography: Scapy, on OpenSSL, is its peer at the other
end of the cable. To be run as root in a network namespace of its own.

usage: gateway.py PROGRAM FOLDER     with libtestudo-dpdk.so beside the program, and libtestudo-dpdk-twin.so in the folder
"""

import ipaddress
import json
import os
import socket
import subprocess
import sys
import tempfile

from scapy.layers.inet import IP, UDP
from scapy.layers.ipsec import ESP, SecurityAssociation
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

PROGRAM, FOLDER = (os.path.realpath(argument) for argument in sys.argv[1:3])
PEER_MAC = "02:00:00:00:00:02"
LOCAL, REMOTE = "192.0.2.1", "192.0.2.2"
PATIENCE_SECONDS = 20
PACKETS = 300
RESET_AFTER = 150
MOST_TURNS = 50_000
PORT_EXIT = 4
ALL_PROTOCOLS = 0x0003
# By name: the suite, bytes of its key with the salt, and the peer's host. The NIC has AES-128-GCM.
TUNNELS = {"fit": ("aes128gcm16", 20, "10.2.0.1"), "unfit": ("aes256gcm16", 36, "10.3.0.1")}


def run(*words):
    subprocess.run(words, check=True)


class Tunnel:
    """One tunnel at the peer: Scapy's SAs, and the last sequence number of each direction."""

    def __init__(self, number, name):
        self.name, (self.suite, key_bytes, self.host) = name, TUNNELS[name]
        self.spis = [0x1000 + 2 * number, 0x1001 + 2 * number]
        self.keys = [os.urandom(key_bytes) for _ in self.spis]
        header = IP(src=REMOTE, dst=LOCAL)
        self.out, self.into = (
            SecurityAssociation(ESP, spi=spi, crypt_algo="AES-GCM", crypt_key=key, tunnel_header=header)
            for spi, key in zip(self.spis, self.keys))
        self.received, self.sent = 0, 0

    def text(self, folder):
        for spi, key in zip(self.spis, self.keys):
            path = f"{folder}/{spi:x}.key"
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
                file.write(key.hex())
        out, into = (f'{{ spi = {spi}, key_file = "{spi:x}.key" }}' for spi in self.spis)
        network = ipaddress.ip_network(f"{self.host}/16", strict=False)
        return f"""
[[tunnel]]
name = "{self.name}"
local = "{LOCAL}"
remote = "{REMOTE}"
suite = "{self.suite}"
encapsulation = "esp"
esn = false
selectors = [ {{ local = "10.1.0.0/16", remote = "{network}" }} ]
outbound = {out}
inbound = {into}
"""


class Gateway:
    """The gateway, its host, and the cable of its NIC."""

    def __init__(self, folder, device, offload):
        self.folder = folder
        self.tunnels = [Tunnel(number, name) for number, name in enumerate(TUNNELS)]
        text = f"""[gateway]
state = "state.redb"
control = "control.sock"
[port.protected]
kind = "tun"
name = "lan0"
addresses = ["10.1.0.1/16"]
routes = true
[port.unprotected]
kind = "dpdk"
device = "{device}"
eal = ["--no-huge", "-d", "{FOLDER}/libtestudo-dpdk-twin.so"]
addresses = ["{LOCAL}/24"]
mtu = 1500
offload = "{offload}"
""" + "".join(tunnel.text(folder) for tunnel in self.tunnels)
        self.config = f"{folder}/gateway.toml"
        with open(os.open(self.config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(text)
        subprocess.run([PROGRAM, "init", self.config], check=True, capture_output=True)

    def start(self):
        self.wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        self.wire.bind(("wan0", ALL_PROTOCOLS))
        self.wire.settimeout(PATIENCE_SECONDS)
        self.log = open(f"{self.folder}/log", "w", encoding="utf-8")
        self.process = subprocess.Popen([PROGRAM, "run", self.config], stderr=self.log)
        while subprocess.run([PROGRAM, "status", self.config], capture_output=True).returncode:
            assert self.process.poll() is None, self.said()
        self.host = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.host.bind(("10.1.0.1", 7))
        self.host.settimeout(PATIENCE_SECONDS)
        self.mac = None

    def said(self):
        with open(f"{self.folder}/log", encoding="utf-8") as file:
            return file.read()

    def asked(self, *words):
        return json.loads(subprocess.run([PROGRAM, *words, "--json", self.config], check=True, capture_output=True).stdout)

    def frame(self):
        """The next frame of the gateway's, whose neighbour we are."""
        while True:
            bytes_, where = self.wire.recvfrom(2048)
            frame = Ether(bytes_)
            if where[2] == socket.PACKET_OUTGOING and frame.src == PEER_MAC:
                continue
            if ARP in frame and frame[ARP].op == 1 and frame[ARP].pdst == REMOTE:
                self.mac = frame.src
                reply = ARP(op=2, hwsrc=PEER_MAC, psrc=REMOTE, hwdst=frame.src, pdst=frame[ARP].psrc)
                self.wire.send(bytes(Ether(src=PEER_MAC, dst=frame.src) / reply))
            elif frame.type == 0x0800:
                return frame

    def sends(self, tunnel):
        """The host sends a datagram: it leaves sealed, under the next number."""
        data = os.urandom(1 + tunnel.received * 7 % 1200)
        self.host.sendto(data, (tunnel.host, 9))
        outer = self.frame()[IP]
        number = outer[ESP].seq
        assert number == tunnel.received + 1, (tunnel.name, number, tunnel.received)
        again = outer.copy()
        del again.chksum
        assert IP(bytes(again)).chksum == outer.chksum, "the header's checksum"
        inner = tunnel.out.decrypt(outer)
        assert (inner.src, inner.dst, bytes(inner[UDP].payload)) == ("10.1.0.1", tunnel.host, data)
        tunnel.received = number

    def receives(self, tunnel):
        """The peer sends a datagram: the host has it."""
        tunnel.sent += 1
        data = os.urandom(1 + tunnel.sent * 11 % 1200)
        inner = IP(src=tunnel.host, dst="10.1.0.1") / UDP(sport=9, dport=7) / Raw(data)
        sealed = tunnel.into.encrypt(inner, seq_num=tunnel.sent, iv=tunnel.sent.to_bytes(8, "big"))
        self.wire.send(bytes(Ether(src=PEER_MAC, dst=self.mac) / sealed))
        assert self.host.recvfrom(2048) == (data, (tunnel.host, 9)), tunnel.sent

    def both_ways(self, tunnel):
        self.sends(tunnel)
        self.receives(tunnel)

    def stop(self):
        self.process.terminate()
        assert self.process.wait() == 0, self.said()


def refuses_what_cannot_be(folder):
    """With `always`, a device without cryptography is an error in one line."""
    gateway = Gateway(folder, "net_tap7,iface=wan7", "always")
    ended = subprocess.run([PROGRAM, "run", gateway.config], capture_output=True, text=True)
    said = ended.stderr.strip().splitlines()[-1]
    assert ended.returncode == PORT_EXIT and 'offload = "always"' in said and "net_tap does no cryptography" in said, ended
    return 1


def carries(folder, offload, faults, is_enough):
    """All packets arrive, sealed and opened by whom it may be, and each number is used once. It goes on until the NIC has done enough."""
    gateway = Gateway(folder, f"net_testudo_twin0,tap=wan0{faults}", offload)
    gateway.start()
    turns = 0
    while turns < PACKETS or not is_enough(gateway.asked("status")["offload"]):
        for tunnel in gateway.tunnels:
            gateway.sends(tunnel)
            gateway.receives(tunnel)
        turns += 1
        assert turns < MOST_TURNS, (gateway.asked("status")["offload"], gateway.said())
    rows = gateway.asked("sa", "list")
    # The tunnel whose suite the NIC lacks never enters it.
    words = {row["offload"]["why_not"] for row in rows if row["tunnel"] == "unfit"} if offload != "off" else set()
    assert words <= {"suite", "out-of-service"}, rows
    gateway.stop()
    return turns


def has_done(least):
    return lambda nic: nic["counts"]["sealed"] >= least and nic["counts"]["opened"] >= least and not nic["out_of_service"]


def was_reset(times):
    return lambda nic: nic["counts"]["resets"] >= times and has_done(times * RESET_AFTER // 4)(nic)


def main():
    run("ip", "link", "set", "lo", "up")
    run("ip", "tuntap", "add", "wan0", "mode", "tap")
    run("sysctl", "-qw", "net.ipv6.conf.wan0.disable_ipv6=1")
    run("ip", "link", "set", "wan0", "up")
    cases = [
        ("auto", "", has_done(PACKETS)),
        ("always", f",reset_after={RESET_AFTER}", was_reset(3)),
        ("always", ",lie=failed,lie_every=50", lambda nic: nic["out_of_service"]),
        ("off", "", lambda nic: nic is None),
    ]
    with tempfile.TemporaryDirectory() as folder:
        print(f"refuses_what_cannot_be: {refuses_what_cannot_be(folder)}")
    for offload, faults, is_enough in cases:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{offload}{faults}: {carries(folder, offload, faults, is_enough)}")


main()
