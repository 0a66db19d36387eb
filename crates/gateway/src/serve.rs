//! The loop around a worker in a running gateway.

use crate::change::Change;
use crate::clock::Clock;
use crate::command::Command;
use crate::commander::Inbox;
use crate::offload::OffloadFailure;
use crate::sa_change::{SaChanges, SaOutcome};
use crate::withdrawn::Withdrawal;
use crate::worker::Worker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use std::vec::IntoIter;
use testudo_ipsec::{AuditRecord, Event, Moment, SaRef};
use testudo_packet::PortError;

/// How often a worker looks at the clock while nothing happens.
const TICK: Duration = Duration::from_secs(1);
/// Tunnels or SAs that are changed, or windows that are saved, between two batches: worth some ten
/// microseconds.
const TUNNELS_AT_A_TIME: usize = 16;
/// How often a worker whose packets wait for other workers looks again at once, and how long it sleeps after
/// that: they have sent theirs within a turn, unless their port is full.
const LOOKS: usize = 64;
const NAP: Duration = Duration::from_micros(100);
/// How long packets in flight may take to leave when the gateway ends.
const DRAIN: Duration = Duration::from_millis(500);

/// Why a worker ended without a command to stop.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A port failed for good.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Waiting failed.
    #[error("waiting for packets: {0}")]
    Wait(#[from] rustix::io::Errno),
}

/// What the operator should hear about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Something happened to a tunnel.
    Tunnel(Event),
    /// An engine was taken out of service.
    Engine(Withdrawal),
    /// A NIC was taken out of service for cryptography.
    Offload(OffloadFailure),
    /// A packet was dropped for a reason that may mean an attack.
    Audit(AuditRecord),
}

/// Runs a worker until it is told to stop. Notices for the operator go to `tell`, which must not wait.
///
/// # Errors
/// [`ServeError`] if it cannot continue.
pub fn serve(
    worker: &mut Worker,
    inbox: &Inbox,
    clock: &dyn Clock,
    tell: &mut dyn FnMut(Notice),
) -> Result<(), ServeError> {
    let mut next_tick = clock.now();
    let mut task: Option<Task> = None;
    let mut stop_at: Option<Moment> = None;
    let mut failure: Option<PortError> = None;
    let (mut looks, mut settling) = (0, None);
    loop {
        let now = clock.now();
        // A long command in parts, and one between two batches: however many ask, packets have their turn.
        let had_task = task.is_some();
        task = task.and_then(|task| task.go_on(worker, now));
        let command = if had_task { None } else { inbox.take() };
        let was_told = had_task || command.is_some();
        match command {
            None => {}
            Some(Command::Update(change, reply)) => task = Some(Task::Change(change, reply)),
            Some(Command::ChangePolicies(changes, reply)) => {
                // The caller may have given up waiting; that is not the worker's concern.
                let _ = reply.send(worker.change_policies(changes));
            }
            Some(Command::ChangeSas(changes, reply)) => {
                task = Task::ChangeSas(SaChanges::new(changes), reply).go_on(worker, now);
            }
            Some(Command::SaveWindows(sas, reply)) => {
                task = Some(Task::Save { sas: sas.into_iter(), windows: Vec::new(), reply });
            }
            Some(Command::SeeWindows(asked, reply)) => drop(reply.send(worker.windows_from(asked))),
            Some(Command::Settle(reply)) => settling = Some(reply),
            Some(Command::Stop) => {
                worker.drain();
                stop_at = Some(Moment(now.0 + DRAIN));
            }
        }
        if now >= next_tick {
            worker.tick(now);
            next_tick = Moment(now.0 + TICK);
        }
        if worker.next_dummy().is_some_and(|due| now >= due) {
            worker.send_dummies(now);
        }
        let moved = worker.metered_turn(now).unwrap_or_else(|error| {
            // A failed port ends the gateway, but packets that are with engines leave first, as when it is
            // told to stop.
            worker.drain();
            stop_at.get_or_insert(Moment(now.0 + DRAIN));
            failure.get_or_insert(error);
            0
        });
        tell_all(worker, tell);
        let is_idle = moved == 0;
        answer_settled(&mut settling, worker, is_idle);
        if let Some(deadline) = stop_at {
            let done = is_idle && is_settled(worker);
            if done || now >= deadline {
                return end(worker, failure);
            }
        } else if is_idle && !worker.is_busy() && !was_told {
            let next = worker.next_dummy().map_or(next_tick, |due| due.min(next_tick));
            rest(worker, inbox, next.since(now), &mut looks)?;
        } else {
            looks = 0;
        }
    }
}

/// The gateway ends, of a failure if there was one. What a port had left to send may fail only now.
fn end(worker: &mut Worker, failure: Option<PortError>) -> Result<(), ServeError> {
    worker.discard_waiting();
    worker.end_ports();
    let last = worker.finish_ports();
    failure.map_or(last, Err).map_err(ServeError::from)
}

