//! The connection of commands to a running switch.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tonic::transport::Channel;
use tonic::{Code, Status};
use ultima_grpc::tls::{ClientTls, IdentityFiles};
use ultima_grpc::transport::{endpoint, one_line, root_cause};

use crate::exit::{Exit, InputErrors as _};
use ultima_console::units;

/// The request timeout.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// The address of a running switch, and the TLS files to reach it.
#[derive(clap::Args)]
pub struct Server {
    /// Address of the running switch
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9559", value_parser = units::authority)]
    grpc: String,
    /// Use TLS; the switch's certificate must name HOST and be signed by one of these authorities (PEM)
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    ca: Option<PathBuf>,
    /// Client certificate, for a switch with --tls-ca (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"], help_heading = HEADING)]
    cert: Option<PathBuf>,
    /// Private key of --cert (PEM)
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = HEADING)]
    key: Option<PathBuf>,
}

const HEADING: &str = "TLS";

impl Server {
    /// Runs requests that must complete within [`TIMEOUT`].
    ///
    /// # Errors
    /// An error of the requests, or a timeout.
    pub fn ask<T>(&self, requests: impl Future<Output = Result<T>>) -> Result<T> {
        let runtime = crate::runtime::runtime()?;
        runtime
            .block_on(async { tokio::time::timeout(TIMEOUT, requests).await })
            .unwrap_or_else(|_| Err(self.timed_out()))
    }

    /// Connects.
    ///
    /// # Errors
    /// A TLS file is invalid, or the switch does not answer.
    pub async fn connect(&self) -> Result<Channel> {
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some(IdentityFiles {
                cert: cert.clone(),
                key: key.clone(),
            }),
            _ => None,
        };
        let load = |ca: &PathBuf| ClientTls::load(ca, identity.as_ref());
        let tls = self.ca.as_ref().map(load).transpose();
        let tls = tls.context("TLS").input()?;
        let endpoint = endpoint(&self.grpc, tls.as_ref())
            .map_err(|_| anyhow!("--grpc {}: expected HOST:PORT", self.grpc))
            .input()?;
        let connected = tokio::time::timeout(TIMEOUT, endpoint.connect()).await;
        connected.map_err(|_| self.timed_out())?.map_err(|error| {
            let over = if tls.is_some() { " over TLS" } else { "" };
            let (grpc, cause) = (&self.grpc, root_cause(&error));
            Exit::Unavailable
                .because(format!("no switch answers at {grpc}{over}: {cause}"))
                .into()
        })
    }

    /// The error for a failed call of `service`.
    pub fn failed(&self, service: &str, status: &Status) -> anyhow::Error {
        use std::error::Error as _;
        let grpc = &self.grpc;
        let said = one_line(status.message());
        match (status.source(), status.code()) {
            // The client made this status: the transport failed.
            (Some(cause), _) => {
                let cause = root_cause(cause);
                let hint = match (&self.ca, &self.cert) {
                    (None, _) => "if the switch uses TLS, pass --ca FILE",
                    (Some(_), None) => {
                        "if the switch requires a client certificate, pass --cert and --key"
                    }
                    (Some(_), Some(_)) => "the switch may not trust the authority of --cert",
                };
                Exit::Unavailable
                    .because(format!("{grpc}: the connection broke: {cause}; {hint}"))
                    .into()
            }
            (None, code @ Code::Unimplemented) => Exit::of_code(code)
                .because(format!(
                    "{grpc}: the server has no {service} service; expected a running `ultima switch`"
                ))
                .into(),
            (None, code) => {
                let said = match said.is_empty() {
                    true => code.to_string(),
                    false => said,
                };
                let exit = match code {
                    // Nothing was done: the port exists, for example.
                    Code::AlreadyExists | Code::FailedPrecondition => Exit::InvalidInput,
                    code => Exit::of_code(code),
                };
                exit.because(format!("{grpc}: {said}")).into()
            }
        }
    }

    fn timed_out(&self) -> anyhow::Error {
        Exit::Unavailable
            .because(format!("{}: no answer within {TIMEOUT:?}", self.grpc))
            .into()
    }
}
