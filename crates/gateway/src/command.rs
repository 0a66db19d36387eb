//! Commands of the control plane to a running worker.

use crate::change::Change;
use crate::placement::{PlacedKey, PlacementError};
use crate::sa_change::{SaChange, SaOutcome};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use testudo_ipsec::{
    AddedSa, InboundParameters, InstallError, OutboundParameters, PolicyChange, PolicyId, SaRef, SaSelectors,
    Spd, SpdError, TunnelIndex, TunnelParameters,
};

/// Commands that may wait for a worker.
const MAX_COMMANDS: usize = 16;
/// Policies that one command changes at most: packets wait for all of them.
const MAX_POLICY_CHANGES: usize = 64;
/// Changes of SAs in one command, at most.
pub const MAX_SA_CHANGES: usize = 64;

// Tunnels end with their policies, as many at a time.
const _: () = assert!(MAX_POLICY_CHANGES >= MAX_SA_CHANGES);

/// An SA towards the peer, to be installed.
#[derive(Debug)]
pub struct OutboundInstall {
    /// Its parameters.
    pub parameters: OutboundParameters,
    /// Its key.
    pub key: PlacedKey,
}

/// An SA from the peer, to be installed.
#[derive(Debug)]
pub struct InboundInstall {
    /// Its parameters.
    pub parameters: InboundParameters,
    /// Its key.
    pub key: PlacedKey,
    /// A replay window saved earlier under the same key.
    pub window: Option<Vec<u8>>,
    /// An SA with the same key that this update removes: its window, as it is at that moment, is taken over
    /// instead.
    pub inherits: Option<SaRef>,
}

/// A tunnel to install, with one SA each way.
#[derive(Debug)]
pub struct TunnelInstall {
    /// Its index.
    pub index: TunnelIndex,
    /// What its SAs have in common.
    pub parameters: TunnelParameters,
    /// The SA towards the peer, which is in use at once.
    pub outbound: OutboundInstall,
    /// The SA from the peer.
    pub inbound: InboundInstall,
}

/// The SAs of a tunnel that was installed.
#[derive(Debug, Clone)]
pub struct Installed {
    /// The SA towards the peer.
    pub outbound: AddedSa,
    /// The SA from the peer.
    pub inbound: AddedSa,
}

/// A change of tunnels and policies. A running gateway makes it a few tunnels at a time, between batches: it
/// removes first, then puts policies and selectors in force at once, then installs, so that no packet meets
/// an old policy and a new tunnel, or the reverse.
#[derive(Debug, Default)]
pub struct Update {
    /// Tunnels to remove, first of all.
    pub remove: Vec<TunnelIndex>,
    /// Tunnels to install after that.
    pub install: Vec<TunnelInstall>,
    /// Tunnels that stay, but with other selectors.
    pub selectors: Vec<(TunnelIndex, SaSelectors)>,
    /// The policies from then on; `None` leaves them.
    pub policies: Option<Box<Spd>>,
}

/// A tunnel of an update could not be installed; the others were.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The protocol refused it.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// The saved replay window of its SA cannot be read. Without it the SA would accept again what was
    /// accepted before.
    #[error("tunnel {tunnel}: its saved replay window is damaged; give it new keys")]
    Window {
        /// The tunnel.
        tunnel: Arc<str>,
    },
    /// No engine takes its keys.
    #[error("tunnel {tunnel}: {source}")]
    Placement {
        /// The tunnel.
        tunnel: Arc<str>,
        /// Why.
        source: PlacementError,
    },
}

/// The result for each tunnel of an update.
pub type UpdateOutcome = Vec<(TunnelIndex, Result<Installed, UpdateError>)>;

/// A command of the control plane to a running worker. Answers go through the sender in it.
#[derive(Debug)]
pub enum Command {
    /// Change tunnels and policies. The change goes back once it is made: the receiver frees what was removed
    /// and replaced, since the worker has packets to forward.
    Update(Box<Change>, SyncSender<Box<Change>>),
    /// Change policies one by one.
    ChangePolicies(Vec<PolicyChange>, SyncSender<Vec<Result<PolicyId, SpdError>>>),
    /// Change SAs one by one.
    ChangeSas(Vec<SaChange>, SyncSender<SaOutcome>),
    /// Give the replay windows of these SAs from peers.
    SaveWindows(Vec<SaRef>, SyncSender<Vec<(SaRef, Vec<u8>)>>),
    /// End: take nothing more from the protected side, finish what is in flight, and return.
    Stop,
}

