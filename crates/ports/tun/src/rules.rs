//! Rules of policy routing (ip-rule(8)), by which a routing table of its own and the main one are asked as if
//! they were one, except for packets with a mark.

use crate::configure::Prefix;
use crate::error::ConfigureError;
use crate::netlink::{CREATE, EXCLUSIVE, Message, Netlink};
use crate::route::MAIN_TABLE;
use std::io;

const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_PROTOCOL: u16 = 21;
/// The origin of our rules, as `ip rule` shows it: `proto 126`. No routing daemon uses it. The kernel tells
/// rules apart by it (since Linux 4.17): others may have rules of their own at our priorities, as wg-quick(8)
/// has where it comes to stand behind ours, and these are theirs to remove.
const PROTOCOL: u8 = 0x7E;
const FR_ACT_TO_TBL: u8 = 1;
const FIB_RULE_INVERT: u32 = 2;

/// A routing table beside the main one. Of both the longest prefix wins, and of equal ones this table's.
///
/// A rule asks one table, and takes what that has. So there are two rules for each length of prefix that the
/// table has, longer ones first: routes of the main table that are longer, and then this table's.
///
/// ```text
///   32032: from all lookup main suppress_prefixlength 16
///   32033: not from all fwmark 0x7465 lookup 7465 suppress_prefixlength 15
///   32064: from all lookup main suppress_prefixlength 0
///   32065: not from all fwmark 0x7465 lookup 7465
///   32766: from all lookup main
/// ```
///
/// Packets with the mark meet the main table alone: what goes to a peer leaves by its route there, even if
/// this table has a better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutingTable {
    /// Its number.
    pub number: u32,
    /// The lowest priority of its rules: they take [`PRIORITIES`](Self::PRIORITIES) from there on.
    pub priority: u32,
    /// The mark of packets that pass by it; 0 if there is none.
    pub mark: u32,
}

/// A rule of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    priority: u32,
    table: u32,
    /// Routes whose prefix is not longer than this are passed over.
    suppressed: Option<u32>,
    /// Packets with this mark pass by.
    spared: Option<u32>,
}

