//! The UDP ports on which ESP is expected (RFC 3948).

use hashbrown::HashMap;

const WORDS: usize = (1 << 16) / 64;

/// UDP ports, with a reference count of the tunnels that use each. A lookup is one load, since every UDP
/// datagram needs one.
#[derive(Debug)]
pub(crate) struct UdpPorts {
    users: HashMap<u16, u32, foldhash::fast::RandomState>,
    bits: Box<[u64; WORDS]>,
}

impl Default for UdpPorts {
    fn default() -> Self {
        Self { users: HashMap::default(), bits: Box::new([0; WORDS]) }
    }
}

impl UdpPorts {
    /// Whether any tunnel uses the port.
    #[inline]
    pub(crate) fn contains(&self, port: u16) -> bool {
        let (word, bit) = place(port);
        self.bits[word] & bit != 0
    }

    /// Adds a reference to the port.
    pub(crate) fn add(&mut self, port: u16) {
        *self.users.entry(port).or_default() += 1;
        let (word, bit) = place(port);
        self.bits[word] |= bit;
    }

    /// Drops a reference to the port.
    pub(crate) fn unref(&mut self, port: u16) {
        let Some(users) = self.users.get_mut(&port) else { return };
        *users -= 1;
        if *users == 0 {
            self.users.remove(&port);
            let (word, bit) = place(port);
            self.bits[word] &= !bit;
        }
    }
}

fn place(port: u16) -> (usize, u64) {
    (usize::from(port / 64), 1 << (port % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_stays_until_its_last_user_leaves() {
        let mut ports = UdpPorts::default();
        for port in [0, 4500, 4500, u16::MAX] {
            ports.add(port);
        }
        assert!(
            ports.contains(0) && ports.contains(4500) && ports.contains(u16::MAX) && !ports.contains(4501)
        );
        ports.unref(4500);
        ports.unref(4501);
        assert!(ports.contains(4500));
        ports.unref(4500);
        ports.unref(u16::MAX);
        assert!(!ports.contains(4500) && !ports.contains(u16::MAX) && ports.contains(0));
    }
}
