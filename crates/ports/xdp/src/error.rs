//! What can go wrong before packets flow, each with what to do about it.

use std::io;

/// Why an AF_XDP device, or its filter, could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such interface.
    #[error("there is no interface {name} here: see `ip link`")]
    InterfaceAbsent {
        /// The requested name.
        name: String,
    },
    /// The interface has no Ethernet frames.
    #[error("the interface {name} has no Ethernet frames (a TUN, say), which AF_XDP here needs")]
    NotEthernet {
        /// The interface.
        name: String,
    },
    /// The interface has no such queue.
    #[error(
        "the interface {interface} has no queue {queue}, only {have}: see `ethtool -l {interface}`, and set more with `ethtool -L` or use fewer"
    )]
    QueueAbsent {
        /// The interface.
        interface: String,
        /// The requested queue.
        queue: u32,
        /// How many there are.
        have: u32,
    },
    /// No queue was named.
    #[error("no queue of the interface {interface} is named: name at least queue 0")]
    NoQueue {
        /// The interface.
        interface: String,
    },
    /// There are fewer queues than workers.
    #[error(
        "{workers} workers need a queue each, and there are {queues}: set more with `ethtool -L`, name more, or use fewer workers"
    )]
    TooFewQueues {
        /// Queues to divide.
        queues: usize,
        /// Workers to divide them among.
        workers: usize,
    },
    /// A right is missing.
    #[error(
        "not permitted to {action}: AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_PERFMON, and bpf(2) is refused in every user namespace but the first: run as root outside of containers with user namespaces"
    )]
    NotPermitted {
        /// The action that failed.
        action: String,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel does not have it.
    #[error("the kernel cannot {action} ({source}): this needs Linux {since} or newer with {option}")]
    KernelTooOld {
        /// The action that failed.
        action: String,
        /// The version that has it.
        since: &'static str,
        /// The option it is built with.
        option: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The umem is longer than this process may lock.
    #[error(
        "the packet buffers have {bytes} bytes, and this process may lock only {limit}: raise RLIMIT_MEMLOCK (`ulimit -l`, LimitMEMLOCK= of the unit), give it CAP_IPC_LOCK, or use fewer buffers"
    )]
    LockedMemory {
        /// Bytes of the buffers.
        bytes: usize,
        /// RLIMIT_MEMLOCK.
        limit: u64,
    },
    /// Frames of such a length cannot be a umem.
    #[error("packet buffers of {frame_bytes} bytes cannot be shared with AF_XDP, which takes 2048 to 4096")]
    FrameBytes {
        /// The length of a frame.
        frame_bytes: usize,
    },
    /// A ring cannot have so many entries.
    #[error("rings of {entries} entries: use a power of two from 64 to 65536")]
    RingEntries {
        /// The requested number.
        entries: u32,
    },
    /// Another socket has the queue.
    #[error(
        "queue {queue} of the interface {interface} is in use by another program (`ss --xdp`): stop it, or use another queue"
    )]
    QueueBusy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// Another program of XDP is attached.
    #[error(
        "another program of XDP is attached to {interface} (`ip link show {interface}`): detach it with `ip link set {interface} xdp off` or end its owner"
    )]
    ProgramAttached {
        /// The interface.
        interface: String,
    },
    /// The driver has no native mode.
    #[error("the driver of {interface} has no native XDP ({source}): use mode = \"auto\" or \"generic\"")]
    NoNativeMode {
        /// The interface.
        interface: String,
        /// The system's error.
        source: io::Error,
    },
    /// The interface's settings forbid XDP.
    #[error(
        "XDP in {mode} mode is refused with the settings of {interface} ({source}): lower its MTU, turn LRO off (`ethtool -K {interface} lro off`), and let veth have as many receive queues as its other end has transmit queues"
    )]
    Settings {
        /// The interface.
        interface: String,
        /// The mode.
        mode: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The driver has no zero-copy.
    #[error(
        "the driver of {interface} cannot do without the copy ({source}): use zero_copy = \"auto\" or \"off\""
    )]
    NoZeroCopy {
        /// The interface.
        interface: String,
        /// The system's error.
        source: io::Error,
    },
    /// The verifier refused the filter.
    #[error(
        "the kernel refused the filter ({source}): this needs Linux 5.18 or newer; its verifier says:\n{log}"
    )]
    Verifier {
        /// The system's error.
        source: io::Error,
        /// The end of what the verifier said.
        log: String,
    },
    /// Anything else that the operating system refused.
    #[error("cannot {action}: {source}")]
    Io {
        /// The action that failed.
        action: String,
        /// The system's error.
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn io(action: impl Into<String>, source: io::Error) -> Self {
        Self::Io { action: action.into(), source }
    }

    /// Of bpf(2).
    pub(crate) fn of_bpf(action: &str, source: io::Error) -> Self {
        let action = action.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { action, source },
            Some(libc::ENOSYS | libc::EINVAL) => {
                Self::KernelTooOld { action, since: "5.9", option: "CONFIG_BPF_SYSCALL", source }
            }
            _ => Self::Io { action, source },
        }
    }

    /// Of attaching a program.
    pub(crate) fn of_attaching(interface: &str, mode: &'static str, source: io::Error) -> Self {
        let interface = interface.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                Self::NotPermitted { action: format!("attach a filter to {interface}"), source }
            }
            Some(libc::EBUSY | libc::EEXIST) => Self::ProgramAttached { interface },
            Some(libc::EOPNOTSUPP) if mode == "native" => Self::NoNativeMode { interface, source },
            _ => Self::Settings { interface, mode, source },
        }
    }

    /// Of making a socket.
    pub(crate) fn of_socket(source: io::Error) -> Self {
        let action = "make an AF_XDP socket".to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { action, source },
            Some(libc::EAFNOSUPPORT) => {
                Self::KernelTooOld { action, since: "5.9", option: "CONFIG_XDP_SOCKETS", source }
            }
            _ => Self::Io { action, source },
        }
    }

    /// Of making a umem of so many bytes.
    pub(crate) fn of_umem(bytes: usize, source: io::Error) -> Self {
        match source.raw_os_error() {
            // The kernel counts locked pages, and says ENOBUFS beyond the limit.
            Some(libc::ENOBUFS) => {
                let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
                Self::LockedMemory { bytes, limit: limit.unwrap_or(u64::MAX) }
            }
            _ => Self::io("share the packet buffers with the kernel", source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i32) -> io::Error {
        io::Error::from_raw_os_error(code)
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        let cases = [
            (OpenError::of_socket(error(libc::EPERM)), "CAP_NET_RAW"),
            (OpenError::of_socket(error(libc::EAFNOSUPPORT)), "CONFIG_XDP_SOCKETS"),
            (OpenError::of_bpf("load", error(libc::EPERM)), "user namespace"),
            (OpenError::of_bpf("load", error(libc::ENOSYS)), "Linux 5.9"),
            (OpenError::of_attaching("eth0", "native", error(libc::EOPNOTSUPP)), "mode = \"auto\""),
            (OpenError::of_attaching("eth0", "native", error(libc::ERANGE)), "lower its MTU"),
            (OpenError::of_attaching("eth0", "generic", error(libc::EBUSY)), "xdp off"),
            (OpenError::of_umem(1 << 30, error(libc::ENOBUFS)), "RLIMIT_MEMLOCK"),
            (OpenError::of_umem(1 << 30, error(libc::EINVAL)), "cannot share"),
            (OpenError::InterfaceAbsent { name: "eth7".into() }, "ip link"),
            (OpenError::QueueAbsent { interface: "eth0".into(), queue: 4, have: 2 }, "ethtool -L"),
            (OpenError::TooFewQueues { queues: 1, workers: 2 }, "ethtool -L"),
            (OpenError::QueueBusy { interface: "eth0".into(), queue: 0 }, "ss --xdp"),
            (OpenError::NoZeroCopy { interface: "eth0".into(), source: error(95) }, "zero_copy = \"auto\""),
        ];
        for (error, advice) in cases {
            assert!(error.to_string().contains(advice), "{error}");
        }
    }
}
