//! A data path that keeps what it is told, and requests without a socket.

use super::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use testudo_crypto::KeyMaterial;
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;

/// What is said of an SA of which the test says nothing.
const UNUSED: SaUse = SaUse {
    packets: 7,
    bytes: 0,
    first_s: 0,
    last_s: 0,
    sequence: 0,
    outside_window: 0,
    replayed: 0,
    integrity_failed: 0,
};

/// Where SAs and policies take effect.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) sas: HashMap<SaKey, XfrmSa>,
    /// What SAs have been used for, if they have.
    pub(super) uses: HashMap<SaKey, SaUse>,
    /// SAs with these SPIs are refused whatever is wanted of them.
    pub(super) refused: HashSet<u32>,
    /// Indices of policies, in their order, of each direction.
    pub(super) order: BTreeMap<u8, Vec<u32>>,
    /// Policies by index, as they were told last.
    pub(super) policies: HashMap<u32, XfrmPolicy>,
    pub(super) policy_uses: HashMap<u32, PolicyUse>,
    /// Policies are refused.
    pub(super) refuses_policies: bool,
    /// Numbers are not moved on.
    pub(super) stays: bool,
    /// SAs of one direction at most.
    pub(super) room: Option<usize>,
    /// Called before an SA is added.
    pub(super) adding: Option<Gate>,
}

/// Something that an addition waits for.
pub(super) struct Gate(pub(super) Box<dyn Fn(u32) + Send>);

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
    }
}

impl Model {
    fn judge(&self, spi: u32) -> Result<(), Refusal> {
        let refusal = Refusal::new(Errno::BUSY, "the worker is busy");
        if self.refused.contains(&spi) { Err(refusal) } else { Ok(()) }
    }
}

impl DataPath for Model {
    fn is_local(&self, address: IpAddr) -> bool {
        address == IpAddr::from([192, 0, 2, 1])
    }

    fn has_inbound(&self, _: u8, spi: u32) -> bool {
        spi == 0x666
    }

    fn processors(&self) -> u32 {
        4
    }

    fn add_sa(&mut self, sa: &XfrmSa, _: KeyMaterial) -> Result<(), Refusal> {
        self.adding.iter().for_each(|Gate(wait)| wait(sa.key.spi));
        self.judge(sa.key.spi)?;
        let others = self.sas.values().filter(|other| other.is_inbound == sa.is_inbound).count();
        if self.room.is_some_and(|room| others >= room) {
            return Err(Refusal::new(Errno::NOBUFS, "there is no room"));
        }
        assert!(self.sas.insert(sa.key, sa.clone()).is_none(), "{:?} is there", sa.key);
        Ok(())
    }

    fn change_sa(&mut self, before: &XfrmSa, after: &XfrmSa) -> Result<(), Refusal> {
        self.judge(after.key.spi)?;
        assert_eq!((before.key, before.place), (after.key, after.place));
        assert!(self.sas.insert(after.key, after.clone()).is_some());
        Ok(())
    }

    fn remove_sa(&mut self, sa: &XfrmSa) {
        let removed = self.sas.remove(&sa.key).expect("an SA that was added, not only reserved");
        assert_eq!(removed.place, sa.place);
        self.uses.remove(&sa.key);
    }

    fn use_of(&self, sa: &SaKey) -> SaUse {
        assert!(self.sas.contains_key(sa), "{sa:?} was not added");
        self.uses.get(sa).copied().unwrap_or(UNUSED)
    }

    fn advance(&mut self, sa: &SaKey, sent: u64, received: u64) -> Result<(), Refusal> {
        self.judge(sa.spi)?;
        if self.stays {
            return Err(Refusal::new(Errno::BUSY, "the worker is busy"));
        }
        let is_inbound = self.sas[sa].is_inbound;
        let used = self.uses.entry(*sa).or_insert(UNUSED);
        let number = if is_inbound { received } else { sent };
        assert!(number > used.sequence, "{number} is not after {}", used.sequence);
        used.sequence = number;
        Ok(())
    }

    fn migrate_sa(&mut self, before: &XfrmSa, after: &XfrmSa) -> Result<(), Refusal> {
        self.judge(after.key.spi)?;
        assert_eq!((before.place, before.key.spi, before.suite), (after.place, after.key.spi, after.suite));
        assert!(self.sas.remove(&before.key).is_some_and(|sa| sa.place == before.place));
        assert!(self.sas.insert(after.key, after.clone()).is_none());
        if let Some(used) = self.uses.remove(&before.key) {
            self.uses.insert(after.key, used);
        }
        Ok(())
    }

    fn use_of_policy(&self, index: u32) -> PolicyUse {
        assert!(self.policies.contains_key(&index), "{index} was not added");
        self.policy_uses.get(&index).copied().unwrap_or_default()
    }

