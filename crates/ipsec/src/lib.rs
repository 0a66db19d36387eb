//! IPsec itself: policies, security associations, sequence numbers, replay windows, lifetimes, ESP in tunnel
//! mode.
//!
//! ```text
//!   outbound:  batch ─► parse ─► SPD ─► number, headers, trailer ─► Job ─► (engine) ─► finish_outbound ─► Sealed
//!   inbound:   batch ─► parse ─► SAD ─► replay check ─────────────► Job ─► (engine) ─► finish_inbound
//!                                                                             │ ICV verdict, replay commit, padding,
//!                                                                             ▼ inner packet against selectors
//!                                                                          Cleared
//! ```
//!
//! An [`Ipsec`] is the state of one worker. It owns its tunnels and SAs outright: nothing in it is shared but
//! the [`Lease`], through which a control thread grants sequence numbers, and [`SaCounters`], which other
//! threads may read. Clocks, engines, ports and randomness are handed in, so that a pair of gateways runs in
//! one process from a seed.
//!
//! RFC 4301 (architecture), RFC 4303 (ESP), RFC 4302 (AH), RFC 4106, RFC 7634, RFC 3602, RFC 2404, RFC 4868
//! and RFC 2410 (suites), RFC 3948 (UDP encapsulation), RFC 6040 (ECN), RFC 1191 and 8201 (path MTU).
//!
//! Outer fragments are put together before all that, where a port delivers them: [`fragments`].
//!
//! [Vector Packet Encapsulation](VpeRules) is `docs/VPE.md`'s.
//!
//! Deliberately missing: key exchange.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::cast_possible_truncation, reason = "test data is made of small numbers"))]

mod acquire;
mod addresses;
mod age;
mod audit;
mod bundle;
mod chains;
mod clocked;
mod counters;
mod demand;
mod dummies;
mod ecn;
mod encap;
mod event;
pub mod fragments;
mod frames;
mod gradual_map;
mod group;
mod hearsay;
mod held;
mod in_order;
mod inbound;
mod inbound_vpe;
mod keepalive;
mod last_windows;
mod lifetime;
mod mss_clamp;
mod mtu_probe;
mod numbers;
mod offload;
mod opened;
mod opened_vpe;
mod outbound;
mod outbound_chains;
mod outcome;
mod own_acquire;
mod own_numbers;
mod packet_rules;
mod parsed;
mod path_mtu;
mod peer_heard;
mod reply_budget;
mod resync;
mod roaming;
mod runs;
mod sa;
mod sender_counts;
mod shared_use;
mod sharing;
mod slots;
mod slow_path;
mod spd;
mod spi_table;
mod sync;
mod tables;
mod tunnel;
mod udp_ports;
mod vpe;
mod wait_room;

pub use acquire::{ACQUIRES_PER_SECOND, Acquire};
pub use audit::{AUDITED, AuditRecord, AuditedSelectors, RECORDS_PER_SECOND};
pub use bundle::{AddedSa, InstallError, RemovedTunnel};
pub use clocked::{LEAST_ROOM as LEAST_CLOCK_ROOM, MOST_AT_ONCE as MOST_TICKS_AT_ONCE};
pub use counters::{SaCounters, SaState};
pub use demand::{Demand, FIRST_BLOCK};
pub use encap::template::Dscp;
pub use encap::{IpsecProtocol, Mode, Shape};
pub use event::{Event, EventKind};
pub use held::{HOLD, MAX_HELD};
pub use last_windows::LastWindows;
pub use lifetime::{Lifetime, LifetimeState, LifetimeUse, Limits, Moment, Spent};
pub use mtu_probe::MtuProbe;
pub use numbers::{
    Block, DEFAULT_PEER_WINDOW, GatedNumbers, Lease, MAX_SHARERS, MAX_WINDOW, MIN_WINDOW, NumberSource,
    ORDER_SPAN, PATIENCE, ReleaseCost, ReleaseRing, Reordered, Reordering, ReplayError, ReplayWindow,
    Reserver, RingMember, STALLED, SequenceError, SequenceNumbers, SharedNumbers, SharedWindow, WINDOW_STEP,
    Waker,
};
pub use outcome::{Bypassed, Cleared, Forward, Originated, Prepared, Protected, Sealed, Unprotected};
pub use own_acquire::ASK_AGAIN as ASK_AGAIN_FOR_OWN;
pub use own_numbers::OwnNumbers;
pub use packet_rules::{Df, FlowLabel, MssClamp, PacketRules};
pub use path_mtu::{LearnedFrom, LearnedMtu};
pub use peer_heard::PeerHeard;
pub use sa::{MAX_SAS_OF_WORKER, MAX_TUNNEL_SAS};
pub use sender_counts::{HeardSender, HeardSenders, SHOWN_SENDERS, SenderCounts};
pub use slots::SaRef;
pub use spd::{
    Action, AddressRange, BadPrefix, BadRange, Direction, Directions, Flow, LookupCost, MAX_FLOW_PIECES,
    MAX_PIECES, MAX_POLICIES, Mismatch, OfInterface, PacketValues, Policy, PolicyChange, PolicyId,
    PopulateFlags, PortRange, Position, Prefix, Protocol, SaSelectors, Selector, Spd, SpdError, TunnelIndex,
    Verdict,
};
pub use tables::Ipsec;
pub use tunnel::{
    Encapsulation, Endpoints, Fragmentation, InboundParameters, OutboundParameters, SaParameters, SaWorker,
    TunnelParameters,
};
pub use vpe::{
    MAX_WINDOWS_SEEN, SharedWindows, TooManyWindows, VpeClasses, VpeRules, VpeSourcePorts, WINDOWS_AT_A_TIME,
    WindowTop, WindowsFrom, WindowsPage, WindowsSeen, closed_windows,
};
