//! Recordings as texts.

use std::fmt::Write as _;

/// A message that a daemon sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// 0 is A, 1 is B.
    pub host: usize,
    /// The message with its netlink header.
    pub bytes: Vec<u8>,
    /// The SPI that the gateway gave, where it reserves one.
    pub reserved: Option<u32>,
}

/// What was said from one moment to another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    pub name: String,
    pub said: Vec<Said>,
}

impl Part {
    /// The SPIs that A and B reserved.
    pub fn reserved(&self) -> [Option<u32>; 2] {
        [0, 1].map(|host| self.said.iter().filter(|said| said.host == host).find_map(|said| said.reserved))
    }
}

/// All parts, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    pub parts: Vec<Part>,
}

const HOSTS: [&str; 2] = ["a", "b"];

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect::<Option<Vec<u8>>>().filter(|_| rest.is_empty())
}

impl Recording {
    /// Reads a text; `None` if it is no recording.
    pub fn read(text: &str) -> Option<Self> {
        let mut recording = Self::default();
        for line in text.lines().filter(|line| !line.starts_with("//")) {
            let (word, rest) = line.split_once(' ')?;
            if word == "#" {
                recording.parts.push(Part { name: rest.to_owned(), said: Vec::new() });
                continue;
            }
            let host = HOSTS.iter().position(|host| *host == word)?;
            let (bytes, spi) = rest.split_once(' ').map_or((rest, None), |(bytes, spi)| (bytes, Some(spi)));
            let reserved = match spi {
                Some(spi) => Some(u32::from_str_radix(spi, 16).ok()?),
                None => None,
            };
            recording.parts.last_mut()?.said.push(Said { host, bytes: unhex(bytes)?, reserved });
        }
        Some(recording)
    }

    /// The part of this name.
    pub fn part(&self, name: &str) -> Option<&Part> {
        self.parts.iter().find(|part| part.name == name)
    }

    /// As a text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for part in &self.parts {
            let _ = writeln!(text, "# {}", part.name);
            for Said { host, bytes, reserved } in &part.said {
                let _ = write!(text, "{} ", HOSTS[*host]);
                bytes.iter().for_each(|byte| {
                    let _ = write!(text, "{byte:02x}");
                });
                let _ = match reserved {
                    Some(spi) => writeln!(text, " {spi:08x}"),
                    None => writeln!(text),
                };
            }
        }
        text
    }
}
