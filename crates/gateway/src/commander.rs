//! The control plane's end of the channels to all workers.
//!
//! ```text
//!                    ┌─► Inbox ─► worker 0 ─┐
//!   Commander ─order─┼─► Inbox ─► worker 1 ─┼─► answers, merged into one
//!                    └─► Inbox ─► …         ─┘
//! ```
//!
//! Every worker has tables of its own, and all workers get the same commands in the same order. So their
//! tables are the same between two commands: an SA has one handle at all of them. What they share of an SA
//! hangs from those tables ([`replica`](crate::replica)).
//!
//! A command is in force when all have answered. Until then one worker may follow it and another not yet.

use crate::change::Change;
use crate::command::{Command, TunnelInstall, Update, UpdateOutcome};
use crate::replica::merge_updates;
use crate::sa_change::{SaChange, SaOutcome};
use crate::sa_rounds::SaRounds;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use testudo_ipsec::{Event, PolicyChange, PolicyId, SaRef, SpdError};

/// Commands that may wait for a worker.
const MAX_COMMANDS: usize = 16;
/// Policies that one command changes at most: packets wait for all of them.
const MAX_POLICY_CHANGES: usize = 64;
/// Changes of SAs in one command, at most.
pub const MAX_SA_CHANGES: usize = 64;

// Tunnels end with their policies, as many at a time.
const _: () = assert!(MAX_POLICY_CHANGES >= MAX_SA_CHANGES);

/// The workers do not take commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommanderError {
    /// One has ended.
    #[error("the worker has ended")]
    Ended,
    /// A command has too many changes of policies to be made between two batches of packets.
    #[error("at most {MAX_POLICY_CHANGES} policies are changed at a time")]
    TooManyChanges,
    /// A command has too many changes of SAs.
    #[error("at most {MAX_SA_CHANGES} SAs are changed at a time")]
    TooManySaChanges,
    /// One has too many commands waiting.
    #[error("the worker is busy: {MAX_COMMANDS} commands wait for it")]
    Busy,
}

/// The control plane's end of the channels: sends commands and wakes the workers.
#[derive(Debug, Clone)]
pub struct Commander {
    lines: Arc<[Line]>,
    /// Held while a command goes out, so that all workers get commands in one order.
    order: Arc<Mutex<()>>,
    sent: Arc<AtomicU64>,
}

/// The way to one worker.
#[derive(Debug)]
struct Line {
    sender: SyncSender<Command>,
    wake: Arc<OwnedFd>,
    /// Commands that were sent and not taken yet.
    waiting: Arc<AtomicUsize>,
}

/// A worker's end of its channel.
#[derive(Debug)]
pub struct Inbox {
    receiver: Receiver<Command>,
    wake: Arc<OwnedFd>,
    waiting: Arc<AtomicUsize>,
}

impl Commander {
    /// Both ends of a channel to one worker.
    ///
    /// # Errors
    /// The system has no file descriptor left.
    pub fn channel() -> std::io::Result<(Self, Inbox)> {
        let (line, inbox) = Line::new()?;
        Ok((Self::over([line]), inbox))
    }

    /// Both ends of channels to so many workers.
    ///
    /// # Errors
    /// The system has no file descriptor left.
    pub fn channels(workers: usize) -> std::io::Result<(Self, Vec<Inbox>)> {
        let ends: std::io::Result<Vec<_>> = (0..workers).map(|_| Line::new()).collect();
        let (lines, inboxes): (Vec<_>, _) = ends?.into_iter().unzip();
        Ok((Self::over(lines), inboxes))
    }

    fn over(lines: impl Into<Arc<[Line]>>) -> Self {
        Self { lines: lines.into(), order: Arc::default(), sent: Arc::default() }
    }

