//! The `--controller` option of all commands that talk to a controller.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use tokio::time::sleep;
use ultima_api::address::DEFAULT_LISTEN;
use ultima_api::client::{Client, ClientError};
use ultima_api::v1::Role;
use ultima_grpc::tls::{ClientTls, IdentityFiles};

use ultima_console::units;

use crate::context::{self, Context};
use crate::exit::{Exit, InputErrors as _};

/// The environment variable for `--controller`; `ultima lab exec` sets it.
pub const VARIABLE: &str = "ULTIMA_CONTROLLER";

/// The time after which a command says why it waits.
const NOTE_AFTER: Duration = Duration::from_secs(1);

/// The environment variable for `--context`.
const CONTEXT: &str = "ULTIMA_CONTEXT";

/// The address of the controller, and the files for TLS to it.
#[derive(Clone, clap::Args)]
pub struct ControllerAddress {
    /// Address of the controller: HOST:PORT or unix:PATH; of several controllers, separated by commas [env: ULTIMA_CONTROLLER] [default: the context's, else 127.0.0.1:9555]
    #[arg(long, global = true, value_name = "ADDR", value_parser = addresses)]
    controller: Option<String>,
    /// Use the controller and the TLS files of this context of ~/.config/ultima/config.yaml (ULTIMA_CONFIG), whatever ULTIMA_CONTROLLER is [env: ULTIMA_CONTEXT] [default: its `current`]
    #[arg(
        long,
        global = true,
        value_name = "NAME",
        conflicts_with = "controller",
        add = crate::context::candidates()
    )]
    context: Option<String>,
    /// Use TLS. The file has the certificates of the authorities of controllers, in PEM format
    #[arg(
        long,
        global = true,
        env = "ULTIMA_TLS_CA",
        value_name = "FILE",
        help_heading = "TLS"
    )]
    tls_ca: Option<PathBuf>,
    /// This client's certificate, which names its role; see `ultima certs --help`
    #[arg(
        long,
        global = true,
        env = "ULTIMA_TLS_CERT",
        value_name = "FILE",
        help_heading = "TLS"
    )]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert
    #[arg(
        long,
        global = true,
        env = "ULTIMA_TLS_KEY",
        value_name = "FILE",
        help_heading = "TLS"
    )]
    tls_key: Option<PathBuf>,
}

impl ControllerAddress {
    /// The given address: that of the option, or of the variable unless a context is given.
    fn given(&self) -> Result<Option<String>> {
        match (&self.controller, &self.context, env::var(VARIABLE)) {
            (Some(given), ..) => Ok(Some(given.clone())),
            (None, None, Ok(text)) => addresses(&text)
                .map(Some)
                .map_err(|why| anyhow!("invalid value '{text}' of {VARIABLE}: {why}"))
                .input(),
            _ => Ok(None),
        }
    }

    /// The context, unless the address is given.
    fn context(&self) -> Result<Option<Context>> {
        if self.given()?.is_some() {
            return Ok(None);
        }
        let variable = env::var(CONTEXT).ok().filter(|name| !name.is_empty());
        context::find(self.context.as_deref().or(variable.as_deref())).input()
    }

    /// The address; several are separated by commas.
    ///
    /// # Errors
    /// The context is unknown, or its file or address invalid.
    pub fn address(&self) -> Result<String> {
        if let Some(given) = self.given()? {
            return Ok(given);
        }
        let context = self.context()?;
        Ok(context.map_or_else(|| DEFAULT_LISTEN.to_string(), |it| it.controller))
    }

    /// The client's TLS configuration; none without the options.
    ///
    /// # Errors
    /// An option is missing, or a file is not usable. As [`Self::address`].
    pub fn tls(&self) -> Result<Option<ClientTls>> {
        let context = self.context()?;
        let of = |given: &Option<PathBuf>, context: Option<&Option<PathBuf>>| {
            given.clone().or_else(|| context.cloned().flatten())
        };
        let context = context.as_ref();
        let files = (
            of(&self.tls_ca, context.map(|it| &it.tls_ca)),
            of(&self.tls_cert, context.map(|it| &it.tls_cert)),
            of(&self.tls_key, context.map(|it| &it.tls_key)),
        );
        match files {
            (None, None, None) => Ok(None),
            (Some(ca), Some(cert), Some(key)) => {
                let files = IdentityFiles { cert, key };
                ClientTls::load(&ca, Some(&files)).map(Some).input()
            }
            _ => bail!(Exit::InvalidInput.because(
                "TLS needs all of --tls-ca, --tls-cert and --tls-key (ULTIMA_TLS_CA, ULTIMA_TLS_CERT, ULTIMA_TLS_KEY)"
            )),
        }
    }

    /// Connects to the controller.
    ///
    /// # Errors
    /// As [`Self::tls`]; no controller answers, or none leads in time.
    pub async fn connect(&self) -> Result<Client> {
        let (address, tls) = (self.address()?, self.tls()?);
        let connect = Client::connect_with(&address, tls.clone());
        let connected = beside_a_note(&address, tls.as_ref(), connect).await;
        connected.or_else(|error| self.explained(error))
    }

    /// Connects for reads, which a standby answers while no controller leads; a warning on standard error says so.
    ///
    /// # Errors
    /// As [`Self::tls`]; no controller answers.
    pub async fn connect_to_read(&self) -> Result<Client> {
        let (address, tls) = (self.address()?, self.tls()?);
        let connect = Client::connect_to_read(&address, tls.clone());
        let connected = beside_a_note(&address, tls.as_ref(), connect).await;
        let client = connected.or_else(|error| self.explained(error))?;
        if let Some(address) = client.standby() {
            eprintln!(
                "warning: no leader answers; the standby at {address} answers from the store, without the state of switches"
            );
        }
        Ok(client)
    }

    /// An error of a connection, with a hint.
    fn explained<T>(&self, error: ClientError) -> Result<T> {
        let error = anyhow::Error::from(error);
        // The user may mean the controller of a lab.
        let labs = ultima_lab::names().unwrap_or_default();
        match (labs.first(), self.given()?, Exit::of(&error)) {
            (Some(lab), None, Exit::Unavailable) => {
                let at = ultima_lab::controller_address(lab);
                let hint = format!("{error:#}; for lab {lab}: export {VARIABLE}={at}");
                Err(Exit::Unavailable.because(hint).into())
            }
            _ => Err(error),
        }
    }
}

/// Connects. If that takes long because a controller is starting, standard error says so.
async fn beside_a_note<T>(
    addresses: &str,
    tls: Option<&ClientTls>,
    connect: impl Future<Output = T>,
) -> T {
    let note = async {
        sleep(NOTE_AFTER).await;
        for address in addresses.split(',').map(str::trim) {
            let standing = Client::standing(address, tls).await;
            if standing.is_ok_and(|it| it.role() == Role::Starting) {
                eprintln!("waiting for the controller at {address}, which is starting");
            }
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        connected = connect => connected,
        () = note => unreachable!("it is pending"),
    }
}

/// Checks a comma-separated list of addresses, and returns it as it is.
pub fn addresses(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err(format!(
            "expected HOST:PORT or unix:PATH, such as 10.0.0.2:9555; set {VARIABLE} to such an address, or unset it"
        ));
    }
    let mut each = text.split(',').map(str::trim);
    each.try_for_each(|address| units::control_address(address).map(drop))?;
    Ok(text.to_owned())
}
