//! The subjects: builds each one's network, from two bare sites to TCP streams.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::wireguard::WireguardGo;
use crate::error::{LabError, io};
use crate::gateway::Gateway;
use crate::namespaces::{Entered, Namespace};
use crate::network::{ETHERNET_MTU, Network, PortKind, Site, Tunnel};
use crate::protection::Protection;
use crate::traffic::tcp_streams;
use crate::workspace::write_private;

const STARTED_WITHIN: Duration = Duration::from_secs(10);

/// A connection between the two sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Bare,
    Testudo,
    WireguardGo,
}

/// Settings shared by the subjects.
pub(super) struct Setting {
    pub(super) program: PathBuf,
    /// `None` if it is not installed.
    pub(super) wireguard: Option<WireguardGo>,
    pub(super) suite: String,
    pub(super) ipv6: bool,
    pub(super) engine: Option<String>,
    /// Of each of Testudo's gateways.
    pub(super) workers: u8,
}

/// The result of one measurement.
pub(super) struct Measured {
    pub(super) gbit_s: f64,
    /// Testudo's engine.
    pub(super) engine: Option<String>,
}

impl Subject {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Subject::Bare => "bare link",
            Subject::Testudo => "testudo",
            Subject::WireguardGo => "wireguard-go",
        }
    }

    /// Builds two sites and their gateways, sends so many streams for so long from the first to the second,
    /// and tears everything down.
    pub(super) fn measure(
        self,
        inside: Entered,
        setting: &Setting,
        folder: &Path,
        (streams, duration): (usize, Duration),
        observe: &mut dyn FnMut(Duration, u64),
    ) -> Result<Measured, LabError> {
        let network = Network::build(inside, setting.ipv6, PortKind::Tun)?;
        fs::create_dir(folder).map_err(io(format!("make the folder {}", folder.display())))?;
        let mut stream = || -> Result<f64, LabError> {
            let (a, b) = (&network.a.host, &network.b.host);
            Ok(tcp_streams(streams, a, b, network.b.address, duration, observe)?.gbit_s())
        };
        match self {
            Subject::Bare => {
                network.join_in_clear()?;
                Ok(Measured { gbit_s: stream()?, engine: None })
            }
            Subject::Testudo => {
                let engine = setting.engine.as_deref();
                let protection = Protection::esp(&setting.suite, "esp-in-udp");
                let workers = setting.workers;
                let tunnel = Tunnel {
                    protection: &protection,
                    port: PortKind::Tun,
                    engine,
                    workers,
                    mtu: ETHERNET_MTU,
                    processors: None,
                };
                let gateways = network.start_gateways(&tunnel, &setting.program, folder)?;
                let gbit_s = stream()?;
                let engine = gateways[0].status()?.engine(&setting.suite).to_owned();
                gateways.into_iter().try_for_each(Gateway::stop)?;
                Ok(Measured { gbit_s, engine: Some(engine) })
            }
            Subject::WireguardGo => {
                let missing = LabError::MissingProgram { program: "wireguard-go", package: "wireguard-go" };
                let program = &setting.wireguard.as_ref().ok_or(missing)?.path;
                let _gateways = wireguard_go(&network, program, folder)?;
                Ok(Measured { gbit_s: stream()?, engine: None })
            }
        }
    }
}

/// A process of wireguard-go, killed when dropped.
struct Wireguard(Child);

impl Drop for Wireguard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Configures both ends as `wg-quick` would, without touching the host's configuration.
fn wireguard_go(network: &Network, program: &Path, folder: &Path) -> Result<[Wireguard; 2], LabError> {
    let (a, b) = (&network.a, &network.b);
    let ends = [(a, "wga", 5001_u16), (b, "wgb", 5002)];
    let keys = [key_pair(&a.gateway, &folder.join("a"))?, key_pair(&b.gateway, &folder.join("b"))?];
    let start = |here: usize, there: usize| -> Result<Wireguard, LabError> {
        let ((site, interface, port), (peer, _, peer_port)) = (ends[here], ends[there]);
        let ((secret, _), (_, public)) = (&keys[here], &keys[there]);
        let port = port.to_string();
        let process = start_wireguard_go(site, interface, program)?;
        let endpoint = SocketAddr::new(peer.outer, peer_port).to_string();
        let own = ["wg", "set", interface, "private-key", secret, "listen-port", &port];
        let peer_words = ["peer", public, "endpoint", &endpoint, "allowed-ips", &peer.network];
        site.gateway.run(&[own.as_slice(), &peer_words].concat())?;
        site.gateway.link_up(interface)?;
        site.gateway.route_into(&peer.network, interface)?;
        Ok(process)
    };
    Ok([start(0, 1)?, start(1, 0)?])
}

fn start_wireguard_go(site: &Site, interface: &str, program: &Path) -> Result<Wireguard, LabError> {
    let child = site
        .gateway
        .command(program)
        .arg(interface)
        .envs([("WG_PROCESS_FOREGROUND", "1"), ("LOG_LEVEL", "error")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(io(format!("start {}", program.display())))?;
    let process = Wireguard(child);
    wait_for_wireguard(&site.gateway, interface)?;
    Ok(process)
}

/// The file of a new secret key, and the public key.
fn key_pair(host: &Namespace, file: &Path) -> Result<(String, String), LabError> {
    write_private(file, &host.run(&["wg", "genkey"])?)?;
    let file = file.display().to_string();
    let public = host.run(&["sh", "-c", "wg pubkey <\"$1\"", "sh", &file])?;
    Ok((file, public.trim().to_owned()))
}

/// Waits until its control socket answers; a process that has died shows as one that never answers.
fn wait_for_wireguard(host: &Namespace, interface: &str) -> Result<(), LabError> {
    let deadline = Instant::now() + STARTED_WITHIN;
    while host.run(&["wg", "show", interface]).is_err() {
        if Instant::now() > deadline {
            let what = "wireguard-go did not become ready".to_owned();
            return Err(LabError::TooLate { what, limit: STARTED_WITHIN });
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
