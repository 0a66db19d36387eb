//! The nonce contract under `kill -9`: two gateways with manual keys are killed at random moments, some of
//! them while they start, and no pair of SPI and IV is ever seen twice on the link between them. Traffic
//! resumes after every restart.
//!
//! `TESTUDO_SEED` repeats the moments of an earlier run, as far as the machine allows.

mod support;

use std::collections::{HashMap, HashSet};
use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use support::config::{Config, pair};
use support::gateway::{Gateway, run_command, run_to_end};
use support::link::{LINK, Link};
use support::wait::until;
use support::{Outcome, ensure, folder};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::capture::{Capture, HEADERS, Recording};
use testudo_lab::traffic::Stream;

const KILLS: u32 = 24;
const ADDRESSES: [&str; 2] = ["10.1.0.1", "10.2.0.1"];

fn main() -> ExitCode {
    Suite::new()
        .test("no_number_is_used_twice_however_often_gateways_are_killed", survives_kills)
        .test("two_stores_under_the_same_keys_do_not_repeat_ivs", tells_stores_apart)
        .test("a_clean_stop_gives_back_the_numbers_that_were_not_used", gives_back)
        .test("failed_starts_use_no_numbers", fails_without_using_numbers)
        .run(Link::build)
}

/// Moments, from a seed: Marsaglia's xorshift64 (2003).
struct Moments(u64);

impl Moments {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

fn seed() -> u64 {
    let given = std::env::var("TESTUDO_SEED").ok().and_then(|text| text.parse().ok());
    let now =
        || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| u64::from(time.subsec_nanos()));
    given.unwrap_or_else(now).max(1)
}

/// One gateway of the pair; `None` while it is dead.
struct Site {
    folder: PathBuf,
    gateway: Option<Gateway>,
}

fn survives_kills(link: &mut Link) -> TestResult {
    let seed = seed();
    scenario(link, &mut Moments(seed)).map_err(|e| format!("TESTUDO_SEED={seed}: {e}").into())
}

fn scenario(link: &mut Link, moments: &mut Moments) -> Outcome<()> {
    let sites = build(link)?;
    let capture = Capture::start(&link.a, LINK, &folder("capture")?.join("wan.pcap"), HEADERS)?;
    let outcome = kill_and_restart(link, sites, moments);
    // A repeated number explains other failures, so it is checked first.
    let sent = no_number_twice(&capture.finish(&link.a)?)?;
    outcome?;
    every_restart_is_seen(sent)
}

fn kill_and_restart(link: &Link, mut sites: [Site; 2], moments: &mut Moments) -> Outcome<()> {
    let ends = [(&link.a, ADDRESSES[0]), (&link.b, ADDRESSES[1])];
    let streams = [Stream::start(ends[0], ends[1])?, Stream::start(ends[1], ends[0])?];
    for kill in 0..KILLS {
        let victim = usize::try_from(kill % 2)?;
        streams.iter().try_for_each(|stream| stream.flows(1 + moments.below(100)))?;
        let namespace = ends[victim].0;
        let site = &mut sites[victim];
        site.gateway.take().map_or(Ok(()), Gateway::kill)?;
        if kill % 3 == 0 {
            // Kill once more during the start, perhaps while numbers are being leased.
            let dying = Gateway::spawn(run_command(namespace, &site.folder), &site.folder)?;
            thread::sleep(Duration::from_micros(moments.below(60_000)));
            dying.kill()?;
        }
        site.gateway = Some(Gateway::start(namespace, &site.folder)?);
    }
    streams.iter().try_for_each(|stream| stream.flows(100))?;
    for stream in streams {
        stream.end()?;
    }
    sites.into_iter().try_for_each(|site| site.gateway.map_or(Ok(()), Gateway::stop))
}

/// Starts both gateways. The hosts' inner addresses are on `lo`, so that no kill removes them.
fn build(link: &mut Link) -> Outcome<[Site; 2]> {
    link.a.address("lo", &format!("{}/32", ADDRESSES[0]))?;
    link.b.address("lo", &format!("{}/32", ADDRESSES[1]))?;
    let [a, b] = pair(false)?.map(|config| Config { addresses: Vec::new(), ..config });
    let ((gateway_a, folder_a), (gateway_b, folder_b)) = (link.start_a(&a)?, link.start_b(&b)?);
    let site = |folder, gateway| Site { folder, gateway: Some(gateway) };
    Ok([site(folder_a, gateway_a), site(folder_b, gateway_b)])
}

/// The packets that one SA has sent so far.
#[derive(Default)]
struct Sent {
    packets: u64,
    last_number: u32,
    /// Skipped blocks of numbers: the visible restarts.
    jumps: u32,
}

/// Reads the recording and checks that no pair of SPI and IV is repeated and that numbers only rise.
fn no_number_twice(recording: &Recording) -> Outcome<HashMap<u32, Sent>> {
    ensure(recording.not_recorded == 0, || format!("{} packets were not recorded", recording.not_recorded))?;
    let (mut ivs, mut sent) = (HashMap::new(), HashMap::<u32, Sent>::new());
    let (mut position, mut complaint) = (0_u64, None);
    recording.frames(|frame, _| {
        position += 1;
        let Some((spi, number, iv)) = esp(frame) else { return };
        if let Some(first) = ivs.insert((spi, iv), position) {
            complaint.get_or_insert(format!("SPI {spi:#x}: IV {iv:02x?} in frames {first} and {position}"));
        }
        let sa = sent.entry(spi).or_default();
        if number <= sa.last_number {
            complaint.get_or_insert(format!("SPI {spi:#x}: number {number} after {}", sa.last_number));
        }
        sa.jumps += u32::from(number > sa.last_number + 1000);
        (sa.last_number, sa.packets) = (number, sa.packets + 1);
    })?;
    complaint.map_or(Ok(sent), |complaint| Err(complaint.into()))
}

