//! Selectors of XFRM as selectors of the SPD.

use super::super::xfrm::Direction;
use super::template::{invalid, unsupported};
use std::net::IpAddr;
use testudo_ipsec::{AddressRange, PacketValues, PortRange, Prefix, Protocol, Selector};
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::protocol;
use testudo_wire::xfrm::address::Address;
use testudo_wire::xfrm::family;
use testudo_wire::xfrm::selector::Selector as XfrmSelector;

/// A selector of XFRM, for packets of one direction.
///
/// # Errors
/// What the SPD does not select by.
pub fn of_xfrm(selector: &XfrmSelector, direction: Direction) -> Result<Selector, Refusal> {
    if selector.interface != 0 {
        return Err(unsupported("selectors by interface (dev) are not done: use if_id"));
    }
    let network = |address: Address, prefix: u8, what: &str| {
        let ip = address.ip(selector.family).ok_or_else(|| invalid(format!("{what}: no family of IP")))?;
        // As the kernel: bits behind the prefix do not count.
        Prefix::new(masked(ip, prefix), prefix)
            .map(AddressRange::from)
            .map_err(|error| invalid(format!("{what}: {error}")))
    };
    let source = network(selector.source, selector.source_prefix, "source of the selector")?;
    let destination =
        network(selector.destination, selector.destination_prefix, "destination of the selector")?;
    let (source_ports, destination_ports) = ports_of(selector)?;
    let protocol = match selector.protocol {
        0 => Protocol::Any,
        number => Protocol::Is(number),
    };
    let is_outbound = direction == Direction::Outbound;
    let (local, remote) = if is_outbound { (source, destination) } else { (destination, source) };
    let (local_ports, remote_ports) = match is_outbound {
        true => (source_ports, destination_ports),
        false => (destination_ports, source_ports),
    };
    Ok(Selector { local, remote, protocol, local_ports, remote_ports })
}

fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let bits = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & bits).into())
        }
        IpAddr::V6(v6) => {
            let bits = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & bits).into())
        }
    }
}

/// Ports at the source and at the destination. Messages of ICMP have their type in the source's place and
/// their code in the destination's; here both are one value at the sender's end.
fn ports_of(selector: &XfrmSelector) -> Result<(PortRange, PortRange), Refusal> {
    let XfrmSelector { source_port, source_port_mask, destination_port, destination_port_mask, .. } =
        *selector;
    match selector.protocol {
        protocol::ICMP | protocol::ICMPV6 => {
            let message =
                message((source_port, source_port_mask), (destination_port, destination_port_mask))?;
            Ok((message, PortRange::ANY))
        }
        _ => Ok((ports(source_port, source_port_mask)?, ports(destination_port, destination_port_mask)?)),
    }
}

/// The ports that agree with one in the bits of a mask.
fn ports(port: u16, mask: u16) -> Result<PortRange, Refusal> {
    if mask == 0 {
        return Ok(PortRange::ANY);
    }
    if mask.leading_ones() + mask.trailing_zeros() != u16::BITS {
        let text = format!("ports under the mask {mask:#06x} are no range: use several policies");
        return Err(unsupported(text));
    }
    Ok(PortRange { first: port & mask, last: port | !mask })
}

fn message(kind: (u16, u16), code: (u16, u16)) -> Result<PortRange, Refusal> {
    let byte = |(value, mask): (u16, u16), what: &str| match (mask, u8::try_from(value)) {
        (0, _) => Ok(None),
        (u16::MAX, Ok(value)) => Ok(Some(value)),
        _ => Err(unsupported(format!("{what} of ICMP: {value} under the mask {mask:#06x}"))),
    };
    match (byte(kind, "type")?, byte(code, "code")?) {
        (None, None) => Ok(PortRange::ANY),
        (Some(kind), None) => Ok(PortRange::icmp((kind, 0), (kind, u8::MAX))),
        (Some(kind), Some(code)) => Ok(PortRange::icmp((kind, code), (kind, code))),
        (None, Some(_)) => Err(unsupported("a code of ICMP without its type")),
    }
}

