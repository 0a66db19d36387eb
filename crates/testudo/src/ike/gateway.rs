//! The gateway that daemons are to drive: its name, interface and socket, by its configuration.

use super::host::Host;
use crate::cli::ike::SetupArgs;
use crate::exit::{Failure, Kind};
use crate::query::DEFAULT_CONTROL;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The gateway's socket for daemons where nobody says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/testudo/xfrm.sock";
/// The library's place below a prefix.
const LIBRARY: &str = "lib/testudo/libtestudo-xfrm.so";
const FOLDER: &str = "/etc/testudo";
/// `sun_path` of unix(7), with its final zero.
const MAX_SOCKET_BYTES: usize = 107;

/// What a set-up is about.
#[derive(Debug)]
pub struct Gateway {
    /// NAME in testudo@NAME and /etc/testudo/NAME.toml.
    pub name: String,
    /// Its TUN interface.
    pub interface: String,
    /// Its socket for daemons.
    pub socket: PathBuf,
    /// The library that daemons load.
    pub library: PathBuf,
    /// `[ike]` of its configuration, if there is one.
    pub section: Option<Section>,
}

/// `[ike]` of a configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Section {
    /// Its socket, if it says.
    pub socket: Option<String>,
    /// The user that may connect, if it says.
    pub user: Option<String>,
}

impl Gateway {
    /// The gateway that the command line means.
    ///
    /// # Errors
    /// There are several, or none is named and none configured; its configuration is no TOML; a name or path
    /// has characters that the files to be written would take for something else.
    pub fn find(host: &Host, args: &SetupArgs) -> Result<Self, Failure> {
        let name = match &args.gateway {
            Some(name) => name.clone(),
            None => only_one(host)?,
        };
        checked_name("--gateway", &name)?;
        let path = PathBuf::from(format!("{FOLDER}/{name}.toml"));
        let wrong = |what: String| Failure::new(Kind::Configuration, format!("{}: {what}", path.display()));
        let text = host.text(&path);
        let table = DeTable::parse(&text).map_err(|e| wrong(e.message().to_owned()))?;
        let at = |section: &str| table.get_ref().get(section).map(Spanned::get_ref);
        let name_of = |port: &DeValue<'_>| {
            port.get("protected")?.get_ref().get("name")?.get_ref().as_str().map(str::to_owned)
        };
        let configured = at("port").and_then(name_of);
        let interface = args.interface.clone().or(configured).ok_or_else(|| {
            wrong("it names no interface: write the configuration first, or give --interface NAME".into())
        })?;
        checked_name("the interface", &interface)?;
        let section = at("ike").map(Section::of);
        let of_section = section.as_ref().and_then(|section| section.socket.clone()).map(PathBuf::from);
        let socket = args.socket.clone().or(of_section).unwrap_or_else(|| DEFAULT_SOCKET.into());
        let library = args.library.clone().unwrap_or_else(|| installed_library(host));
        for (what, path) in [("the socket", &socket), ("the library", &library)] {
            let is_absolute = path.is_absolute();
            checked(what, path.to_str().filter(|_| is_absolute).unwrap_or_default())?;
        }
        if socket.as_os_str().len() > MAX_SOCKET_BYTES {
            return Err(wrong(format!("the socket's path is longer than {MAX_SOCKET_BYTES} bytes")));
        }
        Ok(Self { name, interface, socket, library, section })
    }

    /// What stands in the way on the gateway's side, and what to do.
    pub fn shortcomings(&self, host: &Host, daemon_user: &str) -> Vec<String> {
        let mut missing = Vec::new();
        let unit = format!("testudo@{}.service", self.name);
        if host.unit("testudo@.service").is_none() && host.unit(&unit).is_none() {
            missing.push(format!("the service {unit} is not installed: `make install` installs it"));
        }
        let file = format!("{FOLDER}/{}.toml", self.name);
        match &self.section {
            None => missing.push(format!("{file} has no [ike] section: add the one that is shown here")),
            Some(section) => {
                let socket = section.socket.as_deref().unwrap_or(DEFAULT_SOCKET);
                if Path::new(socket) != self.socket {
                    let used = self.socket.display();
                    missing.push(format!(
                        "[ike] of {file} has the socket {socket}, the daemon would use {used}"
                    ));
                }
                let user = section.user.as_deref().unwrap_or("root");
                if user != daemon_user {
                    missing.push(format!(
                        "[ike] of {file} has the user {user}, but the daemon runs as {daemon_user}: set user = \"{daemon_user}\""
                    ));
                }
            }
        }
        missing
    }

    /// The section for its configuration.
    pub fn section_text(&self, daemon_user: &str) -> String {
        format!(
            "[ike]\nsocket = \"{}\"\n# Who may connect: the user that the daemon runs as.\nuser = \"{daemon_user}\"\n\
             # ESP in UDP comes to the daemon's port; the gateway takes it there.\nudp_port = 4500\n",
            self.socket.display()
        )
    }
}

impl Section {
    fn of(value: &DeValue<'_>) -> Self {
        let text = |key: &str| value.get(key)?.get_ref().as_str().map(str::to_owned);
        Self { socket: text("socket"), user: text("user") }
    }
}

/// The control socket of a gateway by its name: as its configuration has it, where that can be read.
pub fn control_of(host: &Host, name: &str) -> PathBuf {
    let text = host.text(Path::new(&format!("{FOLDER}/{name}.toml")));
    let table = DeTable::parse(&text).ok();
    let configured = table.as_ref().and_then(|table| {
        let control = table.get_ref().get("gateway")?.get_ref().get("control")?;
        control.get_ref().as_str().map(PathBuf::from)
    });
    configured.unwrap_or_else(|| DEFAULT_CONTROL.into())
}

/// The name of the only configuration that there is.
fn only_one(host: &Host) -> Result<String, Failure> {
    let names = host.names(FOLDER);
    let names: Vec<_> = names.iter().filter_map(|name| name.strip_suffix(".toml")).collect();
    let words = match names[..] {
        [name] => return Ok(name.to_owned()),
        [] => format!(
            "{FOLDER} has no configuration of a gateway: write one, or give --gateway NAME --interface NAME"
        ),
        _ => format!("{FOLDER} has several gateways, {}: say which with --gateway NAME", names.join(", ")),
    };
    Err(Failure::new(Kind::Configuration, words))
}

/// The library where it is installed, else where `make install` puts it.
fn installed_library(host: &Host) -> PathBuf {
    let places = ["/usr/local/", "/usr/"].map(|prefix| format!("{prefix}{LIBRARY}"));
    let found = places.iter().find(|place| host.has(place)).unwrap_or(&places[0]);
    found.into()
}

fn checked_name(what: &str, name: &str) -> Result<(), Failure> {
    checked(what, if name.contains('/') { "" } else { name })
}

/// Refuses what systemd, AppArmor, a shell or the dynamic linker would not take for itself: spaces and colons
/// part libraries in LD_PRELOAD, % is systemd's, * and [ are AppArmor's.
fn checked(what: &str, text: &str) -> Result<(), Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) && !text.contains("..") {
        return Ok(());
    }
    let words = format!(
        "{what}: expected letters, digits and . _ - + and, for a path, / between them and at its beginning"
    );
    Err(Failure::new(Kind::Configuration, words))
}
