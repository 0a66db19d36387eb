//! Raw sockets, packets in clear and MTUs: the tests that need privileges, in private namespaces.
//!
//! ```text
//!   namespace left  eth0 10.8.0.1 ═══ veth, MTU 1500 ═══ 10.8.0.2 eth0  namespace right
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    reason = "a test panics on failure, and its data is made of small numbers"
)]

mod ah;
mod beside;
mod esp;
mod from_many;
mod support;
mod wildcard;

use testudo_lab::namespaces;

fn main() {
    let inside = namespaces::enter().expect("private namespaces");
    let sites = support::sites(inside);
    esp::tests(&sites);
    ah::tests(&sites);
    beside::tests(&sites);
    from_many::tests(&sites);
    wildcard::tests(&sites);
    println!("raw: ok");
}
