//! Writing: groups of packets as super-frames, each gathered by one writev(2) from where its packets are.

use crate::coalesce::{self, Group, Groups};
use crate::vnet::{VNET_HEADER_BYTES, VnetHeader};
use arrayvec::ArrayVec;
use std::io::{self, IoSlice};
use testudo_packet::{BATCH_SIZE, Batch, DropReason, Pool, Sent, TxOutcome};

/// What a failed write applies to.
enum Refusal {
    /// Only now: try again later.
    Later,
    /// This packet.
    Packet(DropReason),
    /// The device: it is gone.
    Device(io::Error),
}

/// Sends the batch through `write`, which takes one frame from slices as writev(2) does. Packets that could
/// not be sent now stay in `batch`. Returns what was sent, and the error of `write` if it means that the
/// device is gone.
pub(crate) fn transmit(
    pool: &mut Pool,
    batch: &mut Batch,
    udp: bool,
    mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
) -> (Sent, io::Result<()>) {
    let mut outcomes = [TxOutcome::Kept; BATCH_SIZE];
    let mut calls = 0;
    let mut outcome = Ok(());
    let mut groups = Groups::new();
    coalesce::plan(batch.iter().map(|b| b.bytes()), udp, &mut groups);
    // After a full batch more packets are waiting: a group that could still grow stays for the next call.
    if batch.is_full() && groups.len() > 1 && groups.last().is_some_and(Group::may_grow) {
        groups.pop();
    }
    for group in &groups {
        match send_group(group, batch, &mut outcomes, &mut calls, &mut write) {
            Ok(()) => {}
            Err(Refusal::Device(error)) => {
                outcome = Err(error);
                break;
            }
            Err(_) => break,
        }
    }
    (Sent::settle(pool, batch, &outcomes, calls), outcome)
}

fn send_group(
    group: &Group,
    batch: &Batch,
    outcomes: &mut [TxOutcome; BATCH_SIZE],
    calls: &mut u64,
    write: &mut impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
) -> Result<(), Refusal> {
    match write_joined(group, batch, write) {
        Some(Ok(_)) => {
            *calls += 1;
            group.members.iter().for_each(|&index| outcomes[usize::from(index)] = TxOutcome::Sent);
            return Ok(());
        }
        Some(Err(error)) => match refusal(error) {
            // The kernel may accept one by one packets that it does not accept together.
            Refusal::Packet(_) => {}
            other => return Err(other),
        },
        None => {}
    }
    for &index in &group.members {
        let index = usize::from(index);
        let vnet = VnetHeader::default().to_bytes();
        match write(&[IoSlice::new(&vnet), IoSlice::new(batch[index].bytes())]) {
            Ok(_) => {
                *calls += 1;
                outcomes[index] = TxOutcome::Sent;
            }
            Err(error) => match refusal(error) {
                Refusal::Packet(reason) => outcomes[index] = TxOutcome::Refused(reason),
                other => return Err(other),
            },
        }
    }
    Ok(())
}

/// Writes the group as one super-frame; `None` if it is a single packet.
fn write_joined(
    group: &Group,
    batch: &Batch,
    write: &mut impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
) -> Option<io::Result<usize>> {
    let (first, last) = (group.members.first()?, group.members.last()?);
    let header =
        group.joined_header(batch[usize::from(*first)].bytes(), batch[usize::from(*last)].bytes())?;
    let vnet: [u8; VNET_HEADER_BYTES] = header.vnet.to_bytes();
    let mut slices: ArrayVec<IoSlice<'_>, { BATCH_SIZE + 2 }> = ArrayVec::new();
    slices.push(IoSlice::new(&vnet));
    slices.push(IoSlice::new(header.bytes()));
    for &index in &group.members {
        slices.push(IoSlice::new(&batch[usize::from(index)].bytes()[group.header_bytes()..]));
    }
    Some(write(&slices))
}

fn refusal(error: io::Error) -> Refusal {
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Refusal::Later,
        Some(libc::EBADFD | libc::EBADF | libc::ENODEV | libc::ENXIO) => Refusal::Device(error),
        Some(libc::EMSGSIZE) => Refusal::Packet(DropReason::MessageTooLong),
        // EIO: the link is down. EINVAL: the kernel rejects this frame. It may accept the next one.
        _ => Refusal::Packet(DropReason::SendRefused),
    }
}
