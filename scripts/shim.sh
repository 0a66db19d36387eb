#!/usr/bin/env bash
# Builds libtestudo-xfrm.so, which lets an IKE daemon speak to Testudo instead of the kernel's XFRM.
#
# usage: [CC=COMPILER] [CFLAGS=OPTIONS] shim.sh FOLDER
set -euo pipefail
mkdir -p "$1"
read -ra more <<<"${CFLAGS:-}"
"${CC:-cc}" -std=c11 -O2 -g -fPIC -shared -fvisibility=hidden -fstack-protector-strong \
  -Wall -Wextra -Wconversion -Wformat=2 -Wl,-z,relro,-z,now,-z,defs "${more[@]}" \
  -o "$1/libtestudo-xfrm.so" "$(dirname "${BASH_SOURCE[0]}")"/../shim/*.c -ldl
