#!/usr/bin/env python3
"""Makes crates/wire/tests/xfrm/captures/daemons.txt: what real daemons and the gateway say to each other.

usage: TESTUDO_RECORD=FOLDER cargo test --package testudo --test ike
       tests/ike/record.py FOLDER >crates/wire/tests/xfrm/captures/daemons.txt
       cargo run --package testudo-fuzz --example seeds

The recorder of crates/testudo/tests/ike writes each session to a file, with other keys than the real ones. Of
these, this takes as few as have a message of each shape: its type with the types of its attributes.
Acknowledgements without an error say nothing and are left out.
"""

import pathlib
import struct
import sys

ERROR = 2
# Bytes of the structure ahead of the attributes, by message type.
FIXED = {0x10: 224, 0x11: 24, 0x12: 24, 0x13: 168, 0x14: 64, 0x15: 64, 0x16: 232, 0x17: 280, 0x18: 232, 0x19: 168,
         0x1A: 224, 0x1B: 176, 0x1C: 4, 0x1D: 0, 0x1E: 48, 0x1F: 48, 0x21: 64, 0x22: 16, 0x23: 4, 0x24: 4, 0x25: 4,
         0x26: 64}


def messages(datagram):
    """Type and content of each message."""
    while len(datagram) >= 16:
        length, kind = struct.unpack_from("=IH", datagram)
        if not 16 <= length <= len(datagram):
            return
        yield kind, datagram[16:length]
        datagram = datagram[(length + 3) & ~3:]


def attributes(content):
    while len(content) >= 4:
        length, kind = struct.unpack_from("=HH", content)
        if not 4 <= length <= len(content):
            return
        yield kind
        content = content[(length + 3) & ~3:]


def shapes(line):
    word, digits = line.split()
    for kind, content in messages(bytes.fromhex(digits)):
        if kind == ERROR:
            yield word, kind, content[:4]
        elif kind in FIXED:
            yield word, kind, tuple(attributes(content[FIXED[kind]:]))


def is_plain_acknowledgement(line):
    word, digits = line.split()
    return word == "received" and all(kind == ERROR and not any(content[:4])
                                      for kind, content in messages(bytes.fromhex(digits)))


def session(path):
    lines = path.read_text().splitlines()
    return [line for line in lines if not line.startswith("#") and not is_plain_acknowledgement(line)]


def main():
    sessions = {path: session(path) for path in sorted(pathlib.Path(sys.argv[1]).glob("*.txt"))}
    left = {path: {shape for line in lines for shape in shapes(line)} for path, lines in sessions.items()}
    print("// Recorded of charon-systemd 5.9.8 and pluto 4.10 (Debian 12) and the gateway by crates/testudo/tests/ike, and"
          " chosen\n// by tests/ike/record.py. The keys are others.")
    while any(left.values()):
        # Much that is new in few lines.
        best = max(left, key=lambda path: len(left[path]) / (len(sessions[path]) + 10))
        print(f"# session {best.stem}", *sessions[best], sep="\n")
        new = left[best]
        left = {path: shapes - new for path, shapes in left.items()}


main()
