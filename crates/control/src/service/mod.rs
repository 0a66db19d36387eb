//! The control plane of a running gateway: what stands between a configuration and a worker.
//!
//! ```text
//!   Configuration ──► assemble ──► InstalledTunnels ──► Update ──► worker          (start, SIGHUP)
//!   Store ──► leases (granted by a supplier's thread) ──► Lease           (when an SA asks)
//!   worker ──► windows and usages (saved while they change, and at the end) ──► Store
//!   control socket, metrics ──► reports ──► InstalledTunnels, counters              (read only)
//! ```
//!
//! Ports, engines and the host's routing table are handed in by the program. All of this runs on control
//! threads; it meets the worker only through commands, leases and counters.

pub mod api;
pub mod assemble;
mod clients;
pub mod daemon;
mod event_log;
mod fault;
mod http;
pub mod installed;
pub mod leases;
pub mod metrics;
mod peer;
pub mod privileges;
pub mod report;
mod saver;
mod supplier;
pub mod system_calls;
mod timed;
pub mod usages;
mod watchdog;
mod windows;
mod worker_time;
