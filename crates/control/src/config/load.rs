//! Loads a configuration from its file, with its keys.

use super::checks::{Facts, KeyRequest};
use super::error::ConfigErrors;
use super::mask::may_be_key;
use super::model::{Configuration, Tunnel};
use super::walk::{Problem, Walker};
use super::{Draft, MAX_FILE_BYTES, too_large};
use crate::fingerprint::{Fingerprint, digest_of, fingerprint, numbers_of};
use crate::keys::{self, Environment, KeyError, KeySource};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use testudo_crypto::{KeyMaterial, NonceRule, Suite};
use zeroize::Zeroizing;

/// Spare capacity of a buffer that is read into until the end of the file.
const READ_AHEAD_BYTES: usize = 64;

/// Whether a tunnel may choose its first sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownAnswers {
    /// No: on the wire, sequence numbers would repeat under its key.
    Refuse,
    /// Yes: packets never leave files.
    Allow,
}

/// A configuration and its keys.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub configuration: Configuration,
    /// The keys of its tunnels, in the same order.
    pub keys: Vec<TunnelKeys>,
}

impl Loaded {
    /// All fingerprints under which the store remembers something of these keys.
    #[must_use]
    pub fn fingerprints(&self) -> HashSet<Fingerprint> {
        let of = |(tunnel, keys): (&Tunnel, &TunnelKeys)| {
            let (outbound, inbound) = keys.fingerprints(tunnel);
            let more = keys.more().flat_map(|key| [numbers_of(key), fingerprint(key)]);
            [keys.numbers(tunnel), outbound, inbound].into_iter().chain(more).collect::<Vec<_>>()
        };
        self.configuration.tunnels.iter().zip(&self.keys).flat_map(of).collect()
    }

    /// The fingerprints under which sequence numbers are stored, of keys whose nonces are sequence numbers.
    #[must_use]
    pub fn counter_keys(&self) -> Vec<Fingerprint> {
        let tunnels = self.configuration.tunnels.iter().zip(&self.keys);
        let is_counter =
            |(_, keys): &(&Tunnel, &TunnelKeys)| keys.outbound.suite().nonce_rule() == NonceRule::Counter;
        let of = |(tunnel, keys): (&Tunnel, &TunnelKeys)| {
            let own = keys.own_outbound.iter().map(numbers_of);
            std::iter::once(keys.numbers(tunnel)).chain(own).collect::<Vec<_>>()
        };
        tunnels.filter(is_counter).flat_map(of).collect()
    }
}

/// The keys of a tunnel; all keys in a configuration differ, but for those of a group, which are one.
#[derive(Debug, Clone)]
pub struct TunnelKeys {
    /// For the SA to the peer.
    pub outbound: KeyMaterial,
    /// For the SA from the peer.
    pub inbound: KeyMaterial,
    /// For the SAs to the peer of single workers, in their order.
    pub own_outbound: Vec<KeyMaterial>,
    /// For the other SAs from the peer, in their order.
    pub more_inbound: Vec<KeyMaterial>,
}

impl TunnelKeys {
    /// For one SA to the peer, and one from it.
    #[must_use]
    pub fn pair(outbound: KeyMaterial, inbound: KeyMaterial) -> Self {
        Self { outbound, inbound, own_outbound: Vec::new(), more_inbound: Vec::new() }
    }

    /// Those of SAs beside the first pair: towards the peer, then from it.
    pub fn more(&self) -> impl Iterator<Item = &KeyMaterial> {
        self.own_outbound.iter().chain(&self.more_inbound)
    }

    /// What the store knows the keys of its SAs by, outbound and inbound. Of a group's one key each sender
    /// uses its part alone: another Sender ID goes on with nothing.
    #[must_use]
    pub fn fingerprints(&self, tunnel: &Tunnel) -> (Fingerprint, Fingerprint) {
        (part_of(fingerprint(&self.outbound), tunnel), fingerprint(&self.inbound))
    }

    /// What the sequence numbers of its outbound SA belong to.
    #[must_use]
    pub fn numbers(&self, tunnel: &Tunnel) -> Fingerprint {
        part_of(numbers_of(&self.outbound), tunnel)
    }
}

/// The part of the key that is ours.
fn part_of(key: Fingerprint, tunnel: &Tunnel) -> Fingerprint {
    let sender = || tunnel.sender().unwrap_or(0);
    if tunnel.group().is_some() { key.of_sender(sender()) } else { key }
}

