//! The client: one question, one answer, over a socket of its own.

use super::Device;
use super::messages::{self, Features, change_feature, coalesce, command, ring};
use crate::error::TuneError;
use crate::host::Reading;
use crate::place::{Coalescing, Direction, Place};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType};
use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use testudo_port_socket::namespace_cookie;
use testudo_wire::netlink::ack::Answer;
use testudo_wire::netlink::datagram::{Datagram, MessageBuilder};
use testudo_wire::netlink::{Message, kind, messages as all_messages};

/// Bytes of the kernel's longest datagrams.
const DATAGRAM_BYTES: usize = 64 * 1024;
/// The kernel answers while it is asked; a driver may sleep a little.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Linux's own view of a device.
pub struct Ethtool {
    socket: OwnedFd,
    family: u16,
    interface: String,
    sequence: Cell<u32>,
}

impl Ethtool {
    /// Opens a socket in this thread's network namespace, for an interface of that.
    ///
    /// # Errors
    /// A kernel before 5.6, or one that answers nothing.
    pub fn open(interface: &str) -> Result<Self, TuneError> {
        Self::connect(interface)
            .map_err(|source| TuneError::Ethtool { interface: interface.to_owned(), source })
    }

    fn connect(interface: &str) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::GENERIC),
        )?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWERED_WITHIN))?;
        let mut ethtool = Self { socket, family: 0, interface: interface.to_owned(), sequence: Cell::new(0) };
        let mut request = Datagram::new();
        messages::ask_family(&mut request, ethtool.next(), "ethtool");
        let family = ethtool.exchange(&request, messages::family)?.flatten();
        ethtool.family = family.ok_or_else(|| io::Error::other("it has no family of that name"))?;
        Ok(ethtool)
    }

    fn next(&self) -> u32 {
        self.sequence.set(self.sequence.get().wrapping_add(1));
        self.sequence.get()
    }

    /// Asks about the interface, and reads the answer; nothing if the kernel only acknowledged.
    fn ask<T>(
        &self,
        command: u8,
        build: impl FnOnce(&mut MessageBuilder<'_>),
        read: impl Fn(&Message<'_>) -> T,
    ) -> io::Result<Option<T>> {
        let mut request = Datagram::new();
        let numbers = [u32::from(self.family), self.next()];
        messages::ask(&mut request, numbers, command, &self.interface, build);
        self.exchange(&request, read)
    }

    /// Sends a request, and receives until it is acknowledged.
    fn exchange<T>(&self, request: &Datagram, read: impl Fn(&Message<'_>) -> T) -> io::Result<Option<T>> {
        let kernel = SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.socket, request.as_bytes(), SendFlags::empty(), &kernel)?;
        let (mut bytes, mut answer) = (vec![0; DATAGRAM_BYTES], None);
        loop {
            let (length, _, from) =
                match rustix::net::recvfrom(&self.socket, &mut bytes[..], RecvFlags::empty()) {
                    Err(Errno::INTR) => continue,
                    received => received?,
                };
            if !is_kernel(from) {
                continue;
            }
            let said = bytes.get(..length).unwrap_or_default();
            for message in all_messages(said) {
                let message = message.map_err(|error| io::Error::other(error.to_string()))?;
                if message.header.sequence != self.sequence.get() {
                    continue;
                }
                if message.header.kind != kind::ERROR {
                    answer = Some(read(&message));
                    continue;
                }
                let ack = Answer::read(&message)
                    .ok_or_else(|| io::Error::other("an acknowledgement that cannot be read"))?;
                return if ack.code == 0 {
                    Ok(answer)
                } else {
                    Err(io::Error::from_raw_os_error(ack.code.saturating_neg()))
                };
            }
        }
    }

    fn features(&self) -> io::Result<Features> {
        Ok(self.ask(command::FEATURES_GET, |_| {}, Features::read)?.unwrap_or_default())
    }

    fn feature(&self, name: &str) -> Reading {
        let features = match self.features() {
            Ok(features) => features,
            Err(error) => return absent(&error),
        };
        if !features.known.contains(name) && !features.active.contains(name) {
            return Reading::Absent("the kernel has no offload of this name".to_owned());
        }
        let word = |is_on: bool| if is_on { "on" } else { "off" };
        let (active, requested) = (features.active.contains(name), features.requested.contains(name));
        if !features.switchable.contains(name) {
            return Reading::Fixed(word(active).to_owned());
        }
        // What is on may differ from what was requested, as one offload needs another.
        let more =
            if active == requested { String::new() } else { format!(" [requested {}]", word(requested)) };
        Reading::Value(format!("{}{more}", word(active)))
    }

    fn number(&self, command: u8, kind: u16) -> io::Result<Option<u32>> {
        Ok(self.ask(command, |_| {}, |message| messages::number(message, kind))?.flatten())
    }

    fn set_number(&self, command: u8, kind: u16, value: &[u8]) -> io::Result<()> {
        self.ask(command, |message| message.attribute(kind, value), |_| ()).map(drop)
    }
}

impl Device for Ethtool {
    fn read(&self, place: &Place) -> Reading {
        let read = match place {
            Place::Feature { name } => return self.feature(name),
            Place::Coalescing { item: Coalescing::AdaptiveRx } => {
                let on = |n| (if n == 0 { "off" } else { "on" }).to_owned();
                let read = self.number(command::COALESCE_GET, coalesce::USE_ADAPTIVE_RX);
                read.map(|number| number.map(on))
            }
            Place::Coalescing { item: Coalescing::RxUsecs } => {
                let read = self.number(command::COALESCE_GET, coalesce::RX_USECS);
                read.map(|number| number.map(|n| n.to_string()))
            }
            Place::Coalescing { item: Coalescing::RxFrames } => {
                let read = self.number(command::COALESCE_GET, coalesce::RX_MAX_FRAMES);
                read.map(|number| number.map(|n| n.to_string()))
            }
            Place::Ring { direction } => {
                let kind = if *direction == Direction::Rx { ring::RX } else { ring::TX };
                self.number(command::RINGS_GET, kind).map(|number| number.map(|n| n.to_string()))
            }
            _ => return Reading::Absent("it is not the device's".to_owned()),
        };
        match read {
            Ok(Some(value)) => Reading::Value(value),
            Ok(None) => Reading::Absent("the device has no such number".to_owned()),
            Err(error) => absent(&error),
        }
    }

    fn write(&self, place: &Place, value: &str) -> io::Result<()> {
        let number = || value.parse::<u32>().map_err(io::Error::other);
        match place {
            Place::Feature { name } => {
                let is_on = requested(value);
                self.ask(command::FEATURES_SET, |message| change_feature(message, name, is_on), |_| ())
                    .map(drop)
            }
            Place::Coalescing { item: Coalescing::AdaptiveRx } => {
                self.set_number(command::COALESCE_SET, coalesce::USE_ADAPTIVE_RX, &[u8::from(value == "on")])
            }
            Place::Coalescing { item: Coalescing::RxUsecs } => {
                self.set_number(command::COALESCE_SET, coalesce::RX_USECS, &number()?.to_ne_bytes())
            }
            Place::Coalescing { item: Coalescing::RxFrames } => {
                self.set_number(command::COALESCE_SET, coalesce::RX_MAX_FRAMES, &number()?.to_ne_bytes())
            }
            Place::Ring { direction } => {
                let kind = if *direction == Direction::Rx { ring::RX } else { ring::TX };
                self.set_number(command::RINGS_SET, kind, &number()?.to_ne_bytes())
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn ring_limit(&self, direction: Direction) -> Option<u64> {
        let kind = if direction == Direction::Rx { ring::RX_MAX } else { ring::TX_MAX };
        self.number(command::RINGS_GET, kind).ok().flatten().map(u64::from)
    }

    fn cookie(&self) -> Option<u64> {
        namespace_cookie(&self.socket).ok()
    }
}

/// Of "off [requested on]" the latter: it was set, and the former follows from it.
fn requested(value: &str) -> bool {
    value.split_once(" [requested ").map_or(value == "on", |(_, requested)| requested == "on]")
}

fn absent(error: &io::Error) -> Reading {
    let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    if is(Errno::OPNOTSUPP) {
        return Reading::Absent("the device has none".to_owned());
    }
    if is(Errno::NOENT) { Reading::Absent(error.to_string()) } else { Reading::Unreadable(error.to_string()) }
}

fn is_kernel(from: Option<SocketAddrAny>) -> bool {
    from.and_then(|from| SocketAddrNetlink::try_from(from).ok()).is_some_and(|from| from.pid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_requested_of_an_offload_is_what_is_written_back() {
        assert_eq!(
            ["on", "off", "off [requested on]", "on [requested off]"].map(requested),
            [true, false, true, false]
        );
    }

    /// Every Linux has a loopback, and it has no rings.
    #[test]
    fn the_kernel_answers_about_its_loopback() {
        let ethtool = Ethtool::open("lo").unwrap();
        let gro = ethtool.read(&Place::feature("rx-gro"));
        assert!(matches!(&gro, Reading::Value(value) if value.starts_with('o')), "{gro:?}");
        let fixed = ethtool.read(&Place::feature("loopback"));
        assert_eq!(fixed, Reading::Fixed("on".to_owned()));
        let none = ethtool.read(&Place::feature("no-such-offload"));
        assert!(matches!(none, Reading::Absent(_)), "{none:?}");
        let ring = ethtool.read(&Place::Ring { direction: Direction::Rx });
        assert_eq!(ring, Reading::Absent("the device has none".to_owned()));
        let gone = Ethtool::open("no-such-device").unwrap().read(&Place::feature("rx-gro"));
        assert!(matches!(gone, Reading::Unreadable(_)), "{gone:?}");
    }
}
