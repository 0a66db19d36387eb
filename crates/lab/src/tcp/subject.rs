//! What is measured: plain IP or protected, by the path of its mode, over a network of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cpu::{Shares, Times};
use super::ends::Ends;
use super::options::{Link, Mode, TcpOptions};
use super::tuning::Stage;
use crate::error::{LabError, io};
use crate::gateway::Gateway;
use crate::namespaces::Entered;
use crate::network::{ETHERNET_MTU, LINK, Network, PortKind, Tunnel};
use crate::protection::{Protection, Protocols};
use crate::traffic::{TcpLoad, gbit_s, tcp_load};

/// A token bucket holds this much time of its rate, and a few packets at least.
const BUCKET_SECONDS: f64 = 0.002;
const BUCKET_BYTES: u32 = 16 * 1024;
/// How long a packet may wait for a slow link.
const QUEUE_LATENCY: &str = "50ms";

/// A security protocol, in IP or in UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// RFC 4303
    Esp,
    /// RFC 3948
    EspInUdp,
    /// RFC 4302
    Ah,
    /// Each packet by both
    AhAndEsp,
    /// Vector Packet Encapsulation
    Vpe,
    /// The same in UDP
    VpeInUdp,
}

impl Protocol {
    pub(super) const ALL: [Self; 6] =
        [Self::Esp, Self::EspInUdp, Self::Ah, Self::AhAndEsp, Self::Vpe, Self::VpeInUdp];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Esp => "esp",
            Self::EspInUdp => "esp-in-udp",
            Self::Ah => "ah",
            Self::AhAndEsp => "ah+esp",
            Self::Vpe => "vpe",
            Self::VpeInUdp => "vpe-in-udp",
        }
    }

    pub(super) const fn has(self, mode: Mode) -> bool {
        matches!(mode, Mode::Tunnel) || !matches!(self, Self::Vpe | Self::VpeInUdp)
    }

    /// With this suite, which need not be one of the protocol's; `ah_suite` is that of AH over ESP.
    pub(super) fn protection(self, mode: Mode, suite: &str, ah_suite: &str) -> Protection {
        let protocols = match self {
            Self::Esp | Self::EspInUdp => Protocols::Esp,
            Self::Ah => Protocols::Ah,
            Self::AhAndEsp => Protocols::AhAndEsp,
            Self::Vpe | Self::VpeInUdp => Protocols::Vpe,
        };
        let encapsulation = match self {
            Self::Ah | Self::AhAndEsp => Self::Esp.name(),
            other => other.name(),
        };
        Protection {
            protocols,
            in_transport: mode == Mode::Transport,
            ah_suite: (self == Self::AhAndEsp).then(|| ah_suite.to_owned()),
            ..Protection::esp(suite, encapsulation)
        }
    }
}

/// Plain IP, or a protocol with its suites; and the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    protected: Option<(Protocol, Protection)>,
    mode: Mode,
}

impl Subject {
    /// Plain IP by the path that a mode takes.
    pub(super) fn plain(mode: Mode) -> Self {
        Self { protected: None, mode }
    }

    pub(super) fn protected(protocol: Protocol, protection: Protection) -> Self {
        let mode = if protection.in_transport { Mode::Transport } else { Mode::Tunnel };
        Self { protected: Some((protocol, protection)), mode }
    }

    pub(super) fn protocol(&self) -> Option<Protocol> {
        self.protected.as_ref().map(|(protocol, _)| *protocol)
    }

    pub(super) fn suite(&self) -> Option<&str> {
        self.protected.as_ref().map(|(_, protection)| protection.suite.as_str())
    }

    pub(super) fn ah_suite(&self) -> Option<&str> {
        self.protected.as_ref().and_then(|(_, protection)| protection.ah_suite.as_deref())
    }

    /// Threads of each end that have work: the stream, and the gateway's workers.
    pub(super) fn threads(&self, workers: u8) -> usize {
        1 + if self.protected.is_some() { usize::from(workers) } else { 0 }
    }

    pub(super) const fn mode(&self) -> Mode {
        self.mode
    }

