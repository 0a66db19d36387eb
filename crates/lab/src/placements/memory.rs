//! What gateways have in memory.

use super::gateways::Report;

/// Bytes and buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Memory {
    /// Of this process, generator and engines included, where the system tells.
    pub(super) resident_bytes: Option<u64>,
    /// Buffers of a gateway that were in use at once at most; those that I/O threads have for packets to come
    /// are among them.
    pub(super) buffers: u64,
}

impl Memory {
    /// The larger of both.
    pub(super) fn most(self, other: Self) -> Self {
        Self {
            resident_bytes: self.resident_bytes.max(other.resident_bytes),
            buffers: self.buffers.max(other.buffers),
        }
    }
}

/// Of the gateways of a report, now.
pub(super) fn of(report: &Report) -> Memory {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    Memory { resident_bytes: resident_bytes(&status), buffers: report.times.buffers() }
}

/// `VmRSS` of `/proc/PID/status`.
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_size_is_read_and_what_is_none_is_not_known() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t   12 kB\nVmData:\t 9 kB\n"), Some(12 * 1024));
        for wrong in ["", "VmRSS:\n", "VmRSS: 12 MB", "VmRSS: -1 kB", "VmRSS: 99999999999999999999 kB"] {
            assert_eq!(resident_bytes(wrong), None, "{wrong}");
        }
        let status = "VmRSS: 18446744073709551615 kB";
        assert_eq!(resident_bytes(status), None, "more than there is");
    }
}