    /// How many workers there are.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.lines.len()
    }

    /// Sends a command to every worker, made for each by its number, and wakes them.
    ///
    /// # Errors
    /// [`CommanderError`] if not all can take it; none has it then, unless one has ended.
    pub fn post(&self, make: impl FnMut(usize) -> Command) -> Result<(), CommanderError> {
        self.post_in_order(&self.lock_order(), make)
    }

    fn lock_order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a change in several steps at several workers: until this is dropped nobody else sends commands. So
    /// a later step finds room, and no change is left half made because workers are busy.
    fn hold_order(&self) -> Option<MutexGuard<'_, ()>> {
        (self.workers() > 1).then(|| self.lock_order())
    }

    fn post_in_order(
        &self,
        _order: &MutexGuard<'_, ()>,
        mut make: impl FnMut(usize) -> Command,
    ) -> Result<(), CommanderError> {
        if self.lines.iter().any(|line| line.waiting.load(Ordering::Acquire) >= MAX_COMMANDS) {
            return Err(CommanderError::Busy);
        }
        for (worker, line) in self.lines.iter().enumerate() {
            line.send(make(worker))?;
        }
        self.sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Tells all workers to end, those that have ended as well.
    ///
    /// # Errors
    /// [`CommanderError::Busy`] if one has too many commands waiting.
    pub fn stop(&self) -> Result<(), CommanderError> {
        let _order = self.lock_order();
        let told = self.lines.iter().map(|line| match line.send(Command::Stop) {
            Ok(()) | Err(CommanderError::Ended) => Ok(()),
            Err(error) => Err(error),
        });
        // All are told, whatever one says.
        told.fold(Ok(()), Result::and)
    }

    /// Commands that each worker has been sent so far, through all clones. Packets wait for each.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Waits until the workers from `first` on have nothing left to do, for at most `patience`: those whose
    /// queues get no packets any more. Returns whether all have.
    ///
    /// # Errors
    /// [`CommanderError`] if one does not take the command or ends.
    pub fn settle(&self, first: usize, patience: Duration) -> Result<bool, CommanderError> {
        let until = Instant::now() + patience;
        let mut answers = Vec::new();
        for line in self.lines.iter().skip(first) {
            let (reply, answer) = sync_channel(1);
            // In the order of other commands, as those have to be.
            let _order = self.lock_order();
            line.send(Command::Settle(reply))?;
            answers.push(answer);
        }
        for answer in answers {
            match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => return Ok(false),
                Err(RecvTimeoutError::Disconnected) => return Err(CommanderError::Ended),
            }
        }
        Ok(true)
    }

    /// Sends each worker a command with a way to answer, and waits for all answers: in the workers' order.
    /// `held` is what the caller [holds](Self::hold_order).
    pub(crate) fn ask<A>(
        &self,
        held: Option<&MutexGuard<'_, ()>>,
        mut make: impl FnMut(usize, SyncSender<A>) -> Command,
    ) -> Result<impl Iterator<Item = A>, CommanderError> {
        let mut answers = Vec::with_capacity(self.lines.len());
        let make = |worker| {
            let (reply, answer) = sync_channel(1);
            answers.push(answer);
            make(worker, reply)
        };
        match held {
            Some(order) => self.post_in_order(order, make)?,
            None => self.post(make)?,
        }
        let answers: Result<Vec<_>, _> = answers.into_iter().map(|answer| answer.recv()).collect();
        answers.map(Vec::into_iter).map_err(|_| CommanderError::Ended)
    }

    /// Sends the first worker alone a command with a way to answer, and waits for that: of what workers share
    /// any of them can tell, and the others have packets.
    pub(crate) fn ask_first<A>(
        &self,
        make: impl FnOnce(SyncSender<A>) -> Command,
    ) -> Result<A, CommanderError> {
        let (reply, answer) = sync_channel(1);
        // In the order of other commands, as those have to be.
        let order = self.lock_order();
        self.lines.first().ok_or(CommanderError::Ended)?.send(make(reply))?;
        drop(order);
        answer.recv().map_err(|_| CommanderError::Ended)
    }

    /// Sends an update and waits until it is in force.
    ///
    /// # Errors
    /// [`CommanderError`] if the workers do not take it or one ends before it answers.
    pub fn update(&self, mut update: Update) -> Result<UpdateOutcome, CommanderError> {
        let held = self.hold_order();
        if held.is_some() {
            self.remove_first(held.as_ref(), &mut update)?;
        }
        let mut others = update.replicas(self.workers());
        let mut own = Some(update);
        let changes = self.ask(held.as_ref(), |worker, reply| {
            let update = if worker == 0 { own.take() } else { others.pop() };
            Command::Update(Box::new(Change::new(update.unwrap_or_default())), reply)
        })?;
        let (outcome, torn) = merge_updates(changes.map(|change| change.into_outcome()));
        // A tunnel that one worker refused is at none.
        self.remove_first(held.as_ref(), &mut Update { remove: torn, ..Update::default() })?;
        Ok(outcome)
    }

    /// Removes tunnels at all workers before anything else of an update is done: a window that another SA is
    /// to take over is the last word only when no worker has the SA any more.
    fn remove_first(
        &self,
        held: Option<&MutexGuard<'_, ()>>,
        update: &mut Update,
    ) -> Result<(), CommanderError> {
        let remove = std::mem::take(&mut update.remove);
        if remove.is_empty() {
            return Ok(());
        }
        let changes = self.ask(held, |_, reply| {
            let update = Update { remove: remove.clone(), ..Update::default() };
            Command::Update(Box::new(Change::new(update)), reply)
        })?;
        // What the workers shared: each says the same.
        let Some(first) = changes.into_iter().next() else { return Ok(()) };
        let mut windows: HashMap<_, _> = first.removed_windows(&update.inherited()).collect();
        for inbound in update.install.iter_mut().flat_map(TunnelInstall::each_inbound) {
            let inherited = inbound.inherits.take().and_then(|sa| windows.remove(&sa));
            inbound.window = inherited.or_else(|| inbound.window.take());
        }
        Ok(())
    }

    /// Sends changes of policies and waits until they are in force, all from the same packet on. The result
    /// is that of each change, in their order: where one fails, the others are made all the same.
    ///
    /// # Errors
    /// [`CommanderError`] if there are more than 64, or if the workers do not take them or one ends before it
    /// answers.
    pub fn change_policies(
        &self,
        changes: Vec<PolicyChange>,
    ) -> Result<Vec<Result<PolicyId, SpdError>>, CommanderError> {
        if changes.len() > MAX_POLICY_CHANGES {
            return Err(CommanderError::TooManyChanges);
        }
        let last = self.workers().saturating_sub(1);
        let mut changes = Some(changes);
        let mut answers = self.ask(None, |worker, reply| {
            let changes = if worker == last { changes.take() } else { changes.clone() };
            Command::ChangePolicies(changes.unwrap_or_default(), reply)
        })?;
        // All have the same policies.
        answers.next().ok_or(CommanderError::Ended)
    }

    /// Sends changes of SAs and waits until they are made. The result is that of each change, in their order:
    /// where one fails, the others are made all the same.
    ///
    /// # Errors
    /// [`CommanderError`] if there are more than [`MAX_SA_CHANGES`], or if the workers do not take them or
    /// one ends before it answers.
    pub fn change_sas(&self, changes: Vec<SaChange>) -> Result<SaOutcome, CommanderError> {
        if changes.len() > MAX_SA_CHANGES {
            return Err(CommanderError::TooManySaChanges);
        }
        if let Some(held) = self.hold_order() {
            return self.change_sas_of_several(&held, changes);
        }
        let mut own = Some(changes);
        let mut outcomes =
            self.ask(None, |_, reply| Command::ChangeSas(own.take().unwrap_or_default(), reply))?;
        outcomes.next().ok_or(CommanderError::Ended)
    }

    fn change_sas_of_several(
        &self,
        held: &MutexGuard<'_, ()>,
        changes: Vec<SaChange>,
    ) -> Result<SaOutcome, CommanderError> {
        let (rounds, first) = SaRounds::begin(changes, self.workers());
        let (outcome, second) = rounds.answered(self.tell_each(held, first)?);
        if let Some(second) = second {
            drop(self.tell_each(held, second)?);
        }
        Ok(outcome)
    }

    /// Sends each worker its changes, and waits for their answers.
    fn tell_each(
        &self,
        held: &MutexGuard<'_, ()>,
        mut each: Vec<Vec<SaChange>>,
    ) -> Result<impl Iterator<Item = SaOutcome>, CommanderError> {
        self.ask(Some(held), move |worker, reply| {
            let changes = each.get_mut(worker).map(std::mem::take);
            Command::ChangeSas(changes.unwrap_or_default(), reply)
        })
    }

    /// Lets all workers know what one of them has learned.
    ///
    /// # Errors
    /// [`CommanderError`] if the workers do not take the command.
    pub fn spread(&self, event: Event) -> Result<(), CommanderError> {
        if self.workers() < 2 || !event.kind.concerns_all() {
            return Ok(());
        }
        // Nobody waits for what they say.
        let (reply, _) = sync_channel(self.workers());
        self.post(|_| Command::ChangeSas(vec![SaChange::Hear(event)], reply.clone()))
    }

    /// The replay windows of these SAs from peers, as bytes. Of VPE, whose windows may be many, they are
    /// closed up to the highest number of any: while packets come, what is saved is ahead of all of them.
    ///
    /// # Errors
    /// [`CommanderError`] if the workers do not take the command or one ends before it answers.
    pub fn save_windows(&self, inbound: Vec<SaRef>) -> Result<Vec<(SaRef, Vec<u8>)>, CommanderError> {
        let mut inbound = Some(inbound);
        let mut answers = self.ask(None, |_, reply| {
            // The first one saves them for all.
            Command::SaveWindows(inbound.take().unwrap_or_default(), reply)
        })?;
        // Workers share windows.
        answers.next().ok_or(CommanderError::Ended)
    }
}

impl Line {
    fn new() -> std::io::Result<(Self, Inbox)> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sender, receiver) = sync_channel(MAX_COMMANDS);
        let waiting = Arc::<AtomicUsize>::default();
        let inbox = Inbox { receiver, wake: Arc::clone(&wake), waiting: Arc::clone(&waiting) };
        Ok((Self { sender, wake, waiting }, inbox))
    }

    /// Sends a command and wakes the worker.
    fn send(&self, command: Command) -> Result<(), CommanderError> {
        use std::sync::mpsc::TrySendError;
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.sender.try_send(command).map_err(|error| {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            match error {
                TrySendError::Full(_) => CommanderError::Busy,
                TrySendError::Disconnected(_) => CommanderError::Ended,
            }
        })?;
        // A counter that is full wakes the worker as well.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        Ok(())
    }
}

impl Inbox {
    /// The next command, if there is one.
    pub(crate) fn take(&self) -> Option<Command> {
        let command = self.receiver.try_recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        Some(command)
    }

    /// Becomes readable when a command comes.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Clears the wake-up.
    pub(crate) fn acknowledge(&self) {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
    }
}
