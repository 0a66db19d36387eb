#!/usr/bin/env bash
# The guest of tests/linux-peer with `testudo` and ethtool, and if asked for with this machine's systemd as its
# first process, and with the files of a folder. Needs no root: a second archive is appended to the first one,
# over which the kernel unpacks it.
#
# usage: guest-image.sh CACHE NEW PROGRAM [systemd [FILES]]     CACHE is what linux-peer/build-image.sh makes
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$here/../..

add() { # FILE: to the same path, with the shared libraries that it names
  install -D "$1" "$root$1"
  { ldd "$1" 2>/dev/null | grep -oE '/[^ ]+' || true; } | while read -r library; do
    [ -e "$root$library" ] || install -D "$library" "$root$library"
  done
}

add_programs() { # PROGRAM
  add "$1"
  mkdir -p "$root/usr/local/bin"
  objcopy --strip-all "$root$1" "$root/usr/local/bin/testudo"
  rm "$root$1"
  add "$(PATH=$PATH:/usr/sbin command -v ethtool)"
}

units=(basic.target network.target shutdown.target sysinit.target systemd-journald.service
  systemd-journald.socket systemd-udevd.service systemd-udevd-control.socket systemd-udevd-kernel.socket
  systemd-udev-trigger.service)
rules=(50-udev-default 75-net-description 80-drivers 99-systemd)

# What finds the network card and starts units, and the agent of linux-peer as one of these.
add_systemd() {
  local lib=/usr/lib/systemd file
  for file in $lib/systemd{,-udevd,-journald,-executor,-shutdown} /usr/bin/{systemctl,udevadm,mount}; do
    [ ! -e "$file" ] || add "$file"
  done
  for file in /usr/lib/*/systemd/*.so; do add "$file"; done
  for file in "${units[@]}"; do install -D -m 644 "$lib/system/$file" "$root$lib/system/$file"; done
  for file in "${rules[@]}"; do
    install -D -m 644 "/usr/lib/udev/rules.d/$file.rules" "$root/usr/lib/udev/rules.d/$file.rules"
  done
  mkdir -p "$root"/{lib,root,home,etc/systemd/system,var/lib}
  ln -s /usr/lib/systemd "$root/lib/systemd"
  ln -s /usr/lib/udev "$root/lib/udev"
  echo root:x:0:0:root:/root:/bin/sh >"$root/etc/passwd"
  echo root:x:0: >"$root/etc/group"
  : >"$root/etc/machine-id"
  echo ID=test >"$root/etc/os-release"
  install -m 644 "$repository/contrib/testudo-tune@.service" "$root/etc/systemd/system"
  add_agent
  ln -s $lib/systemd "$root/init"
}

add_agent() {
  # What systemd has mounted is not mounted again.
  sed -e '/^mount /d' "$repository/tests/linux-peer/init" >"$root/agent"
  chmod 755 "$root/agent"
  cat >"$root/etc/systemd/system/default.target" <<'UNIT'
[Unit]
Requires=systemd-journald.socket systemd-udevd.service systemd-udev-trigger.service agent.service
After=systemd-udev-trigger.service
UNIT
  cat >"$root/etc/systemd/system/agent.service" <<'UNIT'
[Unit]
DefaultDependencies=no
After=systemd-udev-trigger.service
[Service]
ExecStart=/agent
UNIT
}

main() {
  [ $# -ge 3 ] || { echo "usage: guest-image.sh CACHE NEW PROGRAM [systemd [FILES]]" >&2; exit 1; }
  mkdir -p "$2"
  root=$2/root
  add_programs "$3"
  [ "${4-}" != systemd ] || add_systemd
  [ -z "${5-}" ] || cp -a "$5/." "$root/"
  (cd "$root" && find . | cpio --quiet -o -H newc -R 0:0) >"$2/more.cpio"
  cat "$1/initramfs.cpio" "$2/more.cpio" >"$2/initramfs.cpio"
  cp "$1/vmlinuz" "$2/vmlinuz"
  rm -r "$root" "$2/more.cpio"
}

main "$@"
