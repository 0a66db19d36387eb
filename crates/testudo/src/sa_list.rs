//! `testudo sa list`: the SAs of a running gateway, and whose they are.

use crate::cli::SaListArgs;
use crate::exit::Failure;
use crate::out::{errln, outln};
use crate::query::{Answer, Asked, rows};
use crate::sa::values_of;
use crate::table::{cell, print};
use crate::vici::Connections;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use testudo_lab::table::{Table, grouped};

/// Between two looks where nobody says otherwise.
const WATCHED_EVERY: Duration = Duration::from_secs(1);
/// What strongSwan's daemons call themselves begins with this.
const CHARON: &str = "charon";

/// `testudo sa list`
pub fn list(args: &SaListArgs) -> Result<(), Failure> {
    let gateway = Asked::find(&args.gateway)?;
    let interval = match (args.interval, args.watch) {
        (None, false) => {
            let mut look = Look::take(&gateway, args)?;
            return look.show(&gateway, args);
        }
        (interval, _) => interval.unwrap_or(WATCHED_EVERY),
    };
    let mut before = Look::take(&gateway, args)?;
    loop {
        thread::sleep(interval.saturating_sub(before.at.elapsed()));
        let mut now = Look::take(&gateway, args)?;
        let counted = now.clone();
        add_rates(&before.list, &mut now.list, now.at.duration_since(before.at));
        now.show(&gateway, args)?;
        if !args.watch {
            return Ok(());
        }
        before = counted;
        if !args.gateway.json {
            outln!();
        }
    }
}

/// The SAs at a moment.
#[derive(Clone)]
struct Look {
    at: Instant,
    list: Value,
}

impl Look {
    fn take(gateway: &Asked, args: &SaListArgs) -> Result<Self, Failure> {
        let list = gateway.change(&json!({ "verb": "sa-list", "tunnel": args.tunnel }))?;
        Ok(Self { at: Instant::now(), list })
    }

    /// Shows them, with what is asked for no sooner than it is shown.
    fn show(&mut self, gateway: &Asked, args: &SaListArgs) -> Result<(), Failure> {
        if args.windows {
            let gone = ask_for_windows(&mut self.list, |request| gateway.try_ask(request))?;
            gone.into_iter().for_each(|line| errln!("testudo: {line}"));
        }
        name_connections(gateway, &mut self.list)?;
        if args.gateway.json {
            outln!("{}", self.list)
        } else {
            print(&associations(&self.list));
            if args.windows {
                outln!();
                print(&windows(&self.list));
            }
        }
        Ok(())
    }
}

/// Has all windows of each SA of VPE in the place of the first ones. An SA that goes meanwhile keeps these:
/// the windows of others are told all the same. Returns a line about each such SA.
fn ask_for_windows(
    list: &mut Value,
    ask: impl Fn(&Value) -> Result<Answer, Failure>,
) -> Result<Vec<String>, Failure> {
    let mut gone = Vec::new();
    for sa in list.as_array_mut().into_iter().flatten().filter(|sa| sa["windows"].is_object()) {
        match all_windows(sa, &ask)? {
            Ok(tops) => {
                // They were counted up to a second before.
                let windows = &mut sa["windows"];
                windows["count"] = tops.len().into();
                (windows["tops"], windows["omitted"]) = (tops.into(), json!(0));
            }
            Err(reason) => {
                let [tunnel, direction] = ["tunnel", "direction"].map(|key| cell(&sa[key]));
                let spi = sa["spi"].as_u64().unwrap_or(0);
                gone.push(format!(
                    "tunnel {tunnel}: of the {direction} SA {spi:#x} there are the first windows alone: {reason}"
                ));
            }
        }
    }
    Ok(gone)
}

