//! The filter at an interface: program, maps and link, shared by the devices of the interface's queues.

use super::program::{Maps, PASS, REDIRECT, assemble, value};
use crate::config::{FilterConfig, Network, XdpMode};
use crate::error::OpenError;
use crate::interface::Interface;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use testudo_ebpf::objects::{Kind, Link, Map, Program, Refused};
use testudo_ebpf::{GENERIC_MODE, NATIVE_MODE};

/// Queues that an interface has at most.
const QUEUES: u32 = 4096;
/// Networks of one IP version at most. A map of prefixes takes memory for those that it has.
const NETWORKS: u32 = 1 << 20;

/// Where in the kernel the program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attached {
    /// In the driver, before the kernel makes anything of a frame.
    Native,
    /// After the driver, on what it has received: a copy more.
    Generic,
}

/// What the filter does with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The frame goes to the gateway.
    Take,
    /// The frame goes to the kernel: the gateway does not want it, or no device is open for its queue.
    Leave,
}

/// The filter of one interface. It is attached as long as this exists, and no longer than the process.
#[derive(Debug)]
pub struct Filter {
    interface: Interface,
    program: Program,
    sockets: Map,
    networks: Networks,
    attached: Option<(Link, Attached)>,
    /// Why it is not in native mode where that was tried.
    native_refused: Option<String>,
    multi_buffer: bool,
}

#[derive(Debug)]
struct Networks {
    v4: Map,
    v6: Map,
    present: Mutex<BTreeSet<Network>>,
}

impl Filter {
    /// Attaches the filter to the interface of this name. Until a device is opened for a queue, the kernel
    /// gets all that comes there.
    ///
    /// # Errors
    /// [`OpenError`] says what is missing: the interface, a right, a feature of kernel or driver.
    pub fn attach(interface: &str, mode: XdpMode, config: &FilterConfig) -> Result<Self, OpenError> {
        let mut filter = Self::load(interface, config)?;
        let (attached, refused) = filter.attach_in(mode)?;
        (filter.attached, filter.native_refused) = (Some(attached), refused);
        Ok(filter)
    }

    /// Loads the filter, as [`attach`](Self::attach) does, without attaching it: to ask what it
    /// [would do](Self::judge).
    ///
    /// # Errors
    /// [`OpenError`] as there.
    pub fn load(interface: &str, config: &FilterConfig) -> Result<Self, OpenError> {
        let interface = Interface::find(interface)?;
        let made = |what: &'static str| move |source| OpenError::of_bpf(what, source);
        let sockets = Map::of_sockets(QUEUES).map_err(made("make a map of AF_XDP sockets"))?;
        let prefixes = |bytes| Map::of_prefixes(bytes, NETWORKS).map_err(made("make a map of prefixes"));
        let networks = Networks { v4: prefixes(4)?, v6: prefixes(16)?, present: Mutex::new(BTreeSet::new()) };
        networks.replace(&config.networks).map_err(made("fill a map of prefixes"))?;
        let maps = Maps {
            sockets: sockets.descriptor(),
            networks_v4: networks.v4.descriptor(),
            networks_v6: networks.v6.descriptor(),
        };
        let multi_buffer = interface.needs_multi_buffer();
        let program =
            Program::load(Kind::Xdp { multi_buffer }, &assemble(config, maps)).map_err(of_program)?;
        Ok(Self { interface, program, sockets, networks, attached: None, native_refused: None, multi_buffer })
    }

    fn attach_in(&self, mode: XdpMode) -> Result<((Link, Attached), Option<String>), OpenError> {
        let name = &self.interface.name;
        let attach = |flags| self.program.attach(self.interface.index, flags);
        let native = |link| ((link, Attached::Native), None);
        let failed = |mode, source| OpenError::of_attaching(name, mode, source);
        match mode {
            XdpMode::Native => attach(NATIVE_MODE).map(native).map_err(|e| failed("native", e)),
            XdpMode::Generic => attach(GENERIC_MODE)
                .map(|link| ((link, Attached::Generic), None))
                .map_err(|e| failed("generic", e)),
            XdpMode::Auto => match attach(NATIVE_MODE) {
                Ok(link) => Ok(native(link)),
                Err(refusal) => {
                    let refused = failed("native", refusal).to_string();
                    let link = attach(GENERIC_MODE).map_err(|e| failed("generic", e))?;
                    Ok(((link, Attached::Generic), Some(refused)))
                }
            },
        }
    }

