//! What labs run beside jobs, and what the Mininet launcher asks for; none of it is for people.

use std::net::SocketAddr;

use anyhow::Result;
use ultima_lab::flow;

/// One end of a fabric's own traffic.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    end: End,
}

#[derive(clap::Subcommand)]
enum End {
    /// Sends to ADDR for ever
    Send(Flow),
    /// Receives at ADDR for ever
    Receive(Flow),
    /// Turns the offloads of interfaces off
    Offloads {
        /// The interfaces, in this namespace
        #[arg(required = true)]
        interfaces: Vec<String>,
    },
    /// Has interfaces of a host take what comes from its own address: from one of its ranks, by the switch, to another
    AcceptLocal {
        /// The interfaces, in this namespace
        #[arg(required = true)]
        interfaces: Vec<String>,
    },
}

#[derive(clap::Args)]
struct Flow {
    address: SocketAddr,
    /// UDP at this rate, in bits per second; otherwise TCP
    #[arg(long)]
    udp_rate: Option<u64>,
}

/// Does it until it is killed.
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
