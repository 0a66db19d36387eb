//! An interface whose connection runs VPE over SAs that two charons negotiate as ESP.

use crate::connection::Connection;
use crate::host::Host;
use crate::negotiation::initiate;
use crate::network::{LINK, Network};
use crate::rekey::until_renewed;
use crate::strongswan::Charon;
use crate::support::{Outcome, ensure, folder, wait};
use crate::traffic::{INNER, both_ways, drops, ends, logs, lost, pings, with_addresses};
use std::collections::BTreeSet;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::capture::{Capture, HEADERS, Recording};

type Tests<'a> = Suite<'a, Network>;

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite
        .test("charons_negotiate_vpe_and_no_packet_is_lost_while_it_is_renewed", |network| {
            renewed(network, "", "aes128gcm16-x25519", (253, None))
        })
        .test("charons_negotiate_vpe_in_udp", |network| {
            renewed(network, "encap = yes", "chacha20poly1305-x25519", (17, Some(4501)))
        })
        .test("a_proposal_that_vpe_has_not_is_refused", refused)
}

const INTERFACE: &str = "[[interface]]\nname = \"ipsec0\"\nif_id = 42\nencapsulation = \"vpe\"\n";

/// Packets with this DSCP are of a class of their own, where the section has these lines, too.
pub const DSCP: u8 = 46;
pub const CLASSES: &str = "classes = [[46]]\n";

/// A connection that is marked by its if_id.
pub fn marked(ike: &str, esp: &str) -> Connection {
    let child = "if_id_in = 42\n if_id_out = 42".to_owned();
    Connection { ike: ike.to_owned(), child, ..Connection::esp(esp) }
}

/// With further lines of the section, and further settings of both charons.
pub fn start(
    network: &mut Network,
    lines: &str,
    settings: &str,
    connection: &Connection,
) -> Outcome<[Charon; 2]> {
    let section = format!("{INTERFACE}{lines}");
    let settings = format!("interfaces_ignore = testudo0, ipsec0\n {settings}");
    let charons = network.programs_with([section.as_str(); 2], &settings, connection)?;
    with_addresses(network)?;
    for (host, other) in network.hosts().into_iter().zip([INNER[1], INNER[0]]) {
        host.namespace.route_into(&format!("{other}/32"), "ipsec0")?;
    }
    Ok(charons)
}

/// Packets of both classes have come to a host, in windows of their own.
pub fn has_windows_of_both_classes(host: &Host) -> Outcome<()> {
    wait::until("for windows of both classes", || {
        let list = host.program().process.ask_json(&["sa", "list"])?;
        let inbound = list.as_array().into_iter().flatten().find(|sa| sa["direction"] == "inbound");
        let tops = inbound.and_then(|sa| sa["windows"]["tops"].as_array());
        let class = |top: &serde_json::Value| Some(top["window"].as_u64()? % 2);
        let classes: BTreeSet<u64> = tops.into_iter().flatten().filter_map(class).collect();
        Ok((classes.len() == 2).then_some(()))
    })
}

/// Datagrams of this protocol, at this port if it has some, and those of ESP, also in UDP beside IKE.
fn carried(recording: &Recording, (protocol, port): (u8, Option<u16>)) -> Outcome<(usize, usize)> {
    const IP_AT: usize = 14;
    let (mut of_vpe, mut of_esp) = (0, 0);
    recording.frames(|frame, _| {
        if frame.get(12..14) != Some(&[8, 0]) {
            return;
        }
        let ip = frame.get(IP_AT..).unwrap_or_default();
        let own = ip.get(9).copied();
        let destination = ip.get(22..24).map(|port| u16::from_be_bytes([port[0], port[1]]));
        let has_port = port.is_none() || destination == port;
        of_vpe += usize::from(own == Some(protocol) && has_port);
        // IKE has four zeros at its port (RFC 3948 2.2), ESP does not, and a keepalive has one byte.
        let is_beside_ike = own == Some(17) && destination == Some(4500);
        let content = ip.get(28..32).unwrap_or_default();
        let is_esp = is_beside_ike && content.len() == 4 && content != [0; 4];
        of_esp += usize::from(own == Some(50) || is_esp);
    })?;
    Ok((of_vpe, of_esp))
}

fn renewed(network: &mut Network, ike: &str, esp: &str, expected: (u8, Option<u16>)) -> TestResult {
    let charons = start(network, "", "", &marked(ike, esp))?;
    let file = folder("vpe")?.join("wan.pcap");
    let capture = Capture::start(&network.a.namespace, LINK, &file, HEADERS)?;
    let mut spis = initiate(&charons).map_err(|error| format!("{error}\n{}", logs(network, &charons)))?;
    pings(network, &charons)?;
    let streams = both_ways(network)?;
    for by in [0, 1, 0] {
        charons[by].swanctl(&["--rekey", "--child", "net"])?;
        spis = until_renewed(&charons, spis)?;
        for stream in &streams {
            stream.flows(100)?;
        }
    }
    let missing = lost(streams)?;
    ensure(missing.iter().all(Vec::is_empty), || format!("lost: {missing:?}\n{}", logs(network, &charons)))?;
    let (of_vpe, of_esp) = carried(&capture.finish(&network.a.namespace)?, expected)?;
    ensure(of_vpe > 400 && of_esp == 0, || format!("{of_vpe} packets of VPE and {of_esp} of ESP"))?;
    for host in network.hosts() {
        let dropped = drops(host)?;
        ensure(dropped.is_empty(), || format!("{dropped:?}"))?;
        let list = host.program().process.ask_json(&["sa", "list"])?;
        let sas = list.as_array().ok_or("no list")?;
        let is_right = |sa: &serde_json::Value| sa["interface"] == "ipsec0" && sa["protocol"] == "vpe";
        ensure(!sas.is_empty() && sas.iter().all(is_right), || format!("{list:#}"))?;
    }
    network.all_is_well(&charons)?;
    ends(network, charons)
}

/// The daemon hears why, and nothing passes.
fn refused(network: &mut Network) -> TestResult {
    let charons = start(network, "", "", &marked("", "aes128-sha256"))?;
    let said = charons[0].swanctl(&["--initiate", "--child", "net", "--timeout", "10"]);
    ensure(said.is_err(), || "aes128-sha256 is no suite of VPE".to_owned())?;
    // The end that answers is the first to know both keys.
    let refusals: Vec<_> =
        network.hosts().into_iter().flat_map(|host| host.program().recorder.refusals()).collect();
    // ENOSYS; charon does not ask for the text that goes with it.
    let is_told = refusals.iter().any(|refusal| refusal.contains("errno -38"));
    ensure(is_told, || format!("{refusals:?}"))?;
    for charon in charons {
        charon.stop()?;
    }
    for host in [&mut network.a, &mut network.b] {
        if let Some(program) = host.program.take() {
            program.process.stop()?;
        }
    }
    Ok(())
}
