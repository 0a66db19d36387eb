//! Sequence numbers and replay windows of SAs (RFC 4303 3.4.3, 2.2.1).

use super::attribute::Value;
use super::structure::{Structure, structure};
use crate::netlink::ack::Refusal;
use crate::netlink::errno::Errno;
use zeroize::Zeroizing;

/// The widest window, in packets (`XFRMA_REPLAY_ESN_MAX`).
pub const MAX_WINDOW: u32 = 4096;
/// Words in the widest window's bitmap.
const MAX_WORDS: u32 = MAX_WINDOW / u32::BITS;

structure! {
    /// `struct xfrm_replay_state`: the state of an SA with a window of up to 32 packets and 32-bit numbers.
    ReplayState, 12, {
        /// The last number sent.
        sent: u32 = 0,
        /// The highest number received.
        received: u32 = 4,
        /// Bit n: the number n below the highest has been received.
        bitmap: u32 = 8,
    }
}

structure! {
    /// The fixed part of [`ReplayStateEsn`].
    EsnFixed, 24, {
        /// Words in the bitmap, of 32 bits.
        words: u32 = 0,
        /// Low half of the last number sent.
        sent: u32 = 4,
        /// Low half of the highest number received.
        received: u32 = 8,
        /// High half of the last number sent.
        sent_high: u32 = 12,
        /// High half of the highest number received.
        received_high: u32 = 16,
        /// Packets in the window.
        window: u32 = 20,
    }
}

/// `struct xfrm_replay_state_esn`: the state of an SA with a window of any size, with or without extended
/// sequence numbers (RFC 4303 2.2.1).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplayStateEsn {
    /// Numbers and sizes.
    pub fixed: EsnFixed,
    /// As many words as `fixed.words` says; or none, which means zeros.
    pub bitmap: Vec<u32>,
}

impl ReplayStateEsn {
    /// The state of an SA that has had no packet yet, whose window has `window` packets, at most
    /// [`MAX_WINDOW`].
    #[must_use]
    pub fn unused(window: u32) -> Self {
        let words = window.min(MAX_WINDOW).div_ceil(u32::BITS);
        let bitmap = (0..words).map(|_| 0).collect();
        Self { fixed: EsnFixed { words, window: window.min(MAX_WINDOW), ..EsnFixed::default() }, bitmap }
    }

    /// The last number sent.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        (self.fixed.sent_high as u64) << 32 | self.fixed.sent as u64
    }

    /// The highest number received.
    #[must_use]
    pub const fn received(&self) -> u64 {
        (self.fixed.received_high as u64) << 32 | self.fixed.received as u64
    }
}

impl Value for ReplayStateEsn {
    fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        let fixed = EsnFixed::read_value(bytes)?;
        if fixed.words > MAX_WORDS {
            let text = format!("the bitmap has {} words of 32 bits, at most {MAX_WORDS} may be", fixed.words);
            return Err(Refusal::new(Errno::INVAL, text));
        }
        let (words, _) = bytes[EsnFixed::BYTES..].as_chunks();
        let bitmap: Vec<u32> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
        let count = usize::try_from(fixed.words).unwrap_or(usize::MAX);
        // The fixed part alone is what a program sends that has no bitmap to say.
        if bytes.len() != EsnFixed::BYTES && bitmap.len() < count {
            let text = format!("the bitmap has {} of the {count} words that it says", bitmap.len());
            return Err(Refusal::new(Errno::INVAL, text));
        }
        Ok(Self { fixed, bitmap: bitmap.into_iter().take(count).collect() })
    }

    fn bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = self.fixed.to_bytes().to_vec();
        bytes.extend(self.bitmap.iter().flat_map(|word| word.to_ne_bytes()));
        Zeroizing::new(bytes)
    }
}

impl EsnFixed {
    fn read_value(bytes: &[u8]) -> Result<Self, Refusal> {
        Self::read_first(bytes).ok_or_else(|| super::attribute::too_short(bytes.len(), Self::BYTES))
    }
}
