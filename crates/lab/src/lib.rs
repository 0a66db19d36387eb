//! Traffic, measurement, reports: real packets through real gateways, in networks built for the purpose.
//!
//! ```text
//!   namespaces   private hosts and links, without privileges
//!   network      two sites, two gateways, a link
//!   workspace    the folder of configurations, keys and logs, gone when the last process is
//!   traffic      TCP streams, ping, UDP echo: what users send
//!   capture      what an eavesdropper on the link sees, and its verdict
//!   attack       what an attacker on the link sends
//!   gateway      a process of the program: start, status, stop
//!   charon       strongSwan's daemon beside it: start, negotiate, stop
//!   demo         `testudo demo`: all of that, once, with a verdict
//!   generator    packets at an offered rate, with their time of sending in them, and what became of them
//!   harness      the methods of RFC 2544, over any device
//!   meters       meters of energy that this machine has
//!   stolen       whether a hypervisor had processors of this machine
//!   tandem       the device of `testudo lab`: two gateways in memory
//!   rfc2544      `testudo lab rfc2544`: throughput, latency, loss and bursts of that device
//!   overload     `testudo lab overload`: what it does with up to four times what it can
//!   efficiency   `testudo lab efficiency`: what rates cost it in processor time and energy
//!   tcp          `testudo lab tcp`: TCP streams over message sizes, plain and protected, in private networks
//!   placements   `testudo lab placements`: offloads compared, and where a packet's time goes
//!   papers       `testudo lab papers`: the figures and tables of the papers, by what is above and below
//!   bench        `testudo bench`: the data path in memory, and the floor of cryptography below it
//!   bench_host   `testudo bench host`: host mode compared with the bare link and wireguard-go
//! ```
//!
//! The laboratory trusts nothing of the gateway: it reads packets with its own parsers, so that a misreading
//! shared with the gateway cannot hide a leak. It knows the gateway only as a user does, by its command line,
//! configuration file and control socket; any build of the program can be tested. Four modules drive
//! gateways' workers directly: `bench`, to count cycles, where another engine is the judge; `tandem` and
//! `placements`, to offer them rates; and `demo` where the system does not let it build a network.
//!
//! Deliberately absent: generators over devices that only one process may have (those come with their ports).

#![forbid(unsafe_code)]

pub mod attack;
pub mod bench;
pub mod bench_host;
pub mod capture;
mod charon;
pub mod command;
pub mod demo;
pub mod efficiency;
mod error;
mod estimate;
pub mod gateway;
pub mod generator;
pub mod harness;
pub mod meters;
pub mod namespaces;
pub mod network;
pub mod overload;
pub mod papers;
pub mod placements;
mod programs;
mod progress;
pub mod protection;
mod render;
pub mod rfc2544;
mod statistics;
mod stolen;
mod suites;
mod supply;
pub mod table;
pub mod tandem;
pub mod tcp;
pub mod traffic;
mod workspace;

pub use error::LabError;
