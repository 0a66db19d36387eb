//! `testudo replay --list`: a line for each packet, with its verdict.
//!
//! ```text
//! packet   becomes                  by                         policy  addresses, protocol, bytes
//! P1       U1                       site-b esp 0x1001 #1            1  10.1.0.1 > 10.2.0.1 udp 28
//! P2       no_policy                -                               -  10.9.0.1 > 10.2.0.1 udp 28
//! U1       replay_duplicate         site-b esp 0x1002 #7            -  192.0.2.2 > 192.0.2.1 esp 92
//! P3       U2                       plant vpe 0x1003 s1 w6 #1       2  10.0.0.1 > 239.9.0.1 udp 28
//! ```
//!
//! Of VPE `s` is the Sender ID and `w` the Window ID, in which the number counts.
//!
//! The journal says what happened to a packet; which policy was asked is looked up again, in the same SPD
//! with the same fields.

use super::journal::{Captured, End, Entry, Place, inbound_flow};
use crate::exit::{Failure, Kind};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write as _};
use std::time::Duration;
use testudo_control::service::installed::InstalledTunnels;
use testudo_control::service::report;
use testudo_ipsec::{Action, Encapsulation, Flow, IpsecProtocol, Mode, PolicyId, TunnelIndex};
use testudo_packet::{DropReason, Interface, Passage};
use testudo_wire::ah::AhHeader;
use testudo_wire::esp::EspHeader;
use testudo_wire::protocol;
use testudo_wire::udp::UDP_HEADER_BYTES;
use testudo_wire::vpe::VpeHeader;

/// An SA, as the list names it.
#[derive(Debug, Clone)]
struct Sa {
    tunnel: String,
    protocol: IpsecProtocol,
    mode: Mode,
    spi: u32,
    is_outbound: bool,
    interface: Interface,
}

/// Whose number it is in an SA of VPE, as the packet says.
#[derive(Debug, Clone, Copy)]
struct Counter {
    sender: u16,
    window: u16,
}

impl Counter {
    /// By the first four bytes of a header of VPE.
    fn of([s0, s1, w0, w1]: [u8; 4]) -> Self {
        Self { sender: u16::from_le_bytes([s0, s1]), window: u16::from_le_bytes([w0, w1]) }
    }
}

/// An SA and the number that a packet has in it.
struct Use<'l> {
    /// `None` for an SPI that no SA has.
    sa: Option<&'l Sa>,
    protocol: IpsecProtocol,
    spi: u32,
    /// Whole where it is known; the low half, as the packet has it, where the packet was refused by its SPI.
    sequence: Option<u64>,
    /// Of VPE, where the packet has a header.
    counter: Option<Counter>,
}

/// What is installed, by the names that packets and journals use, and where the list goes.
pub struct List<'i> {
    installed: &'i InstalledTunnels,
    /// By the bits of the SA's handle, for each direction (outbound: `true`).
    by_handle: HashMap<(bool, u32), Sa>,
    /// Inbound SAs by SPI.
    by_spi: HashMap<(IpsecProtocol, u32), Sa>,
    outbound_of: HashMap<TunnelIndex, Sa>,
    /// Places of policies in the SPD, from 0.
    places: HashMap<PolicyId, usize>,
    /// Ports to which ESP in UDP comes.
    udp_ports: Vec<u16>,
    /// Ports to which VPE comes, and its protocol numbers.
    vpe_ports: Vec<u16>,
    vpe_protocols: Vec<u8>,
    is_json: bool,
    /// Nobody reads the list any more: `head` has what it wanted.
    is_closed: bool,
    has_head: bool,
}

impl<'i> List<'i> {
    pub fn new(installed: &'i InstalledTunnels, is_json: bool) -> Self {
        let mut list = Self {
            installed,
            by_handle: HashMap::new(),
            by_spi: HashMap::new(),
            outbound_of: HashMap::new(),
            places: installed.spd.policies().enumerate().map(|(place, (id, _))| (id, place)).collect(),
            udp_ports: Vec::new(),
            vpe_ports: Vec::new(),
            vpe_protocols: Vec::new(),
            is_json,
            is_closed: false,
            has_head: is_json,
        };
        for running in &installed.tunnels {
            let tunnel = &running.tunnel;
            for running_sa in running.sas.lock().iter() {
                let (spi, is_outbound) = (running_sa.spi, running_sa.is_outbound());
                let (protocol, mode) = (tunnel.protocol, tunnel.mode);
                let (name, interface) = (tunnel.name.clone(), tunnel.interface);
                let sa = Sa { tunnel: name, protocol, mode, spi, is_outbound, interface };
                if let Some(added) = &running_sa.added {
                    list.by_handle.insert((is_outbound, added.sa.bits()), sa.clone());
                }
                if is_outbound {
                    list.outbound_of.insert(running.index, sa);
                } else {
                    list.by_spi.insert((protocol, spi), sa);
                }
            }
            match (tunnel.protocol, tunnel.encapsulation) {
                (IpsecProtocol::Vpe, Encapsulation::EspInUdp { local_port, .. }) => {
                    list.vpe_ports.push(local_port)
                }
                (IpsecProtocol::Vpe, Encapsulation::Esp) => {
                    list.vpe_protocols.push(tunnel.rules.of_vpe().ip_protocol);
                }
                (_, Encapsulation::EspInUdp { local_port, .. }) => list.udp_ports.push(local_port),
                (_, Encapsulation::Esp) => {}
            }
        }
        list
    }

