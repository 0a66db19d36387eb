//! What pluto negotiates with another one, and with charon.

use crate::connection::Connection;
use crate::host::Host;
use crate::libreswan::Pluto;
use crate::negotiation::{is_empty, is_in_force};
use crate::network::Network;
use crate::notices::acquire_of;
use crate::restart::AWAY;
use crate::strongswan::Charon;
use crate::support::{Outcome, ensure, wait};
use testudo_control::service::xfrm::Direction;
use testudo_judge::harness::{Suite, TestResult};
use testudo_wire::xfrm::{group, kind};

type Tests<'a> = Suite<'a, Network>;

/// Proposals for ESP, as pluto names them, and the suites that they are here.
const PROPOSALS: [(&str, &str); 4] = [
    ("aes_gcm128", "aes128gcm16"),
    ("aes_gcm256", "aes256gcm16"),
    ("chacha20_poly1305", "chacha20poly1305"),
    ("aes256-sha2_256", "aes256-sha256"),
];

pub fn tests(mut suite: Tests<'_>) -> Tests<'_> {
    for (proposal, name) in PROPOSALS {
        suite = suite.test(format!("plutos_negotiate_{proposal}"), move |network: &mut Network| {
            negotiate(network, &format!("esp={proposal}"), name)
        });
    }
    suite
        .test("plutos_negotiate_transport_mode", |network| {
            negotiate(network, "esp=aes_gcm128\ntype=transport", "aes128gcm16")
        })
        .test("plutos_negotiate_without_esn", |network| {
            negotiate(network, "esp=aes_gcm128\nesn=no", "aes128gcm16")
        })
        .test("plutos_negotiate_esp_in_udp", |network| {
            negotiate(network, "esp=aes_gcm128\nencapsulation=yes", "aes128gcm16")
        })
        .test("plutos_renew_sas_and_their_policies_stay", renewal)
        .test("a_packet_that_meets_a_trap_policy_makes_pluto_negotiate", acquire)
        .test("pluto_waits_for_a_gateway_that_is_away_and_does_not_spin", gateway_restarts)
        .test("charon_negotiates_with_pluto", with_charon)
}

/// The connection's lines at both ends.
pub fn lines(more: &str) -> String {
    let is_transport = more.contains("type=transport");
    let subnets = if is_transport { "" } else { "leftsubnet=10.1.0.0/16\nrightsubnet=10.2.0.0/16\n" };
    format!(
        "left=192.0.2.1\nright=192.0.2.2\nleftid=@a.example\nrightid=@b.example\n{subnets}authby=secret\nikev2=insist\n\
         ike=aes_gcm128-sha2_256-dh31\nleftupdown=%disabled\nrightupdown=%disabled\n{more}\n"
    )
}

/// Two plutos, and gateways that have nothing.
fn plutos(network: &mut Network, more: &str) -> Outcome<[Pluto; 2]> {
    network.a.start_gateway()?;
    network.b.start_gateway()?;
    Ok([Pluto::start(&network.a, &lines(more), "add")?, Pluto::start(&network.b, &lines(more), "add")?])
}

/// The SPIs of a host's only two SAs, inbound first.
fn spis_of(host: &Host) -> Option<[u32; 2]> {
    let now = host.gateway().memory.get();
    let (inbound, outbound) = (now.sas_of(true), now.sas_of(false));
    ((inbound.len(), outbound.len()) == (1, 1)).then(|| [inbound[0].key.spi, outbound[0].key.spi])
}

fn all_is_well(network: &Network, plutos: &[Pluto; 2]) -> Outcome<()> {
    for (host, pluto) in network.hosts().into_iter().zip(plutos) {
        host.nothing_refused()?;
        let complaints = pluto.complaints();
        let name = host.namespace.name();
        ensure(complaints.is_empty(), || format!("{name}: pluto complains:\n{}", complaints.join("\n")))?;
    }
    Ok(())
}

/// Negotiates, and waits until the SAs are in force at both ends: the SPIs of A, inbound first.
fn initiate(network: &Network, plutos: &[Pluto; 2]) -> Outcome<[u32; 2]> {
    plutos[0].whack(&["--initiate", "--name", "net"])?;
    until_both(network, &[])
        .map_err(|error| format!("{error}\n{}\n{}", plutos[0].log(), plutos[1].log()).into())
}

/// Waits until both hosts have two SAs, none with one of these SPIs.
fn until_both(network: &Network, before: &[u32]) -> Outcome<[u32; 2]> {
    wait::until("for the same SAs at both ends", || {
        let (Some(a), Some(b)) = (spis_of(&network.a), spis_of(&network.b)) else { return Ok(None) };
        Ok((a == [b[1], b[0]] && !a.iter().any(|spi| before.contains(spi))).then_some(a))
    })
}

fn negotiate(network: &mut Network, more: &str, suite: &str) -> TestResult {
    let plutos = plutos(network, more)?;
    let spis = initiate(network, &plutos)?;
    is_in_force(network, spis, suite)?;
    let (in_udp, has_esn) = (more.contains("encapsulation=yes"), !more.contains("esn=no"));
    for sa in network.a.gateway().memory.get().sas.values() {
        let found = (sa.attributes.encapsulation().is_some(), sa.has_extended_numbers());
        ensure(found == (in_udp, has_esn), || format!("in UDP and ESN are {found:?}: {sa:?}"))?;
    }
    ends(network, plutos)
}

/// Ends both: nothing is left at either end, and nobody complains.
fn ends(network: &Network, plutos: [Pluto; 2]) -> TestResult {
    all_is_well(network, &plutos)?;
    for pluto in plutos {
        pluto.stop()?;
    }
    for host in network.hosts() {
        // pluto lets Neighbor Discovery pass, and leaves these policies.
        let now = host.gateway().memory.get();
        let is_over = now.sas.is_empty() && now.policies.values().all(|policy| policy.templates.is_empty());
        ensure(is_over, || format!("{}: {now:?}", host.namespace.name()))?;
    }
    Ok(())
}

fn renewal(network: &mut Network) -> TestResult {
    let plutos = plutos(network, "esp=aes_gcm128")?;
    let mut spis = initiate(network, &plutos)?;
    for at in [0, 1] {
        plutos[at].whack(&["--rekey-ipsec", "--name", "net"])?;
        spis = until_both(network, &spis).map_err(|error| format!("{error}\n{}", plutos[at].log()))?;
        is_in_force(network, spis, "aes128gcm16")?;
        plutos[at].whack(&["--rekey-ike", "--name", "net"])?;
    }
    ensure(until_both(network, &[])? == spis, || "the SAs went with the IKE_SA".to_owned())?;
    for host in network.hosts() {
        let deleted = host.gateway().recorder.requests_of(kind::DELETE_POLICY);
        ensure(deleted == 0, || format!("{deleted} policies were deleted"))?;
    }
    ends(network, plutos)
}

fn acquire(network: &mut Network) -> TestResult {
    network.a.start_gateway()?;
    network.b.start_gateway()?;
    let lines = lines("esp=aes_gcm128");
    let b = Pluto::start(&network.b, &lines, "add")?;
    let plutos = [Pluto::start(&network.a, &lines, "ondemand")?, b];
    wait::until("for a trap policy at A", || {
        let now = network.a.gateway().memory.get();
        let policies = now.policies_of(Direction::Outbound);
        Ok(policies.iter().any(|policy| !policy.templates.is_empty()).then_some(()))
    })
    .map_err(|error| format!("{error}\n{}", plutos[0].log()))?;
    let message = acquire_of(&network.a, ["10.1.0.1", "10.2.0.1"])?;
    network.a.gateway().tell(group::ACQUIRE, &message);
    let spis = until_both(network, &[]).map_err(|error| format!("{error}\n{}", plutos[0].log()))?;
    is_in_force(network, spis, "aes128gcm16")?;
    // It deletes a policy for the packet's own addresses that it has not added: a kernel has none either.
    let refusals = network.a.gateway().recorder.refusals();
    let is_expected =
        |line: &String| line.starts_with(&format!("type {:#x}, errno -2,", kind::DELETE_POLICY));
    ensure(refusals.iter().all(is_expected), || refusals.join("\n"))?;
    network.b.nothing_refused()
}

fn gateway_restarts(network: &mut Network) -> TestResult {
    let plutos = plutos(network, "esp=aes_gcm128")?;
    initiate(network, &plutos)?;
    let before = plutos[0].ticks()?;
    network.a.gateway = None;
    // What is measured is this time itself.
    std::thread::sleep(AWAY);
    let used = plutos[0].ticks()? - before;
    ensure(used <= 10, || format!("pluto ran for {used} ticks of 300 while the gateway was away"))?;
    network.a.start_gateway()?;
    plutos[0].whack(&["--terminate", "--name", "net"])?;
    wait::until("for the end of B's SAs", || {
        Ok(network.b.gateway().memory.get().sas.is_empty().then_some(()))
    })
    .map_err(|error| format!("{error}\n{}", plutos[0].log()))?;
    let spis = initiate(network, &plutos)?;
    is_in_force(network, spis, "aes128gcm16")
}

fn with_charon(network: &mut Network) -> TestResult {
    network.a.start_gateway()?;
    network.b.start_gateway()?;
    let connection = Connection { esp: "aes256gcm16-x25519-esn".to_owned(), ..Connection::default() };
    let charon = Charon::start(&network.a, "")?;
    charon.load(&connection.of_a().replace("of both", "of both, and long enough"))?;
    let pluto = Pluto::start(&network.b, &lines("esp=aes_gcm256"), "add")?;
    charon
        .swanctl(&["--initiate", "--child", "net", "--timeout", "15"])
        .map_err(|error| format!("{error}\n{}", pluto.log()))?;
    let mut spis = until_both(network, &[]).map_err(|error| format!("{error}\n{}", pluto.log()))?;
    is_in_force(network, spis, "aes256gcm16")?;
    charon.swanctl(&["--rekey", "--child", "net"])?;
    spis =
        until_both(network, &spis).map_err(|error| format!("{error}\n{}\n{}", charon.log(), pluto.log()))?;
    pluto.whack(&["--rekey-ipsec", "--name", "net"])?;
    spis = until_both(network, &spis).map_err(|error| format!("{error}\n{}", pluto.log()))?;
    is_in_force(network, spis, "aes256gcm16")?;
    for host in network.hosts() {
        host.nothing_refused()?;
    }
    pluto.stop()?;
    charon.until("for the end of the IKE_SA", |sas| sas.is_empty().then_some(()))?;
    ensure(is_empty(&network.a)?, || format!("{:?}", network.a.gateway().memory.get()))
}
