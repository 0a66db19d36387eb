//! An interface, as netdevice(7) and ethtool's ioctl describe it. Its unsafe code is these calls alone.

use crate::error::OpenError;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use testudo_wire::ethernet::MacAddress;

/// `ARPHRD_ETHER`: frames of Ethernet.
const ETHERNET: u16 = 1;
/// Bytes of Ethernet's header, with two VLAN tags.
const HEADER_BYTES: usize = 14 + 2 * 4;
/// Longest frame for one buffer: a page, without the kernel's headroom (256) and the part at its end where it
/// describes further buffers (320 on x86-64; drivers take up to 448 bytes).
const SINGLE_BUFFER_BYTES: usize = 4096 - 256 - 448;

/// `ETHTOOL_GDRVINFO` and `ETHTOOL_GCHANNELS` (linux/ethtool.h).
const GET_DRIVER: u32 = 0x03;
const GET_CHANNELS: u32 = 0x3c;

/// An interface of Ethernet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its address.
    pub mac: MacAddress,
    /// Longest IP packet, in bytes.
    pub mtu: usize,
    /// The driver's name, if it has one.
    pub driver: Option<String>,
    /// Its queues, if the driver says.
    pub queues: Option<u32>,
}

/// `struct ethtool_drvinfo`, up to the driver's name, and the rest.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

impl Interface {
    /// The interface of this name, in the calling thread's network namespace.
    ///
    /// # Errors
    /// There is none, or it is not of Ethernet.
    pub fn find(name: &str) -> Result<Self, OpenError> {
        let failed = |source| OpenError::io(format!("ask for the interface {name}"), source);
        let absent = || OpenError::InterfaceAbsent { name: name.to_owned() };
        let asker = Asker::new(name).map_err(failed)?.ok_or_else(absent)?;
        let index = asker.index().map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => absent(),
            _ => failed(error),
        })?;
        let (kind, mac) = asker.hardware_address().map_err(failed)?;
        if kind != ETHERNET {
            return Err(OpenError::NotEthernet { name: name.to_owned() });
        }
        let mtu = asker.mtu().map_err(failed)?;
        let (driver, queues) = (asker.driver(), asker.queues());
        Ok(Self { name: name.to_owned(), index, mac: MacAddress(mac), mtu, driver, queues })
    }

    /// The longest frame, in bytes.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        self.mtu + HEADER_BYTES
    }

    /// Whether its longest frames come in several buffers.
    #[must_use]
    pub fn needs_multi_buffer(&self) -> bool {
        self.frame_bytes() > SINGLE_BUFFER_BYTES
    }

    /// Whether frames of a local kernel come this way, with checksums that are left to a device.
    #[must_use]
    pub fn has_local_frames(&self) -> bool {
        matches!(self.driver.as_deref(), Some("veth" | "tun" | "tap" | "bridge" | "dummy"))
    }
}

/// The addresses of this host, and those that its links have for all hosts (broadcasts over IPv4).
///
/// # Errors
/// The kernel does not say.
pub fn host_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let mut first = std::ptr::null_mut();
    // SAFETY: neither the standard library nor rustix has this call. It writes a pointer into `first`.
    if unsafe { libc::getifaddrs(&raw mut first) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = BTreeSet::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: it is an element of the list, which lives until it is freed below.
        let element = unsafe { &*next };
        let has_broadcast = element.ifa_flags & libc::IFF_BROADCAST.cast_unsigned() != 0;
        let broadcast = if has_broadcast { element.ifa_ifu } else { std::ptr::null_mut() };
        for address in [element.ifa_addr, broadcast] {
            // SAFETY: the C library gives null, or an address that is as long as its family's.
            found.extend(unsafe { ip_address(address) });
        }
        next = element.ifa_next;
    }
    // SAFETY: the list came from getifaddrs, and nothing of it is used any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// The IP address in a socket address, if it is one.
