#!/usr/bin/env bash
# Unpacks tshark, which judges the keys that `testudo sa keys` writes and reads VPE by our dissector, with the
# libraries that this system lacks: Debian's packages, without root and without installing them. Writes
# CACHE/usr.
#
# usage: unpack.sh [--refresh] [CACHE]       CACHE is target/wireshark of this repository by default
#
#   --refresh   download the newest packages even when some are cached
#
# Does nothing when CACHE is up to date with this script. Only the first run needs the network.
set -euo pipefail
export LC_ALL=C

die() { echo "unpack.sh: $*" >&2; exit 1; }

# tshark, and what it needs and this system lacks: "Inst NAME (VERSION …)".
packages() {
  local planned
  planned=$(apt-get -qq -s --no-install-recommends install tshark) ||
    die "apt knows no tshark: run 'apt-get update' on Debian"
  # What is installed is used as it is, and libraries that are updates of it stay away.
  { echo tshark; awk '$1 == "Inst" && $3 !~ /^\[/ { print $2 }' <<<"$planned"; } | sed 's/:.*//' | sort -u
}

unpack() { # CACHE
  local sandbox=() package names
  command -v apt-get >/dev/null || die "apt-get is missing: tshark comes from Debian's package"
  [ "$(id -u)" -ne 0 ] || sandbox=(-o APT::Sandbox::User=root)
  names=$(packages)
  mkdir "$work/packages" "$work/root"
  # shellcheck disable=SC2086 # a list of words
  (cd "$work/packages" && apt-get "${sandbox[@]}" -qq download $names >&2) ||
    die "cannot download tshark: is there a network, and is 'apt-get update' recent?"
  for package in "$work"/packages/*.deb; do
    dpkg-deb -x "$package" "$work/root"
  done
  # Lua's constants: in the package, a link into /etc.
  rm "$work/root/usr/share/wireshark/init.lua"
  mv "$work/root/etc/wireshark/init.lua" "$work/root/usr/share/wireshark/"
  rm -rf "$1/usr"
  mv "$work/root/usr" "$1/usr"
}

main() {
  local refresh= cache here stamp
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  [ "${1-}" != --refresh ] || { refresh=1; shift; }
  cache=${1-${CARGO_TARGET_DIR:-$here/../../target}/wireshark}
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock 9
  stamp=$(sha256sum <"$here/unpack.sh")
  [ -z "$refresh" ] && [ -x "$cache/usr/bin/tshark" ] && [ "$(cat "$cache/stamp" 2>/dev/null)" = "$stamp" ] && return
  work=$(mktemp -d "$cache/work.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  unpack "$cache"
  echo "$stamp" >"$cache/stamp"
}

main "$@"
