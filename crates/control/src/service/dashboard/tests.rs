use super::*;
use crate::service::sa_control::tests::of_vpe;
use std::io::{Read, Write};
use std::net::TcpStream;

const LONG: Duration = Duration::from_secs(60);

fn service(patience: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, body) = (listener.local_addr().unwrap(), Arc::new("{}".to_owned()));
    serve(listener, patience, move || Ok(Arc::clone(&body))).unwrap();
    address
}

fn answer(address: SocketAddr, request: &str) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: SocketAddr, path: &str) -> String {
    answer(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"))
}

#[test]
fn every_path_of_the_dashboard_has_its_type_and_headers_that_let_nothing_in() {
    let address = service(LONG);
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/dashboard.css", "text/css; charset=utf-8"),
        ("/dashboard.js", "text/javascript; charset=utf-8"),
        ("/data.json", "application/json"),
    ] {
        let answer = get(address, path);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && !body.is_empty(), "{path}: {head}");
        for line in [
            format!("Content-Type: {kind}"),
            format!("Content-Length: {}", body.len()),
            "X-Content-Type-Options: nosniff".to_owned(),
            "X-Frame-Options: DENY".to_owned(),
            "Referrer-Policy: no-referrer".to_owned(),
            "Cross-Origin-Resource-Policy: same-origin".to_owned(),
            "Cache-Control: no-store".to_owned(),
            "Connection: close".to_owned(),
        ] {
            assert!(head.lines().any(|other| other == line), "{path} lacks {line}: {head}");
        }
        let policy = head.lines().find_map(|line| line.strip_prefix("Content-Security-Policy: ")).unwrap();
        let expected = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                        base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
        assert_eq!(policy, expected);
        assert!(!head.contains("Access-Control"), "no other site may read it: {head}");
    }
}

#[test]
fn the_dashboard_can_only_be_read_at_its_paths_and_by_local_names() {
    let address = service(LONG);
    let host = format!("Host: {address}\r\n");
    for (request, status) in [
        (format!("GET /other HTTP/1.1\r\n{host}\r\n"), "404 Not Found"),
        (format!("GET /metrics HTTP/1.1\r\n{host}\r\n"), "404 Not Found"),
        (format!("GET /../etc/passwd HTTP/1.1\r\n{host}\r\n"), "404 Not Found"),
        (format!("POST /data.json HTTP/1.1\r\n{host}\r\n"), "405 Method Not Allowed"),
        (format!("DELETE / HTTP/1.1\r\n{host}\r\n"), "405 Method Not Allowed"),
        (format!("OPTIONS / HTTP/1.1\r\n{host}\r\n"), "405 Method Not Allowed"),
        ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(), "421 Misdirected Request"),
        ("GET /data.json HTTP/1.1\r\nHost: evil.example:9469\r\n\r\n".to_owned(), "421 Misdirected Request"),
        ("GET /data.json HTTP/1.0\r\n\r\n".to_owned(), "421 Misdirected Request"),
        ("GET /data.json HTTP/1.1\r\n\r\n".to_owned(), "400 Bad Request"),
        ("rubbish\r\n\r\n".to_owned(), "400 Bad Request"),
        (format!("HEAD /data.json HTTP/1.1\r\n{host}\r\n"), "200 OK"),
        ("GET /data.json HTTP/1.1\r\nHost: localhost:1\r\n\r\n".to_owned(), "200 OK"),
    ] {
        let answer = answer(address, &request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{request}: {answer}");
    }
    let head = answer(address, &format!("HEAD / HTTP/1.1\r\n{host}\r\n"));
    assert!(head.ends_with("\r\n\r\n"), "only its headers: {head}");
}

