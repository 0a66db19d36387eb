//! Pings of a chosen length that must not be cut (`ping -M do -s`), and what hosts are told about them.

use super::{Outcome, ensure, wait};
use testudo_lab::namespaces::Namespace;

/// What AES-128-GCM leaves of a path, in bytes (RFC 4303 2: SPI, number, IV, trailer, ICV; a multiple of 4).
pub fn inner_mtu(path: usize, over_ipv6: bool, udp: bool) -> usize {
    let outer = if over_ipv6 { 40 } else { 20 };
    (path - outer - 8 * usize::from(udp) - 8 - 8 - 16) / 4 * 4 - 2
}

/// Pings once, with DF and so many bytes in all; what `ping` says.
pub fn ping_of(from: &Namespace, to: &str, bytes: usize, wait: &str) -> Outcome<(bool, String)> {
    let headers = if to.contains(':') { 48 } else { 28 };
    let payload = (bytes - headers).to_string();
    let mut command = from.command("ping");
    command.args(["-n", "-c", "1", "-W", wait, "-M", "do", "-s", &payload, to]);
    let output = wait::output(&mut command)?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok((output.status.success(), text.concat()))
}

/// A ping that must come back.
pub fn passes(from: &Namespace, to: &str, bytes: usize) -> Outcome<()> {
    let (is_answered, said) = ping_of(from, to, bytes, "10")?;
    ensure(is_answered, || format!("{bytes} bytes to {to}: {said}"))
}

/// A ping for which a gateway or the host's own notes say which MTU the path has.
pub fn is_told(from: &Namespace, to: &str, bytes: usize, mtu: usize) -> Outcome<()> {
    let (is_answered, said) = ping_of(from, to, bytes, "10")?;
    // Its words depend on whether a router or the host's own kernel says so, and on the IP version.
    let is_said = |how: &&str| said.contains(&format!("mtu{how}{mtu}"));
    let told = [" = ", "=", ": "].iter().any(is_said);
    ensure(told && !is_answered, || format!("{bytes} bytes to {to} should have met an MTU of {mtu}: {said}"))
}
