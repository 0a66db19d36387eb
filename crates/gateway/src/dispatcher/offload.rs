//! SAs whose cryptography a device does as packets pass ([`offload`](crate::offload)).

use super::Dispatcher;
use testudo_crypto::{Direction, KeyId, Offload, OffloadState, SaFacts};
use testudo_ipsec::SaRef;

impl Dispatcher {
    /// The engine of a device that does cryptography as packets pass, if there is one.
    pub(crate) fn offload(&mut self) -> Option<&mut dyn Offload> {
        self.placement.offload()
    }

    /// Whether an SA may go to that device at all.
    pub(crate) fn check_offload(&mut self, facts: &SaFacts) -> Result<(), OffloadState> {
        self.placement.offload().map_or(Err(OffloadState::Off), |device| device.check(facts))
    }

    /// Sessions that the device has room for.
    pub(crate) fn offload_room(&mut self, direction: Direction) -> usize {
        self.placement.offload().map_or(0, |device| device.room(direction))
    }

    /// What has become of an SA's session.
    pub(crate) fn offload_state(&mut self, direction: Direction, sa: SaRef) -> OffloadState {
        let key = self.offload_key(direction, sa);
        let state = key.and_then(|key| Some(self.placement.offload()?.state(key)));
        state.unwrap_or(OffloadState::Reset)
    }

    /// Has the device do the cryptography of an SA, from its next job on.
    pub(crate) fn admit(
        &mut self,
        direction: Direction,
        sa: SaRef,
        facts: &SaFacts,
    ) -> Result<(), OffloadState> {
        let lane = self.lanes.get_mut(direction, sa).ok_or(OffloadState::Off)?;
        lane.name(self.placement.admit(lane.key, facts)?);
        Ok(())
    }

    /// Ends the session of an SA, whose jobs still go to the engine of the device: it knows which packets
    /// were opened.
    pub(crate) fn close(&mut self, direction: Direction, sa: SaRef) {
        if let (Some(key), Some(device)) = (self.offload_key(direction, sa), self.placement.offload()) {
            device.close(key);
        }
    }

    /// Whether all packets of an SA that the device may have opened have been received.
    pub(crate) fn is_drained(&mut self, direction: Direction, sa: SaRef) -> bool {
        let key = self.offload_key(direction, sa);
        key.and_then(|key| Some(self.placement.offload()?.is_drained(key))).unwrap_or(true)
    }

    /// Takes an SA from the device, from its next job on.
    pub(crate) fn leave(&mut self, direction: Direction, sa: SaRef) {
        let Some(lane) = self.lanes.get_mut(direction, sa) else { return };
        let (key, rank) = (lane.key, lane.suite_rank);
        self.placement.leave(key);
        let first = self.first_of(key, rank);
        if let Some(lane) = self.lanes.get_mut(direction, sa) {
            lane.name(first);
        }
    }

    fn offload_key(&mut self, direction: Direction, sa: SaRef) -> Option<KeyId> {
        let key = self.lanes.get_mut(direction, sa)?.key;
        self.placement.offload_key(key)
    }
}
