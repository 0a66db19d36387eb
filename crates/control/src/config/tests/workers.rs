//! `workers` and `spread_inbound` of `[gateway]`, and `peer_window` of a tunnel.

use super::*;
use testudo_gateway::Role;

fn workers(value: &str) -> Workers {
    good(&in_gateway(&format!("workers = {value}"))).gateway.workers
}

#[test]
fn workers_are_a_number_or_all() {
    assert_eq!((workers("3"), workers("1")), (Workers::Count(3), Workers::Count(1)));
    let all = workers("\"all\"");
    assert_eq!([2, 0, 1000].map(|processors| all.count(processors)), [2, 1, MAX_WORKERS]);
    assert_eq!(workers("3").count(1), 3, "more than processors, if somebody wants it");
}

#[test]
fn numbers_of_workers_that_cannot_be_are_refused() {
    for value in ["0", "65", "\"many\"", "-1"] {
        expect(&in_gateway(&format!("workers = {value}")), &["workers", "a number from 1 to 64, or \"all\""]);
    }
}

#[test]
fn packets_of_an_sa_are_spread_over_several_workers_where_that_is_said() {
    let spread = |workers: &str, value: &str| {
        good(&in_gateway(&format!("workers = {workers}\nspread_inbound = \"{value}\"")))
            .gateway
            .spread_inbound
    };
    assert_eq!(spread("1", "by-sa"), SpreadInbound::BySa);
    assert_eq!([spread("2", "in-order"), spread("\"all\"", "in-order")], [SpreadInbound::InOrder; 2]);
    assert_eq!(spread("2", "unordered"), SpreadInbound::Unordered);
    assert_eq!(spread("2", "by-source-port"), SpreadInbound::BySourcePort);
    let alone = in_gateway("spread_inbound = \"in-order\"");
    expect(&alone, &["spread_inbound", "with several workers", "set `workers`"]);
    expect(&in_gateway("workers = 2\nspread_inbound = \"yes\""), &["spread_inbound", "\"in-order\""]);
}

#[test]
fn several_workers_have_the_ports_of_the_host() {
    let with_workers = |protected: &str, unprotected: &str| {
        let text = in_gateway("workers = 2").replacen("kind = \"tun\"\nname = \"testudo0\"", protected, 1);
        text.replacen("kind = \"socket\"", unprotected, 1)
    };
    let (tun, lan) = ("kind = \"tun\"\nname = \"testudo0\"", "kind = \"xdp\"\ninterface = \"eth1\"");
    let wan = "kind = \"xdp\"\ninterface = \"eth0\"";
    expect(&with_workers(lan, "kind = \"socket\""), &["port.protected.kind", "\"tun\"", "workers = 1"]);
    expect(&with_workers(tun, wan), &["port.unprotected.kind", "\"socket\"", "workers = 1"]);
    good(&with_workers(tun, "kind = \"socket\""));
    let device = "[engine.cryptodev]\ndevice = \"crypto_openssl\"\n\n[port.protected]";
    let cryptodev = in_gateway("workers = 2\nengines = [\"cryptodev\"]");
    expect(&cryptodev.replacen("[port.protected]", device, 1), &["beside the engine cryptodev"]);
}

#[test]
fn sas_of_one_worker_are_refused_beside_several() {
    let ah = in_tunnel("protocol = \"ah+esp\"\nah_suite = \"sha256\"");
    let ah = ah.replace("\"out.key\"", "\"out.key\", ah_spi = 0x2001, ah_key_file = \"out-ah.key\"");
    let ah = ah.replace("\"in.key\"", "\"in.key\", ah_spi = 0x1002, ah_key_file = \"in-ah.key\"");
    good(&ah);
    let text = ah.replacen("[gateway]", "[gateway]\nworkers = 2", 1);
    expect(&text, &["protocol", "no tunnel of AH over ESP with several workers", "workers = 1"]);
}

/// Each worker gets but a part of what comes under an SA then.
#[test]
fn what_one_worker_must_hear_alone_is_refused_where_packets_are_spread() {
    let probe = "mtu_probe = { source = \"10.1.0.1\", destination = \"10.2.0.1\" }";
    for (line, key) in [(probe, "mtu_probe"), ("non_first_fragments = true", "non_first_fragments")] {
        let of = |lines: &str| in_tunnel(line).replacen("[gateway]", &format!("[gateway]\n{lines}"), 1);
        good(&of("workers = 2"));
        for how in ["in-order", "unordered", "by-source-port"] {
            let text = of(&format!("workers = 2\nspread_inbound = \"{how}\""));
            expect(&text, &[key, "beside `spread_inbound`", "leave `spread_inbound` out"]);
        }
    }
}

/// Negotiated ones, too.
#[test]
fn windows_of_an_interface_of_vpe_are_counted_over_all_workers() {
    let with = |workers: u8, lines: &str| {
        let text = MINIMAL.replacen("[gateway]", &format!("[gateway]\nworkers = {workers}"), 1);
        let interface = "[[interface]]\nname = \"ipsec0\"\nif_id = 42\nencapsulation = \"vpe\"\n";
        format!("[ike]\nsocket = \"x.sock\"\n{text}{interface}{lines}\n")
    };
    good(&with(4, "slots = 64"));
    good(&with(1, "slots = 512\nclasses = [[46]]"));
    let told = ["interface[ipsec0].windows_max", "4096 or more, with 4 workers"];
    expect(&with(4, "slots = 512\nclasses = [[46]]"), &told);
}

