//! The engines that the program knows. The portable one is always available and needs no entry here.

use testudo_control::config::Gateway;
use testudo_engine_ipsec_mb::IpsecMbEngine;
use testudo_engine_vaes::VaesEngine;
use testudo_gateway::{Candidate, EngineOrder};

/// Every engine that the program knows, best first.
pub fn known() -> Vec<Candidate> {
    vec![
        Candidate { name: "vaes", open: Box::new(|| Ok(Box::new(VaesEngine::open()?))) },
        Candidate { name: "ipsec-mb", open: Box::new(|| Ok(Box::new(IpsecMbEngine::open()?))) },
    ]
}

/// The candidates for the engines that a configuration names, in the configuration's order.
pub fn candidates(names: &[String]) -> Vec<Candidate> {
    names.iter().filter_map(|name| known().into_iter().find(|c| c.name == name)).collect()
}

/// The order of engines: as the configuration names them, else the fastest first.
pub fn order(gateway: &Gateway) -> EngineOrder {
    if gateway.engines_named { EngineOrder::AsNamed } else { EngineOrder::FastestFirst }
}
