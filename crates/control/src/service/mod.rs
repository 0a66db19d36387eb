//! The control plane of a running gateway: everything between a configuration and a worker.
//!
//! ```text
//!   Configuration ──► assemble ──► InstalledTunnels ──► Update ──► worker          (start, SIGHUP)
//!   Store ──► leases (granted by a supplier's thread) ──► Lease           (when an SA asks)
//!   worker ──► windows and usages (saved while they change, and at the end) ──► Store
//!   control socket ──► sa_control ──► changes of SAs ──► worker                     (at run time)
//!   control socket, metrics, dashboard ──► reports ──► InstalledTunnels, counters   (read only)
//! ```
//!
//! The program passes in ports, engines and the host's routing table. All of this runs on control threads;
//! they communicate with the worker only through commands, leases and counters.

mod any_tunnel;
pub mod api;
pub mod assemble;
mod audit_log;
mod balance;
mod bodies;
mod checked_sas;
mod clients;
pub mod daemon;
pub mod dashboard;
mod ending;
mod ephemeral_keys;
mod event_log;
pub mod explanation;
mod fault;
mod gathering;
mod groups;
mod http;
pub mod installed;
mod instance;
mod interfaces;
mod key_export;
mod last_states;
pub mod leases;
pub mod metrics;
pub mod negotiated;
pub mod negotiation;
mod news;
mod offload;
mod overlaps;
mod path_mtu;
mod peer;
pub mod policies;
pub mod policy_book;
pub mod populated;
mod populating;
pub mod port_details;
pub mod privileges;
mod reload_checks;
pub mod report;
pub mod sa_control;
mod sa_index;
mod sa_request;
pub mod sas;
mod saver;
mod seed;
mod shares;
pub mod signals;
mod supplier;
pub mod system_calls;
pub mod threads;
mod timed;
mod tunnel_indices;
pub mod usages;
mod vpe_windows;
mod wanted;
mod watchdog;
mod windows;
mod wiped_json;
pub mod worker_count;
mod worker_sas;
pub mod worker_threads;
mod worker_time;
pub mod xfrm;
