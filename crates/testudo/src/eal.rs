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

#[cfg(test)]
mod tests {
    use super::*;

    /// A port of DPDK's beside an engine of it, each with `eal` or without.
    fn configuration(port: &str, engine: &str) -> Configuration {
        let text = format!(
            "[gateway]\nstate = \"s\"\nengines = [\"cryptodev\", \"portable\"]\n\
             [engine.cryptodev]\ndevice = \"0000:3d:01.0\"\n{engine}\n\
             [port.protected]\nkind = \"tun\"\nname = \"t0\"\n\
             [port.unprotected]\nkind = \"dpdk\"\ndevice = \"0000:03:00.0\"\naddresses = [\"192.0.2.1/24\"]\n{port}\n\
             [[tunnel]]\nname = \"a\"\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.2\"\nsuite = \"aes128gcm16\"\n\
             selectors = [ {{ local = \"10.1.0.0/16\", remote = \"10.2.0.0/16\" }} ]\n\
             outbound = {{ spi = 0x1001, key_file = \"a.out\" }}\ninbound = {{ spi = 0x1002, key_file = \"a.in\" }}\n"
        );
        Configuration::parse(&text, "t.toml").unwrap_or_else(|errors| panic!("{errors}"))
    }

    const NO_HUGE: &str = "eal = [\"--no-huge\", \"-m\", \"512\"]";
    const IN_MEMORY: &str = "eal = [\"--in-memory\"]";

    #[test]
    fn ports_and_engine_with_different_arguments_of_the_eal_are_told_in_one_line() {
        let refusal = start(&configuration(NO_HUGE, IN_MEMORY)).unwrap_err();
        assert!(!refusal.contains('\n'), "{refusal}");
        for part in ["starts once", "`--no-huge -m 512`", "`--in-memory`", "`eal` in one place"] {
            assert!(refusal.contains(part), "{part}: {refusal}");
        }
    }

    #[test]
    fn one_of_ports_and_engine_may_leave_the_arguments_out_and_the_bus_has_the_devices_of_both() {
        for (port, engine) in [(NO_HUGE, ""), ("", NO_HUGE), (NO_HUGE, NO_HUGE)] {
            let start = start(&configuration(port, engine)).unwrap();
            assert_eq!(start.eal.arguments, ["--no-huge", "-m", "512"], "{port}, {engine}");
            assert_eq!(start.eal.pci, ["0000:03:00.0", "0000:3d:01.0"]);
        }
    }
}
