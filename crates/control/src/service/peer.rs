//! Who is at the other end of the control socket.

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io;
use std::os::unix::net::UnixStream;

/// What the kernel shows of a user that the reader's user namespace has no number for.
const OVERFLOW_UID: &str = "/proc/sys/kernel/overflowuid";
/// Which users this process's user namespace has numbers for (`man 7 user_namespaces`).
const UID_MAP: &str = "/proc/self/uid_map";

/// Whether the process that connected runs as the gateway's own user, both as seen from the gateway's user namespace:
/// a client outside of it counts by the user that its own is mapped to.
///
/// # Errors
/// The kernel does not tell.
pub(super) fn is_own_user(stream: &UnixStream) -> io::Result<bool> {
    // Not rustix's `socket_peercred`: a client outside of the gateway's PID namespace has the process number 0 here, which
    // does not fit the type that it returns, and comes out as an error without a cause.
    let peer = getsockopt(stream, PeerCredentials)?.uid();
    let own = rustix::process::geteuid().as_raw();
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    Ok(peer == own && is_one_user(own, &read(OVERFLOW_UID), &read(UID_MAP)))
}

/// Whether `uid` names one user. Where not all users are mapped, those that are not share the overflow number.
fn is_one_user(uid: u32, overflow: &str, map: &str) -> bool {
    let is_whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
    is_whole || overflow.trim().parse().is_ok_and(|overflow: u32| uid != overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_without_a_number_are_not_taken_for_one_another() {
        let (whole, root_only) = ("         0          0 4294967295\n", "0 1000 1\n");
        assert!(is_one_user(0, "65534\n", whole) && is_one_user(0, "65534\n", root_only));
        assert!(is_one_user(65534, "65534\n", whole), "the user nobody of a host");
        assert!(!is_one_user(65534, "65534\n", root_only));
        assert!(!is_one_user(0, "", ""), "what cannot be known is not assumed");
    }

    #[test]
    fn a_client_of_this_process_is_its_own_user() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(is_own_user(&one).unwrap());
    }
}
