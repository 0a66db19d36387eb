//! Packets through a NIC that does what it says.

use crate::support::{Cable, Dpdk, GCM, ICV, Sa, framed, gmac, submit};
use testudo_crypto::{Direction, Engine, Job, JobStatus, OffloadState, SecurityMode};
use testudo_engine_inline::Checks;
use testudo_judge::harness::{Suite, TestResult};
use testudo_link::FrameDevice;
use testudo_packet::{Batch, Mark, MarkKind};

const LENGTHS: [usize; 6] = [20, 21, 22, 23, 300, 1400];

pub fn tests(suite: Suite<'_, Dpdk>) -> Suite<'_, Dpdk> {
    suite
        .test("what_the_nic_declares_is_what_it_is_given", declared)
        .test("the_nic_seals_to_the_byte_as_software_does", seals)
        .test("the_nic_opens_and_what_it_refuses_is_refused", opens)
        .test("verdicts_without_a_session_are_checked_by_software", nobodys)
        .test("a_session_ends_and_its_number_serves_another", ends)
}

fn declared(dpdk: &mut Dpdk) -> TestResult {
    let mut cable = dpdk.cable("", Checks::usual(1));
    let offload = cable.engine.offload().unwrap();
    let facts = Sa::new(1, GCM, SecurityMode::Tunnel, false).facts;
    assert_eq!(offload.check(&facts), Ok(()));
    let other = |change: fn(&mut testudo_crypto::SaFacts)| {
        let mut facts = facts.clone();
        change(&mut facts);
        facts
    };
    let gcm256 = other(|facts| facts.suite = testudo_crypto::Suite::AES256GCM16);
    assert_eq!(offload.check(&gcm256), Err(OffloadState::Suite));
    assert_eq!(offload.check(&other(|facts| facts.esn = true)), Err(OffloadState::Esn));
    assert_eq!(offload.check(&other(|facts| facts.in_udp = true)), Err(OffloadState::InUdp));
    assert_eq!(offload.check(&other(|facts| facts.mode = SecurityMode::Transport)), Ok(()));
    assert_eq!(cable.nic.report().sealing, (0, 1024));
    cable.close();
    Ok(())
}

/// Every kind of SA that the NIC can have.
fn kinds() -> Vec<Sa> {
    let mut all = Vec::new();
    for (nth, suite) in [GCM, gmac()].into_iter().enumerate() {
        for (at, mode) in [SecurityMode::Tunnel, SecurityMode::Transport].into_iter().enumerate() {
            all.extend([false, true].map(|is_v6| {
                Sa::new(0x1000 + (nth * 4 + at * 2 + usize::from(is_v6)) as u32, suite, mode, is_v6)
            }));
        }
    }
    all
}

fn seals(dpdk: &mut Dpdk) -> TestResult {
    let mut cable = dpdk.cable("", Checks::usual(1));
    for mut sa in kinds() {
        let key = cable.admit(Direction::Seal, &sa).unwrap();
        let jobs: Vec<Job> = (1..)
            .zip(LENGTHS)
            .map(|(number, bytes)| {
                let job = submit(&mut cable.engine, Job { key, ..sa.job(number, bytes, Direction::Seal) });
                assert!(job.status == JobStatus::Done && job.buffer.mark().is_to_be_sealed());
                job
            })
            .collect();
        cable.send(&jobs);
        let expected: Vec<_> =
            (1..).zip(LENGTHS).map(|(number, bytes)| sa.sealed(number, bytes, Direction::Seal)).collect();
        assert!(cable.arrived() == expected, "{:?}", sa.facts);
    }
    let counts = cable.nic.report().counts;
    assert_eq!((counts.sealed, counts.sealed_after_loss), (8 * LENGTHS.len() as u64, 0));
    cable.close();
    Ok(())
}

/// Receives datagrams of an SA, and has the NIC's engine look at them.
fn judged(cable: &mut Cable, sa: &Sa, key: testudo_crypto::KeyId) -> Vec<Job> {
    let came = cable.receive();
    came.into_iter().map(|datagram| submit(&mut cable.engine, sa.received(datagram, key))).collect()
}

fn opens(dpdk: &mut Dpdk) -> TestResult {
    let mut cable = dpdk.cable("", Checks::usual(1));
    for mut sa in kinds() {
        let key = cable.admit(Direction::Open, &sa).unwrap();
        let sent: Vec<_> =
            (1..).zip(LENGTHS).map(|(number, bytes)| sa.sealed(number, bytes, Direction::Open)).collect();
        cable.far_sends(&sent);
        let jobs = judged(&mut cable, &sa, key);
        assert_eq!(jobs.len(), LENGTHS.len());
        for (job, (number, bytes)) in jobs.into_iter().zip((1..).zip(LENGTHS)) {
            let clear = sa.job(number, bytes, Direction::Open).buffer;
            let text = ..clear.len() - ICV;
            assert!(job.status == JobStatus::Done && job.buffer.bytes()[text] == clear.bytes()[text]);
        }
        let mut forged = sa.sealed(99, 100, Direction::Open);
        *forged.last_mut().unwrap() ^= 1;
        cable.far_sends(&[forged]);
        let statuses: Vec<_> = judged(&mut cable, &sa, key).iter().map(|job| job.status).collect();
        assert_eq!(statuses, [JobStatus::AuthenticationFailed]);
    }
    let counts = cable.nic.report().counts;
    assert_eq!((counts.opened, counts.refused, counts.differences), (8 * LENGTHS.len() as u64, 8, 0));
    cable.close();
    Ok(())
}

fn nobodys(dpdk: &mut Dpdk) -> TestResult {
    let mut cable = dpdk.cable("", Checks::usual(1));
    let mut sa = Sa::new(7, GCM, SecurityMode::Tunnel, false);
    let key = cable.admit(Direction::Open, &sa).unwrap();
    let before = sa.sealed(1, 100, Direction::Open);
    cable.far_sends(&[before]);
    // Opened already, and its session ends before anyone has looked.
    let came = cable.receive();
    assert_eq!(came[0].mark(), Mark::opened_under(0));
    cable.engine.offload().unwrap().close(key);
    let job = submit(&mut cable.engine, sa.received(came.into_iter().next().unwrap(), key));
    assert_eq!((job.status, cable.nic.report().counts.doubtful), (JobStatus::Done, 1));
    // What comes now, the NIC leaves alone.
    let after = sa.sealed(2, 100, Direction::Open);
    cable.far_sends(std::slice::from_ref(&after));
    let came = cable.receive();
    assert!(came[0].mark().kind() == MarkKind::None && came[0].bytes() == after);
    // A mark that no session has leaves by no device.
    let mut marked = framed(&mut cable.pool, &after);
    marked.set_mark(Mark::seal_under(3));
    let mut batch = Batch::from_iter([marked]);
    assert_eq!(cable.frames.device_mut().tx(&mut cable.pool, &mut batch)?, 0);
    assert!(cable.arrived().is_empty());
    batch[0].set_mark(Mark::NONE);
    cable.pool.recycle_all(&mut batch);
    let mut plain = framed(&mut cable.pool, &[0x45; 60]);
    plain.set_mark(Mark::seal_under(3));
    let mut batch = Batch::from_iter([plain]);
    assert_eq!(cable.frames.device_mut().tx(&mut cable.pool, &mut batch)?, 1);
    assert_eq!(cable.pool.drops().get(testudo_packet::DropReason::NotSealed), 1);
    assert!(cable.arrived().is_empty());
    cable.close();
    Ok(())
}

fn ends(dpdk: &mut Dpdk) -> TestResult {
    let mut cable = dpdk.cable(",sa_limit=3", Checks::usual(1));
    // So that numbers come again, there are more rounds than numbers could be without an end.
    for round in 0..64_u32 {
        let mut sas: Vec<_> =
            (0..3).map(|nth| Sa::new(round * 3 + nth + 1, GCM, SecurityMode::Tunnel, false)).collect();
        for sa in &mut sas {
            for direction in [Direction::Seal, Direction::Open] {
                let key = cable.admit(direction, sa).unwrap();
                if direction == Direction::Seal {
                    let job = submit(&mut cable.engine, Job { key, ..sa.job(1, 64, direction) });
                    cable.send(std::slice::from_ref(&job));
                    assert!(cable.arrived() == [sa.sealed(1, 64, direction)]);
                }
                cable.engine.remove(key);
                // The NIC keeps the key until it has been seen that the packet has left.
                (0..64).for_each(|_| assert!(cable.receive().is_empty()));
            }
        }
    }
    let report = cable.nic.report();
    assert_eq!((report.sealing.0, report.opening.0, report.counts.failed_calls), (0, 0, 0));
    cable.close();
    Ok(())
}
