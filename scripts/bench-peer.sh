#!/usr/bin/env bash
# Compares Testudo with DPDK's ipsec-secgw, alternating on one core. Both encrypt packets of the same lengths,
# receive them by a copy from memory and discard their output. Prints packets per second of both and
# their ratio.
#
# ipsec-secgw is built from Debian's sources, for this processor, below the target folder. It runs on the
# virtual devices net_pcap (which loops over a file) and net_null. It needs huge pages and therefore root;
# their number is restored at the end.
#
# usage: bench-peer.sh TESTUDO [SUITE:FRAME...]
#   SUITE is gcm or cbc-sha1; FRAME is imix or the bytes of an Ethernet frame, FCS included
# environment: TURNS=3  SECONDS_PER_CASE=5  CPU=(default: the last one)
#   JSON=FILE also writes what the peer did, for `testudo bench vpe --peer-json FILE`
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."

turns=${TURNS:-3}
seconds=${SECONDS_PER_CASE:-5}
cpu=${CPU:-$(($(nproc --all) - 1))}
work=${CARGO_TARGET_DIR:-target}/bench-peer
huge_pages=/proc/sys/vm/nr_hugepages
# Of 2 MiB each.
huge_pages_needed=512
# The runtime folder of DPDK's processes; it stays empty with --in-memory.
peer_runtime=/var/run/dpdk/testudo-bench-peer

say() { echo "bench-peer: $*" >&2; }
die() { say "$@"; exit 1; }

as_root=()
((EUID == 0)) || as_root=(sudo)

# Testudo's names of the peer's suites, and the goals as multiples of the peer's speed.
suite_of() { case $1 in gcm) echo aes128gcm16 ;; cbc-sha1) echo aes128-sha1 ;; *) die "no suite $1: gcm or cbc-sha1" ;; esac; }
goal_of() { # SUITE:FRAME
  case $1 in
    gcm:64 | gcm:imix) echo 2.0 ;;
    gcm:1420) echo 1.6 ;;
    cbc-sha1:*) echo 1.5 ;;
    *) echo - ;;
  esac
}

# One tunnel from 1.1.1.1 to 2.2.2.2, port 0 protected, port 1 unprotected.
write_config() { # SUITE
  local key=00:01:02:03:04:05:06:07:08:09:0a:0b:0c:0d:0e:0f algorithms
  case $1 in
    gcm) algorithms="aead_algo aes-128-gcm aead_key $key:de:ad:be:ef" ;;
    cbc-sha1) algorithms="cipher_algo aes-128-cbc cipher_key $key auth_algo sha1-hmac auth_key $key:00:01:02:03" ;;
  esac
  cat >"$work/$1.cfg" <<CONFIG
sp ipv4 out esp protect 5 pri 1 dst 10.0.2.0/24 sport 0:65535 dport 0:65535
sp ipv4 in esp protect 6 pri 1 dst 10.0.1.0/24 sport 0:65535 dport 0:65535
sa out 5 $algorithms mode ipv4-tunnel src 1.1.1.1 dst 2.2.2.2
sa in 6 $algorithms mode ipv4-tunnel src 2.2.2.2 dst 1.1.1.1
rt ipv4 dst 2.2.2.2/32 port 1
rt ipv4 dst 10.0.1.0/24 port 0
neigh port 0 02:00:00:00:00:0a
neigh port 1 02:00:00:00:00:0b
CONFIG
}

# The number of huge pages before; empty unless it was changed.
pages_before=
clean_up() {
  [[ -z $pages_before ]] || echo "$pages_before" | "${as_root[@]}" tee "$huge_pages" >/dev/null
  "${as_root[@]}" rm -rf "$peer_runtime"
  "${as_root[@]}" rmdir --ignore-fail-on-non-empty "${peer_runtime%/*}" 2>/dev/null || true
}

