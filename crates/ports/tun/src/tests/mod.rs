//! Cutting and joining against each other, against slow models, and against a foreign implementation (tun-rs).
//!
//! All data comes from seeds, which are printed by whichever test fails.

mod coalesce;
mod frames;
mod receive;
mod split;
mod transmit;
