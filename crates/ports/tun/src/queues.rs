//! One interface with several queues: a port for each worker.

use crate::device::Device;
use crate::error::{AddError, OpenError};
use crate::link_info::LinkInfo;
use crate::port::{TunConfig, TunPort};
use crate::steering::Steering;
use std::io;
use testudo_wire::steering::FlowBuckets;

/// `MAX_TAP_QUEUES` of the kernel, and buckets that flows are spread over.
const MAX_QUEUES: u32 = 256;
const ETHERNET_BYTES: usize = 14;

/// The queues of a TUN interface. Each is a [`TunPort`] of its own, for a worker of its own; this says which
/// flows come to which, and has queues come and go.
///
/// Packets from the kernel are steered by a [program](crate::TunQueues::steering_refused) of ours: a flow has
/// one queue, in its order, by the [hash](testudo_wire::flow) of its addresses, protocol and ports. Packets
/// to the kernel may be sent on any queue.
///
/// **Come and go.** [`add`](Self::add) opens one more queue and moves flows there, [`retire`](Self::retire)
/// moves those of the last queue away: of all flows only as many as the new shares ask for. No packet is
/// lost. A flow that moves may have its order broken once, since its earlier packets are with the worker that
/// had it.
///
/// The kernel numbers queues in the order in which they were opened, and puts the last one in the place of
/// one that is closed: so the last one goes first.
#[derive(Debug)]
pub struct TunQueues {
    name: String,
    /// How many are open; flows come to the first ones, as many as the buckets have.
    opened: u32,
    buckets: FlowBuckets,
    steering: Result<Steering, String>,
}

impl TunQueues {
    /// Creates the interface with so many queues, 1 to 256, down and without addresses: the first one of the
    /// ports [configures](TunPort::configure) it for all.
    ///
    /// # Errors
    /// [`OpenError`] as [`TunPort::open`]; also if the interface exists with a single queue, or has queues
    /// that another program uses.
    pub fn open(name: &str, queues: u32) -> Result<(Self, Vec<TunPort>), OpenError> {
        if !(1..=MAX_QUEUES).contains(&queues) {
            return Err(OpenError::Queues { queues });
        }
        // The kernel would let a second program take part of the packets of the first one.
        if LinkInfo::of(name).is_some_and(|info| info.is_in_use()) {
            return Err(OpenError::Busy { name: name.to_owned() });
        }
        let devices = (0..queues).map(|_| Device::open(name, true)).collect::<Result<Vec<_>, _>>()?;
        let mut set = Self {
            name: name.to_owned(),
            opened: queues,
            buckets: FlowBuckets::new(queues),
            steering: Err("there is only one queue".to_owned()),
        };
        if let Some(first) = devices.first() {
            set.steering = set.steer(first).map_err(|source| refusal(&source));
        }
        Ok((set, devices.into_iter().map(|device| TunPort::over(name, device)).collect()))
    }

    fn steer(&self, device: &Device) -> io::Result<Steering> {
        let mut steering = Steering::load()?;
        steering.set(&self.buckets)?;
        device.steer(&steering.program)?;
        Ok(steering)
    }

    /// The number of queues that get packets.
    #[must_use]
    pub fn queues(&self) -> u32 {
        self.buckets.queues()
    }

    /// Which queue each flow has, if the program is in force.
    #[must_use]
    pub fn buckets(&self) -> &FlowBuckets {
        &self.buckets
    }

    /// Why the program is not in force; meant to be told to the user. The kernel then chooses: a flow comes
    /// by the queue on which a packet of its other direction was last sent, and if that changes, so does its
    /// queue, and packets may overtake each other. `None` if it is in force.
    #[must_use]
    pub fn steering_refused(&self) -> Option<&str> {
        self.steering.as_ref().err().map(String::as_str)
    }

    /// The queue that the program in force gives a packet of the host, without sending it; `None` without the
    /// program.
    ///
    /// # Errors
    /// Those of bpf(2): there is no packet, or one longer than a page.
    pub fn judge(&self, packet: &[u8]) -> io::Result<Option<u32>> {
        let Ok(steering) = &self.steering else { return Ok(None) };
        // The kernel takes off an Ethernet header before it shows a packet to the program.
        let frame = [&[0; ETHERNET_BYTES], packet].concat();
        steering.program.run(&frame).map(Some)
    }

    /// Opens one more queue, and moves its share of flows there. All that are open get packets then.
    ///
    /// # Errors
    /// [`AddError`] with the system's error; nothing has changed then.
    pub fn add(&mut self) -> Result<TunPort, AddError> {
        let queues = self.opened + 1;
        if queues > MAX_QUEUES {
            return Err(AddError::Open(OpenError::Queues { queues }));
        }
        let config = TunConfig { multi_queue: true, ..TunConfig::new(&self.name) };
        let port = TunPort::open(&config).map_err(AddError::Open)?;
        self.resize(queues)?;
        self.opened = queues;
        Ok(port)
    }

    /// Moves all flows away from the last queue. When this returns, nothing more comes to it: its port is to
    /// be emptied, by receiving until nothing is left, and then closed. What is left at that time is lost.
    ///
    /// Without the [program](Self::steering_refused) packets go on coming until the port is closed.
    ///
    /// # Errors
    /// [`AddError`] if it is the only queue, or with the system's error; flows that could not be moved stay.
    pub fn retire(&mut self) -> Result<(), AddError> {
        if self.opened == 1 {
            return Err(AddError::LastQueue { name: self.name.clone() });
        }
        let left = self.opened - 1;
        self.resize(self.queues().min(left))?;
        self.opened = left;
        Ok(())
    }

    /// Moves all flows to the first `queues` of those that are open: of all flows only as many as the new
    /// shares ask for. When this returns, nothing more comes to the others, which stay open. What they have
    /// by then is still to be received.
    ///
    /// # Errors
    /// [`AddError`] if fewer are open, or without the [program](Self::steering_refused), or with the system's
    /// error; flows that could not be moved stay.
    pub fn spread(&mut self, queues: u32) -> Result<(), AddError> {
        if !(1..=self.opened).contains(&queues) {
            return Err(AddError::Open(OpenError::Queues { queues }));
        }
        if let Err(why) = &self.steering {
            return Err(AddError::NotSteered { name: self.name.clone(), why: why.clone() });
        }
        self.resize(queues)
    }

    fn resize(&mut self, queues: u32) -> Result<(), AddError> {
        let mut buckets = self.buckets.clone();
        buckets.resize(queues);
        if let Ok(steering) = &mut self.steering {
            let name = self.name.clone();
            steering.set(&buckets).map_err(|source| AddError::Steer { name, source })?;
        }
        self.buckets = buckets;
        Ok(())
    }
}

fn refusal(source: &io::Error) -> String {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!(
            "flows cannot be steered ({source}): this needs CAP_BPF and CAP_NET_ADMIN outside of user namespaces, and under systemd the drop-in testudo-workers.conf"
        ),
        _ => format!(
            "flows cannot be steered ({source}): this needs Linux 4.16 or newer with CONFIG_BPF_SYSCALL"
        ),
    }
}
