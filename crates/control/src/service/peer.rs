//! Identifies the client of the control socket.

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::io;
use std::os::unix::net::UnixStream;

/// Holds the number that the kernel shows for users that the reader's user namespace does not map.
const OVERFLOW_UID: &str = "/proc/sys/kernel/overflowuid";
/// The users that this process's user namespace maps (`man 7 user_namespaces`).
const UID_MAP: &str = "/proc/self/uid_map";

/// The superuser.
const ROOT: u32 = 0;

/// The user of the process that connected, as seen from the gateway's user namespace: a client outside of it
/// counts as the user that its own is mapped to.
///
/// # Errors
/// The kernel does not say.
pub(super) fn user_of(stream: &UnixStream) -> io::Result<u32> {
    // Not rustix's `socket_peercred`: a client outside the gateway's PID namespace has the process number 0
    // here, which rustix's return type cannot hold, so that it fails with an error that names no cause.
    Ok(getsockopt(stream, PeerCredentials)?.uid())
}

/// Whether this user may use the socket: the gateway's own user may, and so may root, who can do anything
/// anyway and manages gateways that run as another user.
///
/// Returns it.
///
/// # Errors
/// The message for the client.
pub(super) fn check_user(user: io::Result<u32>) -> Result<u32, String> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let own = rustix::process::geteuid().as_raw();
    let user = user.map_err(|e| format!("the system does not tell who asks: {e}"))?;
    judge(user, own, &read(OVERFLOW_UID), &read(UID_MAP)).map(|()| user)
}

fn judge(user: u32, own: u32, overflow: &str, map: &str) -> Result<(), String> {
    let is_known = is_one_user(user, overflow, map);
    if is_known && (user == own || user == ROOT) {
        return Ok(());
    }
    let may = if own == ROOT { "root".to_owned() } else { format!("root and user {own}, its own,") };
    let foreign =
        if is_known { "" } else { ", as users are called that its user namespace has no number for" };
    Err(format!("only {may} may ask this gateway, and you are user {user}{foreign}"))
}

/// Whether `uid` identifies one user. If some users are not mapped, they all share the overflow number.
fn is_one_user(uid: u32, overflow: &str, map: &str) -> bool {
    let is_whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
    is_whole || overflow.trim().parse().is_ok_and(|overflow: u32| uid != overflow)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_users_are_not_taken_for_one_another() {
        let (whole, root_only) = ("         0          0 4294967295\n", "0 1000 1\n");
        assert!(is_one_user(0, "65534\n", whole) && is_one_user(0, "65534\n", root_only));
        assert!(is_one_user(65534, "65534\n", whole), "the user nobody of a host");
        assert!(!is_one_user(65534, "65534\n", root_only));
        assert!(!is_one_user(0, "", ""), "what cannot be known is not assumed");
    }

    #[test]
    fn a_client_of_this_process_is_its_own_user() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(check_user(user_of(&one)), Ok(rustix::process::geteuid().as_raw()));
    }

    #[test]
    fn a_refusal_names_who_may_ask_and_who_asked() {
        let whole = "0 0 4294967295";
        let told = |user, own, map| judge(user, own, "65534", map).unwrap_err();
        assert_eq!(told(1000, 0, whole), "only root may ask this gateway, and you are user 1000");
        assert_eq!(
            told(1000, 998, whole),
            "only root and user 998, its own, may ask this gateway, and you are user 1000"
        );
        assert!(told(65534, 0, "0 1000 1").ends_with("that its user namespace has no number for"));
        assert!(told(65534, 65534, "0 1000 1").ends_with("that its user namespace has no number for"));
        assert_eq!(judge(0, 998, "65534", whole), Ok(()));
        assert_eq!(judge(998, 998, "65534", whole), Ok(()));
    }
}
