//! `ultima completions`: shell completion scripts.

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::{Shell, generate};

use ultima_console::output;

/// Print a shell completion script
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
        source <(ultima completions bash)\n  \
        ultima completions fish > ~/.config/fish/completions/ultima.fish")]
pub struct Arguments {
    /// Shell
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