#[test]
fn windows_of_vpe_are_counted_over_all_workers() {
    let vpe = |workers: &str, lines: &str| {
        let text = in_tunnel(&format!("encapsulation = \"vpe\"\nallow_manual_counter_nonce = true\n{lines}"));
        text.replacen("[gateway]", &format!("[gateway]\nworkers = {workers}"), 1)
    };
    for workers in ["1", "2", "64", "\"all\""] {
        good(&vpe(workers, ""));
    }
    good(&vpe("2", "classes = [[46]]\nwindows_max = 32"));
    let few = "classes = [[46]]\nwindows_max = 31";
    good(&vpe("1", few));
    let told = ["windows_max", "32 or more, with 2 workers", "31", "slots times classes times workers"];
    expect(&vpe("2", few), &told);
    // As many as there may be: nothing depends on where it is checked.
    expect(&vpe("\"all\"", "classes = [[46], [10]]"), &["1536 or more, with 64 workers", "1024"]);
    // Too few for one worker: told once.
    assert_eq!(errors(&vpe("2", "classes = [[46]]\nwindows_max = 15")).len(), 1);
    good(&vpe("8", "slots = 8192\nwindows_max = 65536"));
    let told = ["slots", "at most 65,536 windows", "9 workers would send in 73728"];
    expect(&vpe("9", "slots = 8192\nwindows_max = 65536"), &told);
}

#[test]
fn the_window_of_a_peer_is_32_unless_told() {
    let window = |lines: &str| good(&in_tunnel(lines)).tunnels[0].peer_window;
    assert_eq!((window(""), window("peer_window = 1024")), (32, 1024));
    expect(&in_tunnel("peer_window = 31"), &["peer_window: expected a number from 32 to 2097152"]);
}

#[test]
fn workers_may_have_roles_and_at_least_one_takes_each_side() {
    let roles = |value: &str, processors| workers(value).roles(processors);
    let (encrypt, decrypt, both) = (Role::Encrypt, Role::Decrypt, Role::Both);
    assert_eq!(roles("2", 8), [both, both]);
    assert_eq!(roles("[\"decrypt\", \"encrypt\", \"both\"]", 8), [decrypt, encrypt, both]);
    assert_eq!(roles("{ count = 4, roles = \"half\" }", 8), [encrypt, encrypt, decrypt, decrypt]);
    assert_eq!(roles("{ count = 3, roles = \"half\" }", 8), [encrypt, both, decrypt]);
    let all = "{ count = \"all\", roles = \"half\" }";
    assert_eq!((roles(all, 2), roles(all, 1)), (vec![encrypt, decrypt], vec![both]));
    assert_eq!(roles(all, 1000).len(), MAX_WORKERS);
    // As if they had none.
    assert_eq!(workers("[\"both\", \"both\"]"), Workers::Count(2));
    assert_eq!(workers("[\"both\"]"), Workers::Count(1));
    assert_eq!(workers("{ count = 1, roles = \"half\" }"), Workers::Count(1));
    let most = format!("[{}]", "\"both\", \"encrypt\", ".repeat(MAX_WORKERS / 2));
    assert_eq!(workers(&most).roles(1).iter().filter(|role| role.decrypts()).count(), MAX_WORKERS / 2);
}

#[test]
fn as_many_workers_as_there_may_be_are_more_than_those_that_run() {
    let gateway = |lines: &str| good(&in_gateway(lines)).gateway;
    let most = |lines: &str, processors| {
        let gateway = gateway(lines);
        gateway.workers.most(gateway.workers_max, processors)
    };
    assert_eq!((most("workers = 2", 8), most("workers = 2\nworkers_max = 5", 8)), (2, 5));
    assert_eq!((most("workers_max = 3", 8), most("workers = \"all\"\nworkers_max = 3", 8)), (3, 8));
    let refused = |lines: &str, words: &[&str]| expect(&in_gateway(lines), words);
    refused("workers = 4\nworkers_max = 3", &["workers_max", "as many as `workers`, or more"]);
    refused("workers = [\"encrypt\", \"decrypt\"]\nworkers_max = 3", &["workers_max", "with roles"]);
    refused("workers_max = 65", &["a number from 1 to 64"]);
    // Those that are parked are workers all the same.
    let xdp = in_gateway("workers_max = 2").replacen(
        "kind = \"socket\"",
        "kind = \"xdp\"\ninterface = \"eth0\"",
        1,
    );
    expect(&xdp, &["port.unprotected.kind", "\"socket\"", "several workers"]);
}

