//! The command: arguments in, text or tables out. Results go to stdout, everything about them to stderr.

mod args;
mod bench;
mod choice;
mod demo;
mod generate;
mod inspect;
mod memory;
mod methods;
mod output;
mod report;
mod run;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use args::{Cli, Command};
use output::Failure;

/// Runs the command. Exit status: 0, or 2 for anything the user can mend, or 1 for a bug.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            // Fails only if the reader is gone.
            let _ = e.print();
            return ExitCode::SUCCESS;
        }
        Err(e) => return Failure::Mendable(one_line(&e)).report(),
    };
    // The message of a panic has been printed when this returns.
    let outcome = std::panic::catch_unwind(|| match cli.command {
        None => run::run(&cli.run),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Inspect(args)) => inspect::run(&args),
        Some(Command::Methods(args)) => methods::run(&args),
        Some(Command::Bench(args)) => bench::run(&args),
    });
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => failure.report(),
        Err(_) => Failure::Bug("the command panicked".into()).report(),
    }
}

/// clap spreads an error over paragraphs; a log wants one line.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let paragraphs = text.split("\n\n").map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "));
    let kept: Vec<String> = paragraphs.filter(|p| !p.starts_with("Usage:") && !p.starts_with("For more")).collect();
    let line = kept.join("; ");
    line.strip_prefix("error: ").unwrap_or(&line).trim_end_matches("; ").to_owned()
}
