//! What two charons negotiate is in force at both ends, as a kernel would have it.

use crate::connection::Connection;
use crate::host::Host;
use crate::network::{LINK, Network};
use crate::strongswan::Charon;
use crate::support::{Outcome, ensure, wait};
use std::process::Command;
use testudo_control::service::xfrm::Direction;
use testudo_judge::harness::{Suite, TestResult};

pub use crate::pair::initiate;

type Tests<'a> = Suite<'a, Network>;

/// Proposals for ESP, and the suites that they are here.
const PROPOSALS: [(&str, &str); 10] = [
    ("aes128gcm16-x25519", "aes128gcm16"),
    ("aes256gcm16-x25519-esn", "aes256gcm16"),
    ("aes128gcm8-noesn", "aes128gcm8"),
    ("aes256ccm16", "aes256ccm16"),
    ("chacha20poly1305-esn", "chacha20poly1305"),
    ("aes128-sha256-esn", "aes128-sha256"),
    ("aes256-sha512", "aes256-sha512"),
    ("aes128ctr-sha384", "aes128ctr-sha384"),
    ("3des-sha1", "3des-sha1"),
    ("null-sha256", "null-sha256"),
];

pub fn tests(mut suite: Tests<'_>) -> Tests<'_> {
    for (proposal, name) in PROPOSALS {
        let connection = Connection::esp(proposal);
        suite = suite.test(format!("charons_negotiate_{proposal}"), move |network: &mut Network| {
            negotiates(network, &connection, name)
        });
    }
    suite
        .test("charons_negotiate_transport_mode", |network| {
            negotiates(network, &Connection::transport(), "aes128gcm16")
        })
        .test("charons_negotiate_over_ipv6", |network| {
            let addresses = ["2001:db8::1", "2001:db8::2"].map(str::to_owned);
            negotiates(network, &Connection { addresses, ..Connection::default() }, "aes128gcm16")
        })
        .test("charons_negotiate_esp_in_udp", esp_in_udp)
        .test("charons_negotiate_ah", |network| {
            let connection = Connection {
                esp: String::new(),
                child: "ah_proposals = sha256".to_owned(),
                ..Connection::default()
            };
            negotiates(network, &connection, "null-sha256")
        })
        .test("charons_negotiate_by_certificates", by_certificates)
        .test("a_road_warrior_gets_an_address", road_warrior)
        .test("ip_xfrm_shows_what_a_kernel_would_have_of_a_tunnel", is_shown)
}

/// The SAs at both ends are those that the daemons say, with the same keys.
pub fn is_in_force(network: &Network, [to_a, to_b]: [u32; 2], suite: &str) -> Outcome<()> {
    let (a, b) = (network.a.gateway().memory.get(), network.b.gateway().memory.get());
    for (inbound, own, other, spi) in [(true, &a, &b, to_a), (false, &a, &b, to_b)] {
        let (own, other) = (own.sas_of(inbound), other.sas_of(!inbound));
        let ([own], [other]) = (&own[..], &other[..]) else {
            return Err(format!("one SA of a kind at each end, not {own:?} and {other:?}").into());
        };
        ensure(own.key == other.key && own.key.spi == spi, || format!("{own:?}\nis not\n{other:?}"))?;
        ensure(own.source == other.source, || format!("{own:?}\nis not from where it is at\n{other:?}"))?;
        ensure(own.suite == other.suite && own.suite.is_some_and(|own| own.to_string() == suite), || {
            format!("{:?} and {:?} in place of {suite}", own.suite, other.suite)
        })?;
        let keys = [own, other].map(|sa| {
            (
                sa.attributes.aead().cloned(),
                sa.attributes.cipher().cloned(),
                sa.attributes.integrity_truncated().cloned(),
            )
        });
        ensure(keys[0] == keys[1], || format!("the keys of {spi:x} are not the same"))?;
    }
    Ok(())
}

/// A host has neither SAs nor policies, beside those that let IKE pass.
pub fn is_empty(host: &Host) -> Outcome<bool> {
    let now = host.gateway().memory.get();
    let policies = Direction::ALL.map(|direction| now.policies_of(direction).len());
    Ok(now.sas.is_empty() && policies == [0; 3])
}

fn negotiates(network: &mut Network, connection: &Connection, suite: &str) -> TestResult {
    let charons = network.charons(connection)?;
    let spis = initiate(&charons)?;
    is_in_force(network, spis, suite)?;
    let extended = connection.esp.ends_with("-esn");
    for sa in network.a.gateway().memory.get().sas.values() {
        let window = if extended && !sa.is_inbound { 1 } else { 32 * u32::from(sa.is_inbound) };
        let found = (sa.has_extended_numbers(), sa.replay_window());
        ensure(found == (extended, window), || format!("numbers and window are {found:?}: {sa:?}"))?;
    }
    ends(network, charons)
}

/// Ends the IKE_SA: nothing is left at either end, and nobody complains.
pub fn ends(network: &Network, charons: [Charon; 2]) -> TestResult {
    charons[0].swanctl(&["--terminate", "--ike", "net", "--timeout", "10"])?;
    charons[1].until("for the end of the IKE_SA at B", |sas| sas.is_empty().then_some(()))?;
    for host in network.hosts() {
        ensure(is_empty(host)?, || format!("{}: {:?}", host.namespace.name(), host.gateway().memory.get()))?;
    }
    network.all_is_well(&charons)?;
    for charon in charons {
        charon.stop()?;
    }
    Ok(())
}

fn esp_in_udp(network: &mut Network) -> TestResult {
    let connection = Connection { ike: "encap = yes".to_owned(), ..Connection::default() };
    let charons = network.charons(&connection)?;
    is_in_force(network, initiate(&charons)?, "aes128gcm16")?;
    for host in network.hosts() {
        for sa in host.gateway().memory.get().sas.values() {
            let ports =
                sa.attributes.encapsulation().map(|udp| (udp.kind, udp.source_port, udp.destination_port));
            ensure(ports == Some((2, 4500, 4500)), || format!("{ports:?} of {sa:?}"))?;
        }
    }
    ends(network, charons)
}

/// Certificates of a root and of both ends, made by strongSwan's own program.
pub fn issue(network: &Network, charons: &[Charon; 2]) -> Outcome<()> {
    let script = "set -e; cd $0; export STRONGSWAN_CONF=$1/strongswan.conf\n\
        pki --gen --type ed25519 >ca.key; pki --self --in ca.key --type priv --ca --dn CN=root >ca.crt\n\
        for end in a b; do pki --gen --type ecdsa --size 256 >$end.key\n\
        pki --issue --in $end.key --type priv --cacert ca.crt --cakey ca.key --dn CN=$end.example \
        --san $end.example >$end.crt; done";
    let folder = network.root.join("certificates");
    std::fs::create_dir_all(&folder)?;
    let output =
        wait::output(Command::new("/bin/sh").args(["-c", script]).arg(&folder).arg(charons[0].folder()))?;
    ensure(output.status.success(), || String::from_utf8_lossy(&output.stderr).into_owned())?;
    for (end, charon) in ["a", "b"].into_iter().zip(charons) {
        let copy = |from: &str, to: &str| std::fs::copy(folder.join(from), charon.folder().join(to));
        copy("ca.crt", "x509ca/ca.crt")?;
        copy(&format!("{end}.crt"), "x509/own.crt")?;
        copy(&format!("{end}.key"), "private/own.key")?;
    }
    Ok(())
}

fn by_certificates(network: &mut Network) -> TestResult {
    let auth = [0, 1].map(|_| "auth = pubkey\n certs = own.crt".to_owned());
    let connection = Connection { auth, ..Connection::default() };
    let charons = network.charons(&Connection::default())?;
    issue(network, &charons)?;
    charons[0].load(&connection.of_a())?;
    charons[1].load(&connection.of_b())?;
    is_in_force(network, initiate(&charons)?, "aes128gcm16")?;
    ends(network, charons)
}

/// The pool of addresses is B's, and A puts the one that it gets on its interface.
fn road_warrior(network: &mut Network) -> TestResult {
    let connection = Connection {
        selectors: [String::new(), "0.0.0.0/0".to_owned()],
        ike_of: ["vips = 0.0.0.0", "pools = inside"].map(str::to_owned),
        more: "pools { inside { addrs = 10.3.0.5/32 } }".to_owned(),
        ..Connection::default()
    };
    let charons = network.charons(&connection)?;
    is_in_force(network, initiate(&charons)?, "aes128gcm16")?;
    let addresses = || network.a.namespace.run(&["ip", "-4", "address", "show", "dev", LINK]);
    ensure(addresses()?.contains("inet 10.3.0.5/32"), || format!("no virtual address: {:?}", addresses()))?;
    for (host, way) in
        [(&network.a, "src 10.3.0.5/32 dst 0.0.0.0/0"), (&network.b, "src 0.0.0.0/0 dst 10.3.0.5/32")]
    {
        let shown = host.ip_xfrm(&["policy", "list", "dir", "out"])?;
        ensure(shown.starts_with(way), || format!("not {way}: {shown}"))?;
    }
    ends(network, charons)?;
    ensure(!addresses()?.contains("10.3.0.5"), || "the virtual address stays".to_owned())
}

/// SPIs and keys are not the same twice; the rest is what Linux 6.1 shows after charon 5.9.8.
fn is_shown(network: &mut Network) -> TestResult {
    let charons = network.charons(&Connection::default())?;
    let [to_a, to_b] = initiate(&charons)?;
    let states = network.a.ip_xfrm(&["state", "list", "nokeys"])?;
    let expected = format!(
        "src 192.0.2.1 dst 192.0.2.2\n\
         \tproto esp spi {to_b:#010x} reqid 1 mode tunnel\n\
         \treplay-window 0 flag af-unspec\n\
         \taead rfc4106(gcm(aes)) <<Keys hidden>> 128\n\
         \tanti-replay context: seq 0x0, oseq 0x0, bitmap 0x00000000\n\
         src 192.0.2.2 dst 192.0.2.1\n\
         \tproto esp spi {to_a:#010x} reqid 1 mode tunnel\n\
         \treplay-window 32 flag af-unspec\n\
         \taead rfc4106(gcm(aes)) <<Keys hidden>> 128\n\
         \tanti-replay context: seq 0x0, oseq 0x0, bitmap 0x00000000\n"
    );
    ensure(states == expected, || format!("{states}\nis not\n{expected}"))?;
    let policies = network.a.ip_xfrm(&["policy", "list"])?;
    let expected = format!(
        "src 10.1.0.0/16 dst 10.2.0.0/16 \n\
         \tdir out priority 383615 ptype main \n\
         \ttmpl src 192.0.2.1 dst 192.0.2.2\n\
         \t\tproto esp spi {to_b:#010x} reqid 1 mode tunnel\n\
         src 10.2.0.0/16 dst 10.1.0.0/16 \n\
         \tdir fwd priority 383615 ptype main \n\
         \ttmpl src 192.0.2.2 dst 192.0.2.1\n\
         \t\tproto esp reqid 1 mode tunnel\n\
         src 10.2.0.0/16 dst 10.1.0.0/16 \n\
         \tdir in priority 383615 ptype main \n\
         \ttmpl src 192.0.2.2 dst 192.0.2.1\n\
         \t\tproto esp reqid 1 mode tunnel\n"
    );
    ensure(policies == expected, || format!("{policies}\nis not\n{expected}"))?;
    ends(network, charons)
}
