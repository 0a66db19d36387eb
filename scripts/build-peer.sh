#!/usr/bin/env bash
# Builds DPDK's ipsec-secgw from Debian's sources, for this processor, in FOLDER/ipsec-secgw/build. It stays
# there for the next call.
#
# usage: build-peer.sh FOLDER
set -euo pipefail
folder=${1:?usage: build-peer.sh FOLDER}
examples=/usr/share/dpdk/examples

say() { echo "build-peer: $*" >&2; }
die() { say "$@"; exit 1; }

[[ ! -x $folder/ipsec-secgw/build/ipsec-secgw ]] || exit 0
[[ -d $examples/ipsec-secgw ]] || die "$examples/ipsec-secgw is missing: install the package dpdk-doc"
say "building ipsec-secgw"
mkdir -p "$folder"
rm -rf "$folder/ipsec-secgw" "$folder/common"
cp -r "$examples/ipsec-secgw" "$examples/common" "$folder/"
# The example requires checksum offload, which virtual devices do not have.
sed -i 's/\.offloads = RTE_ETH_RX_OFFLOAD_CHECKSUM,/.offloads = 0,/' "$folder/ipsec-secgw/ipsec-secgw.c"
sed -i 's/-O3/-O3 -march=native/' "$folder/ipsec-secgw/Makefile"
make -C "$folder/ipsec-secgw" >"$folder/make.log" 2>&1 || die "ipsec-secgw cannot be built: see $folder/make.log"