    /// The interface.
    #[must_use]
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Where it runs; `None` if it is only loaded.
    #[must_use]
    pub fn attached(&self) -> Option<Attached> {
        self.attached.as_ref().map(|(_, attached)| *attached)
    }

    /// Why it is in generic mode, if native mode was tried first.
    #[must_use]
    pub fn native_refused(&self) -> Option<&str> {
        self.native_refused.as_deref()
    }

    /// Whether frames may come in several buffers.
    #[must_use]
    pub fn multi_buffer(&self) -> bool {
        self.multi_buffer
    }

    /// Replaces the networks. Packets that pass meanwhile meet the old ones, the new ones, or both.
    ///
    /// # Errors
    /// The kernel refused one, for lack of memory: some of the others are in force.
    pub fn replace_networks(&self, networks: &[Network]) -> io::Result<()> {
        self.networks.replace(networks)
    }

    /// What the filter does with a frame that comes to queue 0, without a device.
    ///
    /// # Errors
    /// Those of bpf(2): the frame is shorter than an Ethernet header, or longer than a page.
    pub fn judge(&self, frame: &[u8]) -> io::Result<Verdict> {
        match self.program.run(frame)? {
            REDIRECT => Ok(Verdict::Take),
            PASS => Ok(Verdict::Leave),
            other => Err(io::Error::other(format!("the filter returned the action {other}"))),
        }
    }

    /// Frames of `queue` go to `socket` from now on, until it is closed.
    pub(crate) fn direct(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.sockets.set(&queue.to_ne_bytes(), &socket.as_raw_fd().to_ne_bytes())
    }
}

impl Networks {
    fn replace(&self, networks: &[Network]) -> io::Result<()> {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted: BTreeSet<Network> = networks.iter().copied().collect();
        let new: Vec<Network> = wanted.difference(&present).copied().collect();
        for network in &new {
            let (map, key) = self.element(network);
            map.set(&key, &value(network.taken).to_ne_bytes())?;
            present.insert(*network);
        }
        // One of which something else is taken now is the same key with another value.
        let keys: BTreeSet<_> = wanted.iter().map(|network| self.element(network).1).collect();
        let gone: Vec<Network> = present.difference(&wanted).copied().collect();
        for network in gone {
            let (map, key) = self.element(&network);
            if !keys.contains(&key) {
                map.remove(&key)?;
            }
            present.remove(&network);
        }
        Ok(())
    }

    /// The map that has a network, and its key there: `struct bpf_lpm_trie_key`.
    fn element(&self, network: &Network) -> (&Map, Vec<u8>) {
        let (map, octets) = match network.address {
            IpAddr::V4(address) => (&self.v4, address.octets().to_vec()),
            IpAddr::V6(address) => (&self.v6, address.octets().to_vec()),
        };
        let mut key = u32::from(network.prefix_bits).to_ne_bytes().to_vec();
        key.extend(octets);
        (map, key)
    }
}

fn of_program(Refused { source, log }: Refused) -> OpenError {
    match source.raw_os_error() {
        // EINVAL: the kernel does not know the program's flags. EACCES: the verifier refused.
        Some(libc::EPERM) => OpenError::of_bpf("load the filter", source),
        // Who lacks CAP_PERFMON may not add what a packet says to a pointer into it.
        Some(libc::EACCES) if log.contains("prohibited for !root") => {
            OpenError::of_bpf("load the filter", source)
        }
        _ => OpenError::Verifier { source, log },
    }
}
