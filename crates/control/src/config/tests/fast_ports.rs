//! Ports that pass the kernel by: `kind = "xdp"`, `kind = "dpdk"`.

use super::*;

/// The minimal configuration with these sections of the ports.
fn ports(protected: &str, unprotected: &str) -> String {
    let text = with("kind = \"tun\"\nname = \"testudo0\"", protected);
    text.replacen("kind = \"socket\"", unprotected, 1)
}

const TUN: &str = "kind = \"tun\"\nname = \"testudo0\"";
const LAN: &str = "kind = \"xdp\"\ninterface = \"eth1\"";
const WAN: &str = "kind = \"xdp\"\ninterface = \"eth0\"";

#[test]
fn both_sides_may_be_interfaces_of_the_host() {
    let configuration = good(&ports(LAN, WAN));
    let defaults =
        XdpSettings { queues: None, mode: XdpMode::Auto, zero_copy: ZeroCopy::Auto, busy_poll: None };
    let (protected, unprotected) = (&configuration.protected, &configuration.unprotected);
    assert_eq!(protected.kind, PortKind::Xdp(defaults.clone()));
    assert_eq!((protected.name.as_str(), protected.mtu, protected.routes), ("eth1", 1500, true));
    assert_eq!(unprotected.kind.xdp(), Some(&defaults));
    assert_eq!((unprotected.interface.as_deref(), unprotected.mtu), (Some("eth0"), 1500));
    assert!(good(&ports(TUN, WAN)).protected.kind.is_host());
    assert!(good(&ports(LAN, "kind = \"socket\"")).unprotected.kind.is_host());
    let jumbo = good(&ports(&format!("{LAN}\nmtu = 9000"), &format!("{WAN}\nmtu = 1492")));
    assert_eq!((jumbo.protected.mtu, jumbo.unprotected.mtu), (9000, 1492));
}

#[test]
fn settings_are_words_and_numbers() {
    let settings =
        |lines: &str| good(&ports(TUN, &format!("{WAN}\n{lines}"))).unprotected.kind.xdp().cloned().unwrap();
    assert_eq!(settings("queues = \"all\"").queues, None);
    assert_eq!(settings("queues = 3").queues, Some(vec![3]));
    assert_eq!(settings("queues = [0, 2]").queues, Some(vec![0, 2]));
    assert_eq!(settings("mode = \"generic\"").mode, XdpMode::Generic);
    assert_eq!(settings("zero_copy = \"always\"").zero_copy, ZeroCopy::Always);
    assert_eq!(settings("busy_poll = 64").busy_poll, Some(64));
    let refused = |lines: &str, parts: &[&str]| expect(&ports(TUN, &format!("{WAN}\n{lines}")), parts);
    for queues in ["[]", "[1, 1]", "4096", "\"some\"", "[0, \"1\"]"] {
        refused(
            &format!("queues = {queues}"),
            &["port.unprotected.queues", "numbers of queues from 0 to 4095"],
        );
    }
    refused("mode = \"nativ\"", &["port.unprotected.mode", "did you mean `native`?"]);
    refused("zero_copy = true", &["port.unprotected.zero_copy", "\"off\", \"auto\", \"always\""]);
    refused("busy_poll = 0", &["port.unprotected.busy_poll", "1 to 1024"]);
}

#[test]
fn what_is_about_an_interface_of_the_gateways_own_is_refused_with_what_to_do() {
    for (line, help) in [
        ("name = \"testudo0\"", "write `interface`"),
        ("addresses = [\"10.1.0.1/24\"]", "ip address"),
        ("routes = false", "the filter follows the policies"),
    ] {
        expect(&ports(&format!("{LAN}\n{line}"), WAN), &["no such key with this `kind`", help]);
    }
    expect(&ports(TUN, "kind = \"xdp\""), &["port.unprotected.interface", "interface = \"eth0\""]);
    expect(&ports("kind = \"xdp\"", WAN), &["port.protected.interface", "interface = \"eth1\""]);
    expect(&ports("kind = \"xpd\"\nname = \"t0\"", WAN), &["port.protected.kind", "did you mean `xdp`?"]);
    expect(&ports(TUN, "kind = \"socket\"\nqueues = 1"), &["port.unprotected.queues", "a known key"]);
}

#[test]
fn both_sides_at_one_interface_are_refused() {
    let same = ports("kind = \"xdp\"\ninterface = \"eth0\"", WAN);
    expect(&same, &["port.protected.interface", "another interface than that of [port.unprotected]"]);
    let bound = ports(LAN, "kind = \"socket\"\ninterface = \"eth1\"");
    expect(&bound, &["port.protected.interface", "another interface"]);
}

#[test]
fn transport_mode_needs_the_kernel_on_the_protected_side() {
    let transport = |protected: &str| {
        let text =
            ports(protected, WAN).replace("10.1.0.0/16", "192.0.2.1").replace("10.2.0.0/16", "192.0.2.2");
        text.replacen("name = \"site-b\"", "name = \"site-b\"\nmode = \"transport\"", 1)
    };
    assert_eq!(good(&transport(TUN)).tunnels[0].mode, Mode::Transport);
    expect(&transport(LAN), &["tunnel[0].name", "kind = \"tun\" in [port.protected]"]);
}

#[test]
fn a_filter_that_takes_the_peers_own_address_is_no_loop() {
    let wide = ports(LAN, "kind = \"socket\"").replace("10.2.0.0/16", "192.0.2.0/24");
    assert!(good(&wide).protected.routes);
}