take_huge_pages() {
  local free wanted now
  free=$(awk '/^HugePages_Free/ { print $2 }' /proc/meminfo)
  now=$(cat "$huge_pages")
  ((free >= huge_pages_needed)) && return
  wanted=$((now + huge_pages_needed - free))
  pages_before=$now
  echo "$wanted" | "${as_root[@]}" tee "$huge_pages" >/dev/null ||
    die "the peer needs $huge_pages_needed huge pages, and $huge_pages cannot be written: run this as root, and not in an unprivileged container"
  free=$(awk '/^HugePages_Free/ { print $2 }' /proc/meminfo)
  ((free >= huge_pages_needed)) || die "the kernel has memory for $free of $huge_pages_needed huge pages"
}

# Packets per second that the peer sent: the median over the seconds after its start.
measure_peer() { # SUITE FRAME
  local device=crypto_aesni_gcm0 log=$work/peer-$1-$2.log
  [[ $1 == gcm ]] || device=crypto_aesni_mb0
  # The peer is ended with SIGINT; other output than figures only goes to the log.
  "${as_root[@]}" timeout --foreground --signal=INT --kill-after=5 $((seconds + 3)) "$work/ipsec-secgw/build/ipsec-secgw" \
    -l "$cpu" --in-memory --file-prefix "${peer_runtime##*/}" --no-pci --vdev "net_pcap0,rx_pcap=$work/$2.pcap,infinite_rx=1" --vdev net_null0,no-rx=1 --vdev $device \
    -- -p 0x3 -P -u 0x2 -l -w 0 --rxoffload 0 --txoffload 0 --config="(0,0,$cpu),(1,0,$cpu)" -f "$work/$1.cfg" -t 1 \
    >"$log" 2>&1 </dev/null || true
  # The first two readings cover the start.
  awk '/^Total packets sent:/ { sent[++n] = $4 } /^Total packets dropped:/ { dropped = $4 }
    END {
      if (n < 4 || dropped * 1000 > sent[n]) exit 1
      for (i = 3; i <= n; i++) rate[++k] = sent[i] - sent[i - 1]
      for (i = 1; i <= k; i++) for (j = i + 1; j <= k; j++) if (rate[j] < rate[i]) { t = rate[i]; rate[i] = rate[j]; rate[j] = t }
      printf "%d\n", (rate[int((k + 1) / 2)] + rate[int(k / 2) + 1]) / 2
    }' "$log" || die "the peer gave no figure for $1 at $2: see $log"
}

# The fastest engine on this machine, which a gateway would choose.
engine_for() { # SUITE
  taskset -c "$cpu" "$testudo" bench --json --directions outbound --suites "$1" --sizes imix --repetitions 3 --milliseconds 20 |
    python3 -c 'import json, sys; print(max(json.load(sys.stdin), key=lambda case: case["packets_per_second"])["engine"])'
}

measure_testudo() { # SUITE INNER_BYTES
  local engine
  engine=$(engine_for "$1")
  taskset -c "$cpu" "$testudo" bench --json --directions outbound --suites "$1" --sizes "$2" --engines "$engine" \
    --repetitions 7 --milliseconds $((seconds * 1000 / 10)) |
    python3 -c 'import json, sys; print(int(json.load(sys.stdin)[0]["packets_per_second"]))'
}

# The length of the IP packet in an Ethernet frame, without header and FCS.
inner_of() { if [[ $1 == imix ]]; then echo imix; else echo $(($1 - 18)); fi; }

knows() { # SUITE
  "$testudo" bench --json --suites "$1" --engines portable --sizes 64 --repetitions 1 --milliseconds 1 >/dev/null 2>"$work/testudo.log"
}

why_not() { # SUITE
  if grep -q 'unknown suite' "$work/testudo.log"; then
    echo "this Testudo does not know the suite $1"
  else
    grep -m 1 . "$work/testudo.log" || echo "testudo bench fails without a message"
  fi
}

