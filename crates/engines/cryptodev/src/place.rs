//! One packet, laid out for a device; and what is put back when it has come back.
//!
//! ```text
//!   combined mode   | SPI, number | IV | text … | ICV |           nonce and AAD beside it
//!   CBC, sealing    | SPI, number | IV | text … | ICV |           the IV's block is encrypted, too, from zeros
//!   with ESN        | SPI, number | IV | text … | high half |     while the device has it; the ICV is in the slot
//!   AH with GMAC    | IP header … | 0  | rest …  | ICV |           while the device has it
//!   GMAC with ESN   | SPI, high half, number, IV, text |          a copy, in the slot
//! ```
//!
//! All else is done where the packet is.

use crate::raw;
use crate::work::{Layout, Plan, Variant};
use testudo_crypto::{Direction, Job, JobParts, JobStatus};

/// The longest text, so that lengths of 16 bits hold a packet.
pub(crate) const MAX_TEXT_BYTES: usize = 65_000;
const MAX_ICV_BYTES: usize = 32;
const HIGH_HALF_BYTES: usize = 4;
const SPI_BYTES: usize = 4;
const ESP_HEADER_BYTES: usize = 8;
/// The first bytes of a text: equal before and after, nothing was done.
const FIRST_BYTES: usize = 16;

/// The bytes beside a slot: an ICV, and room for a copy.
pub(crate) struct Beside<'a> {
    pub icv: &'a mut [u8; raw::SLOT_ICV_BYTES],
    pub copy: &'a mut [u8; raw::SLOT_COPY_BYTES],
}

/// What a packet was before a device had it, as far as that is needed afterwards.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    icv: [u8; MAX_ICV_BYTES],
    iv: [u8; 16],
    first: [u8; FIRST_BYTES],
    /// The ICV is made or read beside the slot, not in the packet.
    icv_is_beside: bool,
    /// The IV's field is put back.
    restores_iv: bool,
    /// The device has a copy, which is longer by so many bytes.
    copied: Option<usize>,
}

/// Where a device finds everything: offsets from the packet's first authenticated byte.
pub(crate) struct Laid {
    pub variant: Variant,
    pub operation: raw::Operation,
    pub before: Before,
}

/// Lays a job out. `None` if it is none for this engine; nothing is then changed. `in_place` says whether the
/// device reaches the packet where it is.
pub(crate) fn lay_out(
    job: &mut Job,
    plan: &Plan,
    salt: [u8; 4],
    beside: Beside<'_>,
    in_place: bool,
) -> Option<Laid> {
    let direction = job.direction;
    let parts = job.parts(plan.suite).filter(|parts| parts.packet.len() <= usize::from(u16::MAX))?;
    let JobParts { iv_at, text_at, icv_at, high_half, .. } = parts;
    let is_esp = iv_at == ESP_HEADER_BYTES;
    let widens = plan.layout == Layout::Gmac && is_esp && high_half.is_some();
    let copied = (!in_place || widens).then_some(if widens { HIGH_HALF_BYTES } else { 0 });
    if copied.is_some_and(|more| parts.packet.len() + more > raw::SLOT_COPY_BYTES) {
        return None;
    }
    let before = Before::of(&parts, copied);
    let mut laid = match plan.layout {
        Layout::Aead => aead(parts, plan, salt, before)?,
        _ => pair(parts, plan, salt, direction, before)?,
    };
    if high_half.is_some() && plan.layout != Layout::Aead && !widens && plan.suite.authenticates() {
        let packet = packet_of(job, plan)?;
        beside.icv[..MAX_ICV_BYTES].copy_from_slice(&laid.before.icv);
        packet[icv_at..icv_at + HIGH_HALF_BYTES].copy_from_slice(&high_half?);
        laid.operation.auth_bytes += 4;
        laid.before.icv_is_beside = true;
    }
    if laid.before.restores_iv && plan.layout == Layout::Gmac {
        packet_of(job, plan)?[iv_at..text_at].fill(0);
    }
    let packet = packet_of(job, plan)?;
    debug_assert_eq!(packet.len(), icv_at + plan.suite.icv_bytes());
    laid.operation.bytes = u32::try_from(packet.len()).ok()?;
    laid.operation.packet = packet.as_mut_ptr();
    laid.operation.icv = packet[icv_at..].as_mut_ptr();
    if let Some(more) = copied {
        let head = if widens { SPI_BYTES } else { 0 };
        beside.copy[..head].copy_from_slice(&packet[..head]);
        if let Some(high_half) = high_half.filter(|_| widens) {
            beside.copy[head..head + more].copy_from_slice(&high_half);
        }
        beside.copy[head + more..packet.len() + more].copy_from_slice(&packet[head..]);
        laid.operation.packet = beside.copy.as_mut_ptr();
        laid.operation.icv = beside.copy[icv_at + more..].as_mut_ptr();
        laid.operation.bytes += u32::try_from(more).ok()?;
        laid.operation.auth_bytes += if widens { 4 } else { 0 };
    }
    if laid.before.icv_is_beside {
        laid.operation.icv = beside.icv.as_mut_ptr();
    }
    Some(laid)
}

