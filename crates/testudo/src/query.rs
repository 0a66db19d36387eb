//! Verbs that query a running gateway.

use crate::cli::{ExplainArgs, QueryArgs, SideArg};
use crate::exit::{Failure, Kind, failure};
use crate::out::outln;
use crate::placement;
use crate::table::{cell, print};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use testudo_control::config::{message, protocol_name};
use testudo_control::service::api::{AskError, ask};
use testudo_control::service::daemon::control_path;
use testudo_lab::table::{Table, grouped};

/// Reserved by IANA: no policy has a reason to name it.
const UNNAMED_PROTOCOL: u8 = 255;

/// The control socket of a gateway if nothing else is given.
pub const DEFAULT_CONTROL: &str = "/run/testudo/control.sock";

/// The variable that names the control socket where the command line does not.
const CONTROL_VARIABLE: &str = "TESTUDO_CONTROL";

/// The control socket that the environment names.
pub fn control_variable() -> Option<PathBuf> {
    std::env::var_os(CONTROL_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// What a gateway answers, or why it refuses.
pub type Answer = Result<Value, String>;

/// The gateway to query.
pub struct Asked {
    socket: PathBuf,
    /// Whether the user named no gateway.
    is_default: bool,
}

impl Asked {
    /// The gateway named by the command line, else by the environment, else that of the systemd unit.
    pub fn find(args: &QueryArgs) -> Result<Self, Failure> {
        Self::choose(args, control_variable())
    }

    fn choose(args: &QueryArgs, environment: Option<PathBuf>) -> Result<Self, Failure> {
        let config = args.config.as_ref().or(args.config_option.as_ref());
        let named = config.map(|config| control_path(config)).transpose();
        let named = named.map_err(failure(Kind::Configuration))?;
        let socket = match (&args.control, named) {
            (Some(given), Some(named)) if !is_same(given, &named) => {
                let config = config.map(|config| config.display().to_string()).unwrap_or_default();
                let (given, named) = (given.display(), named.display());
                let words = format!(
                    "--control is {given}, but {config} names the control socket {named}: give one of them"
                );
                return Err(Failure::new(Kind::Configuration, words));
            }
            (Some(path), _) => Some(path.clone()),
            (None, named) => named.or(environment),
        };
        let is_default = socket.is_none();
        Ok(Self { socket: socket.unwrap_or_else(|| DEFAULT_CONTROL.into()), is_default })
    }

    /// Sends a request to change something and returns the answer. Where the gateway refuses, that is a
    /// failure of the request alone.
    pub fn change(&self, request: &Value) -> Result<Value, Failure> {
        match ask(&self.socket, request) {
            Err(error @ AskError::Refused(_)) => Err(Failure::new(Kind::Other, error)),
            Err(error) => Err(self.unreachable(&error)),
            Ok(answer) => Ok(answer),
        }
    }

    /// Sends a request that the gateway may refuse: its answer, or its reason.
    pub fn try_ask(&self, request: &Value) -> Result<Answer, Failure> {
        match ask(&self.socket, request) {
            Err(AskError::Refused(reason)) => Ok(Err(reason)),
            Err(error) => Err(self.unreachable(&error)),
            Ok(answer) => Ok(Ok(answer)),
        }
    }

    /// Sends a request and returns the answer.
    pub fn ask(&self, request: &Value) -> Result<Value, Failure> {
        ask(&self.socket, request).map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &AskError) -> Failure {
        let hint = "; to ask another gateway, give its CONFIG, --control or $TESTUDO_CONTROL";
        Failure::new(Kind::Unreachable, format!("{error}{}", if self.is_default { hint } else { "" }))
    }
}

/// Whether two paths lead to the same file, as far as can be determined.
fn is_same(a: &Path, b: &Path) -> bool {
    a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Sends a request and prints the answer: unchanged with `--json`, else through `show`.
fn query(args: &QueryArgs, request: &Value, show: fn(&Value)) -> Result<(), Failure> {
    let answer = Asked::find(args)?.ask(request)?;
    if args.json {
        outln!("{answer}")
    } else {
        show(&answer)
    }
    Ok(())
}

/// `testudo status`
pub fn status(args: &QueryArgs) -> Result<(), Failure> {
    query(args, &json!({ "verb": "status" }), show_status)
}

/// `testudo policy list`
pub fn policies(args: &QueryArgs) -> Result<(), Failure> {
    query(args, &json!({ "verb": "policy-list" }), show_policies)
}

/// `testudo explain`
pub fn explain(args: &ExplainArgs) -> Result<(), Failure> {
    let side = match args.side {
        SideArg::Protected => "protected",
        SideArg::Unprotected => "unprotected",
    };
    let protocol = args.protocol.unwrap_or(UNNAMED_PROTOCOL);
    let message = args.message.as_deref().map(|word| message(protocol, word)).transpose();
    let message = message.map_err(|e| Failure::new(Kind::Configuration, format!("--type: {e}")))?;
    let request = json!({
        "verb": "explain", "side": side, "source": args.source, "destination": args.destination,
        "protocol": protocol, "source_port": args.source_port, "destination_port": args.destination_port,
        "message_type": message.map(|(kind, _)| kind), "message_code": message.map(|(_, code)| code),
        "fragment": args.fragment, "interface": args.interface, "dscp": args.dscp,
    });
    query(&args.gateway, &request, show_explanation)
}

pub fn rows(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// What the packet scheduler has done for an engine, if it gathers packets for it, and what it does not give
/// it.
fn scheduler_lines(engine: &Value) -> Vec<String> {
    let late = placement::late(&cell(&engine["name"]), &engine["scheduler"]["gathering"]);
    scheduler_line(engine).into_iter().chain(late).collect()
}

fn scheduler_line(engine: &Value) -> Option<String> {
    let scheduler = &engine["scheduler"];
    let (chunks, packets) = (scheduler["chunks"].as_u64()?, scheduler["packets"].as_u64()?);
    let [no_room, too_late] = ["no_room", "too_late"].map(|reason| cell(&scheduler["spilled"][reason]));
    let gathering =
        placement::gathering(&scheduler["gathering"]).map_or_else(String::new, |words| format!("; {words}"));
    Some(format!(
        "{}: {packets} packets in {chunks} chunks; to the next engine {no_room} (no room), {too_late} (too late){gathering}",
        cell(&engine["name"])
    ))
}

/// Which threads packets pass, and why.
fn threading_line(threading: &Value) -> Option<String> {
    let (words, why) = (threading["in_words"].as_str()?, threading["why"].as_str()?);
    let threads: Vec<_> = rows(&threading["threads"]).iter().map(cell).collect();
    Some(format!("threading: {words} ({why}); threads: {}", threads.join(", ")))
}

fn show_status(status: &Value) {
    let uptime = status["uptime_seconds"].as_u64().unwrap_or(0);
    let tunnels = cell(&status["tunnels"]);
    outln!(
        "testudo {}, up {}:{:02}:{:02}, {} ({} down)",
        cell(&status["version"]),
        uptime / 3600,
        uptime / 60 % 60,
        uptime % 60,
        if tunnels == "1" { "1 tunnel".to_owned() } else { format!("{tunnels} tunnels") },
        cell(&status["tunnels_down"])
    );
    let mut engines = Table::new(&["engine", "in use", "detail"]);
    for engine in rows(&status["engines"]) {
        engines.row(vec![cell(&engine["name"]), cell(&engine["in_use"]), cell(&engine["detail"])]);
    }
    outln!();
    print(&engines);
    rows(&status["engines"]).iter().flat_map(scheduler_lines).for_each(|line| outln!("{line}"));
    threading_line(&status["threading"]).into_iter().for_each(|line| outln!("{line}"));
    let mut ports = Table::new(&["side", "port", "packets in", "bytes in", "packets out", "bytes out"]);
    for side in ["protected", "unprotected"] {
        let port = &status["ports"][side];
        let counts = ["name", "rx_packets", "rx_bytes", "tx_packets", "tx_bytes"].map(|key| cell(&port[key]));
        ports.row([side.to_owned()].into_iter().chain(counts).collect());
    }
    outln!();
    print(&ports);
    if rows(&status["workers"]).len() > 1 {
        outln!();
        print(&crate::workers::table(&status["workers"]));
        rows(&status["imbalance"]).iter().for_each(|one| outln!("unbalanced: {}", cell(&one["words"])));
    }
    show_devices(&status["ports"]);
    if let Some(lines) = offload_lines(&status["offload"]) {
        outln!();
        lines.iter().for_each(|line| outln!("{line}"));
    }
    if let Some(interfaces) = interfaces_table(status) {
        outln!();
        print(&interfaces);
    }
    show_path_mtus(status);
    show_groups(status);
    show_windows(&status["windows_of_sas"]);
    show_populated(&status["populated"]);
    if let Some(line) = ike_line(&status["ike"]) {
        outln!();
        outln!("{line}");
    }
    let mut drops = Table::new(&["drop reason", "packets"]);
    let counted = status["drops"].as_object().into_iter().flatten();
    let counted: Vec<_> =
        counted.filter_map(|(reason, n)| Some((reason, n.as_u64().filter(|n| *n > 0)?))).collect();
    for (reason, count) in &counted {
        drops.row(vec![reason.replace('_', " "), grouped(*count)]);
    }
    outln!();
    if counted.is_empty() { outln!("no packet was dropped") } else { print(&drops) }
}

/// What fast ports tell of their devices: a line of facts, and a row for each queue.
fn show_devices(ports: &Value) {
    let mut queues = Table::new(&["side", "queue", "counters"]);
    let (mut lines, mut has_queues) = (Vec::new(), false);
    for side in ["protected", "unprotected"] {
        let device = &ports[side]["device"];
        if device.is_null() {
            continue;
        }
        lines.push(device_line(side, device));
        for queue in rows(&device["queues"]) {
            queues.row(vec![side.to_owned(), cell(&queue["queue"]), queue_counters(queue)]);
            has_queues = true;
        }
    }
    if !lines.is_empty() {
        outln!();
        lines.iter().for_each(|line| outln!("{line}"));
    }
    if has_queues {
        outln!();
        print(&queues);
    }
}

/// `unprotected: xdp at eth0, driver ixgbe, mode native, …; dropped: rx ring full 7`
fn device_line(side: &str, device: &Value) -> String {
    let known = device["facts"].as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let facts: String = known.map(|(name, value)| format!(", {} {}", words(name), cell(value))).collect();
    let lost = device["drops"].as_object().into_iter().flatten();
    let lost: Vec<_> = lost.map(|(name, count)| format!("{} {}", words(name), cell(count))).collect();
    let lost = if lost.is_empty() { String::new() } else { format!("; dropped: {}", lost.join(", ")) };
    format!("{side}: {} at {}{facts}{lost}", cell(&device["kind"]), cell(&device["device"]))
}

/// Those that are not 0.
fn queue_counters(queue: &Value) -> String {
    let all = queue.as_object().into_iter().flatten().filter(|(name, _)| *name != "queue");
    let counted = all.filter_map(|(name, count)| Some((name, count.as_u64().filter(|count| *count > 0)?)));
    let counted: Vec<_> =
        counted.map(|(name, count)| format!("{} {}", words(name), grouped(count))).collect();
    counted.join(", ")
}

fn words(name: &str) -> String {
    name.replace('_', " ")
}

/// What the NIC does of the cryptography, if one does.
fn offload_lines(offload: &Value) -> Option<[String; 2]> {
    let device = offload["device"].as_str()?;
    let state = match offload["out_of_service"].as_str() {
        Some(why) => format!("out of service for cryptography: {why}"),
        None => {
            let of = |key: &str| {
                format!("{} of {} SAs", cell(&offload[key]["in_use"]), cell(&offload[key]["limit"]))
            };
            format!("seals {} and opens {}", of("sealing"), of("opening"))
        }
    };
    let counts = &offload["counts"];
    let count = |key: &str| cell(&counts[key]);
    Some([
        format!("NIC {device}: {state}"),
        format!(
            "packets: {} sealed, {} opened, {} refused, {} sealed by software after a loss; {} checked by software, {} differed",
            count("sealed"),
            count("opened"),
            count("refused"),
            count("sealed_after_loss"),
            count("spot_checks"),
            count("differences")
        ),
    ])
}

/// The interfaces of the protected side, where there are several.
fn interfaces_table(status: &Value) -> Option<Table> {
    const HEADS: [&str; 11] = [
        "interface",
        "if_id",
        "packets in",
        "bytes in",
        "packets out",
        "bytes out",
        "dropped",
        "tunnels",
        "negotiated tunnels",
        "policies",
        "SAs",
    ];
    let mut table = Table::new(&HEADS);
    for interface in rows(&status["interfaces"]) {
        let counts = ["rx_packets", "rx_bytes", "tx_packets", "tx_bytes"].map(|key| cell(&interface[key]));
        let dropped = interface["drops"].as_object().into_iter().flatten();
        let dropped: u64 = dropped.filter_map(|(_, count)| count.as_u64()).sum();
        let negotiated = ["tunnels", "policies", "sas"].map(|key| cell(&interface["negotiated"][key]));
        let name =
            [cell(&interface["name"]), interface["if_id"].as_u64().map_or("-".into(), |id| id.to_string())];
        let own = [grouped(dropped), cell(&interface["tunnels"])];
        table.row(name.into_iter().chain(counts).chain(own).chain(negotiated).collect());
    }
    (!rows(&status["interfaces"]).is_empty()).then_some(table)
}

/// Tunnels of single flows, if there are or were some.
fn show_populated(populated: &Value) {
    let [tunnels, ending, wanted, left_out] =
        ["tunnels", "ending", "wanted", "acquires_left_out"].map(|key| populated[key].as_u64().unwrap_or(0));
    if populated["acquires"].as_u64().unwrap_or(0) + tunnels > 0 {
        let limit = grouped(populated["limit"].as_u64().unwrap_or(0));
        outln!();
        outln!(
            "{} of at most {limit} tunnels populated from packets{}, {} wanted (`testudo sa wanted`), {} packets asked untold",
            grouped(tunnels),
            if ending > 0 { format!(" ({} of them end)", grouped(ending)) } else { String::new() },
            grouped(wanted),
            grouped(left_out)
        );
    }
}

/// What daemons have renewed since the gateway before this one ended.
pub fn renewal(renewal: &Value) -> Option<String> {
    let [expected, renewed, ms] =
        ["expected", "renewed", "without_traffic_ms"].map(|key| renewal[key].as_u64().unwrap_or(0));
    // Those that are not renewed have no traffic yet: the time so far is that of the others.
    let others = if renewed < expected { "; the others are still without" } else { "" };
    let (renewed, expected, s, tenths) = (grouped(renewed), grouped(expected), ms / 1000, ms % 1000 / 100);
    renewal.is_object().then(|| {
        format!(
            "{renewed} of {expected} renewed after the restart, without traffic for {s}.{tenths} s at most{others}"
        )
    })
}

/// Key exchange daemons, where the configuration has them.
fn ike_line(ike: &Value) -> Option<String> {
    let socket = ike["socket"].as_str()?;
    let [tunnels, policies] = ["tunnels", "policies"].map(|key| grouped(ike[key].as_u64().unwrap_or(0)));
    let renewal = renewal(&ike["renewal"]).map(|text| format!("; {text}")).unwrap_or_default();
    let sas = ike["sas"].as_object().into_iter().flatten();
    let sas = sas.map(|(daemon, count)| format!(", {} SAs of {daemon}", cell(count))).collect::<String>();
    Some(format!("ike: socket {socket}, {tunnels} tunnels negotiated, {policies} policies{sas}{renewal}"))
}

/// What fits through each tunnel.
fn show_path_mtus(status: &Value) {
    let heads = ["tunnel", "path MTU", "source", "overhead", "inner MTU", "TCP MSS (IPv4)", "TCP MSS (IPv6)"];
    let mut table = Table::new(&heads);
    for path in rows(&status["path_mtus"]) {
        let source = match path["age_seconds"].as_u64() {
            Some(age) => format!("{}, {}:{:02} ago", cell(&path["source"]), age / 60, age % 60),
            None => cell(&path["source"]),
        };
        let [overhead, inner, mss_ipv4, mss_ipv6] =
            ["overhead", "inner_mtu", "mss_ipv4", "mss_ipv6"].map(|key| cell(&path[key]));
        let [tunnel, mtu] = ["tunnel", "path_mtu"].map(|key| cell(&path[key]));
        table.row(vec![tunnel, mtu, source, overhead, inner, mss_ipv4, mss_ipv6]);
    }
    if !rows(&status["path_mtus"]).is_empty() {
        outln!();
        print(&table);
    }
    let omitted = status["path_mtus_omitted"].as_u64().unwrap_or(0);
    if omitted > 0 {
        outln!("and {} more: `testudo sa list --json` has all", grouped(omitted));
    }
}

/// The members of groups that were heard.
fn show_groups(status: &Value) {
    for group in rows(&status["groups"]) {
        let senders = &group["senders"];
        let own = match (group["sender_id"].as_u64(), group["sends"].as_bool()) {
            (None, _) => "we only receive".to_owned(),
            (Some(own), Some(true)) => format!("we send as {own}"),
            (Some(own), _) => format!("we do NOT send as {own} any more"),
        };
        let twice = match senders["twice"].as_u64().unwrap_or(0) {
            0 => "",
            _ => ", a Sender ID is that of TWO DEVICES (see the log)",
        };
        let [tunnel, address, count] = [&group["tunnel"], &group["group"], &senders["count"]].map(cell);
        outln!();
        outln!("group {address} (tunnel {tunnel}): {own}, {count} senders heard{twice}");
        let mut table = Table::new(&["sender", "address", "packets", "last heard"]);
        for sender in rows(&senders["heard"]) {
            let [id, from, packets, ago] =
                ["sender_id", "address", "packets", "last_heard_seconds"].map(|key| cell(&sender[key]));
            table.row(vec![id, from, packets, format!("{ago} s ago")]);
        }
        if !rows(&senders["heard"]).is_empty() {
            print(&table);
        }
    }
    let shown = rows(&status["groups"]).len() as u64;
    if status["groups_count"].as_u64().is_some_and(|count| count > shown) {
        outln!("and more groups: `testudo sa list --json` has all");
    }
}

/// Windows of an SA whose numbers a line has.
const SHOWN_WINDOWS: usize = 8;

/// How far the windows of SAs of VPE are.
fn show_windows(windows: &Value) {
    let mut table = Table::new(&["tunnel", "direction", "SPI", "windows", "highest numbers by window"]);
    for sa in rows(&windows["sas"]) {
        let spi = sa["spi"].as_u64().map_or_else(String::new, |spi| format!("{spi:#x}"));
        let [tunnel, direction] = ["tunnel", "direction"].map(|key| cell(&sa[key]));
        let count = format!("{} of {}", cell(&sa["count"]), cell(&sa["most"]));
        table.row(vec![tunnel, direction, spi, count, numbers_cell(sa)]);
    }
    if !rows(&windows["sas"]).is_empty() {
        outln!();
        print(&table);
    }
    let omitted = windows["omitted"].as_u64().unwrap_or(0);
    if omitted > 0 {
        outln!("and {} more SAs: `testudo sa list --json` has all", grouped(omitted));
    }
}

/// `0: 17, 3: 9`; in a group the sender comes first, as in `s2 w5: 7`.
fn numbers_cell(sa: &Value) -> String {
    let shown = rows(&sa["tops"]).iter().take(SHOWN_WINDOWS).map(|top| {
        let (window, number) = (cell(&top["window"]), cell(&top["sequence"]));
        match top["sender_id"].as_u64() {
            Some(sender) => format!("s{sender} w{window}: {number}"),
            None => format!("{window}: {number}"),
        }
    });
    let shown: Vec<_> = shown.collect();
    let others = sa["count"].as_u64().unwrap_or(0).saturating_sub(shown.len() as u64);
    let others = if others > 0 { format!(" and {others} more") } else { String::new() };
    if shown.is_empty() { "-".to_owned() } else { shown.join(", ") + &others }
}

fn show_policies(list: &Value) {
    let heads = ["entry", "origin", "action", "direction", "local", "remote", "protocol", "ports or types"];
    let mut table = Table::new(&heads);
    let first = rows(list).first().map(|policy| &policy["interface"]);
    let has_several = rows(list).iter().any(|policy| Some(&policy["interface"]) != first);
    for policy in rows(list) {
        let mut action = match policy["tunnel"].as_str() {
            Some(tunnel) if !policy["populate_from_packet"].is_null() => {
                let fields: Vec<_> = rows(&policy["populate_from_packet"]).iter().map(cell).collect();
                let made = cell(&policy["populated"]);
                format!("{} after {tunnel}, for each {}: {made}", cell(&policy["action"]), fields.join(", "))
            }
            Some(tunnel) => format!("{} by {tunnel}", cell(&policy["action"])),
            None => cell(&policy["action"]),
        };
        if has_several {
            action.push_str(&format!(" on {}", cell(&policy["interface"])));
        }
        let mut own =
            vec![cell(&policy["place"]), cell(&policy["origin"]), action, cell(&policy["direction"])];
        for selector in rows(&policy["selectors"]) {
            let ends = ["local", "remote"].map(|key| cell(&selector[key]));
            let more = [protocol_cell(&selector["protocol"]), values_cell(selector)];
            table.row(own.drain(..).chain(ends).chain(more).collect());
            // A further selector of the same policy.
            own = vec![String::new(); 4];
        }
    }
    print(&table);
    outln!("packets that match no policy are discarded");
}

fn protocol_cell(protocol: &Value) -> String {
    let number = protocol.as_u64().and_then(|number| u8::try_from(number).ok());
    number.map_or_else(|| cell(protocol), protocol_name)
}

/// Local and remote ports, or the types of messages.
fn values_cell(selector: &Value) -> String {
    let of = |key: &str| selector[key].as_str().unwrap_or("any");
    let (sent, received) = (of("types_sent"), of("types_received"));
    match selector.get("types_sent") {
        None => format!("{}, {}", of("local_ports"), of("remote_ports")),
        Some(_) if sent == received => format!("types {sent}"),
        Some(_) => format!("types sent {sent}, received {received}"),
    }
}

fn show_explanation(answer: &Value) {
    for policy in rows(&answer["passed_over"]) {
        outln!(
            "SPD entry {} ({}): no, {}",
            cell(&policy["place"]),
            cell(&policy["origin"]),
            cell(&policy["why"])
        );
    }
    if let Some(more) = answer["passed_over_untold"].as_u64().filter(|n| *n > 0) {
        outln!("… and {} more that do not match", grouped(more));
    }
    let policy = &answer["policy"];
    if !policy.is_null() {
        let (entry, origin) = (cell(&policy["place"]), cell(&policy["origin"]));
        let answer = if answer["fields_hidden"] == true { "perhaps" } else { "yes" };
        outln!(
            "SPD entry {entry} ({origin}): {answer}, {} {}",
            cell(&policy["action"]),
            cell(&policy["selector"])
        );
    }
    outln!("=> {}", cell(&answer["verdict"]));
    placement::lines(&answer["placement"]).iter().for_each(|line| outln!("   {line}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_shown_with_their_numbers_and_senders() {
        let top = |window: u64| json!({ "window": window, "sequence": window + 7 });
        let sa = |count: u64, tops: Vec<Value>| json!({ "count": count, "tops": tops });
        assert_eq!(numbers_cell(&sa(0, Vec::new())), "-");
        assert_eq!(numbers_cell(&sa(2, vec![top(0), top(3)])), "0: 7, 3: 10");
        let many = numbers_cell(&sa(100, (0..64).map(top).collect()));
        assert!(many.ends_with("7: 14 and 92 more"), "{many}");
        let of_group = json!({ "window": 5, "sequence": 7, "sender_id": 2 });
        assert_eq!(numbers_cell(&sa(1, vec![of_group])), "s2 w5: 7");
    }

    #[test]
    fn a_nic_is_shown_with_its_sas_or_why_it_is_out_of_service() {
        assert!(offload_lines(&Value::Null).is_none());
        let mut offload = json!({
            "device": "nic0", "out_of_service": null, "sealing": { "in_use": 3, "limit": 1024 },
            "opening": { "in_use": 4, "limit": 1024 }, "counts": { "sealed": 70, "spot_checks": 5 },
        });
        let [state, packets] = offload_lines(&offload).unwrap();
        assert_eq!(state, "NIC nic0: seals 3 of 1,024 SAs and opens 4 of 1,024 SAs");
        assert!(packets.starts_with("packets: 70 sealed") && packets.contains("; 5 checked"), "{packets}");
        offload["out_of_service"] = "it lies".into();
        assert_eq!(offload_lines(&offload).unwrap()[0], "NIC nic0: out of service for cryptography: it lies");
    }

    #[test]
    fn the_threads_have_a_line_with_the_reason() {
        let threading = json!({
            "model": "one_io", "in_words": "one I/O thread and a device thread", "why": "configured",
            "threads": ["worker-0", "device-gpu"],
        });
        let line =
            "threading: one I/O thread and a device thread (configured); threads: worker-0, device-gpu";
        assert_eq!(threading_line(&threading).as_deref(), Some(line));
        assert_eq!(threading_line(&Value::Null), None, "an older gateway says nothing of it");
    }

    #[test]
    fn an_engine_with_bins_has_a_line() {
        let mut engine = json!({ "name": "gpu", "scheduler": null });
        assert_eq!(scheduler_line(&engine), None);
        engine["scheduler"] =
            json!({ "chunks": 3, "packets": 700, "spilled": { "no_room": 5, "too_late": 2 } });
        let line = "gpu: 700 packets in 3 chunks; to the next engine 5 (no room), 2 (too late)";
        assert_eq!(scheduler_line(&engine).as_deref(), Some(line));
        engine["scheduler"]["gathering"] =
            json!({ "chunk": 1024, "bins": 16, "range_bytes": 64, "changes": null });
        let gathered = format!("{line}; chunks of 1,024 packets in 16 bins, ranges of 64 bytes");
        assert_eq!(scheduler_lines(&engine), [&*gathered]);
        let late = json!([{ "suite": "3des-sha1", "direction": "inbound", "up_to_bytes": 64 }]);
        engine["scheduler"]["gathering"]["late"] = late;
        let late = "gpu had 3des-sha1 inbound (up to 64 B) back too late: the next engine gets it, and gpu a few to try";
        assert_eq!(scheduler_lines(&engine), [&*gathered, late]);
    }

    const CONFIGURATION: &str = r#"
        [gateway]
        state = "state.redb"
        control = "run/control.sock"
        [port.protected]
        kind = "tun"
        name = "testudo0"
        [port.unprotected]
        kind = "socket"
    "#;

    fn choose(
        config: Option<&Path>,
        control: Option<&Path>,
        environment: Option<&str>,
    ) -> Result<Asked, Failure> {
        let [config, control] = [config, control].map(|path| path.map(Path::to_owned));
        let args = QueryArgs { config, control, config_option: None, json: false };
        Asked::choose(&args, environment.map(PathBuf::from))
    }

    #[test]
    fn what_a_device_tells_is_a_line_and_counters_of_queues() {
        let device = json!({
            "kind": "xdp", "device": "eth0", "facts": { "mode": "native", "native_refused": null, "zero_copy": false },
            "drops": { "rx_ring_full": 7 },
        });
        let line = device_line("unprotected", &device);
        assert_eq!(line, "unprotected: xdp at eth0, mode native, zero copy no; dropped: rx ring full 7");
        let queue = json!({ "queue": 3, "rx_ring_full": 7, "rx_dropped": 0, "wakeups": 12_000 });
        assert_eq!(queue_counters(&queue), "rx ring full 7, wakeups 12,000");
    }

    #[test]
    fn the_command_line_wins_over_the_environment_and_the_environment_over_the_default() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("t.toml");
        std::fs::write(&config, CONFIGURATION).unwrap();
        let named = folder.path().join("run/control.sock");
        let found = |config, control, environment| choose(config, control, environment).unwrap().socket;
        assert_eq!(found(Some(&config), None, Some("env.sock")), named);
        assert_eq!(found(None, Some(Path::new("c.sock")), Some("env.sock")), Path::new("c.sock"));
        assert_eq!(found(None, None, Some("env.sock")), Path::new("env.sock"));
        assert_eq!(found(None, None, None), Path::new(DEFAULT_CONTROL));
        assert_eq!(found(Some(&config), Some(&named), None), named);
        std::fs::create_dir(folder.path().join("run")).unwrap();
        std::fs::write(&named, "").unwrap();
        let roundabout = folder.path().join("run/../run/control.sock");
        assert_eq!(found(Some(&config), Some(&roundabout), None), roundabout);
    }

    #[test]
    fn two_gateways_at_once_are_an_error_that_names_both() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("t.toml");
        std::fs::write(&config, CONFIGURATION).unwrap();
        let refused = choose(Some(&config), Some(Path::new("/other.sock")), None).err().unwrap();
        let words = format!("{refused:?}");
        for word in ["--control is /other.sock", "t.toml", "run/control.sock", "give one of them"] {
            assert!(words.contains(word), "{words} lacks {word}");
        }
    }

    #[test]
    fn only_the_default_gateway_gets_a_hint_how_to_name_another() {
        let words = |control| format!("{:?}", choose(None, control, None).unwrap().ask(&json!({})).err());
        assert!(!words(Some(Path::new("/nowhere.sock"))).contains("give its CONFIG"));
        let default = Asked { socket: "/nowhere.sock".into(), is_default: true };
        assert!(format!("{:?}", default.ask(&json!({})).err()).contains("give its CONFIG"));
    }

    #[test]
    fn the_status_has_a_row_for_each_interface_where_there_are_several() {
        let row = |name: &str, if_id: Value, drops: Value| {
            json!({
                "name": name, "if_id": if_id, "rx_packets": 1200, "rx_bytes": 2, "tx_packets": 3, "tx_bytes": 4,
                "drops": drops, "tunnels": 5, "negotiated": { "tunnels": 6, "policies": 7, "sas": 8 },
            })
        };
        let drops = json!({ "no_policy": 30, "queue_full": 3 });
        let interfaces = json!([row("testudo0", Value::Null, json!({})), row("ipsec0", 1042.into(), drops)]);
        let table = interfaces_table(&json!({ "interfaces": interfaces })).unwrap().to_string();
        let words: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(table.starts_with("interface"), "{table}");
        let own = |line: usize| words[line].join(" ");
        assert_eq!(own(1), "testudo0 - 1,200 2 3 4 0 5 6 7 8");
        assert_eq!(own(2), "ipsec0 1042 1,200 2 3 4 33 5 6 7 8");
        assert!(interfaces_table(&json!({ "interfaces": [] })).is_none());
        assert!(interfaces_table(&json!({})).is_none(), "an older gateway has none");
    }

    #[test]
    fn the_status_counts_what_is_negotiated_where_it_may_be() {
        let ike = json!({ "socket": "/run/testudo/xfrm.sock", "tunnels": 1200, "policies": 3 });
        let expected = "ike: socket /run/testudo/xfrm.sock, 1,200 tunnels negotiated, 3 policies";
        assert_eq!(ike_line(&ike).as_deref(), Some(expected));
        let sas = json!({ "charon-systemd": 2398, "ip": 2 });
        let ike = json!({ "socket": "x.sock", "tunnels": 1200, "policies": 3, "sas": sas });
        let line = ike_line(&ike).unwrap();
        assert!(line.ends_with("3 policies, 2,398 SAs of charon-systemd, 2 SAs of ip"), "{line}");
        assert_eq!(ike_line(&Value::Null), None);
    }

    #[test]
    fn a_renewal_that_goes_on_says_that_some_tunnels_are_still_without_traffic() {
        let of = |renewed: u64| {
            renewal(&json!({ "expected": 1200, "renewed": renewed, "without_traffic_ms": 2480 })).unwrap()
        };
        let over = "1,200 of 1,200 renewed after the restart, without traffic for 2.4 s at most";
        assert_eq!(of(1200), over);
        assert!(of(7).ends_with("2.4 s at most; the others are still without"), "{}", of(7));
        assert_eq!(renewal(&Value::Null), None);
    }
}
