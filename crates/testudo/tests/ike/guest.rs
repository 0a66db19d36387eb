//! A Linux kernel at the other end: a guest of `testudo_judge::linux_peer` with its own ESP and its own
//! charon. A has the whole program.
//!
//! ```text
//!   A: charon, testudo ── TAP ════ eth0 ── guest: charon, Linux's XFRM
//! ```

use crate::connection::Connection;
use crate::network::{Network, daemons, repository, runs};
use crate::strongswan::{Charon, PLUGINS, only_child};
use crate::support::{Outcome, ensure, wait};
use crate::traffic::{INNER, drops, with_addresses};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use testudo_judge::harness::{Suite, TestResult};
use testudo_judge::linux_peer::{LinuxPeer, Options};

type Tests<'a> = Suite<'a, Network>;

/// A's interface towards the guest.
const TAP: &str = "guest";
const OUTER: [&str; 2] = ["198.18.0.1", "198.18.0.2"];
const PROPOSALS: [&str; 3] =
    ["aes256gcm16-x25519", "aes128-sha256-x25519-esn", "chacha20poly1305-x25519-esn"];
/// Of all commands in the guest.
const ENVIRONMENT: &str = "export LD_LIBRARY_PATH=/usr/lib/ipsec STRONGSWAN_CONF=/etc/strongswan.conf \
                           SWANCTL_DIR=/etc/swanctl\n";

pub fn tests(suite: Tests<'_>) -> Tests<'_> {
    suite.test("linux_with_a_charon_of_its_own_negotiates_renews_and_loses_nothing", with_linux)
}

fn image() -> PathBuf {
    daemons().with_file_name("ike-guest")
}

/// Builds the guest's image, while there is a network.
pub fn prepare() -> Outcome<()> {
    let peer = LinuxPeer::default_cache();
    LinuxPeer::prepare_image(&peer)?;
    let script = repository().join("tests/ike/guest-image.sh");
    runs(Command::new(script).arg(peer).arg(daemons()).arg(image()))
}

/// Boots the guest, with addresses and a charon that can be spoken to.
fn boot(network: &Network) -> Outcome<LinuxPeer> {
    let a = &network.a.namespace;
    a.tap(TAP)?;
    a.address(TAP, &format!("{}/24", OUTER[0]))?;
    let mut peer = LinuxPeer::boot_with(a, TAP, &image(), &Options::default())?;
    peer.run(&format!(
        "set -e\nip address add {}/24 dev eth0; ip address add {}/32 dev lo; ip link set eth0 up\n\
         mkdir -p /etc/swanctl /var/run\n\
         cat >/etc/strongswan.conf <<'END'\n\
         charon-systemd {{\n load = {PLUGINS}\n delete_rekeyed_delay = 1\n\
         plugins {{ vici {{ socket = unix:///run/vici }} }}\n journal {{ default = -1 }}\n\
         filelog {{ stderr {{ default = 1\n knl = 1 }} }}\n}}\n\
         swanctl {{ load = pem }}\nEND\n",
        OUTER[1], INNER[1],
    ))?;
    Ok(peer)
}

/// A swanctl of the guest with these words.
fn swanctl(peer: &mut LinuxPeer, words: &str) -> Outcome<String> {
    Ok(peer.run(&format!("{ENVIRONMENT}exec swanctl {words} --uri unix:///run/vici"))?)
}

fn with_linux(network: &mut Network) -> TestResult {
    network.a.start_program()?;
    network.b.without_gateway();
    let mut peer = boot(network)?;
    let daemon = peer.background(&format!("{ENVIRONMENT}exec charon-systemd"))?;
    let charon = Charon::start(&network.a, "")?;
    with_addresses(network)?;
    let result = all(network, &charon, &mut peer);
    let _ = network.a.namespace.run(&["ip", "link", "delete", TAP]);
    let said = peer.stop(daemon)?;
    result.map_err(|error| format!("{error}\nA:\n{}\nthe guest:\n{said}", charon.log()))?;
    network.a.nothing_refused()?;
    charon.stop()?;
    network.a.program.take().map_or(Ok(()), |program| program.process.stop())
}

fn all(network: &Network, charon: &Charon, peer: &mut LinuxPeer) -> Outcome<()> {
    peer.wait_until(&format!("{ENVIRONMENT}swanctl --stats --uri unix:///run/vici"), wait::PATIENCE)?;
    for proposal in PROPOSALS {
        under(network, charon, peer, proposal).map_err(|error| format!("{proposal}: {error}"))?;
    }
    Ok(())
}

/// Negotiates by A; each end renews while numbered packets go there and back; then all ends.
fn under(network: &Network, charon: &Charon, peer: &mut LinuxPeer, proposal: &str) -> Outcome<()> {
    let addresses = OUTER.map(str::to_owned);
    let connection = Connection { addresses, ..Connection::esp(proposal) };
    charon.load(&connection.of_a())?;
    peer.run(&format!("cat >/etc/swanctl/swanctl.conf <<'END'\n{}\nEND\n", connection.of_b()))?;
    swanctl(peer, "--load-all --noprompt")?;
    charon.swanctl(&["--initiate", "--child", "net", "--timeout", "15"])?;
    let mut spis = charon.until("for a CHILD_SA", only_child)?;
    let words = ["-n", "-q", "-c", "300", "-i", "0.01", "-W", "5", "-I", INNER[0], INNER[1]];
    thread::scope(|scope| -> Outcome<()> {
        let ping =
            || wait::output(network.a.namespace.command("ping").args(words)).map_err(|e| e.to_string());
        let pings = scope.spawn(ping);
        for by_guest in [false, true] {
            if by_guest {
                swanctl(peer, "--rekey --child net")?;
            } else {
                charon.swanctl(&["--rekey", "--child", "net"])?;
            }
            let is_new = |now: &[u32; 2]| now.iter().all(|spi| !spis.contains(spi));
            spis = charon.until("for another CHILD_SA", |sas| only_child(sas).filter(is_new))?;
        }
        let said = pings.join().map_err(|_| "ping has panicked")??.stdout;
        let said = String::from_utf8_lossy(&said).into_owned();
        ensure(said.contains("300 received, 0% packet loss"), || said)
    })?;
    let dropped = drops(&network.a)?;
    ensure(dropped.is_empty(), || format!("A has dropped {dropped:?}"))?;
    charon.swanctl(&["--terminate", "--ike", "net", "--timeout", "10"])?;
    let left = peer.run("ip xfrm state")?;
    ensure(left.is_empty(), || format!("SAs are left in the guest: {left}"))
}
