"""What a packet costs through each port: Testudo seals packets of one generator, which is dpdk-testpmd on another
core, through TUN and socket, AF_XDP, and DPDK's memif; beside DPDK's ipsec-secgw on memif, beside forwarders that
do nothing, and the port of a DPDK ring alone. All in turns, medians; frames are counted with their check sequence.

`make bench-ports ARGS='--sizes 64 --json'`
"""

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import figures
import subjects
from processes import Failed, Wires

HERE = Path(__file__).resolve().parent
PORTS = ["tun-socket", "xdp-generic", "xdp-native", "memif", "ring"]
# Testudo over memif as a multiple of ipsec-secgw.
GOALS = {64: 2.0, 1420: 1.5}
# A program that could not do its part, as other benches have it.
FAILED = 1


def say(text):
    print(f"bench-ports: {text}", file=sys.stderr, flush=True)


def options():
    parser = argparse.ArgumentParser(prog="bench-ports", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = lambda kind: lambda text: [kind(word) for word in text.split(",")]
    parser.add_argument("--programs", type=Path, required=True, help="folder of the release build")
    parser.add_argument("--peer", type=Path, help="ipsec-secgw, if it could be built")
    parser.add_argument("--sizes", type=listed(int), default=[64, 1420], help="bytes of a frame: %(default)s")
    parser.add_argument("--ports", type=listed(str), default=PORTS, help=f"of {','.join(PORTS)}; all by default")
    parser.add_argument("--repetitions", type=int, default=3, help="turns: %(default)s")
    parser.add_argument("--seconds", type=int, default=2, help="of each measurement: %(default)s")
    parser.add_argument("--json", action="store_true", help="an array of rows in place of tables")
    given = parser.parse_args()
    for port in given.ports:
        if port not in PORTS:
            parser.error(f"no port {port}: {', '.join(PORTS)}")
    if not all(64 <= size <= 1440 for size in given.sizes):
        parser.error("a frame has 64 to 1440 bytes: sealed, it is still one datagram")
    if given.repetitions < 1 or not 1 <= given.seconds <= 10:
        parser.error("at least 1 repetition, and 1 to 10 seconds")
    return given


def why_not(port, programs):
    """Why a port cannot be measured here; None if it can."""
    if not shutil.which("dpdk-testpmd"):
        return "dpdk-testpmd, the generator, is missing: install the package dpdk-dev"
    if port in ("memif", "ring") and not programs["plugin"].exists():
        return f"{programs['plugin']} is missing: install libdpdk-dev and run `make bench-ports` again"
    if port != "ring" and port != "memif" and os.geteuid() != 0:
        return "namespaces, veth and AF_XDP need root"
    return None


def neighbour_file(path):
    """Frames of the router 1.1.1.2: it asks for the gateway, which then knows it, and answers while packets come."""
    mac, gateway = bytes.fromhex("02000000000b"), bytes.fromhex("020000000002")
    router, own = bytes([1, 1, 1, 2]), bytes([1, 1, 1, 1])
    arp = lambda operation, target: (gateway + mac + bytes.fromhex("0806") + bytes.fromhex("000108000604") +
                                     struct.pack("!H", operation) + mac + router + target + own + bytes(18))
    frames = [arp(1, bytes(6))] + [arp(2, gateway)] * 3200
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for frame in frames:
            file.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)


def measure(port, bench, frame_bytes):
    """One turn of a port: what each subject gave, by name. Subjects come one after another."""
    if port == "ring":
        return {"own": subjects.ring_port(bench, frame_bytes), "bare": subjects.ring_forwarder(bench, frame_bytes)}
    if port == "memif":
        found = {"own": subjects.testudo(bench, port, frame_bytes)}
        if bench.programs["peer"]:
            found["peer"] = subjects.secgw(bench, frame_bytes)
        return {**found, "bare": subjects.memif_forwarder(bench, frame_bytes)}
    with Wires() as wires:
        found = {"own": subjects.testudo(bench, port, frame_bytes, wires)}
        if port == "xdp-native":
            found["bare"] = subjects.xdp_forwarder(bench, frame_bytes, wires)
        return found


def of(turns, subject, what="packets_per_second"):
    return [turn[subject][what] for turn in turns if subject in turn and what in turn[subject]]


def cost_rows(port, frame_bytes, turns):
    """The port alone: ticks to receive and to send a packet."""
    receive, transmit = of(turns, "own", "receive"), of(turns, "own", "transmit")
    if port == "tun-socket":
        # A side each: what is received by TUN is sent by the socket.
        return [("tun, receive alone", frame_bytes, receive), ("socket, send alone", frame_bytes, transmit)]
    both = [first + second for first, second in zip(receive, transmit)]
    return [(f"{port}, receive and send alone", frame_bytes, both)]