    /// Prints the lines of packets that have ended. A reader that has gone away ends the list, not the
    /// replay.
    pub fn print(&mut self, entries: &[Entry]) -> Result<(), Failure> {
        let mut text = String::new();
        if !std::mem::replace(&mut self.has_head, true) {
            text = line(["packet", "becomes", "by", "policy", "addresses, protocol, bytes"]);
        }
        for entry in entries {
            text += &if self.is_json { format!("{}\n", self.json(entry)) } else { self.text(entry) };
        }
        if self.is_closed || text.is_empty() {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => self.is_closed = true,
            written => written.map_err(|e| Failure::new(Kind::Other, format!("standard output: {e}")))?,
        }
        Ok(())
    }

    fn text(&self, entry: &Entry) -> String {
        let uses = self.uses(entry);
        let uses: Vec<String> = uses.iter().map(Use::text).collect();
        let by = if uses.is_empty() { "-".to_owned() } else { uses.join(" + ") };
        let policy = self.policy(entry).map_or_else(|| "-".to_owned(), |(place, _)| (place + 1).to_string());
        let captured = entry.captured.as_ref();
        let packet = captured.map_or_else(|| "-".to_owned(), |captured| label(captured.place));
        let what = captured.map_or_else(String::new, what);
        line([&packet, &becomes(entry), &by, &policy, &what])
    }

    fn json(&self, entry: &Entry) -> Value {
        let mut value = json!({
            "packet": entry.captured.as_ref().map(packet_json),
            "made": made(entry),
            "sas": self.uses(entry).iter().map(Use::json).collect::<Vec<_>>(),
            "policy": self.policy(entry).map(|(place, action)| json!({
                "place": place + 1,
                "origin": report::origin(&self.installed.configuration, place),
                "action": report::action_name(action),
            })),
        });
        let (verdict, key, detail) = match entry.end {
            End::Sent(place) => ("sent", "as", place_json(place)),
            End::Dropped(reason) => ("dropped", "reason", json!(reason.name())),
            End::Joined(whole) => ("joined", "with", whole.map(place_json).unwrap_or_default()),
        };
        value["verdict"] = json!(verdict);
        value[key] = detail;
        value
    }