/// From the first authenticated byte to the ICV's end.
fn packet_of<'a>(job: &'a mut Job, plan: &Plan) -> Option<&'a mut [u8]> {
    job.parts(plan.suite).map(|parts| parts.packet)
}

impl Before {
    fn of(parts: &JobParts<'_>, copied: Option<usize>) -> Self {
        let mut before =
            Self { icv: [0; _], iv: [0; _], first: [0; _], icv_is_beside: false, restores_iv: false, copied };
        let packet = &*parts.packet;
        keep(&mut before.icv, packet.get(parts.icv_at..));
        keep(&mut before.iv, packet.get(parts.iv_at..parts.text_at));
        keep(&mut before.first, packet.get(parts.text_at..parts.icv_at));
        before
    }
}

/// As many bytes as fit.
fn keep(to: &mut [u8], from: Option<&[u8]>) {
    let from = from.unwrap_or_default();
    let bytes = to.len().min(from.len());
    to[..bytes].copy_from_slice(&from[..bytes]);
}

fn place(n: usize) -> Option<u32> {
    u32::try_from(n).ok()
}

const NOTHING: raw::Operation = raw::Operation {
    session: std::ptr::null_mut(),
    packet: std::ptr::null_mut(),
    icv: std::ptr::null_mut(),
    bytes: 0,
    slot: 0,
    cipher_at: 0,
    cipher_bytes: 0,
    auth_at: 0,
    auth_bytes: 0,
    is_aead: 0,
    is_ccm: 0,
    padding: [0; 2],
    aad: [0; 12],
    iv: [0; 16],
};

fn aead(parts: JobParts<'_>, plan: &Plan, salt: [u8; 4], before: Before) -> Option<Laid> {
    let (text_at, text_bytes, has_esn) =
        (parts.text_at, parts.icv_at - parts.text_at, parts.high_half.is_some());
    let parts = parts.aead(salt)?;
    let nonce = if plan.is_ccm() { &parts.nonce[1..] } else { &parts.nonce };
    let mut operation = raw::Operation {
        cipher_at: place(text_at)?,
        cipher_bytes: place(text_bytes)?,
        is_aead: 1,
        ..NOTHING
    };
    operation.is_ccm = u8::from(plan.is_ccm());
    operation.iv[..nonce.len()].copy_from_slice(nonce);
    operation.aad[..parts.aad.as_bytes().len()].copy_from_slice(parts.aad.as_bytes());
    let variant = if has_esn { Variant::Other } else { Variant::Usual };
    Some(Laid { variant, operation, before })
}