def rows(results):
    main, costs = [], []
    for (port, size), turns in results.items():
        own, peer, bare = (of(turns, subject) for subject in ("own", "peer", "bare"))
        main.append(figures.row(port, size, own, peer, bare, of(turns, "own", "cycles_per_packet")))
        costs += [figures.row(name, bytes_, cycles=cycles) for name, bytes_, cycles in cost_rows(port, size, turns)]
    return main + costs


def table(lines):
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  " + "  ".join(word.ljust(width) if not at else word.rjust(width)
                               for at, (word, width) in enumerate(zip(line, widths))))
    print()


def print_tables(results):
    millions = lambda values: f"{figures.median(values) / 1e6:.3f}" if values else "-"
    lines = [["port", "frame", "testudo, Mpps", "secgw, Mpps", "bare, Mpps", "of secgw", "of bare", "cycles", "note"]]
    for (port, size), turns in results.items():
        own, peer, bare = (of(turns, subject) for subject in ("own", "peer", "bare"))
        of_peer, cycles = figures.ratios(own, peer), of(turns, "own", "cycles_per_packet")
        notes = []
        if of_peer and size in GOALS:
            reached = figures.median(of_peer) >= GOALS[size]
            notes.append(f"goal {GOALS[size]}: {'reached' if reached else 'not reached'}")
        if any(of(turns, "own", "bound_by_generator")):
            notes.append("the generator is the limit")
        lines.append([port, str(size), millions(own), millions(peer), millions(bare), figures.spread(of_peer),
                      figures.spread(figures.ratios(own, bare)), f"{figures.median(cycles):.0f}", "; ".join(notes)])
    print()
    table(lines)
    costs = [["cost of the port alone, cycles a packet", "frame", "receive", "send"]]
    for (port, size), turns in results.items():
        receive, transmit = (f"{figures.median(of(turns, 'own', what)):.0f}" for what in ("receive", "transmit"))
        costs.append([port.replace("tun-socket", "tun (receive), socket (send)"), str(size), receive, transmit])
    table(costs)


def prepare(given, folder):
    """Files that all measurements share."""
    sizes = [str(size) for size in given.sizes]
    subprocess.run([sys.executable, HERE.parent / "peer-frames.py", folder, *sizes], check=True)
    neighbour_file(Path(folder) / "neighbour.pcap")


def main():
    given = options()
    examples = given.programs.resolve() / "examples"
    programs = {"testudo": given.programs.resolve() / "testudo", "peer": given.peer and given.peer.resolve(),
                "plugin": given.programs.resolve() / "libtestudo-dpdk.so",
                "xdp_forwarder": examples / "xdp_forwarder", "ring_port": examples / "dpdk_ring"}
    measured, results = [], {}
    for port in given.ports:
        reason = why_not(port, programs)
        say(f"left out: {port}: {reason}") if reason else measured.append(port)
    if "memif" in measured and not programs["peer"]:
        say("left out: ipsec-secgw, which could not be built: rows of memif have no peer")
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        say("generator and gateway share the one processor there is: the rates say little")
    cpus = processors[0], processors[-1]
    failed = not measured
    with tempfile.TemporaryDirectory(prefix="testudo-bench-ports-") as folder:
        prepare(given, folder)
        bench = subjects.Bench(folder, programs, cpus, given.seconds)
        for turn in range(1, given.repetitions + 1):
            for port, size in [(port, size) for port in measured for size in given.sizes]:
                try:
                    found = measure(port, bench, size)
                except (Failed, figures.NoFigure) as error:
                    say(f"turn {turn}, {port} at {size}: {error}")
                    failed = True
                    continue
                results.setdefault((port, size), []).append(found)
                rates = ", ".join(f"{name} {what['packets_per_second']:.0f}" for name, what in found.items())
                say(f"turn {turn} of {given.repetitions}, {port} at {size}: {rates} packets a second")
    if given.json:
        print(json.dumps(rows(results), indent=2))
    elif results:
        print_tables(results)
        print(f"  medians of {given.repetitions} turns, ratios within a turn with the lowest and the highest; subject on "
              f"CPU {cpus[1]}, generator on CPU {cpus[0]}; {len(processors)} processors, load {os.getloadavg()[0]:.1f}")
    return FAILED if failed else 0


if __name__ == "__main__":
    sys.exit(main())
