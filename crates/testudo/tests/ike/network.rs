//! Two hosts, a cable between them, and the daemons' files.

use crate::connection::Connection;
use crate::host::Host;
use crate::strongswan::Charon;
use crate::support::{Outcome, ensure};
use rustix::mount::{MountFlags, mount, mount_bind};
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testudo_lab::namespaces::{Entered, Namespace, NamespaceError, is_inside};

/// The interface of both hosts.
pub const LINK: &str = "wan";

/// Hosts A (192.0.2.1) and B (192.0.2.2).
pub struct Network {
    pub a: Host,
    pub b: Host,
    pub root: PathBuf,
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of what is built, and unpacked.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from)
}

/// Where the daemons' files are.
pub fn daemons() -> PathBuf {
    target().join("ike-daemons")
}

pub fn runs(command: &mut Command) -> Outcome<()> {
    let output = command.stdin(Stdio::null()).output()?;
    ensure(output.status.success(), || format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Puts the daemons' files over `/usr`, for this mount namespace alone.
fn mount_daemons(cache: &Path) -> Outcome<()> {
    // By a path without the characters that separate the options of overlayfs.
    let lower = Path::new("/run/testudo-ike");
    fs::create_dir_all(lower)?;
    mount_bind(cache.join("usr"), lower)?;
    let options = CString::new(format!("lowerdir={}:/usr", lower.display()))?;
    mount("overlay", "/usr", "overlay", MountFlags::RDONLY, options.as_c_str())
        .map_err(|error| format!("mounting an overlay on /usr: {error}"))?;
    Ok(())
}

impl Network {
    /// Fetches the daemons, enters private namespaces, and builds the hosts on a cable.
    pub fn build(
        enter: impl FnOnce() -> Result<Entered, NamespaceError>,
        cable: impl FnOnce((&Namespace, &str), (&Namespace, &str)) -> Result<(), NamespaceError>,
    ) -> Outcome<Self> {
        let cache = daemons();
        if !is_inside() {
            // While there is a network.
            runs(Command::new(repository().join("tests/ike/unpack.sh")).arg(&cache))?;
        }
        let inside = enter()?;
        mount_daemons(&cache)?;
        let root = crate::support::folder("ike")?;
        runs(Command::new(repository().join("scripts/shim.sh")).arg(&root).arg("xfrm"))?;
        let library = root.join("libtestudo-xfrm.so");
        let (a, b) = (Namespace::new(inside, "a")?, Namespace::new(inside, "b")?);
        cable((&a, LINK), (&b, LINK))?;
        for (host, addresses) in
            [(&a, ["192.0.2.1/24", "2001:db8::1/64"]), (&b, ["192.0.2.2/24", "2001:db8::2/64"])]
        {
            for address in addresses {
                host.address(LINK, address)?;
            }
        }
        Ok(Self {
            a: Host::new(a, &["192.0.2.1", "2001:db8::1", "10.1.0.1"], &library)?,
            b: Host::new(b, &["192.0.2.2", "2001:db8::2", "10.2.0.1"], &library)?,
            root,
        })
    }

    pub fn hosts(&self) -> [&Host; 2] {
        [&self.a, &self.b]
    }

    /// Two charons with a connection, and gateways that have nothing.
    pub fn charons(&mut self, connection: &Connection) -> Outcome<[Charon; 2]> {
        self.charons_with("", connection)
    }

    /// The same with further settings of both charons.
    pub fn charons_with(&mut self, settings: &str, connection: &Connection) -> Outcome<[Charon; 2]> {
        self.a.start_gateway()?;
        self.b.start_gateway()?;
        let charons = [Charon::start(&self.a, settings)?, Charon::start(&self.b, settings)?];
        charons[0].load(&connection.of_a())?;
        charons[1].load(&connection.of_b())?;
        Ok(charons)
    }

    /// Two charons with a connection, and the whole program as their gateways.
    pub fn programs(&mut self, settings: &str, connection: &Connection) -> Outcome<[Charon; 2]> {
        self.programs_with([""; 2], settings, connection)
    }

    /// The same with sections in the configurations of A and B.
    pub fn programs_with(
        &mut self,
        sections: [&str; 2],
        settings: &str,
        connection: &Connection,
    ) -> Outcome<[Charon; 2]> {
        self.a.start_program_of("", sections[0])?;
        self.b.start_program_of("", sections[1])?;
        let charons = [Charon::start(&self.a, settings)?, Charon::start(&self.b, settings)?];
        charons[0].load(&connection.of_a())?;
        charons[1].load(&connection.of_b())?;
        Ok(charons)
    }

    /// After everything that a test has done: nothing was refused, and the daemons complain of nothing.
    pub fn all_is_well(&self, charons: &[Charon; 2]) -> Outcome<()> {
        for (host, charon) in self.hosts().into_iter().zip(charons) {
            host.nothing_refused()?;
            let complaints = charon.complaints();
            let name = host.namespace.name();
            ensure(complaints.is_empty(), || {
                format!("{name}: charon complains:\n{}", complaints.join("\n"))
            })?;
        }
        Ok(())
    }
}
