//! Selectors as they are written: lists, ranges, messages, directions, and what is told where they are wrong.

use super::{MINIMAL, expect, good};
use testudo_ipsec::Directions;

/// The minimal configuration with a policy of these lines before its tunnel.
fn with_policy(lines: &str) -> String {
    format!("[[policy]]\naction = \"discard\"\n{lines}\n{MINIMAL}")
}

/// The selectors of that policy, in words.
fn selected(lines: &str) -> Vec<String> {
    good(&with_policy(lines)).policies[0].selectors.iter().map(ToString::to_string).collect()
}

/// RFC 4301 4.4.1.1: every field is a list of ranges.
#[test]
fn each_field_of_a_selector_is_a_list_of_ranges_and_all_combinations_are_selected() {
    assert_eq!(
        selected("local = [\"10.1.0.0/16\", \"10.9.0.5-10.9.0.9\"]\nremote = \"10.3.0.1, 10.3.0.2\""),
        [
            "10.1.0.0/16 <-> 10.3.0.1/32",
            "10.1.0.0/16 <-> 10.3.0.2/32",
            "10.9.0.5-10.9.0.9 <-> 10.3.0.1/32",
            "10.9.0.5-10.9.0.9 <-> 10.3.0.2/32",
        ]
    );
    assert_eq!(
        selected("protocol = [\"tcp\", \"udp\"]\nremote_ports = [53, \"80-90\"]"),
        [
            "any <-> any[53] protocol 6",
            "any <-> any[80-90] protocol 6",
            "any <-> any[53] protocol 17",
            "any <-> any[80-90] protocol 17",
        ]
    );
    assert_eq!(
        selected("protocol = [\"gre\", 0x32]"),
        ["any <-> any protocol 47", "any <-> any protocol 50"]
    );
}

#[test]
fn combinations_that_no_packet_has_are_left_out() {
    let both = "local = [\"10.1.0.0/16\", \"fd01::/64\"]\nremote = [\"10.3.0.0/16\", \"fd03::/64\"]";
    assert_eq!(selected(both), ["10.1.0.0/16 <-> 10.3.0.0/16", "fd01::/64 <-> fd03::/64"]);
    let pings = format!("{both}\nprotocol = [\"icmp\", \"icmpv6\"]\ntypes = \"echo-request\"");
    assert_eq!(
        selected(&pings),
        [
            "10.1.0.0/16 <-> 10.3.0.0/16 protocol 1 messages 8",
            "fd01::/64 <-> fd03::/64 protocol 58 messages 128"
        ]
    );
}

/// RFC 4301 4.4.1.1: messages by type and code, each end for itself.
#[test]
fn messages_are_selected_by_name_number_and_range_each_way() {
    let icmp = |lines: &str| selected(&format!("protocol = \"icmp\"\n{lines}"));
    assert_eq!(
        icmp("types = [\"echo-request\", 0]"),
        ["any <-> any protocol 1 messages 8", "any <-> any protocol 1 messages 0"]
    );
    assert_eq!(icmp("types = \"3/4, 11\"").len(), 2);
    assert_eq!(
        icmp("types_sent = \"echo-request\"\ntypes_received = \"echo-reply\""),
        ["any <-> any protocol 1 messages sent 8, received 0"]
    );
    // To send and not to receive.
    assert_eq!(
        icmp("types_sent = \"echo-request\""),
        ["any <-> any protocol 1 messages sent 8, received opaque"]
    );
    assert_eq!(
        selected("protocol = \"mobility\"\ntypes = \"binding-update\""),
        ["any <-> any protocol 135 messages 5"]
    );
}

#[test]
fn opaque_and_directions_are_words() {
    assert_eq!(
        selected("protocol = \"opaque\"\nremote = \"fd03::/64\""),
        ["any <-> fd03::/64 protocol opaque"]
    );
    assert_eq!(
        selected("local_ports = \"opaque\"\nremote_ports = \"opaque\""),
        ["any[opaque] <-> any[opaque]"]
    );
    for (word, directions) in
        [("in", Directions::Inbound), ("out", Directions::Outbound), ("both", Directions::Both)]
    {
        let text = with_policy(&format!("direction = \"{word}\"\nremote = \"10.9.0.0/16\""));
        assert_eq!(good(&text).policies[0].directions, directions);
    }
    expect(
        &with_policy("direction = \"inbound\"\nremote = \"10.9.0.0/16\""),
        &["policy[0].direction", "\"in\", \"out\", \"both\""],
    );
}

