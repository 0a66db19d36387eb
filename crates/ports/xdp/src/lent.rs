//! The frames that the kernel has. A buffer is kept here from the moment its address is in a ring until the
//! kernel gives it back, so that nothing else can read or write its bytes meanwhile.

use crate::ring::Descriptor;
use testudo_packet::{Buffer, DropReason};

/// What the kernel has a frame for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Receive,
    Send,
}

/// A umem, as its addresses see it: frames of one length, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chunks {
    /// Bytes of a frame.
    pub bytes: usize,
    /// Frames in all.
    pub count: usize,
}

/// Bits of an address in a umem whose frames are not aligned; the others are an offset to it
/// (`XSK_UNALIGNED_BUF_ADDR_MASK`).
const ADDRESS_BITS: u32 = 48;

impl Chunks {
    /// The address of a place in a frame.
    pub(crate) fn address(&self, index: usize, offset: usize) -> u64 {
        // A region has less than 2^48 bytes.
        u64::try_from(index * self.bytes + offset).unwrap_or(u64::MAX)
    }

    /// The frame that an address of the kernel lies in, and where; `None` if it lies in none.
    pub(crate) fn place(&self, address: u64) -> Option<(usize, usize)> {
        let offset = address >> ADDRESS_BITS;
        let address = usize::try_from((address & ((1 << ADDRESS_BITS) - 1)) + offset).ok()?;
        let index = address.checked_div(self.bytes)?;
        (index < self.count).then_some((index, address % self.bytes))
    }
}

/// The frames of a umem that one queue has lent to the kernel.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    chunks: Chunks,
    frames: Vec<Option<(Buffer, Use)>>,
    receiving: u32,
    sending: u32,
}

impl Lent {
    pub(crate) fn new(chunks: Chunks) -> Self {
        let frames = std::iter::repeat_with(|| None).take(chunks.count).collect();
        Self { chunks, frames, receiving: 0, sending: 0 }
    }

    /// Keeps `buffer`, which is on frame `index`, and returns the address for the ring: of the packet to
    /// send, or of the whole frame to receive into. In front of what it receives the kernel leaves the
    /// headroom; where frames are not aligned, it counts that from the address as it is.
    ///
    /// # Panics
    /// If there is no such frame, or it is lent already: a buffer has its frame for itself.
    pub(crate) fn lend(&mut self, index: usize, buffer: Buffer, purpose: Use) -> u64 {
        let offset = if purpose == Use::Send { buffer.headroom() } else { 0 };
        let address = self.chunks.address(index, offset);
        let slot = &mut self.frames[index];
        assert!(slot.is_none(), "frame {index} is lent twice");
        *slot = Some((buffer, purpose));
        *self.count(purpose) += 1;
        address
    }

    /// The buffer that the kernel has received a packet into, around this packet.
    ///
    /// # Errors
    /// The frame was not lent for that, and stays where it is; or the packet does not lie within it: then it
    /// is free again, and goes to `free`.
    pub(crate) fn received(
        &mut self,
        descriptor: Descriptor,
        free: impl FnOnce(Buffer),
    ) -> Result<Buffer, DropReason> {
        let place = self.chunks.place(descriptor.address);
        let (index, offset) = place.ok_or(DropReason::DeviceFrameUnknown)?;
        let mut buffer = self.take(index, Use::Receive).ok_or(DropReason::DeviceFrameUnknown)?;
        let bytes = usize::try_from(descriptor.bytes).unwrap_or(usize::MAX);
        if offset.checked_add(bytes).is_none_or(|end| end > self.chunks.bytes) {
            free(buffer);
            return Err(DropReason::DeviceFrameBounds);
        }
        buffer.reset(offset);
        buffer.set_len(bytes);
        Ok(buffer)
    }

    /// The buffer of a packet that the kernel has sent.
    ///
    /// # Errors
    /// The frame was not lent for that.
    pub(crate) fn sent(&mut self, address: u64) -> Result<Buffer, DropReason> {
        let place = self.chunks.place(address);
        let buffer = place.and_then(|(index, _)| self.take(index, Use::Send));
        buffer.ok_or(DropReason::DeviceFrameUnknown)
    }

