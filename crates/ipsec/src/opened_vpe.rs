//! From opened jobs of VPE to packets for the protected side (`docs/VPE.md`). What surrounds this is
//! [`crate::opened`].

use crate::ecn;
use crate::encap::vpe::Vpe;
use crate::group::source_address;
use crate::lifetime::Moment;
use crate::opened::{FragmentCheck, Inner, Refusals, verdict_of};
use crate::peer_heard::News;
use crate::sa::{InboundSa, low_32};
use crate::spd::{Answer, Direction, OfInterface, Pair};
use crate::vpe::{GroupWindows, JobPlaces, MOST, SaWindows, WindowRun, Windows, WorkersWindows, each_run};
use testudo_crypto::Job;
use testudo_packet::DropReason;
use testudo_wire::ip;
use testudo_wire::plain::PlainV4;
use testudo_wire::vpe::VpeHeader;

impl InboundSa {
    /// Checks the engine's verdict, then commits the number in the packet's window.
    pub(crate) fn commit_vpe(
        &mut self,
        job: &Job,
        windows: Option<&mut SaWindows>,
        now: Moment,
    ) -> Result<(), DropReason> {
        let windows = windows.ok_or(DropReason::ShuttingDown)?;
        match windows {
            SaWindows::Owned(windows) if windows.is_group() => commit_of_group(job, windows, now)?,
            SaWindows::Owned(windows) => commit(job, windows)?,
            SaWindows::Shared(windows) => {
                verdict_of(job)?;
                windows.commit_one(&header_of(job).ok_or(DropReason::VpeMalformed)?)?;
            }
            SaWindows::Group(windows) => {
                verdict_of(job)?;
                let header = header_of(job).ok_or(DropReason::VpeMalformed)?;
                let committed = windows.commit_one(&header);
                if says_where_sender_is(committed) {
                    windows.hear(&header, source_address(job.buffer.bytes()), now);
                }
                committed?;
            }
        }
        self.follow(windows.top());
        Ok(())
    }

    /// [`commit_vpe`](Self::commit_vpe) for adjacent jobs of a batch, from index `at` on.
    #[inline(never)]
    pub(crate) fn commit_vpe_run(
        &mut self,
        jobs: &[Job],
        at: usize,
        windows: Option<&mut SaWindows>,
        now: Moment,
        refusals: &mut Refusals,
    ) {
        match windows {
            Some(SaWindows::Owned(windows)) if windows.is_group() => {
                self.commit_run_of_group(jobs, at, windows, now, refusals);
            }
            Some(SaWindows::Owned(windows)) => {
                self.commit_owned(jobs, at, windows, refusals);
                self.follow(windows.top());
            }
            Some(SaWindows::Shared(windows)) => {
                self.commit_shared(jobs, at, windows, refusals);
                self.follow(windows.top());
            }
            Some(SaWindows::Group(windows)) => {
                self.commit_shared_group(jobs, at, windows, now, refusals);
                self.follow(windows.windows().top());
            }
            None => (at..).zip(jobs).for_each(|(place, _)| refusals.add(place, DropReason::ShuttingDown)),
        }
    }

    /// Numbers of one window are committed together where nothing was lost or reordered.
    #[inline]
    fn commit_owned(&mut self, jobs: &[Job], at: usize, windows: &mut Windows, refusals: &mut Refusals) {
        for (chunk, jobs) in jobs.chunks(MOST).enumerate() {
            let at = at + chunk * MOST;
            let left_out = each_run(jobs, |run| {
                if !windows.commit_ahead(run.window(), run.first(), run.count()) {
                    commit_singly(run, at, windows, refusals);
                }
            });
            if left_out != 0 {
                self.refuse_unauthentic(jobs, at, left_out, refusals);
            }
        }
    }

    /// The same where several workers have the windows.
    #[inline(never)]
    fn commit_shared(
        &mut self,
        jobs: &[Job],
        at: usize,
        windows: &mut WorkersWindows,
        refusals: &mut Refusals,
    ) {
        for (chunk, jobs) in jobs.chunks(MOST).enumerate() {
            let at = at + chunk * MOST;
            let left_out = each_run(jobs, |run| {
                windows.commit(run, |place, reason| refusals.add(at + place, reason));
            });
            if left_out != 0 {
                self.refuse_unauthentic(jobs, at, left_out, refusals);
            }
        }
    }

