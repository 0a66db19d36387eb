//! What a client calls itself.

use std::fmt;

/// As many bytes as the kernel keeps of a process's name (`TASK_COMM_LEN`), with a final zero.
const BYTES: usize = 16;

/// The name of the process behind a connection, as its library tells it: `charon-systemd`, `pluto`, `ip`.
/// A client may say anything, so that it is for people to read, and nothing is decided by it.
///
/// Not read from `/proc`: the gateway's unit hides the processes of others from it (`ProtectProc=invisible`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessName([u8; BYTES]);

impl ProcessName {
    /// The name in these bytes, which end with the first zero; `None` if there is none, or it has characters
    /// that names of programs do not have.
    #[must_use]
    pub fn read(bytes: [u8; BYTES]) -> Option<Self> {
        let length = bytes.iter().position(|byte| *byte == 0)?;
        let (name, _) = bytes.split_at(length);
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-+".contains(byte);
        if name.is_empty() || !name.iter().all(is_plain) {
            return None;
        }
        let mut kept = [0; BYTES];
        kept.iter_mut().zip(name).for_each(|(kept, byte)| *kept = *byte);
        Some(Self(kept))
    }
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take_while(|byte| **byte != 0).try_for_each(|byte| write!(f, "{}", char::from(*byte)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(name: &[u8]) -> [u8; BYTES] {
        std::array::from_fn(|at| name.get(at).copied().unwrap_or(0))
    }

    #[test]
    fn names_of_programs_are_taken_and_nothing_else() {
        let read = |name: &[u8]| ProcessName::read(padded(name)).map(|name| name.to_string());
        assert_eq!(read(b"charon-systemd").as_deref(), Some("charon-systemd"));
        assert_eq!(read(b"ip\0rest").as_deref(), Some("ip"));
        assert_eq!(read(b"fifteen-letters").as_deref(), Some("fifteen-letters"));
        for refused in [&b""[..], b"no final zero...", b"a b", b"\x1b[2J", b"caf\xc3\xa9"] {
            assert_eq!(read(refused), None, "{refused:?}");
        }
    }
}
