//! The part of HTTP/1.1 (RFC 9110, 9112) that a few pages need: one request per connection, its head bounded,
//! its body never read.
//!
//! Hand-written because a general-purpose server brings a runtime and some 25 crates into a process that
//! holds keys.

use super::timed::{Stream, Timed};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Longest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// What is served at one address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Site {
    /// Of the pages.
    pub(super) paths: &'static [&'static str],
    /// What is said to who asks for another one.
    pub(super) elsewhere: &'static str,
    pub(super) hosts: Hosts,
}

/// By which names a site may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hosts {
    /// `localhost` and loopback addresses, with any port (a tunnel of SSH's may end at another). A page of a
    /// stranger whose name has been led here (DNS rebinding) is asked for by that name.
    Local,
    /// The same, or none, as HTTP/1.0 lets who is no browser: a browser always says one.
    LocalOrNone,
}

/// Responses other than a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is not HTTP.
    BadRequest,
    /// A path that has no page, with what is said of those that there are.
    NotFound(&'static str),
    /// A name that the site does not go by.
    ForeignHost,
    /// A method other than GET and HEAD.
    MethodNotAllowed,
    /// The request took too long.
    RequestTimeout,
    /// Its head is too long.
    HeadTooLong,
    /// The page could not be rendered.
    Failed,
    /// There are too many clients.
    TooManyClients,
    /// A version other than 1.0 and 1.1.
    Version,
}

impl Refusal {
    /// Status line and, for the body, a word of explanation.
    fn status(self) -> (&'static str, &'static str) {
        match self {
            Self::BadRequest => ("400 Bad Request", "expected an HTTP request"),
            Self::NotFound(elsewhere) => ("404 Not Found", elsewhere),
            Self::ForeignHost => {
                ("421 Misdirected Request", "ask for localhost or a loopback address, not for another name")
            }
            Self::MethodNotAllowed => ("405 Method Not Allowed", "expected GET or HEAD"),
            Self::RequestTimeout => ("408 Request Timeout", "the request took too long"),
            Self::HeadTooLong => ("431 Request Header Fields Too Large", "the request's head is too long"),
            Self::Failed => ("500 Internal Server Error", "the page could not be written"),
            Self::TooManyClients => ("503 Service Unavailable", "too many clients"),
            Self::Version => ("505 HTTP Version Not Supported", "expected HTTP/1.0 or HTTP/1.1"),
        }
    }

    fn header(self) -> &'static str {
        match self {
            Self::MethodNotAllowed => "Allow: GET, HEAD\r\n",
            Self::TooManyClients => "Retry-After: 1\r\n",
            _ => "",
        }
    }
}

/// How much of the page a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// All of it.
    Get,
    /// Its headers.
    Head,
}

/// A request for a page: how much of it, and its path.
pub(super) type Request = (Method, &'static str);

/// Reads the head of a request for a page of `site`.
///
/// # Errors
/// The response to send; `None` if the client has gone.
pub(super) fn read_request(stream: &mut impl Read, site: &Site) -> Result<Request, Option<Refusal>> {
    let mut head = [0; MAX_HEAD_BYTES];
    let mut length = 0;
    loop {
        if let Some(end) = end_of_head(&head[..length]) {
            return parse(&head[..end], site).map_err(Some);
        }
        if length == MAX_HEAD_BYTES {
            return Err(Some(Refusal::HeadTooLong));
        }
        match stream.read(&mut head[length..]) {
            Ok(0) => return Err((length > 0).then_some(Refusal::BadRequest)),
            Ok(count) => length += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::TimedOut => return Err(Some(Refusal::RequestTimeout)),
            Err(_) => return Err(None),
        }
    }
}

/// Where the empty line after the head begins. A bare LF ends a line, too (RFC 9112 2.2).
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let mut at = skip_empty_lines(bytes);
    while let Some(newline) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        if matches!(&bytes[at..at + newline], b"" | b"\r") {
            return Some(at);
        }
        at += newline + 1;
    }
    None
}

/// Empty lines before a request are to be ignored (RFC 9112 2.2).
fn skip_empty_lines(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(bytes.len())
}

