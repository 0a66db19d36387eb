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
//! **What interfaces share** (kernel variables, governors, huge pages) is in the journal of each interface
//! that wants it, always with the original of the first. Undo leaves it alone as long as another journal has
//! it.
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
//! Deliberately missing: whatever needs another kernel command line. That is advice in the report.

#![forbid(unsafe_code)]

pub mod apply;
pub mod check;
pub mod error;
pub mod ethtool;
pub mod folder;
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

#[cfg(test)]
mod tests;
