//! Records what two charons say while a road warrior negotiates, and holds it against the recording that
//! measurements and other tests play.

use crate::connection::Connection;
use crate::negotiation::initiate;
use crate::network::Network;
use crate::played::{CHARONS, Part, Recording, Said};
use crate::rekey::until_renewed;
use crate::support::{Outcome, ensure};
use crate::traffic::{left, with_addresses};
use std::path::Path;
use std::time::Instant;
use testudo_judge::harness::{Suite, TestResult};
use testudo_wire::netlink::{self, messages};
use testudo_wire::xfrm::kind;
use testudo_wire::xfrm::message::{Body, Message};

/// Writes the recording anew, in place of comparing.
const AGAIN: &str = "TESTUDO_PLAYED";

/// What charon asks at its start, and whenever swanctl lists its SAs: nothing changes by that.
const ASKED: [u16; 4] = [kind::GET_SPD_INFO, kind::GET_SAD_INFO, kind::GET_SA, kind::GET_POLICY];

pub fn tests(suite: Suite<'_, Network>) -> Suite<'_, Network> {
    suite.test("charons_say_what_was_recorded_of_them", records)
}

/// A connection of a road warrior, A, with an address from B's pool.
pub fn of_road_warrior() -> Connection {
    Connection {
        selectors: [String::new(), "10.2.0.0/16".to_owned()],
        ike_of: ["vips = 0.0.0.0", "pools = inside"].map(str::to_owned),
        more: "pools { inside { addrs = 10.3.0.5/32 } }".to_owned(),
        ..Connection::default()
    }
}

/// What the daemons of both hosts said since their gateways started, in order, with its time.
fn said(network: &Network) -> Vec<(Instant, Said)> {
    let mut all = Vec::new();
    for (host, own) in network.hosts().into_iter().enumerate() {
        let passed = own.program().recorder.passed();
        let reserved = |sequence: u32| {
            let answers = passed.iter().filter(|(_, (from_daemon, _))| !from_daemon);
            let all = answers.flat_map(|(_, (_, bytes))| messages(bytes)).flatten();
            let mut of_request = all.filter(|message| message.header.sequence == sequence);
            of_request.find_map(|message| match Message::read(&message).ok()?.body {
                Body::NewSa(sa) => Some(sa.id.spi),
                _ => None,
            })
        };
        for (at, (_, bytes)) in passed.iter().filter(|(_, (from_daemon, _))| *from_daemon) {
            for message in messages(bytes).flatten() {
                let of = message.header.kind;
                if of < netlink::kind::FIRST_OF_PROTOCOL || ASKED.contains(&of) {
                    continue;
                }
                let reserves = of == kind::ALLOCATE_SPI;
                let reserved = reserves.then(|| reserved(message.header.sequence)).flatten();
                all.push((*at, Said { host, bytes: message.bytes.to_vec(), reserved }));
            }
        }
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

/// Parts as they were recorded, by how much had been said at the end of each.
struct Tape {
    ends: Vec<(&'static str, Instant)>,
}

impl Tape {
    fn part(&mut self, name: &'static str) {
        self.ends.push((name, Instant::now()));
    }

    fn recording(&self, network: &Network) -> Recording {
        let mut all = said(network).into_iter().peekable();
        let mut parts = Vec::new();
        for (name, end) in &self.ends {
            let mut said = Vec::new();
            while let Some((_, one)) = all.next_if(|(at, _)| at <= end) {
                said.push(one);
            }
            parts.push(Part { name: (*name).to_owned(), said });
        }
        Recording { parts }
    }
}

/// Types and lengths of what a host says in each part.
fn shape(recording: &Recording, host: usize) -> Vec<(String, Vec<(u16, usize)>)> {
    let of = |part: &Part| {
        let own = part.said.iter().filter(|said| said.host == host);
        let kinds = own.map(|said| (u16::from_ne_bytes([said.bytes[4], said.bytes[5]]), said.bytes.len()));
        (part.name.clone(), kinds.collect())
    };
    recording.parts.iter().map(of).collect()
}

fn records(network: &mut Network) -> TestResult {
    let charons = network.programs("install_virtual_ip_on = testudo0", &of_road_warrior())?;
    with_addresses(network)?;
    let mut tape = Tape { ends: Vec::new() };
    let mut spis = initiate(&charons)?;
    tape.part("negotiated");
    for (by, name) in [(0, "renewed by a"), (1, "renewed by b")] {
        charons[by].swanctl(&["--rekey", "--child", "net"])?;
        spis = until_renewed(&charons, spis)?;
        tape.part(name);
    }
    charons[0].swanctl(&["--terminate", "--ike", "net", "--timeout", "10"])?;
    charons[1].until("for the end of the IKE_SA at B", |sas| sas.is_empty().then_some(()))?;
    tape.part("ended");
    let recording = tape.recording(network);
    if std::env::var_os(AGAIN).is_some() {
        write(&recording)?;
    }
    let known = Recording::read(CHARONS).ok_or("the recording cannot be read")?;
    for host in [0, 1] {
        let (said, known) = (shape(&recording, host), shape(&known, host));
        ensure(said == known, || format!("{said:x?} in place of what was recorded, {known:x?}"))?;
    }
    left(network, charons)
}

fn write(recording: &Recording) -> Outcome<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/played/charons.txt");
    let head = "// Recorded by the test charons_say_what_was_recorded_of_them, with TESTUDO_PLAYED=1.\n";
    Ok(std::fs::write(path, format!("{head}{}", recording.text()))?)
}
