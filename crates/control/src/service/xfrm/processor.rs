//! SAs of one processor each (RFC 9611 3), since Linux 6.13: the rules of `XFRMA_SA_PCPU`, as Linux 6.18 has
//! them. Here processors are workers.

use super::sa::{XfrmSa, invalid};
use testudo_wire::netlink::ack::Refusal;
use testudo_wire::netlink::errno::Errno;
use testudo_wire::xfrm::attribute::Attributes;
use testudo_wire::xfrm::message::Body;

/// Only what makes an SA has a processor.
pub(super) fn check_kind(body: &Body, attributes: &Attributes) -> Result<(), Refusal> {
    let makes_sas =
        matches!(body, Body::NewSa(_) | Body::UpdateSa(_) | Body::AllocateSpi(_) | Body::Acquire(_));
    match attributes.processor() {
        Some(_) if !makes_sas => Err(invalid("messages that make no SA have no processor (XFRMA_SA_PCPU)")),
        _ => Ok(()),
    }
}

/// The processor of an SA is one that there may be, and it is said which packets the SA is for.
pub(super) fn check_sa(attributes: &Attributes, processors: u32) -> Result<(), Refusal> {
    if attributes.processor().is_some() && attributes.direction().is_none() {
        return Err(invalid("an SA of one processor (XFRMA_SA_PCPU) needs its direction (XFRMA_SA_DIR)"));
    }
    check_number(attributes, processors, Errno::RANGE)
}

/// The same where an SPI is reserved, whose direction is known.
pub(super) fn check_reservation(attributes: &Attributes, processors: u32) -> Result<(), Refusal> {
    check_number(attributes, processors, Errno::INVAL)
}

fn check_number(attributes: &Attributes, processors: u32, errno: Errno) -> Result<(), Refusal> {
    match attributes.processor() {
        Some(number) if *number >= processors => {
            let text =
                format!("processor {number}: SAs are for numbers from 0 to {}", processors.saturating_sub(1));
            Err(Refusal::new(errno, text))
        }
        _ => Ok(()),
    }
}

impl XfrmSa {
    /// The only processor that sends through it, or whose SA it was negotiated with; `None` for all.
    #[must_use]
    pub fn processor(&self) -> Option<u32> {
        self.attributes.processor().copied()
    }
}