/// The worker does not take commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CommanderError {
    /// It has ended.
    #[error("the worker has ended")]
    Ended,
    /// A command has too many changes of policies to be made between two batches of packets.
    #[error("at most {MAX_POLICY_CHANGES} policies are changed at a time")]
    TooManyChanges,
    /// A command has too many changes of SAs.
    #[error("at most {MAX_SA_CHANGES} SAs are changed at a time")]
    TooManySaChanges,
    /// It has too many commands waiting.
    #[error("the worker is busy: {MAX_COMMANDS} commands wait for it")]
    Busy,
}

/// The control plane's end of the channel: sends commands and wakes the worker.
#[derive(Debug, Clone)]
pub struct Commander {
    sender: SyncSender<Command>,
    wake: Arc<OwnedFd>,
    sent: Arc<AtomicU64>,
}

/// The worker's end of the channel.
#[derive(Debug)]
pub struct Inbox {
    receiver: Receiver<Command>,
    wake: Arc<OwnedFd>,
}

impl Commander {
    /// Both ends of a new channel.
    ///
    /// # Errors
    /// The system has no file descriptor left.
    pub fn channel() -> std::io::Result<(Self, Inbox)> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sender, receiver) = sync_channel(MAX_COMMANDS);
        Ok((Self { sender, wake: Arc::clone(&wake), sent: Arc::default() }, Inbox { receiver, wake }))
    }

    /// Sends a command and wakes the worker.
    ///
    /// # Errors
    /// [`CommanderError`] if it cannot be taken.
    pub fn send(&self, command: Command) -> Result<(), CommanderError> {
        self.sender.try_send(command).map_err(|e| match e {
            TrySendError::Full(_) => CommanderError::Busy,
            TrySendError::Disconnected(_) => CommanderError::Ended,
        })?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        // A counter that is full wakes the worker as well.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        Ok(())
    }

    /// Commands that the worker has been sent so far, through all clones. Packets wait for each.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Sends an update and waits until it is in force.
    ///
    /// # Errors
    /// [`CommanderError`] if the worker does not take it or ends before it answers.
    pub fn update(&self, update: Update) -> Result<UpdateOutcome, CommanderError> {
        let (reply, answer) = sync_channel(1);
        self.send(Command::Update(Box::new(Change::new(update)), reply))?;
        answer.recv().map(|change| change.into_outcome()).map_err(|_| CommanderError::Ended)
    }

    /// Sends changes of policies and waits until they are in force, all from the same packet on. The result
    /// is that of each change, in their order: where one fails, the others are made all the same.
    ///
    /// # Errors
    /// [`CommanderError`] if there are more than 64, or if the worker does not take them or ends before it
    /// answers.
    pub fn change_policies(
        &self,
        changes: Vec<PolicyChange>,
    ) -> Result<Vec<Result<PolicyId, SpdError>>, CommanderError> {
        if changes.len() > MAX_POLICY_CHANGES {
            return Err(CommanderError::TooManyChanges);
        }
        let (reply, answer) = sync_channel(1);
        self.send(Command::ChangePolicies(changes, reply))?;
        answer.recv().map_err(|_| CommanderError::Ended)
    }

    /// Sends changes of SAs and waits until they are made. The result is that of each change, in their order:
    /// where one fails, the others are made all the same.
    ///
    /// # Errors
    /// [`CommanderError`] if there are more than [`MAX_SA_CHANGES`], or if the worker does not take them or
    /// ends before it answers.
    pub fn change_sas(&self, changes: Vec<SaChange>) -> Result<SaOutcome, CommanderError> {
        if changes.len() > MAX_SA_CHANGES {
            return Err(CommanderError::TooManySaChanges);
        }
        let (reply, answer) = sync_channel(1);
        self.send(Command::ChangeSas(changes, reply))?;
        answer.recv().map_err(|_| CommanderError::Ended)
    }

    /// The replay windows of these SAs from peers, as bytes.
    ///
    /// # Errors
    /// [`CommanderError`] if the worker does not take the command or ends before it answers.
    pub fn save_windows(&self, inbound: Vec<SaRef>) -> Result<Vec<(SaRef, Vec<u8>)>, CommanderError> {
        let (reply, answer) = sync_channel(1);
        self.send(Command::SaveWindows(inbound, reply))?;
        answer.recv().map_err(|_| CommanderError::Ended)
    }
}

impl Inbox {
    /// The next command, if there is one.
    pub(crate) fn take(&self) -> Option<Command> {
        self.receiver.try_recv().ok()
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
