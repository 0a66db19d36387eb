//! `[[interface]]`, and tunnels that name one.

use super::*;
use testudo_ipsec::Selector;
use testudo_packet::Interface as Number;

const INTERFACES: &str = "
[[interface]]
name = \"ipsec0\"
if_id = 42
addresses = [\"10.9.0.1/24\"]

[[interface]]
name = \"ipsec1\"
mtu = 1300
";

/// Two tunnels of the same selectors beside that of the main interface: `interface` as these two say.
fn tunnels(first: &str, second: &str) -> String {
    let of = |number: u8, lines: &str| {
        format!(
            "[[tunnel]]\nname = \"t{number}\"\nlocal = \"192.0.2.1\"\nremote = \"192.0.2.{}\"\n\
             suite = \"aes128gcm16\"\n{lines}\n\
             outbound = {{ spi = 0x{number}001, key_file = \"{number}.out\" }}\n\
             inbound = {{ spi = 0x{number}002, key_file = \"{number}.in\" }}\n",
            number + 10,
        )
    };
    format!("{MINIMAL}{INTERFACES}{}{}", of(3, first), of(4, second))
}

const ALL: &str = "selectors = [ { local = \"0.0.0.0/0\", remote = \"0.0.0.0/0\" } ]";

#[test]
fn tunnels_of_interfaces_may_have_the_same_selectors() {
    let first = format!("interface = \"ipsec0\"\n{ALL}");
    let configuration = good(&tunnels(&first, "interface = \"ipsec1\""));
    let numbers: Vec<_> = configuration.tunnels.iter().map(|tunnel| tunnel.interface).collect();
    assert_eq!(numbers, [Number::MAIN, Number(1), Number(2)]);
    assert_eq!(configuration.tunnels[2].selectors, [[Selector::ANY].into()], "where routes choose, all");
    let [first, second] = &configuration.interfaces[..] else { panic!("two interfaces") };
    assert_eq!((&*first.name, first.if_id, first.addresses.len()), ("ipsec0", Some(42), 1));
    assert_eq!((&*second.name, second.if_id, second.mtu), ("ipsec1", None, 1300));
    assert_eq!(first.mtu, configuration.protected.mtu, "what fits its own tunnel");
    let named = |name| configuration.interface_named(name);
    assert_eq!([named("testudo0"), named("ipsec1")], [Some(Number::MAIN), Some(Number(2))]);
    assert_eq!((named("eth0"), configuration.interface_name(Number(1))), (None, "ipsec0"));
    // None of them asks for a route or a rule.
    assert_eq!(crate::firewall::tunnel_routes(&configuration).len(), 1);
    // At the same interface, the first would take all packets.
    expect(&tunnels(&first_of("ipsec0"), &first_of("ipsec0")), &["a selector that packets can reach"]);
}

fn first_of(name: &str) -> String {
    format!("interface = \"{name}\"\n{ALL}")
}

#[test]
fn an_interface_that_is_not_there_is_an_error() {
    let text = tunnels("interface = \"ipsec3\"", "interface = \"ipsec1\"");
    expect(&text, &["tunnel[t3].interface", "the name of an [[interface]]", "ipsec"]);
    let main = tunnels("interface = \"testudo0\"", "interface = \"ipsec1\"");
    expect(&main, &["tunnel[t3].interface", "the name of an [[interface]]"]);
}

#[test]
fn interfaces_are_told_apart_by_name_and_if_id() {
    let with = |from: &str, to: &str| format!("{MINIMAL}{}", INTERFACES.replace(from, to));
    good(&with("", ""));
    expect(&with("ipsec1", "ipsec0"), &["interface[1].name", "no other interface has"]);
    expect(&with("ipsec1", "testudo0"), &["interface[1].name", "no other interface has"]);
    expect(&with("mtu = 1300", "if_id = 42"), &["interface[ipsec1].if_id", "no other interface has"]);
    expect(&with("if_id = 42", "if_id = 0"), &["interface[ipsec0].if_id", "1 to 4294967295"]);
    expect(&with("mtu = 1300", "mtu = 100"), &["interface[ipsec1].mtu"]);
    expect(&with("mtu = 1300", "routes = true"), &["interface[ipsec1].routes"]);
}

#[test]
fn policies_are_about_the_main_interface() {
    let policy = "[[policy]]\naction = \"protect\"\ntunnel = \"t3\"\nremote = \"10.7.0.0/16\"\n";
    let text = tunnels(&first_of("ipsec0"), "interface = \"ipsec1\"") + policy;
    expect(&text, &["policy[0].tunnel", "a tunnel without `interface`", "give the tunnel `selectors`"]);
}

#[test]
fn transport_mode_has_no_interface_of_its_own() {
    let text = tunnels("mode = \"transport\"\ninterface = \"ipsec0\"", "interface = \"ipsec1\"");
    expect(&text, &["tunnel[t3].interface", "only in tunnel mode"]);
}