fn parse(head: &[u8], site: &Site) -> Result<Request, Refusal> {
    let head = std::str::from_utf8(&head[skip_empty_lines(head)..]).map_err(|_| Refusal::BadRequest)?;
    let mut lines = head.lines();
    let request: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version] = request[..] else { return Err(Refusal::BadRequest) };
    let is_token = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic());
    if !is_token(method) || target.is_empty() {
        return Err(Refusal::BadRequest);
    }
    let is_host = |line: &&str| line.get(..5).is_some_and(|name| name.eq_ignore_ascii_case("host:"));
    let hosts: Vec<_> = lines.filter(is_host).map(|line| line[5..].trim_matches([' ', '\t'])).collect();
    match version {
        // RFC 9112 3.2: a request of version 1.1 has exactly one.
        "HTTP/1.1" if hosts.len() != 1 => return Err(Refusal::BadRequest),
        "HTTP/1.1" | "HTTP/1.0" => {}
        _ if version.starts_with("HTTP/") => return Err(Refusal::Version),
        _ => return Err(Refusal::BadRequest),
    }
    let (authority, path) = split(target);
    // A target that is a whole URI says the name in the place of the header (RFC 9112 3.2.2): both must be
    // right.
    let mut names = authority.iter().chain(&hosts);
    let least = usize::from(site.hosts == Hosts::Local);
    if !(least..=1).contains(&hosts.len()) || !names.all(|name| is_local(name)) {
        return Err(Refusal::ForeignHost);
    }
    let path =
        site.paths.iter().copied().find(|one| *one == path).ok_or(Refusal::NotFound(site.elsewhere))?;
    match method {
        "GET" => Ok((Method::Get, path)),
        "HEAD" => Ok((Method::Head, path)),
        _ => Err(Refusal::MethodNotAllowed),
    }
}

/// Whether `host`, which may have a port, is `localhost` or a loopback address.
fn is_local(host: &str) -> bool {
    let (name, port) = match host.find(']') {
        Some(end) => host.split_at(end + 1),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        return false;
    }
    let v6 = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    match v6 {
        Some(v6) => v6.parse().is_ok_and(|address: Ipv6Addr| address.is_loopback()),
        None => {
            name.eq_ignore_ascii_case("localhost")
                || name.parse().is_ok_and(|address: Ipv4Addr| address.is_loopback())
        }
    }
}

/// The authority, if there is one, and the path of a target, which may be a whole URI (RFC 9112 3.2.2),
/// without its query.
fn split(target: &str) -> (Option<&str>, &str) {
    let target = target.split('?').next().unwrap_or_default();
    let after_scheme = target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
    match after_scheme.and_then(|_| target[7..].find('/')) {
        Some(slash) => (Some(&target[7..7 + slash]), &target[7 + slash..]),
        None => (None, target),
    }
}

/// A page as it is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page<'a> {
    /// Its content type.
    pub(super) kind: &'a str,
    /// Further headers, each with its end of line.
    pub(super) headers: &'a str,
    pub(super) body: &'a str,
}

/// Answers with the page. There is no Date: the clock of a gateway may be wrong (RFC 9110 6.6.1).
///
/// # Errors
/// The client has gone, or took too long.
pub(super) fn answer(stream: &mut impl Write, method: Method, page: &Page<'_>) -> io::Result<()> {
    let Page { kind, headers, body } = page;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{headers}Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    match method {
        Method::Get => stream.write_all(body.as_bytes()),
        Method::Head => Ok(()),
    }
}

