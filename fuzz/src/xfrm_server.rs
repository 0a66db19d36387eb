//! The gateway as the kernel's XFRM.

use crate::input::Input;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use testudo_control::service::xfrm::{
    Answers, Client, DataPath, Now, PolicyUse, SaKey, SaUse, Xfrm, XfrmPolicy, XfrmSa,
};
use testudo_crypto::KeyMaterial;
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::netlink::{Header, flag, kind, messages};
use testudo_wire::xfrm::message::{Body, Message};

/// Records of one input.
const RECORDS: usize = 64;

/// What the gateway was told, in the order that it was told to keep.
#[derive(Default)]
struct Told {
    /// Place and last number.
    sas: HashMap<SaKey, (u64, u64)>,
    /// Index and priority, by direction.
    policies: BTreeMap<u8, Vec<(u32, u32)>>,
    /// SAs that were to move, so far.
    moves: usize,
    /// The next additions are refused.
    is_busy: bool,
}

impl Told {
    fn refusal(&self) -> Result<(), Refusal> {
        if self.is_busy { Err(Refusal::new(Errno::BUSY, "the worker is busy")) } else { Ok(()) }
    }

    fn insert(&mut self, policy: &XfrmPolicy, before: Option<u32>) {
        let order = self.policies.entry(policy.direction.number()).or_default();
        let at = before.map(|before| order.iter().position(|(index, _)| *index == before));
        let at = at.map_or(order.len(), |at| at.expect("a policy that was added"));
        order.insert(at, (policy.info.index, policy.info.priority));
        assert!(order.is_sorted_by_key(|(_, priority)| *priority), "{order:?}");
    }
}

impl DataPath for Told {
    fn is_local(&self, address: IpAddr) -> bool {
        address.to_string().ends_with('1')
    }

    fn has_inbound(&self, protocol: u8, spi: u32) -> bool {
        self.sas.keys().any(|key| (key.protocol, key.spi) == (protocol, spi))
    }

    fn processors(&self) -> u32 {
        4
    }

    fn add_sa(&mut self, sa: &XfrmSa, key: KeyMaterial) -> Result<(), Refusal> {
        self.refusal()?;
        assert_eq!(sa.suite, Some(key.suite()));
        assert!(key.suite().authenticates(), "encryption without integrity");
        assert!(self.sas.insert(sa.key, (sa.place, sa.last_number())).is_none(), "{:?} is there", sa.key);
        Ok(())
    }

    fn change_sa(&mut self, before: &XfrmSa, after: &XfrmSa) -> Result<(), Refusal> {
        self.refusal()?;
        assert_eq!(self.sas.get(&after.key).map(|(place, _)| *place), Some(after.place));
        assert_eq!((before.key, before.suite, before.source), (after.key, after.suite, after.source));
        Ok(())
    }

    fn remove_sa(&mut self, sa: &XfrmSa) {
        assert_eq!(self.sas.remove(&sa.key).map(|(place, _)| place), Some(sa.place), "{:?}", sa.key);
    }

    fn use_of(&self, sa: &SaKey) -> SaUse {
        SaUse { sequence: self.sas[sa].1, packets: 1, ..SaUse::default() }
    }

    fn advance(&mut self, sa: &SaKey, sent: u64, received: u64) -> Result<(), Refusal> {
        self.refusal()?;
        let (_, number) = self.sas.get_mut(sa).expect("an SA that was added");
        assert!(sent.max(received) > *number, "numbers go forward");
        *number = sent.max(received);
        Ok(())
    }

    fn migrate_sa(&mut self, before: &XfrmSa, after: &XfrmSa) -> Result<(), Refusal> {
        self.refusal()?;
        assert_eq!((before.key.spi, before.suite, before.place), (after.key.spi, after.suite, after.place));
        let moved = self.sas.remove(&before.key).expect("an SA that was added");
        assert!(self.sas.insert(after.key, moved).is_none(), "{:?} is there", after.key);
        // After some that have moved, one is refused: those move back.
        self.moves += 1;
        if self.moves.is_multiple_of(5) {
            let moved = self.sas.remove(&after.key).expect("it was just moved");
            self.sas.insert(before.key, moved);
            return Err(Refusal::new(Errno::BUSY, "the worker is busy"));
        }
        Ok(())
    }

