//! SAs of single workers that are negotiated (RFC 9611): a daemon numbers processors, which are workers here,
//! in their order.
//!
//! ```text
//!   policy with CPU_ACQUIRE ─► each worker asks for its own ─► ACQUIRE with XFRMA_SA_PCPU = its index
//!   NEWSA with XFRMA_SA_PCPU ─► that worker alone sends through it
//! ```
//!
//! A number is the worker's, not that of the processor it runs on: gateways rarely have the first processors
//! to themselves. A daemon that answers a peer chooses one by itself, of the machine's processors: strongSwan
//! begins with the highest. So where no worker with that number sends, the SA is one of the lowest worker
//! that lacks its own, and so is its successor; the daemon is shown its number. If none lacks one, the peer
//! sends through more of them: of the pair, the SA towards it carries nothing.

use super::super::sas::RunningSa;
use super::NegotiatedTunnel;
use super::data_path::Work;
use testudo_crypto::Direction;
use testudo_gateway::SaChange;
use testudo_ipsec::{MAX_SAS_OF_WORKER, MAX_TUNNEL_SAS};
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;

/// SAs of single processors that a tunnel has room for in each direction: those of all have room beside them.
const MAX_OWN: usize = MAX_TUNNEL_SAS - MAX_SAS_OF_WORKER;

/// What is to be known of an SA here.
#[derive(Debug, Clone, Copy)]
struct OwnSa {
    spi: u32,
    is_outbound: bool,
    worker: Option<u32>,
    is_alive: bool,
}

impl OwnSa {
    fn of(sa: &RunningSa) -> Self {
        let is_alive = !sa.has_stopped();
        Self { spi: sa.spi, is_outbound: sa.is_outbound(), worker: sa.worker, is_alive }
    }
}

impl Work<'_> {
    /// Whether a tunnel has room for one SA more of this processor, or of all.
    ///
    /// # Errors
    /// `ENOBUFS` if those of the same processor are too many, `ENOMEM` if those of all single ones are.
    pub(super) fn check_room(
        &self,
        tunnel: &NegotiatedTunnel,
        direction: Direction,
        processor: Option<u32>,
    ) -> Result<(), Refusal> {
        let is_outbound = direction == Direction::Seal;
        let numbers = self.numbers_of(tunnel).into_iter().filter(|(of, _)| of.is_outbound == is_outbound);
        let (own, same) = numbers.fold((0, 0), |(own, same), (_, of)| {
            (own + usize::from(of.is_some()), same + usize::from(of == processor))
        });
        let (errno, most, whose) = match processor {
            Some(number) if same >= MAX_SAS_OF_WORKER => {
                (Errno::NOBUFS, MAX_SAS_OF_WORKER, format!("processor {number} under "))
            }
            Some(_) if own >= MAX_OWN => (Errno::NOMEM, MAX_OWN, "single processors under ".to_owned()),
            None if same >= MAX_SAS_OF_WORKER => (Errno::NOBUFS, MAX_SAS_OF_WORKER, String::new()),
            _ => return Ok(()),
        };
        let text = format!("{most} SAs of {whose}{} are there, and more are not possible", tunnel.key);
        Err(Refusal::new(errno, text))
    }

    /// The SAs of a tunnel, with the processor that the daemon has said of each.
    fn numbers_of(&self, tunnel: &NegotiatedTunnel) -> Vec<(OwnSa, Option<u32>)> {
        let all: Vec<_> = tunnel.running.sas.lock().iter().map(OwnSa::of).collect();
        let table = self.tunnels().table();
        let index = tunnel.running.index;
        let number =
            |of: &OwnSa| table.place_at(index, of.spi, of.is_outbound).and_then(|at| at.processor.number());
        all.into_iter().map(|of| (of, number(&of))).collect()
    }

    /// The worker that an SA of a processor is for: that of its number, if it sends; or the one that an SA
    /// with this number has already, or the lowest that lacks one.
    pub(super) fn worker_for(&self, tunnel: &NegotiatedTunnel, processor: u32) -> u32 {
        let each = (0..).zip(self.shared.facts.counters.each());
        let senders = each.filter(|(_, of)| of.role().encrypts() && !of.is_parked());
        let senders: Vec<u32> = senders.map(|(worker, _)| worker).collect();
        if senders.contains(&processor) {
            return processor;
        }
        let numbers = self.numbers_of(tunnel);
        let with_number = numbers.iter().filter(|(_, number)| *number == Some(processor));
        let before = with_number.filter_map(|(of, _)| of.worker).find(|worker| senders.contains(worker));
        let lacks = |worker: &u32| !numbers.iter().any(|(of, _)| of.is_alive && of.worker == Some(*worker));
        before.or_else(|| senders.iter().copied().find(lacks)).unwrap_or(processor)
    }

    /// Has the workers ask for SAs of their own under a tunnel, or not, as its policies say. What the workers
    /// could not be told they are told with the next change of the tunnel's policies or SAs.
    pub(super) fn settle_own(&self, number: u64) {
        let (tunnel, are_wanted, were_told) = {
            let table = self.tunnels().table();
            let tunnel = table.by_number.get(&number).map(std::sync::Arc::clone);
            (tunnel, table.policies.want_own(number), table.want_own.contains(&number))
        };
        let Some(tunnel) = tunnel.filter(|_| are_wanted != were_told) else { return };
        let change = SaChange::WantOwn(tunnel.running.index, are_wanted.then_some(0));
        if let Err(refusal) = self.change(vec![change]) {
            tracing::error!("tunnel {}: {}", tunnel.running.tunnel.name, refusal.text);
            return;
        }
        let mut table = self.tunnels().table();
        if are_wanted {
            table.want_own.insert(number);
        } else {
            table.want_own.remove(&number);
        }
    }
}
