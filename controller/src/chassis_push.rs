//! A switch's ports, given to Stratum over gNMI.

use std::time::Duration;

use tokio::time::timeout;
use tonic::{Code, Status};
use ultima_gnmi::v0::g_nmi_client::GNmiClient;
use ultima_gnmi::v0::typed_value::Value;
use ultima_gnmi::v0::{Path, SetRequest, TypedValue, Update};
use ultima_p4runtime::{text, transport};

use crate::chassis::{self, ChassisError};
use crate::fabric::Switch;

/// How long a switch may take: a Tofino whose ports change is set up anew.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Why a switch has not taken its ports.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// They cannot be told.
    #[error(transparent)]
    Chassis(#[from] ChassisError),
    /// Nobody answers there.
    #[error(
        "switch {switch} at {address} doesn't answer: {reason}; see whether Stratum runs there"
    )]
    NoAnswer {
        /// The switch's name.
        switch: String,
        /// Where it should be.
        address: String,
        /// What was seen instead.
        reason: String,
    },
    /// It does not take them.
    #[error("switch {switch} refuses its ports: {code:?}: {message}")]
    Refused {
        /// The switch's name.
        switch: String,
        /// gRPC's code.
        code: Code,
        /// What it says.
        message: String,
    },
}

/// Has Stratum at a switch's address take [its ports](chassis::stratum), as a replacement of gNMI's root, and keep them: it writes them to its
/// own file, and sets those up that are others (`yang_parse_tree_paths.cc`, `SetUpRoot`, takes the configuration as text in `bytes_val`). It
/// first tries the bytes as a message in binary form, for which nobody takes this text: it begins with `d`, of `description`, which in that form
/// ends a group that has not begun.
///
/// # Errors
/// The ports cannot be told to Stratum, nobody answers, or the switch does not take them.
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
    let silent = |_| no_answer(format!("nothing came in {PATIENCE:?}"));
    timeout(PATIENCE, pushed).await.map_err(silent)??;
    Ok(())
}
