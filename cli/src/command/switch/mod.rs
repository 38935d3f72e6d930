//! `ultima switch`: runs the embedded switch, and controls running ones.

use std::process::ExitCode;

use anyhow::Result;

mod port;
mod program;
mod run;
mod server;
mod tm;
mod trace;

/// Run the embedded P4 software switch, or control a running one
///
/// The switch is a P4Runtime target for programs compiled by p4c's BMv2 backend.
///
/// Each port has queues before its egress pipeline and an emulated wire behind it, in the direction out of the switch.
/// By default wires are perfect. The options under "Queues and wires" change all ports, --tm and --wire single ports,
/// and `ultima switch tm` the ports of a running switch. Without a subcommand the switch runs until interrupted.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:\n  \
    ultima switch --grpc 127.0.0.1:9559 -i 1@veth1 -i 2@veth2\n  \
    ultima switch -i 1@unix:/run/p1.sock -i 2@unix:/run/p2.sock --loss 0.01\n  \
    ultima switch -i 1@veth1 -i 2@veth2 --wire 2:rate=1G,delay=1ms,jitter=normal:100us\n  \
    ultima switch --program a.json --p4info a.txtpb -i 1@veth1 --pcap captures\n  \
    ultima switch --emulate tofino -i 132@veth1 -i 140@veth2")]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::Options,
}

/// Commands for a running switch; without a subcommand, runs a switch.
#[derive(clap::Subcommand)]
enum Command {
    Port(port::Arguments),
    Tm(tm::Arguments),
    Trace(trace::Options),
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        None => run::run(arguments.run)?,
        Some(Command::Port(arguments)) => port::run(arguments)?,
        Some(Command::Tm(arguments)) => tm::run(arguments)?,
        Some(Command::Trace(options)) => return trace::run(&options),
    }
    Ok(ExitCode::SUCCESS)
}
