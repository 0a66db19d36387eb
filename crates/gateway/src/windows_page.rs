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
        let pages = self.ask(None, |_, reply| Command::SeeWindows(asked, reply))?;
        // What workers share each of them has.
        let workers = if asked.is_outbound { usize::MAX } else { 1 };
        Ok(pages.take(workers).flatten().reduce(WindowsPage::joined))
    }
}
