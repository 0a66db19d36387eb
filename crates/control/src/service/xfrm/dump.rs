//! Dumps: all SAs, or all policies, a datagram at a time, while other requests are served in between.

use super::data_path::DataPath;
use super::sa::XfrmSa;
use super::server::Xfrm;
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::datagram::Datagram;
use testudo_wire::netlink::{Header, flag};
use testudo_wire::xfrm::attribute::Attributes;
use testudo_wire::xfrm::selector::AddressFilter;

/// A datagram of a dump has at most so many bytes, unless one entry alone has more: what daemons read at a
/// time.
const MAX_BYTES: usize = 4096;

/// Entries that one datagram is looked for in: others are served in between, also where a filter wants few.
const MAX_LOOKED_AT: usize = 1024;

/// Where a dump is.
#[derive(Debug, Clone, Copy)]
enum Cursor {
    /// Before the SA at this place: the latest come first, as in the kernel.
    Sas(u64),
    /// Before the policy of this arrival, likewise.
    Policies(u64),
}

/// A dump that is under way. What changes meanwhile is shown as it is when its turn comes.
#[derive(Debug, Clone)]
pub struct Dump {
    header: Header,
    port: u32,
    cursor: Cursor,
    protocol: u8,
    filter: Option<AddressFilter>,
    is_over: bool,
}

impl Dump {
    pub(super) fn of_sas(header: Header, port: u32, attributes: &Attributes) -> Result<Self, Refusal> {
        let filter = attributes.address_filter().copied();
        let protocol = attributes.protocol().copied().unwrap_or(0);
        Ok(Self { header, port, cursor: Cursor::Sas(u64::MAX), protocol, filter, is_over: false })
    }

    pub(super) fn of_policies(header: Header, port: u32) -> Self {
        Self { header, port, cursor: Cursor::Policies(u64::MAX), protocol: 0, filter: None, is_over: false }
    }

    fn wants(&self, sa: &XfrmSa) -> bool {
        let is_protocol = [0, 255, sa.key.protocol].contains(&self.protocol);
        let is_between = self.filter.is_none_or(|filter| {
            let is_family = filter.family == 0 || filter.family == sa.info.family;
            let has = |network, address, prefix| is_in(network, address, prefix);
            is_family
                && has(filter.source.0, sa.info.source.0, filter.source_prefix)
                && has(filter.destination.0, sa.info.id.destination.0, filter.destination_prefix)
        });
        is_protocol && is_between
    }
}

/// Whether an address has the first `bits` of a network.
fn is_in(network: [u8; 16], address: [u8; 16], bits: u8) -> bool {
    let shift = 128_u32.saturating_sub(bits.into());
    let differs = u128::from_be_bytes(network) ^ u128::from_be_bytes(address);
    differs.checked_shr(shift).is_none_or(|differs| differs == 0)
}

impl<D: DataPath> Xfrm<D> {
    /// The next datagram of a dump, empty if nothing was found so far; `None` after the last.
    pub fn dumped(&self, dump: &mut Dump) -> Option<Datagram> {
        if dump.is_over {
            return None;
        }
        let mut datagram = Datagram::new();
        let header = Header { flags: flag::MULTI, port: dump.port, ..dump.header };
        let mut looked_at = 0;
        while datagram.len() < MAX_BYTES && looked_at < MAX_LOOKED_AT {
            looked_at += 1;
            let (next, message) = match dump.cursor {
                Cursor::Sas(place) => {
                    let Some((place, sa)) = self.sad.before(place) else { break };
                    let wanted = dump.wants(&sa);
                    let message = wanted.then(|| sa.shown(&self.use_of(&sa)));
                    (Cursor::Sas(place), message)
                }
                Cursor::Policies(arrival) => {
                    let Some((arrival, policy)) = self.spd.before(arrival) else { break };
                    (Cursor::Policies(arrival), Some(self.shown(&policy)))
                }
            };
            let before = datagram.len();
            message.inspect(|message| message.write(header, &mut datagram));
            if datagram.len() > MAX_BYTES && before > 0 {
                datagram.truncate(before);
                return Some(datagram);
            }
            dump.cursor = next;
        }
        let is_last = match dump.cursor {
            Cursor::Sas(place) => self.sad.before(place).is_none(),
            Cursor::Policies(arrival) => self.spd.before(arrival).is_none(),
        };
        if is_last && (datagram.is_empty() || datagram.len() + 20 <= MAX_BYTES) {
            datagram.done(&dump.header, dump.port, 0);
            dump.is_over = true;
        }
        Some(datagram)
    }
}
