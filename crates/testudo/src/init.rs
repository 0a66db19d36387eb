//! `testudo init`.

use crate::cli::ConfigArgs;
use crate::exit::{Failure, Kind, failure};
use crate::out::outln;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use testudo_control::Store;
use testudo_control::config::Configuration;

/// Reads a configuration without its keys.
pub fn parse(path: &Path) -> Result<Configuration, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Failure::new(Kind::Configuration, format!("{}: {e}", path.display())))?;
    Configuration::parse(&text, &path.to_string_lossy())
        .map_err(|e| Failure::new(Kind::Configuration, format!("the configuration has errors\n{e}")))
}

/// Creates the durable store, once.
pub fn init(args: &ConfigArgs) -> Result<(), Failure> {
    let configuration = parse(&args.config)?;
    let state = &configuration.gateway.state;
    if let Some(parent) = state.parent().filter(|p| !p.as_os_str().is_empty()) {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent);
        made.map_err(|e| Failure::new(Kind::State, format!("{}: {e}", parent.display())))?;
    }
    Store::create(state).map_err(failure(Kind::State))?;
    outln!("created {}; do not restore it from a backup: sequence numbers would come again", state.display());
    Ok(())
}
