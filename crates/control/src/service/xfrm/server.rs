//! Requests of clients, one message at a time, and what everybody is told.

use super::data_path::DataPath;
use super::dump::Dump;
use super::flush::Flush;
use super::policy_limits::PolicyLimits;
use super::policy_requests::{BLOCKED, no_policy, set_defaults};
use super::process_name::ProcessName;
use super::processor;
use super::renewal::{Renewal, RenewalState};
use super::sa::invalid;
use super::sad::Sad;
use super::spd::Spd;
use std::collections::BTreeSet;
use std::sync::Arc;
use testudo_wire::netlink::ack::{AckOptions, Refusal};
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::netlink::{self, Header, flag};
use testudo_wire::xfrm::info::Threshold;
use testudo_wire::xfrm::message::{Body, Message};

/// What the server has to know of a client's socket.
#[derive(Debug, Clone, Copy, Default)]
pub struct Client {
    /// Its port id, which answers carry.
    pub port: u32,
    /// What it wants in acknowledgements.
    pub acks: AckOptions,
    /// The process behind it: each has its share of reservations.
    pub process: u32,
    /// The same in a number that no later process has.
    pub owner: u64,
    /// What it calls itself.
    pub name: Option<ProcessName>,
}

/// What time it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Seconds since 1970: what is shown.
    pub unix_s: u64,
    /// Milliseconds of a clock that nobody sets, the host's `CLOCK_MONOTONIC`: how long something lasts.
    pub monotonic_ms: u64,
}

impl Now {
    /// Whole seconds of the clock that nobody sets.
    #[must_use]
    pub fn monotonic_s(&self) -> u64 {
        self.monotonic_ms / 1000
    }
}

/// A datagram for all who listen to a group.
#[derive(Debug)]
pub struct Notification {
    /// The group: [`testudo_wire::xfrm::group`].
    pub group: u32,
    /// The datagram, which waits for several.
    pub datagram: Arc<Datagram>,
}

/// What follows from a message.
#[derive(Debug, Default)]
pub struct Answers {
    /// Datagrams for the client, in order.
    pub datagrams: Vec<Datagram>,
    /// A dump that begins after the messages of its record; the client's further records wait for its end.
    pub dump: Option<Dump>,
    /// A flush, to be carried out part by part before the acknowledgement, which is the caller's to write.
    pub flush: Option<Flush>,
    /// For those who listen.
    pub notifications: Vec<Notification>,
}

/// What a request has brought about.
pub(super) enum Outcome {
    Done,
    Answer(Box<Message>),
    Dump(Dump),
    Flush(Flush),
}

pub(super) fn answer(message: impl Into<Message>) -> Outcome {
    Outcome::Answer(Box::new(message.into()))
}

/// A request that is being answered.
pub(super) struct Request<'a> {
    pub(super) client: &'a Client,
    pub(super) header: Header,
    pub(super) now: Now,
    pub(super) notifications: &'a mut Vec<Notification>,
}

impl Request<'_> {
    /// Tells a group, as the client's doing.
    pub(super) fn tell(&mut self, group: u32, message: &Message) {
        self.notifications.push(notification(group, self.header.sequence, self.client.port, message));
    }
}

pub(super) fn notification(group: u32, sequence: u32, port: u32, message: &Message) -> Notification {
    let mut datagram = Datagram::new();
    message.write(Header { kind: 0, flags: 0, sequence, port, ..Header::default() }, &mut datagram);
    Notification { group, datagram: Arc::new(datagram) }
}

/// The acknowledgement of a request that was carried out, if it wants one.
#[must_use]
pub fn acknowledged(message: &netlink::Message<'_>, client: &Client) -> Option<Datagram> {
    message.header.has(flag::ACK).then(|| {
        let mut datagram = Datagram::new();
        datagram.ack(message, client.port, Ok(()), client.acks);
        datagram
    })
}

/// Linux's SAD and SPD over a data path.
#[derive(Debug, Default)]
pub struct Xfrm<D> {
    /// Where they take effect.
    pub data_path: D,
    pub(super) sad: Sad,
    pub(super) spd: Spd,
    pub(super) policy_limits: PolicyLimits,
    pub(super) thresholds: [Threshold; 2],
    /// Processes with a connection.
    pub(super) connected: BTreeSet<u64>,
    pub(super) renewal: Renewal,
}

impl<D: DataPath> Xfrm<D> {
    /// No SA and no policy, over a data path that has none of clients either.
    #[must_use]
    pub fn new(data_path: D, now: Now) -> Self {
        // The kernel's own.
        let thresholds = [(32, 32), (128, 128)]
            .map(|(local_prefix, remote_prefix)| Threshold { local_prefix, remote_prefix });
        Self {
            data_path,
            sad: Sad::default(),
            spd: Spd::default(),
            policy_limits: PolicyLimits::default(),
            thresholds,
            connected: BTreeSet::new(),
            renewal: Renewal::new(now.monotonic_ms),
        }
    }

    /// What daemons renew that have outlived a gateway; `None` if none has.
    #[must_use]
    pub fn renewal(&self) -> Option<RenewalState> {
        self.renewal.state()
    }

