//! `testudo init`.

use crate::cli::InitArgs;
use crate::exit::{Failure, Kind, failure};
use crate::out::outln;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use testudo_control::config::{ConfigErrors, Configuration, KnownAnswers, Loaded};
use testudo_control::{LeaseStore, Store};

/// Reads a configuration without its keys.
pub fn parse(path: &Path) -> Result<Configuration, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::new(Kind::Configuration, format!("{}: {e}", path.display())))?;
    Configuration::parse(&text, &path.to_string_lossy()).map_err(|e| wrong(&e))
}

/// Creates the durable store and prints the fingerprints of the keys that it is for.
pub fn init(args: &InitArgs) -> Result<(), Failure> {
    let configuration = parse(&args.config)?;
    let environment = |name: &str| std::env::var(name).ok();
    let loaded = Configuration::load(&args.config, KnownAnswers::Allow, &environment);
    let state = &configuration.gateway.state;
    if args.fresh_keys {
        let loaded = loaded.map_err(|e| wrong(&e))?;
        if !state.exists() {
            create(state)?;
        }
        show_keys(&loaded);
        return note_fresh(state, &loaded);
    }
    create(state)?;
    match loaded {
        Ok(loaded) => show_keys(&loaded),
        Err(e) => outln!("the keys cannot be read yet: {e}"),
    }
    outln!("use this store only if no gateway ever ran with these keys and another state file");
    outln!("do not restore it from a backup: sequence numbers would be reused");
    Ok(())
}

fn wrong(errors: &ConfigErrors) -> Failure {
    Failure::new(Kind::Configuration, format!("the configuration has errors\n{errors}"))
}

fn create(state: &Path) -> Result<(), Failure> {
    if let Some(parent) = state.parent().filter(|p| !p.as_os_str().is_empty()) {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.map_err(|e| Failure::new(Kind::State, format!("{}: {e}", parent.display())))?;
    }
    Store::create(state).map_err(failure(Kind::State))?;
    outln!("created {}", state.display());
    Ok(())
}

/// Prints fingerprints, which show whether two files hold the same key. A key cannot be computed from its
/// fingerprint.
fn show_keys(loaded: &Loaded) {
    for (tunnel, keys) in loaded.configuration.tunnels.iter().zip(&loaded.keys) {
        let (outbound, inbound) = keys.fingerprints(tunnel);
        outln!(
            "tunnel {}: fingerprint of the outbound key {outbound}, of the inbound key {inbound}",
            tunnel.name
        );
    }
}

fn note_fresh(state: &Path, loaded: &Loaded) -> Result<(), Failure> {
    let fresh = loaded.counter_keys();
    if fresh.is_empty() {
        outln!(
            "no key needs to be recorded as fresh: none of these suites derives its nonces from sequence numbers alone"
        );
        return Ok(());
    }
    let store = Store::open(state).map_err(failure(Kind::State))?;
    store.note_fresh(&fresh).map_err(failure(Kind::State))?;
    fresh.iter().for_each(|key| outln!("recorded as fresh: key {key}"));
    Ok(())
}
