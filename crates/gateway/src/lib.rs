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
//! A gateway has one worker, run to completion, or several that do the same side by side: each with its
//! queues of the ports, its pool, its tables and its engines. The [`Commander`] gives all of them the same
//! commands in one order, so that their tables are alike, and makes one answer of theirs. What several
//! workers do for one SA, they share by what hangs from their tables: the number source and the replay
//! window.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "test data is made of small numbers"))]

mod all_counters;
mod balance;
mod books;
mod change;
mod clock;
mod command;
mod commander;
mod counters;
mod dispatcher;
mod dummies;
mod engines;
mod formation;
mod in_flight;
mod in_order;
mod install;
mod interface_counters;
mod interfaces;
mod lanes;
mod meter;
mod offload;
mod outlet;
mod placement;
mod prepared_jobs;
mod replica;
mod rings;
mod role;
mod room;
mod sa_change;
mod sa_counts;
mod sa_rounds;
mod scheduler;
mod serve;
mod speed;
mod threading;
mod transmit;
mod waits;
mod windows_page;
mod withdrawn;
mod worker;

pub use all_counters::AllCounters;
pub use balance::Imbalance;
pub use books::Books;
pub use change::Change;
pub use clock::{Clock, ManualClock, SystemClock};
pub use command::{
    Command, InboundInstall, Installed, OutboundInstall, SharedInbound, TunnelInstall, Update, UpdateError,
    UpdateOutcome,
};
pub use commander::{Commander, CommanderError, Inbox, MAX_SA_CHANGES};
pub use counters::{PortSnapshot, WorkerCounters};
pub use dispatcher::EngineCosts;
pub use engines::{
    Candidate, Choice, EngineOrder, EngineReport, NoEngine, Opener, choose_engines, same_engines,
};
pub use formation::Formation;
pub use interface_counters::InterfaceSnapshot;
pub use interfaces::Interfaces;
pub use meter::{ChosenThreads, MeterParts};
pub use offload::{OffloadFailure, OffloadMode};
pub use placement::{KeyPreparers, MAX_ENGINES, PlacedKey, PlacementError};
pub use role::Role;
pub use sa_change::{SaChange, SaChangeError, SaChanged, SaOutcome, UseFrom};
pub use sa_counts::{PlacedSa, SaCounts};
pub use sa_rounds::SaRounds;
pub use scheduler::{
    CHUNKS, Ideas, LENGTHS, LateJobs, PlacementMode, Reason, Scheduled, SchedulerSettings, SettingsError,
    Share, Shares, ThreadRates,
};
pub use serve::{Notice, ServeError, serve};
pub use threading::ThreadingModel;
pub use transmit::{TRANSMIT_THREAD, transmit_apart, transmit_by_choice};
pub use withdrawn::{Withdrawal, WithdrawalReason};
pub use worker::{PortPair, Worker};
