//! The part of HTTP/1.1 (RFC 9110, 9112) that one page needs: one request per connection, its head bounded,
//! its body never read.
//!
//! Hand-written because a general-purpose server brings a runtime and some 25 crates into a process that
//! holds keys.

use super::timed::{Stream, Timed};
use std::io::{self, ErrorKind, Read, Write};

/// Longest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 8 << 10;

/// Responses other than the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is not HTTP.
    BadRequest,
    /// A path other than the page's.
    NotFound,
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
            Self::NotFound => ("404 Not Found", "the page here is /metrics"),
            Self::MethodNotAllowed => ("405 Method Not Allowed", "expected GET or HEAD"),
            Self::RequestTimeout => ("408 Request Timeout", "the request took too long"),
            Self::HeadTooLong => ("431 Request Header Fields Too Large", "the request's head is too long"),
            Self::Failed => ("500 Internal Server Error", "the metrics could not be written"),
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

/// Reads the head of a request for `path`.
///
/// # Errors
/// The response to send; `None` if the client has gone.
pub(super) fn read_request(stream: &mut impl Read, path: &str) -> Result<Method, Option<Refusal>> {
    let mut head = [0; MAX_HEAD_BYTES];
    let mut length = 0;
    loop {
        if let Some(end) = end_of_head(&head[..length]) {
            return parse(&head[..end], path).map_err(Some);
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

fn parse(head: &[u8], path: &str) -> Result<Method, Refusal> {
    let head = std::str::from_utf8(&head[skip_empty_lines(head)..]).map_err(|_| Refusal::BadRequest)?;
    let mut lines = head.lines();
    let request: Vec<_> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version] = request[..] else { return Err(Refusal::BadRequest) };
    let is_token = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic());
    if !is_token(method) || target.is_empty() {
        return Err(Refusal::BadRequest);
    }
    let hosts =
        lines.filter(|line| line.get(..5).is_some_and(|name| name.eq_ignore_ascii_case("host:"))).count();
    match version {
        // RFC 9112 3.2: a request of version 1.1 has exactly one.
        "HTTP/1.1" if hosts != 1 => return Err(Refusal::BadRequest),
        "HTTP/1.1" | "HTTP/1.0" => {}
        _ if version.starts_with("HTTP/") => return Err(Refusal::Version),
        _ => return Err(Refusal::BadRequest),
    }
    if path_of(target) != path {
        return Err(Refusal::NotFound);
    }
    match method {
        "GET" => Ok(Method::Get),
        "HEAD" => Ok(Method::Head),
        _ => Err(Refusal::MethodNotAllowed),
    }
}

/// The path of a target, which may be a whole URI (RFC 9112 3.2.2), without its query.
fn path_of(target: &str) -> &str {
    let target = target.split('?').next().unwrap_or_default();
    let after_scheme = target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
    match after_scheme.and_then(|_| target[7..].find('/')) {
        Some(slash) => &target[7 + slash..],
        None => target,
    }
}

/// Answers with the page. There is no Date: the clock of a gateway may be wrong (RFC 9110 6.6.1).
///
/// # Errors
/// The client has gone, or took too long.
pub(super) fn answer(stream: &mut impl Write, method: Method, kind: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
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
         Connection: close\r\n\r\n{why}\n"
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

    fn ask(request: &[u8]) -> Result<Method, Option<Refusal>> {
        read_request(&mut &request[..], "/metrics")
    }

    #[test]
    fn get_and_head_of_the_page_are_understood() {
        for request in [
            "GET /metrics HTTP/1.1\r\nHost: localhost:9468\r\nUser-Agent: Prometheus\r\n\r\n",
            "GET /metrics?x=1 HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET http://localhost:9468/metrics HTTP/1.1\r\nHost: localhost:9468\r\n\r\n",
            "\r\nGET /metrics HTTP/1.1\nHost: a\n\nGET /metrics HTTP/1.1\n",
            "GET /metrics HTTP/1.0\r\n\r\n",
        ] {
            assert_eq!(ask(request.as_bytes()), Ok(Method::Get), "{request}");
        }
        assert_eq!(ask(b"HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), Ok(Method::Head));
    }

    #[test]
    fn every_other_request_is_refused_with_its_own_status() {
        for (request, refusal) in [
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::NotFound),
            ("GET /metrics/ HTTP/1.0\r\n\r\n", Refusal::NotFound),
            (
                "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nsomething",
                Refusal::MethodNotAllowed,
            ),
            ("GET /metrics HTTP/1.1\r\n\r\n", Refusal::BadRequest),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", Refusal::BadRequest),
            ("GET /metrics HTTP/2.0\r\nHost: a\r\n\r\n", Refusal::Version),
            ("GET /metrics\r\n\r\n", Refusal::BadRequest),
            ("GET  /metrics HTTP/1.1\r\nHost: a\r\n\r\n", Refusal::BadRequest),
            ("GET /metrics SMTP\r\n\r\n", Refusal::BadRequest),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n", Refusal::BadRequest),
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
            answer(&mut written, method, "text/plain", "four").unwrap();
            String::from_utf8(written).unwrap()
        };
        let head =
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\nConnection: close\r\n\r\n";
        assert_eq!(written(Method::Get), format!("{head}four"));
        assert_eq!(written(Method::Head), head);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = ask(&bytes);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "(GET|HEAD|X)? ?(/metrics|http://|é)?.{0,20} ?(HTTP/1.[01])?\r?\n(Host:.{0,9}\r\n)?\r?\n?") {
            let _ = ask(text.as_bytes());
        }
    }
}
