//! The server behind its socket, by clients that are sockets of this process.

mod bounds;
mod migrate;
mod model;
mod policies;
mod processors;
mod restarts;
mod sas;
mod socket;

use super::*;
use crate::service::xfrm::hello;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use testudo_wire::netlink::ack::Answer;
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::{self, Header, flag, messages};
use testudo_wire::xfrm::algorithm::{AlgorithmWithIcv, Key};
use testudo_wire::xfrm::attribute::{Attribute, Attributes};
use testudo_wire::xfrm::info::InfoFlags;
use testudo_wire::xfrm::lifetime::LifetimeConfig;
use testudo_wire::xfrm::message::{Body, Message};
use testudo_wire::xfrm::policy::{PolicyId, PolicyInfo};
use testudo_wire::xfrm::sa::{FlushSas, SaInfo, SpiRequest};
use testudo_wire::xfrm::selector::{Id, SaId, Selector};
use testudo_wire::xfrm::{address::Address, family, group, mode};
use zeroize::Zeroizing;

use model::{Direct, Model};

/// The time of the tests' gateway, which stands still.
const NOW: Now = Now { unix_s: 1_000_000, monotonic_ms: 1_000_000 };

/// So many seconds after [`NOW`].
fn later(seconds: u64) -> Now {
    Now { unix_s: NOW.unix_s + seconds, monotonic_ms: NOW.monotonic_ms + 1000 * seconds }
}

/// Chance is a count.
#[derive(Debug, Default)]
struct Still(std::sync::atomic::AtomicU32);

impl Surroundings for Still {
    fn unix_s(&self) -> u64 {
        NOW.unix_s
    }

    fn monotonic_ms(&self) -> u64 {
        NOW.monotonic_ms
    }

    fn random(&self, highest: u32) -> u32 {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed).min(highest)
    }
}

struct Served {
    folder: TempDir,
    server: Arc<XfrmServer<Model>>,
    _socket: XfrmSocket,
}

impl Served {
    fn start() -> Self {
        Self::over(Model::default(), |_| Ok(()))
    }

    fn over(model: Model, may: impl Fn(&UnixStream) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self::by(XfrmServer::new(model, Box::new(Still::default())), may)
    }

    fn by(
        server: XfrmServer<Model>,
        may: impl Fn(&UnixStream) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        let (folder, server) = (TempDir::new().unwrap(), Arc::new(server));
        let socket = XfrmSocket::bind(&folder.path().join("xfrm.sock"), None).unwrap();
        socket.serve(Arc::clone(&server), may).unwrap();
        Self { folder, server, _socket: socket }
    }

    fn client(&self) -> Caller {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(self.folder.path().join("xfrm.sock")).unwrap()).unwrap();
        let stream = UnixStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Caller { stream, sequence: 0 }
    }

    /// One that listens to these groups from now on.
    fn listener(&self, groups: &[u32]) -> Caller {
        let client = self.client();
        let mask = groups.iter().fold(0, |mask, group| mask | 1 << (group - 1));
        let header = Header { flags: flag::ACK, sequence: 99, port: 4711, ..Header::default() };
        client.send(&hello::tests::bytes(header, mask, 1 << 11));
        let record = client.receive();
        let acknowledged = messages(&record).next().unwrap().unwrap();
        assert_eq!((acknowledged.header.sequence, acknowledged.header.port), (99, 4711));
        assert_eq!(Answer::read(&acknowledged).unwrap().code, 0);
        client
    }
}

struct Caller {
    stream: UnixStream,
    sequence: u32,
}

impl Caller {
    fn send(&self, record: &[u8]) {
        let flags = rustix::net::SendFlags::NOSIGNAL;
        assert_eq!(rustix::net::send(&self.stream, record, flags), Ok(record.len()));
    }

    /// The next record; empty at the end.
    fn receive(&self) -> Vec<u8> {
        let mut record = vec![0; 1 << 16];
        let flags = rustix::net::RecvFlags::empty();
        let (_, length) = rustix::net::recv(&self.stream, &mut record[..], flags).unwrap_or((0, 0));
        record.truncate(length);
        record
    }

    fn request(&mut self, message: &Message, flags: u16) {
        self.sequence += 1;
        let mut datagram = Datagram::new();
        let header = Header { flags: flag::REQUEST | flags, sequence: self.sequence, ..Header::default() };
        message.write(header, &mut datagram);
        self.send(datagram.as_bytes());
    }

    /// What a request is acknowledged with.
    fn acked(&mut self, message: impl Into<Message>) -> Answer {
        self.request(&message.into(), flag::ACK);
        let record = self.receive();
        let message = messages(&record).next().unwrap().unwrap();
        assert_eq!(message.header.sequence, self.sequence);
        Answer::read(&message).unwrap()
    }

