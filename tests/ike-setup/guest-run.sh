#!/bin/bash
# Runs in a guest of guest.sh, from the second disk: as the peer, with Debian's strongSwan and the kernel's
# IPsec, or as the gateway, which is set up, tried and taken back. Its words go to the console; the last line
# says whether all was as it must be.
set -uo pipefail
export LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

here=$(dirname "$0")
profile=/etc/apparmor.d/usr.sbin.charon-systemd
library=/usr/local/lib/testudo/libtestudo-xfrm.so

say() { echo "guest: $*"; }

fail() {
  say "FAILED: $*"
  systemctl --no-pager --full status strongswan testudo@ike 2>&1 | tail -40
  journalctl --no-pager -b -n 60 2>&1
  exit 1
}

must() { # WHAT COMMAND...
  local what=$1 said
  shift
  if said=$("$@" 2>&1); then say "ok: $what"; else fail "$what: $*: $said"; fi
}

# Bounded, since an emulated processor takes its time: 120 tries, a second between two.
until_ok() { # WHAT COMMAND...
  local what=$1 tries=0
  shift
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 120 ] || fail "$what: $*"
    sleep 1
  done
  say "ok: $what"
}

connection() { # LOCAL REMOTE LOCAL_ID REMOTE_ID LOCAL_TS REMOTE_TS
  cat >/etc/swanctl/conf.d/site.conf <<CONNECTION
connections { site {
  version = 2
  local_addrs = $1
  remote_addrs = $2
  local { auth = psk
          id = $3 }
  remote { auth = psk
           id = $4 }
  children { net {
    local_ts = $5
    remote_ts = $6
    esp_proposals = aes128gcm16-x25519
    start_action = trap
  } }
} }
secrets { ike-site { id-a = $3
                     id-b = $4
                     secret = "of both" } }
CONNECTION
}

link_up() { # ADDRESS
  local link
  link=$(basename "$(echo /sys/class/net/e*)")
  ip address add "$1/24" dev "$link"
  ip link set "$link" up
}

# Debian's profile of charon only complains; an administrator may have it enforced.
enforce() {
  sed -i 's/flags=(complain,/flags=(/' "$profile"
  must "AppArmor takes the profile of charon" apparmor_parser -r "$profile"
}

is_enforced() { # what AppArmor says of the daemon that runs
  local pid
  pid=$(systemctl show --property MainPID --value strongswan)
  [ "$(cat "/proc/$pid/attr/current")" = "/usr/sbin/charon-systemd (enforce)" ] &&
    aa-status | sed -n '/processes are in enforce mode/,/processes are in complain/p' | grep -q charon-systemd
}

has_library() { grep -q "$library" "/proc/$(systemctl show --property MainPID --value strongswan)/maps"; }

denials() { journalctl --no-pager -k -b | grep -c 'apparmor="DENIED".*charon-systemd'; }

# All of the system's configuration: kind, permissions, owner; of files also length, time of change, bytes.
snapshot() {
  (cd / && find etc -type d -printf '%y %m %u:%g %p\n' -o -printf '%y %m %u:%g %s %T@ %p %l\n' | sort
    find etc -type f -print0 | sort -z | xargs -0 sha256sum)
}

# Five of five come back.
pings() {
  local said
  said=$(ping -n -c 5 -i 0.3 -W 20 -I 10.1.0.1 10.2.0.1)
  echo "$said"
  grep -q ' 0% packet loss' <<<"$said"
}

run_peer() {
  link_up 192.0.2.2
  ip address add 10.2.0.1/32 dev lo
  enforce
  connection 192.0.2.2 192.0.2.1 b.example a.example 10.2.0.0/16 10.1.0.0/16
  must "the peer's strongSwan starts, with the kernel's IPsec" systemctl start strongswan
  say "peer is ready"
  sleep infinity
}

