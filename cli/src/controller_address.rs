//! The `--controller` option of all commands that talk to a controller.

use std::path::PathBuf;

use anyhow::{Result, bail};
use ultima_api::address::DEFAULT_LISTEN;
use ultima_api::client::Client;
use ultima_grpc::tls::{ClientTls, IdentityFiles};

use ultima_console::units;

/// The environment variable for `--controller`; `ultima lab exec` sets it.
pub const VARIABLE: &str = "ULTIMA_CONTROLLER";

/// The address of the controller, and the files for TLS to it.
#[derive(Clone, clap::Args)]
pub struct ControllerAddress {
    /// Address of the controller: HOST:PORT or unix:PATH; of several controllers, separated by commas
    #[arg(long, global = true, env = VARIABLE, value_name = "ADDR", default_value_t = DEFAULT_LISTEN.to_string(), value_parser = addresses)]
    pub controller: String,
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
    /// The client's TLS configuration; none without the options.
    ///
    /// # Errors
    /// An option is missing, or a file is not usable.
    pub fn tls(&self) -> Result<Option<ClientTls>> {
        match (&self.tls_ca, &self.tls_cert, &self.tls_key) {
            (None, None, None) => Ok(None),
            (Some(ca), Some(cert), Some(key)) => {
                let (cert, key) = (cert.clone(), key.clone());
                Ok(Some(ClientTls::load(
                    ca,
                    Some(&IdentityFiles { cert, key }),
                )?))
            }
            _ => bail!(
                "TLS needs all of --tls-ca, --tls-cert and --tls-key (ULTIMA_TLS_CA, ULTIMA_TLS_CERT, ULTIMA_TLS_KEY)"
            ),
        }
    }

    /// Connects to the controller.
    ///
    /// # Errors
    /// As [`Self::tls`]; no controller answers, or none leads in time.
    pub async fn connect(&self) -> Result<Client> {
        Ok(Client::connect_with(&self.controller, self.tls()?).await?)
    }
}

/// Checks a comma-separated list of addresses, and returns it as it is.
fn addresses(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err(format!(
            "expected HOST:PORT or unix:PATH, such as 10.0.0.2:9555; set {VARIABLE} to such an address, or unset it"
        ));
    }
    let mut each = text.split(',').map(str::trim);
    let checked = each.try_for_each(|address| units::control_address(address).map(drop));
    checked.map_err(|why| match std::env::var(VARIABLE) {
        Ok(variable) if variable == text => format!("{why}; {VARIABLE} has this value"),
        _ => why,
    })?;
    Ok(text.to_owned())
}
