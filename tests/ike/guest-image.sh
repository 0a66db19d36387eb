#!/usr/bin/env bash
# Builds a Linux guest with strongSwan's charon: the guest of tests/linux-peer with the daemon, its plugins and
# swanctl of tests/ike/unpack.sh appended as a second archive. Writes IMAGE/vmlinuz and IMAGE/initramfs.cpio.
#
# usage: guest-image.sh PEER DAEMONS IMAGE       the caches of the two scripts, and the folder for this guest
#
# Does nothing when IMAGE is newer than both. Needs no network.
set -euo pipefail
export LC_ALL=C
PATH=$PATH:/usr/sbin:/sbin # where ldconfig lives, which is not on every user's path

die() { echo "guest-image.sh: $*" >&2; exit 1; }

plugins='random nonce openssl aes sha1 sha2 hmac kdf gcm chapoly pem pkcs1 pkcs8 x509 pubkey constraints revocation
  kernel-netlink socket-default vici updown'

add() { # FILE PATH_IN_GUEST
  mkdir -p "$root$(dirname "$2")"
  cp -L "$1" "$root$2"
}

# With the libraries that a file names, but for those that the guest has in the same place.
add_libraries() { # FILE
  local library
  LD_LIBRARY_PATH=$daemons/usr/lib/ipsec:$daemons/usr/lib/x86_64-linux-gnu ldd "$1" |
    grep -oE '/[^ ]+' | while read -r library; do
      [ -e "$root/usr/lib/ipsec/${library##*/}" ] || add "$library" "/usr/lib/ipsec/${library##*/}"
    done
}

build() {
  local plugin file
  add "$daemons/usr/sbin/charon-systemd" /usr/sbin/charon-systemd
  add "$daemons/usr/sbin/swanctl" /usr/sbin/swanctl
  for plugin in $plugins; do
    file=/usr/lib/ipsec/plugins/libstrongswan-$plugin.so
    add "$daemons$file" "$file"
  done
  find "$root" -type f | while read -r file; do add_libraries "$file"; done
  # The C library loads it by its name when a thread is cancelled.
  # To the end: a reader that leaves early would at times end the writer, and with it this script.
  file=$(ldconfig -p | awk '/libgcc_s.so.1 .*x86-64/ && !n++ { print $NF }')
  [ -n "$file" ] || die "libgcc_s.so.1 is missing: install the package libgcc-s1"
  add "$file" /usr/lib/ipsec/libgcc_s.so.1
  (cd "$root" && find . | sort | cpio --quiet -o -H newc -R 0:0) >"$work/second.cpio"
  # The kernel unpacks one archive after the other.
  cat "$peer/initramfs.cpio" "$work/second.cpio" >"$work/initramfs.cpio"
  cp "$peer/vmlinuz" "$image/vmlinuz"
  mv "$work/initramfs.cpio" "$image/initramfs.cpio"
}

stamp() { cat "$0" "$peer/stamp" "$daemons/stamp" | sha256sum | cut -d' ' -f1; }

main() {
  [ $# -eq 3 ] || die "usage: guest-image.sh PEER DAEMONS IMAGE"
  mkdir -p "$3"
  peer=$(cd "$1" && pwd) daemons=$(cd "$2" && pwd) image=$(cd "$3" && pwd)
  exec 9>"$image/lock"
  flock 9 # tests may ask for it at the same time
  if [ "$(cat "$image/stamp" 2>/dev/null)" = "$(stamp)" ]; then return; fi
  work=$(mktemp -d "$image/work.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  root=$work/root
  mkdir "$root"
  build
  stamp >"$image/stamp"
}

main "$@"