    /// Answers a message of a client, which may have begun a dump that has not ended. `random` gives a number
    /// up to the one that it is given.
    pub fn answer(
        &mut self,
        client: &Client,
        message: &netlink::Message<'_>,
        is_dumping: bool,
        now: Now,
        random: &mut dyn FnMut(u32) -> u32,
    ) -> Answers {
        let mut answers = Answers::default();
        let header = message.header;
        let mut request = Request { client, header, now, notifications: &mut answers.notifications };
        let outcome = match is_request(&header) {
            true => Message::read(message).and_then(|read| self.request(&mut request, read, random)),
            false => Ok(Outcome::Done),
        };
        let acked = match outcome {
            Ok(Outcome::Dump(_)) if is_dumping => {
                Err(Refusal::new(Errno::BUSY, "another dump of this socket has not ended"))
            }
            Ok(Outcome::Dump(dump)) => {
                answers.dump = Some(dump);
                return answers;
            }
            Ok(Outcome::Flush(flush)) => {
                answers.flush = Some(flush);
                return answers;
            }
            Ok(Outcome::Answer(answer)) => {
                let mut datagram = Datagram::new();
                answer.write(Header { flags: 0, port: client.port, ..header }, &mut datagram);
                answers.datagrams.push(datagram);
                Ok(())
            }
            Ok(Outcome::Done) => Ok(()),
            Err(refusal) => Err(refusal),
        };
        if acked.is_err() || header.has(flag::ACK) {
            let mut datagram = Datagram::new();
            datagram.ack(message, client.port, acked.as_ref().copied(), client.acks);
            answers.datagrams.push(datagram);
        }
        answers
    }

    /// The same for a caller who serves nobody else: a flush is carried out at once.
    pub fn answer_at_once(
        &mut self,
        client: &Client,
        message: &netlink::Message<'_>,
        is_dumping: bool,
        now: Now,
        random: &mut dyn FnMut(u32) -> u32,
    ) -> Answers {
        let mut answers = self.answer(client, message, is_dumping, now, random);
        if let Some(mut flush) = answers.flush.take() {
            let mut parts = std::iter::repeat_with(|| self.flush(&mut flush));
            let told = parts.find_map(|(is_over, told)| is_over.then_some(told));
            answers.notifications.extend(told.into_iter().flatten());
            answers.datagrams.extend(acknowledged(message, client));
        }
        answers
    }

    fn request(
        &mut self,
        request: &mut Request<'_>,
        Message { body, attributes }: Message,
        random: &mut dyn FnMut(u32) -> u32,
    ) -> Result<Outcome, Refusal> {
        processor::check_kind(&body, &attributes)?;
        match body {
            Body::NewSa(info) => self.new_sa(request, &info, &attributes),
            Body::UpdateSa(info) => self.update_sa(request, &info, &attributes),
            Body::DeleteSa(id) => self.delete_sa(request, &id, &attributes),
            Body::GetSa(id) => self.get_sa(&id, &attributes),
            Body::DumpSas => {
                Ok(Outcome::Dump(Dump::of_sas(request.header, request.client.port, &attributes)?))
            }
            Body::FlushSas(flush) => {
                Ok(Outcome::Flush(Flush::of_sas(flush, request.header, request.client.port)))
            }
            Body::AllocateSpi(wish) => self.allocate_spi(request, &wish, &attributes, random),
            Body::NewPolicy(info) => self.put_policy(request, &info, &attributes, true),
            Body::UpdatePolicy(info) => self.put_policy(request, &info, &attributes, false),
            Body::DeletePolicy(id) => self.delete_policy(request, &id, &attributes),
            Body::GetPolicy(id) => {
                let index = self.index_of(&id, &attributes)?;
                self.spd.get(index).map(|policy| answer(self.shown(&policy))).ok_or_else(no_policy)
            }
            Body::DumpPolicies => Ok(Outcome::Dump(Dump::of_policies(request.header, request.client.port))),
            Body::FlushPolicies => self.flush_policies(request, &attributes),
            Body::GetEvent(id) => self.get_event(&id, &attributes),
            Body::GetSadInfo(flags) => Ok(answer(Body::SadInfo(self.sad_info(flags.flags)))),
            Body::GetSpdInfo(flags) => Ok(answer(Body::SpdInfo(self.spd_info(flags.flags)))),
            Body::SpdInfo(info) => self.set_thresholds(&info),
            Body::GetDefaults(_) => Ok(answer(Body::GetDefaults(BLOCKED))),
            Body::SetDefaults(defaults) => set_defaults(&defaults),
            Body::Expire(expire) => self.expire(request, &expire, &attributes),
            Body::PolicyExpire(expire) => self.expire_policy(request, &expire, &attributes),
            Body::NewEvent(id) => self.new_event(request, &id, &attributes),
            Body::Migrate(id) => self.migrate(request, &id, &attributes),
            Body::Acquire(_) | Body::Mapping(_) | Body::Report(_) | Body::SadInfo(_) => {
                Err(invalid("the kernel sends such messages and takes none"))
            }
        }
    }
}

/// Control messages and answers are acknowledged at most.
fn is_request(header: &Header) -> bool {
    header.has(flag::REQUEST) && header.kind >= netlink::kind::FIRST_OF_PROTOCOL
}
