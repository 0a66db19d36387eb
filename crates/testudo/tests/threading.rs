//! Threading models in the program: gateways over real TUN interfaces and sockets, whose engine is a device's
//! (PoCL, for correctness alone). Packets pass both ways in their order, and counters add up.

#![forbid(unsafe_code)]
#![allow(dead_code, reason = "the support is shared")]

mod support;

use serde_json::Value;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::process::{Command, ExitCode};
use support::config::{CONFIGURATION, Config, pair};
use support::gateway::{Gateway, PROGRAM, Said};
use support::link::Link;
use support::wait::PATIENCE;
use support::{Outcome, ensure, folder, wait};
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::Namespace;

const CONFIGURATION_IS_WRONG: i32 = 2;
/// Datagrams in each direction, and how many of them may be under way, so that no queue of the kernel is
/// full.
const DATAGRAMS: u32 = 3_000;
const WINDOW: u32 = 64;

fn main() -> ExitCode {
    Suite::new()
        .test("with_one_io_thread_and_a_device_thread_packets_pass_in_order", one_io)
        .test("with_two_io_threads_and_a_device_thread_packets_pass_in_order", two_io)
        .test("with_threads_that_the_scheduler_chooses_packets_pass_in_order", auto)
        .test("a_gateway_whose_device_has_compiled_its_kernels_reloads_and_ends_cleanly", signals)
        .test("threads_are_chosen_of_none_where_no_engine_is_on_a_device", no_device)
        .test("a_transmit_thread_over_ports_of_one_thread_is_refused", refused)
        .run(Link::build)
}

/// A gateway whose engine is the device, with these threads.
fn with_gpu(mut config: Config, threading: &str) -> Config {
    config.with_gpu("", &format!("threading = \"{threading}\"\n"));
    config
}

/// The gateway's threads, by their names.
fn threads(gateway: &Gateway) -> Outcome<Vec<String>> {
    let tasks = fs::read_dir(format!("/proc/{}/task", gateway.process()))?;
    let names = tasks.map(|task| Ok(fs::read_to_string(task?.path().join("comm"))?.trim_end().to_owned()));
    names.collect()
}

/// Sends numbered datagrams, as many at a time as the window has room for, and wants them in their order.
fn in_order(from: (&Namespace, &str), to: (&Namespace, &str)) -> TestResult {
    let bound = |(namespace, address): (&Namespace, &str)| -> Outcome<UdpSocket> {
        let address: IpAddr = address.parse()?;
        Ok(namespace.within(|| UdpSocket::bind((address, 0)))??)
    };
    let (near, far) = (bound(from)?, bound(to)?);
    near.connect(far.local_addr()?)?;
    far.set_read_timeout(Some(PATIENCE))?;
    let (mut sent, mut datagram) = (0, [0; 1400]);
    for expected in 0..DATAGRAMS {
        while sent < DATAGRAMS.min(expected + WINDOW) {
            datagram[..4].copy_from_slice(&sent.to_be_bytes());
            // Of every length, so that chunks have several bins.
            near.send(&datagram[..4 + sent as usize * 37 % 1396])?;
            sent += 1;
        }
        let bytes = far.recv(&mut datagram)?;
        let number = u32::from_be_bytes(datagram[..4].try_into()?);
        let is_it = number == expected && bytes == 4 + expected as usize * 37 % 1396;
        ensure(is_it, || format!("{number} of {bytes} bytes came instead of {expected}"))?;
    }
    Ok(())
}

/// Both directions at once.
fn both_ways(link: &Link) -> TestResult {
    let (a, b) = ((&link.a, "10.1.0.1"), (&link.b, "10.2.0.1"));
    std::thread::scope(|scope| {
        let out = scope.spawn(|| in_order(a, b).map_err(|error| error.to_string()));
        let back = scope.spawn(|| in_order(b, a).map_err(|error| error.to_string()));
        for (way, result) in [("out", out.join()), ("back", back.join())] {
            result.map_err(|_| format!("{way}: a panic"))?.map_err(|error| format!("{way}: {error}"))?;
        }
        Ok(())
    })
}

