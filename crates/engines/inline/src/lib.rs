//! Cryptography in the NIC: the engine and the port of a device that seals packets as they leave and opens
//! them as they come (paper 000: an Intel 82599).
//!
//! ```text
//!                 ┌───────────────── Nic: sessions, counts, a software engine ─────────────────┐
//!   job to seal ─► InlineEngine: writes zeros for the ICV, marks the packet        │            │
//!                                                                       InlinePort.tx ─► device seals, sends
//!   job opened  ◄─ InlineEngine: looks at the mark, believes it or checks it ◄─ InlinePort.rx ◄─ device opens
//! ```
//!
//! An engine and a port at once, which share a [`Nic`]. Whatever the device does not do, the engine refuses,
//! packet by packet, and the gateway's next engine does it: so nobody notices.
//!
//! **A marked packet never leaves in clear.** Between mark and device its session may go: the device is
//! reset, the SA moves. [`InlinePort`] looks at each marked packet before it gives it to the device, and has
//! software seal those without a session: in their place, so that their order stays, and under the number
//! that they have, under which nothing was sealed before. A session's record stays, with its key, for as long
//! as any packet bears its number.
//!
//! **What a device says is believed as far as it costs nothing to doubt.** A mark of another session, a
//! trailer that no sender writes, any mark in times of a reset or of a move: software then seals the packet
//! again under its number and compares the ICV, which the device leaves in the packet. Equal ICVs prove it
//! authentic, as GCM is deterministic. If they differ, the packet is taken for one that was not opened, and
//! goes to the next engine. So do packets that the device refused, where it leaves them unchanged; elsewhere,
//! software looks whether they are right after all. Of the rest, a share is checked in the same way, and of
//! what is sealed, too, where the device can show it. A device that differs is out of service.
//!
//! Threads: all belong to one worker; the lock is for the compiler, and nobody waits for it.

#![forbid(unsafe_code)]

mod check;
mod engine;
mod frames;
mod nic;
mod port;
mod sessions;
mod shape;
mod start;

pub use engine::InlineEngine;
pub use frames::InlineFrames;
pub use nic::{Checks, Nic};
pub use port::InlinePort;
