//! What `check` says of devices of DPDK's: whether the plugin is there, and what huge pages take.

use std::path::Path;
use testudo_control::config::{Configuration, DpdkSettings};
use testudo_port_dpdk::Plugin;

/// Bytes of a huge page.
const PAGE_BYTES: usize = 2 << 20;
/// Bytes of a packet buffer that a device shares, at most.
const FRAME_BYTES: usize = 4096;
/// Pages for what DPDK allocates itself: mempools, rings, the drivers' queues.
const OWN_PAGES: usize = 32;

/// Lines about a configuration with such devices.
pub fn notes(configuration: &Configuration) -> Vec<String> {
    let free = std::fs::read_to_string(Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"));
    let free = free.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let sides = [&configuration.protected.kind, &configuration.unprotected.kind];
    let settings: Vec<&DpdkSettings> = sides.into_iter().filter_map(|kind| kind.dpdk()).collect();
    if settings.is_empty() {
        return Vec::new();
    }
    let library = settings.iter().find_map(|settings| settings.library.as_deref());
    let plugin = match Plugin::open(library) {
        Ok(plugin) => format!("DPDK {} by libtestudo-dpdk.so", plugin.dpdk_version()),
        Err(error) => format!("warning: {error}"),
    };
    vec![plugin, huge_pages(&settings, configuration.gateway.buffers, free)]
}

/// How many huge pages there should be, and how they are had.
fn huge_pages(settings: &[&DpdkSettings], buffers: usize, free: usize) -> String {
    let needed = (buffers * FRAME_BYTES).div_ceil(PAGE_BYTES) + OWN_PAGES;
    let without = settings.iter().any(|s| s.eal.iter().any(|argument| argument == "--no-huge"));
    let is_pci = settings.iter().any(|s| !s.device.starts_with("net_"));
    let how = format!(
        "`sysctl -w vm.nr_hugepages={needed}` sets {needed} pages of 2 MiB apart for {buffers} buffers and DPDK; \
         /etc/sysctl.d keeps that over restarts"
    );
    match (without, free) {
        (true, _) => "huge pages: none, as `--no-huge` says; a NIC then needs an IOMMU".to_owned(),
        (false, free) if free >= needed => format!("huge pages: {free} are free, {needed} are needed"),
        (false, free) if is_pci => {
            format!("warning: huge pages: {free} are free, {needed} are needed: {how}")
        }
        (false, free) => {
            format!("huge pages: {free} are free, {needed} would be used, and it goes without: {how}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(device: &str, eal: &[&str], free: usize) -> String {
        let eal = eal.iter().map(ToString::to_string).collect();
        let settings = DpdkSettings { device: device.to_owned(), eal, ..DpdkSettings::default() };
        huge_pages(&[&settings], 4096, free)
    }

    #[test]
    fn huge_pages_are_counted_and_how_they_are_had_is_said() {
        assert_eq!(of("0000:03:00.0", &[], 40), "huge pages: 40 are free, 40 are needed");
        let few = of("0000:03:00.0", &[], 39);
        assert!(few.starts_with("warning: ") && few.contains("`sysctl -w vm.nr_hugepages=40`"), "{few}");
        assert!(of("net_tap0", &[], 0).contains("it goes without"));
        assert!(of("net_tap0", &["--no-huge"], 0).contains("none, as `--no-huge` says"));
    }
}
