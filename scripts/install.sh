#!/usr/bin/env bash
# Installs a built program with its man pages, shell completions and systemd unit below $DESTDIR$PREFIX, and
# the libraries for key exchange daemons and for DPDK (where its headers are), which are built here; with sudo
# only if that is not writable. Then creates the user that gateways run as, and its folders, unless this is for a package (DESTDIR).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}$prefix
program=${CARGO_TARGET_DIR:-target}/release/testudo
# systemd reads units from /etc if an administrator installed them, from /usr/lib if a package did.
if [[ $prefix == /usr ]]; then system=/usr/lib; else system=/etc; fi
units=${DESTDIR:-}$system/systemd/system
users=${DESTDIR:-}$system/sysusers.d/testudo.conf
folders=${DESTDIR:-}$system/tmpfiles.d/testudo.conf
pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT

"$program" man "$pages"
for shell in bash zsh fish; do "$program" completions "$shell" >"$pages/$shell"; done
scripts/shim.sh "$pages"
for unit in testudo@ testudo-firewall@ testudo-firewall-follow@ testudo-tune@; do
  sed "s|/usr/local/bin|$prefix/bin|" "contrib/$unit.service" >"$pages/$unit.service"
done

# Each place for itself: a user may write to a prefix in the own home, and not to /etc.
put() { # MODE FROM TO
  local existing as_root=()
  existing=$(dirname "$3")
  while [[ ! -e $existing ]]; do existing=$(dirname "$existing"); done
  [[ -w $existing ]] || as_root=(sudo)
  ${as_root[@]+"${as_root[@]}"} install -D -m "$1" "$2" "$3"
  echo "installed $3"
}

put 755 "$program" "$root/bin/testudo"
for library in "$pages"/libtestudo-*.so; do put 644 "$library" "$root/lib/testudo/$(basename "$library")"; done
for page in "$pages"/*.1; do put 644 "$page" "$root/share/man/man1/$(basename "$page")"; done
put 644 "$pages/bash" "$root/share/bash-completion/completions/testudo"
put 644 "$pages/zsh" "$root/share/zsh/site-functions/_testudo"
put 644 "$pages/fish" "$root/share/fish/vendor_completions.d/testudo.fish"
for unit in testudo@ testudo-firewall@ testudo-firewall-follow@ testudo-tune@; do put 644 "$pages/$unit.service" "$units/$unit.service"; done
# Drop-ins for those gateways that use AF_XDP, or have several workers, and for no other: they widen what the unit permits.
for drop_in in xdp workers; do put 644 "contrib/testudo-$drop_in.conf" "$root/share/testudo/testudo-$drop_in.conf"; done
put 644 contrib/testudo.sysusers.conf "$users"
put 644 contrib/testudo.tmpfiles.conf "$folders"

# For a package, its own scripts create the user at installation.
[[ -z ${DESTDIR:-} ]] || exit 0
as_root=()
((EUID == 0)) || as_root=(sudo)
if command -v systemd-sysusers >/dev/null && command -v systemd-tmpfiles >/dev/null; then
  ${as_root[@]+"${as_root[@]}"} systemd-sysusers "$users"
  ${as_root[@]+"${as_root[@]}"} systemd-tmpfiles --create "$folders"
  echo "created the user testudo, /etc/testudo and /var/lib/testudo"
else
  echo "systemd-sysusers or systemd-tmpfiles is missing, so no user was created: the gateway runs as the user who starts it"
fi
