//! Testudo interoperates with the Linux kernel's own IPsec: the real program on one end of a TAP device, an
//! unmodified kernel in a virtual machine on the other, real traffic between them.
//!
//! A *row* is one tunnel: protocol, mode, suite, IP version outside, ESN (`testudo_judge::interop`). The
//! tests try a sample of them, every suite and every protocol in every mode; `make interop` tries all
//! (`matrix`). Up to sixteen rows stand side by side in one gateway, each with addresses of its own, since an
//! emulated guest takes longer to start things than to run them.
//!
//! The same rows have Scapy as their peer, through packet files (`scapy_rows`): it does what Linux lacks,
//! too. Some rows are tried again, with both peers, with a gateway whose only fast engine is a GPU (`gpu`).
//!
//! The suites that gateways use most are tried with more traffic: ESP and ESP in UDP in tunnel mode, over
//! IPv4 and IPv6, with ESN and without, so that every pair of these occurs.

#[path = "../support/mod.rs"]
mod support;

mod attacks;
mod engines;
mod gpu;
mod guest;
mod matrix;
mod scapy_rows;
mod shared_sa;
mod site;
mod slot;
mod traffic;
mod trial;

use engines::Engines;
use site::{Site, boot};
use slot::SLOTS;
use std::process::ExitCode;
use support::ensure;
use testudo_judge::harness::{self, TestResult};
use testudo_judge::interop::{Mode, Protocol, Row, Verdict, sample};
use traffic::Load;
use trial::try_rows;

/// An orthogonal array of IPv6 outside, ESP in UDP, ESN: any two columns have all four pairs.
const SHAPES: [[bool; 3]; 4] =
    [[false, false, true], [false, true, false], [true, false, false], [true, true, true]];

fn main() -> ExitCode {
    if let Some(arguments) = matrix::arguments() {
        return matrix::main(&arguments);
    }
    let mut tests = harness::Suite::new();
    for suite in Row::COMMON {
        let rows = SHAPES.map(|[ipv6, udp, esn]| {
            let protocol = if udp { Protocol::EspInUdp } else { Protocol::Esp };
            Row { protocol, mode: Mode::Tunnel, ipv6, esn, suite, ah: None }
        });
        let name = format!("linux_speaks_{}_with_long_datagrams", suite.to_string().replace('-', "_"));
        tests = tests.test(name, move |site| pass(site, &rows, Engines::Usual, Load::HEAVY));
    }
    for rows in cells(&sample()) {
        let name = name_of(&rows[0]);
        tests = tests.test(name, move |site| pass(site, &rows, Engines::Usual, Load::LIGHT));
    }
    tests
        .test("scapy_speaks_every_suite_and_every_protocol_in_each_mode", |_| {
            scapy_rows::pass("sample", &sample(), Engines::Usual)
        })
        .test("linux_speaks_with_a_gateway_whose_only_fast_engine_is_a_gpu", |site| {
            pass(site, &gpu::rows()?, Engines::Gpu { headers: false }, Load::LIGHT)
        })
        .test("linux_speaks_with_a_gateway_whose_gpu_writes_headers", |site| {
            pass(site, &gpu::rows_with_headers()?, Engines::Gpu { headers: true }, Load::LIGHT)
        })
        .test("scapy_speaks_with_a_gateway_whose_only_fast_engine_is_a_gpu", |_| {
            scapy_rows::pass("gpu", &gpu::rows()?, Engines::Gpu { headers: false })
        })
        .test("scapy_speaks_with_a_gateway_whose_gpu_writes_headers", |_| {
            scapy_rows::pass("gpu-headers", &gpu::rows_with_headers()?, Engines::Gpu { headers: true })
        })
        .test("linux_takes_off_padding_and_ignores_dummies", attacks::hides_traffic)
        .test("replayed_packets_of_linux_are_refused", attacks::refuses_replays)
        .test("packets_of_linux_under_a_wrong_key_are_counted_and_do_not_pass", attacks::refuses_wrong_keys)
        .test(
            "two_workers_of_one_sa_keep_within_the_smallest_window_of_linux",
            shared_sa::workers_keep_within_the_smallest_window,
        )
        .test(
            "a_window_of_linux_that_is_smaller_than_we_were_told_loses_packets",
            shared_sa::a_wider_window_than_the_peers_loses_packets,
        )
        .test("linux_refuses_our_packets_under_a_wrong_key", attacks::linux_refuses_wrong_keys)
        .run(boot)
}

/// The rows of each protocol, mode, IP version and ESN.
fn cells(rows: &[Row]) -> Vec<Vec<Row>> {
    let same = |a: &Row, b: &Row| (a.protocol, a.mode, a.ipv6, a.esn) == (b.protocol, b.mode, b.ipv6, b.esn);
    rows.chunk_by(same).map(<[Row]>::to_vec).collect()
}

fn name_of(row: &Row) -> String {
    let protocol = row.protocol.name().replace(['-', '+'], "_");
    let esn = if row.esn { "esn" } else { "no_esn" };
    format!("linux_speaks_{protocol}_in_{}_mode_over_{}_{esn}", row.mode.name(), row.family())
}

/// Expects that every row passes, but for those whose suite Linux lacks: implicit IVs, and GMAC in AH.
fn pass(site: &mut Site, rows: &[Row], engines: Engines, load: Load) -> TestResult {
    let mut complaints = Vec::new();
    for lot in rows.chunks(SLOTS) {
        for (row, verdict) in try_rows(site, lot, engines, load)? {
            let may_lack =
                row.has_counter_nonces() || row.protocol == Protocol::Ah && row.suite.is_combined();
            match verdict {
                Verdict::Pass => {}
                Verdict::Lacking(_) if may_lack => {}
                Verdict::Lacking(reason) | Verdict::Fail(reason) => {
                    complaints.push(format!("{row}: {reason}"))
                }
            }
        }
    }
    ensure(complaints.is_empty(), || complaints.join("\n"))
}
