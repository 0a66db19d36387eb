//! The file of the socket, and who may connect to it.

use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

#[test]
fn a_socket_that_a_killed_gateway_left_is_replaced() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("xfrm.sock");
    // Bound and closed without being removed.
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    drop(socket);
    assert!(path.exists());
    let _one = XfrmSocket::bind(&path, None).unwrap();
    assert!(XfrmSocket::bind(&path, None).is_err(), "another gateway listens there");
}

#[test]
fn who_may_not_is_disconnected() {
    let served = Served::over(Model::default(), |_| Err("not you".to_owned()));
    assert!(served.client().receive().is_empty());
}

fn mode_of(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn the_folder_is_made_and_the_owner_alone_may_connect() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("testudo/xfrm.sock");
    let socket = XfrmSocket::bind(&path, Some(rustix::process::geteuid().as_raw())).unwrap();
    assert_eq!((mode_of(&path), mode_of(path.parent().unwrap())), (0o600, 0o755));
    drop(socket);
    assert!(!path.exists());
    let deeper = folder.path().join("not/there/xfrm.sock");
    let error = XfrmSocket::bind(&deeper, None).unwrap_err().to_string();
    assert!(error.contains("not/there cannot be made"), "{error}");
}

#[test]
fn a_file_that_is_no_socket_stays() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("xfrm.sock");
    std::fs::write(&path, "somebody's").unwrap();
    let error = XfrmSocket::bind(&path, None).unwrap_err().to_string();
    assert!(error.ends_with("is there and no socket: move it away, or name another path"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody's");
    let link = folder.path().join("link.sock");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(XfrmSocket::bind(&link, None).is_err(), "nor one that is somewhere else");
}

/// What a process with a umask binds, in a process of its own: a umask is all of a process's.
#[test]
fn a_umask_takes_nothing_from_socket_and_folder() {
    const PATH: &str = "TESTUDO_TEST_XFRM_SOCKET";
    if let Some(path) = std::env::var_os(PATH) {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o377));
        let path = PathBuf::from(path);
        let _socket = XfrmSocket::bind(&path, None).unwrap();
        assert_eq!((mode_of(&path), mode_of(path.parent().unwrap())), (0o600, 0o755));
        return;
    }
    let folder = TempDir::new().unwrap();
    let name = "service::xfrm::tests::socket::a_umask_takes_nothing_from_socket_and_folder";
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(PATH, folder.path().join("testudo/xfrm.sock"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&status.stdout);
    assert!(status.status.success() && said.contains("1 passed"), "{said}");
}

/// Root gives it away; another user is told what helps.
#[test]
fn the_socket_belongs_to_the_user_that_the_configuration_names() {
    const OTHER: u32 = 12345;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("xfrm.sock");
    match XfrmSocket::bind(&path, Some(OTHER)) {
        Ok(_socket) => {
            assert_eq!(std::fs::symlink_metadata(&path).unwrap().uid(), OTHER);
            assert_eq!(mode_of(&path), 0o600);
        }
        Err(error) => {
            assert!(error.to_string().contains("cannot be given to user 12345: start the gateway as root"));
            assert!(!path.exists(), "nothing is left");
        }
    }
}
