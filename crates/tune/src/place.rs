//! Where a setting is.
//!
//! Places are kinds with checked names, not paths: what a journal says can never make undo write anywhere
//! else.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The longest name of an interface, in bytes (`IFNAMSIZ` less the final NUL).
const MAX_NAME_BYTES: usize = 15;

/// Where a setting of an interface, or of the machine, is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Place {
    /// A kernel variable of the network, such as `net.core.rmem_max`.
    Sysctl {
        /// Its name.
        name: String,
    },
    /// A file of the interface, below `/sys/class/net/INTERFACE`.
    Interface {
        /// Its path there.
        file: String,
    },
    /// The processors that serve an interrupt, `/proc/irq/NUMBER/smp_affinity_list`.
    Interrupt {
        /// Its number.
        number: u32,
    },
    /// The processors for what has none of its own, as a mask.
    Housekeeping {
        /// For what.
        of: Housekeeping,
    },
    /// The frequency governor of the processors of a policy, `policy0`.
    Governor {
        /// The policy's folder.
        policy: String,
    },
    /// What the processors of a policy prefer, power or speed: `energy_performance_preference`.
    EnergyPreference {
        /// The policy's folder.
        policy: String,
    },
    /// The number of huge pages of a size.
    HugePages {
        /// Bytes of each, in KiB.
        size_kib: u64,
    },
    /// A number of a governor: of one policy, or of all that have it.
    Tunable {
        /// The policy's folder, if it is of one policy.
        policy: Option<String>,
        /// The governor.
        governor: String,
        /// Its name.
        name: String,
    },
    /// The number of huge pages of a size on one NUMA node.
    NodePages {
        /// The node's folder, `node0`.
        node: String,
        /// Bytes of each, in KiB.
        size_kib: u64,
    },
    /// The MTU of another interface, on top of this one.
    MtuOf {
        /// Its name.
        interface: String,
        /// Its index: another interface may have the name by now.
        index: u64,
    },
    /// The MTU of IPv6 (`net.ipv6.conf.INTERFACE.mtu`) of this interface, or of one on top of it.
    Ipv6MtuOf {
        /// Its name.
        interface: String,
        /// Its index, as above.
        index: u64,
    },
    /// An offload, by the kernel's name for it: `rx-gro`.
    Feature {
        /// Its name.
        name: String,
    },
    /// How long the device waits before it interrupts.
    Coalescing {
        /// Which of its numbers.
        item: Coalescing,
    },
    /// The number of descriptors of each ring.
    Ring {
        /// Which rings.
        direction: Direction,
    },
}

/// What the kernel gives to processors that are not kept free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Housekeeping {
    /// Interrupts that come: `/proc/irq/default_smp_affinity`. Those that there are stay where they are.
    Interrupts,
    /// The kernel's own work where it is bound to no processor (workqueues).
    Workqueues,
}

impl Housekeeping {
    /// The file of its mask, below the root.
    pub(crate) const fn file(self) -> &'static str {
        match self {
            Self::Interrupts => "proc/irq/default_smp_affinity",
            Self::Workqueues => "sys/devices/virtual/workqueue/cpumask",
        }
    }
}

/// A number of interrupt coalescing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Coalescing {
    /// Whether the driver chooses the time itself, by load.
    AdaptiveRx,
    /// Microseconds from a received packet to the interrupt.
    RxUsecs,
    /// Received packets until the interrupt.
    RxFrames,
}

/// A direction of the device's rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Receive.
    Rx,
    /// Transmit.
    Tx,
}

impl Place {
    /// A kernel variable.
    #[must_use]
    pub fn sysctl(name: &str) -> Self {
        Self::Sysctl { name: name.to_owned() }
    }

    /// A file of the interface.
    #[must_use]
    pub fn interface(file: impl Into<String>) -> Self {
        Self::Interface { file: file.into() }
    }

    /// An offload.
    #[must_use]
    pub fn feature(name: &str) -> Self {
        Self::Feature { name: name.to_owned() }
    }

