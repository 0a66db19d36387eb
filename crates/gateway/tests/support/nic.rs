//! A gateway whose unprotected port has a NIC that does cryptography: the twin of an 82599. (Not in `mod.rs`,
//! which the fuzzers share.)

#![allow(dead_code, reason = "each test target uses its own part of this")]

use testudo_crypto::{Engine, PortableEngine};
use testudo_engine_inline::{Checks, Nic};
use testudo_packet::Port;
use testudo_port_twin82599::{Twin82599, TwinPort};

/// The NIC's engine before others, and its port around a link; and what both know.
pub fn fit(
    twin: &Twin82599,
    checks: Checks,
    link: Box<dyn Port>,
    others: Vec<Box<dyn Engine>>,
) -> (Vec<Box<dyn Engine>>, Box<dyn Port>, Nic) {
    let nic = Nic::start(Box::new(twin.clone()), Box::new(PortableEngine::new()), checks);
    let nic = nic.expect("a twin that does not fail yet");
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(nic.engine())];
    engines.extend(others);
    let port = nic.port(Box::new(TwinPort::new(twin.clone(), link)));
    (engines, Box::new(port), nic)
}
