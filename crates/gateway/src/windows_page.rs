//! All windows of an SA of VPE (`docs/VPE.md`), some at a time: what reports have of them each second are the
//! first ones, and there may be tens of thousands.

use crate::command::Command;
use crate::commander::{Commander, CommanderError};
use crate::worker::Worker;
use testudo_ipsec::{WindowsFrom, WindowsPage};

impl Worker {
    /// Some windows of an SA of VPE; `None` if there is no such SA.
    #[must_use]
    pub fn windows_from(&self, asked: WindowsFrom) -> Option<WindowsPage> {
        self.ipsec.windows_from(asked)
    }
}

impl Commander {
    /// Some windows of an SA of VPE: from the peer those that the workers share, towards it those that each
    /// sends in. `None` if there is no such SA. Packets have their turn before the next ones are asked for.
    ///
    /// # Errors
    /// [`CommanderError`] if the workers do not take the command or one ends before it answers.
    pub fn windows_from(&self, asked: WindowsFrom) -> Result<Option<WindowsPage>, CommanderError> {
        if !asked.is_outbound {
            return self.ask_first(|reply| Command::SeeWindows(asked, reply));
        }
        let pages = self.ask(None, |_, reply| Command::SeeWindows(asked, reply))?;
        Ok(pages.flatten().reduce(WindowsPage::joined))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testudo_ipsec::SaRef;

    /// An SA may have hundreds of pages. From the peer each worker has the same ones, so that one tells them
    /// and no other leaves its packets for it.
    #[test]
    fn windows_that_workers_share_are_asked_of_one_of_them() {
        let (commander, inboxes) = Commander::channels(3).expect("file descriptors");
        for (is_outbound, workers) in [(false, 1), (true, 3)] {
            let asked = WindowsFrom { sa: SaRef::from_bits(7), is_outbound, from: 256 };
            let mut told = Vec::new();
            let page = std::thread::scope(|scope| {
                let page = scope.spawn(|| commander.windows_from(asked));
                while !page.is_finished() {
                    for (worker, inbox) in inboxes.iter().enumerate() {
                        let Some(Command::SeeWindows(of, reply)) = inbox.take() else { continue };
                        told.push((worker, of));
                        reply.send(Some(WindowsPage { next: Some(512), ..WindowsPage::default() })).unwrap();
                    }
                    std::thread::yield_now();
                }
                page.join().unwrap()
            });
            told.sort_by_key(|(worker, _)| *worker);
            assert!(told.iter().copied().eq((0..workers).map(|worker| (worker, asked))), "{told:?}");
            assert_eq!(page.unwrap().unwrap().next, Some(512));
        }
        drop(inboxes);
        let asked = WindowsFrom { sa: SaRef::from_bits(7), is_outbound: false, from: 0 };
        assert!(matches!(commander.windows_from(asked), Err(CommanderError::Ended)));
    }
}
