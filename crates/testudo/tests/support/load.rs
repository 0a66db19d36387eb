//! How much a path carries, and what the kernel has lost on it.

use super::Outcome;
use std::time::Instant;
use testudo_lab::namespaces::Namespace;
use testudo_lab::traffic::{End, Load, Stream};

/// What the kernel has dropped in a namespace: in full queues of sockets and of interfaces.
pub fn kernel_drops(namespace: &Namespace) -> Outcome<u64> {
    let read = |file: &str| namespace.run(&["cat", file]);
    let columns =
        |line: &str| -> Vec<u64> { line.split_whitespace().filter_map(|word| word.parse().ok()).collect() };
    let snmp = read("/proc/net/snmp")?;
    let mut udp = snmp.lines().filter(|line| line.starts_with("Udp:"));
    let (names, counts) = (udp.next().ok_or("no counters of UDP")?, udp.next().ok_or("no counters of UDP")?);
    let names = names.split_whitespace().skip(1);
    let of_udp = names.zip(columns(counts));
    let of_udp: u64 = of_udp.filter(|(name, _)| name.ends_with("bufErrors")).map(|(_, count)| count).sum();
    let of_udp6 = read("/proc/net/snmp6")?;
    let of_udp6 = of_udp6.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let of_udp6 = of_udp6.filter(|(name, _)| name.starts_with("Udp6") && name.ends_with("bufErrors"));
    let of_udp6: u64 = of_udp6.flat_map(|(_, count)| columns(count)).sum();
    // Of raw sockets, which have no counters of their own, only those that are open: the gateways'.
    let mut of_raw = 0;
    for table in ["raw", "raw6"] {
        let sockets = read(&format!("/proc/net/{table}"))?;
        let drops = |line: &str| line.split_whitespace().last()?.parse::<u64>().ok();
        of_raw += sockets.lines().skip(1).filter_map(drops).sum::<u64>();
    }
    // After the name: eight counters received, of which the fourth is what was dropped, and eight sent.
    let devices = read("/proc/net/dev")?;
    let of_devices = devices.lines().filter_map(|line| line.split_once(':'));
    let of_devices: u64 =
        of_devices.map(|(_, counts)| columns(counts)).map(|counts| counts[3] + counts[11]).sum();
    Ok(of_udp + of_udp6 + of_raw + of_devices)
}

/// Datagrams of `bytes` a second that arrive if as many are sent as possible.
pub fn capacity([from, to]: [End<'_>; 2], bytes: usize) -> Outcome<f64> {
    let stream = Stream::start_with(from, to, Load { per_second: f64::INFINITY, bytes })?;
    stream.flows(2_000)?;
    let (began, before) = (Instant::now(), stream.received());
    stream.flows(20_000)?;
    let rate = (stream.received() - before) as f64 / began.elapsed().as_secs_f64();
    stream.end()?;
    Ok(rate)
}