/// The values of a packet that leaves, as an acquire has them: a key exchange narrows its proposal to them.
pub fn of_packet(values: &PacketValues) -> XfrmSelector {
    let (Some(local), Some(remote)) = (values.local, values.remote) else { return XfrmSelector::default() };
    let bits = if local.is_ipv4() { 32 } else { 128 };
    let mut selector = XfrmSelector {
        source: local.into(),
        destination: remote.into(),
        family: if local.is_ipv4() { family::IPV4 } else { family::IPV6 },
        source_prefix: bits,
        destination_prefix: bits,
        protocol: values.protocol.unwrap_or(0),
        ..XfrmSelector::default()
    };
    let (source, destination) = match values.message {
        Some(message) => {
            let [kind, code] = message.to_be_bytes().map(u16::from);
            (Some(kind), Some(code))
        }
        None => (values.local_port, values.remote_port),
    };
    let masked = |port: Option<u16>| port.map_or((0, 0), |port| (port, u16::MAX));
    (selector.source_port, selector.source_port_mask) = masked(source);
    (selector.destination_port, selector.destination_port_mask) = masked(destination);
    selector
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xfrm() -> XfrmSelector {
        XfrmSelector {
            source: IpAddr::from([10, 1, 2, 3]).into(),
            destination: IpAddr::from([10, 2, 0, 0]).into(),
            source_prefix: 16,
            destination_prefix: 24,
            family: family::IPV4,
            ..XfrmSelector::default()
        }
    }

    fn text(selector: &Selector) -> String {
        format!(
            "{} {} {} {} {}",
            selector.local, selector.remote, selector.protocol, selector.local_ports, selector.remote_ports
        )
    }

    #[test]
    fn ends_are_exchanged_for_packets_that_arrive() {
        let mut selector = xfrm();
        (selector.protocol, selector.source_port, selector.source_port_mask) = (protocol::TCP, 80, 0xFFFF);
        (selector.destination_port, selector.destination_port_mask) = (0x1234, 0xFF00);
        let out = of_xfrm(&selector, Direction::Outbound).unwrap();
        assert_eq!(text(&out), "10.1.0.0/16 10.2.0.0/24 6 80 4608-4863");
        for direction in [Direction::Inbound, Direction::Forward] {
            let arriving = of_xfrm(&selector, direction).unwrap();
            assert_eq!(text(&arriving), "10.2.0.0/24 10.1.0.0/16 6 4608-4863 80");
        }
    }

    #[test]
    fn messages_of_icmp_are_at_their_senders_end() {
        let mut selector = xfrm();
        (selector.protocol, selector.source_port, selector.source_port_mask) = (protocol::ICMP, 8, 0xFFFF);
        let out = of_xfrm(&selector, Direction::Outbound).unwrap();
        assert_eq!(out.local_ports, PortRange::icmp((8, 0), (8, 255)));
        assert_eq!(out.remote_ports, PortRange::ANY);
        let arriving = of_xfrm(&selector, Direction::Inbound).unwrap();
        assert_eq!(arriving.remote_ports, PortRange::icmp((8, 0), (8, 255)));
        (selector.destination_port, selector.destination_port_mask) = (3, 0xFFFF);
        let out = of_xfrm(&selector, Direction::Outbound).unwrap();
        assert_eq!(out.local_ports, PortRange::icmp((8, 3), (8, 3)));
    }

    #[test]
    fn what_the_spd_does_not_select_by_is_refused() {
        let refused = |selector: XfrmSelector| of_xfrm(&selector, Direction::Outbound).unwrap_err().errno;
        let udp = XfrmSelector { protocol: protocol::UDP, ..xfrm() };
        use testudo_wire::netlink::errno::Errno;
        assert_eq!(refused(XfrmSelector { interface: 3, ..xfrm() }), Errno::OPNOTSUPP);
        assert_eq!(
            refused(XfrmSelector { source_port: 1, source_port_mask: 0x0F0F, ..udp }),
            Errno::OPNOTSUPP
        );
        assert_eq!(refused(XfrmSelector { source_prefix: 33, ..xfrm() }), Errno::INVAL);
        assert_eq!(refused(XfrmSelector { family: 7, ..xfrm() }), Errno::INVAL);
    }

    #[test]
    fn a_packets_values_come_back_as_a_selector_that_selects_it() {
        let values = PacketValues {
            local: Some([10, 1, 2, 3].into()),
            remote: Some([10, 2, 0, 9].into()),
            protocol: Some(protocol::TCP),
            local_port: Some(1000),
            remote_port: Some(443),
            message: None,
        };
        let own = of_xfrm(&of_packet(&values), Direction::Outbound).unwrap();
        assert_eq!(text(&own), "10.1.2.3/32 10.2.0.9/32 6 1000 443");
        let echo = PacketValues {
            protocol: Some(protocol::ICMP),
            local_port: None,
            remote_port: None,
            message: Some(0x0800),
            ..values
        };
        let own = of_xfrm(&of_packet(&echo), Direction::Outbound).unwrap();
        assert_eq!(own.local_ports, PortRange::icmp((8, 0), (8, 0)));
    }
}
