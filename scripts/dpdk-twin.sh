#!/usr/bin/env bash
# Builds libtestudo-dpdk-twin.so, the virtual NIC with inline cryptography, and the program that tests play it
# with. Neither is installed. Exit code 3, and one line that says why, where DPDK or its drivers' headers are
# missing.
#
# usage: [CC=COMPILER] [CFLAGS=OPTIONS] dpdk-twin.sh FOLDER [HEADERS]
#        HEADERS   the drivers' headers, as setup.sh fetches them; else the target folder's
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/dpdk-headers.sh

missing() { echo "dpdk-twin: $*" >&2; exit 3; }

pkg-config --exists libdpdk 2>/dev/null || missing "libdpdk-dev is not installed"
headers=${2:-$(dpdk_headers_folder)}
[[ -e $headers/ethdev_driver.h ]] ||
  missing "DPDK's headers for drivers are not in $headers; \`make setup\` fetches them"

read -ra more <<<"${CFLAGS:-}"
# DPDK's own headers are not held to our warnings.
read -ra dpdk <<<"$(pkg-config --cflags libdpdk | sed 's/-I */-isystem /g')"
compile=("${CC:-cc}" -std=gnu11 -O2 -g -fstack-protector-strong -Wall -Wextra -Wconversion -Wformat=2
  -DALLOW_INTERNAL_API -DALLOW_EXPERIMENTAL_API -isystem "$headers" "${dpdk[@]}" "${more[@]}")
libraries=(-lrte_ethdev -lrte_security -lrte_cryptodev -lrte_net -lrte_mbuf -lrte_mempool -lrte_ring
  -lrte_kvargs -lrte_bus_vdev -lrte_eal -lcrypto)

mkdir -p "$1"
"${compile[@]}" -fPIC -shared -fvisibility=hidden -Wl,-z,relro,-z,now,-z,defs \
  -o "$1/libtestudo-dpdk-twin.so" shim/dpdk-twin/*.c "${libraries[@]}"
"${compile[@]}" -o "$1/dpdk-twin-player" tests/dpdk-twin/*.c "${libraries[@]}"
