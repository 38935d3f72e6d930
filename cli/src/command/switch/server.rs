//! The server that commands for a running switch talk to.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tonic::transport::Channel;
use tonic::{Code, Status};
use ultima_p4runtime::tls::{ClientTls, IdentityFiles};
use ultima_p4runtime::transport::{endpoint, one_line, root_cause};

use crate::exit::Exit;
use ultima_console::units;

/// How long a switch may take to answer.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Where a switch serves gRPC, and how it is spoken to.
#[derive(clap::Args)]
pub struct Server {
    /// Where the switch serves gRPC
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9559", value_parser = units::authority)]
    grpc: String,
    /// Speak TLS; the switch's certificate must name HOST and be of one of these authorities (PEM)
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    ca: Option<PathBuf>,
    /// Our own certificate, for a switch that serves known clients only (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"], help_heading = HEADING)]
    cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = HEADING)]
    key: Option<PathBuf>,
}

const HEADING: &str = "TLS";

impl Server {
    /// Runs a conversation that may take [`PATIENCE`].
    ///
    /// # Errors
    /// The conversation's, or that it took longer.
    pub fn ask<T>(&self, conversation: impl Future<Output = Result<T>>) -> Result<T> {
        let runtime = crate::command::runtime()?;
        runtime
            .block_on(async { tokio::time::timeout(PATIENCE, conversation).await })
            .unwrap_or_else(|_| Err(self.silent()))
    }

    /// Connects.
    ///
    /// # Errors
    /// A file for TLS is of no use, or nobody answers.
    pub async fn connect(&self) -> Result<Channel> {
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some(IdentityFiles {
                cert: cert.clone(),
                key: key.clone(),
            }),
            _ => None,
        };
        let load = |ca: &PathBuf| ClientTls::load(ca, identity.as_ref());
        let tls = self.ca.as_ref().map(load).transpose().context("TLS")?;
        let endpoint = endpoint(&self.grpc, tls.as_ref())
            .map_err(|_| anyhow!("--grpc {}: expected HOST:PORT", self.grpc))?;
        let connected = tokio::time::timeout(PATIENCE, endpoint.connect()).await;
        connected.map_err(|_| self.silent())?.map_err(|error| {
            let over = if tls.is_some() { " over TLS" } else { "" };
            let (grpc, cause) = (&self.grpc, root_cause(&error));
            Exit::NoAnswer
                .because(format!("no switch answers at {grpc}{over}: {cause}"))
                .into()
        })
    }

    /// What to say of a call of `service` that failed.
    pub fn failed(&self, service: &str, status: &Status) -> anyhow::Error {
        use std::error::Error as _;
        let grpc = &self.grpc;
        let said = one_line(status.message());
        match (status.source(), status.code()) {
            // Made here, not there: the transport failed.
            (Some(cause), _) => {
                let cause = root_cause(cause);
                let hint = match (&self.ca, &self.cert) {
                    (None, _) => "if it serves TLS, give --ca FILE",
                    (Some(_), None) => "if it serves known clients only, give --cert and --key",
                    (Some(_), Some(_)) => "it may not know the authority of --cert",
                };
                Exit::NoAnswer
                    .because(format!("{grpc}: the connection broke: {cause}; {hint}"))
                    .into()
            }
            (None, Code::Unimplemented) => anyhow!(
                "{grpc}: the server there has no {service}; expected an `ultima switch` that runs"
            ),
            (None, code) if said.is_empty() => anyhow!("{grpc}: {code}"),
            (None, Code::NotFound) => Exit::NotThere.because(format!("{grpc}: {said}")).into(),
            (None, _) => anyhow!("{grpc}: {said}"),
        }
    }

    fn silent(&self) -> anyhow::Error {
        Exit::NoAnswer
            .because(format!("{}: no answer within {PATIENCE:?}", self.grpc))
            .into()
    }
}
