//! `populate_from_packet` as it is written (RFC 4301 4.4.1.2), and what is told where it makes no sense.

use super::{MINIMAL, expect, good, with};
use testudo_ipsec::PopulateFlags;

/// The minimal configuration with a policy of these lines, whose tunnel is a template.
fn with_policy(lines: &str) -> String {
    format!(
        "[[policy]]\naction = \"protect\"\ntunnel = \"site-b\"\nremote = \"10.3.0.0/16\"\n{lines}\n{MINIMAL}"
    )
}

fn flags(lines: &str) -> Vec<&'static str> {
    good(&with_policy(lines)).policies[0].populate.names().collect()
}

#[test]
fn fields_are_named_one_by_one_and_none_is_the_default() {
    assert!(good(&with_policy("")).policies[0].populate.is_empty());
    assert_eq!(flags("populate_from_packet = \"remote\""), ["remote"]);
    let all = "populate_from_packet = [\"local\", \"remote\", \"protocol\", \"local_ports\", \"remote_ports\", \"types\"]";
    assert_eq!(flags(all), PopulateFlags::NAMED.map(|(name, _)| name));
    assert_eq!(flags("populate_from_packet = \"remote_ports, protocol\""), ["protocol", "remote_ports"]);
    assert_eq!(
        flags("populate_from_packet = \"remote_ports\"\nprotocol = [\"tcp\", \"gre\"]"),
        ["remote_ports"],
        "each protocol is named"
    );
    // A tunnel is reached by a policy for which it is a template alone.
    let selectors = "selectors = [ { local = \"10.1.0.0/16\", remote = \"10.2.0.0/16\" } ]\n";
    let bare = with_policy("populate_from_packet = \"remote\"").replacen(selectors, "", 1);
    assert!(good(&bare).tunnels[0].selectors.is_empty());
}

#[test]
fn what_populates_nothing_or_no_certain_thing_is_refused() {
    let populate =
        |fields: &str, lines: &str| with_policy(&format!("populate_from_packet = {fields}\n{lines}"));
    for (text, expected) in [
        (populate("[]", ""), "1 to 6 values"),
        (populate("\"remotes\"", ""), "did you mean `remote`?"),
        (populate("7", ""), "one of local, remote"),
        (populate("\"remote\"", "direction = \"in\""), "only where the policy is for packets that leave"),
        (populate("\"remote_ports\"", ""), "\"protocol\" beside ports or types"),
        (populate("\"types\"", "protocol = \"any\""), "\"protocol\" beside ports or types"),
        // RFC 4301 4.4.2.2: "Use of PFP=1 with an OPAQUE value is an error."
        (
            populate("\"local_ports\"", "protocol = \"tcp\"\nlocal_ports = \"opaque\""),
            "no \"local_ports\" where the policy has \"opaque\" there",
        ),
        (
            populate("\"types\"", "protocol = \"icmp\"\ntypes_sent = \"echo-request\""),
            "the same types in both directions",
        ),
    ] {
        expect(&text, &["populate_from_packet", expected]);
    }
    let opaque = "[[policy]]\naction = \"protect\"\ntunnel = \"site-b\"\nremote = \"fd03::/64\"\nprotocol = \"opaque\"\n\
                  populate_from_packet = \"protocol\"\n";
    expect(&format!("{opaque}{MINIMAL}"), &["no \"protocol\" where the policy has \"opaque\" there"]);
    let discard =
        "[[policy]]\naction = \"discard\"\nremote = \"10.3.0.0/16\"\npopulate_from_packet = \"remote\"\n";
    expect(&format!("{discard}{MINIMAL}"), &["SAs to be populated only where `action` is \"protect\""]);
}

/// 46 prefixes make up each of these ranges, and ports from 1 to 65,534 another 30.
#[test]
fn flows_whose_ranges_make_too_many_prefixes_are_refused() {
    let policy = |fields: &str, remote: &str, more: &str| {
        let ends = format!("local = \"10.0.0.1-10.255.255.254\"\nremote = \"{remote}\"");
        format!(
            "[[policy]]\naction = \"protect\"\ntunnel = \"site-b\"\n{ends}\nprotocol = \"udp\"\n\
             populate_from_packet = {fields}\n{more}\n{MINIMAL}"
        )
    };
    let bound = "at most 256 pairs of prefixes each";
    let help = "write prefixes in place of ranges, or populate the fields that have ranges or lists, too";
    let range = "11.0.0.1-11.255.255.254";
    let refused = &policy("\"remote_ports\"", range, "");
    expect(refused, &["policy[0].populate_from_packet", bound, "2116 for a flow", help]);
    good(&policy("\"remote\"", range, ""));
    good(&policy("\"local, remote\"", range, ""));
    let ports = "local_ports = \"1-65534\"";
    expect(&policy("\"remote\"", "11.0.0.0/8", ports), &[bound, "1380 for a flow"]);
    good(&policy("\"remote, local_ports\"", "11.0.0.0/8", ports));
    good(&policy("\"local\"", "11.0.0.0/8", ports));
}

/// An SA for a flow is made with a peer that must be known, and the two SAs of AH over ESP name each other.
#[test]
fn a_template_has_one_protocol_and_a_peer_that_is_known() {
    let policy = "[[policy]]\naction = \"protect\"\ntunnel = \"site-b\"\nremote = \"10.3.0.0/16\"\npopulate_from_packet = \"remote\"\n";
    let any = "remote = \"any\"\nencapsulation = \"esp-in-udp\"";
    let roaming = with("remote = \"192.0.2.2\"", any);
    expect(&format!("{policy}{roaming}"), &["a tunnel whose peer has an address", "tunnel site-b"]);
    good(&roaming);
    let covered = with(
        "suite = \"aes128gcm16\"",
        "protocol = \"ah+esp\"\nah_suite = \"sha256\"\nsuite = \"aes128gcm16\"",
    )
    .replace("\"out.key\" }", "\"out.key\", ah_spi = 0x2001, ah_key_file = \"ao.key\" }")
    .replace("\"in.key\" }", "\"in.key\", ah_spi = 0x2002, ah_key_file = \"ai.key\" }");
    expect(&format!("{policy}{covered}"), &["a tunnel of esp or ah alone", "tunnel site-b, of ah+esp"]);
    good(&covered);
}
