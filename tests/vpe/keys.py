#!/usr/bin/python3
"""Writes docs/vpe-key-vectors.json, or with --check says whether it is what this script writes.

The function in contrib/scapy/vpe.py makes the keys, of nothing but Python's hmac and hashlib.
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "contrib/scapy"))

import vpe  # noqa: E402

FILE = ROOT / "docs/vpe-key-vectors.json"
SALT_BYTES = 4
# RFC 5869 A.1: that the function is HKDF.
RFC_5869 = (
    bytes([0x0B] * 22), bytes(range(13)), bytes(range(0xF0, 0xFA)), 42,
    "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
)


def vectors():
    for at, (suite, (_, key_bytes)) in enumerate(vpe.SUITES.items()):
        keymat = bytes((7 * at + i) % 256 for i in range(key_bytes + SALT_BYTES))
        for spi in (0x11223344, 0xC0000100 + at):
            key = vpe.negotiated_key(suite, keymat, spi)
            yield {"suite": suite, "keymat": keymat.hex(), "spi": spi, "key": key.hex()}


def main():
    keymat, salt, info, length, expected = RFC_5869
    if vpe.hkdf_sha256(keymat, salt, info, length).hex() != expected:
        sys.exit("hkdf_sha256 is not the HKDF of RFC 5869 A.1")
    text = json.dumps(list(vectors()), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        if FILE.read_text() != text:
            sys.exit(f"{FILE.name} is not what tests/vpe/keys.py writes: run it")
        print(f"{FILE.name}: {len(json.loads(text))} vectors")
    else:
        FILE.write_text(text)


if __name__ == "__main__":
    main()
