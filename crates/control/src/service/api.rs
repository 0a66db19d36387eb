//! The control socket: one JSON request a line, one JSON answer a line, for the gateway's own user and for nobody else.

use super::installed::InstalledTunnels;
use super::peer::is_own_user;
use super::report::{self, Facts, Peers, Question, Side};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The longest request, in bytes, its line end among them.
const MAX_REQUEST_BYTES: u64 = 4096;
/// Clients served at the same time; more are told to come back.
const MAX_CLIENTS: usize = 8;
/// How long a client may take over its request, and over reading the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the control plane's threads share.
#[derive(Debug)]
pub struct Shared {
    /// What does not change.
    pub facts: Facts,
    /// The tunnels that run.
    pub installed: Mutex<Arc<InstalledTunnels>>,
    /// Where peers whose address is learned were last heard from.
    pub peers: Mutex<Peers>,
}

impl Shared {
    /// The tunnels that run now.
    #[must_use]
    pub fn installed(&self) -> Arc<InstalledTunnels> {
        Arc::clone(&self.installed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where peers whose address is learned were last heard from.
    pub fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Other tunnels run from now on.
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

/// The socket, which is removed when this is dropped.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ControlSocket {
    /// Listens on `path`. The directory is made (for us alone) if it is missing; a socket that nobody listens on any more is replaced. The
    /// process's umask must keep others out: the program sets it to 077 at its start.
    ///
    /// # Errors
    /// [`BindError`] if another gateway listens there, something else is in the way, or the system refuses.
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
        let listener = UnixListener::bind(path).map_err(|e| error(e.to_string()))?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Serves clients until the process ends, each on a thread of its own.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn serve(&self, shared: Arc<Shared>) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        let clients = Arc::new(AtomicUsize::new(0));
        std::thread::Builder::new().name("control".into()).spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, clients) = (Arc::clone(&shared), Arc::clone(&clients));
                if clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS {
                    clients.fetch_sub(1, Ordering::Relaxed);
                    let _ = answer(&stream, &json!({ "error": "too many clients" }));
                    continue;
                }
                let count = Arc::clone(&clients);
                let spawned = std::thread::Builder::new().name("control-client".into()).spawn(move || {
                    // A client that went away is no concern of ours.
                    let _ = serve_client(&stream, &shared);
                    clients.fetch_sub(1, Ordering::Relaxed);
                });
                if spawned.is_err() {
                    count.fetch_sub(1, Ordering::Relaxed);
                }
            }
        })?;
        Ok(())
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve_client(stream: &UnixStream, shared: &Shared) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    if !is_own_user(stream)? {
        return answer(stream, &json!({ "error": "only the gateway's own user may ask" }));
    }
    converse(stream, stream, shared)
}

/// Reads one request from `input` and writes the answer to `output`, a line each.
///
/// # Errors
/// Those of reading and writing. What is wrong with the request is an answer.
pub fn converse(input: impl Read, output: impl Write, shared: &Shared) -> io::Result<()> {
    let mut line = Vec::new();
    // One byte more, to tell a request that is too long from one that just fits.
    BufReader::new(input.take(MAX_REQUEST_BYTES + 1)).read_until(b'\n', &mut line)?;
    let reply = reply(&line, shared).unwrap_or_else(|e| json!({ "error": e }));
    answer(output, &reply)
}

fn answer(mut output: impl Write, reply: &Value) -> io::Result<()> {
    output.write_all(format!("{reply}\n").as_bytes())
}

/// The answer to one request; anyone's bytes may stand in it.
fn reply(line: &[u8], shared: &Shared) -> Result<Value, String> {
    if line.len() as u64 > MAX_REQUEST_BYTES {
        return Err(format!("the request is longer than {MAX_REQUEST_BYTES} bytes"));
    }
    let request: Value = serde_json::from_slice(line).map_err(|e| format!("the request is no JSON: {e}"))?;
    let installed = shared.installed();
    match request["verb"].as_str() {
        Some("status") => Ok(report::status(&shared.facts, &installed)),
        Some("sa-list") => Ok(report::security_associations(&installed, &shared.peers())),
        Some("policy-list") => Ok(report::policies(&installed)),
        Some("explain") => Ok(report::explain(&installed, &shared.peers(), &question(&request)?)),
        _ => Err("unknown verb".to_owned()),
    }
}

fn question(request: &Value) -> Result<Question, String> {
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
    Ok(Question {
        side: match request["side"].as_str() {
            Some("protected") => Side::Protected,
            Some("unprotected") => Side::Unprotected,
            _ => return Err("side: expected \"protected\" or \"unprotected\"".to_owned()),
        },
        source,
        destination,
        protocol: u8::try_from(number("protocol", 255)?.unwrap_or(0)).unwrap_or(0),
        ports,
    })
}

/// A running gateway could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No gateway listens there.
    #[error("no gateway answers at {}: {source}; is it running, and are you its user?", path.display())]
    Unreachable {
        /// The control socket.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It did not answer in time, or not in JSON.
    #[error("the gateway's answer could not be read: {0}")]
    Unreadable(String),
    /// It refused.
    #[error("the gateway says: {0}")]
    Refused(String),
}

/// Asks the gateway that listens on `path`.
///
/// # Errors
/// [`AskError`] says why there is no answer.
pub fn ask(path: &Path, request: &Value) -> Result<Value, AskError> {
    let stream = UnixStream::connect(path)
        .map_err(|source| AskError::Unreachable { path: path.to_owned(), source })?;
    let unreadable = |e: io::Error| AskError::Unreadable(e.to_string());
    stream.set_read_timeout(Some(PATIENCE)).map_err(unreadable)?;
    answer(&stream, request).map_err(unreadable)?;
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).map_err(unreadable)?;
    let reply: Value = serde_json::from_str(&line).map_err(|e| AskError::Unreadable(e.to_string()))?;
    match reply.get("error").and_then(Value::as_str) {
        Some(error) => Err(AskError::Refused(error.to_owned())),
        None => Ok(reply),
    }
}
