//! Packets of vici: a type, a name where the type has one, and a message of sections, values and lists.

/// Sections within sections at most.
const MAX_DEPTH: usize = 8;

/// A message: the section that everything is in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message(pub Section);

/// What has a name: sections and values, in their order. Lists are read and left out: nothing here asks for
/// one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Section {
    pub sections: Vec<(String, Section)>,
    pub values: Vec<(String, String)>,
}

/// A packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Packet {
    /// A command, without arguments.
    Request(String),
    /// The end of an answer.
    Response(Message),
    /// There is no such command or event.
    Unknown,
    /// Asks for events of a name.
    Register(String),
    /// They will come.
    Confirmed,
    /// An event.
    Event(String, Message),
}

impl Packet {
    pub fn request(name: &str) -> Self {
        Self::Request(name.to_owned())
    }

    pub fn register(name: &str) -> Self {
        Self::Register(name.to_owned())
    }

    /// For an error message.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Request(_) => "a request",
            Self::Response(_) => "a response",
            Self::Unknown => "it knows no such command or event",
            Self::Register(_) => "a registration",
            Self::Confirmed => "a confirmation",
            Self::Event(..) => "an event",
        }
    }

    /// The bytes of what a client sends.
    pub fn to_bytes(&self) -> Vec<u8> {
        let named = |kind: u8, name: &str| {
            // Names are this program's own, and short.
            let length = u8::try_from(name.len()).unwrap_or(u8::MAX);
            let name = name.as_bytes().get(..length.into()).unwrap_or_default();
            [&[kind, length][..], name].concat()
        };
        match self {
            Self::Request(name) => named(0, name),
            Self::Register(name) => named(3, name),
            Self::Response(_) => vec![1],
            Self::Unknown => vec![2],
            Self::Confirmed => vec![5],
            Self::Event(name, _) => named(7, name),
        }
    }

    /// Reads what a client receives; `None` if a length is wrong or the type is unknown.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (kind, mut rest) = bytes.split_first()?;
        match kind {
            1 => Some(Self::Response(Message::read(rest)?)),
            2 | 6 => Some(Self::Unknown),
            5 => Some(Self::Confirmed),
            7 => {
                let name = text(&mut rest, 1)?;
                Some(Self::Event(name, Message::read(rest)?))
            }
            _ => None,
        }
    }
}

/// Splits off a length of so many bytes, and the text that it is of.
fn text(rest: &mut &[u8], length_bytes: usize) -> Option<String> {
    let (length, after) = rest.split_at_checked(length_bytes)?;
    let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    let (text, after) = after.split_at_checked(length)?;
    *rest = after;
    Some(String::from_utf8_lossy(text).into_owned())
}

impl Message {
    fn read(mut rest: &[u8]) -> Option<Self> {
        const SECTION_START: u8 = 1;
        const SECTION_END: u8 = 2;
        const KEY_VALUE: u8 = 3;
        const LIST_START: u8 = 4;
        const LIST_ITEM: u8 = 5;
        const LIST_END: u8 = 6;
        // Those that are open, the outermost first.
        let mut open = vec![(String::new(), Section::default())];
        let mut is_in_list = false;
        while let Some((element, after)) = rest.split_first() {
            rest = after;
            match (*element, is_in_list) {
                (SECTION_START, false) if open.len() <= MAX_DEPTH => {
                    open.push((text(&mut rest, 1)?, Section::default()));
                }
                (SECTION_END, false) if open.len() > 1 => {
                    let ended = open.pop()?;
                    open.last_mut()?.1.sections.push(ended);
                }
                (KEY_VALUE, false) => {
                    let value = (text(&mut rest, 1)?, text(&mut rest, 2)?);
                    open.last_mut()?.1.values.push(value);
                }
                (LIST_START, false) => {
                    text(&mut rest, 1)?;
                    is_in_list = true;
                }
                (LIST_ITEM, true) => drop(text(&mut rest, 2)?),
                (LIST_END, true) => is_in_list = false,
                _ => return None,
            }
        }
        let (_, whole) = open.pop().filter(|_| open.is_empty() && !is_in_list)?;
        Some(Self(whole))
    }
}
