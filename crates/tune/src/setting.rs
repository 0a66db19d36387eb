//! One setting: where it is, what it should be, and why.

use crate::place::Place;
use crate::processors::ranges;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a setting belongs to; `--only` chooses by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Socket buffers.
    Sockets,
    /// TCP windows and options.
    Tcp,
    /// Offloads of the device and of the kernel.
    Offloads,
    /// Descriptors of the device's rings.
    Rings,
    /// MTU.
    Mtu,
    /// Interrupt coalescing of the device.
    Coalescing,
    /// Deferral of interrupts by the kernel.
    Napi,
    /// Which processors serve which queues.
    Affinity,
    /// Frequency governor.
    Governor,
    /// Huge pages.
    HugePages,
    /// Cores for workers that poll.
    Isolation,
}

impl Group {
    /// All, in the order in which they are applied: what restarts a device comes before what a restart might
    /// reset.
    pub const ALL: [Self; 11] = [
        Self::Sockets,
        Self::Tcp,
        Self::Offloads,
        Self::Rings,
        Self::Mtu,
        Self::Coalescing,
        Self::Napi,
        Self::Affinity,
        Self::Governor,
        Self::HugePages,
        Self::Isolation,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sockets => "sockets",
            Self::Tcp => "tcp",
            Self::Offloads => "offloads",
            Self::Rings => "rings",
            Self::Mtu => "mtu",
            Self::Coalescing => "coalescing",
            Self::Napi => "napi",
            Self::Affinity => "affinity",
            Self::Governor => "governor",
            Self::HugePages => "huge-pages",
            Self::Isolation => "isolation",
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|group| group.name() == text).ok_or(format!("expected one of {known}"))
    }
}

/// What a value should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// This number.
    Number(u64),
    /// At least this number.
    AtLeast(u64),
    /// Of several numbers, the last at least this; the others stay. So `tcp_rmem`: minimum, default, maximum.
    LastAtLeast(u64),
    /// A switch: on or off, 1 or 0.
    Switch(bool),
    /// This word.
    Word(String),
    /// These processors, as a mask: groups of 32 bits in hexadecimal, the highest first.
    Mask(Vec<usize>),
    /// A mask as it is, without these processors.
    Without(Vec<usize>),
    /// This processor alone, as a list.
    Processor(usize),
}

impl Wanted {
    /// Whether a value will do.
    #[must_use]
    pub fn is_met(&self, value: &str) -> bool {
        match self {
            Self::Number(n) => value.parse() == Ok(*n),
            Self::AtLeast(n) => value.parse::<u64>().is_ok_and(|have| have >= *n),
            Self::LastAtLeast(n) => last(value).is_some_and(|have| have >= *n),
            Self::Switch(on) => is_on(value) == Some(*on),
            Self::Word(word) => value == word,
            Self::Mask(processors) => digits(value) == digits(&mask(processors)),
            Self::Without(free) => {
                processors_of(value).is_some_and(|have| have.iter().all(|one| !free.contains(one)))
            }
            Self::Processor(processor) => value.parse() == Ok(*processor),
        }
    }

    /// What to write where this value is now.
    #[must_use]
    pub fn target(&self, value: &str) -> String {
        match self {
            Self::Number(n) | Self::AtLeast(n) => n.to_string(),
            Self::LastAtLeast(n) => {
                let before = value.rsplit_once(' ').map_or("", |(before, _)| before);
                format!("{before} {n}").trim_start().to_owned()
            }
            // Variables of the kernel are numbers, offloads words.
            Self::Switch(on) => match (value.parse::<u64>().is_ok(), on) {
                (true, true) => "1".to_owned(),
                (true, false) => "0".to_owned(),
                (false, true) => "on".to_owned(),
                (false, false) => "off".to_owned(),
            },
            Self::Word(word) => word.clone(),
            Self::Mask(processors) => mask(processors),
            Self::Without(free) => processors_of(value).map_or_else(
                || value.to_owned(),
                |have| mask(&have.into_iter().filter(|one| !free.contains(one)).collect::<Vec<_>>()),
            ),
            Self::Processor(processor) => processor.to_string(),
        }
    }
}

/// What is wanted, for people.
impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => write!(f, "{n}"),
            Self::AtLeast(n) => write!(f, "at least {n}"),
            Self::LastAtLeast(n) => write!(f, "the last at least {n}"),
            Self::Switch(on) => f.write_str(if *on { "on" } else { "off" }),
            Self::Word(word) => f.write_str(word),
            Self::Mask(processors) => f.write_str(&mask(processors)),
            Self::Without(free) => write!(f, "without {}", ranges(free)),
            Self::Processor(processor) => write!(f, "{processor}"),
        }
    }
}