    /// The SAs that a packet went through, or that its fate is to be told of.
    fn uses(&self, entry: &Entry) -> Vec<Use<'_>> {
        if !entry.passages.is_empty() {
            return entry.passages.iter().filter_map(|passage| self.use_of(passage)).collect();
        }
        let End::Dropped(_) = entry.end else { return Vec::new() };
        let Some(captured) = &entry.captured else { return Vec::new() };
        if !captured.place.is_protected {
            return self.named_by(captured).into_iter().collect();
        }
        let Some((_, Action::Protect(tunnel))) = self.policy(entry) else { return Vec::new() };
        let sa = self.outbound_of.get(&tunnel);
        sa.map(|sa| Use { sa: Some(sa), protocol: sa.protocol, spi: sa.spi, sequence: None, counter: None })
            .into_iter()
            .collect()
    }

    fn use_of(&self, passage: &Passage) -> Option<Use<'_>> {
        let sa = self.by_handle.get(&(passage.is_outbound, passage.sa))?;
        let counter = (sa.protocol == IpsecProtocol::Vpe).then(|| Counter::of(passage.head));
        let sequence = Some(passage.sequence);
        Some(Use { sa: Some(sa), protocol: sa.protocol, spi: sa.spi, sequence, counter })
    }

    /// The SA that a datagram from the unprotected side names, whether there is one or not.
    fn named_by(&self, captured: &Captured) -> Option<Use<'_>> {
        let (header, first) = captured.header.as_ref().filter(|(header, _)| header.fragment.is_none())?;
        if let Some(VpeHeader { sender, window, number, spi }) = self.vpe(header.protocol, first) {
            let sa = self.by_spi.get(&(IpsecProtocol::Vpe, spi));
            let counter = Some(Counter { sender, window });
            return Some(Use { sa, protocol: IpsecProtocol::Vpe, spi, sequence: Some(number), counter });
        }
        let (protocol, spi, sequence) = match header.protocol {
            protocol::AH => {
                let AhHeader { spi, sequence, .. } = AhHeader::parse(first).ok()?;
                (IpsecProtocol::Ah, spi, sequence)
            }
            protocol::ESP => esp(first)?,
            protocol::UDP => {
                let port = u16::from_be_bytes([*first.get(2)?, *first.get(3)?]);
                let esp = esp(first.get(UDP_HEADER_BYTES..)?)?;
                // RFC 3948 2.2: four zero bytes mark an IKE message.
                Some(esp).filter(|(_, spi, _)| self.udp_ports.contains(&port) && *spi != 0)?
            }
            _ => return None,
        };
        let sa = self.by_spi.get(&(protocol, spi));
        Some(Use { sa, protocol, spi, sequence: Some(sequence.into()), counter: None })
    }

    /// The header of VPE in a datagram of this protocol, if it carries VPE.
    fn vpe(&self, protocol: u8, first: &[u8]) -> Option<VpeHeader> {
        if protocol == protocol::UDP {
            let port = u16::from_be_bytes([*first.get(2)?, *first.get(3)?]);
            let is_vpe = self.vpe_ports.contains(&port);
            return VpeHeader::parse(first.get(UDP_HEADER_BYTES..)?).filter(|_| is_vpe);
        }
        VpeHeader::parse(first).filter(|_| self.vpe_protocols.contains(&protocol))
    }

    /// The policy that decided about a packet: its place from 0, and what it says.
    fn policy(&self, entry: &Entry) -> Option<(usize, Action)> {
        let flow = self.decided_flow(entry)?;
        let sa = entry.passages.last().and_then(|last| self.by_handle.get(&(last.is_outbound, last.sa)));
        let opened = sa.filter(|sa| !sa.is_outbound);
        let policies = self.installed.spd.of(opened.map_or(Interface::MAIN, |sa| sa.interface));
        let id = policies.lookup(&flow).1?;
        Some((*self.places.get(&id)?, self.installed.spd.get(id)?.action))
    }

    /// The packet that policy was asked about, if it was.
    fn decided_flow(&self, entry: &Entry) -> Option<Flow> {
        use DropReason as Drop;
        let captured = entry.captured.as_ref()?;
        match entry.end {
            _ if made(entry) == Some("message") => None,
            End::Joined(_) => None,
            End::Dropped(Drop::NotIp | Drop::Truncated | Drop::BadHeader | Drop::BadChecksum) => None,
            End::Dropped(Drop::SourceRoute | Drop::ReceiveTruncated) => None,
            _ if captured.place.is_protected => captured.flow,
            End::Sent(_) => entry.sent,
            End::Dropped(reason) if entry.passages.is_empty() => {
                let is_policys =
                    matches!(reason, Drop::CleartextForProtected | Drop::PolicyDiscard | Drop::FieldsHidden);
                captured.flow.filter(|_| is_policys)
            }
            End::Dropped(reason) => self.opened_flow(entry, reason),
        }
    }

    /// What policy sees of a packet that an SA has opened, and that was dropped after that.
    fn opened_flow(&self, entry: &Entry, reason: DropReason) -> Option<Flow> {
        use DropReason as Drop;
        let passage = entry.passages.last()?;
        let sa = self.by_handle.get(&(passage.is_outbound, passage.sa))?;
        let is_tunnel_of_esp = sa.protocol != IpsecProtocol::Ah && sa.mode == Mode::Tunnel;
        match reason {
            // The packet is still where it was opened.
            Drop::SelectorMismatch | Drop::PolicyDiscard | Drop::FieldsHidden if is_tunnel_of_esp => {
                inbound_flow(entry.rest.get(passage.text_start..)?)
            }
            Drop::SelectorMismatch
            | Drop::PolicyDiscard
            | Drop::FieldsHidden
            | Drop::EcnCongestion
            | Drop::QueueFull
            | Drop::MessageTooLong
            | Drop::SendRefused => inbound_flow(&entry.rest),
            _ => None,
        }
    }
}