///
/// # Safety
/// The pointer is null, or to a socket address that is as long as its family says.
unsafe fn ip_address(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: each socket address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: of this family it is a `sockaddr_in`; the C library need not align it.
            let address = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::from(address.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: of this family it is a `sockaddr_in6`.
            let address = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::from(address.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

/// Asks the kernel about one interface.
pub(crate) struct Asker {
    socket: OwnedFd,
    name: [libc::c_char; libc::IFNAMSIZ],
}

impl Asker {
    /// `None` if no interface can have this name.
    pub(crate) fn new(name: &str) -> io::Result<Option<Self>> {
        if !(1..libc::IFNAMSIZ).contains(&name.len()) || name.contains('\0') {
            return Ok(None);
        }
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let mut bytes = [0; libc::IFNAMSIZ];
        for (to, from) in bytes.iter_mut().zip(name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        Ok(Some(Self { socket, name: bytes }))
    }

    fn ask(&self, request: libc::c_ulong) -> io::Result<libc::ifreq> {
        let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_ifindex: 0 };
        let mut asked = libc::ifreq { ifr_name: self.name, ifr_ifru };
        // SAFETY: neither the standard library nor rustix has these calls. The descriptor is open, and each
        // of them reads and writes one `ifreq`, which `asked` is, alive and ours during the call.
        let status = unsafe { libc::ioctl(self.socket.as_raw_fd(), request, &raw mut asked) };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(asked) }
    }

    fn index(&self) -> io::Result<u32> {
        // SAFETY: SIOCGIFINDEX has written this member; any bytes are an integer.
        let index = unsafe { self.ask(libc::SIOCGIFINDEX)?.ifr_ifru.ifru_ifindex };
        u32::try_from(index).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    fn hardware_address(&self) -> io::Result<(u16, [u8; 6])> {
        // SAFETY: SIOCGIFHWADDR has written this member; any bytes are integers.
        let address = unsafe { self.ask(libc::SIOCGIFHWADDR)?.ifr_ifru.ifru_hwaddr };
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(address.sa_data) {
            [*to] = from.to_ne_bytes();
        }
        Ok((address.sa_family, mac))
    }

    fn mtu(&self) -> io::Result<usize> {
        // SAFETY: SIOCGIFMTU has written this member; any bytes are an integer.
        let mtu = unsafe { self.ask(libc::SIOCGIFMTU)?.ifr_ifru.ifru_mtu };
        usize::try_from(mtu).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Asks ethtool's part of the driver, which reads and writes an `A`.
    ///
    /// # Safety
    /// `A` is the structure of the command that its first field names.
    pub(crate) unsafe fn ethtool<A>(&self, mut asked: A) -> io::Result<A> {
        let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut asked).cast() };
        let mut request = libc::ifreq { ifr_name: self.name, ifr_ifru };
        // SAFETY: SIOCETHTOOL reads one `ifreq`, and reads and writes the structure that it points to, which
        // the caller says is the command's; both are alive and ours during the call.
        let status =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
        if status < 0 { Err(io::Error::last_os_error()) } else { Ok(asked) }
    }

    fn driver(&self) -> Option<String> {
        let asked = DriverInfo { command: GET_DRIVER, driver: [0; 32], rest: [0; 160] };
        // SAFETY: this is the structure of ETHTOOL_GDRVINFO, 196 bytes.
        let driver = unsafe { self.ethtool(asked) }.ok()?.driver;
        let name = driver.split(|&byte| byte == 0).next().filter(|name| !name.is_empty())?;
        Some(String::from_utf8_lossy(name).into_owned())
    }

    fn queues(&self) -> Option<u32> {
        // SAFETY: this is the structure of ETHTOOL_GCHANNELS.
        let channels =
            unsafe { self.ethtool(Channels { command: GET_CHANNELS, ..Channels::default() }) }.ok()?;
        let queues = channels.receive.max(channels.transmit).saturating_add(channels.combined);
        (queues > 0).then_some(queues)
    }
}

const _: () = assert!(size_of::<DriverInfo>() == 196 && size_of::<Channels>() == 36);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_interface_has_are_told() {
        for name in ["", "no-such-thing", "sixteen-bytes-xx", "a\0b"] {
            let error = Interface::find(name).unwrap_err();
            assert!(matches!(error, OpenError::InterfaceAbsent { .. }), "{name:?}: {error}");
        }
    }

    #[test]
    fn loopback_has_no_frames() {
        assert!(matches!(Interface::find("lo"), Err(OpenError::NotEthernet { .. })));
    }

    #[test]
    fn the_hosts_addresses_have_those_of_loopback() {
        let addresses = host_addresses().unwrap();
        assert!(addresses.contains(&IpAddr::from([127, 0, 0, 1])), "{addresses:?}");
    }

    #[test]
    fn jumbo_frames_need_several_buffers() {
        let of = |mtu| Interface {
            name: "eth0".into(),
            index: 1,
            mac: MacAddress([2; 6]),
            mtu,
            driver: Some("veth".into()),
            queues: None,
        };
        assert!(!of(1500).needs_multi_buffer() && of(9000).needs_multi_buffer());
        assert!(of(1500).has_local_frames());
    }
}
