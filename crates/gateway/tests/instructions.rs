//! Instructions per packet outside the cryptography, under ceilings that may only fall.
//!
//! Unlike time, the number of instructions does not vary from run to run. Each case is a load that runs twice
//! in a separate process under valgrind, with few packets and with many: the setup cancels out, and the
//! difference divided by the extra packets is the cost of one. The engine does nothing (valgrind does not
//! know AVX-512).
//!
//! Only instructions of this program count, not those of shared libraries: which `memcpy` libc selects, and
//! so how many instructions a copy takes, differs from processor to processor.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::expect_used,
    reason = "test data is made of small numbers, and a test says what must hold"
)]

#[path = "support/mod.rs"]
mod support;

use fastrand::Rng;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use support::load::{Load, turn_until_idle};
use testudo_crypto::Direction::{Open, Seal};
use testudo_gateway::{SaChange, UseFrom, Worker};
use testudo_ipsec::{
    Action, Direction, Flow, IpsecProtocol, Moment, PacketValues, Policy, PolicyChange, PolicyId,
    PopulateFlags, Position, Prefix, Selector, Spd, TunnelIndex, Verdict,
};
use testudo_port_memory::LoopPort;
use testudo_wire::ip::Version;
use testudo_wire::next_layer::NextLayerFields;

/// Packets of the two runs. The first run is enough for everything to reach its final size and for one round
/// over the tunnels.
const FEW: usize = 4096;
const MANY: usize = 4 * FEW;
/// Set for the counted process: the number of packets to move.
const PACKETS: &str = "TESTUDO_COUNTED_PACKETS";
/// Set for it to lease all numbers from the start.
const ALL_LEASED: &str = "TESTUDO_COUNTED_ALL_LEASED";
/// Set for it to change policies or SAs beside so many others.
const INSTALLED: &str = "TESTUDO_COUNTED_INSTALLED";
/// Margin of a ceiling above the measured count: another compiler release may change it slightly.
const ROOM_PERCENT: u64 = 2;
/// A count this many percent below its ceiling calls for a lower ceiling.
const SLACK_PERCENT: u64 = 5;
/// One line each: the name of a test and its ceiling.
const CEILINGS: &str = include_str!("instructions.ceilings");

/// What the counted process does: sets up for the larger run and moves `packets`.
fn carry(load: Load, packets: usize) {
    let all = match load.direction {
        Seal => load.packets(),
        Open => load.sealed(MANY),
    };
    let feed = LoopPort::new("load", all).with_limit(packets as u64);
    let mut loaded = load.worker(feed, LoopPort::discard("sink"));
    if std::env::var_os(ALL_LEASED).is_some() {
        loaded.lease_all();
    }
    turn_until_idle(&mut loaded);
}

/// Instructions that this program executes per packet of a load, with these environment variables.
fn measure(name: &str, variables: &[(&str, &str)]) -> f64 {
    (count(name, MANY, variables) - count(name, FEW, variables)) as f64 / (MANY - FEW) as f64
}

/// Instructions that this program executes for a load of this many packets.
fn count(name: &str, packets: usize, variables: &[(&str, &str)]) -> u64 {
    let program = std::env::current_exe().expect("a program");
    let folder = std::env::temp_dir().join(format!("testudo-instructions-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let profile = folder.join("profile");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--error-exitcode=99"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(&program)
        .args([name, "--exact", "--test-threads=1"])
        .env(PACKETS, packets.to_string())
        .envs(variables.iter().copied())
        .output()
        .unwrap_or_else(|e| {
            panic!("valgrind, which counts the instructions, cannot be run: {e}; `make setup` installs it")
        });
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&profile).expect("callgrind's profile");
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    let objects = instructions_by_object(&text);
    let ours = objects.get(&*program.to_string_lossy());
    *ours.unwrap_or_else(|| panic!("{} is not among {:?}", program.display(), objects.keys()))
}

/// Instructions of each object file in callgrind's profile (valgrind's manual, "Callgrind Format
/// Specification"). Their sum must be the total that the profile ends with.
fn instructions_by_object(profile: &str) -> HashMap<String, u64> {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut sums: HashMap<String, u64> = HashMap::new();
    let (mut object, mut total, mut is_of_call) = ("", None, false);
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("ob=").or_else(|| line.strip_prefix("cob=")) {
            // "(1) path" the first time, and "(1)" from then on.
            let (id, path) = name.split_once(' ').unwrap_or((name, ""));
            let path = if path.is_empty() { names.get(id).copied().unwrap_or(id) } else { path };
            names.insert(id, path);
            if line.starts_with("ob=") {
                object = path;
            }
        } else if line.starts_with("calls=") {
            is_of_call = true;
        } else if let Some(sum) = line.strip_prefix("totals: ") {
            total = sum.parse::<u64>().ok();
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            // Instructions of a called function are counted at the function itself.
            if !std::mem::take(&mut is_of_call) {
                let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok());
                *sums.entry(object.to_owned()).or_default() += cost.unwrap_or(0);
            }
        }
    }
    assert_eq!(Some(sums.values().sum()), total, "the profile does not add up");
    sums
}

