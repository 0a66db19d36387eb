//! A NIC that is full, fails, is reset or lies, while packets flow: none is lost, and none comes in another
//! order, or twice.

use crate::support::{Cable, Dpdk, GCM, Sa, number_of, submit};
use testudo_crypto::{Direction, Engine, Job, JobStatus, KeyId, OffloadState, SecurityMode};
use testudo_engine_inline::Checks;
use testudo_judge::harness::{Suite, TestResult};

/// Packets of a burst: what the NIC takes at once.
const BURST: u32 = 32;
const BURSTS: u32 = 100;

pub fn tests(suite: Suite<'_, Dpdk>) -> Suite<'_, Dpdk> {
    suite
        .test("a_full_table_and_refused_sessions_are_told_and_tried_again", full)
        .test("a_nic_that_is_reset_under_way_loses_no_packet_that_it_was_to_seal", resets_when_sealing)
        .test("a_nic_that_is_reset_under_way_loses_no_packet_that_it_was_to_open", resets_when_opening)
        .test("wrong_verdicts_cost_no_packet", lies)
        .test("a_nic_that_opens_wrongly_is_out_of_service", wrong_text)
}

fn sa(spi: u32) -> Sa {
    Sa::new(spi, GCM, SecurityMode::Tunnel, false)
}

fn full(dpdk: &mut Dpdk) -> TestResult {
    let mut cable = dpdk.cable(",sa_limit=2", Checks::usual(1));
    let sas: Vec<_> = (1..=3).map(sa).collect();
    for direction in [Direction::Open, Direction::Seal] {
        let keys: Vec<_> = sas[..2].iter().map(|sa| cable.admit(direction, sa).unwrap()).collect();
        // rte_flow says why it refuses, rte_security does not: it is full when it has refused several.
        let refused: Vec<_> = (0..3).map(|_| cable.admit(direction, &sas[2]).unwrap_err()).collect();
        let expected = match direction {
            Direction::Open => [OffloadState::TableFull; 3],
            Direction::Seal => [OffloadState::Refused, OffloadState::Refused, OffloadState::TableFull],
        };
        assert_eq!(refused, expected);
        cable.engine.remove(keys[0]);
        cable.admit(direction, &sas[2]).unwrap();
    }
    cable.close();
    // The test at the start makes four.
    let mut cable = dpdk.cable(",fail_session=5", Checks::usual(1));
    let made = (1..=9).filter(|spi| cable.admit(Direction::Seal, &sa(*spi)).is_ok()).count();
    assert_eq!(made, 7, "the first and the sixth are refused");
    cable.close();
    Ok(())
}

/// The session of an SA, made again whenever it has gone.
struct Moving {
    sa: Sa,
    direction: Direction,
    key: Option<KeyId>,
    made: u32,
}

impl Moving {
    fn new(direction: Direction) -> Self {
        Self { sa: sa(0x2000), direction, key: None, made: 0 }
    }

    /// As the gateway does it between bursts.
    fn look_after(&mut self, cable: &mut Cable) {
        if let Some(key) = self.key.filter(|key| cable.state(*key) != OffloadState::InNic) {
            cable.engine.remove(key);
            self.key = None;
        }
        if self.key.is_none() {
            self.key = cable.admit(self.direction, &self.sa).ok();
            self.made += u32::from(self.key.is_some());
        }
    }

    /// By the NIC's engine, and by software where that does not do it.
    fn run(&mut self, cable: &mut Cable, job: Job) -> Job {
        let job = match self.key {
            Some(key) => submit(&mut cable.engine, Job { key, ..job }),
            None => Job { status: JobStatus::Fault, ..job },
        };
        match (job.status, self.direction) {
            (JobStatus::Fault, Direction::Seal) => self.sa.seal(job),
            (JobStatus::Fault, Direction::Open) => self.sa.open(job),
            _ => job,
        }
    }
}

fn resets_when_sealing(dpdk: &mut Dpdk) -> TestResult {
    let mut cable = dpdk.cable(",reset_after=333", Checks::usual(1));
    let mut moving = Moving::new(Direction::Seal);
    let mut arrived = Vec::new();
    for burst in 0..BURSTS {
        moving.look_after(&mut cable);
        let numbers = 1 + burst * BURST..=(burst + 1) * BURST;
        let jobs: Vec<_> = numbers
            .map(|number| {
                let job = moving.sa.job(number, 100, Direction::Seal);
                moving.run(&mut cable, job)
            })
            .collect();
        assert!(jobs.iter().all(|job| job.status == JobStatus::Done));
        cable.send(&jobs);
        arrived.extend(cable.arrived());
    }
    assert!(arrived.iter().map(|datagram| number_of(datagram)).eq(1..=BURSTS * BURST), "all, once, in order");
    let all_sealed = (1..)
        .zip(&arrived)
        .all(|(number, datagram)| *datagram == moving.sa.sealed(number, 100, Direction::Seal));
    assert!(all_sealed);
    let counts = cable.nic.report().counts;
    // Most are the NIC's, and those of a burst that a reset cut are software's.
    assert_eq!(u64::from(moving.made), counts.resets + 1);
    assert!(counts.resets >= 8 && counts.sealed_after_loss >= counts.resets, "{counts:?}");
    assert!(counts.sealed > u64::from(BURSTS * BURST) / 2, "{counts:?}");
    assert_eq!(cable.frames.device().statistics().resets, counts.resets);
    cable.close();
    Ok(())
}

/// Sends bursts to the NIC, and says how each packet was opened.
fn open_all(cable: &mut Cable, moving: &mut Moving) -> Vec<(u32, JobStatus)> {
    let mut ended = Vec::new();
    for burst in 0..BURSTS {
        moving.look_after(cable);
        let numbers = 1 + burst * BURST..=(burst + 1) * BURST;
        let sent: Vec<_> = numbers.map(|number| moving.sa.sealed(number, 100, Direction::Open)).collect();
        cable.far_sends(&sent);
        for datagram in cable.receive() {
            let number = number_of(datagram.bytes());
            let job = moving.sa.received(datagram, KeyId::NONE);
            let job = moving.run(cable, job);
            let clear = moving.sa.job(number, 100, Direction::Open).buffer;
            if job.status == JobStatus::Done {
                assert!(job.buffer.bytes()[..clear.len() - 16] == clear.bytes()[..clear.len() - 16]);
            }
            ended.push((number, job.status));
        }
        // A reset is noticed at the next call.
        assert!(cable.receive().is_empty());
    }
    ended
}

fn is_all(ended: &[(u32, JobStatus)]) -> bool {
    ended.iter().copied().eq((1..=BURSTS * BURST).map(|number| (number, JobStatus::Done)))
}

fn resets_when_opening(dpdk: &mut Dpdk) -> TestResult {
    let mut cable = dpdk.cable(",reset_after=333", Checks::usual(1));
    let mut moving = Moving::new(Direction::Open);
    let ended = open_all(&mut cable, &mut moving);
    assert!(is_all(&ended), "all, once, in order");
    let counts = cable.nic.report().counts;
    assert!(counts.resets >= 8 && counts.opened > u64::from(BURSTS * BURST) / 2, "{counts:?}");
    assert_eq!(counts.differences, 0);
    cable.close();
    Ok(())
}

fn lies(dpdk: &mut Dpdk) -> TestResult {
    for lie in ["unmarked", "marked", "failed"] {
        let mut cable = dpdk.cable(&format!(",lie={lie},lie_every=7"), Checks::usual(1));
        let mut moving = Moving::new(Direction::Open);
        let ended = open_all(&mut cable, &mut moving);
        assert!(is_all(&ended), "{lie}: {:?}", ended.iter().find(|(_, status)| *status != JobStatus::Done));
        let report = cable.nic.report();
        // To mark what was not opened, or as wrong what is right, is to differ from software.
        assert_eq!(report.out_of_service.is_some(), lie != "unmarked", "{lie}: {report:?}");
        assert!(lie != "unmarked" || report.counts.opened > u64::from(BURSTS * BURST) / 2);
        cable.close();
    }
    Ok(())
}

fn wrong_text(dpdk: &mut Dpdk) -> TestResult {
    let checks = Checks { one_of: 1, tolerated: 0, seed: 1 };
    let mut cable = dpdk.cable(",lie=plaintext,lie_every=50", checks);
    let mut moving = Moving::new(Direction::Open);
    let ended = open_all(&mut cable, &mut moving);
    let wrong: Vec<_> = ended.iter().filter(|(_, status)| *status != JobStatus::Done).collect();
    // The NIC has spoilt one packet; the next one that it spoils, it is not asked about any more.
    assert!(!wrong.is_empty() && wrong[0].0 == 50, "{wrong:?}");
    assert!(cable.nic.report().out_of_service.unwrap().contains("differs from software"));
    cable.close();
    Ok(())
}
