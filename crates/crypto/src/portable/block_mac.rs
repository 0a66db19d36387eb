//! The two MACs of ESP that are made of AES: AES-XCBC-MAC-96 (RFC 3566) and AES-CMAC-96 (RFC 4493, RFC 4494).
//!
//! ```text
//!   M1 ──⊕── AES ──⊕── AES ── … ──⊕── AES ── tag, of which the packet carries the first 12 bytes
//!                  │              │
//!                  M2             last block ⊕ mask       a whole block, or what is left and 10…0
//! ```
//!
//! Both are CBC-MAC with a mask for the last block, one if that block is whole and another if it is not. They
//! differ in how key and masks are made.

use super::cbc_mac::{AesBlock, BLOCK_BYTES, Chain};
use aes::Aes128;
use aes::cipher::{BlockCipherEncrypt, KeyInit};

/// One key. AES zeroes its own when it is dropped; the masks are useless without it.
pub(super) struct BlockMac {
    aes: Aes128,
    /// For a last block that is whole.
    whole_mask: u128,
    /// For a last block that is not: an empty message has one.
    padded_mask: u128,
}

impl BlockMac {
    /// AES-XCBC-MAC (RFC 3566 4): three keys are the encryption of 1…1, 2…2 and 3…3.
    pub(super) fn xcbc(key: &[u8]) -> Option<Self> {
        let user = Aes128::new_from_slice(key).ok()?;
        let derived = |number: u8| encrypted(&user, u128::from_be_bytes([number; BLOCK_BYTES]));
        let aes = Aes128::new(&derived(1).to_be_bytes().into());
        Some(Self { aes, whole_mask: derived(2), padded_mask: derived(3) })
    }

    /// AES-CMAC (RFC 4493 2.3): the masks are the encryption of zeros, doubled once and twice.
    pub(super) fn cmac(key: &[u8]) -> Option<Self> {
        let aes = Aes128::new_from_slice(key).ok()?;
        let whole_mask = doubled(encrypted(&aes, 0));
        Some(Self { aes, whole_mask, padded_mask: doubled(whole_mask) })
    }

    /// The whole tag of the parts, taken as one message.
    pub(super) fn tag(&self, parts: [&[u8]; 2]) -> [u8; BLOCK_BYTES] {
        let mut chain = Chain::default();
        // The last bytes so far, a block at the most: it is absorbed when it is known not to be the last.
        let (mut last, mut filled) = (AesBlock::default(), 0);
        for part in parts {
            let (first, rest) = part.split_at(part.len().min(BLOCK_BYTES - filled));
            last[filled..filled + first.len()].copy_from_slice(first);
            filled += first.len();
            if rest.is_empty() {
                continue;
            }
            // Blocks that others follow, and one to sixteen bytes.
            let (blocks, end) = rest.split_at((rest.len() - 1) / BLOCK_BYTES * BLOCK_BYTES);
            chain.absorb(&self.aes, &[last]);
            chain.absorb(&self.aes, AesBlock::slice_as_chunks(blocks).0);
            last[..end.len()].copy_from_slice(end);
            filled = end.len();
        }
        let mask = if filled == BLOCK_BYTES { self.whole_mask } else { self.padded_mask };
        if let Some((first, rest)) = last[filled..].split_first_mut() {
            *first = 0x80;
            rest.fill(0);
        }
        let masked = u128::from_be_bytes(last.into()) ^ mask;
        chain.absorb(&self.aes, &[masked.to_be_bytes().into()]);
        chain.finish()
    }
}

fn encrypted(aes: &Aes128, block: u128) -> u128 {
    let mut block = AesBlock::from(block.to_be_bytes());
    aes.encrypt_block(&mut block);
    u128::from_be_bytes(block.into())
}

/// Doubling in GF(2^128), in constant time.
fn doubled(n: u128) -> u128 {
    (n << 1) ^ ((n >> 127) * 0x87)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(bytes: u8) -> Vec<u8> {
        (0..bytes).collect()
    }

    /// RFC 3566 4.6, test cases 1 to 7, and RFC 4434 2, whose case of 16 bytes is the fourth.
    #[test]
    fn xcbc_gives_every_official_answer() {
        let mac = BlockMac::xcbc(&counting(16)).unwrap();
        let cases = [
            (counting(0), 0x75f0_251d_528a_c01c_4573_dfd5_84d7_9f29),
            (counting(3), 0x5b37_6580_ae2f_19af_e721_9cee_f172_756f),
            (counting(16), 0xd2a2_46fa_349b_68a7_9998_a439_4ff7_a263),
            (counting(20), 0x47f5_1b45_6496_6215_b898_5c63_055e_d308),
            (counting(32), 0xf54f_0ec8_d2b9_f3d3_6807_734b_d528_3fd4),
            (counting(34), 0xbecb_b3bc_cdb5_18a3_0677_d548_1fb6_b4d8),
            (vec![0; 1000], 0xf0da_fee8_95db_3025_3761_103b_5d84_528f),
        ];
        for (message, tag) in cases {
            assert_every_cut(&mac, &message, tag);
        }
    }

    /// RFC 4493 4: the subkeys, and examples 1 to 4.
    #[test]
    fn cmac_gives_every_official_answer() {
        let mac = BlockMac::cmac(&0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c_u128.to_be_bytes()).unwrap();
        assert_eq!(mac.whole_mask, 0xfbee_d618_3571_3366_7c85_e08f_7236_a8de);
        assert_eq!(mac.padded_mask, 0xf7dd_ac30_6ae2_66cc_f90b_c11e_e46d_513b);
        let message: Vec<u8> = [
            0x6bc1_bee2_2e40_9f96_e93d_7e11_7393_172a_u128,
            0xae2d_8a57_1e03_ac9c_9eb7_6fac_45af_8e51,
            0x30c8_1c46_a35c_e411_e5fb_c119_1a0a_52ef,
            0xf69f_2445_df4f_9b17_ad2b_417b_e66c_3710,
        ]
        .iter()
        .flat_map(|block| block.to_be_bytes())
        .collect();
        let cases = [
            (0, 0xbb1d_6929_e959_3728_7fa3_7d12_9b75_6746),
            (16, 0x070a_16b4_6b4d_4144_f79b_dd9d_d04a_287c),
            (40, 0xdfa6_6747_de9a_e630_30ca_3261_1497_c827),
            (64, 0x51f0_bebf_7e3b_9d92_fc49_7417_7936_3cfe),
        ];
        for (bytes, tag) in cases {
            assert_every_cut(&mac, &message[..bytes], tag);
        }
    }

    /// The tag does not depend on where a message is cut into two parts.
    fn assert_every_cut(mac: &BlockMac, message: &[u8], tag: u128) {
        for cut in 0..=message.len() {
            let (one, other) = message.split_at(cut);
            assert_eq!(mac.tag([one, other]), tag.to_be_bytes(), "{} bytes cut at {cut}", message.len());
        }
    }
}
