#!/usr/bin/env bash
# Installs the missing packages for one purpose with apt, after printing which ones and why. Uses sudo only if
# something is missing; otherwise it does and prints nothing.
#
# usage: setup.sh demo|dpdk|test|fuzz|peer|ports|guest|audit
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/dpdk-headers.sh

say() { echo "setup: $*" >&2; }
die() { say "$@"; exit 1; }

# One line per package: PACKAGE, then its purpose.
demo_packages() {
  echo "gcc compiles the C parts of the portable engine"
  echo "libc6-dev compiles the C parts of the portable engine"
  echo "iproute2 builds the private networks of the demo"
  echo "util-linux enters private namespaces"
  # The multi-buffer engine is for x86-64 only; elsewhere the portable one does everything.
  [[ $(dpkg --print-architecture 2>/dev/null || uname -m) =~ ^(amd64|x86_64)$ ]] &&
    echo "libipsec-mb1 is the fast engine on this processor"
  return 0
}

# Package lists are next to the tests that need them: one package per line, # begins a comment.
test_packages() {
  local file
  for file in tests/packages*.txt tests/*/packages*.txt; do
    [[ -e $file ]] || continue
    sed 's/#.*//' "$file" | tr -s ' \t' '\n' | sed '/^$/d' | sed "s|\$| ($file)|"
  done
}

# For ports of DPDK: what the gateway's plugin is built with; the drivers come with it.
dpdk_packages() {
  echo "libdpdk-dev is what the port of DPDK is built with, and has DPDK's drivers"
  echo "pkg-config finds it"
}

# For DPDK's gateway, which Testudo is compared with.
peer_packages() {
  echo "dpdk-doc has the sources of ipsec-secgw"
  echo "libdpdk-dev is what ipsec-secgw is built with"
  echo "libipsec-mb-dev is what ipsec-secgw is built with"
  echo "make builds ipsec-secgw"
  echo "pkg-config builds ipsec-secgw"
  echo "python3 writes the input packets of ipsec-secgw"
}

# For a Debian that is booted with systemd and AppArmor.
guest_packages() {
  echo "e2fsprogs makes the guest's disks"
  echo "mmdebstrap makes the guest of Debian's packages"
  echo "qemu-system-x86 boots the guest"
}

packages_for() {
  demo_packages
  case $1 in
    dpdk) dpdk_packages ;;
    test) test_packages ;;
    fuzz) echo "g++ compiles libFuzzer" ;;
    audit) test_packages; echo "g++ compiles libFuzzer" ;;
    peer) peer_packages ;;
    ports) peer_packages; dpdk_packages; echo "dpdk-dev has dpdk-testpmd, which sends the packets" ;;
    guest) guest_packages ;;
  esac
}

check_cargo() {
  local needed found
  needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  command -v cargo >/dev/null ||
    die "cargo is missing: Testudo is built with Rust $needed or newer. Get it from https://rustup.rs, open a new shell, and try again"
  found=$(cargo --version | awk '{ print $2 }')
  [[ $(printf '%s\n' "$needed" "${found%%-*}" | sort -V | head -n 1) == "$needed" ]] ||
    die "this is Rust $found, and Testudo needs $needed or newer: \`rustup update stable\`, or get rustup from https://rustup.rs"
}

is_installed() { # PACKAGE
  [[ $(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null) == ii* ]]
}

