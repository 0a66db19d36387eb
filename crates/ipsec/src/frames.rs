//! Who writes the [frames](testudo_crypto::frame) of SAs of ESP towards peers. An engine writes those of runs
//! of common packets, and in transport mode of all; what goes the slow path in tunnel mode gets its frame
//! here.

use crate::Ipsec;
use crate::encap::esp_tunnel::Framing;
use crate::encap::{Encap, outer_fields};
use crate::lifetime::Moment;
use crate::outbound::admit_run;
use crate::outcome::Prepared;
use crate::parsed::PacketMeta;
use crate::runs::drain;
use crate::sa::Framed;
use crate::slots::SaRef;
use testudo_packet::{Buffer, DropReason, Pool};

impl Ipsec {
    /// From now on the jobs of an SA towards a peer leave their frames to the engine: its headers, IV and
    /// trailer of ESP. The caller sees to it that these are written before anything is encrypted. Of AH and
    /// VPE nothing changes.
    pub fn leave_frames(&mut self, sa: SaRef) {
        let sa = self.outbound.get_mut(sa);
        let Some(sa) = sa.filter(|sa| matches!(sa.encap, Encap::EspTunnel | Encap::EspTransport)) else {
            return;
        };
        sa.leaves_frames = true;
        if matches!(sa.framed, Framed::InRuns | Framed::InRunsThatVary) {
            sa.framed = Framed::InRunsLeft;
        }
    }

    /// From now on all frames are written here.
    pub fn write_all_frames(&mut self) {
        for sa in self.outbound.iter_mut() {
            sa.leaves_frames = false;
            if sa.framed == Framed::InRunsLeft {
                sa.framed = Framed::new(sa.encap, sa.headers_vary, false, false);
            }
        }
    }

    /// Makes jobs without frames of adjacent packets of one SA: `false`, with nothing done, if the SA leaves
    /// none to its engine, or if some packets are not common.
    #[cold]
    #[inline(never)]
    pub(crate) fn protect_leaving(
        &mut self,
        sa_ref: SaRef,
        metas: &[PacketMeta],
        buffers: &mut [Buffer],
        now: Moment,
        pool: &mut Pool,
        out: &mut Prepared,
    ) -> bool {
        let sa = self.outbound.get_mut(sa_ref).filter(|sa| sa.framed == Framed::InRunsLeft);
        let Some(sa) = sa else { return false };
        let first = admit_run(sa, metas, now);
        let (Some(first), Some(framing)) = (first, Framing::of(sa, sa_ref)) else { return false };
        let jobs = &mut out.jobs;
        let from = jobs.len();
        jobs.extend(drain(buffers).zip(first..).map(|(buffer, sequence)| framing.job(buffer, sequence)));
        if !framing.write::<true>(&mut jobs[from..], metas.iter().map(|meta| meta.content), first) {
            // Not reached: `admit_run` has checked the room of all.
            jobs.drain(from..).for_each(|job| pool.discard(job.buffer, DropReason::NoRoom));
        }
        if sa.headers_vary {
            let (template, jobs) = (sa.template.as_ref(), jobs.iter_mut().rev().take(metas.len()));
            outer_fields::complete_run(template, sa_ref, jobs, &mut self.identifications);
        }
        true
    }
}
