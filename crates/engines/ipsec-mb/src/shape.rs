//! What lines of packets differ in that is worth a constant: how a packet is laid out, and the direction.
//!
//! Suites are many, but only four numbers of a suite decide where a packet's parts are ([`Job::parts`]), and
//! a few of their combinations occur. Each is a shape, and code is compiled for each shape; the algorithms
//! themselves are values of a line, which nothing looks at packet by packet.
//!
//! [`Job::parts`]: testudo_crypto::Job::parts

use testudo_crypto::{Cipher, Direction, Suite};

/// How a cipher lays out packets, and what it wants besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing is encrypted.
    Null,
    /// AES-CBC: the IV of 16 bytes is a block of its own.
    Cbc16,
    /// DES-CBC and 3DES-CBC: the same with 8 bytes.
    Cbc8,
    /// AES-CTR: an IV of 8 bytes, which is a part of the nonce.
    Ctr,
}

/// Lengths of an ICV in bytes; 0 is that of a cipher alone, which is only measured.
const ICVS: [usize; 5] = [12, 16, 24, 32, 0];

/// Number of shapes.
pub(crate) const SHAPES: usize = 2 * 4 * ICVS.len();

/// The shape of a suite's packets; `None` for a combined mode.
pub(crate) const fn shape(suite: Suite, direction: Direction) -> Option<usize> {
    let mode = match suite.cipher() {
        Cipher::Null => Mode::Null,
        Cipher::AesCbc(_) => Mode::Cbc16,
        Cipher::DesCbc | Cipher::TripleDesCbc => Mode::Cbc8,
        Cipher::AesCtr(_) => Mode::Ctr,
        _ => return None,
    };
    let mut icv = 0;
    while icv < ICVS.len() {
        if ICVS[icv] == suite.icv_bytes() {
            return Some(2 * (mode as usize * ICVS.len() + icv) + direction as usize);
        }
        icv += 1;
    }
    None
}

/// What is constant for the packets of a shape.
pub(crate) struct Shape<const SHAPE: usize>;

impl<const SHAPE: usize> Shape<SHAPE> {
    pub(crate) const DIRECTION: Direction =
        if SHAPE.is_multiple_of(2) { Direction::Seal } else { Direction::Open };

    pub(crate) const MODE: Mode = match SHAPE / 2 / ICVS.len() {
        0 => Mode::Null,
        1 => Mode::Cbc16,
        2 => Mode::Cbc8,
        _ => Mode::Ctr,
    };

    pub(crate) const ICV_BYTES: usize = ICVS[SHAPE / 2 % ICVS.len()];

    /// Any suite whose packets have this shape: a test shows that they are all laid out alike. Where there is
    /// none, this is never used.
    pub(crate) const SUITE: Suite = {
        let (mut found, mut at) = (Suite::NULL_SHA1, 0);
        while at < Suite::ALL.len() {
            if let Some(shape) = shape(Suite::ALL[at], Self::DIRECTION)
                && shape == SHAPE
            {
                found = Suite::ALL[at];
            }
            at += 1;
        }
        at = 0;
        while at < Cipher::ALL.len() {
            if let Some(suite) = Suite::cipher_only(Cipher::ALL[at])
                && let Some(shape) = shape(suite, Self::DIRECTION)
                && shape == SHAPE
            {
                found = suite;
            }
            at += 1;
        }
        found
    };
}

/// Calls a method with a shape as its constant.
macro_rules! for_shape {
    ($shape:expr, $object:ident.$method:ident $arguments:tt) => {
        $crate::shape::for_shape!(@ $shape, $object.$method $arguments,
            0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35
            36 37 38)
    };
    (@ $shape:expr, $object:ident.$method:ident $arguments:tt, $($number:literal)*) => {
        match $shape {
            $($number => $object.$method::<$number> $arguments,)*
            _ => $object.$method::<39> $arguments,
        }
    };
}
pub(crate) use for_shape;
const _: () = assert!(SHAPES == 40);

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`Job::parts`](testudo_crypto::Job::parts) knows of a suite.
    fn layout(suite: Suite) -> (usize, usize, usize, bool) {
        (suite.iv_bytes(), suite.icv_bytes(), suite.block_bytes(), suite.encrypts())
    }

    struct Constants;

    impl Constants {
        fn of<const SHAPE: usize>(self) -> (Suite, Direction, usize) {
            (Shape::<SHAPE>::SUITE, Shape::<SHAPE>::DIRECTION, Shape::<SHAPE>::ICV_BYTES)
        }
    }

    #[test]
    fn all_suites_of_a_shape_lay_out_packets_alike() {
        let mut seen = 0;
        for suite in Suite::measurable() {
            for direction in [Direction::Seal, Direction::Open] {
                let Some(shape) = shape(suite, direction) else { continue };
                let constants = Constants;
                let (sample, its_direction, icv_bytes) = for_shape!(shape, constants.of());
                assert_eq!((layout(sample), its_direction), (layout(suite), direction), "{suite}");
                assert_eq!(icv_bytes, suite.icv_bytes(), "{suite}");
                seen += 1;
            }
        }
        assert_eq!(seen, 2 * (9 * 7 + 8));
    }
}