fn ceiling(name: &str) -> u64 {
    let lines = CEILINGS.lines().filter_map(|line| line.split_once(' '));
    let found = lines.filter(|(of, _)| *of == name).find_map(|(_, ceiling)| ceiling.trim().parse().ok());
    found.unwrap_or_else(|| panic!("instructions.ceilings has no number for {name}"))
}

/// An error if a count is above its ceiling, or far below it.
fn verdict(measured: u64, ceiling: u64) -> Result<(), String> {
    if measured > ceiling {
        let above = "a ceiling may only fall: find what a packet pays for now";
        return Err(format!("{measured} instructions a packet, the ceiling is {ceiling}; {above}"));
    }
    if measured * 100 < ceiling * (100 - SLACK_PERCENT) {
        let lower = (measured * (100 + ROOM_PERCENT)).div_ceil(100);
        return Err(format!(
            "{measured} instructions a packet: lower the ceiling to {lower} (it is {ceiling})"
        ));
    }
    Ok(())
}

/// The test `name`: moves packets in the counted process, and otherwise starts and evaluates it.
fn check(name: &str, load: Load) {
    if let Ok(packets) = std::env::var(PACKETS) {
        return carry(load, packets.parse().expect("a number of packets"));
    }
    let measured = measure(name, &[]).ceil() as u64;
    println!("{name}: {measured} instructions a packet, ceiling {}", ceiling(name));
    verdict(measured, ceiling(name)).unwrap_or_else(|complaint| panic!("{name}: {complaint}"));
}

/// One test per load, so that the harness runs them in parallel.
macro_rules! cases {
    ($(fn $name:ident() = $load:expr;)*) => {
        $(
            #[test]
            #[cfg_attr(debug_assertions, ignore = "counts what ships: `scripts/test.sh release`")]
            fn $name() {
                check(stringify!($name), $load);
            }
        )*
    };
}

/// ESP over IPv4, one tunnel, an engine that ends jobs inside `submit`.
const SEALING: Load = Load {
    direction: Seal,
    version: Version::V4,
    udp: false,
    protocol: IpsecProtocol::Esp,
    tunnels: 1,
    is_late: false,
};
const OPENING: Load = Load { direction: Open, ..SEALING };
const VPE: Load = Load { protocol: IpsecProtocol::Vpe, ..SEALING };
const MANY_TUNNELS: Load = Load { udp: true, tunnels: 1000, ..SEALING };

cases! {
    fn sealing_costs_no_more_instructions() = SEALING;
    fn opening_costs_no_more_instructions() = OPENING;
    fn sealing_in_udp_costs_no_more_instructions() = Load { udp: true, ..SEALING };
    fn opening_in_udp_costs_no_more_instructions() = Load { udp: true, ..OPENING };
    fn sealing_ipv6_costs_no_more_instructions() = Load { version: Version::V6, ..SEALING };
    fn opening_ipv6_costs_no_more_instructions() = Load { version: Version::V6, ..OPENING };
    fn sealing_vpe_costs_no_more_instructions() = VPE;
    fn opening_vpe_costs_no_more_instructions() = Load { direction: Open, ..VPE };
    fn sealing_for_1000_tunnels_costs_no_more_instructions() = MANY_TUNNELS;
    fn opening_from_1000_tunnels_costs_no_more_instructions() = Load { direction: Open, ..MANY_TUNNELS };
    fn sealing_late_costs_no_more_instructions() = Load { is_late: true, ..SEALING };
    fn opening_late_costs_no_more_instructions() = Load { is_late: true, ..OPENING };
    fn sealing_late_for_1000_tunnels_costs_no_more_instructions() = Load { is_late: true, ..MANY_TUNNELS };
}

