//! The buffers that all ports of a gateway use: frames for what a link carries, and long buffers for a part
//! of them.

use crate::exit::{Failure, Kind, failure};
use crate::interface;
use testudo_control::Configuration;
use testudo_packet::{HEADROOM_BYTES, Pages, Pool, TAILROOM_BYTES};
use testudo_port_xdp::Interface;

/// The longest packet, in bytes, that a buffer of the pool must hold, independent of the link's MTU: a peer
/// may fragment after encryption (RFC 4303 3.3.4), as Linux does with long datagrams, and our kernel
/// reassembles the fragments before we receive them. Buffer space that no packet ever fills takes no memory.
const LONGEST: usize = 65_535;

/// What a datagram that carries a sealed packet has beside it at most, but for TFC padding: a peer may seal
/// packets of the link's length and cut the datagrams after, which then fit a frame all the same.
const SEALED_MORE_BYTES: usize = 84;

/// Longest packet of a frame that a device shares: a page, which the kernel's AF_XDP takes at most. Longer
/// packets come in several frames, as chains or put together in a long buffer.
const DEVICE_PACKET_BYTES: usize = 4096 - HEADROOM_BYTES - TAILROOM_BYTES;

/// What a frame has beside its packet: Ethernet's header and two tags.
const AROUND_PACKET: usize = 14 + 2 * 4;

/// The pool of a configuration, fit for the devices of both sides.
pub fn pool(configuration: &Configuration) -> Result<Pool, Failure> {
    Ok(pool_for(configuration, &devices(configuration)?))
}

/// The pool of a configuration whose packets are in files.
pub fn offline(configuration: &Configuration) -> Pool {
    pool_for(configuration, &[])
}

fn pool_for(configuration: &Configuration, devices: &[usize]) -> Pool {
    let buffers = configuration.gateway.buffers;
    let mtus = interface::all(configuration).into_iter().map(|interface| interface.mtu);
    let ours = [configuration.unprotected.mtu, configuration.protected.mtu];
    let mtu = usize::from(mtus.chain(ours).fold(0, u16::max));
    let frame_bytes = (mtu + SEALED_MORE_BYTES).min(LONGEST);
    let frames = match devices.iter().copied().max() {
        None => Pool::new(buffers, frame_bytes),
        Some(longest) => Pool::for_devices(buffers, frame_bytes.max(longest).min(DEVICE_PACKET_BYTES)),
    };
    let pool = frames.with_long(buffers / 4, LONGEST);
    let region = pool.region();
    let pages = match region.pages() {
        Pages::Huge => "huge pages",
        Pages::Transparent => "transparent huge pages",
        Pages::Small => "small pages",
    };
    tracing::info!("packets: {} frames of {} bytes on {pages}", region.frames(), region.frame_bytes());
    pool
}

/// The longest frame of each device that has the pool's memory, in bytes.
fn devices(configuration: &Configuration) -> Result<Vec<usize>, Failure> {
    let (protected, unprotected) = (&configuration.protected, &configuration.unprotected);
    let name = protected.kind.xdp().map(|_| protected.name.as_str());
    let names = name.into_iter().chain(unprotected.kind.xdp().and(unprotected.interface.as_deref()));
    let of_host = names.map(|name| Interface::find(name).map(|found| found.frame_bytes()));
    let of_host = of_host.collect::<Result<Vec<_>, _>>().map_err(failure(Kind::Port))?;
    let of_dpdk = [(&protected.kind, protected.mtu), (&unprotected.kind, unprotected.mtu)];
    let of_dpdk = of_dpdk.into_iter().filter(|(kind, _)| kind.dpdk().is_some());
    Ok(of_host.into_iter().chain(of_dpdk.map(|(_, mtu)| usize::from(mtu) + AROUND_PACKET)).collect())
}
