//! Many road warriors at one gateway: what its charon says of one, played for each over the gateway's socket,
//! while others' packets pass. `cargo test --release -p testudo --test ike -- --warriors 5000` measures.

use crate::connection::Connection;
use crate::negotiation::initiate;
use crate::network::Network;
use crate::played::{CHARONS, Part, Recording, Warrior};
use crate::support::{Outcome, ensure};
use crate::traffic::{INNER, ends, with_addresses};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};
use testudo_judge::harness::Suite;
use testudo_lab::traffic::Stream;
use testudo_wire::netlink::ack::Answer;
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::messages;
use testudo_wire::xfrm::message::{Body, Message};

/// The host that is their gateway.
const GATEWAY: usize = 1;
/// How many a test has.
const FEW: u32 = 200;

pub fn tests(suite: Suite<'_, Network>) -> Suite<'_, Network> {
    suite.test("road_warriors_come_are_renewed_and_go_beside_traffic", |network| load(network, FEW).map(drop))
}

/// Plays `count` of them, and prints what it found.
pub fn measure(network: &mut Network, count: u32) -> Outcome<()> {
    load(network, count)?.print(count);
    Ok(())
}

/// A client of the gateway's socket, which waits for each answer, as charon does.
struct Client {
    socket: OwnedFd,
    sequence: u32,
    /// The longest that an answer took.
    longest: Duration,
    requests: u64,
}

impl Client {
    fn connect(path: &Path) -> Outcome<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self { socket, sequence: 0, longest: Duration::ZERO, requests: 0 })
    }

    /// Sends a request; the SPI that was reserved, if that is what it asks for.
    fn ask(&mut self, request: &Datagram) -> Outcome<Option<u32>> {
        let began = Instant::now();
        send(&self.socket, request.as_bytes(), SendFlags::NOSIGNAL)?;
        let mut bytes = [0; 4096];
        let (_, length) = recv(&self.socket, &mut bytes[..], RecvFlags::empty())?;
        self.longest = self.longest.max(began.elapsed());
        self.requests += 1;
        let answer = messages(&bytes[..length]).next().ok_or("no answer")??;
        if let Some(Answer { code, text, request, .. }) = Answer::read(&answer) {
            ensure(code == 0, || format!("refused: {code}, {text:?}: {request:?}"))?;
            return Ok(None);
        }
        match Message::read(&answer).map_err(|refusal| refusal.to_string())?.body {
            Body::NewSa(sa) => Ok(Some(sa.id.spi)),
            _ => Ok(None),
        }
    }

    /// Plays what the gateway's charon said in a part, for one warrior.
    fn play(&mut self, warrior: &mut Warrior, part: &Part, before: Option<&Part>) -> Outcome<()> {
        warrior.begin(part, before, Some(1 - GATEWAY));
        for said in part.said.iter().filter(|said| said.host == GATEWAY) {
            self.sequence += 1;
            let request = warrior.says(said, self.sequence);
            if let Some(spi) = self.ask(&request)? {
                warrior.reserved(said, spi);
            }
        }
        Ok(())
    }
}

/// What a part took for all warriors.
#[derive(Debug)]
struct Took {
    /// For each tenth of the warriors, one after the other.
    tenths: Vec<Duration>,
    longest: Duration,
    requests: u64,
    /// How much more memory of the process is resident after it, in bytes.
    grown: i64,
}

impl Took {
    fn all(&self) -> Duration {
        self.tenths.iter().sum()
    }
}

#[derive(Debug)]
struct Measured {
    /// By the name of the part.
    parts: Vec<(&'static str, Took)>,
    /// Datagrams of another tunnel meanwhile, and the longest time between two that arrived.
    sent: u64,
    longest_pause: Duration,
}

impl Measured {
    fn print(&self, count: u32) {
        for (name, took) in &self.parts {
            let (all, tenths) = (took.all(), &took.tenths);
            let [first, last] =
                [tenths.first(), tenths.last()].map(|tenth| tenth.copied().unwrap_or_default());
            println!(
                "{name}: {:.2} s for {count} warriors, {:.0} a second, {} requests; the first tenth {:.0} ms, the last \
                 {:.0} ms; the longest answer {:.1} ms; {} bytes more for each SA",
                all.as_secs_f64(),
                f64::from(count) / all.as_secs_f64(),
                took.requests,
                first.as_secs_f64() * 1e3,
                last.as_secs_f64() * 1e3,
                took.longest.as_secs_f64() * 1e3,
                took.grown / (2 * i64::from(count)),
            );
        }
        let pause = self.longest_pause.as_secs_f64() * 1e3;
        println!("{} datagrams of another tunnel, none lost; {pause:.1} ms between two at most", self.sent);
    }
}

/// Resident bytes of a process.
fn resident(process: u32) -> Outcome<i64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<i64>()? * 1024)
}

fn sas(network: &Network) -> Outcome<usize> {
    let listed = network.hosts()[GATEWAY].program().process.ask_json(&["sa", "list"])?;
    Ok(listed.as_array().map_or(0, Vec::len))
}

/// Installs `count` of them, renews the SAs of each, and ends them.
fn load(network: &mut Network, count: u32) -> Outcome<Measured> {
    let recording = Recording::read(CHARONS).ok_or("the recording cannot be read")?;
    let part = |name: &str| recording.part(name).ok_or_else(|| format!("no part \"{name}\""));
    let (negotiated, by_a, by_b, ended) =
        (part("negotiated")?, part("renewed by a")?, part("renewed by b")?, part("ended")?);
    let charons = network.programs("", &Connection::default())?;
    with_addresses(network)?;
    initiate(&charons)?;
    let stream = Stream::start((&network.a.namespace, INNER[0]), (&network.b.namespace, INNER[1]))?;
    stream.flows(100)?;
    let host = network.hosts()[GATEWAY];
    let process = host.program().process.process();
    let mut warriors: Vec<Warrior> = (1..=count).map(Warrior::new).collect();
    let mut parts = Vec::new();
    let steps = [
        ("installed", negotiated, None),
        ("renewed by them", by_a, Some(negotiated)),
        ("renewed by the gateway", by_b, Some(by_a)),
        ("ended", ended, Some(by_b)),
    ];
    // One for all: each has a thread of the gateway, and an arena of its allocator.
    let mut client = Client::connect(&host.folder.join("testudo/xfrm.sock"))?;
    for (name, part, before) in steps {
        (client.longest, client.requests) = (Duration::ZERO, 0);
        let (before_bytes, mut tenths) = (resident(process)?, Vec::new());
        for some in warriors.chunks_mut((count as usize).div_ceil(10)) {
            let began = Instant::now();
            for warrior in some {
                client.play(warrior, part, before)?;
            }
            tenths.push(began.elapsed());
        }
        let grown = resident(process)? - before_bytes;
        parts.push((name, Took { tenths, longest: client.longest, requests: client.requests, grown }));
        let expected = if name == "ended" { 0 } else { 2 * count as usize };
        let found = sas(network)?;
        ensure(found == expected + 2, || format!("{name}: {found} SAs in place of {expected} and 2"))?;
    }
    stream.flows(100)?;
    let longest_pause = stream.longest_pause();
    let (sent, lost) = stream.end()?;
    ensure(lost.is_empty(), || format!("of {sent} datagrams were lost: {lost:?}"))?;
    ends(network, charons)?;
    Ok(Measured { parts, sent, longest_pause })
}