/// The cost of leasing numbers in blocks instead of all at once.
#[test]
#[cfg_attr(debug_assertions, ignore = "counts what ships: `scripts/test.sh release`")]
fn leasing_costs_less_than_1_percent_of_sealing() {
    let name = "leasing_costs_less_than_1_percent_of_sealing";
    if let Ok(packets) = std::env::var(PACKETS) {
        return carry(SEALING, packets.parse().expect("a number of packets"));
    }
    let (leased, all_leased) = (measure(name, &[]), measure(name, &[(ALL_LEASED, "1")]));
    let percent = (leased - all_leased) / all_leased * 100.0;
    println!("{leased:.2} instructions a packet, {all_leased:.2} with all numbers leased: {percent:.3} %");
    assert!(percent < 1.0, "leasing costs {percent:.3} %");
}

/// Inserts policies between random prefixes, and removes as many, beside `installed` others.
fn change_policies(installed: u32, changes: usize) {
    let mut random = Rng::with_seed(1);
    let prefix = |random: &mut Rng| {
        let address = IpAddr::V4(Ipv4Addr::from_bits(random.u32(..)));
        Prefix::new(address, random.u8(8..=32)).expect("a length of IPv4")
    };
    let policy =
        |random: &mut Rng| Policy::new(Selector::between(prefix(random), prefix(random)), Action::Discard);
    let policies: Vec<Policy> = (0..installed).map(|_| policy(&mut random)).collect();
    let mut spd = Spd::new(policies).expect("few prefixes");
    let mut ids: Vec<PolicyId> = spd.policies().map(|(id, _)| id).collect();
    for _ in 0..changes {
        let place = Position::After(ids[random.usize(..ids.len())]);
        ids.push(spd.insert(place, policy(&mut random)).expect("few prefixes"));
        let gone = ids.swap_remove(random.usize(..ids.len()));
        spd.remove(gone).expect("it is installed");
    }
}

/// Beside 10,000 times as many others, a policy costs little more to insert and remove: trees are deeper.
#[test]
#[cfg_attr(debug_assertions, ignore = "counts what ships: `scripts/test.sh release`")]
fn one_policy_costs_about_the_same_beside_10_and_100_000() {
    let name = "one_policy_costs_about_the_same_beside_10_and_100_000";
    if let Ok(changes) = std::env::var(PACKETS) {
        let installed = std::env::var(INSTALLED).expect("a number of policies");
        return change_policies(
            installed.parse().expect("a number of policies"),
            changes.parse().expect("a number of changes"),
        );
    }
    let [few, many] = ["10", "100000"].map(|installed| measure(name, &[(INSTALLED, installed)]));
    println!("{few:.0} instructions for a policy beside 10, {many:.0} beside 100,000");
    assert!(many < 2.0 * few, "{few:.0} instructions beside 10, {many:.0} beside 100,000");
}

/// Replaces the SAs of tunnels that have `installed` SAs, and takes the new ones away again.
fn change_sas(installed: u32, changes: usize) {
    let load = Load { tunnels: installed / 2, ..SEALING };
    let mut worker = load.installed();
    for number in (0..load.tunnels).cycle().take(changes) {
        let (outbound, inbound) = load.next_sas(number);
        let (index, new) = (TunnelIndex(number), [&outbound.parameters.sa, &inbound.parameters.sa]);
        let [new_out, new_in] = new.map(|sa| sa.spi);
        let changes = [
            SaChange::AddInbound(index, Box::new(inbound)),
            SaChange::AddOutbound(index, Box::new(outbound), UseFrom::Now),
            SaChange::UseOutbound(index, new_out & !(1 << 31)),
            SaChange::RemoveOutbound(index, new_out),
            SaChange::RemoveInbound(index, new_in),
        ];
        for change in changes {
            worker.change_sa(change, Moment::default()).expect("it can be changed");
        }
    }
}

/// An SA is added, put to use and removed at the same cost beside 10,000 times as many others: nothing is
/// searched, and no table is moved.
#[test]
#[cfg_attr(debug_assertions, ignore = "counts what ships: `scripts/test.sh release`")]
fn one_sa_costs_the_same_beside_10_and_100_000() {
    let name = "one_sa_costs_the_same_beside_10_and_100_000";
    if let Ok(changes) = std::env::var(PACKETS) {
        let installed = std::env::var(INSTALLED).expect("a number of SAs");
        return change_sas(
            installed.parse().expect("a number of SAs"),
            changes.parse().expect("a number of changes"),
        );
    }
    let [few, many] = ["10", "100000"].map(|installed| measure(name, &[(INSTALLED, installed)]));
    println!("{few:.0} instructions to replace a pair of SAs beside 10, {many:.0} beside 100,000");
    assert!((many - few).abs() < 0.1 * few, "{few:.0} instructions beside 10, {many:.0} beside 100,000");
}

