//! What a set-up writes: drop-ins for systemd, and snippets for the configuration of the daemons.

use super::gateway::Gateway;
use crate::cli::ike::DaemonArg;

/// A file that a set-up wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Where, as the host sees it.
    pub path: String,
    /// What is in it: all of it, or what is added to what was there.
    pub content: Content,
    /// Permissions, where it was not there before.
    pub mode: u32,
}

/// What a file has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// This text and no other.
    Whole(String),
    /// What was there before, with this text after it.
    After(String),
}

const HEAD: &str = "# Written by `testudo ike setup`, which takes it back with --undo --apply.\n";

/// The files for one daemon, without those of AppArmor.
pub fn wanted(daemon: DaemonArg, units: &[String], gateway: &Gateway) -> Vec<Wanted> {
    let whole = |path: String, text: String, mode| Wanted { path, content: Content::Whole(text), mode };
    let mut files = vec![whole(
        format!("/etc/systemd/system/testudo@{}.service.d/ike-{}.conf", gateway.name, name(daemon)),
        gateway_unit(),
        0o644,
    )];
    for unit in units {
        let path = format!("/etc/systemd/system/{unit}.d/testudo.conf");
        files.push(whole(path, daemon_unit(gateway), 0o644));
    }
    match daemon {
        DaemonArg::Strongswan => {
            files.push(whole("/etc/strongswan.d/testudo.conf".into(), strongswan(gateway), 0o644));
        }
        DaemonArg::Libreswan => {
            files.push(whole("/etc/ipsec.d/testudo.conf".into(), libreswan(), 0o644));
            files.push(whole(UPDOWN.into(), updown(gateway), 0o755));
        }
    }
    files
}

/// A daemon's name, as on the command line.
pub fn name(daemon: DaemonArg) -> &'static str {
    match daemon {
        DaemonArg::Strongswan => "strongswan",
        DaemonArg::Libreswan => "libreswan",
    }
}

fn daemon_unit(gateway: &Gateway) -> String {
    let Gateway { name, library, socket, .. } = gateway;
    let (library, socket) = (library.display(), socket.display());
    format!(
        "{HEAD}[Unit]
# The gateway first: until it is there, the daemon negotiates nothing.
Wants=testudo@{name}.service
After=testudo@{name}.service
# The dynamic linker goes on without a library that is gone, and the daemon would drive the kernel unnoticed.
AssertPathExists={library}

[Service]
Environment=\"LD_PRELOAD={library}\"
Environment=\"TESTUDO_XFRM={socket}\"
"
    )
}

fn gateway_unit() -> String {
    format!(
        "{HEAD}[Service]
# The gateway gives its socket to the user that the daemon runs as ([ike] user), while it starts. Daemons give up
# CAP_DAC_OVERRIDE, so that even root's needs a socket of its own user, in a folder that it may pass.
RuntimeDirectoryMode=0711
AmbientCapabilities=CAP_CHOWN
CapabilityBoundingSet=CAP_CHOWN
SystemCallFilter=@chown
"
    )
}

fn strongswan(gateway: &Gateway) -> String {
    let interface = &gateway.interface;
    format!(
        "{HEAD}# Names and defaults: strongswan.conf(5). This file is read after charon.conf, so that it wins.
charon {{
    # The gateway routes what is negotiated into {interface}; charon's own routes, in table 220, would lead the
    # packets past it, out in clear.
    install_routes = no
    # As a client: the address that the other end gives belongs where its packets come out.
    install_virtual_ip_on = {interface}
    # No IKE from or to addresses of {interface}, which MOBIKE would offer to the other end; and no looking at
    # all routes again whenever the gateway makes one there.
    interfaces_ignore = {interface}
    plugins {{
        # The gateway is the data path: a second one in charon itself would take the SAs.
        kernel-libipsec {{
            load = no
        }}
    }}
}}
"
    )
}

const UPDOWN: &str = "/etc/ipsec.d/testudo-updown";

fn libreswan() -> String {
    format!(
        "{HEAD}# For all connections that do not say otherwise: ipsec.conf(5).
conn %default
\t# The gateway routes what is negotiated; pluto's own script would lead packets past it.
\tleftupdown=\"{UPDOWN}\"
\trightupdown=\"{UPDOWN}\"
\t# The gateway encrypts, not the network card: pluto asks the card by default.
\tnic-offload=no
"
    )
}

fn updown(gateway: &Gateway) -> String {
    let interface = &gateway.interface;
    format!(
        "#!/bin/sh
{HEAD}# pluto runs this where it would run `ipsec _updown`: ipsec_pluto(8).
case $PLUTO_VERB in
route-* | unroute-*)
    # The gateway routes into {interface} by itself. pluto routes only for an own inner address
    # (leftsourceip=) or MTU (mtu=).
    [ -n \"$PLUTO_MY_SOURCEIP$PLUTO_MTU\" ] || exit 0
    ;;
esac
# Its routes and addresses go to this interface, as they go to an XFRM interface of the kernel.
PLUTO_XFRMI_ROUTE=yes
PLUTO_VIRT_INTERFACE={interface}
export PLUTO_XFRMI_ROUTE PLUTO_VIRT_INTERFACE
exec ipsec _updown \"$@\"
"
    )
}