fn pair(
    parts: JobParts<'_>,
    plan: &Plan,
    salt: [u8; 4],
    direction: Direction,
    mut before: Before,
) -> Option<Laid> {
    let JobParts { packet, iv_at, text_at, icv_at, .. } = parts;
    let (mut operation, mut variant) = (NOTHING, Variant::Usual);
    operation.auth_bytes = place(icv_at)?;
    let iv = packet.get(iv_at..text_at)?;
    match plan.layout {
        Layout::Cbc if direction == Direction::Seal || icv_at == text_at => {
            // From zeros, so that the block in the IV's field is encrypted, too. An empty text is opened like
            // this, since devices refuse to decrypt nothing; the IV's block is put back.
            (operation.cipher_at, operation.cipher_bytes) = (place(iv_at)?, place(icv_at - iv_at)?);
            before.restores_iv = direction == Direction::Open;
        }
        Layout::Cbc => {
            (operation.cipher_at, operation.cipher_bytes) = (place(text_at)?, place(icv_at - text_at)?);
            operation.iv[..iv.len()].copy_from_slice(iv);
        }
        Layout::Ctr => {
            // RFC 3686 4: salt, IV, and a counter from 1.
            operation.iv[..4].copy_from_slice(&salt);
            operation.iv[4..12].copy_from_slice(iv);
            operation.iv[15] = 1;
            (operation.cipher_at, operation.cipher_bytes) = (place(text_at)?, place(icv_at - text_at)?);
            if icv_at == text_at {
                variant = Variant::Other;
            }
        }
        Layout::Gmac => {
            operation.iv[..4].copy_from_slice(&salt);
            operation.iv[4..12].copy_from_slice(iv);
            // In AH the IV is a part of the ICV, which counts as zeros (RFC 4543 4).
            before.restores_iv = iv_at != ESP_HEADER_BYTES;
        }
        Layout::Integrity | Layout::Aead => {}
    }
    Some(Laid { variant, operation, before })
}

/// Makes a job that no device has touched what it was before it was laid out.
pub(crate) fn undo(job: &mut Job, plan: &Plan, before: &Before) {
    if before.copied.is_some() && !before.restores_iv && !before.icv_is_beside {
        return;
    }
    let Some(JobParts { packet, iv_at, text_at, icv_at, .. }) = job.parts(plan.suite) else { return };
    packet[iv_at..text_at].copy_from_slice(&before.iv[..text_at - iv_at]);
    let icv = &mut packet[icv_at..];
    let bytes = icv.len();
    icv.copy_from_slice(&before.icv[..bytes]);
}

/// How a device says that it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Well,
    WrongIcv,
    InError,
}

/// Ends a job that has come back, and says whether the device has done what it says. What it may have left
/// half done is wiped, and no packet to send; so is a text whose ICV is wrong.
pub(crate) fn finish(job: &mut Job, plan: &Plan, before: &Before, beside: Beside<'_>, ended: Ended) -> bool {
    let direction = job.direction;
    let Some(JobParts { packet, iv_at, text_at, icv_at, .. }) = job.parts(plan.suite) else {
        job.status = JobStatus::AuthenticationFailed;
        return false;
    };
    let icv_bytes = packet.len() - icv_at;
    if let Some(more) = before.copied.filter(|_| ended == Ended::Well) {
        let from = if more > 0 { SPI_BYTES } else { 0 };
        packet[from..].copy_from_slice(&beside.copy[from + more..icv_at + more + icv_bytes]);
    }
    if before.restores_iv {
        packet[iv_at..text_at].copy_from_slice(&before.iv[..text_at - iv_at]);
    }
    match direction {
        Direction::Seal if before.icv_is_beside => packet[icv_at..].copy_from_slice(&beside.icv[..icv_bytes]),
        Direction::Seal => {}
        Direction::Open => packet[icv_at..].copy_from_slice(&before.icv[..icv_bytes]),
    }
    // Of every other text the first bytes are the same before and after once in 2^128 packets.
    let is_done = !plan.suite.encrypts()
        || icv_at - text_at < FIRST_BYTES
        || packet[text_at..text_at + FIRST_BYTES] != before.first;
    let has_icv = direction == Direction::Open
        || !plan.suite.authenticates()
        || packet[icv_at..] != before.icv[..icv_bytes];
    let is_right = ended == Ended::Well && is_done && has_icv;
    if !is_right && (plan.suite.encrypts() || direction == Direction::Seal) {
        packet[text_at..].fill(0);
    }
    job.status = if is_right { JobStatus::Done } else { JobStatus::AuthenticationFailed };
    is_right || (ended == Ended::WrongIcv && direction == Direction::Open)
}
