//! Tunnels to multicast groups (`docs/VPE.md`).

use super::*;
use testudo_ipsec::{Directions, Selector};

/// The minimal configuration with its tunnel turned into one of a group, and these lines in it.
fn group(lines: &str) -> String {
    let lines = format!(
        "encapsulation = \"vpe\"\nallow_manual_counter_nonce = true\n\
         sa = {{ spi = 0x1001, key_file = \"group.key\" }}\n{lines}"
    );
    let text = in_tunnel(&lines).replace("outbound = { spi = 0x1001, key_file = \"out.key\" }\n", "");
    let text = text.replace("inbound = { spi = 0x1002, key_file = \"in.key\" }\n", "");
    let text = text.replace("\"192.0.2.2\"", "\"239.1.2.3\"");
    text.replace("remote = \"10.2.0.0/16\"", "remote = \"239.9.0.0/16\"")
}

const SENDER: &str = "sender_id = 7\n";

#[test]
fn a_group_has_one_sa_and_its_members_have_sender_ids() {
    let configuration = good(&group(SENDER));
    let tunnel = &configuration.tunnels[0];
    assert_eq!(tunnel.group(), Some([239, 1, 2, 3].into()));
    assert_eq!((tunnel.sender(), tunnel.rules.of_vpe().sender), (Some(7), 7));
    assert_eq!(tunnel.outbound, tunnel.inbound);
    let ends: Vec<_> = configuration.outer_endpoints().iter().map(ToString::to_string).collect();
    assert_eq!(ends, ["VPE (IP protocol 253) at 192.0.2.1", "VPE (IP protocol 253) at 239.1.2.3"]);
    assert_eq!(configuration.groups().collect::<Vec<_>>(), [([239, 1, 2, 3].into(), tunnel.local)]);
    let udp = good(&group(SENDER).replace("\"vpe\"", "\"vpe-in-udp\""));
    assert_eq!(udp.tunnels[0].keepalive, None);
    assert_eq!(udp.outer_endpoints()[1].to_string(), "UDP port 239.1.2.3:4501");
}

/// What one member sends is what the others receive: `local` is where packets come from in either direction.
#[test]
fn selectors_of_a_group_are_two_entries_of_the_spd() {
    let tunnel = &good(&group(SENDER)).tunnels[0];
    let entries: Vec<(Vec<Selector>, _)> = tunnel.entries().map(|(s, d)| (s.to_vec(), d)).collect();
    let selector = tunnel.selectors[0][0];
    let received = Selector { local: selector.remote, remote: selector.local, ..selector };
    assert_eq!(entries, [(vec![selector], Directions::Outbound), (vec![received], Directions::Inbound)]);
    let receiver = &good(&group("receive_only = true\n")).tunnels[0];
    assert_eq!((receiver.sender(), receiver.entries().count()), (None, 1));
    assert_eq!(receiver.entries().next().unwrap().1, Directions::Inbound);
    let unicast = &good(MINIMAL).tunnels[0];
    assert!(unicast.entries().all(|(_, directions)| directions == Directions::Both));
}