    /// Refuses the jobs at these places.
    #[cold]
    #[inline(never)]
    fn refuse_unauthentic(&mut self, jobs: &[Job], at: usize, places: u64, refusals: &mut Refusals) {
        for (place, job) in JobPlaces(places).filter_map(|place| Some((place, jobs.get(place)?))) {
            // Otherwise it has no header; not reached: see `header_of`.
            let reason = verdict_of(job).err().unwrap_or(DropReason::VpeMalformed);
            refusals.add(at + place, self.note_failure(job, reason));
        }
    }

    /// The same where many send, each of whose packets also says where its sender is.
    #[inline(never)]
    fn commit_shared_group(
        &mut self,
        jobs: &[Job],
        at: usize,
        windows: &mut GroupWindows,
        now: Moment,
        refusals: &mut Refusals,
    ) {
        for (chunk, jobs) in jobs.chunks(MOST).enumerate() {
            let at = at + chunk * MOST;
            let left_out = each_run(jobs, |run| {
                let mut heard = run.places();
                windows.commit(run, |place, reason| {
                    refusals.add(at + place, reason);
                    if !says_where_sender_is(Err(reason)) {
                        heard &= !(1 << place);
                    }
                });
                for job in JobPlaces(heard).filter_map(|place| jobs.get(place)) {
                    if let Some(header) = header_of(job) {
                        windows.hear(&header, source_address(job.buffer.bytes()), now);
                    }
                }
            });
            if left_out != 0 {
                self.refuse_unauthentic(jobs, at, left_out, refusals);
            }
        }
    }

    #[inline(never)]
    fn commit_run_of_group(
        &mut self,
        jobs: &[Job],
        at: usize,
        windows: &mut Windows,
        now: Moment,
        refusals: &mut Refusals,
    ) {
        for (place, job) in (at..).zip(jobs) {
            if let Err(reason) = commit_of_group(job, windows, now) {
                refusals.add(place, self.note_failure(job, reason));
            }
        }
        self.follow(windows.top());
    }

    /// Notes the highest number of all windows.
    #[inline]
    fn follow(&mut self, top: u64) {
        if top > self.window.top() {
            // Higher than any before: no window refuses it.
            let _ = self.window.commit(top);
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
        if job.buffer.is_chain() {
            return self.decapsulate_chain(policies, job);
        }
        self.decapsulate_from::<Vpe>(policies, check, job)
    }
}

/// Checks the engine's verdict, then commits the number in the window that the packet's header names, which
/// the ICV covers.
#[inline(always)]
fn commit(job: &Job, windows: &mut Windows) -> Result<(), DropReason> {
    verdict_of(job)?;
    windows.commit(&header_of(job).ok_or(DropReason::VpeMalformed)?)
}

/// Numbers of one window, some of which are not ahead of those before, or whose window is to be made.
#[cold]
#[inline(never)]
fn commit_singly(run: &WindowRun, at: usize, windows: &mut Windows, refusals: &mut Refusals) {
    let (sender, window) = run.window();
    for (place, number) in run.numbers() {
        if let Err(reason) = windows.commit(&VpeHeader { sender, window, number, spi: 0 }) {
            refusals.add(at + place, reason);
        }
    }
}

/// The header of a packet. Its job was made of it, and no engine changes it.
#[inline(always)]
fn header_of(job: &Job) -> Option<VpeHeader> {
    job.buffer.bytes().get(job.auth_start as usize..).and_then(VpeHeader::parse)
}

/// The number that a packet is newer than if it is news: the highest of its window.
pub(crate) fn newest_before(job: &Job, windows: Option<&SaWindows>) -> u64 {
    windows.zip(header_of(job)).map_or(u64::MAX, |(windows, header)| windows.top_of(&header))
}

/// Notes that a packet was news in its window.
#[cold]
pub(crate) fn hear_news(job: &Job, windows: Option<&SaWindows>, now: Moment) -> News {
    let heard = windows.zip(header_of(job)).map(|(windows, header)| windows.hear_news(&header, now));
    heard.map_or(News::Old, News::OfWindow)
}

/// Whether an authentic packet of a group with this outcome is no replay, as far as we can know.
fn says_where_sender_is(committed: Result<(), DropReason>) -> bool {
    matches!(committed, Ok(()) | Err(DropReason::VpeSender))
}

/// [`commit`] where many send: a packet that is authentic and no replay also says where its sender is.
fn commit_of_group(job: &Job, windows: &mut Windows, now: Moment) -> Result<(), DropReason> {
    verdict_of(job)?;
    let header = header_of(job).ok_or(DropReason::VpeMalformed)?;
    let committed = windows.commit(&header);
    if says_where_sender_is(committed) {
        windows.hear(&header, source_address(job.buffer.bytes()), now);
    }
    committed
}
