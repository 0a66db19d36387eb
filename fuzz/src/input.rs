//! Reading decisions out of a fuzzer's bytes.

/// Bytes that are consumed in order; missing ones read as zero.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub fn word(&mut self) -> u16 {
        u16::from(self.byte()) << 8 | u16::from(self.byte())
    }

    /// Up to `n` bytes.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A run of bytes, preceded by its length.
    pub fn run(&mut self) -> &'a [u8] {
        let length = usize::from(self.word());
        self.take(length)
    }
}