#[test]
fn roles_that_cannot_be_are_refused() {
    let refused = |value: &str, words: &[&str]| {
        expect(&in_gateway(&format!("workers = {value}")), words);
    };
    refused("[\"encrypt\", \"encrypt\"]", &["from the unprotected side", "\"decrypt\" or \"both\""]);
    refused("[\"decrypt\"]", &["from the protected side", "\"encrypt\" or \"both\""]);
    refused("[\"both\", \"sign\"]", &["one of \"encrypt\", \"decrypt\", \"both\""]);
    refused("[\"both\", 2]", &["one of \"encrypt\", \"decrypt\", \"both\""]);
    refused("[]", &["1 to 64 roles"]);
    refused(&format!("[{}]", "\"both\", ".repeat(MAX_WORKERS + 1)), &["1 to 64 roles"]);
    for table in [
        "{ }",
        "{ count = 4 }",
        "{ roles = \"half\" }",
        "{ count = 4, roles = \"third\" }",
        "{ count = 4, roles = \"half\", more = 1 }",
    ] {
        refused(table, &["{ count = 4, roles = \"half\" }"]);
    }
    refused("{ count = 65, roles = \"half\" }", &["a number from 1 to 64"]);
}

/// `in_gateway`, with SAs of single workers under its tunnel.
fn with_own(gateway: &str, own: &[&str]) -> String {
    let tables: Vec<_> = own.iter().map(|own| format!("\n[[tunnel.worker_sas]]\n{own}\n")).collect();
    in_gateway(gateway) + &tables.concat()
}

const FIRST: &str = "worker = 0\noutbound = { spi = 0x3001, key_file = \"a.key\" }\n\
                     inbound = { spi = 0x3002, key_file = \"b.key\" }";
const SECOND: &str = "worker = 1\noutbound = { spi = 0x3003, key_file = \"c.key\" }";

/// RFC 9611.
#[test]
fn a_tunnel_has_sas_of_single_workers_beside_those_of_all() {
    let tunnel = good(&with_own("workers = 2", &[FIRST, SECOND])).tunnels.remove(0);
    let outbound: Vec<_> = tunnel.own_outbound().map(|(worker, sa)| (worker, sa.spi)).collect();
    let inbound: Vec<_> = tunnel.more_inbound().map(|(worker, sa)| (worker, sa.spi)).collect();
    assert_eq!((outbound, inbound), (vec![(0, 0x3001), (1, 0x3003)], vec![(0, 0x3002)]));
    // A worker that may come, and one that the processors decide on.
    good(&with_own("workers = 1\nworkers_max = 2", &[SECOND]));
    good(&with_own("workers = \"all\"", &[SECOND]));
    // An SA from a peer that has more workers.
    let inbound_alone = "worker = 9\ninbound = { spi = 0x3002, key_file = \"b.key\" }";
    good(&with_own("workers = 2", &[inbound_alone]));
    assert!(good(&in_gateway("workers = 2")).tunnels[0].worker_sas.is_empty());
}

#[test]
fn sas_of_workers_that_cannot_be_are_refused() {
    let refused = |gateway: &str, own: &[&str], words: &[&str]| expect(&with_own(gateway, own), words);
    refused("workers = 1", &[SECOND], &["worker", "only one", "`workers`"]);
    let third = SECOND.replace("worker = 1", "worker = 2");
    refused("workers = 2", &[&third], &["worker", "0 to 1", "workers_max"]);
    let last = SECOND.replace("worker = 1", "worker = 64");
    refused("workers = 2", &[&last], &["worker", "from 0 to 63"]);
    refused("workers = [\"encrypt\", \"decrypt\"]", &[SECOND], &["protected side", "\"decrypt\""]);
    refused("workers = 2", &[FIRST, &SECOND.replace("worker = 1", "worker = 0")], &["no SAs of its own"]);
    refused("workers = 2", &["worker = 1"], &["`outbound`, `inbound`, or both", "neither"]);
    let no_worker = "outbound = { spi = 0x3001, key_file = \"a.key\" }";
    refused("workers = 2", &[no_worker], &["worker", "found nothing"]);
    refused("workers = 2", &[&FIRST.replace("\"b.key\"", "\"a.key\"")], &["a key of its own for each SA"]);
    let same = SECOND.replace("0x3003", "0x3001");
    refused("workers = 2", &[FIRST, &same], &["an outbound SPI that no other"]);
}

#[test]
fn tunnels_whose_sas_one_worker_has_take_no_sas_of_single_ones() {
    let own = "worker_sas = [ { worker = 0, outbound = { spi = 0x3001, key_file = \"a.key\" } } ]";
    let vpe = in_tunnel(&format!("encapsulation = \"vpe\"\nallow_manual_counter_nonce = true\n{own}"));
    expect(&vpe, &["worker_sas", "VPE", "RFC 9611"]);
    let ah = in_tunnel(&format!("protocol = \"ah+esp\"\nah_suite = \"sha256\"\n{own}"));
    let ah = ah.replace("\"out.key\"", "\"out.key\", ah_spi = 0x2001, ah_key_file = \"out-ah.key\"");
    let ah = ah.replace("\"in.key\"", "\"in.key\", ah_spi = 0x1002, ah_key_file = \"in-ah.key\"");
    expect(&ah, &["worker_sas", "ah+esp"]);
}