install_program() {
  must "the program is installed" cp -a "$here/install/." /
  systemd-sysusers && systemd-tmpfiles --create || fail "no user testudo"
  install -m 640 -g testudo "$here/ike.toml" /etc/testudo/ike.toml
  must "the gateway has a store" setpriv --reuid testudo --regid testudo --clear-groups \
    testudo init /etc/testudo/ike.toml
  systemctl daemon-reload
  # What `enable` writes is no part of the set-up.
  systemctl --quiet enable testudo@ike strongswan
}

set_up() {
  must "the set-up is shown" testudo ike setup strongswan
  must "the set-up is done" testudo ike setup strongswan --apply
  must "the gateway starts" systemctl restart testudo@ike
  must "charon starts, led to the gateway" systemctl restart strongswan
  must "charon is confined and AppArmor enforces its profile" is_enforced
  must "charon has the library" has_library
  must "its connections load" swanctl --load-all
  [ "$(denials)" -eq 0 ] || fail "AppArmor has denied something: $(journalctl -k -b | grep DENIED)"
  if journalctl -b -u testudo@ike | grep 'not filtered'; then fail "the gateway's own filter is refused"; fi
  say "ok: the gateway filters its system calls"
  testudo ike status
}

runs_through_gateway() {
  must "packets pass, the first ones wait for the SA" pings
  [ "$(testudo sa list --json | grep -o '"owner":"ike"' | wc -l)" -ge 2 ] || fail "no SA: $(testudo sa list)"
  [ -z "$(ip xfrm state)$(ip xfrm policy | grep 10.2.0.0)" ] || fail "the kernel has SAs or policies"
  say "ok: the SAs are the gateway's, and the kernel has none"
  [ "$(denials)" -eq 0 ] || fail "AppArmor has denied something: $(journalctl -k -b | grep DENIED)"
  testudo sa list
}

has_renewed() { testudo ike status | grep -q '1 of 1 renewed after the restart'; }

survives_a_kill() {
  must "the gateway is killed" systemctl kill --signal KILL testudo@ike
  until_ok "the gateway is back" testudo status --control /run/testudo/control.sock
  until_ok "charon has renewed its SAs" has_renewed
  testudo ike status | grep "without traffic"
  must "packets pass again" pings
}

# Without the lines of the set-up AppArmor keeps the library out: that is what they are for.
needs_its_rules() {
  local rules=/etc/apparmor.d/local/usr.sbin.charon-systemd
  cp -a "$rules" /run/rules && : >"$rules"
  must "AppArmor takes the profile without the lines" apparmor_parser -r "$profile"
  systemctl restart strongswan
  if has_library || [ "$(denials)" -eq 0 ]; then fail "AppArmor denies nothing without those lines"; fi
  say "ok: without its lines AppArmor keeps the library from charon"
  cat /run/rules >"$rules" && touch -r /run/rules "$rules"
  must "AppArmor takes the profile with the lines" apparmor_parser -r "$profile"
  must "charon starts again" systemctl restart strongswan
  must "charon has the library again" has_library
}

take_back() {
  must "the set-up is taken back" testudo ike setup strongswan --undo --apply
  snapshot >/run/after
  diff /run/before /run/after >&2 || fail "files differ from what they were before the set-up"
  say "ok: every file of /etc is as it was"
  must "the gateway stops" systemctl stop testudo@ike
  ip address add 10.1.0.1/32 dev lo
  must "charon starts without the gateway" systemctl restart strongswan
  must "AppArmor enforces its profile as before" is_enforced
  if has_library; then fail "charon has the library still"; fi
  must "its connections load" swanctl --load-all
  # The kernel drops those that come before the SA.
  until_ok "packets pass through the kernel" pings
  [ -n "$(ip xfrm state)" ] || fail "the kernel has no SA"
  say "ok: the kernel has the SAs"
}

run_gateway() {
  link_up 192.0.2.1
  enforce
  connection 192.0.2.1 192.0.2.2 a.example b.example 10.1.0.0/16 10.2.0.0/16
  install_program
  snapshot >/run/before
  set_up
  runs_through_gateway
  survives_a_kill
  needs_its_rules
  take_back
  say "all is as it must be"
}

case " $(cat /proc/cmdline) " in
*" guest.role=peer "*) run_peer ;;
*) run_gateway ;;
esac