    /// Which hosts send and receive.
    pub(super) const fn path(&self) -> &'static str {
        match self.mode {
            Mode::Tunnel => "sites",
            Mode::Transport => "gateways",
        }
    }

    /// For people.
    pub(super) fn name(&self) -> String {
        match &self.protected {
            None => format!("plain IP between {}", self.path()),
            Some((_, protection)) => protection.description(),
        }
    }
}

/// The network of a measurement.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) link: Link,
    /// Before the steps of tuning.
    pub(super) untuned_mtu: u16,
    pub(super) stage: Stage,
}

impl Setting {
    /// MTU of the cables once the steps are taken.
    pub(super) fn mtu(&self) -> u16 {
        self.stage.mtu(self.untuned_mtu)
    }
}

/// What all measurements share.
pub(super) struct Bed<'a> {
    pub(super) inside: Entered,
    pub(super) options: &'a TcpOptions,
    pub(super) program: PathBuf,
    pub(super) ends: Ends,
}

/// One run.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) mbit_s: f64,
    /// Bytes of user data that the receiver counted.
    pub(super) received_bytes: u64,
    /// Bytes that came by the link meanwhile, headers of the first packet of a super-packet alone.
    pub(super) link_bytes: u64,
    /// Of the sending and of the receiving end.
    pub(super) ends: [Shares; 2],
    /// Testudo's engine.
    pub(super) engine: Option<String>,
    /// What was not taken of the steps of tuning.
    pub(super) untuned: Option<String>,
}

impl Bed<'_> {
    /// Two sites with the setting's cables; what the steps of tuning did there.
    pub(super) fn build(
        &self,
        setting: &Setting,
        folder: &Path,
    ) -> Result<(Network, Vec<super::tuning::Done>), LabError> {
        let network = Network::build(self.inside, self.options.ipv6, PortKind::Tun)?;
        std::fs::create_dir(folder).map_err(io(format!("make the folder {}", folder.display())))?;
        if setting.untuned_mtu != ETHERNET_MTU {
            network.set_mtu(setting.untuned_mtu)?;
        }
        let done = setting.stage.apply(&network, &self.program, folder, setting.mtu())?;
        if let Link::Mbit(rate) = setting.link {
            limit(&network, rate)?;
        }
        Ok((network, done))
    }

    /// A run for each size of messages, one after the other, over a network that is built for them and taken
    /// down. `observe` is told the size, the time, and what has been received.
    pub(super) fn measure(
        &self,
        setting: &Setting,
        subject: &Subject,
        sizes: &[u32],
        folder: &Path,
        observe: &mut dyn FnMut(u32, Duration, u64),
    ) -> Result<Vec<Sample>, LabError> {
        let (network, done) = self.build(setting, folder)?;
        let gateways = match &subject.protected {
            None => {
                network.join_in_clear()?;
                None
            }
            Some((_, protection)) => {
                let tunnel = Tunnel {
                    protection,
                    port: PortKind::Tun,
                    engine: self.options.engine.as_deref(),
                    workers: self.options.workers,
                    mtu: setting.mtu(),
                    processors: self.ends.pinned(),
                };
                Some(network.start_gateways(&tunnel, &self.program, folder)?)
            }
        };
        let mut samples = Vec::new();
        for &size in sizes {
            let mut observe = |elapsed, bytes| observe(size, elapsed, bytes);
            samples.push(self.run(&network, subject, size, &mut observe)?);
        }
        if let (Some(gateways), Some((_, protection))) = (gateways, &subject.protected) {
            let [a, b] = gateways;
            let engine = a.status()?.engine(&protection.suite).to_owned();
            samples.iter_mut().for_each(|sample| sample.engine = Some(engine.clone()));
            [a, b].into_iter().try_for_each(Gateway::stop)?;
        }
        let untuned = setting.stage.not_taken(&done);
        samples.iter_mut().for_each(|sample| sample.untuned.clone_from(&untuned));
        Ok(samples)
    }

    fn run(
        &self,
        network: &Network,
        subject: &Subject,
        size: u32,
        observe: &mut dyn FnMut(Duration, u64),
    ) -> Result<Sample, LabError> {
        let in_transport = subject.mode() == Mode::Transport;
        let ((from, _), (to, address)) = (network.a.end(in_transport), network.b.end(in_transport));
        let load = TcpLoad {
            streams: 1,
            duration: self.options.duration(),
            message_bytes: usize::try_from(size).ok(),
            processors: self.ends.pinned(),
        };
        let (crossed, times) = (link_bytes(network)?, Times::now()?);
        let result = tcp_load(&load, from, to, address, observe)?;
        let (later, link_bytes) = (Times::now()?, link_bytes(network)?.saturating_sub(crossed));
        came_by_the_link(result.bytes, link_bytes)?;
        let [sender, receiver] = &self.ends.processors;
        Ok(Sample {
            mbit_s: gbit_s(result.bytes, result.elapsed) * 1e3,
            received_bytes: result.bytes,
            link_bytes,
            ends: [times.until(&later, sender), times.until(&later, receiver)],
            engine: None,
            untuned: None,
        })
    }
}

