//! What is where: the work, and the threads.

use std::fmt;

use testudo_crypto::Suite;

/// What of the work is not the worker's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Placement {
    /// Nothing: the worker does all
    None,
    /// Receiving, checking, filtering and transmitting, on threads of their own
    Io,
    /// Cryptography, on threads of their own or in a device
    Crypto,
    /// Both
    Both,
}

impl Placement {
    /// All of them, in the order of reports.
    pub const ALL: [Placement; 4] = [Self::None, Self::Io, Self::Crypto, Self::Both];

    /// Name on the command line, in tables and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Io => "io",
            Self::Crypto => "crypto",
            Self::Both => "both",
        }
    }

    pub(super) fn has_io(self) -> bool {
        matches!(self, Self::Io | Self::Both)
    }

    pub(super) fn has_crypto(self) -> bool {
        matches!(self, Self::Crypto | Self::Both)
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who does the cryptography.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Crypto {
    /// The worker.
    Worker,
    /// So many threads for each gateway, and the worker as far as they have no room: the engine `cores`.
    Threads(usize),
    /// The engine of this name.
    Device(String),
}

/// Which processors threads are bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Threads {
    pub(super) worker: usize,
    pub(super) generator: usize,
    pub(super) io: Vec<usize>,
    pub(super) cryptography: Vec<usize>,
    /// They are more than there are processors.
    pub(super) are_shared: bool,
}

impl Threads {
    /// The generator has the first of these processors, the worker the last, and others what is between, in
    /// turn; where nothing is, they share all.
    pub(super) fn on(processors: &[usize], io: usize, cryptography: usize) -> Self {
        let generator = processors.first().copied().unwrap_or(0);
        let worker = processors.last().copied().unwrap_or(0);
        let between = processors.get(1..processors.len().saturating_sub(1)).unwrap_or_default();
        let others = if between.is_empty() { processors } else { between };
        let mut in_turn = others.iter().copied().cycle();
        let are_shared = 2 + io + cryptography > processors.len();
        let mut some = |count| in_turn.by_ref().take(count).collect();
        Self { worker, generator, io: some(io), cryptography: some(cryptography), are_shared }
    }
}

/// Gateways to build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setup {
    /// The suite of the tunnels; `None` for a gateway that forwards packets as they are.
    pub(super) suite: Option<Suite>,
    pub(super) placement: Placement,
    pub(super) crypto: Crypto,
    pub(super) threads: Threads,
    pub(super) sas: u32,
    pub(super) flows: u32,
    pub(super) seed: u64,
    /// Of the path between the gateways.
    pub(super) mtu: u16,
}

impl Setup {
    /// How many gateways a packet passes: to come back as it was it is sealed and opened.
    pub(super) fn gateways(&self) -> usize {
        if self.suite.is_some() { 2 } else { 1 }
    }

    /// Threads that do cryptography, of all gateways.
    pub(super) fn crypto_threads(&self) -> usize {
        match self.crypto {
            Crypto::Threads(count) => count * self.gateways(),
            Crypto::Worker | Crypto::Device(_) => 0,
        }
    }

    /// The name of the suite, or what is done without one.
    pub(super) fn suite_name(&self) -> String {
        self.suite.map_or_else(|| BYPASS.to_owned(), |suite| suite.to_string())
    }
}

/// In place of a suite: packets are forwarded as they are.
pub(super) const BYPASS: &str = "bypass";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_processors_of_their_own_as_long_as_there_are_some() {
        let on = |processors: &[usize], io, cryptography| Threads::on(processors, io, cryptography);
        let four = on(&[2, 3, 5, 7], 1, 1);
        assert_eq!((four.generator, four.worker, four.are_shared), (2, 7, false));
        assert_eq!((four.io, four.cryptography), (vec![3], vec![5]));
        let more = on(&[2, 3, 5, 7], 2, 2);
        assert_eq!((more.io, more.cryptography, more.are_shared), (vec![3, 5], vec![3, 5], true));
        let two = on(&[0, 1], 1, 1);
        assert_eq!((two.io, two.cryptography, two.are_shared), (vec![0], vec![1], true));
        assert!(!on(&[0, 1], 0, 0).are_shared && on(&[0], 0, 0).are_shared);
        let none = on(&[], 1, 0);
        assert_eq!((none.io, none.worker, none.are_shared), (Vec::new(), 0, true));
    }
}
