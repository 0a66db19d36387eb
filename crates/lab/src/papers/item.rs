//! What there is to repeat: a figure or a table of a paper, with the numbers that the paper prints.

use serde_json::Value;

use super::reading::{Reading, Wrong};

/// A paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Paper {
    Moongen,
    LinuxIpsec,
    Pipsea,
    Vpe,
    NetworkProcessor,
}

impl Paper {
    pub(super) const ALL: [Self; 5] =
        [Self::Moongen, Self::LinuxIpsec, Self::Pipsea, Self::Vpe, Self::NetworkProcessor];

    /// Its number, on the command line and in identifiers.
    pub(super) fn number(self) -> &'static str {
        match self {
            Self::Moongen => "000",
            Self::LinuxIpsec => "001",
            Self::Pipsea => "002",
            Self::Vpe => "003",
            Self::NetworkProcessor => "004",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Moongen => "Efficient serving of VPN endpoints on COTS server hardware",
            Self::LinuxIpsec => "Network stack optimization for improved IPsec performance on Linux",
            Self::Pipsea => "PIPSEA: a practical IPsec gateway on embedded APUs",
            Self::Vpe => "Vector Packet Encapsulation: the case for a scalable IPsec encryption protocol",
            Self::NetworkProcessor => "VPN gateways over network processors: implementation and evaluation",
        }
    }

    /// Who wrote it, where and when it appeared.
    pub(super) fn source(self) -> &'static str {
        match self {
            Self::Moongen => "Raumer, Gallenmüller, Emmerich, Märdian, Carle; CloudNet 2016",
            Self::LinuxIpsec => "Iatrou, Voyiatzis, Serpanos; SECRYPT 2009",
            Self::Pipsea => "Park, Jung, Jo, Lee, Lee; CCS 2016",
            Self::Vpe => "Pfeiffer, Girlich, Rossberg, Schaefer; ARES 2020",
            Self::NetworkProcessor => "Lin, Lin, Lai, Lin; Journal of Internet Technology 11 (2010)",
        }
    }
}

/// A number that the paper prints, in the figure, its table or the text about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Printed {
    /// What it is of. A finding of this name stands beside it.
    pub(super) what: &'static str,
    /// As the paper prints it.
    pub(super) figure: &'static str,
    pub(super) unit: &'static str,
}

/// For the tables of the papers' modules.
pub(super) const fn printed(what: &'static str, figure: &'static str, unit: &'static str) -> Printed {
    Printed { what, figure, unit }
}

/// How exact a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Quick,
    Full,
}

impl Mode {
    /// Name in files and reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Full => "full",
        }
    }
}

/// Where a command names a file of prices.
const PRICES: &str = " {prices}";

/// What joins commands whose rows a figure reads together.
pub(super) const AND: &str = " && testudo ";

/// A command of the program that measures it, and how its rows are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Method {
    /// What follows `testudo`, in either mode; several are joined by [`AND`]. `{workers}` is 1, 2, 4, … up to
    /// the number of processors, `{pin}` binds ends to processors where there are two, `{prices}` names the
    /// user's file of prices.
    pub(super) quick: &'static str,
    pub(super) full: &'static str,
    /// About how long either takes, in seconds.
    pub(super) quick_seconds: u32,
    pub(super) full_seconds: u32,
    /// What is not as in the paper.
    pub(super) conditions: &'static str,
    /// What the command's rows say.
    pub(super) read: fn(&[Value]) -> Result<Reading, Wrong>,
}

impl Method {
    pub(super) fn seconds(&self, mode: Mode) -> u32 {
        match mode {
            Mode::Quick => self.quick_seconds,
            Mode::Full => self.full_seconds,
        }
    }

    /// Whether it has a place for the user's file of prices.
    pub(super) fn has_prices(&self) -> bool {
        self.quick.contains(PRICES)
    }

    /// Whether it measures VPE beside ESP.
    pub(super) fn is_of_vpe(&self) -> bool {
        self.quick.starts_with(OF_VPE)
    }

    /// Whether packets cross the kernel, in processes of their own.
    pub(super) fn crosses_the_kernel(&self) -> bool {
        self.quick.starts_with("lab tcp ")
    }

    /// The command for a machine with so many processors, and with these prices.
    pub(super) fn command(&self, mode: Mode, processors: usize, prices: Option<&str>) -> String {
        let words = match mode {
            Mode::Quick => self.quick,
            Mode::Full => self.full,
        };
        let powers = (0..7).map(|power| 1_usize << power);
        let workers: Vec<String> =
            powers.filter(|workers| *workers <= processors.max(2)).map(|n| n.to_string()).collect();
        let pin = if processors > 1 { " --pin" } else { "" };
        let prices = prices.map_or_else(String::new, |path| format!(" --prices {path}"));
        words.replace("{workers}", &workers.join(",")).replace(" {pin}", pin).replace(PRICES, &prices)
    }
}

/// A command with these words more, wherever one of its parts begins with one of those.
fn with(command: &str, words: Option<String>, beginnings: &[&str]) -> String {
    let Some(words) = words else { return command.to_owned() };
    let is_meant = |part: &str| beginnings.iter().any(|beginning| part.starts_with(beginning));
    let more = |part: &str| if is_meant(part) { format!("{part} {words}") } else { part.to_owned() };
    command.split(AND).map(more).collect::<Vec<_>>().join(AND)
}

/// A command with this GPU, wherever it measures one.
pub(super) fn with_gpu(command: &str, gpu: Option<&str>) -> String {
    with(command, gpu.map(|gpu| format!("--gpu {gpu}")), &["bench gpu ", "bench scheduler "])
}

/// What measures VPE beside ESP.
const OF_VPE: &str = "bench vpe ";

/// A command with this engine, wherever it measures VPE beside ESP: figures of one paper are of one engine.
pub(super) fn with_engine(command: &str, engine: Option<&str>) -> String {
    with(command, engine.map(|engine| format!("--engine {engine}")), &[OF_VPE])
}

/// Whether and how an item can be repeated.
#[derive(Debug, Clone, Copy)]
pub(super) enum How {
    /// It is measured.
    Measured(Method),
    /// It shows or describes something, and nothing in it was measured.
    Drawing(&'static str),
}

/// A figure or a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub(super) paper: Paper,
    /// As the paper calls it, such as `Figure 5(a)`.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) printed: &'static [Printed],
    pub(super) how: How,
}

impl Item {
    /// For the command line and file names, such as `000-figure-5a`.
    pub(super) fn id(&self) -> String {
        let letter = |c: char| match c {
            ' ' | '.' => Some('-'),
            '(' | ')' => None,
            other => Some(other.to_ascii_lowercase()),
        };
        let name: String = self.name.chars().filter_map(letter).collect();
        format!("{}-{name}", self.paper.number())
    }

    pub(super) fn method(&self) -> Option<&Method> {
        match &self.how {
            How::Measured(method) => Some(method),
            How::Drawing(_) => None,
        }
    }
}
