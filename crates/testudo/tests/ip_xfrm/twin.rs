//! A data path that keeps what it is told.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use testudo_control::service::xfrm::{DataPath, PolicyUse, SaKey, SaUse, XfrmPolicy, XfrmSa};
use testudo_crypto::KeyMaterial;
use testudo_wire::netlink::ack::Refusal;

/// What it was told.
#[derive(Debug, Default)]
pub struct Told {
    pub sas: HashMap<SaKey, (XfrmSa, KeyMaterial)>,
    /// The numbers of those that were moved on.
    pub numbers: HashMap<SaKey, u64>,
    /// Indices of policies, in their order, of each direction.
    pub order: BTreeMap<u8, Vec<u32>>,
}

/// Told, and asked, from several threads.
#[derive(Debug, Clone, Default)]
pub struct Twin(pub Arc<Mutex<Told>>);

/// The host's own address.
pub const LOCAL: &str = "192.0.2.1";

impl DataPath for Twin {
    fn is_local(&self, address: IpAddr) -> bool {
        address == LOCAL.parse::<IpAddr>().unwrap() || address == "2001:db8::1".parse::<IpAddr>().unwrap()
    }

    fn has_inbound(&self, protocol: u8, spi: u32) -> bool {
        self.0.lock().unwrap().sas.keys().any(|key| (key.protocol, key.spi) == (protocol, spi))
    }

    fn processors(&self) -> u32 {
        1
    }

    fn add_sa(&mut self, sa: &XfrmSa, key: KeyMaterial) -> Result<(), Refusal> {
        let before = self.0.lock().unwrap().sas.insert(sa.key, (sa.clone(), key));
        assert!(before.is_none(), "{:?} is there", sa.key);
        Ok(())
    }

    fn change_sa(&mut self, before: &XfrmSa, after: &XfrmSa) -> Result<(), Refusal> {
        assert_eq!(before.key, after.key);
        self.0.lock().unwrap().sas.get_mut(&after.key).unwrap().0 = after.clone();
        Ok(())
    }

    fn remove_sa(&mut self, sa: &XfrmSa) {
        let mut told = self.0.lock().unwrap();
        assert!(told.sas.remove(&sa.key).is_some(), "{:?} is not there", sa.key);
        told.numbers.remove(&sa.key);
    }

    fn use_of(&self, sa: &SaKey) -> SaUse {
        let told = self.0.lock().unwrap();
        let own = told.sas.get(sa).map_or(0, |(sa, _)| sa.last_number());
        let sequence = told.numbers.get(sa).copied().unwrap_or(own);
        SaUse { sequence, ..SaUse::default() }
    }

    fn advance(&mut self, sa: &SaKey, sent: u64, received: u64) -> Result<(), Refusal> {
        let before = self.use_of(sa).sequence;
        let mut told = self.0.lock().unwrap();
        let number = if told.sas[sa].0.is_inbound { received } else { sent };
        assert!(number > before, "{number} is not after {before}");
        told.numbers.insert(*sa, number);
        Ok(())
    }

    fn migrate_sa(&mut self, before: &XfrmSa, after: &XfrmSa) -> Result<(), Refusal> {
        let mut told = self.0.lock().unwrap();
        let (_, key) = told.sas.remove(&before.key).expect("an SA that was added");
        assert!(told.sas.insert(after.key, (after.clone(), key)).is_none(), "{:?} is there", after.key);
        if let Some(number) = told.numbers.remove(&before.key) {
            told.numbers.insert(after.key, number);
        }
        Ok(())
    }

    fn add_policy(&mut self, policy: &XfrmPolicy, before: Option<u32>) -> Result<(), Refusal> {
        let mut told = self.0.lock().unwrap();
        let order = told.order.entry(policy.direction.number()).or_default();
        assert!(!order.contains(&policy.info.index));
        let at =
            before.map_or(order.len(), |before| order.iter().position(|index| *index == before).unwrap());
        order.insert(at, policy.info.index);
        Ok(())
    }

    fn replace_policy(&mut self, policy: &XfrmPolicy, before: Option<u32>) -> Result<(), Refusal> {
        self.remove_policy(policy.info.index);
        self.add_policy(policy, before)
    }

    fn remove_policy(&mut self, index: u32) {
        let mut told = self.0.lock().unwrap();
        let order = told.order.values_mut().find(|order| order.contains(&index)).expect("a policy");
        order.retain(|other| *other != index);
    }

    fn use_of_policy(&self, index: u32) -> PolicyUse {
        let told = self.0.lock().unwrap();
        assert!(told.order.values().any(|order| order.contains(&index)), "{index} is not there");
        PolicyUse::default()
    }
}

impl Twin {
    /// Whether it has neither SAs nor policies.
    pub fn is_empty(&self) -> bool {
        let told = self.0.lock().unwrap();
        told.sas.is_empty() && told.order.values().all(Vec::is_empty)
    }
}