/// That what was received came by the link, whose bytes are more than those of user data.
fn came_by_the_link(received: u64, crossed: u64) -> Result<(), LabError> {
    if crossed < received { Err(LabError::AnotherWay { received, crossed }) } else { Ok(()) }
}

/// Bytes that gateway B has received by the link.
fn link_bytes(network: &Network) -> Result<u64, LabError> {
    let file = format!("/sys/class/net/{LINK}/statistics/rx_bytes");
    let text = network.b.gateway.run(&["cat", &file])?;
    text.trim().parse().map_err(|error| io(format!("read {file}"))(std::io::Error::other(error)))
}

/// Gives the link a rate in both directions: a token bucket at each gateway's interface.
fn limit(network: &Network, mbit_s: u32) -> Result<(), LabError> {
    let rate = format!("{mbit_s}mbit");
    let burst = bucket(mbit_s).to_string();
    for site in [&network.a, &network.b] {
        let limited = site.gateway.run(&[
            "tc",
            "qdisc",
            "add",
            "dev",
            LINK,
            "root",
            "tbf",
            "rate",
            &rate,
            "burst",
            &burst,
            "latency",
            QUEUE_LATENCY,
        ]);
        limited.map_err(LabError::NoRate)?;
    }
    Ok(())
}

/// Bytes of a bucket.
fn bucket(mbit_s: u32) -> u64 {
    crate::harness::count(f64::from(mbit_s) * 1e6 / 8.0 * BUCKET_SECONDS).max(u64::from(BUCKET_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_took_another_way_is_no_measurement() {
        assert!(came_by_the_link(1000, 1100).is_ok());
        let error = came_by_the_link(1000, 999).unwrap_err().to_string();
        assert!(error.contains("1000 bytes of TCP were received, and 999 came by the link"), "{error}");
    }

    #[test]
    fn buckets_hold_a_packet_and_not_much_of_a_second() {
        assert_eq!([10, 100, 1000].map(bucket), [16_384, 25_000, 250_000]);
    }

    #[test]
    fn protections_are_those_of_their_protocol() {
        let of = |protocol: Protocol, mode| protocol.protection(mode, "aes128gcm16", "sha1");
        assert_eq!(of(Protocol::Esp, Mode::Tunnel), Protection::esp("aes128gcm16", "esp"));
        assert_eq!(of(Protocol::EspInUdp, Mode::Tunnel), Protection::esp("aes128gcm16", "esp-in-udp"));
        let both = of(Protocol::AhAndEsp, Mode::Transport);
        assert_eq!((both.ah_suite.as_deref(), both.in_transport), (Some("sha1"), true));
        assert_eq!(
            both,
            Protection::choose("ah+esp", "transport", Some("aes128gcm16"), Some("sha1"), None).unwrap()
        );
        assert!(of(Protocol::Ah, Mode::Tunnel).suites().is_err(), "AH has no GCM");
        let vpe = Protection::choose("esp", "tunnel", Some("aes128gcm16"), None, Some("vpe-in-udp")).unwrap();
        assert_eq!(of(Protocol::VpeInUdp, Mode::Tunnel), vpe);
    }
}
