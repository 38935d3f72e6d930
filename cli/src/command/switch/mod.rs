//! `ultima switch`: the embedded switch as a process of its own, and commands for one that runs.

use std::process::ExitCode;

use anyhow::Result;

mod port;
mod program;
mod run;
mod server;
mod tm;
mod trace;

/// Runs the embedded switch: a P4Runtime target that executes what p4c's BMv2 backend prints.
///
/// Each port has queues in front of its egress pipeline and a wire behind it, in the direction out of the
/// switch. Their settings are perfect by default; options below change those of all ports, --tm FILE and
/// --wire those of some, `ultima switch tm` those of a switch that runs.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:\n  \
    ultima switch --grpc 127.0.0.1:9559 -i 1@veth1 -i 2@veth2\n  \
    ultima switch --program ultima.json --p4info ultima.p4info.txtpb -i 1@unix:/run/p1.sock --loss 0.01\n  \
    ultima switch -i 1@veth1 -i 2@veth2 --wire 2:rate=1G,delay=1ms,jitter=normal:100us\n  \
    ultima switch --program my.json --p4info my.p4info.txtpb -i 1@pcap:in.pcap -i 2@pcap:,out.pcap --exit-when-done\n  \
    ultima switch --emulate tofino -i 132@veth1 -i 140@veth2")]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::Options,
}

/// What can be asked of a switch that runs; without any of these, one is run.
#[derive(clap::Subcommand)]
enum Command {
    Port(port::Arguments),
    Tm(tm::Arguments),
    Trace(trace::Options),
}

/// Does what was asked.
pub fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        None => run::run(arguments.run)?,
        Some(Command::Port(arguments)) => port::run(arguments)?,
        Some(Command::Tm(arguments)) => tm::run(arguments)?,
        Some(Command::Trace(options)) => return trace::run(&options),
    }
    Ok(ExitCode::SUCCESS)
}