impl Rule {
    /// `struct fib_rule_hdr` and its attributes.
    fn new_message(self, family: u8) -> Message {
        let mut body = [family, 0, 0, 0, 0, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
        if self.spared.is_some() {
            body[8..].copy_from_slice(&FIB_RULE_INVERT.to_ne_bytes());
        }
        self.described(ours(Message::new(RTM_NEWRULE, CREATE | EXCLUSIVE, &body), self.priority))
    }

    /// Names all that the rule was made with: the kernel removes the first rule that has what is named.
    fn removal(self, family: u8) -> Message {
        self.described(removal_at(self.priority, family))
    }

    /// What it asks, and for which packets.
    fn described(self, message: Message) -> Message {
        let message = message.attribute(FRA_TABLE, &self.table.to_ne_bytes());
        let message = match self.suppressed {
            Some(length) => message.attribute(FRA_SUPPRESS_PREFIXLEN, &length.to_ne_bytes()),
            None => message,
        };
        match self.spared {
            Some(mark) => message
                .attribute(FRA_FWMARK, &mark.to_ne_bytes())
                .attribute(FRA_FWMASK, &u32::MAX.to_ne_bytes()),
            None => message,
        }
    }
}

/// A message about one of our rules at a priority.
fn ours(message: Message, priority: u32) -> Message {
    message.attribute(FRA_PRIORITY, &priority.to_ne_bytes()).attribute(FRA_PROTOCOL, &[PROTOCOL])
}

/// Removes one of our rules at a priority, whatever else it says.
fn removal_at(priority: u32, family: u8) -> Message {
    ours(Message::new(RTM_DELRULE, 0, &[family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), priority)
}

/// The longest prefix of an address family.
fn longest(family: u8) -> u8 {
    if i32::from(family) == libc::AF_INET { 32 } else { 128 }
}

impl RoutingTable {
    /// How many priorities its rules take: two for each length of prefix of IPv6.
    pub const PRIORITIES: u32 = 2 * 129;

    /// The rules for prefixes of a length, in order.
    fn rules(&self, family: u8, length: u8) -> Vec<Rule> {
        let longest = longest(family);
        let priority = self.priority + 2 * u32::from(longest.saturating_sub(length));
        let spared = Some(self.mark).filter(|mark| *mark != 0);
        let main = Rule { priority, table: MAIN_TABLE, suppressed: Some(length.into()), spared: None };
        let suppressed = length.checked_sub(1).map(u32::from);
        let own = Rule { priority: priority + 1, table: self.number, suppressed, spared };
        // Nothing is longer than the longest.
        let main = Some(main).filter(|_| length < longest);
        main.into_iter().chain([own]).collect()
    }

    /// Lets packets find routes to prefixes like this one.
    ///
    /// # Errors
    /// [`ConfigureError`] with the kernel's error.
    pub fn open_to(&self, prefix: Prefix) -> Result<(), ConfigureError> {
        let family = prefix.family();
        for rule in self.rules(family, prefix.bits) {
            let action = format!("make the rule {} for the routing table {}", rule.priority, self.number);
            match request(&action, rule.new_message(family)) {
                Err(error) if error.source.kind() == io::ErrorKind::AlreadyExists => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Why packets to a prefix find no route, although this table has one: a route of the main table refuses
    /// them, which Linux takes for an answer, even if it is shorter.
    #[must_use]
    pub fn refusal(&self, prefix: Prefix) -> Option<ConfigureError> {
        // Of all addresses none stands for the others.
        if prefix.bits == 0 {
            return None;
        }
        let mut body = [0; 12];
        body[..2].copy_from_slice(&[prefix.family(), longest(prefix.family())]);
        let message = Message::new(RTM_GETROUTE, 0, &body).attribute(RTA_DST, &prefix.octets());
        let action = format!("reach {prefix} by the routing table {}", self.number);
        request(&action, message).err()
    }

    /// Lets packets find routes to prefixes like this one no more: the table has none of that length.
    ///
    /// # Errors
    /// [`ConfigureError`] with the kernel's error.
    pub fn close_to(&self, prefix: Prefix) -> Result<(), ConfigureError> {
        let family = prefix.family();
        let remove = |rule: Rule| self.remove(rule.priority, rule.removal(family)).map(drop);
        self.rules(family, prefix.bits).into_iter().try_for_each(remove)
    }

    /// Removes all our rules of the IP version of `any` at its priorities, those of a process that was
    /// killed, too: that may have had another table or mark.
    ///
    /// # Errors
    /// [`ConfigureError`] with the kernel's error, such as that it has no rules.
    pub fn clear(&self, any: Prefix) -> Result<(), ConfigureError> {
        let family = any.family();
        let lengths = u32::from(longest(family)) + 1;
        for priority in self.priority..self.priority + 2 * lengths {
            while self.remove(priority, removal_at(priority, family))? {}
        }
        Ok(())
    }

    /// Whether there was one.
    fn remove(&self, priority: u32, removal: Message) -> Result<bool, ConfigureError> {
        let action = format!("remove the rule {priority} for the routing table {}", self.number);
        match request(&action, removal) {
            Err(error) if error.source.kind() == io::ErrorKind::NotFound => Ok(false),
            other => other.map(|()| true),
        }
    }
}

fn request(action: &str, message: Message) -> Result<(), ConfigureError> {
    let asked = Netlink::open().and_then(|mut netlink| netlink.request(message));
    asked.map_err(|source| ConfigureError::new(action, source))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const TABLE: RoutingTable = RoutingTable { number: 7465, priority: 32000, mark: 0x7465 };

    /// Lengths of the routes to one destination, in the table and in the main one. Which table the kernel
    /// takes, by the rules for all lengths that the table has.
    fn asked(family: u8, own: &[u8], main: &[u8], mark: u32) -> Option<u32> {
        let rules: BTreeMap<u32, Rule> =
            own.iter().flat_map(|length| TABLE.rules(family, *length)).map(|r| (r.priority, r)).collect();
        let last = Rule { priority: 32766, table: MAIN_TABLE, suppressed: None, spared: None };
        rules.into_values().chain([last]).filter(|rule| rule.spared != Some(mark)).find_map(|rule| {
            let routes = if rule.table == MAIN_TABLE { main } else { own };
            let best = routes.iter().max()?;
            let is_taken = rule.suppressed.is_none_or(|length| u32::from(*best) > length);
            is_taken.then_some(rule.table)
        })
    }

    /// RFC 1812 5.2.4.3: the longest match, over both tables.
    #[test]
    fn both_tables_are_asked_as_one() {
        let mut random = fastrand::Rng::with_seed(11);
        for family in [libc::AF_INET, libc::AF_INET6].map(|family| u8::try_from(family).unwrap()) {
            for round in 0..2000 {
                let mut some = || -> Vec<u8> {
                    let count = random.usize(..4);
                    (0..count).map(|_| random.u8(..=longest(family))).collect()
                };
                let (own, main) = (some(), some());
                let longest = match (own.iter().max(), main.iter().max()) {
                    (Some(a), Some(b)) => Some(if a >= b { TABLE.number } else { MAIN_TABLE }),
                    (Some(_), None) => Some(TABLE.number),
                    (None, other) => other.map(|_| MAIN_TABLE),
                };
                assert_eq!(
                    asked(family, &own, &main, 0),
                    longest,
                    "seed 11, round {round}: {own:?} {main:?}"
                );
                let spared = main.first().map(|_| MAIN_TABLE);
                assert_eq!(asked(family, &own, &main, TABLE.mark), spared, "seed 11, round {round}");
            }
        }
    }

    #[test]
    fn rules_keep_to_their_priorities() {
        for (family, longest) in [(libc::AF_INET, 32), (libc::AF_INET6, 128)] {
            let family = u8::try_from(family).unwrap();
            let rules: Vec<Rule> = (0..=longest).flat_map(|length| TABLE.rules(family, length)).collect();
            let priorities: std::collections::BTreeSet<u32> = rules.iter().map(|r| r.priority).collect();
            assert_eq!(priorities.len(), rules.len());
            let places = TABLE.priority..TABLE.priority + RoutingTable::PRIORITIES;
            assert!(priorities.iter().all(|priority| places.contains(priority)));
        }
    }
}
