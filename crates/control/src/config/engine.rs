//! Reads `[engine.cryptodev]`: a device of DPDK that does cryptography.

use super::value::{self, Parsed};
use super::walk::{Problem, Section, Walker};
use toml::de::DeValue;

/// The engine's name.
pub(super) const CRYPTODEV: &str = "cryptodev";
/// Queue pairs and arguments of DPDK at most.
const MAX_QUEUE_PAIRS: u16 = 64;
const MAX_ARGUMENTS: usize = 64;

/// `[engine.cryptodev]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cryptodev {
    /// A driver of virtual devices, or a device, as DPDK's own programs take it.
    pub device: String,
    /// Queue pairs, which are used in turn.
    pub queue_pairs: u16,
    /// Keys that the device may hold at a time.
    pub keys: u32,
    /// What DPDK is started with.
    pub eal: Vec<String>,
}

/// The sections of engines: that of `cryptodev` is there if `named`, the engines in use, has its name, and
/// not otherwise.
pub(super) fn read_engine(
    root: &mut Section<'_>,
    walker: &mut Walker<'_>,
    named: Option<&[String]>,
) -> Option<Cryptodev> {
    const HEADER: &str = "[engine.cryptodev]";
    let is_named = named.map(|engines| engines.iter().any(|name| name == CRYPTODEV));
    let mut sections = match (root.table(walker, "engine"), is_named) {
        (Some(sections), _) => sections,
        (None, Some(true)) => root.absent_section(walker, "engine", HEADER),
        (None, _) => return None,
    };
    let section = sections.table(walker, CRYPTODEV);
    match (&section, is_named) {
        (None, Some(true)) => drop(sections.absent_section(walker, CRYPTODEV, HEADER)),
        (Some(section), Some(false)) => {
            let problem = Problem::expected("\"cryptodev\" in `engines` of [gateway]").found("no such name");
            let help = "name all engines in their order, for example `engines = [\"cryptodev\", \"vaes\"]`";
            walker.report(&section.span().clone(), sections.path_of(CRYPTODEV), problem.help(help));
        }
        _ => {}
    }
    let read = section.and_then(|section| read_cryptodev(section, walker));
    sections.finish(walker);
    read
}

fn read_cryptodev(mut section: Section<'_>, walker: &mut Walker<'_>) -> Option<Cryptodev> {
    let device = section.required(walker, "device", "\"crypto_aesni_mb\"", device);
    let queue_pairs = section.or_default(walker, "queue_pairs", 2, value::number_u16(1, MAX_QUEUE_PAIRS));
    let keys = section.or_default(walker, "keys", 4096, value::number_u32(16, 1 << 20));
    let eal = section.list(walker, "eal", MAX_ARGUMENTS, argument);
    section.finish(walker);
    let eal = eal.unwrap_or_default().into_iter().map(|argument| argument.value).collect();
    Some(Cryptodev { device: device?.value, queue_pairs, keys, eal })
}

/// A driver or device, with its arguments.
fn device(value: &DeValue<'_>) -> Parsed<String> {
    const WHAT: &str = "a device of DPDK's";
    let text = value::string(value, WHAT)?;
    if text.is_empty() || text.contains(char::is_whitespace) || text.len() > 256 {
        let help = "for example \"crypto_aesni_mb\", \"crypto_openssl\" or \"0000:3d:01.0\"";
        return Err(Problem::expected(WHAT).help(help));
    }
    Ok(text.to_owned())
}

fn argument(value: &DeValue<'_>) -> Parsed<String> {
    const WHAT: &str = "an argument of DPDK's, such as \"--no-huge\"";
    let text = value::string(value, WHAT)?;
    if text.contains('\0') || super::dpdk::ends_the_process(text) {
        return Err(Problem::expected(WHAT));
    }
    Ok(text.to_owned())
}
