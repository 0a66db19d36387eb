//! Two hosts and a cable between them.

use super::config::Config;
use super::gateway::{Gateway, init};
use super::{Outcome, folder};
use std::path::PathBuf;
use testudo_lab::namespaces::{Entered, Namespace, enter, enter_as_root, veth};

/// The interface of both hosts towards the cable.
pub const LINK: &str = "wan";

/// Hosts A (192.0.2.1) and B (192.0.2.2), and the number of the last folder that a test created.
pub struct Link {
    pub a: Namespace,
    pub b: Namespace,
    folders: u32,
}

impl Link {
    /// Enters private namespaces and builds the hosts.
    pub fn build() -> Outcome<Self> {
        Self::build_in(enter()?)
    }

    /// The same as root of all: for programs in the kernel.
    pub fn build_as_root() -> Outcome<Self> {
        Self::build_in(enter_as_root()?)
    }

    fn build_in(inside: Entered) -> Outcome<Self> {
        let link = Self { a: Namespace::new(inside, "a")?, b: Namespace::new(inside, "b")?, folders: 0 };
        veth((&link.a, LINK), (&link.b, LINK))?;
        link.a.address(LINK, "192.0.2.1/24")?;
        link.b.address(LINK, "192.0.2.2/24")?;
        for host in [&link.a, &link.b] {
            for interface in ["all", "default", LINK] {
                // The tests send packets with others' source addresses.
                host.sysctl(&format!("net.ipv4.conf.{interface}.rp_filter"), "0")?;
            }
        }
        Ok(link)
    }

    /// A new folder with this configuration and its keys.
    pub fn write(&mut self, config: &Config) -> Outcome<PathBuf> {
        self.folders += 1;
        let folder = folder(&self.folders.to_string())?;
        config.write(&folder)?;
        Ok(folder)
    }

    /// As [`write`](Self::write), with a durable store.
    pub fn prepare(&mut self, config: &Config) -> Outcome<PathBuf> {
        let folder = self.write(config)?;
        init(&folder)?;
        Ok(folder)
    }

    /// Starts a gateway on A.
    pub fn start_a(&mut self, config: &Config) -> Outcome<(Gateway, PathBuf)> {
        let folder = self.prepare(config)?;
        Ok((Gateway::start(&self.a, &folder)?, folder))
    }

    /// Starts a gateway on B.
    pub fn start_b(&mut self, config: &Config) -> Outcome<(Gateway, PathBuf)> {
        let folder = self.prepare(config)?;
        Ok((Gateway::start(&self.b, &folder)?, folder))
    }
}
