//! Host tuning: what a Linux host should be set to for a gateway's traffic, applied and taken back.
//!
//! ```text
//!   options ─► plan ─► settings ─┬─► check: what is, beside what is wanted
//!      (what this machine and    │
//!       this interface have)     ├─► apply: journal, then write, then read back
//!                                │             │
//!                                └─► undo ◄────┘  in reverse order, from the journal alone
//! ```
//!
//! A [`Setting`](setting::Setting) is one value of the kernel: where it is ([`Place`](place::Place)), what it
//! should be, and why. [`plan`](plan::plan) lists those of an interface and of the machine below it. What the
//! device has not, or has fixed, stays in the report with the reason.
//!
//! **The journal comes first.** Before a value changes, its original is on disk ([`journal`], [`folder`]), so
//! that after a kill at any moment [`undo`](mod@undo) brings back everything. A second apply keeps the first
//! originals. A write that the kernel refuses, or makes something else of, is put back at once and named.
//!
//! **What interfaces share** is in the journal of each interface that wants it, always with the original of
//! the first. Undo leaves it alone as long as another journal has it: the last one brings it back. Kernel
//! variables of the network are a namespace's, and journals of a namespace are in a folder of its own;
//! governors, huge pages and interrupts are the machine's, and their journals are in one folder for all
//! namespaces ([`journal::Stores`]).
//!
//! **What the kernel changes along** with a setting is kept before it, too, such as the MTU of a VLAN and
//! that of IPv6. An MTU that would take IPv6 away from an interface is refused: addresses and routes would
//! not come back.
//!
//! **A reboot** takes back everything by itself: a journal says of which boot it is, and one of an earlier
//! boot is not believed. [`persist`] has systemd apply again.
//!
//! **Whether it helped** is measured by streams before and after, which say so only beyond their spread
//! ([`measure`](mod@measure)).
//!
//! The settings are those of Iatrou, Voyiatzis, Serpanos: Network stack optimization for improved IPsec
//! performance on Linux (SECRYPT 2009), section 5: socket buffers and TCP options, interrupt coalescing,
//! NAPI, MTU; and those that hosts have got since.
//!
//! Deliberately missing: whatever needs another kernel command line, or a partition of the host's control
//! groups, which are somebody else's. That is advice in the report.

#![forbid(unsafe_code)]

pub mod apply;
pub mod believed;
pub mod check;
mod companions;
pub mod ended;
pub mod error;
pub mod ethtool;
pub mod folder;
mod heirs;
pub mod host;
pub mod journal;
pub mod measure;
pub mod persist;
pub mod place;
pub mod plan;
pub mod processors;
pub mod report;
pub mod setting;
pub mod undo;
mod watched;

#[cfg(test)]
mod tests;