    /// The next message of XFRM, with its header.
    fn heard(&self) -> (Header, Message) {
        let record = self.receive();
        let message = messages(&record).next().expect("a message").unwrap();
        (message.header, Message::read(&message).unwrap())
    }
}

fn sa(spi: u32) -> Message {
    let [local, remote] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(|bytes| Address::from(IpAddr::from(bytes)));
    let info = SaInfo {
        id: Id { destination: local, spi, protocol: 50 },
        source: remote,
        family: family::IPV4,
        mode: mode::TUNNEL,
        lifetime: LifetimeConfig::UNLIMITED,
        ..SaInfo::default()
    };
    let key = Key::new(Zeroizing::new(vec![7; 20]));
    let aead = AlgorithmWithIcv { name: "rfc4106(gcm(aes))".into(), key, icv_bits: 128 };
    Message { body: Body::NewSa(info), attributes: [Attribute::Aead(aead)].into() }
}

fn id_of(message: &Message) -> SaId {
    let Body::NewSa(info) = message.body else { panic!("{message:?}") };
    info.sa_id()
}

fn policy(port: u16) -> Message {
    let selector = Selector {
        family: family::IPV4,
        destination_port: port,
        destination_port_mask: 0xFFFF,
        ..Selector::default()
    };
    let info =
        PolicyInfo { selector, direction: 1, lifetime: LifetimeConfig::UNLIMITED, ..PolicyInfo::default() };
    Body::NewPolicy(info).into()
}

#[test]
fn what_one_client_does_the_others_hear_who_listen() {
    let served = Served::start();
    let (of_sas, of_policies) = (served.listener(&[group::SA]), served.listener(&[group::POLICY]));
    let mut client = served.client();
    assert_eq!(client.acked(sa(0x1001)).code, 0);
    assert_eq!(client.acked(policy(80)).code, 0);
    assert_eq!(client.acked(Body::DeleteSa(id_of(&sa(0x1001)))).code, 0);
    assert_eq!(client.acked(Body::FlushPolicies).code, 0);
    let (header, heard) = of_sas.heard();
    assert_eq!((header.sequence, id_of(&heard)), (1, id_of(&sa(0x1001))), "under the number of the request");
    let (header, heard) = of_sas.heard();
    assert_eq!((header.sequence, heard.body), (3, Body::DeleteSa(id_of(&sa(0x1001)))));
    assert!(matches!(of_policies.heard().1.body, Body::NewPolicy(_)));
    assert_eq!(of_policies.heard().1.body, Body::FlushPolicies);
}

#[test]
fn refusals_have_the_kernels_number_and_say_what_helps_to_those_who_ask_for_it() {
    let served = Served::start();
    let mut plain = served.client();
    assert_eq!(plain.acked(sa(0x1001)).code, 0);
    let twice = plain.acked(sa(0x1001));
    assert_eq!((twice.code, twice.text), (-17, None));
    let mut asking = served.listener(&[]);
    let twice = asking.acked(sa(0x1001));
    assert_eq!((twice.code, twice.text.is_some()), (-17, true));
    let mut without = sa(0x1002);
    without.attributes = Attributes::default();
    let refused = asking.acked(without);
    assert_eq!(refused.code, -22);
    assert!(refused.text.unwrap().contains("ESP needs algorithms"));
    assert_eq!(asking.acked(Body::DeleteSa(id_of(&sa(0x9999)))).code, -3);
}

/// A dump of any length is read a part at a time, and other clients are served in between.
#[test]
fn a_dump_shows_all_sas_while_others_change_some() {
    const COUNT: u32 = 2000;
    let served = Served::start();
    let mut client = served.client();
    for spi in 1..=COUNT {
        assert_eq!(client.acked(sa(0x1000 + spi)).code, 0);
    }
    client.request(&Body::DumpSas.into(), flag::DUMP);
    let mut other = served.client();
    assert_eq!(other.acked(sa(0x10)).code, 0, "while the dump waits for its reader");
    let mut shown = Vec::new();
    loop {
        let record = client.receive();
        assert!(record.len() <= 4096, "daemons read no more");
        let mut is_over = false;
        for message in messages(&record) {
            let message = message.unwrap();
            is_over = message.header.kind == netlink::kind::DONE;
            assert!(message.header.has(flag::MULTI));
            if !is_over {
                let read = Message::read(&message).unwrap();
                let Body::NewSa(info) = read.body else { panic!("{read:?}") };
                assert_eq!(info.current.packets, 7);
                shown.push(info.id.spi);
            }
        }
        if is_over {
            break;
        }
    }
    let before: Vec<u32> = (1..=COUNT).rev().map(|spi| 0x1000 + spi).collect();
    shown.retain(|spi| *spi != 0x10);
    assert_eq!(shown, before, "the latest first, each once");
}