fn every_restart_is_seen(mut sent: HashMap<u32, Sent>) -> Outcome<()> {
    for spi in [0x1001, 0x1002] {
        let sa = sent.remove(&spi).unwrap_or_default();
        println!("  SPI {spi:#x}: {} packets, {} restarts", sa.packets, sa.jumps);
        ensure(sa.jumps >= KILLS / 2, || format!("SPI {spi:#x}: only {} restarts can be seen", sa.jumps))?;
    }
    Ok(())
}

/// The sequence numbers of the ESP packets that A sends while `work` runs.
fn numbers_during(
    link: &mut Link,
    name: &str,
    work: impl FnOnce(&mut Link) -> Outcome<()>,
) -> Outcome<Vec<u32>> {
    let capture = Capture::start(&link.a, LINK, &folder(name)?.join("wan.pcap"), HEADERS)?;
    work(link)?;
    let mut numbers = Vec::new();
    capture.finish(&link.a)?.frames(|frame, _| numbers.extend(esp(frame).map(|(_, number, _)| number)))?;
    Ok(numbers)
}

/// Sends datagrams, which nobody answers, through the gateway on A until at least so many have left.
fn send(link: &Link, gateway: &Gateway, packets: u64) -> Outcome<()> {
    let count = || Ok::<_, Box<dyn std::error::Error>>(gateway.sa("a-b", "outbound")?["packets"].as_u64());
    let goal = count()?.unwrap_or(0) + packets;
    let socket = link.a.within(|| UdpSocket::bind((ADDRESSES[0], 0)))??;
    until("for packets to leave", || {
        // A few at a time: packets that exceed the TUN device's queue are lost.
        let left = goal.saturating_sub(count()?.unwrap_or(0));
        for _ in 0..left.min(100) {
            socket.send_to(b"anything", (ADDRESSES[1], 9))?;
        }
        Ok((left == 0).then_some(()))
    })
}

fn gives_back(link: &mut Link) -> TestResult {
    let [config, _] = pair(false)?;
    let folder = link.prepare(&config)?;
    let numbers = numbers_during(link, "stops", |link| {
        for packets in [5, 2000, 1, 1] {
            let gateway = Gateway::start(&link.a, &folder)?;
            send(link, &gateway, packets)?;
            gateway.stop()?;
        }
        Ok(())
    })?;
    let count = u32::try_from(numbers.len())?;
    ensure(count >= 2007 && numbers.iter().copied().eq(1..=count), || {
        format!("not every number was used, and once: {numbers:?}")
    })
}

/// The metrics' port is taken, so every start fails.
fn fails_without_using_numbers(link: &mut Link) -> TestResult {
    let [mut config, _] = pair(false)?;
    config.gateway = "metrics = \"127.0.0.1:9468\"".to_owned();
    let folder = link.prepare(&config)?;
    let taken = link.a.within(|| TcpListener::bind("127.0.0.1:9468"))??;
    for _ in 0..20 {
        run_to_end(&link.a, &folder)?.refused(4, "127.0.0.1:9468")?;
    }
    drop(taken);
    let numbers = numbers_during(link, "starts", |link| {
        let gateway = Gateway::start(&link.a, &folder)?;
        send(link, &gateway, 1)?;
        gateway.stop()
    })?;
    ensure(numbers.first() == Some(&1), || format!("the first numbers after failed starts are {numbers:?}"))
}

/// Runs the same gateway twice, the second time with a new store: numbers are repeated, IVs are not.
fn tells_stores_apart(link: &mut Link) -> TestResult {
    const PACKETS: u64 = 5;
    let [config, _] = pair(false)?;
    let capture = Capture::start(&link.a, LINK, &folder("stores")?.join("wan.pcap"), HEADERS)?;
    for _ in 0..2 {
        let (gateway, _) = link.start_a(&config)?;
        send(link, &gateway, PACKETS)?;
        gateway.stop()?;
    }
    let mut sent = Vec::new();
    capture.finish(&link.a)?.frames(|frame, _| sent.extend(esp(frame)))?;
    let distinct =
        |field: fn(&(u32, u32, [u8; 8])) -> u64| sent.iter().map(field).collect::<HashSet<_>>().len();
    let (numbers, ivs) =
        (distinct(|(_, number, _)| (*number).into()), distinct(|(.., iv)| u64::from_be_bytes(*iv)));
    ensure(sent.len() > numbers, || format!("the stores gave different numbers: {sent:02x?}"))?;
    ensure(sent.len() == ivs, || format!("an IV came twice: {sent:02x?}"))
}

/// SPI, sequence number and IV of a frame that carries ESP over IPv4 (RFC 4303 2, RFC 4106 3.1).
fn esp(frame: &[u8]) -> Option<(u32, u32, [u8; 8])> {
    let is_esp = frame.get(12..14)? == [8, 0] && *frame.get(23)? == 50;
    let esp = is_esp.then(|| frame.get(34..))??;
    let word = |at: usize| Some(u32::from_be_bytes(*esp.get(at..)?.first_chunk()?));
    Some((word(0)?, word(4)?, *esp.get(8..)?.first_chunk()?))
}
