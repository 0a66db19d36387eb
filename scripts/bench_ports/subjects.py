"""What is measured, each by a function that starts it beside the generator and returns its figures.

    generator (testpmd, one core)  ──►  subject (the other core)  ──►  the same testpmd
"""

import json
import subprocess
import time
from pathlib import Path

import figures
from processes import Program, said, wait_until

KEY = "000102030405060708090a0b0c0d0e0fdeadbeef"
# One tunnel, from 10.0.1.0/24 to 10.0.2.0/24: the peer's file beside has the same.
CONFIGURATION = """[gateway]
state = "state.redb"
control = "control.sock"
buffers = 16384

[port.protected]
{protected}

[port.unprotected]
{unprotected}
mtu = 1500

[[tunnel]]
name = "bench"
local = "1.1.1.1"
remote = "2.2.2.2"
suite = "aes128gcm16"
encapsulation = "esp"
esn = true
selectors = [ {{ local = "10.0.1.0/24", remote = "10.0.2.0/24" }} ]
outbound = {{ spi = 0x1001, key_file = "out.key" }}
inbound = {{ spi = 0x1002, key_file = "in.key" }}
"""
PEER_CONFIGURATION = """sp ipv4 out esp protect 5 pri 1 dst 10.0.2.0/24 sport 0:65535 dport 0:65535
sp ipv4 in esp protect 6 pri 1 dst 10.0.1.0/24 sport 0:65535 dport 0:65535
sa out 5 aead_algo aes-128-gcm aead_key {key} mode ipv4-tunnel src 1.1.1.1 dst 2.2.2.2
sa in 6 aead_algo aes-128-gcm aead_key {key} mode ipv4-tunnel src 2.2.2.2 dst 1.1.1.1
rt ipv4 dst 2.2.2.2/32 port 1
rt ipv4 dst 10.0.1.0/24 port 0
neigh port 0 02:00:00:00:00:0a
neigh port 1 02:00:00:00:00:0b
"""
MEMORY = ["--no-huge", "-m", "512", "--no-pci", "--no-telemetry"]
# Ports of the generator.
SOURCE, TO_SUBJECT, FROM_SUBJECT = 0, 1, 2


def colons(key):
    return ":".join(key[at:at + 2] for at in range(0, len(key), 2))


class Bench:
    """What all measurements of a run have in common."""

    def __init__(self, folder, programs, cpus, seconds):
        self.folder, self.programs, self.seconds = Path(folder), programs, seconds
        self.generator_cpu, self.subject_cpu = cpus
        self.count = 0

    def fresh(self):
        """A folder for one measurement."""
        self.count += 1
        folder = self.folder / str(self.count)
        folder.mkdir()
        return folder

    def testpmd(self, name, folder, cpu, devices, options, namespace=None):
        devices = [word for device in devices for word in ("--vdev", device)]
        command = ["dpdk-testpmd", "--lcores", f"0@{cpu},1@{cpu}", *MEMORY, "--file-prefix", name, *devices, "--",
                   "--nb-cores=1", "--total-num-mbufs=16384", "--auto-start", "--stats-period=1", *options]
        return Program(name, command, folder, cpu, namespace)

    def generator(self, folder, frame_bytes, ends, namespace=None):
        """Sends the frames of the file over and over to the first of `ends`, and takes what comes from the second.
        What that is told in return is who the far end of the tunnel is."""
        source = f"net_pcap0,rx_pcap={self.folder}/{frame_bytes}.pcap,infinite_rx=1"
        sink = f"net_pcap1,rx_pcap={self.folder}/neighbour.pcap"
        # Without its last option, testpmd reads and drops what is there when it starts: the neighbour.
        return self.testpmd("generator", folder, self.generator_cpu, [source, *ends, sink],
                            ["--port-topology=paired", "--forward-mode=io", "--no-flush-rx"], namespace)


def memif(role, folder, number, more=""):
    return f"net_memif{number},role={role},id=0,socket={folder}/{'ab'[number]}.sock,socket-abstract=no,rsize=9{more}"


