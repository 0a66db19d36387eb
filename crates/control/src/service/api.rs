//! The control socket: one JSON request and one JSON answer per line, only for the gateway's own user and
//! root.
//!
//! A client that is refused gets the reason in a normal answer.
//!
//! Requests are objects with a `verb`: `status`, `sa-list`, `sa-wanted`, `policy-list`, `explain` and
//! `firewall` ask ([`report`]), so does `sa-windows`, of a worker (`vpe_windows`), `sa-keys` reads keys where
//! that is allowed (`key_export`), `sa-add`, `sa-replace`, `sa-use` and `sa-delete` change SAs
//! (`sa_request`), `workers-set` the number of workers that get packets (`worker_count`). An answer with a
//! text `error` refuses the request, and nothing has changed then. Requests and answers may have keys: their
//! bytes are zeroed once they are read, or sent.

use super::clients::{self, Admission, Limits};
use super::explanation::{self, Question, Side};
use super::gathering;
use super::installed::InstalledTunnels;
use super::key_export;
use super::peer::{check_user, user_of};
use super::policies::{self, Changer};
use super::report::{self, Facts, Peers};
use super::sa_control::{self, SaControl};
use super::sa_request::SaRequest;
use super::shares;
use super::timed::Timed;
use super::vpe_windows;
use super::wiped_json::{Wiped, ZeroedPieces};
use super::worker_count;
use crate::config::Configuration;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::{Value, json};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use testudo_gateway::Clock;
use testudo_packet::Interface;
use zeroize::Zeroizing;

/// The longest request, in bytes, including its line end.
const MAX_REQUEST_BYTES: usize = 4096;
/// The most clients that are served, and that are refused, at the same time.
const LIMITS: Limits = Limits { served: 8, refused: 8 };
/// How long a client may take to send its request and read the answer, in total; also how long our own client
/// waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long refusing a client may take.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);
/// Mode of the socket's file: only its owner may use it.
const SOCKET_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Backlog: connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// State that the control plane's threads share.
#[derive(Debug)]
pub struct Shared {
    /// What never changes.
    pub facts: Facts,
    /// The installed tunnels.
    pub installed: Mutex<Arc<InstalledTunnels>>,
    /// The last known addresses of roaming peers.
    pub peers: Mutex<Peers>,
    /// Changes SAs, once the worker runs.
    pub sas: OnceLock<SaControl>,
    /// The way to the thread that makes changes; none where nothing can be changed.
    pub changer: OnceLock<Changer>,
}