impl Use<'_> {
    fn text(&self) -> String {
        let mut text = self.sa.map_or_else(String::new, |sa| format!("{} ", sa.tunnel));
        let _ = write!(text, "{} {:#x}", protocol_name(self.protocol), self.spi);
        if let Some(Counter { sender, window }) = self.counter {
            let _ = write!(text, " s{sender} w{window}");
        }
        if let Some(sequence) = self.sequence {
            let _ = write!(text, " #{sequence}");
        }
        text
    }

    fn json(&self) -> Value {
        let mut value = json!({
            "tunnel": self.sa.map(|sa| &sa.tunnel),
            "direction": self.sa.map(|sa| if sa.is_outbound { "outbound" } else { "inbound" }),
            "protocol": protocol_name(self.protocol),
            "spi": self.spi,
            "sequence": self.sequence,
        });
        if self.protocol == IpsecProtocol::Vpe {
            value["sender_id"] = json!(self.counter.map(|counter| counter.sender));
            value["window"] = json!(self.counter.map(|counter| counter.window));
        }
        value
    }
}

/// A line whose columns fit 100 characters with usual addresses; the last one may be longer.
fn line([packet, becomes, by, policy, what]: [&str; 5]) -> String {
    let line = format!("{packet:<8} {becomes:<24} {by:<26} {policy:>6}  {what}");
    format!("{}\n", line.trim_end())
}

fn esp(bytes: &[u8]) -> Option<(IpsecProtocol, u32, u32)> {
    EspHeader::parse(bytes).map(|EspHeader { spi, sequence }| (IpsecProtocol::Esp, spi, sequence))
}

fn protocol_name(protocol: IpsecProtocol) -> &'static str {
    match protocol {
        IpsecProtocol::Esp => "esp",
        IpsecProtocol::Ah => "ah",
        IpsecProtocol::Vpe => "vpe",
    }
}

fn side(place: Place) -> &'static str {
    if place.is_protected { "protected" } else { "unprotected" }
}

fn label(place: Place) -> String {
    format!("{}{}", if place.is_protected { "P" } else { "U" }, place.number)
}

fn becomes(entry: &Entry) -> String {
    let made = made(entry).map_or_else(String::new, |made| format!(" ({made})"));
    match entry.end {
        End::Sent(place) => label(place) + &made,
        End::Dropped(reason) => reason.name().to_owned() + &made,
        End::Joined(whole) => format!("part of {}", whole.map_or_else(|| "-".to_owned(), label)),
    }
}

/// What the gateway made, if it made the packet.
fn made(entry: &Entry) -> Option<&'static str> {
    let Some(captured) = &entry.captured else { return Some("own") };
    let goes_on = !matches!(entry.end, End::Sent(place) if place.is_protected);
    entry.is_derived.then_some(if captured.place.is_protected && goes_on { "fragment" } else { "message" })
}

fn what(captured: &Captured) -> String {
    let Some((header, _)) = &captured.header else { return format!("{} bytes", captured.bytes) };
    let protocol = match header.protocol {
        protocol::ICMP => "icmp".to_owned(),
        protocol::TCP => "tcp".to_owned(),
        protocol::UDP => "udp".to_owned(),
        protocol::ESP => "esp".to_owned(),
        protocol::AH => "ah".to_owned(),
        protocol::ICMPV6 => "icmpv6".to_owned(),
        number => format!("protocol {number}"),
    };
    let fragment = header.fragment.map_or_else(String::new, |f| format!(" at {}", f.offset_bytes));
    format!("{} > {} {protocol}{fragment} {}", header.source, header.destination, captured.bytes)
}

fn place_json(place: Place) -> Value {
    json!({ "side": side(place), "number": place.number })
}

fn packet_json(captured: &Captured) -> Value {
    let header = captured.header.as_ref().map(|(header, _)| header);
    let time = |time: Duration| format!("{}.{:09}", time.as_secs(), time.subsec_nanos());
    json!({
        "side": side(captured.place),
        "number": captured.place.number,
        "time": captured.time.map(time),
        "bytes": captured.bytes,
        "source": header.map(|header| header.source.to_string()),
        "destination": header.map(|header| header.destination.to_string()),
        "protocol": header.map(|header| header.protocol),
        "ports": captured.ports(),
        "fragment_offset": header.and_then(|header| header.fragment).map(|f| f.offset_bytes),
    })
}

impl Captured {
    /// Source and destination port, if it shows them.
    fn ports(&self) -> Option<(u16, u16)> {
        let (header, first) = self.header.as_ref()?;
        let has_ports = matches!(header.protocol, protocol::TCP | protocol::UDP | protocol::SCTP);
        let is_start = header.fragment.is_none_or(|fragment| fragment.offset_bytes == 0);
        let port = |at: usize| first.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
        if has_ports && is_start { port(0).zip(port(2)) } else { None }
    }
}
