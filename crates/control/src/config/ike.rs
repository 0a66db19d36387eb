//! Reads `[ike]`: the socket at which key exchange daemons find this gateway in place of the kernel's XFRM.

use super::gateway::path;
use super::model::Ike;
use super::value::{self, Parsed};
use super::walk::{Problem, Section, Walker};
use std::path::{Path, PathBuf};
use toml::de::DeValue;

/// The socket that `libtestudo-xfrm.so` looks for.
pub(super) const SOCKET: &str = "/run/testudo/xfrm.sock";
/// Where strongSwan's daemons tell what their connections are called.
const VICI: &str = "/run/charon.vici";
/// The port of IKE and ESP in UDP where a NAT is on the way (RFC 3948 3).
const NAT_PORT: u16 = 4500;
/// Of packets to peers, and of the table that they pass by: "te", as a number.
const MARK: u32 = 0x7465;
/// The same as what `ip` shows for the table: below 256 are those of the system.
const ROUTING_TABLE: u32 = 7465;
/// The last round number ahead of the main table's rule.
const RULE_PRIORITY: u32 = 32000;
/// Of the rule for the main table (`ip rule`).
const MAIN_PRIORITY: u32 = 32766;
/// Priorities that our rules take: two for each length of prefix.
const RULES: u32 = 258;
/// Characters of a user's name at most.
const MAX_USER_CHARS: usize = 32;

pub(super) fn read_ike(mut section: Section<'_>, walker: &mut Walker<'_>, base: &Path) -> Ike {
    let socket = section.or_default(walker, "socket", PathBuf::from(SOCKET), path(base));
    let user = section.optional(walker, "user", user);
    let udp_port = section.or_default(walker, "udp_port", NAT_PORT, value::number_u16(1, u16::MAX));
    let vici = section.or_default(walker, "vici", PathBuf::from(VICI), path(base));
    let allow_legacy = section.or_default(walker, "allow_legacy", false, value::boolean);
    let mark = section.or_default(walker, "mark", MARK, value::number_u32(0, u32::MAX));
    let routing_table =
        section.or_default(walker, "routing_table", ROUTING_TABLE, value::number_u32(256, u32::MAX));
    let highest = MAIN_PRIORITY - RULES;
    let rule_priority =
        section.or_default(walker, "rule_priority", RULE_PRIORITY, value::number_u32(1, highest));
    section.finish(walker);
    Ike { socket, user, udp_port, vici, allow_legacy, mark, routing_table, rule_priority }
}

/// A user's name, or its number.
fn user(value: &DeValue<'_>) -> Parsed<String> {
    let text = value::string(value, "a user's name or number")?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.$".contains(c);
    if text.is_empty() || text.len() > MAX_USER_CHARS || !text.chars().all(is_name) {
        return Err(Problem::expected("a user's name or number").help("for example \"root\""));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Configuration;
    use crate::config::tests::MINIMAL;

    fn read(lines: &str) -> Result<Ike, String> {
        let text = format!("{MINIMAL}\n[ike]\n{lines}\n");
        let configuration = Configuration::parse(&text, "t.toml").map_err(|errors| errors.to_string())?;
        Ok(configuration.ike.unwrap())
    }

    #[test]
    fn mark_table_and_priority_are_numbers_of_policy_routing() {
        let ike = read("").unwrap();
        assert_eq!((ike.mark, ike.routing_table, ike.rule_priority), (0x7465, 7465, 32000));
        let ike = read("mark = 0\nrouting_table = 256\nrule_priority = 32508").unwrap();
        assert_eq!((ike.mark, ike.routing_table, ike.rule_priority), (0, 256, 32508));
        // Tables of the system; rules behind the main table's.
        for (line, expected) in [
            ("routing_table = 255", "from 256 to"),
            ("rule_priority = 32509", "from 1 to 32508"),
            ("rule_priority = 0", "from 1 to 32508"),
            ("mark = -1", "from 0 to 4294967295"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
