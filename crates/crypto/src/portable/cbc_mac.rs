//! CBC-MAC with AES: what AES-XCBC, AES-CMAC and AES-CCM have in common.

use aes::cipher::common::BlockSizeUser;
use aes::cipher::consts::U16;
use aes::cipher::{Block, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt};
use aes::{Aes128, cipher};

/// Bytes of a block.
pub(super) const BLOCK_BYTES: usize = 16;

/// A block of AES, under a key of any length.
pub(super) type AesBlock = Block<Aes128>;

/// The state after some blocks.
#[derive(Default)]
pub(super) struct Chain(AesBlock);

impl Chain {
    /// Adds blocks: each is XORed into the state, which is then encrypted.
    pub(super) fn absorb<C: BlockCipherEncrypt<BlockSize = U16>>(&mut self, cipher: &C, blocks: &[AesBlock]) {
        cipher.encrypt_with_backend(Absorb { chain: &mut self.0, blocks });
    }

    /// Adds bytes, as whole blocks, the last one filled up with zeros.
    pub(super) fn absorb_padded<C: BlockCipherEncrypt<BlockSize = U16>>(&mut self, cipher: &C, bytes: &[u8]) {
        let (blocks, rest) = AesBlock::slice_as_chunks(bytes);
        self.absorb(cipher, blocks);
        if !rest.is_empty() {
            let mut last = AesBlock::default();
            last[..rest.len()].copy_from_slice(rest);
            self.absorb(cipher, &[last]);
        }
    }

    /// The state.
    pub(super) fn finish(self) -> [u8; BLOCK_BYTES] {
        self.0.into()
    }
}

/// Work for the cipher's back end, so that its instructions and round keys are chosen once and not for each
/// block: a message takes a fifth of the time.
struct Absorb<'a> {
    chain: &'a mut AesBlock,
    blocks: &'a [AesBlock],
}

impl BlockSizeUser for Absorb<'_> {
    type BlockSize = U16;
}

impl BlockCipherEncClosure for Absorb<'_> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        for block in self.blocks {
            self.chain.iter_mut().zip(block).for_each(|(state, byte)| *state ^= byte);
            backend.encrypt_block(cipher::InOut::from(&mut *self.chain));
        }
    }
}
