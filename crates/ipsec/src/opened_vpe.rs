//! From opened jobs of VPE to packets for the protected side (`docs/VPE.md`). What surrounds this is
//! [`crate::opened`].

use crate::ecn;
use crate::encap::vpe::Vpe;
use crate::opened::{FragmentCheck, Inner, Refusals, verdict_of};
use crate::sa::{InboundSa, low_32};
use crate::spd::{Answer, Direction, OfInterface, Pair};
use crate::vpe::Windows;
use testudo_crypto::Job;
use testudo_packet::DropReason;
use testudo_wire::ip;
use testudo_wire::plain::PlainV4;
use testudo_wire::vpe::VpeHeader;

impl InboundSa {
    /// Checks the engine's verdict, then commits the number in the packet's window.
    pub(crate) fn commit_vpe(&mut self, job: &Job, windows: Option<&mut Windows>) -> Result<(), DropReason> {
        let windows = windows.ok_or(DropReason::ShuttingDown)?;
        commit(job, windows)?;
        self.follow(windows);
        Ok(())
    }

    /// [`commit_vpe`](Self::commit_vpe) for adjacent jobs of a batch, from index `at` on.
    #[inline(never)]
    pub(crate) fn commit_vpe_run(
        &mut self,
        jobs: &[Job],
        at: usize,
        windows: Option<&mut Windows>,
        refusals: &mut Refusals,
    ) {
        let Some(windows) = windows else {
            return (at..).zip(jobs).for_each(|(place, _)| refusals.add(place, DropReason::ShuttingDown));
        };
        for (place, job) in (at..).zip(jobs) {
            if let Err(reason) = commit(job, windows) {
                refusals.add(place, self.note_failure(job, reason));
            }
        }
        self.follow(windows);
    }

    /// Notes the highest number of all windows.
    #[inline]
    fn follow(&mut self, windows: &Windows) {
        if windows.top() > self.window.top() {
            // Higher than any before: no window refuses it.
            let _ = self.window.commit(windows.top());
        }
    }

    /// Narrows the buffer to the inner packet, if the SA's selectors allow that packet (RFC 4301 5.2, step
    /// 4).
    #[inline(always)]
    pub(crate) fn decapsulate_vpe(
        &self,
        policies: OfInterface<'_>,
        check: &FragmentCheck<'_>,
        job: &mut Job,
    ) -> Result<Inner, DropReason> {
        let (start, datagram) = (job.text_start as usize, job.buffer.bytes());
        let text = datagram.get(start..start + job.text_bytes as usize).unwrap_or_default();
        let ours = Answer::protect(self.tunnel);
        let answer = |pair| policies.answer_v4(Direction::Inbound, pair);
        let is_ours = |pair| self.inbound_selectors.holds_pair(pair) && ours == Some(answer(pair));
        // A plain packet of IPv4 within the text is its datagram; what comes after it is padding.
        let header = PlainV4::parse(text).filter(|header| is_ours(Pair::inbound(header)));
        let Some(header) = header else { return self.decapsulate_uncommon(policies, check, job) };
        let (outer_class, class) = (ip::traffic_class(datagram), header.traffic_class);
        let inner = Inner { bytes: header.total_bytes.into(), is_syn: header.is_syn(text) };
        job.buffer.narrow(job.text_start, low_32(inner.bytes as u64));
        let ecn = ecn::at_egress(class, outer_class).ok_or(DropReason::EcnCongestion)?;
        if ecn != class & ecn::MASK {
            ip::set_ecn(job.buffer.bytes_mut(), ecn);
        }
        Ok(inner)
    }

    /// [`decapsulate_vpe`](Self::decapsulate_vpe) for what is no plain packet of IPv4, or what its addresses
    /// alone do not decide.
    #[inline(never)]
    fn decapsulate_uncommon(
        &self,
        policies: OfInterface<'_>,
        check: &FragmentCheck<'_>,
        job: &mut Job,
    ) -> Result<Inner, DropReason> {
        self.decapsulate_from::<Vpe>(policies, check, job)
    }
}

/// Checks the engine's verdict, then commits the number in the window that the packet's header names, which
/// the ICV covers.
#[inline]
fn commit(job: &Job, windows: &mut Windows) -> Result<(), DropReason> {
    verdict_of(job)?;
    let header = job.buffer.bytes().get(job.auth_start as usize..).and_then(VpeHeader::parse);
    // Its job was made of it, and no engine changes it.
    windows.commit(&header.ok_or(DropReason::VpeMalformed)?)
}
