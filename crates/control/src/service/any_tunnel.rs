//! Tunnels of the worker, wherever they come from.

use super::installed::{InstalledTunnels, Running};
use super::negotiated::NegotiatedTunnel;
use super::populated::PopulatedTunnel;
use std::ops::Deref;
use std::sync::Arc;
use testudo_ipsec::TunnelIndex;

/// A tunnel that the worker has.
#[derive(Debug, Clone)]
pub enum AnyTunnel<'i> {
    /// One of the configuration.
    Configured(&'i Running),
    /// One of a single flow, populated from packets.
    Populated(Arc<PopulatedTunnel>),
    /// One that a key exchange negotiates.
    Negotiated(Arc<NegotiatedTunnel>),
}

impl Deref for AnyTunnel<'_> {
    type Target = Running;

    fn deref(&self) -> &Running {
        match self {
            Self::Configured(running) => running,
            Self::Populated(populated) => &populated.running,
            Self::Negotiated(negotiated) => &negotiated.running,
        }
    }
}

impl InstalledTunnels {
    /// The tunnel at an index of the worker.
    #[must_use]
    pub fn at(&self, index: TunnelIndex) -> Option<AnyTunnel<'_>> {
        let configured = || self.tunnels.iter().find(|running| running.index == index);
        let populated = self.populated.at(index).map(AnyTunnel::Populated);
        let negotiated = || self.negotiated.at(index).map(AnyTunnel::Negotiated);
        populated.or_else(negotiated).or_else(|| configured().map(AnyTunnel::Configured))
    }

    /// The tunnel of a name.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<AnyTunnel<'_>> {
        let populated = || self.populated.named(name).map(AnyTunnel::Populated);
        let negotiated = || self.negotiated.named(name).map(AnyTunnel::Negotiated);
        self.find(name).map(AnyTunnel::Configured).or_else(populated).or_else(negotiated)
    }

    /// All tunnels: those of the configuration in its order, then those that were made at run time.
    pub fn all(&self) -> impl Iterator<Item = AnyTunnel<'_>> {
        self.tunnels.iter().map(AnyTunnel::Configured).chain(self.made_at_run_time())
    }

    /// The tunnels that no configuration has, oldest first.
    pub fn made_at_run_time(&self) -> impl Iterator<Item = AnyTunnel<'_>> {
        let populated = self.populated.all().into_iter().map(AnyTunnel::Populated);
        populated.chain(self.negotiated.all().into_iter().map(AnyTunnel::Negotiated))
    }

    /// The indices of these.
    pub(super) fn indices_at_run_time(&self) -> Vec<TunnelIndex> {
        let mut indices = self.populated.indices();
        indices.append(&mut self.negotiated.indices());
        indices
    }

    /// The name of the tunnel at an index of the worker, for messages.
    pub(super) fn name_at(&self, index: TunnelIndex) -> String {
        self.at(index).map_or_else(|| "?".to_owned(), |running| running.tunnel.name.clone())
    }
}