/// Tells who waits for it that the worker has nothing left to do, if that is so.
fn answer_settled(waiting: &mut Option<SyncSender<()>>, worker: &Worker, is_idle: bool) {
    if is_idle && waiting.is_some() && is_settled(worker) {
        // Who waited may have given up.
        let _ = waiting.take().map(|reply| reply.send(()));
    }
}

/// Whether nothing is with engines, and nothing waits for a port, for numbers, for its turn or for a tick.
/// Numbers of packets that have been sent were handed over with them.
fn is_settled(worker: &Worker) -> bool {
    let (protected, unprotected) = worker.is_waiting();
    let waits = protected || unprotected || waits_for_others(worker) || worker.waits_for_tick();
    !worker.is_busy() && !waits
}

/// Passes on what the operator should hear about.
fn tell_all(worker: &mut Worker, tell: &mut dyn FnMut(Notice)) {
    worker.take_events().into_iter().map(Notice::Tunnel).for_each(&mut *tell);
    worker.take_audit().into_iter().map(Notice::Audit).for_each(&mut *tell);
    worker.take_withdrawals().into_iter().map(Notice::Engine).for_each(&mut *tell);
    worker.take_offload_failure().map(Notice::Offload).into_iter().for_each(&mut *tell);
}

/// Waits for something to do. Other workers tell nobody that they have handed packets over: a worker whose
/// packets wait for that has looked `looks` times, and looks again soon.
fn rest(worker: &Worker, inbox: &Inbox, timeout: Duration, looks: &mut usize) -> Result<(), ServeError> {
    if !waits_for_others(worker) {
        return wait(worker, inbox, timeout);
    }
    *looks += 1;
    if *looks < LOOKS {
        std::thread::yield_now();
        return Ok(());
    }
    wait(worker, inbox, timeout.min(NAP))
}

/// Whether packets wait for what other workers do.
fn waits_for_others(worker: &Worker) -> bool {
    worker.waits_for_numbers() || worker.waits_for_order()
}

/// A command that takes several turns.
enum Task {
    Change(Box<Change>, SyncSender<Box<Change>>),
    ChangeSas(SaChanges, SyncSender<SaOutcome>),
    Save { sas: IntoIter<SaRef>, windows: Vec<(SaRef, Vec<u8>)>, reply: SyncSender<Vec<(SaRef, Vec<u8>)>> },
}

impl Task {
    /// Does the next part; `None` when all is done and answered.
    fn go_on(self, worker: &mut Worker, now: Moment) -> Option<Self> {
        match self {
            Task::Change(mut change, reply) => {
                if !change.step(worker, now, TUNNELS_AT_A_TIME) {
                    return Some(Task::Change(change, reply));
                }
                // The caller may have given up waiting; that is not the worker's concern.
                let _ = reply.send(change);
            }
            Task::ChangeSas(mut changes, reply) => {
                if !changes.step(worker, now, TUNNELS_AT_A_TIME) {
                    return Some(Task::ChangeSas(changes, reply));
                }
                let _ = reply.send(changes.into_outcome());
            }
            Task::Save { mut sas, mut windows, reply } => {
                let some = sas.by_ref().take(TUNNELS_AT_A_TIME);
                // Of VPE no more than the highest number of any: all of them may be half a gigabyte an SA.
                windows.extend(some.filter_map(|sa| Some((sa, worker.save_window_within(sa, 0)?))));
                if sas.len() > 0 {
                    return Some(Task::Save { sas, windows, reply });
                }
                let _ = reply.send(windows);
            }
        }
        None
    }
}

/// Waits until a port is ready, a command comes, or `timeout` has passed.
fn wait(worker: &Worker, inbox: &Inbox, timeout: Duration) -> Result<(), ServeError> {
    let ports = [worker.protected_port(), worker.unprotected_port()];
    let mut fds = Vec::with_capacity(8);
    for (port, interest) in ports.into_iter().zip(interests(worker)) {
        for one in interest {
            let files = if one == PollFlags::OUT { port.readiness_to_send() } else { port.readiness() };
            fds.extend(files.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, one)));
        }
    }
    fds.push(PollFd::from_borrowed_fd(inbox.wake_fd(), PollFlags::IN));
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    if fds.last().is_some_and(|fd| !fd.revents().is_empty()) {
        inbox.acknowledge();
    }
    Ok(())
}

/// What the worker waits for at its protected and its unprotected port. Packets that it does not take do not
/// wake it.
fn interests(worker: &Worker) -> [PollFlags; 2] {
    let (protected_waits, unprotected_waits) = worker.is_waiting();
    let takes_outbound = worker.role().encrypts() && !unprotected_waits && !worker.waits_for_numbers();
    let takes_inbound = worker.role().decrypts() && !protected_waits;
    [(protected_waits, takes_outbound), (unprotected_waits, takes_inbound)].map(|(sends, takes)| {
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, takes);
        interest.set(PollFlags::OUT, sends);
        interest
    })
}
