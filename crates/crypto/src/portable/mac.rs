//! The integrity algorithms of pairs, each under its key: HMAC by AWS-LC, with MD5 by RustCrypto, and the
//! MACs that are made of AES.

use super::block_mac::BlockMac;
use crate::Integrity;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use hmac::Algorithm;
use md5::Md5;

/// What is authenticated: a run of the packet, and the high half of an extended sequence number after it,
/// which is not sent (RFC 4303 2.2.1, RFC 4302 2.5.1); empty without ESN.
pub(super) type Message<'a> = [&'a [u8]; 2];

/// An integrity algorithm and its key. All of them zero it when they are dropped.
#[allow(clippy::large_enum_variant, reason = "each is in a box with its cipher's key, and most are HMAC")]
pub(super) enum MacKey {
    /// HMAC with SHA-1 or SHA-2 (RFC 2404, RFC 4868).
    Hmac(hmac::Key),
    /// HMAC with MD5 (RFC 2403), which AWS-LC's binding lacks.
    HmacMd5(HmacMd5),
    /// AES-XCBC (RFC 3566) or AES-CMAC (RFC 4494).
    Block(BlockMac),
    /// Nothing is authenticated: for measurements alone.
    None,
}

type HmacMd5 = ::hmac::Hmac<Md5>;

impl MacKey {
    /// `None` if the key's length is wrong, or for a combined mode, which has no such algorithm.
    pub(super) fn new(integrity: Integrity, key: &[u8]) -> Option<Self> {
        let hmac = |algorithm: Algorithm| Some(Self::Hmac(hmac::Key::new(algorithm, key)));
        match integrity {
            Integrity::HmacMd5 => <HmacMd5 as ::hmac::KeyInit>::new_from_slice(key).ok().map(Self::HmacMd5),
            Integrity::HmacSha1 => hmac(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY),
            Integrity::HmacSha256 => hmac(hmac::HMAC_SHA256),
            Integrity::HmacSha384 => hmac(hmac::HMAC_SHA384),
            Integrity::HmacSha512 => hmac(hmac::HMAC_SHA512),
            Integrity::AesXcbc => BlockMac::xcbc(key).map(Self::Block),
            Integrity::AesCmac => BlockMac::cmac(key).map(Self::Block),
            Integrity::None => Some(Self::None),
            Integrity::Combined => None,
        }
    }

    /// Writes the first bytes of the digest, as many as the ICV has (RFC 2404 2, RFC 4868 2.6). No suite's
    /// ICV is longer than its digest.
    pub(super) fn write(&self, message: Message<'_>, icv: &mut [u8]) {
        self.with_digest(message, |digest| icv.iter_mut().zip(digest).for_each(|(to, from)| *to = *from));
    }

    /// Whether the ICV is right, in constant time.
    pub(super) fn is_right(&self, message: Message<'_>, icv: &[u8]) -> bool {
        self.with_digest(message, |digest| {
            digest.get(..icv.len()).is_some_and(|first| verify_slices_are_equal(first, icv).is_ok())
        })
    }

    fn with_digest<R>(&self, message: Message<'_>, use_it: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::Hmac(key) => {
                let mut context = hmac::Context::with_key(key);
                message.into_iter().for_each(|part| context.update(part));
                use_it(context.sign().as_ref())
            }
            Self::HmacMd5(key) => {
                let mut context = key.clone();
                message.into_iter().for_each(|part| ::hmac::Mac::update(&mut context, part));
                use_it(&::hmac::Mac::finalize(context).into_bytes())
            }
            Self::Block(mac) => use_it(&mac.tag(message)),
            Self::None => use_it(&[]),
        }
    }
}