impl Configuration {
    /// Reads the file at `path` and the keys that it names.
    ///
    /// # Errors
    /// All errors, in the file and in its keys.
    pub fn load(
        path: &Path,
        known_answers: KnownAnswers,
        environment: Environment<'_>,
    ) -> Result<Loaded, ConfigErrors> {
        let name = path.to_string_lossy();
        let text = read(path, &name)?;
        let mut walker = Walker::new(&text);
        let draft = Draft::read(&mut walker, &text, &name);
        if known_answers == KnownAnswers::Refuse {
            refuse_known_answers(&mut walker, &draft.facts);
        }
        let keys = load_keys(&mut walker, &draft.facts.keys, environment);
        let (configuration, _) = draft.finish(walker, &name)?;
        let keys = keys_by_tunnel(&configuration.tunnels, keys);
        Ok(Loaded { configuration, keys })
    }
}

/// The keys of each tunnel: they were loaded in pairs, and those of single workers after all of these.
fn keys_by_tunnel(tunnels: &[Tunnel], mut loaded: Vec<KeyMaterial>) -> Vec<TunnelKeys> {
    let mut of_workers = loaded.split_off(loaded.len().min(2 * tunnels.len())).into_iter();
    let pairs = loaded.as_chunks::<2>().0.iter();
    let of_tunnel = |(tunnel, [outbound, inbound]): (&Tunnel, &[KeyMaterial; 2])| {
        let mut keys = TunnelKeys::pair(outbound.clone(), inbound.clone());
        for sas in &tunnel.worker_sas {
            keys.own_outbound.extend(sas.outbound.as_ref().and_then(|_| of_workers.next()));
            keys.more_inbound.extend(sas.inbound.as_ref().and_then(|_| of_workers.next()));
        }
        keys
    };
    tunnels.iter().zip(pairs).map(of_tunnel).collect()
}

/// The text of a configuration, zeroed when dropped: a key may have been pasted into it.
fn read(path: &Path, name: &str) -> Result<Zeroizing<String>, ConfigErrors> {
    let unreadable = |error: io::Error| {
        let help = (error.kind() == io::ErrorKind::NotFound)
            .then(|| "the examples folder has configurations to start from".to_owned());
        ConfigErrors::whole_file(name, "a readable file", error.to_string(), help)
    };
    let limit = u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX);
    let file = File::open(path).map_err(unreadable)?;
    let length = file.metadata().map_err(unreadable)?.len().min(limit);
    // Capacity for all of it and for the read that finds the end: a vector that grows leaves copies in freed
    // memory.
    let room = usize::try_from(length).unwrap_or(MAX_FILE_BYTES) + READ_AHEAD_BYTES;
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > MAX_FILE_BYTES {
        return Err(too_large(name));
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Zeroizing::new(text.to_owned())),
        Err(error) => {
            let valid = bytes.iter().take(error.valid_up_to());
            let line = 1 + valid.filter(|byte| **byte == b'\n').count();
            Err(ConfigErrors::whole_file(name, "UTF-8", format!("other bytes on line {line}"), None))
        }
    }
}

fn refuse_known_answers(walker: &mut Walker<'_>, facts: &Facts) {
    for place in &facts.known_answers {
        let problem = Problem::expected("no known answer in a gateway that runs");
        let help = "it makes sequence numbers repeat under a key; only `testudo replay` takes it";
        walker.report(&place.span, place.key.clone(), problem.help(help));
    }
}

/// Loads every requested key; reports those that cannot be loaded, and keys that occur twice.
fn load_keys(
    walker: &mut Walker<'_>,
    requests: &[KeyRequest],
    environment: Environment<'_>,
) -> Vec<KeyMaterial> {
    let mut loaded = Vec::with_capacity(requests.len());
    // Each key by itself: neither another salt nor another key of the same SA makes it a different key.
    let mut seen: HashMap<Fingerprint, &KeyRequest> = HashMap::with_capacity(requests.len());
    for request in requests {
        let Some(suite) = request.suite else { continue };
        let place = &request.source;
        match keys::load(&place.value, suite, environment) {
            Ok(material) => {
                for (key, help) in [
                    (material.key(), "two SAs under one key would repeat nonces"),
                    (material.integrity_key(), "one SA would take the packets of the other for its own"),
                ] {
                    if key.is_empty() {
                        continue;
                    }
                    let first = *seen.entry(digest_of(&[key])).or_insert(request);
                    if first.source.value != place.value {
                        let problem = Problem::expected("a key of its own for each SA");
                        let problem = problem.found(format!("the key of `{}`", first.source.key));
                        walker.report_repeated(place, &first.source, problem.help(help));
                        break;
                    }
                }
                loaded.push(material);
            }
            Err(error) => {
                let is_shown = exists(&place.value, &error) || !may_be_key(walker.text(&place.span));
                let problem = problem_of(&error, &place.value, is_shown, suite);
                walker.report(&place.span, place.key.clone(), problem);
            }
        }
    }
    loaded
}

