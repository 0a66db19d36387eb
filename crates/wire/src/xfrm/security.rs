//! Security contexts of LSMs such as SELinux.

use super::attribute::{Value, too_short};
use super::structure::{Structure, structure};
use crate::netlink::ack::Refusal;
use crate::netlink::errno::Errno;
use zeroize::Zeroizing;

structure! {
    /// The fixed part of [`SecurityContext`], whose lengths follow from the text.
    ContextFixed, 8, {
        /// Bytes of fixed part and text.
        total_bytes: u16 = 0,
        /// `XFRMA_SEC_CTX`, or 0: the kernel does not look.
        extension: u16 = 2,
        /// 1 is SELinux.
        algorithm: u8 = 4,
        /// Domain of interpretation; 1 is the LSM's.
        domain: u8 = 5,
        /// Bytes of the text.
        text_bytes: u16 = 6,
    }
}

/// `struct xfrm_user_sec_ctx`: a security context.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SecurityContext {
    /// `XFRMA_SEC_CTX`, or 0: the kernel does not look.
    pub extension: u16,
    /// 1 is SELinux.
    pub algorithm: u8,
    /// Domain of interpretation; 1 is the LSM's.
    pub domain: u8,
    /// The context, with or without a NUL at its end; at most 65,523 bytes.
    pub text: Vec<u8>,
}

impl Value for SecurityContext {
    fn read(bytes: &[u8]) -> Result<Self, Refusal> {
        let short = || too_short(bytes.len(), ContextFixed::BYTES);
        let fixed = ContextFixed::read_first(bytes).ok_or_else(short)?;
        let ContextFixed { total_bytes, extension, algorithm, domain, text_bytes } = fixed;
        let (total, end) = (usize::from(total_bytes), ContextFixed::BYTES + usize::from(text_bytes));
        let text = bytes.get(ContextFixed::BYTES..end).filter(|_| total == end).ok_or_else(|| {
            let text = format!(
                "the context says {total} bytes, {text_bytes} of them text; there are {}",
                bytes.len()
            );
            Refusal::new(Errno::INVAL, text)
        })?;
        Ok(Self { extension, algorithm, domain, text: text.to_vec() })
    }

    fn bytes(&self) -> Zeroizing<Vec<u8>> {
        let length = |bytes: usize| {
            u16::try_from(bytes).unwrap_or_else(|_| unreachable!("a context of {bytes} bytes"))
        };
        let fixed = ContextFixed {
            total_bytes: length(ContextFixed::BYTES + self.text.len()),
            extension: self.extension,
            algorithm: self.algorithm,
            domain: self.domain,
            text_bytes: length(self.text.len()),
        };
        Zeroizing::new([&fixed.to_bytes()[..], &self.text].concat())
    }
}
