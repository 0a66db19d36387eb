//! strongSwan's charon-systemd as a user has it, started for a run: its files are in the run's folder, and it
//! is spoken to through swanctl.
//!
//! It loads `libtestudo-xfrm.so`, so that its keys go to a gateway and not to the kernel.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{LabError, io};
use crate::namespaces::Namespace;
use crate::programs::{POLL, end_of_log, find_program, run_to_end, terminate};
use crate::workspace::write_private;

/// What a user of Debian installs.
const PACKAGES: &str = "charon-systemd strongswan-swanctl";
/// Folders of daemons, which a user's path need not have.
const FOLDERS: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/sbin"];
const LIBRARY: &str = "libtestudo-xfrm.so";
/// Those that a connection with a shared secret needs; kernel-libipsec, bypass-lan and the like would stand
/// in the gateway's way.
const PLUGINS: &str = "random nonce openssl aes sha1 sha2 hmac kdf gcm ccm chapoly curve25519 md5 des pem pkcs1 \
                       pkcs8 x509 pubkey constraints kernel-netlink socket-default vici";
const READY_WITHIN: Duration = Duration::from_secs(20);

/// The files of strongSwan and of the library that a run uses.
#[derive(Debug)]
pub(crate) struct Installed {
    charon: PathBuf,
    swanctl: PathBuf,
    library: PathBuf,
}

impl Installed {
    /// Finds them. `library` is the file that daemons load, if somebody names it; else it is looked for
    /// beside the program, and where `make install` puts it.
    ///
    /// # Errors
    /// Something is not there; the error says what to install.
    pub(crate) fn find(library: Option<&Path>) -> Result<Self, LabError> {
        let charon = daemon("charon-systemd").ok_or(LabError::MissingDaemon { packages: PACKAGES })?;
        let swanctl = daemon("swanctl").ok_or(LabError::MissingDaemon { packages: PACKAGES })?;
        let library = match library {
            Some(named) => Some(named.to_owned()),
            None => own_library(),
        };
        let library = library.filter(|file| file.is_file()).ok_or(LabError::MissingLibrary)?;
        let library = library.canonicalize().map_err(io(format!("find {}", library.display())))?;
        Ok(Self { charon, swanctl, library })
    }
}

fn daemon(name: &str) -> Option<PathBuf> {
    let elsewhere = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
    find_program(name).or_else(|| elsewhere.into_iter().find(|file| file.is_file()))
}

/// The library beside the program, or below the same prefix, or below a usual one.
fn own_library() -> Option<PathBuf> {
    let program = std::env::current_exe().ok();
    let folder = program.as_deref().and_then(Path::parent);
    let beside = folder.map(|folder| folder.join(LIBRARY));
    let prefixes = folder.and_then(Path::parent).into_iter().chain(["/usr/local", "/usr"].map(Path::new));
    let installed = prefixes.map(|prefix| prefix.join("lib/testudo").join(LIBRARY));
    beside.into_iter().chain(installed).find(|file| file.is_file())
}

/// A running charon. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Charon {
    name: String,
    swanctl: PathBuf,
    folder: PathBuf,
    child: Child,
}

impl Charon {
    /// Starts it in `namespace` as a client of the gateway that listens at `socket`, and returns when it can
    /// be spoken to. Its files are in `folder`, which is made.
    ///
    /// # Errors
    /// It ends, or does not answer in time; the error shows the end of its log.
    pub(crate) fn start(
        namespace: &Namespace,
        installed: &Installed,
        name: &str,
        folder: &Path,
        socket: &Path,
    ) -> Result<Self, LabError> {
        fs::create_dir(folder).map_err(io(format!("make the folder {}", folder.display())))?;
        write_private(&folder.join("strongswan.conf"), &settings(folder))?;
        let output = folder.join("output");
        let output = File::create(&output).map_err(io(format!("write {}", output.display())))?;
        let errors = output.try_clone().map_err(io("share a file"))?;
        let child = namespace
            .command(&installed.charon)
            .env("LD_PRELOAD", &installed.library)
            .env("TESTUDO_XFRM", socket)
            .env("STRONGSWAN_CONF", folder.join("strongswan.conf"))
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(io(format!("start {name}")))?;
        let (name, swanctl) = (name.to_owned(), installed.swanctl.clone());
        let mut charon = Self { name, swanctl, folder: folder.to_owned(), child };
        charon.wait_until_ready()?;
        Ok(charon)
    }