/// All windows of an SA, which are asked for some at a time, or why the gateway tells no more of them.
fn all_windows(
    sa: &Value,
    ask: &impl Fn(&Value) -> Result<Answer, Failure>,
) -> Result<Result<Vec<Value>, String>, Failure> {
    let (mut tops, mut next) = (Vec::new(), Some(0));
    while let Some(from) = next {
        let mut request = json!({ "verb": "sa-windows", "from": from });
        for key in ["tunnel", "direction", "spi"] {
            request[key] = sa[key].clone();
        }
        let page = match ask(&request)? {
            Ok(page) => page,
            Err(reason) => return Ok(Err(reason)),
        };
        tops.extend_from_slice(rows(&page["tops"]));
        next = page["next"].as_u64().filter(|next| *next > from);
    }
    tops.sort_by_key(|top| ["sender_id", "window"].map(|id| top[id].as_u64()));
    Ok(Ok(tops))
}

/// The windows of SAs of VPE, each with its highest number.
fn windows(list: &Value) -> Table {
    let mut table = Table::new(&["tunnel", "direction", "spi", "sender", "window", "sequence"]);
    for sa in rows(list) {
        for top in rows(&sa["windows"]["tops"]) {
            // IDs are names, and have no groups of digits.
            let id = |key: &str| top[key].as_u64().map_or_else(|| "-".to_owned(), |id| id.to_string());
            table.row(vec![
                cell(&sa["tunnel"]),
                cell(&sa["direction"]),
                format!("{:#x}", sa["spi"].as_u64().unwrap_or(0)),
                id("sender_id"),
                id("window"),
                cell(&top["sequence"]),
            ]);
        }
    }
    table
}

/// Gives each SA its rates since an earlier list; one that was not in it, or has counted from the start
/// since, has none.
fn add_rates(before: &Value, now: &mut Value, elapsed: Duration) {
    let id = |sa: &Value| (sa["tunnel"].to_string(), sa["direction"] == "outbound", sa["spi"].as_u64());
    let counts = |sa: &Value| Some([sa["packets"].as_u64()?, sa["bytes"].as_u64()?]);
    let earlier: HashMap<_, _> = rows(before).iter().map(|sa| (id(sa), counts(sa))).collect();
    for sa in now.as_array_mut().into_iter().flatten() {
        let last = earlier.get(&id(sa)).copied().flatten();
        let since = last
            .zip(counts(sa))
            .and_then(|(last, now)| Some([now[0].checked_sub(last[0])?, now[1].checked_sub(last[1])?]));
        let rates = since.map(|counts| counts.map(|count| per_second(count, elapsed)));
        sa["packets_per_second"] = rates.map(|[packets, _]| packets).into();
        sa["bits_per_second"] = rates.map(|[_, bytes]| bytes * 8.0).into();
    }
}

fn per_second(count: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { count as f64 / elapsed.as_secs_f64() }
}

/// A rate in three or more figures, with the unit that fits.
fn rate_cell(rate: &Value, unit: &str) -> String {
    const STEPS: [(f64, &str); 3] = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let Some(rate) = rate.as_f64() else { return "-".to_owned() };
    match STEPS.iter().find(|(step, _)| rate >= *step) {
        Some((step, prefix)) => format!("{:.2} {prefix}{unit}", rate / step),
        None => format!("{rate:.0} {unit}"),
    }
}

fn is_of_charon(sa: &Value) -> bool {
    sa["daemon"].as_str().is_some_and(|daemon| daemon.starts_with(CHARON))
}

/// Asks charon what its SAs belong to, if some are there. Without an answer they have no names, and a line on
/// standard error says why.
fn name_connections(gateway: &Asked, list: &mut Value) -> Result<(), Failure> {
    if !rows(list).iter().any(is_of_charon) {
        return Ok(());
    }
    let status = gateway.ask(&json!({ "verb": "status" }))?;
    let Some(socket) = status["ike"]["vici"].as_str() else { return Ok(()) };
    match Connections::ask(Path::new(socket)) {
        Ok(connections) => named(list, &connections),
        Err(error) => errln!("testudo: {}", unnamed(socket, &error)),
    }
    Ok(())
}

