//! Installs a tunnel with all the SAs that its configuration names.

use crate::command::{Installed, OutboundInstall, TunnelInstall, UpdateError};
use crate::sa_counts::PlacedSa;
use crate::worker::Worker;
use testudo_ipsec::{Moment, RemovedTunnel, TunnelIndex};

impl Worker {
    /// Installs a tunnel with its SAs. If one of these is refused, the tunnel goes to `removed`.
    pub(crate) fn install(
        &mut self,
        tunnel: TunnelInstall,
        now: Moment,
        removed: &mut Vec<RemovedTunnel>,
    ) -> Result<Installed, UpdateError> {
        let TunnelInstall { index, parameters, outbound, inbound, more_outbound, more_inbound } = tunnel;
        self.ipsec.add_tunnel(index, parameters, now)?;
        let add_all = || {
            // Nothing goes out before the peer's packets are taken.
            let first_inbound = self.add_inbound(index, inbound, now)?.into();
            let mut others = Vec::with_capacity(more_inbound.len());
            for more in more_inbound {
                others.push(self.add_inbound(index, more, now)?.into());
            }
            let outbound = self.add_in_use(index, outbound, now)?;
            let own = more_outbound.into_iter().map(|own| self.add_in_use(index, own, now));
            let more_outbound = own.collect::<Result<Vec<_>, _>>()?;
            Ok(Installed { outbound, inbound: first_inbound, more_outbound, more_inbound: others })
        };
        let installed = add_all();
        if installed.is_err() {
            removed.extend(self.remove(index));
        }
        installed
    }

    fn add_in_use(
        &mut self,
        index: TunnelIndex,
        outbound: OutboundInstall,
        now: Moment,
    ) -> Result<PlacedSa, UpdateError> {
        let added = self.add_outbound(index, outbound, now)?;
        self.ipsec.use_outbound(index, added.sa);
        Ok(added.into())
    }
}
