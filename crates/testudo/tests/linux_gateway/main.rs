//! A site behind Testudo and one behind a Linux gateway with the kernel's own IPsec, real routers and a
//! narrow link between them: what hosts learn of the path, what routers do to headers, and what becomes of
//! fragments.
//!
//! ```text
//!   left host ══ Testudo ══ router ══ 1400 bytes ══ router ══ Linux: ip xfrm ══ right host
//!                                                             (in a virtual machine)
//! ```
//!
//! Where both ends compute something, such as the longest packet that fits, they must come to the same
//! result.

#[path = "../support/mod.rs"]
mod support;

mod fragments;
mod headers;
mod path;
mod site;

use site::Site;
use std::process::ExitCode;
use testudo_judge::harness::Suite;

fn main() -> ExitCode {
    fragments::tests(headers::tests(path::tests(Suite::new()))).run(Site::build)
}