const DPDK_LAN: &str = "kind = \"dpdk\"\ndevice = \"net_tap0,iface=dtap0\"\naddresses = [\"10.1.0.1/24\"]";
const DPDK_WAN: &str = "kind = \"dpdk\"\ndevice = \"0000:03:00.0\"\naddresses = [\"192.0.2.1/24\"]";

#[test]
fn devices_of_dpdk_have_addresses_and_routers() {
    let more = "eal = [\"--no-huge\", \"-m\", \"256\"]\nqueues = 2\npromiscuous = true\nbusy_poll = true\n\
                library = \"/opt/libtestudo-dpdk.so\"\n\
                next_hops = [\"default via 192.0.2.254\", \"198.51.100.0/24 via 192.0.2.7\"]\nmtu = 9000";
    let configuration = good(&ports(DPDK_LAN, &format!("{DPDK_WAN}\n{more}")));
    let (protected, unprotected) = (&configuration.protected, &configuration.unprotected);
    assert_eq!((protected.name.as_str(), protected.mtu), ("net_tap0", 1500));
    let lan = protected.kind.dpdk().unwrap();
    assert_eq!((lan.device.as_str(), lan.queues, lan.promiscuous), ("net_tap0,iface=dtap0", 1, false));
    let wan = unprotected.kind.dpdk().unwrap();
    assert_eq!((wan.name(), wan.queues, wan.promiscuous, wan.busy_poll), ("0000:03:00.0", 2, true, true));
    assert_eq!(wan.eal, ["--no-huge", "-m", "256"]);
    assert_eq!((unprotected.mtu, wan.addresses.len(), wan.next_hops.len()), (9000, 1, 2));
    assert_eq!(wan.next_hops[0].network.length(), 0);
    assert_eq!(wan.next_hops[1].via, "192.0.2.7".parse::<std::net::IpAddr>().unwrap());
}

#[test]
fn what_is_wrong_about_a_device_of_dpdk_is_told_with_what_to_do() {
    let wan = |lines: &str| ports(TUN, &format!("{DPDK_WAN}\n{lines}"));
    let none = "kind = \"dpdk\"\naddresses = [\"192.0.2.1/24\"]";
    expect(&ports(TUN, none), &["port.unprotected.device", "device = \"0000:03:00.0\""]);
    let bare = "kind = \"dpdk\"\ndevice = \"net_ring0\"";
    expect(&ports(TUN, bare), &["port.unprotected.addresses", "192.0.2.1/24"]);
    expect(&wan("eal = [\"--vdev\"]"), &["port.unprotected.eal[0]", "write the virtual device as `device`"]);
    expect(&wan("eal = [\"-m\", \"64\", \"--help\"]"), &["port.unprotected.eal[2]", "end the gateway"]);
    expect(&wan("next_hops = [\"10.0.0.0/8\"]"), &["port.unprotected.next_hops[0]", "default via"]);
    expect(&wan("next_hops = [\"default via 198.51.100.1\"]"), &["a router that is a neighbour"]);
    expect(&wan("library = \"x.so\""), &["port.unprotected.library", "absolute path"]);
    expect(&ports(&format!("{DPDK_LAN}\nroutes = true"), WAN), &["no such key", "hosts have routes"]);
    // Nobody else answers for the local address of a tunnel.
    let other = DPDK_WAN.replace("192.0.2.1/24", "192.0.2.9/24");
    expect(&ports(TUN, &other), &["the address 192.0.2.1 among `addresses`", "nobody else answers"]);
    let same = DPDK_LAN.replace("10.1.0.1/24", "192.0.2.1/24");
    expect(&ports(DPDK_LAN, &same), &["another interface than that of [port.unprotected]"]);
    let differ = format!("{DPDK_WAN}\neal = [\"--no-huge\"]");
    expect(&ports(&format!("{DPDK_LAN}\neal = [\"--in-memory\"]"), &differ), &["the same `eal`"]);
    let ike = format!("[ike]\nsocket = \"x.sock\"\n{}", ports(TUN, DPDK_WAN));
    expect(
        &ike,
        &["port.unprotected.kind", "an IKE daemon speaks by the kernel's sockets", "use kind = \"xdp\" here"],
    );
    // Hosts' packets have no need of a kernel.
    good(&format!("[ike]\nsocket = \"x.sock\"\n{}", ports(DPDK_LAN, WAN)));
}

#[test]
fn whether_the_nic_does_cryptography_is_a_word_that_not_every_kind_can_promise() {
    let setting = |unprotected: &str| good(&ports(TUN, unprotected)).unprotected.offload;
    assert_eq!(setting(WAN), Offload::Auto);
    for (word, offload) in [("off", Offload::Off), ("auto", Offload::Auto)] {
        assert_eq!(setting(&format!("{WAN}\noffload = \"{word}\"")), offload);
        assert_eq!(setting(&format!("kind = \"socket\"\noffload = \"{word}\"")), offload);
    }
    let of_dpdk = setting(&format!("{DPDK_WAN}\noffload = \"always\""));
    assert_eq!(of_dpdk, Offload::Always, "the device decides when it is opened");
    for (port, why) in [("kind = \"socket\"", "the kernel's sockets"), (WAN, "AF_XDP has no way")] {
        let text = ports(TUN, &format!("{port}\noffload = \"always\""));
        expect(&text, &["port.unprotected.offload", "\"off\" or \"auto\"", why]);
    }
    let text = ports(TUN, &format!("{WAN}\noffload = \"allways\""));
    expect(&text, &["port.unprotected.offload", "did you mean `always`?"]);
    expect(&ports(&format!("{LAN}\noffload = \"auto\""), WAN), &["port.protected.offload", "a known key"]);
}
