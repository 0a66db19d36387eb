use super::*;
use std::io::Cursor;

/// Elements of a message, in vici's bytes.
fn section(name: &str, content: &[Vec<u8>]) -> Vec<u8> {
    let length = u8::try_from(name.len()).unwrap();
    [&[1, length][..], name.as_bytes(), &content.concat(), &[2]].concat()
}

fn value(name: &str, value: &str) -> Vec<u8> {
    let lengths = (u8::try_from(name.len()).unwrap(), u16::try_from(value.len()).unwrap());
    [&[3, lengths.0][..], name.as_bytes(), &lengths.1.to_be_bytes(), value.as_bytes()].concat()
}

fn list(name: &str, item: &str) -> Vec<u8> {
    let lengths = (u8::try_from(name.len()).unwrap(), u16::try_from(item.len()).unwrap());
    [&[4, lengths.0][..], name.as_bytes(), &[5], &lengths.1.to_be_bytes(), item.as_bytes(), &[6]].concat()
}

fn child(name: &str, id: &str, spis: [&str; 2]) -> Vec<u8> {
    let values =
        [value("name", name), value("uniqueid", id), value("spi-in", spis[0]), value("spi-out", spis[1])];
    section(&format!("{name}-{id}"), &[&values[..], &[list("local-ts", "10.1.0.0/16")]].concat())
}

fn event(name: &str, id: &str, remote: &str, children: &[Vec<u8>]) -> Vec<u8> {
    let values = [value("uniqueid", id), value("remote-host", remote), section("child-sas", children)];
    [&[7, 7][..], b"list-sa", &section(name, &values)].concat()
}

fn framed(packets: &[&[u8]]) -> Vec<u8> {
    let framed = packets
        .iter()
        .map(|packet| [&u32::try_from(packet.len()).unwrap().to_be_bytes()[..], packet].concat());
    framed.collect::<Vec<_>>().concat()
}

/// Both ways of a connection: what charon will say, and what it was asked.
struct Talk(Cursor<Vec<u8>>, Vec<u8>);

impl Read for Talk {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Talk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn listed(answers: &[&[u8]]) -> io::Result<Connections> {
    Connections::list(Talk(Cursor::new(framed(answers)), Vec::new()))
}

#[test]
fn connections_are_found_by_the_spis_of_their_sas() {
    let site_b = event("site-b", "3", "192.0.2.2", &[child("net", "7", ["c0ffee01", "0a0b0c0d"])]);
    let site_c = event("site-c", "4", "192.0.2.3", &[child("lan", "8", ["c0ffee02", "0a0b0c0d"])]);
    let found = listed(&[&[5], &site_b, &site_c, &[1]]).unwrap();
    let name = |is_outbound, spi, remote: &str| {
        found.of(is_outbound, spi, remote.parse().ok()).map(ToString::to_string)
    };
    assert_eq!(name(false, 0xc0ff_ee01, "").as_deref(), Some("site-b[3] net{7}"));
    assert_eq!(name(false, 0xc0ff_ee02, "").as_deref(), Some("site-c[4] lan{8}"));
    assert_eq!(name(true, 0xc0ff_ee01, ""), None, "of the other direction");
    // Both peers have chosen one SPI.
    assert_eq!(name(true, 0x0a0b_0c0d, "192.0.2.3").as_deref(), Some("site-c[4] lan{8}"));
    assert_eq!(name(true, 0x0a0b_0c0d, "192.0.2.4"), None);
    assert_eq!(name(true, 0x0a0b_0c0d, ""), None);
}

#[test]
fn what_is_asked_is_the_event_first_and_then_the_command() {
    let mut talk = Talk(Cursor::new(framed(&[&[5], &[1]])), Vec::new());
    assert!(Connections::list(&mut talk).unwrap().by_spi.is_empty());
    assert_eq!(talk.1, framed(&[b"\x03\x07list-sa", b"\x00\x08list-sas"]));
}

#[test]
fn names_cannot_move_the_cursor_and_are_not_long() {
    let evil = event("\u{1b}[2J\n", "1", "::1", &[child(&"x".repeat(200), "2", ["1000", "1001"])]);
    let found = listed(&[&[5], &evil, &[1]]).unwrap();
    let shown = found.of(false, 0x1000, None).unwrap().to_string();
    assert_eq!(shown, format!("?[2J?[1] {}{{2}}", "x".repeat(MAX_NAME_CHARS)));
}

#[test]
fn what_is_cut_or_wrong_is_an_error_and_never_a_panic() {
    let whole = event("site-b", "3", "192.0.2.2", &[child("net", "7", ["c0ffee01", "0a0b0c0d"])]);
    // What ends after the event's name has no IKE_SA in it.
    let empty = 2 + b"list-sa".len();
    for length in (0..whole.len()).filter(|length| *length != empty) {
        assert!(listed(&[&[5], &whole[..length], &[1]]).is_err(), "cut to {length}");
    }
    let all = framed(&[&[5], &whole, &[1]]);
    for length in 0..all.len() {
        let cut = Connections::list(Talk(Cursor::new(all[..length].to_vec()), Vec::new()));
        assert!(cut.is_err(), "the stream ends after {length}");
    }
    // Any byte may be another one: an answer or an error.
    for at in 0..whole.len() {
        for byte in [0, 1, 2, 6, 0xff] {
            let mut other = whole.clone();
            other[at] = byte;
            let _ = listed(&[&[5], &other, &[1]]);
        }
    }
    assert!(listed(&[&[2]]).unwrap_err().to_string().contains("knows no such command"));
}

#[test]
fn lengths_depth_and_number_have_bounds() {
    let long = [u32::MAX.to_be_bytes().as_slice(), &[5]].concat();
    let refused = Connections::list(Talk(Cursor::new(long), Vec::new())).unwrap_err();
    assert!(refused.to_string().contains("at most 524288"), "{refused}");
    let deep = (0..100).fold(Vec::new(), |inner, _| section("x", &[inner]));
    assert!(listed(&[&[5], &[&[7, 1, b'x'][..], &deep].concat(), &[1]]).is_err());
    let mut left = 3;
    assert!(receive(&mut &framed(&[&[5]])[..], &mut left).is_ok() && left == 2);
    assert!(
        receive(&mut &framed(&[b"\x07\x01x"])[..], &mut left).unwrap_err().to_string().contains("more than")
    );
}

#[test]
fn one_that_does_not_answer_is_not_waited_for_longer_than_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vici");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let refused = Connections::ask(&path).unwrap_err();
    assert!([ErrorKind::TimedOut, ErrorKind::WouldBlock].contains(&refused.kind()), "{refused}");
    assert!(Connections::ask(&folder.path().join("none")).is_err());
}

#[test]
fn the_number_of_sas_that_are_kept_is_bounded() {
    let children: Vec<_> = (0..1000).map(|_| child("net", "7", ["1", "2"])).collect();
    let many = event("site-b", "3", "192.0.2.2", &children);
    let answers: Vec<&[u8]> = [&[5][..]].into_iter().chain([&many[..]; MAX_SAS / 2000 + 1]).collect();
    let error = listed(&answers).unwrap_err();
    assert!(error.to_string().contains("more than 262144 SAs"), "{error}");
}

#[test]
fn a_byte_now_and_then_does_not_prolong_the_time() {
    let (stream, mut charon) = UnixStream::pair().unwrap();
    charon.write_all(&[0; 8]).unwrap();
    let mut limited = Limited { stream, end: Instant::now() };
    let over = limited.read(&mut [0; 4]).unwrap_err();
    assert_eq!(over.kind(), ErrorKind::TimedOut);
}