def ends_of_memif(folder):
    return [memif("client", folder, 0), memif("client", folder, 1)]


def ends_of_wires():
    more = "qpairs=1,qdisc_bypass=1,framesz=2048,blocksz=65536,framecnt=2048"
    return [f"net_af_packet{number},iface=g{number},{more}" for number in (0, 1)]


def fast(interface, mode):
    return f'kind = "xdp"\ninterface = "{interface}"\nmode = "{mode}"\nqueues = "all"'


def sides(port, folder):
    """The keys of both ports."""
    if port == "memif":
        side = 'kind = "dpdk"\ndevice = "{}"\naddresses = ["{}"]\nbusy_poll = true\neal = ["--no-huge", "-m", "512"]'
        devices = [memif("server", folder, number, f",mac=02:00:00:00:00:0{number + 1}") for number in (0, 1)]
        return [side.format(devices[0], "10.0.1.254/24"),
                side.format(devices[1], "1.1.1.1/24") + '\nnext_hops = ["default via 1.1.1.2"]']
    if port == "tun-socket":
        return ['kind = "tun"\nname = "testudo0"', 'kind = "socket"']
    mode = port.removeprefix("xdp-")
    return [fast("p0", mode), fast("u0", mode)]


class Gateway:
    """A Testudo that runs."""

    def __init__(self, bench, port, folder, namespace=None):
        protected, unprotected = sides(port, folder)
        self.configuration = folder / "gateway.toml"
        self.configuration.write_text(CONFIGURATION.format(protected=protected, unprotected=unprotected))
        for name, key in (("out", KEY), ("in", KEY[::-1])):
            file = folder / f"{name}.key"
            file.touch(mode=0o600)
            file.write_text(key + "\n")
        self.testudo = bench.programs["testudo"]
        said([self.testudo, "init", self.configuration])
        self.program = Program("testudo", [self.testudo, "run", self.configuration], folder, bench.subject_cpu,
                               namespace)
        wait_until(lambda: self.status() is not None, "waited for the gateway", self.program)

    def status(self):
        """Its status; None while it does not answer."""
        asked = subprocess.run([self.testudo, "status", "--json", "--config", self.configuration],
                               capture_output=True, text=True, check=False)
        return json.loads(asked.stdout) if asked.returncode == 0 else None

    def sent(self):
        return (self.status() or {"ports": {"unprotected": {"tx_packets": 0}}})["ports"]["unprotected"]["tx_packets"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.end()


def wait_for_ports(program):
    """Waits until a program of DPDK's has started its ports. A client of memif asks once, when it starts itself: one
    that comes before is refused, and nothing ever passes. On a busy machine the generator may be the first."""
    wait_until(lambda: figures.ports_have_started(program.text()), f"waited for {program.name}'s ports", program)


def testudo(bench, port, frame_bytes, wires=None):
    """A whole gateway that seals what it is sent."""
    folder = bench.fresh()
    ends = ends_of_wires() if wires else ends_of_memif(folder)
    with Gateway(bench, port, folder, wires and wires.gateway) as gateway:
        with bench.generator(folder, frame_bytes, ends, wires and wires.generator) as generator:
            wait_until(lambda: gateway.sent() > 0, "waited for the first packet", gateway.program)
            time.sleep(0.5)
            before = gateway.status()
            time.sleep(bench.seconds)
            after = gateway.status()
            text = generator.end()
    found = figures.gateway_figures(before, after)
    offered, dropped = figures.testpmd_offered(text, TO_SUBJECT)
    if wires:
        # The kernel takes everything from the generator, and drops what the gateway does not.
        offered, dropped = figures.steady(figures.testpmd_rates(text, TO_SUBJECT, "T")), None
    found["bound_by_generator"] = figures.is_bound_by_generator(found["packets_per_second"], offered, dropped)
    return found


def counted_at_the_generator(bench, folder, frame_bytes, subject, wires=None):
    """The rate of what comes back."""
    ends = ends_of_wires() if wires else ends_of_memif(folder)
    with bench.generator(folder, frame_bytes, ends, wires and wires.generator) as generator:
        rates = lambda: figures.testpmd_rates(generator.text(), FROM_SUBJECT, "R")
        enough = figures.STARTING + bench.seconds
        wait_until(lambda: len([rate for rate in rates() if rate]) >= enough, f"waited for {subject.name}", subject)
        return {"packets_per_second": figures.steady(rates())}


def secgw(bench, frame_bytes):
    """DPDK's gateway between the same devices."""
    folder = bench.fresh()
    (folder / "peer.cfg").write_text(PEER_CONFIGURATION.format(key=colons(KEY)))
    cpu = bench.subject_cpu
    command = [bench.programs["peer"], "-l", cpu, "--no-huge", "-m", "900", "--no-pci", "--no-telemetry",
               "--file-prefix", "peer", "--vdev", memif("server", folder, 0),
               "--vdev", memif("server", folder, 1), "--vdev", "crypto_aesni_gcm0", "--", "-p", "0x3", "-P", "-u",
               "0x2", "-l", "-w", "0", "--rxoffload", "0", "--txoffload", "0",
               f"--config=(0,0,{cpu}),(1,0,{cpu})", "-f", folder / "peer.cfg", "-t", "1"]
    # Its output comes through a buffer, unless told otherwise.
    with Program("ipsec-secgw", ["stdbuf", "-oL", *command], folder, cpu) as peer:
        wait_for_ports(peer)
        with bench.generator(folder, frame_bytes, ends_of_memif(folder)):
            moving = lambda: [rate for rate in figures.secgw_rates(peer.text()) if rate > 0]
            enough = figures.STARTING + bench.seconds
            wait_until(lambda: len(moving()) >= enough, "waited for ipsec-secgw to send", peer)
            return {"packets_per_second": figures.steady(moving())}


def memif_forwarder(bench, frame_bytes):
    """A testpmd that hands packets from one device to the other."""
    folder = bench.fresh()
    devices = [memif("server", folder, number) for number in (0, 1)]
    options = ["--port-topology=paired", "--forward-mode=io"]
    with bench.testpmd("forwarder", folder, bench.subject_cpu, devices, options) as forwarder:
        wait_for_ports(forwarder)
        return counted_at_the_generator(bench, folder, frame_bytes, forwarder)


def xdp_forwarder(bench, frame_bytes, wires):
    """A program on AF_XDP, in native mode, that hands frames from one interface to the other."""
    folder = bench.fresh()
    command = [bench.programs["xdp_forwarder"], "p0", "u0", "10.0.2.0/24"]
    with Program("forwarder", command, folder, bench.subject_cpu, wires.gateway) as forwarder:
        wait_until(lambda: "ready" in forwarder.text(), "waited for the forwarder", forwarder)
        return counted_at_the_generator(bench, folder, frame_bytes, forwarder, wires)


def ring_port(bench, frame_bytes):
    """Testudo's port, link layer included, receives from a ring and sends into it."""
    command = ["taskset", "-c", bench.subject_cpu, bench.programs["ring_port"], frame_bytes, bench.seconds]
    return json.loads(said([str(word) for word in command]))


def ring_forwarder(bench, frame_bytes):
    """A testpmd that receives from a ring and sends into it."""
    folder = bench.fresh()
    options = ["--port-topology=loop", "--forward-mode=io", "--burst=64", "--tx-first", f"--txpkts={frame_bytes - 4}"]
    with bench.testpmd("forwarder", folder, bench.subject_cpu, ["net_ring0"], options) as forwarder:
        rates = lambda: figures.testpmd_rates(forwarder.text(), 0, "R")
        enough = figures.STARTING + bench.seconds
        wait_until(lambda: len([rate for rate in rates() if rate]) >= enough, "waited for testpmd", forwarder)
        return {"packets_per_second": figures.steady(rates())}
