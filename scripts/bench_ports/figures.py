"""What programs print, and what follows from it. No function here runs anything."""

import re

STATISTICS = re.compile(r"NIC statistics for port (\d+)")
FORWARDED = re.compile(r"Forward statistics for port (\d+)")
RATE = re.compile(r"([RT])x-pps: +(\d+)")
DROPPED = re.compile(r"TX-packets: (\d+) +TX-dropped: (\d+)")
# What DPDK's programs print once all their ports have started.
LOOKS_AT_LINKS = "Checking link status"
# Readings of a program that cover its start.
STARTING = 2


class NoFigure(Exception):
    """A program ran and printed no figure that can be used."""


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def ports_have_started(text):
    """Whether a program of DPDK's takes clients of memif. Its sockets are there before its ports have started."""
    return LOOKS_AT_LINKS in text


def testpmd_rates(text, port, direction):
    """Packets a second of a port of testpmd's, `direction` R or T, once for each period."""
    rates, current = [], None
    for line in text.splitlines():
        if found := STATISTICS.search(line):
            current = int(found[1])
        elif (found := RATE.search(line)) and current == port and found[1] == direction:
            rates.append(int(found[2]))
    return rates


def testpmd_offered(text, port):
    """Packets that testpmd has sent by a port until its end, and those that the port did not take."""
    current = None
    for line in text.splitlines():
        if found := FORWARDED.search(line):
            current = int(found[1])
        elif (found := DROPPED.search(line)) and current == port:
            return int(found[1]), int(found[2])
    raise NoFigure(f"testpmd has not told what it sent by port {port}")


def secgw_rates(text):
    """Packets a second that ipsec-secgw sent, from the counts that it prints each second."""
    counts = [int(count) for count in re.findall(r"^Total packets sent: +(\d+)", text, re.MULTILINE)]
    return [after - before for before, after in zip(counts, counts[1:])]


def steady(rates):
    """The median of the rates after the start."""
    rates = [rate for rate in rates[STARTING:] if rate > 0]
    if not rates:
        raise NoFigure("no packet came through after the start")
    return median(rates)


def gateway_figures(before, after):
    """Packets a second, and ticks a packet by stage, between two answers of `testudo status --json`."""
    clocks = [reading["stages"]["clock"]["elapsed_ns"] for reading in (before, after)]
    sent = [reading["ports"]["unprotected"]["tx_packets"] for reading in (before, after)]
    outbound = [reading["stages"]["outbound"] for reading in (before, after)]
    packets = outbound[1]["packets"] - outbound[0]["packets"]
    if sent[1] <= sent[0] or packets <= 0:
        raise NoFigure("the gateway has sent nothing")
    ticks = {name: (count - outbound[0]["ticks"][name]) / packets for name, count in outbound[1]["ticks"].items()}
    return {
        "packets_per_second": (sent[1] - sent[0]) * 1e9 / (clocks[1] - clocks[0]),
        "cycles_per_packet": sum(ticks.values()),
        "receive": ticks["receive"],
        "transmit": ticks["transmit"],
    }


def is_bound_by_generator(taken, offered, dropped):
    """Whether the gateway took all that it was offered: it could do more, perhaps. `dropped` is what the generator
    could not hand over, where its port tells; elsewhere the rate that was taken is compared with the one offered."""
    if dropped is not None:
        return dropped < 0.01 * max(offered, 1)
    return taken > 0.97 * offered


def row(port, frame_bytes, own=None, peer=None, bare=None, cycles=None):
    """A row of `--json`: medians, None for what was not measured."""
    def whole(values):
        return round(median(values)) if values else None

    return {
        "port": port,
        "frame_bytes": frame_bytes,
        "packets_per_second": whole(own),
        "peer_packets_per_second": whole(peer),
        "bare_packets_per_second": whole(bare),
        "cycles_per_packet": round(median(cycles), 1) if cycles else None,
    }


def spread(values):
    """The median of ratios, with the lowest and the highest, for people."""
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})" if values else "-"


def ratios(own, other):
    """Of what was measured in the same turn."""
    return [a / b for a, b in zip(own, other) if b]
