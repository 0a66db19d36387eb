//! A group of gateways on one switch (`docs/VPE.md`): the kernel joins it, each sender is heard by all
//! others, also by one that joins late, and a second device with somebody's Sender ID is noticed.

use crate::support::config::{CONFIGURATION, write_private};
use crate::support::gateway::{Gateway, PROGRAM};
use crate::support::link::Link;
use crate::support::{Outcome, ensure, folder, wait};
use std::fs;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::time::Duration;
use testudo_judge::harness::{Suite, TestResult};
use testudo_lab::namespaces::{Namespace, enter, veth};

pub fn tests<'a>(suite: Suite<'a, Link>) -> Suite<'a, Link> {
    suite
        .test("members_of_a_group_hear_each_other_and_notice_a_second_device_with_a_sender_id", |_| group())
        .test("a_group_over_ipv6_is_joined_by_mld_and_left_again", |_| group_over_ipv6())
}

const GROUP: &str = "239.1.2.3";
/// Of all sites, so that reports of it are not left out as those of a link's own groups may be.
const GROUP_OVER_IPV6: &str = "ff05::1:23";
/// The same as `/proc/net/igmp6` has it.
const IN_IGMP6: &str = "ff050000000000000000000000010023";
const KEY: &str = "000102030405060708090a0b0c0d0e0f";
/// The group inside, and its port.
const INNER: (Ipv4Addr, u16) = (Ipv4Addr::new(239, 9, 9, 9), 5000);

/// A host with a gateway of the group, and an application in the group inside.
struct Member {
    number: u8,
    host: Namespace,
    gateway: Gateway,
    application: UdpSocket,
}

/// The outer address of a member.
fn local(group: &str, number: u8) -> String {
    if group == GROUP { format!("192.0.2.{number}") } else { format!("2001:db8::{number}") }
}

/// The second member has two workers.
const OF_SEVERAL: u8 = 2;

fn configuration(group: &str, number: u8, sender: u8) -> String {
    let local = local(group, number);
    let workers = if number == OF_SEVERAL { 2 } else { 1 };
    format!(
        "[gateway]\nstate = \"state.redb\"\ncontrol = \"control.sock\"\nworkers = {workers}\n\
         [port.protected]\nkind = \"tun\"\n\
         name = \"testudo0\"\naddresses = [\"10.{number}.0.1/24\"]\n[port.unprotected]\nkind = \"socket\"\n\
         [[tunnel]]\nname = \"plant\"\nlocal = \"{local}\"\nremote = \"{group}\"\n\
         encapsulation = \"vpe-in-udp\"\nsuite = \"aes128gcm16\"\nallow_manual_counter_nonce = true\n\
         sender_id = {sender}\nsa = {{ spi = 0x1001, key_file = \"plant.key\" }}\n\
         selectors = [ {{ local = \"10.0.0.0/8\", remote = \"239.9.0.0/16\" }} ]\n"
    )
}

impl Member {
    fn start(hub: &Namespace, number: u8, sender: u8) -> Outcome<Self> {
        Self::of(GROUP, hub, number, sender)
    }

    fn of(group: &str, hub: &Namespace, number: u8, sender: u8) -> Outcome<Self> {
        let host = Namespace::new(enter()?, &format!("member-{number}"))?;
        for interface in ["all", "default"] {
            // No route leads back to the other members' networks.
            host.sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), "0")?;
        }
        let port = format!("port{number}");
        veth((&host, "wan"), (hub, &port))?;
        hub.run(&["ip", "link", "set", &port, "master", "switch"])?;
        let length = if group == GROUP { 24 } else { 64 };
        host.address("wan", &format!("{}/{length}", local(group, number)))?;
        let folder = folder(&format!("group-of-{}-{number}", group.replace(':', "-")))?;
        fs::write(folder.join(CONFIGURATION), configuration(group, number, sender))?;
        write_private(&folder.join("plant.key"), KEY)?;
        // Nonces are numbers: that the key is new to this store is said by who has made it.
        let mut init = Command::new(PROGRAM);
        let said = wait::output(init.args(["init", "--fresh-keys"]).arg(folder.join(CONFIGURATION)))?;
        ensure(said.status.success(), || format!("init: {said:?}"))?;
        let gateway = Gateway::start(&host, &folder)?;
        let application = host.within(|| -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind((INNER.0, INNER.1))?;
            socket.join_multicast_v4(&INNER.0, &Ipv4Addr::new(10, number, 0, 1))?;
            socket.set_read_timeout(Some(Duration::from_secs(10)))?;
            Ok(socket)
        })??;
        Ok(Self { number, host, gateway, application })
    }

    /// Sends a packet to the group, of another flow each time.
    fn send(&self, text: &str) -> Outcome<()> {
        let own = Ipv4Addr::new(10, self.number, 0, 1);
        self.host.within(|| -> std::io::Result<usize> {
            let socket = UdpSocket::bind((own, 0))?;
            socket.set_multicast_loop_v4(false)?;
            socket.send_to(text.as_bytes(), (INNER.0, INNER.1))
        })??;
        Ok(())
    }

    fn hears(&self, expected: &str) -> Outcome<()> {
        let mut text = [0; 100];
        let (bytes, _) = self.application.recv_from(&mut text)?;
        ensure(&text[..bytes] == expected.as_bytes(), || {
            format!("member {} heard something else", self.number)
        })
    }
}