    fn take(&mut self, index: usize, purpose: Use) -> Option<Buffer> {
        let (buffer, _) = self.frames.get_mut(index)?.take_if(|(_, lent)| *lent == purpose)?;
        *self.count(purpose) -= 1;
        Some(buffer)
    }

    fn count(&mut self, purpose: Use) -> &mut u32 {
        match purpose {
            Use::Receive => &mut self.receiving,
            Use::Send => &mut self.sending,
        }
    }

    /// Frames that the kernel has to receive into.
    pub(crate) fn receiving(&self) -> u32 {
        self.receiving
    }

    /// Frames that the kernel has to send.
    pub(crate) fn sending(&self) -> u32 {
        self.sending
    }

    /// Gives up the frames that the kernel may still send: nobody will use them again. Returns how many.
    pub(crate) fn forget_sending(&mut self) -> usize {
        let frames = self.frames.iter_mut().filter_map(|slot| slot.take_if(|(_, use_)| *use_ == Use::Send));
        self.sending = 0;
        frames.map(|(buffer, _)| std::mem::forget(buffer)).count()
    }

    /// All buffers, once the kernel has none any more.
    pub(crate) fn into_buffers(self) -> impl Iterator<Item = Buffer> {
        self.frames.into_iter().flatten().map(|(buffer, _)| buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKS: Chunks = Chunks { bytes: 2048, count: 4 };

    fn buffer() -> Buffer {
        let mut buffer = Buffer::with_capacity(2048);
        buffer.reset(272);
        buffer
    }

    fn packet(address: u64, bytes: u32) -> Descriptor {
        Descriptor { address, bytes, options: 0 }
    }

    #[test]
    fn addresses_are_those_of_the_kernel_with_frames_aligned_or_not() {
        assert_eq!(CHUNKS.address(2, 272), 4368);
        assert_eq!(CHUNKS.place(4368), Some((2, 272)));
        assert_eq!(CHUNKS.place(272 << 48 | 4096), Some((2, 272)));
        assert_eq!(CHUNKS.place(4 * 2048), None);
        for lie in [u64::MAX, 1 << 47, (4 * 2048 - 1) | 1 << 48] {
            assert_eq!(CHUNKS.place(lie), None, "{lie:#x}");
        }
    }

    #[test]
    fn a_frame_comes_back_once_and_only_for_what_it_was_lent() {
        let mut lent = Lent::new(CHUNKS);
        let unused = |_| panic!("the frame is not free");
        let address = lent.lend(1, buffer(), Use::Receive);
        assert_eq!((address, lent.sent(address).err()), (2048, Some(DropReason::DeviceFrameUnknown)));
        let got = lent.received(packet(2320, 100), unused).unwrap();
        assert_eq!((got.headroom(), got.len(), lent.receiving()), (272, 100, 0));
        let again = lent.received(packet(2320, 100), unused);
        assert_eq!(again.err(), Some(DropReason::DeviceFrameUnknown));
        let address = lent.lend(1, got, Use::Send);
        assert_eq!(address, 2320);
        let as_received = lent.received(packet(address, 100), unused);
        assert_eq!((as_received.err(), lent.sending()), (Some(DropReason::DeviceFrameUnknown), 1));
        assert!(lent.sent(address).is_ok() && lent.sent(address).is_err());
    }

    #[test]
    fn a_packet_beyond_its_frame_is_not_read() {
        for (address, bytes) in [(272, 1777), (2047, 2), (0, u32::MAX), (272 << 48, 1777)] {
            let mut lent = Lent::new(CHUNKS);
            let (_, mut freed) = (lent.lend(0, buffer(), Use::Receive), 0);
            let got = lent.received(packet(address, bytes), |_| freed += 1);
            assert_eq!((got.err(), freed), (Some(DropReason::DeviceFrameBounds), 1), "{address} {bytes}");
        }
        let mut lent = Lent::new(CHUNKS);
        lent.lend(0, buffer(), Use::Receive);
        assert_eq!(lent.received(packet(272, 1776), drop).map(|b| b.len()), Ok(1776));
    }

    #[test]
    #[should_panic(expected = "frame 3 is lent twice")]
    fn a_frame_is_lent_once() {
        let mut lent = Lent::new(CHUNKS);
        lent.lend(3, buffer(), Use::Send);
        lent.lend(3, buffer(), Use::Receive);
    }
}
