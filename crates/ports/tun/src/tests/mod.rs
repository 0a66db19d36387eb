//! Splitting and joining, checked against each other, against slow models, and against another implementation
//! (tun-rs).
//!
//! All data comes from seeds, which a failing test prints.

mod coalesce;
mod frames;
mod port;
mod receive;
mod split;
mod transmit;