impl Shared {
    /// The installed tunnels.
    #[must_use]
    pub fn installed(&self) -> Arc<InstalledTunnels> {
        Arc::clone(&self.installed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The last known addresses of roaming peers.
    pub fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something of the installed tunnels: in place, unless a client is being answered from them,
    /// which then goes on with a copy of its own.
    pub fn change_installed<T>(&self, change: impl FnOnce(&mut InstalledTunnels) -> T) -> T {
        change(Arc::make_mut(&mut self.installed.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Replaces the installed tunnels.
    pub fn replace_installed(&self, installed: InstalledTunnels) {
        *self.installed.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(installed);
    }
}

/// The control socket could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("control socket {}: {what}", path.display())]
pub struct BindError {
    path: PathBuf,
    what: String,
}

/// The socket. Dropping this removes it.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlSocket {
    /// Listens on `path`, with mode 0600. A missing directory is created (for us alone); a socket that no
    /// process listens on any more is replaced.
    ///
    /// # Errors
    /// [`BindError`] if another gateway listens there, something else has the path, or the system refuses.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        let error = |what: String| BindError { path: path.to_owned(), what };
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent);
            made.map_err(|e| error(format!("its directory cannot be made: {e}")))?;
        }
        if let Ok(meta) = std::fs::symlink_metadata(path) {
            if !meta.file_type().is_socket() {
                return Err(error("something that is no socket is in the way".into()));
            }
            if UnixStream::connect(path).is_ok() {
                return Err(error("another gateway listens there".into()));
            }
            std::fs::remove_file(path)
                .map_err(|e| error(format!("a stale socket cannot be removed: {e}")))?;
        }
        let listener = listen(path).map_err(|e| error(e.to_string()))?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Serves clients until the process ends, each on its own thread.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn serve(&self, shared: Arc<Shared>) -> io::Result<()> {
        self.serve_users(user_of, PATIENCE, move |line, user| reply(line, Some(user), &shared))
    }

    /// Serves clients whose user `identify` accepts, each for a limited time.
    fn serve_users(
        &self,
        identify: fn(&UnixStream) -> io::Result<u32>,
        patience: Duration,
        reply: impl Fn(&[u8], u32) -> Result<Value, String> + Send + Sync + 'static,
    ) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        clients::serve("control", listener, LIMITS, move |stream, admission| {
            let (patience, verdict) = match admission {
                Admission::Serve => (patience, check_user(identify(&stream))),
                Admission::Refuse => (REFUSAL_PATIENCE, Err("too many clients: try again".to_owned())),
            };
            serve_client(Timed::new(stream, patience), |line| verdict.and_then(|user| reply(line, user)));
        })
    }
}

/// The file has its mode from the start: the kernel copies it from the socket.
fn listen(path: &Path) -> rustix::io::Result<UnixListener> {
    use rustix::net::{bind, listen, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, SOCKET_MODE)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Reads a request, answers it and ends the connection. The request is read even if the answer is already
/// known: closing a socket with unread data may lose the answer. A client that went away is ignored.
fn serve_client(mut stream: Timed<UnixStream>, reply: impl FnOnce(&[u8]) -> Result<Value, String>) {
    let request = read_request(&mut stream);
    if request.is_err() {
        stream.grant(REFUSAL_PATIENCE);
    }
    let request = request.map_err(|e| format!("the request was not received: {e}"));
    if answer(&mut stream, request.and_then(|line| reply(&line))).is_ok() {
        stream.finish();
    }
}

/// Reads one request from `input` and writes the answer to `output`, a line each.
///
/// # Errors
/// I/O errors. A malformed request is not an error: it is answered.
pub fn converse(input: impl Read, output: impl Write, shared: &Shared) -> io::Result<()> {
    let line = read_request(input)?;
    answer(output, reply(&line, None, shared))
}

/// Reads up to the end of a line. It may have keys: the buffer never grows, which would leave copies behind.
fn read_request(mut input: impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    // One byte more, to tell a request that is too long from one that just fits.
    let mut line = Zeroizing::new(vec![0; MAX_REQUEST_BYTES + 1]);
    let mut filled = 0;
    while filled < line.len() {
        match input.read(&mut line[filled..]) {
            Ok(0) => break,
            Ok(read) => {
                let end = line[filled..filled + read].iter().position(|byte| *byte == b'\n');
                filled += end.map_or(read, |end| end + 1);
                if end.is_some() {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    line.truncate(filled);
    Ok(line)
}

fn answer(output: impl Write, reply: Result<Value, String>) -> io::Result<()> {
    // It may have keys.
    let reply = Wiped::new(reply.unwrap_or_else(|e| json!({ "error": e })));
    write_line(output, &reply)
}

fn write_line(mut output: impl Write, value: &Value) -> io::Result<()> {
    let mut line = ZeroedPieces::default();
    serde_json::to_writer(&mut line, value)?;
    line.write_all(b"\n")?;
    line.pieces().try_for_each(|piece| output.write_all(piece))
}

/// The answer to one request, which may be any bytes. `user` is who asks, where that is known.
fn reply(line: &[u8], user: Option<u32>, shared: &Shared) -> Result<Value, String> {
    if line.len() > MAX_REQUEST_BYTES {
        return Err(format!("the request is longer than {MAX_REQUEST_BYTES} bytes"));
    }
    let mut request = Wiped::parse(line).map_err(|e| format!("the request is no JSON: {e}"))?;
    if let Some(change) = SaRequest::read(&mut request)? {
        let sas = shared.sas.get().ok_or("the gateway is still starting: try again")?;
        return sas.answer(shared, change);
    }
    let installed = shared.installed();
    match request["verb"].as_str() {
        Some("status") => Ok(report::status(&shared.facts, &installed)),
        Some("sa-list") => {
            let (peers, now) = (shared.peers(), shared.facts.clock.now());
            let engines = report::EnginesInService::of(&shared.facts);
            match request["tunnel"].as_str() {
                None => Ok(report::security_associations(&installed, &peers, &engines, now)),
                Some(name) => {
                    let tunnel = sa_control::find(&installed, name)?;
                    Ok(report::tunnel_sas(&tunnel, &installed, &peers, &engines, now))
                }
            }
        }
        Some("sa-keys") => key_export::keys(shared, &installed, user, request["tunnel"].as_str()),
        Some("sa-wanted") => Ok(report::wanted(&installed, Instant::now())),
        Some("sa-windows") => vpe_windows::page(shared, &installed, &request),
        Some("policy-list") => Ok(report::policies(&installed)),
        Some("firewall") => report::firewall(&installed),
        Some("explain") => {
            let question = question(&request, &installed.configuration)?;
            let engines = report::EnginesInService::of(&shared.facts);
            let counters = &shared.facts.counters;
            let (scheduled, late) = (counters.scheduled(), counters.late_jobs());
            let placement = |suite| {
                let placement = gathering::beside(shares::of_suite(suite, &engines), &scheduled, &late);
                shared.facts.threads.beside(placement, counters.threads())
            };
            Ok(explanation::explain(&installed, &shared.peers(), &question, &placement))
        }
        Some(worker_count::SET) => match shared.changer.get() {
            Some(changer) => policies::ask_main(changer, &request, "see with `workers` whether it was done"),
            None => Err("this gateway takes no changes".to_owned()),
        },
        Some("policy-add" | "policy-replace" | "policy-delete") => match shared.changer.get() {
            Some(changer) => policies::ask(changer, &request),
            None => Err("this gateway takes no changes".to_owned()),
        },
        _ => Err("unknown verb".to_owned()),
    }
}

fn question(request: &Value, configuration: &Configuration) -> Result<Question, String> {
    let address = |key: &str| {
        request[key]
            .as_str()
            .and_then(|a| a.parse().ok())
            .ok_or_else(|| format!("{key}: expected an IP address"))
    };
    let number = |key: &str, most: u64| match &request[key] {
        Value::Null => Ok(None),
        value => value
            .as_u64()
            .filter(|n| *n <= most)
            .map(Some)
            .ok_or_else(|| format!("{key}: expected 0 to {most}")),
    };
    let port =
        |key: &str| number(key, u16::MAX.into()).map(|p| p.map(|p| u16::try_from(p).unwrap_or_default()));
    let (source, destination): (std::net::IpAddr, std::net::IpAddr) =
        (address("source")?, address("destination")?);
    if source.is_ipv4() != destination.is_ipv4() {
        return Err("source and destination must be of the same IP version".to_owned());
    }
    let ports = match (port("source_port")?, port("destination_port")?) {
        (None, None) => None,
        (source, destination) => Some((source.unwrap_or(0), destination.unwrap_or(0))),
    };
    let byte = |key: &str| number(key, 255).map(|n| n.and_then(|n| u8::try_from(n).ok()));
    let message = byte("message_type")?.zip(Some(byte("message_code")?.unwrap_or(0)));
    let interface = match &request["interface"] {
        Value::Null => Interface::MAIN,
        name => name
            .as_str()
            .and_then(|name| configuration.interface_named(name))
            .ok_or_else(|| format!("interface: the gateway has none of the name {name}"))?,
    };
    Ok(Question {
        interface,
        side: match request["side"].as_str() {
            Some("protected") => Side::Protected,
            Some("unprotected") => Side::Unprotected,
            _ => return Err("side: expected \"protected\" or \"unprotected\"".to_owned()),
        },
        source,
        destination,
        protocol: u8::try_from(number("protocol", 255)?.unwrap_or(0)).unwrap_or(0),
        dscp: u8::try_from(number("dscp", 63)?.unwrap_or(0)).unwrap_or(0),
        ports,
        message,
        is_later_fragment: request["fragment"] == true,
    })
}

/// Why a running gateway could not be queried.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No gateway listens there.
    #[error("no gateway answers at {}: {source}; is it running, and are you its user?", path.display())]
    Unreachable {
        /// The control socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// It closed the connection before answering.
    #[error("the gateway at {} closed the connection without an answer: has it just ended?", .0.display())]
    Closed(PathBuf),
    /// It did not answer in time, or the answer is not JSON.
    #[error("the gateway's answer could not be read: {0}")]
    Unreadable(String),
    /// It refused the request.
    #[error("the gateway says: {0}")]
    Refused(String),
}

/// Bytes of an answer at most: more than a hundred thousand SAs take.
const MOST_BYTES: u64 = 256 << 20;

/// Queries the gateway that listens on `path`.
///
/// # Errors
/// [`AskError`] says why there is no answer.
pub fn ask(path: &Path, request: &Value) -> Result<Value, AskError> {
    let stream = UnixStream::connect(path)
        .map_err(|source| AskError::Unreachable { path: path.to_owned(), source })?;
    let mut stream = Timed::new(stream, PATIENCE);
    // A gateway that refuses may have answered and closed before the request was sent; its answer can still
    // be read.
    let sent = write_line(&mut stream, request);
    let mut line = Vec::new();
    let read = (&mut stream).take(MOST_BYTES).read_to_end(&mut line);
    if line.is_empty() {
        return Err(match sent.and(read.map(drop)) {
            Err(e) if !is_closed(&e) => AskError::Unreadable(e.to_string()),
            _ => AskError::Closed(path.to_owned()),
        });
    }
    let reply: Value = serde_json::from_slice(&line).map_err(|e| AskError::Unreadable(e.to_string()))?;
    match reply.get("error").and_then(Value::as_str) {
        Some(error) => Err(AskError::Refused(error.to_owned())),
        None => Ok(reply),
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const LONG: Duration = Duration::from_secs(60);
    const STRANGER: u32 = 4711;

    /// A socket in its own folder that echoes requests.
    struct Echo {
        folder: tempfile::TempDir,
        socket: ControlSocket,
    }

    impl Echo {
        fn to(identify: fn(&UnixStream) -> io::Result<u32>, patience: Duration) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let socket = ControlSocket::bind(&folder.path().join("made/control.sock")).unwrap();
            let reply = |line: &[u8], _| serde_json::from_slice(line).map_err(|e| e.to_string());
            socket.serve_users(identify, patience, reply).unwrap();
            Self { folder, socket }
        }

        /// Why the query failed.
        fn refusal(&self) -> String {
            ask(&self.socket.path, &json!({ "verb": "status" })).unwrap_err().to_string()
        }

        /// The answer to arbitrary bytes.
        fn answer(&self, request: &[u8]) -> String {
            let mut client = UnixStream::connect(&self.socket.path).unwrap();
            client.write_all(request).unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            answer
        }
    }

    #[test]
    fn the_gateways_user_is_answered_and_the_file_is_for_that_user_alone() {
        let echo = Echo::to(user_of, LONG);
        let request = json!({ "verb": "status" });
        assert_eq!(ask(&echo.socket.path, &request).unwrap(), request);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&echo.socket.path), 0o600);
        assert_eq!(mode(&echo.folder.path().join("made")), 0o700);
    }

    #[test]
    fn a_client_of_another_user_is_told_who_may_ask() {
        let refusal = Echo::to(|_| Ok(STRANGER), LONG).refusal();
        assert!(refusal.starts_with("the gateway says: only root "), "{refusal}");
        assert!(refusal.ends_with("may ask this gateway, and you are user 4711"), "{refusal}");
        let refusal = Echo::to(|_| Err(ErrorKind::Unsupported.into()), LONG).refusal();
        assert!(refusal.contains("the system does not tell who asks"), "{refusal}");
    }

    #[test]
    fn the_ninth_client_is_told_that_there_are_too_many() {
        let echo = Echo::to(user_of, LONG);
        let idle: Vec<_> =
            (0..LIMITS.served).map(|_| UnixStream::connect(&echo.socket.path).unwrap()).collect();
        for _ in 0..3 {
            assert_eq!(echo.refusal(), "the gateway says: too many clients: try again");
        }
        drop(idle);
    }

    #[test]
    fn a_client_that_never_ends_its_request_is_told_when_its_time_is_over() {
        let echo = Echo::to(user_of, Duration::from_millis(50));
        let answer = echo.answer(b"{");
        assert!(answer.contains("the request was not received: timed out"), "{answer}");
    }

    #[test]
    fn malformed_requests_get_a_reason() {
        let echo = Echo::to(user_of, LONG);
        assert!(echo.answer(b"rubbish\n").contains("expected value"));
        assert!(echo.answer(b"\xFF\n").contains("error"));
        assert!(echo.answer(&[b'x'; 5000]).contains("error"));
    }

    /// The error when the gateway does this to the connection.
    fn told_by(gateway: impl FnOnce(UnixStream) + Send + 'static) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || gateway(listener.accept().unwrap().0));
        let told = ask(&path, &json!({ "verb": "status" })).unwrap_err().to_string();
        server.join().unwrap();
        told
    }

    #[test]
    fn an_answer_before_a_reset_is_reported_and_never_a_bare_reset() {
        let refused = told_by(|mut stream| stream.write_all(b"{\"error\":\"no\"}\n").unwrap());
        assert_eq!(refused, "the gateway says: no");
        let silent = told_by(|mut stream| {
            // The request is unread, so closing resets the connection.
            stream.read_exact(&mut [0]).unwrap();
        });
        assert!(silent.ends_with("closed the connection without an answer: has it just ended?"), "{silent}");
    }
}
