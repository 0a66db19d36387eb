"""Programs and namespaces of one measurement, which end with it."""

import os
import signal
import subprocess
import time
from pathlib import Path

# A machine with other work gives each program a part of its core; what is measured then is not judged by this.
PATIENCE_SECONDS = 90
ENDING_SECONDS = 10
POLL_SECONDS = 0.05


class Failed(Exception):
    """A program does not start or does not do what it should; the text says which and why."""


def said(command, **more):
    """What a command prints; it must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def wait_until(holds, what, program=None):
    """Waits until `holds()`; ends with the end of `program`, or of patience."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if program and program.child.poll() is not None:
            raise Failed(f"{program.name} has ended: {program.last_line()}")
        if time.monotonic() > end:
            heard = f"; {program.name} says: {program.last_line()}" if program else ""
            raise Failed(f"{what} in vain for {PATIENCE_SECONDS} s{heard}")
        time.sleep(POLL_SECONDS)


class Program:
    """A program that runs until it is ended, with its output in a file."""

    def __init__(self, name, command, folder, cpu, namespace=None):
        self.name, self.log = name, Path(folder) / f"{name}.log"
        command = ["taskset", "-c", str(cpu), *map(str, command)]
        if namespace:
            command = ["ip", "netns", "exec", namespace, *command]
        with open(self.log, "w", encoding="utf-8") as log:
            self.child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=folder,
                # What DPDK's programs leave behind goes with the folder.
                env={**os.environ, "RUNTIME_DIRECTORY": str(folder)})

    def text(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def last_line(self):
        lines = [line for line in self.text().splitlines() if line.strip()]
        return lines[-1] if lines else "without a word"

    def end(self):
        """Interrupts it, and returns what it has printed."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGINT)
            try:
                self.child.wait(ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        return self.text()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


class Wires:
    """Two veth pairs between a namespace of the generator and one of the gateway:

        generator   g0 ══ p0   gateway   u0 ══ g1   generator
    """

    MACS = {"g0": "02:00:00:00:00:0a", "p0": "02:00:00:00:00:01", "u0": "02:00:00:00:00:02", "g1": "02:00:00:00:00:0b"}

    def __init__(self):
        self.generator, self.gateway = (f"testudo-bench-{os.getpid()}-{end}" for end in ("a", "b"))

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.remove()
            raise
        return self

    def make(self):
        for namespace in (self.generator, self.gateway):
            said(["ip", "netns", "add", namespace])
            # No router solicitation, and no neighbour discovery between the packets that are counted.
            said(["ip", "netns", "exec", namespace, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1",
                  "net.ipv6.conf.default.disable_ipv6=1", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0",
                  "net.ipv4.conf.default.rp_filter=0"])
        for far, near in (("g0", "p0"), ("g1", "u0")):
            said(["ip", "link", "add", far, "netns", self.generator, "address", self.MACS[far], "type", "veth",
                  "peer", "name", near, "netns", self.gateway, "address", self.MACS[near]])
        for name, address in (("p0", "10.0.1.254/24"), ("u0", "1.1.1.1/24")):
            self.ip("address", "add", address, "dev", name)
        for name in ("lo", "p0", "u0"):
            self.ip("link", "set", name, "up")
        for name in ("g0", "g1"):
            said(["ip", "-n", self.generator, "link", "set", name, "up"])
        self.ip("route", "add", "default", "via", "1.1.1.2", "dev", "u0")
        self.ip("neighbour", "add", "1.1.1.2", "lladdr", self.MACS["g1"], "nud", "permanent", "dev", "u0")

    def ip(self, *words):
        said(["ip", "-n", self.gateway, *words])

    def remove(self):
        for namespace in (self.generator, self.gateway):
            # It may not have been made.
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)

    def __exit__(self, *_):
        self.remove()
