//! SAs and policies as they are kept: what a client has said of one, as a message, packed.
//!
//! The kernel's structures are mostly zeros, and ones where there is no limit: a message of 336 bytes about
//! an SA packs into 99. The method is PackBits (Apple, TIFF 6.0 section 9): a byte that says how many bytes
//! follow as they are, or how often the next one repeats. A message is unpacked when somebody asks for it.

use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::{Header, messages};
use testudo_wire::xfrm::message::Message;
use zeroize::Zeroizing;

/// Codes from here on are of runs.
const RUN: u8 = 0x80;
/// A shorter one is no shorter packed.
const SHORTEST_RUN: usize = 3;
const LONGEST_RUN: usize = SHORTEST_RUN + 0x7F;
const MOST_LITERALS: usize = 0x80;

/// A message, packed. Wiped when it is dropped: those about SAs have keys.
#[derive(Clone)]
pub(super) struct Packed(Zeroizing<Box<[u8]>>);

/// Says how long it is, never what is in it, which may be keys.
impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Packed into {} bytes", self.0.len())
    }
}

impl Packed {
    /// Packs a message.
    pub(super) fn of(message: &Message) -> Self {
        let mut datagram = Datagram::new();
        message.write(Header::default(), &mut datagram);
        Self(pack(datagram.as_bytes()))
    }

    /// The message.
    pub(super) fn message(&self) -> Message {
        let bytes = unpack(&self.0);
        let message = messages(&bytes).next().and_then(Result::ok);
        let read = message.and_then(|message| Message::read(&message).ok());
        read.unwrap_or_else(|| unreachable!("a message that was packed is read again"))
    }
}

/// Bytes as they are, or one byte and how often it comes.
enum Part<'a> {
    Literals(&'a [u8]),
    Run(u8, usize),
}

/// The next part of `bytes`, which are not empty, and its length.
fn next_part(bytes: &[u8], first: u8) -> (Part<'_>, usize) {
    let run = bytes.iter().take(LONGEST_RUN).take_while(|byte| **byte == first).count();
    if run >= SHORTEST_RUN {
        return (Part::Run(first, run), run);
    }
    let is_run = |bytes: &[u8]| bytes.iter().all(|byte| Some(byte) == bytes.first());
    let until_run = bytes.windows(SHORTEST_RUN).position(is_run).unwrap_or(bytes.len());
    let literals = &bytes[..until_run.min(MOST_LITERALS)];
    (Part::Literals(literals), literals.len())
}

fn code(count: usize) -> u8 {
    u8::try_from(count).unwrap_or_else(|_| unreachable!("a part of {count} bytes"))
}

fn pack(bytes: &[u8]) -> Zeroizing<Box<[u8]>> {
    // Room for the longest outcome: a vector that grows leaves copies of keys behind.
    let most = bytes.len() + bytes.len().div_ceil(MOST_LITERALS);
    let mut packed = Zeroizing::new(Vec::with_capacity(most));
    let mut rest = bytes;
    while let Some(first) = rest.first() {
        let (part, length) = next_part(rest, *first);
        match part {
            Part::Literals(literals) => {
                packed.push(code(literals.len() - 1));
                packed.extend_from_slice(literals);
            }
            Part::Run(byte, count) => packed.extend([RUN | code(count - SHORTEST_RUN), byte]),
        }
        rest = &rest[length..];
    }
    assert!(packed.len() <= most, "{} bytes packed into {}", bytes.len(), packed.len());
    Zeroizing::new(packed.as_slice().into())
}

/// The parts of what is packed.
fn parts(packed: &[u8]) -> impl Iterator<Item = Part<'_>> {
    let mut rest = packed;
    std::iter::from_fn(move || {
        let (code, after) = rest.split_first()?;
        let count = usize::from(code & !RUN);
        let (part, after) = if code & RUN == 0 {
            let (literals, after) = after.split_at_checked(count + 1)?;
            (Part::Literals(literals), after)
        } else {
            let (byte, after) = after.split_first()?;
            (Part::Run(*byte, SHORTEST_RUN + count), after)
        };
        rest = after;
        Some(part)
    })
}

fn unpack(packed: &[u8]) -> Zeroizing<Vec<u8>> {
    let length = |part: Part<'_>| match part {
        Part::Literals(literals) => literals.len(),
        Part::Run(_, count) => count,
    };
    let mut bytes = Zeroizing::new(Vec::with_capacity(parts(packed).map(length).sum()));
    for part in parts(packed) {
        match part {
            Part::Literals(literals) => bytes.extend_from_slice(literals),
            Part::Run(byte, count) => bytes.extend(std::iter::repeat_n(byte, count)),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Runs of all lengths beside bytes of which few repeat.
        #[test]
        fn what_is_packed_comes_back(
            runs in prop::collection::vec((any::<u8>(), prop_oneof![1..5usize, 120..270usize]), 0..20),
            noise in prop::collection::vec(0..3u8, 0..400),
        ) {
            let runs = runs.into_iter().flat_map(|(byte, count)| std::iter::repeat_n(byte, count));
            let bytes: Vec<u8> = runs.chain(noise).collect();
            let packed = pack(&bytes);
            prop_assert!(packed.len() <= bytes.len() + bytes.len().div_ceil(MOST_LITERALS));
            prop_assert_eq!(&*unpack(&packed), &bytes);
        }
    }

    #[test]
    fn bytes_that_repeat_take_two_for_130() {
        assert_eq!(&**pack(&[0; 260]), [0xFF, 0, 0xFF, 0]);
        assert_eq!(&**pack(&[7, 7, 8, 8, 8]), [1, 7, 7, 0x80, 8]);
        assert_eq!(pack(&std::array::from_fn::<u8, 129, _>(code)).len(), 129 + 2);
        assert!(pack(&[]).is_empty());
    }

    #[test]
    fn a_packed_message_does_not_show_its_key() {
        let bytes = Packed(pack(b"secret key"));
        assert_eq!(format!("{bytes:?}"), "Packed into 11 bytes");
    }
}
