//! Testudo, a VPN gateway in software: one program, many verbs.
//!
//! This crate assembles the program: it opens the ports and engines that a configuration names and hands them
//! to the control plane. A new engine or port is a new folder under `crates/engines` or `crates/ports` and a
//! line in `engines.rs` or `ports/mod.rs`.

#![forbid(unsafe_code)]

mod check;
mod cli;
mod documents;
mod eal;
mod engines;
mod exit;
mod firewall;
mod gpus;
mod host_routes;
mod ike;
mod init;
mod interface;
mod meters;
mod negotiated_routes;
mod out;
mod placement;
mod policy;
mod ports;
mod query;
mod replay;
mod reverse_path;
mod run;
mod sa;
mod sa_keys;
mod sa_list;
mod store;
mod table;
mod threading;
mod top;
mod tune;
mod vici;
mod workers;

use clap::Parser;
use cli::ike::IkeVerb;
use cli::policy::PolicyVerb;
use cli::tune::TuneVerb;
use cli::{Cli, Verb};
use std::process::ExitCode;

/// Disables core dumps for verbs that read a configuration, and keys with it.
fn protect_keys(verb: &Verb) -> Result<(), exit::Failure> {
    match verb {
        Verb::Run(_)
        | Verb::Check(_)
        | Verb::Init(_)
        | Verb::Store(_)
        | Verb::Firewall(_)
        | Verb::Replay(_)
        | Verb::Sa(cli::SaVerb::Add(_) | cli::SaVerb::Replace(_) | cli::SaVerb::Keys(_)) => {
            testudo_control::service::privileges::hide_memory().map_err(exit::failure(exit::Kind::Port))
        }
        _ => Ok(()),
    }
}

fn main() -> ExitCode {
    // Files and sockets that the program creates (control socket, state, key files) are for its user alone.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let cli = Cli::parse();
    if let Err(failure) = protect_keys(&cli.verb) {
        return failure.report();
    }
    let result = match cli.verb {
        Verb::Run(args) => run::run(&args),
        Verb::Check(args) => check::check(&args),
        Verb::Init(args) => init::init(&args),
        Verb::Store(verb) => store::store(&verb),
        Verb::Firewall(args) => firewall::firewall(&args),
        Verb::Replay(args) => replay::replay(&args),
        Verb::Status(args) => query::status(&args),
        Verb::Top(args) => top::top(&args),
        Verb::Sa(cli::SaVerb::List(args)) => sa_list::list(&args),
        Verb::Sa(cli::SaVerb::Wanted(args)) => sa::wanted(&args),
        Verb::Sa(cli::SaVerb::Add(args)) => sa::add(&args),
        Verb::Sa(cli::SaVerb::Replace(args)) => sa::replace(&args),
        Verb::Sa(cli::SaVerb::Use(args)) => sa::put_to_use(&args),
        Verb::Sa(cli::SaVerb::Delete(args)) => sa::delete(&args),
        Verb::Sa(cli::SaVerb::Keys(args)) => sa_keys::keys(&args),
        Verb::Policy(PolicyVerb::List(args)) => query::policies(&args),
        Verb::Policy(PolicyVerb::Add(args)) => policy::add(&args),
        Verb::Policy(PolicyVerb::Replace(args)) => policy::replace(&args),
        Verb::Policy(PolicyVerb::Delete(args)) => policy::delete(&args),
        Verb::Workers(args) => workers::workers(&args),
        Verb::Ike(IkeVerb::Setup(args)) => ike::setup(&args),
        Verb::Ike(IkeVerb::Status(args)) => ike::status(&args),
        Verb::Explain(args) => query::explain(&args),
        Verb::Demo(options) => return testudo_lab::demo::run(&options, engines::known()),
        Verb::Bench(args) => {
            let engines = engines::measurable(&args.options.cryptodev, args.gpu(), args.gpus());
            return args.run(engines, &gpus::of_this_machine());
        }
        Verb::Tune(TuneVerb::Check(args)) => tune::check(&args),
        Verb::Tune(TuneVerb::Apply(args)) => tune::apply(&args),
        Verb::Tune(TuneVerb::Undo(args)) => tune::undo(&args),
        Verb::Tune(TuneVerb::Sink(args)) => tune::sink(&args),
        Verb::Lab(args) => {
            let (engines, gpus) = (engines::known(), gpus::of_this_machine());
            return args.run(engines, engines::devices(args.gpu()), &gpus, meters::of_this_machine);
        }
        Verb::Completions(args) => documents::completions(&args),
        Verb::Man(args) => documents::man_pages(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