    fn add_policy(&mut self, policy: &XfrmPolicy, before: Option<u32>) -> Result<(), Refusal> {
        if self.refuses_policies {
            return Err(Refusal::new(Errno::BUSY, "the worker is busy"));
        }
        self.policies.insert(policy.info.index, policy.clone());
        let order = self.order.entry(policy.direction.number()).or_default();
        let at = before.map(|before| order.iter().position(|index| *index == before));
        let at = at.map_or(order.len(), |at| at.expect("a policy that was added"));
        order.insert(at, policy.info.index);
        Ok(())
    }

    fn replace_policy(&mut self, policy: &XfrmPolicy, before: Option<u32>) -> Result<(), Refusal> {
        if self.refuses_policies {
            return Err(Refusal::new(Errno::BUSY, "the worker is busy"));
        }
        self.remove_policy(policy.info.index);
        self.add_policy(policy, before)
    }

    fn remove_policy(&mut self, index: u32) {
        let order = self.order.values_mut().find(|order| order.contains(&index));
        order.expect("a policy that was added").retain(|other| *other != index);
        assert!(self.policies.remove(&index).is_some());
    }
}

/// The server without a socket.
pub(super) struct Direct {
    pub(super) xfrm: Xfrm<Model>,
    pub(super) client: super::super::Client,
    pub(super) now: Now,
    /// What all who listen were told: group, header, message.
    pub(super) told: Vec<(u32, Header, Message)>,
    chance: u32,
}

impl Default for Direct {
    fn default() -> Self {
        let (client, told) = (super::super::Client::default(), Vec::new());
        Self { xfrm: Xfrm::new(Model::default(), NOW), client, now: NOW, told, chance: 0 }
    }
}

/// The message of a datagram that has one.
pub(super) fn only_message(datagram: &Datagram) -> (Header, Message) {
    let message = messages(datagram.as_bytes()).next().unwrap().unwrap();
    (message.header, Message::read(&message).unwrap())
}

impl Direct {
    /// Asks, and says what the answer is, or the errno.
    pub(super) fn ask(&mut self, message: impl Into<Message>) -> Result<Option<Message>, i32> {
        self.ask_with(message, 0)
    }

    /// With flags.
    pub(super) fn ask_with(
        &mut self,
        message: impl Into<Message>,
        flags: u16,
    ) -> Result<Option<Message>, i32> {
        let mut record = Datagram::new();
        let header = Header { flags: flag::REQUEST | flags, sequence: 77, ..Header::default() };
        message.into().write(header, &mut record);
        let message = messages(record.as_bytes()).next().unwrap().unwrap();
        let chance = &mut self.chance;
        let random = &mut |highest: u32| {
            *chance += 1;
            (*chance).min(highest)
        };
        let answers = self.xfrm.answer_at_once(&self.client, &message, false, self.now, random);
        self.hear(&answers.notifications);
        let Some(datagram) = answers.datagrams.first() else { return Ok(None) };
        let answer = messages(datagram.as_bytes()).next().unwrap().unwrap();
        match Answer::read(&answer) {
            Some(refusal) => Err(refusal.code),
            None => Ok(Some(Message::read(&answer).unwrap())),
        }
    }

    pub(super) fn hear(&mut self, notifications: &[Notification]) {
        for Notification { group, datagram } in notifications {
            let (header, message) = only_message(datagram);
            self.told.push((*group, header, message));
        }
    }

    /// An SA as it is shown.
    pub(super) fn shown(&mut self, spi: u32, attributes: Attributes) -> Option<(SaInfo, Attributes)> {
        let message = Message { body: Body::GetSa(id_of(&sa(spi))), attributes };
        let Message { body: Body::NewSa(info), attributes } = self.ask(message).ok()?? else {
            panic!("an SA")
        };
        Some((info, attributes))
    }

    /// Reserves an SPI.
    pub(super) fn reserve(&mut self, spi: u32) {
        let wish = wish((spi, spi));
        assert_eq!(id_of(&self.ask(wish).unwrap().unwrap()).spi, spi);
    }
}

/// A wish for an SPI of a range.
pub(super) fn wish((lowest, highest): (u32, u32)) -> Message {
    let Body::NewSa(info) = sa(0).body else { panic!("an SA") };
    Body::AllocateSpi(SpiRequest { sa: info, lowest, highest }).into()
}

/// An SA with more attributes.
pub(super) fn sa_with(spi: u32, attributes: impl IntoIterator<Item = Attribute>) -> Message {
    let mut message = sa(spi);
    attributes.into_iter().for_each(|attribute| message.attributes.push(attribute));
    message
}

/// The same as an update.
pub(super) fn update(message: Message) -> Message {
    let Body::NewSa(info) = message.body else { panic!("an SA") };
    Message { body: Body::UpdateSa(info), ..message }
}
