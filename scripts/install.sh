#!/usr/bin/env bash
# Installs a built program with its man pages, shell completions and systemd unit below $DESTDIR$PREFIX, with sudo only where the
# place cannot be written otherwise.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}$prefix
program=${CARGO_TARGET_DIR:-target}/release/testudo
# systemd reads units of an administrator from below /etc, those of a package from below /usr/lib.
units=${DESTDIR:-}$([[ $prefix == /usr ]] && echo /usr/lib/systemd/system || echo /etc/systemd/system)
pages=$(mktemp -d)
trap 'rm -rf "$pages"' EXIT

"$program" man "$pages"
for shell in bash zsh fish; do "$program" completions "$shell" >"$pages/$shell"; done
sed "s|/usr/local/bin|$prefix/bin|" contrib/testudo@.service >"$pages/unit"

as_root=()
existing=$root
while [[ ! -e $existing ]]; do existing=$(dirname "$existing"); done
[[ -w $existing ]] || as_root=(sudo)

put() { # MODE FROM TO
  ${as_root[@]+"${as_root[@]}"} install -D -m "$1" "$2" "$3"
  echo "installed $3"
}

put 755 "$program" "$root/bin/testudo"
for page in "$pages"/*.1; do put 644 "$page" "$root/share/man/man1/$(basename "$page")"; done
put 644 "$pages/bash" "$root/share/bash-completion/completions/testudo"
put 644 "$pages/zsh" "$root/share/zsh/site-functions/_testudo"
put 644 "$pages/fish" "$root/share/fish/vendor_completions.d/testudo.fish"
put 644 "$pages/unit" "$units/testudo@.service"
