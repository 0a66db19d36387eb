//! Man pages and completions, generated from the command line.

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::exit::{Failure, Kind};
use clap::CommandFactory;

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    clap_complete::generate(args.shell, &mut Cli::command(), "testudo", &mut std::io::stdout());
    Ok(())
}

/// Writes testudo.1 and a page for each verb.
pub fn man_pages(args: &ManArgs) -> Result<(), Failure> {
    let error = |e: std::io::Error| Failure::new(Kind::Other, format!("{}: {e}", args.directory.display()));
    std::fs::create_dir_all(&args.directory).map_err(error)?;
    clap_mangen::generate_to(Cli::command(), &args.directory).map_err(error)
}
