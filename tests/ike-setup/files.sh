#!/usr/bin/env bash
# Unpacks what Debian's packages of strongSwan and libreswan, and of AppArmor, put below /etc and systemd's folder, for
# the tests of `testudo ike setup`. Nothing is installed. Writes CACHE/strongswan, CACHE/libreswan, and AppArmor's parser,
# CACHE/bin/apparmor_parser.
#
# usage: files.sh CACHE
#
# Does nothing when CACHE is up to date with this script. Only the first run needs the network.
set -euo pipefail
export LC_ALL=C

strongswan='charon-systemd strongswan-charon strongswan-starter strongswan-swanctl strongswan-libcharon libstrongswan
  libcharon-extra-plugins'

die() { echo "files.sh: $*" >&2; exit 1; }

download() { # FOLDER PACKAGE...
  local folder=$1 sandbox=()
  shift
  [ "$(id -u)" -ne 0 ] || sandbox=(-o APT::Sandbox::User=root)
  (cd "$folder" && apt-get "${sandbox[@]}" -qq download "$@" >&2) ||
    die "cannot download $*: is there a network, and is 'apt-get update' recent?"
}

unpack() { # FOLDER PACKAGE...
  local folder=$1 package
  shift
  mkdir -p "$folder"
  for package in "$@"; do
    rm -rf "$work/all"
    dpkg-deb -x "$work/packages/$package"_*.deb "$work/all"
    (cd "$work/all" && find . \( -path './etc/*' -o -path './*lib/systemd/system/*' \) -print0 |
      tar --null --no-recursion -T - -cf -) | tar -xf - -C "$folder"
  done
}

main() {
  local cache=$1 here stamp
  here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
  mkdir -p "$cache"
  exec 9>"$cache/lock"
  flock 9
  stamp=$(sha256sum <"$here/files.sh")
  [ "$(cat "$cache/stamp" 2>/dev/null)" != "$stamp" ] || return 0
  command -v apt-get >/dev/null || die "apt-get is missing: the files come from Debian's packages"
  work=$(mktemp -d "$cache/work.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  mkdir "$work/packages"
  # shellcheck disable=SC2086 # a list of words
  {
    download "$work/packages" $strongswan libreswan apparmor
    rm -rf "$cache/strongswan" "$cache/libreswan"
    unpack "$cache/strongswan" $strongswan apparmor
  }
  unpack "$cache/libreswan" libreswan
  dpkg-deb -x "$work/packages/"apparmor_*.deb "$work/apparmor"
  find "$work/apparmor" -name apparmor_parser -type f -exec install -D -m 755 {} "$cache/bin/apparmor_parser" ';'
  echo "$stamp" >"$cache/stamp"
}

main "$@"
