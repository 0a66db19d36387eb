//! The socket that clients speak XFRM to, as a file that its owner and root may connect to.

use super::super::clients::{self, Admission, Limits};
use super::data_path::DataPath;
use super::sessions::XfrmServer;
use rustix::fs::{AtFlags, Mode, OFlags, Uid};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Clients: charon has two connections, pluto three, `ip` one.
const LIMITS: Limits = Limits { served: 32, refused: 8 };
const BACKLOG: i32 = 16;
/// Of the file: root may connect, too.
const OWNER_ALONE: u32 = 0o600;
/// Of its folder, if it was not there: each may come to the file.
const FOLDER: u32 = 0o755;

/// The socket. Dropping this removes it.
#[derive(Debug)]
pub struct XfrmSocket {
    listener: UnixListener,
    path: PathBuf,
}

fn told(error: &io::Error, text: String) -> io::Error {
    io::Error::new(error.kind(), format!("{text}: {error}"))
}

/// Makes the folder of a file, if it is missing.
fn make_folder(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    match DirBuilder::new().mode(FOLDER).create(folder) {
        // The process may have a umask that takes others their way.
        Ok(()) => fs::File::open(folder)?.set_permissions(Permissions::from_mode(FOLDER)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(told(&error, format!("the folder {} cannot be made", folder.display()))),
    }
}

/// Removes a socket that nobody listens on any more: what a gateway left that was killed. Other files stay.
fn remove_left(path: &Path) -> io::Result<()> {
    let Ok(file) = fs::symlink_metadata(path) else { return Ok(()) };
    if !file.file_type().is_socket() {
        let text = format!("{} is there and no socket: move it away, or name another path", path.display());
        return Err(io::Error::new(ErrorKind::AlreadyExists, text));
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    if connect(&socket, &SocketAddrUnix::new(path)?) == Err(rustix::io::Errno::CONNREFUSED) {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Gives the socket at `path`, which was just bound, its mode and its owner. It is opened once and judged, so
/// that nothing else that has come to its path in between changes hands.
fn hand_over(path: &Path, owner: Option<u32>) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if !metadata.file_type().is_socket() || metadata.uid() != own {
        let text = format!("{} is not the socket that was just made there", path.display());
        return Err(io::Error::new(ErrorKind::PermissionDenied, text));
    }
    // The process's umask may have taken from the mode what its owner needs.
    fs::set_permissions(format!("/proc/self/fd/{}", file.as_raw_fd()), Permissions::from_mode(OWNER_ALONE))?;
    let Some(uid) = owner.filter(|uid| *uid != own) else { return Ok(()) };
    let changed = rustix::fs::chownat(&file, "", Some(Uid::from_raw(uid)), None, AtFlags::EMPTY_PATH);
    changed.map_err(|error| {
        let text = format!(
            "{} cannot be given to user {uid}: start the gateway as root or with CAP_CHOWN (systemd: \
             AmbientCapabilities=, CapabilityBoundingSet=), or as that user",
            path.display()
        );
        told(&error.into(), text)
    })
}

impl XfrmSocket {
    /// Listens on `path`, whose folder is made if only it is missing. Root may connect, and `owner`, which is
    /// this process's own user if it is not said; which of them is served, `may` says.
    ///
    /// # Errors
    /// The system refuses, another file is there, or this process may not give it to its owner.
    pub fn bind(path: &Path, owner: Option<u32>) -> io::Result<Self> {
        make_folder(path)?;
        remove_left(path)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // The file has its mode from the start: the kernel copies it from the socket, less the umask.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(OWNER_ALONE))?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        let socket = Self { listener: socket.into(), path: path.to_owned() };
        hand_over(path, owner)?;
        listen(&socket.listener, BACKLOG)?;
        Ok(socket)
    }

    /// Serves clients that `may`, until the process ends.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn serve<D: DataPath + Send + 'static>(
        &self,
        server: Arc<XfrmServer<D>>,
        may: impl Fn(&UnixStream) -> Result<(), String> + Send + Sync + 'static,
    ) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        clients::serve("xfrm", listener, LIMITS, move |stream, admission| {
            let verdict = match admission {
                Admission::Serve => may(&stream),
                Admission::Refuse => Err("too many clients are connected".to_owned()),
            };
            let served = verdict.map_err(io::Error::other).and_then(|()| server.serve(stream));
            served.unwrap_or_else(|error| server.note_disconnected(&error));
        })
    }
}

impl Drop for XfrmSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