# Reads lines of CASE GOAL PEER TESTUDO, one per turn; ratios are computed within a turn.
print_table() {
  awk '
    function median(text,   n, v, i, j, t) {
      n = split(text, v, " ")
      for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (v[j] + 0 < v[i] + 0) { t = v[i]; v[i] = v[j]; v[j] = t }
      return (v[int((n + 1) / 2)] + v[int(n / 2) + 1]) / 2
    }
    { if (!($1 in goal)) order[++cases] = $1
      goal[$1] = $2; peer[$1] = peer[$1] " " $3; own[$1] = own[$1] " " $4; ratio[$1] = ratio[$1] " " $4 / $3
      r = $4 / $3; if (!($1 in low) || r < low[$1]) low[$1] = r; if (r > high[$1]) high[$1] = r }
    END {
      printf "\n  %-15s %12s %14s %8s %13s %6s\n", "suite:frame", "peer, Mpps", "testudo, Mpps", "ratio", "spread", "goal"
      for (i = 1; i <= cases; i++) { c = order[i]
        reached = goal[c] == "-" ? "" : (median(ratio[c]) >= goal[c] ? "reached" : "not reached")
        printf "  %-15s %12.2f %14.2f %8.2f %13s %6s  %s\n", c, median(peer[c]) / 1e6, median(own[c]) / 1e6, median(ratio[c]),
          sprintf("%.2f-%.2f", low[c], high[c]), goal[c], reached }
    }' "$work/results"
  echo
  echo "  medians of $turns turns on CPU $cpu; ratios within a turn, spread from lowest to highest; DPDK $(pkg-config --modversion libdpdk), ipsec-secgw with librte_ipsec"
}

# The peer's medians, from the same lines: an array of suite, bytes of the inner packet, and rate; no imix.
write_json() { # FILE
  awk '{ print $1, $3 }' "$work/results" | python3 -c '
import json, statistics, sys
rates = {}
for line in sys.stdin:
    case, rate = line.split()
    rates.setdefault(case, []).append(int(rate))
names = {"gcm": "aes128gcm16", "cbc-sha1": "aes128-sha1"}
rows = []
for case, found in rates.items():
    suite, frame = case.split(":")
    # `testudo bench vpe` knows packets of one length.
    if frame != "imix":
        rows.append({"suite": names[suite], "inner_bytes": int(frame) - 18, "packets_per_second": statistics.median(found)})
json.dump(rows, sys.stdout, indent=2)
print()' >"$1"
}

main() {
  testudo=${1:?usage: bench-peer.sh TESTUDO [SUITE:FRAME...]}
  shift
  local cases=("$@") case suite frame known=() turn peer own
  ((${#cases[@]})) ||
    cases=(gcm:64 gcm:512 gcm:1420 gcm:imix cbc-sha1:64 cbc-sha1:1024 cbc-sha1:1420 cbc-sha1:imix)
  mkdir -p "$work"
  work=$(realpath "$work")
  ((EUID == 0)) || command -v sudo >/dev/null ||
    die "the peer needs huge pages and therefore root, and sudo is missing: run this as root"
  for case in "${cases[@]}"; do
    suite=$(suite_of "${case%%:*}")
    if knows "$suite"; then known+=("$case"); else say "not compared: $case: $(why_not "$suite")"; fi
  done
  ((${#known[@]})) || die "nothing to compare"
  scripts/build-peer.sh "$work"
  python3 scripts/peer-frames.py "$work" $(printf '%s\n' "${known[@]##*:}" | sort -u)
  write_config gcm
  write_config cbc-sha1
  trap clean_up EXIT
  take_huge_pages
  : >"$work/results"
  for ((turn = 1; turn <= turns; turn++)); do
    for case in "${known[@]}"; do
      suite=${case%%:*} frame=${case##*:}
      peer=$(measure_peer "$suite" "$frame")
      own=$(measure_testudo "$(suite_of "$suite")" "$(inner_of "$frame")")
      say "turn $turn of $turns, $case: peer $peer, testudo $own packets per second"
      echo "$case $(goal_of "$case") $peer $own" >>"$work/results"
    done
  done
  print_table
  [[ -z ${JSON:-} ]] || write_json "$JSON"
}

main "$@"
