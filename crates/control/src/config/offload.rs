//! Reads `offload`: whether the NIC of the unprotected port does cryptography.

use super::port_kind::KindName;
use super::value;
use super::walk::{Problem, Section, Walker};

/// Whether the NIC of a port does cryptography.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offload {
    /// Never.
    Off,
    /// For SAs that have packets, where it can.
    #[default]
    Auto,
    /// For as many SAs as it has room for, or the gateway does not start.
    Always,
}

impl KindName {
    /// Why no NIC does cryptography for ports of this kind, if none does.
    const fn without_offload(self) -> Option<&'static str> {
        match self {
            Self::Host => Some("the kernel's sockets give packets to no NIC for this"),
            Self::Xdp => Some("AF_XDP has no way to tell a NIC under which SA it is to seal a packet"),
            // Whether a device can, it says when it is opened.
            Self::Dpdk => None,
        }
    }
}

pub(super) fn read(section: &mut Section<'_>, walker: &mut Walker<'_>, kind: KindName) -> Offload {
    let words = [("off", Offload::Off), ("auto", Offload::Auto), ("always", Offload::Always)];
    let Some(read) = section.located(walker, "offload", value::choice(&words)) else {
        return Offload::default();
    };
    if let Some(why) = kind.without_offload().filter(|_| read.value == Offload::Always) {
        let problem = Problem::expected("\"off\" or \"auto\" with this `kind`");
        walker.report(
            &read.span,
            read.key.clone(),
            problem.help(format!("{why}: with \"auto\" the CPU does it")),
        );
    }
    read.value
}
