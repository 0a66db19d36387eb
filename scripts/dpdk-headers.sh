# Where the headers of DPDK's drivers are that libdpdk-dev lacks, and how they are had: from Debian's source
# package of the same version. Sourced by setup.sh and dpdk-twin.sh.

dpdk_version() { dpkg-query -W -f '${source:Version}' libdpdk-dev 2>/dev/null; }

# Below the target folder, by version: a newer DPDK never meets older headers.
dpdk_headers_folder() {
  echo "$(realpath -m "${CARGO_TARGET_DIR:-target}")/dpdk-driver-headers/$(dpdk_version)"
}

# The package lists are private ones, so that the system's stay as they are; apt checks signature and hashes.
fetch_dpdk_headers() { # FOLDER
  local folder=$1 work sources=/etc/apt/sources.list.d/debian.sources
  work=$(mktemp -d) || return
  mkdir -p "$work/sources" "$work/lists/partial" "$work/package"
  if [[ -e $sources ]]; then
    sed 's/^Types: .*/Types: deb-src/' "$sources" >"$work/sources/source.sources"
  else
    sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$work/sources/source.list"
  fi
  (
    set -e
    options=(-o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$work/sources"
      -o "Dir::State::Lists=$work/lists" -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache=")
    cd "$work/package"
    apt-get "${options[@]}" -qq update
    apt-get "${options[@]}" -qq source --download-only "dpdk=$(dpdk_version)"
    # Moved there when all of them are there.
    mkdir "$work/headers"
    tar -xf dpdk_*.orig.tar.* -C "$work/headers" --wildcards --transform='s|.*/||' \
      '*/lib/ethdev/ethdev_driver.h' '*/lib/ethdev/ethdev_vdev.h' '*/drivers/bus/vdev/bus_vdev_driver.h' \
      '*/lib/eal/include/dev_driver.h' '*/lib/eal/include/bus_driver.h'
    mkdir -p "$(dirname "$folder")"
    rm -rf "$folder"
    mv "$work/headers" "$folder"
  ) >&2
  local status=$?
  rm -rf "$work"
  return "$status"
}