#[test]
fn policies_of_other_tables_and_interfaces_are_left_alone() {
    let served = Served::start();
    let mut client = served.client();
    let mut of_interface = policy(80);
    of_interface.attributes = [Attribute::IfId(9)].into();
    assert_eq!(client.acked(of_interface).code, 0);
    let of_sub = Attribute::PolicyType(testudo_wire::xfrm::policy::PolicyType { kind: 1 });
    let flush = Message { body: Body::FlushPolicies, attributes: [of_sub].into() };
    assert_eq!(client.acked(flush).code, -95, "there is no such table");
    let id = |index| testudo_wire::xfrm::policy::PolicyId { index, direction: 1, ..Default::default() };
    client.request(&Body::DumpPolicies.into(), flag::DUMP);
    let Body::NewPolicy(info) = client.heard().1.body else { panic!("a policy") };
    assert_eq!(client.acked(Body::DeletePolicy(id(info.index))).code, -2, "it is another interface's");
    let with_interface =
        Message { body: Body::DeletePolicy(id(info.index)), attributes: [Attribute::IfId(9)].into() };
    assert_eq!(client.acked(with_interface).code, 0);
}

#[test]
fn reservations_that_end_leave_nothing_and_their_sas_come_as_updates() {
    let served = Served::start();
    let listener = served.listener(&[group::SA]);
    let mut client = served.client();
    let Body::NewSa(info) = sa(0).body else { panic!("an SA") };
    let wish = Message::from(Body::AllocateSpi(SpiRequest { sa: info, lowest: 1, highest: u32::MAX }));
    // More than may be reserved at a time, without a socket in between: that is many thousand wake-ups.
    let mut direct = Direct::default();
    for _ in 0..20_000 {
        let reserved = direct.ask(wish.clone()).unwrap().unwrap();
        assert_eq!(direct.ask(Body::DeleteSa(id_of(&reserved))), Ok(None), "nothing is refused");
        assert_eq!(direct.told.pop().map(|(group, _, _)| group), Some(group::SA));
    }
    client.request(&Body::AllocateSpi(SpiRequest { sa: info, lowest: 7, highest: 7 }).into(), 0);
    client.heard();
    let Message { body: Body::NewSa(info), attributes } = sa(7) else { panic!("an SA") };
    assert_eq!(client.acked(Message { body: Body::UpdateSa(info), attributes }).code, 0);
    assert!(matches!(listener.heard().1.body, Body::UpdateSa(_)));
    assert!(served.server.xfrm().tick(later(165)).is_empty(), "it is no reservation any more");
}

#[test]
fn a_hello_that_wants_no_acknowledgement_has_none() {
    let served = Served::start();
    let mut client = served.client();
    client.send(&hello::tests::bytes(Header { port: 4711, ..Header::default() }, 0, 0));
    assert_eq!(client.acked(sa(0x1001)).code, 0, "the first answer is the one of the request");
}

/// As `struct welcome` in `shim/mark.c` has it, and ahead of the acknowledgement that a program waits for:
/// its next socket has the mark.
#[test]
fn a_hello_is_answered_with_the_mark_of_packets_that_pass_all_policies() {
    let server = XfrmServer::new(Model::default(), Box::new(Still::default())).with_mark(0x7465);
    let served = Served::by(server, |_| Ok(()));
    let client = served.client();
    let header = Header { flags: flag::ACK, sequence: 99, port: 4711, ..Header::default() };
    client.send(&hello::tests::bytes(header, 1, 0));
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    // Chance is a count here.
    let expected = words(&[44, u32::from(netlink::kind::NOOP), 0, 4711, 0x5246_5854, 1, 0x7465, 0, 1, 2, 3]);
    assert_eq!(client.receive(), expected);
    let record = client.receive();
    assert_eq!(Answer::read(&messages(&record).next().unwrap().unwrap()).unwrap().code, 0);
}

#[test]
fn policies_are_counted_by_direction() {
    let served = Served::start();
    let mut client = served.client();
    for (port, direction) in [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)] {
        let Body::NewPolicy(info) = policy(port).body else { panic!("a policy") };
        assert_eq!(client.acked(Body::NewPolicy(PolicyInfo { direction, ..info })).code, 0);
    }
    let Body::NewPolicy(info) = policy(2).body else { panic!("a policy") };
    assert_eq!(client.acked(Body::UpdatePolicy(info)).code, 0, "which is still one");
    let mut counts = || {
        client.request(&Body::GetSpdInfo(InfoFlags::default()).into(), 0);
        let Body::SpdInfo(info) = client.heard().1.body else { panic!("counts") };
        info.counts.map(|counts| (counts.inbound, counts.outbound, counts.forward))
    };
    assert_eq!(counts(), Some((1, 2, 3)));
    let mut client = served.client();
    let selector = info.selector;
    assert_eq!(client.acked(Body::DeletePolicy(PolicyId { selector, direction: 1, index: 0 })).code, 0);
    assert_eq!(counts(), Some((1, 1, 3)));
}
