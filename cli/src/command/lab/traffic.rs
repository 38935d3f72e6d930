//! Hidden commands for labs and the Mininet launcher: background traffic and interface settings.

use std::net::SocketAddr;

use anyhow::Result;
use ultima_lab::flow;

/// One end of background traffic, or an interface setting.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    end: End,
}

#[derive(clap::Subcommand)]
enum End {
    /// Send to ADDRESS until killed
    Send(Flow),
    /// Receive at ADDRESS until killed
    Receive(Flow),
    /// Turn off the offloads of interfaces
    Offloads {
        /// Interfaces of this namespace
        #[arg(required = true)]
        interfaces: Vec<String>,
    },
    /// Let interfaces accept packets from the host's own address: one rank of the host sends to another through the switch
    AcceptLocal {
        /// Interfaces of this namespace
        #[arg(required = true)]
        interfaces: Vec<String>,
    },
}

#[derive(clap::Args)]
struct Flow {
    address: SocketAddr,
    /// Send UDP at this rate, in bits per second [default: TCP at any rate]
    #[arg(long)]
    udp_rate: Option<u64>,
}

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<()> {
    match arguments.end {
        End::Send(Flow { address, udp_rate }) => match udp_rate {
            Some(rate) => flow::send_udp(address, rate)?,
            None => flow::send_tcp(address),
        },
        End::Receive(Flow { address, udp_rate }) => {
            flow::receive(address, udp_rate.is_some(), || println!("receiving"))?;
        }
        End::Offloads { interfaces } => {
            for interface in interfaces {
                ultima_lab::turn_offloads_off(&interface)?;
            }
        }
        End::AcceptLocal { interfaces } => {
            for interface in interfaces {
                ultima_lab::accept_local(&interface)?;
            }
        }
    }
    Ok(())
}
