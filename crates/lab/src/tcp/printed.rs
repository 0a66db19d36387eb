//! What paper 001 prints of a row's setting: of the systems that it had, with Linux 2.6.11.

use super::options::Link;
use super::subject::{Protocol, Setting, Subject};

/// A figure in the paper's words.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Printed {
    pub(super) words: &'static str,
    /// Where it prints a throughput in Mbit/s.
    pub(super) mbit_s: Option<f64>,
}

const fn words(words: &'static str) -> Option<Printed> {
    Some(Printed { words, mbit_s: None })
}

const fn figure(words: &'static str, mbit_s: f64) -> Option<Printed> {
    Some(Printed { words, mbit_s: Some(mbit_s) })
}

/// What it prints of messages of this size, if anything.
pub(super) fn printed(setting: &Setting, subject: &Subject, message_bytes: u32) -> Option<Printed> {
    let protocol = subject.protocol();
    // It has plain IP, AH, ESP and both, none of them in UDP.
    if matches!(protocol, Some(Protocol::EspInUdp | Protocol::Vpe | Protocol::VpeInUdp)) {
        return None;
    }
    match (setting.link, setting.stage.name, setting.mtu()) {
        (Link::Mbit(1000), "tcp", 1500) => after_tcp(protocol),
        (Link::Mbit(1000), "coalescing" | "napi", 1500) if message_bytes < 1024 => {
            words("about 10 Mbit/s less by NAPI (5.2)")
        }
        (Link::Mbit(1000), "coalescing" | "napi", 1500) => words("50 Mbit/s more by NAPI (5.2)"),
        (Link::Mbit(1000), "mtu" | "all", 9000) => jumbo(subject),
        (Link::Mbit(1000), "none", 1500) => gigabit(protocol, message_bytes),
        (Link::Mbit(100), "none", 1500) => fast_ethernet(subject),
        (Link::Mbit(10), "none", 1500) => ethernet(subject),
        _ => None,
    }
}

/// Section 5.1.
fn after_tcp(protocol: Option<Protocol>) -> Option<Printed> {
    match protocol {
        None | Some(Protocol::Ah) => words("20 Mbit/s more by TCP's options and buffers (5.1)"),
        Some(Protocol::Esp) => words("up to 150 Mbit/s more by TCP's options and buffers (5.1)"),
        Some(_) => None,
    }
}

/// Section 5.3, figure 6.
fn jumbo(subject: &Subject) -> Option<Printed> {
    match (subject.protocol(), subject.suite()) {
        (None, _) | (Some(Protocol::Ah), Some("md5")) => figure("985 Mbit/s at the peak (figure 6)", 985.0),
        (Some(Protocol::AhAndEsp), Some("aes256-sha1")) => words("100 Mbit/s more by the MTU (figure 6)"),
        _ => None,
    }
}

/// Section 4.3, figure 4.
fn gigabit(protocol: Option<Protocol>, message_bytes: u32) -> Option<Printed> {
    match protocol {
        None if message_bytes > 256 => words("fills the link (figure 4)"),
        Some(Protocol::Esp) => figure("300 Mbit/s at most (figure 4)", 300.0),
        _ => None,
    }
}

/// Section 4.2, figure 3.
fn fast_ethernet(subject: &Subject) -> Option<Printed> {
    let suite = subject.suite().unwrap_or_default();
    match subject.protocol() {
        Some(Protocol::Esp) if suite.starts_with("3des") => {
            words("35 to 40 Mbit/s less than the others (figure 3)")
        }
        Some(_) => words("tunnel mode 3 to 5 % from transport mode (4.2)"),
        None => None,
    }
}

/// Section 4.1, figure 1.
fn ethernet(subject: &Subject) -> Option<Printed> {
    match subject.protocol() {
        Some(_) => words("fills the link; tunnel mode 3 % below transport mode (figure 1)"),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::Mode;
    use super::super::tuning::Tuning;
    use super::*;

    fn found(
        protocol: Option<(Protocol, &str)>,
        link: u32,
        mtu: u16,
        stage: &str,
        size: u32,
    ) -> Option<Printed> {
        let subject = match protocol {
            None => Subject::plain(Mode::Tunnel),
            Some((protocol, suite)) => {
                Subject::protected(protocol, protocol.protection(Mode::Tunnel, suite, "sha1"))
            }
        };
        let stages = [Tuning::Each.stages(), Tuning::All.stages()].concat();
        let stage = stages.into_iter().find(|known| known.name == stage).unwrap();
        printed(&Setting { link: Link::Mbit(link), untuned_mtu: mtu, stage }, &subject, size)
    }

    #[test]
    fn figures_stand_only_where_the_paper_has_them() {
        let esp = Some((Protocol::Esp, "aes128-sha1"));
        let mbit_s = |found: Option<Printed>| found.and_then(|printed| printed.mbit_s);
        assert_eq!(mbit_s(found(esp, 1000, 1500, "none", 64)), Some(300.0));
        assert_eq!(mbit_s(found(Some((Protocol::Ah, "md5")), 1000, 9000, "all", 32_768)), Some(985.0));
        assert_eq!(mbit_s(found(None, 1000, 9000, "all", 64)), Some(985.0));
        assert_eq!(found(None, 1000, 1500, "none", 256), None, "it fills the link with more than 256 bytes");
        assert!(found(None, 1000, 1500, "none", 512).is_some());
        assert!(found(esp, 1000, 1500, "tcp", 64).unwrap().words.contains("150"));
        assert!(found(None, 1000, 1500, "tcp", 64).unwrap().words.contains("20 Mbit/s more"));
        assert!(
            found(Some((Protocol::Esp, "3des-md5")), 100, 1500, "none", 64)
                .unwrap()
                .words
                .contains("35 to 40")
        );
        // The steps of a run of 1,500 bytes.
        for step in ["coalescing", "napi"] {
            assert_eq!(found(esp, 1000, 1500, step, 1024), words("50 Mbit/s more by NAPI (5.2)"));
            assert_eq!(found(esp, 1000, 1500, step, 512), words("about 10 Mbit/s less by NAPI (5.2)"));
            assert_eq!(found(None, 1000, 9000, step, 1024), None, "NAPI is of 1,500 bytes");
        }
        assert_eq!(mbit_s(found(None, 1000, 1500, "mtu", 1024)), Some(985.0));
        // Each setting in which it has something of ESP.
        for (link, mtu, step) in [
            (1000, 1500, "none"),
            (1000, 1500, "tcp"),
            (1000, 1500, "coalescing"),
            (1000, 1500, "napi"),
            (100, 1500, "none"),
            (10, 1500, "none"),
        ] {
            for size in [64, 1024] {
                assert!(found(esp, link, mtu, step, size).is_some(), "{link} {mtu} {step} {size}");
                for protocol in [Protocol::EspInUdp, Protocol::Vpe, Protocol::VpeInUdp] {
                    let other = found(Some((protocol, "aes128gcm16")), link, mtu, step, size);
                    assert_eq!(other, None, "it has no {protocol:?}: {link} {mtu} {step} {size}");
                }
            }
        }
        for (protocol, link, mtu) in
            [(Some((Protocol::Vpe, "aes128gcm16")), 1000, 1500), (esp, 400, 1500), (esp, 1000, 4000)]
        {
            assert_eq!(found(protocol, link, mtu, "none", 64), None);
        }
    }
}
