//! `ultima completions` and `ultima man`: what shells and man know of the command line.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::CommandFactory;
use clap_complete::CompleteEnv;
use clap_complete::env::Shells;

use crate::exit::InputErrors as _;
use ultima_console::output;

/// The environment variable with which a shell's script asks the program to complete a line.
const ASKED: &str = "ULTIMA_COMPLETE";

/// Print a shell completion script
///
/// The shell then completes commands and options, and asks the controller for the names of objects.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
        source <(ultima completions bash)\n  \
        ultima completions fish > ~/.config/fish/completions/ultima.fish")]
pub struct Arguments {
    /// Shell
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(Shells::builtins().names()))]
    shell: String,
}

/// Prints the script.
pub fn run(arguments: &Arguments) -> Result<()> {
    let shells = Shells::builtins();
    let shell = shells
        .completer(&arguments.shell)
        .context("a known shell")?;
    let mut script = Vec::new();
    shell.write_registration(ASKED, "ultima", "ultima", "ultima", &mut script)?;
    output::print(&String::from_utf8(script)?)?;
    Ok(())
}

/// Completes a line and ends the process, if a shell's script asks for that.
pub fn complete_if_asked() {
    CompleteEnv::with_factory(crate::Arguments::command)
        .var(ASKED)
        .complete();
}

/// Write man pages, one for each command
#[derive(clap::Args)]
#[command(after_help = "Example: ultima man /usr/local/share/man/man1")]
pub struct ManArguments {
    /// Existing folder for the pages: ultima.1, ultima-job.1 and so on
    folder: PathBuf,
}

/// Writes the pages.
pub fn write_man_pages(arguments: &ManArguments) -> Result<()> {
    let folder = &arguments.folder;
    let place = || folder.display().to_string();
    std::fs::read_dir(folder).with_context(place).input()?;
    clap_mangen::generate_to(crate::Arguments::command(), folder).with_context(place)
}
