//! A data path of memory: it keeps what a gateway would put into force, and says that of each SA which a test
//! has said of it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use testudo_control::service::xfrm::{DataPath, Direction, PolicyUse, SaKey, SaUse, XfrmPolicy, XfrmSa};
use testudo_crypto::KeyMaterial;
use testudo_wire::netlink::ack::Refusal;

/// What is in force.
#[derive(Debug, Default)]
pub struct InForce {
    /// Addresses of this host.
    pub local: Vec<IpAddr>,
    pub sas: HashMap<SaKey, XfrmSa>,
    pub policies: BTreeMap<u32, XfrmPolicy>,
    pub uses: HashMap<SaKey, SaUse>,
    pub policy_uses: HashMap<u32, PolicyUse>,
    /// SAs that were added so far.
    pub added: usize,
}

/// Shared with the server.
#[derive(Debug, Clone, Default)]
pub struct Memory(Arc<Mutex<InForce>>);

impl Memory {
    pub fn of(local: &[IpAddr]) -> Self {
        Self(Arc::new(Mutex::new(InForce { local: local.to_vec(), ..InForce::default() })))
    }

    pub fn get(&self) -> MutexGuard<'_, InForce> {
        self.0.lock().unwrap()
    }
}

impl InForce {
    /// SAs of one direction, in the order of their SPIs.
    pub fn sas_of(&self, inbound: bool) -> Vec<&XfrmSa> {
        let mut found: Vec<_> = self.sas.values().filter(|sa| sa.is_inbound == inbound).collect();
        found.sort_by_key(|sa| sa.key.spi);
        found
    }

    /// Policies of one direction, in the order of their indices.
    pub fn policies_of(&self, direction: Direction) -> Vec<&XfrmPolicy> {
        self.policies.values().filter(|policy| policy.direction == direction).collect()
    }
}

impl DataPath for Memory {
    fn is_local(&self, address: IpAddr) -> bool {
        self.get().local.contains(&address)
    }

    fn has_inbound(&self, protocol: u8, spi: u32) -> bool {
        self.get().sas_of(true).iter().any(|sa| (sa.key.protocol, sa.key.spi) == (protocol, spi))
    }

    fn processors(&self) -> u32 {
        1
    }

    fn add_sa(&mut self, sa: &XfrmSa, _: KeyMaterial) -> Result<(), Refusal> {
        let mut now = self.get();
        assert!(now.sas.insert(sa.key, sa.clone()).is_none(), "{:?} is there", sa.key);
        now.added += 1;
        Ok(())
    }

    fn change_sa(&mut self, before: &XfrmSa, after: &XfrmSa) -> Result<(), Refusal> {
        assert_eq!(before.key, after.key);
        assert!(self.get().sas.insert(after.key, after.clone()).is_some(), "{:?} is not there", after.key);
        Ok(())
    }

    fn remove_sa(&mut self, sa: &XfrmSa) {
        assert!(self.get().sas.remove(&sa.key).is_some(), "{:?} is not there", sa.key);
    }

    fn use_of(&self, sa: &SaKey) -> SaUse {
        self.get().uses.get(sa).copied().unwrap_or_default()
    }

    fn advance(&mut self, sa: &SaKey, sent: u64, received: u64) -> Result<(), Refusal> {
        let mut now = self.get();
        let is_inbound = now.sas.get(sa).expect("it is there").is_inbound;
        let used = now.uses.entry(*sa).or_default();
        used.sequence = used.sequence.max(if is_inbound { received } else { sent });
        Ok(())
    }

    fn migrate_sa(&mut self, before: &XfrmSa, after: &XfrmSa) -> Result<(), Refusal> {
        let mut now = self.get();
        now.sas.remove(&before.key).expect("it is there");
        assert!(now.sas.insert(after.key, after.clone()).is_none(), "{:?} is there", after.key);
        if let Some(used) = now.uses.remove(&before.key) {
            now.uses.insert(after.key, used);
        }
        Ok(())
    }

    fn use_of_policy(&self, index: u32) -> PolicyUse {
        self.get().policy_uses.get(&index).copied().unwrap_or_default()
    }

    fn add_policy(&mut self, policy: &XfrmPolicy, _: Option<u32>) -> Result<(), Refusal> {
        let before = self.get().policies.insert(policy.info.index, policy.clone());
        assert!(before.is_none(), "{before:?} is there");
        Ok(())
    }

    fn replace_policy(&mut self, policy: &XfrmPolicy, _: Option<u32>) -> Result<(), Refusal> {
        let before = self.get().policies.insert(policy.info.index, policy.clone());
        assert!(before.is_some(), "{policy:?} is not there");
        Ok(())
    }

    fn remove_policy(&mut self, index: u32) {
        assert!(self.get().policies.remove(&index).is_some(), "policy {index} is not there");
    }
}