# Without dpkg, only the indispensable programs are checked.
check_without_debian() { # PURPOSE
  local missing=() program
  for program in cc ip unshare setpriv; do command -v "$program" >/dev/null || missing+=("$program"); done
  ((${#missing[@]} == 0)) && return
  say "this system is not Debian, and these programs are missing: ${missing[*]}"
  say "install your system's equivalents of these Debian packages:"
  packages_for "$1" | sed 's/^/    /' >&2
  exit 1
}

install_packages() { # PACKAGE...
  local apt=(apt-get) as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "sudo is missing: as root, run  apt-get install $*"
    as_root=(sudo)
  fi
  apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get)
  # If the package lists are missing or outdated, update them and try again.
  "${apt[@]}" install -y --no-install-recommends "$@" >&2 ||
    { "${apt[@]}" update >&2 && "${apt[@]}" install -y --no-install-recommends "$@" >&2; } ||
    die "apt could not install: $*"
}

# The tests fetch a kernel through apt without installing it, so apt must know the package.
know_kernel() {
  apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1 && return
  local as_root=()
  ((EUID == 0)) || as_root=(sudo)
  say "updating the package lists: the tests boot Debian's own kernel as a peer"
  "${as_root[@]}" apt-get update >&2 || say "the package lists cannot be updated; the tests against a Linux kernel will say what is missing"
}

# What the drivers of DPDK are compiled with, and with it the virtual NIC of the tests.
know_dpdk_headers() {
  local folder
  [[ ${TESTUDO_WITHOUT_DPDK:-} != 1 && -n $(dpdk_version) ]] || return 0
  folder=$(dpdk_headers_folder)
  [[ ! -e $folder/ethdev_driver.h ]] || return 0
  say "fetching the headers of DPDK's drivers, from Debian's source package dpdk $(dpdk_version)"
  fetch_dpdk_headers "$folder" || say "they cannot be had; the test of the virtual DPDK device will say what is missing"
}

# The compiler of CUDA, which the tests of engine `gpu` compile its kernels with: from NVIDIA's own package for
# Python, since Debian has none that is free, into the target folder. It needs no driver and no GPU.
nvrtc_package=nvidia-cuda-nvrtc-cu12==12.9.86
nvrtc_sha256=210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4
fetch_nvrtc() {
  local folder=${CARGO_TARGET_DIR:-target}/nvrtc work
  [[ ! -e $folder/libnvrtc.so.12 && $(uname -m) == x86_64 ]] || return 0
  say "fetching NVRTC, the compiler of CUDA (90 MB): the tests compile the kernels for GPUs with it"
  work=$(mktemp -d)
  echo "$nvrtc_package --hash=sha256:$nvrtc_sha256" >"$work/requirements"
  mkdir -p "$folder"
  { /usr/bin/python3 -m pip --disable-pip-version-check download --quiet --no-deps --only-binary :all: \
      --platform manylinux2014_x86_64 --require-hashes --requirement "$work/requirements" --dest "$work" >&2 &&
    /usr/bin/python3 -m zipfile -e "$work"/*.whl "$work" &&
    cp "$work"/nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.* "$folder" &&
    cp "$work"/nvidia/cuda_nvrtc/lib/libnvrtc.so.12 "$folder/libnvrtc.partial" &&
    mv "$folder/libnvrtc.partial" "$folder/libnvrtc.so.12"; } ||
    say "NVRTC cannot be had; the tests of engine gpu on CUDA will say what is missing"
  rm -rf "$work"
}

# Built once from crates.io, below the target folder, in a few minutes.
cargo_deny_version=0.20.2
install_cargo_deny() {
  local root=${CARGO_TARGET_DIR:-target}/audit-tools
  [[ $("$root/bin/cargo-deny" --version 2>/dev/null) == "cargo-deny $cargo_deny_version" ]] && return
  say "building cargo-deny $cargo_deny_version, for licences, sources and advisories of dependencies"
  cargo install --quiet --locked cargo-deny --version "$cargo_deny_version" --root "$root" >&2 ||
    say "cargo-deny cannot be installed; its stages will be skipped"
}

# Miri is only available for nightly toolchains.
install_miri() {
  cargo +nightly miri --version >/dev/null 2>&1 && return
  if ! command -v rustup >/dev/null; then say "Miri needs rustup; its stage will be skipped"; return; fi
  say "installing Miri with a nightly toolchain"
  rustup toolchain install nightly --profile minimal --component miri,rust-src >&2 ||
    say "Miri cannot be installed; its stage will be skipped"
}

install_audit_tools() {
  install_cargo_deny
  install_miri
}

main() {
  local purpose=${1:-} missing=() package reason
  case $purpose in demo | dpdk | test | fuzz | peer | ports | guest | audit) ;; *) die "usage: setup.sh demo|dpdk|test|fuzz|peer|ports|guest|audit" ;; esac
  check_cargo
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    check_without_debian "$purpose"
    [[ $purpose != audit ]] || install_audit_tools
    return
  fi
  while read -r package reason; do
    is_installed "$package" || missing+=("$package $reason")
  done < <(packages_for "$purpose" | sort -u -k 1,1)
  if ((${#missing[@]})); then
    say "installing through apt:"
    printf '    %s\n' "${missing[@]}" >&2
    install_packages "${missing[@]%% *}"
  fi
  [[ $purpose != test ]] || know_kernel
  [[ $purpose != test ]] || know_dpdk_headers
  [[ $purpose != test ]] || fetch_nvrtc
  [[ $purpose != audit ]] || install_audit_tools
}

main "$@"
