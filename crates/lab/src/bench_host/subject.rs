//! What is measured: the world of each subject, from two bare hosts to a TCP stream.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{LabError, io};
use crate::gateway::{Gateway, Keys, Settings};
use crate::namespaces::{Entered, Namespace, veth};
use crate::traffic::tcp_stream;
use crate::workspace::write_private;

const OUTER: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const INNER: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
const LINK: &str = "wan";
const STARTED_WITHIN: Duration = Duration::from_secs(10);

/// A way from one host to the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Bare,
    Testudo,
    WireguardGo,
}

/// What the subjects need to be told.
pub(super) struct Setting {
    pub(super) program: PathBuf,
    pub(super) wireguard: PathBuf,
    pub(super) suite: String,
    pub(super) engine: Option<String>,
}

/// The result of one measurement.
pub(super) struct Measured {
    pub(super) gbit_s: f64,
    /// Testudo's.
    pub(super) engine: Option<String>,
}

type Hosts = [Namespace; 2];

impl Subject {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Subject::Bare => "bare link",
            Subject::Testudo => "testudo",
            Subject::WireguardGo => "wireguard-go",
        }
    }

    /// Builds two hosts, sends one stream from the first to the second, takes everything down.
    pub(super) fn measure(
        self,
        inside: Entered,
        setting: &Setting,
        folder: &Path,
        duration: Duration,
        observe: &mut dyn FnMut(Duration, u64),
    ) -> Result<Measured, LabError> {
        let hosts = hosts(inside)?;
        fs::create_dir(folder).map_err(io(format!("make the folder {}", folder.display())))?;
        let mut stream = |to: &str| stream(&hosts, to, duration, observe);
        match self {
            Subject::Bare => Ok(Measured { gbit_s: stream(OUTER[1])?, engine: None }),
            Subject::Testudo => {
                let gateways = testudo(&hosts, setting, folder)?;
                let gbit_s = stream(INNER[1])?;
                let engine = gateways[0].status()?.engine().to_owned();
                gateways.into_iter().try_for_each(Gateway::stop)?;
                Ok(Measured { gbit_s, engine: Some(engine) })
            }
            Subject::WireguardGo => {
                let _gateways = wireguard_go(&hosts, setting, folder)?;
                Ok(Measured { gbit_s: stream(INNER[1])?, engine: None })
            }
        }
    }
}

fn hosts(inside: Entered) -> Result<Hosts, LabError> {
    let hosts = [Namespace::new(inside, "bench-a")?, Namespace::new(inside, "bench-b")?];
    veth((&hosts[0], LINK), (&hosts[1], LINK))?;
    for (host, address) in hosts.iter().zip(OUTER) {
        host.address(LINK, &format!("{address}/24"))?;
    }
    Ok(hosts)
}

fn parse(address: &str) -> Result<IpAddr, LabError> {
    let invalid = |_| io(format!("read the address {address}"))(std::io::ErrorKind::InvalidData.into());
    address.parse().map_err(invalid)
}

fn stream(
    [from, to]: &Hosts,
    address: &str,
    duration: Duration,
    observe: &mut dyn FnMut(Duration, u64),
) -> Result<f64, LabError> {
    Ok(tcp_stream(from, to, parse(address)?, duration, observe)?.gbit_s())
}

fn testudo(hosts: &Hosts, setting: &Setting, folder: &Path) -> Result<[Gateway; 2], LabError> {
    let keys = Keys::random(&setting.suite)?;
    let start = |here: usize, there: usize, name: &str| {
        let settings = Settings {
            is_a: here == 0,
            addresses: vec![format!("{}/24", INNER[here])],
            local: parse(OUTER[here])?,
            remote: parse(OUTER[there])?,
            local_network: format!("{}/32", INNER[here]),
            remote_network: format!("{}/32", INNER[there]),
            suite: setting.suite.clone(),
            encapsulation: "esp-in-udp".to_owned(),
            engine: setting.engine.clone(),
        };
        let folder = folder.join(if here == 0 { "a" } else { "b" });
        settings.write(&keys, &folder)?;
        Gateway::start(&hosts[here], &setting.program, name, &folder)
    };
    Ok([start(0, 1, "gateway A")?, start(1, 0, "gateway B")?])
}

/// A process of wireguard-go, killed when dropped.
struct Wireguard(Child);

impl Drop for Wireguard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As `wg-quick` would do it, without touching the host's configuration.
fn wireguard_go(hosts: &Hosts, setting: &Setting, folder: &Path) -> Result<[Wireguard; 2], LabError> {
    let (secret, public): (Vec<_>, Vec<_>) =
        [key_pair(&hosts[0], &folder.join("a"))?, key_pair(&hosts[1], &folder.join("b"))?]
            .into_iter()
            .unzip();
    let start = |here: usize, there: usize| -> Result<Wireguard, LabError> {
        let (host, interface) = (&hosts[here], ["wga", "wgb"][here]);
        let child = host
            .command(&setting.wireguard)
            .arg(interface)
            .envs([("WG_PROCESS_FOREGROUND", "1"), ("LOG_LEVEL", "error")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(io(format!("start {}", setting.wireguard.display())))?;
        let process = Wireguard(child);
        wait_for_wireguard(host, interface)?;
        let (port, endpoint) =
            (["5001", "5002"][here], format!("{}:{}", OUTER[there], ["5001", "5002"][there]));
        let own = ["wg", "set", interface, "private-key", &secret[here], "listen-port", port];
        let allowed = format!("{}/32", INNER[there]);
        let peer = ["peer", &public[there], "endpoint", &endpoint, "allowed-ips", &allowed];
        host.run(&[own.as_slice(), &peer].concat())?;
        host.address(interface, &format!("{}/24", INNER[here]))?;
        host.link_up(interface)?;
        Ok(process)
    };
    Ok([start(0, 1)?, start(1, 0)?])
}

/// The file of a fresh secret key, and the public key.
fn key_pair(host: &Namespace, file: &Path) -> Result<(String, String), LabError> {
    write_private(file, &host.run(&["wg", "genkey"])?)?;
    let file = file.display().to_string();
    let public = host.run(&["sh", "-c", "wg pubkey <\"$1\"", "sh", &file])?;
    Ok((file, public.trim().to_owned()))
}

/// Until its control socket answers; a process that has died shows as one that never does.
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
