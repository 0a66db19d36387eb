//! SAs of single workers that are negotiated (RFC 9611): a daemon numbers processors, which are workers here,
//! in their order.
//!
//! ```text
//!   policy with CPU_ACQUIRE ─► each worker asks for its own ─► ACQUIRE with XFRMA_SA_PCPU = its index
//!   NEWSA with XFRMA_SA_PCPU ─► that worker alone sends through it
//! ```
//!
//! A number is the worker's, not that of the processor it runs on: a daemon that answers a peer gives the
//! lowest ones first, and gateways rarely have the first processors to themselves. Where there are fewer
//! workers than processors, higher numbers are taken as well: the peer has more processors, and sends through
//! all of these SAs; of the pair, the one towards it carries nothing.

use super::NegotiatedTunnel;
use super::data_path::Work;
use testudo_crypto::Direction;
use testudo_gateway::SaChange;
use testudo_ipsec::{MAX_SAS_OF_WORKER, MAX_TUNNEL_SAS};
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;

/// Whether a tunnel has room for one SA more of this worker, or of all.
pub(super) fn check_room(
    tunnel: &NegotiatedTunnel,
    direction: Direction,
    worker: Option<u32>,
) -> Result<(), Refusal> {
    let sas = tunnel.running.sas.lock();
    let of_direction = sas.iter().filter(|sa| sa.direction == direction);
    let (all, own) =
        of_direction.fold((0, 0), |(all, own), sa| (all + 1, own + usize::from(sa.worker == worker)));
    let (most, whose) = match worker {
        _ if all >= MAX_TUNNEL_SAS => (MAX_TUNNEL_SAS, String::new()),
        Some(worker) if own >= MAX_SAS_OF_WORKER => (MAX_SAS_OF_WORKER, format!("worker {worker} under ")),
        None if own >= MAX_SAS_OF_WORKER => (MAX_SAS_OF_WORKER, String::new()),
        _ => return Ok(()),
    };
    let text = format!("{most} SAs of {whose}{} are there, and more are not possible", tunnel.key);
    Err(Refusal::new(Errno::NOBUFS, text))
}

impl Work<'_> {
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
