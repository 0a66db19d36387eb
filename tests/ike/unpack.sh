#!/usr/bin/env bash
# Unpacks the IKE daemons that the tests talk to, strongSwan's charon-systemd and libreswan's pluto, with the
# libraries that this system lacks: Debian's packages, without root and without installing them. Their
# packages conflict with each other, and would start daemons on the machine. Writes CACHE/usr, which the tests
# mount over /usr in a mount namespace of their own.
#
# usage: unpack.sh [--refresh] [CACHE]       CACHE is target/ike-daemons of this repository by default
#
#   --refresh   download the newest packages even when some are cached
#
# Does nothing when CACHE is up to date with this script. Only the first run needs the network.
set -euo pipefail
export LC_ALL=C

# Without strongswan-starter, whose files are libreswan's, too.
strongswan='charon-systemd strongswan-swanctl strongswan-libcharon strongswan-pki libstrongswan
  libstrongswan-standard-plugins libstrongswan-extra-plugins libcharon-extra-plugins'
# certutil, which makes the data base that pluto wants, is in libnss3-tools.
libreswan='libreswan libnss3-tools'

die() { echo "unpack.sh: $*" >&2; exit 1; }

# The packages, and what they need and this system lacks: "Inst NAME (VERSION …)". Lines with a version in
# brackets are updates of what is here.
with_missing() { # PACKAGE...
  local planned
  planned=$(apt-get -qq -s --no-install-recommends install "$@") ||
    die "apt knows no $*: run 'apt-get update' on Debian"
  { printf '%s\n' "$@"; awk '$1 == "Inst" && $3 !~ /^\[/ { print $2 }' <<<"$planned"; } |
    sed 's/:.*//' | grep -vx strongswan-starter
}

download() { # FOLDER PACKAGE...
  local folder=$1 sandbox=()
  shift
  [ "$(id -u)" -ne 0 ] || sandbox=(-o APT::Sandbox::User=root)
  (cd "$folder" && apt-get "${sandbox[@]}" -qq download "$@" >&2) ||
    die "cannot download $*: is there a network, and is 'apt-get update' recent?"
}

unpack() { # CACHE
  local packages package
  command -v apt-get >/dev/null || die "apt-get is missing: the daemons come from Debian's packages"
  # shellcheck disable=SC2086 # lists of words
  packages=$({ with_missing $strongswan; with_missing $libreswan; } | sort -u)
  mkdir "$work/packages" "$work/root"
  # shellcheck disable=SC2086
  download "$work/packages" $packages
  for package in "$work"/packages/*.deb; do
    dpkg-deb -x "$package" "$work/root"
  done
  # Of systems whose /lib is /usr/lib.
  [ ! -d "$work/root/lib" ] || cp -a "$work/root/lib/." "$work/root/usr/lib/"
  rm -rf "$1/usr"
  mv "$work/root/usr" "$1/usr"
}

main() {
  local refresh= cache here
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  [ "${1-}" != --refresh ] || { refresh=1; shift; }
  cache=${1-${CARGO_TARGET_DIR:-$here/../../target}/ike-daemons}
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock 9
  local stamp
  stamp=$(sha256sum <"$here/unpack.sh")
  [ -z "$refresh" ] && [ -x "$cache/usr/sbin/charon-systemd" ] && [ "$(cat "$cache/stamp" 2>/dev/null)" = "$stamp" ] &&
    return
  work=$(mktemp -d "$cache/work.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  unpack "$cache"
  echo "$stamp" >"$cache/stamp"
}

main "$@"
