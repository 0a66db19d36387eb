//! How a tunnel of the laboratory protects packets: protocols, mode, suites, and what that leaves readable.

use testudo_crypto::Suite;
use testudo_wire::vpe::VPE_UDP_PORT;

use crate::error::{LabError, io};
use crate::gateway::UDP_PORT;
use crate::traffic::Pattern;

/// The line for extended sequence numbers.
const ESN: &str = "esn = true\n";

/// The security protocols of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocols {
    /// RFC 4303.
    Esp,
    /// RFC 4302: packets are authentic and readable.
    Ah,
    /// AH over ESP, on each packet.
    AhAndEsp,
    /// Vector Packet Encapsulation (`docs/VPE.md`).
    Vpe,
}

impl Protocols {
    /// Whether the outermost header is that of AH.
    #[must_use]
    pub fn has_ah(self) -> bool {
        matches!(self, Self::Ah | Self::AhAndEsp)
    }
}

/// What is chosen for a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protection {
    /// The security protocols.
    pub protocols: Protocols,
    /// Between the gateways themselves, instead of between the networks behind them.
    pub in_transport: bool,
    /// The suite of ESP; of AH where there is no ESP.
    pub suite: String,
    /// The suite of AH that covers ESP.
    pub ah_suite: Option<String>,
    /// `esp-in-udp`, `esp`, `vpe` or `vpe-in-udp`.
    pub encapsulation: String,
}

fn refused(what: impl Into<String>) -> LabError {
    io("use these options")(std::io::Error::other(what.into()))
}

impl Protection {
    /// ESP in tunnel mode.
    #[must_use]
    pub fn esp(suite: &str, encapsulation: &str) -> Self {
        let (suite, encapsulation) = (suite.to_owned(), encapsulation.to_owned());
        Self { protocols: Protocols::Esp, in_transport: false, suite, ah_suite: None, encapsulation }
    }

    /// Completes and checks what was asked for: `None` for what goes best with the rest.
    ///
    /// # Errors
    /// A suite that is none of the protocol's, ESP that encrypts nothing, or UDP around AH.
    pub fn choose(
        protocol: &str,
        mode: &str,
        suite: Option<&str>,
        ah_suite: Option<&str>,
        encapsulation: Option<&str>,
    ) -> Result<Self, LabError> {
        let is_vpe = encapsulation.is_some_and(|encapsulation| encapsulation.starts_with("vpe"));
        let protocols = match protocol {
            "ah" => Protocols::Ah,
            "ah+esp" => Protocols::AhAndEsp,
            _ if is_vpe => Protocols::Vpe,
            _ => Protocols::Esp,
        };
        if is_vpe && (protocols.has_ah() || mode == "transport") {
            return Err(refused(
                "VPE is a protocol of its own, in tunnel mode: leave out --protocol and --mode",
            ));
        }
        if protocols.has_ah() && encapsulation == Some("esp-in-udp") {
            return Err(refused("AH does not go through a NAT (RFC 3715 2.1): leave out --encapsulation"));
        }
        if protocols != Protocols::AhAndEsp && ah_suite.is_some() {
            return Err(refused("--ah-suite is for --protocol ah+esp: with ah, --suite is the one of AH"));
        }
        let default = if protocols == Protocols::Ah { "sha256" } else { "aes128gcm16" };
        let usual = if protocols.has_ah() { "esp" } else { "esp-in-udp" };
        let chosen = Self {
            protocols,
            in_transport: mode == "transport",
            suite: suite.unwrap_or(default).to_owned(),
            ah_suite: (protocols == Protocols::AhAndEsp).then(|| ah_suite.unwrap_or("sha256").to_owned()),
            encapsulation: encapsulation.unwrap_or(usual).to_owned(),
        };
        let (suite, _) = chosen.suites()?;
        if protocols != Protocols::Ah && !suite.encrypts() {
            return Err(refused(format!(
                "{suite} encrypts nothing: --protocol ah shows authentication alone"
            )));
        }
        Ok(chosen)
    }

    /// The suites of ESP, or of AH alone, and of AH that covers ESP.
    ///
    /// # Errors
    /// There is no such suite.
    pub fn suites(&self) -> Result<(Suite, Option<Suite>), LabError> {
        let of_ah = |name: &str| Suite::for_ah(name).map_err(|e| refused(format!("{name}, with AH: {e}")));
        if self.protocols == Protocols::Ah {
            return Ok((of_ah(&self.suite)?, None));
        }
        let name = &self.suite;
        let suite: Suite = name.parse().map_err(|e| refused(format!("{name}: {e}")))?;
        if self.protocols == Protocols::Vpe {
            let of_vpe = suite.for_vpe();
            return Ok((of_vpe.ok_or_else(|| refused(format!("{name} is no suite of VPE")))?, None));
        }
        Ok((suite, self.ah_suite.as_deref().map(of_ah).transpose()?))
    }