/// Answers with a refusal, and ends the connection.
pub(super) fn refuse<S: Stream>(mut stream: Timed<S>, refusal: Refusal) {
    let ((status, why), header) = (refusal.status(), refusal.header());
    let length = why.len() + 1;
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n{header}\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{why}\n"
    );
    // A client that has gone need not be told.
    if stream.write_all(answer.as_bytes()).is_ok() {
        stream.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SITE: Site =
        Site { paths: &["/metrics"], elsewhere: "the page here is /metrics", hosts: Hosts::LocalOrNone };

    fn ask(request: &[u8]) -> Result<Method, Option<Refusal>> {
        read_request(&mut &request[..], &SITE).map(|(method, _)| method)
    }

    fn ask_local(request: &str) -> Result<Request, Option<Refusal>> {
        let site = Site { paths: &["/", "/data.json"], elsewhere: "", hosts: Hosts::Local };
        read_request(&mut request.as_bytes(), &site)
    }

    #[test]
    fn a_site_for_browsers_is_asked_by_local_names_only() {
        for host in [
            "localhost",
            "LocalHost:9469",
            "127.0.0.1:9469",
            "127.9.9.9",
            "[::1]:8080",
            "[::1]",
            "  127.0.0.1\t",
        ] {
            let request = format!("GET /data.json HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(ask_local(&request), Ok((Method::Get, "/data.json")), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:9469",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost:9469@evil.example",
            "192.0.2.1:9469",
            "[2001:db8::1]:9469",
            "[::1]evil.example",
            "[::ffff:127.0.0.1]",
            "localhost:",
            "localhost:x",
            "::1",
            "0.0.0.0",
            "",
            "é",
        ] {
            let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(ask_local(&request), Err(Some(Refusal::ForeignHost)), "{host}");
        }
        for request in [
            "GET / HTTP/1.0\r\n\r\n",
            "GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "GET http://localhost/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        ] {
            assert_eq!(ask_local(request), Err(Some(Refusal::ForeignHost)), "{request}");
        }
        let whole = "GET http://localhost:9469/ HTTP/1.1\r\nHost: localhost:9469\r\n\r\n";
        assert_eq!(ask_local(whole), Ok((Method::Get, "/")));
    }

    /// Metrics have names, addresses and SPIs, which a page of a stranger must not read, either.
    #[test]
    fn metrics_are_asked_for_by_local_names_or_by_none() {
        for host in ["evil.example", "evil.example:9468", "192.0.2.1:9468", "a", ""] {
            for version in ["1.0", "1.1"] {
                let request = format!("GET /metrics HTTP/{version}\r\nHost: {host}\r\n\r\n");
                assert_eq!(ask(request.as_bytes()), Err(Some(Refusal::ForeignHost)), "{request}");
            }
        }
        for host in ["localhost", "127.0.0.1:9468", "[::1]:9468"] {
            let request = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(ask(request.as_bytes()), Ok(Method::Get), "{host}");
        }
        assert_eq!(ask(b"GET /metrics HTTP/1.0\r\n\r\n"), Ok(Method::Get), "no browser says none");
        for request in [
            "GET http://evil.example/metrics HTTP/1.0\r\n\r\n",
            "GET /metrics HTTP/1.0\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        ] {
            assert_eq!(ask(request.as_bytes()), Err(Some(Refusal::ForeignHost)), "{request}");
        }
    }

    #[test]
    fn get_and_head_of_the_page_are_understood() {
        for request in [
            "GET /metrics HTTP/1.1\r\nHost: localhost:9468\r\nUser-Agent: Prometheus\r\n\r\n",
            "GET /metrics?x=1 HTTP/1.1\r\nhost: localhost\r\n\r\n",
            "GET http://localhost:9468/metrics HTTP/1.1\r\nHost: localhost:9468\r\n\r\n",
            "\r\nGET /metrics HTTP/1.1\nHost: localhost\n\nGET /metrics HTTP/1.1\n",
            "GET /metrics HTTP/1.0\r\n\r\n",
        ] {
            assert_eq!(ask(request.as_bytes()), Ok(Method::Get), "{request}");
        }
        assert_eq!(ask(b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"), Ok(Method::Head));
    }

    #[test]
    fn every_other_request_is_refused_with_its_own_status() {
        for (request, refusal) in [
            ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::NotFound(SITE.elsewhere)),
            ("GET /metrics/ HTTP/1.0\r\n\r\n", Refusal::NotFound(SITE.elsewhere)),
            (
                "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nsomething",
                Refusal::MethodNotAllowed,
            ),
            ("GET /metrics HTTP/1.1\r\n\r\n", Refusal::BadRequest),
            ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: 127.0.0.1\r\n\r\n", Refusal::BadRequest),
            ("GET /metrics HTTP/2.0\r\nHost: localhost\r\n\r\n", Refusal::Version),
            ("GET /metrics\r\n\r\n", Refusal::BadRequest),
            ("GET  /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", Refusal::BadRequest),
            ("GET /metrics SMTP\r\n\r\n", Refusal::BadRequest),
            ("GET /metrics HTTP/1.1\r\nHost: localhost\r\n", Refusal::BadRequest),
            ("\u{16}\u{3}\u{1}\r\n\r\n", Refusal::BadRequest),
        ] {
            assert_eq!(ask(request.as_bytes()), Err(Some(refusal)), "{request}");
        }
        assert_eq!(ask(b""), Err(None), "who says nothing hears nothing");
        let long = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\n\r\n", "a".repeat(MAX_HEAD_BYTES));
        assert_eq!(ask(long.as_bytes()), Err(Some(Refusal::HeadTooLong)));
    }

    #[test]
    fn an_answer_is_the_head_with_the_length_and_for_get_the_body() {
        let written = |method| {
            let mut written = Vec::new();
            let page = Page { kind: "text/plain", headers: "Cache-Control: no-store\r\n", body: "four" };
            answer(&mut written, method, &page).unwrap();
            String::from_utf8(written).unwrap()
        };
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\
                    Cache-Control: no-store\r\nConnection: close\r\n\r\n";
        assert_eq!(written(Method::Get), format!("{head}four"));
        assert_eq!(written(Method::Head), head);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = ask(&bytes);
            let _ = is_local(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "(GET|HEAD|X)? ?(/metrics|http://|é)?.{0,20} ?(HTTP/1.[01])?\r?\n(Host:.{0,9}\r\n)?\r?\n?") {
            let _ = (ask(text.as_bytes()), ask_local(&text));
        }
    }
}