/// Makes tunnels for flows beside those of `installed` others, and ends them: what `sa add --for` has the
/// worker do, keys aside. Then looks the flow up, as a packet of it does, and one that has no tunnel.
fn change_populated(installed: u32, changes: usize) {
    let flags = PopulateFlags::REMOTE.with(PopulateFlags::PROTOCOL).with(PopulateFlags::REMOTE_PORTS);
    let populating = Policy::populating(Selector::ANY, TunnelIndex(0), flags);
    let load = Load { tunnels: 1, ..SEALING };
    let mut worker = load.installed();
    let last = vec![PolicyChange::Insert(Position::Last, populating.clone())];
    let template = worker.change_policies(last)[0].expect("a policy");
    let values = |number: u32| PacketValues {
        remote: Some(IpAddr::V4(Ipv4Addr::from_bits(0xC612_0000 + number / 4))),
        protocol: Some(17),
        remote_port: Some(1000 + (number % 4) as u16),
        ..PacketValues::default()
    };
    let begin = |worker: &mut Worker, number: u32| {
        let selectors = populating.populated(&values(number));
        let parameters = load.parameters(0).selecting(selectors.iter().copied());
        let index = TunnelIndex(1 + number);
        let add = SaChange::AddTunnel(index, Box::new(parameters));
        worker.change_sa(add, Moment::default()).expect("it can be added");
        let own = populating.of_populated(index, selectors.into());
        worker.change_policies(vec![PolicyChange::Insert(Position::Before(template), own)])[0]
            .expect("a policy")
    };
    for number in 0..installed {
        begin(&mut worker, number);
    }
    for change in 0..changes as u32 {
        let number = installed + change % 64;
        let id = begin(&mut worker, number);
        let (local, remote) = (Ipv4Addr::new(10, 0, 0, 1).into(), values(number).remote.expect("an address"));
        for (port, expected) in
            [(1000 + (number % 4) as u16, Action::Protect(TunnelIndex(1 + number))), (9, populating.action)]
        {
            let flow =
                Flow::new(Direction::Outbound, local, remote, 17, Some(NextLayerFields::Ports(5, port)));
            assert_eq!(worker.policies().verdict(&flow), Verdict::Policy(expected));
        }
        worker.change_policies(vec![PolicyChange::Remove(id)])[0].expect("it is there");
        let remove = SaChange::RemoveTunnel(TunnelIndex(1 + number));
        worker.change_sa(remove, Moment::default()).expect("it is there");
    }
}

/// RFC 4301 4.4.1.2: SAs that are populated from packets count among those of which 100,000 are installed.
/// Nothing is searched from one end to the other to begin one, to end it, or to find it.
#[test]
#[cfg_attr(debug_assertions, ignore = "counts what ships: `scripts/test.sh release`")]
fn one_flows_tunnel_costs_about_the_same_beside_10_and_100_000() {
    let name = "one_flows_tunnel_costs_about_the_same_beside_10_and_100_000";
    if let Ok(changes) = std::env::var(PACKETS) {
        let installed = std::env::var(INSTALLED).expect("a number of tunnels");
        return change_populated(
            installed.parse().expect("a number of tunnels"),
            changes.parse().expect("a number of changes"),
        );
    }
    let [few, many] = ["10", "100000"].map(|installed| measure(name, &[(INSTALLED, installed)]));
    println!(
        "{few:.0} instructions to begin, find and end a flow's tunnel beside 10, {many:.0} beside 100,000"
    );
    assert!(many < 2.0 * few, "{few:.0} instructions beside 10, {many:.0} beside 100,000");
}

#[test]
fn a_ceiling_may_only_fall() {
    assert_eq!(verdict(100, 100), Ok(()));
    assert_eq!(verdict(95, 100), Ok(()));
    assert!(verdict(101, 100).is_err_and(|text| text.contains("may only fall")));
    assert!(verdict(94, 100).is_err_and(|text| text.contains("lower the ceiling to 96")));
    assert_eq!(verdict(94, 96), Ok(()), "the ceiling that is asked for is taken");
}

#[test]
fn a_profile_is_summed_by_object_without_what_calls_took() {
    let profile = "version: 1\npositions: line\nevents: Ir\n\nob=(1) /lib/libc.so\nfl=(1) a.c\nfn=(1) copy\n10 5\n+1 7\n\
                   ob=(2) /bin/us\nfn=(2) main\n1 100\ncob=(1)\ncfn=(1)\ncalls=1 10\n* 12\n3 1\nob=(1)\nfn=(3) other\n-2 30\n\n\
                   totals: 143\n";
    let sums = instructions_by_object(profile);
    assert_eq!((sums["/lib/libc.so"], sums["/bin/us"]), (42, 101));
}
