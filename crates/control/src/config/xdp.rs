//! Reads the keys of `kind = "xdp"`: AF_XDP at an interface.

use super::value::{self, Parsed};
use super::walk::{Problem, Section, Walker};
use toml::de::DeValue;

/// Queues of an interface at most.
const MAX_QUEUES: u32 = 4096;

/// How AF_XDP is opened at an interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct XdpSettings {
    /// The queues, each once; `None` for all that the interface has.
    pub queues: Option<Vec<u32>>,
    /// Where in the kernel the filter runs.
    pub mode: XdpMode,
    /// Whether the kernel's copy is to be avoided.
    pub zero_copy: ZeroCopy,
    /// How many packets at a time the worker takes from the driver's queue itself, instead of interrupts.
    pub busy_poll: Option<u16>,
}

/// Where in the kernel frames are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum XdpMode {
    /// In the driver, or not at all.
    Native,
    /// After the driver.
    Generic,
    /// In the driver where it can, else after it.
    #[default]
    Auto,
}

/// Whether the device writes and reads frames itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ZeroCopy {
    /// Never.
    Off,
    /// Where the driver can.
    #[default]
    Auto,
    /// Or not at all.
    Always,
}

/// The keys that both sides have beside `interface` and `mtu`.
pub(super) fn read_settings(section: &mut Section<'_>, walker: &mut Walker<'_>) -> XdpSettings {
    let modes = [("native", XdpMode::Native), ("generic", XdpMode::Generic), ("auto", XdpMode::Auto)];
    let copies = [("off", ZeroCopy::Off), ("auto", ZeroCopy::Auto), ("always", ZeroCopy::Always)];
    XdpSettings {
        queues: section.optional(walker, "queues", queues).flatten(),
        mode: section.or_default(walker, "mode", XdpMode::Auto, value::choice(&modes)),
        zero_copy: section.or_default(walker, "zero_copy", ZeroCopy::Auto, value::choice(&copies)),
        busy_poll: section.optional(walker, "busy_poll", value::number_u16(1, 1024)),
    }
}

/// `"all"`, a queue, or a list of some.
fn queues(value: &DeValue<'_>) -> Parsed<Option<Vec<u32>>> {
    let problem = || Problem::expected("\"all\", or numbers of queues from 0 to 4095, each once");
    if value.as_str().is_some() {
        return if value.as_str() == Some("all") { Ok(None) } else { Err(problem()) };
    }
    let queue = |value: &DeValue<'_>| value::number_u32(0, MAX_QUEUES - 1)(value).map_err(|_| problem());
    let named = match value.as_array() {
        None => vec![queue(value)?],
        Some(array) => array.iter().map(|item| queue(item.get_ref())).collect::<Parsed<Vec<_>>>()?,
    };
    let mut unique = named.clone();
    unique.sort_unstable();
    unique.dedup();
    match unique.len() == named.len() && !named.is_empty() {
        true => Ok(Some(named)),
        false => Err(problem()),
    }
}
