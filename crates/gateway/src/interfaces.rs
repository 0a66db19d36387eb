//! One port of several: the interfaces of the protected side.
//!
//! ```text
//!   testudo0 (0) ──┐            rx: a batch of one interface at a time, in turns
//!   ipsec0   (1) ──┼── Interfaces
//!   ipsec1   (2) ──┘            tx: each packet by its own interface
//! ```
//!
//! Packets leave by the interface that they name, and one that takes nothing does not hold up the others: it
//! loses what was for it, as [`DropReason::QueueFull`]. (TUN interfaces always take packets, or refuse each
//! by itself.) One that is gone, because somebody has deleted it, ends the gateway as the main one does; the
//! next gateway makes it anew. A gateway with one interface has no use for this port, and does not have it.

use arrayvec::ArrayVec;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use testudo_packet::{Batch, DropReason, Interface, Pool, Port, PortCounters, PortError};

/// Descriptors that are looked at in one system call.
const LOOKED_AT: usize = 64;

/// Several ports as one.
pub struct Interfaces {
    /// What becomes readable when a port has packets, and the port's place. These are duplicates, so that
    /// looking at them borrows and allocates nothing. They are dropped before the ports: a device is closed
    /// with its last descriptor, and its port counts on that.
    files: Vec<(OwnedFd, usize)>,
    ports: Vec<Box<dyn Port>>,
    /// Ports without such a file, which are asked in each round.
    unseen: Vec<usize>,
    /// The places of ports that may have packets and were not asked in this round.
    ready: VecDeque<usize>,
    /// Those that had packets in this round, and may have more.
    again: VecDeque<usize>,
    /// What is being sent by one port. Empty in between.
    own: Batch,
}

impl Interfaces {
    /// The main interface's port and those of the others, by their numbers from 1 on; `None` if they are
    /// more than [`Interface::MOST`].
    #[must_use]
    pub fn of(main: Box<dyn Port>, others: Vec<Box<dyn Port>>) -> Option<Self> {
        let mut ports = vec![main];
        ports.extend(others);
        let (mut files, mut unseen) = (Vec::new(), Vec::new());
        for (place, port) in ports.iter().enumerate() {
            let copies = port.readiness().into_iter().map(|file| file.try_clone_to_owned());
            match copies.collect::<Result<Vec<_>, _>>() {
                Ok(copies) if !copies.is_empty() => {
                    files.extend(copies.into_iter().map(|file| (file, place)))
                }
                _ => unseen.push(place),
            }
        }
        let [ready, again] = [(); 2].map(|()| VecDeque::with_capacity(ports.len()));
        (ports.len() <= Interface::MOST).then_some(Self {
            ports,
            files,
            unseen,
            ready,
            again,
            own: Batch::new(),
        })
    }

    /// Begins a round: every port that has packets is asked once in it, whatever others have. One system call
    /// looks at all: asking each for packets would be one for each, however few have any.
    fn look(&mut self) {
        self.ready.append(&mut self.again);
        for files in self.files.chunks(LOOKED_AT) {
            let mut asked: ArrayVec<PollFd<'_>, LOOKED_AT> =
                files.iter().map(|(file, _)| PollFd::new(file, PollFlags::IN)).collect();
            let is_answered = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok();
            for ((_, place), file) in files.iter().zip(&asked) {
                if (!file.revents().is_empty() || !is_answered) && !self.ready.contains(place) {
                    self.ready.push_back(*place);
                }
            }
        }
        for place in &self.unseen {
            if !self.ready.contains(place) {
                self.ready.push_back(*place);
            }
        }
    }

    /// Takes packets from the next port of this round that has any.
    fn take(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let from = batch.len();
        while let Some(place) = self.ready.pop_front() {
            let Some(port) = self.ports.get_mut(place) else { continue };
            let interface = Interface(u8::try_from(place).unwrap_or(0));
            pool.set_receiving(Some(interface));
            let taken = port.rx(pool, batch);
            pool.set_receiving(None);
            batch.iter_mut().skip(from).for_each(|packet| packet.set_interface(interface));
            let taken = taken?;
            // Without buffers a port may keep a part of what it has read, which its file does not show.
            if taken > 0 || pool.available() == 0 {
                self.again.push_back(place);
            }
            if taken > 0 {
                return Ok(taken);
            }
        }
        Ok(0)
    }
}

impl Port for Interfaces {
    fn name(&self) -> &str {
        self.ports.first().map_or("", |main| main.name())
    }

    fn rx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        if !batch.is_empty() {
            // Its packets are of one interface.
            return Ok(0);
        }
        match self.take(pool, batch)? {
            0 => {
                self.look();
                self.take(pool, batch)
            }
            taken => Ok(taken),
        }
    }

    fn tx(&mut self, pool: &mut Pool, batch: &mut Batch) -> Result<usize, PortError> {
        let (mut left, mut gone, mut failure) = (Batch::new(), 0, None);
        while let Some(interface) = batch.first().map(testudo_packet::Buffer::interface) {
            let (own, others): (Batch, Batch) =
                batch.drain(..).partition(|packet| packet.interface() == interface);
            (self.own, *batch) = (own, others);
            let before = self.own.len();
            let sent = match self.ports.get_mut(usize::from(interface.0)) {
                Some(port) => port.tx(pool, &mut self.own),
                None => Ok(0),
            };
            match sent {
                Ok(0) => self.own.drain(..).for_each(|packet| pool.discard(packet, DropReason::QueueFull)),
                Ok(_) => {}
                Err(error) => failure = failure.or(Some(error)),
            }
            gone += before - self.own.len();
            left.extend(self.own.drain(..));
        }
        *batch = left;
        failure.map_or(Ok(gone), Err)
    }

    fn end(&mut self, pool: &mut Pool) {
        self.ports.iter_mut().for_each(|port| port.end(pool));
    }

    fn readiness(&self) -> Vec<BorrowedFd<'_>> {
        self.ports.iter().flat_map(|port| port.readiness()).collect()
    }

    fn joins(&self) -> bool {
        self.ports.iter().any(|port| port.joins())
    }

    fn interfaces(&self) -> usize {
        self.ports.len()
    }

    fn interface(&self, interface: Interface) -> Option<(&str, PortCounters)> {
        self.ports.get(usize::from(interface.0)).map(|port| (port.name(), port.counters()))
    }

    fn exhausted(&self) -> bool {
        self.ports.iter().all(|port| port.exhausted())
    }

    fn finish(&mut self) -> Result<(), PortError> {
        self.ports.iter_mut().try_for_each(|port| port.finish())
    }

    fn counters(&self) -> PortCounters {
        let counters = self.ports.iter().map(|port| port.counters());
        counters.fold(PortCounters::default(), |all, port| PortCounters {
            rx_packets: all.rx_packets + port.rx_packets,
            rx_bytes: all.rx_bytes + port.rx_bytes,
            tx_packets: all.tx_packets + port.tx_packets,
            tx_bytes: all.tx_bytes + port.tx_bytes,
            rx_calls: all.rx_calls + port.rx_calls,
            tx_calls: all.tx_calls + port.tx_calls,
        })
    }
}
