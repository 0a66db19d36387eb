//! What an interface's hardware could do for ESP, as ethtool's features say: for the kernel's own IPsec.

use crate::interface::Asker;

/// `ETH_SS_FEATURES`, and the longest name in a set of strings.
const SET_OF_FEATURES: u32 = 4;
const NAME_BYTES: usize = 32;
/// `ETHTOOL_GSSET_INFO`, `ETHTOOL_GSTRINGS` and `ETHTOOL_GFEATURES` (linux/ethtool.h).
const GET_SET_SIZE: u32 = 0x37;
const GET_STRINGS: u32 = 0x1b;
const GET_FEATURES: u32 = 0x3a;
/// Features at most; Linux 6 has some 60.
const MOST: usize = 256;
const BLOCKS: usize = MOST / 32;

/// A feature of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Feature {
    /// The driver has none.
    #[default]
    Absent,
    /// It has one that is off.
    Off,
    /// It is on.
    On,
}

/// What the hardware could do for the kernel's own ESP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EspFeatures {
    /// `esp-hw-offload`: cryptography of ESP.
    pub esp: Feature,
    /// `esp-tx-csum-hw-offload`: checksums of what ESP encrypts.
    pub checksum: Feature,
}

/// `struct ethtool_sset_info`, for one set.
#[repr(C)]
struct SetSize {
    command: u32,
    reserved: u32,
    mask: u64,
    count: u32,
    rest: u32,
}

/// `struct ethtool_gstrings`.
#[repr(C)]
struct Strings {
    command: u32,
    set: u32,
    count: u32,
    names: [[u8; NAME_BYTES]; MOST],
}

/// `struct ethtool_get_features_block`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Block {
    available: u32,
    requested: u32,
    active: u32,
    never_changed: u32,
}

/// `struct ethtool_gfeatures`.
#[repr(C)]
struct Features {
    command: u32,
    blocks: u32,
    states: [Block; BLOCKS],
}

impl EspFeatures {
    /// Those of the interface of this name; `None` if there is none, or it does not say.
    #[must_use]
    pub fn of(interface: &str) -> Option<Self> {
        let asker = Asker::new(interface).ok()??;
        let set =
            SetSize { command: GET_SET_SIZE, reserved: 0, mask: 1 << SET_OF_FEATURES, count: 0, rest: 0 };
        // SAFETY: this is the structure of ETHTOOL_GSSET_INFO, with room for the size of one set.
        let count = unsafe { asker.ethtool(set) }.ok()?.count;
        // The kernel writes as many names as there are: more than there is room for are not asked for.
        if !usize::try_from(count).is_ok_and(|count| (1..=MOST).contains(&count)) {
            return None;
        }
        let names = [[0; NAME_BYTES]; MOST];
        let strings = Strings { command: GET_STRINGS, set: SET_OF_FEATURES, count, names };
        // SAFETY: this is the structure of ETHTOOL_GSTRINGS, with room for more names than the set has.
        let names = unsafe { asker.ethtool(strings) }.ok()?.names;
        let blocks = u32::try_from(BLOCKS).ok()?;
        let features = Features { command: GET_FEATURES, blocks, states: [Block::default(); BLOCKS] };
        // SAFETY: this is the structure of ETHTOOL_GFEATURES, with room for the blocks that it says.
        let states = unsafe { asker.ethtool(features) }.ok()?.states;
        let of = |name: &str| feature(name, &names, &states);
        Some(Self { esp: of("esp-hw-offload"), checksum: of("esp-tx-csum-hw-offload") })
    }
}

/// The state of the feature with this name.
fn feature(name: &str, names: &[[u8; NAME_BYTES]], states: &[Block]) -> Feature {
    let is_named = |bytes: &[u8; NAME_BYTES]| bytes.split(|&byte| byte == 0).next() == Some(name.as_bytes());
    let Some(at) = names.iter().position(is_named) else { return Feature::Absent };
    let Some(block) = states.get(at / 32) else { return Feature::Absent };
    let has = |bits: u32| bits >> (at % 32) & 1 == 1;
    match (has(block.active), has(block.available)) {
        (true, _) => Feature::On,
        (false, true) => Feature::Off,
        (false, false) => Feature::Absent,
    }
}

const _: () = assert!(size_of::<SetSize>() == 24 && size_of::<Block>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_found_by_its_name_and_has_the_bit_of_its_place() {
        let name = |text: &str| {
            let mut bytes = [0; NAME_BYTES];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            bytes
        };
        let mut names = [[0; NAME_BYTES]; 64];
        (names[3], names[40]) = (name("esp-hw-offload-not"), name("esp-hw-offload"));
        let mut states = [Block::default(); 2];
        assert_eq!(feature("esp-hw-offload", &names, &states), Feature::Absent);
        states[1].available = 1 << 8;
        assert_eq!(feature("esp-hw-offload", &names, &states), Feature::Off);
        states[1].active = 1 << 8;
        assert_eq!(feature("esp-hw-offload", &names, &states), Feature::On);
        assert_eq!(feature("esp-tx-csum-hw-offload", &names, &states), Feature::Absent);
        assert_eq!(feature("esp-hw-offload", &names, &states[..1]), Feature::Absent);
    }

    #[test]
    fn loopback_has_features_and_no_hardware() {
        let none = EspFeatures::default();
        assert_eq!(
            (EspFeatures::of("lo").map(|f| f.esp), EspFeatures::of("no-such-0")),
            (Some(none.esp), None)
        );
    }
}