#[test]
fn what_is_wrong_in_a_list_is_named_and_what_to_write_instead() {
    let wrong = |lines: &str, parts: &[&str]| expect(&with_policy(lines), parts);
    wrong("local = [\"10.1.0.0/16\", \"10.2.0.1/16\"]", &["policy[0].local[1]", "without host bits"]);
    wrong("local = \"10.1.0.0/16, 10.2.0.1/16\"", &["found \"10.2.0.1/16\"", "without host bits"]);
    wrong("local = \"10.1.0.9-10.1.0.5\"", &["write \"10.1.0.5-10.1.0.9\""]);
    wrong("local = \"10.1.0.5-9\"", &["write \"10.1.0.5-10.1.0.9\""]);
    wrong("local = \"10.1.0.5-fd00::1\"", &["of one IP version"]);
    wrong("local = \"10.1.0.0/16[tcp/80]\"", &["`remote_ports = \"80\"`"]);
    wrong("local = [\"any\", \"10.1.0.0/16\"]", &["\"any\" by itself"]);
    wrong("local = []", &["1 to 256 values"]);
    wrong("local = [true]", &["policy[0].local[0]", "a string or a number"]);
    wrong("local = \"10.1.0.0/16\"\nremote = [\"10.9.0.0/16\", \"fd09::/64\"]", &["policy[0].remote[1]"]);
    wrong("local = [\"10.1.0.0/16\", \"fd01::/64\"]\nremote = \"10.9.0.0/16\"", &["policy[0].local[1]"]);
    wrong("protocol = [\"tcp\", \"icmp\"]\nremote_ports = 80", &["only with tcp, udp or sctp"]);
    wrong("protocol = \"udp\"\nremote_ports = \"1000:2000\"", &["write \"1000-2000\""]);
    wrong("protocol = \"udp\"\nremote_ports = [53, \"+54\"]", &["policy[0].remote_ports[1]", "0 to 65535"]);
    wrong("protocol = \"tcp\"\ntypes = 8", &["`types` only with icmp, icmpv6 or mobility"]);
    wrong("protocol = \"icmp\"\ntypes = \"echo-requst\"", &["did you mean `echo-request`?"]);
    wrong("protocol = \"icmp\"\ntypes = 8\ntypes_sent = 8", &["either `types`, or"]);
    wrong("protocol = \"opaque\"\nlocal = \"10.1.0.0/16\"", &["a protocol of IPv4", "fragments"]);
    wrong("protocol = \"mobilty\"", &["did you mean `mobility`?"]);
    wrong("name = \"No Mail\"\nremote = \"10.9.0.0/16\"", &["write \"no-mail\""]);
    let many: Vec<String> = (0..20).map(|n| format!("10.{n}.0.0/16")).collect();
    let many = format!("\"{}\"", many.join(","));
    wrong(&format!("local = {many}\nremote = {many}"), &["at most 256 combinations", "several policies"]);
    let worst = "local = \"0.0.0.1-255.255.255.254\"\nremote = \"0.0.0.1-255.255.255.254\"";
    wrong(&format!("{worst}\nprotocol = \"tcp\"\nremote_ports = \"1-65534\""), &["fewer prefixes"]);
}

#[test]
fn names_of_policies_are_unique() {
    let named = "name = \"web\"\nremote = \"10.9.0.0/16\"";
    assert_eq!(good(&with_policy(named)).policies[0].name.as_deref(), Some("web"));
    let second = "[[policy]]\nname = \"web\"\naction = \"discard\"\nremote = \"10.8.0.0/16\"\n";
    expect(
        &format!("{second}{}", with_policy(named)),
        &["policy[1].name", "a name that no other policy has"],
    );
}

#[test]
fn an_entry_is_in_the_shadow_only_if_each_of_its_selectors_is_in_every_direction() {
    let after = |first: &str, second: &str| {
        format!("[[policy]]\naction = \"discard\"\n{first}\n{}", with_policy(second))
    };
    let web = "protocol = \"tcp\"\nremote_ports = \"80, 443\"\nremote = \"10.9.0.0/16\"";
    let message = &["policy[1]", "one that `policy[0]` on line 1 covers"];
    expect(&after(web, &web.replace("80, 443", "443")), message);
    good(&after(web, &web.replace("80, 443", "443, 8080")));
    good(&after(&format!("{web}\ndirection = \"in\""), web));
    expect(&after(web, &format!("{web}\ndirection = \"in\"")), message);
    let range = |ends: &str| format!("remote = \"{ends}\"");
    expect(&after(&range("10.9.0.5-10.9.0.9"), &range("10.9.0.6-10.9.0.8")), message);
    good(&after(&range("10.9.0.5-10.9.0.9"), &range("10.9.0.6-10.9.0.10")));
    let pings = "protocol = \"icmp\"\nremote = \"10.9.0.0/16\"\ntypes = ";
    expect(&after(&format!("{pings}\"3\""), &format!("{pings}\"3/4\"")), message);
    good(&after(&format!("{pings}\"3/4\""), &format!("{pings}\"3\"")));
}

/// A policy for packets that arrive lets them come out of the tunnel, and one for packets that leave does
/// not.
#[test]
fn an_sas_selectors_are_those_of_the_policies_on_packets_that_arrive() {
    let protect = |direction: &str, remote: &str| {
        format!(
            "[[policy]]\naction = \"protect\"\ntunnel = \"site-b\"\ndirection = \"{direction}\"\nremote = \"{remote}\"\n"
        )
    };
    let text = [&protect("in", "10.8.0.0/16"), &protect("out", "10.9.0.0/16"), MINIMAL].concat();
    let configuration = good(&text);
    let selectors = crate::service::assemble::tunnel_selectors(&configuration, 0);
    let selectors: Vec<_> = selectors.iter().map(ToString::to_string).collect();
    assert_eq!(selectors, ["any <-> 10.8.0.0/16", "10.1.0.0/16 <-> 10.2.0.0/16"]);
    let routes = crate::firewall::tunnel_routes(&configuration);
    let routes: Vec<_> = routes.iter().map(|route| route.network.to_string()).collect();
    assert_eq!(routes, ["10.9.0.0/16", "10.2.0.0/16"]);
}
