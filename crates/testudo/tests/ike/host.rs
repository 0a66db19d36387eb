//! A host whose IPsec is the gateway's server of XFRM, over a data path of memory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use crate::memory::Memory;
use crate::recorder::Recorder;
use crate::support::config::CONFIGURATION;
use crate::support::gateway::Gateway as Process;
use crate::support::{Outcome, ensure, folder, wait};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use testudo_control::service::xfrm::{Notification, Surroundings, XfrmServer, XfrmSocket};
use testudo_lab::namespaces::Namespace;
use testudo_wire::netlink::Header;
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::xfrm::message::Message;

/// The time, which daemons compare with their own, and numbers that are different each time.
#[derive(Debug)]
struct Real(AtomicU32);

impl Surroundings for Real {
    fn unix_s(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
    }

    fn monotonic_ms(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap()
    }

    fn random(&self, highest: u32) -> u32 {
        // An odd factor: all numbers come, and neighbours are far from each other.
        let next = self.0.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B1);
        u32::try_from((u64::from(next) * (u64::from(highest) + 1)) >> 32).unwrap()
    }
}

/// What answers a host's daemon in the place of the kernel.
pub struct Gateway {
    pub memory: Memory,
    pub server: Arc<XfrmServer<Memory>>,
    pub recorder: Recorder,
    _socket: XfrmSocket,
}

impl Gateway {
    fn start(path: &Path, addresses: &[IpAddr], seed: u32) -> Outcome<Self> {
        let memory = Memory::of(addresses);
        let server = Arc::new(XfrmServer::new(memory.clone(), Box::new(Real(AtomicU32::new(seed)))));
        let own = path.with_extension("server");
        let socket = XfrmSocket::bind(&own, None)?;
        socket.serve(Arc::clone(&server), |_| Ok(()))?;
        let recorder = Recorder::start(path, &own)?;
        Ok(Self { memory, server, recorder, _socket: socket })
    }

    /// Tells the daemon something, as the kernel does by itself.
    pub fn tell(&self, group: u32, message: &Message) {
        let mut datagram = Datagram::new();
        message.write(Header::default(), &mut datagram);
        self.server.tell(&[Notification { group, datagram: Arc::new(datagram) }]);
    }
}

/// The whole program as a host's gateway.
pub struct Program {
    pub process: Process,
    pub recorder: Recorder,
}

/// Keys come from the daemon alone.
const GATEWAY: &str = "[gateway]\nstate = \"state.redb\"\ncontrol = \"control.sock\"\nlog = \"debug\"\n";
const PROGRAM: &str = "[port.protected]\nkind = \"tun\"\nname = \"testudo0\"\n\
                       [ike]\nsocket = \"xfrm.sock\"\nvici = \"../strongswan/vici\"\n";

/// An unprotected port of the kernel.
pub const SOCKETS: &str = "kind = \"socket\"\n";

/// A host.
pub struct Host {
    pub namespace: Namespace,
    /// Its addresses, the one for IKE first.
    pub addresses: Vec<IpAddr>,
    pub folder: PathBuf,
    pub gateway: Option<Gateway>,
    /// The whole program in its place.
    pub program: Option<Program>,
    /// Lines of the program's unprotected port.
    pub unprotected: &'static str,
    library: PathBuf,
}

impl Host {
    /// With `library` as what daemons load.
    pub fn new(namespace: Namespace, addresses: &[&str], library: &Path) -> Outcome<Self> {
        let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let folder = folder(namespace.name())?;
        let mut host = Self {
            namespace,
            addresses,
            folder,
            gateway: None,
            program: None,
            unprotected: SOCKETS,
            library: library.to_owned(),
        };
        host.start_gateway()?;
        Ok(host)
    }

    /// Another host, whose daemons load the same library.
    pub fn beside(&self, namespace: Namespace, addresses: &[&str]) -> Outcome<Self> {
        Self::new(namespace, addresses, &self.library)
    }

    /// Starts the gateway anew: it has neither SAs nor policies.
    pub fn start_gateway(&mut self) -> Outcome<()> {
        self.without_gateway();
        // Each host has SPIs of its own.
        let seed = self.namespace.name().bytes().map(u32::from).sum::<u32>() << 20;
        self.gateway = Some(Gateway::start(&self.socket(), &self.addresses, seed)?);
        Ok(())
    }

    /// Starts the program in the place of the server over memory.
    pub fn start_program(&mut self) -> Outcome<()> {
        self.start_program_of("", "")
    }

    /// The same with further lines of `[gateway]`, and with further sections.
    pub fn start_program_of(&mut self, lines: &str, sections: &str) -> Outcome<()> {
        self.without_gateway();
        let folder = self.folder.join("testudo");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(&folder)?;
        let unprotected = self.unprotected;
        let configuration = format!("{GATEWAY}{lines}[port.unprotected]\n{unprotected}{PROGRAM}{sections}");
        std::fs::write(folder.join(CONFIGURATION), configuration)?;
        let process = Process::init_and_start(&self.namespace, &folder)?;
        let recorder = Recorder::start(&self.socket(), &folder.join("xfrm.sock"))?;
        self.program = Some(Program { process, recorder });
        Ok(())
    }

    /// Has neither: a daemon of this host has a data path of its own.
    pub fn without_gateway(&mut self) {
        (self.gateway, self.program) = (None, None);
    }

    /// Kills the program and starts it again, on the same files.
    pub fn restart_program(&mut self) -> Outcome<()> {
        let Some(Program { process, recorder }) = self.program.take() else {
            return Err("no program runs".into());
        };
        process.kill()?;
        let process = Process::start(&self.namespace, &self.folder.join("testudo"))?;
        self.program = Some(Program { process, recorder });
        Ok(())
    }

    pub fn program(&self) -> &Program {
        self.program.as_ref().expect("the program")
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("xfrm.sock")
    }

    pub fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().expect("a gateway")
    }

    /// A program of this host that speaks to the gateway where it means the kernel.
    pub fn with_library(&self, program: &str) -> Command {
        let mut command = self.namespace.command(program);
        command.env("LD_PRELOAD", &self.library).env("TESTUDO_XFRM", self.socket());
        command
    }

    /// What `ip xfrm` shows.
    pub fn ip_xfrm(&self, words: &[&str]) -> Outcome<String> {
        let output = wait::output(self.with_library("ip").arg("xfrm").args(words))?;
        let (said, complaint) = (output.stdout, String::from_utf8_lossy(&output.stderr));
        ensure(output.status.success(), || format!("ip xfrm {words:?}: {complaint}"))?;
        Ok(String::from_utf8(said)?)
    }

    /// No request was refused so far.
    pub fn nothing_refused(&self) -> Outcome<()> {
        let of_memory = self.gateway.as_ref().map(|gateway| &gateway.recorder);
        let Some(recorder) = self.program.as_ref().map(|program| &program.recorder).or(of_memory) else {
            return Ok(());
        };
        let refusals = recorder.refusals();
        let name = self.namespace.name();
        ensure(refusals.is_empty(), || format!("{name}: the gateway refused:\n{}", refusals.join("\n")))
    }
}

/// The time that a process's threads have run, in ticks of the clock (100 a second).
pub fn ticks_of(process: u32) -> Outcome<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, after) = text.rsplit_once(')').ok_or("no name")?;
    let fields: Vec<&str> = after.split_whitespace().collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}
