#!/usr/bin/env bash
# Builds ipsec-secgw, and measures ports: scripts/bench_ports says what and how.
#
# usage: bench-ports.sh TARGET_FOLDER [OPTION...]        --help lists the options
set -euo pipefail
export LC_ALL=C
target=$(realpath "${1:?usage: bench-ports.sh TARGET_FOLDER [OPTION...]}")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
peer=()
# Shared with `make bench-peer`.
! scripts/build-peer.sh "$target/bench-peer" || peer=(--peer "$target/bench-peer/ipsec-secgw/build/ipsec-secgw")
PYTHONDONTWRITEBYTECODE=1 exec python3 scripts/bench_ports --programs "$target/release" "${peer[@]}" "$@"