/// What came in has left again, and is an SA's; the device did some of it.
fn adds_up(gateway: &Gateway) -> Outcome<Value> {
    let told = wait::until("for counters that add up", || {
        let status = gateway.ask_json(&["status"])?;
        let of = |side: &str, name: &str| status["ports"][side][name].as_u64().unwrap_or(0);
        let [outbound, inbound] = ["outbound", "inbound"].map(|way| gateway.sa("a-b", way));
        let packets = |sa: Outcome<Value>| -> Outcome<u64> {
            Ok(sa?["packets"].as_u64().ok_or("an SA has no packets")?)
        };
        let (outbound, inbound) = (packets(outbound)?, packets(inbound)?);
        let lost: u64 =
            status["drops"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum();
        let [came, sealed] = [of("protected", "rx_packets"), of("unprotected", "tx_packets")];
        let [arrived, opened] = [of("unprotected", "rx_packets"), of("protected", "tx_packets")];
        let is_whole = sealed == outbound && opened == inbound && came + arrived == sealed + opened + lost;
        let has_all = outbound >= u64::from(DATAGRAMS) && inbound >= u64::from(DATAGRAMS);
        Ok((is_whole && has_all).then_some(status))
    });
    let status = told.map_err(|e| format!("{e}\n{:#}", gateway.ask_json(&["status"]).unwrap_or_default()))?;
    let gpu = status["engines"].as_array().and_then(|all| all.iter().find(|one| one["name"] == "gpu"));
    let done = gpu.and_then(|gpu| gpu["scheduler"]["packets"].as_u64());
    ensure(done > Some(0), || format!("the device did nothing: {:#}", status["engines"]))?;
    Ok(status)
}

/// Two gateways with these threads, and what both say of them at last.
fn pass(link: &mut Link, threading: &str, udp: bool) -> Outcome<[(Gateway, Value); 2]> {
    let [a, b] = pair(udp)?.map(|config| with_gpu(config, threading));
    let (gateway, _) = link.start_a(&a)?;
    let (peer, _) = link.start_b(&b)?;
    both_ways(link).map_err(|error| format!("{error}\n{}\n{}", gateway.log(), peer.log()))?;
    let told = [adds_up(&gateway)?, adds_up(&peer)?];
    let [one, other] = told;
    Ok([(gateway, one), (peer, other)])
}

/// The model and the threads are those that `status` says and the kernel has.
fn model_is(link: &mut Link, model: &str, udp: bool, expected: &[&str]) -> TestResult {
    for (gateway, status) in pass(link, model, udp)? {
        let threading = &status["threading"];
        let names: Vec<_> = threading["threads"].as_array().into_iter().flatten().collect();
        let is_it = threading["model"] == model && threading["why"] == "configured";
        ensure(is_it && names == expected, || format!("{threading:#}"))?;
        let has = threads(&gateway)?;
        ensure(expected.iter().all(|name| has.iter().any(|one| one == name)), || format!("{has:?}"))?;
        gateway.stop()?;
    }
    Ok(())
}

fn one_io(link: &mut Link) -> TestResult {
    model_is(link, "one_io", true, &["worker-0", "device-gpu"])
}

/// Over raw sockets.
fn two_io(link: &mut Link) -> TestResult {
    model_is(link, "two_io", false, &["worker-0", "device-gpu", "transmit-0"])
}

/// Which one it is depends on the machine, and on how much time it has: it is said, with the reason.
fn auto(link: &mut Link) -> TestResult {
    for (gateway, status) in pass(link, "auto", true)? {
        let threading = &status["threading"];
        let why = threading["why"].as_str().unwrap_or_default();
        ensure(why.starts_with("auto: "), || format!("{threading:#}"))?;
        let has_processors = std::thread::available_parallelism()?.get() > 1;
        ensure(threading["auto"].is_object() == has_processors, || format!("{threading:#}"))?;
        let said = gateway.ask(&["status"])?;
        ensure(said.stdout.contains("(auto: "), || format!("{said:#?}"))?;
        gateway.logs("threading: run to completion (auto: ")?;
        gateway.stop()?;
    }
    Ok(())
}

/// Compilers of OpenCL drivers have signal handlers of their own: a signal used to end the process at once.
fn signals(link: &mut Link) -> TestResult {
    let [a, _] = pair(true)?;
    let (mut gateway, _) = link.start_a(&with_gpu(a, "run_to_completion"))?;
    gateway.reload()?;
    gateway.is_alive()?;
    gateway.stop()
}

fn no_device(link: &mut Link) -> TestResult {
    let [a, _] = pair(true)?;
    let policies = format!("{}\n[scheduler]\nthreading = \"auto\"\n", a.policies);
    let gateway = format!("engines = [\"portable\"]\n{}", a.gateway);
    let (gateway, _) = link.start_a(&Config { gateway, policies, ..a })?;
    let threading = gateway.ask_json(&["status"])?["threading"].clone();
    ensure(threading["model"] == "run_to_completion", || format!("{threading:#}"))?;
    ensure(threading["why"] == "auto: no engine is on a device", || format!("{threading:#}"))?;
    gateway.stop()
}

/// By `check` and by `run`, before anything is opened.
fn refused(_: &mut Link) -> TestResult {
    let [mut a, _] = pair(true)?.map(|config| with_gpu(config, "two_io"));
    a.with_xdp("");
    let folder = folder("two-io-xdp")?;
    a.write(&folder)?;
    for verb in ["check", "run"] {
        let mut command = Command::new(PROGRAM);
        let said: Said = wait::output(command.current_dir(&folder).args([verb, CONFIGURATION]))?.into();
        let words = ["scheduler.threading", "TUN and sockets", "a queue of AF_XDP or DPDK is one thread's"];
        let is_named = words.iter().all(|word| said.stderr.contains(word));
        ensure(said.code == Some(CONFIGURATION_IS_WRONG) && is_named, || format!("{verb}: {said:#?}"))?;
    }
    Ok(())
}