/// Why connections have no names, and what to do.
fn unnamed(socket: &str, error: &io::Error) -> String {
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied => "; ask as root, or as the user of that socket",
        io::ErrorKind::NotFound => "; if charon has its socket elsewhere, say so with `vici` in [ike]",
        _ => "",
    };
    format!("the names of connections are left out: {socket}: {error}{advice}")
}

/// Gives each SA the connection that it belongs to, or none.
fn named(list: &mut Value, connections: &Connections) {
    for sa in list.as_array_mut().into_iter().flatten().filter(|sa| is_of_charon(sa)) {
        let spi = sa["spi"].as_u64().and_then(|spi| u32::try_from(spi).ok());
        let found = spi.and_then(|spi| connections.of(sa["direction"] == "outbound", spi, remote(sa)));
        sa["connection"] = found.map_or(Value::Null, |connection| {
            let (ike, child) = (&connection.ike, &connection.child);
            json!({ "ike": ike.0, "ike_id": ike.1, "child": child.0, "child_id": child.1 })
        });
    }
}

/// The peer's address, the one that it has now.
fn remote(sa: &Value) -> Option<IpAddr> {
    let peer = sa["peer"].as_str().and_then(|peer| peer.parse().ok());
    peer.map(|peer: SocketAddr| peer.ip()).or_else(|| sa["remote"].as_str()?.parse().ok())
}

/// As strongSwan writes it: `IKE[1] CHILD{2}`.
fn connection_cell(connection: &Value) -> String {
    let text = |key: &str| connection[key].as_str().unwrap_or_default();
    match connection.is_null() {
        true => String::new(),
        // Numbers are names here, and have no groups of digits.
        false => format!(
            "{}[{}] {}{{{}}}",
            text("ike"),
            connection["ike_id"],
            text("child"),
            connection["child_id"]
        ),
    }
}

/// `yes`, or the reason in a word.
fn offload_cell(offload: &Value) -> String {
    match offload["why_not"].as_str() {
        Some(why) => format!("no: {why}"),
        None if offload["place"] == "nic" => "yes".to_owned(),
        None => String::new(),
    }
}

/// How many packets came after one with a higher number, their share, and how far after it at most.
fn reordered_cell(counted: &Value) -> String {
    let count = |key: &str| counted[key].as_u64();
    let Some((arrived, reordered)) = count("arrived").zip(count("reordered")) else { return String::new() };
    let share = 100.0 * reordered as f64 / arrived.max(1) as f64;
    match count("longest_extent").filter(|_| reordered > 0) {
        Some(extent) => format!("{} ({share:.2} %), by {} at most", grouped(reordered), grouped(extent)),
        None => "0".to_owned(),
    }
}

/// How many packets waited for their turn, how long at most, and how often others went on without them.
fn release_cell(cost: &Value) -> String {
    let count = |key: &str| cost[key].as_u64().unwrap_or(0);
    match count("waited") {
        0 => "0".to_owned(),
        waited => format!(
            "{}, {} µs at most, {} passed over",
            grouped(waited),
            grouped(count("longest_wait_us")),
            grouped(count("passed_over"))
        ),
    }
}

/// How many there are, of how many there may be.
fn windows_cell(windows: &Value) -> String {
    if windows.is_null() {
        return String::new();
    }
    format!("{} of {}", cell(&windows["count"]), cell(&windows["most"]))
}

/// The worker that alone sends through an SA; of others towards the peer, that all without one do.
fn worker_cell(sa: &Value) -> String {
    match (sa["worker"].as_u64(), sa["direction"].as_str()) {
        (Some(worker), _) => worker.to_string(),
        (None, Some("outbound")) => "all others".to_owned(),
        _ => String::new(),
    }
}