    fn add_policy(&mut self, policy: &XfrmPolicy, before: Option<u32>) -> Result<(), Refusal> {
        self.refusal()?;
        self.insert(policy, before);
        Ok(())
    }

    fn replace_policy(&mut self, policy: &XfrmPolicy, before: Option<u32>) -> Result<(), Refusal> {
        self.refusal()?;
        self.remove_policy(policy.info.index);
        self.insert(policy, before);
        Ok(())
    }

    fn remove_policy(&mut self, index: u32) {
        let order = self.policies.values_mut().find(|order| order.iter().any(|(other, _)| *other == index));
        order.expect("a policy that was added").retain(|(other, _)| *other != index);
    }

    fn use_of_policy(&self, index: u32) -> PolicyUse {
        assert!(self.policies.values().flatten().any(|(other, _)| *other == index), "{index} is not there");
        PolicyUse::default()
    }
}

/// The messages of datagrams.
fn read(datagrams: &[testudo_wire::netlink::datagram::Datagram]) -> Vec<(Header, Option<Message>)> {
    let all = datagrams.iter().flat_map(|datagram| messages(datagram.as_bytes()));
    all.map(|message| {
        let message = message.expect("the server writes whole messages");
        let is_xfrm = message.header.kind >= kind::FIRST_OF_PROTOCOL;
        (message.header, is_xfrm.then(|| Message::read(&message).expect("and ones that can be read")))
    })
    .collect()
}

/// Everything that is there, as a client is shown it.
fn dump(xfrm: &mut Xfrm<Told>, kind: u16) -> Vec<Message> {
    let header = Header { kind, flags: flag::REQUEST | flag::DUMP, length: 16, ..Header::default() };
    let request = header.to_bytes();
    let request = messages(&request).next().expect("a message").expect("a whole one");
    let answers = xfrm.answer(&Client::default(), &request, false, Now::default(), &mut |_| 0);
    let mut dump = answers.dump;
    let mut datagrams = Vec::new();
    while let Some(part) = dump.as_mut().and_then(|dump| xfrm.dumped(dump)) {
        datagrams.push(part);
    }
    read(&datagrams).into_iter().filter_map(|(_, message)| message).collect()
}

/// Records of a client leave the server with the SAs and policies that its data path was told of, these in
/// the order of their priorities; what it answers can be read.
pub fn xfrm_server(data: &[u8]) {
    let mut input = Input::new(data);
    let mut xfrm = Xfrm::new(Told::default(), Now::default());
    let (mut chance, mut monotonic_s) = (0, 0);
    for _ in 0..RECORDS {
        if input.is_empty() {
            break;
        }
        let (how, record) = (input.byte(), input.run());
        xfrm.data_path.is_busy = how == 0xFF;
        // The clock that is shown may be set back.
        monotonic_s = monotonic_s.max(u64::from(how) * 10);
        let now = Now { unix_s: u64::from(how) * 10, monotonic_ms: monotonic_s * 1000 };
        for message in messages(record).map_while(Result::ok) {
            let random = &mut |highest: u32| {
                chance += 1;
                if highest == u32::MAX { chance } else { chance % (highest + 1) }
            };
            let client = Client { port: 7, process: u32::from(how & 1), ..Client::default() };
            let Answers { datagrams, notifications, .. } =
                xfrm.answer_at_once(&client, &message, false, now, random);
            for (header, _) in read(&datagrams) {
                assert_eq!(header.port, 7);
            }
            for notification in notifications {
                assert!(!notification.datagram.is_empty() && (1..=8).contains(&notification.group));
            }
        }
        xfrm.tick(now);
    }
    let mut shown = HashSet::new();
    for message in dump(&mut xfrm, testudo_wire::xfrm::kind::GET_SA) {
        let Body::NewSa(info) = message.body else { panic!("{message:?}") };
        let has_key = message.attributes.aead().is_some() || message.attributes.integrity().is_some();
        let key = SaKey::of(&info.sa_id(), &message.attributes).expect("a name");
        assert!(!has_key || shown.insert(key), "{key:?} is shown twice");
    }
    assert_eq!(shown, xfrm.data_path.sas.keys().copied().collect());
    let policies = dump(&mut xfrm, testudo_wire::xfrm::kind::GET_POLICY);
    assert_eq!(policies.len(), xfrm.data_path.policies.values().map(Vec::len).sum::<usize>());
}
