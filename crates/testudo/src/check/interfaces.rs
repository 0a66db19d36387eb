//! What `check` says of this host's interfaces that a configuration names: what AF_XDP will find, and what
//! the hardware could do for ESP.

use testudo_control::Configuration;
use testudo_control::config::XdpSettings;
use testudo_port_xdp::{EspFeatures, Feature, Interface, OpenError};

/// A line for each interface of a fast port, and one for each whose hardware knows ESP.
pub fn notes(configuration: &Configuration) -> Vec<String> {
    let found = fast(configuration).filter_map(|(side, name, _)| Some((side, Interface::find(name).ok()?)));
    let mut notes: Vec<String> = found.map(|(side, interface)| describe(side, &interface)).collect();
    let all =
        fast(configuration).map(|(_, name, _)| name).chain(configuration.unprotected.interface.as_deref());
    let mut names: Vec<&str> = all.collect();
    names.sort_unstable();
    names.dedup();
    notes.extend(names.iter().filter_map(|name| Some(esp_note(name, EspFeatures::of(name)?))));
    notes
}

/// What will keep a gateway from starting, or from carrying packets, on this host as it is.
pub fn warnings(configuration: &Configuration) -> Vec<String> {
    fast(configuration)
        .filter_map(|(side, name, settings)| warning(configuration, side, name, settings))
        .collect()
}

/// The interfaces of fast ports, by section.
fn fast(configuration: &Configuration) -> impl Iterator<Item = (&'static str, &str, &XdpSettings)> {
    let (protected, unprotected) = (&configuration.protected, &configuration.unprotected);
    let protected = protected.kind.xdp().map(|settings| ("protected", protected.name.as_str(), settings));
    let name = unprotected.interface.as_deref();
    let unprotected =
        unprotected.kind.xdp().zip(name).map(|(settings, name)| ("unprotected", name, settings));
    protected.into_iter().chain(unprotected)
}

fn describe(side: &str, interface: &Interface) -> String {
    let Interface { name, mtu, driver, queues, .. } = interface;
    let driver = driver.as_deref().unwrap_or("unknown");
    let queues = queues.map_or_else(|| "unknown".to_owned(), |queues| queues.to_string());
    format!("port.{side}: AF_XDP at {name}: driver {driver}, MTU {mtu}, queues: {queues}")
}

fn warning(configuration: &Configuration, side: &str, name: &str, settings: &XdpSettings) -> Option<String> {
    let interface = match Interface::find(name) {
        Ok(interface) => interface,
        Err(error @ (OpenError::InterfaceAbsent { .. } | OpenError::NotEthernet { .. })) => {
            return Some(format!("port.{side}: {error}"));
        }
        Err(_) => return None,
    };
    let have = interface.queues?;
    let missing = settings.queues.iter().flatten().find(|queue| **queue >= have);
    if let Some(queue) = missing {
        return Some(format!("port.{side}.queues: {name} has no queue {queue}, only {have}"));
    }
    if let Some(unopened) = settings.queues.as_ref().and_then(|named| (0..have).find(|q| !named.contains(q)))
    {
        return Some(format!(
            "port.{side}.queues: what comes to queue {unopened} of {name} goes to the kernel, in clear where it is of \
             protected hosts: leave `queues` out for all {have}, or have the NIC use those alone (`ethtool -X`)"
        ));
    }
    let mtu = usize::from(if side == "protected" { configuration.protected.mtu } else { 0 });
    (mtu > interface.mtu).then(|| {
        format!("port.{side}.mtu is {mtu}, and {name} carries {}: longer packets are not sent", interface.mtu)
    })
}

/// What the hardware could do, and who uses it.
fn esp_note(name: &str, EspFeatures { esp, checksum }: EspFeatures) -> String {
    let state = |feature| match feature {
        Feature::Absent => None,
        Feature::Off => Some("off"),
        Feature::On => Some("on"),
    };
    let features = [("esp-hw-offload", esp), ("esp-tx-csum-hw-offload", checksum)];
    let known: Vec<_> =
        features.iter().filter_map(|(name, feature)| Some(format!("{name} {}", state(*feature)?))).collect();
    if known.is_empty() {
        return format!(
            "interface {name}: its driver has no ESP in hardware for Linux's IPsec (esp-hw-offload)"
        );
    }
    format!(
        "interface {name}: ESP in hardware for Linux's IPsec: {}; not used here: Linux offers it to its own SAs alone",
        known.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_that_knows_esp_is_told_with_who_uses_it() {
        let none = esp_note("eth0", EspFeatures::default());
        assert!(none.contains("has no ESP in hardware"), "{none}");
        let some = esp_note("eth0", EspFeatures { esp: Feature::On, checksum: Feature::Off });
        assert!(some.contains("esp-hw-offload on, esp-tx-csum-hw-offload off; not used here"), "{some}");
    }

    #[test]
    fn interfaces_that_are_not_here_are_warned_of() {
        let text = "[gateway]\nstate = \"s\"\n[port.protected]\nkind = \"xdp\"\ninterface = \"lo\"\n[port.unprotected]\n\
                    kind = \"xdp\"\ninterface = \"no-such-0\"\n[[tunnel]]\nname = \"a\"\nlocal = \"192.0.2.1\"\n\
                    remote = \"192.0.2.2\"\nsuite = \"aes128gcm16\"\nselectors = [ { local = \"10.1.0.0/16\", remote = \"10.2.0.0/16\" } ]\n\
                    outbound = { spi = 0x1001, key_file = \"a.out\" }\ninbound = { spi = 0x1002, key_file = \"a.in\" }\n";
        let configuration = Configuration::parse(text, "t.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let warnings = warnings(&configuration);
        assert!(
            warnings[0].starts_with("port.protected: the interface lo has no Ethernet frames"),
            "{warnings:?}"
        );
        assert!(warnings[1].starts_with("port.unprotected: there is no interface no-such-0"), "{warnings:?}");
        assert_eq!(notes(&configuration).len(), 1, "loopback's features alone");
    }
}
