//! Sends a switch's port configuration to Stratum over gNMI.

use tokio::time::timeout;
use tonic::{Code, Status};
use ultima_api::client::PORTS_PUSH;
use ultima_gnmi::v0::g_nmi_client::GNmiClient;
use ultima_gnmi::v0::typed_value::Value;
use ultima_gnmi::v0::{Path, SetRequest, TypedValue, Update};
use ultima_grpc::transport;
use ultima_p4runtime::text;
use ultima_planner::chassis::{self, ChassisError};
use ultima_planner::fabric::Switch;

/// Error while sending a switch's ports.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The configuration is invalid.
    #[error(transparent)]
    Chassis(#[from] ChassisError),
    /// The switch does not answer.
    #[error(
        "switch {switch} at {address} does not answer: {reason}; check that Stratum runs there"
    )]
    NoAnswer {
        /// The switch's name.
        switch: String,
        /// The switch's gNMI address.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The switch rejects the configuration.
    #[error("switch {switch} rejected its port configuration: {code:?}: {message}")]
    Refused {
        /// The switch's name.
        switch: String,
        /// The gRPC code.
        code: Code,
        /// The switch's message.
        message: String,
    },
}

/// Sends [the ports](chassis::stratum) to the Stratum at the switch's address, as a replacement of
/// gNMI's root. Stratum writes them to its own file and sets up the ports that changed
/// (`yang_parse_tree_paths.cc`, `SetUpRoot`, takes the configuration as text in `bytes_val`).
///
/// Stratum first tries to parse the bytes as a binary message. This text always fails there: its
/// first byte is `d`, of `description`, which ends a group that has not begun.
///
/// # Errors
/// Stratum does not support a port's settings, the switch does not answer, or it rejects the
/// configuration.
pub async fn push(switch: &Switch) -> Result<(), PushError> {
    let text = text::print(&chassis::stratum(switch)?);
    let root = Update {
        path: Some(Path::default()),
        val: Some(TypedValue {
            value: Some(Value::BytesVal(text.into_bytes())),
        }),
        ..Update::default()
    };
    let request = SetRequest {
        replace: vec![root],
        ..SetRequest::default()
    };
    let no_answer = |reason: String| PushError::NoAnswer {
        switch: switch.name.clone(),
        address: switch.grpc.clone(),
        reason,
    };
    let pushed = async {
        let endpoint = transport::endpoint(&switch.grpc, switch.tls.as_ref());
        let endpoint = endpoint.map_err(|error| no_answer(transport::root_cause(&error)))?;
        let channel = endpoint.connect().await;
        let channel = channel.map_err(|error| no_answer(transport::root_cause(&error)))?;
        let answer = GNmiClient::new(channel).set(request).await;
        answer.map_err(|status: Status| match status.code() {
            Code::Unavailable => no_answer(transport::one_line(status.message())),
            code => PushError::Refused {
                switch: switch.name.clone(),
                code,
                message: transport::one_line(status.message()),
            },
        })
    };
    let silent = |_| no_answer(format!("no answer within {PORTS_PUSH:?}"));
    timeout(PORTS_PUSH, pushed).await.map_err(silent)??;
    Ok(())
}
