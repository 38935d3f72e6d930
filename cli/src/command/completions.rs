//! `ultima completions`: what a shell needs to complete our commands.

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::{Shell, generate};

use ultima_console::output;

/// Prints what makes a shell complete ultima's commands and options
#[derive(clap::Args)]
#[command(after_help = "Example: source <(ultima completions bash)")]
pub struct Arguments {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut command = crate::Arguments::command();
    let mut script = Vec::new();
    generate(arguments.shell, &mut command, "ultima", &mut script);
    output::print(&String::from_utf8(script)?)?;
    Ok(())
}
