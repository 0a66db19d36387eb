//! The gateway as the kernel's XFRM: what key exchange daemons and `ip xfrm` see.
//!
//! ```text
//!   record of a client ─► netlink, wire::xfrm ─► Xfrm ─┬─► Sad, Spd: as the kernel keeps them
//!                                                      └─► DataPath: where they take effect
//!   its answers        ◄─ acks, dumps ◄────────────────┘
//!   all who listen     ◄─ notifications
//! ```
//!
//! [`Xfrm`] is Linux's SAD and SPD with their rules: what a request must have and must not, which errno each
//! refusal has, what replaces what. It has no thread and no socket, and its clock is handed in. Requests that
//! change something take effect in a [`DataPath`] first, and are noted here once they have.
//!
//! The kernel's rules are those of `net/xfrm/xfrm_user.c`, `xfrm_state.c` and `xfrm_policy.c`, Linux 6.1;
//! those of SAs of one processor each are later ones.

mod algorithms;
mod data_path;
mod dump;
mod events;
mod flush;
mod hello;
mod migrate;
mod packed;
mod policy;
mod policy_limits;
mod policy_requests;
mod process_name;
mod processor;
mod renewal;
mod reservations;
mod sa;
mod sa_requests;
mod sad;
mod server;
mod sessions;
mod socket;
mod spd;
#[cfg(test)]
mod tests;
mod told;

pub use algorithms::Algorithms;
pub use data_path::{DataPath, PolicyUse, SaUse};
pub use dump::Dump;
pub use flush::Flush;
pub use policy::{Direction, XfrmPolicy};
pub use process_name::ProcessName;
pub use renewal::RenewalState;
pub use sa::{SaKey, UsedBefore, XfrmSa};
pub use sad::Place;
pub use server::{Answers, Client, Notification, Now, Xfrm};
pub use sessions::{Surroundings, XfrmServer};
pub use socket::XfrmSocket;
