#!/usr/bin/env bash
# `testudo ike setup strongswan` where systemd is the first process and AppArmor enforces: two guests with
# Debian's kernel, systemd and strongSwan, joined by a link of their own. One is a peer with the kernel's
# IPsec; in the other one the program is installed by scripts/install.sh, set up, tried, killed and taken
# back (guest-run.sh). Nothing of the host is changed.
#
# usage: guest.sh CACHE       what guest-image.sh makes, and below it what the consoles said
#
# BOOT_SECONDS, 900 by default, bounds it; emulated, it takes about two minutes. ACCEL=kvm is faster where KVM
# works.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

die() { echo "guest.sh: $*" >&2; exit 1; }

# The second disk of both: the program as it is installed, a configuration, and what a guest runs.
make_disk() {
  local disk=$work/disk
  mkdir "$disk" "$disk/install"
  DESTDIR=$disk/install PREFIX=/usr/local scripts/install.sh >"$work/install.log"
  sed 's|^name = "testudo0"|&\naddresses = ["10.1.0.1/16"]|' examples/ike.toml >"$disk/ike.toml"
  install -m 755 tests/ike-setup/guest-run.sh "$disk/run.sh"
  truncate -s "$(($(du -sm "$disk" | cut -f1) * 5 / 4 + 16))M" "$work/disk.ext4"
  mkfs.ext4 -q -F -E root_owner=0:0 -d "$disk" "$work/disk.ext4"
}

# The guest's own number is the last of its card's address.
boot() { # ROLE NUMBER NETDEV
  timeout "$limit" qemu-system-x86_64 -accel "${ACCEL:-tcg}" -cpu max -smp 1 -m 768 \
    -nodefaults -no-user-config -display none -no-reboot \
    -kernel "$image/vmlinuz" -initrd "$image/initrd" \
    -append "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=false guest.role=$1" \
    -serial "file:$work/$1.log" \
    -drive "file=$image/root.ext4,format=raw,if=virtio,snapshot=on" \
    -drive "file=$work/disk.ext4,format=raw,if=virtio,snapshot=on" \
    -netdev "$3" -device "virtio-net-pci,netdev=link,mac=52:54:00:00:00:0$2" \
    -device virtio-rng-pci &
}

main() {
  [ $# -eq 1 ] || die "usage: guest.sh CACHE"
  command -v qemu-system-x86_64 >/dev/null || die "install the package qemu-system-x86"
  tests/ike-setup/guest-image.sh "$1"
  image=$(cd "$1" && pwd)
  limit=${BOOT_SECONDS:-900}
  work=$(mktemp -d "$image/run.XXXXXX")
  make_disk
  local peer gateway status=0
  boot peer 2 "stream,id=link,server=on,addr.type=unix,addr.path=$work/link"
  peer=$!
  until [ -S "$work/link" ]; do
    kill -0 "$peer" || die "the peer does not boot"
    sleep 0.1
  done
  boot gateway 1 "stream,id=link,server=off,addr.type=unix,addr.path=$work/link"
  gateway=$!
  wait "$gateway" || status=$?
  kill "$peer" 2>/dev/null || true
  wait "$peer" || true
  grep '^guest: ' "$work/gateway.log" || true
  if ! grep -q '^guest: all is as it must be' "$work/gateway.log"; then
    die "not all is as it must be (qemu: $status): see $work/gateway.log and $work/peer.log"
  fi
  rm -rf "$work"
}

main "$@"