fn group() -> TestResult {
    let hub = Namespace::new(enter()?, "switch")?;
    hub.bridge("switch", &[])?;
    hub.run(&["ip", "link", "set", "switch", "type", "bridge", "mcast_snooping", "1"])?;
    let members = [Member::start(&hub, 1, 1)?, Member::start(&hub, 2, 2)?];
    wait::until("for the switch to see IGMP reports", || {
        let groups = hub.run(&["bridge", "mdb", "show"])?;
        let has = |port: &str| groups.lines().any(|line| line.contains(port) && line.contains(GROUP));
        Ok((has("port1") && has("port2")).then_some(()))
    })?;
    let joined = members[0].host.run(&["ip", "maddr", "show", "dev", "wan"])?;
    ensure(joined.contains(GROUP), || joined)?;
    let [a, b] = members;
    for turn in 0..20 {
        a.send(&format!("from a {turn}"))?;
        b.hears(&format!("from a {turn}"))?;
        b.send(&format!("from b {turn}"))?;
        a.hears(&format!("from b {turn}"))?;
    }
    let late = Member::start(&hub, 3, 3)?;
    a.send("to both")?;
    b.hears("to both")?;
    late.hears("to both")?;
    late.send("from the late one")?;
    a.hears("from the late one")?;
    b.hears("from the late one")?;
    let senders = &b.gateway.sa("plant", "inbound")?["senders"];
    ensure(senders["count"] == 2 && senders["twice"] == 0, || format!("{senders}"))?;
    ensure(a.gateway.dropped("vpe_sender")? == 0, || "a heard itself".to_owned())?;
    spreads(&b)?;
    notices_a_second_device(&hub, [a, b, late])
}

/// How many sockets of a member's host are in the group by `/proc/net/igmp6`, with a line `index interface
/// group users …`.
fn in_igmp6(host: &Namespace) -> Outcome<u32> {
    let listed = host.within(|| fs::read_to_string("/proc/thread-self/net/igmp6"))??;
    let users = |line: &str| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        (words.get(1..3)? == ["wan", IN_IGMP6]).then(|| words.get(3)?.parse().ok())?
    };
    Ok(listed.lines().find_map(users).unwrap_or(0))
}

/// Both workers of a member have received packets.
fn spreads(member: &Member) -> Outcome<()> {
    let status = member.gateway.ask_json(&["status"])?;
    let received = |worker: &serde_json::Value| worker["unprotected"]["rx_packets"].as_u64().unwrap_or(0);
    let each: Vec<_> = status["workers"].as_array().into_iter().flatten().map(received).collect();
    ensure(each.len() == 2 && each.iter().all(|packets| *packets > 0), || format!("{each:?}"))
}

/// The switch reads MLD's reports: that it knows of the group at a port is its own word.
fn group_over_ipv6() -> TestResult {
    let hub = Namespace::new(enter()?, "switch")?;
    hub.bridge("switch", &[])?;
    hub.run(&["ip", "link", "set", "switch", "type", "bridge", "mcast_snooping", "1"])?;
    let [a, b] = [1, 2].map(|number| Member::of(GROUP_OVER_IPV6, &hub, number, number));
    let (a, b) = (a?, b?);
    wait::until("for the switch to see MLD's reports", || {
        let groups = hub.run(&["bridge", "mdb", "show"])?;
        let has = |port| groups.lines().any(|line| line.contains(port) && line.contains(GROUP_OVER_IPV6));
        Ok((has("port1") && has("port2")).then_some(()))
    })?;
    for member in [&a, &b] {
        let users = in_igmp6(&member.host)?;
        ensure(users == 1, || format!("member {} is in the group {users} times", member.number))?;
    }
    for turn in 0..20 {
        a.send(&format!("from a {turn}"))?;
        b.hears(&format!("from a {turn}"))?;
        b.send(&format!("from b {turn}"))?;
        a.hears(&format!("from b {turn}"))?;
    }
    let late = Member::of(GROUP_OVER_IPV6, &hub, 3, 3)?;
    late.send("from the late one")?;
    a.hears("from the late one")?;
    b.hears("from the late one")?;
    a.send("to both")?;
    b.hears("to both")?;
    late.hears("to both")?;
    let senders = &b.gateway.sa("plant", "inbound")?["senders"];
    ensure(senders["count"] == 2 && senders["twice"] == 0, || format!("{senders}"))?;
    ensure(a.gateway.dropped("vpe_sender")? == 0, || "a heard itself".to_owned())?;
    spreads(&b)?;
    for Member { number, host, gateway, .. } in [a, b, late] {
        gateway.stop()?;
        ensure(in_igmp6(&host)? == 0, || format!("member {number} has not left the group"))?;
    }
    Ok(())
}

/// Another device has a's Sender ID: a stops, and the others say so.
fn notices_a_second_device(hub: &Namespace, [a, b, late]: [Member; 3]) -> TestResult {
    let twin = Member::start(hub, 4, 1)?;
    // It hears nobody, or it would be the one that stops.
    twin.host.sysctl("net.ipv4.conf.wan.rp_filter", "1")?;
    twin.host.run(&["ip", "route", "del", "192.0.2.0/24", "dev", "wan"])?;
    a.send("before")?;
    // Flows share windows by chance: some of these have numbers that a has not used.
    for turn in 0..60 {
        twin.send(&format!("from the twin {turn}"))?;
    }
    a.gateway.logs("our own Sender ID 1")?;
    b.gateway.logs("Sender ID 1 come from 192.0.2.1 and from 192.0.2.4")?;
    let state = &a.gateway.sa("plant", "outbound")?["state"];
    ensure(state == "sender_taken", || format!("{state}"))?;
    a.send("nobody hears this")?;
    a.gateway.counts("vpe_sender_taken", 1)?;
    let said = b.gateway.ask(&["status"])?;
    ensure(said.stdout.contains("TWO DEVICES"), || said.stdout.clone())?;
    for member in [a, b, late, twin] {
        member.gateway.stop()?;
    }
    Ok(())
}
