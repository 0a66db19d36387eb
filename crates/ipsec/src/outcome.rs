//! Packets that leave the protocol, as types that only a packet that is allowed to can have.

use crate::sharing::Waiting;
use testudo_crypto::Job;
use testudo_packet::Buffer;

/// The protected side, as a type: where [`Forward`] says that a packet may go.
#[derive(Debug, Clone, Copy)]
pub struct Protected;

/// The unprotected side, as a type.
#[derive(Debug, Clone, Copy)]
pub struct Unprotected;

mod sealed {
    pub trait Packet {}
}

/// A packet that may leave by a side. Only the types of this file implement it, and forwarding accepts
/// nothing else, so that neither plaintext that has not passed every check nor a bare buffer can be sent.
///
/// ```compile_fail,E0277
/// fn send(_: impl testudo_ipsec::Forward<testudo_ipsec::Protected>) {}
/// send(testudo_packet::Buffer::default());
/// ```
pub trait Forward<Side>: sealed::Packet {
    /// The packet's bytes, to be sent by that side.
    fn into_buffer(self) -> Buffer;
}

macro_rules! packets {
    ($($(#[$doc:meta])* $name:ident => $($side:ident),+;)+) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Buffer);

        impl $name {
            #[inline(always)]
            pub(crate) fn new(buffer: Buffer) -> Self {
                Self(buffer)
            }
        }

        impl sealed::Packet for $name {}

        $(impl Forward<$side> for $name {
            #[inline(always)]
            fn into_buffer(self) -> Buffer {
                self.0
            }
        })+
    )+};
}

packets! {
    /// A datagram that an engine has sealed.
    Sealed => Unprotected;
    /// A decrypted packet that has passed its ICV, replay, padding and selector checks.
    Cleared => Protected;
    /// A packet that policy lets pass in clear.
    Bypassed => Protected, Unprotected;
    /// A packet of our own: a message to the sender of another, or a NAT keepalive.
    Originated => Protected, Unprotected;
}

/// The result of preparing a batch.
#[derive(Debug, Default)]
pub struct Prepared {
    /// For the engines, in order, each with its SA ([`Prepared::sa_of`]).
    pub jobs: Vec<Job>,
    /// Packets that policy lets pass in clear, to the other side.
    pub pass: Vec<Bypassed>,
    /// Messages back to the side that the batch came from.
    pub replies: Vec<Originated>,
    /// Packets that wait for sequence numbers which other workers have in flight.
    pub(crate) waiting: Vec<Waiting>,
}

impl Prepared {
    /// The SA of a job.
    #[must_use]
    pub fn sa_of(job: &Job) -> crate::SaRef {
        crate::SaRef::from_bits(job.sa)
    }
}