#[test]
fn what_a_group_has_not_is_refused_in_words() {
    expect(&group(""), &["sender_id"]);
    expect(&group("sender_id = 0"), &["a number from 1 to 65535"]);
    expect(&group(&format!("{SENDER}receive_only = true")), &["no `sender_id`", "leave it out"]);
    for key in ["dummy_packets_per_second", "clocked_packets_per_second", "rehash_seconds"] {
        good(&group(&format!("{SENDER}{key} = 5")));
        let told = format!("no `{key}` beside `receive_only = true`");
        expect(&group(&format!("receive_only = true\n{key} = 5")), &[&told, "nothing to hide: leave it out"]);
    }
    let outbound = "outbound = { spi = 0x1001, key_file = \"a.key\" }\n";
    expect(&group(&format!("{SENDER}{outbound}")), &["no `outbound`", "members have one SA", "sa = {"]);
    let esp = group(SENDER).replace("encapsulation = \"vpe\"\nallow_manual_counter_nonce = true\n", "");
    let told = errors(&esp).iter().map(|error| format!("{error:?}")).collect::<String>();
    assert!(told.contains("address of one host") && told.contains("for a multicast group add"), "{told}");
    let hosts = group(SENDER).replace("239.9.0.0/16", "10.2.0.0/16");
    expect(&hosts, &["multicast addresses as `remote`", "where packets come from"]);
    for key in ["sender_id = 1", "receive_only = true", "sa = { spi = 0x1001, key_file = \"a.key\" }"] {
        expect(&in_tunnel(key), &["only in a group", "239.1.2.3"]);
    }
    let policy = "[[policy]]\naction = \"protect\"\ntunnel = \"site-b\"\nremote = \"239.7.0.0/16\"\n";
    expect(&format!("{policy}{}", group(SENDER)), &["whose `remote` is one host", "`selectors`"]);
    let xdp = group(SENDER).replace("kind = \"socket\"", "kind = \"xdp\"\ninterface = \"eth0\"");
    expect(&xdp, &["kind = \"socket\"", "do not join groups"]);
    let negotiated = "[ike]\nsocket = \"x.sock\"\n";
    let interface = "[[interface]]\nname = \"ipsec0\"\nif_id = 42\nencapsulation = \"vpe\"\n";
    expect(&format!("{negotiated}{}{interface}", group(SENDER)), &["beside an [[interface]] of VPE"]);
    good(&group(SENDER).replacen("[gateway]", "[gateway]\nworkers = 2", 1));
}

/// Each sender has windows of its own, at each of its workers, and all are in one SA.
#[test]
fn windows_of_a_group_are_counted_over_all_senders() {
    let of = |workers: &str, lines: &str| {
        let text = group(&format!("{SENDER}{lines}"));
        text.replacen("[gateway]", &format!("[gateway]\nworkers = {workers}"), 1)
    };
    for (workers, lines) in [
        ("1", "senders = 128"),
        ("64", "senders = 2"),
        ("\"all\"", "senders = 3\nwindows_max = 1536"),
        ("2", "classes = [[46]]\nsenders = 32"),
        ("1", "senders = 8192\nwindows_max = 65536"),
        // As one sender, where it is not told.
        ("1", "windows_max = 8"),
    ] {
        good(&of(workers, lines));
    }
    let told = ["tunnel[site-b].windows_max", "1032 or more, with 129 senders", "found 1024", "1032 windows"];
    expect(&of("1", "senders = 129"), &told);
    expect(
        &of("2", "classes = [[46]]\nsenders = 33"),
        &["1056 or more, with 33 senders", "workers times senders"],
    );
    // As many workers as there may be: nothing depends on where it is checked.
    expect(&of("\"all\"", "senders = 3"), &["1536 or more, with 3 senders"]);
    let told = ["tunnel[site-b].senders", "at most 65,536 windows", "8193 senders would have 65544"];
    expect(&of("1", "senders = 8193\nwindows_max = 65536"), &told);
    // Too few for one of them: told once.
    expect(&of("1", "senders = 2\nwindows_max = 7"), &["8 or more"]);
    expect(&of("2", "senders = 2\nwindows_max = 8"), &["16 or more, with 2 workers"]);
    expect(&of("1", "senders = 0"), &["senders", "a number from 1 to 65535"]);
    expect(&in_tunnel("senders = 2"), &["`senders` only in a group", "239.1.2.3"]);
    let note = "tunnel site-b: windows_max = 1024 is enough for 32 senders with 32 windows each";
    assert_eq!(good(&of("2", "classes = [[46]]")).group_notes(), [note]);
    assert!(good(MINIMAL).group_notes().is_empty());
}

/// One key in both directions is for groups alone, and in one of them.
#[test]
fn a_groups_key_is_no_other_sas() {
    let second = SECOND.replace("c-in.key", "group.key");
    expect(&format!("{}{second}", group(SENDER)), &["a key of its own for each SA", "repeat nonces"]);
    good(&format!("{}{SECOND}", group(SENDER)));
}
