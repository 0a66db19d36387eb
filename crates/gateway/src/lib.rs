//! Workers: what moves packets between ports, protocol and engines.
//!
//! ```text
//!                 ┌──────────────────────── Worker ────────────────────────┐
//!  protected ──rx─► Ipsec::outbound ─► Dispatcher ─► finish_outbound ─► tx ─► unprotected
//!       port ◄─tx── finish_inbound ◄── Dispatcher ◄── Ipsec::inbound ◄─rx── port
//!                 └──────────────┬──────────▲──────────────────────────────┘
//!                                ▼ submit   │ poll
//!                       engine 0 → engine 1 → … → portable
//! ```
//!
//! A [`Worker`] owns its ports, its pool, its protocol state and its engines. [`Worker::turn`] does what
//! there is to do and never waits, so that a simulation can drive it with its own clock. [`serve`] is the
//! loop around it in a running gateway: it waits for file descriptors and takes [`Command`]s from the control
//! plane between turns. [`WorkerCounters`] is what other threads may read.
//!
//! Threads: one worker, run to completion. Not implemented: several workers, pipelines. Both are meant to
//! reuse `Worker`.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "test data is made of small numbers"))]

mod books;
mod change;
mod clock;
mod command;
mod counters;
mod dispatcher;
mod engines;
mod formation;
mod in_flight;
mod interface_counters;
mod interfaces;
mod lanes;
mod offload;
mod outlet;
mod placement;
mod rings;
mod sa_change;
mod serve;
mod speed;
mod worker;

pub use books::Books;
pub use change::Change;
pub use clock::{Clock, ManualClock, SystemClock};
pub use command::{
    Command, Commander, CommanderError, InboundInstall, Inbox, Installed, MAX_SA_CHANGES, OutboundInstall,
    TunnelInstall, Update, UpdateError, UpdateOutcome,
};
pub use counters::{PortSnapshot, WorkerCounters};
pub use dispatcher::Withdrawal;
pub use engines::{Candidate, Choice, EngineOrder, EngineReport, NoEngine, Opener, choose_engines};
pub use formation::Formation;
pub use interface_counters::InterfaceSnapshot;
pub use interfaces::Interfaces;
pub use offload::{OffloadFailure, OffloadMode};
pub use placement::{KeyPreparers, MAX_ENGINES, PlacedKey, PlacementError};
pub use sa_change::{SaChange, SaChangeError, SaChanged, SaOutcome, UseFrom};
pub use serve::{Notice, ServeError, serve};
pub use worker::{PortPair, Worker};
