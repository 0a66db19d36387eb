#!/usr/bin/env bash
# Builds libtestudo-xfrm.so, which lets an IKE daemon speak to Testudo instead of the kernel's XFRM, and, where
# the headers of DPDK are installed, libtestudo-dpdk.so, by which the gateway opens DPDK's devices.
#
# usage: [CC=COMPILER] [CFLAGS=OPTIONS] shim.sh FOLDER [xfrm|dpdk]
#
# Builds one of them if it is named: dpdk then fails where the headers are missing.
set -euo pipefail
mkdir -p "$1"
shim=$(dirname "${BASH_SOURCE[0]}")/../shim
read -ra more <<<"${CFLAGS:-}"
shared=(-g -fPIC -shared -fvisibility=hidden -fstack-protector-strong
  -Wall -Wextra -Wconversion -Wformat=2 -Wl,-z,relro,-z,now,-z,defs "${more[@]}")

xfrm() { # FOLDER
  "${CC:-cc}" -std=c11 -O2 "${shared[@]}" -o "$1/libtestudo-xfrm.so" "$shim"/*.c -ldl
}

# It is bound to the version that it is built against: a newer DPDK needs no more than to build it again.
dpdk() { # FOLDER
  local headers libraries
  # Warnings of DPDK's own headers are not ours.
  read -ra headers <<<"$(pkg-config --cflags libdpdk | sed 's/-I/-isystem /g')"
  read -ra libraries <<<"$(pkg-config --libs libdpdk)"
  "${CC:-cc}" -std=gnu11 -O3 "${shared[@]}" -DALLOW_EXPERIMENTAL_API "${headers[@]}" \
    -o "$1/libtestudo-dpdk.so" "$shim"/dpdk/*.c "${libraries[@]}"
}

case ${2:-} in
  xfrm | dpdk) "$2" "$1" ;;
  *)
    xfrm "$1"
    if command -v pkg-config >/dev/null && pkg-config --exists libdpdk; then dpdk "$1"; else
      echo "shim: libtestudo-dpdk.so is left out: DPDK's headers are not installed (libdpdk-dev, pkg-config)" >&2
    fi
    ;;
esac
