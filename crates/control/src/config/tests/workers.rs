//! `workers` of `[gateway]`, and `peer_window` of a tunnel.

use super::*;

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
    for value in ["0", "65", "\"many\"", "[]", "-1"] {
        expect(&in_gateway(&format!("workers = {value}")), &["workers", "a number from 1 to 64, or \"all\""]);
    }
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