    /// The lines of a `[[tunnel]]` about protocols, mode, suites and the length of sequence numbers.
    pub(crate) fn lines(&self) -> String {
        let Self { suite, encapsulation, .. } = self;
        let mode = if self.in_transport { "mode = \"transport\"\n" } else { "" };
        match (self.protocols, &self.ah_suite) {
            (Protocols::Esp | Protocols::Vpe, _) => {
                let ports = match encapsulation.as_str() {
                    "esp-in-udp" => format!("local_port = {UDP_PORT}\nremote_port = {UDP_PORT}\n"),
                    _ => String::new(),
                };
                // Numbers of VPE have no short form.
                let esn = if self.protocols == Protocols::Esp { ESN } else { "" };
                format!("suite = \"{suite}\"\n{mode}encapsulation = \"{encapsulation}\"\n{ports}{esn}")
            }
            (Protocols::Ah, _) => format!("protocol = \"ah\"\nsuite = \"{suite}\"\n{mode}{ESN}"),
            (Protocols::AhAndEsp, ah) => {
                let ah = ah.as_deref().unwrap_or_default();
                format!("protocol = \"ah+esp\"\nsuite = \"{suite}\"\nah_suite = \"{ah}\"\n{mode}{ESN}")
            }
        }
    }

    /// For a report.
    #[must_use]
    pub fn description(&self) -> String {
        let Self { suite, encapsulation, .. } = self;
        let what = match (self.protocols, &self.ah_suite) {
            (Protocols::Esp | Protocols::Vpe, _) => format!("{encapsulation}, {suite}"),
            (Protocols::Ah, _) => format!("ah, {suite}"),
            (Protocols::AhAndEsp, ah) => {
                format!("ah ({}) over esp ({suite})", ah.as_deref().unwrap_or_default())
            }
        };
        if self.in_transport { format!("{what}, transport mode") } else { what }
    }

    /// The UDP port of ESP or VPE at both gateways; `None` for protocols directly on IP.
    #[must_use]
    pub fn udp_port(&self) -> Option<u16> {
        match self.protocols {
            Protocols::Esp => (self.encapsulation == "esp-in-udp").then_some(UDP_PORT),
            Protocols::Vpe => (self.encapsulation == "vpe-in-udp").then_some(VPE_UDP_PORT),
            Protocols::Ah | Protocols::AhAndEsp => None,
        }
    }
}

/// The beginning of all longer UDP datagrams that hosts of the laboratory send: enough that ciphertext does
/// not contain it by chance.
pub(crate) fn known_text() -> Vec<u8> {
    Pattern::new().from(0)[..16].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(
        protocol: &str,
        suite: Option<&str>,
        encapsulation: Option<&str>,
    ) -> Result<Protection, String> {
        Protection::choose(protocol, "tunnel", suite, None, encapsulation).map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_left_out_goes_with_the_protocol() {
        let chosen = |protocol| choose(protocol, None, None).unwrap();
        assert_eq!(chosen("esp"), Protection::esp("aes128gcm16", "esp-in-udp"));
        assert_eq!((chosen("esp").udp_port(), chosen("ah").udp_port()), (Some(UDP_PORT), None));
        assert_eq!(chosen("ah").suite, "sha256");
        assert_eq!(chosen("ah+esp").ah_suite.as_deref(), Some("sha256"));
        assert_eq!(chosen("ah+esp").description(), "ah (sha256) over esp (aes128gcm16)");
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_the_reason() {
        assert!(choose("ah", None, Some("esp-in-udp")).unwrap_err().contains("RFC 3715"));
        assert!(choose("ah", Some("aes128gcm16"), None).unwrap_err().contains("with AH"));
        assert!(choose("ah+esp", Some("rot13"), None).unwrap_err().contains("rot13"));
        assert!(choose("esp", Some("aes128gmac"), None).unwrap_err().contains("encrypts nothing"));
        assert_eq!(choose("ah", Some("aes128gmac"), None).unwrap().suite, "aes128gmac");
        let error = Protection::choose("ah", "tunnel", None, Some("sha1"), None).unwrap_err();
        assert!(error.to_string().contains("--ah-suite is for"));
    }
}
