#!/usr/bin/env bash
# Builds the Linux guest that the tests talk IPsec with: Debian's cloud kernel and an initramfs, without
# root and without installing that kernel. Writes CACHE/vmlinuz and CACHE/initramfs.cpio.
#
# usage: build-image.sh [--refresh] [CACHE]       CACHE is target/linux-peer of this repository by default
#
#   --refresh   download the newest kernel package even when one is cached
#
# Does nothing when CACHE is up to date with these scripts. Only the first run needs the network.
# KERNEL_DEB=FILE takes that package instead of downloading one (on systems other than Debian).
set -euo pipefail
export LC_ALL=C

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PATH=$PATH:/usr/sbin:/sbin # where kmod and iproute2 live, which is not on every user's path

# Whole folders where the modules are small and a missing one would be a riddle.
module_patterns=(
  'arch/x86/crypto/' 'crypto/' 'lib/' 'net/key/' 'net/xfrm/'
  'net/ipv4/[^/]*[.]ko' 'net/ipv6/[^/]*[.]ko'
  'net/netfilter/(x_tables|xt_policy|nf_tables|nft_xfrm)[.]ko'
  'drivers/virtio/virtio(_pci)?[.]ko' 'drivers/char/virtio_console[.]ko' 'drivers/char/hw_random/virtio-rng[.]ko'
  'drivers/net/(virtio_net|dummy|veth|tun)[.]ko'
)
programs=(ip ss socat iperf3)
# Busybox has its own, smaller editions of these: the real ones must be the only ones in the guest.
not_from_busybox='^(ip|ss|sh|ash|modprobe|depmod|insmod|rmmod|lsmod|busybox)$'

die() { echo "build-image.sh: $*" >&2; exit 1; }

need() { # PROGRAM PACKAGE
  command -v "$1" >/dev/null || die "'$1' is missing: install the package $2 (all: tests/linux-peer/packages.txt)"
}

need_all() {
  need busybox busybox-static; need cpio cpio; need dash dash; need depmod kmod; need dpkg-deb dpkg
  need ip iproute2; need iperf3 iperf3; need socat socat; need flock util-linux
  if ldd "$(command -v busybox)" >/dev/null 2>&1; then
    die "busybox is not static: install the package busybox-static"
  fi
}

kernel_package() { # the concrete package behind Debian's ever-moving name
  need apt-cache apt
  apt-cache depends --important linux-image-cloud-amd64 2>/dev/null | awk '$1 == "Depends:" && !n++ { print $2 }'
}

download_kernel() { # CACHE
  local package
  package=$(kernel_package)
  [ -n "$package" ] ||
    die "apt knows no linux-image-cloud-amd64: run 'apt-get update' on Debian, or set KERNEL_DEB elsewhere"
  local sandbox=()
  [ "$(id -u)" -ne 0 ] || sandbox=(-o APT::Sandbox::User=root)
  mkdir "$work/download"
  (cd "$work/download" && apt-get "${sandbox[@]}" -qq download "$package" >&2) ||
    die "cannot download $package: is there a network, and is 'apt-get update' recent?"
  mv "$work/download/"*.deb "$1/kernel.deb"
}

add_file() { # SOURCE PATH_IN_GUEST
  mkdir -p "$root$(dirname "$2")"
  cp -L "$1" "$root$2"
}

add_program() { # PROGRAM PATH_IN_GUEST: with the shared libraries it names
  local source
  source=$(command -v "$1")
  add_file "$source" "$2"
  { ldd "$source" | grep -oE '/[^ ]+' || true; } | while read -r library; do
    [ -e "$root$library" ] || add_file "$library" "$library"
  done
}

add_programs() {
  add_file "$(command -v busybox)" /bin/busybox
  mkdir -p "$root/usr/sbin" "$root/usr/bin" "$root/sbin"
  local applet program
  for applet in $("$root/bin/busybox" --list | grep -vE "$not_from_busybox"); do
    ln -s /bin/busybox "$root/bin/$applet"
  done
  # A shell that looks programs up on the path: busybox's would run its own 'ip' instead.
  add_program dash /bin/sh
  add_program kmod /sbin/kmod
  for program in modprobe insmod rmmod lsmod; do # the kernel itself calls /sbin/modprobe for ciphers and templates
    ln -s kmod "$root/sbin/$program"
  done
  for program in "${programs[@]}"; do add_program "$program" "/usr/bin/$program"; done
}

wanted_modules() { # from modules.dep, whose right-hand sides are complete: the modules and all they need
  local alternatives
  alternatives=$(IFS='|'; echo "${module_patterns[*]}")
  awk -F: -v wanted="^kernel/($alternatives)" '
    $1 ~ wanted { print $1; n = split($2, needs, " "); for (i = 1; i <= n; i++) print needs[i] }
  ' "$1/modules.dep" | sort -u
}

add_modules() { # UNPACKED_PACKAGE
  local version source target
  version=$(basename "$(echo "$1"/lib/modules/*)")
  source=$1/lib/modules/$version target=$root/lib/modules/$version
  mkdir -p "$target"
  depmod -b "$1" "$version"
  (cd "$source" && wanted_modules . | cpio --quiet -pdm "$target")
  cp "$source"/modules.order "$source"/modules.builtin* "$target/"
  depmod -b "$root" "$version"
}

build() { # CACHE
  root=$work/root
  mkdir -p "$root"/{proc,sys,dev,run,tmp,etc} "$work/kernel"
  dpkg-deb -x "$1/kernel.deb" "$work/kernel"
  # Since Debian 13 the modules lie under /usr.
  if [ ! -d "$work/kernel/lib/modules" ]; then
    mkdir -p "$work/kernel/lib"
    mv "$work/kernel/usr/lib/modules" "$work/kernel/lib/"
  fi
  add_programs
  add_modules "$work/kernel"
  install -m 755 "$here/init" "$root/init"
  # Not compressed: reading it is quicker than unpacking it on an emulated processor.
  (cd "$root" && find . | sort | cpio --quiet -o -H newc -R 0:0) >"$work/initramfs.cpio"
  mv "$work/kernel/boot/vmlinuz-"* "$1/vmlinuz"
  mv "$work/initramfs.cpio" "$1/initramfs.cpio"
}

stamp() { cat "$here/build-image.sh" "$here/init" | sha256sum | cut -d' ' -f1; }

main() {
  local refresh=no cache
  if [ "${1:-}" = --refresh ]; then refresh=yes; shift; fi
  cache=${1:-$here/../../target/linux-peer}
  need flock util-linux
  mkdir -p "$cache"
  cache=$(cd "$cache" && pwd)
  exec 9>"$cache/lock"
  flock 9 # tests may ask for the image at the same time
  if [ "$refresh" = no ] && [ -s "$cache/vmlinuz" ] && [ -s "$cache/initramfs.cpio" ] &&
    [ "$(cat "$cache/stamp" 2>/dev/null)" = "$(stamp)" ]; then return; fi
  need_all
  rm -f "$cache/stamp"
  work=$(mktemp -d "$cache/work.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  if [ -n "${KERNEL_DEB:-}" ]; then cp "$KERNEL_DEB" "$cache/kernel.deb"
  elif [ "$refresh" = yes ] || [ ! -s "$cache/kernel.deb" ]; then download_kernel "$cache"; fi
  build "$cache"
  stamp >"$cache/stamp"
  echo "build-image.sh: $cache holds $(dpkg-deb -f "$cache/kernel.deb" Package Version | paste -sd' ')" >&2
}

main "$@"