    /// Whether another one is the same, whatever name an interface on top has by now.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::MtuOf { index, .. }, Self::MtuOf { index: other, .. })
            | (Self::Ipv6MtuOf { index, .. }, Self::Ipv6MtuOf { index: other, .. }) => index == other,
            _ => self == other,
        }
    }

    /// Whether several interfaces may want it: it is the network namespace's, or the machine's.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self, Self::Sysctl { .. }) || self.is_machines()
    }

    /// Whether it is the machine's, in every network namespace. Interrupts are: the interfaces of one
    /// function of a bus share them, and may be in different namespaces.
    #[must_use]
    pub const fn is_machines(&self) -> bool {
        match self {
            Self::Governor { .. } | Self::Tunable { .. } | Self::Interrupt { .. } => true,
            Self::Housekeeping { .. } => true,
            Self::EnergyPreference { .. } | Self::HugePages { .. } | Self::NodePages { .. } => true,
            Self::Sysctl { .. } | Self::Interface { .. } => false,
            Self::MtuOf { .. } | Self::Ipv6MtuOf { .. } => false,
            Self::Feature { .. } | Self::Coalescing { .. } | Self::Ring { .. } => false,
        }
    }

    /// The folder of a governor's tunables.
    pub(crate) fn tunables(policy: Option<&str>, governor: &str) -> String {
        let policy = policy.map(|policy| format!("{policy}/")).unwrap_or_default();
        format!("sys/devices/system/cpu/cpufreq/{policy}{governor}")
    }

    /// Whether it goes when the interface's device goes. An interface on top may stay.
    #[must_use]
    pub const fn is_of_the_device(&self) -> bool {
        let may_be_anothers = matches!(self, Self::MtuOf { .. } | Self::Ipv6MtuOf { .. });
        let is_its_own = !self.is_shared() && !may_be_anothers;
        is_its_own || matches!(self, Self::Interrupt { .. })
    }

    /// Whether its names are such as [`plan`](crate::plan::plan) makes them: journals may name nothing else.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let is_word = |text: &str| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
        };
        match self {
            Self::Sysctl { name } => name.starts_with("net.") && name.split('.').all(is_word),
            Self::Interface { file } => is_interface_file(file),
            Self::Governor { policy } | Self::EnergyPreference { policy } => numbered(policy, "policy"),
            Self::Tunable { policy, governor, name } => {
                policy.as_ref().is_none_or(|policy| numbered(policy, "policy"))
                    && is_word(governor)
                    && is_word(name)
            }
            Self::NodePages { node, .. } => numbered(node, "node"),
            Self::MtuOf { interface, .. } | Self::Ipv6MtuOf { interface, .. } => is_interface_name(interface),
            Self::Feature { name } => is_word(name),
            Self::Interrupt { .. } | Self::HugePages { .. } | Self::Housekeeping { .. } => true,
            Self::Coalescing { .. } | Self::Ring { .. } => true,
        }
    }

    /// Its file below the root, if it is one.
    #[must_use]
    pub fn file(&self, interface: &str) -> Option<String> {
        match self {
            Self::Sysctl { name } => Some(format!("proc/sys/{}", name.replace('.', "/"))),
            Self::Interface { file } => Some(format!("sys/class/net/{interface}/{file}")),
            Self::Housekeeping { of } => Some(of.file().to_owned()),
            Self::Interrupt { number } => Some(format!("proc/irq/{number}/smp_affinity_list")),
            Self::Governor { policy } => {
                Some(format!("sys/devices/system/cpu/cpufreq/{policy}/scaling_governor"))
            }
            Self::EnergyPreference { policy } => {
                Some(format!("sys/devices/system/cpu/cpufreq/{policy}/energy_performance_preference"))
            }
            Self::Tunable { policy, governor, name } => {
                Some(format!("{}/{name}", Self::tunables(policy.as_deref(), governor)))
            }
            Self::NodePages { node, size_kib } => {
                let folder = format!("sys/devices/system/node/{node}/hugepages/hugepages-{size_kib}kB");
                Some(format!("{folder}/nr_hugepages"))
            }
            Self::MtuOf { interface, .. } => Some(format!("sys/class/net/{interface}/mtu")),
            Self::Ipv6MtuOf { interface, .. } => Some(format!("proc/sys/net/ipv6/conf/{interface}/mtu")),
            Self::HugePages { size_kib } => {
                Some(format!("sys/kernel/mm/hugepages/hugepages-{size_kib}kB/nr_hugepages"))
            }
            Self::Feature { .. } | Self::Coalescing { .. } | Self::Ring { .. } => None,
        }
    }
}

fn is_interface_file(file: &str) -> bool {
    match file {
        "mtu" | "gro_flush_timeout" | "napi_defer_hard_irqs" => true,
        _ => {
            file.strip_prefix("queues/").and_then(|rest| rest.split_once('/')).is_some_and(|(queue, file)| {
                (numbered(queue, "rx-") && file == "rps_cpus")
                    || (numbered(queue, "tx-") && file == "xps_cpus")
            })
        }
    }
}

