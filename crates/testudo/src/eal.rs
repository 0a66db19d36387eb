//! How DPDK is started: once in a process, for ports and engines together.

use std::path::PathBuf;
use testudo_control::config::{Configuration, DpdkSettings};
use testudo_port_dpdk::EalConfig;

/// The plugin, where it is not the installed one, and what DPDK is started with.
#[derive(Debug, Clone, Default)]
pub struct Start {
    pub library: Option<PathBuf>,
    pub eal: EalConfig,
}

/// What ports and engine need together: their devices on the bus, and the arguments of one of them.
///
/// # Errors
/// They have different arguments.
pub fn start(configuration: &Configuration) -> Result<Start, String> {
    let sides = [&configuration.protected.kind, &configuration.unprotected.kind];
    let ports: Vec<&DpdkSettings> = sides.into_iter().filter_map(|kind| kind.dpdk()).collect();
    let engine = configuration.cryptodev.as_ref();
    let engines_name = engine.and_then(|engine| engine.device.split(',').next());
    let names = ports.iter().map(|port| port.name()).chain(engines_name);
    let is_pci =
        |name: &&str| name.contains(':') && !name.starts_with("net_") && !name.starts_with("crypto_");
    let pci = names.filter(is_pci).map(str::to_owned).collect();
    // All but one may leave them out.
    let given = ports.iter().map(|port| &port.eal).chain(engine.map(|engine| &engine.eal));
    let mut given = given.filter(|eal| !eal.is_empty());
    let arguments = given.next().cloned().unwrap_or_default();
    if let Some(other) = given.find(|eal| **eal != arguments) {
        let (one, other) = (arguments.join(" "), other.join(" "));
        return Err(format!(
            "DPDK starts once in a process, with `{one}` or with `{other}`: write `eal` in one place, or the same in all"
        ));
    }
    let library = ports.iter().find_map(|port| port.library.clone());
    Ok(Start { library, eal: EalConfig { arguments, pci } })
}