    fn wait_until_ready(&mut self) -> Result<(), LabError> {
        let deadline = Instant::now() + READY_WITHIN;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().map_err(io(format!("look after {}", self.name)))? {
                return Err(self.complaint(&format!("has ended by itself ({status})")));
            }
            if self.folder.join("vici").exists() && self.swanctl(&["--stats"]).is_ok() {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        let what = format!("{} did not answer{}", self.name, self.end_of_log());
        Err(LabError::TooLate { what, limit: READY_WITHIN })
    }

    /// What `swanctl` prints with these words.
    ///
    /// # Errors
    /// It fails; the error shows what it says, and the end of the daemon's log.
    pub(crate) fn swanctl(&self, words: &[&str]) -> Result<String, LabError> {
        let mut command = Command::new(&self.swanctl);
        command
            .args(words)
            .arg("--uri")
            .arg(format!("unix://{}/vici", self.folder.display()))
            .env("STRONGSWAN_CONF", self.folder.join("strongswan.conf"))
            .env("SWANCTL_DIR", &self.folder);
        let what = format!("{}: swanctl {}", self.name, words.join(" "));
        run_to_end(&mut command, &what).map_err(|error| self.complaint(&error.to_string()))
    }

    /// Its name and version, such as "strongSwan 5.9.8".
    ///
    /// # Errors
    /// As [`swanctl`](Self::swanctl).
    pub(crate) fn version(&self) -> Result<String, LabError> {
        let said = self.swanctl(&["--version", "--daemon"])?;
        let words: Vec<&str> = said.split_whitespace().take(2).collect();
        Ok(words.join(" "))
    }

    /// Gives it connections and secrets.
    ///
    /// # Errors
    /// It refuses them.
    pub(crate) fn load(&self, configuration: &str) -> Result<(), LabError> {
        write_private(&self.folder.join("swanctl.conf"), configuration)?;
        self.swanctl(&["--load-all", "--noprompt"]).map(drop)
    }

    /// Ends it as systemd would: it deletes its SAs, and tells its peer.
    ///
    /// # Errors
    /// It had ended before, does not end in time, or ends with an error.
    pub(crate) fn stop(mut self) -> Result<(), LabError> {
        let log = || log_of(&self.folder);
        let status = terminate(&mut self.child, &self.name, log)?;
        if status.success() {
            return Ok(());
        }
        Err(self.complaint(&format!("ended with an error on SIGTERM ({status})")))
    }

    fn complaint(&self, what: &str) -> LabError {
        let complaint = format!("{what}{}{}", self.end_of_log(), confinement());
        LabError::Program { program: self.name.clone(), complaint }
    }

    fn end_of_log(&self) -> String {
        end_of_log(&log_of(&self.folder))
    }
}

/// All that it has said.
fn log_of(folder: &Path) -> String {
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    read("log") + &read("output")
}

impl Drop for Charon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Why a daemon may be unable to read its own files, as the end of an error message.
fn confinement() -> &'static str {
    let is_on =
        fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|on| on.trim() == "Y");
    let has_profile = Path::new("/etc/apparmor.d/usr.sbin.charon-systemd").exists();
    if is_on && has_profile {
        "\nAppArmor's profile of charon-systemd keeps it from files in temporary folders: for the demonstration, \
         `sudo aa-complain /usr/sbin/charon-systemd /usr/sbin/swanctl`, and `aa-enforce` after it"
    } else {
        ""
    }
}

/// `strongswan.conf`: everything in its folder, nothing of the kernel's routing touched, and an old inbound
/// SA kept for a second after its successor is in use.
fn settings(folder: &Path) -> String {
    let shown = folder.display();
    format!(
        "charon-systemd {{\n  load = {PLUGINS}\n  install_routes = no\n  routing_table = 0\n  \
         delete_rekeyed_delay = 1\n  plugins {{ vici {{ socket = unix://{shown}/vici }} }}\n  \
         journal {{ default = -1 }}\n  filelog {{ log {{ path = {shown}/log\n flush_line = yes }} }}\n}}\n\
         swanctl {{ load = random openssl pem pkcs1 pkcs8 x509 }}\n"
    )
}