/// Whether `text` is `beginning` and a number.
fn numbered(text: &str, beginning: &str) -> bool {
    text.strip_prefix(beginning).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Whether the kernel takes this as the name of an interface (`dev_valid_name`).
#[must_use]
pub fn is_interface_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name != "."
        && name != ".."
        && !name.bytes().any(|b| b == b'/' || b == b':' || b.is_ascii_whitespace() || b == 0)
}

/// Names as administrators know them: those of `sysctl`, of `ethtool`, or of the file.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl { name } | Self::Feature { name } => f.write_str(name),
            Self::Interface { file } => f.write_str(file.strip_prefix("queues/").unwrap_or(file)),
            Self::Housekeeping { of: Housekeeping::Interrupts } => {
                f.write_str("default processors of interrupts")
            }
            Self::Housekeeping { of: Housekeeping::Workqueues } => {
                f.write_str("processors of unbound workqueues")
            }
            Self::Interrupt { number } => write!(f, "processors of interrupt {number}"),
            Self::Governor { policy } => write!(f, "governor of {policy}"),
            Self::EnergyPreference { policy } => write!(f, "energy preference of {policy}"),
            Self::Tunable { policy: None, governor, name } => write!(f, "{name} of {governor}"),
            Self::Tunable { policy: Some(policy), governor, name } => {
                write!(f, "{name} of {governor} of {policy}")
            }
            Self::HugePages { size_kib } => write!(f, "huge pages of {size_kib} KiB"),
            Self::NodePages { node, size_kib } => write!(f, "huge pages of {size_kib} KiB of {node}"),
            Self::MtuOf { interface, .. } => write!(f, "mtu of {interface}"),
            Self::Ipv6MtuOf { interface, .. } => write!(f, "IPv6 mtu of {interface}"),
            Self::Coalescing { item: Coalescing::AdaptiveRx } => f.write_str("adaptive-rx"),
            Self::Coalescing { item: Coalescing::RxUsecs } => f.write_str("rx-usecs"),
            Self::Coalescing { item: Coalescing::RxFrames } => f.write_str("rx-frames"),
            Self::Ring { direction: Direction::Rx } => f.write_str("ring rx"),
            Self::Ring { direction: Direction::Tx } => f.write_str("ring tx"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_with_a_path_in_its_name_is_not_valid() {
        for file in ["mtu", "queues/rx-0/rps_cpus", "queues/tx-12/xps_cpus"] {
            assert!(Place::interface(file).is_valid(), "{file}");
        }
        for file in ["", "../../etc/passwd", "queues/rx-0/../mtu", "queues/rx-/rps_cpus", "ifalias"] {
            assert!(!Place::interface(file).is_valid(), "{file}");
        }
        for name in
            ["kernel.core_pattern", "net.", "net..core", "net.core/x", "net.core.rmem_max\n", "net/core"]
        {
            assert!(!Place::sysctl(name).is_valid(), "{name}");
        }
        assert!(Place::sysctl("net.ipv4.tcp_rmem").is_valid());
        assert!(!Place::Governor { policy: "policy0/../x".to_owned() }.is_valid());
        assert!(!Place::EnergyPreference { policy: "policy0/../x".to_owned() }.is_valid());
        assert!(!Place::feature("a b").is_valid());
        let tunable = |policy: Option<&str>, governor: &str, name: &str| Place::Tunable {
            policy: policy.map(str::to_owned),
            governor: governor.to_owned(),
            name: name.to_owned(),
        };
        assert!(tunable(None, "ondemand", "up_threshold").is_valid());
        for wrong in [tunable(Some(".."), "a", "b"), tunable(None, "..", "b"), tunable(None, "a", "b/c")] {
            assert!(!wrong.is_valid(), "{wrong:?}");
        }
        assert!(!Place::NodePages { node: "node0/..".to_owned(), size_kib: 4 }.is_valid());
        assert!(!Place::MtuOf { interface: "../lo".to_owned(), index: 1 }.is_valid());
        assert!(!Place::Ipv6MtuOf { interface: "../lo".to_owned(), index: 1 }.is_valid());
    }

    #[test]
    fn names_of_interfaces_are_those_that_the_kernel_takes() {
        for name in ["eth0", "enp1s0f0.100", "a-b", "wan"] {
            assert!(is_interface_name(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a b", "a:b", "sixteen-bytes-xx"] {
            assert!(!is_interface_name(name), "{name}");
        }
    }
}