/// Whether the source of a key exists. Only the error tells: a second look may find something else.
fn exists(source: &KeySource, error: &KeyError) -> bool {
    match source {
        KeySource::File(_) => !matches!(error, KeyError::Unreadable(_)),
        KeySource::Environment(_) => !matches!(error, KeyError::Unset),
        KeySource::Exchanged => false,
    }
}

fn problem_of(error: &KeyError, source: &KeySource, is_shown: bool, suite: Suite) -> Problem {
    let name = match source {
        _ if !is_shown => "something that may be a key (not shown)".to_owned(),
        // On one line, also if the path contains control characters.
        KeySource::File(path) => {
            format!("\"{}\"", path.display().to_string().replace(char::is_control, "\u{fffd}"))
        }
        KeySource::Environment(name) => format!("environment variable {name}"),
        KeySource::Exchanged => "a key exchange".to_owned(),
    };
    let problem = |expected: &str| Problem::expected(expected).found(format!("{name}: {error}"));
    match error {
        KeyError::Unreadable(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            problem("a key file that can be read").help(let_group_read(source))
        }
        KeyError::Unreadable(_) => problem("a key file that can be read")
            .help("relative names start at the folder of the configuration"),
        KeyError::NotRegular => problem("a regular file"),
        KeyError::Exposed { .. } => {
            problem("a key file that nobody else may read or write").help(chmod(source))
        }
        KeyError::ForeignOwner { .. } => problem("a key file that belongs to the gateway's user or to root"),
        KeyError::Unset => problem("a variable that is set"),
        KeyError::TooLong => problem("a key in hex digits"),
        KeyError::NotHex { .. } => problem("a key in hex digits"),
        KeyError::Length { expected, .. } => {
            let parts = suite.keying_material_parts();
            problem(&format!("{expected} hex digits: {parts}")).help(help_on_length(suite))
        }
        KeyError::EqualDesKeys => problem("three keys of 3DES that differ")
            .help("with two that are equal it is no better than DES (RFC 2451 2.3): make a new key"),
    }
}

/// Says which digits of a key are for what.
fn help_on_length(suite: Suite) -> String {
    let digits = [suite.key_bytes(), suite.salt_bytes(), suite.integrity_key_bytes()].map(|bytes| bytes * 2);
    match digits {
        [0, ..] => format!("{suite} does not encrypt and has an integrity key only (RFC 2410)"),
        [_, salt, 0] => {
            format!(
                "the last {salt} digits are the salt (RFC 4106 8.1, RFC 4309 7.1, RFC 4543 5.4, RFC 7634 2)"
            )
        }
        [cipher, 0, integrity] => format!(
            "{cipher} digits for the cipher, then {integrity} for the integrity algorithm (RFC 7296 2.17)"
        ),
        [cipher, salt, integrity] => format!(
            "{cipher} digits for the cipher, then {salt} for its salt (RFC 3686 5.1), then {integrity} for the \
             integrity algorithm (RFC 7296 2.17)"
        ),
    }
}

/// For a service with its own user, which cannot read root's files.
fn let_group_read(source: &KeySource) -> String {
    match source {
        KeySource::File(path) => {
            let path = path.display();
            format!("for the service's user: chgrp testudo {path} && chmod 640 {path}, as root")
        }
        KeySource::Environment(_) | KeySource::Exchanged => String::new(),
    }
}

fn chmod(source: &KeySource) -> String {
    match source {
        KeySource::File(path) => format!("chmod 600 {}", path.display()),
        KeySource::Environment(_) | KeySource::Exchanged => String::new(),
    }
}