#[test]
fn browsers_beyond_the_slots_of_the_dashboard_are_refused_and_silent_ones_make_room() {
    let address = service(LONG);
    let idle: Vec<_> = (0..LIMITS.served).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert!(get(address, "/").starts_with("HTTP/1.1 503 Service Unavailable\r\n"));
    drop(idle);
    let address = service(Duration::from_millis(50));
    let _silent: Vec<_> = (0..LIMITS.served).map(|_| TcpStream::connect(address).unwrap()).collect();
    while !get(address, "/").starts_with("HTTP/1.1 200 OK\r\n") {}
}

/// What would let something in from elsewhere, or make markup of what a peer says.
#[test]
fn the_page_names_no_other_host_and_makes_no_markup_of_what_it_is_told() {
    for (path, _, content) in PARTS {
        let content = content.replace("http://www.w3.org/2000/svg", "");
        for word in [
            "http:",
            "https:",
            "//www",
            "@import",
            "url(",
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "eval(",
        ] {
            assert!(!content.contains(word), "{path} has {word}");
        }
    }
    let (_, _, page) = PARTS[0];
    for word in ["style=", "<style", " onclick", " onerror", "javascript:"] {
        assert!(!page.contains(word), "the page has {word}, which its policy would refuse");
    }
    assert_eq!(page.matches("<script").count(), 1);
}

/// The page has its stages by name, as `status` has them.
#[test]
fn the_page_shows_every_stage_in_order() {
    let names = testudo_packet::Stage::ALL.map(|stage| format!("\"{}\"", stage.name())).join(", ");
    assert!(PARTS[2].2.contains(&format!("const STAGES = [{names}];")), "{names}");
}

#[test]
fn the_dashboards_data_are_the_status_and_the_busiest_sas_with_rates() {
    let gateway = of_vpe();
    let (mut looks, start) = (Looks::default(), Instant::now());
    let first = data(&gateway.shared, &mut looks, start);
    assert!(first["bottleneck"].is_null(), "one look is no change: {first}");
    let status = report::status(&gateway.shared.facts, &gateway.shared.installed());
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&first["status"]), keys(&status), "one model");
    assert_eq!((&first["sas_count"], &first["sas_omitted"]), (&json!(4), &json!(0)));
    assert!(first["sas"][0]["packets_per_second"].is_null(), "one look has no rate: {first}");
    gateway.seal();
    let counted = || {
        let installed = gateway.shared.installed();
        let of = |running: &crate::service::installed::Running| {
            running
                .sas
                .lock()
                .iter()
                .filter_map(|sa| Some(sa.added.as_ref()?.counters.packets()))
                .sum::<u64>()
        };
        installed.tunnels.iter().map(of).sum::<u64>()
    };
    while counted() == 0 {
        gateway.commander.save_windows(Vec::new()).unwrap();
    }
    let second = data(&gateway.shared, &mut looks, start + Duration::from_secs(2));
    let top = &second["sas"][0];
    assert_eq!((&top["tunnel"], &top["direction"]), (&json!("a"), &json!("outbound")));
    assert_eq!(top["packets_per_second"], json!(top["packets"].as_f64().unwrap() / 2.0));
    assert_eq!(top["bits_per_second"], json!(top["bytes"].as_f64().unwrap() * 4.0));
    assert_eq!(second["sas"][1]["packets_per_second"], 0.0);
    assert_eq!(second["bottleneck"], told(&first["status"], &second["status"]));
    let late = data(&gateway.shared, &mut looks, start + LONG);
    assert!(late["sas"][0]["packets_per_second"].is_null(), "nobody has looked for a minute");
    assert!(late["bottleneck"].is_null(), "{late}");
    assert_eq!(second["drop_words"]["no_sa"], DropReason::NoSa.description());
}

/// What `testudo top` says of two answers to `status`.
fn told(earlier: &Value, later: &Value) -> Value {
    let [earlier, later] = [earlier, later].map(|status| crate::watch::Reading::parse(status).unwrap());
    let change = crate::watch::Change::between(&earlier, &later).unwrap();
    let found = crate::watch::bottleneck(&change);
    json!({ "kind": found.kind(), "words": found.tell(&change, &later) })
}