fn last(value: &str) -> Option<u64> {
    value.split(' ').next_back()?.parse().ok()
}

/// An offload may be "off [requested on]"; of variables every number but 0 is on.
fn is_on(value: &str) -> Option<bool> {
    match value.split(' ').next()? {
        "on" => Some(true),
        "off" => Some(false),
        number => number.parse::<u64>().ok().map(|n| n != 0),
    }
}

/// Processors as a mask of the kernel's: groups of 32 bits in hexadecimal, commas between, the highest first.
#[must_use]
pub fn mask(processors: &[usize]) -> String {
    let groups = processors.iter().max().map_or(1, |most| most / 32 + 1);
    let group = |group: usize| {
        let bits = processors.iter().filter(|processor| *processor / 32 == group);
        bits.fold(0_u32, |all, processor| all | 1 << (processor % 32))
    };
    let texts = (0..groups).rev().enumerate().map(|(place, number)| {
        let bits = group(number);
        if place == 0 { format!("{bits:x}") } else { format!("{bits:08x}") }
    });
    texts.collect::<Vec<_>>().join(",")
}

/// The processors of a mask, in order; nothing if it is none.
fn processors_of(mask: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for (place, digit) in mask.chars().filter(|c| *c != ',').rev().enumerate() {
        let bits = digit.to_digit(16)?;
        all.extend((0..4_usize).filter(|bit| (bits >> bit) & 1 == 1).map(|bit| place * 4 + bit));
    }
    (!mask.is_empty()).then_some(all)
}

/// The digits of a mask that count: the kernel writes zeros in front.
fn digits(mask: &str) -> String {
    let digits: String = mask.chars().filter(|c| *c != ',').collect::<String>().to_lowercase();
    digits.trim_start_matches('0').to_owned()
}

/// One value of the kernel that should be another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// What it belongs to.
    pub group: Group,
    /// Where it is.
    pub place: Place,
    /// What it should be.
    pub wanted: Wanted,
    /// Why: a clause.
    pub why: &'static str,
}

/// What only somebody else can set, or who knows more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advice {
    /// What it belongs to.
    pub group: Group,
    /// What it is about.
    pub name: String,
    /// How it is now.
    pub value: String,
    /// What to do, and why.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_compared_as_the_kernel_writes_them() {
        assert_eq!(mask(&[0, 1]), "3");
        assert_eq!(mask(&[0, 33]), "2,00000001");
        assert_eq!(mask(&[]), "0");
        let wanted = Wanted::Mask(vec![0, 33]);
        assert!(wanted.is_met("00000000,00000002,00000001"));
        assert!(!wanted.is_met("00000002"));
        assert!(Wanted::Mask(Vec::new()).is_met("00000000,00000000"));
    }

    #[test]
    fn processors_are_taken_out_of_a_mask_and_none_is_put_in() {
        let free = Wanted::Without(vec![1, 35]);
        assert_eq!(free.target("a,00000003"), "2,00000001");
        assert_eq!(free.target("0000000f"), "d");
        assert!(free.is_met("2,00000001") && free.is_met("0000000d") && !free.is_met("2"));
        assert!(!free.is_met("") && !free.is_met("x"));
        assert_eq!((free.target("x"), free.to_string()), ("x".to_owned(), "without 1,35".to_owned()));
    }

    #[test]
    fn what_is_more_than_enough_is_left_as_it_is() {
        let wanted = Wanted::LastAtLeast(4_194_304);
        assert!(wanted.is_met("4096 131072 33554432"));
        assert!(!wanted.is_met("4096 131072 1000"));
        assert_eq!(wanted.target("4096 131072 1000"), "4096 131072 4194304");
        assert_eq!(wanted.target("7"), "4194304");
        assert!(!wanted.is_met("") && !Wanted::AtLeast(1).is_met("") && !Wanted::Switch(false).is_met(""));
    }

    #[test]
    fn a_switch_is_written_as_its_file_has_it() {
        let on = Wanted::Switch(true);
        assert_eq!([on.target("0"), on.target("off"), on.target("off [requested on]")], ["1", "on", "on"]);
        assert!(on.is_met("2") && on.is_met("on") && !on.is_met("off [requested on]"));
        assert_eq!(Wanted::Switch(false).target("on"), "off");
    }

    #[test]
    fn groups_are_read_by_their_names() {
        for group in Group::ALL {
            assert_eq!(group.name().parse(), Ok(group));
        }
        assert!("everything".parse::<Group>().unwrap_err().contains("huge-pages"));
    }
}
