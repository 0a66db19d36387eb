#!/usr/bin/env bash
# Builds the Debian that guest.sh boots: systemd as its first process, AppArmor, strongSwan with its
# profiles, and Debian's own kernel, all from Debian's packages. Writes CACHE/root.ext4, CACHE/vmlinuz and
# CACHE/initrd.
#
# usage: guest-image.sh CACHE
#
# Does nothing when CACHE is up to date with this script. Needs root, since owners and devices are Debian's;
# only the first run needs the network.
set -euo pipefail
export LC_ALL=C
PATH=$PATH:/usr/sbin:/sbin # where mkfs.ext4 lives, which is not on every user's path

suite=bookworm
packages=systemd-sysv,udev,dbus,kmod,linux-image-cloud-amd64,iproute2,iputils-ping,nftables,apparmor
packages+=,charon-systemd,strongswan-swanctl,libstrongswan-standard-plugins
# Beyond what the packages take, for the test.
free_mib=256

die() { echo "guest-image.sh: $*" >&2; exit 1; }

need() { # PROGRAM PACKAGE
  command -v "$1" >/dev/null || die "'$1' is missing: install the package $2"
}

# Runs what the second disk holds, with the console as its output, and powers off.
test_unit() {
  cat <<'EOF_UNIT'
[Unit]
Description=The test on the second disk

[Service]
Type=oneshot
TimeoutStartSec=infinity
ExecStartPre=/bin/mount -o ro /dev/vdb /mnt
ExecStart=/mnt/run.sh
ExecStopPost=/bin/systemctl --no-block poweroff
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0

[Install]
WantedBy=multi-user.target
EOF_UNIT
}

# Runs in the new system's folder, before its package manager's caches go.
customize() { # ROOT
  # An initramfs of three drivers, since an emulated processor unpacks it.
  printf '%s\n' MODULES=list COMPRESS=gzip >"$1/etc/initramfs-tools/conf.d/guest"
  printf '%s\n' virtio_pci virtio_blk ext4 >>"$1/etc/initramfs-tools/modules"
  chroot "$1" update-initramfs -u -k all >/dev/null
  test_unit >"$1/etc/systemd/system/guest-test.service"
  chroot "$1" systemctl --quiet enable guest-test.service
  # A login would share the console, and the daemon starts when the test says so.
  chroot "$1" systemctl --quiet mask getty.target serial-getty@ttyS0.service
  chroot "$1" systemctl --quiet disable strongswan.service
  echo guest >"$1/etc/hostname"
  cp -L "$1/vmlinuz" "$image/vmlinuz"
  cp -L "$1/initrd.img" "$image/initrd"
  # The kernel has its own copy of what it needs, and the caches are not needed again.
  rm -rf "$1/boot"/* "$1/var/lib/apt/lists"/* "$1/var/cache/apt/archives"/*.deb
  # Mounted again, the folder has no /proc and /sys of the host.
  local plain=$image/plain mib
  mkdir -p "$plain"
  mount --bind "$1" "$plain"
  mib=$(du -sm "$plain" | cut -f1)
  truncate -s "$((mib + mib / 5 + free_mib))M" "$image/root.new"
  mkfs.ext4 -q -F -d "$plain" "$image/root.new"
  umount "$plain"
  rmdir "$plain"
}

build() {
  export image
  mmdebstrap --quiet --mode=root --variant=minbase --format=null --include="$packages" \
    --customize-hook="'$here/guest-image.sh' --customize \"\$1\"" "$suite" - >&2 </dev/null
  mv "$image/root.new" "$image/root.ext4"
}

main() {
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  if [ "${1-}" = --customize ]; then customize "$2"; return; fi
  [ $# -eq 1 ] || die "usage: guest-image.sh CACHE"
  mkdir -p "$1"
  image=$(cd "$1" && pwd)
  exec 9>"$image/lock"
  flock 9
  local stamp
  stamp=$(sha256sum <"$here/guest-image.sh")
  [ "$(cat "$image/stamp" 2>/dev/null)" != "$stamp" ] || return 0
  need mmdebstrap mmdebstrap; need mkfs.ext4 e2fsprogs
  [ "$(id -u)" -eq 0 ] || die "run this as root: the guest's files have the owners that Debian gives them"
  rm -f "$image/stamp"
  build
  echo "$stamp" >"$image/stamp"
}

main "$@"