/// A column that is there where an SA has something to show in it.
type Column = (&'static str, fn(&Value) -> String);

fn further_columns(list: &Value) -> Vec<Column> {
    let some = |has: fn(&Value) -> bool, column: Column| rows(list).iter().any(has).then_some(column);
    let has_rates: fn(&Value) -> bool = |sa| sa.get("packets_per_second").is_some();
    let first = rows(list).first().map_or(Value::Null, |sa| sa["interface"].clone());
    let has_interfaces = rows(list).iter().any(|sa| sa["interface"] != first);
    let columns = [
        // Where they are of several, that of each.
        has_interfaces.then_some(("interface", (|sa| cell(&sa["interface"])) as fn(&Value) -> String)),
        // Where workers have SAs of their own: whose each is.
        some(|sa| sa["worker"].is_u64(), ("worker", |sa| worker_cell(sa))),
        // Where a port's NIC does cryptography: whether it has the SA, or why not.
        some(|sa| sa["offload"].is_object(), ("in the NIC", |sa| offload_cell(&sa["offload"]))),
        some(has_rates, ("packets/s", |sa| rate_cell(&sa["packets_per_second"], "packet/s"))),
        some(has_rates, ("bit/s", |sa| rate_cell(&sa["bits_per_second"], "bit/s"))),
        // Where some are not the configuration's, whose each is: of a key exchange, the daemon.
        some(
            |sa| sa["owner"].as_str().is_some_and(|owner| owner != "file"),
            ("owner", |sa| cell(if sa["daemon"].is_string() { &sa["daemon"] } else { &sa["owner"] })),
        ),
        some(|sa| sa["connection"].is_object(), ("connection", |sa| connection_cell(&sa["connection"]))),
        // Where several workers have them: as RFC 4737 counts it.
        some(|sa| sa["reordering"].is_object(), ("reordered", |sa| reordered_cell(&sa["reordering"]))),
        // Where they release its packets in order: what that costs.
        some(|sa| sa["release"].is_object(), ("waited", |sa| release_cell(&sa["release"]))),
        // Of VPE, how many windows there are.
        some(|sa| sa["windows"].is_object(), ("windows", |sa| windows_cell(&sa["windows"]))),
        // Of tunnels of single flows, the values that theirs are for.
        some(|sa| !sa["for"].is_null(), ("for", |sa| values_of(&sa["for"]))),
    ];
    columns.into_iter().flatten().collect()
}

fn associations(list: &Value) -> Table {
    let heads = [
        "tunnel",
        "direction",
        "spi",
        "remote",
        "suite",
        "engine",
        "encapsulation",
        "state",
        "packets",
        "bytes",
        "sequence",
        "dropped",
    ];
    let more = further_columns(list);
    let heads: Vec<_> = heads.into_iter().chain(more.iter().map(|(head, _)| *head)).collect();
    let mut table = Table::new(&heads);
    for sa in rows(list) {
        let dropped: u64 =
            sa["drops"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum();
        let row = vec![
            cell(&sa["tunnel"]),
            cell(&sa["direction"]),
            format!("{:#x}", sa["spi"].as_u64().unwrap_or(0)),
            cell(if sa["peer"].is_null() { &sa["remote"] } else { &sa["peer"] }),
            format!("{}{}", cell(&sa["suite"]), if sa["esn"] == true { ", esn" } else { "" }),
            cell(&sa["engine"]),
            cell(&sa["encapsulation"]),
            match (sa["state"].as_str(), sa["in_use"].as_bool()) {
                (Some("installed"), Some(false)) => "waiting".to_owned(),
                _ => cell(&sa["state"]),
            },
            cell(&sa["packets"]),
            cell(&sa["bytes"]),
            cell(&sa["sequence"]),
            grouped(dropped),
        ];
        table.row(row.into_iter().chain(more.iter().map(|(_, shown)| shown(sa))).collect());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Kind;

    fn lines(list: &Value) -> Vec<String> {
        associations(list).to_string().lines().map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn where_a_nic_does_cryptography_it_is_shown_which_sas_it_has_and_why_not_the_others() {
        let sa = |offload: Value| json!({ "tunnel": "a", "spi": 0x1001, "drops": {}, "offload": offload });
        let without = lines(&json!([sa(Value::Null)]));
        assert!(!without.concat().contains("NIC"), "{without:?}");
        let list = json!([
            sa(json!({ "place": "nic", "why_not": null })),
            sa(json!({ "place": "cpu", "why_not": "table-full" })),
        ]);
        let lines = lines(&list);
        assert!(lines[0].ends_with("in the NIC"), "{lines:?}");
        assert!(lines.iter().any(|line| line.ends_with("yes")), "{lines:?}");
        assert!(lines.iter().any(|line| line.ends_with("no: table-full")), "{lines:?}");
    }

    #[test]
    fn owners_are_shown_where_some_sas_are_not_the_configurations() {
        let sa = |tunnel: &str, owner: &str| json!({ "tunnel": tunnel, "owner": owner, "spi": 0x1001, "drops": {} });
        let of_file = lines(&json!([sa("a", "file"), sa("b", "file")]));
        assert!(!of_file.concat().contains("owner") && !of_file.concat().contains("file"), "{of_file:?}");
        let mut of_pluto = sa("ike:2", "ike");
        of_pluto["daemon"] = "pluto".into();
        let mixed = lines(&json!([sa("a", "file"), sa("ike:1", "ike"), of_pluto]));
        let last: Vec<_> = mixed.iter().filter_map(|line| line.split_whitespace().last()).collect();
        assert_eq!(last, ["owner", "file", "ike", "pluto"], "{mixed:?}");
        // An older gateway says none.
        assert!(!lines(&json!([{ "tunnel": "a" }])).concat().contains("owner"));
    }

    #[test]
    fn reordering_is_shown_where_several_workers_count_it() {
        let counted = |reordered: u64, extent: u64| json!({ "arrived": 80_000, "reordered": reordered, "longest_extent": extent });
        let sa = |counted: Value| json!({ "tunnel": "a", "spi": 7, "drops": {}, "reordering": counted });
        assert!(!lines(&json!([sa(Value::Null)])).concat().contains("reordered"));
        let shown = lines(&json!([sa(counted(1200, 65)), sa(counted(0, 0)), sa(Value::Null)]));
        assert!(shown[0].ends_with("reordered"), "{shown:?}");
        assert!(shown[1].ends_with("1,200 (1.50 %), by 65 at most"), "{shown:?}");
        assert!(shown[2].ends_with("  0"), "{shown:?}");
        let cost = json!({ "waited": 9000, "longest_wait_us": 1034, "passed_over": 2 });
        let released = lines(&json!([{ "tunnel": "a", "release": cost }]));
        assert!(released[0].ends_with("waited"), "{released:?}");
        assert!(released[1].ends_with("9,000, 1,034 µs at most, 2 passed over"), "{released:?}");
    }

    #[test]
    fn windows_are_counted_where_an_sa_has_some() {
        let without = lines(&json!([{ "tunnel": "a", "windows": null }, { "tunnel": "b" }]));
        assert!(!without.concat().contains("windows"), "{without:?}");
        let windows =
            json!({ "count": 12, "most": 1024, "tops": [{ "window": 3, "sequence": 9 }], "omitted": 11 });
        let some = lines(&json!([{ "tunnel": "a", "windows": windows }, { "tunnel": "b", "windows": null }]));
        assert!(some[0].ends_with("windows"), "{some:?}");
        assert_eq!(some.iter().filter(|line| line.ends_with("12 of 1,024")).count(), 1, "{some:?}");
    }

    /// However many there are: each page says where the next one begins.
    #[test]
    fn all_windows_are_asked_for_some_at_a_time() {
        let seen =
            json!({ "count": 300, "most": 1024, "tops": [{ "window": 0, "sequence": 9 }], "omitted": 299 });
        let mut list = json!([
            { "tunnel": "a", "direction": "inbound", "spi": 0x1001, "windows": seen },
            { "tunnel": "b", "direction": "inbound", "spi": 0x1002, "windows": null },
        ]);
        let asked = std::cell::RefCell::new(Vec::new());
        let page = |request: &Value| {
            let from = request["from"].as_u64().unwrap();
            asked.borrow_mut().push((request["spi"].as_u64().unwrap(), from));
            let top = |n: u64| json!({ "window": 999 - n, "sequence": 7 });
            let tops: Vec<_> = (from..(from + 256).min(600)).map(top).collect();
            Ok(Ok(json!({ "tops": tops, "next": (from + 256 < 600).then_some(from + 256) })))
        };
        assert_eq!(ask_for_windows(&mut list, page).unwrap(), [""; 0]);
        assert_eq!(*asked.borrow(), [(0x1001, 0), (0x1001, 256), (0x1001, 512)]);
        let windows_of = &list[0]["windows"];
        assert_eq!((&windows_of["count"], &windows_of["omitted"]), (&json!(600), &json!(0)));
        let ids: Vec<_> =
            rows(&windows_of["tops"]).iter().map(|top| top["window"].as_u64().unwrap()).collect();
        assert!(ids.into_iter().eq(400..1000));
        assert!(list[1]["windows"].is_null());
        let shown = windows(&list).to_string();
        assert_eq!(shown.lines().count(), 601, "a line for each: {shown}");
        let row: Vec<_> = shown.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, ["a", "inbound", "0x1001", "-", "400", "7"]);
    }

    /// It may be replaced between any two pages.
    #[test]
    fn an_sa_that_goes_while_its_windows_are_asked_for_keeps_the_first_ones() {
        let seen =
            json!({ "count": 300, "most": 1024, "tops": [{ "window": 5, "sequence": 9 }], "omitted": 299 });
        let sa = |tunnel: &str, spi: u32| json!({ "tunnel": tunnel, "direction": "inbound", "spi": spi, "windows": seen });
        let mut list = json!([sa("a", 0x1001), sa("b", 0x1002), sa("c", 0x1003)]);
        let page = |request: &Value| {
            let (spi, from) = (&request["spi"], request["from"].as_u64().unwrap());
            if *spi == 0x1003 || *spi == 0x1001 && from > 0 {
                return Ok(Err("there is no such SA".to_owned()));
            }
            let tops: Vec<_> =
                (from..(from + 256).min(300)).map(|n| json!({ "window": n, "sequence": 7 })).collect();
            Ok(Ok(json!({ "tops": tops, "next": (from + 256 < 300).then_some(from + 256) })))
        };
        let gone = ask_for_windows(&mut list, page).unwrap();
        let line = |tunnel: &str, spi: &str| {
            format!(
                "tunnel {tunnel}: of the inbound SA {spi} there are the first windows alone: there is no such SA"
            )
        };
        assert_eq!(gone, [line("a", "0x1001"), line("c", "0x1003")]);
        assert_eq!([&list[0]["windows"], &list[2]["windows"]], [&seen, &seen]);
        let of_b = &list[1]["windows"];
        assert_eq!((&of_b["count"], &of_b["omitted"]), (&json!(300), &json!(0)));
        assert_eq!(windows(&list).to_string().lines().count(), 1 + 1 + 300 + 1);
        // What is no refusal ends all: nobody answers any more.
        let failed = ask_for_windows(&mut list, |_| Err(Failure::silent(Kind::Unreachable)));
        assert!(failed.is_err());
    }

    #[test]
    fn interfaces_are_shown_where_sas_are_of_several() {
        let sa = |tunnel: &str, interface: &str| json!({ "tunnel": tunnel, "owner": "file", "interface": interface });
        let of_one = lines(&json!([sa("a", "testudo0"), sa("b", "testudo0")]));
        assert!(
            !of_one.concat().contains("interface") && !of_one.concat().contains("testudo0"),
            "{of_one:?}"
        );
        let of_several = lines(&json!([sa("a", "testudo0"), sa("b", "ipsec0"), sa("c", "ipsec0")]));
        let last: Vec<_> = of_several.iter().filter_map(|line| line.split_whitespace().last()).collect();
        assert_eq!(last, ["interface", "testudo0", "ipsec0", "ipsec0"], "{of_several:?}");
        // An older gateway says none.
        assert!(!lines(&json!([{ "tunnel": "a" }, { "tunnel": "b" }])).concat().contains("interface"));
    }

    #[test]
    fn rates_are_what_was_counted_between_two_looks() {
        let sa = |spi: u32, packets: u64, bytes: u64| json!({ "tunnel": "a", "direction": "outbound", "spi": spi, "packets": packets, "bytes": bytes });
        let before = json!([sa(1, 100, 10_000), sa(2, 900, 90_000)]);
        // Of the second another SA has the SPI since, and the third is new.
        let mut now = json!([sa(1, 5_100, 3_010_000), sa(2, 4, 400), sa(3, 7, 700)]);
        add_rates(&before, &mut now, Duration::from_secs(2));
        assert_eq!(
            (&now[0]["packets_per_second"], &now[0]["bits_per_second"]),
            (&json!(2500.0), &json!(12e6))
        );
        for other in [1, 2] {
            assert!(now[other]["packets_per_second"].is_null() && now[other]["bits_per_second"].is_null());
        }
        let shown = lines(&now);
        assert!(shown[0].ends_with("packets/s      bit/s") || shown[0].contains("packets/s"), "{shown:?}");
        assert!(shown[1].contains("2.50 kpacket/s") && shown[1].contains("12.00 Mbit/s"), "{shown:?}");
        add_rates(&before, &mut now, Duration::ZERO);
        assert_eq!(now[0]["packets_per_second"], 0.0);
    }

    #[test]
    fn a_rate_has_the_unit_that_fits() {
        let shown = |rate: f64| rate_cell(&json!(rate), "bit/s");
        assert_eq!(
            [0.0, 999.4, 1000.0, 1.25e9].map(shown),
            ["0 bit/s", "999 bit/s", "1.00 kbit/s", "1.25 Gbit/s"]
        );
        assert_eq!(rate_cell(&Value::Null, "bit/s"), "-");
    }

    #[test]
    fn connections_are_shown_as_strongswan_writes_them() {
        let connection = json!({ "ike": "site-b", "ike_id": 1234, "child": "net", "child_id": 7 });
        let sa = json!({ "owner": "ike", "daemon": "charon-systemd", "connection": connection });
        let shown = lines(&json!([sa, { "owner": "file" }]));
        assert!(shown[0].ends_with("connection"), "{shown:?}");
        assert!(shown[1].ends_with("charon-systemd  site-b[1234] net{7}"), "{shown:?}");
    }

    #[test]
    fn the_peers_address_is_the_one_that_it_has_now() {
        let sa = json!({ "peer": "[2001:db8::2]:4501", "remote": "2001:db8::9" });
        assert_eq!(remote(&sa), "2001:db8::2".parse().ok());
        assert_eq!(remote(&json!({ "peer": null, "remote": "192.0.2.2" })), "192.0.2.2".parse().ok());
        assert_eq!(remote(&json!({ "peer": null, "remote": "any" })), None);
    }

    #[test]
    fn it_is_said_why_there_are_no_names() {
        let said = unnamed("/run/charon.vici", &io::ErrorKind::PermissionDenied.into());
        assert!(said.contains("/run/charon.vici: permission denied; ask as root"), "{said}");
        assert!(unnamed("x", &io::ErrorKind::NotFound.into()).contains("`vici` in [ike]"));
    }
}
