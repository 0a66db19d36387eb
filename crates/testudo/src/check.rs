//! `testudo check`.

use crate::cli::CheckArgs;
use crate::exit::{Failure, Kind};
use crate::out::{errln, outln};
use crate::reverse_path;
use std::path::Path;
use testudo_control::config::{Configuration, KnownAnswers};

/// Reports all errors of a configuration and its keys.
pub fn check(args: &CheckArgs) -> Result<(), Failure> {
    let environment = |name: &str| std::env::var(name).ok();
    match Configuration::load(&args.config, KnownAnswers::Allow, &environment) {
        Ok(loaded) if args.json => {
            let _ = loaded;
            outln!("[]");
            Ok(())
        }
        Ok(loaded) => {
            let (tunnels, policies) =
                (loaded.configuration.tunnels.len(), loaded.configuration.policies.len());
            outln!("{}: no errors; tunnels: {tunnels}, further policies: {policies}", args.config.display());
            let mtu = loaded.configuration.unprotected.mtu_warning(link_mtu(&loaded.configuration));
            let reverse_path = reverse_path::warning(&loaded.configuration);
            let warnings = loaded.configuration.warnings().into_iter().chain(mtu).chain(reverse_path);
            warnings.for_each(|warning| outln!("warning: {warning}"));
            if loaded.configuration.tunnels.iter().any(|t| t.known_answer.is_some()) {
                outln!("note: it sets known answers: `testudo replay` accepts it, `testudo run` does not");
            }
            Ok(())
        }
        Err(errors) if args.json => {
            outln!("{}", errors.to_json());
            Err(Failure::silent(Kind::Configuration))
        }
        Err(errors) => {
            errln!("{errors}");
            Err(Failure::silent(Kind::Configuration))
        }
    }
}

/// The MTU of the outer interface, if the configuration names one and this host has it.
fn link_mtu(configuration: &Configuration) -> Option<u32> {
    let interface = configuration.unprotected.interface.as_ref()?;
    let text = std::fs::read_to_string(Path::new("/sys/class/net").join(interface).join("mtu")).ok()?;
    text.trim().parse().ok()
}
