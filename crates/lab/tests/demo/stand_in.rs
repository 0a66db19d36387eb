//! A gateway for tests of the demonstration: it has the program's command line and sends something that looks
//! like ESP in UDP, protects nothing, and has the flaw named in the environment.

use std::collections::HashSet;
use std::error::Error;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde_json::{Value, json};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use tun_rs::{DeviceBuilder, SyncDevice};

/// The variable that names the flaw.
pub const FLAW: &str = "STAND_IN_FLAW";

const MTU: u16 = 1400;
const ICV: usize = 16;
const HEADER: usize = 16;

type Outcome<T> = Result<T, Box<dyn Error>>;

pub fn main(arguments: &[OsString]) -> ExitCode {
    let outcome = match arguments {
        [verb, _] if verb == "init" => Ok(()),
        [verb, configuration] if verb == "run" => run(Path::new(configuration)),
        [verb, _, configuration, _] if verb == "status" => status(Path::new(configuration)),
        _ => Err(format!("unknown arguments: {arguments:?}").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("stand-in: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Counters {
    protected: [AtomicU64; 2],
    unprotected: [AtomicU64; 2],
    replayed: AtomicU64,
    forged: AtomicU64,
}

impl Counters {
    fn json(&self) -> Value {
        let port = |[rx, tx]: &[AtomicU64; 2]| json!({"rx_packets": rx.load(Relaxed), "tx_packets": tx.load(Relaxed)});
        json!({"engines": [{"name": "stand-in", "in_use": true, "suites": ["aes128gcm16"]}],
               "ports": {"protected": port(&self.protected), "unprotected": port(&self.unprotected)},
               "drops": {"replay_duplicate": self.replayed.load(Relaxed),
                         "authentication_failed": self.forged.load(Relaxed)}})
    }
}

struct Gateway {
    tun: SyncDevice,
    socket: UdpSocket,
    peer: SocketAddr,
    flaw: String,
    counters: Counters,
}

/// The first quoted value after `key` in the configuration.
fn value<'a>(text: &'a str, key: &str) -> Outcome<&'a str> {
    let start = format!("{key} = ");
    let at = text.find(&start).ok_or_else(|| format!("no {key}"))? + start.len();
    text[at..].split('"').nth(1).ok_or_else(|| format!("no {key}").into())
}

fn run(configuration: &Path) -> Outcome<()> {
    let flaw = std::env::var(FLAW)?;
    if flaw == "refuses" {
        return Err("no such device".into());
    }
    let (text, folder) =
        (std::fs::read_to_string(configuration)?, configuration.parent().ok_or("no folder")?);
    let (local, remote): (IpAddr, IpAddr) =
        (value(&text, "\nlocal")?.parse()?, value(&text, "\nremote")?.parse()?);
    let network = value(&text, ", remote")?;
    let tun = DeviceBuilder::new().name(value(&text, "\nname")?).mtu(MTU).build_sync()?;
    if let Ok(address) = value(&text, "\naddresses") {
        Command::new("ip").args(["address", "add", address, "dev", value(&text, "\nname")?]).status()?;
    }
    Command::new("ip").args(["route", "add", network, "dev", value(&text, "\nname")?]).status()?;
    let socket = UdpSocket::bind((local, 4500))?;
    let control = UnixListener::bind(folder.join("control.sock"))?;
    end_on_sigterm(flaw != "lingers")?;
    let gateway = Gateway { tun, socket, peer: (remote, 4500).into(), flaw, counters: Counters::default() };
    if let Some(path) = std::env::var_os("NOTIFY_SOCKET") {
        UnixDatagram::unbound()?.send_to(b"STATUS=up\nREADY=1\n", path)?;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| gateway.outbound());
        scope.spawn(|| gateway.inbound());
        for stream in control.incoming().flatten() {
            let _ = (&stream).write_all(gateway.counters.json().to_string().as_bytes());
        }
    });
    Ok(())
}

/// Ends the process on SIGTERM, or ignores it.
fn end_on_sigterm(ends: bool) -> Outcome<()> {
    let mut signals = Signals::new([SIGTERM])?;
    std::thread::spawn(move || {
        if signals.forever().any(|_| ends) {
            std::process::exit(0);
        }
    });
    Ok(())
}

fn status(configuration: &Path) -> Outcome<()> {
    let folder = configuration.parent().ok_or("no folder")?;
    let mut answer = String::new();
    UnixStream::connect(folder.join("control.sock"))?.read_to_string(&mut answer)?;
    println!("{answer}");
    Ok(())
}

/// Not cryptographic, but it changes with every byte.
fn icv(bytes: &[u8]) -> [u8; ICV] {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u128, |hash, &byte| {
        (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b)
    });
    hash.to_le_bytes()
}

fn mask(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
}

impl Gateway {
    fn outbound(&self) {
        let mut packet = vec![0; 65_535];
        for number in 1_u32.. {
            let Ok(length) = self.tun.recv(&mut packet[HEADER..]) else { continue };
            let end = HEADER + length;
            packet[..HEADER].fill(9);
            packet[4..8].copy_from_slice(&number.to_be_bytes());
            if self.flaw != "cleartext" {
                mask(&mut packet[HEADER..end]);
            }
            let icv = icv(&packet[..end]);
            packet[end..end + ICV].copy_from_slice(&icv);
            self.counters.protected[0].fetch_add(1, Relaxed);
            self.counters.unprotected[1].fetch_add(1, Relaxed);
            let _ = self.socket.send_to(&packet[..end + ICV], self.peer);
            if self.flaw == "dies" && number == 1000 {
                eprintln!("stand-in: the last word");
                std::process::exit(7);
            }
        }
    }

    fn inbound(&self) {
        let (mut packet, mut seen) = (vec![0; 65_535], HashSet::new());
        while let Ok(length) = self.socket.recv(&mut packet) {
            self.counters.unprotected[0].fetch_add(1, Relaxed);
            let Some(end) = length.checked_sub(ICV).filter(|&end| end > HEADER) else { continue };
            if self.flaw != "replays" && seen.contains(&packet[4..8]) {
                self.counters.replayed.fetch_add(1, Relaxed);
                continue;
            }
            if self.flaw != "forgeries" && packet[end..length] != icv(&packet[..end]) {
                self.counters.forged.fetch_add(1, Relaxed);
                continue;
            }
            seen.insert(packet[4..8].to_vec());
            if self.flaw != "cleartext" {
                mask(&mut packet[HEADER..end]);
            }
            if self.flaw == "corrupts" && end > 1000 {
                // No checksum notices this swap: the order of words does not affect it.
                packet.swap(end - 200, end - 202);
            }
            self.counters.protected[1].fetch_add(1, Relaxed);
            let _ = self.tun.send(&packet[HEADER..end]);
        }
    }
}
