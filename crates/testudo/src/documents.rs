//! Man pages and completions, generated from the command line.

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::exit::{Failure, Kind};
use clap::CommandFactory;

/// Prints a completion script.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "testudo", &mut script);
    crate::out::write(&String::from_utf8_lossy(&script));
    Ok(())
}

/// Writes testudo.1 and a page for each verb.
pub fn man_pages(args: &ManArgs) -> Result<(), Failure> {
    // Unlike the other files that the program writes, these are for everybody to read.
    rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
    let error = |e: std::io::Error| Failure::new(Kind::Other, format!("{}: {e}", args.directory.display()));
    std::fs::create_dir_all(&args.directory).map_err(error)?;
    clap_mangen::generate_to(Cli::command(), &args.directory).map_err(error)
}
